"""Forecast and measured side by side inside a step: what lanes did when, so that a miss can be traced to its part.

Spans are of rank 0, in milliseconds from the start of a step that is not one of the timed ones. A lane's work is what
lies between its requests in the replay. In a real step only encoding and decoding are marked, and what is missing
between the marks is the engine's own. Sums are over lanes that run at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch.distributed as dist

from thinwire.lab.records import Row

if TYPE_CHECKING:
    from thinwire.lab.bench_hosts import Contestant
    from thinwire.planning.replay import Replayed

CODED = ("encode_s", "decode_s")


def spent(before: Mapping[str, float], after: Mapping[str, float], steps: int) -> Row:
    """What rank 0 spent per step between two looks at the counters; nothing of DDP, which has none."""
    if not after:
        return {"measured_codec_ms": None, "measured_wire_ms": None}
    each = {name: 1e3 * (after[name] - before[name]) / steps for name in (*CODED, "wire_s")}
    return {"measured_codec_ms": sum(each[name] for name in CODED), "measured_wire_ms": each["wire_s"]}


def measured(contestant: Contestant) -> Row:
    """The spans of one more step; all ranks call this."""
    if contestant.events is None:
        return {"measured_spans": ""}
    dist.barrier()
    start = time.perf_counter()
    contestant.step()
    told = [
        f"{span.bucket}.{span.chunk} {span.what} {_ms(span.start - start)}-{_ms(span.stop - start)}"
        for span in contestant.events()
    ]
    return {"measured_spans": "; ".join(told)}


def forecast(found: Replayed) -> Row:
    """The same of the last step of a replay."""
    spans = [span for span in found.spans if span.start >= found.start]
    first = min((span.piece for span in spans), default=0)
    told = [
        f"{span.piece - first} {span.what} {_ms(span.start - found.start)}-{_ms(span.stop - found.start)}"
        for span in spans
    ]
    return {
        "forecast_codec_ms": 1e3 * sum(span.stop - span.start for span in spans if span.what == "work"),
        "forecast_wire_ms": 1e3 * sum(span.stop - span.start for span in spans if span.what != "work"),
        "forecast_spans": "; ".join(told),
    }


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"
