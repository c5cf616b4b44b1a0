"""Names in code font become links to the reference, on pages and in docstrings; the gallery's scripts, to its pages."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

NAME = re.compile(r"^[A-Za-z_][\w.]*(\(\))?$")
STUBS = "api/generated/"


class LinkNames(SphinxPostTransform):
    default_priority = 700

    def run(self, **kwargs: Any) -> None:
        objects = self.env.domains.python_domain.objects
        page = self.env.docname
        context = page.removeprefix(STUBS).split(".") if page.startswith(STUBS) else []
        spaces = [".".join(context[:n]) for n in range(len(context), 0, -1)] + ["duoplda", ""]
        for literal in list(self.document.findall(nodes.literal)):
            text = literal.astext()
            if not NAME.match(text) or any(isinstance(p, (nodes.reference, nodes.title)) for p in ancestors(literal)):
                continue
            name = text.removesuffix("()")
            if not context and name == text and name.islower() and "." not in name:
                continue  # on a page, `score` may be a command or a column as well
            found = next((full for s in spaces if (full := f"{s}.{name}".lstrip(".")) in objects), None)
            if found is None or (objects[found].docname == page and objects[found].node_id == ".".join(context)):
                continue
            entry = objects[found]
            link = make_refnode(self.app.builder, page, entry.docname, entry.node_id, literal.deepcopy(), found)
            literal.replace_self(link)


def ancestors(node: nodes.Node) -> Any:
    while node.parent is not None:
        node = node.parent
        yield node


def gallery_links(app: Any, docname: str, source: list[str]) -> None:
    """Links to the gallery's scripts, which a git host shows, lead to the pages that are made of them."""
    source[0] = re.sub(r"\]\(\.\./examples/gallery/(\w+)\.py\)", r"](gallery/\1.rst)", source[0])
    source[0] = re.sub(r"\]\(\.\./examples/gallery/?\)", "](gallery/index.rst)", source[0])


def setup(app: Any) -> dict[str, bool]:
    app.add_post_transform(LinkNames)
    app.connect("source-read", gallery_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
