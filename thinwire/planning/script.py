"""Script: what a piece of work of the engine does, in order: computing, requests, waiting for another piece.

It holds no numbers of a gradient, only sizes and seconds, so that it can be replayed for any link. Sizes are written
down such that they say what happens on another number of ranks, too:

    ring      a sum of M bytes             2 (n-1)/n M sent, in 2 (n-1) rounds
    gather    c bytes to everybody         (n-1) c sent, in one round
    scatter   T bytes, a part to each      (n-1)/n T sent, in one round
    swap      c bytes to each of k peers   k c sent, in one round
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, final

import torch

from thinwire.core.comm import (
    AllGatherRequest,
    AllReduceRequest,
    AllToAllRequest,
    PostRequest,
    RecvRequest,
    Request,
    SendRequest,
    SwapRequest,
)

if TYPE_CHECKING:
    from thinwire.planning.company import Company

Kind: TypeAlias = Literal["ring", "gather", "scatter", "swap"]


class Work(NamedTuple):
    """Computing that takes `seconds` if nothing else runs, and then keeps `cores` busy."""

    seconds: float
    cores: float = 1.0
    trains: bool = False  # whether it is the training itself, and not what the exchange needs besides


class Ask(NamedTuple):
    """One request. `size` is M, c, T or c of the table above; `peers` counts those of a swap."""

    kind: Kind
    size: float
    width: int = 4  # bytes per number, where numbers are summed
    peers: float = 1
    asks: bool = False  # whether sizes are asked for first, which takes a round of its own
    half: bool = False  # whether numbers are float16

    def sent(self, n: int) -> float:
        """Bytes that a rank of `n` sends."""
        many = {"ring": 2 * (n - 1) / n, "gather": n - 1, "scatter": (n - 1) / n, "swap": self.peers}
        return many[self.kind] * self.size

    def messages(self, n: int) -> float:
        """Messages that a rank of `n` sends, those that ask for sizes apart."""
        return {"ring": 2 * (n - 1), "gather": n - 1, "scatter": n - 1, "swap": self.peers}[self.kind]

    def rounds(self, n: int) -> int:
        """Messages that wait for each other."""
        return 2 * (n - 1) if self.kind == "ring" else 1 + self.asks

    def flows(self, n: int) -> float:
        """Connections of a rank that send at the same time."""
        return {"ring": 1, "gather": n - 1, "scatter": n - 1, "swap": max(1.0, self.peers)}[self.kind]


class After(NamedTuple):
    """Wait for the end of another piece of the same bucket."""

    piece: int


Part: TypeAlias = Work | Ask | After


@final
@dataclass(frozen=True)
class Script:
    """The parts of one piece of work.

    One with a `weight`, in bytes, may be kept until more has come together (`engine/lane.py`); one without is handed
    over at once, with all that was kept.
    """

    parts: tuple[Part, ...]
    weight: int | None = None

    @property
    def shape(self) -> tuple[object, ...]:
        """What must be equal for two scripts to differ in sizes alone."""
        return tuple((part.kind, part.peers) if isinstance(part, Ask) else type(part) for part in self.parts)

    @property
    def seconds(self) -> float:
        """Of computing."""
        return sum(part.seconds for part in self.parts if isinstance(part, Work))


def asked(request: Request[object], rank: int) -> Ask | None:
    """What a request of `rank` (of its group) is to the network; None where it needs none."""
    if len(request.ranks) < 2:
        return None
    if isinstance(request, AllReduceRequest):
        return Ask("ring", request.x.nbytes, request.x.element_size(), half=request.x.dtype == torch.float16)
    if isinstance(request, AllGatherRequest):
        return Ask("gather", request.x.nbytes, asks=request.sizes is None)
    if isinstance(request, AllToAllRequest):
        return Ask("scatter", sum(x.nbytes for x in request.xs), asks=request.sizes is None)
    if isinstance(request, SwapRequest):
        return Ask("swap", request.x.nbytes, peers=len(request.peers), asks=not request.equal)
    if isinstance(request, SendRequest | PostRequest):
        return Ask("swap", request.x.nbytes, asks=True)
    return Ask("swap", 0, asks=True) if isinstance(request, RecvRequest) else None


def extended(few: tuple[int, Script], more: tuple[int, Script], n: int) -> Script:
    """The script of `n` ranks from those of fewer: computing is a line in n, messages are a line in 1/n."""
    (a, one), (b, two) = few, more
    assert one.shape == two.shape
    parts: list[Part] = []
    for x, y in zip(one.parts, two.parts, strict=True):
        if isinstance(x, Work) and isinstance(y, Work):
            seconds = y.seconds + (y.seconds - x.seconds) * (n - b) / (b - a)
            parts.append(Work(max(0.0, seconds), y.cores))
        elif isinstance(x, Ask) and isinstance(y, Ask):
            size = y.size + (y.size - x.size) * (1 / n - 1 / b) / (1 / b - 1 / a)
            parts.append(y._replace(size=max(0.0, size)))
        else:
            parts.append(y)
    return replace(two, parts=tuple(parts))


def at_most(scripts: tuple[Script, ...], share: float) -> tuple[Script, ...]:
    """Keeping no more cores busy than a rank has: all on the machine measured at once, and times hold for that."""
    return changed(scripts, lambda work: work._replace(cores=min(work.cores, share)))


def changed(scripts: tuple[Script, ...], change: Callable[[Work], Work]) -> tuple[Script, ...]:
    """With every piece of work changed."""
    return tuple(replace(s, parts=tuple(change(p) if isinstance(p, Work) else p for p in s.parts)) for s in scripts)


def seconds_of(scripts: Sequence[Script]) -> float:
    """Of computing."""
    return sum(script.seconds for script in scripts)


def cores_of(scripts: Sequence[Script]) -> float:
    """That computing keeps busy, in the mean over its seconds."""
    works = [part for script in scripts for part in script.parts if isinstance(part, Work)]
    total = sum(work.seconds for work in works)
    return sum(work.seconds * work.cores for work in works) / total if total else 0.0


def typical(scripts: tuple[Script, ...], company: Company) -> tuple[Script, ...]:
    """With the median of all ranks in place of what this one measured; as they are where ranks did otherwise."""
    if not company.agree([script.shape for script in scripts]):
        return scripts
    works = [part for script in scripts for part in script.parts if isinstance(part, Work)]
    figures = iter(company.typical([figure for work in works for figure in (work.seconds, work.cores)]))
    return tuple(
        replace(s, parts=tuple(Work(next(figures), next(figures)) if isinstance(p, Work) else p for p in s.parts))
        for s in scripts
    )
