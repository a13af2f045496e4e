"""Trace files: events as the trace-event format has them, of a simulation and of spans that a wire recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import nn

import thinwire as tw
from thinwire.core.clock import Span
from thinwire.core.trace import read_trace, write_trace
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


def spans(start: float) -> list[Span]:
    """A tenth of a second of computing, a pass of 0.2 s, and a message of 0.3 s."""
    return [
        Span("compute", start, start + 0.1, -1, -1),
        Span("encode", start + 0.1, start + 0.3, 0, 0),
        Span("wire", start + 0.3, start + 0.6, 0, 0),
    ]


def workers(events: list[dict[str, Any]]) -> dict[int, str]:
    """Names by process."""
    return {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}


def begins(events: list[dict[str, Any]], what: str) -> dict[int, float]:
    """When each process first does something, in seconds."""
    found: dict[int, float] = {}
    for event in events:
        if event["name"] == what:
            found[event["pid"]] = min(event["ts"] / 1e6, found.get(event["pid"], event["ts"] / 1e6))
    return found


def test_workers_of_another_trace_stand_beside(tmp_path: Path) -> None:
    """Every process has a number and a name of its own, and its spans are as long as they were."""
    write_trace(tmp_path / "real.json", {0: spans(100.0), 1: spans(100.25)})
    many = write_trace(tmp_path / "both.json", {0: spans(0.0), 1: spans(0.0)}, tmp_path / "real.json", ", simulated")
    both = read(tmp_path / "both.json")
    assert len(both) == many
    assert workers(both) == {
        0: "worker 0, simulated",
        1: "worker 1, simulated",
        2: "worker 0",
        3: "worker 1",
    }
    assert begins(both, "encode") == pytest.approx({0: 0.1, 1: 0.1, 2: 0.1, 3: 0.35})
    ends = {event["pid"]: (event["ts"] + event["dur"]) / 1e6 for event in both if event["name"] == "wire"}
    assert ends == pytest.approx({0: 0.6, 1: 0.6, 2: 0.6, 3: 0.85})
    again = read_trace(tmp_path / "both.json")  # a file of two is a file like others
    assert again == both


def test_equal_names_are_told_apart_and_free_numbers_kept(tmp_path: Path) -> None:
    """Two runs of the same ranks, one after the other; then a third beside both."""
    write_trace(tmp_path / "monday.json", {0: spans(7.0), 5: spans(7.0)})
    write_trace(tmp_path / "tuesday.json", {0: spans(9.0)}, tmp_path / "monday.json")
    found = workers(read(tmp_path / "tuesday.json"))
    assert found == {0: "worker 0", 6: "worker 0 (monday)", 5: "worker 5"}
    write_trace(tmp_path / "monday.json", {0: spans(1.0)}, tmp_path / "tuesday.json")
    found = workers(read(tmp_path / "monday.json"))
    assert sorted(found.values()) == ["worker 0", "worker 0 (monday)", "worker 0 (tuesday)", "worker 5"]
    write_trace(tmp_path / "monday.json", {0: spans(1.0)}, tmp_path / "monday.json")  # over itself
    found = workers(read(tmp_path / "monday.json"))
    assert len(found) == len(set(found.values())) == 5


@pytest.mark.parametrize(("first", "second"), [(0.4, 0.1), (0.1, 0.4)])
def test_two_runs_begin_their_first_pass_or_message_together(tmp_path: Path, first: float, second: float) -> None:
    """Whichever computes longer before it: nothing is moved to before 0."""
    for name, late in (("real", first), ("sim", second)):
        some = [Span("compute", 3.0, 3.0 + late, -1, -1), Span("wire", 3.0 + late, 4.0, 0, 0)]
        beside = tmp_path / "real.json" if name == "sim" else None
        write_trace(tmp_path / f"{name}.json", {0: some}, beside)
    both = read(tmp_path / "sim.json")
    assert begins(both, "wire") == pytest.approx({0: 0.4, 1: 0.4})
    assert begins(both, "compute") == pytest.approx({0: 0.4 - second, 1: 0.4 - first})


def test_a_trace_without_messages_begins_with_the_other(tmp_path: Path) -> None:
    write_trace(tmp_path / "alone.json", {0: [Span("compute", 2.0, 3.0, -1, -1)]})
    write_trace(tmp_path / "empty.json", {})
    write_trace(tmp_path / "both.json", {0: spans(0.0)}, tmp_path / "alone.json")
    assert begins(read(tmp_path / "both.json"), "compute") == pytest.approx({0: 0.0, 1: 0.1})
    write_trace(tmp_path / "both.json", {0: spans(0.0)}, tmp_path / "empty.json")
    assert workers(read(tmp_path / "both.json")) == {0: "worker 0"}
    write_trace(tmp_path / "both.json", {}, tmp_path / "alone.json")
    assert workers(read(tmp_path / "both.json")) == {0: "worker 0"}


EVENT = {"name": "wire", "ph": "X", "pid": 0, "tid": 0, "ts": 0.0, "dur": 1.0, "args": {}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "step,seconds\n0,0.1",
        "[]",
        "{}",
        '{"traceEvents": {}}',
        '{"traceEvents": [1]}',
        json.dumps({"traceEvents": [EVENT, {**EVENT, "pid": "Spans"}]}),  # as PyTorch's profiler has it
        json.dumps({"traceEvents": [{name: value for name, value in EVENT.items() if name != "dur"}]}),
        json.dumps({"traceEvents": [{**EVENT, "ts": "soon"}]}),
        json.dumps({"traceEvents": [{**EVENT, "ph": "M"}]}),
        json.dumps({"traceEvents": [{**EVENT, "ph": "B"}]}),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "rank0.json").write_text(text)
    with pytest.raises(ValueError, match=r"rank0\.json is no trace of thinwire; write beside="):
        write_trace(tmp_path / "both.json", {0: spans(0.0)}, tmp_path / "rank0.json")
    assert not (tmp_path / "both.json").exists()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.json cannot be read \(No such file or directory\); write beside="):
        read_trace(tmp_path / "none.json")
    with pytest.raises(ValueError, match=r"cannot be read \(Is a directory\)"):
        read_trace(tmp_path)
    (tmp_path / "picture.json").write_bytes(b"\x89PNG\xff")
    with pytest.raises(ValueError, match=r"picture\.json is no trace"):
        read_trace(tmp_path / "picture.json")


def trained(folder: str) -> list[Span]:
    """Two steps on two ranks. Rank 1 takes rank 0's file into its own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tw.attach(model, optimizer, tw.methods.qsgd(), min_size=0) as wire:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 32)).square().mean().backward()
            optimizer.step()
        if dist.get_rank() == 0:
            wire.trace(f"{folder}/rank0.json")
        dist.barrier()
        if dist.get_rank() == 1:
            wire.trace(Path(folder) / "both.json", beside=f"{folder}/rank0.json")
        return wire.events()


def test_a_real_run_as_a_trace_beside_another_rank_and_a_simulation(tmp_path: Path) -> None:
    seen, _ = on_ranks(trained, 2, str(tmp_path))
    alone = read(tmp_path / "rank0.json")
    assert workers(alone) == {0: "worker 0"}
    done = [event for event in alone if event["ph"] != "M"]
    assert [event["name"] for event in done] == [span.what for span in sorted(seen, key=lambda s: (s.start, -s.stop))]
    assert {event["name"] for event in done} >= {"launch", "encode", "wire", "decode", "backward ends"}
    zero = min(span.start for span in seen)
    for what in ("encode", "wire", "decode"):
        lengths = sorted(event["dur"] / 1e6 for event in done if event["name"] == what and event["ph"] == "X")
        assert lengths == pytest.approx(sorted(s.stop - s.start for s in seen if s.what == what), abs=1e-9)
        assert begins(alone, what)[0] == pytest.approx(min(s.start for s in seen if s.what == what) - zero, abs=1e-9)
    assert workers(read(tmp_path / "both.json")) == {0: "worker 0", 1: "worker 1"}
    simulated = foresee(tw.methods.qsgd(), "resnet50", 2, steps=1, costs=Costs(Pass(1e-9, 1e-9)), marks=True)
    simulated.trace(tmp_path / "all.json", beside=tmp_path / "both.json")
    every = read(tmp_path / "all.json")
    assert sorted(workers(every).values()) == [
        "worker 0",
        "worker 0, simulated",
        "worker 1",
        "worker 1, simulated",
    ]
    exchanged = [event for event in every if event["name"] in ("encode", "decode", "wire")]
    names = workers(every)
    first = {
        simulated: min(event["ts"] for event in exchanged if names[event["pid"]].endswith("simulated") is simulated)
        for simulated in (False, True)
    }
    assert first[False] == pytest.approx(first[True])
