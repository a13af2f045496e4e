"""Whether the machine was idle while it was measured: heats that disagree, and processors that others took."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from thinwire.engine.plan import Item
from thinwire.planning import idle
from thinwire.planning.company import Company
from thinwire.planning.computing import Computing
from thinwire.planning.idle import Heats, Load, Meter, heats
from thinwire.planning.link import Link, Sockets
from thinwire.planning.outlook import Setting
from thinwire.planning.planner import outlook_of
from thinwire.planning.profile import Profile

ITEMS = (Item("weight", (256, 256), torch.device("cpu")),)


def computing(seconds: float) -> Computing:
    return Computing(ITEMS, (0.0,), 0.0, (seconds,))


def found(
    monkeypatch: pytest.MonkeyPatch, steps: list[float], others: list[float], *, own: float = 1.0, cores: int = 2
) -> tuple[Heats, int]:
    """What is made of heats in which a step computed so long, and others kept so many processors busy."""
    monkeypatch.setattr(idle, "PAUSES", (0.0,) * 4)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    loads = iter(others)
    monkeypatch.setattr(Meter, "read", lambda meter: Load(own, next(loads)))
    times = iter(steps)
    result = heats(lambda: computing(next(times)), Company())
    return result, len(result.steps)


def test_two_quiet_heats_that_agree_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    result, count = found(monkeypatch, [0.011, 0.010], [0.0, 0.1])
    assert (count, result.steady, result.computing.step) == (2, True, 0.010)


def test_a_heat_that_was_disturbed_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    result, count = found(monkeypatch, [0.43, 0.010, 0.010], [1.3, 0.0, 0.0])
    assert (count, result.steady, result.computing.step) == (3, True, 0.010)


def test_others_on_free_processors_disturb_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    result, count = found(monkeypatch, [0.010, 0.010], [3.0, 3.0], own=4.0, cores=16)
    assert (count, result.steady) == (2, True)


@pytest.mark.parametrize(
    ("steps", "others"),
    [
        ([0.43, 0.44, 0.42, 0.43, 0.44], [1.6] * 5),  # evenly slow, with a spread of 5%: only the kernel tells
        ([0.01, 0.4, 0.2, 0.1, 0.8], [0.0] * 5),  # the kernel says nothing, and no two heats agree
    ],
)
def test_a_machine_that_stays_busy_is_not_trusted(
    steps: list[float], others: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    result, count = found(monkeypatch, steps, others)
    assert (count, result.steady, result.computing.step) == (5, False, min(steps))


def test_the_outlook_says_what_others_did_and_what_that_leaves_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 10 ms of computing the link is worth sparing, at 10 s it is not."""
    made, _ = found(monkeypatch, [10.0, 0.01, 1.0, 3.0, 5.0], [1.6] * 5)
    monkeypatch.setattr(Meter, "read", lambda meter: Load(1.0, 1.4))
    company = Company()
    profile = Profile(
        made.computing, {"weight": torch.zeros(256, 256)}, {"ddp": 0.0}, Sockets(), heats=made, meter=Meter(company)
    )
    setting = Setting(4, Link(1e7, goodput=1.0), made.computing, profile.sockets)
    heard: list[str] = []
    profile.say = heard.append
    monkeypatch.setattr(Profile, "contestant", lambda profile, method, ranks: profile.rivals()[0])
    outlook = outlook_of(profile, setting, [])
    assert "kept 1.6 of the processors busy" in outlook.disturbed
    assert "10.0 to 10,000.0 ms: which is right cannot be known here. Either way ddp is recommended." in str(outlook)
    calm = replace(profile, heats=made._replace(steady=True), meter=None)
    assert not outlook_of(calm, setting, []).disturbed


def test_the_meter_counts_what_this_process_does_as_its_own() -> None:
    meter = Meter(Company())
    matrix = torch.ones(256, 256)
    for _ in range(300):
        matrix = matrix @ matrix / 256
    load = meter.read()
    assert load.own > 0.2
    assert load.others < 64
