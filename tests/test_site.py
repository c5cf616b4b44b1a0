"""The built site in a real browser, opened from the file system: `make docs`, then `make test-docs`.

It is skipped elsewhere, as the site takes minutes to build. Links need no browser; the rest needs Chromium and its
driver.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from test_api_reference import LISTED
from test_report import browser as chromium  # noqa: F401 - a fixture
from test_report import look

GIVEN = os.environ.get("DUOPLDA_SITE")
if not GIVEN:
    pytest.skip("the site is tested by `make test-docs`, after `make docs`", allow_module_level=True)
SITE = Path(GIVEN).resolve()
PAGES = sorted(SITE.rglob("*.html"))
WIDTHS = (1280, 390)
OPENED = (
    "index.html",
    "search.html",
    "gallery/plot_calibration.html",
    "api/generated/duoplda.PLDA.html",
    "choosing.html",
)


# -- links


class Page(HTMLParser):
    """Anchors, links and other resources of a page."""

    def __init__(self, path: Path):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "index", "search", "next", "prev", "author"):
            self.loaded.append(given.get("href", ""))
        elif "src" in given:
            self.loaded += [
                given["src"],
                *(part.split()[0] for part in given.get("srcset", "").split(",") if part.strip()),
            ]


@pytest.fixture(scope="module")
def parsed() -> dict[Path, Page]:
    return {path: Page(path) for path in PAGES}


def missing(page: Path, link: str, parsed: dict[Path, Page]) -> bool:
    """Whether a link of a page leads nowhere: no file, or no such anchor in it."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return False
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if target.is_dir() or not target.exists():
        return True
    anchor = unquote(parts.fragment)
    return bool(anchor) and target in parsed and anchor not in parsed[target].anchors


def test_no_link_is_dead(parsed):
    dead = [
        f"{p.relative_to(SITE)}: {link}"
        for p, page in parsed.items()
        for link in page.links
        if missing(p, link, parsed)
    ]
    assert sum(len(page.links) for page in parsed.values()) > 5000
    assert dead == []


def test_a_dead_link_is_noticed(parsed):
    front = SITE / "index.html"
    assert not missing(front, "choosing.html#the-chart", parsed)
    for link in ("nothing.html", "choosing.html#no-such-anchor", "#nowhere", "gallery/"):
        assert missing(front, link, parsed), link


def test_nothing_is_loaded_from_elsewhere(parsed):
    """Scripts, styles, fonts and pictures are files of the site."""
    wrong = []
    for path, page in parsed.items():
        for link in page.loaded:
            if not link.startswith("data:") and (
                urlsplit(link).scheme or link.startswith("//") or missing(path, link, {})
            ):
                wrong.append(f"{path.relative_to(SITE)}: {link}")
    assert sum(len(page.loaded) for page in parsed.values()) > 1000
    assert wrong == []
    for style in SITE.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style


def test_every_page_of_the_source_is_there():
    docs = Path(__file__).parents[1] / "docs"
    for page in docs.glob("*.md"):
        assert (SITE / f"{page.stem}.html").exists(), page.name
    for script in (docs.parent / "examples/gallery").glob("plot_*.py"):
        assert (SITE / "gallery" / f"{script.stem}.html").exists(), script.name


def test_the_inventory_has_every_public_name():
    """What other projects link to: objects.inv, four lines and then compressed ones."""
    inventory = (SITE / "objects.inv").read_bytes().split(b"\n", 4)[4]
    names = {line.split(" ")[0] for line in zlib.decompress(inventory).decode().splitlines()}
    assert {f"{module}.{name}" for module, name in LISTED} - names == set()


# -- in a browser


@pytest.fixture
def opened(chromium):  # noqa: F811
    """A function that opens a page; at the end nothing is in the console, and no request went to the net."""
    for log in ("browser", "performance"):
        chromium.get_log(log)

    def to(page, width, scheme="light", query=""):
        look(chromium, width, scheme)
        chromium.get((SITE / page).as_uri() + query)
        return chromium

    yield to
    assert chromium.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in chromium.get_log("performance")]
    sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
    asked = {e["requestId"]: e["request"]["url"] for e in sent}
    local = ("file:", "data:", "chrome:")  # the last: an empty tab
    assert [url for url in asked.values() if not url.startswith(local)] == []
    assert any(url.startswith("file:") for url in asked.values())
    failed = [e["params"]["requestId"] for e in events if e["method"] == "Network.loadingFailed"]
    assert [asked[i] for i in failed if i in asked] == []


def overflow(browser, width):
    """Pixels by which the page, or the part of it that holds the article, is wider than what is seen of it."""
    script = """let most = document.documentElement.scrollWidth - arguments[0];
        for (let e = document.querySelector('.content'); e; e = e.parentElement)
            most = Math.max(most, e.scrollWidth - e.clientWidth, e.clientWidth - arguments[0]);
        return most;"""
    return browser.execute_script(script, width)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", OPENED)
def test_page(opened, page, width, scheme):
    browser = opened(page, width, scheme, "?q=calibration" if page == "search.html" else "")
    assert browser.find_element("css selector", "h1, h2").text
    assert overflow(browser, width) <= 0
    colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    channels = [int(n) for n in re.findall(r"\d+", colour)[:3]]
    assert (max(channels) < 60) == (scheme == "dark")
    pictures = browser.execute_script(
        "return [...document.images].filter(i => i.offsetParent && i.loading != 'lazy' && !i.naturalWidth).length"
    )
    assert pictures == 0


@pytest.mark.parametrize(
    "path", [p for p in PAGES if p.parent in (SITE, SITE / "gallery", SITE / "api")], ids=lambda p: p.name
)
def test_no_page_is_wider_than_a_phone(opened, path):
    assert overflow(opened(path.relative_to(SITE), 390), 390) <= 0


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("query", "expected"), [("shrinkage", "shrinkage.html"), ("cllr", "duoplda.metrics.cllr.html")]
)
def test_search(opened, width, query, expected):
    """A query that is typed on the front page finds its page, without a server."""
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    browser = opened("index.html", width)
    if width < 500:  # the field is in the drawer behind the button
        browser.find_element("css selector", "header label.nav-overlay-icon, .header-left label").click()
    field = WebDriverWait(browser, 20).until(
        lambda b: next((f for f in b.find_elements("css selector", "input[name=q]") if f.is_displayed()), None)
    )
    field.send_keys(query, Keys.ENTER)
    found = WebDriverWait(browser, 30).until(
        lambda b: [a.get_attribute("href") for a in b.find_elements("css selector", "ul.search li a")]
    )
    assert any(expected in link for link in found)
    done = WebDriverWait(browser, 30).until(
        lambda b: re.search(r"found (\d+) page", b.find_element("css selector", "#search-results").text)
    )
    assert int(done[1]) >= len(found) > 0
    assert overflow(browser, width) <= 0


def test_a_page_that_is_too_wide_is_noticed(opened):
    browser = opened("index.html", 390)
    browser.execute_script(
        "document.querySelector('article').append(Object.assign(document.createElement('hr'), {id: 'h'}))"
    )
    browser.execute_script("document.getElementById('h').style.width = '900px'")
    assert overflow(browser, 390) > 0


def test_names_in_the_text_lead_to_the_reference(opened):
    browser = opened("glossary.html", 1280)
    links = [a.get_attribute("href") for a in browser.find_elements("css selector", "article td a")]
    assert any("api/generated/duoplda.metrics.cllr.html" in link for link in links)


def test_the_reference_shows_examples_of_the_gallery(opened):
    browser = opened("api/generated/duoplda.PLDA.html", 1280)
    assert len(browser.find_elements("css selector", ".sphx-glr-thumbcontainer")) > 2
    assert "In the gallery" in browser.find_element("css selector", "article").text


def test_the_chart_is_drawn(opened):
    browser = opened("choosing.html", 1280)
    texts = " ".join(t.text for t in browser.find_elements("css selector", ".drawing svg text"))
    assert all(f"{letter}. " in texts for letter in "ABCDEFGHIJKLMNO")


# -- what the pages show


def wide_blocks(browser):
    """Blocks of code that would have to be scrolled sideways, by their first words."""
    return browser.execute_script(
        "return [...document.querySelectorAll('article pre')].filter(p => p.scrollWidth > p.clientWidth)"
        ".map(p => `${p.scrollWidth - p.clientWidth} pixels: ${p.textContent.slice(0, 60)}`)"
    )


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(SITE)))
def test_no_block_of_code_needs_scrolling(opened, path):
    assert wide_blocks(opened(path.relative_to(SITE), 1280)) == []


def test_a_wide_block_is_noticed(opened):
    browser = opened("index.html", 1280)
    browser.execute_script("document.querySelector('article pre').append('x'.repeat(130))")
    assert len(wide_blocks(browser)) == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_front_page_shows_a_result_and_a_report(opened, scheme):
    browser = opened("index.html", 1280, scheme)
    shown = [i for i in browser.find_elements("css selector", "article img") if i.is_displayed()]
    assert [Path(i.get_attribute("src")).stem for i in shown] == [f"copies-{scheme}", f"report-{scheme}"]
    assert all(i.get_attribute("alt") and i.rect["width"] > 500 for i in shown)
    cards = [browser.find_element("id", name) for name in CARDS]
    assert len({card.rect["y"] for card in cards}) == 1  # side by side
    assert len({card.rect["x"] for card in cards}) == 4
    assert all(card.find_elements("css selector", "a") for card in cards)


CARDS = ("a-researcher-from-kaldi-or-elsewhere", "a-forensic-examiner", "an-engineer", "somebody-who-diarises")


def test_the_chart_fits_and_its_leaves_are_links(opened):
    from selenium.webdriver.support.ui import WebDriverWait

    browser = opened("choosing.html", 1280)
    for drawing in browser.find_elements("css selector", ".drawing"):
        assert browser.execute_script("return arguments[0].scrollWidth <= arguments[0].clientWidth", drawing)
    leaves = browser.find_elements("css selector", ".drawing svg a")
    assert [leaf.text[:2] for leaf in sorted(leaves, key=lambda leaf: leaf.text)] == [
        f"{c}." for c in "ABCDEFGHIJKLMNO"
    ]
    for leaf in leaves:
        target = browser.execute_script(
            "return document.querySelector(arguments[0].getAttribute('href')).textContent", leaf
        )
        assert target[:2] == leaf.text[:2]
    leaf = next(leaf for leaf in leaves if leaf.text.startswith("K."))
    browser.execute_script("arguments[0].scrollIntoView({behavior: 'instant', block: 'center'})", leaf)
    leaf.click()
    where = "return document.getElementById('leaf-k').getBoundingClientRect().top"
    WebDriverWait(browser, 20).until(lambda b: 0 <= b.execute_script(where) < 450)  # in the upper half of the screen


@pytest.mark.parametrize("path", sorted((SITE / "gallery").glob("plot_*.html")), ids=lambda p: p.stem)
def test_an_example_shows_its_figure_before_its_code(opened, path):
    browser = opened(path.relative_to(SITE), 1280)
    figure = browser.find_element("css selector", "article img")
    code = browser.find_element("css selector", "article pre")
    assert figure.rect["y"] + figure.rect["height"] <= code.rect["y"]
    assert figure.rect["y"] < 900  # seen at once


@pytest.mark.parametrize(
    ("query", "stem", "first"),
    [
        ("calibration", "calibr", "calibration.html"),
        ("cllr", "cllr", "api/generated/duoplda.metrics.cllr.html"),
        ("sessions", "session", "sessions.html"),
        ("diarisation", "diaris", "diarization.html"),
        ("glossary", "glossar", "glossary.html"),
        ("top", "top", "api/generated/duoplda."),
    ],
)
def test_titles_and_names_come_before_mentions(opened, query, stem, first):
    from selenium.webdriver.support.ui import WebDriverWait

    browser = opened("search.html", 1280, query=f"?q={query}")
    WebDriverWait(browser, 30).until(lambda b: "found" in b.find_element("css selector", "#search-results").text)
    results = browser.execute_script(
        "return [...document.querySelectorAll('ul.search li:not(.kind-index) a')]"
        ".map(a => [a.textContent, a.getAttribute('href')])"
    )
    assert results[0][1].startswith(first)
    named = [stem in re.split(r" > |\.", title)[-1].lower() for title, _ in results]
    assert named == sorted(named, reverse=True)
    assert named[0]
    assert not named[-1]
