"""Pictures of a clustering: the sizes of its speakers, a map of them, and the tree of merges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from duoplda.errors import DuopldaError
from duoplda.report.plots.curves import principal_plane
from duoplda.report.plots.drawing import OKABE_ITO, SQUARE, dress, new_axes, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from duoplda.trials.clustering import Clustering


def cluster_sizes(clustering: Clustering, ax: Axes | None = None) -> Axes:
    """Draw the number of sessions of each speaker that `cluster` found, largest first; known speakers are hatched.

    >>> from duoplda import PLDA
    >>> found = PLDA.from_parameters([0.0], [[3.0]], None, [[1.0]]).cluster([[9.0], [9.1], [-5.0]], prior=0.5)
    >>> [text.get_text() for text in cluster_sizes(found).get_legend().get_texts()]
    ['found (2)']
    """
    sizes = np.asarray(clustering.sessions, dtype=np.float64)
    order = np.argsort(-sizes, kind="stable")
    sizes = sizes[order]
    known = np.asarray(clustering.known, bool)[order]
    edges = np.arange(len(sizes) + 1) + 0.5
    ax = new_axes(ax)
    looks = ((~known, "found", OKABE_ITO[0], None), (known, "known", OKABE_ITO[1], "////"))
    for chosen, name, color, hatch in looks:
        if chosen.any():
            style: dict[str, Any] = {"color": color, "lw": 0, "hatch": hatch, "label": f"{name} ({chosen.sum():,})"}
            ax.stairs(np.where(chosen, sizes, 0.0), edges, fill=True, **style).set_edgecolor("white")
    ax.locator_params(integer=True)
    limits: dict[str, Any] = {"xlim": (edges[0], edges[-1]), "ylim": (0.0, None)}
    return dress(ax, "Speaker, by number of sessions", "Sessions", columns=2, **limits)


def cluster_map(clustering: Clustering, ax: Axes | None = None) -> Axes:
    """Draw the means of the speakers that `cluster` found, in their plane of largest variance.

    Larger points have more sessions, and known speakers are diamonds. The eight speakers with the most sessions have
    their names beside them.

    >>> from duoplda import PLDA
    >>> plda = PLDA.from_parameters([0.0, 0.0], 3 * np.eye(2), None, np.eye(2))
    >>> found = plda.cluster([[9, 0], [9, 1], [0, 9]], prior=0.5)
    >>> [text.get_text() for text in cluster_map(found).texts]
    ['spk1', 'spk2']
    """
    places, shares = principal_plane(clustering.means)
    sizes = np.asarray(clustering.sessions)
    known = np.asarray(clustering.known, bool)
    ax = new_axes(ax, SQUARE)
    for chosen, name, color, marker in ((~known, "found", OKABE_ITO[0], "o"), (known, "known", OKABE_ITO[1], "D")):
        if chosen.any():
            style: dict[str, Any] = {"color": color, "marker": marker, "alpha": 0.6, "lw": 0}
            ax.scatter(
                places[chosen, 0],
                places[chosen, 1],
                s=6.0 * np.sqrt(sizes[chosen]),
                label=f"{name} ({chosen.sum():,})",
                **style,
            )
    for k in np.argsort(-sizes, kind="stable")[:8]:
        text: dict[str, Any] = {"xytext": (3, 3), "textcoords": "offset points", "fontsize": 5.5, "color": "0.25"}
        ax.annotate(short(clustering.names[k], 16), places[k], **text)
    ax.set_aspect("equal", adjustable="datalim")
    x, y = (f"Direction {k + 1} ({100 * share:.0f} % of the variance)" for k, share in enumerate(shares))
    return dress(ax, x, y, columns=2)


def dendrogram(clustering: Clustering, ax: Axes | None = None) -> Axes:
    """Draw the tree of the merges by which `cluster` joined sessions to speakers.

    The height of a merge says by how much less it gained than the first merge; heights grow towards the top. Trees
    that are not joined were different speakers at the end of the merges, before sessions were reassigned.

    >>> from duoplda import PLDA
    >>> found = PLDA.from_parameters([0.0], [[3.0]], None, [[1.0]]).cluster([[9.0], [9.1], [-5.0]], prior=0.5)
    >>> len(found.merges), dendrogram(found).get_ylabel() != ""
    (1, True)
    """
    tree = np.asarray(clustering.linkage(), dtype=np.float64)
    n = len(clustering.merges)
    if not n:
        raise DuopldaError("there is no tree to draw: nothing was merged, each session is a speaker of its own")
    leaves = len(tree) + 1
    heights = np.append(np.zeros(len(tree) + 1), tree[:, 2])
    below = dict(enumerate(tree[:, :2].astype(np.int64).tolist(), leaves))
    x = np.full(len(heights), np.nan)
    place = 0
    stack = [len(heights) - 1]
    while stack:  # leaves from left to right, without recursion: a tree may be as deep as it has leaves
        node = stack.pop()
        if node < leaves:
            x[node] = place
            place = place + 1
        elif np.isnan(x[below[node][0]]):
            stack += [node, *reversed(below[node])]
        else:
            x[node] = x[below[node]].mean()
    # The tree also joins what was not merged at all, for SciPy: these joins are not drawn.
    ends = np.array([below[leaves + t] for t in range(n)])
    left = x[ends[:, 0]]
    right = x[ends[:, 1]]
    top = tree[:n, 2]
    gap = np.full(n, np.nan)
    xs = np.stack([left, left, right, right, gap], axis=1).ravel()
    ys = np.stack([heights[ends[:, 0]], top, top, heights[ends[:, 1]], gap], axis=1).ravel()
    ax = new_axes(ax)
    ax.plot(xs, ys, color=OKABE_ITO[0], lw=0.8)
    ax.set_xticks([])
    return dress(ax, f"{leaves:,} sessions", "Nats less than the first merge", ylim=(0.0, None))
