"""Draw the pictures of the pages: a result and a report on it, light and dark, the page of a case, and turns.

    python tools/pictures.py            writes docs/_static/copies-*.svg, and the *.webp where there is Chromium

The result is that of examples/copies_are_not_sessions.py: Cllr against the number of copies on each side of a trial.
The report is the page that `duoplda report` writes on the same trials with five copies; the case is that of the
gallery (examples/gallery/plot_case.py). The turns are those of a drawn meeting, on the page that
`duoplda diarize --report` writes.
"""

from __future__ import annotations

import base64
import runpy
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))

from copies_are_not_sessions import Trials, trials  # noqa: E402

from duoplda import PLDA  # noqa: E402
from duoplda.diarization import Segments, diarize  # noqa: E402
from duoplda.io import Coded  # noqa: E402
from duoplda.metrics import cllr  # noqa: E402
from duoplda.report import write_case_report, write_diarization_report, write_report  # noqa: E402

COPIES = range(1, 11)
# For each system: its name in the picture, its colours on white and on black (as in the report), and its mark.
SYSTEMS = {
    "by the book": ("copies counted as sessions", "#d55e00", "#ff8a3d", "M-5-5H5V5H-5Z"),
    "averaged": ("copies averaged", "#00805d", "#2cc79b", "M0-6L6 5H-6Z"),
    "duoplda": ("duoplda: sessions named", "#0072b2", "#56b4e9", "M-5 0A5 5 0 1 0 5 0A5 5 0 1 0-5 0Z"),
}
SCHEMES = {"light": ("#1a1d21", "#5b6470", "#d9dee3"), "dark": ("#e8eaed", "#a3abb5", "#3b424b")}  # ink, soft, lines


def costs(results: Sequence[Trials]) -> dict[str, list[float]]:
    """Cllr of each system, for each of some sets of trials."""
    values: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    for result in results:
        target = result.enrolled[:, None] == result.tested[None, :]
        for name in SYSTEMS:
            values[name].append(cllr(result.scores[name].ravel(), target.ravel()))
    return values


def drawn(values: dict[str, list[float]], scheme: str) -> str:
    """Cllr, on a logarithmic axis, against the number of copies, as SVG."""
    ink, soft, line = SCHEMES[scheme]
    left, top, width, height = 56, 34, 420, 250
    low, high = 0.01, 50.0

    def x(copies: float) -> float:
        return left + (copies - 1) / (COPIES[-1] - 1) * width

    def y(cost: float) -> float:
        return top + height * (1 - np.log(cost / low) / np.log(high / low))

    out = []
    for cost in (0.01, 0.1, 1.0, 10.0):
        dash = f"stroke='{soft}' stroke-dasharray='5 4'" if cost == 1 else f"stroke='{line}'"
        out.append(f"<path d='M{left} {y(cost):.1f}H{left + width}' {dash}/>")
        out.append(f"<text x='{left - 8}' y='{y(cost) + 4:.1f}' text-anchor='end'>{cost:g}</text>")
    out.append(f"<text x='{left + width}' y='{y(1) - 6:.1f}' text-anchor='end'>1 bit: no information</text>")
    for copies in COPIES:
        out.append(f"<text x='{x(copies):.1f}' y='{top + height + 20}' text-anchor='middle'>{copies}</text>")
    for name, (words, *colours, mark) in SYSTEMS.items():
        colour = colours[list(SCHEMES).index(scheme)]
        points = [f"{x(n):.1f} {y(cost):.1f}" for n, cost in zip(COPIES, values[name], strict=True)]
        out.append(f"<path d='M{'L'.join(points)}' fill='none' stroke='{colour}' stroke-width='2'/>")
        out += [f"<path d='{mark}' fill='{colour}' transform='translate({point})'/>" for point in points]
        end = y(values[name][-1])
        out.append(f"<text x='{left + width + 14}' y='{end + 4:.1f}' fill='{colour}' font-weight='600'>{words}</text>")
        shown = f"{values[name][-1]:.3f} bits"
        out.append(f"<text x='{left + width + 14}' y='{end + 21:.1f}' fill='{ink}'>{shown}</text>")
    middle = left + width / 2
    out.append(
        f"<text x='{middle}' y='{top + height + 42}' text-anchor='middle'>copies of one session on each side</text>"
    )
    out.append(
        f"<text x='8' y='16' fill='{ink}' font-weight='600'>Cllr in bits: the cost of the likelihood ratios</text>"
    )
    described = "; ".join(
        f"{SYSTEMS[name][0]}: {', '.join(f'{cost:.3f}' for cost in values[name])}" for name in SYSTEMS
    )
    head = "xmlns='http://www.w3.org/2000/svg' viewBox='0 0 700 340' width='700' height='340' role='img'"
    style = f"font-family='system-ui, sans-serif' font-size='13' fill='{soft}'"
    title = f"<title>Cllr in bits for 1 to {COPIES[-1]} copies on each side. {described}</title>"
    return f"<svg {head} {style}>{title}\n" + "\n".join(out) + "\n</svg>\n"


def report_of(result: Trials, path: Path) -> None:
    """Write the report on some trials."""
    enrolled, tested = (side.ravel() for side in np.meshgrid(result.enrolled, result.tested, indexing="ij"))
    scores = {SYSTEMS[name][0]: result.scores[name].ravel() for name in ("duoplda", "by the book")}
    write_report(path, scores, enrolled == tested, speakers=(enrolled, tested), title="Five copies against five")


def case_of_the_gallery(path: Path) -> None:
    """Write the page on the case of the gallery."""
    import matplotlib

    matplotlib.use("Agg")
    write_case_report(path, runpy.run_path(str(ROOT / "examples/gallery/plot_case.py"))["record"])


def turns_of_a_meeting(path: Path) -> None:
    """Write the report on the turns of a drawn meeting of four people, of whom two are known voices."""
    rng = np.random.default_rng(0)
    d = 12
    plda = PLDA.from_parameters(np.zeros(d), np.eye(d), None, np.eye(d))
    voices = rng.normal(size=(4, d))
    begin = np.arange(0.0, 300.0, 1.5)
    windows_of_turn = rng.integers(1, 12, size=len(begin))
    speaker_of_turn = np.cumsum(rng.integers(1, 4, size=len(begin))) % 4  # nobody follows himself
    speaker = np.repeat(speaker_of_turn, windows_of_turn)[: len(begin)]
    X = voices[speaker] + rng.normal(size=(len(begin), d))
    ids = np.array([f"meeting-{t:g}-{t + 1.5:g}" for t in begin])
    windows = Segments(ids, Coded.of(["meeting"] * len(begin)), begin, begin + 1.5)
    enrolled = np.repeat([0, 1], 3)
    known = plda.enroll(voices[enrolled] + rng.normal(size=(6, d)), np.array(["Ann", "Bob"])[enrolled])
    numbers: dict[str, dict[int, float]] = {}
    turns = diarize(plda, X, windows, known=known, told=lambda file, found: numbers.update({file: found.numbers}))
    write_diarization_report(path, turns, numbers=numbers, most=4)


def photographed(
    page: Path, folder: Path, pictures: dict[str, str], scale: float = 1, section: str | None = None
) -> None:
    """Write a section of a page as pictures: their names, and their schemes.

    The section is given by its id; without it, it is the top of the page, up to the end of the first section.
    """
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        size = {"width": 960, "height": 640, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        for name, scheme in pictures.items():
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
            browser.get(page.as_uri())
            place = "return document.querySelector(arguments[0]).getBoundingClientRect()"
            box = browser.execute_script(place, f"section#{section}" if section else "section")
            top = box["top"] - 16 if section else 0
            bottom = box["bottom"] + 16
            clip = {"x": 0, "y": top, "width": size["width"], "height": bottom - top, "scale": scale}
            form = {"format": "webp", "quality": 70, "captureBeyondViewport": True, "clip": clip}
            picture = browser.execute_cdp_cmd("Page.captureScreenshot", form)["data"]
            (folder / name).write_bytes(base64.b64decode(picture))
    finally:
        browser.quit()


def main() -> None:
    folder = ROOT / "docs/_static"
    results = list(trials([(n, n) for n in COPIES]))
    values = costs(results)
    for scheme in SCHEMES:
        (folder / f"copies-{scheme}.svg").write_text(drawn(values, scheme), encoding="utf-8")
    if shutil.which("chromium") and shutil.which("chromedriver"):
        with tempfile.TemporaryDirectory() as temporary:
            report, case, turns = (Path(temporary, f"{name}.html") for name in ("report", "case", "turns"))
            report_of(results[COPIES.index(5)], report)
            case_of_the_gallery(case)
            turns_of_a_meeting(turns)
            photographed(report, folder, {f"report-{scheme}.webp": scheme for scheme in SCHEMES}, scale=0.875)
            photographed(case, folder, {"case.webp": "light"}, scale=0.75)
            photographed(turns, folder, {"turns.webp": "light"}, scale=0.8, section="timelines")
    else:
        print("no Chromium here: the pictures of the pages stay as they are", file=sys.stderr)


if __name__ == "__main__":
    main()
