"""Delay-compensated ASGD: a late gradient is corrected by what the model has moved since.

    x = x - eta (g + lambda g g (x - x_sent))                       all products by element
    ms = m ms + (1 - m) g g,  lambda = lambda0 / sqrt(ms + 1e-7)    adaptive

x_sent is the model that the worker was sent; g g stands for the diagonal of the Hessian.

Reference: Zheng, Meng, Wang, Chen, Yu, Ma, Liu, "Asynchronous stochastic gradient descent with delay compensation",
ICML 2017, arXiv 1609.08326.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.server.rule import Push, Rule

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.server.book import Book

SMALL = 1e-7


@final
@dataclass(frozen=True)
class DcAsgd(Rule):
    """`lam` is lambda, or lambda0 where `m` is given."""

    name: ClassVar[str] = "dc-asgd"
    backups: ClassVar[bool] = True
    lam: float = 0.04
    m: float | None = None

    def __post_init__(self) -> None:
        if self.lam < 0 or (self.m is not None and not 0 <= self.m < 1):
            raise ValueError(f"DcAsgd(lam={self.lam}, m={self.m}): write lam >= 0 and 0 <= m < 1, or m=None")

    def init(self, workers: int) -> dict[str, Tensor]:
        """The mean of squares, once there is one."""
        return {}

    def arrived(self, push: Push, book: Book) -> None:
        """Correct, apply, answer."""
        g = push.gradient
        moved = book.x - book.backup[push.rank]
        if self.m is None:
            compensated = g + self.lam * g * g * moved
        else:
            ms = book.state.setdefault("ms", torch.zeros_like(g))
            ms.mul_(self.m).add_(g * g, alpha=1 - self.m)
            compensated = g + self.lam / (ms + SMALL).sqrt() * g * g * moved
        book.apply([push], gradient=compensated)
        book.answer(push.rank)
