"""Reproductions: the same seed gives the same row, lost runs are rows, and the page is that of the recorded rows."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from thinwire.cli.app import main
from thinwire.exchange.mix import Mix
from thinwire.lab import bench_eta, figures, records
from thinwire.lab.records import Row, read
from thinwire.lab.reproduce import REPRODUCTIONS, Settings, deepsqueeze, get
from thinwire.lab.reproduce.base import keep
from thinwire.lab.reproduce.deepsqueeze import ETAS, METHODS, MIXES, RATES, SEEDS, SIX, TUNED, best_run
from thinwire.lab.reproduce.deepsqueeze_trends import STATEMENTS, judge
from thinwire.lab.reproduce.parallel import each
from thinwire.lab.reproduce.ring import GUESSED, Run, gradients, rate, shards, train
from thinwire.lab.residual import Residual
from thinwire.methods import d_psgd

DATA = figures.ROOT / "benchmarks" / "data" / "deepsqueeze.csv"
PAGE = figures.ROOT / "docs" / "papers" / "deepsqueeze.md"
SIGN = "choco-sgd:compressor=(scaled-sign)"


def test_nets_side_by_side_are_the_nets_alone() -> None:
    g = torch.Generator().manual_seed(0)
    net = Residual((8, 16), halve=True)
    models = torch.stack([net.start(seed) for seed in range(3)])
    images, labels = torch.randn(3, 4, 1, 16, 16, generator=g), torch.randint(0, 10, (3, 4), generator=g)
    together, loss = gradients(net, models, images, labels)
    alone = [gradients(net, models[i : i + 1], images[i : i + 1], labels[i : i + 1]) for i in range(3)]
    torch.testing.assert_close(together, torch.cat([grads for grads, _ in alone]))
    assert loss == pytest.approx(sum(one for _, one in alone) / 3)
    assert models.shape[1] == net.layout.numel == sum(net.layout.sizes)


def test_gradient_is_that_of_differences() -> None:
    net = Residual((4, 8))
    model = net.start(0).double().unsqueeze(0)
    images, labels = torch.linspace(-1, 1, 128).view(1, 2, 1, 8, 8).double(), torch.tensor([[3, 7]])
    grads, _ = gradients(net, model, images, labels)
    way = torch.randn(model.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ahead, behind = (gradients(net, model + h * way, images, labels)[1] for h in (1e-6, -1e-6))
    assert (ahead - behind) / 2e-6 == pytest.approx(float((grads * way).sum()), rel=1e-4)


def test_shards_are_apart() -> None:
    labels = torch.arange(10).repeat(17)
    for split in ("iid", "label"):
        mine = shards(labels, split, 0)
        assert mine.shape == (8, 21)
        assert len(mine.unique()) == 8 * 21
    kinds = [len(labels[some].unique()) for some in shards(labels, "label", 0)]
    assert max(kinds) <= 3
    assert min(len(labels[some].unique()) for some in shards(labels, "iid", 0)) > 5


def test_rate_rises_and_falls() -> None:
    run = Run("digits", "iid", "d-psgd", 0.4, 0, 1)
    assert [rate(run, done) for done in (0.025, 0.3, 0.6, 0.9)] == pytest.approx([0.2, 0.4, 0.04, 0.004])


@pytest.mark.long
def test_tiny_run(monkeypatch: pytest.MonkeyPatch) -> None:
    etas, rates, finalists = (None, 0.4), RATES[:2], 2
    for name, value in (("ETAS", etas), ("RATES", rates), ("FINALISTS", finalists)):
        monkeypatch.setattr(deepsqueeze, name, value)
    heard: list[tuple[int, int, str]] = []
    settings = Settings(epochs=1, seeds=2, methods=("d-psgd", SIGN, "ecd-psgd:compressor=(scaled-sign)"))
    rows = get("deepsqueeze").run(settings, lambda *news: heard.append(news))
    kinds = [(row["method"], row["kind"]) for row in rows]
    assert kinds.count(("d-psgd", "grid")) == len(rates)
    assert kinds.count(("choco-sgd", "grid")) == len(rates) * len(etas)
    assert kinds.count(("d-psgd", "final")) == kinds.count(("choco-sgd", "final")) == 2
    assert kinds.count(("d-psgd", "curve")) == kinds.count(("choco-sgd", "curve")) == 2  # one epoch
    assert {row["seed"] for row in rows if row["kind"] in {"grid", "last"}} == {TUNED}
    assert kinds.count(("d-psgd", "last")) == finalists <= kinds.count(("choco-sgd", "last")) <= finalists + 2
    assert {row["seed"] for row in rows if row["kind"] in {"final", "own"}} == {0, 1, None}
    tuned = next(row for row in rows if (row["method"], row["kind"]) == ("choco-sgd", "final"))
    assert kinds.count(("choco-sgd", "own")) == (0 if tuned["given"] is None else 2)
    assert heard[-1][0] == len(rows) - 1 - 4  # but for the one that is refused, and the curves
    refused = rows[-1]
    assert (refused["method"], refused["refused"], refused["loss"]) == ("ecd-psgd", True, None)
    float32, signs = (
        next(r for r in rows if (r["method"], r["kind"]) == (m, "final")) for m in ("d-psgd", "choco-sgd")
    )
    assert float32["steps"] == float32["planned"] == 1437 // 8 // 8
    assert 32 < float32["bits_per_element"] < 32.1
    assert 1 < signs["bits_per_element"] < 1.1
    elements = Residual().layout.numel
    assert float32["bytes"] == pytest.approx(float32["steps"] * 8 * 2 * 4 * elements, rel=1e-3)
    assert float32["accuracy_mean_model"] > 0.4
    assert 0 < float32["consensus_distance"] < signs["consensus_distance"]
    assert float32["lr"] == best_run([r for r in rows if (r["method"], r["kind"]) == ("d-psgd", "last")])[1]
    again = next(each(train, [Run("digits", "iid", "d-psgd", float32["lr"], 0, 1)], 1))
    assert again.pop("losses") == [float32["loss"]]
    assert {**again, "seconds": 0} == {name: float32[name] for name in again} | {"seconds": 0}
    means = get("deepsqueeze").summary(rows)
    assert [row["outcome"] for row in means] == ["trained", "trained", "refused"]
    assert means[0]["megabytes"] == pytest.approx(float32["bytes"] / 8e6)


def test_lost_run_is_a_row() -> None:
    row = next(each(train, [Run("digits", "iid", "dcd-psgd:compressor=(qsgd:bits=1)", 0.2, 0, 4)], 1))
    assert row["diverged"]
    assert row["steps"] < row["planned"]
    assert row["accuracy_mean_model"] is None or row["accuracy_mean_model"] < 2 * GUESSED
    assert "NaN" not in json.dumps(row)
    assert "Infinity" not in json.dumps(row)


def test_best_run() -> None:
    rows: list[Row] = [
        {"lr": 0.2, "loss": 0.1, "diverged": True},
        {"lr": 0.05, "loss": 0.2, "diverged": False},
        {"lr": 0.01, "loss": 0.3, "diverged": False},
    ]
    assert best_run(rows) == (0.2, 0.05)
    assert best_run([row | {"diverged": True} for row in rows]) == (math.inf, 0.01)
    assert best_run([]) == (math.inf, math.inf)


def _mean(method: str, label: str, accuracy: float | None, reached: float | None = 5.0) -> Row:
    head: Row = {"method": method, "label": label, "accuracy": accuracy, "reached": reached}
    return head | {"distance": 1.0, "refused": False}


def _judged(means: list[Row], start: str) -> tuple[str, bool | None]:
    trend = next(trend for trend in judge(means, "here") if trend.claim.startswith(start))
    return trend.measured, trend.holds


def test_statements_are_judged() -> None:
    means = [
        _mean("d-psgd", "32 bits", 0.98),
        _mean("dcd-psgd", "sign", 0.975),
        _mean("dcd-psgd", "top 10%", 0.97),
    ]
    keeps = "DCD-PSGD keeps up at sign"
    assert _judged(means, keeps) == ("-0.5, -1.0", True)
    for lost, told in ((None, "-0.5, div"), (0.9, "-0.5, -8.0")):
        assert _judged([*means[:2], _mean("dcd-psgd", "top 10%", lost)], keeps) == (told, False)
    assert all(trend.holds is None for trend in judge(means[:1], "here"))
    assert len(judge(means[:1], "here")) == len(STATEMENTS)
    assert _judged([*means, _mean("dcd-psgd", "4 bits, L2", 0.2)], "DCD-PSGD fails at 4 bits (L2)") == ("-78.0", True)


@pytest.mark.parametrize(
    ("ours", "theirs", "holds"),
    [
        ((0.97, 0.97, 0.97), (0.97, 0.97, 0.97), False),  # nowhere better
        ((0.97, 0.97, 0.97), (0.97, 0.97, None), True),
        ((0.97, 0.97, 0.97), (0.96, 0.974, 0.97), True),  # less than half a point is no difference
        ((0.97, 0.96, 0.97), (0.96, 0.97, 0.97), False),
        ((None, 0.97, 0.97), (None, 0.96, 0.97), True),
        ((None, 0.97, 0.97), (0.5, 0.96, 0.97), False),
    ],
)
def test_to_outperform_is_to_be_nowhere_worse(
    ours: tuple[float | None, ...], theirs: tuple[float | None, ...], holds: bool
) -> None:
    labels = ("4 bits", "2 bits", "4 bits, L2")
    means = [_mean("d-psgd", "32 bits", 0.98)]
    means += [_mean("deepsqueeze", label, x, x and 10 - 10 * x) for label, x in zip(labels, ours, strict=True)]
    means += [_mean("ecd-psgd", label, x, x and 10 - 10 * x) for label, x in zip(labels, theirs, strict=True)]
    assert _judged(means, "DeepSqueeze outperforms ECD-PSGD")[1] is holds
    faster = _judged(means, "DeepSqueeze needs fewer epochs than ECD-PSGD")
    assert faster[1] is (holds and theirs[1] != 0.974)
    assert faster[0].count("never") == (*ours, *theirs).count(None)


def test_other_tasks_stay(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    keep(path, [{"task": "digits", "split": "iid", "loss": 1.0, "diverged": False, "eta": None}])
    keep(path, [{"task": "digits", "split": "label", "loss": 2.0, "diverged": True, "eta": 0.5}])
    keep(path, [{"task": "digits", "split": "iid", "loss": 3.0, "diverged": False, "eta": None}])
    rows = [{name: row[name] for name in ("split", "loss", "diverged", "eta")} for row in read(path)]
    assert rows == [
        {"split": "label", "loss": 2.0, "diverged": True, "eta": 0.5},
        {"split": "iid", "loss": 3.0, "diverged": False, "eta": None},
    ]
    assert isinstance(read(path)[0]["commit"], str)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["deepsqeeze"], "unknown reproduction 'deepsqeeze'; did you mean 'deepsqueeze'"),
        (["deepsqueeze", "--task", "digit"], "unknown task 'digit'; did you mean 'digits'"),
        (["deepsqueeze", "--split", "labels"], "unknown split 'labels'; did you mean 'label'"),
        (["deepsqueeze", "--epochs", "0"], "write --epochs 20"),
        (["deepsqueeze", "--seeds", "0"], "--seeds 3"),
        (["deepsqueeze", "--method", "choco"], "did you mean 'choco-sgd'"),
        (["deepsqueeze", "--plot", "plot.txt"], "plot.txt is not a plot"),
        (["deepsqueeze", "--data", "/nowhere"], "leave --data out"),
        (["deepsqueeze", "--from", "/nowhere/rows.csv"], "/nowhere/rows.csv"),
    ],
)
def test_bad_input(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(["reproduce", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in rows] == list(REPRODUCTIONS)
    assert any("arXiv 1907.07346" in row["paper"] for row in rows)


def test_recorded_rows_shown_and_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    assert main(["reproduce", "deepsqueeze", "--from", str(DATA), "--plot", str(plot), "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert len(document["rows"]) == len(records.load(DATA))
    assert len(document["trends"]) % len(STATEMENTS) == 0
    assert "plot written" in err
    text = plot.read_text()
    assert "<svg" in text
    assert text.count("<path") > 100
    assert main(["reproduce", "deepsqueeze", "--from", str(DATA)]) == 0
    assert "does not hold: " in capsys.readouterr().out


def test_recorded_rows_are_whole() -> None:
    rows = read(DATA)
    for split in ("iid", "label"):
        mine = [row for row in rows if (row["task"], row["split"]) == ("digits", split)]
        for method in METHODS:
            for label in SIX:
                some = [row for row in mine if (row["method"], row["label"]) == (method, label)]
                final = [row for row in some if row["kind"] == "final"]
                assert len(final) == 1 if final[0]["refused"] else len(final) >= SEEDS["digits"], (method, label)
                if method in MIXES:
                    tried = {(row["lr"], row["given"]) for row in some if row["kind"] == "grid"}
                    assert tried == {(lr, eta) for lr in RATES for eta in ETAS}
                    own = [row for row in some if row["kind"] == "own"] or final
                    assert {row["given"] for row in own} == {None}


def test_recorded_eta_is_near_the_best_of_the_grid() -> None:
    """On quadratics, within 1.5 times: by the mean model, and CHOCO-SGD's by the ranks' own models as well."""
    cells = bench_eta.summary(read(DATA.with_name("eta.csv")))
    assert len(cells) == 2 * 2 * 2 * 6
    for cell in cells:
        assert cell["times"] < 1.5, cell
        assert cell["times_ranks"] < 1.5 or cell["method"] == "deepsqueeze", cell


def test_float32_mixes_by_one() -> None:
    exchange = d_psgd().exchange
    assert isinstance(exchange, Mix)
    assert exchange.step(8) == 1
