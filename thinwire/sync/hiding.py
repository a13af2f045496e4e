"""Hiding: how much of each layer can be sent while the layers below it still compute (LAGS-SGD).

Layer l's gradient is ready when A_l seconds of backward are still to come, and the next one's when A_l+1 are. An
all-gather of k values and places among n ranks, over links of `rate` bits per second and `latency` seconds, takes
T_l(k) = (n - 1) (latency + bits_l(k) / rate). The link carries one layer after another: it is free for l when F_l
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
from itertools import pairwise
from typing import NamedTuple

from thinwire.core.given import is_number, is_whole
from thinwire.core.payload import HEADER
from thinwire.core.rates import bits_per_second, seconds

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
    return (ranks - 1) * (latency + 8 * nbytes / rate)


def hidden(
    layers: Sequence[Layer], ranks: int, rate: str | float, latency: str | float = 0.0, cap: float = 1000.0
) -> Mapping[str, float]:
    """The share of each layer, k_l / d_l, by its name, for `methods.lags(ratios=...)`.

        layers     what backward has still to do after each of them, from `layers()` of a `tw.sim.Load`, which is
                   measured (`Load.measured`) or of a named model (`Load.of`); the same on all ranks
        ranks      how many ranks gather
        rate       of the link of each: "1gbit", or bits per second
        latency    one way: "1ms", or seconds
        cap        every layer sends at least one of so many elements

    >>> hidden([Layer("head", 1000, 1.0), Layer("stem", 1000, 0.0)], ranks=2, rate="100kbit")
    {'head': 1.0, 'stem': 0.001}
    """
    _check_layers(layers)
    bits, wait = _bits(rate), seconds(latency, write='latency="1ms"') if isinstance(latency, str) else latency
    if not (is_whole(ranks, 2) and is_number(bits) and bits > 0 and is_number(wait) and is_number(cap, 1)):
        raise ValueError(
            f"hidden(ranks={ranks!r}, rate={rate!r}, latency={latency!r}, cap={cap!r}): write ranks >= 2, "
            'rate="1gbit" or bits per second, latency="1ms" or seconds, and cap >= 1'
        )
    found: dict[str, float] = {}
    order = sorted((layer for layer in layers if layer.numel), key=lambda layer: -layer.after)
    free = math.inf  # seconds still to come when the link is free
    end = Layer("", 0, 0.0)  # of backward
    for layer, then in pairwise([*order, end]):
        start = min(layer.after, free)
        k = _most(layer, start - then.after, ranks, bits, wait, cap)
        free = start - gather_seconds(k, layer.numel, ranks, bits, wait)
        found[layer.name] = k / layer.numel
    return found


def _check_layers(layers: Sequence[Layer]) -> None:
    if not isinstance(layers, Sequence) or not all(isinstance(layer, Layer) for layer in layers):
        raise TypeError(
            f"hidden takes a list of layers; got {_kind(layers)}: "
            'write hidden(tw.sim.Load.measured(model, loss).layers(), ranks=8, rate="1gbit")'
        )
    for layer in layers:
        if not (is_whole(layer.numel) and is_number(layer.after)):
            raise ValueError(f'{layer}: write elements and seconds, Layer("fc.weight", 640, 0.1)')
    if len({layer.name for layer in layers}) < len(layers):
        raise ValueError("two layers have the same name; write Layer(name, ...) with the names of the parameters")


def _kind(layers: object) -> str:
    """What somebody gave, or the first of it that is no layer."""
    if isinstance(layers, str) or not isinstance(layers, Sequence):
        return f"a {type(layers).__name__}"
    odd = next(layer for layer in layers if not isinstance(layer, Layer))
    return f"one with a {type(odd).__name__}"


def _bits(rate: str | float) -> float:
    """Bits per second."""
    try:
        return bits_per_second(rate) if isinstance(rate, str) else rate
    except ValueError:
        raise ValueError(
            f'hidden(rate={rate!r}): write rate="1gbit", a number and kbit, mbit or gbit, from 100kbit up; '
            "or bits per second"
        ) from None


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
