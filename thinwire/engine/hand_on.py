"""Handing on: what a rank that comes in the midst of training gets from one that is there.

    the anchor             which is also the model that it starts from
    the rest of the model  buffers, and parameters that are not trained
    the outer step         what its optimizer remembers
    the inner optimizer    its moments and learning rates
    counters               of steps and rounds

Memories of the channels are each rank's own: whoever comes has held nothing back yet.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from thinwire.core.comm import to_bytes, to_tensor

if TYPE_CHECKING:
    from thinwire.core.comm import Comm
    from thinwire.engine.schedules.outer import Outer


@torch.no_grad()
def collected(outer: Outer, model: nn.Module, more: Mapping[str, Any]) -> dict[str, Any]:
    """The state of this rank, with the entries of `more`; tensors are its own, not copies."""
    loop = outer.loop
    return {
        "anchor": outer.anchors.model(),
        "rest": {name: tensor.detach() for name, tensor in _rest(outer, model).items()},
        "outer": outer.anchors.save(),
        "inner": {} if loop.optimizer is None else loop.optimizer.state_dict(),
        "kept": loop.kept,
        "round": loop.runner.round,
        "seed": loop.runner.seed,
        **more,
    }


@torch.no_grad()
def taken(state: Mapping[str, Any], outer: Outer, model: nn.Module) -> None:
    """Take over what `collected` returned."""
    loop = outer.loop
    for bucket in loop.buckets:
        for item, view in zip(bucket.items, bucket.views, strict=True):
            view.copy_(state["anchor"][item.name])
        bucket.extra["anchor"].copy_(bucket.flat)
    loop.take()
    for name, tensor in _rest(outer, model).items():
        tensor.copy_(state["rest"][name])
    outer.anchors.load(state["outer"])
    if loop.optimizer is not None:
        loop.optimizer.load_state_dict(state["inner"])
    loop.kept = deepcopy(state["kept"])
    loop.runner.round, loop.runner.seed = state["round"], state["seed"]


def packed(state: Mapping[str, Any]) -> Tensor:
    """A state as bytes."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return to_tensor(buffer.getvalue())


def unpacked(data: Tensor) -> dict[str, Any]:
    """The inverse of `packed`."""
    state: dict[str, Any] = torch.load(io.BytesIO(to_bytes(data)), map_location="cpu", weights_only=True)
    return state


async def sent(comm: Comm, to: Sequence[int], data: Tensor) -> None:
    """Send it to each of these ranks."""
    for rank in to:
        await comm.send(rank, data)


async def received(comm: Comm, source: int) -> Tensor:
    """Take it."""
    _, data = await comm.recv(source)
    return data


def _rest(outer: Outer, model: nn.Module) -> dict[str, Tensor]:
    """What is not trained, by name."""
    trained = {id(one.parameter) for members in outer.loop.members for one in members}
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor for name, tensor in named if id(tensor) not in trained}
