"""Modelled pages: shapes are those of the papers, rates are solved, and constants are the recorded ones."""

from __future__ import annotations

import pytest

import thinwire as tw
from thinwire.cli.app import main
from thinwire.lab import figures
from thinwire.lab.records import load
from thinwire.lab.reproduce import Settings, ecq_fig6, get, model_error, qsgd_scaling, scaling
from thinwire.lab.reproduce.deepsqueeze_network import SWEEPS, DeepSqueezeNetwork
from thinwire.lab.reproduce.model_costs import PASSES
from thinwire.lab.reproduce.modelled import Modelled, at_end, rate_for
from thinwire.lab.reproduce.qsgd_nets import NETS, resnet_small
from thinwire.sim import Load, foresee

DATA = figures.ROOT / "benchmarks" / "data"
MODELLED = ("deepsqueeze-network", "ecq-fig6", "qsgd-scaling", "scaling")
SIZES = {
    "alexnet": 62_378_344,
    "vgg19": 143_667_240,
    "resnet152": 60_192_808,
    "resnet50": 25_557_032,
    "bn-inception": 11_285_224,
    "resnet110": 1_727_962,
}


def test_nets_have_their_parameters() -> None:
    assert {name: sum(one.numel for one in net()) for name, net in NETS.items()} == SIZES
    assert sum(one.numel for one in resnet_small(20)) == 269_722
    operations = {name: sum(one.flops for one in net()) / 2e9 for name, net in NETS.items()}
    assert operations["vgg19"] == pytest.approx(19.6, rel=0.01)  # multiplications, as its paper counts them
    assert operations["bn-inception"] == pytest.approx(2.0, rel=0.05)


def test_passes_are_the_recorded_ones() -> None:
    found = {(r["kernel"], r["method"]): float(r["ms_p50"]) for r in load(DATA / "kernels-cuda.csv")}
    assert {name: found[name] for name in PASSES} == PASSES


def test_measured_steps_are_the_recorded_ones() -> None:
    for file in ("step-hosts-16", "step-hosts-cuda"):
        recorded = load(DATA / f"{file}.csv")
        alone = {r["rate"]: float(r["step_ms"]) for r in recorded if r["method"] == "no communication"}
        steps = {(r["rate"], model_error.NAMES.get(r["method"], r["method"])): r for r in recorded}
        mine = [one for one in model_error.MEASURED if one.file == file]
        assert len(mine) == len(recorded) - 2 * len(alone)  # without PowerSGD's hook, which has one bucket
        for one in mine:
            row = steps[one.rate, one.method]
            passes = float(row["encode_ms"] or 0) + float(row["decode_ms"] or 0)
            wanted = (float(row["step_ms"]), alone[one.rate], passes)
            assert (one.step, one.alone, one.passes) == pytest.approx(wanted, abs=0.051)


def test_error_is_told() -> None:
    one = model_error.MEASURED[0]
    assert one.method == "sgd"
    assert model_error.modelled(one) == pytest.approx(one.step, rel=0.1)
    rows = [{"kind": "error", "off": off} for off in (-0.1, 0.02, -0.3)] + [{"kind": "step", "off": None}]
    told = model_error.sentence(rows)
    assert "3 steps" in told
    assert "10% at the median and 30% at worst; 2 of 3 are too short" in told
    assert "all 1 are too short" not in model_error.sentence(rows[1:])
    assert "all 2 are too short" in model_error.sentence([rows[0], rows[2]])


def test_rate_for() -> None:
    assert rate_for(1.5, lambda rate: 1 + 1e9 / rate) == pytest.approx(2e9, rel=1e-5)
    assert rate_for(0.5, lambda rate: 1 + 1e9 / rate) is None
    assert rate_for(2000.0, lambda rate: 1 + 1e9 / rate) is None


def test_without_overlap_a_step_is_computing_and_a_ring() -> None:
    load = at_end(Load.of("resnet50", 0.2))
    whole = [one.step for one in (foresee(tw.methods.sgd(), load, 4, steps=1, network=tw.Network("10gbit", 0.0)),)]
    ring = 2 * 3 / 4 * 4 * load.numel * 8 / 10e9
    assert whole == pytest.approx([0.2 + ring], rel=1e-3)


def test_solved_rate_gives_the_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ecq_fig6, "MOST", 32)
    (row,) = ecq_fig6.solved("after backward", 0.25, 1.435)
    assert ecq_fig6.gain(row["gbit"] * 1e9, "after backward", 0.25) == pytest.approx(1.435, rel=1e-4)
    ecq_fig6.rate_of.cache_clear()  # of fewer GPUs than it should be


def test_the_fitted_cell_is_met() -> None:
    recorded = next(
        row
        for row in load(DATA / "qsgd-scaling.csv")
        if (row["net"], row["gpus"], row["method"]) == ("alexnet", "8", "QSGD")
    )
    again = qsgd_scaling.gain("alexnet", 8, float(recorded["gbit"]) * 1e9)
    assert again == pytest.approx(2.05, rel=1e-4)
    assert float(recorded["gain"]) == pytest.approx(again, rel=1e-6)


def test_a_small_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for sweep, places in list(SWEEPS.items()):
        monkeypatch.setitem(SWEEPS, sweep, places[2:3])
    made, heard = DeepSqueezeNetwork(), []
    rows = made.run(
        Settings(methods=("D-PSGD, 32 bits", "DeepSqueeze, 4 bits")), lambda *news: heard.append(news[:2])
    )
    assert heard == [(n, 6) for n in range(1, 7)]
    ring, squeezed = rows[:2]
    assert ring["bytes"] > 7 * squeezed["bytes"]
    assert ring["step_ms"] > squeezed["step_ms"]
    verdicts = {trend.claim: trend.holds for trend in made.trends(rows)}
    assert verdicts["DeepSqueeze is faster than D-PSGD where the rate is low"] is True
    assert verdicts["DeepSqueeze is faster than an all-reduce of 32 bits where the rate is low"] is None


def test_a_place_of_the_picture() -> None:
    (row,) = scaling.rows_of("all-reduce", 64, scaling.FAST)
    assert row["mb"] == pytest.approx(2 * 63 / 64 * 4 * SIZES["resnet50"] / 1e6, rel=1e-3)


@pytest.mark.parametrize("name", MODELLED)
def test_recorded_rows_are_shown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(get(name), Modelled)
    assert main(["reproduce", name, "--from", str(DATA / f"{name}.csv")]) == 0
    assert "holds: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "fashion"], "leave --task, --split and --data out"),
        (["--epochs", "3"], "leave --epochs and --seeds out"),
        (["--method", "ECQ"], "unknown method 'ECQ'; did you mean 'ECQ-SGD'"),
    ],
)
def test_bad_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "ecq-fig6", *arguments]) == 2
    assert message in capsys.readouterr().err
