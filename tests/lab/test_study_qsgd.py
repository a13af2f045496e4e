"""QSGD's page: claims about 16 workers are judged at 16."""

from __future__ import annotations

from typing import Any

import pytest

from thinwire.lab.records import Row
from thinwire.lab.reproduce.qsgd_page import trends

BITS = {"32 bits": 32.0, "4 bits": 4.08}


def rows(compute: float, wire: float) -> list[Row]:
    """Seconds of an epoch between 4 workers: float32 in a ring, 4 bits to every other worker; encoding is free."""
    on = {"32 bits": wire, "4 bits": wire * 3 * BITS["4 bits"] / (1.5 * BITS["32 bits"])}
    made: list[Row] = []
    for label, bits in BITS.items():
        base: dict[str, Any] = {"task": "digits", "label": label, "limit": None, "bits_per_element": bits}
        values = {"wire": on[label], "epoch": compute + on[label], "share": on[label] / (compute + on[label])}
        values["accuracy"] = 0.98
        made += [{**base, "kind": kind, "value": value} for kind, value in values.items()]
    return made


def test_time_on_the_wire_between_16_workers() -> None:
    told = {trend.claim: trend for trend in trends(rows(compute=0.065, wire=0.193))}
    cut, epoch = told["4 bits cut time on the wire by 4"], told["4 bits shorten an epoch"]
    assert cut.measured == "0.98x between 16 workers (3.9x between 4)"
    assert pytest.approx(0.98, abs=0.005) == 64 / (4.08 * 16)
    assert cut.holds is False
    assert epoch.measured.startswith("at most 0.98x between 16 workers")
    assert epoch.holds is False
