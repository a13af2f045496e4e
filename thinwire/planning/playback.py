"""Playback: what a rank computes for a bucket, timed where it will happen: in the engine's lanes, after a step.

A recording has all ranks in one thread, whose memory is many times that of one rank, and whose teams of threads never
rest. In training a lane wakes up, the step before has filled the caches with other things, and its teams of threads
may still spin on the cores. So the pieces of work run once more: one rank alone, in threads as the engine has them,
each step in the next of them, with the answers of the other ranks from the tape of the recording.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar, cast, final

import torch

from thinwire.core.comm import AllReduceRequest, Comm, Request, Wait
from thinwire.engine.lane import Lane
from thinwire.engine.lane import Piece as Launched
from thinwire.engine.motion import Motion, depth_of
from thinwire.engine.runner import Runner
from thinwire.engine.telemetry import Telemetry
from thinwire.engine.transport import Transport, blocking
from thinwire.engine.transport import Work as Piece
from thinwire.planning.company import Company
from thinwire.planning.pause import Pause
from thinwire.planning.script import Ask, Part, Script, Work, asked

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.comm.processes import Processes
    from thinwire.core.clock import Clock
    from thinwire.core.method import Method
    from thinwire.engine.bucket import Bucket
    from thinwire.engine.plan import Parcel

T = TypeVar("T")
Step = Callable[[], None]
ALONE = Company()


class Tape(NamedTuple):
    """What the requests of one round were answered with, by piece of work. Payloads carry the number of the round."""

    round: int = 0
    answers: tuple[tuple[Any, ...], ...] = ()


class DivergedError(RuntimeError):
    """Alone, a piece of work goes another way than among the others, and the tape does not fit."""


ENDING = 5.0  # seconds that threads are given to end


class Played(NamedTuple):
    """By round, the seconds before each message and after the last, by piece; and those of steps beside them."""

    rounds: list[list[float]]
    steps: list[float]


@final
class Player:
    """Runs a piece of work in a lane, and answers it from the tape."""

    def __init__(self, ranks: int) -> None:
        self.comm = Comm(0, ranks)

    def play(self, running: Coroutine[Any, Any, T], tape: Sequence[Any], spent: list[float]) -> T:
        """To the end; `spent` gets the seconds before each message, and those after the last."""
        answer, at, before = None, 0, 0.0
        try:
            while True:
                start = time.perf_counter()
                try:
                    request = running.send(answer)
                except StopIteration as done:
                    if at != len(tape):
                        raise DivergedError(f"ended after {at} of {len(tape)} answers") from None
                    spent.append(before + time.perf_counter() - start)
                    result: T = done.value
                    return result
                except Exception as error:  # among the others it went well
                    raise DivergedError(f"what is on the tape does not fit: {error}") from error
                before += time.perf_counter() - start
                if isinstance(request, Wait):
                    answer = request.answer()
                    continue
                if not isinstance(request, Request) or at >= len(tape):
                    raise DivergedError(f"asked for {request!r} after {at} answers")
                if asked(request, 0) is not None:
                    spent.append(before)
                    before = 0.0
                answer, at = _answer(request, tape[at]), at + 1
        finally:
            running.close()


@final
class Playback(Transport):
    """The transport of one rank whose network is a tape."""

    def __init__(self, tape: Sequence[Sequence[Any]], lanes: int, ranks: int) -> None:
        self.comm, self.timeout, self.drops = Comm(0, ranks), float("inf"), False
        self.traffic, self.now = [], time.perf_counter
        self._tape = tape
        # A lane hands its driver to the work and asks nothing else of it.
        players = cast("list[Processes]", [Player(ranks) for _ in range(lanes)])
        self._lane = Lane(players, lambda error, work: error)
        self._spent: list[list[float]] = []
        self.launched: list[Launched[Any]] = []  # in this round

    def begin(self) -> None:
        """A round begins."""
        self._spent, self.launched = [], []

    @property
    def spent(self) -> list[float]:
        """Seconds of what the pieces of this round computed."""
        return [seconds for piece in self._spent for seconds in piece]

    def launch(
        self, work: Piece[T], clock: Clock | None = None, weight: int | None = None, *, aside: bool = False
    ) -> Launched[T]:
        """In the lane whose turn it is; buckets that are alike have one tape."""
        spent: list[float] = []
        tape = self._tape[len(self._spent) % len(self._tape)]
        self._spent.append(spent)
        made = self._lane.launch(lambda driver: cast("Player", driver).play(work(driver.comm), tape, spent), weight)
        self.launched.append(made)
        return made

    def hand_over(self) -> None:
        """Wake the threads."""
        self._lane.hand_over()

    def beside(self, edges: list[tuple[int, int]]) -> NoReturn:
        """Nothing runs beside the rounds that are played."""
        raise AssertionError("a method that exchanges beside its steps is not played")

    def close(self) -> None:
        """End the threads: what they would still do would disturb what is timed next."""
        self._lane.close()
        self._lane.join(ENDING)


def copied(answer: Any) -> Any:
    """In memory of its own, as what arrives is."""
    if isinstance(answer, torch.Tensor):
        return answer.clone()
    if isinstance(answer, dict):
        return {peer: copied(x) for peer, x in answer.items()}
    return type(answer)(map(copied, answer)) if isinstance(answer, list | tuple) else answer


def _answer(request: Request[Any], taped: Any) -> Any:
    """As the engine's driver has it: sums are written to where their terms were."""
    if isinstance(request, AllReduceRequest):
        if not isinstance(taped, torch.Tensor) or request.x.shape != taped.shape:
            raise DivergedError(f"a sum of {tuple(request.x.shape)} elements, and something else on the tape")
        return request.x.copy_(taped)
    return copied(taped)


def play(
    method: Method,
    parcel: Parcel,
    grad: Tensor,
    ranks: int,
    tape: Tape,
    rounds: int,
    *,
    warm: int = 1,
    before: Step = Pause(0.0),  # noqa: B008
    beside: Step | None = None,
    company: Company = ALONE,
    copies: int = 1,
) -> Played:
    """Rounds of a bucket after some that `warm` up, each after what comes `before`, and `beside` steps of training.

    With `copies`, as many buckets of the kind are launched at once.

    There are none where it goes another way than it did among the others.
    """
    transport = Playback(tape.answers, method.lanes(grad.device.type), ranks)
    telemetry = Telemetry(transport.now, transport.traffic, ranks)
    runner = Runner(method, transport, telemetry, Motion(None, depth_of(method)), 0, tape.round)
    buckets = [runner.bucket(0, parcel) for _ in range(copies)]
    for bucket in buckets if method.sync.of.models else ():
        for chunk in bucket.chunks:
            bucket.exchange.start(grad[chunk.start : chunk.stop], chunk.state)
    try:
        return _played(runner, transport, buckets, grad, (warm, rounds), before, beside, company)
    finally:
        transport.close()


def _played(
    runner: Runner,
    transport: Playback,
    buckets: Sequence[Bucket],
    grad: Tensor,
    rounds: tuple[int, int],
    before: Step,
    beside: Step | None,
    company: Company,
) -> Played:
    models, played = runner.method.sync.of.models, Played([], [])
    diverged = False
    for number in range(sum(rounds)):
        company.in_step()  # whatever has happened here: others wait
        before()
        if diverged:
            continue
        transport.begin()
        going = []
        for bucket in buckets:
            with torch.no_grad():
                bucket.flat.copy_(grad)
            bucket.tame = True
            going.append(runner.launch(bucket, 1.0, grad.clone() if models else None, alone=models))
        transport.hand_over()
        times = list[float]()
        while beside is not None and not (times and all(one.done() for one in transport.launched)):
            start = time.perf_counter()
            beside()
            times.append(time.perf_counter() - start)
        try:
            for one in going:
                blocking(runner.wait(one))
        except DivergedError:
            diverged = True
            continue
        if number >= rounds[0]:
            played.rounds.append(transport.spent)
            played.steps.extend(times[:-1] or times)  # the last may have had the machine to itself
    return Played([], []) if diverged else played


def timed(scripts: Sequence[Script], played: Sequence[float]) -> tuple[Script, ...]:
    """Scripts with other seconds: those before each message, and those after the last, piece by piece."""
    left = iter(played)
    return tuple(replace(script, parts=_timed(script.parts, left)) for script in scripts)


def _timed(parts: Sequence[Part], left: Iterator[float]) -> tuple[Part, ...]:
    found: list[Part] = []
    last: int | None = None  # place of the last computing before a message, which gets all of it
    for part in (*parts, None):
        if part is None or isinstance(part, Ask):
            seconds = next(left)
            if last is not None:
                found[last] = cast("Work", found[last])._replace(seconds=seconds)
            last = None
        if isinstance(part, Work):
            last, part = len(found), part._replace(seconds=0.0)
        if part is not None:
            found.append(part)
    return tuple(found)
