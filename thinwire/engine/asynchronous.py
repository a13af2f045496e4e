"""Asynchronous models: the training loop adds its steps to a model that other threads average with the neighbours'.

After every optimizer step the parameters take the values that this model has by then. Nobody waits for a slower rank,
but detach waits until the neighbours have ended too. The order of arrivals does not repeat, so neither does a resumed
run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import torch

from thinwire.core.types import Layout
from thinwire.engine.async_pairs import AsyncPairs, edge_drivers, edges_of
from thinwire.engine.rounds import Packed, Rounds
from thinwire.engine.shared import Shared
from thinwire.exchange.pairs import Pairs

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.engine.parameters import Trained


@final
class AsyncModels(Rounds):
    """Hooks before and after the optimizer's step, and threads between them."""

    def __init__(self, packed: Packed) -> None:
        super().__init__(packed)
        self._exchange = packed.exchanger.method.exchange
        assert isinstance(self._exchange, Pairs)
        names = [item.name for bucket in packed.buckets for item in bucket.items]
        shapes = [item.shape for bucket in packed.buckets for item in bucket.items]
        self._layout = Layout(tuple(names), tuple(shapes))
        self._before: Tensor | None = None  # the model before the first local step that has not been added yet
        self._pairs: AsyncPairs | None = None
        self._shared: Shared | None = None
        for bucket in packed.buckets:
            bucket.extra = {"model": torch.zeros_like(bucket.flat)}

    def begin(self) -> None:
        """Share the common model, and start averaging it."""
        exchanger = self.packed.exchanger
        assert isinstance(self._exchange, Pairs)
        wanted = edges_of(self._exchange, exchanger.comm.size, exchanger.timeout)
        drivers = edge_drivers(exchanger.borrow(wanted), self._exchange)
        exchanger.traffic += [driver.traffic for driver in drivers]
        self._shared = Shared(self._model())
        self._pairs = AsyncPairs(
            self._exchange,
            drivers,
            self._shared,
            self._layout,
            seed=exchanger.seed,
            pace=exchanger.method.sync.every,
            beat=exchanger.timeout / 4,
            gone=exchanger.comm.gone if exchanger.drops else None,
        )
        exchanger.farewell = lambda pairs=self._pairs: pairs.stop(exchanger.timeout)
        self._pairs.start()

    def before_step(self, *, closure: bool) -> None:
        """Remember where the step starts from."""
        self.packed.skipping.look()
        if self._before is None:
            self._before = self._model()

    def save(self) -> dict[str, Any]:
        """Put the model of this rank into the buckets' `extra`; there is nothing else to save."""
        self.gather()
        for bucket in self.packed.buckets:
            bucket.extra["model"].copy_(bucket.flat)
        return {}

    @torch.no_grad()
    def load(self, saved: Mapping[str, Any], *, resized: bool) -> None:
        """Go on from the saved model of this rank, or from the mean of all on another number of ranks."""
        assert self._shared is not None
        model = torch.cat([bucket.extra["model"] for bucket in self.packed.buckets])
        with self._shared.held() as x:
            x.copy_(model)
        self._take(model)

    def report(self) -> dict[str, float]:
        """The figures of `AsyncPairs`, such as exchanges and the staleness of gradients."""
        return {} if self._pairs is None else self._pairs.report()

    def close(self, *, failed: bool = False) -> None:
        """Wait for the neighbours, unless something has failed."""
        super().close(failed=failed)
        pairs, self._pairs = self._pairs, None
        self.packed.exchanger.farewell = None
        if pairs is not None and not failed:
            self._take(pairs.stop(self.packed.exchanger.timeout))

    @torch.no_grad()
    def after_step(self) -> None:
        """Add the step to the shared model, and go on from there."""
        if self.packed.quiet():
            return
        assert self._pairs is not None
        assert self._before is not None
        exchanger = self.packed.exchanger
        self._take(self._pairs.stepped(self._model() - self._before))
        self._before = None
        exchanger.stats.elements += self._layout.numel
        exchanger.end_round()

    def _model(self) -> Tensor:
        return torch.cat([one.parameter.detach().flatten().float() for one in self._members()])

    @torch.no_grad()
    def _take(self, model: Tensor) -> None:
        for one, part in zip(self._members(), model.split(self._layout.sizes), strict=True):
            one.parameter.copy_(part.view(one.parameter.shape))

    def _members(self) -> list[Trained]:
        return [one for members in self.packed.members for one in members]
