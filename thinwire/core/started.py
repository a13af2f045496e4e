"""Started: a payload that has been written but not sealed, because a GPU may still be computing how long it is.

A codec's bytes have a length that only the device knows at first. To ask for it is to wait until everything queued
before has run, so several payloads are started, and their lengths are asked for together. Their symbols are also
coded together: a GPU codes several vectors as fast as one, and the host launches as much for all as for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, final

import torch
from torch import Tensor

from thinwire.core.desk import fetched
from thinwire.core.payload import Payload, Tail, seal_all

if TYPE_CHECKING:
    from thinwire.core.codec import Codec
    from thinwire.kernels.key import Key


class Symbols(NamedTuple):
    """What a codec is still to write: symbols, to `room`, behind `side` bytes of the same body."""

    codec: Codec
    symbols: Tensor
    width: int
    room: Tensor
    side: int


Used: TypeAlias = "int | Tensor | Symbols | None"
"""The bytes of a body that count: None for all; on a GPU one element, or what is yet to be written."""


class Written(NamedTuple):
    """Bytes that a codec has used, below 0 if it could not write; and how many lie before them."""

    used: int | Tensor | None
    side: int


@final
@dataclass(frozen=True, eq=False)
class Started:
    """A payload of which `used` counts."""

    payload: Payload
    used: Used
    scheme: int
    key: Key
    checksum: bool
    tail: Tail | None = None

    def trim(self, used: int | None, side: int = 0) -> Payload:
        """The payload with what counts of its body: `used` bytes behind `side` others, or all."""
        if used is not None and used < 0:
            raise ValueError("a compressor made a symbol that does not fit its width; its codec cannot write it")
        return self.payload.trim(None if used is None else side + used)


def finish(started: Sequence[Started]) -> list[Payload]:
    """All of them sealed, after one wait if any length is still on a GPU."""
    known = written([one.used for one in started])
    waiting = [used for used, _ in known if isinstance(used, Tensor)]
    sizes = iter(fetched(torch.cat(waiting)) if waiting else ())
    pairs = [
        (one.trim(int(next(sizes)) if isinstance(used, Tensor) else used, side), one)
        for one, (used, side) in zip(started, known, strict=True)
    ]
    alike = len({one.checksum for one in started}) == 1 and all(one.tail is None for one in started)
    if alike and len(pairs) > 1 and not any(payload.data.is_cpu for payload, _ in pairs):
        return seal_all([(payload, one.scheme, one.key) for payload, one in pairs], checksum=started[0].checksum)
    return [payload.seal(one.scheme, one.key, checksum=one.checksum, tail=one.tail) for payload, one in pairs]


def written(begun: Sequence[Used]) -> list[Written]:
    """What was used of each body, after the codecs have written what was left to them, all that is alike at once."""
    alike: dict[tuple[Codec, int], list[Symbols]] = {}
    for one in begun:
        if isinstance(one, Symbols):
            alike.setdefault((one.codec, one.width), []).append(one)
    sizes = {
        kind: iter(kind[0].begin_write_all([one.symbols for one in some], kind[1], [one.room for one in some]))
        for kind, some in alike.items()
    }
    return [
        Written(next(sizes[one.codec, one.width]), one.side) if isinstance(one, Symbols) else Written(one, 0)
        for one in begun
    ]


def whole(one: Written) -> int | Tensor | None:
    """All bytes that count; below 0 if the codec could not write, which a GPU finds out."""
    if isinstance(one.used, Tensor):
        return torch.where(one.used < 0, one.used, one.side + one.used)
    return None if one.used is None else one.side + one.used
