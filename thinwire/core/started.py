"""Started: a payload that has been written but not sealed, because a GPU may still be computing how long it is.

A codec's bytes have a length that only the device knows at first. To ask for it is to wait until everything queued
before has run, so several payloads are started, and their lengths are asked for together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from thinwire.core.desk import fetched
from thinwire.core.payload import Payload, Tail

if TYPE_CHECKING:
    from thinwire.kernels.key import Key


@final
@dataclass(frozen=True, eq=False)
class Started:
    """`used` are the bytes of the body that count: None for all, one element on a GPU where it is not known here."""

    payload: Payload
    used: int | Tensor | None
    scheme: int
    key: Key
    checksum: bool
    tail: Tail | None = None

    def seal(self, used: int | None) -> Payload:
        """The payload with its header."""
        if used is not None and used < 0:
            raise ValueError("a compressor made a symbol that does not fit its width; its codec cannot write it")
        return self.payload.trim(used).seal(self.scheme, self.key, checksum=self.checksum, tail=self.tail)


def finish(started: Sequence[Started]) -> list[Payload]:
    """All of them sealed, after one wait if any length is still on a GPU."""
    waiting = [one.used for one in started if isinstance(one.used, Tensor)]
    if not waiting:
        return [one.seal(one.used) for one in started]  # type: ignore[arg-type]  # none of them is a tensor
    sizes = iter(fetched(torch.cat(waiting)))
    return [one.seal(int(next(sizes)) if isinstance(one.used, Tensor) else one.used) for one in started]
