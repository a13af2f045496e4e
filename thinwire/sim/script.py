"""Script: the pieces of work of one round of a method, as the runner launches them, in outlines.

A round of a bucket is an agreement and an exchange per chunk (thinwire.engine.runner); which of them wait for which
is decided here as it is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, final

from thinwire.core.outline import Around, Phase, Reduce, Swap
from thinwire.engine.consensus import SAMPLED
from thinwire.engine.plan import chunks
from thinwire.engine.round import Facts

if TYPE_CHECKING:
    from thinwire.core.exchange import Exchange
    from thinwire.core.method import Method, Sizes
    from thinwire.core.types import Layout
    from thinwire.engine.plan import Parcel, Plan
    from thinwire.sim.costs import Costs
    from thinwire.sim.load import Load

START = Reduce(16)  # whether all ranks set out from one model, before the first round of an outer loop
AVERAGE = Reduce(4)  # the mean loss, which a period may follow
AGREEMENT = 17  # bytes: whether all is finite, and the learning rate twice; one more for each tensor


class Piece(NamedTuple):
    """One piece of work. It waits for its lane and for the piece `agreed`, if any; then come its `phases`."""

    bucket: int
    chunk: int  # -1 for an agreement
    phases: tuple[Phase, ...]
    agreed: int | None = None  # its place among the pieces


@final
@dataclass(frozen=True)
class Script:
    """All pieces of a round in the order of launch, and when each bucket is launched."""

    pieces: tuple[Piece, ...]
    launches: tuple[float, ...]  # by bucket, in seconds after the start of a step, where gradients are exchanged
    first_gradient: float
    fragments: tuple[int, ...]  # by bucket
    measure: Piece  # of the distance between models, where neighbours gossip
    lanes: int
    elements: int

    def of(self, fragment: int) -> list[int]:
        """The places of the pieces of one fragment."""
        return [at for at, piece in enumerate(self.pieces) if self.fragments[piece.bucket] == fragment]


def script(method: Method, plan: Plan, load: Load, n: int, costs: Costs, *, drops: bool = False) -> Script:
    """What `n` ranks do in a round. The method is past its warm-up.

    With `drops` some ranks may be gone, and the others measure the distance between models each with each. Where
    gradients are exchanged, plain sums agree together, after the last bucket.
    """
    ready = {one.name: one.seconds for one in load.tensors}
    outline = lru_cache(maxsize=None)(lambda exchange, layout: tuple(exchange.outline(layout, n, costs.size)))
    pieces: list[Piece] = []
    launches: list[float] = []
    together = not method.sync.of.models
    owed = 0  # bytes of their agreement
    for number, parcel in enumerate(plan.parcels):
        owed += _add(pieces, method, parcel, number, load.device, outline, together=together)
        full = max(ready[item.name] for item in parcel.items)
        launches.append(max(full, launches[-1]) if launches else full)  # in the order of the plan
    if owed:
        pieces.append(Piece(len(plan.parcels) - 1, -1, (Reduce(owed),)))
    sampled = 4 * sum(min(SAMPLED, parcel.layout.numel) for parcel in plan.parcels)
    return Script(
        tuple(pieces),
        tuple(launches),
        min(ready.values()),
        tuple(parcel.fragment for parcel in plan.parcels),
        Piece(-1, -1, (Swap(sampled, others(n)), Swap(8, others(n))) if drops else (Reduce(sampled), Reduce(8))),
        method.lanes(load.device),
        load.numel,
    )


def others(n: int) -> Around:
    """Each of `n` ranks with each."""

    def around(rank: int, round_: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        rest = (*range(rank), *range(rank + 1, n))
        return rest, rest

    return around


def _add(
    pieces: list[Piece],
    method: Method,
    parcel: Parcel,
    number: int,
    device: str,
    outline: Callable[[Exchange, Layout], tuple[Phase, ...]],
    *,
    together: bool,
) -> int:
    """The pieces of one bucket, as `Runner.launch` has them; returns the bytes of an agreement that is still owed."""
    exchange = method.exchange if parcel.compressed else method.exchange.plain
    facts = Facts.of(exchange)
    cuts = _cuts(exchange, facts, parcel.layout, method.overlap.sizes(device))
    agreement = (Reduce(AGREEMENT + len(parcel.items)),) if facts.agrees else ()
    at_once = bool(agreement) and not facts.carries_nan and len(cuts) == 1
    agreed = None
    owed = together and facts.agrees and facts.carries_nan
    if agreement and not at_once and not owed:
        agreed = None if facts.carries_nan else len(pieces)  # a plain sum does not wait for it
        pieces.append(Piece(number, -1, agreement))
    for chunk, layout in enumerate(cuts):
        phases = outline(exchange, layout)
        pieces.append(Piece(number, chunk, (*agreement, *phases) if at_once else phases, agreed))
    return AGREEMENT + len(parcel.items) if owed else 0


def _cuts(exchange: Exchange, facts: Facts, layout: Layout, sizes: Sizes) -> list[Layout]:
    if exchange.whole_tensors and not facts.bare:
        return [layout]
    mb = sizes.sum_mb if facts.bare else sizes.chunk_mb
    return [layout.cut(start, stop) for start, stop in chunks(layout.numel, mb)]
