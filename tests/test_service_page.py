"""The page of the service in a real browser: asking, enrolling, removing, hostile names, widths, keyboard.

The tests need Chromium and its driver (Debian: chromium, chromium-driver) and selenium; without them they are skipped,
and say so.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from duoplda.voices import Registry
from service_cases import HOSTILE, READ, STRANGE, WRITE, Client, address_of, make_service, npz, start_server, stopped
from test_report import browser, look  # noqa: F401 (a fixture)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    data = make_service(tmp_path_factory.mktemp("page"))
    for i in (0, 20):
        (data.at / f"test{i}.npz").write_bytes(npz(data.tests[i]))
        np.save(data.at / f"test{i}.npy", data.tests[i])
    (data.at / HOSTILE.replace("/", "")).write_bytes(npz(data.tests[18]))
    servers = start_server(data.at), start_server(data.at, "--token-file", data.at / "tokens")
    with stopped(servers[0]), stopped(servers[1]):
        yield SimpleNamespace(**vars(data), address=address_of(servers[0]), guarded=address_of(servers[1]))


class Page:
    """The page as a person uses it."""

    def __init__(self, chrome):
        self.chrome = chrome
        self.provoked = ()  # codes of answers that a test provokes: Chromium notes each in its console

    def one(self, selector):
        return self.chrome.find_element("css selector", selector)

    def all(self, selector):
        return self.chrome.find_elements("css selector", selector)

    def until(self, condition, seconds=60):
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.ui import WebDriverWait

        # The page may replace what is looked at between finding and reading it.
        wait = WebDriverWait(self.chrome, seconds, 0.02, [StaleElementReferenceException])
        return wait.until(lambda _: condition())

    def settled(self, condition):
        """Wait for something, and until no question is under way: its answer would move what is clicked next."""
        self.until(lambda: condition() and self.one("#answer").get_attribute("aria-busy") == "false")

    def open(self, address):
        self.chrome.get(address)
        self.until(lambda: self.one("#work").is_displayed() or self.one("#access").is_displayed())

    def text(self, selector):
        return self.one(selector).text

    def names(self):
        return [cell.text for cell in self.all("#voices tbody th")]

    def choose(self, path):
        self.one("#file").send_keys(str(path))
        self.settled(lambda: self.all(".verdict"))

    def show(self, name):
        next(button for button in self.all("#voices th button") if button.text == name).click()
        self.until(lambda: self.text("#voice-title") == name)

    def confirm(self, verb):
        self.until(lambda: self.one("dialog").is_displayed())
        assert self.text("#confirm-yes") == verb
        assert self.chrome.switch_to.active_element.text == "Cancel"
        self.one("#confirm-yes").click()

    def script(self, code, *arguments):
        return self.chrome.execute_script(code, *arguments)


@pytest.fixture
def page(browser, running):  # noqa: F811
    """The page at desktop width, just opened; then the console must be silent and all requests have gone home."""
    look(browser, 1280)
    for log in ("browser", "performance"):
        browser.get_log(log)
    page = Page(browser)
    page.open(running.address)
    yield page
    said = [entry["message"] for entry in browser.get_log("browser")]
    assert [text for text in said if not any(f"status of {code} " in text for code in page.provoked)] == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert len(urls) > 3
    assert [u for u in urls if not u.startswith((f"{running.address}/", f"{running.guarded}/", "data:,"))] == []
    assert page.script("return window.hacked") is None


def test_who_is_it_and_the_prior(running, page):
    from selenium.webdriver.common.keys import Keys

    page.choose(running.at / "test0.npz")
    with Registry.open(running.at / "voices.db", running.chain) as registry:
        found = registry.identify(running.tests[0], "1", 10, 0.5)
    assert page.text(".verdict").startswith("\N{CHECK MARK} This is person 0 (9")
    rows = [[cell.text for cell in row.find_elements("css selector", "th,td")] for row in page.all(".bars tbody tr")]
    assert [row[0] for row in rows] == [c.name for c in found.candidates] + ["somebody else"]
    assert [float(row[1].replace("\u2212", "-")) for row in rows[:-1]] == [round(c.llr, 1) for c in found.candidates]
    widths = page.script("return [...document.querySelectorAll('.bar i')].map((i) => i.getBoundingClientRect().width)")
    sizes = [abs(c.llr) for c in found.candidates]
    assert np.allclose(np.array(widths) / max(widths), np.array(sizes) / max(sizes), atol=0.02)

    for key, verdict, prior in ((Keys.HOME, "none of the known", "0.091 %"), (Keys.END, "This is person 0", "99.91 %")):
        page.one("#prior").send_keys(key)
        page.until(lambda verdict=verdict: verdict in page.text(".verdict"))
        assert page.text("#prior-value") == page.one("#prior").get_attribute("aria-valuetext") == prior
    page.one("#prior").send_keys(Keys.HOME)
    page.one("#sure").send_keys("99.9 %")
    page.until(lambda: page.text(".verdict").startswith("? Not sure: it may be person 0"))


def test_a_stranger_in_an_npy(running, page):
    page.choose(running.at / "test20.npy")
    assert "none of the known voices" in page.text(".verdict")
    assert page.one("#answer").get_attribute("aria-live") == "polite"


def test_enrol_rename_and_remove(running, page):
    page.choose(running.at / "test20.npz")
    page.one("#name").send_keys("Zoë <b>")
    page.one("#session").send_keys("first")
    page.one("#enrol-button").click()
    page.confirm("Enrol")
    page.settled(lambda: "This is Zoë <b>" in page.text(".verdict"))
    assert page.text("#done") == "Zoë <b> has 1 session with 3 recordings now."
    assert page.text("#sessions tbody th").startswith("first\nadded ")
    assert page.text("#count") == "21 voices"
    page.one("#enrol-button").click()  # the name is still there: recordings of further sessions
    page.confirm("Enrol")
    page.settled(lambda: len(page.all("#sessions tbody tr")) == 4)
    page.all("#sessions button")[1].click()
    page.confirm("Remove")
    page.settled(lambda: len(page.all("#sessions tbody tr")) == 3)
    page.one("#new-name").clear()
    page.one("#new-name").send_keys("Zoë")
    page.one("#rename button").click()
    page.settled(lambda: page.text("#voice-title") == "Zoë")
    page.one("#remove").click()
    page.until(lambda: page.one("dialog").is_displayed())
    page.one("#confirm-no").click()
    page.until(lambda: not page.one("dialog").is_displayed())
    with Client(running.address) as client:
        assert client.get("/voice", name="Zoë")["n_sessions"] == 3
    page.one("#remove").click()
    page.confirm("Remove")
    page.settled(lambda: page.text("#count") == "20 voices")
    assert not page.one("#voice").is_displayed()
    assert "Zoë" not in page.names()


def test_mistakes_are_shown_in_words(running, page):
    (running.at / "wrong.npy").write_bytes(b"no array")
    page.provoked = (422,)
    page.one("#file").send_keys(str(running.at / "wrong.npy"))
    page.until(lambda: page.text("#message"))
    assert "neither .npy nor .npz" in page.text("#message")
    assert page.chrome.switch_to.active_element.get_attribute("id") == "message"
    page.choose(running.at / "test0.npz")
    assert not page.one("#message").is_displayed()


def test_search_and_hostile_names(running, page):
    assert {HOSTILE, STRANGE} <= set(page.names())
    for name in (HOSTILE, STRANGE):
        page.show(name)
        assert len(page.all("#sessions tbody tr")) == 3
        assert page.script("return document.activeElement.id") == "voice-title"
    page.choose(running.at / HOSTILE.replace("/", ""))
    assert HOSTILE in page.text(".verdict")
    assert HOSTILE in [cell.text for cell in page.all(".bars tbody th")]
    page.one("#search").send_keys("<IMG")
    page.until(lambda: page.names() == [HOSTILE])
    assert page.text("#found") == '1 voice with "<IMG" in the name'
    assert page.all("img") == []


def test_a_file_is_dropped(running, page):
    data = list(npz(running.tests[0]))
    page.script(
        """const files = new DataTransfer(); files.items.add(new File([new Uint8Array(arguments[0])], "dropped.npz"));
        const options = { dataTransfer: files, bubbles: true, cancelable: true };
        document.getElementById("drop").dispatchEvent(new DragEvent("drop", options));""",
        data,
    )
    page.until(lambda: page.all(".verdict") and "person 0" in page.text(".verdict"))
    assert page.text("#file-name") == "dropped.npz"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1280, 1600])
def test_it_fits_and_can_be_read(running, page, width, scheme):
    look(page.chrome, width, scheme)
    page.choose(running.at / "test0.npz")
    page.show(HOSTILE)
    assert page.script("return document.documentElement.scrollWidth") <= width
    cut = page.script(
        """return [...document.querySelectorAll("button, input:not(.unseen), select, output, .verdict, td, th")]
        .filter((e) => e.getClientRects().length && !e.closest(".unseen"))
        .filter((e) => e.getBoundingClientRect().right > innerWidth || e.getBoundingClientRect().left < 0)
        .map((e) => e.outerHTML)"""
    )
    assert cut == []
    low = page.script(CONTRAST)
    assert low == []


# The contrast of each text with what is behind it, by WCAG 2: at least 4.5.
CONTRAST = """
const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = (c) => { const [r, g, b] = c.map((v) => linear(v / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
  if (c.length === 3 || c[3] === 1) return c.slice(0, 3); } return [255, 255, 255]; };
return [...document.querySelectorAll("body *")]
  .filter((e) => e.getClientRects().length && !e.closest(".unseen, datalist, .skip"))
  .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
  .map((e) => { const [a, b] = [light(parse(getComputedStyle(e).color).slice(0, 3)), light(behind(e))];
    return [e.outerHTML.slice(0, 80), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]; })
  .filter(([, ratio]) => ratio < 4.5);
"""


def test_keys_reach_everything_and_all_has_a_name(running, page):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    page.show("person 3")
    nameless = page.script(
        """return [...document.querySelectorAll("button, input, select")].filter((e) => !e.closest("dialog, #access"))
        .filter((e) => !(e.labels?.length || e.textContent.trim())).map((e) => e.outerHTML)"""
    )
    assert nameless == []
    page.script("document.activeElement.blur(); window.scrollTo(0, 0)")
    wanted = {"file", "prior", "sure", "name", "session", "enrol-button", "search", "new-name", "remove", "close"}
    seen = set()
    for _ in range(80):
        ActionChains(page.chrome).send_keys(Keys.TAB).perform()
        seen.add(page.script("return document.activeElement.id"))
        if wanted <= seen:
            break
    assert wanted <= seen
    page.one("#close").send_keys(Keys.ENTER)
    assert not page.one("#voice").is_displayed()
    assert page.chrome.switch_to.active_element.text == "person 3"  # where one was before


def test_a_token_is_asked_for_and_what_it_does_not_allow_is_said(running, page):
    page.provoked = (401, 403)
    page.open(running.guarded)
    page.one("#token").send_keys("wrong")
    page.one("#token-form button").click()
    page.until(lambda: page.text("#count") == "This token is not known.")
    page.one("#token").send_keys(READ)
    page.one("#token-form button").click()
    page.until(lambda: len(page.names()) == 20)
    page.show("person 1")
    page.one("#remove").click()
    page.confirm("Remove")
    page.until(lambda: "may read, but not change" in page.text("#message"))
    assert page.script("return [localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    page.open(running.guarded)  # the token is gone
    page.one("#token").send_keys(WRITE)
    page.one("#token-form button").click()
    page.until(lambda: len(page.names()) == 20)
