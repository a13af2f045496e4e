"""Record: let the engine's own runner exchange buckets between ranks in this process, and write down what it did.

The ranks are on a clock on which the network takes no time, and exchange real numbers, so that their pieces of work,
agreements and messages are those of training. What rank 0 computes between its requests is timed with the clock of
this machine. Every number of ranks needs a recording of its own; more than `EXACT` are extended from fewer.

Buckets are recorded one by one, since many of a model are alike. What plain sums have in common in a pass, the
agreement after the last of them, is recorded by itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from types import coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, final

import torch

from thinwire.comm.clock import VirtualClock
from thinwire.comm.network import INSTANT
from thinwire.comm.tasks import Task
from thinwire.core.comm import Request
from thinwire.engine.motion import Motion, depth_of
from thinwire.engine.runner import Runner
from thinwire.engine.telemetry import Telemetry
from thinwire.engine.transport import Transport
from thinwire.engine.transport import Work as Piece
from thinwire.planning.device import Device, Host
from thinwire.planning.playback import Tape, copied
from thinwire.planning.rounds import undisturbed
from thinwire.planning.script import After, Ask, Part, Script, Work, asked, extended

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.clock import Clock
    from thinwire.core.method import Method
    from thinwire.engine.beside import Beside
    from thinwire.engine.plan import Parcel

T = TypeVar("T")
HOST, NOTHING = Host(), Tape()
FEW, EXACT = 4, 8  # ranks that are recorded as they are are at most EXACT; more are extended from both
MOST = 16  # ranks of a recording where what happens depends on their number
ONCE = 0  # rounds after the first, where only what happens counts, and not how long it takes
MANY = 8  # rounds; of fewer, one that happened to have the machine to itself would make all others seem disturbed
APART = 7919  # elements by which the vectors of two ranks are moved, so that their largest elements differ


class Recorded(NamedTuple):
    """The pieces of work of one bucket in the order of launch, and whether they wait for an agreement of the pass."""

    scripts: tuple[Script, ...]
    owes: bool = False
    tape: Tape = NOTHING  # of the last pass, where one was asked for


Again = Callable[[Recorded, int], Recorded]


def record(
    method: Method,
    parcel: Parcel,
    grad: Tensor,
    ranks: int,
    rounds: int = 3,
    device: Device = HOST,
    again: Again | None = None,
) -> Recorded:
    """One bucket's round, for any number of ranks; without the agreement that plain sums of a pass make together.

    `again` may time what was recorded of some number of ranks in another way.
    """

    def found(n: int) -> Recorded:
        once = _recorded(method, (parcel,), (grad,), n, rounds, device, tapes=again is not None).typical
        return once if again is None else again(once, n)._replace(tape=NOTHING)

    return _for(ranks, found, method.id)


def record_agreement(
    method: Method, parcels: Sequence[Parcel], ranks: int, rounds: int = 3, device: Device = HOST
) -> Script:
    """The one agreement of all buckets of a pass that owe one.

    It says something of every tensor and nothing of its numbers, so that one element stands for each of them.
    """
    small = [
        replace(parcel, items=tuple(item._replace(shape=(1,), whole=0) for item in parcel.items))
        for parcel in parcels
    ]
    grads = [torch.ones(len(parcel.items), device=parcel.items[0].device) for parcel in small]
    found = _for(ranks, lambda n: _recorded(method, small, grads, n, rounds, device, agrees=True).typical, method.id)
    return found.scripts[-1]


def skips(method: Method) -> bool:
    """Whether a rank may leave out an upload that says little new, as LAG does.

    How often it would is not known of one batch. The same gradient again would never be sent, and so each pass takes
    the opposite of the one before: every upload is sent, which is an upper bound, as in `tw.sim.foresee`.
    """
    return any(channel.memory.skips for channel in method.exchange.channels)


def _for(ranks: int, found: Callable[[int], Recorded], name: str) -> Recorded:
    """What was found for so many ranks: recorded as they are, or extended from fewer."""
    if ranks <= EXACT:
        return found(ranks)
    few, more = (found(n) for n in (FEW, EXACT))
    if [script.shape for script in few.scripts] == [script.shape for script in more.scripts]:
        pairs = zip(few.scripts, more.scripts, strict=True)
        return more._replace(scripts=tuple(extended((FEW, a), (EXACT, b), ranks) for a, b in pairs))
    if ranks > MOST:
        raise ValueError(
            f"{name} sends other messages on every number of ranks, and is recorded for {MOST} at most; "
            f"write hosts={MOST}, or leave it out"
        )
    return found(ranks)


@final
@dataclass
class _Passes:
    """What rank 0 did in each of several passes, and whether a bucket of theirs owed an agreement."""

    scripts: list[tuple[Script, ...]] = field(default_factory=list)
    owes: bool = False
    tape: Tape = NOTHING  # of the last pass

    @property
    def typical(self) -> Recorded:
        """One of them, with what each part usually takes. Where passes differ in what happens, it is the last."""
        last = self.scripts[-1]
        alike = [one for one in self.scripts if [s.shape for s in one] == [s.shape for s in last]]
        scripts = []
        for at, script in enumerate(last):
            parts = (_middle([one[at].parts[place] for one in alike]) for place in range(len(script.parts)))
            scripts.append(replace(script, parts=tuple(parts)))
        return Recorded(tuple(scripts), self.owes, self.tape)


def _recorded(
    method: Method,
    parcels: Sequence[Parcel],
    grads: Sequence[Tensor],
    ranks: int,
    rounds: int,
    device: Device,
    *,
    agrees: bool = False,
    tapes: bool = False,
) -> _Passes:
    """Several passes over some buckets, with the agreement at their end or without.

    One pass before them is not noted, unless it is the only one.
    """
    clock = VirtualClock(ranks, INSTANT)
    found = _Passes()
    lanes = method.lanes(parcels[0].items[0].device.type)

    async def life(rank: int) -> None:
        transport = Recorder(clock, rank, lanes, device, tapes=tapes and rank == 0)
        telemetry = Telemetry(transport.now, transport.traffic, clock.size)
        first = method.sync.warmup + 1  # the first round of all also measures the error
        runner = Runner(method, transport, telemetry, Motion(None, depth_of(method)), 0, first)
        buckets = [runner.bucket(number, parcel) for number, parcel in enumerate(parcels)]
        mine = [torch.roll(grad, rank * APART) for grad in grads]
        models = method.sync.of.models
        lazy = skips(method)
        for bucket, grad in zip(buckets, grads, strict=True):
            for chunk in bucket.chunks if models else ():
                bucket.exchange.start(grad[chunk.start : chunk.stop], chunk.state)
        for number in range(rounds + 1):
            transport.begin()
            going = []
            for bucket, grad in zip(buckets, mine, strict=True):
                bucket.flat.copy_(-grad if lazy and number % 2 else grad)
                bucket.tame = not grad.is_cuda  # a GPU is asked when the round begins
                going.append(runner.launch(bucket, 1.0, grad.clone() if models else None, alone=models))
            found.owes = any(one.owes for one in going)
            if agrees:
                runner.agree(going)
            for one in going:
                await runner.wait(one)
            runner.check(going)
            runner.end_round()
            if rank == 0 and (number or rounds == ONCE):
                found.scripts.append(transport.scripts())
                found.tape = Tape(first + number, transport.tape)

    with torch.no_grad(), device.restored():  # ranks enter and leave streams in turns
        for rank in range(ranks):
            clock.spawn(rank, life(rank))
        clock.run()
    return found


def _middle(parts: Sequence[Part]) -> Part:
    works = [part for part in parts if isinstance(part, Work)]
    if works:
        seconds = [one.seconds for one in works]
        usual = undisturbed(seconds) if len(works) >= MANY else median(seconds)
        return Work(usual, median(one.cores for one in works))
    asks = [part for part in parts if isinstance(part, Ask)]
    return asks[-1]._replace(size=median(one.size for one in asks)) if asks else parts[-1]


@final
class Recorder(Transport):
    """The transport of one rank, on a clock. It notes the pieces of work of a round and what each of them did."""

    def __init__(self, clock: VirtualClock, rank: int, lanes: int, device: Device, *, tapes: bool) -> None:
        self.clock, self.rank, self.device = clock, rank, device
        self.comm, self.timeout, self.drops = clock.comm(rank), math.inf, False
        self.traffic = [clock.traffic[rank]]
        self.now = lambda: clock.now
        self._pieces: dict[Task[Any], list[Part]] = {}
        self._weights: list[int | None] = []
        self._tapes, self._tape = tapes, list[list[Any]]()
        self._last: list[Task[Any] | None] = [None] * lanes
        self._launched = 0

    def begin(self) -> None:
        """Forget the pieces of earlier rounds."""
        self._pieces, self._weights, self._tape = {}, [], []

    @property
    def tape(self) -> tuple[tuple[Any, ...], ...]:
        """What the requests of the pieces since then were answered with."""
        return tuple(map(tuple, self._tape))

    def scripts(self) -> tuple[Script, ...]:
        """What the pieces since then did."""
        number = {task: at for at, task in enumerate(self._pieces)}
        return tuple(
            Script(tuple(After(number[part]) if isinstance(part, Task) else part for part in parts), weight)
            for parts, weight in zip(self._pieces.values(), self._weights, strict=True)
        )

    def launch(
        self, work: Piece[T], clock: Clock | None = None, weight: int | None = None, *, aside: bool = False
    ) -> Task[T]:
        """A task in the channel of the lane whose turn it is."""
        lane = self._launched % len(self._last)
        parts: list[Any] = []
        tape: list[Any] | None = [] if self._tapes else None
        self._launched += 1
        made = self.clock.spawn(self.rank, self._in_turn(self._last[lane], work, parts, tape), channel=1 + lane)
        self._last[lane] = made
        self._pieces[made] = parts
        self._weights.append(weight)
        if tape is not None:
            self._tape.append(tape)
        return made

    def beside(self, edges: list[tuple[int, int]]) -> Beside:
        """Nothing runs beside the rounds that are recorded."""
        raise AssertionError("a method that exchanges beside its steps is not recorded")

    async def _in_turn(
        self, earlier: Task[Any] | None, work: Piece[T], parts: list[Any], tape: list[Any] | None
    ) -> T:
        if earlier is not None and not earlier.done:
            await earlier
        return await _noted(work(self.comm), parts, self.rank, self.device, tape)


@coroutine
def _noted(
    running: Coroutine[Any, Any, T], parts: list[Any], rank: int, device: Device, tape: list[Any] | None
) -> Generator[Any, Any, T]:
    """Pass requests on, and note them and the time between them. Tasks stand for the pieces that are waited for.

    Ranks take turns in one thread. On a GPU each has done its work before it is the next one's turn, so that what it
    takes is its own, and no rank reads what another has not written.
    """
    answer: Any = None
    while True:
        device.finish()  # answers are copies
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            request = running.send(answer)
        except StopIteration as done:
            device.finish()
            _add(parts, time.perf_counter() - wall, time.process_time() - cpu, device)
            result: T = done.value
            return result
        device.finish()
        _add(parts, time.perf_counter() - wall, time.process_time() - cpu, device)
        if isinstance(request, Request):
            part = asked(request, rank)
            if part is not None:
                parts.extend(device.around(request, part, len(request.ranks)))
        else:
            parts.append(request)
        answer = yield request
        if tape is not None and isinstance(request, Request):
            tape.append(copied(answer))


def _add(parts: list[Any], wall: float, cpu: float, device: Device) -> None:
    parts.append(Work(wall, min(max(device.cores(cpu / wall), 0.05), float(torch.get_num_threads()))))
