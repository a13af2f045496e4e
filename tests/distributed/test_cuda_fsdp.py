"""fsdp on a GPU, four ranks of gloo on one device: what FSDP2 computes there, and the same checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fsdp_cases import BOTH, OUTER, full, grid, net, sgd, shard, step, world
from ranks import on_ranks
from torch.distributed.fsdp import CPUOffloadPolicy

import thinwire as tw

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),
]
NEAR = 1e-5


def on_cuda(folder: str) -> dict[str, Any]:
    return {**world(folder, "cuda", long=True), "offloaded": offloaded()}


def offloaded() -> dict[str, float]:
    """Shards and gradients on the host, beside shards on the GPU; a second step needs what came of the first."""
    found = {}
    for method in ("sgd", BOTH, OUTER):
        models = [shard(net(), grid()["shard"], **more) for more in ({}, {"offload_policy": CPUOffloadPolicy()})]
        for model in models:
            optimizer = sgd(model)
            with tw.fsdp(model, optimizer, tw.method(method), replicas=grid()["replicate"], min_size=0):
                for number in range(2):
                    step(model, optimizer, number)
        on_gpu, on_host = (full(model).cpu() for model in models)
        found[method] = float((on_gpu - on_host).abs().max())
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(on_cuda, 4, str(tmp_path_factory.mktemp("fsdp")), timeout=250.0)


@pytest.mark.parametrize("case", ["identity", "outer"])
def test_it_is_what_fsdp2_computes(ranks: list[dict[str, Any]], case: str) -> None:
    for one in ranks:
        assert all(distance < NEAR for distance in one[case].values()), one[case]


def test_residuals_are_those_of_attach_on_the_same_gradients(ranks: list[dict[str, Any]]) -> None:
    assert all(one["residuals"] for one in ranks)


def test_loops_of_all_kinds(ranks: list[dict[str, Any]]) -> None:
    for rank, one in enumerate(ranks):
        assert one["protocol"] == {"once": True, "again": True}
        assert one["accumulated"].pop("rounds") == 2
        assert all(distance < NEAR for distance in one["accumulated"].values())
        assert one["unused"].pop("nobody") < NEAR
        assert one["unused"] == {"replicas equal": True, "rounds": 3}
        assert 0 < one["mixed"]["ours"] <= 2 * one["mixed"]["native"]
        assert one["compiled"] < NEAR
        finite = rank % 2 == 1  # what is not lies in the first shard alone
        assert one["broken"] == {"finite here": finite, "same": True, "skipped": 1, "goes on": True}


@pytest.mark.parametrize("method", ["sgd", BOTH, OUTER])
def test_shards_on_the_host(ranks: list[dict[str, Any]], method: str) -> None:
    assert all(one["offloaded"][method] < NEAR for one in ranks)


@pytest.mark.parametrize("method", [BOTH, OUTER])
def test_save_and_resume_bit_for_bit(ranks: list[dict[str, Any]], method: str) -> None:
    for one in ranks:
        assert all(one[method].values()), one[method]
