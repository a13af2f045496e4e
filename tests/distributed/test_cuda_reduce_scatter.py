"""The reduce-scatter of CUDA tensors, two ranks of gloo on one device: the bits of the CPU, no waits, and damage."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from nets import said
from ranks import on_ranks
from torch import Tensor

from thinwire.comm.processes import Processes
from thinwire.compressors import IntBlock
from thinwire.core.payload import DAMAGED
from thinwire.engine.reduce_scatter import Drivers, UnitReduceScatter
from thinwire.exchange import ReduceScatter

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
SIZES = {"w": 3000, "b": 17, "v": 700}


class Alone:
    """A unit without a model: tensors of `SIZES`, of which the second is now and then without a gradient."""

    name = ""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.now = SIZES

    @property
    def process_group(self) -> Any:
        return dist.group.WORLD

    def rows(self) -> dict[str, int]:
        return SIZES

    def handed_over(self, row: int) -> dict[str, int]:
        return self.now

    def watch(self) -> None:
        """Nothing changes by itself."""


def rounds(device: str, residual: Any, *, strict: bool) -> list[Tensor]:
    """Eight rounds, and what is kept in the end."""
    unit: Any = Alone(device)
    how = ReduceScatter(IntBlock(bits=4, block=128), residual=residual)
    call = UnitReduceScatter(unit, 0, how, 3, Drivers())
    inputs = []
    for step in range(8):
        n = 2 * sum(SIZES.values()) - (34 if step % 2 else 0)
        x = torch.randn(n, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        inputs.append(x.to(device))
    found = []
    try:
        for step, x in enumerate(inputs):
            if strict and step == 4:  # kernels have been compiled
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode("error")
            unit.now = {name: n for name, n in SIZES.items() if name != "b"} if step % 2 else SIZES
            out = call.allocate([x.numel() // 2], dtype=x.dtype, device=x.device)
            call(out, x, unit.process_group, dist.ReduceOp.AVG)
            found.append(out)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    call.verdicts.raise_if_sent()
    kept = [] if call.kept is None else [call.kept.read(0, tuple(SIZES))]
    return [t.cpu() for t in (*found, *kept)]


def compared() -> list[bool]:
    out = []
    for residual in ("none", "int8", "float32"):
        here, there = rounds("cpu", residual, strict=False), rounds("cuda", residual, strict=True)
        out.append(all(torch.equal(a, b) for a, b in zip(here, there, strict=True)))
    return out


def test_a_gpu_has_the_bits_of_the_cpu_and_nobody_waits_for_it() -> None:
    assert on_ranks(compared, 2) == [[True] * 3] * 2


def damaged() -> str:
    """A payload is damaged on its way to rank 1; the call queues its work all the same."""
    unit: Any = Alone("cuda")
    call = UnitReduceScatter(unit, 0, ReduceScatter(IntBlock(bits=4)), 0, Drivers())
    answer = Processes.answer

    def flipped(self: Processes, request: Any) -> Any:
        arrived = answer(self, request)
        if dist.get_rank() == 1:
            arrived[0][100] ^= 1
        return arrived

    Processes.answer = flipped  # type: ignore[method-assign]
    x = torch.ones(2 * sum(SIZES.values()), device="cuda")
    call(torch.empty(x.numel() // 2, device="cuda"), x, unit.process_group, dist.ReduceOp.AVG)
    Processes.answer = answer  # type: ignore[method-assign]
    return said(call.verdicts.raise_if_sent)


def test_damage_is_found_where_it_arrived_before_the_next_step() -> None:
    whole, broken = on_ranks(damaged, 2)
    assert whole == ""
    assert broken.startswith("PayloadError")
    assert DAMAGED in broken
