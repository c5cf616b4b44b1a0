"""What all figures share: colours, styles, new axes as wide as a column of print, labels, legends, and saving."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duoplda.errors import DuopldaError
from duoplda.io import atomic_path
from duoplda.report._html import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, with a darker yellow, which can be seen on white paper.
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B5A800")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
DASHES += ((0, (3, 1, 3, 3)), (0, (8, 3)), (0, (1, 3)), (0, (5, 1, 1, 1, 1, 1)))
MARKERS = "os^Dv<>P"
COLUMN = 3.5  # inches, the width of a column of print
SQUARE = 0.92 * COLUMN  # the height at which axes of equal importance are about square, below their legend


def new_axes(ax: Axes | None, height: float = 0.78 * COLUMN) -> Axes:
    """Return `ax`, or the Axes of a new figure that is as wide as a column of print, with type of a matching size."""
    if ax is not None:
        return ax
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DuopldaError("plots need matplotlib: pip install 'duoplda[plots]'") from None
    ax = Figure(figsize=(COLUMN, height), layout="constrained", dpi=150).add_subplot()
    ax.tick_params(labelsize=7, width=0.6, length=2.5)
    for axis in (ax.xaxis, ax.yaxis):
        axis.label.set_fontsize(8)
        axis.get_offset_text().set_fontsize(7)
    ax.spines[:].set_linewidth(0.6)
    return ax


def dress(ax: Axes, x: str, y: str, columns: int = 1, **limits: Any) -> Axes:
    """Add labels, limits, a faint grid, and the legend above the axes, where it hides nothing; return `ax`."""
    ax.set(xlabel=x, ylabel=y, axisbelow=True, **limits)
    ax.grid(color="0.9", lw=0.5)
    if ax.get_legend_handles_labels()[0]:
        size = float(ax.xaxis.label.get_fontsize()) - 1
        space: dict[str, Any] = {"borderaxespad": 0.2, "columnspacing": 0.9, "handletextpad": 0.5, "labelspacing": 0.25}
        space["handlelength"] = 2.6 if columns == 1 else 1.2
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, fontsize=size, frameon=False, **space)
    return ax


def short(name: object, most: int = 44) -> str:
    """Return a name that fits in a legend, in which Matplotlib gives no meaning to `$` and to a leading `_`."""
    text = plain(name, most)
    return ("\N{ZERO WIDTH SPACE}" + text if text.startswith("_") else text).replace("$", r"\$")


def save(ax_or_figure: Axes | Figure, path: str | os.PathLike[str], *, dpi: int = 300, force: bool = False) -> None:
    """Write a figure as PNG, PDF or SVG, by the suffix of `path`.

    The file appears whole or not at all, and the same figure gives the same bytes every time. Text stays text in a PDF,
    as journals ask for.

    >>> import tempfile
    >>> from duoplda.plots import likelihood_trace
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(likelihood_trace([-3.0, -2.0]), folder + "/trace.png")
    ...     Path(folder, "trace.png").read_bytes()[1:4]
    b'PNG'
    """
    import matplotlib

    kind = Path(path).suffix.lower().lstrip(".")
    if kind not in ("png", "pdf", "svg"):
        raise DuopldaError(f"{path}: the suffix must be .png, .pdf or .svg")
    figure: Any = getattr(ax_or_figure, "figure", None) or ax_or_figure
    metadata = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[kind]
    options: dict[Any, Any] = {"pdf.fonttype": 42, "svg.hashsalt": "duoplda"}  # fonts as text; ids that do not change
    with matplotlib.rc_context(options), atomic_path(path, force=force) as temporary:
        figure.savefig(temporary, format=kind, dpi=dpi, metadata=metadata)
