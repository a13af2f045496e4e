"""Slot: what one entry of a state stands for, so that the engine can make it, cut it, store it and hand it on.

A memory or an exchange declares its state as names and slots; the tensors follow from the declaration:

    per element   one number for each element of the vector: a residual, a prediction
    per tensor    one number for each tensor in it: a scale that is learnt
    per rank      one number for the vector as a whole, a tensor without dimensions: push-sum's weight

Numbers per tensor or per rank belong to a whole vector. Where a vector is cut into shards, only what is per element
can be cut with it.

>>> make({"residual": Slot(), "weight": Slot("rank", fill=1.0)}, Layout.flat(3))
{'residual': tensor([0., 0., 0.]), 'weight': tensor(1.)}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias, final

import torch
from torch import Tensor

from thinwire.core.types import Layout, State

SUM = torch.float64
"""The dtype of what two ends add to in every step, for ever.

In float32 each of them rounds in its own way, often in one direction: in the end they remember different things.
"""

Per: TypeAlias = Literal["element", "tensor", "rank"]
Resize: TypeAlias = Literal["mean", "sum", "reset", "keep"]


@final
@dataclass(frozen=True)
class Slot:
    """One entry of a state, with `fill` in all of its numbers at the start."""

    per: Per = "element"
    replicated: bool = False
    """Whether all ranks that hold a number hold the same one, so that any of them may give it to another."""
    on_resize: Resize = "mean"
    """What a rank takes when a checkpoint is loaded on another number of ranks: the mean of what they held; an equal
    share of their sum; `fill`; or its own, and `fill` on ranks that are new. What is replicated stays as it is."""
    dtype: torch.dtype = torch.float32
    fill: float = 0.0

    def shape(self, layout: Layout) -> tuple[int, ...]:
        """The shape of its tensor for a vector of this layout."""
        return {"element": (layout.numel,), "tensor": (len(layout.shapes),), "rank": ()}[self.per]

    def edges(self, layout: Layout) -> tuple[int, ...]:
        """Where the elements that each number stands for begin, and the end; not for what is per element."""
        return layout.offsets if self.per == "tensor" else (0, layout.numel)


Slots: TypeAlias = Mapping[str, Slot]


@final
class Entries(dict[str, Tensor]):
    """Some of the entries of a state. Another tensor put in the place of one would be forgotten with them.

    A name that is none of the state's is a memory's own until it has sent.
    """

    def __setitem__(self, name: str, tensor: Tensor) -> None:
        if name in self and self[name] is not tensor:  # x[name] += y sets the tensor that is there
            raise TypeError(f"state[{name!r}] = ... would be forgotten; write state[{name!r}].copy_(...)")
        super().__setitem__(name, tensor)

    def update(self, *others: Any, **more: Tensor) -> None:
        """One by one."""
        for name, tensor in dict(*others, **more).items():
            self[name] = tensor

    def __ior__(self, other: Any) -> Self:  # type: ignore[override, misc]
        self.update(other)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # copies are for whoever makes them


def make(slots: Slots, layout: Layout, device: torch.device | None = None) -> State:
    """The state of a vector at the start."""
    return {
        name: torch.full(slot.shape(layout), slot.fill, device=device, dtype=slot.dtype)
        for name, slot in slots.items()
    }


def cut(state: State, slots: Slots, start: int, stop: int) -> State:
    """The state of elements `start` to `stop`: views of what is per element, and the rest as a whole."""
    if not state:
        return {}
    return Entries((name, t[start:stop] if slots[name].per == "element" else t) for name, t in state.items())
