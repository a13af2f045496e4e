"""Training runs: the same seed gives the same numbers, and curves fit together."""

from __future__ import annotations

import pytest
import torch
from nets import MUON

from thinwire.core.method import METHODS
from thinwire.lab.launch import launch
from thinwire.lab.step_sizes import Step, named, optimizer_of, step_of
from thinwire.lab.tasks import get
from thinwire.lab.train import Job, Progress, train_all
from thinwire.optim import OneBitAdam


def test_same_seed_same_numbers() -> None:
    heard: list[Progress] = []
    jobs = [Job("digits", "qsgd:bits=2", seed, epochs=1) for seed in (3, 3, 4)]
    first, other = launch(train_all, 2, jobs, timeout=100, hear=heard.append)
    assert first[0]["curves"]["loss"] == first[1]["curves"]["loss"] == other[0]["curves"]["loss"]
    assert first[0]["curves"]["loss"] != first[2]["curves"]["loss"]
    row = first[0]
    curves = row["curves"]
    assert curves["step"] == [float(n) for n in range(1, 45)]
    assert curves["bytes_sent"][-1] == row["bytes_sent"]
    assert sorted(curves["seconds"]) == curves["seconds"]
    assert curves["seconds"][-1] <= row["seconds"]
    # One definition of the loss: a twentieth of the run, three of its 44 steps, over all ranks.
    assert heard[-1].loss == first[-1]["loss"] == first[-1]["curves"]["loss"][-1]
    assert row["loss"] == curves["loss"][-1]
    assert (row["loss_steps"], jobs[0].steps(2)) == (3, 44)
    assert (row["tested"], row["optimizer"]) == (360, "sgd")
    assert row["accuracy_low"] < row["accuracy"] < row["accuracy_high"]
    assert {news.job for news in heard} == {0, 1, 2}
    assert all(news.steps == 44 for news in heard)


def test_sign_methods_take_small_steps() -> None:
    task = get("digits")
    assert step_of(task, "majority-vote").lr < task.lr / 10
    assert step_of(task, "majority-vote").momentum == 0
    assert (step_of(task, "qsgd:bits=2").lr, step_of(task, "qsgd").momentum) == (task.lr, 0.9)


@pytest.mark.skipif(not MUON, reason="torch has Muon from 2.9 on")
def test_muloco_gets_muon_for_matrices_and_eamsgd_nesterovs_momentum() -> None:
    matrix, bias = torch.zeros(3, 2), torch.zeros(3)
    both = optimizer_of(METHODS.parse("muloco"), step_of(get("digits"), "muloco"), [matrix, bias])
    muon, adamw = both.param_groups
    assert muon["params"][0] is matrix
    assert adamw["params"][0] is bias
    assert (muon["lr"], muon["momentum"], adamw["lr"]) == (1e-3, 0.95, 1e-3)
    assert {"ns_steps"} <= {*muon} - {*adamw}
    eamsgd = optimizer_of(METHODS.parse("eamsgd"), step_of(get("digits"), "eamsgd"), [bias])
    assert (eamsgd.defaults["nesterov"], eamsgd.defaults["momentum"]) == (True, 0.99)


def test_an_optimizer_may_be_asked_for() -> None:
    digits, weight = get("digits"), [torch.zeros(1)]
    step = step_of(digits, "int4", "adamw")
    optimizer = optimizer_of(METHODS.parse("int4"), step, weight)
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.defaults["lr"] == step.lr == 8e-3
    assert step_of(digits, "int4", "adamw", 0.5) == Step(0.5, 0.9, "adamw")
    assert step_of(digits, "signsgd", None, 0.5) == Step(0.5, 0.0)
    assert step_of(digits, "signsgd", "sgd").lr == step_of(digits, "signsgd").lr  # it is what the method states
    assert step_of(get("fashion"), "int4", "adamw").lr == 1e-3
    assert named("adamw", "sgd") == "AdamW + float32"
    with pytest.raises(ValueError, match=r"one-bit-adam goes with OneBitAdam.* alone; leave --optimizer adamw out"):
        step_of(digits, "one-bit-adam", "adamw")


def test_a_method_that_keeps_momentum_leaves_none_to_the_optimizer() -> None:
    for name in ("digits", "fashion", "text"):
        task = get(name)
        for method in ("dgc:ratio=0.01", "signum", "demo"):
            step = step_of(task, method)
            optimizer = optimizer_of(METHODS.parse(method), step, [torch.zeros(1)])
            assert (step.momentum, optimizer.defaults["momentum"]) == (0, 0)
        assert step_of(task, "dgc").lr == task.lr
        assert step_of(task, "demo").lr < 0.01
        assert isinstance(
            optimizer_of(METHODS.parse("one-bit-adam"), step_of(task, "one-bit-adam"), [torch.zeros(1)]), OneBitAdam
        )


def test_without_muon_its_version_of_torch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Muon", raising=False)
    with pytest.raises(ValueError, match=r'muloco has Muon inside.* write pip install "torch>=2.9"'):
        optimizer_of(METHODS.parse("muloco"), Step(0.01), [torch.zeros(3, 2)])
