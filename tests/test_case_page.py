"""The page on a case: what it says, that it is complete in itself, hostile names, on the screen and on paper.

The browser tests need Chromium and its driver, as those of the report do.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import zlib
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from case_cases import changed
from duoplda.case import assess_case, read_case, write_example
from duoplda.case.result import Estimate
from duoplda.case.words import in_words
from duoplda.report import write_case_report
from test_report import browser, look  # noqa: F401 (a fixture)

HOSTILE = '</style></script><img src=x onerror="window.hacked=1">\'&amp;\u202e\u4e2d <!-- $title'
SECTIONS = ["words", "ratio", "validation", "pictures", "rests", "recordings", "population", "model", "repeat"]


def quoted(text):
    """A text of TOML."""
    return json.dumps(text, ensure_ascii=False)


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """An assessed case with a prior and a scale."""
    path = write_example(tmp_path_factory.mktemp("page"))
    return assess_case(read_case(changed(path, ("seed = 3", 'seed = 3\nprior = 0.02\nscale = "ENFSI"'))))


@pytest.fixture(scope="module")
def page(record, tmp_path_factory):
    path = write_case_report(tmp_path_factory.mktemp("out") / "case.html", record)
    return SimpleNamespace(path=path, text=path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """The page on a case all of whose names want to be markup."""
    path = write_example(tmp_path_factory.mktemp("hostile"))
    names = [
        ('"The call"', quoted(HOSTILE)),
        ('"The man in the call is Mr A."', quoted(HOSTILE)),
        ('"The man in the call is another man of his town."', quoted(HOSTILE + "?")),
        ('"Mr A"', quoted(HOSTILE)),
        ('"They live in this town."', quoted(HOSTILE)),
    ]
    sessions = [(f'"{id}", session = "talk-1"', f'"{id}", session = {quoted(HOSTILE)}') for id in ("k1", "k2")]
    file = changed(path, *names, *sessions, name="<img src=x onerror='window.hacked=2'>.toml")
    written = write_case_report(path.parent / "case.html", assess_case(read_case(file)))
    return SimpleNamespace(path=written, text=written.read_text(encoding="utf-8"))


class Elements(HTMLParser):
    """The elements of a page, with their attributes, and its text."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.data = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.data.append(data)


# -- what it says


def test_sections_come_in_order(page):
    assert [a["id"] for tag, a in Elements(page.text).found if tag == "section"] == SECTIONS


def test_the_first_section_is_in_plain_words(page, record):
    """The question, the answer, what it rests on and what must not be said; no table and no picture."""
    words = page.text[page.text.index('<section id="words">') : page.text.index('<section id="ratio">')]
    assert not {"table", "svg"} & {tag for tag, _ in Elements(words).found}
    said = "".join(Elements(words).data)
    for sentence in (record.words.sentence, record.words.interval, record.words.verbal, record.words.posterior):
        assert sentence in said
    assert len(record.words.forbidden) >= 3
    for forbidden in record.words.forbidden:
        assert forbidden.sentence in said
        assert forbidden.why in said
    assert "s fallacy: it takes the probability of the findings for that of the proposition" in said
    assert "35 speakers" in said
    assert record.case.why in said


def test_the_raw_number_is_in_no_conclusion(record, tmp_path):
    """Beyond a bound the words say "at least" with the bound; what lies beyond it is in the table only."""
    ratio = dataclasses.replace(record.result.ratio, calibrated=30.0, low=28.0, high=32.0)
    upper = ratio.support.upper
    ratio = dataclasses.replace(ratio, stated=upper, stated_low=upper, stated_high=upper, relation="at least")
    result = dataclasses.replace(record.result, ratio=dataclasses.replace(ratio, bound_by="elub"))
    words = in_words(record.case, result)
    said = " ".join([words.sentence, words.interval, words.verbal, words.posterior])
    assert said.count("at least") == 4
    assert "lies beyond the bounds of what their comparisons support" in words.interval
    path = write_case_report(tmp_path / "case.html", dataclasses.replace(record, result=result, words=words))
    text = path.read_text(encoding="utf-8")
    first, rest = text.split('<section id="ratio">')
    assert "13.03" not in first  # 30 nats
    assert "13.03" in rest
    assert "(at least, by the bound of ELUB)" in rest


def test_no_prior_no_posterior(record):
    words = in_words(dataclasses.replace(record.case, prior=None, scale="none"), record.result)
    assert (words.posterior, words.verbal) == (None, None)
    said = " ".join([words.sentence, words.interval])
    assert "probability of the first" not in said


def test_what_is_not_defined_is_a_dash(record, tmp_path):
    nothing = Estimate(float("nan"), float("nan"), float("nan"))
    validation = dataclasses.replace(record.result.validation, dev_pav=nothing)
    result = dataclasses.replace(record.result, validation=validation)
    path = write_case_report(tmp_path / "case.html", dataclasses.replace(record, result=result))
    assert re.search("devPAV[^<]*</th><td>\N{EN DASH}</td>", path.read_text(encoding="utf-8"))


def test_curves_differ_without_colour(page):
    """Each curve of a chart has dashes of its own, and its legend shows them with its name."""
    figures = re.findall(r"<figure>.*?</figure>", page.text, re.DOTALL)
    assert [re.search(r"<h3>(.*?)</h3>", figure)[1] for figure in figures] == ["Tippett plot", "ECE plot", "PAV plot"]
    for figure in figures:
        found = Elements(figure).found
        curves = [a.get("stroke-dasharray", "") for tag, a in found if tag == "polyline"]
        marks = [a.get("stroke-dasharray", "") for tag, a in found if tag == "line" and a.get("class") == "mark"]
        legend = [a.get("stroke-dasharray", "") for tag, a in found if tag == "path"]
        assert len(set(curves)) == len(curves) > 1
        assert legend == curves + list(dict.fromkeys(marks))
    assert figures[0].count('<line class="mark"') == 3  # both bounds, and the case
    assert all(
        a.get("role") == "img" and a["aria-label"] for tag, a in Elements(page.text).found if a.get("class") == "plot"
    )


def test_badges_have_a_sign(page):
    assert 'class="badge good"><span aria-hidden="true">✓</span> like the training' in page.text


# -- complete in itself


@pytest.mark.parametrize("which", ["page", "hostile"])
def test_nothing_comes_from_elsewhere(which, request):
    found = Elements(request.getfixturevalue(which).text).found
    assert not {tag for tag, _ in found} & {"script", "img", "iframe", "object", "embed", "base", "form"}
    for tag, attributes in found:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "style")], tag
        href = attributes.get("href", "")
        assert href == "data:," or href.startswith("#") or not href
    policy = next(a["content"] for tag, a in found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")


def test_hostile_names_are_text(hostile):
    data = "".join(Elements(hostile.text).data)
    shown = HOSTILE.replace("\u202e", "\\u202e")
    assert data.count(shown) >= 6
    assert "\u202e" not in hostile.text
    assert "$title" in data  # no template takes it for a name


# -- in Chromium


@pytest.fixture
def chrome(browser):  # noqa: F811
    """The browser, whose console must stay silent and which must ask nothing of a network."""
    look(browser, 1280)
    for log in ("browser", "performance"):
        browser.get_log(log)
    yield browser
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    assert urls
    assert all(url.startswith("file:") or url == "data:," for url in urls)


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("which", ["page", "hostile"])
def test_on_a_screen(chrome, request, which, width):
    look(chrome, width, "dark" if width < 600 else "light")
    chrome.get(request.getfixturevalue(which).path.as_uri())
    assert chrome.execute_script("return window.hacked") is None
    assert chrome.execute_script("return document.documentElement.scrollWidth") <= width
    sections = chrome.find_elements("css selector", "section")
    assert [section.get_attribute("id") for section in sections] == SECTIONS
    assert chrome.find_elements("css selector", "img, script") == []
    styled = chrome.execute_script("return getComputedStyle(document.querySelector('.sentence')).borderTopStyle")
    assert styled == "solid"  # the policy lets the style of the page in


def test_the_words_fit_on_the_first_page(chrome, page):
    """A4 has 263 mm between the margins of the style, 178 mm wide."""
    pixels = 96 / 25.4
    look(chrome, round(178 * pixels), media="print")
    chrome.get(page.path.as_uri())
    bottom = chrome.execute_script("return document.querySelector('#words').getBoundingClientRect().bottom")
    assert 400 < bottom < 263 * pixels


@pytest.mark.parametrize("which", ["page", "hostile"])
def test_on_paper(chrome, request, which):
    """A4, each page with its number, and the tables after the page of words."""
    chrome.get(request.getfixturevalue(which).path.as_uri())
    options = {"preferCSSPageSize": True, "printBackground": False}
    pdf = base64.b64decode(chrome.execute_cdp_cmd("Page.printToPDF", options)["data"])
    sizes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf)
    assert {tuple(round(float(size)) for size in pair) for pair in sizes} == {(595, 842)}
    pages = texts_of(pdf)
    assert 3 <= len(pages) <= 8
    for number, text in enumerate(pages, 1):
        assert f"Page {number} of {len(pages)}" in text
    first = next(number for number, text in enumerate(pages) if "What the validation supports" in text)
    assert first >= 1
    assert "The answer, to be read out" in pages[0]
    assert which == "hostile" or "What must not be said" in pages[0]


def texts_of(pdf: bytes) -> list[str]:
    """The text of each page of a PDF of Chromium, whose fonts say which letter each glyph is."""
    objects = {int(m[1]): m[2] for m in re.finditer(rb"(\d+) 0 obj\r?\n(.*?)endobj", pdf, re.DOTALL)}

    def stream(number):
        body = re.search(rb"stream\r?\n(.*?)\r?\nendstream", objects[number], re.DOTALL)[1]
        return zlib.decompress(body) if b"FlateDecode" in objects[number] else body

    def letters(font):
        table = stream(int(re.search(rb"/ToUnicode (\d+) 0 R", objects[font])[1])).decode("latin-1")
        found = {}
        for block in re.findall(r"beginbfchar(.*?)endbfchar", table, re.DOTALL):
            for glyph, text in re.findall(r"<(\w+)>\s*<(\w+)>", block):
                found[int(glyph, 16)] = bytes.fromhex(text).decode("utf-16-be")
        for block in re.findall(r"beginbfrange(.*?)endbfrange", table, re.DOTALL):
            for low, high, first in re.findall(r"<(\w+)>\s*<(\w+)>\s*<(\w+)>", block):
                for glyph in range(int(low, 16), int(high, 16) + 1):
                    found[glyph] = chr(int(first, 16) + glyph - int(low, 16))
        return found

    pages = []
    for body in objects.values():
        if not re.search(rb"/Type /Page\b(?!s)", body):
            continue
        fonts = {m[1]: letters(int(m[2])) for m in re.finditer(rb"/(F\d+) (\d+) 0 R", body)}
        content = b"".join(stream(int(number)) for number in re.findall(rb"/Contents (\d+) 0 R", body))
        text, font = "", {}
        for m in re.finditer(rb"/(F\d+) [\d.]+ Tf|(\[.*?\] TJ|<\w+> Tj)|\bET\b", content, re.DOTALL):
            if m[1]:
                font = fonts[m[1]]
            for glyphs in re.findall(rb"<(\w+)>", m[2] or b""):
                text += "".join(font.get(int(glyphs[k : k + 4], 16), "?") for k in range(0, len(glyphs), 4))
            text += "" if m[1] or m[2] else " "
        pages.append(" ".join(text.split()))
    return pages
