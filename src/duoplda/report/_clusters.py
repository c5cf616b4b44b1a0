"""One self-contained HTML page on the speakers that `cluster` found: their number, sizes, a map, and what is doubtful.

It has no script: bars and the map are drawn here, as SVG.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any
from unicodedata import east_asian_width

import numpy as np
from numpy.typing import NDArray

from duoplda.data.labels import Ints
from duoplda.errors import DuopldaError
from duoplda.report._html import bdi, count, facts, note, number, plain, repeat, table, text, write_page
from duoplda.report.plots import principal_plane
from duoplda.trials.clustering import Clustering

# The size of the map in pixels of a small screen; its edge has room for the labels of the axes.
MAP_WIDTH = 360
MAP_HEIGHT = 340
MAP_EDGE = 24


def weak_clusters(clustering: Clustering, most: int = 10) -> list[int]:
    """Return the speakers whose weakest merge gained least, the most doubtful first: each may be two people.

    >>> from duoplda import PLDA
    >>> plda = PLDA.from_parameters([0.0], [[3.0]], None, [[1.0]])
    >>> found = plda.cluster([[9.0], [9.1], [-5.0], [-6.5]], prior=0.5)
    >>> [found.names[k] for k in weak_clusters(found)] == [found.names[found.labels[2]], found.names[found.labels[0]]]
    True
    """
    return _least(clustering.split, most)


def weak_pairs(clustering: Clustering, most: int = 10) -> list[tuple[int, int]]:
    """Return pairs of speakers whose merge would lose least, the most doubtful first: each pair may be one person.

    >>> from duoplda import PLDA
    >>> plda = PLDA.from_parameters([0.0], [[3.0]], None, [[1.0]])
    >>> found = plda.cluster([[9.0], [9.1], [-5.0], [-9.5]], prior=0.5)
    >>> weak_pairs(found, 1)  # the two on the left
    [(1, 2)]
    """
    nearest = clustering.nearest.tolist()
    ranked = [k for k in _least(-clustering.merge, len(nearest)) if nearest[k] >= 0]
    pairs = dict.fromkeys((min(k, nearest[k]), max(k, nearest[k])) for k in ranked)
    return list(pairs)[:most]


def close_calls(clustering: Clustering, most: int = 10) -> list[int]:
    """Return the sessions (items of the clustering) with the smallest margins, the smallest first.

    The margin of a session is the log odds of its speaker against the second-best one.

    >>> from duoplda import PLDA
    >>> plda = PLDA.from_parameters([0.0], [[3.0]], None, [[1.0]])
    >>> found = plda.cluster([[9.0], [9.1], [-5.0], [-6.5]], prior=0.5)
    >>> len(close_calls(found, 2))
    2
    """
    return _least(clustering.margin, most)


def _least(values: NDArray[Any], most: int) -> list[int]:
    """The rows with the smallest finite values, at most `most` of them."""
    order = np.argsort(values, kind="stable")
    kept: list[int] = order[np.isfinite(values[order])][:most].tolist()
    return kept


def write_cluster_report(
    path: str | os.PathLike[str],
    clustering: Clustering,
    *,
    session: Sequence[Any] | NDArray[Any] | None = None,
    title: str = "Speakers found",
    data_counts: Mapping[str, Any] | None = None,
    commands: Sequence[str] = (),
    hashes: Mapping[str, str] | None = None,
    most: int = 20,
    force: bool = False,
) -> Path:
    """Write the report on a clustering, and return its path.

    It lists the speakers, pairs and sessions about which the clustering is least certain, for a person who listens to
    them. It does not say how many of the speakers are right: odds are within the model, and only labels of people can
    tell (`duoplda.metrics` has measures of partitions).

    Parameters
    ----------
    path : the HTML file; it appears whole or not at all, and replaces another only with `force`
    clustering : the result of `PLDA.cluster` or `Backend.cluster`
    session : (n,) the name of each recording's session, for the list of sessions; without it the list has recordings
    data_counts : name -> number or text, shown after the counts of recordings, sessions and speakers
    commands, hashes : the commands that make this report again, and file -> hash
    most : how many doubtful speakers, pairs and sessions are listed

    >>> import tempfile
    >>> from duoplda import PLDA
    >>> plda = PLDA.from_parameters([0.0], [[3.0]], None, [[1.0]])
    >>> found = plda.cluster([[9.0], [9.1], [-5.0]], prior=0.5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_cluster_report(folder + "/clusters.html", found).name
    'clusters.html'
    """
    c = clustering
    n = len(clustering.ids)
    names = None if session is None else np.asarray(session)
    if names is not None and names.shape != (n,):
        raise DuopldaError(f"session has shape {names.shape} for {n} recordings: give one name for each recording")
    pairs = weak_pairs(c, most)
    sections = {
        "data": ("Data", _data(c, data_counts or {})),
        "sizes": ("Speakers", _sizes(c)),
        "map": ("Map", _map(c, pairs)),
        "merges": ("Speakers that may be two", _merges(c, weak_clusters(c, most))),
        "splits": ("Pairs that may be one speaker", _splits(c, pairs)),
        "sessions": ("Sessions that fit least", _sessions(c, close_calls(c, most), names)),
        "repeat": ("To repeat it", repeat(commands, hashes or {})),
    }
    subtitle = f"{n:,} recordings of {c.sessions.sum():,} sessions: {count(len(c.names), 'speaker')}"
    return write_page(path, title, subtitle, sections, force=force)


# -- sections


def _data(c: Clustering, more: Mapping[str, Any]) -> str:
    """The numbers of recordings, sessions and speakers, and the log posterior."""
    counts: dict[str, Any] = {"recordings": len(c.ids), "sessions": int(c.sessions.sum()), "speakers": len(c.names)}
    counts |= {"of these known before": int(c.known.sum())} if c.known.any() else {}
    counts |= {"with one session only": int((c.sessions == 1).sum())}
    counts["log posterior"] = number(c.log_posterior, "{:,.1f} nats")
    words = "The log posterior is relative to the partition in which each session has a speaker of its own."
    return facts(counts | dict(more)) + note(words)


def _sizes(c: Clustering, most: int = 30) -> str:
    """The `most` largest speakers, with bars, and the number of the others."""
    order = np.argsort(-c.sessions, kind="stable")
    others = order[most:]
    largest = max(1, int(c.sessions.max(initial=1)))
    recordings = np.bincount(c.labels, minlength=len(c.names))
    rows = []
    for k in order[:most]:
        bar = f'<rect class="f{1 if c.known[k] else 0}" width="{100 * c.sessions[k] / largest:.1f}%" height="100%"/>'
        drawn = f'<svg class="bar" aria-hidden="true">{bar}</svg>'
        cells = f"{c.sessions[k]:,}", f"{recordings[k]:,}", number(c.support[k], "{:.1f}")
        rows.append((bdi(c.names[k]) + _known(c, k), drawn, *cells))
    words = "Support is the natural-log likelihood ratio of two propositions: that all sessions of the speaker are of "
    words += "one person, and that each is of another person. "
    if len(others):
        single = int((c.sessions[others] == 1).sum())
        words += f"{len(others):,} further speakers, {single:,} of them with one session, are not shown."
    return table(("Speaker", "", "Sessions", "Recordings", "Support"), rows, 2) + note(words)


def _merges(c: Clustering, rows: Iterable[int]) -> str:
    """The table of speakers whose weakest merge gained least."""
    body = []
    for k in rows:
        recordings = np.flatnonzero(c.labels == k)
        recordings = recordings[np.argsort(c.margin[c.item[recordings]], kind="stable")]
        cells = f"{c.sessions[k]:,}", number(c.split[k], "{:.1f}"), _odds(c.split[k])
        body.append((bdi(c.names[k]) + _known(c, k), _ids(c, recordings), *cells))
    words = "The gain says how much the log posterior of the partition would fall, in nats, if the speaker were split "
    words += "where that costs least: into the two parts that were joined last, or by taking out the session that fits "
    words += "least. The odds say the same: 3 nats are odds of 20 to 1 that it is one speaker. The recordings that fit "
    words += "least come first."
    head = ("Speaker", "Recordings", "Sessions", "Gain (nats)", "Odds for one")
    return note(words) + table(head, body, 2) if body else ""


def _splits(c: Clustering, pairs: Iterable[tuple[int, int]]) -> str:
    """The table of pairs of speakers whose merge would lose least."""
    body = []
    for a, b in pairs:
        gain = max(float(c.merge[k]) for k, other in ((a, b), (b, a)) if c.nearest[k] == other)
        who = (bdi(c.names[k]) + _known(c, k) + _ids(c, np.flatnonzero(c.labels == k), "interval") for k in (a, b))
        body.append((*who, number(gain, "{:.1f}"), _odds(-gain)))
    words = "The gain says how much the log posterior of the partition would rise, in nats, if the two were one "
    words += "speaker. It is negative, or they would have been merged, unless a constraint forbade that. The odds are "
    words += "for two speakers."
    head = ("Speaker", "Other", "Gain (nats)", "Odds for two")
    return note(words) + table(head, body, 2) if body else ""


def _sessions(c: Clustering, items: Iterable[int], names: NDArray[Any] | None) -> str:
    """The table of sessions with the smallest margins."""
    body = []
    for item in items:
        recordings = np.flatnonzero(c.item == item)
        second = int(c.runner_up[item])
        other = "a speaker of its own" if second < 0 else bdi(c.names[second]) + _known(c, second)
        name = _ids(c, recordings)
        if names is not None:
            name = bdi(names[recordings[0]]) + _ids(c, recordings, "interval")
        margin = float(c.margin[item])
        body.append((name, bdi(c.names[c.labels[recordings[0]]]), other, number(margin, "{:.1f}"), _odds(margin)))
    words = "The margin says by how many nats the session fits its speaker better than the second-best one, if all "
    words += "other sessions stay where they are."
    head = ("Session", "Speaker", "Second-best", "Margin (nats)", "Odds")
    return note(words) + table(head, body, 3) if body else ""


def _known(c: Clustering, k: int) -> str:
    return ' <span class="note">(known)</span>' if c.known[k] else ""


def _ids(c: Clustering, rows: Ints, kind: str = "", most: int = 3) -> str:
    """The ids of the first few recordings, and the number of the others."""
    shown = ", ".join(bdi(c.ids[row]) for row in rows[:most])
    shown += f" and {len(rows) - most:,} more" if len(rows) > most else ""
    return f'<span class="{kind}">{shown}</span>' if kind else shown


def _odds(nats: float) -> str:
    """Odds as "20 : 1"; odds below even are turned around."""
    if not abs(nats) < math.log(1e6):
        return "&gt; 1,000,000 : 1" if nats > 0 else "1 : &gt; 1,000,000"
    odds = math.exp(abs(nats))
    shown = f"{odds:,.1f}" if odds < 10 else f"{odds:,.0f}"
    return f"{shown} : 1" if nats >= 0 else f"1 : {shown}"


# -- the map


def _map(c: Clustering, pairs: Iterable[tuple[int, int]], most: int = 1000) -> str:
    """A map of the speakers in their plane of largest variance, some with names; doubtful pairs are joined by lines."""
    if len(c.names) < 2:
        return ""
    diamond = "M0-1.25L1.25 0L0 1.25L-1.25 0Z"
    plane, shares = principal_plane(c.means)
    shown = np.argsort(-c.sessions, kind="stable")[:most]
    low = plane[shown].min(axis=0)
    high = plane[shown].max(axis=0)
    room = np.array([MAP_WIDTH - 2 * MAP_EDGE, MAP_HEIGHT - 3 * MAP_EDGE])
    scale = float(np.min(room / np.maximum(high - low, 1e-9 * (1 + np.abs(high - low).max()))))
    middle = np.array([MAP_WIDTH / 2, (MAP_HEIGHT - MAP_EDGE) / 2])
    xy = middle + (plane - (low + high) / 2) * [scale, -scale]  # (k, 2)
    radius = np.clip(2.0 + 1.5 * np.sqrt(c.sessions), 3.5, 11.0)
    lines = []
    points = []
    drawn_speakers = {*shown.tolist()}
    for a, b in pairs:
        if a in drawn_speakers and b in drawn_speakers:
            (x1, y1), (x2, y2) = xy[[a, b]]
            lines.append(f'<line class="cursor" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')
    for k in shown:
        title = f"<title>{text(c.names[k])}: {count(int(c.sessions[k]), 'session')}</title>"
        where = f'transform="translate({xy[k, 0]:.1f} {xy[k, 1]:.1f}) scale({radius[k]:.1f})"'
        shape = f'<path class="point f1" d="{diamond}"' if c.known[k] else '<circle class="point f0" r="1"'
        points.append(f"{shape} {where}>{title}</{shape[1:].split()[0]}>")
    directions = [f"direction {k + 1}: {100 * share:.0f} % of their variance" for k, share in enumerate(shares)]
    axes = f'<text x="{MAP_WIDTH / 2}" y="{MAP_HEIGHT - 6}" text-anchor="middle">{directions[0]}</text>'
    turned = f"translate(12 {(MAP_HEIGHT - MAP_EDGE) / 2}) rotate(-90)"
    axes += f'<text transform="{turned}" text-anchor="middle">{directions[1]}</text>'
    size = f'width="{MAP_WIDTH - MAP_EDGE}" height="{MAP_HEIGHT - MAP_EDGE - 4}"'
    axes += f'<rect class="border" x="{MAP_EDGE - 4}" y="2" {size}/>'
    drawn = "".join([axes, *lines, *points, *_names(c, shown, xy, radius)])
    label = f"Map of {count(len(shown), 'speaker')}: points that are near each other are voices that are alike"
    known = f'<li>{_icon(f"""<path class="f1" d="{diamond}" transform="translate(7 7) scale(5)"/>""")}known before</li>'
    legend = f'<li>{_icon("""<circle class="f0" cx="7" cy="7" r="5"/>""")}found</li>{known * bool(c.known.any())}'
    legend += f'<li>{_icon("""<path class="cursor" d="M0 7H14"/>""")}may be one speaker</li>' * bool(lines)
    words = "Each point is the posterior mean of a speaker\N{RIGHT SINGLE QUOTATION MARK}s factors, in the two "
    words += "directions in which speakers differ most. Larger points have more sessions. Speakers also differ in the "
    words += "directions that the map does not show."
    words += f" The {len(shown):,} largest of {len(c.names):,} are shown." * (len(shown) < len(c.names))
    plot = f'<svg class="plot map" viewBox="0 0 {MAP_WIDTH} {MAP_HEIGHT}" role="img" aria-label="{label}">{drawn}</svg>'
    return f'<figure><ul class="legend">{legend}</ul>{plot}<figcaption>{words}</figcaption></figure>'


def _icon(drawing: str) -> str:
    return f'<svg width="14" height="14" aria-hidden="true">{drawing}</svg>'


def _names(c: Clustering, shown: Ints, xy: NDArray[Any], radius: NDArray[Any], most: int = 12) -> Iterable[str]:
    """The names of the known and of the largest speakers, where there is room for them beside their points."""
    order = sorted(shown.tolist(), key=lambda k: not c.known[k])
    boxes: list[tuple[float, float, float, float]] = []
    for k in order[: 4 * most]:
        name = plain(c.names[k], 16)
        wide = 7 * sum(1 + (east_asian_width(letter) in "WF") for letter in name)  # 7 pixels for a letter
        x, y = xy[k]
        for right, below in product((True, False), (0, 12, -12)):
            left = x + radius[k] + 3 if right else x - radius[k] - 3 - wide
            box = (left, y + below - 8, left + wide, y + below + 8)
            inside = box[0] > MAP_EDGE and box[2] < MAP_WIDTH - 6 and box[1] > 4 and box[3] < MAP_HEIGHT - MAP_EDGE - 4
            if inside and not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in boxes):
                boxes.append(box)
                end = f'x="{left if right else left + wide:.1f}" text-anchor="{"start" if right else "end"}"'
                yield f'<text {end} y="{y + below + 4:.1f}">{text(c.names[k], 16)}</text>'
                break
        if len(boxes) == most:
            break
