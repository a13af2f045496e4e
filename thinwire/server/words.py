"""Words: what a worker and a server say to each other.

Most are one byte. A gradient goes up with what is said about it before its payload; a model comes down after its
version.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from thinwire.core.comm import to_bytes, to_tensor

if TYPE_CHECKING:
    from torch import Tensor

UP = struct.Struct("<qqdfHH")  # tag, clock, seconds, samples, finite, learning rates
DOWN = struct.Struct("<qif")  # version, whether a model follows, share of a batch
ALIGNED = 16


def _word(number: int) -> Tensor:
    return torch.tensor([number], dtype=torch.uint8)


READY: Final = _word(1)  # a worker asks for its turn, and a server grants it
PAUSED: Final = _word(2)  # a worker saves, and a server has saved
BUSY: Final = _word(3)  # a server is there, and the answer is still to come
LAST: Final = _word(4)  # a worker's last word; the last model is the answer
AWAY: Final = _word(5)  # a worker meets others elsewhere; there is no answer


def is_word(data: Tensor, word: Tensor) -> bool:
    """Whether a message is this word."""
    return data.numel() == 1 and bool(data == word)


class Message(NamedTuple):
    """What a worker says of a gradient."""

    tag: int
    clock: int
    seconds: float
    samples: float  # that it is the mean over, or 0 where nobody has said
    finite: bool
    lrs: tuple[float, ...]

    def pack(self, payload: Tensor) -> Tensor:
        """One message of bytes."""
        head = UP.pack(self.tag, self.clock, self.seconds, self.samples, self.finite, len(self.lrs))
        head += struct.pack(f"<{len(self.lrs)}d", *self.lrs)
        head = head.ljust(-(-len(head) // ALIGNED) * ALIGNED, b"\0")
        return torch.cat((to_tensor(head), payload.cpu()))


def read(data: Tensor) -> tuple[Message, Tensor]:
    """The message, and the bytes of its payload."""
    tag, clock, seconds, samples, finite, count = UP.unpack(to_bytes(data[: UP.size]))
    end = UP.size + 8 * count
    lrs = struct.unpack(f"<{count}d", to_bytes(data[UP.size : end]))
    return Message(tag, clock, seconds, samples, bool(finite), lrs), data[-(-end // ALIGNED) * ALIGNED :]


class Reply(NamedTuple):
    """What a worker goes on with: bytes of a model, or None for the one that it has."""

    version: int
    share: float  # of the mean batch, that the worker should take
    data: Tensor | None

    def pack(self) -> Tensor:
        """One message of bytes."""
        head = to_tensor(DOWN.pack(self.version, self.data is not None, self.share))
        return head if self.data is None else torch.cat((head, self.data.cpu()))


def reply(data: Tensor) -> Reply:
    """What `Reply.pack` packed."""
    version, follows, share = DOWN.unpack(to_bytes(data[: DOWN.size]))
    return Reply(version, share, data[DOWN.size :].clone() if follows else None)
