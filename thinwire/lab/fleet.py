"""Fleet: replicas that train with torchft's lighthouse, and can be killed and started again at any moment.

Each replica is a process of its own. After every round it says how many rounds it has taken, a checksum of its
anchor, and what `stats` says; in shared memory lies what it is doing now.
"""

from __future__ import annotations

import logging
import os
import signal
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import nn

from thinwire.core.method import Method
from thinwire.integrations import torchft
from thinwire.lab.launch import inheriting

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

PHASES = ("coming", "local steps", "round")
HOST = "localhost"


def _nothing(replica: int, life: int) -> None:
    """Live undisturbed."""


@final
@dataclass(frozen=True)
class Course:
    """What a replica trains: a net of two layers, on noise of its own."""

    method: Method
    width: int = 256
    lr: float = 0.01
    pause: float = 0.01  # seconds that a local step takes beside its computation
    quorum: int = 2
    meeting: float = 5.0
    device: str = "cpu"
    prepare: Callable[[int, int], None] = _nothing  # is told the replica and how often it had been started


class Report(NamedTuple):
    """What a replica says after a round."""

    replica: int
    life: int  # how often it had been started
    when: float  # seconds, time.monotonic
    rounds: int
    checksum: int  # of the anchor
    crew: int
    again: int  # rounds that it took again so far
    healed: int  # how often it took over a state


@final
@dataclass(eq=False)
class Replica:
    """One process and the parent's end of its pipe."""

    number: int
    life: int
    process: ForkServerProcess
    pipe: Connection
    phase: Any
    reports: list[Report] = field(default_factory=list)

    @property
    def doing(self) -> str:
        """What it is doing now."""
        return PHASES[self.phase.value]


@final
class Fleet:
    """A lighthouse in this process, and replicas. Use it with `with`."""

    def __init__(self, course: Course, replicas: int, *, grace: float = 5.0, alive: float = 2.0) -> None:
        self.course = course
        self._context = inheriting()
        self.lighthouse = torchft.lighthouse(quorum=course.quorum, grace=grace, alive=alive, bind="[::]:0")
        self.replicas: dict[int, Replica] = {}
        self.reports: list[Report] = []
        self._lives = [0] * replicas
        for number in range(replicas):
            self.start(number)

    def start(self, number: int) -> None:
        """Start a replica, which then comes by itself."""
        here, there = self._context.Pipe(duplex=False)
        phase = self._context.Value("i", 0, lock=False)
        port = self.lighthouse.address().rsplit(":", 1)[1]
        args = (number, self._lives[number], f"http://{HOST}:{port}", self.course, there, phase)
        process = self._context.Process(target=_live, args=args, daemon=True)
        process.start()
        there.close()
        self.replicas[number] = Replica(number, self._lives[number], process, here, phase)
        self._lives[number] += 1

    def kill(self, number: int) -> None:
        """Send SIGKILL, and read what it had said."""
        replica = self.replicas.pop(number)
        replica.process.kill()
        replica.process.join()
        self._read(replica)
        replica.pipe.close()

    def listen(self, seconds: float) -> list[Report]:
        """What has been said within so many seconds, or until somebody says something."""
        by_pipe: dict[Any, Replica] = {replica.pipe: replica for replica in self.replicas.values()}
        before = len(self.reports)
        for pipe in wait(list(by_pipe), seconds):
            self._read(by_pipe[pipe])
        return self.reports[before:]

    @contextmanager
    def stopped(self, number: int) -> Iterator[None]:
        """Let a replica stand still in its local steps, with SIGSTOP."""
        pid = self.replicas[number].process.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        while self.replicas[number].doing != "local steps":
            os.kill(pid, signal.SIGCONT)
            self.listen(0.01)
            os.kill(pid, signal.SIGSTOP)
        yield
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def further(self, rounds: int, seconds: float, *, without: Sequence[int] = ()) -> None:
        """Wait until all replicas have said that they took so many more rounds; TimeoutError if they have not."""
        goal = rounds + max([report.rounds for report in self.reports], default=0)
        late = time.monotonic() + seconds
        while any(self.taken(number) < goal for number in self.replicas if number not in without):
            if time.monotonic() > late:
                doing = {number: (self.taken(number), one.doing) for number, one in self.replicas.items()}
                raise TimeoutError(f"round {goal} was not taken by all in {seconds} s: {doing}")
            self.listen(0.05)

    def gone(self, number: int, seconds: float) -> None:
        """Wait until a replica has ended by itself; TimeoutError if it does not in time."""
        replica, late = self.replicas[number], time.monotonic() + seconds
        while replica.process.is_alive():
            if time.monotonic() > late:
                raise TimeoutError(f"replica {number} has not ended in {seconds} s: {replica.doing}")
            self.listen(0.05)
        self.kill(number)

    def taken(self, number: int) -> int:
        """Rounds that a replica has said it has taken in its present life; -1 if it has said nothing."""
        reports = self.replicas[number].reports
        return reports[-1].rounds if reports else -1

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self.replicas):
            self.kill(number)
        self.lighthouse.shutdown()

    def _read(self, replica: Replica) -> None:
        with suppress(EOFError, OSError):
            while replica.pipe.poll():
                said = Report(replica.number, replica.life, *replica.pipe.recv())
                replica.reports.append(said)
                self.reports.append(said)


def unequal(reports: list[Report]) -> list[int]:
    """The rounds after which some replicas had different anchors."""
    found: dict[int, set[int]] = {}
    for one in reports:
        found.setdefault(one.rounds, set()).add(one.checksum)
    return [rounds for rounds, sums in sorted(found.items()) if len(sums) > 1]


def _live(number: int, life: int, lighthouse: str, course: Course, pipe: Connection, phase: Any) -> None:
    """The life of a replica. Its noise differs from life to life, as the data of a replica that comes back does."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    torch.manual_seed(1000 * life + number)
    course.prepare(number, life)
    model = nn.Sequential(nn.Linear(course.width, course.width), nn.Tanh(), nn.Linear(course.width, 8))
    model.to(course.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=course.lr, momentum=0.9)
    manager = torchft.manager(
        lighthouse,
        quorum=course.quorum,
        name=f"replica{number}",
        hostname=HOST,
        meeting=course.meeting,
        quorum_timeout=120.0,
    )
    with torchft.outer(model, optimizer, course.method, manager=manager, timeout=20.0) as wire:
        phase.value, told = 1, -1
        while True:
            stats = wire.stats()
            if stats["rounds_taken"] != told:
                told = int(stats["rounds_taken"])
                anchor = wire.anchor()
                data = b"".join(anchor[name].cpu().numpy().tobytes() for name in sorted(anchor))
                figures = (int(stats[name]) for name in ("crew", "rounds_again", "healed"))
                pipe.send((time.monotonic(), told, zlib.crc32(data), *figures))
            x = torch.randn(16, course.width, device=course.device)
            model(x).square().mean().backward()
            time.sleep(course.pause)
            phase.value = 2 if (stats["local_steps"] + 1) % course.method.sync.every == 0 else 1
            wire.samples(16 + number)
            optimizer.step()
            optimizer.zero_grad()
            phase.value = 1
