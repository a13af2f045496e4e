"""The list of configured instances that every test of the battery runs on. A new compressor joins by one line."""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.codecs import BitPack, EliasDense, EliasSparse, GolombRuns, Huffman, Rans
from thinwire.compressors import (
    AtomoEntries,
    AtomoFourier,
    AtomoSpectral,
    BlockTopK,
    Blockwise8,
    Cast,
    Centred,
    CentredK,
    CountSketch,
    DctTopK,
    DeadZone,
    DgcTopK,
    Drive,
    Eden,
    Identity,
    IntBlock,
    KLevel,
    LaqGrid,
    LowPrecision,
    LowRank,
    MiniFloat,
    Natural,
    NaturalDithering,
    OneBit,
    Qsgd,
    Quantile8,
    QuantisedTopK,
    RandomK,
    Refining,
    Rotated,
    SampledTopK,
    Sbc,
    ScaledSign,
    Shrunk,
    Sign,
    SparseLoco,
    SparsePrecision,
    Strom,
    TernGrad,
    TopK,
    Uniform8,
    Wangni,
)
from thinwire.core.coded import Coded
from thinwire.core.compressor import Compressor
from thinwire.core.per_tensor import PerTensor
from thinwire.core.types import Key, Layout

INSTANCES: list[Compressor] = [
    Identity(),
    PerTensor((Qsgd(bits=4), TopK(ratio=0.1, indices="packed")), (("fc", 1),)),
    Shrunk(),
    Shrunk(Qsgd(bits=1, norm="l2", block=64), w=4.0),
    Qsgd(bits=1),
    Qsgd(bits=1, norm="l2", block=64),
    Qsgd(bits=2),
    Qsgd(bits=3, block=100),
    Qsgd(bits=4),
    Qsgd(bits=5, block=1),
    Qsgd(bits=6, norm="l2", block=320),
    Qsgd(bits=7, block=None),
    Qsgd(bits=8),
    Qsgd(levels=4, norm="l2"),
    Qsgd(levels=1, norm="l2", block=128),
    Qsgd(bits=1, symmetric=False),
    Qsgd(bits=4, symmetric=False, block=200),
    Qsgd(bits=8, symmetric=False),
    TernGrad(),
    TernGrad(clip=None),
    OneBit(),
    Sign(),
    ScaledSign(),
    ScaledSign(block=96),
    Natural(),
    NaturalDithering(),
    NaturalDithering(levels=4, norm="max", block=1024),
    KLevel(),
    KLevel(k=2),
    KLevel(k=200, block=256),
    IntBlock(),
    IntBlock(bits=4, block=32),
    IntBlock(bits=3, block=64, rounding="stochastic"),
    IntBlock(bits=8, block=4096, rounding="stochastic"),
    LowPrecision(),
    LowPrecision(bits=4, step=0.25),
    Refining(),
    Refining(bits=3, kappa=0.5),
    LaqGrid(),
    LaqGrid(bits=3, block=128),
    Cast("fp16"),
    Cast("bf16"),
    MiniFloat("e4m3"),
    MiniFloat("e5m2", block=64),
    MiniFloat("e2m1", block=32),
    MiniFloat("e3m0", block=32),
    Coded(Qsgd(levels=4, norm="l2"), BitPack()),
    Coded(Qsgd(levels=4, norm="l2"), Rans()),
    Coded(Qsgd(bits=8, symmetric=False), Rans()),
    Coded(TernGrad(clip=None), Huffman()),
    Coded(Qsgd(levels=22, norm="l2"), EliasDense()),
    Coded(Qsgd(levels=1, norm="l2", block=128), EliasSparse("delta")),
    Coded(NaturalDithering(), GolombRuns()),
    DeadZone(),
    DeadZone(rate=0.5, block=256),
    DeadZone(rate=7.3, block=512),
    TopK(),
    TopK(k=40, values="bf16", indices="packed"),
    TopK(ratio=0.1, values="fp16"),
    QuantisedTopK(),
    QuantisedTopK(k=40, compressor=ScaledSign(), indices="packed"),
    SampledTopK(ratio=0.05),
    DgcTopK(ratio=0.02, warmup=100),
    BlockTopK(),
    BlockTopK(block=100, k=7, values="bf16"),
    RandomK(ratio=0.1),
    RandomK(ratio=0.1, scaled=False),
    Strom(),
    Sbc(),
    Wangni(ratio=0.1),
    Centred(ratio=0.1),
    CentredK(ratio=0.1),
    SparsePrecision(ratio=0.1),
    CountSketch(),
    Drive(),
    Drive(biased=True, block=512),
    Drive(rotations=1),
    Eden(),
    Eden(bits=0.5),
    Eden(bits=1.5, biased=True, rotations=1, block=1024),
    Eden(bits=2.5, block=512),
    Eden(bits=4),
    Rotated(),
    Rotated(KLevel(k=2, block=512), block=512),
    Rotated(Coded(KLevel(k=33, block=1024), Rans()), block=1024),
    LowRank(),
    AtomoEntries(budget=0.25),
    AtomoSpectral(),
    AtomoFourier(budget=0.25),
    Uniform8(),
    Quantile8(),
    Blockwise8(),
    Blockwise8(block=100),
    SparseLoco(),
    SparseLoco(block=100, k=7),
    DctTopK(),
    DctTopK(chunk=8, k=5),
]
KINDS = list({(type(c), type(getattr(c, "codec", None))): c for c in INSTANCES}.values())
"""One of every class, and one of every codec: for tests of what exchanges do with payloads."""
TIERS = [name for name in kernels.names() if name not in ("cpu", "gpu")]  # tests/kernels/gpu is for the last
NATIVE = [name for name in TIERS if name != "reference"]
SIZES = [0, 1, 2, 7, 8, 9, 63, 64, 65, 511, 512, 513, 1000, 4097]
LAYOUT = Layout(("conv", "bias", "empty", "fc"), ((8, 3, 3, 3), (8,), (0, 4), (10, 77)))  # 994 elements


def vector(n: int, kind: str = "gauss", seed: int = 0) -> Tensor:
    """A test vector of `n` elements."""
    generator = torch.Generator().manual_seed(seed)
    gauss = torch.randn(n, generator=generator)
    if kind == "gauss":
        return gauss
    if kind == "heavy":
        return gauss.sign() * torch.exp(3 * torch.randn(n, generator=generator))
    if kind == "one-hot":
        return torch.nn.functional.one_hot(torch.tensor(n // 2), n).float() * -3.0
    if kind == "constant":
        return torch.full((n,), 0.7)
    if kind == "denormal":
        return gauss * 1e-40
    assert kind == "zero"
    return torch.zeros(n)


def fixed_vector(n: int) -> Tensor:
    """Floats from integer arithmetic alone: no generator that another machine or release may round differently."""
    i = torch.arange(n)
    return ((i * 7919 + 104729) % 2003 - 1001).float() * 2.0 ** ((i % 11) - 16).float()


def coded_and_back(c: Compressor, x: Tensor, seed: int = 1, layout: Layout | None = None) -> Tensor:
    """decode(encode(x))."""
    return c.decode(c.encode(x, layout, Key(seed=seed)), layout or Layout.flat(x.numel()), key=Key(seed=seed))
