"""The page: whole, self-contained, and safe with odd names and numbers."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from typing import Any

from thinwire.lab.plot import Axis, Line, plot
from thinwire.lab.report import Run, page
from thinwire.lab.report.charts import split
from thinwire.lab.report.curves import smooth
from thinwire.lab.report.groups import Group, derived, groups
from thinwire.lab.report.summary import LOCAL
from thinwire.lab.report.words import bytes_of

SPAN: dict[str, Any] = {"loss_steps": 7}
VOID = {"meta", "link", "wbr"}
FACTS = {"command": "thinwire demo --methods 'a b'", "date": "2026-01-01", "torch": "t", "device": "d", "cores": 2}


class Reader(HTMLParser):
    """Checks that tags close, and collects the text of cells row by row, and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_data(self, data: str) -> None:
        if {"th", "td"} & set(self.open):
            self.rows[-1][-1] += data


def trained(method: str, ratio: float = 1.0, loss: float = 1.0, **others: Any) -> dict[str, Any]:
    curves = {
        "step": [1.0, 2.0, 3.0],
        "loss": [loss, loss / 10, loss / 100],
        "bytes_sent": [1e3 / ratio, 2e3 / ratio, 3e3 / ratio],
        "seconds": [0.1, 0.2, 0.3],
    }
    return {
        "task": "digits",
        "method": method,
        "seed": 0,
        "workers": 2,
        "epochs": 1,
        "accuracy": 0.98,
        "tested": 360,
        "bytes_sent": 3000 / ratio,
        "ratio": ratio,
        "bits_per_element": 32.0 / ratio,
        "seconds": 0.3,
        "loss": loss,
        "replicas_equal": True,
        "curves": curves,
        **others,
    }


def stepped(method: str, **others: Any) -> dict[str, Any]:
    times = {"step_ms": 20.0, "ddp_ms": 30.0, "encode_ms": 1.0, "wire_ms": 9.0, "decode_ms": 2.0}
    return {"method": method, "workers": 2, "params": 1024, **times, "tx_bits_per_param": 4.5, **others}


def made(*rows: dict[str, Any], title: str = "") -> str:
    return page([Run("run.json", {"rows": rows}, [FACTS])], title)


def test_page_is_whole_and_fetches_nothing() -> None:
    text = made(*(trained(f"m{i}", ratio=1.0 + i) for i in range(12)))
    read = Reader(text)
    assert {name for name, _ in read.attributes} & {"src", "onclick", "onload", "onerror"} == set()
    assert [value for name, value in read.attributes if name == "href"] == ["data:,"]
    assert not re.search(r"https?://|@import|url\(", text)
    assert "width=device-width" in text
    assert "prefers-color-scheme: dark" in text
    assert "thinwire demo --methods &#x27;a b&#x27;" in text
    assert text.count('<path class="line') == 36
    told = (
        "360 test images cannot tell the accuracy of 12 of 12 methods from the best (98.0%). Of these m11 sent least"
    )
    assert f"{told}: 250 B per worker, 12.0 times less" in text
    assert "<h1>digits, 2 workers, 1 epoch: 12 methods</h1>" in text
    assert read.rows[0][:3] == ["method", "accuracy", "bytes sent"]
    assert read.rows[2][:3] == ["m1", "98.00% 95.97 to 99.02", "1.5 kB"]


def test_page_forbids_every_address_to_itself() -> None:
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', made(trained("sgd")))
    assert "default-src 'none'" in policy
    assert "http" not in policy
    assert re.search(r"script-src 'sha256-[\w+/]{43}='", policy)


def test_everything_is_escaped() -> None:
    bad = '"><script>x</script></style>&'
    tables = {
        "rows": [trained(bad, task=bad), stepped(bad, rate=bad), {bad: bad, "method": bad, "bits_per_element": 1}],
        bad: [{"nested": {bad: [bad]}}],
    }
    text = page([Run(bad, tables, [{"command": bad, bad: bad}])], bad)
    read = Reader(text)
    assert text.count("<script>") == 1
    assert text.count("</style>") == 1
    assert "&lt;script&gt;" in text
    assert ("aria-label", bad) in read.attributes


def test_odd_numbers_are_borne() -> None:
    odd = trained("odd", math.nan, math.nan, accuracy=math.nan, bytes_sent=math.inf)
    broken = trained("broken", curves={"step": [1, "x", None], "loss": [1.0], "bytes_sent": 3})
    huge = trained("huge", params=10**400, bits_per_element=-1.0)
    text = made(odd, broken, huge, trained("ok", 2.0), trained("sgd"), stepped("slow", step_ms=0, ddp_ms=math.nan))
    Reader(text)
    drawn = " ".join(re.findall(r'(?: d| style| x| y)="([^"]*)"', text))
    assert "nan" not in drawn
    assert "inf" not in drawn
    assert 'data-key="Infinity"' in text
    assert 'data-key="nan"' not in text
    assert "from the best (98.0%). Of these ok sent least: 1.5 kB" in text


def test_seeds_are_one_line() -> None:
    runs = [trained("sgd", seed=i, accuracy=0.9 + i / 100, tested=None) for i in range(3)]
    text = made(*runs, trained("qsgd", tested=None))
    head, first, second, *_ = Reader(text).rows
    assert head[:2] == ["method", "accuracy"]
    assert first[:2] == ["sgd", "91.00% 90.00 to 92.00"]
    assert first[head.index("seeds")] == "3"
    assert second[head.index("seeds")] == "1"


def test_no_headline_from_a_difference_that_the_test_images_do_not_show() -> None:
    one_image = made(trained("sgd", accuracy=354 / 360), trained("small", 8.0, accuracy=353 / 360))
    assert "cannot tell the accuracy of 2 of 2 methods from the best (98.3%). Of these small sent least" in one_image
    worse = made(trained("sgd", accuracy=354 / 360), trained("small", 8.0, accuracy=330 / 360))
    assert "of 1 of 2 methods from the best (98.3%). None of them sent fewer bytes" in worse
    unknown = made(trained("sgd", tested=None), trained("small", 8.0, accuracy=0.5, tested=None))
    assert "sent least" not in unknown
    assert "sent fewer" not in unknown


def test_optimizers_are_told_apart_where_there_are_several() -> None:
    rows = [
        trained("sgd", optimizer="sgd", seconds=20.0, faster=1.0, rate="50mbit"),
        trained("int4", 7.0, optimizer="sgd", seconds=3.0, faster=20 / 3, rate="50mbit"),
        trained("sgd", optimizer="adamw", seconds=21.0, faster=1.0, rate="50mbit", timing="forecast"),
        trained("int4", 7.0, optimizer="adamw", seconds=4.0, faster=21 / 4, rate="50mbit"),
    ]
    text = made(*rows)
    assert [row[0] for row in Reader(text).rows[1:5]] == [
        "SGD + float32",
        "SGD + int4",
        "AdamW + float32",
        "AdamW + int4",
    ]
    assert "SGD + int4 was the quickest: 3.0 s, 6.7 times sooner than float32 with the same optimizer." in text
    assert set(re.findall(r'<path class="line (s\d)"', text)) == {"s0", "s1", "s2", "s3"}
    assert "no measurement but a forecast" in text
    assert [row[0] for row in Reader(made(*rows[:2])).rows[1:3]] == ["sgd", "int4"]
    assert "forecast" not in made(*rows[:2])


def test_a_loss_is_drawn_as_it_is_shown() -> None:
    """A point is a mean over steps already, so that the last one is the loss of the table."""
    jagged: dict[str, Any] = {
        "curves": {"step": [1.0, 2.0, 3.0], "loss": [8.0, 2.0, 8.0], "bytes_sent": [], "seconds": []}
    }
    lines = [
        re.findall(r'class="line s0" d="([^"]*)"', made(trained("sgd", **jagged, **kind))) for kind in ({}, SPAN)
    ]
    smoothed, as_it_is = ([float(y) for y in re.findall(r" ([\d.]+)", line)] for (line,) in lines)
    assert as_it_is[0] == as_it_is[2] == min(as_it_is)  # 8, 2, 8
    assert smoothed[0] == smoothed[2] == min(smoothed)  # 8, 6, 8
    assert 0 < max(smoothed) - min(smoothed) < (max(as_it_is) - min(as_it_is)) / 2
    assert "the mean of the 7 steps before it, over all workers" in made(trained("sgd", **jagged, **SPAN))


def test_all_bars_have_one_scale() -> None:
    files = [("a.json", 4.4, 10.0), ("b.json", 32.0, 100.0)]
    runs = [
        Run(name, {"rows": [{**stepped("qsgd", ddp_ms=ms / 2, step_ms=ms), "tx_bits_per_param": bits}]}, [])
        for name, bits, ms in files
    ]
    widths = re.findall(r'class="whole s0" style="width: ([\d.]+)%"', page(runs))
    assert widths == ["10.00", "100.00", "13.75", "100.00"]


def test_runs_and_tasks_are_kept_apart() -> None:
    runs = [
        Run("a.json", {"rows": [trained("sgd"), trained("qsgd", 8.0)]}, []),
        Run("b.json", {"rows": [trained("sgd", task="fashion"), trained("qsgd", 4.0, task="fashion")]}, []),
    ]
    text = page(runs)
    assert "digits, 2 workers, 1 epoch: 360 test images cannot tell" in text
    assert "fashion, 2 workers, 1 epoch: 360 test images cannot tell" in text
    assert text.count('<div class="plots">') == 2
    head, *rows = Reader(text).rows
    assert head[:3] == ["method", "run", "task"]
    assert [row[:3] for row in rows[:4]] == [
        ["sgd", "a.json", "digits"],
        ["qsgd", "a.json", "digits"],
        ["sgd", "b.json", "fashion"],
        ["qsgd", "b.json", "fashion"],
    ]


def test_seconds_over_slow_links_are_not_called_local() -> None:
    assert LOCAL in made(trained("sgd"))
    assert LOCAL not in made(trained("sgd", hosts=4, rate="100mbit"))


def test_a_method_has_one_colour() -> None:
    text = made(trained("sgd"), trained("qsgd"), stepped("qsgd"))
    marks = set(re.findall(r'class="key (s\d)"></span><code>qsgd<', text))
    assert marks == {"s1"}
    assert len(re.findall(r'<path class="line s1" d="M', text)) == 3
    assert 'class="whole s1"' in text


def test_bytes_get_a_log_axis_where_they_are_far_apart() -> None:
    near = made(trained("sgd"), trained("bf16", 2.0))
    far = made(trained("sgd"), trained("sign", 30.0))
    ticks = [re.findall(r">([\d.]+ k?B)</text>", text) for text in (near, far)]
    assert "0 B" in ticks[0]
    assert "0 B" not in ticks[1]


def test_time_of_a_step() -> None:
    local = Group("r", [stepped("qsgd")])
    assert split(local) == {"step": 20.0, "encode": 1.0, "wire": 9.0, "decode": 2.0, "ddp_ms": 30.0}
    run = Group("r", [trained("qsgd", steps=100, encode_s=0.1, wire_s=0.2)])
    assert split(run) == {"step": 3.0, "encode": 1.0, "wire": 2.0}
    assert split(Group("r", [trained("qsgd", steps=100)])) == {}
    text = made(stepped("qsgd"), stepped("slow", step_ms=40.0))
    assert 'class="whole s1" style="width: 100.00%"' in text
    assert 'class="p-wire" style="width: 22.50%"' in text
    assert 'class="tick m-ddp_ms" style="left: 75.00%"' in text
    assert "encode 1.0, wire 9.0, decode 2.0" in text


def test_speed_up_is_taken_or_made() -> None:
    assert derived({"speedup_over_ddp": 3.0, "step_ms": 1, "ddp_ms": 1}, "speedup") == 3.0
    assert derived({"step_ms": 20.0, "ddp_ms": 30.0}, "speedup") == 1.5
    assert derived({"step_ms": 20.0}, "speedup") is None


def test_other_rows_are_tables_only() -> None:
    kernels = [{"kernel": "encode", "method": "qsgd", "ratio": 0.7, "threads": n} for n in (1, 2)]
    assert groups([Run("k.csv", {"rows": kernels}, [])]) == []
    text = page([Run("k.csv", {"rows": kernels, "more": [{"a": 1}]}, [])])
    assert "Summary" not in text
    assert "In all rows: kernel encode, method <code>qsgd</code>, ratio 0.7." in text
    assert Reader(text).rows == [["threads"], ["1"], ["2"], ["field", "value"], ["a", "1"]]
    assert text.count("<details open>") == 2
    assert "does not say how it was made" in text


def test_bits_of_many_methods_are_left_to_the_table() -> None:
    few, many = ([{"method": f"m{i}", "bits_per_element": i} for i in range(n)] for n in (40, 41))
    assert made(*few).count("<li>") == 40
    assert "<li>" not in made(*many)


def test_short_curves_are_not_drawn_flat() -> None:
    """A race has few tests: each was drawn as the mean of all."""
    assert smooth([4.0, 1.0, 1.0]) == [4.0, 2.0, 1.0]
    straight = [float(i) for i in range(30)]
    assert smooth(straight) == straight
    assert smooth([0.0] * 10 + [9.0] + [0.0] * 10)[6:15] == [1.0] * 9
    assert smooth([]) == []


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
