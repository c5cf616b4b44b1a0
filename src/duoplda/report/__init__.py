"""Self-contained HTML pages: on how good scores are, on clusters, on who speaks when, and on a forensic case.

`write_report` writes the page on scores: a verdict, tables, curves, and sliders for the prior and the costs. Its tables
are plain HTML and can be read without a script; a small script draws the curves and answers the sliders from data
inside the page. The other pages have no script. A Content-Security-Policy in each page allows nothing but the page's
own script and style, so that no request leaves it and no id can act as markup.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from duoplda.arrays import to_numpy
from duoplda.data import Recordings
from duoplda.estimators.domain import Domain
from duoplda.report import _sections as section
from duoplda.report._case import write_case_report
from duoplda.report._clusters import close_calls, weak_clusters, weak_pairs, write_cluster_report
from duoplda.report._data import Grid, page_data
from duoplda.report._html import count, repeat, template, text, write_page
from duoplda.report._turns import doubtful_turns, write_diarization_report
from duoplda.report._verdict import verdict
from duoplda.report.plots import variance_directions

if TYPE_CHECKING:
    from duoplda.estimators.backend import Backend
    from duoplda.estimators.plda import PLDA

__all__ = [
    "close_calls",
    "doubtful_turns",
    "inferred_kinds",
    "weak_clusters",
    "weak_pairs",
    "write_case_report",
    "write_cluster_report",
    "write_diarization_report",
    "write_report",
]


def write_report(
    path: str | os.PathLike[str],
    systems: Mapping[str, ArrayLike],
    labels: ArrayLike,
    *,
    trials: tuple[ArrayLike, ArrayLike] | None = None,
    speakers: tuple[ArrayLike, ArrayLike] | None = None,
    conditions: Mapping[str, ArrayLike] | None = None,
    kinds: tuple[ArrayLike, ArrayLike] | None = None,
    domain: Domain | None = None,
    title: str = "Speaker recognition report",
    data_counts: Mapping[str, Any] | None = None,
    model_summary: PLDA | Mapping[str, Any] | None = None,
    commands: Sequence[str] = (),
    hashes: Mapping[str, str] | None = None,
    p_target: float = 0.01,
    costs: tuple[float, float] = (1.0, 1.0),
    bootstrap: int = 200,
    seed: int = 0,
    worst: int = 10,
    progress: bool = False,
    force: bool = False,
) -> Path:
    """Write the report on one or several systems that scored the same trials, and return its path.

    It begins with a verdict in one sentence. Then it says of each system how good it is, whether its ratios are
    calibrated, and for which priors they are of use. A system counts as calibrated if its calibration loss is at most a
    fifth of minCllr, or 0.02 bits, apart from the loss that appears by chance with this number of trials. Scores that
    are not calibrated are not read as ratios: the page gives no decisions by the Bayes threshold, no Tippett plot and
    no bounds for them.

    The report describes the trials that it is given. It does not tell how the system does on other recordings, and
    without `speakers` it does not tell how much would change with other speakers.

    Parameters
    ----------
    path : the HTML file; it appears whole or not at all, and replaces another only with `force`
    systems, labels : name -> scores (n,), natural-log likelihood ratios; (n,) True for a target trial
    trials : ids of the enrolled and of the test side, each (n,), for the lists of worst trials; row numbers otherwise
    speakers : the speaker of each side, each (n,), from which confidence intervals over speakers are resampled
    conditions : name -> the value of each trial, (n,); the page has a table for each condition
    kinds : true and inferred kind of channel of recordings, each (m,), for a table of which kind was taken for which
    domain : how far the recordings are from the training data (`duoplda.estimators.domain.measure`), for a badge
    data_counts : name -> number or text, shown after the counts of trials
    model_summary : a fitted PLDA, or name -> number or text
    commands, hashes : the commands that make this report again, and file -> hash
    p_target, costs : the prior of a target and the costs of a miss and of a false alarm, for the tables, and at which
        the sliders start
    bootstrap, seed : number of resamples (0: no intervals) and their seed
    worst : how many of the worst target and non-target trials of each system are listed

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(folder + "/report.html", {"a": [2.0, -1.0], "b": [3.0, 1.0]}, [True, False]).name
    'report.html'
    """
    point = {"p_target": float(p_target), "c_miss": float(costs[0]), "c_fa": float(costs[1])}
    scored = section.checked(systems, labels, trials, speakers, conditions or {}, point)
    resampling = {"n_resamples": bootstrap, "seed": seed, "progress": progress}
    shares = variance_directions(model_summary) if hasattr(model_summary, "speaker_loadings_") else None
    measured = section.measure(scored, resampling)
    bodies = section.of_trials(scored, measured, data_counts or {}, worst)
    bodies["verdict"] = verdict(scored, measured, domain)
    bodies |= {"model": section.of_model(model_summary, shares), "repeat": repeat(commands, hashes or {})}
    bodies["kinds"] = section.of_kinds(*kinds) if kinds else ""
    ratios = [name for name, state in section.calibration_states(measured, scored.y).items() if state != "bad"]
    data = page_data(scored.scores, scored.y, Grid.around(**point), shares, ratios)
    names = ", ".join(text(name) for name in scored.scores)
    day = f"<time>{date.today().isoformat()}</time>"
    what = f"{count(len(scored.scores), 'system')} on {len(scored.y):,} trials: {names}"
    return write_page(path, title, f"{day} \N{MIDDLE DOT} {what}", _headed(bodies), data=data, force=force)


def inferred_kinds(backend: Backend, recordings: Recordings, known: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the true kinds of channels of the recordings whose ids are in `known`, and those that a back-end infers.

    Both are lists of one length, for the `kinds` of `write_report`. Recordings whose kind is not known are left out.

    >>> from duoplda import Backend, PLDA
    >>> precisions, kinds = [[[1.0]], [[0.01]]], ["clean", "noisy"]
    >>> chain = Backend.from_plda(PLDA.from_parameters(np.zeros((2, 1)), [[1.0]], None, precisions, channels=kinds))
    >>> inferred_kinds(chain, Recordings.from_arrays([[0.1], [30.0]], ids=["a", "b"]), {"a": "clean", "b": "noisy"})
    (['clean', 'noisy'], ['clean', 'noisy'])
    """
    true: list[str] = []
    inferred: list[str] = []
    for chunk in recordings.chunks():
        ids = [] if chunk.ids is None else chunk.ids.tolist()
        rows = [row for row, name in enumerate(ids) if name in known]
        if rows:
            posterior = to_numpy(backend.plda_.channel_posterior(backend.transform(chunk.X[rows])))
            true += [known[ids[row]] for row in rows]
            inferred += backend.plda_.channels_[np.argmax(posterior, axis=1)].astype(str).tolist()
    return true, inferred


def _headed(bodies: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The sections of the page in their order, with their headings."""
    return {
        "verdict": ("Verdict", bodies["verdict"]),
        "data": ("Data", bodies["data"]),
        "metrics": ("Metrics", bodies["metrics"]),
        "decide": ("Decisions", template("decide.html")),
        "curves": ("Curves", template("curves.html")),
        "support": ("What ratios the trials support", bodies["support"]),
        "model": ("Model", bodies["model"]),
        "conditions": ("Conditions", bodies["conditions"]),
        "kinds": ("Kinds of channels", bodies["kinds"]),
        "worst": ("Worst trials", bodies["worst"]),
        "repeat": ("To repeat it", bodies["repeat"]),
    }
