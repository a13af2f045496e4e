"""Elastic averaging: a spring between every worker and a centre, which the server keeps.

    worker    x_i = x_i - eta g_i(x_i)        tau times; then it sends x_i
    server    d = alpha (x_i - c),  c = c + d
    worker    x_i = x_i - d                   from the c that the server had, which is the answer

An exchange moves both ends by the same d, so that it leaves x_1 + ... + x_n + c as it was. It is tied to a step: as
printed, the gradient of that step is the one at x_i as it was before. Where `differences` are sent, x_i less what the
server knows of it goes through the compressor; d is then made at both ends of what the server decodes, and what a
push loses is part of the next one.

Reference: Zhang, Choromanska, LeCun, "Deep learning with elastic averaging SGD", NeurIPS 2015, arXiv 1412.6651,
algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from thinwire.server.rule import Push, Rule

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import State
    from thinwire.server.book import Book
    from thinwire.server.worker import Work


@final
@dataclass(frozen=True)
class Easgd(Rule):
    """`alpha` is the share of the distance that an exchange takes away at either end."""

    name: ClassVar[str] = "easgd"
    steps: ClassVar[bool] = False
    local_steps: ClassVar[bool] = True
    before_step: ClassVar[bool] = True
    echoes: ClassVar[bool] = True
    forgets: ClassVar[bool] = True
    words: ClassVar[bool] = True
    anchor: ClassVar[str] = "centre"
    alpha: float = 0.1
    differences: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"Easgd(alpha={self.alpha}): write 0 <= alpha <= 1, such as 0.9 / workers")

    def init(self, workers: int) -> dict[int, Tensor]:
        """What is known of the x_i, where differences are sent."""
        return {}

    def arrived(self, push: Push, book: Book) -> None:
        """Move the centre, and answer with where it was."""
        x = push.gradient
        if self.differences:
            if not book.state:
                book.state |= {rank: book.x.clone() for rank in range(book.workers)}
            x = x + book.state[push.rank]
        before = book.x.clone()
        d = self.alpha * (x - before)
        if self.differences:
            book.state[push.rank] = x - d
        book.replace(before + d, [push])
        book.answer(push.rank, model=before)

    def refused(self, push: Push, book: Book) -> None:
        """A model that is not finite must not move the centre; its worker goes on alone."""
        book.drop(push)
        book.answer(push.rank, empty=True)

    def worker(self, x: Tensor, workers: int) -> State:
        """What the server knows of x_i, and the centre as it was last heard of."""
        return {"told": x.clone(), "centre": x.clone()}

    def push(self, work: Work, state: State) -> Tensor:
        """x_i, or how far it is from what the server knows."""
        return work.x - state["told"] if self.differences else work.x

    def sent(self, decoded: Tensor, state: State) -> None:
        """Follow the server."""
        state["told"].copy_(state["told"] + decoded if self.differences else decoded)

    def pull(self, x: Tensor, answer: Tensor, state: State) -> Tensor:
        """Move by the same d."""
        d = self.alpha * (state["told"] - answer)
        state["told"].sub_(d)
        state["centre"].copy_(answer + d)
        return x - d
