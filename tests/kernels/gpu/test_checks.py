"""Checksums that are checked where the payload is, by Triton: what is damaged, and means with checks for later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from battery import vector
from interpreted import cases

from thinwire import Key, Layout, Payload, PayloadError, kernels
from thinwire.codecs import Rans, native
from thinwire.compressors import Qsgd, ScaledSign
from thinwire.core.coded import Coded
from thinwire.core.compressor import Compressor
from thinwire.core.payload import seal_all
from thinwire.core.verdicts import Verdicts
from thinwire.kernels.spec import CHECKED, COVERED, FLAGS, HEADER

pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # where there is none, Triton's interpreter
N, FLAT = 1200, Layout.flat(1200)


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    with kernels.force("gpu"):
        yield


@pytest.mark.parametrize("n", [0, 1, 5, 1001])
@pytest.mark.parametrize("checksum", [True, False])
def test_damage_is_found(n: int, checksum: bool) -> None:
    payload = Payload.new(n, DEVICE)
    payload.body.copy_(torch.arange(n).to(torch.uint8))
    payload.seal(7, Key(), checksum=checksum)
    tier = kernels.get("gpu")
    assert not bool(tier.damaged([payload.data]))
    for place in (3, HEADER - 3, *((HEADER + n - 1,) if n and checksum else ())):
        payload.data[place] ^= 1
        assert bool(tier.damaged([payload.data])), place
        payload.data[place] ^= 1
    if n and not checksum:  # the body is not covered
        payload.data[-1] ^= 1
        assert not bool(tier.damaged([payload.data]))
    shifted = torch.cat((payload.data[:1], payload.data))[1:]  # at an odd address
    assert bool(tier.damaged([shifted])) == bool(tier.damaged([payload.data]))


@pytest.mark.parametrize("checksum", [True, False])
def test_payloads_that_are_sealed_together_are_those_sealed_alone(checksum: bool) -> None:
    sizes = [0, 3, 9000, 17, 40, 8160, 5, 1, 12, 64]  # more than one launch takes, and than one program sums
    together, alone = ([Payload.new(n, DEVICE) for n in sizes] for _ in range(2))
    for n, *both in zip(sizes, together, alone, strict=True):
        for payload in both:
            payload.body.copy_(torch.arange(n).to(torch.uint8))
    keys = [Key(step=n, rank=n % 3) for n in sizes]
    seal_all([(p, n + 7, k) for p, n, k in zip(together, sizes, keys, strict=True)], checksum=checksum)
    with kernels.force("reference"):
        for payload, n, key in zip(alone, sizes, keys, strict=True):
            payload.seal(n + 7, key, checksum=checksum)
    assert [torch.equal(a.data, b.data) for a, b in zip(together, alone, strict=True)] == [True] * len(sizes)


def test_payloads_that_are_sealed_together_may_differ_in_what_the_checksum_covers() -> None:
    sizes = [40, 9000, 3, 0, 12, 64, 5, 8160, 17, 1]  # each second one has a checksum of its header alone
    together, alone = ([torch.arange(HEADER + n).to(torch.uint8).to(DEVICE) for n in sizes] for _ in range(2))
    headers = [
        bytes(FLAGS) + bytes([place % 2 * CHECKED]) + bytes(COVERED - FLAGS - 1) for place in range(len(sizes))
    ]
    kernels.get("gpu").seal_all(together, headers)
    for data, header in zip(alone, headers, strict=True):
        kernels.get("reference").seal(data, header)
    assert [torch.equal(a, b) for a, b in zip(together, alone, strict=True)] == [True] * len(sizes)
    assert not kernels.get("gpu").damaged(together).any()


def test_of_many_payloads_the_damaged_ones_are_found() -> None:
    sizes = [0, 3, 9000, 17, 40, 8160, 5, 1, 12, 64]  # more than one launch takes, and than one program sums
    payloads = []
    for n in sizes:
        payload = Payload.new(n, DEVICE)
        payload.body.copy_(torch.arange(n).to(torch.uint8))
        payloads.append(payload.seal(7, Key()).data)
    for place, at in ((2, 9031), (5, HEADER), (9, 70)):
        payloads[place][at] ^= 4
    assert kernels.get("gpu").damaged(payloads).tolist() == [place in (2, 5, 9) for place in range(len(sizes))]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of the interpreter, which divides by 0 as a GPU does
@pytest.mark.parametrize(
    "c",
    cases([Qsgd(bits=4), Qsgd(bits=3, block=100), ScaledSign()], ("qsgd:bits=4", "scaled-sign")),
    ids=lambda c: c.id,
)
def test_a_mean_with_checks_for_later(c: Compressor) -> None:
    xs = [vector(N, seed=rank) for rank in range(3)]
    payloads = [c.encode(x.to(DEVICE), key=Key(rank=rank)) for rank, x in enumerate(xs)]
    verdicts, out = Verdicts(), torch.empty(N, device=DEVICE)
    c.mean([replace(p, later=verdicts) for p in payloads], FLAT, out, 1 / 3, Key())
    verdicts.raise_if_any()
    with kernels.force("reference"):
        expected = torch.empty(N)
        c.mean([c.encode(x, key=Key(rank=rank)) for rank, x in enumerate(xs)], FLAT, expected, 1 / 3, Key())
    assert torch.equal(out.cpu().view(torch.int32), expected.view(torch.int32))
    payloads[1].data[HEADER + 20] ^= 4
    c.mean([replace(p, later=verdicts) for p in payloads], FLAT, out, 1 / 3, Key())
    with pytest.raises(PayloadError, match="the checksum does not match"):
        verdicts.raise_if_any()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_entropy_coded_payloads_with_checks_for_later() -> None:
    c, plain = Coded(Qsgd(levels=4, norm="l2"), Rans()), Key(step=1)
    few = 300  # the interpreter takes a millisecond for each
    flat, xs = Layout.flat(few), [vector(few, seed=rank) for rank in range(2)]
    payloads = [c.encode(x.to(DEVICE), key=plain.fold(rank=rank)) for rank, x in enumerate(xs)]
    assert all(int(p.body[c.compressor.side_bytes(flat)]) != native.PLAIN for p in payloads)
    verdicts, out = Verdicts(), torch.empty(few, device=DEVICE)
    c.mean([replace(p, later=verdicts) for p in payloads], flat, out, 0.5, plain)
    assert len(verdicts) == (4 if DEVICE.type == "cuda" else 6)  # checksums, codes; headers that nobody has noted
    verdicts.raise_if_any()
    with kernels.force("cpu"):
        expected = torch.empty(few)
        c.mean([Payload(p.data.cpu()) for p in payloads], flat, expected, 0.5, plain)
    assert torch.equal(out.cpu().view(torch.int32), expected.view(torch.int32))
    payloads[1].body[c.compressor.side_bytes(flat) + 3] ^= 16
    c.mean([replace(p, later=verdicts) for p in payloads], flat, out, 0.5, plain)
    with pytest.raises(PayloadError):
        verdicts.raise_if_any()
