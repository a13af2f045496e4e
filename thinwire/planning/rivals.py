"""Rivals: DistributedDataParallel and two of its hooks, as contestants and as what they cost one rank alone.

DDP packs gradients, the last parameters first, into a bucket that is closed once it holds 1 MiB, and then into
buckets that are closed once they hold 25 MiB. gloo sums two of them at a time, each in a ring. The fp16 hook sums
half the bytes. The PowerSGD hook has one bucket here (on gloo it hangs with more): a sum of P and then one of Q, of
rank 4, and one of what is not worth compressing. Parameters of several types never share a bucket of DDP's, so that a
model with such is planned without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from thinwire.planning.contestant import Contestant, Sending
from thinwire.planning.script import Ask, Part, Script, Work

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import nn

    from thinwire.engine.plan import Item
    from thinwire.planning.beat import Beat

FIRST, NEXT = 1 << 20, 25 << 20  # bytes
LANES = 2  # threads of a gloo group
RANK = 4  # of PowerSGD
SMALLER = 2  # times, for a matrix to be worth compressing


Wrap = Callable[["nn.Module", "dist.ProcessGroup", "Beat | None"], "nn.Module"]


class Rival(NamedTuple):
    """How it wraps a model, in a group or with a beat in place of its sums, and what it sends."""

    wrap: Wrap
    contestant: Callable[..., Contestant]  # of a name, items, seconds spent, and the width of a number if it is not 4
    like: str  # the method that does the same to gradients


def width_of(model: nn.Module) -> int:
    """Bytes of a number that DDP sums: that of the gradients, the widest where there are several types."""
    return max(p.element_size() for p in model.parameters() if p.requires_grad)


def buckets(items: Sequence[Item], limits: Sequence[int], width: int = 4) -> list[list[Item]]:
    """As DDP packs them; the last limit holds for all further buckets."""
    found: list[list[Item]] = []
    open_: list[Item] = []
    for item in reversed(items):
        open_.append(item)
        if width * sum(one.numel for one in open_) >= limits[min(len(found), len(limits) - 1)]:
            found.append(open_)
            open_ = []
    return [*found, open_] if open_ else found


def _summed(name: str, items: Sequence[Item], overhead: float, width: int = 4, own: int = 4) -> Contestant:
    """A sum of each bucket, in numbers of `width` bytes; buckets are packed with gradients of `own` bytes."""
    sendings = tuple(
        Sending(
            tuple(item.name for item in bucket),
            (Script((Ask("ring", width * sum(item.numel for item in bucket), width, half=width == 2),)),),
        )
        for bucket in buckets(items, (FIRST, NEXT), own)
    )
    return Contestant(name, sendings, LANES, overhead=overhead, back=0.5)


def _factored(name: str, items: Sequence[Item], overhead: float, width: int = 4) -> Contestant:
    """All is one bucket, so that all computing comes after backward: before P, between P and Q, and after Q."""
    ps = qs = plain = 0
    for item in items:
        m = item.shape[0] if len(item.shape) > 1 else 1
        k = item.numel // max(1, m)
        rank = min(m, k, RANK)
        if len(item.shape) > 1 and (m + k) * rank * SMALLER < m * k:
            ps, qs = ps + width * m * rank, qs + width * k * rank
        else:
            plain += width * item.numel
    third = Work(overhead / 3)

    def ring(size: float) -> Ask:
        return Ask("ring", size, width, half=width == 2)

    rest: tuple[Part, ...] = (ring(plain),) if plain else ()
    parts: tuple[Part, ...] = (third, *rest, ring(ps), third, ring(qs), third)
    names = tuple(item.name for item in reversed(items))
    memory = sum(width * item.numel for item in items) + ps + qs
    return Contestant(name, (Sending(names, (Script(parts),)),), LANES, memory=memory)


def _ddp(net: nn.Module, group: dist.ProcessGroup, beat: Beat | None) -> nn.Module:
    wrapped = DistributedDataParallel(net, process_group=group)
    if beat is not None:
        wrapped.register_comm_hook(beat, allreduce_hook)  # what it does without a hook, but for who sums
    return wrapped


def _fp16(net: nn.Module, group: dist.ProcessGroup, beat: Beat | None) -> nn.Module:
    wrapped = DistributedDataParallel(net, process_group=group)
    wrapped.register_comm_hook(beat or group, fp16_compress_hook)
    return wrapped


def _power(net: nn.Module, group: dist.ProcessGroup, beat: Beat | None) -> nn.Module:
    megabytes = 1 + math.ceil(sum(4 * p.numel() for p in net.parameters()) / 2**20)
    wrapped = DistributedDataParallel(net, process_group=group, bucket_cap_mb=megabytes)
    state = PowerSGDState(process_group=beat or group, matrix_approximation_rank=RANK, start_powerSGD_iter=2)
    wrapped.register_comm_hook(state, powerSGD_hook)
    return wrapped


def possible(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Those of the names under which this model can be trained: the PowerSGD hook needs all in one bucket."""
    types = {p.dtype for p in model.parameters() if p.requires_grad}
    return [name for name in names if len(types) == 1 or RIVALS[name].wrap is not _power]


RIVALS: dict[str, Rival] = {
    "ddp": Rival(_ddp, lambda name, items, spent, width=4: _summed(name, items, spent, width, width), "sgd"),
    "ddp fp16": Rival(_fp16, lambda name, items, spent, width=4: _summed(name, items, spent, 2, width), "fp16"),
    "ddp powersgd-4": Rival(_power, _factored, f"powersgd:rank={RANK}"),
}
"""By the names that `thinwire bench step` has for them."""
