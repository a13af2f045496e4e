"""Stragglers: how many times longer a computation takes on one worker, in one turn.

A factor is a function of (seed, rank, turn), where a turn is one computation of the worker: runs repeat exactly,
whatever the order of events, and no worker's luck depends on how many others there are.
"""

from __future__ import annotations

import hashlib
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import final

from thinwire.core.given import is_number, is_whole

NORMAL = NormalDist()


class Stragglers(ABC):
    """Base of the models."""

    @abstractmethod
    def factor(self, rank: int, turn: int, seed: int) -> float:
        """What the seconds of the `turn`-th computation of `rank` are multiplied by."""

    def check(self, workers: int) -> None:  # noqa: B027  (most name nobody)
        """Raise a ValueError if it names a worker that does not exist."""


@final
@dataclass(frozen=True)
class Constant(Stragglers):
    """Some ranks are always slower: `Constant({3: 2.0})` makes rank 3 take twice as long, and nobody else."""

    factors: Mapping[int, float]

    def __post_init__(self) -> None:
        instead = "Constant({3: 2.0}) for a rank that takes twice as long"
        _check(f"Constant({self.factors!r})", isinstance(self.factors, Mapping), instead)
        for rank, factor in self.factors.items():
            _check(f"Constant({{{rank!r}: {factor!r}}})", is_whole(rank) and is_number(factor), instead)

    def factor(self, rank: int, turn: int, seed: int) -> float:
        return self.factors.get(rank, 1.0)

    def check(self, workers: int) -> None:
        """Every rank that is slow takes part."""
        for rank, factor in self.factors.items():
            if not 0 <= rank < workers:
                raise ValueError(
                    f"worker {rank} is to be slow, and there are {workers}: ranks begin with 0; "
                    f"write Constant({{{workers - 1}: {factor}}}), or --stragglers constant:{workers - 1},{factor:g}"
                )


@final
@dataclass(frozen=True)
class Exponential(Stragglers):
    """An exponential variable of mean 1 in place of 1, as theory likes it: -ln u with u uniform in (0, 1)."""

    def factor(self, rank: int, turn: int, seed: int) -> float:
        return -math.log(uniform(rank, turn, seed))


@final
@dataclass(frozen=True)
class ShiftedExponential(Stragglers):
    """1 + E, where E is exponential of mean `scale`: never faster than 1, and 1 + scale on average."""

    scale: float

    def __post_init__(self) -> None:
        _check(f"ShiftedExponential(scale={self.scale!r})", is_number(self.scale), "scale=0.5 for 1.5 on average")

    def factor(self, rank: int, turn: int, seed: int) -> float:
        return 1 - self.scale * math.log(uniform(rank, turn, seed))


@final
@dataclass(frozen=True)
class LogNormal(Stragglers):
    """exp(sigma z - sigma^2 / 2) with z standard normal: the mean is 1, and the logarithm scatters by `sigma`."""

    sigma: float

    def __post_init__(self) -> None:
        _check(f"LogNormal(sigma={self.sigma!r})", is_number(self.sigma), "sigma=0.3")

    def factor(self, rank: int, turn: int, seed: int) -> float:
        return math.exp(self.sigma * NORMAL.inv_cdf(uniform(rank, turn, seed)) - self.sigma**2 / 2)


@final
@dataclass(frozen=True)
class Transient(Stragglers):
    """Now and then a worker is slow: it takes `times` as long with `probability`, on each turn anew."""

    probability: float
    times: float

    def __post_init__(self) -> None:
        what = f"Transient(probability={self.probability!r}, times={self.times!r})"
        legal = is_number(self.probability) and self.probability <= 1 and is_number(self.times)
        _check(what, legal, "Transient(0.1, 5.0)")

    def factor(self, rank: int, turn: int, seed: int) -> float:
        return self.times if uniform(rank, turn, seed) < self.probability else 1.0


def uniform(rank: int, turn: int, seed: int) -> float:
    """A number in (0, 1), the same for the same key on every machine."""
    if not is_whole(seed) or seed >= 1 << 64:
        raise ValueError(f"seed={seed!r}: write seed=0, or another number that is not negative, below 2**64")
    digest = hashlib.blake2b(struct.pack("<QQQ", seed, rank, turn), digest_size=8).digest()
    return ((int.from_bytes(digest, "little") >> 12) + 0.5) / (1 << 52)


def _check(what: str, legal: bool, instead: str) -> None:
    if not legal:
        raise ValueError(f"{what}: write {instead}")
