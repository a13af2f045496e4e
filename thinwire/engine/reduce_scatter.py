"""Compressed reduce-scatter inside the shard groups of FSDP2, through `FSDPModule.set_custom_reduce_scatter`.

FSDP calls with a flat buffer of one row per rank, on its reduce-scatter stream, and ignores what is returned. On a
CPU the call blocks backward. On a GPU with NCCL it only queues work: sizes are known, and checks of what arrived
leave flags, which are read before the optimizer's step, or at the next call of the same unit where there is none.
With gloo the thread waits once per call, for the bytes that it is to send.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.comm.processes import Processes
from thinwire.core.clock import Clock
from thinwire.core.compressor import DTYPES
from thinwire.core.types import Context, Key, Layout
from thinwire.core.verdicts import Verdicts

if TYPE_CHECKING:
    from thinwire.core.comm import Traffic
    from thinwire.engine.units import Unit
    from thinwire.exchange.reduce_scatter import ReduceScatter
    from thinwire.memory.kept import Kept


@final
class UnitReduceScatter:
    """What FSDP calls for one unit: torch's protocol `ReduceScatter`, of which nothing is inherited."""

    def __init__(self, unit: Unit, index: int, how: ReduceScatter, seed: int, drivers: Drivers) -> None:
        self.unit, self.index = unit, index
        self._how, self.seed, self._drivers = how, seed, drivers
        self.round = 0
        self.elements = 0  # that plain FSDP would have sent, of all rounds
        self.seconds: dict[str, float] = defaultdict(float)  # by what was done
        self.verdicts = Verdicts()
        self.kept: Kept | None = None
        rows, ranks = unit.rows(), dist.get_world_size(unit.process_group)
        if rows and ranks > 1:
            layout = Layout(tuple(rows), tuple((n,) for n in rows.values()))
            self.kept = how.kept(layout, ranks, unit.device)
        if self.kept is not None:
            unit.watch()

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for the buffer, or for the result."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        """Write this rank's row of the sum to `output_tensor`."""
        driver = self._drivers.of(group)
        comm = driver.comm
        _check_call(output_tensor, input_tensor, comm.size, async_op=async_op)
        self.verdicts.raise_if_sent()
        rows = input_tensor.view(comm.size, -1)
        names, layout = self._described(rows.shape[1])
        key = Key(self.seed, self.round, dist.get_rank(), self.index)
        on_gpu = self.verdicts if input_tensor.is_cuda else None
        ctx = Context(comm, layout, key, Clock(self.index), verdicts=on_gpu)
        weight = weight_of(op, comm.size)
        output_tensor.copy_(driver.run(self._how(rows.unbind(), self.kept, names, ctx, weight), ctx.clock))
        self.verdicts.send()
        self.round += 1
        self.elements += rows[0].numel() * (comm.size - 1)
        for span in ctx.clock.spans:
            self.seconds[span.what] += span.stop - span.start

    def leave(self) -> None:
        """Stop watching the unit."""
        self.unit.leave()

    def _described(self, row: int) -> tuple[tuple[str, ...], Layout]:
        """The tensors in this buffer. Nobody needs to know them where nothing is kept of them."""
        if self.kept is None:
            return (), Layout.flat(row)
        found = self.unit.handed_over(row)
        more = {name: n for name, n in found.items() if name not in self.kept.layout.names}
        if more:  # they were frozen before
            self.kept = self.kept.with_more(more)
        return tuple(found), Layout(tuple(found), tuple((n,) for n in found.values()))


@final
class Drivers:
    """One driver per process group, which several units share; FSDP calls them one after the other."""

    def __init__(self) -> None:
        self._found: dict[dist.ProcessGroup, Processes] = {}

    def of(self, group: dist.ProcessGroup) -> Processes:
        """The driver of a group, made when it is first asked for."""
        if group not in self._found:
            self._found[group] = Processes({tuple(range(dist.get_world_size(group))): group})
        return self._found[group]

    @property
    def traffic(self) -> list[Traffic]:
        """What this rank has sent, by group."""
        return [driver.traffic for driver in self._found.values()]


def weight_of(op: Any, ranks: int) -> float:
    """What a sum is multiplied by.

    >>> weight_of(dist.ReduceOp.AVG, 4), weight_of(dist.ReduceOp.SUM, 4)
    (0.25, 1.0)
    """
    kind = (op if isinstance(op, dist.ReduceOp.RedOpType) else op.op).name
    weights = {"AVG": lambda: 1.0 / ranks, "SUM": lambda: 1.0, "PREMUL_SUM": lambda: float(op.factor)}
    if kind not in weights:
        raise ValueError(
            f"FSDP asked for {kind}; a compressed reduce-scatter makes AVG, SUM and PREMUL_SUM: leave `inside` out"
        )
    return weights[kind]()


def _check_call(out: Tensor, x: Tensor, ranks: int, *, async_op: bool) -> None:
    """Compare a call with torch's protocol, so that a release that changes it is noticed."""
    if async_op:
        raise RuntimeError(
            f"FSDP of torch {torch.__version__} asked for an asynchronous reduce-scatter, for which torch 2.13 never "
            "asks; look at foreach_reduce in torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py"
        )
    if x.numel() != ranks * out.numel() or not x.is_contiguous():
        raise RuntimeError(
            f"FSDP of torch {torch.__version__} handed over {x.numel()} elements for {ranks} ranks and room for "
            f"{out.numel()}; expected one row per rank in one contiguous buffer: look at foreach_reduce in "
            "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py"
        )
    if x.dtype not in DTYPES:
        raise ValueError(
            f"gradients are reduced in {x.dtype}, which is not compressed; "
            "write MixedPrecisionPolicy(reduce_dtype=torch.float32)"
        )
