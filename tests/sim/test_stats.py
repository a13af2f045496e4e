"""Figures per optimizer step against DDP: on the clock, where seconds are exact, and by marks alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire.engine.stats import Course, Mark
from thinwire.integrations import loggers
from thinwire.sim import Problem, simulate

SECONDS, N = 0.3, 4
LINK = tw.Network("100mbit", "1ms")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(120, 100), nn.Tanh(), nn.Linear(100, 120))


ELEMENTS = 24_220
RING = 2 * (N - 1) * (1e-3 + 4 * ELEMENTS / N / 12.5e6)  # seconds of an all-reduce; an agreement takes fewer


def loss(model: nn.Module, rank: int, step: int) -> Tensor:
    x = torch.randn(8, 120, generator=torch.Generator().manual_seed(1000 * rank + step))
    out: Tensor = (model(x) - x).square().mean()
    return out


def stats(method: str, steps: int) -> dict[str, float]:
    """Those of rank 0, whose time is either computing or waiting."""
    done = simulate(tw.method(method), Problem(net, loss, seconds=SECONDS), N, steps=steps, network=LINK)
    found, ended = done.stats[0], max(moment.seconds for moment in done.moments if moment.rank == 0)
    assert found["step_wait_s"] * steps == pytest.approx(ended - steps * SECONDS, abs=1e-9)
    return found


def test_plain_sums_are_ddp() -> None:
    found = stats("sgd", 5)
    assert (found["steps"], found["last_steps"]) == (5, 5)
    assert found["ddp_bytes"] == 5 * 2 * 3 / 4 * 4 * ELEMENTS
    for kind in ("", "last_"):
        assert found[f"{kind}ratio"] == pytest.approx(1, rel=1e-3)
        assert found[f"{kind}step_bytes"] == pytest.approx(1.5 * 4 * ELEMENTS, rel=1e-3)
        assert SECONDS + RING < found[f"{kind}step_s"] < SECONDS + 2 * RING
        assert found[f"{kind}step_wait_s"] == pytest.approx(found[f"{kind}step_s"] - SECONDS, abs=1e-9)
        assert found[f"{kind}hidden"] < 0.1  # there is one bucket, and it is full when backward ends
    assert found["bits_per_element"] == pytest.approx(8 * found["bytes_sent"] / 5 / ELEMENTS)


def test_local_steps_are_compared_with_a_reduction_in_every_step() -> None:
    for steps, counted in ((7, 5), (10, 10), (13, 10)):  # of a round that has begun nothing is known yet
        found = stats("local-sgd:every=5", steps)
        assert found["ratio"] == pytest.approx(5, rel=1e-2)
        assert found["last_ratio"] == pytest.approx(5, rel=1e-2)
        assert found["step_bytes"] == pytest.approx(found["bytes_sent"] / counted)
        assert found["bits_per_element"] == pytest.approx(8 * found["bytes_sent"] / counted / ELEMENTS)
    assert stats("local-sgd:every=5", 3)["ratio"] == 1  # nothing has been sent
    assert stats("int4", 4)["ratio"] == pytest.approx(32 / 4.3, rel=0.1)


def test_what_a_late_result_hides() -> None:
    late = stats("pipe-sgd", 6)
    assert late["hidden"] > 0.9
    assert late["step_s"] == pytest.approx(SECONDS, rel=0.01)
    assert stats("ad-psgd", 6)["hidden"] == 1


def test_the_last_steps_are_whole_rounds() -> None:
    """A run whose steps become slower, with a round of 60 steps that sends 600 bytes."""
    course = Course()
    for step in range(1, 301):
        seconds = step if step <= 100 else 100 + 2 * (step - 100)
        course.step(Mark(step, 50 + seconds, 10 * step, step // 60 * 600, step / 4, step / 2), 60)
    found = course.report(6.0, 3000, 0)
    assert found["last_steps"] == 120
    assert (found["ratio"], found["last_ratio"], found["step_bytes"]) == (6, 6, 10)
    assert found["step_s"] == pytest.approx(499 / 299)
    assert found["last_step_s"] == 2
    assert (found["step_wait_s"], found["last_step_wait_s"], found["hidden"]) == (0.25, 0.25, 0.5)
    course.step(Mark(301, 600, 3010, 3000, 75, 150), 10_000_000)
    assert course.recent.maxlen == 10_001


def test_loggers_are_given_what_matters_for_the_method() -> None:
    always = {"bytes_sent", "ratio", "last_step_s", "last_step_wait_s", "last_hidden"}
    for method, more in (
        ("sgd", set()),
        ("int4", {"nmse"}),
        ("local-sgd:every=2", {"outer_rounds"}),
        ("d-psgd", {"consensus_distance"}),
        ("lag", {"uploads"}),
    ):
        found = stats(method, 50 if method == "d-psgd" else 2)

        class Wire:
            def stats(self, found: dict[str, float] = found) -> dict[str, float]:
                return found

        assert {*loggers.figures(Wire())} == {f"thinwire/{name}" for name in always | more}, method
    assert loggers.figures(None) == {}


@pytest.mark.parametrize(
    "method", ["int4", "local-sgd:every=2", "adaptive", "cr-psgd", "ad-psgd", "asgd:servers=1", "dbpg", "asylpg"]
)
def test_every_figure_is_in_the_table_of_the_docs(method: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    table = page[page.index("## What it costs") : page.index("## How much sooner")]
    known = {*re.findall(r"`(\w+)`", table), *(f"staleness_{age}" for age in range(20))}
    done = simulate(tw.method(method), Problem(net, loss, seconds=SECONDS), N, steps=2, network=LINK)
    assert {name for found in done.stats for name in found} <= known
