"""Stats: what the steps and rounds so far have cost, as plain numbers for TensorBoard, W&B or print.

Bytes are compared with those of DistributedDataParallel in the same optimizer steps: one float32 ring all-reduce of
the gradient per step, however the method exchanges, and however many backward passes a `no_sync` block had. A closure
that the optimizer calls several times in a step would be reduced each time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, final

import torch

from thinwire.core.types import Key, Layout
from thinwire.core.verdicts import Verdicts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from thinwire.core.clock import Stamp
    from thinwire.core.compressor import Compressor

SAMPLE_EVERY = 50  # rounds between measurements of the compression error
RECENT = 100  # of the last steps there are figures; more where a round has more
MOST = 10_000
TIMED = ("encode", "wire", "decode")
ON_GPU = ("encode", "decode")
COUNTED = {"upload": "uploads", "skip": "uploads_skipped"}


class Mark(NamedTuple):
    """Sums at the end of an optimizer step."""

    steps: int = 0
    at: float = 0.0  # seconds, as the driver's time goes
    reduced: int = 0  # elements that DDP would have reduced
    sent: int = 0  # bytes
    waited: float = 0.0  # seconds for which the training loop waited
    busy: float = 0.0  # seconds in which something was being encoded, sent, received or decoded


@final
class Course:
    """The marks of a run: the first and the last, the last at which something had been sent, and recent ones."""

    def __init__(self) -> None:
        self.first = self.last = self.sending = Mark()
        self.recent = deque([Mark()], RECENT + 1)

    def step(self, mark: Mark, period: int) -> None:
        """A step has ended; rounds have `period` steps."""
        if mark.sent > self.last.sent:
            self.sending = mark
        if not self.last.steps:
            self.first = mark
        self.last = mark
        most = 1 + min(MOST, period * -(-RECENT // period))  # whole rounds
        if self.recent.maxlen != most:
            self.recent = deque(self.recent, most)
        self.recent.append(mark)

    def report(self, ring: float, sent: int, elements: int) -> dict[str, float]:
        """Figures of all steps and of the recent ones; `ring` is what an all-reduce sends per element, in bytes.

        Where nothing had been sent when the last step ended, `sent` is compared: all of a run may be sent at its end,
        or by somebody who takes no steps but has exchanged so many `elements`.
        """
        begin, last, sending = self.recent[0], self.last, self.sending
        if not sending.sent:
            sending = last._replace(reduced=last.reduced or elements, sent=sent)
        run = _between(Mark(), last, sending, self.first, ring)
        recent = _between(begin, last, last if begin.steps else sending, self.first, ring)
        if not recent["step_bytes"]:
            recent["ratio"] = run["ratio"]
        return {
            "steps": last.steps,
            "ddp_bytes": ring * last.reduced,
            "bits_per_element": 8 * sending.sent / sending.reduced if sending.reduced else 0.0,
            **run,
            "last_steps": last.steps - begin.steps,
            **{f"last_{name}": value for name, value in recent.items()},
        }


def _between(a: Mark, b: Mark, sending: Mark, first: Mark, ring: float) -> dict[str, float]:
    """Figures per step from `a` to `b`, and of bytes to `sending`, since a round is not counted by halves."""
    since = a if a.steps else first  # before the end of the first step there was more to wait for than training
    sent, waited, busy = sending.sent - a.sent, b.waited - a.waited, b.busy - a.busy
    return {
        "ratio": ring * (sending.reduced - a.reduced) / sent if sent else 1.0,
        "step_bytes": sent / max(1, sending.steps - a.steps),
        "step_s": (b.at - since.at) / max(1, b.steps - since.steps),
        "step_wait_s": waited / max(1, b.steps - a.steps),
        "hidden": 1 - min(1.0, waited / (busy or waited)) if busy or waited else float(sent > 0),
    }


@final
@dataclass
class Stats:
    """Sums over rounds and steps on this rank."""

    rounds: int = 0
    elements: int = 0
    again: int = 0  # elements that had travelled before since the last optimizer.step
    skipped: int = 0  # buckets in which a gradient was not finite
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TIMED, 0.0))
    gpu_seconds: dict[str, float] = field(default_factory=dict)  # what a GPU took for it, where that is timed
    marks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))  # by memories that may skip
    nmse: float | Tensor = 0.0  # of the last measurement; a tensor while it may still be computed on a GPU
    distance: float = 0.0  # between models, of the last measurement
    course: Course = field(default_factory=Course)
    bytes_before: int = 0  # sent by the methods before a switch
    messages_before: int = 0

    def time(self, notes: Iterable[tuple[str, float, float]]) -> None:
        """Add what a clock noted."""
        for what, start, stop in notes:
            if what in self.seconds:
                self.seconds[what] += stop - start
            elif what in self.marks:
                self.marks[what] += 1

    def time_queued(self, queued: Iterable[tuple[str, Stamp, Stamp]]) -> None:
        """Add what a GPU took, after waiting for it."""
        for what, start, stop in queued:
            if what in ON_GPU:
                stop.synchronize()
                self.gpu_seconds[what] = self.gpu_seconds.get(what, 0.0) + start.elapsed_time(stop) / 1e3

    def report(self, sent: int, messages: int, ranks: int) -> dict[str, float]:
        """Every figure; `sent` and `messages` are counted by the drivers."""
        sent, messages = sent + self.bytes_before, messages + self.messages_before
        ring = 2 * (ranks - 1) / ranks * 4
        return {
            "rounds": self.rounds,
            "skipped": self.skipped,
            "elements": self.elements,
            "elements_again": self.again,
            "bytes_sent": sent,
            "messages": messages,
            **{name: self.marks[what] for what, name in COUNTED.items()},
            **self.course.report(ring, sent, self.elements),
            "nmse": float(self.nmse),
            "consensus_distance": self.distance,
            **{f"{what}_s": seconds for what, seconds in self.seconds.items()},
            **{f"{what}_gpu_s": seconds for what, seconds in self.gpu_seconds.items()},
        }


@torch.no_grad()
def compression_error(compressor: Compressor, x: Tensor, layout: Layout, key: Key) -> Tensor:
    """|C(x) - x|^2 / |x|^2 for the vector at hand, without its memory, as one element; 0 where x is 0.

    What is encoded here is decoded here: nobody looks at its checksum.
    """
    size = x.square().sum()
    payload = replace(compressor.encode(x, layout, key), later=Verdicts())
    lost = compressor.decode(payload, layout, key=key) - x
    return torch.where(size > 0, lost.square().sum().double() / size, 0.0)
