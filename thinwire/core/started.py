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
"""The bytes of a body that count: None for all, one element on a GPU where it is not known here."""


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

    def trim(self, used: int | None) -> Payload:
        """The payload with what counts of its body."""
        if used is not None and used < 0:
            raise ValueError("a compressor made a symbol that does not fit its width; its codec cannot write it")
        return self.payload.trim(used)


def finish(started: Sequence[Started]) -> list[Payload]:
    """All of them sealed, after one wait if any length is still on a GPU."""
    known = written([one.used for one in started])
    waiting = [used for used in known if isinstance(used, Tensor)]
    sizes = iter(fetched(torch.cat(waiting)) if waiting else ())
    whole = [
        one.trim(int(next(sizes)) if isinstance(used, Tensor) else used)
        for one, used in zip(started, known, strict=True)
    ]
    pairs = list(zip(whole, started, strict=True))
    alike = len({one.checksum for one in started}) == 1 and all(one.tail is None for one in started)
    if alike and len(whole) > 1 and not any(payload.data.is_cpu for payload in whole):
        return seal_all([(payload, one.scheme, one.key) for payload, one in pairs], checksum=started[0].checksum)
    return [payload.seal(one.scheme, one.key, checksum=one.checksum, tail=one.tail) for payload, one in pairs]


def written(begun: Sequence[Used]) -> list[int | Tensor | None]:
    """What was used of each body, after the codecs have written what was left to them, all that is alike at once."""
    alike: dict[tuple[Codec, int], list[Symbols]] = {}
    for one in begun:
        if isinstance(one, Symbols):
            alike.setdefault((one.codec, one.width), []).append(one)
    sizes = {
        kind: iter(kind[0].begin_write_all([one.symbols for one in some], kind[1], [one.room for one in some]))
        for kind, some in alike.items()
    }
    return [one.side + next(sizes[one.codec, one.width]) if isinstance(one, Symbols) else one for one in begun]
