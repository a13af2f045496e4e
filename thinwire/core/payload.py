"""Payload: one contiguous uint8 tensor, a 32-byte header and a body. docs/wire-format.md describes it."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from thinwire import kernels
from thinwire.core.errors import PayloadError
from thinwire.kernels.spec import CHECKED, COVERED, FLAGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from thinwire.core.verdicts import Verdicts
    from thinwire.kernels.key import Key

MAGIC = b"thin"
VERSION = 2
HEADER = struct.Struct("<4sBBHIIIIHHI")  # magic version flags rank scheme step bucket body_bytes hop zero checksum
BODY_BYTES = 7  # the index of this field in the header
SCHEME = 8  # its first byte; the bytes of flags and rank come right before it
DAMAGED = "the checksum does not match: the payload was damaged on the way"


class Header(NamedTuple):
    """Where a payload comes from."""

    rank: int  # of the sender, modulo 2^16
    step: int
    bucket: int
    hop: int


class Tail(NamedTuple):
    """The last `nbytes` of a body, with their part of the checksum's sum, made by the pass that wrote them."""

    nbytes: int
    partial: int | Tensor


@dataclass(frozen=True, eq=False)
class Payload:
    """What crosses the network. `data` is all of it; `body` is what the compressor wrote.

    On a GPU `head` spares a wait, and so does `later`: a check of the data is then made where the data is, and its
    outcome left there.
    """

    data: Tensor  # (32 + body bytes,) uint8, contiguous
    head: bytes | None = None  # the first bytes, at least those that the checksum covers, where the host knows them
    later: Verdicts | None = None

    @classmethod
    def new(cls, body_bytes: int, device: torch.device | None = None) -> Payload:
        """An unsealed payload whose body is still to be written."""
        return cls(torch.empty(HEADER.size + body_bytes, dtype=torch.uint8, device=device))

    @classmethod
    def at_start(cls, data: Tensor, head: bytes | None = None, later: Verdicts | None = None) -> Payload:
        """The payload at the start of a buffer that may be longer; its header says how long it is."""
        whole = cls(data, head, later)
        return whole if data.numel() < HEADER.size else replace(whole, data=data[: size_of(whole._known())])

    @property
    def body(self) -> Tensor:
        """A view of the bytes after the header."""
        return self.data[HEADER.size :]

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return self.data.numel()

    @property
    def scheme(self) -> int:
        """What the header says of the compressor and the layout that it was made for; 0 if there is no header."""
        made_by: int = HEADER.unpack(self._known())[4] if self.nbytes >= HEADER.size else 0
        return made_by

    def aligned(self) -> Payload:
        """The same bytes at an address where numbers can be read in place; copied only if necessary."""
        return self if self.data.data_ptr() % 8 == 0 else replace(self, data=self.data.clone())

    def trim(self, used: int | None) -> Payload:
        """The payload with `used` body bytes; None keeps all."""
        return self if used is None else Payload(self.data[: HEADER.size + used])

    def seal(self, scheme: int, key: Key, *, checksum: bool = True, tail: Tail | None = None) -> Payload:
        """Write the header and the checksum, in place; a `tail` is not read again."""
        header = self._header(scheme, key, checksum=checksum)
        nbytes, partial = tail if checksum and tail else (0, 0)
        # A sum that is a tensor was made by the tier of the data, which may run on the host to be tested.
        here = self.data.is_cpu and isinstance(partial, int)
        (kernels.get("cpu") if here else kernels.select(self.data)).seal(self.data, header, nbytes, partial)
        return self if self.data.is_cpu else replace(self, head=header)

    def _header(self, scheme: int, key: Key, *, checksum: bool) -> bytes:
        """What the checksum covers of it."""
        flags, size = CHECKED if checksum else 0, self.data.numel() - HEADER.size
        return HEADER.pack(
            MAGIC, VERSION, flags, key.rank & 0xFFFF, scheme, key.step, key.bucket, size, key.hop, 0, 0
        )[:COVERED]

    def open(self, scheme: int, *, key: Key | None = None, at_once: bool = False) -> Header:
        """Check everything that the header says; `key` also checks that step and bucket are the expected ones.

        What takes a look at a GPU is checked there, without a wait, and left to `later`, unless it must be known
        `at_once`. Where the host has not seen the header, the rank is then said to be -1.
        """
        data, size, later = self.data, self.data.numel(), None if at_once else self.later
        if data.dtype != torch.uint8 or data.dim() != 1 or not data.is_contiguous():
            raise PayloadError(
                f"a payload is a contiguous 1-D uint8 tensor; got {data.dtype} of shape {tuple(data.shape)}"
            )
        if size < HEADER.size:
            raise PayloadError(f"a payload has at least {HEADER.size} bytes; got {size}: it was cut short")
        if later is not None and key is not None and self.head is None:
            return self._open_unseen(scheme, key, later)
        magic, version, flags, rank, made_by, step, bucket, body_bytes, hop, zero, _ = HEADER.unpack(self._known())
        if magic != MAGIC:
            raise PayloadError(f"not a thinwire payload: it starts with {magic!r}, not {MAGIC!r}")
        if version != VERSION:
            raise PayloadError(f"payload of format {version}; this thinwire reads format {VERSION}")
        if body_bytes != size - HEADER.size:
            raise PayloadError(f"the header promises {body_bytes} bytes; {size - HEADER.size} arrived")
        if flags & ~CHECKED or zero:
            raise PayloadError(DAMAGED)
        if later is not None:
            where = f"the payload of rank {rank} in step {step}, bucket {bucket}, hop {hop}"
            later.check(data, f"{where}: {DAMAGED}")
        elif not (kernels.get("cpu") if data.is_cpu else kernels.select(data)).sealed(data):
            raise PayloadError(DAMAGED)
        if made_by != scheme:
            raise PayloadError(
                f"made by another compressor or for another layout (scheme {made_by:#010x}, expected {scheme:#010x})"
            )
        if key is not None and (step, bucket, hop) != (key.step, key.bucket, key.hop):
            raise PayloadError(
                f"payload of step {step}, bucket {bucket}, hop {hop} arrived in "
                f"step {key.step}, bucket {key.bucket}, hop {key.hop}"
            )
        return Header(rank, step, bucket, hop)

    def _open_unseen(self, scheme: int, key: Key, later: Verdicts) -> Header:
        """Compare the header with the expected one where it is; only sender and flags may differ."""
        size = self.data.numel() - HEADER.size
        fields = (MAGIC, VERSION, CHECKED, 0xFFFF, scheme, key.step, key.bucket, size, key.hop, 0, 0)
        expected = torch.frombuffer(bytearray(HEADER.pack(*fields)), dtype=torch.uint8)
        expected = expected.to(self.data.device, non_blocking=True)
        differs = self.data[:COVERED] != expected[:COVERED]
        differs[FLAGS:SCHEME].zero_()
        where = f"a payload of step {key.step}, bucket {key.bucket}, hop {key.hop}"
        later.add(differs.any(), f"{where} has a header that is not the expected one")
        later.check(self.data, f"{where}: {DAMAGED}")
        return Header(-1, key.step, key.bucket, key.hop)

    def _known(self) -> bytes:
        """The header as the host knows it, which may not know the checksum, or as it is read now."""
        return self.head.ljust(HEADER.size, b"\0")[: HEADER.size] if self.head else _get(self.data, HEADER.size)


def seal_all(written: Sequence[tuple[Payload, int, Key]], *, checksum: bool) -> list[Payload]:
    """`Payload.seal` of payloads on a GPU, each with its scheme and key: launched together, as for one."""
    headers = [payload._header(scheme, key, checksum=checksum) for payload, scheme, key in written]
    kernels.select(written[0][0].data).seal_all([payload.data for payload, _, _ in written], headers)
    return [replace(payload, head=header) for (payload, _, _), header in zip(written, headers, strict=True)]


def size_of(head: bytes) -> int:
    """How many bytes a payload has that starts like this."""
    size: int = HEADER.size + HEADER.unpack(head)[BODY_BYTES]
    return size


def _get(data: Tensor, n: int) -> bytes:
    """Read the first bytes, without a tensor, since this happens many times per step."""
    return ctypes.string_at(data.data_ptr(), n) if data.is_cpu else data[:n].cpu().numpy().tobytes()
