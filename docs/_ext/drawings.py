"""Flowcharts in Mermaid's notation, drawn when the site is built: no script, and colours of the page's theme.

A git host draws the same blocks by itself. What is read is what our pages use: `flowchart TD` with boxes `[ ]`,
questions `{ }` and starts `([ ])` is drawn in layers, each part by itself; boxes that start with a letter (`A. ...`)
are links to the bold text of the same page that starts with that letter; `flowchart RL`, the graph of imports with a
number on each arrow, becomes a table (row imports column), which is easier to read than three dozen arrows.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

NODE = re.compile(r"^(\w+)\s*(?:(\(\[|\[|\{)\"?(.*?)\"?(?:\]\)|\]|\}))?$")
SHAPES = {"([": "start", "{": "question", "[": "answer", None: "answer"}
LEAF = re.compile(r"([A-Z])\. ")
CHAR, LINE, PAD, GAP, DROP = 7.0, 17, 12, 18, 30  # pixels


@dataclass
class Box:
    name: str
    lines: list[str]
    shape: str = "answer"
    layer: int = 0
    x: float = 0.0
    y: float = 0.0
    label: list[str] = field(default_factory=list)  # above the box: the answer that leads here

    @property
    def width(self) -> float:
        wide = CHAR * max(map(len, self.lines + self.label))
        return wide if self.shape == "bend" else wide + 2 * PAD

    @property
    def height(self) -> float:
        return LINE * len(self.lines) + 2 * PAD


def read(source: str) -> tuple[str, dict[str, Box], list[tuple[str, str, str]]]:
    """The direction, the boxes by name, and the arrows (from, to, label)."""
    lines = [line.strip() for line in source.splitlines() if line.strip()]
    direction, boxes, arrows = lines[0].split()[1], {}, []
    for line in lines[1:]:
        parts = re.split(r"\s*-->\s*(?:\|\"?(.*?)\"?\|)?\s*", line)
        groups = [[named(text, boxes) for text in re.split(r"\s+&\s+", part)] for part in parts[::2]]
        for i, label in enumerate(parts[1::2]):
            arrows += [(a, b, label or "") for a in groups[i] for b in groups[i + 1]]
    return direction, boxes, arrows


def named(text: str, boxes: dict[str, Box]) -> str:
    found = NODE.match(text.strip())
    if found is None:
        raise ValueError(f"this is no box of a flowchart: {text!r}")
    name, shape, label = found.groups()
    if name not in boxes or label is not None:
        boxes[name] = Box(name, re.split(r"<br/?>", label or name), SHAPES[shape])
    return name


def table(boxes: dict[str, Box], arrows: list[tuple[str, str, str]]) -> str:
    """Row imports column."""
    count = {(a, b): int(label) for a, b, label in arrows}
    rows = [name for name in boxes if any(a == name for a, _, _ in arrows)]
    columns = [name for name in boxes if any(b == name for _, b, _ in arrows)]
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in columns)
    body = ""
    for a in rows:
        cells = "".join(
            f"<td class='n{min(3, 1 + n // 5)}'>{n}</td>" if (n := count.get((a, b), 0)) else "<td></td>"
            for b in columns
        )
        body += (
            f"<tr><th scope='row'>{escape(a)} <small>{escape(' '.join(boxes[a].lines[1:]))}</small></th>{cells}</tr>"
        )
    top = f"<tr><th>imports &rarr;</th>{head}</tr>"
    return f"<div class='drawing'><table class='imports'><thead>{top}</thead><tbody>{body}</tbody></table></div>"


def parts(boxes: dict[str, Box], arrows: list[tuple[str, str, str]]) -> list[set[str]]:
    """Sets of boxes that arrows connect."""
    found: list[set[str]] = []
    for name in boxes:
        found.append({name})
    for a, b, _ in arrows:
        one, two = (next(p for p in found if n in p) for n in (a, b))
        if one is not two:
            one |= two
            found.remove(two)
    return found


def layered(boxes: dict[str, Box], arrows: list[tuple[str, str]]) -> list[list[Box]]:
    """Boxes by layer, as low as what follows them allows; arrows that skip a layer get bends, which `arrows` then has.

    A label of an arrow that skips layers stands at its first bend where other arrows lead to the same box.
    """
    after = {name: [b for a, b in arrows if a == name] for name in boxes}
    for _ in boxes:
        for a, b in arrows:
            boxes[b].layer = max(boxes[b].layer, boxes[a].layer + 1)
    for name in reversed(list(boxes)):
        if after[name] and any(b == name for _, b in arrows):
            boxes[name].layer = min(boxes[b].layer for b in after[name]) - 1
    for a, b in list(arrows):
        previous = a
        for layer in range(boxes[a].layer + 1, boxes[b].layer):
            bend = Box(f"{a}-{b}-{layer}", [""], "bend", layer)
            if previous == a and sum(end == b for _, end in arrows) > 1:
                bend.label, boxes[b].label = boxes[b].label, []
            boxes[bend.name] = bend
            arrows.append((previous, bend.name))
            previous = bend.name
        if previous != a:
            arrows.remove((a, b))
            arrows.append((previous, b))
    depth = 1 + max(box.layer for box in boxes.values())
    rows = [[box for box in boxes.values() if box.layer == layer] for layer in range(depth)]
    for above, row in pairwise(rows):
        place = {box.name: i for i, box in enumerate(above)}
        order = {box.name: i for i, box in enumerate(row)}

        def centre(box: Box, place: dict[str, int] = place, order: dict[str, int] = order) -> tuple[float, int]:
            own = [place[a] for a, b in arrows if b == box.name and a in place]
            return (sum(own) / len(own) if own else 0.0, order[box.name])

        row.sort(key=centre)
    return rows


def drawn(boxes: dict[str, Box], arrows: list[tuple[str, str, str]]) -> str:
    """One part as SVG."""
    for _, b, label in arrows:
        if label:
            room = max(13, max(map(len, boxes[b].lines)))
            boxes[b].label = textwrap.wrap(label, room)
    links, tip = [(a, b) for a, b, _ in arrows], f"tip-{next(iter(boxes))}"
    rows, y = layered(boxes, links), 4.0
    width = max(sum(box.width + GAP for box in row) for row in rows) + GAP
    for row in rows:
        top = max(LINE * len(box.label) for box in row)
        x = (width - sum(box.width + GAP for box in row) + GAP) / 2
        y += top + (DROP if row is not rows[0] else 0)
        tallest = max(box.height for box in row)
        for box in row:
            box.x, box.y, x = x + box.width / 2, y, x + box.width + GAP
        y += tallest
        for box in row:
            if box.shape == "bend":
                box.lines = [""] * max(1, round((tallest - 2 * PAD) / LINE))
    out = []
    for a, b in links:
        one, two = boxes[a], boxes[b]
        y1, y2 = one.y + one.height, two.y - LINE * len(two.label) - (5 if two.shape != "bend" else 0)
        bend, arrow = (y1 + y2) / 2, "" if two.shape == "bend" else f" marker-end='url(#{tip})'"
        through = f"M{one.x:.0f} {one.y:.0f}V{y1:.0f}" if one.shape == "bend" else f"M{one.x:.0f} {y1:.0f}"
        out.append(f"<path d='{through}C{one.x:.0f} {bend:.0f} {two.x:.0f} {bend:.0f} {two.x:.0f} {y2:.0f}'{arrow}/>")
    for box in boxes.values():
        out += lines_at(box.x, box.y - LINE * len(box.label) + 8, box.label, "label")
        if box.shape == "bend":
            continue
        rx = {"start": box.height / 2, "question": 14, "answer": 3}[box.shape]
        at = f"x='{box.x - box.width / 2:.0f}' y='{box.y:.0f}' width='{box.width:.0f}' height='{box.height:.0f}'"
        parts_of_box = [f"<rect class='{box.shape}' {at} rx='{rx:.0f}'/>"]
        parts_of_box += lines_at(box.x, box.y + PAD + 13, box.lines, box.shape)
        if leaf := LEAF.match(box.lines[0]):
            parts_of_box = [f"<a href='#{leaf_anchor(leaf)}'>", *parts_of_box, "</a>"]
        out += parts_of_box
    shape = "viewBox='0 0 8 8' refX='6' refY='4' markerWidth='7' markerHeight='7' orient='auto'"
    out.insert(0, f"<defs><marker id='{tip}' {shape}><path d='M0 0L8 4L0 8z'/></marker></defs>")
    size = f"viewBox='0 0 {width:.0f} {y + 4:.0f}' width='{width:.0f}' height='{y + 4:.0f}'"
    label = "role='group' aria-label='flowchart; the same as text is below'"
    return f"<div class='drawing'><svg {size} {label}>{''.join(out)}</svg></div>"


def lines_at(x: float, y: float, lines: list[str], style: str) -> list[str]:
    return [
        f"<text class='{style}' x='{x:.0f}' y='{y + LINE * i:.0f}'>{escape(line)}</text>"
        for i, line in enumerate(lines)
    ]


def leaf_anchor(leaf: re.Match[str]) -> str:
    return f"leaf-{leaf[1].lower()}"


def anchored(app: Any, doctree: nodes.document) -> None:
    """Give an anchor to each bold text that starts with the letter of a leaf, on pages that have a flowchart."""
    if any("<a href='#leaf-" in raw.astext() for raw in doctree.findall(nodes.raw)):
        for bold in doctree.findall(nodes.strong):
            if leaf := LEAF.match(bold.astext()):
                bold["ids"].append(leaf_anchor(leaf))


class Flowchart(SphinxDirective):
    has_content = True

    def run(self) -> list[nodes.Node]:
        try:
            direction, boxes, arrows = read("\n".join(self.content))
        except ValueError as error:
            raise self.error(str(error)) from None
        if direction == "RL":
            return [nodes.raw("", table(boxes, arrows), format="html")]
        out = ""
        for part in sorted(parts(boxes, arrows), key=lambda part: min(list(boxes).index(name) for name in part)):
            own = {name: box for name, box in boxes.items() if name in part}
            out += drawn(own, [arrow for arrow in arrows if arrow[0] in part])
        return [nodes.raw("", out, format="html")]


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("mermaid", Flowchart)
    app.connect("doctree-read", anchored)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
