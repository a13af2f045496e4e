"""Words: what ranks tell each other in a block of `Wire.join`, where some may have ended their batches.

Where gradients are exchanged, the agreement about a round says it. Ranks that exchange models say it before a round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from thinwire.core.comm import Comm
    from thinwire.engine.loop import Loop
    from thinwire.engine.transport import Work


class Word(NamedTuple):
    """What one rank says; the answer has the largest values over ranks."""

    trains: float  # whether this rank does
    lr: float = 0.0  # of ranks that train
    step: float = 0.0
    moved: float = 0.0  # whether the model has left the anchor


def say(word: Word) -> Work[Word]:
    """The work of telling all ranks."""

    async def work(comm: Comm) -> Word:
        return Word(*(await comm.all_reduce(torch.tensor(word, dtype=torch.float64), "max")).tolist())

    return work


@torch.no_grad()
def forget(loop: Loop) -> None:
    """Let memories be as they were at the start, since they know models that nobody has any more."""
    for bucket in loop.buckets:
        for chunk in bucket.chunks:
            for name, slot in bucket.exchange.slots(chunk.layout, loop.runner.comm).items():
                chunk.state[name].fill_(slot.fill)
