"""rANS in Triton: the bytes of C++, and its symbols back; what is damaged never crashes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from interpreted import LONG
from torch import Tensor

from thinwire import PayloadError, kernels
from thinwire.codecs import BitPack, Rans, native
from thinwire.codecs import rans as cpp
from thinwire.kernels.spec import packed_bytes, together

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


def joined(symbols: Tensor, width: int) -> Tensor:
    """Several symbols to a byte, the first lowest."""
    each = together(width)
    fields = torch.cat((symbols, symbols.new_zeros(-symbols.numel() % each))).view(-1, each)
    return (fields << (8 // each * torch.arange(each, dtype=torch.uint8))).sum(1, dtype=torch.uint8)


def frame(symbols: Tensor, width: int, chunk: int = 0, *, join: bool = False) -> Tensor:
    """What C++ writes, behind the first byte of a frame."""
    out = torch.zeros(1 + packed_bytes(symbols.numel(), width), dtype=torch.uint8)
    coded = (joined(symbols, width), out[1:], 8) if join else (symbols, out[1:], width)
    used = cpp.encode(*coded, chunk or cpp.LIKE_A_GPU)
    if used < 0:
        out[1:] = BitPack().pack(symbols, width)
        out[0] = native.PLAIN
        return out
    out[0] = native.JOINED if join else native.CODED
    return out[: 1 + used].clone()


@dataclass(frozen=True)
class Tried:
    """Triton beside C++, on a device."""

    device: torch.device

    def same(self, symbols: Tensor, width: int, chunk: int = 0, *, join: bool = False) -> Tensor:
        """Encode in Triton and in C++, compare, decode in Triton; returns the frame."""
        wanted = frame(symbols, width, chunk, join=join)
        out = torch.full((1 + packed_bytes(symbols.numel(), width),), 170, dtype=torch.uint8, device=self.device)
        used = int(gpu.encode([symbols.to(self.device)], width, [out], chunk, join=join))
        assert torch.equal(out[:used].cpu(), wanted)
        assert (out[used:] == 170).all()
        fault, back = self.decode(wanted, symbols.numel(), width)
        assert fault == 0
        assert torch.equal(back, symbols)
        return wanted

    def decode(self, data: Tensor, n: int, width: int) -> tuple[int, Tensor]:
        """A fault and the symbols; nothing is written past them."""
        back = torch.full((n + 64,), 170, dtype=torch.uint8, device=self.device)
        fault = int(gpu.decode([data.to(self.device)], width, [back[:n]]))
        assert (back[n:] == 170).all()
        return fault, back[:n].cpu()

    def judge(self, data: Tensor, n: int, width: int) -> None:
        """Triton calls damaged what C++ calls damaged; what passes is the same."""
        fault, back = self.decode(data, n, width)
        room = torch.zeros(n, dtype=torch.uint8)
        try:
            cpp.decode_frame(data, width, room)
        except PayloadError:
            assert fault in native.FAULTS
            return
        assert fault == 0
        assert torch.equal(back, room)


@pytest.fixture
def tried(device: torch.device) -> Tried:
    return Tried(device)


@pytest.fixture
def everything(long: bool, device: torch.device) -> bool:
    """Whether there is time for it, as the interpreter has not."""
    return long or device.type == "cuda"


@pytest.mark.parametrize("n", [1, 33])
def test_short_messages(tried: Tried, n: int) -> None:
    tried.same(skewed(n, 3, 0.5), 3)


def test_four_states(tried: Tried) -> None:
    assert tried.same(skewed(130, 4, 20.0), 4).tolist()[:3] == [1, 2, 13]


@pytest.mark.parametrize(("n", "width", "skew"), [(400, 4, 15.0), pytest.param(1300, 1, 20.0, marks=LONG)])
def test_32_states(tried: Tried, n: int, width: int, skew: float) -> None:
    assert tried.same(skewed(n, width, skew), width, 13).tolist()[:3] == [1, 6, 13]


@pytest.mark.parametrize(("n", "width", "skew"), [(3001, 1, 20.0), pytest.param(2601, 3, 20.0, marks=LONG)])
def test_narrow_symbols_are_joined(tried: Tried, n: int, width: int, skew: float) -> None:
    symbols = skewed(n, width, skew)
    data = tried.same(symbols, width, 13, join=True)
    assert data[0] == native.JOINED
    back = torch.empty(n, dtype=torch.uint8)
    cpp.decode_frame(data, width, back)  # as a CPU reads it
    assert torch.equal(back, symbols)


def test_joined_symbols_too_large_for_their_width(tried: Tried) -> None:
    symbols = skewed(3000, 3, 20.0)
    out = torch.empty(1 + packed_bytes(3000, 3), dtype=torch.uint8, device=tried.device)
    symbols[1234] = 9
    assert int(gpu.encode([symbols.to(tried.device)], 3, [out], 13, join=True)) == cpp.BAD_SYMBOL
    data = frame(symbols, 4, 13, join=True)  # four bits, where three are said to be
    assert tried.decode(data, 3000, 3)[0] == cpp.BAD_SYMBOL
    tried.judge(data, 3000, 3)
    tried.judge(data, 3000, 8)


def test_more_chunks_than_a_program_has(tried: Tried, everything: bool) -> None:
    """Five of 2^13 symbols, of which the last is short."""
    if not everything:
        pytest.skip("half a minute in the interpreter; with --long or on a GPU")
    tried.same(skewed(33_000, 3, 20.0), 3, 13)


@pytest.mark.parametrize("n", [5000, 8193, 70_000])
def test_long_messages(tried: Tried, n: int, device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("only a GPU is fast enough")
    tried.same(skewed(n, 4, 1.0), 4)
    tried.same(skewed(n, 3, 20.0), 3, 13)
    tried.same(skewed(n, 8, 30.0), 8, 13)
    for width in (1, 2, 3, 4):
        tried.same(skewed(20 * n, width, 20.0), width, join=True)


def test_messages_of_the_sizes_that_gpus_code(tried: Tried, device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("only a GPU is fast enough")
    for n, width, skew in [
        ((1 << 25) + 17, 4, 2.0),
        ((1 << 24) - 1, 8, 1.0),
        (1 << 24, 2, 60.0),
        (20_000_000, 8, 0.0),
    ]:
        tried.same(skewed(n, width, skew), width)
        tried.same(mostly(n, range(50, 250), 0.001), 8)


def test_every_symbol_of_a_byte(tried: Tried) -> None:
    tried.same(torch.cat([torch.arange(256), torch.arange(256) % 9, torch.zeros(100)]).to(torch.uint8), 8, 13)


@pytest.mark.parametrize("n", [1, 9000])
def test_one_symbol(tried: Tried, n: int) -> None:
    assert tried.same(torch.full((n,), 5, dtype=torch.uint8), 8).tolist() == [1, 1, 5]


def test_two_symbols_one_of_them_rare(tried: Tried, everything: bool) -> None:
    symbols = torch.zeros(9000 if everything else 900, dtype=torch.uint8)
    symbols[321] = 3
    tried.same(symbols, 2, 13)


def test_rare_symbols_follow_in_a_message_of_their_own(tried: Tried) -> None:
    """In two chunks, of which the second has 8 symbols."""
    assert int(tried.same(mostly(8200, range(50, 250), 0.02), 8, 13)[1]) == 2 | 4 | 8


def test_few_rare_symbols_have_frequencies_of_their_own(tried: Tried, everything: bool) -> None:
    if not everything:
        pytest.skip("ten seconds in the interpreter; with --long or on a GPU")
    symbols = mostly(30_000, range(4, 12), 0.0005)
    assert int(tried.same(symbols, 4, 13)[1]) == 2 | 4


def test_plain_fields_where_codes_are_longer(tried: Tried) -> None:
    for width in (1, 8):
        assert int(tried.same(skewed(520, width, 0.0), width, 13)[0]) == native.PLAIN


def test_a_symbol_beyond_the_width(device: torch.device) -> None:
    symbols = torch.tensor([1, 2, 3, 16, 255], dtype=torch.uint8, device=device)
    out = torch.empty(1 + packed_bytes(5, 4), dtype=torch.uint8, device=device)
    assert int(gpu.encode([symbols], 4, [out])) == cpp.BAD_SYMBOL


def sets(everything: bool) -> list[tuple[list[Tensor], int, int, bool]]:
    """Vectors that are coded together, of several kinds; their width, their chunks, whether they are joined."""
    rare, plain = mostly(8200 if everything else 420, range(50, 250), 0.02), skewed(301, 8, 0.0)
    found = [([rare, torch.full((9,), 5, dtype=torch.uint8), plain, skewed(130, 8, 20.0)], 8, 13, False)]
    found.append(([skewed(301, 3, 20.0), skewed(65, 3, 3.0)], 3, 13, True))
    if everything:
        lengths = (600_000, 700_001, 650_003, 599_999)
        found.append(([skewed(n, 3, 20.0) for n in lengths], 3, 0, True))
        found.append(([mostly(n, range(4, 12), 0.001) for n in lengths], 4, 0, True))
    return found


def test_several_frames_at_once_are_those_of_each_alone(device: torch.device, everything: bool) -> None:
    for vectors, width, chunk, join in sets(everything):
        wanted = [frame(s, width, chunk, join=join) for s in vectors]
        out = [torch.zeros(1 + packed_bytes(s.numel(), width), dtype=torch.uint8, device=device) for s in vectors]
        used = gpu.encode([s.to(device) for s in vectors], width, out, chunk, join=join).tolist()
        assert [torch.equal(o[:n].cpu(), w) for o, n, w in zip(out, used, wanted, strict=True)] == [True] * len(used)
        back = [torch.zeros_like(s, device=device) for s in vectors]
        assert not gpu.decode([w.to(device) for w in wanted], width, back).any()
        assert all(torch.equal(b.cpu(), s) for b, s in zip(back, vectors, strict=True))


def test_damage_to_one_frame_of_several_is_its_own(device: torch.device) -> None:
    vectors = [skewed(n, 4, 9.0) for n in (130, 70, 200)]
    data = [frame(s, 4) for s in vectors]
    data[1] = data[1][:-1]
    back = [torch.zeros_like(s, device=device) for s in vectors]
    faults = gpu.decode([d.to(device) for d in data], 4, back).tolist()
    assert [fault == 0 for fault in faults] == [True, False, True]
    assert torch.equal(back[0].cpu(), vectors[0])
    assert torch.equal(back[2].cpu(), vectors[2])


def test_addresses_from_which_lines_cannot_be_loaded(device: torch.device) -> None:
    symbols = skewed(131, 4, 9.0).to(device)
    out, back = torch.zeros(200, dtype=torch.uint8, device=device), torch.zeros(140, dtype=torch.uint8, device=device)
    used = int(gpu.encode([symbols[1:]], 4, [out[1:]]))
    assert torch.equal(out[1 : 1 + used].cpu(), frame(symbols[1:].cpu().clone(), 4))
    assert int(gpu.decode([out[1 : 1 + used]], 4, [back[3:133]])) == 0
    assert torch.equal(back[3:133], symbols[1:])


def test_what_cpp_wrote_in_large_chunks(tried: Tried) -> None:
    symbols = skewed(600, 4, 9.0)
    data = frame(symbols, 4, 21)
    assert int(data[2]) == 21
    fault, back = tried.decode(data, 600, 4)
    assert fault == 0
    assert torch.equal(back, symbols)


def test_the_codec_reaches_triton(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    monkeypatch.setattr(cpp, "codes", None)
    symbols = skewed(200, 2, 5.0).to(device)
    with kernels.force("gpu"):
        data = Rans().pack(symbols, 2)
        assert torch.equal(Rans().unpack(data, 200, 2), symbols)
        with pytest.raises(PayloadError):
            Rans().unpack(data[:-1], 200, 2)
        with pytest.raises(ValueError, match="symbol 9 does not fit 3 bits"):
            Rans().pack(torch.tensor([1, 9], dtype=torch.uint8, device=device), 3)
        assert Rans().pack(symbols[:0], 2).numel() == 0


def test_damage_is_found_where_cpp_finds_it(tried: Tried, everything: bool) -> None:
    symbols = skewed(90, 3, 15.0)
    data, rng = frame(symbols, 3), np.random.default_rng(0)
    assert data[0] == native.CODED
    for place in range(0, data.numel(), 1 if everything else 11):
        wrong = data.clone()
        wrong[place] ^= int(rng.integers(1, 256))
        tried.judge(wrong, 90, 3)


def test_damage_of_a_message_with_rare_symbols(tried: Tried, device: torch.device) -> None:
    data, rng = frame(mostly(8200, range(50, 250), 0.02), 8, 13), np.random.default_rng(0)
    for place in range(1, data.numel(), 7) if device.type == "cuda" else (1, 4):
        wrong = data.clone()
        wrong[place] ^= int(rng.integers(1, 256))
        tried.judge(wrong, 8200, 8)


def test_short_and_long_messages_and_any_bytes(tried: Tried, everything: bool) -> None:
    data = frame(skewed(60, 3, 9.0), 3)
    for wrong in [data[:k] for k in range(1, data.numel(), 1 if everything else 6)] + [torch.cat([data, data[:1]])]:
        tried.judge(wrong.clone(), 60, 3)
    rng = np.random.default_rng(0)
    for first in (b"", b"\0", b"\1\1", b"\1\2\x0d", b"\1\x0e\x0d"):
        wire = first + rng.integers(0, 256, 50, dtype=np.uint8).tobytes()
        tried.judge(torch.frombuffer(bytearray(wire), dtype=torch.uint8), 60, 3)
