"""Metrics of trials between held-out speakers as scorers of scikit-learn, for `GridSearchCV` and the like."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.pipeline import Pipeline
from sklearn.utils.metadata_routing import MetadataRequest

from duoplda.arrays import check_index, take, to_numpy
from duoplda.data import Recordings
from duoplda.data.labels import Ints
from duoplda.errors import DuopldaError
from duoplda.estimators import checks
from duoplda.evaluation import metrics
from duoplda.evaluation.checks import Booleans, Floats
from duoplda.model.sample import FOLD_SAMPLE, Sample
from duoplda.selection.trials import make_trials

if TYPE_CHECKING:
    from duoplda.estimators.plda import ScoresTrials
    from duoplda.trials.sides import Sides

__all__ = ["TrialScorer", "act_dcf_scorer", "cllr_scorer", "eer_scorer", "held_out_trials"]
__all__ += ["min_cllr_scorer", "min_dcf_scorer"]


def held_out_trials(
    model: ScoresTrials | Pipeline,
    X: ArrayLike,
    y: ArrayLike | None,
    session: ArrayLike | None = None,
    channel: ArrayLike | None = None,
    *,
    enrolment: Any = None,
) -> tuple[Floats, Booleans]:
    """Trials between labelled recordings that the model has not seen: ratios (n,), and whether each is a target (n,).

    Half of the sessions of each speaker enrol, in each of the forms of `enrolment`, and the others test: every
    enrolment is scored against every test recording of all speakers. A speaker with one session only tests. Which
    sessions enrol depends only on the labels and on the order of the rows, so that all models are compared on the same
    trials. There are at most 1,000 speakers, 3,000 enrolments and 3,000 tests, chosen by hashes of their names. The
    speakers must not be those of the training data, on which any model looks too good: divide recordings by speakers
    (`GroupKFold`, with the speakers as groups).

    Parameters
    ----------
    model : a fitted `PLDA` or `Backend`, or a `Pipeline` that ends in one
    X, y : (N, d) recordings, and (N,) their speakers
    session, channel : (N,) their sessions and kinds of channels. Without `session` each recording is a session of its
        own: copies of one recording would then be target trials, and far too easy ones.
    enrolment : what enrolments look like, as for `PLDA`; None: from one recording to all recordings of three sessions

    Examples
    --------
    >>> from duoplda import PLDA
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(60, seed=0)
    >>> train = speaker < np.unique(speaker)[40]
    >>> plda = PLDA().fit(X[train], speaker[train], session=session[train])
    >>> scores, labels = held_out_trials(plda, X[~train], speaker[~train], session[~train])
    >>> scores.shape == labels.shape, bool(0 < labels.mean() < 0.1)
    (True, True)
    """
    steps = list(model.named_steps.values()) if isinstance(model, Pipeline) else [model]
    last = steps[-1]
    if not hasattr(last, "enroll"):
        raise DuopldaError(
            f"{type(last).__name__} makes no trials: give a PLDA, a Backend, or a Pipeline to one of them"
        )
    if y is None:
        raise DuopldaError("y is None: give the speaker of each row")
    check_index(X=X, y=y, session=session, channel=channel)
    n = X.shape[0] if hasattr(X, "shape") else len(X)  # type: ignore[arg-type]
    if session is None and last.plda_.session_loadings_.shape[1]:
        warnings.warn(
            "no sessions were given for the held-out recordings, but the model was trained with sessions of several "
            "recordings: if there are such sessions here as well, copies of a recording become target trials. Give "
            "`session`, in scikit-learn by sklearn.set_config(enable_metadata_routing=True)",
            UserWarning,
            stacklevel=3,
        )
    # The sample is of the places of recordings, not of their vectors: what is drawn then depends only on the labels.
    places = Recordings.from_arrays(np.arange(float(n))[:, None], y, session, channel)
    sample = Sample.of(places, FOLD_SAMPLE)
    trials = make_trials(sample, checks.enrolment(enrolment))
    if trials is None:
        raise DuopldaError("no trials can be made: there must be a speaker with two sessions, and another speaker")
    row = sample.X[:, 0].astype(np.int64)

    def enrolled(index: Ints, ids: Ints, sessions: Ints | None) -> Sides:
        rows = row[index]
        recordings = X.iloc[rows] if hasattr(X, "iloc") else take(X if hasattr(X, "shape") else np.asarray(X), rows)
        recordings = model[:-1].transform(recordings) if len(steps) > 1 else recordings  # type: ignore[index]
        sides = last.enroll(recordings, ids, sessions, None if channel is None else sample.kind[index])
        sides.seen = None  # no domain check: a recording is in many sets, which would all count as speakers
        return sides

    tests = enrolled(trials.test, np.arange(len(trials.test)), None)
    ratios = to_numpy(last.llr(enrolled(trials.row, trials.side, trials.session), tests)).reshape(-1)[trials.cells]
    return ratios, np.arange(len(ratios)) < trials.n_targets


@dataclass(frozen=True)
class TrialScorer:
    """A metric of held-out trials as a scorer of scikit-learn: `scoring=` of `GridSearchCV` and `cross_val_score`.

    Calling it with (model, X, y) gives minus the metric of `held_out_trials`, as higher scores are better to
    scikit-learn. The scorer asks for `session` and `channel` by scikit-learn's metadata routing. Ready-made scorers are
    `cllr_scorer`, `min_cllr_scorer`, `eer_scorer`, `act_dcf_scorer` and `min_dcf_scorer`. Choose by `cllr_scorer` where
    ratios are used as they are: it also counts bad calibration, which the EER and the minima ignore.

    Parameters
    ----------
    metric : a function of (scores, labels) such as those of `duoplda.metrics`; smaller values are better
    options : further arguments of the metric
    enrolment : what enrolments look like, as for `PLDA`
    requests : the metadata that the scorer asks for, by argument: True, or the name under which it is passed

    Examples
    --------
    >>> from sklearn import config_context
    >>> from sklearn.model_selection import GridSearchCV, GroupKFold
    >>> from duoplda import Backend, PLDA
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(30, seed=0)
    >>> with config_context(enable_metadata_routing=True):
    ...     chain = Backend(plda=PLDA()).set_fit_request(session=True)
    ...     search = GridSearchCV(chain, {"lda": [4, 16]}, scoring=cllr_scorer, cv=GroupKFold(3))
    ...     search.fit(X, speaker, session=session, groups=speaker).best_params_
    {'lda': 16}
    >>> TrialScorer(metrics.min_dcf, {"p_target": 0.05})
    TrialScorer(min_dcf, p_target=0.05)
    """

    metric: Callable[..., float]
    options: Mapping[str, Any] = field(default_factory=dict)
    enrolment: Any = None
    requests: Mapping[str, bool | str | None] = field(default_factory=lambda: {"session": True, "channel": True})

    def __call__(
        self,
        model: ScoresTrials | Pipeline,
        X: ArrayLike,
        y: ArrayLike | None,
        *,
        session: ArrayLike | None = None,
        channel: ArrayLike | None = None,
    ) -> float:
        return -float(
            self.metric(*held_out_trials(model, X, y, session, channel, enrolment=self.enrolment), **self.options)
        )

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"TrialScorer({getattr(self.metric, '__name__', self.metric)}{options})"

    def set_score_request(self, **requests: bool | str | None) -> Self:
        """A scorer that asks for other metadata, such as `session="call"` where sessions are passed as `call`."""
        unknown = set(requests) - {"session", "channel"}
        if unknown:
            raise DuopldaError(f"the scorer takes session and channel, not {', '.join(sorted(unknown))}")
        return replace(self, requests={**self.requests, **requests})

    def get_metadata_routing(self) -> MetadataRequest:
        """The metadata that the scorer asks for, in the form that scikit-learn needs."""
        request = MetadataRequest(owner=repr(self))
        for name, alias in self.requests.items():
            request.score.add_request(param=name, alias=alias)
        return request


cllr_scorer = TrialScorer(metrics.cllr)
min_cllr_scorer = TrialScorer(metrics.min_cllr)
eer_scorer = TrialScorer(metrics.eer)
act_dcf_scorer = TrialScorer(metrics.act_dcf)
min_dcf_scorer = TrialScorer(metrics.min_dcf)
