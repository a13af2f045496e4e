"""Every codec: exact round trips, the bytes of the plain definitions, damage refused."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import plain_codes
import pytest
import torch
from battery import TIERS
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from thinwire import PayloadError, codecs, kernels
from thinwire.codecs import BitPack, Codec, EliasDense, EliasSparse, GolombRuns, Huffman, Rans
from thinwire.codecs.gaps import divisor
from thinwire.codecs.rans import LIKE_A_GPU, decode, encode
from thinwire.core.config import from_json

CODECS: list[Codec] = [
    BitPack(),
    Rans(),
    Huffman(),
    Huffman(zero_runs=False),
    EliasDense("gamma"),
    EliasDense("delta"),
    EliasDense("omega"),
    EliasSparse("gamma"),
    EliasSparse("delta"),
    EliasSparse("omega"),
    GolombRuns(),
    GolombRuns(rice=True),
]
each_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.id)


def symbols_of(n: int, width: int, skew: float, seed: int = 0) -> Tensor:
    """`n` symbols below 2^width; the larger `skew`, the more of them are small."""
    u = np.random.default_rng(seed).random(n)
    return torch.from_numpy(np.floor(u ** (1 + skew) * 2**width).astype(np.uint8))


def uint8(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8)


@st.composite
def messages(draw: st.DrawFn) -> tuple[Tensor, int]:
    """A message and its width: any symbols, or mostly zeros."""
    width = draw(st.integers(1, 8))
    some = st.integers(0, 2**width - 1)
    values = draw(st.lists(st.one_of(some, st.just(0), st.just(0)) if draw(st.booleans()) else some, max_size=300))
    return uint8(values * draw(st.sampled_from([1, 1, 7]))), width


@given(message=messages())
@example(message=(uint8([]), 3))
@example(message=(uint8([7]), 3))
def test_round_trip(message: tuple[Tensor, int]) -> None:
    symbols, width = message
    for codec in CODECS:
        data = codec.pack(symbols, width)
        assert data.dtype == torch.uint8, codec
        assert data.numel() <= codec.bound(symbols.numel(), width), codec
        assert torch.equal(codec.unpack(data, symbols.numel(), width), symbols), codec


@each_codec
@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 1001, 524_289, 1_100_001])
def test_round_trip_of_many(codec: Codec, n: int, long: bool) -> None:
    cases = [(1, 0.0), (2, 3.0), (4, 8.0), (8, 0.0), (8, 30.0)]
    for width, skew in cases if long or n < 100_000 else cases[2::2] if n < 1_000_000 else cases[1::2]:
        symbols = symbols_of(n, width, skew)
        data = codec.pack(symbols, width)
        assert data.numel() <= codec.bound(n, width)
        assert torch.equal(codec.unpack(data, n, width), symbols)


@each_codec
def test_extremes(codec: Codec) -> None:
    for width in range(1, 9):
        top = 2**width - 1
        for values in (
            [top],
            [0],
            [top] * 999,
            [0] * 999,
            [0] * 998 + [top],
            [top] + [0] * 4000,
            list(range(top + 1)),
        ):
            data = codec.pack(uint8(values), width)
            assert data.numel() <= codec.bound(len(values), width)
            assert codec.unpack(data, len(values), width).tolist() == values


def plain(codec: Codec, symbols: list[int], width: int) -> bytes:
    """What `codec` should write."""
    match codec:
        case EliasDense(code):
            return plain_codes.elias_dense(symbols, code)
        case EliasSparse(code):
            return plain_codes.elias_sparse(symbols, code)
        case Rans():
            coded = plain_codes.rans(symbols)
        case Huffman(zero_runs):
            coded = plain_codes.huffman(symbols, zero_runs)
        case GolombRuns(rice):
            nonzero = sum(s > 0 for s in symbols)
            coded = plain_codes.golomb_runs(symbols, divisor(nonzero, len(symbols), rice))
        case _:
            raise AssertionError(codec)
    fields = bytes(BitPack().pack(uint8(symbols), width).tolist())
    return b"\1" + coded if len(coded) <= len(fields) else b"\0" + fields


@given(message=messages())
def test_bytes_are_those_of_the_definition(message: tuple[Tensor, int]) -> None:
    symbols, width = message
    for codec in CODECS[1:] if symbols.numel() else ():
        assert bytes(codec.pack(symbols, width).tolist()) == plain(codec, symbols.tolist(), width), codec


@pytest.mark.parametrize("codec", CODECS[1:], ids=lambda c: c.id)
def test_bytes_are_those_of_the_definition_for_long_messages(codec: Codec) -> None:
    for width, skew in [(2, 6.0), (4, 3.0), (8, 60.0)]:
        symbols = symbols_of(20_011, width, skew)
        assert bytes(codec.pack(symbols, width).tolist()) == plain(codec, symbols.tolist(), width)


def test_rans_escapes_what_is_rare() -> None:
    """Two hundred symbols that share 1% of the places."""
    rng = np.random.default_rng(0)
    values = np.where(rng.random(30_000) < 0.01, rng.integers(50, 250, 30_000), 0).astype(np.uint8)
    symbols = torch.from_numpy(values)
    data = bytes(Rans().pack(symbols, 8).tolist())
    assert data[1] == 2 | 8
    assert data == plain(Rans(), symbols.tolist(), 8)
    assert torch.equal(Rans().unpack(uint8(list(data)), 30_000, 8), symbols)


def test_rans_gives_few_rare_symbols_frequencies_of_their_own() -> None:
    """Eight symbols that share 0.05% of the places: one frequency each costs less than half a percent."""
    rng = np.random.default_rng(0)
    n = 60_000
    values = np.where(rng.random(n) < 0.0005, rng.integers(4, 12, n), rng.integers(0, 2, n)).astype(np.uint8)
    counts = np.bincount(values)[np.unique(values)]
    assert (counts * 8192 < n).sum() > 2  # rare ones
    out = torch.empty(n, dtype=torch.uint8)
    used = encode(torch.from_numpy(values), out, 4, 16)
    assert int(out[0]) == 2 | 4
    assert bytes(out[:used].tolist()) == plain_codes.rans(values.tolist(), lanes=32, log=16, gpu=True)
    assert used < 1.005 * (counts * np.log2(n / counts)).sum() / 8 + 128 + 32


def test_rans_in_vectors_and_in_plain_code() -> None:
    for n, width, skew in [(400_000, 4, 1.0), (270_001, 8, 0.5), (1 << 20, 3, 2.0), (1_600_003, 8, 40.0)]:
        symbols = symbols_of(n, width, skew)
        coded = []
        for tier in TIERS:
            with kernels.force(tier):
                out, back = torch.zeros(n + 1, dtype=torch.uint8), torch.empty_like(symbols)
                coded.append(out[: encode(symbols, out)])
                assert decode(coded[0], back, width) == 0
            assert torch.equal(coded[-1], coded[0]), tier
            assert torch.equal(back, symbols), tier
        assert coded[0][0] & 4  # 32 states


def test_rans_with_32_states_is_the_definition() -> None:
    symbols = symbols_of(70_001, 4, 0.0)
    out = torch.empty(70_001, dtype=torch.uint8)
    for chunk, log in [(0, 17), (LIKE_A_GPU, 14), (13, 13), (16, 16), (17, 17)]:
        used = encode(symbols, out, 4, chunk)
        assert bytes(out[:used].tolist()) == plain_codes.rans(symbols.tolist(), lanes=32, log=log)


@pytest.mark.parametrize("share", [0.004, 0.02, 0.05, 0.1, 0.3])
def test_small_chunks_of_rans_cost_little(share: float) -> None:
    """At most two percent more than one chunk per 2^21 symbols, and 100 bytes for 32 states."""
    n = 1 << 20
    symbols = torch.from_numpy((np.random.default_rng(0).random(n) < share).astype(np.uint8))
    out = torch.empty(n, dtype=torch.uint8)
    assert encode(symbols, out, 8, LIKE_A_GPU) <= 1.02 * encode(symbols, out, 8, 21) + 100


def test_rans_does_not_depend_on_the_number_of_threads() -> None:
    symbols, before = symbols_of(1 << 20, 4, 2.0), torch.get_num_threads()
    try:
        made = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            made.append(Rans().pack(symbols, 4))
            assert torch.equal(Rans().unpack(made[-1], symbols.numel(), 4), symbols)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*made)


GOLDEN = {
    "bitpack": "34c2ade18c779919",
    "rans": "a4fcca5ac70e43e1",
    "huffman": "25fa8553b3ad3773",
    "huffman:zero_runs=false": "6e6bad4320bbbcfb",
    "elias-dense:code=gamma": "30c45450783ce109",
    "elias-dense:code=delta": "3a03b028a0395c21",
    "elias-dense": "85e3542941568fb8",
    "elias-sparse:code=gamma": "485005a984e2dcd4",
    "elias-sparse:code=delta": "f6080d223517ff18",
    "elias-sparse": "f4195f1825370f3d",
    "golomb-runs": "cb025f8cd5edf0cb",
    "golomb-runs:rice=true": "cb025f8cd5edf0cb",
}


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.id)
def test_golden_digest(codec: Codec) -> None:
    """The bytes of one long message in each of four widths; a change of format is a change of version."""
    digest = hashlib.sha256()
    for width in (1, 2, 4, 8):
        i = torch.arange(40_001)
        value = (i * i * 7919 + 104_729) % 2003
        symbols = (value * value // 2003 * value // 2003 * 2**width // 2003).to(torch.uint8)
        digest.update(bytes(codec.pack(symbols, width).tolist()))
    assert digest.hexdigest()[:16] == GOLDEN[codec.id]


@each_codec
@given(data=st.data())
@settings(max_examples=30)
def test_damage_never_crashes(codec: Codec, data: st.DataObject) -> None:
    """Wrong bytes are refused, or give the right number of symbols that fit."""
    width = data.draw(st.integers(1, 8))
    n = data.draw(st.sampled_from([1, 5, 64, 1000]))
    good = codec.pack(symbols_of(n, width, data.draw(st.sampled_from([0.0, 4.0, 40.0]))), width)
    wire = bytearray(good.tolist())
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, max(0, len(wire) - 1)))
        if wire:
            wire[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(wire) + 3))
    wire = (wire + b"\7\0\1")[:cut]
    try:
        got = codec.unpack(uint8(list(wire)), n, width)
    except PayloadError:
        return
    assert got.shape == (n,)
    assert int(got.max()) < 2**width


@given(wire=st.binary(max_size=200), n=st.integers(0, 2000), width=st.integers(1, 8))
def test_any_bytes(wire: bytes, n: int, width: int) -> None:
    for first, codec in itertools.product((b"", b"\1", b"\1\2\x0d", b"\1\6\x13"), CODECS):
        try:
            got = codec.unpack(uint8(list(first + wire)), n, width)
        except PayloadError:
            continue
        assert got.shape == (n,), codec
        assert n == 0 or int(got.max()) < 2**width, codec


@each_codec
def test_what_is_short_or_long_is_refused(codec: Codec) -> None:
    symbols = symbols_of(5000, 4, 4.0)
    data = codec.pack(symbols, 4)
    for wrong in (data[:-1], data[: data.numel() // 2], data[:0], torch.cat([data, uint8([0])])):
        with pytest.raises(PayloadError):
            codec.unpack(wrong, 5000, 4)
    with pytest.raises(PayloadError):
        codec.unpack(data, 4000, 4)
    with pytest.raises(PayloadError):
        codec.unpack(data, 0, 4)


def test_every_flipped_bit_of_rans_is_found_or_in_range() -> None:
    symbols = symbols_of(3000, 3, 6.0)
    data = Rans().pack(symbols, 3)
    found = 0
    for byte, bit in itertools.product(range(data.numel()), range(8)):
        wrong = data.clone()
        wrong[byte] ^= 1 << bit
        try:
            assert int(Rans().unpack(wrong, 3000, 3).max()) < 8
        except PayloadError:
            found += 1
    assert found > 0.99 * 8 * data.numel()


@pytest.mark.parametrize("codec", CODECS[1:], ids=lambda c: c.id)
def test_symbols_that_do_not_fit_are_refused(codec: Codec) -> None:
    with pytest.raises(ValueError, match="does not fit 3 bits"):
        codec.pack(uint8([1, 8]), 3)
    with pytest.raises(ValueError, match="uint8 symbols"):
        codec.pack(torch.tensor([1]), 3)


@each_codec
def test_codecs_are_values(codec: Codec) -> None:
    assert eval(repr(codec), vars(codecs)) == codec
    assert from_json(codec.to_json()) == codec
    assert type(codec).from_json(codec.to_json()).id == codec.id


def test_unknown_code() -> None:
    with pytest.raises(ValueError, match="write code='gamma', 'delta' or 'omega'"):
        EliasDense("beta")  # type: ignore[arg-type]
