"""Rates and delays in the words of tc: "1gbit", "100mbit", "2ms"."""

from __future__ import annotations

import re

BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
LOWEST = 10**5  # bits per second; below this, one full packet takes longer than the shaper may hold it
HIGHEST = 10**12


def bits_per_second(rate: str) -> int:
    """A rate as a number; raises ValueError where tc would read it differently or not at all."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(bit|kbit|mbit|gbit)", rate)
    bits = round(float(found[1]) * BITS[found[2]]) if found else 0
    if not LOWEST <= bits <= HIGHEST:
        raise ValueError(f"rate={rate!r}: write a number and kbit, mbit or gbit, from 100kbit up: --rate 1gbit")
    return bits


def seconds(delay: str, what: str = "latency", write: str = "--latency 2ms") -> float:
    """A delay as a number; an error says `what` it is and how to write it."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)", delay)
    if not found:
        raise ValueError(f"{what}={delay!r}: write a number and us, ms or s: {write}")
    return float(found[1]) * SECONDS[found[2]]
