"""What `thinwire plan --verify` prints: the outlook, then the miss of every method that took steps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from thinwire.cli.app import main
from thinwire.lab import plan_models, plan_verify
from thinwire.planning.outlook import Outlook, Row, recommend

NOTE = "This kernel cannot delay packets."
ASKED = ["plan", "--verify", "--rate", "100mbit", "--latency", "5ms", "--budget", "0.5"]


def row(method: str, step: float) -> Row:
    return Row(method, step, step, step, "link", None, 100, 0, 1.0, 1.0, 1.0)


def cell(method: str, predicted: float, measured: float) -> dict[str, Any]:
    return {
        "method": method,
        "rate": "100mbit",
        "latency": "5ms",
        "predicted_ms": predicted,
        "step_ms": measured,
        "error": predicted / measured - 1,
    }


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """How the lab was called, which is not built: it needs root, and takes a minute."""
    made: list[tuple[Any, ...]] = []
    rows = (row("int8", 50.0), row("ddp", 200.0))
    plan = Outlook(rows, *recommend(rows), 2, 1e8, 5e-3, 10.0, 1000, {})

    def verify(found: Outlook, wanted: Any, rate: str, latency: str, hear: Any, budget: float) -> Any:
        made.append((found.recommended, wanted.name, rate, latency, budget))
        hear(("measuring", "the link at 100mbit"))
        return plan_verify.Verified([cell("int8", 54.0, 60.0), cell("ddp", 210.0, 200.0)], NOTE)

    monkeypatch.setattr(plan_models, "outlook", lambda *_: plan)
    monkeypatch.setattr(plan_verify, "can_build", lambda: None)
    monkeypatch.setattr(plan_verify, "verify", verify)
    return made


def test_the_table_has_the_miss_of_each(calls: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ASKED) == 0
    said = capsys.readouterr().out
    assert calls == [("int8", "mlp", "100mbit", "5ms", 0.5)]
    forecast, measured = said.split("Forecast for 2 hosts on this machine", 1)
    assert "Take int8: " in forecast
    cells = [[word for word in line.split() if word.isascii()] for line in measured.splitlines()]
    assert ["int8", "100mbit", "5ms", "54.0", "60.0", "-10.0%"] in cells
    assert ["ddp", "100mbit", "5ms", "210.0", "200.0", "+5.0%"] in cells
    assert measured.splitlines()[-1] == NOTE


def test_json_is_one_document_with_what_was_verified(
    calls: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ASKED, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["recommended"] == "int8"
    assert [(one["method"], one["latency"]) for one in told["verified"]] == [("int8", "5ms"), ("ddp", "5ms")]
    assert [one["error"] for one in told["verified"]] == pytest.approx([-0.1, 0.05])
    assert told["verified_note"] == NOTE
    assert "environment" in told


def test_what_was_not_asked_for_has_its_usual_value(
    calls: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--verify", "--json"]) == 0
    assert calls == [("int8", "mlp", "1gbit", "100us", plan_verify.BUDGET)]


def test_between_the_hosts_of_torchrun_there_is_nothing_to_build(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["plan", "--verify"]) == 2
    assert "write thinwire plan --verify without torchrun" in " ".join(capsys.readouterr().err.split())
