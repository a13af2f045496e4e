"""Crowd: a round of all workers at once, where all that they exchange are collectives. Exact but for ties, and fast.

The clock makes an event of every request of every rank. Here the same events are applied to arrays over ranks, in the
same order on each rank:

    next[l, i]    when rank i has something to do in lane l: begin a pass, or ask for a collective
    bound[l, i]   no later than that; a piece that waits for an agreement cannot go on before it
    close of l    the earliest time at which the next collective of lane l may close: when the last rank asks for it

Until the earliest close, what ranks do concerns nobody else: sending interfaces and processors are their own, and the
uplinks of racks keep what is asked of them until then. So all events up to that time are applied, on each rank in the
order of time; then the collective closes, by the formulas of thinwire.comm.network, and lets all ranks go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, final

import numpy as np

from thinwire.core.outline import Code, Gather, Phase, Reduce, Scatter

if TYPE_CHECKING:
    from thinwire.sim.arrays import Array, Index
    from thinwire.sim.costs import Costs
    from thinwire.sim.script import Piece
    from thinwire.sim.wires import Wires

COLLECTIVES = (Code, Reduce, Gather, Scatter)


class Begin(NamedTuple):
    """A piece starts in its lane."""

    piece: int


class End(NamedTuple):
    """A piece has ended."""

    piece: int


Op: TypeAlias = Begin | End | Phase


@final
class Crowd:
    """`n` ranks, their interfaces and their processors."""

    def __init__(self, n: int, lanes: int, wires: Wires, costs: Costs, deaths: Array | None = None) -> None:
        """With `deaths`, when each rank dies; inf for those that live."""
        self.n, self.lanes, self.wires, self.costs, self.deaths = n, lanes, wires, costs, deaths
        self.waits: dict[int, Phase] = {}  # ranks that wait for ever, each for the collective that it asked for first
        self.busy = np.zeros((n, costs.at_once))  # until when each processor makes passes
        self.coded = 0.0
        self._passes: dict[int, Array] = {}  # seconds by rank, by the id of the phase

    def play(self, pieces: Sequence[Piece], places: Sequence[int], launches: dict[int, Array]) -> dict[int, Array]:
        """Run these pieces, each launched at its time; returns when each had ended, by rank; inf for never.

        All lanes are free at the start: whoever launches has waited for what came before.
        """
        play = _Play(self, pieces, places, launches)
        play.run()
        self.waits = play.waits()
        never = np.full(self.n, np.inf)
        return {at: play.ends.get(at, never) for at in places}

    def passes(self, code: Code) -> Array:
        """How long a pass takes each rank."""
        found = self._passes.get(id(code))
        if found is None:
            elements = np.broadcast_to(np.asarray(code.elements, dtype=np.float64), (self.n,))
            rate = self.costs.coders.get(code.coder, self.costs.usual)
            seconds = rate.fixed + elements * (rate.encode if code.what == "encode" else rate.decode)
            found = self._passes[id(code)] = np.where(elements > 0, seconds, 0.0)
        return found


@final
class _Play:
    """One round under way."""

    def __init__(
        self, crowd: Crowd, pieces: Sequence[Piece], places: Sequence[int], launches: dict[int, Array]
    ) -> None:
        self.crowd, self.launches = crowd, launches
        n, lanes = crowd.n, min(crowd.lanes, len(places))
        self.agreed = {at: pieces[at].agreed for at in places}
        self.lane_of = {at: number % lanes for number, at in enumerate(places)}
        self.programs: list[list[Op]] = [[] for _ in range(lanes)]
        order: list[list[int]] = [[] for _ in range(lanes)]  # the number of the launch, by place in the program
        for number, at in enumerate(places):
            program = [Begin(at), *pieces[at].phases, End(at)]
            self.programs[self.lane_of[at]] += program
            order[self.lane_of[at]] += [number] * len(program)
        self.order = [np.array([*row, len(places)]) for row in order]  # and none after the last
        self.ends: dict[int, Array] = {}
        self.next = np.zeros((lanes, n))
        # Since when it has been waited for that; then in which turn the wait began; then what was launched first.
        self.since = np.zeros((lanes, n))
        self.made = np.zeros((lanes, n), dtype=np.intp)
        self.pos = np.zeros((lanes, n), dtype=np.intp)
        self.asked = np.full((lanes, n), -np.inf)  # when ranks asked for the next collective of a lane
        self.waits_for = np.full((lanes, n), -1, dtype=np.intp)  # the lane of an agreement
        self.blocked: dict[int, list[tuple[int, int]]] = {}  # pieces that wait for an agreement: (lane, piece)
        self.bursts = [(np.zeros(n), np.zeros(n)) for _ in range(lanes)]  # when each begins to send, and has sent
        # By lane, the places of the collectives in its program, and how many of them have closed.
        self.meetings = [
            [at for at, op in enumerate(p) if isinstance(op, Reduce | Gather | Scatter)] for p in self.programs
        ]
        self.closed = [0] * lanes
        self.turn, self.last_asked = 0, [0] * lanes  # when, among all, the last rank asked

    def run(self) -> None:
        while True:
            closes = self._closes()
            until = float(closes.min())
            if not self._advance(until):
                if until == np.inf:
                    return
                at_once = np.nonzero(closes == until)[0]  # of these, the one that was asked for first
                self._close(int(min(at_once, key=self.last_asked.__getitem__)), until)

    def _closes(self) -> Array:
        """By lane, the earliest time at which its next collective may close; inf where none is left."""
        bound = self.next
        if (self.waits_for >= 0).any():
            bound = self.next.copy()
            ranks = np.arange(self.crowd.n)
            for _ in range(len(self.programs)):
                bound = np.where(self.waits_for >= 0, bound[self.waits_for, ranks], bound)
        if self.crowd.deaths is not None:  # the dead ask for nothing any more
            bound = np.where(bound >= self.crowd.deaths, np.inf, bound)
        left = np.array([done < len(m) for done, m in zip(self.closed, self.meetings, strict=True)])
        closes = np.where(self.asked > -np.inf, self.asked, bound).max(axis=1)
        found: Array = np.where(left, closes, np.inf)
        return found

    def _advance(self, until: float) -> bool:
        """Apply the first event of every rank that has one up to a time; False if there is none."""
        times = self.next.min(axis=0)
        first_ones = self.next == times
        if first_ones.sum() > self.crowd.n:  # at one time, who has waited longest goes on first
            since = np.where(first_ones, self.since, np.inf)
            rank = self.made * (len(self.agreed) + 1) + self._launched()
            lane = np.where(since == since.min(axis=0), rank, np.iinfo(np.intp).max).argmin(axis=0)
        else:
            lane = first_ones.argmax(axis=0)
        if self.crowd.deaths is not None:
            times = np.where(times >= self.crowd.deaths, np.inf, times)
        due = np.nonzero((times <= until) & (times < np.inf))[0]
        if not due.size:
            return False
        lane, pos = lane[due], self.pos[lane[due], due]
        first = lane * (1 << 32) + pos  # which operation it is
        if (first == first[0]).all():  # the usual case: all ranks do the same
            self._apply(int(lane[0]), int(pos[0]), due, times[due])
            return True
        for key in np.unique(first):
            some = first == key
            self._apply(int(key >> 32), int(key & 0xFFFFFFFF), due[some], times[due[some]])
        return True

    def waits(self) -> dict[int, Phase]:
        """Ranks that have asked for a collective which has not closed: for the one that was launched first."""
        asked = self.asked > -np.inf
        lanes = np.where(asked, self._launched(), np.iinfo(np.intp).max).argmin(axis=0)
        found: dict[int, Phase] = {}
        for rank in np.nonzero(asked.any(axis=0))[0].tolist():
            lane = int(lanes[rank])
            op = self.programs[lane][self.pos[lane, rank]]
            assert not isinstance(op, Begin | End)
            found[rank] = op
        return found

    def _launched(self) -> Any:
        """The number of the launch of what each rank has to do next in each lane."""
        return np.stack([row[pos] for row, pos in zip(self.order, self.pos, strict=True)])

    def _apply(self, lane: int, pos: int, ranks: Index, times: Array) -> None:
        op = self.programs[lane][pos]
        self.turn += 1
        match op:
            case Begin(piece):
                self._begin(lane, piece, ranks, times)
            case End(piece):
                self._end(lane, piece, ranks, times)
            case Code():
                self._pass(lane, op, ranks, times)
            case _:
                self.asked[lane, ranks] = times
                self.last_asked[lane] = self.turn
                self.next[lane, ranks] = np.inf
                self.crowd.wires.ask(op, ranks, times, *self.bursts[lane])

    def _begin(self, lane: int, piece: int, ranks: Index, times: Array) -> None:
        start = np.maximum(times, self.launches[piece][ranks])
        agreed = self.agreed[piece]
        if agreed is not None and agreed in self.lane_of:
            ends = self.ends.get(agreed)
            known = np.isfinite(ends[ranks]) if ends is not None else np.zeros(len(ranks), dtype=bool)
            if not known.all():
                late = ranks[~known]
                self.waits_for[lane, late] = self.lane_of[agreed]
                self.next[lane, late] = np.inf
                self.since[lane, late] = start[~known]
                self.made[lane, late] = 0
                self._launch_later(agreed, lane, piece)
            if ends is not None:
                start = np.maximum(start, np.where(known, ends[ranks], 0.0))
            ranks, times, start = ranks[known], times[known], start[known]
        self._go_on(lane, ranks, times, start)

    def _launch_later(self, agreed: int, lane: int, piece: int) -> None:
        waiting = self.blocked.setdefault(agreed, [])
        if (lane, piece) not in waiting:
            waiting.append((lane, piece))

    def _end(self, lane: int, piece: int, ranks: Index, times: Array) -> None:
        ends = self.ends.get(piece)
        if ends is None:
            ends = self.ends[piece] = np.full(self.crowd.n, np.inf)
        ends[ranks] = times
        self.pos[lane, ranks] += 1
        self.next[lane, ranks] = times
        after = int(self.pos[lane, ranks[0]])
        if after == len(self.programs[lane]):
            self.next[lane, ranks] = np.inf
        else:  # the next piece of the lane has waited since it was launched
            begins = self.programs[lane][after]
            assert isinstance(begins, Begin)
            self.since[lane, ranks] = np.minimum(self.launches[begins.piece][ranks], times)
            self.made[lane, ranks] = 0
        for other, waiting in self.blocked.get(piece, ()):
            here = ranks[(self.waits_for[other, ranks] == lane) & self._at(other, ranks, waiting)]
            self.waits_for[other, here] = -1
            self._go_on(other, here, ends[here], np.maximum(ends[here], self.launches[waiting][here]))

    def _at(self, lane: int, ranks: Index, piece: int) -> Any:
        """Which of the ranks are about to begin a piece in a lane."""
        place = self.programs[lane].index(Begin(piece))
        return self.pos[lane, ranks] == place

    def _pass(self, lane: int, code: Code, ranks: Index, times: Array) -> None:
        crowd = self.crowd
        seconds = crowd.passes(code)[ranks]
        busy = crowd.busy[ranks]
        core = busy.argmin(axis=1)
        some = np.arange(len(ranks))
        done = np.where(seconds > 0, np.maximum(times, busy[some, core]) + seconds, times)
        crowd.busy[ranks, core] = np.where(seconds > 0, done, busy[some, core])
        crowd.coded += float(seconds.sum())
        self._go_on(lane, ranks, times, done)

    def _go_on(self, lane: int, ranks: Index, now: Array, times: Array) -> None:
        """What comes next happens at `times`."""
        self.pos[lane, ranks] += 1
        self.next[lane, ranks] = times
        later = times > now
        self.since[lane, ranks] = np.where(later, now, self.since[lane, ranks])
        self.made[lane, ranks] = np.where(later, self.turn, self.made[lane, ranks])

    def _close(self, lane: int, now: float) -> None:
        """All ranks have asked for the next collective of a lane."""
        op = self.programs[lane][self.meetings[lane][self.closed[lane]]]
        assert not isinstance(op, Begin | End)
        self.closed[lane] += 1
        self.turn += 1
        done = self.crowd.wires.close(op, *self.bursts[lane], now)
        self.asked[lane] = -np.inf
        self._go_on(lane, np.arange(self.crowd.n), np.full(self.crowd.n, now), np.maximum(done, now))
