"""Compressors beside ATOMO on a recorded gradient: what they lose, send and cost.

    variance    E|decoded - g|^2 / |g|^2
    bias        the squared error of the mean of all draws, times their number, over the variance: 1 without bias

`SPECIAL`: one-level QSGD and ternary levels beside element-wise ATOMO with s = |g|_1/|g|_2 and |g|_1/|g|_max.
`RECORDED`: all at about 2 bits per element.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import fmean, median

import torch
from torch import Tensor

from thinwire.compressors.atomo import AtomoEntries, AtomoSpectral
from thinwire.compressors.qsgd import Qsgd
from thinwire.compressors.random_k import RandomK
from thinwire.compressors.terngrad import TernGrad
from thinwire.core.compressor import Compressor
from thinwire.core.types import Key, Layout
from thinwire.lab import gradient
from thinwire.lab.records import Row
from thinwire.lab.reproduce.one_model import LR, images
from thinwire.lab.reproduce.ring import gradients
from thinwire.lab.residual import Residual

SPECIAL, RECORDED = "special cases", "gradient, 2 bits"
DRAWS = 300
ATOMS, SHARE = 2.6, 0.052  # singular vectors per matrix, and the share of the elements: about 2 bits per element


def _budget(norm: Callable[[Tensor], Tensor]) -> AtomoEntries:
    """ATOMO with the budget s = |g|_1 / norm(g) of the recorded gradient, as a share."""
    g, _ = gradient.load()
    return AtomoEntries(float(g.double().abs().sum() / norm(g.double())) / g.numel())


COMPRESSORS: dict[str, dict[str, Callable[[], Compressor]]] = {
    SPECIAL: {
        "qsgd": lambda: Qsgd(levels=1, norm="l2", block=None),
        "elements, s of qsgd": lambda: _budget(Tensor.norm),
        "ternary": lambda: Qsgd(levels=1, norm="max", block=None),
        "elements, s of ternary": lambda: _budget(lambda g: g.abs().max()),
    },
    RECORDED: {
        "singular vectors": lambda: AtomoSpectral(ATOMS),
        "elements": lambda: AtomoEntries(SHARE),
        "elements, even": lambda: RandomK(ratio=SHARE),
        "qsgd": lambda: Qsgd(levels=1, norm="l2", block=512),
        "terngrad": lambda: TernGrad(clip=None),
    },
}


def measure(made: Compressor, seed: int, g: Tensor, layout: Layout) -> Row:
    """Variance, bias, bits per element and the median milliseconds of an encode."""
    lost, bits, times, total = [], [], [], torch.zeros(g.numel(), dtype=torch.float64)
    for step in range(DRAWS):
        key, begun = Key(seed, step), time.process_time()
        payload = made.encode(g, layout, key)
        times.append(1e3 * (time.process_time() - begun))
        bits.append(8 * payload.nbytes / g.numel())
        error = (made.decode(payload, layout, key=key) - g).double()
        lost.append(float(error.square().sum() / g.double().square().sum()))
        total += error
    mean = float((total / DRAWS).square().sum() / g.double().square().sum())
    variance = fmean(lost)
    bias = mean * DRAWS / variance if variance else None
    return {"variance": variance, "bits": fmean(bits), "encode_ms": median(times), "bias": bias}


def trained(seed: int) -> tuple[Tensor, Layout]:
    """A gradient of the net that is trained, of 64 images after 20 steps of SGD, and its layout."""
    data, net = images("digits", None), Residual()
    w = net.start(seed).unsqueeze(0)
    for step in range(21):
        some = slice(64 * step, 64 * step + 64)
        grads, _ = gradients(net, w, data.train_x[some].unsqueeze(0), data.train_y[some].unsqueeze(0))
        w = w - LR * grads
    return grads[0].contiguous(), net.layout


def even() -> float:
    """The variance of as many singular vectors with equal probabilities: sum of lambda^2 (r/s - 1), over |g|^2."""
    g, layout = gradient.load()
    lost = 0.0
    for t in AtomoSpectral(ATOMS).matrices(layout):
        part = g[t.start : t.stop].double()
        if not t.raw:
            lost += float(part.square().sum()) * (min(t.m, t.k) / ATOMS - 1)
    return lost / float(g.double().square().sum())
