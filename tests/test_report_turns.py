"""The page on turns: what it draws is what was found, in a real browser too, and nothing leaves it."""

import re

import numpy as np
import pytest

from duoplda import DuopldaError
from duoplda.diarization import Diarization
from duoplda.io import Coded
from duoplda.report import doubtful_turns, write_diarization_report
from test_report import HOSTILE, browser, look  # noqa: F401


@pytest.fixture(scope="module")
def turns():
    """Forty turns of three people in two files; names try to act as markup."""
    rng = np.random.default_rng(0)
    n = 40
    file = np.where(np.arange(n) < 25, "mon", HOSTILE)
    speaker = np.array(["ann", HOSTILE, "bob"])[np.arange(n) % 3]
    second = np.array(["ann", HOSTILE, "bob"])[(np.arange(n) + 1) % 3]
    start = np.where(np.arange(n) < 25, np.arange(n), np.arange(n) - 25) * 100.0
    sure = rng.uniform(0.5, 1.0, n)
    columns = Coded.of(file), start, np.full(n, 90.0), Coded.of(speaker), sure, Coded.of(second), 1 - sure
    return Diarization(*columns, Coded.of(np.full(n, HOSTILE)), sure / 2)


@pytest.fixture(scope="module")
def path(tmp_path_factory, turns):
    at = tmp_path_factory.mktemp("turns") / "turns.html"
    numbers = {"mon": {3: 0.8, 4: 0.2}}
    return write_diarization_report(at, turns, numbers=numbers, commands=[HOSTILE], hashes={HOSTILE: HOSTILE}, most=7)


def test_page_is_complete_escaped_and_allows_no_request(path, turns):
    text = path.read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert "<script" not in text
    assert "<img" not in text
    assert "http" not in text.replace("http-equiv", "")
    assert not re.search(r"\bstyle=", text)  # the policy forbids it
    assert text.count("<rect") == len(turns)
    assert "Probability of each number of speakers: 3: 0.80, 4: 0.20" in text
    assert "nan" not in text


def test_doubtful_turns_come_first(turns):
    assert doubtful_turns(turns, 5) == np.argsort(turns.posterior)[:5].tolist()


def test_paler_turns_are_less_sure(path, turns):
    rects = re.findall(r'fill-opacity="([\d.]+)"><title>.*?posterior ([\d.]+)</title>', path.read_text())
    shade, posterior = np.array(rects, float).T
    assert len(shade) == len(turns)
    assert (np.diff(shade[np.argsort(posterior, kind="stable")]) > -0.02).all()
    assert shade.min() < 0.4 < 0.9 < shade.max()


def test_the_file_is_not_replaced_unasked(path, turns):
    with pytest.raises(DuopldaError, match="exists"):
        write_diarization_report(path, turns)
    few = write_diarization_report(path.with_name("few.html"), turns, most_files=1).read_text()
    assert "1 further files are not shown" in few


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_browser_shows_the_timelines(browser, path, turns, width, scheme):  # noqa: F811
    look(browser, width, scheme)
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(path.as_uri())
    assert browser.execute_script("return window.hacked") is None
    boxes = browser.find_elements("css selector", "svg.timeline")
    assert len(boxes) == 6
    assert all(box.size["width"] > width / 3 for box in boxes)
    rect = browser.find_element("css selector", "svg.timeline rect")
    box = browser.find_element("css selector", "svg.timeline")
    assert rect.rect["width"] / box.rect["width"] == pytest.approx(90 / 2490, rel=0.4)
    names = {e.text for e in browser.find_elements("css selector", "#timelines bdi")}
    assert {"ann", "bob", "mon"} < names
    rows = browser.find_elements("css selector", "#doubtful tbody tr")
    assert len(rows) == 7
    assert float(rows[0].find_elements("css selector", "td,th")[-1].text) == pytest.approx(
        turns.posterior.min(), abs=0.006
    )
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth + 1")
    assert browser.get_log("browser") == []
    requests = [m for m in (e["message"] for e in browser.get_log("performance")) if '"Network.requestWillBeSent"' in m]
    assert all("file:" in m or "data:" in m for m in requests)
