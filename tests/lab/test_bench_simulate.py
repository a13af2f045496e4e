"""What simulating costs: rows of `thinwire bench simulate`; and per message it costs no more among more workers."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import thinwire as tw
from thinwire.cli.app import main
from thinwire.lab.bench_simulate import COSTS, METHODS, NETWORK, SCATTER, SETTINGS, measure
from thinwire.lab.records import read
from thinwire.sim import Load, Weight, foresee


def test_a_row_per_setting_method_and_number_of_workers() -> None:
    rows = list(measure(METHODS, [2, 40], 3, 4, [*SETTINGS]))
    assert len(rows) == len(SETTINGS) * len(METHODS) * 2
    for row in rows:
        assert row["cpu_s"] > 0
        assert row["messages"] > 0
        assert row["ns_per_message"] == pytest.approx(row["cpu_s"] / row["messages"] * 1e9)
        died = row["setting"] == "failure"
        assert bool(row["stopped"]) == (died and row["method"] != "d-psgd")
        assert (row["steps"] < 3) == bool(row["stopped"])
    steps = {(row["setting"], row["method"]): row["step_s"] for row in rows if row["workers"] == 40}
    assert steps["racks", "topk"] > steps["usual", "topk"], "gathers pass uplinks"
    assert steps["stragglers", "sgd"] > steps["usual", "sgd"]


def test_messages_are_those_of_the_methods() -> None:
    """Of each bucket a ring, or one to each neighbour; and one agreement of all buckets."""
    n, steps, tensors = 5, 2, 3
    sgd, gossip = measure(["sgd", "d-psgd"], [n], steps, tensors)
    assert sgd["messages"] == steps * (tensors + 1) * 2 * (n - 1) * n
    assert gossip["messages"] == steps * tensors * 2 * n


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ["bench", "simulate", "--method", "sgd", "--workers", "3", "--steps", "4", "--tensors", "2"]
    file = tmp_path / "rows.csv"
    assert main([*asked, "--setting", "usual", "--setting", "failure", "--save", str(file)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "sgd, failure: stopped after 2 steps: rank 1 died at 0.6 s; rank 0 waits in all_reduce" in said
    assert [(row["setting"], row["workers"], row["tensors"]) for row in read(file)] == [
        ("usual", 3, 2),
        ("failure", 3, 2),
    ]
    assert main([*asked, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["method"], row["setting"], row["steps"], row["stopped"]) == ("sgd", "usual", 4, "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--steps", "0"], "write --steps 100 --tensors 50"),
        (["--tensors", "0"], "write --steps 100 --tensors 50"),
        (["--setting", "rack"], "--setting rack: there is no such setting; did you mean 'racks'?"),
        (["--method", "sgdd"], "did you mean 'sgd'"),
        (["--method", "ssp", "--workers", "2"], "simulate it with numbers"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "simulate", *arguments]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


def calls(method: str, n: int, steps: int) -> tuple[int, int]:
    """How many functions a simulation calls, and how many messages it simulates: equal, on any machine."""
    one = replace(tw.method(method), overlap=tw.Overlap(bucket_mb=2, chunk_mb=2))
    load = Load.of([Weight(f"layer{number}.weight", (512, 1024), 1.0) for number in range(3)], 0.3)
    called = 0

    def count(frame: object, event: str, function: object) -> None:
        nonlocal called
        called += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        done = foresee(one, load, n, steps=steps, costs=COSTS, network=NETWORK, stragglers=SCATTER)
    finally:
        sys.setprofile(before)
    return called, done.messages


def of_a_step(method: str, n: int) -> tuple[int, int]:
    """Calls and messages of one more step: what is done once, for a graph or for sizes, does not count."""
    calls(method, n, 1)
    (called, messages), (more, others) = (calls(method, n, steps) for steps in (2, 4))
    return (more - called) // 2, (others - messages) // 2


def test_a_message_to_a_neighbour_costs_as_much_among_many_workers() -> None:
    (few, messages), (many, others) = (of_a_step("d-psgd", n) for n in (40, 160))
    assert others == 4 * messages
    assert many == pytest.approx(4 * few, rel=0.05)


@pytest.mark.parametrize("method", ["sgd", "qsgd", "topk"])
def test_a_collective_costs_calls_that_do_not_grow_with_workers(method: str) -> None:
    """Four times the workers send 16 times the messages. There are hardly more arrays; each worker draws."""
    (few, messages), (many, others) = (of_a_step(method, n) for n in (64, 256))
    assert others > 15 * messages
    assert many < 3 * few
