"""Device: what a model computes on, and how its work is timed.

On the CPU a call has done its work when it returns. A GPU works off a queue: a moment is an event in that queue,
which is read when the step has ended, so that nothing inside the step waits. Whatever one rank computes on a GPU,
training and codecs, is queued by one thread at a time and shares the GPU, which the replay therefore knows as one
core. What is sent goes through pinned memory: it is copied down before and up after, which is timed here, too.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any, final

import torch

from thinwire.core.comm import (
    AllGatherRequest,
    AllReduceRequest,
    AllToAllRequest,
    PostRequest,
    SendRequest,
    SwapRequest,
)
from thinwire.planning.link import Cost, Sockets
from thinwire.planning.script import Ask, Part, Work

if TYPE_CHECKING:
    from torch import Tensor, nn

    from thinwire.core.comm import Request
    from thinwire.planning.company import Company
    from thinwire.planning.computing import Makes, Step

SMALL, LARGE, TIMES = 4096, 16 << 20, 9  # bytes of copies, and how many are timed
IDLE = 0.05  # cores that a copy keeps busy: an engine of its own does it


class Device(ABC):
    """How work on a device is timed."""

    queued: bool  # whether calls return before their work is done
    rounds: int  # of each bucket that are timed among other ranks
    gauges: tuple[str, ...] = ("qsgd:bits=1",)  # whose real steps say what the engine takes (planning/gauge.py)

    @abstractmethod
    def share(self, company: Company) -> float:
        """How much of what computes here one rank has: cores, or the GPU as one rank sees it."""

    @abstractmethod
    def cores(self, busy: float) -> float:
        """How many of these a rank uses, of the processor seconds per second that were counted."""

    @abstractmethod
    def moment(self) -> Any:
        """Now, in the order of the work."""

    @abstractmethod
    def between(self, start: Any, end: Any) -> float:
        """Seconds between two moments; the work of both has been done."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until all work is done."""

    @abstractmethod
    def restored(self) -> AbstractContextManager[object]:
        """Leave the queue that calls of this thread go to as it is, whatever the block does to it."""

    @abstractmethod
    def around(self, request: Request[Any], ask: Ask, n: int) -> list[Part]:
        """A request of a rank of `n`, with what brings its bytes to the network and back."""

    @abstractmethod
    def sockets(self, known: Sockets) -> Sockets:
        """What sending costs of what computes here."""

    def finished(self, makes: Makes) -> Makes:
        """Steps that end when their work is done."""
        if not self.queued:
            return makes

        def made(net: nn.Module) -> Any:
            step, optimizer = makes(net)
            return _finishing(step, self), optimizer

        return made


@final
@dataclass(frozen=True)
class Host(Device):
    """The processor of this machine, whose cores are divided among the ranks on it."""

    queued = False
    rounds = 3
    gauges = ("qsgd:bits=1", "qsgd:bits=1,exchange=all-gather")

    def share(self, company: Company) -> float:
        return (os.cpu_count() or 1) / company.here

    def cores(self, busy: float) -> float:
        return busy

    def moment(self) -> float:
        return time.perf_counter()

    def between(self, start: float, end: float) -> float:
        return end - start

    def finish(self) -> None:
        """A call that has returned is done."""

    def restored(self) -> AbstractContextManager[object]:
        return nullcontext()

    def around(self, request: Request[Any], ask: Ask, n: int) -> list[Part]:
        return [ask]

    def sockets(self, known: Sockets) -> Sockets:
        return known


@final
@dataclass(frozen=True)
class Gpu(Device):
    """One GPU. Ranks that share it measure at the same time, so that each sees it as fast as it will be then."""

    device: torch.device
    down: Cost  # a copy to pinned memory that is waited for
    up: Cost  # and one from there

    queued = True
    rounds = 12  # kernels are compiled in several of them: once for each kind of length, and lengths of codes change

    @classmethod
    def timed(cls, device: torch.device, company: Company) -> Gpu:
        """With copies as fast as they are while all ranks on this machine copy."""
        return cls(device, _copies(device, company, down=True), _copies(device, company, down=False))

    def share(self, company: Company) -> float:
        return 1.0

    def cores(self, busy: float) -> float:
        return 1.0

    def moment(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def between(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return 1e-3 * float(start.elapsed_time(end))

    def finish(self) -> None:
        torch.cuda.synchronize(self.device)

    def restored(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(torch.cuda.current_stream(self.device))

    def around(self, request: Request[Any], ask: Ask, n: int) -> list[Part]:
        if not any(x.is_cuda for x in _tensors(request)):
            return [ask]
        sent, arrived = copied(ask, n)
        return [
            Work(self.down.round + self.down.byte * sent, IDLE),
            ask,
            Work(self.up.round + self.up.byte * arrived, IDLE),
        ]

    def sockets(self, known: Sockets) -> Sockets:
        """Sockets keep the processor busy, which does little else here."""
        return Sockets(*(replace(cost, cpu=0.0) for cost in (known.ring, known.ring16, known.trade, known.half)))


def device_of(model: nn.Module, company: Company) -> Device:
    """What the model is on; ValueError for several devices, and for others than a CPU or a GPU."""
    devices = {p.device for p in model.parameters()}
    if {one.type for one in devices} == {"cpu"}:
        return Host()
    if len(devices) > 1 or {one.type for one in devices} != {"cuda"}:
        found = ", ".join(sorted(map(str, devices)))
        raise ValueError(f'plan measures models on the CPU or on one GPU, not on {found}; write model.to("cuda")')
    return Gpu.timed(devices.pop(), company)


def copied(ask: Ask, n: int) -> tuple[float, float]:
    """Bytes that a request of `n` ranks brings down from a GPU, and those that it brings up again."""
    down = {"ring": 1.0, "gather": 1.0, "scatter": (n - 1) / n, "swap": 1.0}[ask.kind] * ask.size
    up = {"ring": 1.0, "gather": n - 1, "scatter": (n - 1) / n, "swap": ask.peers}[ask.kind] * ask.size
    return down, up


def _finishing(step: Step, device: Device) -> Step:
    def finished() -> None:
        step()
        device.finish()

    return finished


def _tensors(request: Request[Any]) -> Sequence[Tensor]:
    if isinstance(request, AllToAllRequest):
        return request.xs
    if isinstance(request, AllReduceRequest | AllGatherRequest | SwapRequest | SendRequest | PostRequest):
        return [request.x]
    return []


def _copies(device: torch.device, company: Company, *, down: bool) -> Cost:
    """Seconds of a copy and of each of its bytes, on the slowest rank."""
    taken = []
    for size in (SMALL, LARGE):
        near, far = torch.zeros(size, dtype=torch.uint8, pin_memory=True), torch.zeros(size, dtype=torch.uint8)
        far = far.to(device)
        target, source = (near, far) if down else (far, near)
        times = []
        for _ in range(TIMES):
            torch.cuda.synchronize(device)
            company.in_step()
            start = time.perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize(device)
            times.append(time.perf_counter() - start)
        (slowest,) = company.slowest([median(times[1:])])
        taken.append(slowest)
    return Cost(taken[0], max(0.0, taken[1] - taken[0]) / (LARGE - SMALL))
