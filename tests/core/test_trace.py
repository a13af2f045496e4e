"""Trace files: events as the trace-event format has them, of a simulation and of spans that a wire recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import thinwire as tw
from thinwire.core.clock import Span
from thinwire.core.trace import write_trace
from thinwire.sim import Costs, Pass, foresee


def read(path: Path) -> list[dict[str, Any]]:
    """The events of a file, after checking what every viewer needs."""
    found = json.loads(path.read_text())
    named: set[object] = set()
    rows: dict[tuple[int, int], float] = {}  # until when each is taken
    for event in found["traceEvents"]:
        assert event["ph"] in ("X", "i", "M")
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ts"] >= 0
        place = event["pid"], event["tid"]
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert event["args"]["name"]
            named.add(place if event["name"] == "thread_name" else event["pid"])
        else:
            assert {place, event["pid"]} <= named
        if event["ph"] == "X":
            assert event["dur"] > 0
            assert event["ts"] >= rows.get(place, 0.0) - 1e-6, "spans of one row must not overlap"
            rows[place] = event["ts"] + event["dur"]
    events: list[dict[str, Any]] = found["traceEvents"]
    return events


def test_a_forecast_as_a_trace(tmp_path: Path) -> None:
    done = foresee(tw.methods.qsgd(), "resnet50", 3, steps=2, costs=Costs(Pass(1e-9, 1e-9)), marks=True)
    done.trace(tmp_path / "sim.json")
    events = read(tmp_path / "sim.json")
    assert {event["pid"] for event in events} == {0, 1, 2}
    assert {event["name"] for event in events if event["ph"] == "X"} >= {
        "compute",
        "encode",
        "decode",
        "wire",
        "wait",
    }
    last = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")
    assert last == pytest.approx(done.seconds * 1e6)
    computed = sum(event["dur"] for event in events if event["ph"] == "X" and event["name"] == "compute")
    assert computed == pytest.approx(3 * 2 * 0.1 * 1e6)


def test_a_forecast_without_marks_has_no_trace(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="marks=True"):
        foresee(tw.methods.qsgd(), "resnet50", 3, steps=1).trace(tmp_path / "sim.json")


def test_spans_of_a_wire_as_a_trace(tmp_path: Path) -> None:
    """Two chunks on the wire at once stand in two rows; marks without length are instants."""
    spans = [
        Span("launch", 5.0, 5.0, 0, -1),
        Span("encode", 5.0, 5.1, 0, 0),
        Span("wire", 5.1, 5.4, 0, 0),
        Span("wire", 5.2, 5.5, 0, 1),
        Span("backward ends", 5.3, 5.3, -1, -1),
    ]
    write_trace(tmp_path / "real.json", {1: spans})
    events = read(tmp_path / "real.json")
    wires = [event for event in events if event["name"] == "wire"]
    assert len({event["tid"] for event in wires}) == 2
    assert wires[0]["ts"] == pytest.approx(0.1e6)
    assert wires[0]["dur"] == pytest.approx(0.3e6)
    assert [event["ph"] for event in events if event["name"] in ("launch", "backward ends")] == ["i", "i"]
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert sorted(names) == ["compute", "link", "link 2", "processor"]
