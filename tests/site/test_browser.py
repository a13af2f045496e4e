"""The site in a browser, from disk and from a server: search, a phone's width, light and dark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium", reason="selenium is not installed: pip install -e '.[dev]'")
from browser import MISSING, WHY, chromium, complaints, contrast, emulate, luminance
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

pytestmark = pytest.mark.skipif(bool(MISSING), reason=WHY)
PHONE = 390
WAIT = 60.0
RESULTS = "#search-results ul.search li a"
OVERFLOW = """
const boxed = (part) => part && part.tagName !== 'ARTICLE'
  && (['auto', 'scroll'].includes(getComputedStyle(part).overflowX) || boxed(part.parentElement));
return [...document.querySelectorAll('article, article *')]
  .filter((part) => part.getBoundingClientRect().right > window.innerWidth + 1 && !boxed(part))
  .map((part) => `${part.tagName} ${part.textContent.slice(0, 60)}`).slice(0, 3);
"""
"""What of the text ends outside of the screen, other than in a box that scrolls: the theme hides it there."""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where a local server has the site, on a port of the kernel's choice."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def search(driver: webdriver.Chrome, words: str, title: str) -> None:
    """Type words into the field of a page, wait for a result with this title, and follow it."""
    field = driver.find_element(By.CSS_SELECTOR, "form.sidebar-search-container input[name=q]")
    field.send_keys(words, Keys.ENTER)

    def found(driver: webdriver.Chrome) -> list[WebElement]:
        return [link for link in driver.find_elements(By.CSS_SELECTOR, RESULTS) if link.text == title]

    link = WebDriverWait(driver, WAIT).until(found)[0]
    page = str(link.get_attribute("href")).partition("?")[0].partition("#")[0]
    link.click()
    WebDriverWait(driver, WAIT).until(lambda d: d.current_url.startswith(page))


def test_a_search_from_disk_leads_to_the_reference(driver: webdriver.Chrome, site: Path) -> None:
    emulate(driver, width=1280, scheme="light")
    driver.get((site / "index.html").as_uri())
    assert complaints(driver) == []
    search(driver, "ecq_sgd", "thinwire.methods.ecq_sgd")
    assert driver.current_url.partition("#")[2] == "thinwire.methods.ecq_sgd"
    entry = driver.find_element(By.ID, "thinwire.methods.ecq_sgd")
    assert entry.is_displayed()
    assert "levels" in entry.text


def test_a_search_on_a_server_shows_what_was_found(driver: webdriver.Chrome, address: str) -> None:
    emulate(driver, width=1280, scheme="light")
    complaints(driver)
    driver.get(f"{address}/index.html")
    search(driver, "round trips", "Which method?")
    assert driver.find_element(By.TAG_NAME, "h1").text.startswith("Which method?")
    assert complaints(driver) == []
    origins = "return performance.getEntriesByType('resource').map((entry) => new URL(entry.name).origin)"
    assert {*driver.execute_script(origins)} <= {address}


def test_no_sideways_scroll_on_a_phone(driver: webdriver.Chrome, site: Path) -> None:
    emulate(driver, width=PHONE, scheme="light")
    wide = {}
    for path in sorted(site.rglob("*.html")):
        driver.get(path.as_uri())
        assert driver.execute_script("return window.innerWidth") == PHONE
        if over := driver.execute_script(OVERFLOW):
            wide[str(path.relative_to(site))] = over
    assert wide == {}
    driver.get((site / "regions.html").as_uri())
    boxes = "return [...document.querySelectorAll('.table-wrapper')].some((box) => box.scrollWidth > box.clientWidth)"
    assert driver.execute_script(boxes)  # its table of eleven columns scrolls in its box
    driver.execute_script("document.querySelector('article h1').style.width = '2000px'")
    assert driver.execute_script(OVERFLOW) != []  # what is too wide would be noticed


@pytest.mark.parametrize("page", ["index.html", "choosing.html", "api/methods-scatter-gather.html"])
def test_light_and_dark(driver: webdriver.Chrome, site: Path, page: str) -> None:
    grounds = {}
    for scheme in ("light", "dark"):
        emulate(driver, width=1280, scheme=scheme)
        driver.get((site / page).as_uri())
        body = driver.find_element(By.TAG_NAME, "body")
        grounds[scheme] = luminance(body.value_of_css_property("background-color"))
        for part in ("article p", "article td", "article a", "article code", ".sidebar-tree a"):
            one = driver.find_element(By.CSS_SELECTOR, part)
            assert contrast(luminance(one.value_of_css_property("color")), grounds[scheme]) >= 4.5, (scheme, part)
    assert grounds["light"] > 0.9
    assert grounds["dark"] < 0.1


def test_plots_stand_on_white_in_the_dark(driver: webdriver.Chrome, site: Path) -> None:
    emulate(driver, width=1280, scheme="dark")
    driver.get((site / "architecture.html").as_uri())
    picture = driver.find_element(By.CSS_SELECTOR, "article img")
    assert luminance(picture.value_of_css_property("background-color")) == pytest.approx(1.0)
    assert driver.execute_script("return arguments[0].naturalWidth", picture) > 0
