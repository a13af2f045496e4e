"""Real steps of a method or two say what the engine takes, unless the link is their bottleneck."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from slow_device import Slow
from torch import nn

import thinwire as tw
from thinwire.engine.plan import Item
from thinwire.planning import gauge, planner
from thinwire.planning.alone import ENGINE
from thinwire.planning.company import Company
from thinwire.planning.computing import Computing, Step
from thinwire.planning.device import Host
from thinwire.planning.link import Link, Sockets
from thinwire.planning.outlook import Setting
from thinwire.planning.profile import Profile
from thinwire.planning.stage import Stage

ITEM = Item("weight", (128, 128), torch.device("cpu"))
COMPUTING = Computing((ITEM,), (0.01,), 0.01, (0.02,))
ALONE, REAL = 0.001, 0.5


class Stands:
    """A stage whose steps take as long as they are said to."""

    company = Company()

    def attached(self, method: tw.Method) -> AbstractContextManager[Step]:
        assert method.id in Host.gauges
        return nullcontext(lambda: None)

    def seconds(self, step: Step) -> float:
        step()
        return REAL


def profile() -> Profile:
    grads = {"weight": torch.randn(ITEM.numel, generator=torch.Generator().manual_seed(0))}
    return Profile(COMPUTING, grads, {ENGINE: ALONE}, Sockets(), stage=Stands())  # type: ignore[arg-type]


def test_what_steps_take_longer_is_the_engines_in_every_method() -> None:
    one, there = profile(), Setting(2, Link(1e10, goodput=1.0), COMPUTING, Sockets())
    one.gauge(there)
    assert REAL - 0.1 < one.spent[ENGINE] < REAL - COMPUTING.step
    assert one.contestant(tw.method("ef-signsgd"), 2).overhead == one.spent[ENGINE]
    founds = [there.seconds(one.contestant(tw.method(name), 2)) for name in Host.gauges]
    assert max(founds) <= REAL * (1 + 1e-6)  # of two findings the smaller counts
    assert max(founds) == pytest.approx(REAL, rel=0.02)


def test_steps_on_a_gpu_say_how_much_of_it_lanes_need(monkeypatch: pytest.MonkeyPatch) -> None:
    items = tuple(Item(name, (2048, 2048), torch.device("cpu")) for name in ("first", "second"))  # of a bucket each
    computing = Computing(items, (1e-4, 1e-4), 1e-4, (2e-4,))
    grads = {item.name: torch.ones(item.numel) for item in items}
    there = Setting(2, Link(1e12, goodput=1.0), computing, Sockets())
    one = Profile(computing, grads, {ENGINE: ALONE}, Sockets(), device=Slow(), stage=Stands())  # type: ignore[arg-type]
    longest = there.seconds(replace(one.contestant(tw.method(Slow.gauges[0]), 2), overhead=0.0))
    monkeypatch.setattr(gauge, "seconds", lambda stage, method: [0.8 * longest])
    one.gauge(there)
    assert one.spent[ENGINE] == 0.0
    assert 0.5 < one.busy < 1.0  # two lanes that need half of it do not disturb each other
    assert there.seconds(one.contestant(tw.method(Slow.gauges[0]), 2)) == pytest.approx(0.8 * longest, rel=1e-3)
    monkeypatch.setattr(gauge, "seconds", lambda stage, method: [1e-3 * longest])
    again = Profile(computing, grads, {ENGINE: ALONE}, Sockets(), device=Slow(), stage=Stands())  # type: ignore[arg-type]
    again.gauge(there)
    lanes = tw.method(Slow.gauges[0]).lanes("cpu")
    assert again.busy == pytest.approx(1 / lanes, rel=1e-3)  # no piece needs less than when all lanes are busy


def test_steps_that_wait_for_the_link_say_nothing_about_the_engine() -> None:
    one = profile()
    one.gauge(Setting(2, Link(1e4, goodput=1.0), COMPUTING, Sockets()))
    assert one.spent[ENGINE] == ALONE


def test_a_rank_by_itself_takes_no_such_steps() -> None:
    made = planner.plan(nn.Linear(8, 8), torch.ones(1, 8), hosts=2, link="1gbit", methods=["bf16"])
    assert made.row("bf16").method == "bf16"


def test_steps_are_taken_before_and_after_codecs_are_timed_and_all_of_them_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    visits = iter([REAL, REAL, 3 * REAL, 3 * REAL])  # of two gauges each
    monkeypatch.setattr(gauge, "seconds", lambda stage, method: [next(visits)])
    one, there = profile(), Setting(2, Link(1e10, goodput=1.0), COMPUTING, Sockets())
    (made,) = one.contestants([tw.method("ef-signsgd")], 2, lambda: one.gauge(there))
    assert list(visits) == []
    assert made.overhead == one.spent[ENGINE]
    founds = [there.seconds(one.contestant(tw.method(name), 2)) for name in Host.gauges]
    assert max(founds) == pytest.approx(2 * REAL, rel=0.02)


def steps() -> dict[str, Any]:
    torch.manual_seed(0)
    net = nn.Linear(160, 160)
    before = {name: p.clone() for name, p in net.named_parameters()}
    makes = planner.steps_of(torch.ones(4, 160), None, None)
    taken = gauge.seconds(Stage(net, makes, Company.of_group()), tw.method("qsgd:bits=1"))
    same = all(torch.equal(p, before[name]) for name, p in net.named_parameters())
    return {"seconds": taken, "same": same, "ranks": dist.get_world_size()}


def test_ranks_take_steps_together_and_leave_the_model_as_it_is() -> None:
    found = on_ranks(steps, 2)
    assert [one["same"] for one in found] == [True, True]
    assert found[0]["seconds"] == found[1]["seconds"]  # the slowest rank counts on both
    assert min(found[0]["seconds"]) > 0
