"""The passes of quantisers in Triton have the bits of C++: every instance on a GPU, some of each kind interpreted."""

from __future__ import annotations

import pytest
import torch
from battery import INSTANCES, LAYOUT, vector
from interpreted import cases
from torch import Tensor

from thinwire import Key, Layout, kernels
from thinwire.compressors.block import KernelCompressor
from thinwire.kernels import Kernels
from thinwire.kernels.spec import Blocks, packed_bytes

ALL = [c for c in INSTANCES if isinstance(c, KernelCompressor)]
SOME = (
    "qsgd:bits=4",
    "qsgd:bits=1,norm=l2,block=64",
    "qsgd:bits=3,block=100",
    "qsgd:bits=8,symmetric=false",
    "qsgd:bits=7,block=none",
    "int:bits=4,block=32",
    "terngrad",
    "scaled-sign",
    "one-bit",
    "sign",
    "natural",
    "natural-dithering",
    "laq-grid",
)
"""Every kind, norm and way to find a scale: the interpreter takes a second for each."""
WEIGHED = tuple(
    c for c in SOME if c not in ("qsgd:bits=3,block=100", "qsgd:bits=7,block=none", "int:bits=4,block=32")
)
"""One for each way of decoding: the others are decoded as 4 bits are."""
CASES = ALL if torch.cuda.is_available() else [c for c in ALL if c.id in SOME]
KINDS = ("gauss", "heavy", "denormal", "nan", "inf", "huge") if torch.cuda.is_available() else ("nan",)
DTYPES = (torch.float32, torch.bfloat16, torch.float16) if torch.cuda.is_available() else (torch.float32,)
KEY = Key(seed=5, step=2, offset=512)


def values(kind: str) -> Tensor:
    x = vector(LAYOUT.numel, kind if kind in ("heavy", "denormal") else "gauss")
    if kind == "huge":
        return x * (3e38 / float(x.abs().max()))
    if kind in ("nan", "inf"):
        x[5], x[700] = float(kind), -float(kind)
    return x


def passes(tier: Kernels, c: KernelCompressor, x: Tensor) -> dict[str, Tensor | int | None]:
    """What the passes of one tier write."""
    quant, blocks = c.quant, c.blocks(LAYOUT)
    scales = torch.zeros(2, blocks.count * quant.scales, device=x.device)
    codes = torch.zeros(2, quant.code_bytes(blocks.n) // 4 * 4 + 4, dtype=torch.uint8, device=x.device)
    size = quant.code_bytes(blocks.n)
    total = tier.encode(x, quant, blocks, KEY, scales[0], codes[0, :size], first=9)
    e = (vector(LAYOUT.numel, seed=3) * 0.1).to(x.device)
    tier.encode(x, quant, blocks, KEY, scales[1], codes[1, :size], residual=e, alpha=0.5, beta=0.75)
    added, mean = torch.ones(blocks.n, device=x.device), torch.full((blocks.n,), torch.nan, device=x.device)
    tier.decode_add(scales[0], codes[0, :size], quant, blocks, added, 0.3)
    tier.decode_mean(list(scales), [row[:size] for row in codes], quant, blocks, mean, 0.5)
    number = int(total.sum()) if isinstance(total, Tensor) else total
    return {
        "scales": scales,
        "codes": codes,
        "residual": e,
        "added": added,
        "mean": mean,
        "total": None if number is None else number % 2**64,
    }


def same(a: Tensor, b: Tensor) -> bool:
    """Equal bits, where any NaN equals any other."""
    a, b = a.cpu(), b.cpu()
    if a.dtype == torch.float32:
        a, b = (t.nan_to_num(nan=7e33, posinf=torch.inf, neginf=-torch.inf).view(torch.int32) for t in (a, b))
    return torch.equal(a, b)


@pytest.mark.parametrize(
    "c",
    cases([c for c in CASES if c.quant.scales], WEIGHED),
    ids=lambda c: c.id,
)
def test_the_weight_of_a_mean_may_come_last(c: KernelCompressor, device: torch.device) -> None:
    """Of payloads with ordinary scales, and of one whose first scale is too small for that."""
    quant, x = c.quant, vector(2 * 512 + 77, seed=1)
    layout = Layout.of([("a", x[:512]), ("b", x[512:])])
    blocks, tier = c.blocks(layout), kernels.get("cpu")
    scales = torch.zeros(3, blocks.count * quant.scales)
    codes = torch.zeros(3, -(-quant.code_bytes(x.numel()) // 16) * 16, dtype=torch.uint8)
    for i in range(3):
        tier.encode(x * (i + 1), quant, blocks, KEY, scales[i], codes[i, : quant.code_bytes(x.numel())])
    for small in (1.0, 1e-37):
        scales[1, :1] *= small
        means = []
        for one, there in ((tier, torch.device("cpu")), (kernels.get("gpu"), device)):
            mean = torch.full((x.numel(),), torch.nan, device=there)
            of = [row.to(there)[: quant.code_bytes(x.numel())] for row in codes]
            one.decode_mean(list(scales.to(there)), of, quant, blocks, mean, 0.25)
            means.append(mean)
        assert same(*means)
        assert means[0].isfinite().all()


@pytest.mark.parametrize("c", CASES, ids=lambda c: c.id)
def test_every_pass_has_the_bits_of_cpp(c: KernelCompressor, device: torch.device) -> None:
    for kind in KINDS:
        for dtype in DTYPES if kind == "gauss" else (torch.float32,):
            x = values(kind).to(dtype)
            here, there = passes(kernels.get("cpu"), c, x), passes(kernels.get("gpu"), c, x.to(device))
            for what, a in here.items():
                b = there[what]
                equal = same(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b
                assert equal, f"{what} of {kind}, {dtype}"


@pytest.mark.parametrize("width", range(1, 9))
def test_fields_are_packed_as_on_the_cpu(width: int, device: torch.device) -> None:
    n = 512 + 77
    codes = torch.randint(0, 1 << width, (n,), dtype=torch.uint8, generator=torch.Generator().manual_seed(width))
    here = torch.zeros(packed_bytes(n, width), dtype=torch.uint8)
    there = torch.zeros(packed_bytes(n, width), dtype=torch.uint8, device=device)
    kernels.get("cpu").pack(codes, width, here)
    kernels.get("gpu").pack(codes.to(device), width, there)
    assert torch.equal(there.cpu(), here)
    assert torch.equal(kernels.get("gpu").unpack(there, n, width).cpu(), codes)


def test_noise_and_symbols_are_those_of_the_cpu(device: torch.device) -> None:
    assert torch.equal(kernels.get("gpu").noise(KEY, 1300).cpu(), kernels.get("cpu").noise(KEY, 1300))
    codes = torch.arange(256, dtype=torch.uint8)
    here, there = codes.clone(), codes.to(device, copy=True)
    kernels.get("cpu").fold(here)
    kernels.get("gpu").fold(there)
    assert torch.equal(there.cpu(), here)
    kernels.get("gpu").unfold(there)
    assert torch.equal(there.cpu(), codes)


@pytest.mark.parametrize("n", [0, 1, 3, 4, 33, 20000])
def test_payloads_are_sealed_as_on_the_cpu(n: int, device: torch.device) -> None:
    gpu, cpu = kernels.get("gpu"), kernels.get("cpu")
    data = torch.randint(0, 256, (32 + n,), dtype=torch.uint8, generator=torch.Generator().manual_seed(n))
    assert int(gpu.total(data.to(device), 5)) % 2**64 == cpu.total(data, 5)
    for flags in (0, 1):
        header = bytes([7] * 5 + [flags] + list(range(22)))
        here, there = data.clone(), data.to(device, copy=True)
        cpu.seal(here, header)
        gpu.seal(there, header)
        assert torch.equal(there.cpu(), here)
        assert gpu.sealed(there)
        there[31] ^= 1
        assert not gpu.sealed(there)


def test_ragged_blocks_are_looked_up_in_a_table_of_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = pytest.importorskip("thinwire.kernels.gpu.plan", reason="the GPU's kernels need Triton")
    blocks, cpu = Blocks(9, starts=torch.tensor([0, 4, 9])), torch.device("cpu")
    found = []
    for stream in ("first", "second", "first"):
        monkeypatch.setattr(plan, "_queue", lambda device, stream=stream: (device, stream))
        found.append(plan.table(blocks, cpu))
    assert found[0] is found[2]
    assert found[0] is not found[1]
