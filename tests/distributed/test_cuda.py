"""CUDA tensors: over gloo they are compressed on the GPU and only payloads are staged; NCCL on one rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from battery import LAYOUT
from nets import MODELS, SUMMED_BY_THE_BACKEND, batch, equal_everywhere, exchange_twice, flat, loss, net
from ranks import on_ranks
from torch import Tensor

import thinwire as tw
from thinwire.comm.processes import Processes
from thinwire.core.method import METHODS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def both_devices(names: list[str]) -> dict[str, tuple[Tensor, str, Tensor]]:
    driver = Processes({(0, 1): dist.group.WORLD})  # type: ignore[dict-item]
    out = {}
    for name in names:
        gpu = driver.run(exchange_twice(driver.comm, name, LAYOUT, "cuda"))
        cpu = driver.run(exchange_twice(driver.comm, name, LAYOUT))
        out[name] = gpu.cpu(), gpu.device.type, cpu
    return out


@pytest.mark.parametrize("part", range(6))
def test_every_method_gives_the_bits_of_the_cpu(part: int) -> None:
    """In six parts, each of which compiles kernels for up to a minute."""
    for result in on_ranks(both_devices, 2, list(METHODS)[part::6]):
        for name, (gpu, device, cpu) in result.items():
            assert device == "cuda", name
            if name in SUMMED_BY_THE_BACKEND:
                assert torch.allclose(gpu, cpu, atol=0.05), name
            else:
                assert torch.equal(gpu, cpu), name


def trained(names: list[str]) -> dict[str, tuple[bool, float, float]]:
    out = {}
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"  # where its collectives work
    for name in names:
        model = net().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with tw.attach(model, optimizer, METHODS.parse(name), min_size=0) as wire:
            first = loss(model, _data(0)).item()
            for step in range(20):
                optimizer.zero_grad()
                loss(model, _data(step)).backward()
                optimizer.step()
            stats = wire.stats()
        out[name] = (
            equal_everywhere(flat(model).to(device)),
            loss(model, _data(0)).item() - first,
            stats["bytes_sent"],
        )
    return out


def _data(step: int) -> Any:
    return tuple(t.cuda() for t in batch(step))


@pytest.mark.parametrize("ranks", [2])
def test_attach_over_gloo(ranks: int) -> None:
    names = ["sgd", "qsgd", "ecq-sgd", "ef-signsgd", "terngrad"]
    for result in on_ranks(trained, ranks, names):
        for name, (equal, gain, sent) in result.items():
            assert equal, name
            assert gain < 0, name
            assert name == "sgd" or sent < result["sgd"][2], name


def test_models_gossip_over_gloo() -> None:
    for result in on_ranks(trained, 2, [*MODELS, "ad-psgd"]):
        for name, (_, gain, sent) in result.items():
            assert gain < 0, name
            assert sent > 0, name


def over_nccl() -> dict[str, tuple[bool, float, float]]:
    dist.destroy_process_group()
    store = dist.HashStore()
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    return trained(["sgd", "qsgd", "ef-signsgd"])


@pytest.mark.skipif(not dist.is_nccl_available(), reason="this torch has no NCCL")
def test_nccl_on_one_rank() -> None:
    (result,) = on_ranks(over_nccl, 1)
    assert all(equal and gain < 0 for equal, gain, _ in result.values())
