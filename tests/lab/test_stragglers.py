"""The race with stragglers on the clock: what is measured, when workers end, step sizes, tables and plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import thinwire as tw
from thinwire.lab import records
from thinwire.lab.records import Row
from thinwire.lab.stragglers import clock, course, pages, plots, steps, table
from thinwire.lab.stragglers.course import LIMIT, SECONDS, TARGET, Run
from thinwire.lab.stragglers.ending import Ending
from thinwire.lab.stragglers.kinds import KINDS
from thinwire.lab.stragglers.measured import Measured

DATA = Path(__file__).parents[2] / "benchmarks" / "data"
SHORT = Run("slow", "asgd", 4, 0, 0.2, "1gbit", limit=1.0)


def test_kinds() -> None:
    slow, stalls = KINDS.parse("slow:times=3").of(4), KINDS.parse("stalls:probability=0.5").of(4)
    assert [slow.factor(rank, 7, 0) for rank in range(4)] == [1, 1, 1, 3]
    factors = [stalls.factor(rank, turn, 0) for rank in range(4) for turn in range(100)]
    assert set(factors) == {1.0, 10.0}
    assert 140 < factors.count(10.0) < 260
    assert str(KINDS.parse("stalls")) == "5% of all steps 10 times longer"
    with pytest.raises(ValueError, match="did you mean 'slow'"):
        KINDS.parse("slo")


def test_a_tick_has_the_model_that_was_there() -> None:
    measured = Measured(0.9, 0.5, [[0.05, 0.25], [0.3]])
    assert [measured.due(seconds) for seconds in (0.05, 0.1, 0.11, 0.3, 0.31, 9.0)] == [0, 0, 1, 2, 3, 5]
    for right in (0.9, 0.8, 0.95, 0.95, 0.95):
        assert not measured.complete
        measured.tested({"accuracy": right, "loss": 1.0})
    assert measured.complete
    assert measured.arrival == 3  # the mean of the second, third and fourth
    row = measured.row(
        replace(SHORT, workers=2), "clock", {"staleness_mean": 0.5, "staleness_0": 3, "staleness_2": 1}
    )
    assert (row["reached"], row["seconds"], row["steps"], row["staleness"]) == (True, 0.4, 3, "0:3 2:1")
    assert row["curves"]["seconds"] == [0.2, 0.4]
    assert row["curves"]["steps"] == [[1, 0], [2, 1]]
    assert row["curves"]["accuracy"] == [round((0.9 + 0.8) / 3, 5), 0.9]
    assert row["steps_per_s"] == 3 / 0.5


def test_the_clock_repeats_and_nobody_waits_for_the_slow_one() -> None:
    row = clock.race(SHORT)
    assert clock.race(SHORT) == row
    assert row["slowest"] == 3  # of 250 ms each, and messages
    assert 17 <= row["fastest"] <= 20  # of 50 ms each
    assert row["curves"]["seconds"] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert row["loss"] < row["curves"]["loss"][0]
    together = clock.race(replace(SHORT, method="sgd"))
    assert together["fastest"] == together["slowest"] == 3
    assert together["curves"]["steps"][1] == [1] * 4  # at 0.4 s
    bound = clock.race(replace(SHORT, method="ssp:staleness=4"))
    assert max(max(at) - min(at) for at in bound["curves"]["steps"]) <= 5
    assert bound["fastest"] - bound["slowest"] in (4, 5)


@pytest.mark.parametrize("name", ["d-psgd", "local-sgd:every=3"])
def test_those_that_wait_for_each_other_take_equally_many_steps(name: str) -> None:
    row = clock.race(replace(SHORT, method=name, limit=0.6))
    assert row["curves"]["seconds"] == [0.2, 0.4, 0.6]


def test_rank_0_names_the_last_step() -> None:
    board: list[int] = []
    ending = Ending(tw.methods.sgd(), 4, board.append, lambda: board[0] if board else None)
    assert not ending.over(1, 7, due=True)
    assert not ending.over(0, 7, due=True)
    assert board == [9]  # others may have begun the step after the one that rank 0 has ended
    assert [ending.over(rank, 8, due=False) for rank in range(3)] == [False] * 3
    assert [ending.over(rank, 9, due=False) for rank in range(3)] == [True] * 3
    alone = Ending(tw.methods.asgd(), 4, board.append, lambda: None)
    assert (alone.over(2, 1, due=False), alone.over(2, 1, due=True)) == (False, True)


def test_a_run_that_learns_nothing_is_given_up() -> None:
    idle = replace(SHORT, method="sgd", lr=1e-9, limit=2.0, whole=False)
    ends = [clock.race(replace(idle, gives_up=gives_up))["curves"]["seconds"][-1] for gives_up in (True, False)]
    assert ends[0] < 1.0
    assert ends[1] == 2.0  # in a race nobody is given up
    lost = clock.race(replace(SHORT, method="ad-psgd", lr=1e30))
    assert not lost["reached"]


def test_a_climb_finds_the_top(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[float, int]] = []

    def raced(run: Run) -> Row:
        tried.append((run.lr, run.seed))
        times = {0.1: 5.0, 0.2: 6.0, 0.4: 4.0, 0.8: 3.0, 1.6: 9.0}
        return {"lr": run.lr, "reached": run.lr in times, "seconds": times.get(run.lr, 1.0), "accuracy": 0.5}

    monkeypatch.setattr("thinwire.lab.stragglers.clock.race", raced)
    rows = steps.climb(SHORT)
    assert steps.best(rows) == 0.8
    assert sorted({lr for lr, _ in tried}) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]  # 0.2 is no better, 0.4 is
    assert tried.count((3.2, steps.SEEDS[1])) == 0  # it failed with the first seed
    assert len(tried) == len(set(tried)) == len(rows)


def test_a_climb_leaves_what_learns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def raced(run: Run) -> Row:
        good, noise = run.lr < 0.02, 0.09 + 0.02 * (run.lr == 0.4)  # larger ones guess, and one of them with luck
        return {"lr": run.lr, "reached": good, "seconds": 0.1 / run.lr, "accuracy": 0.95 if good else noise}

    monkeypatch.setattr("thinwire.lab.stragglers.clock.race", raced)
    assert steps.best(steps.climb(SHORT)) == 0.1 / 8


def test_step_sizes_are_those_of_the_climbs() -> None:
    rows = records.read(DATA / "race-stragglers-steps.csv")
    found: dict[tuple[str, int], dict[str, float]] = {}
    for kind, workers, method in dict.fromkeys((r["stragglers"], r["workers"], r["method"]) for r in rows):
        mine = [r for r in rows if (r["stragglers"], r["workers"], r["method"]) == (kind, workers, method)]
        assert {r["seed"] for r in mine} <= set(steps.SEEDS[: max(1, steps.MANY // workers)])
        assert {r["target"] for r in mine} == {TARGET}
        found.setdefault((kind, workers), {})[method] = steps.best(mine)
    assert found == steps.STEPS
    for (_, workers), by_method in found.items():
        assert set(by_method) == set(course.contestants(workers))


def test_raced_rows_have_those_step_sizes_and_settings() -> None:
    for row in records.read(DATA / "race-stragglers.csv"):
        assert row["lr"] == steps.STEPS[row["stragglers"], row["workers"]][row["method"]]
        assert row["target"] == TARGET
        assert row["limit"] == LIMIT
        assert row["steps_per_s"] <= row["workers"] / SECONDS + 1


def line(method: str, where: str, seed: int, seconds: float, rate: float, *, reached: bool = True) -> Row:
    facts: Row = {"task": "digits", "stragglers": "slow", "where": where, "workers": 4, "rate": "1gbit"}
    facts |= {"method": method, "seed": seed, "lr": 0.1, "reached": reached, "seconds": seconds, "accuracy": 0.9}
    return {**facts, "steps_per_s": rate, "staleness_mean": None, "staleness_max": None, "load": 0.5}


def test_clock_and_processes_side_by_side() -> None:
    rows = [line("sgd", "processes", 0, 5.0, 10.0), line("sgd", "clock", 0, 4.0, 11.0)]
    rows += [line("sgd", "clock", 1, 40.0, 11.0)]  # a seed that only the clock has
    rows += [line("asgd", "processes", 0, 2.0, 40.0), line("asgd", "clock", 0, 2.1, 50.0)]
    rows += [line("r2sp", "processes", 0, 9.0, 10.0, reached=False), line("r2sp", "clock", 0, 9.0, 10.0)]
    sgd, asgd, r2sp = table.beside(rows, 4)
    assert (sgd["on_clock"], sgd["ratio"], sgd["per_s_ratio"]) == (4.0, 0.8, 1.1)
    assert (asgd["ratio"], asgd["per_s_ratio"]) == (1.05, 1.25)
    assert (r2sp["reached"], r2sp["seconds"], r2sp["ratio"]) == ("0 of 1", None, None)
    said = table.agreement([sgd, asgd, r2sp])
    assert (
        "In steps per second, clock and processes agree within 15% for 2 of 3 methods, but not for asgd (1.25)."
        in said
    )
    assert (
        "In seconds to the target, clock and processes agree within 15% for 1 of 2 methods, but not for sgd (0.80)."
        in said
    )


def drawn(rows: Sequence[Row], folder: Path) -> list[Path]:
    return plots.race(rows, folder / "race.png")


def test_rows_and_curves_come_back_and_are_drawn(tmp_path: Path) -> None:
    rows = [clock.race(replace(SHORT, seed=seed)) for seed in (0, 1)]
    for row in rows:
        table.keep(tmp_path / "rows.csv", [row])
        table.keep_curves(tmp_path / "points.csv", [row])
    again = table.read(tmp_path / "rows.csv", "slow")
    again = table.with_curves(again, records.load(tmp_path / "points.csv"))
    assert [row["curves"] for row in again] == [row["curves"] for row in rows]
    assert [row["staleness"] for row in again] == [row["staleness"] for row in rows]
    other = {**again[0], "where": "processes"}
    names = [path.name for path in drawn([other, again[0]], tmp_path)]
    assert names == ["race.png", "race-workers.png", "race-staleness.png"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)
    with pytest.raises(ValueError, match="no race with --stragglers stalls"):
        table.read(tmp_path / "rows.csv", "stalls")


def test_the_page_says_what_the_rows_say() -> None:
    assert set(pages.TABLES) == {"stragglers-slow", "stragglers-stalls", "stragglers-sizes"}
    text = pages.TABLES["stragglers-sizes"](DATA)
    assert all(f"{workers} workers" in text for _, workers in steps.STEPS)
