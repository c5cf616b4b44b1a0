"""Pictures of models: the trace of EM, the path of shrinkages, shares of the variance, and a map of recordings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from duoplda.errors import DuopldaError
from duoplda.model.summary import variance_directions
from duoplda.report.plots.drawing import MARKERS, OKABE_ITO, SQUARE, dress, new_axes, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from duoplda.estimators.plda import PLDA


def likelihood_trace(plda_or_trace: PLDA | ArrayLike, ax: Axes | None = None) -> Axes:
    """Draw the log-likelihood of the training data after each iteration of EM; iteration 0 is the start.

    >>> likelihood_trace([-120.0, -101.5, -101.2]).lines[0].get_ydata().tolist()
    [-120.0, -101.5, -101.2]
    """
    trace = getattr(plda_or_trace, "log_likelihoods_", plda_or_trace)
    if hasattr(trace, "fit"):
        raise DuopldaError("this model has no likelihood trace: it was not fitted, but made from parameters")
    values = np.asarray(trace, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0:
        raise DuopldaError(f"a likelihood trace is a list of numbers, not of shape {values.shape}")
    ax = new_axes(ax)
    ax.plot(values, color=OKABE_ITO[0], lw=1.3, marker="o" if len(values) <= 30 else None, ms=3)
    ax.locator_params(axis="x", integer=True)
    return dress(ax, "Iteration", "Log-likelihood (nats)")


def shrinkage_path(plda: PLDA, ax: Axes | None = None) -> Axes:
    """Draw the shrinkages that `shrinkage="auto"` tried.

    If the likelihood chose them, each line varies one shrinkage and keeps the others as chosen. If the cost of held-out
    trials chose them, the picture shows the shrinkages of each step and its cost.

    >>> from duoplda import PLDA
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(30, n_dimensions=6, n_speaker_factors=3, n_session_factors=2, seed=0)
    >>> ax = shrinkage_path(PLDA(shrinkage="auto", criterion="likelihood").fit(X, speaker, session=session))
    >>> len(ax.lines) > 0
    True
    """
    path = getattr(plda, "shrinkage_path_", {})
    chosen = getattr(plda, "shrinkage_", None)
    steps = {} if chosen is None else {a: cost for a, cost in path.items() if len(a) > len(chosen)}
    if chosen is None or not (steps or chosen in path):
        raise DuopldaError("this model has no path of shrinkages: fit it with shrinkage='auto'")
    ax = new_axes(ax)
    if steps:
        for k, name in enumerate((*chosen._fields[: len(chosen)], "VV' scaled by", "UU' scaled by")):
            values = [a[k] for a in steps]
            if len(set(values)) > 1:
                style: dict[str, Any] = {"color": OKABE_ITO[k], "ls": ["-", "--", ":", "-."][k % 4]}
                ax.plot(values, marker="o", ms=3, lw=1.3, label=name, **style)
        costs = [f"{i}\n{cost:.3f}" for i, cost in enumerate(steps.values())]
        ax.set_xticks(range(len(costs)), costs, fontsize="x-small")
        return dress(ax, "Step, and the cost of held-out trials", "Shrinkage, scale", columns=3)
    for k, name in enumerate(chosen._fields):
        others = [a for a in path if len(a) == len(chosen) and a == chosen._replace(**{name: a[k]})]
        if len(others) > 1:
            x, y = zip(*sorted((a[k], path[a]) for a in others), strict=True)
            ax.plot(x, y, color=OKABE_ITO[k], ls=["-", "--", ":", "-."][k], marker="o", ms=3, lw=1.3, label=name)
    return dress(ax, "Shrinkage", "Held-out log-likelihood (nats per recording)", xlim=(-0.02, 1.02))


def variance_shares(
    model: PLDA | ArrayLike, session: ArrayLike | None = None, noise: ArrayLike | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the shares of the speaker's, the session's and the channel's variance in each direction, stacked.

    The arguments are those of `variance_directions`. The legend gives the shares of the traces.

    >>> ax = variance_shares(np.diag([3.0, 1.0]), np.eye(2), np.eye(2))
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['speaker 50 %', 'session 25 %', 'channel 25 %']
    """
    shares = variance_directions(model, session, noise)
    ax = new_axes(ax)
    edges = np.arange(len(shares.speaker) + 1) + 0.5
    bottom = np.zeros(len(shares.speaker))
    looks = (("speaker", OKABE_ITO[0], None), ("session", OKABE_ITO[4], "////"), ("channel", OKABE_ITO[5], "...."))
    for (name, color, hatch), share, total in zip(looks, shares[:3], shares.total, strict=True):
        style: dict[str, Any] = {"color": color, "lw": 0, "hatch": hatch, "label": f"{name} {100 * total:.0f} %"}
        ax.stairs(bottom + share, edges, baseline=bottom, fill=True, **style).set_edgecolor("white")
        bottom = bottom + share
    ax.locator_params(axis="x", integer=True)
    limits: dict[str, Any] = {"xlim": (edges[0], edges[-1]), "ylim": (0.0, 1.0)}
    return dress(ax, "Direction, by share of the speaker", "Share of the variance", columns=3, **limits)


def speaker_map(Y: ArrayLike, speaker: ArrayLike, ax: Axes | None = None) -> Axes:
    """Draw recordings in their first two factors, rows of `Y` (n, >= 2), each joined to the mean of its speaker.

    Two factors show little of a model with many: voices that are near each other here may differ in the others.

    >>> ax = speaker_map([[0.0, 1.0], [0.2, 0.8], [-1.0, 0.0]], ["ann", "ann", "bob"])
    >>> sorted(text.get_text() for text in ax.get_legend().get_texts())
    ['ann', 'bob']
    """
    rows = np.asarray(Y, dtype=np.float64)
    ids = np.asarray(speaker)
    if rows.ndim != 2 or rows.shape[1] < 2 or ids.shape != rows.shape[:1]:
        raise DuopldaError(f"Y has shape {rows.shape} and speaker {ids.shape}; give (n, 2 or more) and (n,)")
    names, index = np.unique(ids, return_inverse=True)
    means = np.stack([np.bincount(index, rows[:, k]) / np.bincount(index) for k in (0, 1)], axis=1)
    ax = new_axes(ax, SQUARE)
    few = len(names) <= 8
    spokes = np.stack((rows[:, :2], means[index], np.full((len(rows), 2), np.nan)), axis=1)
    for k in range(min(len(names), 64)):  # 64 pairs of colour and marker, then they come again
        rows_of = index % 64 == k
        color = OKABE_ITO[k % 8]
        marker = MARKERS[(k + k // 8) % 8]
        ax.plot(*spokes[rows_of].reshape(-1, 2).T, color=color, lw=0.4, alpha=0.6 if few else 0.3, zorder=1)
        style: dict[str, Any] = {"color": color, "marker": marker, "ms": 3.5 if few else 2, "mew": 0, "zorder": 2}
        ax.plot(*rows[rows_of, :2].T, ls="none", label=short(names[k], 24) if few else None, **style)
    ax.set_aspect("equal", adjustable="datalim")
    return dress(ax, "Speaker factor 1", "Speaker factor 2", columns=4 if max(len(str(n)) for n in names) <= 6 else 2)
