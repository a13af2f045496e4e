"""Stats: what the rounds so far have cost, as plain numbers for TensorBoard, W&B or print."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, final

import torch

from thinwire.core.types import Key, Layout
from thinwire.core.verdicts import Verdicts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from thinwire.core.clock import Stamp
    from thinwire.core.compressor import Compressor

SAMPLE_EVERY = 50  # rounds between measurements of the compression error
TIMED = ("encode", "wire", "decode")
ON_GPU = ("encode", "decode")
COUNTED = {"upload": "uploads", "skip": "uploads_skipped"}


@final
@dataclass
class Stats:
    """Sums over rounds on this rank."""

    rounds: int = 0
    elements: int = 0
    again: int = 0  # elements that had travelled before since the last optimizer.step
    skipped: int = 0  # buckets in which a gradient was not finite
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TIMED, 0.0))
    gpu_seconds: dict[str, float] = field(default_factory=dict)  # what a GPU took for it, where that is timed
    marks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))  # by memories that may skip
    nmse: float | Tensor = 0.0  # of the last measurement; a tensor while it may still be computed on a GPU
    distance: float = 0.0  # between models, of the last measurement
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
        ring = 2 * (ranks - 1) / ranks * 4 * self.elements  # bytes of a float32 all-reduce of the same elements
        return {
            "rounds": self.rounds,
            "skipped": self.skipped,
            "elements": self.elements,
            "elements_again": self.again,
            "bytes_sent": sent,
            "messages": messages,
            **{name: self.marks[what] for what, name in COUNTED.items()},
            "bits_per_element": 8 * sent / self.elements if self.elements else 0.0,
            "ratio": ring / sent if sent else 1.0,
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
