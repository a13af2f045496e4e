"""Gradients: buckets are filled and launched as backward computes; the results are in `p.grad` when it returns.

Several wires may hear the same backward pass. When it ends, each of them first launches what it has left, and only
then does any of them wait, so that no rank waits in one wire for what another rank sends after waiting in the other.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, final

import torch
from torch.autograd import Variable

from thinwire.engine.filling import Filling, Place, adopt
from thinwire.engine.rounds import Packed, Rounds

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.engine.signal import Source


@final
class Gradients(Rounds):
    """Exchanges gradients, from hooks on every parameter."""

    def __init__(self, packed: Packed, source: Source) -> None:
        super().__init__(packed)
        self._filling = Filling(packed, source, "`with wire.no_sync():`")
        self._busy = False  # inside a backward pass that will exchange
        for number, place in enumerate(self._filling.places):
            hook = place.one.parameter.register_post_accumulate_grad_hook(_hook(weakref.ref(self), number))
            self._hooks.append(hook)

    def before_step(self, *, closure: bool) -> None:
        """Exchange now if no backward pass did, so that a rank without gradients does not stop the others."""
        if not self._filling.since_step and not closure and not self.packed.quiet():
            self._filling.begin(stepping=True)
            self._launch_rest()
            self._collect()

    def after_step(self) -> None:
        """Note that the gradients at hand have been used."""
        self._filling.since_step = 0

    def arrived(self, number: int) -> None:
        """Take a gradient that is complete, and launch the buckets that have become full."""
        if self.packed.quiet():
            return
        if not self._busy:
            self._busy = True
            self._filling.begin(stepping=self.stepping)
            Variable._execution_engine.queue_callback(self._ended)
        place = self._filling.places[number]
        p = place.one.parameter
        if place.bucket.used[place.number]:
            raise RuntimeError(
                f"{place.one.item.name} got its gradient twice in one backward pass; "
                "with activation checkpointing write checkpoint(..., use_reentrant=False)"
            )
        assert p.grad is not None
        adopt(p, self._filling.fill(place, p.grad))
        self._filling.launch_full()

    def _ended(self) -> None:
        """Backward has ended. The callback that is queued here runs after those of all other wires."""
        self._launch_rest()
        Variable._execution_engine.queue_callback(self._collect)

    @torch.no_grad()
    def _launch_rest(self) -> None:
        self._filling.launch_rest(self._late)

    def _late(self, place: Place) -> Tensor | None:
        """A gradient from an earlier backward pass that this one did not add to."""
        return place.one.parameter.grad

    @torch.no_grad()
    def _collect(self) -> None:
        self._busy = False
        for place, view in self._filling.results():
            p = place.one.parameter
            if not adopt(p, view):
                if p.grad is None:
                    p.grad = torch.empty_like(p)
                p.grad.copy_(view)
        if self.stepping:  # a closure's backward pass: the step has begun already
            self.packed.skipping.begin(self.packed.exchanger.round)


def _hook(gradients: weakref.ref[Gradients], number: int) -> Callable[[Tensor], None]:
    """A hook that keeps nothing alive: Python's collector does not see what a parameter's hooks refer to."""

    def arrived(p: Tensor) -> None:
        one = gradients()
        if one is not None:
            one.arrived(number)

    return arrived
