"""Whatever is written for an argument that it does not take is answered with the line to write."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire.sim import Constant, Costs, Load, LogNormal, Pass, Problem, ShiftedExponential, Transient, Weight
from thinwire.sim import binds as binds_
from thinwire.sim import foresee as foresee_

WRONG: list[Any] = [-1, math.nan, -math.inf, True, "x", "", 10**400, (1,), [], object(), 1 + 2j]
SGD = tw.methods.sgd()
LOAD = Load.of([Weight("w", (64, 64), 1.0)], 0.1)
PROBLEM = Problem(lambda: nn.Linear(4, 4), lambda net, rank, step: net(torch.ones(2, 4)).sum())


def foresee(**arguments: Any) -> object:
    return foresee_(SGD, LOAD, **{"workers": 2, "steps": 1, **arguments})


def simulate(**arguments: Any) -> object:
    return tw.simulate(SGD, PROBLEM, **{"workers": 2, "steps": 1, **arguments})


def binds(**arguments: Any) -> object:
    return binds_(SGD, LOAD, **{"workers": 2, "steps": 1, **arguments})


def problem(**arguments: Any) -> object:
    return Problem(**{"model": PROBLEM.model, "loss": PROBLEM.loss, **arguments})


CALLS: list[tuple[Callable[..., object], str]] = [
    *((tw.Network, name) for name in ("rate", "latency", "slow", "ranks_per_host", "racks", "oversubscription")),
    *((Costs, name) for name in ("usual", "coders", "at_once", "bits")),
    (Constant, "factors"),
    (ShiftedExponential, "scale"),
    (LogNormal, "sigma"),
    *(
        (lambda **one: Transient(**{"probability": 0.1, "times": 2.0, **one}), name)
        for name in ("probability", "times")
    ),
    *((problem, name) for name in ("model", "loss", "optimizer", "test", "batch", "seconds")),
    *(
        (lambda **one: Load(**{"tensors": LOAD.tensors, "computed": 1.0, **one}), name)
        for name in ("tensors", "computed")
    ),
    (lambda **one: Load(LOAD.tensors, 1.0, **one), "update"),
    (lambda **one: Load.of("resnet50", **one), "seconds"),
    (lambda **one: Load.of("resnet50", **one), "device"),
    (lambda shape: Load.of([Weight("w", shape, 1.0)]), "shape"),
    (lambda flops: Load.of([Weight("w", (2, 2), flops)]), "flops"),
    *((foresee, name) for name in ("workers", "steps", "network", "costs", "plan", "min_size", "stragglers", "seed")),
    *((foresee, name) for name in ("failures", "into_forward")),
    *((simulate, name) for name in ("workers", "steps", "network", "stragglers", "failures", "seed", "min_size")),
    *((simulate, name) for name in ("watch", "until")),
    *((binds, name) for name in ("workers", "steps", "network", "costs")),
    (lambda q: foresee_(SGD, LOAD, 2, steps=1).quantile(q), "q"),
]
TAKEN = {("shape", (1,)), ("slow", ()), ("seed", 10**400), ("batch", 10**400)}
TAKEN |= {(name, 10**400) for name in ("racks", "ranks_per_host", "at_once", "min_size")}


@pytest.mark.parametrize(("call", "name"), CALLS, ids=[f"{number}-{name}" for number, (_, name) in enumerate(CALLS)])
def test_wrong_values_are_answered_with_the_line_to_write(call: Callable[..., object], name: str) -> None:
    for value in WRONG:
        if isinstance(value, int | tuple) and (name, value) in TAKEN:
            continue
        if name in ("workers", "steps") and value == 10**400:
            continue  # so many there may be; nobody waits for them
        with pytest.raises((ValueError, TypeError), match=r"write|computed, in seconds"):
            call(**{name: value})


@pytest.mark.parametrize("value", WRONG)
def test_values_inside_of_what_is_given(value: Any) -> None:
    with pytest.raises(ValueError, match=r'write rate="1gbit"|kbit'):
        tw.Network(slow={0: value})
    with pytest.raises(ValueError, match="write Pass"):
        Costs(Pass(encode=value))
    with pytest.raises(ValueError, match="bits per element"):
        Costs(bits={"qsgd": value})
    with pytest.raises(ValueError, match=r"write Constant\(\{3: 2\.0\}\)"):
        Constant({0: value})
    with pytest.raises(TypeError, match="to die after two seconds"):
        foresee(failures={1: value})
    if value.__hash__ is not None and value != 10**400:
        with pytest.raises(ValueError, match=r"slow=\{3"):
            tw.Network(slow={value: "1mbit"})
        with pytest.raises(ValueError, match=r"write Constant\(\{3: 2\.0\}\)"):
            Constant({value: 2.0})
        with pytest.raises(TypeError, match="to die after two seconds"):
            simulate(failures={value: 2.0})


def test_a_trace_makes_its_folder(tmp_path: Path) -> None:
    foresee_(SGD, LOAD, 2, steps=1, marks=True).trace(tmp_path / "new" / "trace.json")
    assert (tmp_path / "new" / "trace.json").exists()


def test_a_death_after_the_end_is_not_waited_for() -> None:
    alive = tw.simulate(SGD, PROBLEM, 2, steps=2)
    assert tw.simulate(SGD, PROBLEM, 2, steps=2, failures={1: 60.0}).seconds == alive.seconds < 1
