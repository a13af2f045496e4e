"""Debian's chromium, headless, for tests of pages; it needs selenium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

PROGRAMS = {"chromium": shutil.which("chromium"), "chromedriver": shutil.which("chromedriver")}
MISSING = " and ".join(name for name, path in PROGRAMS.items() if path is None)
WHY = f"no {MISSING} here: apt-get install chromium chromium-driver"
SWITCHES = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@contextmanager
def chromium(folder: Path) -> Iterator[webdriver.Chrome]:
    """A browser with its profile in `folder`, which keeps what pages say on the console."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(PROGRAMS["chromium"])
    for switch in (*SWITCHES, f"--user-data-dir={folder}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(PROGRAMS["chromedriver"]))
    yield driver
    driver.quit()


def emulate(driver: webdriver.Chrome, *, width: int, scheme: str) -> None:
    """A screen of this width, which wants `scheme`: light or dark."""
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def complaints(driver: webdriver.Chrome) -> list[str]:
    """What the console has heard since it was last asked."""
    entries: list[dict[str, str]] = driver.get_log("browser")  # type: ignore[no-untyped-call]
    return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]


def luminance(colour: str) -> float:
    """Relative luminance of `rgb(r, g, b)`, as in WCAG."""
    parts = [int(part) / 255 for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    r, g, b = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: float, other: float) -> float:
    """Of two luminances, 1 to 21."""
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)
