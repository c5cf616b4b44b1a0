"""How estimators show themselves: as scikit-learn shows them, and once they are fitted with what they have learnt."""

from __future__ import annotations

from functools import partial
from typing import Any

import sklearn
from sklearn.base import BaseEstimator
from sklearn.utils import estimator_html_repr

from duoplda import display
from duoplda.arrays import reproducible
from duoplda.errors import printable
from duoplda.model.shrinkage import Shrinkage
from duoplda.model.summary import level_covariances, variance_directions, variance_shares

MOST_DIMENSIONS = 600  # up to which the directions are worth the time (half a second) that they take


class _Repr:
    """`repr` of an estimator: its parameters, as scikit-learn writes them, then comments on what it has learnt.

    A class gives scikit-learn's own function away, as its printer goes by that when it breaks lines.
    """

    def __get__(self, estimator: Any, owner: Any = None) -> Any:
        return BaseEstimator.__repr__ if estimator is None else partial(self._text, estimator)

    @staticmethod
    def _text(estimator: Any, **options: Any) -> str:
        text = BaseEstimator.__repr__(estimator, **options)
        return "\n# ".join([text, *estimator._fitted_words()])


class ShownEstimator:
    """Estimators with a PLDA that show what it has learnt; their parameters can still be pasted from `repr`."""

    __repr__ = _Repr()

    def _fitted_words(self) -> list[str]:
        """What a fitted estimator has learnt, in a line or two; none where it is not fitted."""
        plda = _fitted(self)
        if plda is None:
            return []
        facts = _facts(self, plda)
        shares = ", ".join(f"{k} {100 * v:.1f} %" for k, v in _shares(plda).items())
        words = [f"dimensions: {facts['dimensions']}; {facts['factors']}; variance: {shares}"]
        rest = ("kinds of channels", "trained on", "cost of held-out trials", "EM", "adapted", "ratios")
        words.append("; ".join(f"{name}: {display.plain(facts[name])}" for name in rest if name in facts))
        return [printable(text) for text in words]

    @property
    def _repr_html_(self) -> Any:
        """For notebooks: a card, and scikit-learn's diagram; none where `sklearn.set_config(display="text")` is set."""
        if sklearn.get_config()["display"] != "diagram":
            raise AttributeError("_repr_html_ is there only where scikit-learn's option display is 'diagram'")
        return self._html

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        return {"text/plain": repr(self), **({"text/html": self._html()} if hasattr(self, "_repr_html_") else {})}

    def _html(self) -> str:
        plda = _fitted(self)
        diagram = estimator_html_repr(self)
        if plda is None:
            return str(diagram)
        figures = [display.shares_bar(_shares(plda))]
        if plda.n_features_in_ <= MOST_DIMENSIONS:
            with reproducible():
                found = variance_directions(plda)
            levels = {"speaker": found.speaker, "session": found.session, "channel": found.channel}
            title = "variance along each direction, those that separate speakers first"
            figures.append(display.shares_columns({k: v.tolist() for k, v in levels.items()}, title))
        return display.card(f"{type(self).__name__}, fitted", _facts(self, plda), *figures) + f"<div>{diagram}</div>"


def _fitted(estimator: Any) -> Any:
    """The fitted PLDA of an estimator, or None."""
    plda = getattr(estimator, "plda_", estimator)
    return plda if hasattr(plda, "model_") else None


@reproducible()
def _shares(plda: Any) -> dict[str, float]:
    parts = plda.speaker_loadings_, plda.session_loadings_, plda.noise_precision_, plda.channel_priors_
    return variance_shares(*level_covariances(*parts))


def _facts(estimator: Any, plda: Any) -> dict[str, Any]:
    """What a fitted estimator has learnt, and from what."""
    model = plda.model_
    d = getattr(estimator, "n_features_in_", plda.model_.d)
    out: dict[str, Any] = {"dimensions": f"{d:,}" if d == model.d else f"{d:,} in, {model.d:,} in the PLDA"}
    out["factors"] = f"{model.ny:,} speaker and {model.nx:,} session factors"
    if model.K > 1:
        shares = zip(model.kinds.tolist(), plda.channel_priors_.tolist(), strict=True)
        out["kinds of channels"] = [f"{display.plain(str(kind))} {100 * share:.0f} %" for kind, share in shares]
    if hasattr(estimator, "steps_"):
        out["steps"] = " -> ".join([*estimator.steps_, "plda"])
    if counts := getattr(estimator, "counts_", {}):
        out["trained on"] = ", ".join(f"{n:,} {what}" for what, n in reversed(counts.items()))
    if any(amount := getattr(plda, "shrinkage_", Shrinkage())):
        out["shrinkage"] = ", ".join(f"{k} {v:g}" for k, v in amount._asdict().items() if v)
    if not getattr(plda, "converged_", True):
        out["EM"] = f"not converged in {plda.n_iter_} iterations"
    if (cost := getattr(plda, "cost_", None)) is not None:
        out["cost of held-out trials"] = f"{cost:.3f}, where 1 is no information"
    out["ratios"] = "not calibrated" if plda.calibration_ is None else "calibrated"
    if plda.adapted_:
        out["adapted"] = str(plda.adapted_.get("method", ""))
    return out
