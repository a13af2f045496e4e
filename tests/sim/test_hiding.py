"""Shares that hide: rates and latencies in words and in numbers, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import thinwire as tw
from thinwire.core.payload import HEADER
from thinwire.sim import Load
from thinwire.sync import Layer, hidden
from thinwire.sync.hiding import gather_seconds

LAYERS = [Layer("top", 100_000, 0.3), Layer("middle", 100_000, 0.1), Layer("bottom", 100_000, 0.0)]


@pytest.mark.parametrize(
    ("words", "numbers"), [(("80mbit", "1ms"), (8e7, 1e-3)), (("1gbit", "50us"), (np.float64(1e9), 50e-6))]
)
def test_words_and_numbers_say_the_same(words: tuple[str, str], numbers: tuple[float, float]) -> None:
    assert hidden(LAYERS, 4, *words) == hidden(LAYERS, 4, *numbers)
    assert hidden(LAYERS, 4, *words) != hidden(LAYERS, 4, numbers[0] / 8, numbers[1])


def test_a_rate_counts_bits() -> None:
    nbytes = HEADER.size + 4 * 1000 + 1000 * 20 / 8  # a place among a million has 20 bits
    assert math.isclose(gather_seconds(1000, 1_000_000, ranks=2, rate=8e6, latency=0.0), nbytes / 1e6)
    one = [Layer("w", 1_000_000, nbytes / 1e6), Layer("rest", 1, 0.0)]
    for rate in ("8mbit", 8e6, 8_000_000):
        assert hidden(one, ranks=2, rate=rate, cap=1e6)["w"] == 0.001


def test_nothing_hides_where_nothing_is_to_come() -> None:
    assert hidden([], 2, "1gbit") == {}
    assert hidden([Layer("none", 0, 1.0), Layer("some", 2000, 0.0)], 2, "1gbit") == {"some": 0.001}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"rate": "1gb"}, r'hidden\(rate=\'1gb\'\): write rate="1gbit", a number and kbit, mbit or gbit'),
        ({"rate": "125MB"}, 'write rate="1gbit"'),
        ({"rate": "1 gbit"}, 'write rate="1gbit"'),
        ({"rate": 0}, r'rate=0, .*rate="1gbit" or bits per second'),
        ({"rate": -1e9}, "or bits per second"),
        ({"rate": math.inf}, "or bits per second"),
        ({"rate": None}, "or bits per second"),
        ({"rate": True}, "or bits per second"),
        ({"latency": "1"}, r'latency=\'1\': .*latency="1ms"'),
        ({"latency": -1.0}, 'latency="1ms" or seconds'),
        ({"latency": math.nan}, 'latency="1ms" or seconds'),
        ({"ranks": 1}, "write ranks >= 2"),
        ({"ranks": 2.0}, "write ranks >= 2"),
        ({"ranks": "8"}, "write ranks >= 2"),
        ({"cap": 0.5}, "cap >= 1"),
        ({"layers": [Layer("w", -1, 0.1)]}, r'Layer\("fc.weight", 640, 0.1\)'),
        ({"layers": [Layer("w", 10, math.nan)]}, "write elements and seconds"),
        ({"layers": [Layer("w", 10, 0.1), Layer("w", 20, 0.1)]}, "two layers have the same name"),
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        hidden(**{"layers": LAYERS, "ranks": 4, "rate": "1gbit", **wrong})


@pytest.mark.parametrize(
    ("layers", "got"),
    [
        ("gpt2", "a str"),
        (Load.of("gpt2"), "a Load"),
        ({"w": 0.1}, "a dict"),
        ([("w", 10, 0.1)], "one with a tuple"),
        (Load.of("gpt2").tensors, "one with a Ready"),
    ],
)
def test_what_is_no_list_of_layers_is_refused(layers: Any, got: str) -> None:
    with pytest.raises(TypeError, match=rf"list of layers; got {got}: write hidden\(tw.sim.Load.measured"):
        hidden(layers, 4, "1gbit")


def test_shares_of_a_named_model_are_ratios_of_lags() -> None:
    layers = Load.of("gpt2", seconds=0.3).layers()
    ratios = hidden(layers, ranks=8, rate="1gbit", latency="50us")
    assert set(ratios) == {layer.name for layer in layers}
    assert all(0 < ratio <= 1 for ratio in ratios.values())
    assert len(set(ratios.values())) > 2
    assert tw.methods.lags(0.01, ratios) == tw.methods.lags(0.01, dict(reversed([*ratios.items()])))
