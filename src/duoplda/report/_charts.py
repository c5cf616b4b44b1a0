"""Curves as SVG: two axes, a line style for each curve, and a legend that names the curves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from duoplda.report._html import number, text
from duoplda.report.plots import thin

# In pixels of a small screen; the margins have room for the numbers and the names of the axes.
WIDTH = 480
HEIGHT = 330
LEFT = 58
RIGHT = 12
TOP = 8
BOTTOM = 48
DASHES = ("", "7 4", "2 3", "9 3 2 3")
MARK_DASHES = ("", "3 3")


@dataclass(frozen=True, eq=False)
class Curve:
    """A line of a chart, with dashes that tell it from other lines where colours cannot be seen."""

    name: str
    x: ArrayLike
    y: ArrayLike
    style: int  # the number of its colour and of its dashes
    thin: bool = False


@dataclass(frozen=True)
class Mark:
    """Vertical lines at some values, with a name for the legend."""

    name: str
    x: Sequence[float]
    style: int = 0  # the number of its dashes


def ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Round numbers between two others.

    >>> ticks(-2.3, 4.1)
    [-2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0]
    """
    rough = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * k for k in (1, 2, 5, 10) if unit * k >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(k * step, 12) + 0.0 for k in range(first, last + 1)]


def chart(
    title: str,
    curves: Sequence[Curve],
    names: tuple[str, str],
    limits: tuple[tuple[float, float], tuple[float, float]],
    caption: str,
    marks: Sequence[Mark] = (),
) -> str:
    """Return a figure with a title, a legend and a caption; `names` and `limits` belong to the two axes.

    The names are markup, so that a logarithm can have its base as a subscript.
    """
    (x_low, x_high), (y_low, y_high) = limits
    parts = [*_grid(limits), *_names(names)]
    for mark in marks:
        for x in _place(mark.x, x_low, x_high, LEFT, WIDTH - RIGHT):
            where = f'x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"'
            parts.append(f'<line class="mark"{_dashes(MARK_DASHES[mark.style])} {where}/>')
    for curve in curves:
        x = _place(curve.x, x_low, x_high, LEFT, WIDTH - RIGHT)
        y = _place(curve.y, y_low, y_high, HEIGHT - BOTTOM, TOP)
        kept = thin(x, y, 0.3, 0.3)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x[kept], y[kept], strict=True))
        parts.append(f'<polyline class="{_class(curve)}"{_dashes(DASHES[curve.style])} points="{points}"/>')
    drawn = (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(title)}">{"".join(parts)}</svg>'
    )
    lines = [(_class(curve), DASHES[curve.style], "M0 5H34", curve.name) for curve in curves]
    lines += [("mark", MARK_DASHES[mark.style], "M17 0V14", mark.name) for mark in marks]
    icons = "".join(
        '<li><svg width="34" height="14" viewBox="0 -2 34 14" aria-hidden="true">'
        f'<path class="{kind}"{_dashes(dashes)} d="{line}"/></svg>{text(name)}</li>'
        for kind, dashes, line, name in lines
    )
    legend = f'<ul class="legend">{icons}</ul>'
    return f"<figure><h3>{text(title)}</h3>{legend}{drawn}<figcaption>{text(caption, None)}</figcaption></figure>"


def _class(curve: Curve) -> str:
    return f"curve s{curve.style}" + " thin" * curve.thin


def _dashes(dashes: str) -> str:
    return f' stroke-dasharray="{dashes}"' if dashes else ""


def _place(values: ArrayLike, low: float, high: float, first: float, last: float) -> np.ndarray:
    """The positions of values in the drawing; a value outside the axes is drawn on their border."""
    share = (np.clip(np.asarray(values, np.float64), low, high) - low) / (high - low)
    return first + share * (last - first)


def _grid(limits: tuple[tuple[float, float], tuple[float, float]]) -> list[str]:
    """The lines and the numbers of both axes."""
    (x_low, x_high), (y_low, y_high) = limits
    parts = []
    for value in ticks(x_low, x_high):
        x = _place(value, x_low, x_high, LEFT, WIDTH - RIGHT)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        label = number(value, "{:g}")
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{label}</text>')
    for value in ticks(y_low, y_high, 6):
        y = _place(value, y_low, y_high, HEIGHT - BOTTOM, TOP)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{number(value, "{:g}")}</text>')
    size = f'width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - TOP - BOTTOM}"'
    return [*parts, f'<rect class="border" x="{LEFT}" y="{TOP}" {size}/>']


def _names(names: tuple[str, str]) -> list[str]:
    """The names of the two axes."""
    middle = (LEFT + WIDTH - RIGHT) / 2
    turned = f"translate(13 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)"
    return [
        f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{names[0]}</text>',
        f'<text transform="{turned}" text-anchor="middle">{names[1]}</text>',
    ]
