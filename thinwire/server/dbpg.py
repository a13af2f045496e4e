"""Delayed block proximal gradient: in iteration t all workers send one block of their gradients, with filters.

With R_t the block of iteration t, one of `blocks` ranges of the model that all draw alike, and n workers:

    worker    sends g_i on R_t, and the diagonal u_i of a Hessian where `curvature` names it
    server    g, h: the means of the g_i and u_i of iteration t, when all have come;  h = 1 without a curvature
              w = argmin_v l1 |v|_1 + 1/(2 eta) |w - eta g / h - v|_h^2 = soft(w - eta g / h, eta l1 / h)    on R_t

eta is the learning rate. A worker begins iteration t when all before t - tau are complete (`Sync(staleness=tau)`), so
that at most tau + 1 are under way. With h = 1 it converges where eta <= 1 / ((1 + tau) L + eps). Filters:

    kkt           an element is not sent where w = 0 and |g_i| <= kkt: if all workers' are so small, w stays zero
    skip          an element is not sent with this probability; those that are sent are divided by 1 - skip
    significant   a worker is sent an element of w only if it has moved by more than significant / (t + 1)
    cache_keys    a list of keys that was sent before is sent as its checksum

An element of R_t that nobody has sent stays as it is. With kkt, skip and significant at 0 nothing is filtered. kkt is
not exact: g counts what some workers have not sent as zero, so that w may stay zero where |mean of all g_i| > l1.

References: Li, Andersen, Park, et al., "Scaling distributed machine learning with the parameter server", OSDI 2014,
algorithm 3. Li, Andersen, Smola, Yu, "Communication efficient distributed machine learning with the parameter
server", NeurIPS 2014, for the filters and the bound on eta.

Departs from the papers: the gradient is divided by h, without which the optimum would be no fixed point where h is
not 1. A worker that is ahead is answered with the model as it is, instead of going on with what it has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

import torch

from thinwire.kernels import philox
from thinwire.server.book import by_rank, mean
from thinwire.server.keys import Keyed
from thinwire.server.prox import check_l1, soft
from thinwire.server.rule import Push, Rule
from thinwire.server.worker import Work

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.types import Key, State
    from thinwire.server.book import Book

BLOCK, SKIP = 3, 4  # hops of the noise that draws blocks and skips: not those of a compressor
FLAT = 1e-12  # an element without any curvature


@dataclass
class _Iterations:
    waiting: list[int] = field(default_factory=list)
    pending: list[Push] = field(default_factory=list)  # of iterations that are not complete
    flight: int = 1  # the most iterations that were under way at a time
    keys: int = 0  # that have come


@final
@dataclass(frozen=True)
class Dbpg(Rule):
    """The delay tau is the staleness of the method's `Sync`; `curvature` is an attribute of the parameters."""

    name: ClassVar[str] = "dbpg"
    backups: ClassVar[bool] = True
    bounded: ClassVar[bool] = True
    steps: ClassVar[bool] = False
    sparse: ClassVar[bool] = True
    forgets: ClassVar[bool] = True
    l1: float = 0.0
    blocks: int = 1
    curvature: str | None = None
    kkt: float = 0.0
    skip: float = 0.0
    significant: float = 0.0
    cache_keys: bool = True

    def __post_init__(self) -> None:
        check_l1("Dbpg", self.l1)
        if self.blocks < 1:
            raise ValueError(f"Dbpg(blocks={self.blocks}): write blocks=1 to send all of a gradient, or more")
        if not 0 <= self.kkt <= self.l1:
            raise ValueError(
                f"Dbpg(kkt={self.kkt}) with l1={self.l1}: write 0 for no filter, or a little less than l1; above it, "
                "elements that the optimum needs would never be sent"
            )
        if not 0 <= self.skip < 1:
            raise ValueError(f"Dbpg(skip={self.skip}) is no chance to be left out; write 0 <= skip < 1")
        if not self.significant >= 0:
            raise ValueError(f"Dbpg(significant={self.significant}): write 0 for no filter, or a change that matters")

    @property
    def caches_keys(self) -> bool:
        """As asked for."""
        return self.cache_keys

    @property
    def wants(self) -> tuple[str, ...]:
        """The diagonal of the Hessian, where it is named."""
        return () if self.curvature is None else (self.curvature,)

    def init(self, workers: int) -> _Iterations:
        """Iterations under way."""
        return _Iterations()

    def arrived(self, push: Push, book: Book) -> None:
        """Keep it until its iteration is complete."""
        assert push.keys is not None
        book.state.pending.append(push)
        book.state.keys += len(push.keys)
        book.state.waiting.append(push.rank)
        self._go_on(book)

    def refused(self, push: Push, book: Book) -> None:
        """Its iteration is complete without it."""
        book.drop(push)
        book.state.waiting.append(push.rank)
        self._go_on(book)

    def left(self, rank: int, book: Book) -> None:
        """Nobody waits for it."""
        self._go_on(book)

    def figures(self, book: Book) -> dict[str, float]:
        """The most iterations under way at a time, and all keys that came."""
        return {"in_flight_max": book.state.flight, "keys": book.state.keys}

    def _go_on(self, book: Book) -> None:
        now, slowest = book.state, book.slowest
        assert book.bound is not None
        for t in sorted({push.clock for push in now.pending if push.clock < slowest or book.over}):
            self._update([push for push in now.pending if push.clock == t], book)
            now.pending = [push for push in now.pending if push.clock != t]
        for rank in [rank for rank in now.waiting if book.clocks[rank] - slowest <= book.bound]:
            now.waiting.remove(rank)
            book.answer(rank, model=self._seen(rank, book))
        begun = max((book.clocks[rank] for rank in book.alive if rank not in now.waiting), default=slowest)
        now.flight = max(now.flight, begun - slowest + 1)

    def _update(self, pushes: list[Push], book: Book) -> None:
        some = by_rank(pushes)
        sent = mean(some)
        came = torch.zeros_like(book.x, dtype=torch.bool)
        for push in some:
            assert push.keys is not None
            came[push.keys] = True
        g, h = (sent, torch.ones_like(sent)) if self.curvature is None else (sent[0], sent[1].clamp(min=FLAT))
        eta = book.lr(some[-1]) / h
        book.replace(torch.where(came, soft(book.x - eta * g, eta * self.l1), book.x), some)

    def _seen(self, rank: int, book: Book) -> Tensor | None:
        """The model with what has hardly moved as the worker has it."""
        if not self.significant:
            return None
        has = book.backup[rank]
        return torch.where((book.x - has).abs() > self.significant / (book.version + 1), book.x, has)

    def places(self, key: Key, n: int) -> Tensor:
        """The block R_t, by the number of the push."""
        block = philox.first(key.fold(rank=0, hop=BLOCK)) % self.blocks
        return torch.arange(block * n // self.blocks, (block + 1) * n // self.blocks)

    def push(self, work: Work, state: State) -> Keyed:
        """The gradient on R_t, and its curvature, less what the filters leave out."""
        keys = self.places(work.key, work.x.numel()).to(work.x.device)
        g = work.gradient[keys]
        keep = torch.ones_like(g, dtype=torch.bool)
        if self.kkt:
            keep &= (work.x[keys] != 0) | (g.abs() > self.kkt)
        if self.skip:
            noise = philox.noise(work.key.fold(hop=SKIP), len(keys), keys.device)
            keep &= noise >= round(self.skip * 2**32)
        rows = [g] if self.curvature is None else [g, work.more[self.curvature][keys]]
        return Keyed(keys[keep], torch.stack([row[keep] for row in rows]) / (1 - self.skip))
