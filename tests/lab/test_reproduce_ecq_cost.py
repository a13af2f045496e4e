"""What ECQ-SGD sends and how long it takes: tiny runs, statements judged from given rows, recorded pages."""

from __future__ import annotations

import pytest

from thinwire.cli.app import main
from thinwire.lab import figures
from thinwire.lab.records import FACTS, Row, read
from thinwire.lab.reproduce import Reproduction, Settings
from thinwire.lab.reproduce.ecq_fig3 import RATE, WAYS, EcqFig3
from thinwire.lab.reproduce.ecq_traffic import CHANNELS, WHOLE, EcqTraffic
from thinwire.lab.reproduce.one_model import Run, elements, train
from thinwire.lab.reproduce.syn_20k import STAGES, Job

MADE: tuple[Reproduction, ...] = (EcqTraffic(), EcqFig3())
DATA, PAPERS = figures.ROOT / "benchmarks" / "data", figures.ROOT / "docs" / "papers"
SMALL = EcqFig3(Job(features=400, samples=2_000, tests=400, batch=64, steps=60, lr=0.05))


def quiet(*_: object) -> None:
    """A progress callback for runs that nobody watches."""


def test_traffic_in_small() -> None:
    some = ("32-bit", "ECQ-SGD s=10", "ECQ-SGD s=6")
    rows = EcqTraffic().run(Settings(epochs=1, seeds=1, methods=some), quiet)
    assert elements() == WHOLE
    assert [row["method"] for row in rows] == list(some)
    assert rows[0]["accuracy"] > 0.6
    assert all(row["accuracy"] > 0.4 for row in rows)
    assert 80 < rows[1]["ratio"] < rows[2]["ratio"]
    again = train(Run("digits", CHANNELS["ECQ-SGD s=10"], 0, 1))
    assert {**again, "seconds": 0} == {name: rows[1][name] for name in again} | {"seconds": 0}
    means = EcqTraffic().summary(rows)
    assert [row["ring_ratio"] for row in means] == [1, means[1]["ratio"] / 2, means[2]["ratio"] / 2]
    assert means[0]["points"] == 0


def test_traffic_is_judged() -> None:
    def row(method: str, accuracy: float, bits: float) -> Row:
        head: Row = {"task": "digits", "split": "iid", "method": method, "seed": 0, "loss": 1 - accuracy}
        return head | {"accuracy": accuracy, "bits_per_element": bits}

    others = [row("32-bit", 0.98, 32.0), row("QSGD s=10", 0.97, 0.3), row("TernGrad", 0.98, 2.0)]
    rows = [*others, row("1-bit SGD", 0.98, 1.6), row("ECQ-SGD s=10", 0.979, 0.35)]
    cut, coarse, better, least = EcqTraffic().trends(rows)
    assert (cut.holds, cut.measured) == (True, "91x, -0.10 points")
    assert (coarse.holds, better.holds, least.holds) == (None, True, True)
    for ecq in (row("ECQ-SGD s=10", 0.979, 0.5), row("ECQ-SGD s=10", 0.96, 0.35)):
        assert EcqTraffic().trends([*others, ecq])[0].holds is False
    assert all(t.holds is None for t in EcqTraffic().trends(others[:1]))


def test_time_in_small(root: None) -> None:
    rows = SMALL.run(Settings(seeds=1), quiet)
    at = {row["method"]: row for row in rows}
    assert tuple(at) == WAYS
    for row in rows:
        assert sum(row[f"{stage}_s"] for stage in STAGES) == pytest.approx(row["seconds"])
        assert row["rate"] == RATE
        assert row["loss"] < 0.25  # of 0.5 at first
    for name in WAYS[1:]:
        assert at[name]["bytes_sent"] < at["32-bit"]["bytes_sent"]
        assert min(at[name]["encode_s"], at[name]["decode_s"]) > 0
    away = {name: abs(at[name]["loss"] - at["32-bit"]["loss"]) for name in WAYS}
    assert away["ECQ-SGD-16"] < away["QSGD-16"]
    assert {name for name in read(DATA / "ecq-fig3.csv")[0] if name not in FACTS} == set(rows[0])


def test_time_is_judged() -> None:
    def row(method: str, seconds: float, loss: float) -> Row:
        times = {f"{stage}_s": seconds / len(STAGES) for stage in STAGES}
        return {"task": "Syn-20K", "method": method, "seconds": seconds, "loss": loss, "bytes_sent": 10**6} | times

    exact, qsgd = [row("32-bit", 9.0, 1.0), row("32-bit", 11.0, 1.0)], row("QSGD-127", 8.9, 1.2)
    near, coarse, time, than_qsgd, loss, pair = EcqFig3().trends([*exact, qsgd, row("ECQ-SGD-64", 8.0, 1.04)])
    assert (near.holds, time.holds, than_qsgd.holds, loss.holds) == (True, True, True, True)
    assert (coarse.holds, pair.holds) == (None, None)
    assert time.measured == "8.0-8.0 s, of which 4.00 s encode and decode, against 9.0-11.0 s"
    near, _, time, *_ = EcqFig3().trends([*exact, row("ECQ-SGD-64", 9.5, 1.06)])
    assert (near.holds, time.holds) == (False, False)  # shorter than the mean, not than the fastest


def test_no_root_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/sbin/{name}")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main(["reproduce", "ecq-fig3"]) == 2
    assert "write sudo thinwire reproduce ecq-fig3" in capsys.readouterr().err
    assert main(["reproduce", "ecq-fig3", "--from", str(DATA / "ecq-fig3.csv")]) == 0
    assert "QSGD-16" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("made", "settings", "message"),
    [
        (EcqTraffic(), Settings(split="label"), "leave --split out"),
        (EcqTraffic(), Settings(methods=("32bit",)), "did you mean '32-bit'"),
        (EcqTraffic(), Settings(seeds=0), "--seeds 3"),
        (EcqFig3(), Settings(task="fashion"), "draws its own samples"),
        (EcqFig3(), Settings(methods=("ECQ-SGD64",)), "did you mean 'ECQ-SGD-64'"),
        (EcqFig3(), Settings(seeds=0), "--seeds 3"),
    ],
)
def test_bad_settings(made: Reproduction, settings: Settings, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made.check(settings)
