"""Hiding: how much of each layer can be sent while the layers below it still compute (LAGS-SGD).

Layer l's gradient is ready when A_l seconds of backward are still to come, and the next one's when A_l+1 are. An
all-gather of k values and places among n ranks, over links of `rate` bytes per second and `latency` seconds, takes
T_l(k) = (n - 1) (latency + bytes_l(k) / rate). The link carries one layer after another: it is free for l when F_l
seconds are still to come, and

    k_l = the largest k with  T_l(k) <= min(A_l, F_l) - A_l+1,    d_l / cap <= k_l <= d_l
    F_l+1 = min(A_l, F_l) - T_l(k_l)

Nothing hides the last layer, nor one whose time is shorter than the latencies: those get d_l / cap.

Reference: Shi, Tang, Wang, Zhao, Chu, "Layer-wise adaptive gradient sparsification for distributed deep learning with
convergence guarantees", ECAI 2020, arXiv 1911.08727, section 5.

Departs from the paper: what a layer with too little time sends late is taken from the time of those after it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from thinwire.core.payload import HEADER

VALUE = 4  # bytes of a value


class Layer(NamedTuple):
    """A layer of so many elements, and the seconds of backward that are still to come when its gradient is ready."""

    name: str
    numel: int
    after: float


def place_bits(numel: int) -> int:
    """Bits of a field that holds a place in so many elements."""
    return max(1, (numel - 1).bit_length())


def gather_seconds(k: int, numel: int, ranks: int, rate: float, latency: float) -> float:
    """How long it takes to gather k values, and their places in `numel` elements, from all ranks."""
    nbytes = HEADER.size + VALUE * k + math.ceil(k * place_bits(numel) / 8)
    return (ranks - 1) * (latency + nbytes / rate)


def hidden(
    layers: Sequence[Layer], ranks: int, rate: float, latency: float = 0.0, cap: float = 1000.0
) -> Mapping[str, float]:
    """The share of each layer, k_l / d_l, by its name, for `methods.lags(ratios=...)`; `rate` in bytes per second.

    >>> hidden([Layer("head", 1000, 1.0), Layer("stem", 1000, 0.0)], ranks=2, rate=1e4)
    {'head': 1.0, 'stem': 0.001}
    """
    if ranks < 2 or rate <= 0 or latency < 0 or cap < 1:
        raise ValueError(
            f"hidden(ranks={ranks}, rate={rate}, latency={latency}, cap={cap}): write ranks >= 2, rate > 0 in bytes "
            "per second, latency >= 0 and cap >= 1"
        )
    found: dict[str, float] = {}
    order = sorted((layer for layer in layers if layer.numel), key=lambda layer: -layer.after)
    free = math.inf  # seconds still to come when the link is free
    for layer, then in zip(order, [*(one.after for one in order[1:]), 0.0], strict=True):
        start = min(layer.after, free)
        k = _most(layer, start - then, ranks, rate, latency, cap)
        free = start - gather_seconds(k, layer.numel, ranks, rate, latency)
        found[layer.name] = k / layer.numel
    return found


def _most(layer: Layer, within: float, ranks: int, rate: float, latency: float, cap: float) -> int:
    """The largest k that takes no longer, by halving: the time grows with k."""
    low, high = max(1, math.ceil(layer.numel / cap)), layer.numel
    while low < high:
        middle = (low + high + 1) // 2
        if gather_seconds(middle, layer.numel, ranks, rate, latency) <= within:
            low = middle
        else:
            high = middle - 1
    return low
