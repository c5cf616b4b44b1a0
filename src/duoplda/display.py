"""How objects show themselves: a short text, and in a notebook a small card of HTML.

A card has no script and takes nothing from elsewhere. Texts have the colour of the page around them, and bars have
colours that stand out against white and against black (at least 3 to 1): it can be read in light and dark notebooks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

from duoplda.errors import printable

# Of a name, and of a list of names
MOST_CHARACTERS = 60
MOST_ITEMS = 8
LEVELS = {"speaker": "#0b7ac1", "session": "#d9640a", "channel": "#0f9b72"}  # and their colours
WIDTH = 360  # of a figure


class Shown(ABC):
    """An object that shows what is in it by `_facts`: numbers of things, and texts."""

    @abstractmethod
    def _facts(self) -> dict[str, Any]:
        """What is in it, by name: whole numbers, texts, and lists of names."""

    def _figures(self) -> Sequence[str]:
        """Figures and tables for notebooks, as HTML."""
        return ()

    def __repr__(self) -> str:
        return line(type(self).__name__, self._facts())

    def _repr_html_(self) -> str:
        return card(type(self).__name__, self._facts(), *self._figures())


def line(title: str, facts: Mapping[str, Any]) -> str:
    """Facts as one line.

    >>> line("Sides", {"sides": 2, "sessions": 1500, "ids": ["a", "b"]})
    '<Sides: 2 sides, 1,500 sessions, ids a, b>'
    """
    parts = [f"{plain(v)} {name}" if is_number(v) else f"{name} {plain(v)}" for name, v in facts.items()]
    return printable(f"<{title}: {', '.join(parts)}>")


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def plain(value: Any) -> str:
    """A fact as a text: numbers with separators, lists and texts that are cut where they are long.

    >>> plain(1234.0), plain(0.5), plain([f"speaker{i}" for i in range(20)])[-20:]
    ('1,234', '0.5', '... (20 in all)')
    """
    if is_number(value):
        return f"{int(value):,}" if math.isfinite(value) and value == int(value) else f"{value:,.4g}"
    if isinstance(value, (list, tuple)) or hasattr(value, "tolist"):  # an array of ids may be long
        first = value[:MOST_ITEMS]
        shown = ", ".join(map(plain, map(str, first.tolist() if hasattr(first, "tolist") else first)))
        return shown + (f", ... ({len(value):,} in all)" if len(value) > MOST_ITEMS else "")
    text = printable(value)
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "\N{HORIZONTAL ELLIPSIS}"


def card(title: str, facts: Mapping[str, Any], *figures: str) -> str:
    """A title, facts, and figures below them."""
    grid = "display:grid;grid-template-columns:max-content minmax(0,1fr);gap:1px 14px;margin:4px 0 0;padding:0"
    cells = [
        f'<dt style="margin:0;padding:0;font-weight:normal;opacity:.75">{html(name)}</dt>'
        f'<dd style="margin:0;padding:0;overflow-wrap:anywhere">{html(value)}</dd>'
        for name, value in facts.items()
    ]
    box = "display:inline-block;box-sizing:border-box;max-width:100%;margin:2px 0;padding:8px 12px;border-radius:6px"
    box += ";border:1px solid rgba(128,128,128,.5);font-size:13px;line-height:1.45;font-variant-numeric:tabular-nums"
    head = f'<strong style="font-weight:600">{html(title)}</strong>'
    inner = f'{head}<dl style="{grid}">{"".join(cells)}</dl>{"".join(figures)}'
    return f'<div class="duoplda-card" style="{box}">{inner}</div>'


def html(value: Any) -> str:
    """A fact as HTML without markup, whose direction of writing does not reach beyond it."""
    return f"<bdi>{escape(plain(value))}</bdi>"


def shares_bar(shares: Mapping[str, float], title: str = "variance") -> str:
    """One bar in parts, with a legend: the shares of the levels, which add up to 1."""
    at = 0.0
    parts = []
    for name, share in shares.items():
        said = escape(f"{name}: {100 * share:.1f} %")
        place = f'x="{WIDTH * at:.1f}" width="{WIDTH * share:.1f}"'
        parts.append(f'<rect {place} y="0" height="14" fill="{LEVELS[name]}"><title>{said}</title></rect>')
        at += share
    text = ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items())
    return _figure(title, legend(shares), _svg(14, f"{title}: {text}", parts))


def legend(shares: Mapping[str, float]) -> str:
    """The colours of the levels, with their shares."""
    square = "display:inline-block;width:.7em;height:.7em;margin-right:.35em;border-radius:2px;background:"
    return "".join(
        f'<span style="margin-right:1em;white-space:nowrap"><span style="{square}{LEVELS[name]}"></span>'
        f"{escape(name)} {100 * share:.1f} %</span>"
        for name, share in shares.items()
    )


def shares_columns(levels: Mapping[str, Sequence[float]], title: str, most: int = 60) -> str:
    """A column for each direction, in parts that add up to 1; of many directions, runs of them are averaged."""
    d = len(next(iter(levels.values())))
    n = min(d, most)
    edges = [i * d // n for i in range(n + 1)]
    height = 64
    width = WIDTH / n
    parts = []
    for i, (a, b) in enumerate(pairwise(edges)):
        means = {name: sum(values[a:b]) / (b - a) for name, values in levels.items()}
        which = f"direction {a + 1}" if b == a + 1 else f"directions {a + 1} to {b}"
        y = float(height)
        said = escape(f"{which}: " + ", ".join(f"{name} {100 * mean:.0f} %" for name, mean in means.items()))
        bars = []
        for name, mean in means.items():
            y -= mean * height
            place = f'x="{i * width:.2f}" y="{max(y, 0):.2f}" width="{max(width - 0.6, 0.5):.2f}"'
            bars.append(f'<rect {place} height="{mean * height:.2f}" fill="{LEVELS[name]}"/>')
        parts.append(f"<g><title>{said}</title>{''.join(bars)}</g>")
    return _figure(title, "", _svg(height, title, parts))


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], note: str = "") -> str:
    """A small table, with a note below it where not all rows are shown."""
    cell = "padding:1px 14px 1px 0;text-align:left;background:none;border:0"
    top = "".join(f'<th scope="col" style="{cell};font-weight:normal;opacity:.75">{html(name)}</th>' for name in head)
    lines = ("".join(f'<td style="{cell}">{html(value)}</td>' for value in row) for row in rows)
    body = "".join(f"<tr>{cells}</tr>" for cells in lines)
    style = "margin:6px 0 0;border-collapse:collapse"
    more = f'<div style="opacity:.75">{html(note)}</div>' if note else ""
    return f'<table style="{style}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>{more}'


def _svg(height: int, label: str, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" preserveAspectRatio="none"'
    style = "display:block;max-width:100%"
    return f'<svg role="img" aria-label="{escape(label)}" {size} style="{style}">{"".join(parts)}</svg>'


def _figure(title: str, above: str, svg: str) -> str:
    head = f'<div style="opacity:.75">{escape(title)}</div>'
    return f'<div style="margin-top:8px">{head}{svg}<div>{above}</div></div>'
