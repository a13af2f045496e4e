"""Published comparisons, run again: `get("deepsqueeze")` is one, and `thinwire reproduce` runs it."""

from thinwire.core.registry import suggest
from thinwire.lab.reproduce.base import Reproduction, Settings, Trend
from thinwire.lab.reproduce.deepsqueeze import DeepSqueeze
from thinwire.lab.reproduce.ecq_fig2 import EcqFig2
from thinwire.lab.reproduce.qsgd import QsgdPaper
from thinwire.lab.reproduce.signsgd import SignSgd

__all__ = [
    "REPRODUCTIONS",
    "DeepSqueeze",
    "Reproduction",
    "Settings",
    "SignSgd",
    "Trend",
    "get",
]

REPRODUCTIONS: dict[str, Reproduction] = {
    made.name: made for made in (DeepSqueeze(), EcqFig2(), QsgdPaper(), SignSgd())
}
"""Every reproduction by its name."""


def get(name: str) -> Reproduction:
    """The reproduction of that name."""
    if name not in REPRODUCTIONS:
        raise ValueError(f"unknown reproduction '{name}'{suggest(name, REPRODUCTIONS)}")
    return REPRODUCTIONS[name]
