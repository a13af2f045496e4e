"""The race: tables and files from rows, and step sizes that are those of the recorded grid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thinwire.core.method import METHODS
from thinwire.lab import race_table, records
from thinwire.lab.race import NAMES, OUTER, Track, contestants, lost, runs
from thinwire.lab.race_courses import COURSES
from thinwire.lab.race_steps import GRID, SEED, STEPS, best, step_of
from thinwire.lab.records import Row

GRID_ROWS = Path(__file__).parents[2] / "benchmarks" / "data" / "race-steps.csv"


def row(method: str, seed: int, seconds: float, **other: Any) -> Row:
    facts: Row = {"task": "digits", "method": method, "seed": seed, "hosts": 4, "rate": "100mbit", "lr": 0.1}
    facts |= {"reached": True, "steps": 50, "seconds": seconds, "bytes_sent": 10**6, "accuracy": 0.97}
    return {**facts, **other}


def test_speed_ups_are_of_each_seed() -> None:
    rows = [row("ddp", 0, 100.0), row("ddp", 1, 60.0), row("ddp powersgd-4", 0, 12.0), row("ddp powersgd-4", 1, 12.0)]
    rows += [row("qsgd", 1, 6.0), row("qsgd", 0, 5.0)]
    lines = {line["method"]: line for line in race_table.summary(rows)}
    assert list(lines) == ["ddp", "ddp powersgd-4", "qsgd"]
    qsgd = lines["qsgd"]
    assert (qsgd["over_ddp"], qsgd["over_ddp_lowest"], qsgd["over_ddp_highest"]) == (15.0, 10.0, 20.0)
    assert qsgd["over_powersgd"] == pytest.approx((12 / 5 + 12 / 6) / 2)
    assert (qsgd["seconds"], qsgd["lowest"], qsgd["highest"], qsgd["reached"]) == (5.5, 5.0, 6.0, "2 of 2")
    said = race_table.verdict(list(lines.values()))
    assert "qsgd, 15.00 times (10.00 to 20.00) DDP in float32, 2.20 times (2.00 to 2.40)" in said


def test_no_speed_up_without_arrival() -> None:
    rows = [row("ddp", 0, 100.0), row("ddp", 1, 60.0), row("qsgd", 0, 5.0), row("qsgd", 1, 9.0, reached=False)]
    line = race_table.summary(rows)[1]
    assert (line["over_ddp"], line["reached"]) == (None, "1 of 2")
    assert race_table.summary(rows[:3])[1]["over_ddp"] == 20.0
    assert race_table.verdict(race_table.summary(rows[1:])) == ""


def test_track() -> None:
    track = Track()
    for number, right in enumerate((0.9, 0.95, 1.0, 1.0)):
        track.mark(5, 0.5, 100.0, 1.0 / (number + 1), right)
        assert track.smooth == pytest.approx((0.0, 0.0, 0.95, 0.98333)[number], abs=1e-4)
    assert (track.step, track.seconds[-1], track.bytes_sent[-1]) == ([5.0, 10.0, 15.0, 20.0], 2.0, 400.0)
    assert not track.lost
    track.mark(5, 0.5, 100.0, float("nan"), 0.1)
    assert track.lost


def test_file_grows_by_runs(tmp_path: Path) -> None:
    path = tmp_path / "race.csv"
    race_table.keep(path, [row("ddp", 0, 100.0), row("qsgd", 0, 5.0)])
    race_table.keep(path, [row("qsgd", 0, 4.0), row("qsgd", 1, 6.0)])
    rows = race_table.read(path, "digits", 4, "100mbit")
    assert [(r["method"], r["seed"], r["seconds"]) for r in rows] == [
        ("ddp", 0, 100.0),
        ("qsgd", 0, 4.0),
        ("qsgd", 1, 6.0),
    ]
    with pytest.raises(ValueError, match="no race of digits on 8 hosts"):
        race_table.read(path, "digits", 8, "100mbit")


def test_curves_come_back_from_a_file(tmp_path: Path) -> None:
    track = Track()
    track.mark(5, 0.5, 100.0, 1.5, 0.25)
    track.mark(5, 0.5, 100.0, 0.75, 0.5)
    rows = [{**row("qsgd", seed, 1.0), "curves": dict(vars(track))} for seed in (0, 1)]
    race_table.keep(tmp_path / "rows.csv", race_table.without_curves(rows))
    race_table.keep(tmp_path / "points.csv", race_table.points(rows))
    again = race_table.read(tmp_path / "rows.csv", "digits", 4, "100mbit")
    again = race_table.with_curves(again, records.load(tmp_path / "points.csv"))
    assert [one["curves"] for one in again] == [one["curves"] for one in rows]
    assert race_table.races(tmp_path / "rows.csv") == [("digits", 4, "100mbit")]


def test_fewest_steps_win() -> None:
    tried = [row("qsgd", 0, 1.0, lr=0.1, steps=60), row("qsgd", 0, 9.0, lr=0.2, steps=40)]
    assert best(tried)["lr"] == 0.2
    lost = [row("qsgd", 0, 1.0, lr=lr, steps=100, reached=False, accuracy=a) for lr, a in ((0.1, 0.9), (0.2, 0.8))]
    assert best(lost)["lr"] == 0.1
    assert best([*lost, tried[0]])["steps"] == 60


def test_step_sizes_are_those_of_the_grid() -> None:
    rows = records.read(GRID_ROWS)
    found: dict[str, dict[str, float]] = {}
    for task, name in dict.fromkeys((r["task"], r["method"]) for r in rows):
        mine = [r for r in rows if (r["task"], r["method"]) == (task, name)]
        assert [r["lr"] for r in mine] == list(GRID), (task, name)
        assert {(r["seed"], r["target"], r["params"]) for r in mine} == {
            (SEED, COURSES[task].target, COURSES[task].params)
        }
        found.setdefault(task, {})[name] = best(mine)["lr"]
    assert found == {task: dict(steps) for task, steps in STEPS.items() if steps}
    assert {*OUTER} <= set(STEPS["digits"])
    assert all(contestants(task)[: len(NAMES)] == list(NAMES) for task in STEPS)


def test_a_model_that_is_not_finite_has_lost() -> None:
    (run,) = runs("digits", ["sgd"], [0], None, lrs=[0.2])
    row = lost(run, 4)
    assert (row["reached"], row["steps"], row["lr"], row["accuracy"]) == (False, 0, 0.2, 0.0)
    kept = {**row, "lr": 0.1, "reached": True, "steps": 90, "accuracy": 0.96}
    assert best([row, kept]) is kept


def test_momentum() -> None:
    assert step_of("digits", "dgc:ratio=0.01", 0.1).momentum == 0
    assert step_of("digits", "qsgd:bits=4", 0.1).momentum == 0.9
    assert step_of("digits", "ddp fp16", 0.1).momentum == 0.9
    assert step_of("digits", "majority-vote", None).lr == METHODS.parse("majority-vote").recipe.lr
