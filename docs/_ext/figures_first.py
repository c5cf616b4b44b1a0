"""Each page of the gallery shows its first figure at the top, before the code that draws it."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx_gallery.directives import imgsgnode


def figure_first(app: Any, doctree: nodes.document) -> None:
    """Copy the first figure behind the title of the page."""
    figure = next(iter(doctree.findall(imgsgnode)), None)
    title = next(iter(doctree.findall(nodes.title)), None)
    if app.env.docname.startswith("gallery/plot_") and figure is not None and title is not None:
        lead = nodes.container("", figure.deepcopy(), classes=["lead-figure"])
        title.parent.insert(title.parent.index(title) + 1, lead)


def setup(app: Any) -> dict[str, bool]:
    app.connect("doctree-read", figure_first)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
