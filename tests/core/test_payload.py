"""Payloads: every damage is refused, nothing crashes."""

from __future__ import annotations

import contextlib
import random
import struct
import warnings
from dataclasses import dataclass
from typing import ClassVar, final

import pytest
import torch
from battery import INSTANCES, LAYOUT, vector
from torch import Tensor

from thinwire import Key, Layout, Payload, PayloadError
from thinwire.compressors import Natural, Qsgd, ScaledSign, TernGrad
from thinwire.core.compressor import Compressor, scheme
from thinwire.core.payload import HEADER

C = Qsgd(bits=4)
X = vector(1000)
LAYOUT_1000 = Layout.flat(1000)


def sealed(checksum: bool = True) -> Payload:
    return C.encode(X, key=Key(step=7, bucket=3), checksum=checksum)


def with_bytes(payload: Payload, start: int, data: bytes) -> Payload:
    copy = payload.data.clone()
    copy[start : start + len(data)] = torch.tensor(list(data), dtype=torch.uint8)
    return Payload(copy)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: Payload(p.data[:-1]), "the header promises 508 bytes; 507 arrived"),
        (lambda p: Payload(p.data[:10]), "at least 32 bytes; got 10"),
        (lambda p: Payload(p.data[:0]), "got 0"),
        (lambda p: with_bytes(p, 0, b"PK\x03\x04"), "not a thinwire payload"),
        (lambda p: with_bytes(p, 4, b"\x01"), "payload of format 1; this thinwire reads format 2"),
        (lambda p: with_bytes(p, 4, b"\x09"), "payload of format 9; this thinwire reads format 2"),
        (lambda p: with_bytes(p, 100, b"\xff\xfe"), "checksum does not match"),
        (lambda p: with_bytes(p, 5, b"\x00"), "checksum does not match"),
        (lambda p: Payload(p.data.float()), "contiguous 1-D uint8"),
        (lambda p: Payload(p.data[::2]), "contiguous 1-D uint8"),
    ],
)
def test_damage_is_named(damage: object, message: str) -> None:
    assert callable(damage)
    with pytest.raises(PayloadError, match=message):
        C.decode(damage(sealed()), LAYOUT_1000)


def test_another_compressors_payload_is_refused() -> None:
    other = Qsgd(bits=4, norm="l2").encode(X)
    with pytest.raises(PayloadError, match="made by another compressor"):
        C.decode(other, LAYOUT_1000)


def test_a_payload_of_another_length_is_refused() -> None:
    with pytest.raises(PayloadError, match="or for another layout"):
        C.decode(sealed(), Layout.flat(2000))
    short = Payload(sealed().data[:-8].clone()).seal(scheme(C, LAYOUT_1000), Key())
    with pytest.raises(PayloadError, match="of 1000 elements has 508 body bytes; 500 arrived"):
        C.decode(short, LAYOUT_1000)


def test_step_and_bucket_are_checked_where_a_key_is_given() -> None:
    out = torch.zeros(1000)
    C.decode_add(sealed(), LAYOUT_1000, out, key=Key(step=7, bucket=3))
    with pytest.raises(PayloadError, match="payload of step 7, bucket 3, hop 0 arrived in step 8, bucket 3"):
        C.decode_add(sealed(), LAYOUT_1000, out, key=Key(step=8, bucket=3))


def test_a_refused_payload_changes_nothing() -> None:
    out = torch.ones(1000)
    with pytest.raises(PayloadError):
        C.decode_add(with_bytes(sealed(), 200, b"\x01\x02\x03"), LAYOUT_1000, out)
    assert torch.equal(out, torch.ones(1000))


def test_without_the_body_in_the_checksum_the_header_is_still_covered() -> None:
    open_body = sealed(checksum=False)
    assert torch.equal(open_body.body, sealed().body)
    C.decode(with_bytes(open_body, 200, b"\x01"), LAYOUT_1000)  # accepted: that is what checksum=False means
    with pytest.raises(PayloadError, match="checksum"):
        C.decode(with_bytes(open_body, 12, b"\x63"), LAYOUT_1000)


def mutate(wire: bytes, rng: random.Random) -> bytearray:
    """Flip bits, cut, extend, swap or overwrite."""
    data = bytearray(wire)
    match rng.randrange(5):
        case 0:
            for _ in range(1 + rng.randrange(4)):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1:
            del data[rng.randrange(len(data)) :]
        case 2:
            data += rng.randbytes(1 + rng.randrange(40))
        case 3:
            start = rng.randrange(len(data))
            data[start:] = rng.randbytes(len(data) - start)
        case _:
            data[rng.randrange(HEADER.size)] = rng.randrange(256)
    return data


@pytest.mark.parametrize("part", range(4))
def test_a_hundred_thousand_mutations_are_all_refused(part: int) -> None:
    """10^5 damaged payloads in four parts: each raises PayloadError, unless the damage undid itself."""
    rng = random.Random(part)
    layout = Layout.flat(100)
    instances: list[Compressor] = [Qsgd(bits=4), TernGrad(), Natural(), Qsgd(levels=4, norm="l2", block=None)]
    c = instances[part]
    wire = c.encode(vector(100), layout).data.numpy().tobytes()
    out = torch.zeros(100)
    accepted = 0
    for _ in range(25_000):
        data = mutate(wire, rng)
        if data == wire:
            continue
        arrived = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        try:
            c.decode_add(Payload(arrived), layout, out)
            accepted += 1
        except PayloadError:
            pass
    assert accepted == 0
    assert torch.equal(out, torch.zeros(100))


@pytest.mark.parametrize("c", INSTANCES, ids=lambda c: c.id)
def test_random_bodies_without_a_checksum_never_crash(c: Compressor) -> None:
    """A sealed body of random bytes decodes to some numbers or raises PayloadError, and nothing else happens."""
    generator = torch.Generator().manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(50):
            payload = Payload.new(c.nbytes(LAYOUT))
            payload.body.copy_(torch.randint(0, 256, (payload.body.numel(),), generator=generator))
            payload.seal(scheme(c, LAYOUT), Key(), checksum=False)
            with contextlib.suppress(PayloadError):
                assert c.decode(payload, LAYOUT).shape == (LAYOUT.numel,)


def test_header_layout_is_fixed() -> None:
    raw = C.encode(X, key=Key(step=7, bucket=3, rank=70_000, hop=9)).data[:32].numpy().tobytes()
    magic, version, flags, rank, made_by, step, bucket, nbytes, hop, zero, _ = struct.unpack("<4sBBHIIIIHHI", raw)
    assert (magic, version, flags, rank) == (b"thin", 2, 1, 70_000 - 65_536)
    assert (step, bucket, nbytes, hop, zero) == (7, 3, 508, 9, 0)
    assert made_by == scheme(C, LAYOUT_1000)


def test_a_payload_for_another_layout_is_refused() -> None:
    c = ScaledSign()
    payload = c.encode(vector(100), Layout(("a", "b"), ((10,), (90,))))
    with pytest.raises(PayloadError, match="or for another layout"):
        c.decode(payload, Layout(("a", "b"), ((90,), (10,))))


def test_the_key_of_the_sender_reaches_the_decoder() -> None:
    """Shared randomness: what the sender drew from its key can be drawn again from header and seed."""
    seen = []

    @final
    @dataclass(frozen=True)
    class Listening(Compressor):
        name: ClassVar[str] = "listening"

        @property
        def unbiased(self) -> bool:
            return False

        def omega(self, d: int) -> float | None:
            return None

        def delta(self, d: int) -> float | None:
            return None

        def nbytes(self, layout: Layout) -> int:
            return 0

        def write(self, x: Tensor, layout: Layout, key: Key, body: Tensor) -> int | None:
            seen.append(key)
            return None

        def add(self, body: Tensor, layout: Layout, key: Key, out: Tensor, weight: float) -> None:
            seen.append(key)

    key = Key(seed=9, step=2, rank=5, bucket=1, hop=1)
    Listening().decode(Listening().encode(X, key=key), LAYOUT_1000, key=key.fold(rank=0))
    assert seen == [key, key]
