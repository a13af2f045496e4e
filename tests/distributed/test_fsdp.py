"""fsdp: what FSDP2 and native HSDP compute, with residuals of a shard; four ranks, all cases in one world."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fsdp_cases import BOTH, LONG, OUTER, world
from fsdp_fresh import fresh
from fsdp_hooked import hooked
from fsdp_joined import joined
from fsdp_titan import titan
from ranks import on_ranks
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torch.distributed.tensor import DTensor

from thinwire.engine.sharding import ON_CPU

NEAR = 1e-6
LOOK = (
    f"torch {torch.__version__}: FSDP2 no longer does what thinwire/engine/fsdp.py builds on; look at foreach_reduce "
    "in torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, which called the hooks that "
    "register_post_accumulate_grad_hook put on sharded parameters, after it set p.grad"
)
SENTENCES = {
    "attach": "tw.fsdp(model, optimizer, method",
    "whole": "write fully_shard(module",
    "ddp": "model.register_comm_hook",
    "2-D": "mesh=mesh['shard']) for every module, and tw.fsdp(model, optimizer, method, replicas=mesh['replicate'])",
    "nobody": "2 of 4 ranks hold a replica",
    "shards": "hold the same replica of the model together",
    "both": "has 2 dimensions",
    "number": "is no mesh and no process group",
    "gossip": "d-psgd gossips",
    "server": "ssp has a server",
    "loss": "adacomm follows the loss",
    "string": "tw.fsdp(model, optimizer, tw.method('qsgd'))",
    "differ": "the ranks of a replica differ in method: rank {first} has",
    "early": "make the optimizer from model.parameters() after it",
    "twice": "attached already",
}


def here(folder: str) -> dict[str, Any]:
    return {**world(folder, long=LONG), "fresh": fresh(), "hooked": hooked(), "joined": joined(), "titan": titan()}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    if not ON_CPU:
        pytest.skip(f"FSDP2 of torch {torch.__version__} trains on GPUs only")
    return on_ranks(here, 4, str(tmp_path_factory.mktemp("fsdp")), timeout=250.0)


pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def test_the_contract_with_torch(ranks: list[dict[str, Any]]) -> None:
    for one in ranks:
        assert one["protocol"] == {"once": True, "again": True}, LOOK


def test_names_and_arguments_of_torch_that_are_used() -> None:
    assert callable(FSDPModule.reshard), LOOK
    assert "_post_accumulate_grad_hooks" in inspect.getsource(_fsdp_collectives.foreach_reduce), LOOK
    assert {"shape", "stride", "run_check"} <= set(inspect.signature(DTensor.from_local).parameters), (
        f"torch {torch.__version__}: DTensor.from_local has other arguments; look at thinwire/engine/local.py"
    )
    assert "use_local_synchronization" in inspect.signature(dist.new_group).parameters, (
        f"torch {torch.__version__}: new_group has other arguments; look at thinwire/engine/sharded.py"
    )


def test_identity_is_what_fsdp2_and_hsdp_compute(ranks: list[dict[str, Any]]) -> None:
    for one in ranks:
        assert all(distance < NEAR for distance in one["identity"].values()), one["identity"]


def test_residuals_are_those_of_attach_on_the_same_gradients(ranks: list[dict[str, Any]]) -> None:
    assert all(one["residuals"] for one in ranks)


def test_gradients_accumulate(ranks: list[dict[str, Any]]) -> None:
    for one in ranks:
        assert one["accumulated"].pop("rounds") == 2
        assert all(distance < NEAR for distance in one["accumulated"].values())


def test_hooks_that_are_registered_later(ranks: list[dict[str, Any]]) -> None:
    for one in ranks:
        assert one["hooked"]["apart"] < NEAR
        assert one["hooked"]["calls"] == 3


def test_parameters_without_gradients(ranks: list[dict[str, Any]]) -> None:
    for one in ranks:
        assert one["unused"].pop("nobody") < NEAR
        assert one["unused"] == {"replicas equal": True, "rounds": 3}


def test_gradients_that_are_reduced_in_bfloat16(ranks: list[dict[str, Any]]) -> None:
    for one in ranks:
        found = one["mixed"]
        assert found["equal"]
        assert 0 < found["ours"] <= 2 * found["native"]


@pytest.mark.skipif(not LONG, reason="it takes long; `make test-fsdp` has it")
def test_a_compiled_model(ranks: list[dict[str, Any]]) -> None:
    assert all(one["compiled"] < NEAR for one in ranks)


def test_no_shard_takes_a_step_that_another_leaves_out(ranks: list[dict[str, Any]]) -> None:
    for rank, one in enumerate(ranks):
        found = one["broken"]
        assert found.pop("finite here") == (rank % 2 == 1)  # it is in the first shard alone
        assert found == {"same": True, "skipped": 1, "goes on": True}


def test_a_replica_may_have_more_batches_than_another(ranks: list[dict[str, Any]]) -> None:
    for one in ranks:
        assert one["joined"] == {BOTH: True, OUTER: True}


def test_an_outer_loop_goes_shard_by_shard(ranks: list[dict[str, Any]]) -> None:
    for one in ranks:
        assert all(distance < NEAR for distance in one["outer"].values()), one["outer"]


def test_training_goes_on_from_a_checkpoint_that_is_read_after_fsdp(ranks: list[dict[str, Any]]) -> None:
    for one in ranks:
        assert all(distance < NEAR for distance in one["titan"]["loaded"].values()), one["titan"]


def test_sums_over_replicas_and_passes_that_send_their_own_part(ranks: list[dict[str, Any]]) -> None:
    for one in ranks:
        found = one["titan"]
        assert found["summed"]["apart"] < NEAR
        assert found["summed"]["warnings"] == 1  # without reduce="sum", and not with it
        assert found["overflown"] == {"finite": False, "same": True, "skipped": 1, "goes on": True}
        assert found["in chunks"]["apart"] < NEAR
        assert found["in chunks"]["elements"] == 1  # of the model, in a step of two passes


def test_what_changes_after_validation_is_seen(ranks: list[dict[str, Any]]) -> None:
    for one in ranks:
        assert one["fresh"] == {"load": 0.0, "switch": 0.0}


@pytest.mark.skipif(not LONG, reason="it takes long; `make test-fsdp` has it")
@pytest.mark.parametrize("method", [BOTH, OUTER])
def test_save_and_resume_bit_for_bit(ranks: list[dict[str, Any]], method: str) -> None:
    for one in ranks:
        assert all(one[method].values()), one[method]


@pytest.mark.parametrize("name", SENTENCES)
def test_misuse_is_one_sentence(ranks: list[dict[str, Any]], name: str) -> None:
    for rank, one in enumerate(ranks):
        sentence = SENTENCES[name].format(first=rank // 2 * 2)  # of this replica
        assert sentence in one["refusals"][name], one["refusals"][name]
