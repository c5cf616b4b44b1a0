"""Pieces of HTML: texts that cannot act as markup, numbers, tables, and the page that holds them."""

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from duoplda.errors import printable
from duoplda.evaluation.support import LN10
from duoplda.io import atomic_path

DASH = "\N{EN DASH}"  # between the ends of an interval, and in place of a number that cannot be given


def template(name: str) -> str:
    """Return the text of a file of this package."""
    return files("duoplda.report").joinpath(name).read_text(encoding="utf-8")


# -- texts and numbers


def plain(value: object, most: int | None = 200) -> str:
    """Return any value as text with its control characters visible, cut to `most` characters unless that is None."""
    text = printable(str(value)[: None if most is None else most + 1])
    return text if most is None or len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def text(value: object, most: int | None = 200) -> str:
    """Return any value as HTML without markup."""
    return escape(plain(value, most))


def bdi(value: object) -> str:
    """Return any value as HTML in an element of its own, so that its direction of writing turns nothing beside it."""
    return f"<bdi>{text(value)}</bdi>"


def number(value: float, form: str) -> str:
    """Return a number formatted by `form`, with a typographic minus sign, and infinity as its symbol."""
    if not np.isfinite(value):
        return "\N{INFINITY}" if value > 0 else "\N{MINUS SIGN}\N{INFINITY}"
    return form.format(value).replace("-", "\N{MINUS SIGN}")


def log10(nats: float) -> str:
    """Return a natural-log ratio as its logarithm to the base 10."""
    return number(nats / LN10, "{:.2f}")


def count(n: int, what: str) -> str:
    """Return a number of things, in the singular or the plural: "1 session", "2 sessions"."""
    return f"{n:,} {what}{'s' * (n != 1)}"


# -- blocks


def note(html: str) -> str:
    """Return a paragraph that explains the table or the picture beside it."""
    return f'<p class="note">{html}</p>'


def items(sentences: Iterable[str], kind: str = "") -> str:
    """Return a list of sentences, which are texts without markup."""
    of_kind = f' class="{kind}"' if kind else ""
    return f"<ul{of_kind}>{''.join(f'<li>{text(sentence, None)}</li>' for sentence in sentences)}</ul>"


def badge(kind: str, words: str) -> str:
    """Return a few words as a badge, with a sign that tells its kind where colours cannot be seen.

    `kind` is "good", "bad", or "open" where nothing is known.
    """
    sign = {"good": "\N{CHECK MARK}", "bad": "!", "open": "?"}[kind]
    return f'<span class="badge {kind}"><span aria-hidden="true">{sign}</span> {text(words)}</span>'


def facts(values: Mapping[str, Any]) -> str:
    """Return a list of names and values; whole numbers get thousands separators."""
    pairs = []
    for name, value in values.items():
        number = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        pairs.append(f"<div><dt>{text(name)}</dt><dd>{text(f'{value:,}' if number else value)}</dd></div>")
    return f'<dl class="facts">{"".join(pairs)}</dl>'


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


def repeat(commands: Iterable[str], hashes: Mapping[str, str]) -> str:
    """Return the commands that make a page again, and the hashes of the files that they read."""
    commands = [commands] if isinstance(commands, str) else commands
    typed = "\n".join(text(line, None) for command in commands for line in str(command).split("\n"))
    rows = [(bdi(name), f'<span class="hash">{text(value)}</span>') for name, value in hashes.items()]
    return (f"<pre>{typed}</pre>" if typed else "") + (table(("File", "SHA-256"), rows, 2) if rows else "")


# -- the page


def write_page(
    path: str | os.PathLike[str],
    title: str,
    subtitle: str,
    sections: Mapping[str, tuple[str, str]],
    *,
    data: Mapping[str, Any] | None = None,
    style: str = "",
    force: bool = False,
) -> Path:
    """Write a page of sections (id -> heading and body) without those whose body is empty, and return its path.

    The page's Content-Security-Policy allows nothing but its own style and its own script, and without `data` for the
    script it has none. `style` follows the style that all pages share. The file appears whole or not at all.
    """
    whole = _page(title, subtitle, {name: part for name, part in sections.items() if part[1]}, data, style)
    with atomic_path(path, force=force) as temporary:
        temporary.write_bytes(whole.encode())
    return Path(path)


def _page(
    title: str,
    subtitle: str,
    sections: Mapping[str, tuple[str, str]],
    data: Mapping[str, Any] | None,
    style: str,
) -> str:
    """The text of a page."""
    from duoplda import __version__

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
