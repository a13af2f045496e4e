"""The report in a browser: Debian's chromium, headless. It sorts, switches lines, fits a phone, and logs no error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from thinwire.cli.app import main

pytest.importorskip("selenium", reason="selenium is not installed: pip install -e '.[dev]'")
from browser import MISSING, WHY, chromium, complaints, contrast, emulate, luminance
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

pytestmark = pytest.mark.skipif(bool(MISSING), reason=WHY)
PHONE = 360
BAD = '"><img src=x onerror="window.broken = 1"><script>window.broken = 1</script>'
LONG = "deepsqueeze:compressor=(qsgd:bits=8,norm=l2,block=none),eta=0.125,topology=(exponential:weights=metropolis)"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of every kind of rows: training with curves, steps, a foreign table; one name wants to break out."""
    folder = tmp_path_factory.mktemp("report")
    runs: dict[str, Any] = {
        "train": {"environment": {"command": f"thinwire demo {BAD}"}, "rows": [*_trained()]},
        "step": {"environment": {"device": "x" * 300}, "rows": [*_stepped()]},
        "other": [
            {"name": BAD, "text": "word " * 200, "n": n, **{f"c{i}": i * n for i in range(30)}} for n in (1, 2)
        ],
    }
    for name, document in runs.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    out = folder / "report.html"
    assert main(["report", *(str(folder / f"{name}.json") for name in runs), "--out", str(out)]) == 0
    return out


@pytest.fixture
def browser(driver: webdriver.Chrome, report: Path) -> Iterator[webdriver.Chrome]:
    """The page at a desktop's width, in light; afterwards the console must be empty."""
    emulate(driver, width=1280, scheme="light")
    driver.get(report.as_uri())
    yield driver
    assert complaints(driver) == []


def _trained() -> Iterator[dict[str, Any]]:
    for i, method in enumerate(("sgd", "qsgd:bits=4", LONG, BAD)):
        steps = [float(n) for n in range(1, 51)]
        curves = {
            "step": steps,
            "loss": [2.0 / n for n in steps],
            "bytes_sent": [1e6 * n / 4**i for n in steps],
            "seconds": [0.1 * n for n in steps],
        }
        accuracy = (0.98, 0.5, None, 0.975)[i]
        cost = {
            "bytes_sent": (90_000, 1_000_000, 5_000, 70_000_000)[i],
            "ratio": 4.0**i,
            "bits_per_element": 32 / 4**i,
        }
        yield {"task": "digits", "method": method, "accuracy": accuracy, **cost, "curves": curves}


def _stepped() -> Iterator[dict[str, Any]]:
    for method in ("sgd", "qsgd:bits=4", LONG):
        yield {"method": method, "step_ms": 20.0, "ddp_ms": 30.0, "encode_ms": 1.0, "wire_ms": 9.0, "decode_ms": 2.0}


def _run(driver: webdriver.Chrome, script: str) -> Any:
    return driver.execute_script(script)


def _first_column(table: WebElement) -> list[str]:
    return [cell.text for cell in table.find_elements(By.CSS_SELECTOR, "tbody th")]


def _press(table: WebElement, name: str) -> WebElement:
    (heading,) = [th for th in table.find_elements(By.CSS_SELECTOR, "thead th") if th.text.startswith(name)]
    heading.find_element(By.TAG_NAME, "button").click()
    return heading


def test_a_column_sorts_up_and_down(browser: webdriver.Chrome) -> None:
    table = browser.find_element(By.CSS_SELECTOR, "#summary table")
    assert _first_column(table) == ["sgd", "qsgd:bits=4", LONG, BAD]
    heading = _press(table, "bytes sent")  # 1 MB is more than 90 kB: by size, and not by text
    assert _first_column(table) == [LONG, "sgd", "qsgd:bits=4", BAD]
    assert heading.get_attribute("aria-sort") == "ascending"
    _press(table, "bytes sent")
    assert _first_column(table) == [BAD, "qsgd:bits=4", "sgd", LONG]
    assert heading.get_attribute("aria-sort") == "descending"
    _press(table, "method")
    assert _first_column(table)[1:] == [LONG, "qsgd:bits=4", "sgd"]
    assert heading.get_attribute("aria-sort") is None


def test_what_is_missing_stays_last(browser: webdriver.Chrome) -> None:
    table = browser.find_element(By.CSS_SELECTOR, "#summary table")
    _press(table, "accuracy")
    assert _first_column(table) == ["qsgd:bits=4", BAD, "sgd", LONG]
    _press(table, "accuracy")
    assert _first_column(table) == ["sgd", BAD, "qsgd:bits=4", LONG]


def test_the_legend_switches_lines(browser: webdriver.Chrome) -> None:
    lines = browser.find_elements(By.CSS_SELECTOR, "path.line.s1")
    others = browser.find_elements(By.CSS_SELECTOR, "path.line:not(.s1)")
    assert (len(lines), len(others)) == (3, 9)
    entry = browser.find_element(By.CSS_SELECTOR, "button.entry.s1")
    assert entry.text == "qsgd:bits=4"
    assert all(line.is_displayed() for line in lines)
    entry.click()
    assert entry.get_attribute("aria-pressed") == "false"
    assert not any(line.is_displayed() for line in lines)
    assert all(line.is_displayed() for line in others)
    entry.click()
    assert entry.get_attribute("aria-pressed") == "true"
    assert all(line.is_displayed() for line in lines)


@pytest.mark.parametrize("width", [320, PHONE, 768])
def test_no_sideways_scroll(browser: webdriver.Chrome, width: int) -> None:
    emulate(browser, width=width, scheme="light")
    _run(browser, "for (const part of document.querySelectorAll('details')) part.open = true")
    assert _run(browser, "return window.innerWidth") == width
    assert _run(browser, "const page = document.documentElement; return page.scrollWidth - page.clientWidth") == 0
    boxes = "return [...document.querySelectorAll('.wide')].some((box) => box.scrollWidth > box.clientWidth)"
    assert _run(browser, boxes)  # the table of 30 columns scrolls in its box


def test_dark_and_light(browser: webdriver.Chrome) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        emulate(browser, width=1280, scheme=scheme)
        body = browser.find_element(By.TAG_NAME, "body")
        seen[scheme] = [luminance(body.value_of_css_property(name)) for name in ("background-color", "color")]
        for line in browser.find_elements(By.CSS_SELECTOR, "path.line, .note, .tick:not(i)"):
            name = "stroke" if line.tag_name == "path" else "fill" if line.tag_name == "text" else "color"
            assert contrast(luminance(line.value_of_css_property(name)), seen[scheme][0]) >= 3
    assert seen["light"][0] > 0.9 > 0.1 > seen["light"][1]
    assert seen["dark"][1] > 0.8 > 0.1 > seen["dark"][0]


def test_names_do_not_break_out_and_nothing_is_fetched(browser: webdriver.Chrome) -> None:
    assert _run(browser, "return window.broken") is None
    assert browser.find_elements(By.TAG_NAME, "img") == []
    assert len(browser.find_elements(By.TAG_NAME, "script")) == 1
    assert _run(browser, "return performance.getEntriesByType('resource').length") == 0


def test_the_console_is_heard(driver: webdriver.Chrome, report: Path) -> None:
    driver.get(report.as_uri())
    assert complaints(driver) == []
    _run(driver, "console.error('a complaint')")
    (said,) = complaints(driver)
    assert "a complaint" in said
