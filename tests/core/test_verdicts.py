"""Checks that are looked at later: the same payloads are refused, by the same words, once somebody looks."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
import torch
from battery import INSTANCES, LAYOUT, vector

from thinwire import Comm, Key, Layout, Payload, PayloadError, kernels
from thinwire.compressors import Qsgd, RandomK
from thinwire.core.compressor import Compressor
from thinwire.core.payload import HEADER
from thinwire.core.types import Context
from thinwire.core.verdicts import Verdicts
from thinwire.kernels.checksum import total
from thinwire.kernels.reference import ReferenceKernels
from thinwire.kernels.spec import CHECKED, COVERED, FLAGS

C, X, FLAT = Qsgd(bits=4), vector(1000), Layout.flat(1000)
KEY = Key(step=7, rank=2, bucket=3)


def sealed(*, head: bool, checksum: bool = True) -> Payload:
    payload = C.encode(X, key=KEY, checksum=checksum)
    return Payload(payload.data, bytes(payload.data[: HEADER.size].tolist()) if head else None, Verdicts())


def raised(payload: Payload, c: Compressor = C, key: Key = KEY) -> str:
    """What is said, at once or later."""
    assert payload.later is not None
    try:
        c.decode(payload, FLAT, key=key)
        assert len(payload.later)
        payload.later.raise_if_any()
    except PayloadError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("checksum", [True, False])
def test_good_payloads_decode_to_the_same(head: bool, checksum: bool) -> None:
    payload = sealed(head=head, checksum=checksum)
    assert raised(payload) == ""
    assert torch.equal(C.decode(payload, FLAT, key=KEY), C.decode(Payload(payload.data), FLAT, key=KEY))


@pytest.mark.parametrize("head", [True, False])
def test_a_damaged_body_is_named_later(head: bool) -> None:
    payload = sealed(head=head)
    payload.data[100] ^= 1
    C.decode(payload, FLAT, key=KEY)  # nothing is raised yet
    said = raised(payload)
    assert "step 7, bucket 3, hop 0" in said
    assert "the checksum does not match" in said
    assert ("of rank 2" in said) == head


@pytest.mark.parametrize("place", [0, 4, 5, 6, 8, 12, 16, 20, 24, 26, 28])
def test_a_damaged_header_is_refused(place: int) -> None:
    unseen = sealed(head=False)
    unseen.data[place] ^= 4
    assert raised(unseen)
    seen = sealed(head=False)
    seen.data[place] ^= 4
    assert raised(replace(seen, head=bytes(seen.data[: HEADER.size].tolist())))


@pytest.mark.parametrize("head", [True, False])
def test_another_step_or_compressor_is_refused(head: bool) -> None:
    for c, key in ((C, KEY.fold(step=8)), (C, KEY.fold(bucket=0)), (Qsgd(bits=4, norm="l2"), KEY)):
        assert raised(sealed(head=head), c, key)


def test_bytes_that_could_break_a_decoder_are_checked_at_once() -> None:
    c = RandomK(ratio=0.1)
    payload = replace(c.encode(X, key=KEY), later=Verdicts())
    payload.data[50] ^= 1
    with pytest.raises(PayloadError, match="the checksum does not match"):
        c.decode(payload, FLAT, key=KEY)


@pytest.mark.parametrize("c", [c for c in INSTANCES if c.decodes_any], ids=lambda c: c.id)
def test_what_may_be_checked_later_decodes_whatever_arrives(c: Compressor) -> None:
    noise = torch.Generator().manual_seed(0)
    payload = replace(c.encode(vector(LAYOUT.numel), LAYOUT, KEY), later=Verdicts())
    payload.body.copy_(torch.randint(256, payload.body.shape, generator=noise).to(torch.uint8))
    assert payload.later is not None
    out = torch.zeros(LAYOUT.numel)
    with contextlib.suppress(PayloadError):  # on the CPU a codec says at once what is wrong
        c.mean([payload], LAYOUT, out, 1.0, KEY)
        assert c.fixed_size
    with pytest.raises(PayloadError):
        payload.later.raise_if_any()


@pytest.mark.parametrize("c", INSTANCES, ids=lambda c: c.id)
def test_a_mean_is_one_decoding_after_another(c: Compressor) -> None:
    payloads = [c.encode(vector(LAYOUT.numel, seed=rank), LAYOUT, KEY.fold(rank=rank)) for rank in range(3)]
    together = torch.full((LAYOUT.numel,), 7.0)
    c.mean(payloads, LAYOUT, together, 0.25, KEY)
    single = torch.zeros(LAYOUT.numel)
    for place, payload in enumerate(payloads):
        c.decode_add(payload, LAYOUT, single, 0.25, key=KEY, fresh=place == 0)
    assert torch.equal(together.view(torch.int32), single.view(torch.int32))
    c.mean([], LAYOUT, together, 0.25, KEY)
    assert not together.any()


def test_the_first_that_failed_is_said_once() -> None:
    verdicts = Verdicts()
    verdicts.raise_if_any()
    for number in (0, 5, 0, 1):
        verdicts.add(torch.tensor([number]), f"it was {number}")
    verdicts.send()
    with pytest.raises(PayloadError, match="it was 5"):
        verdicts.raise_if_any()


def test_a_context_gives_payloads_what_it_knows() -> None:
    verdicts = Verdicts()
    ctx = Context(Comm(0, 2), FLAT, KEY, verdicts=verdicts)
    sent = ctx.sent(C.encode(X, key=KEY))
    assert sent.later is verdicts
    assert ctx.payload(sent.data).later is verdicts
    longer = torch.cat((sent.data, torch.zeros(9, dtype=torch.uint8)))
    assert torch.equal(ctx.payload(longer, exact=False).data, sent.data)


def test_heads_are_shared_with_parts_of_a_network() -> None:
    comm, data = Comm(1, 4), torch.zeros(40, dtype=torch.uint8)
    comm.sub([1, 2]).heads[data] = b"head"
    assert comm.heads[data] == b"head"


@pytest.mark.parametrize("n", [0, 3, 4, 1001])
@pytest.mark.parametrize("flags", [0, CHECKED])
@pytest.mark.parametrize("tier", ["reference", "cpu"])
def test_seals_are_made_and_checked_without_a_wait(tier: str, flags: int, n: int) -> None:
    header = bytearray(range(COVERED))
    header[FLAGS] = flags
    here, there = (torch.arange(HEADER.size + n).to(torch.uint8) for _ in range(2))
    kernels.get(tier).seal(here, bytes(header))
    ReferenceKernels()._seal_there(there, bytes(header), 0, 0)  # what it does on a GPU
    assert torch.equal(here, there)
    assert not kernels.get(tier).damaged([here])
    for place in (0, COVERED, *((HEADER.size + n - 1,) if n and flags else ())):
        here[place] ^= 64
        assert kernels.get(tier).damaged([here])
        here[place] ^= 64


def test_a_tail_is_not_read_again() -> None:
    header = bytes([0] * FLAGS + [CHECKED] + [0] * (COVERED - FLAGS - 1))
    data = torch.arange(HEADER.size + 40).to(torch.uint8)
    whole, parts = data.clone(), data.clone()
    reference = ReferenceKernels()
    reference._seal_there(whole, header, 0, 0)
    reference._seal_there(parts, header, 20, total(data[-20:], (data.numel() - 20) // 4))
    assert torch.equal(whole, parts)
