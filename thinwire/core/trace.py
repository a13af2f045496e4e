"""Traces: spans as a file in the trace-event format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

A worker is a process, with threads for computing, for its processor's passes and for its link. Spans that overlap in
one of them stand in rows of their own: "link", "link 2", ... A mark without length is an instant.

Reference: "Trace event format", the Chromium project: events of phase X (complete), i (instant) and M (metadata),
with times in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from thinwire.core.clock import Span

THREADS = {
    **dict.fromkeys(("compute", "update", "wait", "launch", "backward ends"), "compute"),
    **dict.fromkeys(("encode", "decode"), "processor"),
    "wire": "link",
}
ORDER = ("compute", "processor", "link", "other")
ROWS = 100  # of one thread, at most


def write_trace(path: Path | str, spans: Mapping[int, Iterable[Span]]) -> int:
    """Write the spans of workers, by rank; returns how many events there are. The first span begins at 0.

    Folders of the path are made.
    """
    events = trace_events(spans)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    return len(events)


def trace_events(spans: Mapping[int, Iterable[Span]]) -> list[dict[str, Any]]:
    """The events of a trace file."""
    found = {rank: sorted(some, key=lambda span: (span.start, -span.stop)) for rank, some in spans.items()}
    zero = min((some[0].start for some in found.values() if some), default=0.0)
    events: list[dict[str, Any]] = []
    for rank, some in sorted(found.items()):
        events.append(_named("process_name", rank, 0, f"worker {rank}"))
        free: dict[int, float] = {}  # until when a row is taken, by its thread
        for span in some:
            kind = THREADS.get(span.what, "other")
            tid = _row(free, ROWS * ORDER.index(kind), span)
            if tid not in free:
                number = tid % ROWS
                events.append(_named("thread_name", rank, tid, kind if not number else f"{kind} {number + 1}"))
            free[tid] = max(span.stop, free.get(tid, span.stop))
            events.append(_event(span, rank, tid, zero))
    return events


def _row(free: Mapping[int, float], first: int, span: Span) -> int:
    """The first row of a thread that is free when the span starts."""
    tid = first
    while free.get(tid, span.start) > span.start and tid < first + ROWS - 1:
        tid += 1
    return tid


def _event(span: Span, rank: int, tid: int, zero: float) -> dict[str, Any]:
    args = {name: value for name, value in (("bucket", span.bucket), ("chunk", span.chunk)) if value >= 0}
    event = {"name": span.what, "pid": rank, "tid": tid, "ts": (span.start - zero) * 1e6, "args": args}
    if span.stop > span.start:
        return {**event, "ph": "X", "dur": (span.stop - span.start) * 1e6}
    return {**event, "ph": "i", "s": "t"}


def _named(what: str, rank: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "ts": 0, "pid": rank, "tid": tid, "args": {"name": name}}
