"""One self-contained HTML page on who speaks when: a timeline of each file, and the turns that are doubtful.

It has no script: the timelines are drawn here, as SVG.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from duoplda.data.labels import Ints
from duoplda.diarization import Diarization
from duoplda.report._html import bdi, facts, note, number, repeat, table, text, write_page

TIMELINE_WIDTH = 1000  # of a timeline, in units of its drawing
PALEST = 0.2  # the opacity of a turn that somebody else spoke with even odds


def doubtful_turns(turns: Diarization, most: int = 20) -> list[int]:
    """Return the rows of the turns whose speakers have the smallest posteriors, the most doubtful first.

    These are the turns to listen to first. A posterior is a probability within the model: where the recording is unlike
    those of the training, turns with large posteriors may be wrong as well.

    >>> from duoplda.io import Coded
    >>> two = Coded.of(["f", "f"])
    >>> columns = two, [0.0, 1.0], [1.0, 1.0], Coded.of(["ann", "bob"]), np.array([0.9, 0.6]), two, np.array([0.1, 0.4])
    >>> doubtful_turns(Diarization(*columns))
    [1, 0]
    """
    order: list[int] = np.lexsort((-turns.duration, turns.posterior))[:most].tolist()
    return order


def write_diarization_report(
    path: str | os.PathLike[str],
    turns: Diarization,
    *,
    numbers: Mapping[str, Mapping[int, float]] | None = None,
    title: str = "Who speaks when",
    commands: Sequence[str] = (),
    hashes: Mapping[str, str] | None = None,
    most: int = 20,
    most_files: int = 50,
    force: bool = False,
) -> Path:
    """Write the report on turns, and return its path.

    It lists the most doubtful turns and draws a timeline of each file. It does not say how many turns are wrong: for
    that, compare them with turns that a person has labelled (`duoplda.diarization.der`).

    Parameters
    ----------
    path : the HTML file; it appears whole or not at all, and replaces another only with `force`
    turns : the result of `diarize`
    numbers : file -> the probability of each number of speakers
    commands, hashes : the commands that make this report again, and file -> hash
    most, most_files : how many doubtful turns are listed, and of how many files timelines are drawn

    >>> import tempfile
    >>> from duoplda.io import Coded
    >>> one = Coded.of(["f"])
    >>> columns = one, [0.0], [1.0], Coded.of(["ann"]), np.array([0.9]), Coded.of(["bob"]), np.array([0.1])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_diarization_report(folder + "/turns.html", Diarization(*columns)).name
    'turns.html'
    """
    rows_of = {name: np.flatnonzero(turns.file.codes == k) for k, name in enumerate(turns.file.names.tolist())}
    rows_of = {name: rows for name, rows in rows_of.items() if len(rows)}
    n_speakers = len({*turns.speaker.codes.tolist()})
    sections = {
        "data": ("Data", _data(turns, len(rows_of), n_speakers)),
        "doubtful": ("Doubtful turns", _doubtful(turns, doubtful_turns(turns, most))),
        "timelines": ("Timelines", _timelines(turns, rows_of, numbers or {}, most_files)),
        "repeat": ("To repeat it", repeat(commands, hashes or {})),
    }
    subtitle = f"{len(turns):,} turns of {n_speakers:,} speakers in {len(rows_of):,} files"
    return write_page(path, title, subtitle, sections, force=force)


def _data(turns: Diarization, n_files: int, n_speakers: int) -> str:
    counts: dict[str, Any] = {"files": n_files, "speakers": n_speakers, "turns": len(turns)}
    counts["speech"] = _clock(float(turns.duration.sum()))
    words = "A posterior is a probability within the model: it is too large where the model does not fit a recording."
    return facts(counts) + note(words)


def _doubtful(turns: Diarization, rows: Sequence[int]) -> str:
    """The turns with the smallest posteriors."""
    body = []
    for k in rows:
        span = f"{_clock(turns.start[k])} \N{EN DASH} {_clock(turns.end[k])}"
        second = bdi(turns.second.values[k]) + f" {number(turns.second_posterior[k], '{:.2f}')}"
        cells = [
            bdi(turns.file.values[k]),
            bdi(turns.speaker.values[k]),
            second if turns.second.values[k] else "",
            span,
        ]
        if turns.voice is not None and turns.voice_posterior is not None:
            cells[3:3] = [bdi(turns.voice.values[k]) + f" {number(turns.voice_posterior[k], '{:.2f}')}"]
        body.append((*cells, number(turns.posterior[k], "{:.2f}")))
    voice = ("Known voice",) if turns.voice is not None else ()
    head = ("File", "Speaker", "Second-best", *voice, "Time", "Posterior")
    words = "The posterior is the probability that the named speaker speaks, as a mean over the windows of the turn."
    return note(words) + table(head, body, 3 + len(voice)) if body else ""


def _timelines(
    turns: Diarization, rows_of: Mapping[str, Ints], numbers: Mapping[str, Mapping[int, float]], most: int
) -> str:
    """A timeline of each file, those with the most doubtful turns first."""
    order = sorted(rows_of, key=lambda name: (float(turns.posterior[rows_of[name]].min()), name))
    parts = [note("Each turn is drawn at its time. The paler a turn is, the less certain is its speaker.")]
    for name in order[:most]:
        rows = rows_of[name]
        end = float(turns.end[rows].max())
        body = []
        for k in dict.fromkeys(turns.speaker.codes[rows].tolist()):
            mine = rows[turns.speaker.codes[rows] == k]
            drawn = "".join(_turn(turns, row, end) for row in mine.tolist())
            size = f'viewBox="0 0 {TIMELINE_WIDTH} 10" preserveAspectRatio="none"'
            box = f'<svg class="timeline" {size} role="img">{drawn}</svg>'
            body.append((bdi(turns.speaker.names[k]), box, _clock(float(turns.duration[mine].sum()))))
        shares = [f"{k}: {number(p, '{:.2f}')}" for k, p in numbers.get(name, {}).items() if p >= 0.005]
        likely = f" Probability of each number of speakers: {', '.join(shares)}." if shares else ""
        head = f"<h3>{bdi(name)}</h3>" + note(f"From 0:00 to {_clock(end)}.{likely}")
        parts.append(head + table(("Speaker", "Turns", "Speech"), body, 2))
    if len(order) > most:
        parts.append(note(f"{len(order) - most:,} further files are not shown."))
    return "\n".join(parts)


def _turn(turns: Diarization, row: int, end: float) -> str:
    """A turn as a rectangle; its opacity grows with the posterior, from even odds to certainty."""
    posterior = float(turns.posterior[row])
    opacity = PALEST + (1 - PALEST) * max(0.0, 2 * posterior - 1)
    span = f"{_clock(turns.start[row])} to {_clock(turns.end[row])}"
    label = text(f"{turns.speaker.values[row]}, {span}, posterior {posterior:.2f}")
    x = TIMELINE_WIDTH * float(turns.start[row]) / end
    width = max(1.0, TIMELINE_WIDTH * float(turns.duration[row]) / end)
    where = f'x="{x:.2f}" y="0" width="{width:.2f}" height="10"'
    return f'<rect class="f0" {where} fill-opacity="{opacity:.2f}"><title>{label}</title></rect>'


def _clock(seconds: float) -> str:
    """A time as minutes and seconds, with hours where there are any.

    >>> _clock(75.25), _clock(3725)
    ('1:15.2', '1:02:05.0')
    """
    tenths = round(float(seconds) * 10 - 1e-9)
    minutes, rest = divmod(tenths, 600)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}:{minutes:02}" if hours else f"{minutes}") + f":{rest / 10:04.1f}"
