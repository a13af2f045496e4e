"""rANS in Triton: the bytes of C++, and its symbols back; what is damaged never crashes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from thinwire import PayloadError, kernels
from thinwire.codecs import BitPack, Rans, native
from thinwire.codecs import rans as cpp
from thinwire.kernels.spec import packed_bytes

gpu = pytest.importorskip("thinwire.kernels.gpu.rans")


def skewed(n: int, width: int, skew: float) -> Tensor:
    """`n` symbols below 2^width; the larger `skew`, the more of them are small."""
    u = np.random.default_rng(n).random(n)
    return torch.from_numpy(np.floor(u ** (1 + skew) * 2**width).astype(np.uint8))


def mostly(n: int, rares: range, share: float) -> Tensor:
    """Zeros and ones, and a share of symbols from `rares`."""
    rng = np.random.default_rng(n)
    values = np.where(rng.random(n) < share, rng.integers(rares.start, rares.stop, n), rng.integers(0, 2, n))
    return torch.from_numpy(values.astype(np.uint8))


def frame(symbols: Tensor, width: int, chunk: int = 0) -> Tensor:
    """What C++ writes, behind the first byte of a frame."""
    out = torch.zeros(1 + packed_bytes(symbols.numel(), width), dtype=torch.uint8)
    used = cpp.encode(symbols, out[1:], width, chunk)
    if used < 0:
        out[1:] = BitPack().pack(symbols, width)
        return out
    out[0] = native.CODED
    return out[: 1 + used].clone()


def same(symbols: Tensor, width: int, chunk: int = 0) -> Tensor:
    """Encode in Triton and in C++, compare, decode in Triton; returns the frame."""
    wanted = frame(symbols, width, chunk)
    out = torch.full((1 + packed_bytes(symbols.numel(), width),), 170, dtype=torch.uint8)
    used = int(gpu.encode(symbols, width, out, chunk))
    assert torch.equal(out[:used], wanted)
    assert (out[used:] == 170).all()
    back = torch.full_like(symbols, 170)
    assert int(gpu.decode(wanted, width, back)) == 0
    assert torch.equal(back, symbols)
    return wanted


@pytest.mark.parametrize("n", [1, 31, 32, 33])
def test_short_messages(n: int) -> None:
    same(skewed(n, 3, 0.5), 3)


@pytest.mark.parametrize("n", [127, 128, 130])
def test_four_states(n: int) -> None:
    assert same(skewed(n, 4, 20.0), 4).tolist()[:3] == [1, 2, 13]


@pytest.mark.parametrize(("n", "width", "skew"), [(3000, 1, 5.0), (2000, 4, 9.0), (8193, 3, 20.0)])
def test_32_states(n: int, width: int, skew: float) -> None:
    """In chunks of 2^13 symbols: the third message has two."""
    assert same(skewed(n, width, skew), width, 13).tolist()[:3] == [1, 6, 13]


@pytest.mark.parametrize("n", [5000, 70_000])
def test_long_messages(n: int, long: bool) -> None:
    if not long:
        pytest.skip("a minute in the interpreter; with --long")
    same(skewed(n, 4, 1.0), 4)
    same(skewed(n, 8, 30.0), 8, 13)


def test_every_symbol_of_a_byte() -> None:
    same(torch.cat([torch.arange(256), torch.arange(256) % 9, torch.zeros(2500)]).to(torch.uint8), 8, 13)


@pytest.mark.parametrize("n", [1, 600, 9000])
def test_one_symbol(n: int) -> None:
    assert same(torch.full((n,), 5, dtype=torch.uint8), 8).tolist() == [1, 1, 5]


def test_two_symbols_one_of_them_rare() -> None:
    symbols = torch.zeros(9000, dtype=torch.uint8)
    symbols[4321] = 3
    same(symbols, 2, 13)


def test_rare_symbols_follow_in_a_message_of_their_own() -> None:
    assert int(same(mostly(8200, range(50, 250), 0.02), 8, 13)[1]) == 2 | 4 | 8


def test_plain_fields_where_codes_are_longer() -> None:
    for width in (1, 3, 8):
        assert int(same(skewed(1029, width, 0.0), width, 13)[0]) == native.PLAIN


def test_a_symbol_beyond_the_width() -> None:
    symbols = torch.tensor([1, 2, 3, 16, 255], dtype=torch.uint8)
    out = torch.empty(1 + packed_bytes(5, 4), dtype=torch.uint8)
    assert int(gpu.encode(symbols, 4, out)) == cpp.BAD_SYMBOL


def test_what_cpp_wrote_in_large_chunks() -> None:
    symbols = skewed(2000, 4, 9.0)
    data, back = frame(symbols, 4, 21), torch.empty_like(symbols)
    assert int(data[2]) == 21
    assert int(gpu.decode(data, 4, back)) == 0
    assert torch.equal(back, symbols)


def test_the_codec_reaches_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp, "codes", None)
    symbols = skewed(200, 2, 5.0)
    with kernels.force("gpu"):
        data = Rans().pack(symbols, 2)
        assert torch.equal(Rans().unpack(data, 200, 2), symbols)
        with pytest.raises(PayloadError):
            Rans().unpack(data[:-1], 200, 2)
        with pytest.raises(ValueError, match="symbol 9 does not fit 3 bits"):
            Rans().pack(torch.tensor([1, 9], dtype=torch.uint8), 3)
        assert Rans().pack(symbols[:0], 2).numel() == 0


def judged(data: Tensor, n: int, width: int) -> None:
    """Triton calls damaged what C++ calls damaged; what passes is the same."""
    back, room = torch.zeros(n + 64, dtype=torch.uint8), torch.zeros(n, dtype=torch.uint8)
    back[n:] = 170
    fault = int(gpu.decode(data, width, back[:n]))
    assert (back[n:] == 170).all()
    try:
        cpp.decode_frame(data, width, room)
    except PayloadError:
        assert fault in native.FAULTS
        return
    assert fault == 0
    assert torch.equal(back[:n], room)


def test_damage_is_found_where_cpp_finds_it() -> None:
    symbols = skewed(90, 3, 15.0)
    data, rng = frame(symbols, 3), np.random.default_rng(0)
    assert data[0] == native.CODED
    for place in range(data.numel()):
        wrong = data.clone()
        wrong[place] ^= int(rng.integers(1, 256))
        judged(wrong, 90, 3)


def test_damage_of_a_message_with_rare_symbols() -> None:
    data, rng = frame(mostly(8200, range(50, 250), 0.02), 8, 13), np.random.default_rng(0)
    for place in (1, 4, 16, 20):
        wrong = data.clone()
        wrong[place] ^= int(rng.integers(1, 256))
        judged(wrong, 8200, 8)


def test_short_and_long_messages_and_any_bytes() -> None:
    data = frame(skewed(60, 3, 9.0), 3)
    for wrong in [data[:k] for k in range(1, data.numel(), 3)] + [torch.cat([data, data[:1]])]:
        judged(wrong.clone(), 60, 3)
    rng = np.random.default_rng(0)
    for first in (b"", b"\0", b"\1\1", b"\1\2\x0d", b"\1\x0e\x0d"):
        wire = first + rng.integers(0, 256, 50, dtype=np.uint8).tobytes()
        judged(torch.frombuffer(bytearray(wire), dtype=torch.uint8), 60, 3)
