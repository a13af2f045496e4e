"""The HTML page: whole, self-contained, and safe with odd names and numbers."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from typing import Any

from thinwire.lab.page import bytes_of, page
from thinwire.lab.plot import Axis, Line, plot

VOID = {"meta"}
FACTS = {"date": "2026-01-01", "thinwire": "0", "commit": "c", "torch": "t", "python": "p", "device": "d", "cores": 2}


class Balance(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass


def row(method: str, ratio: float = 1.0, loss: float = 1.0) -> dict[str, Any]:
    curves = {
        "step": [1.0, 2.0, 3.0],
        "loss": [loss, loss / 10, loss / 100],
        "bytes_sent": [1e3, 2e3, 3e3],
        "seconds": [0.1, 0.2, 0.3],
    }
    return {
        "task": "digits",
        "method": method,
        "seed": 0,
        "workers": 2,
        "epochs": 1,
        "accuracy": 0.98,
        "bytes_sent": 3000,
        "ratio": ratio,
        "bits_per_element": 32.0,
        "seconds": 0.3,
        "loss": loss,
        "replicas_equal": True,
        "curves": curves,
    }


def test_page_is_whole_and_fetches_nothing() -> None:
    text = page([row(f"m{i}", ratio=1.0 + i) for i in range(12)], "thinwire demo --methods 'a b'", FACTS)
    balance = Balance()
    balance.feed(text)
    assert balance.open == []
    assert not re.search(r"https?://|src=|@import|<script|url\(", text)
    assert "width=device-width" in text
    assert "prefers-color-scheme: dark" in text
    assert "thinwire demo --methods &#x27;a b&#x27;" in text
    assert text.count('<path class="line') == 36
    assert "m11 sent least: 3 kB a worker, 12.0 times less" in text


def test_page_escapes_and_bears_nan() -> None:
    text = page([row("<b>", loss=math.nan), row("ok")], "x", FACTS)
    assert "<b>" not in text
    assert "&lt;b&gt;" in text
    assert "nan " not in " ".join(re.findall(r' d="([^"]*)"', text))


def test_plot_without_points() -> None:
    text = plot("empty", [Line("a", [], []), Line("b", [0.0], [0.0])], Axis("x", log=True), Axis("y", log=True))
    assert text.startswith("<svg")
    one = plot("one", [Line("a", [5.0], [5.0])], Axis("x"), Axis("y"))
    assert "nan" not in one


def test_bytes_are_written_short() -> None:
    assert [bytes_of(n) for n in (0, 999, 1000, 12_345, 141e6, 2e9)] == [
        "0 B",
        "999 B",
        "1 kB",
        "12.3 kB",
        "141 MB",
        "2 GB",
    ]
