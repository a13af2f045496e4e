"""Outline: what one call of an exchange does, by sizes alone. Passes over elements, and messages of so many bytes.

`Exchange.outline` writes it down beside the coroutine that does it; simulations with shapes alone replay it, and
`tests/sim/test_foresee.py` compares them with the coroutine on the clock. Where ranks differ, a number is a tuple
with one entry per rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, final

if TYPE_CHECKING:
    from thinwire.core.channel import Channel
    from thinwire.core.types import Layout

Count: TypeAlias = int | tuple[int, ...]
Size: TypeAlias = "Callable[[Channel, Layout], int]"
"""Bytes of the payload of a vector: exact where the compressor knows them, otherwise an estimate."""
Around: TypeAlias = Callable[[int, int], tuple[tuple[int, ...], tuple[int, ...]]]
"""(peers, sources) of (rank, round)."""


@final
@dataclass(frozen=True)
class Code:
    """A pass of the processor: so many elements are encoded or decoded by `coder`, an id."""

    what: Literal["encode", "decode"]
    coder: str
    elements: Count


@final
@dataclass(frozen=True)
class Reduce:
    """A sum or a maximum over all ranks."""

    nbytes: int


@final
@dataclass(frozen=True)
class Gather:
    """Every rank's message goes to every other."""

    nbytes: Count


@final
@dataclass(frozen=True)
class Scatter:
    """Every rank sends `nbytes[j]` to rank j."""

    nbytes: tuple[int, ...]


@final
@dataclass(frozen=True, eq=False)
class Swap:
    """A message to every peer, and one from every source; who they are depends on the round."""

    nbytes: Count
    around: Around


Phase: TypeAlias = Code | Reduce | Gather | Scatter | Swap


def of_rank(count: Count, rank: int) -> int:
    """The number of one rank."""
    return count if isinstance(count, int) else count[rank]
