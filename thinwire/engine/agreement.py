"""Agreement: what all ranks know about rounds before their results are used.

Every rank says of each round whether its gradients are finite, and small enough for all that is made of them, what
each tensor holds, its learning rate, and how many rounds it has had since its last step. The largest value of each
byte over all ranks is the answer: numbers are equal if largest and smallest bytes agree. One message serves one round
or many.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, final

import torch

from thinwire.core.comm import to_bytes, to_tensor
from thinwire.core.desk import fetched
from thinwire.kernels.base import TAME

if TYPE_CHECKING:
    from torch import Tensor

    from thinwire.core.comm import Comm
    from thinwire.engine.round import Round

LAST = 255  # the largest value of a byte
LARGE = 1  # what a rank says of what is finite, but too large to be sure of the result; more if it is not finite
FLIPPED = bytes(LAST - byte for byte in range(LAST + 1))
NUMBER = struct.Struct("<d")

# What a tensor in a bucket holds. What the largest says on any rank holds for all.
RESULT = 1  # what an earlier round since the last step has left: the same on all ranks
EDITED = 2  # that, and somebody may have changed it
GRADIENT = 3  # what backward has computed on this rank; below all of these is nothing


@final
@dataclass(frozen=True)
class Agreed:
    """What all ranks know about a bucket's round before it is exchanged."""

    broken: int = 0  # 0 if everything is finite, else one more than the highest rank on which it is not
    large: bool = False  # whether something is so large on some rank that the result may not be finite
    overflowed: bool = False  # whether it was not; everything was finite on every rank
    same_lr: bool = True
    in_step: bool = True  # whether all ranks have had as many rounds since their last steps
    used: tuple[bool, ...] = ()  # by tensor: whether any rank has a gradient for it
    again: tuple[bool, ...] = ()  # by tensor: whether all ranks have an earlier result there, or nothing
    news: bool = True  # whether there is anything that is not the same on all ranks already
    trains: bool = True  # whether some rank still trains: in `Wire.join` a rank whose batches have ended does not
    lr: float = field(default=0.0, compare=False)  # the learning rate, up to the end of its fraction

    def what(self, name: Callable[[int], int]) -> str:
        """What is not finite; `name` is the number by which users know a rank."""
        if self.overflowed:
            return "the mean of the models"
        return (
            f"the model of rank {name(self.broken - 1)}" if self.broken < LAST - LARGE else "the model of some rank"
        )

    @property
    def finite(self) -> bool:
        """Whether everything is finite on every rank."""
        return not self.broken

    @property
    def worth_sending(self) -> bool:
        """Whether the round goes on."""
        return self.finite and self.same_lr and self.in_step and self.news and self.trains


SOUND = Agreed()


async def agree(comm: Comm, rounds: Sequence[Round]) -> None:
    """Tell the others about the rounds, and note in each what all ranks know."""
    broken = min(comm.rank + 1 + LARGE, LAST)
    words = [
        bytes((level(top, going.limit, heavy=going.heavy, broken=broken),))
        + going.used
        + _twice(going.lr, going.since)
        for top, going in zip(_tops(rounds), rounds, strict=True)
    ]
    # A rank that is idle has nothing to say: zeros change no maximum. If all are, there is no learning rate.
    words = [bytes(len(word)) if going.idle else word for going, word in zip(rounds, words, strict=True)]
    said = to_bytes(await comm.all_reduce(to_tensor(b"".join(words)), "max"))
    at = 0
    for going, word in zip(rounds, words, strict=True):
        going.agreed = _read(said[at : at + len(word)])
        at += len(word)


@lru_cache(maxsize=64)
def _twice(lr: float, since: int) -> bytes:
    """Two numbers, and their bytes counted from the other end, so that the largest of these are the smallest.

    The first byte of a learning rate is the end of its fraction, which no schedule cares for: `since` has its place.
    """
    word = bytes((since % (LAST + 1),)) + NUMBER.pack(lr)[1:]
    return word + word.translate(FLIPPED)


@lru_cache(maxsize=4096)
def _read(said: bytes) -> Agreed:
    """Kept, since it is the same in almost every step."""
    size = NUMBER.size
    used, most, least = said[1 : -2 * size], said[-2 * size : -size], said[-size:].translate(FLIPPED)
    flags = tuple(flag > 0 for flag in used)
    if not any(said[-2 * size :]):
        return Agreed(said[0], used=flags, trains=False)
    return Agreed(
        max(0, said[0] - LARGE),
        said[0] == LARGE,
        same_lr=most[1:] == least[1:],
        in_step=most[0] == least[0],
        used=flags,
        again=tuple(flag < GRADIENT for flag in used),
        news=any(flag > RESULT for flag in used),
        lr=NUMBER.unpack(b"\0" + most[1:])[0],
    )


def level(top: float, limit: float, *, heavy: bool, broken: int = LAST) -> int:
    """What a rank says of numbers whose largest magnitude is `top`."""
    if not math.isfinite(top):
        return broken
    return LARGE if heavy or top > limit else 0


def _tops(rounds: Sequence[Round]) -> list[float]:
    """The largest magnitude of each, or 0 where it is known to be small enough.

    Of what lies on a GPU, all is queued first, and then waited for once. The vector of a plain sum may hold the sum
    already, or a part of it: what is not finite stays so in a sum, and limits leave room for a division by the ranks.
    """
    tops = [0.0] * len(rounds)
    queued: dict[torch.device, list[tuple[int, Tensor]]] = {}
    for at, going in enumerate(rounds):
        if (going.tame and going.limit >= TAME) or not going.x.numel():
            continue  # of a small parameter, a shard may hold nothing, and nothing has no largest element
        with going.handover.work(going.x):
            if going.x.is_cuda:
                queued.setdefault(going.x.device, []).append((at, _largest(going.x)))
            else:
                tops[at] = largest(going.x)
    for parts in queued.values():
        with rounds[parts[-1][0]].handover.work():  # all of them are on this thread's stream
            for (at, _), top in zip(parts, fetched(torch.cat([one for _, one in parts])), strict=True):
                tops[at] = top
    return tops


def largest(x: Tensor) -> float:
    """The largest magnitude; NaN or infinity where something is not finite.

    On a GPU this thread waits for one number, and for nothing that is queued elsewhere.
    """
    if not x.numel():
        return 0.0
    if x.is_cuda:
        return float(fetched(_largest(x))[0])
    low, high = torch.aminmax(x.detach())  # which a CPU computes many times faster than a norm
    return max(float(high), -float(low)) if high == high else math.nan


def finite(x: Tensor) -> bool:
    """A sum is finite only if every term is; if the sum is not, it may merely have overflowed.

    On a GPU one pass decides, and this thread waits for one number, and for nothing that is queued elsewhere.
    """
    if x.is_cuda:
        return math.isfinite(largest(x))
    return math.isfinite(float(x.sum())) or bool(x.isfinite().all())


def _largest(x: Tensor) -> Tensor:
    largest: Tensor = torch.linalg.vector_norm(x, math.inf)
    return largest.view(1)
