"""Replay: one rank's steps on the clock: its own computing, the pieces of work in their lanes, and the link.

All ranks do the same at the same time, so that one of them stands for all. Three things are shared by whatever runs
at a moment, and time passes until the next of them ends:

    processor   computing that keeps c cores busy slows everything down once the sum of all c exceeds the cores; bytes
                that are sent keep it busy, too
    link        connections share its rate, each up to what the host can send; while a burst lasts, that alone bounds.
                What a round of messages costs the host is part of that: it passes while the link carries others
    latency     rounds of messages wait for each other: a latency each, and for what others have put into the link's
                queue, as far as that goes

What the training loop waits for is noted moment by moment; the largest sum is what binds the step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, final

from thinwire.engine.lane import ENOUGH, SOON
from thinwire.planning.link import Cost, Link, Sockets
from thinwire.planning.script import After, Ask, Part, Script, Work

EPSILON = 1e-12
AT_ONCE = 1e3  # times the rate, at which a burst passes where the host's own speed is not known
BINDS = ("computing", "link", "processor", "latency")


class Launch(NamedTuple):
    """The training loop sends a bucket on its way; without scripts, it lets lanes have what has been kept."""

    scripts: tuple[Script, ...]


class Await(NamedTuple):
    """The training loop waits for all that was launched at least so many steps ago."""

    steps: int = 0


class Mark(NamedTuple):
    """A step of the training loop has ended."""


Act: TypeAlias = Work | Launch | Await | Mark


@final
@dataclass(frozen=True)
class Place:
    """Where a replay happens: how many ranks, on what link, on what hosts."""

    ranks: int
    link: Link
    sockets: Sockets = field(default_factory=Sockets)
    cores: float = math.inf  # that a rank has
    lanes: int = 5
    beside: float = 1.0  # what pieces of work take longer while the training loop computes, cores apart
    disturbed: float = 1.0  # and what the training loop takes longer while they do

    def cost(self, ask: Ask) -> Cost:
        """What a request costs the host."""
        if ask.kind != "ring":
            return self.sockets.trade
        if ask.width != 2:
            return self.sockets.ring
        return self.sockets.half if ask.half else self.sockets.ring16

    def fixed(self, ask: Ask) -> float:
        """Seconds that all rounds of a request cost the host, however long they are."""
        return ask.rounds(self.ranks) * self.cost(ask).round


class Span(NamedTuple):
    """One part of a piece of work, in the order of launch: `what` is work, or the kind of a request."""

    piece: int
    what: str
    start: float
    stop: float


@final
@dataclass(frozen=True)
class Replayed:
    """When each step ended, how long the training loop waited for what in all of them, and what lanes did when."""

    ends: tuple[float, ...]
    waited: dict[str, float]  # by BINDS
    spans: tuple[Span, ...] = ()

    @property
    def step(self) -> float:
        """Seconds of the last step."""
        return self.ends[-1] - self.start

    @property
    def start(self) -> float:
        """Of the last step."""
        return self.ends[-2] if len(self.ends) > 1 else 0.0

    @property
    def binds(self) -> str:
        """What takes most of the time."""
        return max(BINDS, key=lambda name: self.waited[name])


@final
class _Piece:
    """A piece of work in a lane, or, as `main`, nothing but the part that the training loop computes."""

    def __init__(self, parts: Sequence[Part], step: int, siblings: list[_Piece], number: int) -> None:
        self.parts = deque(parts)
        self.step, self.siblings, self.number = step, siblings, number
        self.since = 0.0  # when the part that is under way began
        self.left = 0.0  # of the part that is under way: seconds, or bytes
        self.rounds = 0  # of messages that are still to be waited for
        self.timer = 0.0  # until the round has arrived
        self.flows = False  # whether bytes are under way
        self.begun = False

    @property
    def done(self) -> bool:
        return not self.parts


def replay(acts: Sequence[Act], place: Place) -> Replayed:
    """Run the training loop through its acts; deterministic."""
    return _Replay(acts, place).run()


@final
class _Replay:
    def __init__(self, acts: Sequence[Act], place: Place) -> None:
        self.acts, self.place = deque(acts), place
        self.lanes: list[deque[_Piece]] = [deque() for _ in range(place.lanes)]
        self.open: list[_Piece] = []
        self.launched = 0
        self.kept: list[tuple[int, _Piece]] = []  # as in engine/lane.py: launched for these lanes, not handed over
        self.weight, self.woken = 0, -math.inf
        self.now, self.ends = 0.0, list[float]()
        self.waited, self.spans = dict.fromkeys(BINDS, 0.0), list[Span]()
        self.computes = 0.0  # seconds that the training loop still computes
        self.cores, self.trains = 0.0, False  # what it keeps busy, and whether it trains or copies
        self.burst = place.link.burst  # bytes that the link would let through at once, headers included

    def run(self) -> Replayed:
        while True:
            self._settle()
            if not self.acts and not self.open:
                return Replayed(tuple(self.ends), self.waited, tuple(self.spans))
            self._pass()

    def _settle(self) -> None:
        """Let everything happen that takes no time."""
        moved = True
        while moved:
            moved = self._act()
            for lane in self.lanes:
                while lane and lane[0].done:
                    self.open.remove(lane.popleft())
                    moved = True
                if lane and self._begin(lane[0]):
                    moved = True

    def _act(self) -> bool:
        if not self.acts or self.computes > 0:
            return False
        act = self.acts[0]
        if isinstance(act, Await) and any(piece.step <= len(self.ends) - act.steps for piece in self.open):
            return self._hand_over()
        self.acts.popleft()
        if isinstance(act, Work):
            self.computes, self.cores, self.trains = act.seconds, act.cores, act.trains
        elif isinstance(act, Launch):
            siblings: list[_Piece] = []
            for script in act.scripts:
                piece = _Piece(script.parts, len(self.ends), siblings, self.launched)
                siblings.append(piece)
                self.open.append(piece)
                self._launch(piece, script.weight)
            if not act.scripts:
                self._hand_over()
        elif isinstance(act, Mark):
            self.ends.append(self.now)
        return True

    def _launch(self, piece: _Piece, weight: int | None) -> None:
        """As `Lane.launch`: small pieces that follow each other closely are handed over together."""
        self.kept.append((self.launched % len(self.lanes), piece))
        self.launched += 1
        if weight is None:
            self._hand_over()
            return
        self.weight += weight
        if self.weight >= ENOUGH or self.now - self.woken >= SOON:
            self._hand_over()
            self.woken = self.now

    def _hand_over(self) -> bool:
        kept, self.kept, self.weight, self.woken = self.kept, [], 0, -math.inf
        for lane, piece in kept:
            self.lanes[lane].append(piece)
        return bool(kept)

    def _begin(self, piece: _Piece) -> bool:
        """Begin the next part of a piece, or the next round of a request; returns whether anything happened."""
        if not piece.parts or piece.timer > 0 or piece.flows:
            return False
        part = piece.parts[0]
        if isinstance(part, After):
            if not piece.siblings[part.piece].done:
                return False
            piece.parts.popleft()
            return True
        if isinstance(part, Work):
            if not piece.begun:
                piece.begun, piece.left, piece.since = True, part.seconds, self.now
            if piece.left > EPSILON:
                return False
            return self._end(piece)
        first = 0.0 if piece.begun else self.place.cost(part).first
        if not piece.begun:
            piece.begun, piece.rounds, piece.left = True, part.rounds(self.place.ranks), part.sent(self.place.ranks)
            piece.since = self.now
            if self.place.ranks < 2:
                return self._end(piece)
        elif piece.rounds == 0 and piece.left <= EPSILON:
            return self._end(piece)
        if piece.rounds:
            piece.rounds -= 1
            link = self.place.link
            piece.timer = first + link.latency
            if not part.sent(self.place.ranks):  # nothing flows that could carry what the host takes
                piece.timer += self.place.cost(part).round
            own = part.sent(self.place.ranks) / part.rounds(self.place.ranks) / link.bytes_per_second
            if own < link.queue:  # longer messages fill the queue themselves, which is part of sending them
                ahead = sum(other.left for other in self.open if other.flows) / link.bytes_per_second
                piece.timer += min(link.queue, ahead)
            return True
        piece.flows = True
        return True

    def _end(self, piece: _Piece) -> bool:
        part = piece.parts.popleft()
        what = part.kind if isinstance(part, Ask) else "work"
        self.spans.append(Span(piece.number, what, piece.since, self.now))
        piece.begun = False
        return True

    def _pass(self) -> None:
        """Let time pass until the next thing ends."""
        works = [lane[0] for lane in self.lanes if lane and _works(lane[0])]
        flows = [lane[0] for lane in self.lanes if lane and lane[0].flows]
        timers = [lane[0] for lane in self.lanes if lane and lane[0].timer > 0]
        speeds, used, scale, bound, fixed = self._speeds(works, flows)
        computing = self.computes > 0
        lane_pace = scale / (self.place.beside if computing else 1.0)
        own_pace = scale / (self.place.disturbed if works else 1.0)
        until = [one.timer for one in timers]
        until += [one.left / lane_pace for one in works]
        until += [one.left / speed for one, speed in zip(flows, speeds, strict=True)]
        if computing:
            until.append(self.computes / own_pace)
        spare = self.place.link.rate / 8 - used
        if self.burst > 0 and spare < 0:
            until.append(self.burst / -spare)
        assert until, "the replay waits for nothing"
        passed = min(until)
        self.now += passed
        self.burst = min(self.place.link.burst, _rest(self.burst, -passed * spare))
        self._note(passed, computing=computing, bound=bound if flows else None, fixed=fixed, works=bool(works))
        for one in timers:
            one.timer = _rest(one.timer, passed)
        for one in works:
            one.left = _rest(one.left, passed * lane_pace)
        for one, speed in zip(flows, speeds, strict=True):
            one.left = _rest(one.left, passed * speed)
            one.flows = one.left > 0
        if computing:
            self.computes = _rest(self.computes, passed * own_pace)

    def _speeds(self, works: list[_Piece], flows: list[_Piece]) -> tuple[list[float], float, float, str, float]:
        """Bytes per second of each that sends, and of the link; the pace at which all computes; and what binds.

        The link's bytes are more by what does not carry data. Where hosts bind, the last is the part of what they do
        that their rounds take.
        """
        place = self.place
        asks = [part for one in flows if isinstance(part := one.parts[0], Ask)]
        assert len(asks) == len(flows)
        weights, costs = [ask.flows(place.ranks) for ask in asks], [place.cost(ask) for ask in asks]
        lanes = sum(ask.kind != "ring" for ask in asks)
        good = [place.link.share(ask.kind == "ring", ask.sent(place.ranks), lanes) for ask in asks]
        fixed = [place.fixed(ask) / ask.sent(place.ranks) for ask in asks]  # seconds per byte, as the next
        own = [cost.byte + rounds for cost, rounds in zip(costs, fixed, strict=True)]
        limits = [1 / each / part if each else math.inf for each, part in zip(own, good, strict=True)]
        speeds = _shared(place.link.rate / 8, weights, limits)
        if self.burst > 0 and speeds:
            speeds = [min(limit, AT_ONCE * place.link.rate / 8) for limit in limits]
        free = all(speed >= limit * (1 - 1e-9) for speed, limit in zip(speeds, limits, strict=True))
        carried = [speed * part for speed, part in zip(speeds, good, strict=True)]
        busy = sum(part.cores for one in works if isinstance(part := one.parts[0], Work))
        busy += self.cores if self.computes > 0 else 0.0
        busy += sum(speed * cost.cpu for speed, cost in zip(carried, costs, strict=True) if cost.cpu)
        scale = min(1.0, place.cores / busy) if busy else 1.0
        bound = "processor" if free or (scale < 1 and any(cost.cpu for cost in costs)) else "link"
        slowed = [scale if cost.cpu else 1.0 for cost in costs]
        used = sum(speed * part for speed, part in zip(speeds, slowed, strict=True))
        hosts = sum(speed * each for speed, each in zip(carried, own, strict=True))
        rounds = sum(speed * each for speed, each in zip(carried, fixed, strict=True)) / hosts if hosts else 0.0
        return [speed * part for speed, part in zip(carried, slowed, strict=True)], used, scale, bound, rounds

    def _note(self, passed: float, *, computing: bool, bound: str | None, fixed: float, works: bool) -> None:
        if computing:
            self.waited["computing" if self.trains else "processor"] += passed
        elif bound == "processor":
            self.waited["latency"] += fixed * passed
            self.waited["processor"] += (1 - fixed) * passed
        else:
            self.waited[bound or ("processor" if works else "latency")] += passed


def _works(piece: _Piece) -> bool:
    return piece.begun and bool(piece.parts) and isinstance(piece.parts[0], Work) and piece.left > EPSILON


def _rest(left: float, passed: float) -> float:
    rest = left - passed
    return rest if rest > EPSILON * max(1.0, left) else 0.0


def _shared(rate: float, weights: Sequence[float], limits: Sequence[float]) -> list[float]:
    """Shares of a rate by weight, none above its limit; what one leaves goes to the others."""
    speeds = [0.0] * len(weights)
    open_ = list(range(len(weights)))
    while open_:
        total = sum(weights[at] for at in open_)
        full = [at for at in open_ if limits[at] <= rate * weights[at] / total]
        if not full:
            for at in open_:
                speeds[at] = rate * weights[at] / total
            break
        for at in full:
            speeds[at] = limits[at]
            rate -= limits[at]
            open_.remove(at)
        rate = max(rate, 0.0)
    return speeds
