"""SPY: workers send random elements of their proximal gradient steps, and the server answers with a proximal map.

With alpha_i the share of worker i (1/n unless `shares` are given), x_i where its steps have led, and r = l1 |x|_1:

    worker    S: each element with probability p
              x_i[S] = (x - gamma g_i(x))[S], the others stay;  sends what changes of x_i on S
    server    xbar = xbar + alpha_i (what changed)                  so that xbar = sum_i alpha_i x_i, always
              x = prox of gamma r at xbar                           to that worker alone

gamma is the learning rate; it need not shrink with delays. S follows from the seed, the push and the rank, so that
values travel without their places. x_i and xbar are sums of all that was ever sent, and are kept in float64. Once
the server has found where the optimum is zero, answers are sparse too: they hold what has changed since the last one.

Reference: Grishchenko, Iutzeler, Malick, Amini, "Distributed learning with sparse communications by identification",
2020, arXiv 1812.03871.

Departs from the paper: the mask is uniform; the paper also lets it follow the support, for which it conditions the
problem anew. x_i is what the server has of it, so that a compressor may lose some of what is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.core.slots import SUM
from thinwire.kernels import philox
from thinwire.server.keys import Keyed
from thinwire.server.prox import check_l1, soft
from thinwire.server.rule import Push, Rule
from thinwire.server.worker import Work

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, State
    from thinwire.server.book import Book

HOP = 2  # of the noise that draws S: not that of a compressor


@final
@dataclass(frozen=True)
class Spy(Rule):
    """`p` is the chance of an element to be sent; `shares` are the alpha_i, which add up to 1."""

    name: ClassVar[str] = "spy"
    steps: ClassVar[bool] = False
    sparse: ClassVar[bool] = True
    forgets: ClassVar[bool] = True
    echoes: ClassVar[bool] = True
    p: float = 0.1
    l1: float = 0.0
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_l1("Spy", self.l1)
        if not 0 < self.p <= 1:
            raise ValueError(f"Spy(p={self.p}) is no chance to be sent; write p=0.1, or p=1 for all elements")
        if self.shares and not (min(self.shares) > 0 and abs(sum(self.shares) - 1) < 1e-6):
            raise ValueError(f"Spy(shares={self.shares}): write one number above 0 per worker, in all 1")

    def check(self, workers: int) -> None:
        """Everybody has a share."""
        if self.shares and len(self.shares) != workers:
            raise ValueError(f"Spy has {len(self.shares)} shares for {workers} workers; write one each")

    def init(self, workers: int) -> dict[str, Tensor]:
        """xbar, once there is one."""
        return {}

    def arrived(self, push: Push, book: Book) -> None:
        """Follow x_i, map, answer."""
        xbar = book.state.get("xbar", book.x).to(SUM, copy=True)  # float32 in states of thinwire 0.1
        xbar.add_(push.gradient, alpha=self.shares[push.rank] if self.shares else 1 / book.workers)
        book.state["xbar"] = xbar
        book.replace(soft(xbar, book.lr(push) * self.l1) if self.l1 else xbar, [push])
        book.answer(push.rank)

    def worker(self, x: Tensor, workers: int) -> State:
        """x_i, as the server has it."""
        return {"mine": x.to(SUM, copy=True)}

    def places(self, key: Key, n: int) -> Tensor:
        """S."""
        return torch.arange(n) if self.p == 1 else _drawn(key.fold(hop=HOP), n, self.p)

    def push(self, work: Work, state: State) -> Keyed:
        """What changes of x_i on S."""
        keys = self.places(work.key, work.x.numel()).to(work.x.device)
        changed = work.x - work.lr * work.gradient - state["mine"]
        return Keyed(keys, changed[None, keys].to(work.x.dtype))

    def sent(self, decoded: Tensor, state: State) -> None:
        """x_i moves on S."""
        state["mine"] += decoded


@lru_cache(maxsize=64)
def _drawn(key: Key, n: int, p: float) -> Tensor:
    """Kept, since both ends ask for it more than once."""
    noise = philox.noise(key, n, torch.device("cpu"))
    return (noise < round(p * 2**32)).nonzero().flatten()
