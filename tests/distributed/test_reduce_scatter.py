"""A compressed reduce-scatter inside the shard groups of FSDP2. All cases share one world of four ranks."""

from __future__ import annotations

import importlib
import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ranks import on_ranks
from scattered import LONG, RANKS, every_case
from torch import nn
from torch.distributed.fsdp import FSDPModule

from thinwire.core.payload import DAMAGED
from thinwire.engine import units
from thinwire.engine.reduce_scatter import UnitReduceScatter

TAKEN = "set_custom_reduce_scatter" in vars(FSDPModule)
NEEDED = f"FSDP2 of torch {torch.__version__} takes no reduce-scatter of one's own; that of 2.9 does"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    if not TAKEN:
        pytest.skip(NEEDED)
    return on_ranks(every_case, RANKS, str(tmp_path_factory.mktemp("inside")), timeout=360)


@pytest.fixture
def first(world: list[dict[str, Any]]) -> dict[str, Any]:
    return world[0]


@pytest.mark.timeout(400)
def test_without_compression_it_is_plain_fsdp(first: dict[str, Any]) -> None:
    found = first["as_plain_fsdp"]
    for kind in ("fsdp", "hsdp"):
        assert found[kind] < 1e-6
        assert found[f"{kind} rounds"] > 0
        assert found[f"{kind} left"] == ["DefaultReduceScatter"] * 2
        assert not found[f"{kind} private"]


def test_every_operation_and_type_that_fsdp_asks_for(first: dict[str, Any]) -> None:
    found = first["operations"]
    for op in ("avg", "sum", "premul"):
        assert found[op] < 1e-6, op
    assert 0 < found["torch.bfloat16"] < 2e-3
    assert 0 < found["torch.float16"] < 2e-3


def test_what_was_applied_and_what_is_held_back_is_what_was_computed(first: dict[str, Any]) -> None:
    """A branch is left out in the second step: its residuals wait, unless FSDP puts zeros in its place."""
    found = first["conserved"]
    assert found["exact"] < 1e-6 < found["exact lost"]
    assert found["int8"] < 1e-3 < found["int8 lost"]
    assert found["zeros"] < 1e-6
    assert found["exact idle"] == found["int8 idle"] == [False, True, False]
    assert found["zeros idle"] == [False, False, False]
    assert first["accumulated"] < 1e-6


def test_residuals_survive_a_checkpoint(world: list[dict[str, Any]]) -> None:
    for rank, one in enumerate(world):
        found = one["resumed"]
        assert found["same residuals"]
        assert found["same bits"]
        other = (rank + 1) % RANKS
        assert f"rank {rank} was given the state of rank {other}; load this rank's own file" in found["wrong rank"]
        assert "not a state of thinwire" in found["foreign"]
        assert "the state has 'scales|first.weight' of Tensor" in found["damaged"]
        assert "saved on 4 ranks, loaded on 2: their shares need all states" in found["alone"]
        assert 'write on_resize="mean" or "reset"' in found["error"]
        assert 0 < found["resized"] < 1e-3
        assert found["reset"] == 0
        assert "was saved with inside=reduce-scatter:compressor=(int:bits=3,block=32),residual=int8" in found["other"]


def test_bytes_and_memory_are_those_that_the_plan_says(world: list[dict[str, Any]]) -> None:
    for one in world:
        found = one["traffic"]
        assert found["really"] == found["planned"] == found["inside_bytes_sent"] > 0
        assert found["kept"] == found["memory"]["int8"] == found["inside_residual_bytes"] > 0
        assert found["inside_bits_per_element"] == 8 * found["really"] / found["inside_elements"]
        assert found["memory"]["none"] == 0
        assert found["memory"]["float32"] == (RANKS - 1) * found["memory"]["sharded gradient"]
        assert f"int8      {found['kept']:>14,}  <- this one" in found["plan"]


def test_a_damaged_payload_and_a_nan(world: list[dict[str, Any]]) -> None:
    assert [one["damaged"][0] for one in world] == ["", f"PayloadError: {DAMAGED}", "", ""]
    assert [one["damaged"][1] for one in world] == ["True True"] * RANKS


def test_calls_that_break_the_protocol_say_where_to_look(first: dict[str, Any]) -> None:
    late, short, biggest, double, others, twice, differ, word, whole = first["damaged"][2:]
    assert "asked for an asynchronous reduce-scatter" in late
    assert "look at foreach_reduce in torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py" in late
    assert "handed over 64 elements for 4 ranks and room for 7" in short
    assert "FSDP asked for MAX" in biggest
    assert "write MixedPrecisionPolicy(reduce_dtype=torch.float32)" in double
    assert "look at FSDPParamGroup.post_backward in torch/distributed/fsdp/_fully_shard" in others
    assert "compressed already" in twice
    assert "ranks differ in inside: rank 0 has" in differ
    assert "is not a ReduceScatter; write inside=thinwire.exchange.ReduceScatter(" in word
    assert "Linear is not sharded; write torch.distributed.fsdp.fully_shard(model)" in whole


@pytest.mark.skipif(not LONG, reason="it takes long; `make test-fsdp` has it")
def test_it_is_an_argument_of_fsdp(first: dict[str, Any]) -> None:
    found = first["through_fsdp"]
    assert found["gap"] < 1e-6
    (without, nothing), (plan, sent) = found["True"], found["False"]
    assert plan.startswith(without + "\ninside the shard groups: reduce-scatter:compressor=(identity)")
    assert nothing == 0 < sent
    assert "inside='int' is not a ReduceScatter" in found["word"]
    assert "the ranks of a replica differ in inside: rank 0 has nothing; rank 1 has {" in found["differ"]
    assert found["restored"]
    assert found["resumed"]


@pytest.mark.skipif(not TAKEN, reason=NEEDED)
def test_torch_has_the_protocol_that_is_written_down_here() -> None:
    """If this fails after a change of torch, compare thinwire/engine/reduce_scatter.py with the files it names."""
    api: Any = importlib.import_module("torch.distributed.fsdp._fully_shard._fsdp_api")
    for name in ("allocate", "__call__"):
        theirs = inspect.signature(getattr(api.ReduceScatter, name)).parameters
        ours = inspect.signature(getattr(UnitReduceScatter, name)).parameters
        assert [(p.name, p.kind) for p in theirs.values()] == [(p.name, p.kind) for p in ours.values()], (
            f"torch {torch.__version__} calls ReduceScatter.{name} in another way: look at "
            "torch/distributed/fsdp/_fully_shard/_fsdp_api.py"
        )
    assert {p.name for p in inspect.signature(FSDPModule.set_custom_reduce_scatter).parameters.values()} == {
        "self",
        "comm",
    }


@pytest.mark.parametrize("file", units.PRIVATE)
def test_a_private_name_that_is_gone_is_named(file: str) -> None:
    for gone in units.PRIVATE[file]:
        param = SimpleNamespace(**dict.fromkeys(units.PRIVATE["_fsdp_param.py"], 0))
        group = SimpleNamespace(**dict.fromkeys(units.PRIVATE["_fsdp_param_group.py"], 0))
        group.fsdp_params = [param]
        units._check(group)
        if gone == "fsdp_params":
            group.fsdp_params = []
        delattr(group if file == "_fsdp_param_group.py" else param, gone)
        with pytest.raises(RuntimeError, match=f"has no '{gone}'.*look at torch/.*{file}"):
            units._check(group)


def test_a_torch_without_the_setter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FSDPModule, "set_custom_reduce_scatter", raising=False)
    with pytest.raises(RuntimeError, match=r"torch 2\.9 has and torch .* has not; install a newer torch"):
        units.units(nn.Linear(2, 2))
