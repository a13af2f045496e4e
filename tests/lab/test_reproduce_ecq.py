"""ECQ-SGD's and QSGD's reproductions: tiny runs, statements judged from given rows, pages from the recorded ones."""

from __future__ import annotations

import pytest

from thinwire.lab.records import Row
from thinwire.lab.reproduce import Reproduction, Settings
from thinwire.lab.reproduce.ecq_fig2 import EcqFig2
from thinwire.lab.reproduce.qsgd import QsgdPaper
from thinwire.lab.reproduce.qsgd_facts import facts, sparse_limit

MADE: tuple[Reproduction, ...] = (EcqFig2(), QsgdPaper())


def quiet(*_: object) -> None:
    """A progress callback for runs that nobody watches."""


def test_figure_2_in_small() -> None:
    small = EcqFig2(sets=(64,), steps=400)
    rows = small.run(Settings(seeds=1), quiet)
    assert all(tuple(row) == ("set", "method", "loss", "distance", "bits_per_element") for row in rows)
    assert [row["method"] for row in rows] == ["32-bit", "QSGD", "QSGD, coded", "ECQ-SGD", "ECQ-SGD, coded"]
    assert {row["set"] for row in rows} == {"Syn-64"}
    bits = [row["bits_per_element"] for row in rows]
    assert bits[0] == 32
    assert bits[1] == bits[3] == 4 + 32 / 64
    assert all(1 < coded < 4 for coded in (bits[2], bits[4]))
    exact, qsgd, ecq = (rows[i] for i in (0, 1, 3))
    assert exact["distance"] < ecq["distance"] < qsgd["distance"] < 1
    assert 0.004 < exact["loss"] < qsgd["loss"]
    assert small.run(Settings(seeds=1, methods=("ECQ-SGD",)), quiet) == rows[3:]


def test_figure_2_is_judged() -> None:
    def row(method: str, value: float) -> Row:
        return {"set": "Syn-64", "method": method, "loss": value, "distance": value, "bits_per_element": 4.0}

    near = EcqFig2().trends([row("32-bit", 1.0), row("QSGD", 2.0), row("ECQ-SGD", 1.4)])
    assert [(t.place, t.holds, t.measured) for t in near] == [("Syn-64", True, "+40.0% ECQ-SGD, +100.0% QSGD")] * 2
    assert not any(t.holds for t in EcqFig2().trends([row("32-bit", 1.0), row("QSGD", 2.0), row("ECQ-SGD", 1.6)]))
    assert [t.holds for t in EcqFig2().trends([row("32-bit", 1.0)])] == [None, None]


def test_facts_of_qsgd() -> None:
    assert [round(sparse_limit(n, 1)) for n in (1024, 4096, 16384)] == [426, 907, 1965]
    rows = facts()
    over = {(row["kind"], row["label"].split(",")[1]) for row in rows if row["value"] > row["limit"]}
    assert over == {("dense code", " Elias")}
    at = {(row["kind"], row["label"]): row["value"] for row in rows}
    assert at["variance", "Gaussian, n=512, s=1"] == pytest.approx(17.0, rel=0.1)
    assert at["non-zeros", "Gaussian, n=512, s=4"] / 512 == pytest.approx(0.142, rel=0.1)
    assert at["dense code", "Gaussian, Elias, n=4096"] / 4096 == pytest.approx(2.95, rel=0.02)
    assert at["sparse code", "Gaussian, Elias, n=4096"] == pytest.approx(721, rel=0.1)


def test_qsgd_in_small() -> None:
    small = QsgdPaper(draws=2)
    rows = small.run(Settings(epochs=1, seeds=1, methods=("32 bits", "4 bits")), quiet)
    assert len({tuple(row) for row in rows}) == 1
    means = {(row["kind"], row["label"]): row for row in small.summary(rows)}
    assert means["accuracy", "4 bits"]["value"] > 0.6
    assert means["accuracy", "4 bits"]["bits_per_element"] == pytest.approx(4 + 32 / 512, rel=0.01)
    assert means["wire", "32 bits"]["value"] > 3.5 * means["wire", "4 bits"]["value"]
    for label in ("32 bits", "4 bits"):
        assert means["epoch", label]["value"] > means["wire", label]["value"] > 0
        assert 0 < means["share", label]["value"] < 1
    held = {(t.place, t.claim): t.holds for t in small.trends(rows)}
    assert held["digits", "2 bits keep float32's accuracy"] is None
    assert held["Gaussian", "Elias' dense code with s = sqrt(n) takes at most 2.8 n + 32 bits"] is False
    assert held["Gaussian", "an entropy code of the same levels takes at most 2.8 n + 32 bits"] is True


@pytest.mark.parametrize(
    ("made", "settings", "message"),
    [
        (EcqFig2(), Settings(task="fashion"), "draws its own samples"),
        (EcqFig2(), Settings(epochs=3), "leave --task"),
        (EcqFig2(), Settings(methods=("ECQSGD",)), "did you mean 'ECQ-SGD'"),
        (EcqFig2(), Settings(seeds=0), "--seeds 3"),
        (QsgdPaper(), Settings(methods=("4 bit",)), "did you mean '4 bits'"),
        (QsgdPaper(), Settings(epochs=0), "--epochs 20"),
    ],
)
def test_bad_settings(made: Reproduction, settings: Settings, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made.check(settings)
