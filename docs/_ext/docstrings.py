"""Docstrings as this package writes them, turned into what Sphinx reads.

They are plain text with a few habits: names in single backticks, formulas in indented blocks, lists with dashes,
sections `Parameters`, `Attributes`, `Returns` and `Example` underlined with dashes, examples as doctests. Fields of
data classes and named tuples are described by the comments beside them, and become a list.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from typing import Any

HIDDEN = re.compile(r"^(set_\w+_request|__\w+__|_\w*)$")  # methods that scikit-learn adds for metadata routing
WIDE = 95  # columns: a line of an entry that is longer was wrapped, and is no type


def inline(text: str) -> str:
    """One paragraph: names in backticks become literals, and nothing else is markup."""
    parts = re.split(r"``(.+?)``|`([^`]+)`", text)
    out = []
    for i in range(0, len(parts), 3):
        plain = re.sub(r"([\\*|])", r"\\\1", parts[i])
        out.append(re.sub(r"_(?!\w)", r"\\_", plain))
        if i + 1 < len(parts):
            code = parts[i + 1] or parts[i + 2]
            before = "" if not out[-1] or out[-1][-1] in " ([{-/" else "\\ "
            after = "" if not parts[i + 3] or not parts[i + 3][0].isalnum() else "\\ "
            out.append(f"{before}``{code}``{after}")
    return "".join(out)


def indented(line: str) -> int:
    return len(line) - len(line.lstrip())


class Converter:
    """Lines of a docstring, one block after another."""

    def __init__(self, lines: list[str]):
        self.lines, self.at, self.out = lines, 0, []
        self.section = ""

    def emit(self, *lines: str) -> None:
        self.out += [*lines, ""]

    def more(self) -> bool:
        return self.at < len(self.lines)

    def taken(self, keep: Any) -> list[str]:
        """The next lines, as long as `keep` holds for them."""
        first = self.at
        while self.more() and keep(self.lines[self.at]):
            self.at += 1
        return self.lines[first : self.at]

    def converted(self) -> list[str]:
        while self.more():
            line = self.lines[self.at]
            following = self.lines[self.at + 1] if self.at + 1 < len(self.lines) else ""
            if not line.strip():
                self.at += 1
            elif re.fullmatch(r"-{4,}", following.strip()):
                self.section = line.strip()
                self.emit(f".. rubric:: {'Example' if self.section == 'Examples' else self.section}")
                self.at += 2
            elif line.startswith(">>>"):
                if self.section not in ("Example", "Examples"):
                    self.section = "Example"
                    self.emit(".. rubric:: Example")
                self.emit(*self.taken(str.strip))
            elif self.section in ("Parameters", "Attributes", "Returns"):
                self.entry()
            elif indented(line) >= 4:
                block = self.taken(lambda line: not line.strip() or indented(line) >= 4)
                self.emit(
                    "::", "", *("    " + line for line in textwrap.dedent("\n".join(block)).strip("\n").split("\n"))
                )
            elif line.startswith("- "):
                self.items()
            else:
                block = self.taken(lambda line: line.strip() and not line.startswith(("- ", ">>>")))
                self.emit(inline(" ".join(line.strip() for line in block)))
        return self.out

    def items(self) -> None:
        while self.more() and self.lines[self.at].startswith("- "):
            first, self.at = self.lines[self.at], self.at + 1
            rest = self.taken(lambda line: line.startswith("  "))
            self.out.append("- " + inline(" ".join([first[2:], *(line.strip() for line in rest)])))
        self.out.append("")

    def entry(self) -> None:
        """`name : what it is`, with indented lines after it; or several such on one line, three spaces apart."""
        first, self.at = self.lines[self.at], self.at + 1
        rest = " ".join(line.strip() for line in self.taken(lambda line: line.startswith("  ")))
        heads: list[list[str]] = []
        for part in re.split(r" {3,}", first.strip()):
            name, colon, kind = part.partition(" : ")
            if colon:
                heads.append([name, kind])
            elif heads:  # more of the same
                heads[-1].append(part)
        if not heads:  # no names: what is returned
            self.emit(inline(f"{first.strip()} {rest}".strip()))
        elif len(heads) > 1 and rest:  # described together
            self.emit(", ".join(f"``{name}`` {inline(kind)}" for name, kind, *_ in heads), f"   {inline(rest)}")
        else:
            for name, kind, *more in heads:
                text = " ".join([*more, rest]).strip()
                if text and len(first) < WIDE:
                    self.emit(f"``{name}`` : {inline(kind)}", f"   {inline(text)}")
                else:
                    self.emit(f"``{name}``", f"   {inline(f'{kind} {text}'.strip())}")


def fields(cls: type) -> list[tuple[str, str]]:
    """Fields of a data class or named tuple, and the comments beside them."""
    try:
        lines = textwrap.dedent(inspect.getsource(cls)).splitlines()
    except (OSError, TypeError):
        return []
    body = ast.parse("\n".join(lines)).body[0]
    found = []
    for node in getattr(body, "body", []):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_"):
            comment = re.search(r"#\s*(?!type:|noqa)(.*)$", lines[node.end_lineno - 1][node.end_col_offset :])
            found.append((node.target.id, comment[1].strip() if comment else ""))
    return found


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    out = Converter(list(lines)).converted()
    described = any(rubric in out for rubric in (".. rubric:: Attributes", ".. rubric:: Parameters"))
    data = what == "class" and (hasattr(obj, "_fields") or hasattr(obj, "__dataclass_fields__"))
    if data and not described:
        own = [line for field, comment in fields(obj) for line in entry_of(field, comment)]
        place = next((i for i, line in enumerate(out) if line == ".. rubric:: Example"), len(out))
        out[place:place] = [".. rubric:: Attributes", "", *own] if own else []
    lines[:] = out


def entry_of(field: str, comment: str) -> list[str]:
    return [f"``{field}``", f"   {inline(comment)}" if comment else "   ..", ""]


def signature(app: Any, what: str, name: str, obj: Any, options: Any, given: str | None, returns: str | None) -> Any:
    """The signature without private parameters, which data classes have."""
    return None if given is None else (re.sub(r"(?:,\s*)?\b_\w+(?:=[^,)]*)?(?=[,)])", "", given), returns)


def skip(app: Any, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    if type(obj).__name__ in ("_tuplegetter", "member_descriptor", "_Parameter") or HIDDEN.match(name):
        return True
    return None


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True}
