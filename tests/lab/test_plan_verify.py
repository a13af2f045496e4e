"""`thinwire plan --verify`: forecasts and steps of the best two and DDP, in a lab that has the link of the plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from thinwire.lab import bench_plan, plan_verify
from thinwire.lab.bench_hosts import FREE
from thinwire.lab.plan_models import Wanted
from thinwire.lab.plan_verify import contestants, verify


@dataclass
class Named:
    method: str


@dataclass
class Found:
    """What verify reads of an outlook."""

    recommended: str
    rows: list[Named]
    hosts: int = 2


def found(recommended: str, *names: str) -> Any:
    return Found(recommended, [Named(name) for name in names])


class Lab:
    """In place of a network: it remembers what was asked of it, and a kernel without netem is one that refuses."""

    def __init__(self, *, netem: bool) -> None:
        self.netem, self.entered = netem, 0
        self.asked: list[tuple[int, str, str | None]] = []
        self.latency: str | None = None

    def __call__(self, hosts: int, rate: str, latency: str | None = None) -> Lab:
        self.asked.append((hosts, rate, latency))
        self.latency = latency
        return self

    def __enter__(self) -> Lab:
        if self.latency is not None and not self.netem:
            raise ValueError("this kernel has no netem queue, which delays packets; leave --latency out")
        self.entered += 1
        return self

    def __exit__(self, *error: object) -> None:
        self.entered -= 1


@dataclass
class Launched:
    """In place of `launch`: one row for each contestant, in the order of `bench_plan`."""

    job: Any = None
    hosts: Any = None

    def __call__(self, program: Any, workers: int, job: Any, **more: Any) -> list[list[dict[str, Any]]]:
        assert program is bench_plan.bench
        assert more["hosts"].entered == 1
        self.job, self.hosts = job, more["hosts"]
        return [[{"method": name, "rate": job.rates[0]} for name in (*job.rivals, *job.methods)]] * workers


def verified(
    monkeypatch: pytest.MonkeyPatch, lab: Lab, latency: str, plan: Any = None
) -> tuple[plan_verify.Verified, Launched]:
    launched = Launched()
    monkeypatch.setattr(plan_verify, "Network", lab)
    monkeypatch.setattr(plan_verify, "launch", launched)
    told = verify(
        plan or found("int8", "bf16", "int8", "ddp"), Wanted("mlp", params=4096, batch=1), "100mbit", latency
    )
    assert lab.entered == 0
    return told, launched


def test_the_recommended_one_the_fastest_other_and_ddp_are_verified() -> None:
    assert contestants(found("bf16", "bf16", "int8", "ddp", "topk")) == ["bf16", "int8", "ddp"]
    assert contestants(found("topk", "bf16", "int8", "topk", "ddp")) == ["topk", "bf16", "ddp"]  # asks for less
    assert contestants(found("ddp", "bf16", "ddp", "topk")) == ["ddp", "bf16"]
    assert contestants(found("topk", "ddp", "topk")) == ["topk", "ddp"]


def test_links_have_the_rate_and_the_latency_that_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(netem=True)
    told, launched = verified(monkeypatch, lab, "5ms", found("int8", "ddp fp16", "int8", "ddp"))
    assert lab.asked == [(2, FREE, "5ms")]  # ranks lower the rate where it counts; they cannot change the delay
    job = launched.job
    assert (job.rates, job.methods, job.rivals, job.tries) == (["100mbit"], ["int8"], ["ddp", "ddp fp16"], 0)
    assert [row["method"] for row in told.rows] == ["int8", "ddp fp16", "ddp"]
    assert [(row["rate"], row["latency"]) for row in told.rows] == [("100mbit", "5ms")] * 3
    assert told.note == ""


def test_a_kernel_that_cannot_delay_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(netem=False)
    told, launched = verified(monkeypatch, lab, "5ms")
    assert lab.asked == [(2, FREE, "5ms"), (2, FREE, None)]
    assert launched.hosts is lab
    assert [row["latency"] for row in told.rows] == [None] * 3
    assert "cannot delay packets, so that steps and forecasts here are for 100mbit without the 5ms" in told.note
    assert told.note.count(".") == 1


def test_no_latency_needs_no_netem(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(netem=False)
    told, _ = verified(monkeypatch, lab, "0ms")
    assert lab.asked == [(2, FREE, None)]
    assert [row["latency"] for row in told.rows] == ["0ms"] * 3
    assert told.note == ""


@pytest.mark.long
def test_they_take_steps(root: None) -> None:
    heard: list[tuple[str, str]] = []
    plan = found("int8", "bf16", "int8", "ddp")
    rows, note = verify(plan, Wanted("mlp", params=4096, batch=1), "100mbit", "2ms", heard.append, budget=0.05)
    assert [row["method"] for row in rows] == ["int8", "bf16", "ddp"]
    for row in rows:
        assert (row["hosts"], row["rate"], row["params"]) == (2, "100mbit", 4096)
        assert row["latency"] == (None if note else "2ms")
        assert row["steps"] >= 2
        assert note or row["step_ms"] > 2
        assert row["error"] == pytest.approx(row["predicted_ms"] / row["step_ms"] - 1)
    assert ("measuring", "the link at 100mbit") in heard
    assert ("steps, turn 1 of 6", "bf16") in heard
