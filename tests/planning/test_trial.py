"""Real steps decide between methods whose forecasts lie close together, and leave the forecasts as they are."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import nn

import thinwire as tw
from thinwire.planning import planner, trial
from thinwire.planning.company import Company
from thinwire.planning.outlook import Outlook, Row, recommend
from thinwire.planning.stage import Stage

if TYPE_CHECKING:
    from thinwire.planning.computing import Step


def row(method: str, step: float, busy: float, tried: float | None = None) -> Row:
    return Row(method, step, step, step, "link", None, 100, 0, busy, busy, 1.0, tried)


def test_those_near_the_fastest_are_tried_the_fastest_first() -> None:
    forecasts = {"ddp": 1.31, "int8": 1.2, "qsgd": 1.0, "topk": 1.3, "bf16": 1.1, "signs": 1.25}
    assert trial.finalists(forecasts) == ["qsgd", "bf16", "int8", "signs"]
    assert trial.finalists(forecasts, 9) == ["qsgd", "bf16", "int8", "signs", "topk"]
    assert trial.finalists(forecasts, 0) == []


def test_real_steps_decide_and_forecasts_stay() -> None:
    rows = (row("qsgd", 50.0, 4.0), row("int8", 51.0, 2.0), row("ddp", 90.0, 1.0))
    assert recommend(rows)[0] == "int8"  # as good as equal, and it asks less of the processor
    found = Outlook(rows, *recommend(rows), 4, 1e9, 0.0, 10.0, 1000, {})
    assert "tried ms" not in str(found)
    told = found.after({"qsgd": 0.040, "int8": 0.060})
    assert told.recommended == "qsgd"
    assert "it takes 40.0 ms in real steps" in told.reason
    assert [one.step_ms for one in told.rows] == [50.0, 51.0, 90.0]
    assert [one.tried_ms for one in told.rows] == [40.0, 60.0, None]
    assert "tried ms" in str(told)
    light = found.after({"qsgd": 0.0600, "int8": 0.0605})
    assert light.recommended == "int8"
    assert "qsgd took 60.0 ms, but asks more of the processor" in light.reason
    plain = replace(found, rows=(*rows[:2], row("ddp", 52.0, 1.0))).after({"qsgd": 0.05, "ddp": 0.0501})
    assert plain.recommended == "ddp"
    assert "no method is more than 2% faster" in plain.reason


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, 160))


class Stands:
    """A stage whose steps take as long as they are said to; it counts them."""

    company = Company()

    def __init__(self, each: float) -> None:
        self.each, self.steps = each, 0

    def seconds(self, step: Step, times: int = 1) -> float:
        for _ in range(times):
            step()
        return self.each

    def step(self) -> None:
        self.steps += 1


def refused() -> AbstractContextManager[Step]:
    raise ValueError("write AdamW")


def test_who_is_refused_or_warms_up_for_too_long_keeps_its_forecast() -> None:
    heard: list[str] = []
    quick, long = Stands(0.1), Stands(6.0)
    assert trial._turn(trial.Entry("adam", refused), quick, heard.append) == []  # type: ignore[arg-type]
    assert heard == ["adam takes no steps here: write AdamW"]
    entry = trial.Entry("quick", lambda: nullcontext(quick.step), block=2)
    assert trial._turn(entry, quick, heard.append) == [0.1] * 10  # type: ignore[arg-type]
    assert quick.steps == trial.WARM + 2 + 2 * 10
    entry = trial.Entry("long", lambda: nullcontext(long.step))
    assert trial._turn(entry, long, heard.append) == []  # type: ignore[arg-type]
    assert long.steps == 1


def test_those_that_are_still_close_have_as_many_turns_again(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"qsgd": 1.0, "int8": 1.09, "ddp": 1.2, "bf16": 1.12}
    heard: list[str] = []
    monkeypatch.setattr(trial.Entry, "of", lambda name, stage, methods: name)
    monkeypatch.setattr(trial, "_turn", lambda name, stage, say: [times[name]])
    told = trial.trial(list(times), Stands(0.0), {}, heard.append)  # type: ignore[arg-type]
    assert told == times
    assert heard == [f"steps of {name}" for name in [*times] * trial.TURNS + ["qsgd", "int8"] * trial.TURNS]
    heard.clear()
    trial.trial(["qsgd", "ddp"], Stands(0.0), {}, heard.append)  # type: ignore[arg-type]
    assert len(heard) == 2 * trial.TURNS  # one of them is fastest


def test_what_disturbs_the_second_heat_helps_nobody_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"qsgd": 1.0, "int8": 1.05, "ddp": 1.12}
    turns = iter(range(1, 100))
    monkeypatch.setattr(trial.Entry, "of", lambda name, stage, methods: name)
    monkeypatch.setattr(trial, "_turn", lambda name, stage, say: [times[name] * (1 if next(turns) <= 9 else 1.5)])
    told = trial.trial(list(times), Stands(0.0), {}, lambda text: None)  # type: ignore[arg-type]
    assert min(told, key=lambda name: told[name]) == "qsgd"
    assert told["ddp"] / told["qsgd"] == pytest.approx(1.12)


def test_samples_are_as_long_as_an_exchange_takes_to_come_around() -> None:
    methods = {one.id: one for one in (tw.methods.local_sgd(every=8), tw.methods.pipe_sgd())}
    stage = Stage(net(), planner.steps_of(torch.ones(4, 160), None, None), Company())
    local, late = (trial.Entry.of(name, stage, methods) for name in methods)
    assert (local.block, local.warm) == (8, 8)
    assert (late.block, late.warm) == (trial.IN_A_ROW, trial.WARM)


def tried() -> dict[str, Any]:
    model = net()
    before = {name: p.clone() for name, p in model.named_parameters()}
    stage = Stage(model, planner.steps_of(torch.ones(4, 160), None, None), Company.of_group())
    methods = {one.id: one for one in (tw.methods.qsgd(bits=4), tw.methods.local_sgd(every=2))}
    heard: list[str] = []
    names = ["qsgd", "local-sgd:every=2", "ddp", "ddp powersgd-4"]
    mine = names if dist.get_rank() == 0 else ["ddp"]  # rank 0 says with whom
    times = trial.trial(mine, stage, methods, heard.append)
    same = all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    return {"times": times, "same": same, "heard": heard, "one": trial.trial(["ddp"], stage, methods, heard.append)}


def test_ranks_take_the_steps_together_and_leave_the_model_as_it_is() -> None:
    first, second = on_ranks(tried, 2)
    assert first["times"] == second["times"]  # the slowest rank counts on both
    assert set(first["times"]) == {"qsgd", "local-sgd:every=2", "ddp", "ddp powersgd-4"}
    assert min(first["times"].values()) > 0
    assert first["same"]
    assert second["same"]
    assert first["heard"][:2] == ["steps of qsgd", "steps of local-sgd:every=2"]
    assert first["one"] == {}  # of one there is nothing to choose
