"""Settled: a method as it is after some hundred steps, for as far as gradients of the measured steps tell.

`Adapt` starts with one compressor for all tensors and chooses one for each after so many rounds, by the sum of their
gradients. Here the gradients of one step stand for that sum. What cannot be known is said in a note.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from thinwire.core.types import Key, Layout
from thinwire.engine.plan import plan_of
from thinwire.engine.schedules.adapted import decided
from thinwire.planning.record import skips

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.adapt import Adapt
    from thinwire.core.method import Method
    from thinwire.engine.plan import Item
    from thinwire.planning.company import Company


class Settled(NamedTuple):
    """The method whose rounds are forecast, and what was assumed of it."""

    method: Method
    note: str = ""


def settled(method: Method, items: Sequence[Item], grads: Mapping[str, Tensor] | None, company: Company) -> Settled:
    """By rank 0's gradients, as in training; `grads` are None where there are shapes alone. All ranks call this."""
    adapt = method.sync.adapt
    if adapt is None:
        return Settled(method, "is forecast to send every upload" if skips(method) else "")
    if grads is None:
        note = f"is forecast with {adapt.uniform.id} for all tensors: what it chooses needs gradients"
        return Settled(_with_choice(method, adapt, {}), note)
    names = [
        item.name for parcel in plan_of(method, items, None, ()).parcels if parcel.compressed for item in parcel.items
    ]
    chosen, size = _choice(adapt, {item.name: item for item in items}, names, grads, company)
    note = f"is forecast with what one step's gradients choose: {size:.2f} of the bytes of {adapt.uniform.id} for all"
    return Settled(_with_choice(method, adapt, chosen), note)


def _with_choice(method: Method, adapt: Adapt, choice: Mapping[str, int]) -> Method:
    return replace(method, exchange=adapt.chosen(method.exchange, choice), sync=replace(method.sync, adapt=None))


@torch.no_grad()
def _choice(
    adapt: Adapt, items: Mapping[str, Item], names: Sequence[str], grads: Mapping[str, Tensor], company: Company
) -> tuple[dict[str, int], float]:
    """Rank 0's, by name, and its bytes over those of the uniform one."""
    seen = (
        (grads[name], Layout((name,), (tuple(items[name].shape),)), Key(0, bucket=number))
        for number, name in enumerate(names)
    )
    options, size = company.of_first(decided(adapt, seen))
    return dict(zip(names, options, strict=True)), float(size)
