"""Pieces of HTML: texts that cannot act as markup, numbers, tables, and the page that holds them."""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np

from duoplda.errors import printable


def template(name: str) -> str:
    """Return a file of this package."""
    return files("duoplda.report").joinpath(name).read_text(encoding="utf-8")


def plain(value: object, most: int | None = 200) -> str:
    """Return any value as text with its control characters visible, cut to `most` characters unless that is None."""
    text = printable(str(value)[: None if most is None else most + 1])
    return text if most is None or len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def text(value: object, most: int | None = 200) -> str:
    """Return any value as HTML without markup."""
    return escape(plain(value, most))


def bdi(value: object) -> str:
    """Return any value as HTML whose direction of writing does not reach beyond it."""
    return f"<bdi>{text(value)}</bdi>"


def badge(kind: str, words: str) -> str:
    """Return a few words as a badge, which a sign tells from others where colours cannot be seen.

    `kind` is good, bad, or open where nothing is known.
    """
    sign = {"good": "\N{CHECK MARK}", "bad": "!", "open": "?"}[kind]
    return f'<span class="badge {kind}"><span aria-hidden="true">{sign}</span> {text(words)}</span>'


def facts(values: Mapping[str, Any]) -> str:
    """Return a list of names and values; whole numbers get separators."""
    items = []
    for name, value in values.items():
        number = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        items.append(f"<div><dt>{text(name)}</dt><dd>{text(f'{value:,}' if number else value)}</dd></div>")
    return f'<dl class="facts">{"".join(items)}</dl>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1, kind: str = "") -> str:
    """Return a table whose first `texts` columns are text and the others numbers; cells are HTML."""
    style = [' class="text"' if k < texts else "" for k in range(len(head))]
    if kind == "trials":
        style[0] = ' class="score"'
    top = "".join(f'<th scope="col"{c}>{cell}</th>' for c, cell in zip(style, head, strict=True))
    body = []
    for row in rows:
        cells = [f"<td{c}>{cell}</td>" for c, cell in zip(style, row, strict=True)]
        cells[0] = cells[0] if kind == "trials" else f'<th scope="row"{style[0]}>{row[0]}</th>'
        body.append(f"<tr>{''.join(cells)}</tr>")
    whole = f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Table">{whole}</div>'


def number(value: float, form: str) -> str:
    """Return a number by `form`, with a minus sign that is one, and infinity as its symbol."""
    if not np.isfinite(value):
        return "\N{INFINITY}" if value > 0 else "\N{MINUS SIGN}\N{INFINITY}"
    return form.format(value).replace("-", "\N{MINUS SIGN}")


def page(
    title: str,
    subtitle: str,
    sections: Mapping[str, tuple[str, str]],
    data: Mapping[str, Any] | None = None,
    style: str = "",
) -> str:
    """Return a whole page of sections (id -> heading and body), without those whose body is empty.

    Its Content-Security-Policy allows nothing but its own style and script; without `data` it has no script. `style` is
    what a page has beyond the style of all pages.
    """
    from duoplda import __version__

    sections = {name: (head, body) for name, (head, body) in sections.items() if body}

    css = template("page.css") + style
    js = "" if data is None else template("page.js")
    sources = [f"sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}" for part in (css, js)]
    scripts = ""
    if js:
        script = json.dumps(data, separators=(",", ":"), allow_nan=False)
        for mark in "<>&":  # so that the data cannot end the script element that holds them
            script = script.replace(mark, f"\\u{ord(mark):04x}")
        scripts = f'<script type="application/json" id="report-data">{script}</script>\n<script>{js}</script>\n'
    return Template(template("page.html")).substitute(
        title=text(title),
        css=css,
        css_hash=sources[0],
        script_source=f"; script-src '{sources[1]}'" if js else "",
        scripts=scripts,
        version=__version__,
        subtitle=subtitle,
        nav="".join(f'<a href="#{name}">{head}</a>' for name, (head, _) in sections.items()),
        sections="\n".join(
            f'<section id="{name}"><h2>{head}</h2>\n{body}</section>' for name, (head, body) in sections.items()
        ),
    )
