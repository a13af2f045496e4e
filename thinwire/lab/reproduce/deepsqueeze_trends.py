"""What was published of compressed training on a ring, and whether it holds in measured means.

Published figures are test accuracies of ResNet-20 on CIFAR-10, 8 workers on a ring, 92.64% for float32: Koloskova,
Lin, Stich, Jaggi, arXiv 1907.09356, table 1. Of DeepSqueeze's own paper, arXiv 1907.07346, only the statement of its
abstract is used, that it "outperforms the existing compression based decentralized learning algorithms"; no figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from thinwire.lab.records import Row
from thinwire.lab.reproduce.base import Trend

NEAR = 1.5  # points below float32 that count as none: in the published table CHOCO-SGD loses 1.3 at most
FAR = 10.0  # points below float32 that count as failure
SAME = 0.5  # points that do not tell two methods apart
_NAME = {"dcd-psgd": "DCD-PSGD", "ecd-psgd": "ECD-PSGD", "choco-sgd": "CHOCO-SGD"}
Place: TypeAlias = tuple[str, str]  # a method, and the label of a compressor
Means: TypeAlias = dict[Place, Row]
Test: TypeAlias = Callable[[Means], tuple[str, bool]]


@dataclass(frozen=True)
class Statement:
    """One published statement, and how to judge it from means."""

    claim: str
    published: str
    test: Test
    needs: tuple[Place, ...]


def judge(means: Sequence[Row], place: str) -> list[Trend]:
    """Every statement on the means of one task and split; open where a run is missing, or float32 was lost."""
    at: Means = {(row["method"], row["label"]): row for row in means if not row["refused"]}
    trends = []
    for s in STATEMENTS:
        run = all(pair in at for pair in (*s.needs, FLOAT)) and at[FLOAT]["accuracy"] is not None
        told, holds = s.test(at) if run else ("not run", None)
        trends.append(Trend(place, s.claim, s.published, told, holds))
    return trends


FLOAT: Place = ("d-psgd", "32 bits")


def points(at: Means, place: Place) -> float | None:
    """Accuracy above float32, in points; None where a run was lost."""
    mine = at[place]["accuracy"]
    return None if mine is None else float(100 * (mine - at[FLOAT]["accuracy"]))


def near(value: float | None) -> bool:
    """As good as float32."""
    return value is not None and value > -NEAR


def fails(value: float | None) -> bool:
    """Lost, or far below float32."""
    return value is None or value < -FAR


def loses(value: float | None) -> bool:
    """Below float32, visibly."""
    return not near(value)


def _all(claim: str, published: str, outcome: Callable[[float | None], bool], *places: Place) -> Statement:
    """It holds where every place has that outcome."""

    def test(at: Means) -> tuple[str, bool]:
        seen = [points(at, place) for place in places]
        return ", ".join(map(_told, seen)), all(map(outcome, seen))

    return Statement(claim, published, test, places)


def _outperforms(other: str, labels: Sequence[str]) -> Statement:
    """It holds where DeepSqueeze is nowhere below `other` by half a point, and above by as much somewhere."""

    def test(at: Means) -> tuple[str, bool]:
        pairs = [(points(at, ("deepsqueeze", label)), points(at, (other, label))) for label in labels]
        ahead = [_ahead(a, b) for a, b in pairs]
        told = ", ".join(f"{_told(a)} to {_told(b)}" for a, b in pairs)
        return told, min(ahead) > -SAME and max(ahead) > SAME

    claim = f"DeepSqueeze outperforms {_NAME[other]} in accuracy: {', '.join(labels)}"
    return Statement(claim, "stated, no figure", test, tuple((m, x) for m in ("deepsqueeze", other) for x in labels))


def _faster(other: str, labels: Sequence[str]) -> Statement:
    """It holds where DeepSqueeze nowhere needs more epochs than `other`, and somewhere fewer."""

    def test(at: Means) -> tuple[str, bool]:
        pairs = [tuple(at[m, label]["reached"] for m in ("deepsqueeze", other)) for label in labels]
        ahead = [_ahead(*(None if x is None else -x for x in pair)) for pair in pairs]
        return ", ".join(f"{_epochs(a)} to {_epochs(b)}" for a, b in pairs), min(ahead) >= 0 and max(ahead) > 0

    claim = f"DeepSqueeze needs fewer epochs than {_NAME[other]} to a training loss of 0.5: {', '.join(labels)}"
    return Statement(claim, "stated, no figure", test, tuple((m, x) for m in ("deepsqueeze", other) for x in labels))


def _ahead(a: float | None, b: float | None) -> float:
    """A - b, where None is below everything."""
    if a is None or b is None:
        return float((a is not None) - (b is not None)) * math.inf if (a is None) != (b is None) else 0.0
    return a - b


def _epochs(value: float | None) -> str:
    return "never" if value is None else f"{value:g}"


def _survives(claim: str, published: str, method: str, other: str, labels: Sequence[str]) -> Statement:
    """It holds where `method` keeps up and `other` fails, everywhere."""

    def test(at: Means) -> tuple[str, bool]:
        pairs = [(points(at, (method, label)), points(at, (other, label))) for label in labels]
        return ", ".join(f"{_told(a)} to {_told(b)}" for a, b in pairs), all(near(a) and fails(b) for a, b in pairs)

    return Statement(claim, published, test, tuple((m, label) for m in (method, other) for label in labels))


def _farther(claim: str, published: str, method: str, other: str, labels: Sequence[str]) -> Statement:
    """It holds where the workers of `method` end farther apart than those of `other`, everywhere."""

    def test(at: Means) -> tuple[str, bool]:
        pairs = [(at[method, label]["distance"], at[other, label]["distance"]) for label in labels]
        told = ", ".join(f"{_far(a)} to {_far(b)}" for a, b in pairs)
        return told, all(a is None or (b is not None and a > b) for a, b in pairs)

    return Statement(claim, published, test, tuple((m, label) for m in (method, other) for label in labels))


def _told(value: float | None) -> str:
    return "div" if value is None else f"{value:+.1f}"


def _far(value: float | None) -> str:
    return "div" if value is None else f"{value:.2g}"


def _at(method: str, *labels: str) -> list[Place]:
    return [(method, label) for label in labels]


BLOCKS = ("4 bits", "2 bits")
L2 = "4 bits, L2"
BIASED = ("sign", "top 10%", "top 1%")
SIX = (*BLOCKS, *BIASED, L2)
STATEMENTS = (
    _outperforms("dcd-psgd", SIX),
    _outperforms("ecd-psgd", (*BLOCKS, L2)),
    _outperforms("choco-sgd", SIX),
    _faster("dcd-psgd", SIX),
    _faster("ecd-psgd", (*BLOCKS, L2)),
    _faster("choco-sgd", SIX),
    _survives(
        "DeepSqueeze keeps up where DCD-PSGD fails: 2 bits, 4 bits (L2)",
        "stated, no figure",
        *("deepsqueeze", "dcd-psgd", ("2 bits", L2)),
    ),
    _all("DeepSqueeze keeps up at 4, 2 bits", "stated, no figure", near, *_at("deepsqueeze", *BLOCKS)),
    _all("DeepSqueeze keeps up at sign, top 10%, top 1%", "stated, no figure", near, *_at("deepsqueeze", *BIASED)),
    _all("DeepSqueeze keeps up at 4 bits (L2)", "stated, no figure", near, *_at("deepsqueeze", L2)),
    _all("CHOCO-SGD keeps up at 4, 2 bits", "L2: 91.9, 91.4", near, *_at("choco-sgd", *BLOCKS)),
    _all("CHOCO-SGD keeps up at sign, top 10%, top 1%", "92.5, 92.3, 91.7", near, *_at("choco-sgd", *BIASED)),
    _all("CHOCO-SGD keeps up at 4 bits (L2)", "91.9", near, *_at("choco-sgd", L2)),
    _survives(
        "CHOCO-SGD keeps up where DCD-PSGD fails: 2 bits, 4 bits (L2)",
        "L2: 91.4 to div, 91.9 to 23.6",
        *("choco-sgd", "dcd-psgd", ("2 bits", L2)),
    ),
    _all("DCD-PSGD fails at 4 bits (L2)", "23.6", fails, *_at("dcd-psgd", L2)),
    _all("DCD-PSGD fails at 4 bits (blocks)", "L2: 23.6", fails, *_at("dcd-psgd", "4 bits")),
    _all("DCD-PSGD fails at 2 bits (blocks)", "L2: div", fails, *_at("dcd-psgd", "2 bits")),
    _all("DCD-PSGD keeps up at sign and top 10%", "92.4, 92.0", near, *_at("dcd-psgd", "sign", "top 10%")),
    _all("DCD-PSGD loses at top 1%", "89.8", loses, *_at("dcd-psgd", "top 1%")),
    _all(
        "ECD-PSGD fails at 4 bits (L2), 4 and 2 bits (blocks)", "L2: div, div", fails, *_at("ecd-psgd", L2, *BLOCKS)
    ),
    _farther(
        "DeepSqueeze leaves workers farther apart than CHOCO-SGD: 4 bits, sign, top 10%",
        "not stated",
        *("deepsqueeze", "choco-sgd", ("4 bits", "sign", "top 10%")),
    ),
)
