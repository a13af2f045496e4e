"""Keys: which elements of a vector a message holds, where it does not hold them all.

    known     a list that both ends can derive: nothing travels
    cached    a list that has been sent before: its checksum travels, 4 bytes
    listed    the list itself, 4 bytes per key

The two ends keep the same lists, since messages arrive in order: the newest `LISTS`, by their checksum. Where two
lists have one checksum, the newer one takes the place of the older one at both ends.

Reference: Li, Andersen, Park, et al., "Scaling distributed machine learning with the parameter server", OSDI 2014,
section 3.2, key caching.

Departs from the paper: the sender knows what the receiver has, so that no list is asked for.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple, final

import torch

from thinwire.core.comm import to_bytes, to_tensor
from thinwire.core.errors import PayloadError

if TYPE_CHECKING:
    from torch import Tensor

KNOWN, CACHED, LISTED = range(3)
HEAD = struct.Struct("<IIII")  # which of these, rows of values, keys, checksum of the list
LISTS = 64


class Keyed(NamedTuple):
    """Some elements of one or several vectors."""

    keys: Tensor  # (k,) int64, ascending
    values: Tensor  # (rows, k)

    def dense(self, n: int) -> Tensor:
        """All elements, zero where there is none: (n,), or (rows, n) of several vectors."""
        whole = self.values.new_zeros(len(self.values), n)
        whole[:, self.keys] = self.values
        return whole[0] if len(whole) == 1 else whole


@final
class KeyLists:
    """One end's lists, for messages in one direction."""

    def __init__(self, *, cached: bool = True) -> None:
        self._cached = cached
        self.lists: dict[int, Tensor] = {}

    def write(self, keys: Tensor, rows: int, known: Tensor | None) -> Tensor:
        """The bytes that say which elements follow, `rows` times."""
        listed = keys.cpu().to(torch.int32)
        raw = to_bytes(listed.view(torch.uint8))
        checksum = zlib.crc32(raw)
        if known is not None and torch.equal(keys.cpu(), known.cpu()):
            return to_tensor(HEAD.pack(KNOWN, rows, len(keys), checksum))
        last = self.lists.get(checksum)
        if last is not None and torch.equal(last, listed):
            return to_tensor(HEAD.pack(CACHED, rows, len(keys), checksum))
        self._keep(checksum, listed)
        return to_tensor(HEAD.pack(LISTED, rows, len(keys), checksum) + raw.ljust(-(-len(raw) // 16) * 16, b"\0"))

    def read(self, data: Tensor, known: Tensor | None) -> tuple[Tensor, int, Tensor]:
        """The keys, how many rows of values there are, and the bytes after them."""
        how, rows, count, checksum = HEAD.unpack(to_bytes(data[: HEAD.size]))
        end = HEAD.size
        if how == KNOWN and known is not None:
            keys = known
        elif how == CACHED and checksum in self.lists:
            keys = self.lists[checksum]
        elif how == LISTED:
            end += -(-4 * count // 16) * 16
            keys = data[HEAD.size : HEAD.size + 4 * count].cpu().clone().view(torch.int32)
            self._keep(checksum, keys)
        else:
            raise PayloadError("a push names a list of keys that was never sent")
        if len(keys) != count:
            raise PayloadError(f"a push holds {count} keys, and its list {len(keys)}")
        return keys.long().to(data.device), rows, data[end:]

    def _keep(self, checksum: int, keys: Tensor) -> None:
        if self._cached:
            self.lists.pop(checksum, None)
            self.lists[checksum] = keys
            if len(self.lists) > LISTS:
                del self.lists[next(iter(self.lists))]
