"""Packing, the dispatcher, and blocks of every size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import torch
from battery import INSTANCES, LAYOUT, NATIVE, TIERS, fixed_vector, vector
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire import Key, Layout, kernels
from thinwire.codecs import BitPack
from thinwire.compressors import Qsgd
from thinwire.core.errors import PayloadError
from thinwire.kernels import Blocks, Kind, Norm, Quant, dispatch, planar
from thinwire.kernels.base import TAME
from thinwire.kernels.spec import packed_bytes


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("width", range(1, 9))
@settings(max_examples=12)
@given(n=st.one_of(st.integers(0, 70), st.integers(500, 1600)), seed=st.integers(0, 9))
def test_pack_round_trips_and_is_tight(tier: str, width: int, n: int, seed: int) -> None:
    codes = torch.randint(0, 1 << width, (n,), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    with kernels.force(tier):
        packed = BitPack().pack(codes, width)
        assert torch.equal(BitPack().unpack(packed, n, width), codes)
    assert torch.equal(packed, planar.pack(codes, width))
    assert packed.numel() == packed_bytes(n, width)
    assert packed.numel() * 8 <= n * width + 7 * width + 8 * width


def test_packed_size_must_match() -> None:
    with pytest.raises(PayloadError, match="take 256 bytes; got 255"):
        BitPack().unpack(torch.zeros(255, dtype=torch.uint8), 512, 4)
    with pytest.raises(ValueError, match="1 to 8 bits"):
        BitPack().pack(torch.zeros(8, dtype=torch.uint8), 9)


KINDS = {
    Kind.SIGNED: [Norm.MAX, Norm.L2, Norm.CLIPPED],
    Kind.UNSIGNED: [Norm.MAX, Norm.L2, Norm.RANGE],
    Kind.SIGN: [Norm.MEAN, Norm.UNIT],
    Kind.PAIR: [Norm.SIDES],
    Kind.DITHER: [Norm.MAX, Norm.L2],
}


@given(data=st.data())
def test_any_quantiser_on_any_blocks_is_bit_equal(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(KINDS)))
    norm = data.draw(st.sampled_from(KINDS[kind]))
    width = 1 if kind in (Kind.SIGN, Kind.PAIR) else data.draw(st.integers(2 if kind is not Kind.UNSIGNED else 1, 8))
    top = {Kind.SIGNED: 2 ** (width - 1) - 1, Kind.UNSIGNED: 2**width - 1, Kind.SIGN: 1, Kind.PAIR: 1}.get(
        kind, min(24, 2 ** (width - 1) - 1)
    )
    noisy = kind is Kind.DITHER or data.draw(st.booleans())
    quant = Quant(kind, norm, data.draw(st.integers(1, top)), width, noisy, clip=data.draw(st.floats(0.5, 4)))
    n = data.draw(st.integers(1, 3000))
    if data.draw(st.booleans()):
        blocks = Blocks(n, size=data.draw(st.integers(1, 2 * n)))
    else:
        edges = data.draw(st.sets(st.integers(1, n - 1), max_size=12)) if n > 1 else set()
        blocks = Blocks(n, starts=torch.tensor(sorted({0, n, *edges})))
    x = vector(n, data.draw(st.sampled_from(["gauss", "heavy", "denormal"])), seed=n)
    key = Key(seed=n)
    outputs = []
    for name in TIERS:
        scales = torch.zeros(blocks.count * quant.scales)
        codes = torch.zeros(quant.code_bytes(n), dtype=torch.uint8)
        residual, out = torch.ones(n), torch.ones(n)
        k = kernels.get(name)
        k.encode(x, quant, blocks, key, scales, codes, residual=residual, alpha=0.5, beta=0.25)
        k.decode_add(scales, codes, quant, blocks, out, 0.125)
        anew = torch.full((n,), torch.nan)
        k.decode_add(scales, codes, quant, blocks, anew, 0.125, fresh=True)
        added = torch.zeros(n)
        k.decode_add(scales, codes, quant, blocks, added, 0.125)
        assert torch.equal(anew.view(torch.int32), added.view(torch.int32))  # zeros have signs
        outputs.append((scales, codes, residual, out, k.scales(x, quant, blocks)))
    for tier, output in zip(TIERS, outputs, strict=True):
        for got, expected in zip(output, outputs[TIERS.index("reference")], strict=True):
            assert torch.equal(got, expected), tier


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("n", [0, 1, 7, 512, 1000, 300_000])
def test_copy_tells_whether_all_is_tame(tier: str, n: int) -> None:
    k, x, out = kernels.get(tier), vector(n), torch.empty(n)
    assert k.copy(x, out)
    assert torch.equal(out, x)
    for place in {0, n // 2, n - 1} if n else set():
        for broken in (torch.nan, torch.inf, -torch.inf, TAME, -3e38):
            y = x.clone()
            y[place] = broken
            assert not k.copy(y, out)
            assert torch.equal(out.view(torch.int32), y.view(torch.int32))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("n", [0, 1, 7, 512, 1000, 300_000])
def test_a_difference_is_written_twice_and_tells_whether_it_is_tame(tier: str, n: int) -> None:
    k, a, b, out = kernels.get(tier), vector(n), vector(n).flip(0) * 0.7, torch.empty(n)
    expected = a - b
    assert k.difference(a, b, out)
    assert torch.equal(out, expected)
    for place in {0, n // 2, n - 1} if n else set():
        for broken in (torch.nan, torch.inf, -torch.inf, TAME, -3e38):
            y = b.clone()
            y[place] = broken
            assert not k.difference(a, y, out)
            assert torch.equal(out.isfinite(), y.isfinite())
    moved = a.clone()
    assert k.difference(moved, b, out, again=moved)  # an output may be an input
    assert torch.equal(out, expected)
    assert torch.equal(moved, expected)


@pytest.mark.parametrize("tier", TIERS)
def test_signed_bytes_fold_by_magnitude(tier: str) -> None:
    k = kernels.get(tier)
    signed = torch.arange(-128, 128, dtype=torch.int8)
    codes = signed.view(torch.uint8).clone()
    k.fold(codes)
    expected = [2 * q if q >= 0 else -2 * q - 1 for q in signed.tolist()]
    assert codes.tolist() == expected
    k.unfold(codes)
    assert torch.equal(codes.view(torch.int8), signed)


def test_a_huge_input_is_bit_equal_too() -> None:
    """2^24 + 1 elements, 64 MiB: every instruction set, one thread and all."""
    x = vector((1 << 24) + 1)
    layout = Layout.flat(x.numel())
    c = Qsgd(bits=4, norm="l2")
    payloads = []
    for tier in NATIVE:
        with kernels.force(tier):
            payloads.append(c.encode(x, layout, Key(seed=2)))
    for other in payloads[1:]:
        assert torch.equal(other.data, payloads[0].data)
    error = (c.decode(payloads[0], layout) - x).double().square().sum() / x.double().square().sum()
    assert 0.5 < error.item() < 3.24  # omega of 7 levels in blocks of 512


def test_threads_do_not_change_the_bits() -> None:
    x = vector(1 << 19, "heavy")
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for blocks in (Blocks(x.numel(), size=512), Blocks(x.numel(), size=x.numel())):
                quant = Quant(Kind.SIGNED, Norm.L2, 7, 4)
                scales, codes = (
                    torch.zeros(blocks.count),
                    torch.zeros(quant.code_bytes(x.numel()), dtype=torch.uint8),
                )
                kernels.get("cpu").encode(x, quant, blocks, Key(), scales, codes)
                results.append((scales, codes))
    finally:
        torch.set_num_threads(before)
    for i in range(2, 6):
        assert torch.equal(results[i][0], results[i % 2][0])
        assert torch.equal(results[i][1], results[i % 2][1])


def test_the_environment_and_force_choose_the_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(1)
    assert kernels.select(x).name == kernels.get("cpu").name
    asked = dispatch._asked
    monkeypatch.setattr(dispatch, "_asked", asked.__wrapped__)  # otherwise it is asked only once
    monkeypatch.setenv("THINWIRE_KERNELS", "reference")
    assert kernels.select(x).name == "reference"
    with kernels.force("cpu-portable"):
        assert kernels.select(x).name == "cpu-portable"
    monkeypatch.setenv("THINWIRE_KERNELS", "gpu9")
    with pytest.raises(ValueError, match="no kernels called 'gpu9' on this machine; write THINWIRE_KERNELS="):
        kernels.select(x)
    with pytest.raises(ValueError, match="no kernels called 'fast'"), kernels.force("fast"):
        pass


def test_all_instruction_sets_of_this_machine_are_under_test() -> None:
    assert "cpu-portable" in TIERS
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    assert ("avx2" in flags) == ("cpu-avx2" in TIERS)
    assert ({"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= set(flags)) == ("cpu-avx512" in TIERS)


def test_bytes_do_not_depend_on_what_torch_uses_of_the_cpu() -> None:
    """The same key gives the same payload when torch's own reductions add in another order."""
    code = (
        "import sys, zlib; sys.path.insert(0, sys.argv[1]); from battery import INSTANCES, LAYOUT, fixed_vector\n"
        "from thinwire import Key\n"
        "x = fixed_vector(LAYOUT.numel)\n"
        "print([zlib.crc32(c.encode(x, LAYOUT, Key(seed=1)).data.numpy().tobytes()) for c in INSTANCES])"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parents[1])]
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    x = fixed_vector(LAYOUT.numel)
    here = [zlib.crc32(c.encode(x, LAYOUT, Key(seed=1)).data.numpy().tobytes()) for c in INSTANCES]
    assert json.loads(done.stdout) == here


@pytest.mark.parametrize("tier", TIERS)
def test_decode_mean_is_decode_add_message_by_message(tier: str) -> None:
    quant, blocks = Quant(Kind.SIGNED, Norm.MAX, 7, 4), Blocks(1000, size=100)
    scales = [torch.empty(10) for _ in range(3)]
    codes = [torch.empty(quant.code_bytes(1000), dtype=torch.uint8) for _ in range(3)]
    for rank in range(3):
        kernels.get(tier).encode(vector(1000, seed=rank), quant, blocks, Key(rank=rank), scales[rank], codes[rank])
    mean, slowly = torch.full((1000,), torch.nan), torch.zeros(1000)
    kernels.get(tier).decode_mean(scales, codes, quant, blocks, mean, 1 / 3)
    for side, packed in zip(scales, codes, strict=True):
        kernels.get("reference").decode_add(side, packed, quant, blocks, slowly, 1 / 3)
    assert torch.equal(mean, slowly)
