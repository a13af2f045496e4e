"""No example pairs an optimizer with a method that no recorded run supports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import fmean
from typing import NamedTuple

import pytest
from fences import ROOT, blocks, pages

from thinwire.lab import records
from thinwire.lab.language_table import summary

DATA = ROOT / "benchmarks" / "data"
LOSS = 0.05  # above DDP's, of a language model after the same tokens
POINTS = 0.015  # below the accuracy of float32, after the same epochs
OPTIMIZER = re.compile(r"\b(?:optim|schedulefree)\.([A-Z]\w+)\(|\b(TrainingArguments|Joined)\(")
METHOD = re.compile(r"\bmethods\.(\w+)\(|\btw\.method\(\"([\w-]+)")
KIN = {"Adam": "AdamW", "TrainingArguments": "AdamW"}  # the Trainer makes AdamW


class Pair(NamedTuple):
    """What a piece of code makes."""

    place: str
    optimizer: str
    method: str


def supported() -> dict[str, set[str]]:
    """Methods by optimizer, as the rows of benchmarks/data have them."""
    adam = {row["method"] for row in summary(records.read(DATA / "language.csv")) if row["over_ddp"] < LOSS}
    sgd: set[str] = set()
    for name in ("accuracy", "demo"):
        rows = records.read(DATA / f"{name}.csv")
        for task, method in {(row["task"], row["method"]) for row in rows}:
            mean, plain = (
                fmean(row["accuracy"] for row in rows if (row["task"], row["method"]) == (task, which))
                for which in (method, "sgd")
            )
            if mean > plain - POINTS:
                sgd.add(method)
    for name in ("race", "race-16", "race-outer", "race-stragglers"):
        rows = records.read(DATA / f"{name}.csv")
        short = {row["method"] for row in rows if not row["reached"]}
        sgd |= {row["method"] for row in rows} - short
    last = [
        row for row in records.read(DATA / "diana.csv") if row["step"] == row["steps"] and row["method"] == "diana"
    ]
    exact = {row["method"] for row in last} if max(row["gap"] for row in last) < 1e-3 else set()
    by_id = {"AdamW": adam, "SGD": sgd, "ProximalSGD": exact}
    return {optimizer: {name.partition(":")[0] for name in names} for optimizer, names in by_id.items()}


def texts() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The code of every page and example, piece by piece."""
    for path in pages():
        yield path.name, [(one.id, one.text) for one in blocks(path)]
    for path in sorted((ROOT / "examples").glob("*.py")):
        yield path.name, [(path.name, path.read_text())]


def pairs() -> Iterator[Pair]:
    """What a simulation trains has its result beside it. A piece without an optimizer goes with that of its page."""
    for _, pieces in texts():
        made = {place: _optimizers(text) for place, text in pieces}
        trained = [(place, text) for place, text in pieces if "tw.simulate(" not in text]
        kinds = set[str]().union(*made.values())
        only = kinds if len(kinds) == 1 and any(made[place] for place, _ in trained) else set[str]()
        for place, text in trained:
            for optimizer in sorted(made[place] or only):
                for method in sorted({(a or b).replace("_", "-") for a, b in METHOD.findall(text)}):
                    yield Pair(place, optimizer, method)


def _optimizers(text: str) -> set[str]:
    return {KIN.get(a or b, a or b) for a, b in OPTIMIZER.findall(text)} - {"Joined"}


def test_examples_show_what_was_measured() -> None:
    good, seen = supported(), list(pairs())
    assert {"AdamW", "SGD"} <= {pair.optimizer for pair in seen}
    assert len(seen) > 15
    assert not [pair for pair in seen if pair.method not in good.get(pair.optimizer, ())]


@pytest.mark.parametrize(
    ("optimizer", "method", "good"),
    [("AdamW", "int4", True), ("AdamW", "ecq-sgd", False), ("AdamW", "diloco", False), ("SGD", "ecq-sgd", True)],
)
def test_the_rows_say_so(optimizer: str, method: str, good: bool) -> None:
    assert (method in supported()[optimizer]) == good


def test_what_pairs_is_found() -> None:
    text = 'o = torch.optim.AdamW(p)\nwire = tw.attach(m, o, tw.methods.ecq_sgd())\nother = tw.method("top-k:r=1")'
    assert _optimizers(text) == {"AdamW"}
    assert _optimizers("args = TrainingArguments('run')") == {"AdamW"}
    assert METHOD.findall(text) == [("ecq_sgd", ""), ("", "top-k")]
