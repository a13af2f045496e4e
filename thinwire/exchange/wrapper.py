"""Wrapper: an exchange around another one. What it does not say itself is as the inner one says.

A fact that is forgotten here would fall back to the default of `Exchange`, and the engine would drive the inner
exchange wrongly without a word. `tests/exchange/test_facts.py` asks for every fact.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from thinwire.core.config import replaced
from thinwire.core.exchange import Exchange

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.channel import Channel
    from thinwire.core.exchange import Scope
    from thinwire.core.outline import Phase, Size
    from thinwire.core.types import Context, Layout, State


class Wrapper(Exchange):
    """Base of the exchanges around another one, for ranks that are numbered alike inside and outside."""

    @property
    @abstractmethod
    def inner(self) -> Exchange:
        """The exchange inside."""

    @property
    def hops(self) -> dict[str, Channel]:
        """The inner exchange's."""
        return self.inner.hops

    @property
    def keeps_scale(self) -> bool:
        """As the inner exchange does."""
        return self.inner.keeps_scale

    @property
    def compresses(self) -> bool:
        """As the inner exchange does."""
        return self.inner.compresses

    def halves(self, shape: tuple[int, ...]) -> bool:
        """As the inner exchange does."""
        return self.inner.halves(shape)

    @property
    def plain(self) -> Exchange:
        """As the inner exchange says."""
        return self.inner.plain

    @property
    def served(self) -> bool:
        """As the inner exchange says."""
        return self.inner.served

    @property
    def bounded(self) -> bool:
        """As the inner exchange says."""
        return self.inner.bounded

    @property
    def local_steps(self) -> bool:
        """As the inner exchange says."""
        return self.inner.local_steps

    @property
    def takes_ways(self) -> bool:
        """As the inner exchange says."""
        return self.inner.takes_ways

    @property
    def scope(self) -> Scope:
        """As the inner exchange says."""
        return self.inner.scope

    @property
    def agrees(self) -> bool:
        """As the inner exchange says."""
        return self.inner.agrees

    @property
    def remembers(self) -> bool:
        """As the inner exchange does."""
        return self.inner.remembers

    @property
    def carries_nan(self) -> bool:
        """As the inner exchange does."""
        return self.inner.carries_nan

    @property
    def limit(self) -> float:
        """That of the inner exchange."""
        return self.inner.limit

    @property
    def measurable(self) -> bool:
        """As the inner exchange says."""
        return self.inner.measurable

    @property
    def whole_tensors(self) -> bool:
        """As the inner exchange says."""
        return self.inner.whole_tensors

    @property
    def one_piece(self) -> bool:
        """As the inner exchange says."""
        return self.inner.one_piece

    @property
    def before_step(self) -> bool:
        """As the inner exchange does."""
        return self.inner.before_step

    @property
    def asynchronous(self) -> bool:
        """As the inner exchange says."""
        return self.inner.asynchronous

    @property
    def pulls(self) -> bool:
        """As the inner exchange does."""
        return self.inner.pulls

    @property
    def cannot_drop(self) -> str:
        """As the inner exchange says."""
        return self.inner.cannot_drop

    def edges(self, n: int) -> list[tuple[int, int]]:
        """Those of the inner exchange."""
        return self.inner.edges(n)

    def check(self, n: int) -> None:
        """Refuse what the inner exchange refuses."""
        self.inner.check(n)

    def rounds(self) -> tuple[tuple[float, Exchange], ...]:
        """Around those of the inner exchange."""
        return tuple((share, replaced(self, self.inner, kind)) for share, kind in self.inner.rounds())

    def groups(self, size: int) -> list[tuple[int, ...]]:
        """Those of the inner exchange."""
        return self.inner.groups(size)

    def outline(self, layout: Layout, n: int, size: Size) -> list[Phase]:
        """Its own, or that of none: an inner outline is not what a wrapper does."""
        return Exchange.outline(self, layout, n, size)

    def start(self, x: Tensor, state: State) -> None:
        """Start the inner exchange."""
        self.inner.start(x, state)

    async def begin(self, x: Tensor, state: State, ctx: Context) -> None:
        """Prepare the inner exchange."""
        await self.inner.begin(x, state, ctx)

    def penalty(self, rank: int, n: int) -> float:
        """That of the inner exchange."""
        return self.inner.penalty(rank, n)
