"""Player: one worker of a simulation with shapes alone. Its pieces of work run in lanes on the clock.

A message has a size and no numbers; encoding and decoding take the processor's time, and wait for one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, Any, NamedTuple, cast, final

from thinwire.comm.blank import Blank
from thinwire.core.outline import Code, Gather, Phase, Reduce, Scatter, Swap, of_rank
from thinwire.engine.virtual import ClockTransport

if TYPE_CHECKING:
    from thinwire.comm.clock import VirtualClock
    from thinwire.comm.tasks import Task
    from thinwire.core.comm import Comm
    from thinwire.sim.costs import Costs
    from thinwire.sim.load import Load
    from thinwire.sim.script import Piece, Script


class Mark(NamedTuple):
    """What a worker did from `start` to `stop`: compute, update, encode, decode, wire or wait."""

    rank: int
    what: str
    start: float
    stop: float
    bucket: int = -1
    chunk: int = -1
    step: int = -1


@final
@dataclass(frozen=True, eq=False)
class Stage:
    """What the players of a simulation have in common. `marks` are kept only where somebody wants them."""

    clock: VirtualClock
    script: Script
    load: Load
    costs: Costs
    marks: list[Mark] | None = None
    drops: bool = False  # whether neighbours go on without those that have died
    blanks: dict[int, list[Blank]] = field(default_factory=dict)  # what a scatter sends, by the id of its phase


@final
class Player:
    """Rank `rank` on the stage."""

    def __init__(self, stage: Stage, rank: int) -> None:
        self.stage, self.rank, self.clock, self.script = stage, rank, stage.clock, stage.script
        self.transport = ClockTransport(stage.clock, rank, stage.script.lanes)
        self.round = 0
        self.coded = 0.0  # seconds of passes
        self.ends: list[float] = []  # of its steps
        self._busy = [0.0] * stage.costs.at_once  # until when the processor makes passes
        heapify(self._busy)
        self._last: dict[int, Task[None]] = {}  # by piece, of the last round: the next one waits for it

    def launch(self, places: Sequence[int]) -> list[Task[None]]:
        """Pieces of the present round, in order."""
        made: dict[int, Task[None]] = {}
        for at in places:
            piece = self.script.pieces[at]
            agreed = None if piece.agreed is None else made.get(piece.agreed)
            made[at] = self._start(piece, self._last.get(at), agreed)
        self._last.update(made)
        return list(made.values())

    async def alone(self, piece: Piece) -> None:
        """Launch a piece that is no part of a bucket's round, and wait for it."""
        await self._start(piece, None, None)

    async def compute(self, seconds: float, step: int, what: str = "compute") -> None:
        """Let the time of a computation pass."""
        start = self.clock.now
        await self.transport.comm.sleep(seconds)
        self.mark(what, start, step=step)

    def mark(self, what: str, start: float, bucket: int = -1, chunk: int = -1, step: int = -1) -> None:
        """Note what was done until now."""
        if self.stage.marks is not None and self.clock.now > start:
            self.stage.marks.append(Mark(self.rank, what, start, self.clock.now, bucket, chunk, step))

    def _start(self, piece: Piece, earlier: Task[None] | None, agreed: Task[None] | None) -> Task[None]:
        round_ = self.round

        async def work(comm: Comm) -> None:
            if earlier is not None:
                await earlier
            if agreed is not None:
                await agreed
            for phase in piece.phases:
                start = self.clock.now
                await self._do(comm, phase, round_)
                what = phase.what if isinstance(phase, Code) else "wire"
                self.mark(what, start, piece.bucket, piece.chunk, round_)

        return self.transport.launch(work)

    async def _do(self, comm: Comm, phase: Phase, round_: int) -> None:
        match phase:
            case Code():
                await self._pass(comm, self.stage.costs.seconds(phase, self.rank))
            case Reduce(nbytes):
                await comm.all_reduce(_blank(nbytes))
            case Gather(nbytes):
                await comm.all_gather(_blank(of_rank(nbytes, self.rank)))
            case Scatter(nbytes):
                blanks = self.stage.blanks.get(id(phase))
                if blanks is None:
                    blanks = self.stage.blanks[id(phase)] = [Blank(one) for one in nbytes]
                await comm.all_to_all(cast("Any", blanks))
            case Swap(nbytes, around):
                peers, sources = around(self.rank, round_)
                if gone := self.clock.dead if self.stage.drops else {}:
                    peers, sources = (tuple(j for j in some if j not in gone) for some in (peers, sources))
                await comm.swap(_blank(of_rank(nbytes, self.rank)), peers, sources=sources)

    async def _pass(self, comm: Comm, seconds: float) -> None:
        """A pass begins when the processor has made those that came before."""
        if seconds:
            now = self.clock.now
            done = max(now, self._busy[0]) + seconds
            heapreplace(self._busy, done)
            self.coded += seconds
            await comm.sleep(done - now)


def _blank(nbytes: int) -> Any:
    return Blank(nbytes)
