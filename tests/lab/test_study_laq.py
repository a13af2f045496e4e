"""LAQ's reproduction: short runs count uploads and bits, and statements are judged."""

from __future__ import annotations

import pytest

from thinwire.core.types import Layout
from thinwire.lab.reproduce import laq
from thinwire.lab.reproduce.laq import METHODS, Laq, N
from thinwire.lab.reproduce.study import Means, Run


def test_few_uploads_of_few_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laq, "STEPS", 60)
    monkeypatch.setattr(laq, "GOAL", 0.3)
    ends = {method: Laq().work(Run("mixed", method, 0, 0))[-1] for method in METHODS}
    assert {row["step"] for row in ends.values()} == {60}
    for method in ("gd", "qgd"):
        assert ends[method]["uploaded"] == 60 * N
        assert ends[method]["uploads"] == N * ends[method]["to_goal"]
    for method in ("lag", "laq", "laq, 8 bits"):
        assert N <= ends[method]["uploads"] <= ends[method]["uploaded"] < 20 * N
        assert ends[method]["gap"] < 0.15
    assert ends["laq"]["kilobits"] < 0.2 * ends["lag"]["kilobits"] < 0.2 * ends["gd"]["kilobits"]
    assert all(0.7 < row["accuracy"] < 1 for row in ends.values())


def test_messages_are_as_long_as_the_paper_counts_them() -> None:
    """32 bits of scale and b per element, besides the header, in words of 64 bits."""
    d = 650
    sizes = {method: 8 * laq.channel(method).nbytes(Layout.flat(d)) - 256 for method in METHODS}
    assert sizes["gd"] == sizes["lag"] == 32 * d
    assert 0 <= sizes["laq"] - (32 + 4 * d) < 64
    assert 0 <= sizes["laq, 8 bits"] - (32 + 8 * d) < 64
    assert sizes["qgd"] == sizes["laq"]


def _judged(claim: str, at: Means) -> bool:
    (found,) = [s for s in Laq.statements if claim in s.claim and "sorted" in s.claim]
    return found.test(at)[1]


def test_statements_are_judged() -> None:
    mine, plain, lag = ("sorted", "laq"), ("sorted", "gd"), ("sorted", "lag")
    assert _judged("linear rate", {mine: {"earlier": 1.0, "later": 0.9}, plain: {"later": 1.0}})
    assert not _judged("linear rate", {mine: {"earlier": 2.0, "later": 0.9}, plain: {"later": 1.0}})
    assert not _judged("linear rate", {mine: {"earlier": 0.7, "later": 0.7}, plain: {"later": 1.0}})
    assert not _judged("linear rate", {mine: {"earlier": 0.0, "later": 1.0}, plain: {"later": 1.0}})
    assert _judged("than LAG", {mine: {"uploads": 5}, lag: {"uploads": 6}})
    assert not _judged("than LAG", {mine: {"uploads": None}, lag: {"uploads": 6}})
    assert not _judged("accuracy", {mine: {"accuracy": 0.9}, plain: {"accuracy": 0.92}})
