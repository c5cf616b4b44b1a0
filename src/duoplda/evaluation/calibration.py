"""From scores to calibrated log-likelihood ratios: affine, monotone (PAV), by densities, fusion of systems, and more.

Each is a scikit-learn estimator: `fit(scores, labels, weights=None)` on trials of known truth, then `transform(scores)`
gives natural-log likelihood ratios. Learn on other speakers than those that are scored later, recorded in the same way:
a calibration looks better than it is on the trials that it was learnt from, and one of another channel misleads.

`save(path)` and `load(path)` keep one in a file; `get_state()` gives parameters and what was learnt as plain floats and
arrays, `from_state()` takes them back. The PAV blocks are those of `duoplda.metrics`: the yardstick and the calibration
then agree on ties.
"""

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.special import entr, expit, logit
from sklearn.utils.validation import check_is_fitted

from duoplda.arrays import Array
from duoplda.errors import DuopldaError
from duoplda.evaluation.around import BootstrapCalibration, Bounded
from duoplda.evaluation.calibration_base import Calibration, load, refuse_infinite, restore, without_nan
from duoplda.evaluation.checks import Booleans, Floats, check_trials, real_numbers
from duoplda.evaluation.densities import KDECalibration
from duoplda.evaluation.metrics import pool, tally
from duoplda.evaluation.quality import Recipe, TrialQuality, choose, design, trial_folds

__all__ = ["CALIBRATIONS", "AffineCalibration", "BootstrapCalibration", "Bounded", "Fusion", "HeldOutRatios"]
__all__ += ["KDECalibration", "PAVCalibration", "QualityCalibration", "StructureCalibration", "load", "restore"]


class _Logistic(Calibration):
    """The base of linear calibrations: their parameters, and the minimum of the prior-weighted logistic loss."""

    _n_free: ClassVar[int] = 0  # how many of the scales, from the first one on, have no ridge

    def __init__(self, p_target: float = 0.5, ridge: float = 0.0) -> None:
        self.p_target = p_target
        self.ridge = ridge

    def _learn(self, x: Floats, labels: ArrayLike, weights: ArrayLike | None) -> Floats:
        """Set the offset and the ridge that was used, and return the scales (k,), for scores x (n, k)."""
        p = self.p_target
        ridge = self.ridge
        if not 0 < p < 1:
            raise DuopldaError(f"p_target={p!r} must lie strictly between 0 and 1")
        if not 0 <= ridge < np.inf:
            raise DuopldaError(f"ridge={ridge!r} must be a finite number >= 0")
        if x.size == 0:
            raise DuopldaError(f"scores has shape {x.shape}; there are no scores")
        refuse_infinite(x)
        rows, y, w = check_trials(np.arange(len(x)), labels, weights)  # which leaves out rows of weight 0
        x = x[rows.astype(np.intp)]
        n_targets = w[y].sum()
        n_nontargets = w[~y].sum()
        c = np.where(y, p * w / n_targets, (1 - p) * w / n_nontargets)  # sums to 1
        mean = c @ x
        x = x - mean
        deviation = np.sqrt(c @ x**2)
        deviation[deviation <= 1e-12 * np.abs(mean)] = np.inf  # so that a constant column gets the scale 0
        x = np.column_stack((x / deviation, np.ones(len(x))))
        penalty = np.where(np.arange(len(mean)) < self._n_free, 0.0, ridge)
        theta = _newton(x, y, c, p, penalty)
        if theta is None and not penalty.all():
            ridge = float(1.0 / min(n_targets, n_nontargets))
            message = f"no finite scale is best: the scores separate (some of) the trials; used ridge={ridge:.3g}"
            remedy = "set a ridge yourself, or calibrate on trials with some errors"
            warnings.warn(f"{message}; {remedy}", UserWarning, stacklevel=3)
            theta = _newton(x, y, c, p, np.maximum(penalty, ridge))
        if theta is None:
            raise DuopldaError(f"the fit did not converge with ridge={ridge:.3g}; use a larger one")
        scales = theta[:-1] / deviation
        self.offset_ = float(theta[-1] - scales @ mean)
        self.ridge_ = ridge
        return scales

    def _set_scale(self, scale: float) -> None:
        """Keep the scale of one system, and warn where it turns the scores around."""
        self.scale_ = scale
        if scale < 0:
            message = f"the scale is negative ({scale:.3g}): targets score lower than non-targets; are "
            warnings.warn(message + "the labels or the sign of the scores inverted?", UserWarning, stacklevel=3)


class AffineCalibration(_Logistic):
    """Scale and offset that turn scores into log-likelihood ratios: llr = scale_ s + offset_.

    They minimise the prior-weighted logistic loss, which for p = 0.5 is Cllr,

        p mean over targets of log(1 + exp(-llr - logit p))
        + (1 - p) mean over non-targets of log(1 + exp(llr + logit p)) + ridge a^2 / 2,

    where p = `p_target` says which priors matter most and a is the scale for scores of unit variance. The order of the
    scores stays as it is. Use it by default: two numbers can be learnt from a few hundred trials.

    When one threshold separates the classes the loss has no finite minimum. Then, if `ridge` is 0, a warning is given
    and the ridge 1 / (weight of the rarer class's trials) is used instead, which keeps the ratios to what that number
    of trials can support; `ridge_` holds the ridge that was used.

    >>> scores, labels = [-3.0, 1.0, -1.0, 3.0], [False, False, True, True]
    >>> calibration = AffineCalibration().fit(scores, labels)
    >>> bool(calibration.scale_ > 0), round(calibration.offset_, 6) == 0
    (True, True)
    """

    _learnt = ("scale_", "offset_", "ridge_")

    def fit(self, scores: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None) -> Self:
        """Learn from finite `scores` (n,), boolean `labels` (n,) and trial `weights` (n,) or None."""
        x = real_numbers(scores)
        if x.ndim != 1:
            raise DuopldaError(f"scores has shape {x.shape}; give (n,), or use Fusion for several systems")
        self._set_scale(float(self._learn(x[:, None], labels, weights)[0]))
        return self

    def transform(self, scores: ArrayLike) -> Floats:
        """Log-likelihood ratios of scores of any shape; infinite scores stay infinite unless scale_ is 0."""
        check_is_fitted(self)
        x = without_nan(scores)
        return self.offset_ + (self.scale_ * x if self.scale_ else np.zeros_like(x))

    @classmethod
    def of(cls, scale: float, offset: float) -> Self:
        """The map with this scale and this offset, without learning."""
        return cls.from_state({**cls().get_params(), "scale_": scale, "offset_": offset, "ridge_": 0.0})

    def apply(self, scores: Array) -> Array:
        """The same as `transform`, in the array library of the scores."""
        return self.scale_ * scores + self.offset_


class Fusion(_Logistic):
    """Calibrated linear fusion of k systems: llr = scores @ scales_ + offset_.

    The weights minimise the same loss as `AffineCalibration`, which is the case k = 1, with the ridge on
    the k scales for scores of unit variance. Systems that repeat each other share their weight equally. A negative
    scale is no error: a system may correct another one.

    >>> scores = [[-3.0, 0.0], [1.0, 1.0], [-1.0, 1.0], [3.0, -1.0], [0.5, 1.5], [1.0, -2.0]]
    >>> Fusion().fit(scores, [False, False, True, True, False, True]).transform(scores).shape
    (6,)
    """

    _learnt = ("scales_", "offset_", "ridge_")
    _arrays = ("scales_",)

    def fit(self, scores: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None) -> Self:
        """Learn from finite `scores` (n, k), boolean `labels` (n,) and trial `weights` (n,) or None."""
        x = real_numbers(scores)
        if x.ndim != 2:
            raise DuopldaError(f"scores has shape {x.shape}; give (n, k), one column for each system")
        self.scales_ = self._learn(x, labels, weights)
        return self

    def transform(self, scores: ArrayLike) -> Floats:
        """Log-likelihood ratios (...,) of finite `scores` (..., k)."""
        check_is_fitted(self)
        x = real_numbers(scores)
        k = len(self.scales_)
        if x.ndim == 0 or x.shape[-1] != k:
            raise DuopldaError(f"scores has shape {x.shape}; this fusion was fitted on {k} systems, give (n, {k})")
        refuse_infinite(x.reshape(-1, k))
        return np.asarray(x @ self.scales_ + self.offset_)


class HeldOutRatios(NamedTuple):
    """Log-likelihood ratios (n,) of trials whose speakers were left out where the calibration was learnt.

    >>> found = HeldOutRatios(np.array([1.0, -2.0]), np.array([1.5, -2.5]), n_speakers=30, n_folds=5)
    >>> (found.quality - found.affine).tolist()
    [0.5, -0.5]
    """

    affine: Floats  # by the score alone
    quality: Floats  # by the score and side information
    n_speakers: int
    n_folds: int


class QualityCalibration(_Logistic):
    """Scores and side information of both sides of a trial: llr = scale_ s + offset_ + x @ coefficients_.

    Use it where durations, kinds of channels or counts differ between trials, and only if `held_out` shows that it
    lowers Cllr for speakers who were left out: each coefficient must be learnt from the same trials.

    The columns x of side information are those of `duoplda.evaluation.quality`: numbers, logarithms of durations and
    counts, kinds. With `symmetric`, both sides of a trial have the same coefficients. All minimise the same loss as
    `AffineCalibration`; the ridge is on the coefficients for columns of unit variance, not on the scale of the score.
    With the default, 0.01, a coefficient that the trials determine well loses about a tenth, and one that they do not
    is held near 0. If the scores separate the classes, the scale gets a ridge too, as in `AffineCalibration`.

    `terms_` has the meaning of each coefficient, `deviations_` the standard deviation of its column, and after `fit`
    (not in a file) `ignored_` has the columns that could not be used, and why.

    >>> from duoplda.evaluation.quality import trial_quality
    >>> from duoplda.io import Coded, QualityTable, Trials
    >>> trials = Trials(Coded.of("aaaabbbb"), Coded.of("cdefcdef"))
    >>> table = QualityTable.of("abcdef", {"duration": [2, 9, 3, 4, 5, 6], "rate": [8] * 6})
    >>> scores, labels = [3.0, -3, 1, -1, -2, 0.5, 2, 1.5], [1, 0, 1, 0, 0, 1, 1, 0]
    >>> quality = trial_quality(trials, table)
    >>> fitted = QualityCalibration(symmetric=True).fit(scores, labels, quality=quality)
    >>> [str(term) for term in fitted.recipe.terms], fitted.transform(scores, quality).shape, fitted.ignored_
    (['log duration, both sides'], (8,), {'rate': 'it is the same for all trials'})
    """

    _learnt = ("scale_", "offset_", "ridge_", "coefficients_", "deviations_")
    _arrays = ("coefficients_", "deviations_")
    _texts = ("terms_", "kinds_")
    scores_suffice = False
    _n_free = 1  # the scale of the score

    def __init__(self, p_target: float = 0.5, ridge: float = 0.01, symmetric: bool = False) -> None:
        super().__init__(p_target, ridge)
        self.symmetric = symmetric

    @property
    def recipe(self) -> Recipe:
        """The recipe of the columns of side information to which the coefficients belong."""
        return Recipe.of(self.terms_, self.kinds_)

    def fit(
        self, scores: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None, *, quality: TrialQuality
    ) -> Self:
        """Learn from finite `scores` (n,), boolean `labels` (n,), `weights` (n,) or None, and side information."""
        recipe, x = self._columns(scores, quality)
        scales = self._learn(x, labels, weights)
        self._set_scale(float(scales[0]))
        self.coefficients_ = scales[1:]
        self.deviations_ = x[:, 1:].std(axis=0)
        self.terms_ = [[t.use, t.column, t.side, t.word] for t in recipe.terms]
        self.kinds_ = {name: list(words) for name, words in recipe.kinds.items()}
        self.ignored_ = dict(recipe.ignored)
        return self

    def transform(self, scores: ArrayLike, quality: TrialQuality | None = None) -> Floats:
        """Log-likelihood ratios (n,) of finite `scores` (n,), with side information on the same trials."""
        check_is_fitted(self)
        x = design(_fitting(scores, quality), self.recipe)
        s = real_numbers(scores)
        refuse_infinite(s[:, None])
        return np.asarray(self.scale_ * s + self.offset_ + x @ self.coefficients_)

    def fit_transform(
        self, scores: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None, *, quality: TrialQuality
    ) -> Floats:
        """Learn, and return the log-likelihood ratios of the same trials."""
        return self.fit(scores, labels, weights, quality=quality).transform(scores, quality)

    def held_out(
        self,
        scores: ArrayLike,
        labels: ArrayLike,
        *,
        quality: TrialQuality,
        speakers: tuple[ArrayLike, ArrayLike],
        n_folds: int = 5,
        seed: int = 0,
    ) -> HeldOutRatios:
        """Calibrate each trial by what other speakers teach, with side information and without.

        `speakers` has the speaker of each side, two (n,). The speakers are dealt into folds, and a trial is calibrated
        by the trials that have no speaker of its two folds. Which columns can be used is decided once, without labels.
        Compare `cllr` of the two answers before you use side information.
        """
        x = self._columns(scores, quality)[1]
        y = check_trials(x[:, 0], labels, None)[1]
        ratios = np.empty((2, len(y)))
        learner = type(self)(**self.get_params())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # `fit`, on all trials, says what there is to say
            for held, learn in trial_folds(speakers, y, n_folds, seed):
                for i, width in enumerate((1, x.shape[1])):
                    scales = learner._learn(x[learn, :width], y[learn], None)
                    ratios[i, held] = x[held, :width] @ scales + learner.offset_
        n = len(np.unique(np.concatenate([np.asarray(side) for side in speakers])))
        return HeldOutRatios(ratios[0], ratios[1], n, min(n_folds, n))

    def _columns(self, scores: ArrayLike, quality: TrialQuality) -> tuple[Recipe, Floats]:
        """Choose the columns of side information, and set them beside the scores: (n, 1 + number of terms)."""
        recipe = choose(_fitting(scores, quality), bool(self.symmetric))
        if not recipe.terms:
            why = "; ".join(f"{name}: {cause}" for name, cause in recipe.ignored.items())
            raise DuopldaError(f"no column of the table can be used ({why}); use AffineCalibration without it")
        return recipe, np.column_stack((real_numbers(scores), design(quality, recipe)))

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the fitted object that gave this state."""
        recipe = Recipe.of(state.get("terms_"), state.get("kinds_"))
        fitted = super().from_state({name: v for name, v in state.items() if name not in cls._texts})
        if len(recipe.terms) != len(fitted.coefficients_):
            raise DuopldaError(f"{len(recipe.terms)} terms for {len(fitted.coefficients_)} coefficients")
        fitted.symmetric = bool(fitted.symmetric)
        fitted.terms_ = state["terms_"]
        fitted.kinds_ = state["kinds_"]
        return fitted


class StructureCalibration(Calibration):
    """A scale and an offset for each structure of trials: for what is known of both sides before their vectors are.

        llr = exp(a . f) s + b . f,    f = (1, ln(c0 / 20), h)

    with a = `log_scales_` and b = `offsets_`. c0 is the ratio in nats that the model expects of a target trial
    (`expected`): little between two noisy recordings, much between sets of many sessions. h is the share of pairs of
    recordings that are of one kind of channels (`alike`). Within a structure the order of the scores stays as it is.
    Where c0 is below `least_` or above `most_`, the least and the most that was expected of the trials in `fit`, it
    counts as that number.

    The six numbers minimise the mean over the prior probabilities in `priors` of what decisions cost,
    C_pi(llr) / H(pi) (for pi = .5 this is Cllr), plus `ridge` (a_1^2 + a_2^2 + b_1^2 / 4 + b_2^2 / 4): trials that do
    not tell structures apart are left one scale and one offset. Learn them from trials of many structures; where all
    trials are alike, take `AffineCalibration`. `PLDA(calibration="structure")` learns them in training, and
    `PLDA.structure` gives `expected` and `alike` of trials.

    >>> scores, labels = [-3.0, 1.0, -1.0, 3.0, 4.0, -6.0], [False, False, True, True, True, False]
    >>> calibration = StructureCalibration().fit(scores, labels, expected=[5, 5, 5, 5, 20, 20], alike=[1] * 6)
    >>> calibration.transform([2.0, 2.0], expected=[5, 20], alike=[1, 1]).shape
    (2,)
    """

    scores_suffice = False
    _learnt = ("log_scales_", "offsets_", "least_", "most_")
    _arrays = ("log_scales_", "offsets_")
    _usual = 20.0  # nats: the c0 at which the scale and the offset do not depend on a_1 and b_1

    def __init__(self, priors: tuple[float, ...] = (0.5, 0.01), ridge: float = 0.003) -> None:
        self.priors = priors
        self.ridge = ridge

    def fit(
        self,
        scores: ArrayLike,
        labels: ArrayLike,
        weights: ArrayLike | None = None,
        *,
        expected: ArrayLike,
        alike: ArrayLike,
    ) -> Self:
        """Learn from finite `scores` (n,), boolean `labels` (n,), `weights` (n,) or None, and the structure of each."""
        s, y, w = check_trials(scores, labels, weights)
        refuse_infinite(real_numbers(scores)[:, None])
        if len(s) != np.size(scores):
            raise DuopldaError("weights must be positive: leave out trials of weight 0")
        c0 = real_numbers(expected)
        self.least_ = float(c0.min())
        self.most_ = float(c0.max())
        if c0.shape != s.shape or np.shape(alike) != s.shape or not self.least_ > 0:
            raise DuopldaError("expected must be positive, and expected and alike of the shape of scores")
        f = self._features(c0, real_numbers(alike))
        deviation = float(np.sqrt(np.mean(s**2))) or 1.0
        unit = s / deviation
        sign = np.where(y, -1.0, 1.0)
        share = np.where(y, w / w[y].sum(), w / w[~y].sum())
        # Where a threshold separates the classes, a larger scale is always better. As in `AffineCalibration`, a ridge
        # then keeps the scale to what the number of trials supports.
        pull = np.array([1 / max(1, y.sum()), 2 * self.ridge, 2 * self.ridge, 1e-12, self.ridge / 2, self.ridge / 2])
        usual = np.array([np.log(deviation), 0, 0, 0, 0, 0])

        def loss(theta: Floats) -> tuple[float, Floats]:
            a = theta[:3]
            b = theta[3:]
            stretched = np.exp(np.minimum(a @ f, 50.0)) * unit
            llr = stretched + b @ f
            value = 0.0
            slope = np.zeros_like(llr)
            for p in self.priors:
                wrong = sign * (llr + logit(p))
                cost = share * np.where(y, p, 1 - p) / (float(entr(p) + entr(1 - p)) * len(self.priors))
                value += float(cost @ np.logaddexp(0.0, wrong))
                slope += cost * sign * expit(wrong)
            away = theta - usual
            gradient = np.concatenate([f @ (slope * stretched), f @ slope]) + pull * away
            return value + float(pull @ away**2) / 2, gradient

        minimum = minimize(loss, np.zeros(6), jac=True, method="BFGS", options={"gtol": 1e-7})
        self.log_scales_ = minimum.x[:3] - usual[:3]
        self.offsets_ = minimum.x[3:]
        return self

    def _features(self, expected: Floats, alike: Floats) -> Floats:
        """(3, ...) what scale and offset are linear in."""
        g = np.log(np.clip(expected, self.least_, self.most_) / self._usual)
        return np.stack([np.ones_like(g), g, np.broadcast_to(alike, g.shape)])

    def maps(self, expected: Floats, alike: Floats) -> tuple[Floats, Floats]:
        """The scale and the offset of structures."""
        check_is_fitted(self)
        f = self._features(expected, alike)
        a, b = (np.tensordot(numbers, f, axes=1) for numbers in (self.log_scales_, self.offsets_))
        return np.exp(a), b

    def transform(self, scores: ArrayLike, expected: ArrayLike, alike: ArrayLike) -> Floats:
        """Log-likelihood ratios of scores of any shape, with the structure of each trial."""
        x = without_nan(scores)
        scale, offset = self.maps(real_numbers(expected), real_numbers(alike))
        return np.asarray(scale * x + offset)

    def summary(self) -> dict[str, float | str]:
        """The map in numbers: scale and offset where least and where most is expected of recordings of different kinds.

        Where both sides are of one kind, the scale is multiplied by `one_kind_scale`, and `one_kind_offset` is added.
        """
        ends = np.array([self.least_, self.most_])
        scale, offset = self.maps(ends, np.zeros(2))
        numbers: dict[str, float | str] = {"least": self.least_}
        numbers |= {"scale_at_least": float(scale[0]), "offset_at_least": float(offset[0])}
        numbers |= {"most": self.most_, "scale_at_most": float(scale[1]), "offset_at_most": float(offset[1])}
        return numbers | {
            "one_kind_scale": float(np.exp(self.log_scales_[2])),
            "one_kind_offset": float(self.offsets_[2]),
        }

    def rescaled(self, scale: float, offset: float) -> Self:
        """This map followed by another scale and offset, which are the same for all structures.

        >>> state = {"log_scales_": [0.0, 0.1, 0.2], "offsets_": [1.0, 0.0, 0.0], "least_": 1.0, "most_": 9.0}
        >>> calibration = StructureCalibration.from_state({**state, "priors": [0.5], "ridge": 0.0})
        >>> calibration.rescaled(0.5, 3.0).offsets_.tolist()
        [3.5, 0.0, 0.0]
        """
        first = np.array([1.0, 0.0, 0.0])
        changed = {
            "log_scales_": self.log_scales_ + np.log(scale) * first,
            "offsets_": scale * self.offsets_ + offset * first,
        }
        return self.from_state(self.get_state() | changed)

    def get_state(self) -> dict[str, Any]:
        """Return parameters and learnt attributes as floats and arrays, for `from_state`."""
        check_is_fitted(self)
        names = ("ridge", *self._learnt)
        return {name: getattr(self, name) for name in names} | {"priors": np.asarray(self.priors, np.float64)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the fitted object that gave this state."""
        fitted = cls()
        if set(state) != {"priors", "ridge", *cls._learnt}:
            raise DuopldaError(f"{cls.__name__} needs other numbers than {sorted(state)}")
        values = {name: np.array(value, dtype=np.float64) for name, value in state.items()}
        if not all(np.isfinite(value).all() for value in values.values()):
            raise DuopldaError("a number of the calibration is not finite")
        if any(values[name].shape != (3,) for name in cls._arrays):
            raise DuopldaError("log_scales_ and offsets_ have three numbers each")
        fitted.priors = tuple(values.pop("priors").reshape(-1).tolist())
        for name, value in values.items():
            setattr(fitted, name, value if name in cls._arrays else value.item())
        if not 0 < fitted.least_ <= fitted.most_:
            raise DuopldaError(f"least_ {fitted.least_} and most_ {fitted.most_} make no range")
        return fitted


class PAVCalibration(Calibration):
    """Monotone map from scores to log-likelihood ratios, learnt by pooling adjacent violators.

    Use it where trials are many (thousands of targets) and no straight line fits; with few, its steps follow chance.

    A block of scores with target weight t and non-target weight n gets log(t / T) - log(n / N). The map is constant
    within a block, linear between neighbouring blocks, and constant beyond the outermost.

    With `laplace` = c > 0 (the default is 1), c target trials below all scores and c non-target trials above all are
    added before pooling, so that no ratio is infinite. With 0 it is plain PAV, -inf where only non-targets score as low
    and +inf where only targets score as high; a gap beside such a block takes the value of its finite neighbour, or 0.

    >>> calibration = PAVCalibration().fit([-2.0, -1.0, 1.0, 2.0], [False, False, True, True])
    >>> calibration.transform([-5.0, 0.0, 5.0]).round(6).tolist()
    [-0.693147, 0.0, 0.693147]
    """

    _learnt = _arrays = ("low_", "high_", "llr_")  # (m,): the ends of each block and its ratio

    def __init__(self, laplace: float = 1.0) -> None:
        self.laplace = laplace

    def fit(self, scores: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None) -> Self:
        """Learn from finite `scores` (n,), boolean `labels` (n,) and trial `weights` (n,) or None."""
        if not 0 <= self.laplace < np.inf:
            raise DuopldaError(f"laplace={self.laplace!r} must be a finite number >= 0")
        s, y, w = check_trials(scores, labels, weights)
        refuse_infinite(real_numbers(scores)[:, None])
        lowest = s.min()
        highest = s.max()
        c = self.laplace
        if c:
            s = np.r_[-np.inf, s, np.inf]
            y = np.r_[True, y, False]
            w = np.r_[c, w, c]
        bins = tally(s, y, w)
        blocks = pool(bins)
        ends = np.append(np.searchsorted(bins.scores, blocks.scores[1:]), len(bins.scores)) - 1
        self.low_ = np.clip(blocks.scores, lowest, highest)
        self.high_ = np.clip(bins.scores[ends], lowest, highest)
        self.llr_ = blocks.llr
        return self

    def transform(self, scores: ArrayLike) -> Floats:
        """Log-likelihood ratios of scores of any shape."""
        check_is_fitted(self)
        x = without_nan(scores)
        finite = np.isfinite(self.llr_)
        knots = np.stack((self.low_[finite], self.high_[finite]), axis=1).ravel()
        values = np.repeat(self.llr_[finite], 2)
        first = np.append(True, knots[1:] > knots[:-1])[: len(knots)]  # a block of one score is one knot
        llr = np.interp(x, knots[first], values[first]) if len(knots) else np.zeros(x.shape)
        llr = np.where((x <= self.high_[0]) & (self.llr_[0] == -np.inf), -np.inf, llr)
        return np.where((x >= self.low_[-1]) & (self.llr_[-1] == np.inf), np.inf, llr)


# The words by which options name a method.
CALIBRATIONS: dict[str, type[Calibration]] = {
    "affine": AffineCalibration,
    "pav": PAVCalibration,
    "kde": KDECalibration,
    "bootstrap": BootstrapCalibration,
    "fusion": Fusion,
    "quality": QualityCalibration,
}


def _fitting(scores: ArrayLike, quality: TrialQuality | None) -> TrialQuality:
    """The side information, or an error where it is missing or on another number of trials."""
    if quality is None:
        raise DuopldaError("this calibration needs side information on both sides of the trials: quality=...")
    if np.shape(scores) != (len(quality),):
        raise DuopldaError(f"scores has shape {np.shape(scores)}, and side information is on {len(quality)} trials")
    return quality


def _newton(x: Floats, y: Booleans, c: Floats, p_target: float, ridge: Floats) -> Floats | None:
    """Minimiser of sum c log(1 + exp(-+(x theta + logit p))) + ridge . theta[:-1]^2 / 2, or None.

    None without a ridge means that the loss falls for ever along some direction, as when a threshold separates the
    classes, or a system is constant except for some targets. Newton's steps then stay about 1 wide in llr where nothing
    is left to gain, while at a minimum they vanish.
    """
    sign = np.where(y, 1.0, -1.0)
    penalty = np.append(ridge, 0.0)

    def loss(theta: Floats) -> float:
        margin = sign * (x @ theta + logit(p_target))
        return float(c @ np.logaddexp(0.0, -margin) + penalty @ theta**2 / 2)

    theta = np.zeros(x.shape[1])
    for _ in range(100):
        margin = sign * (x @ theta + logit(p_target))
        error = expit(-margin)
        gradient = penalty * theta - x.T @ (c * sign * error)
        hessian = (x.T * (c * error * expit(margin))) @ x + np.diag(penalty)
        step = -np.linalg.pinv(hessian, rcond=1e-15, hermitian=True) @ gradient
        decrease = float(-gradient @ step)  # twice what the quadratic model promises
        if decrease < 1e-13:  # one more full step squares an error that is already small
            settled = ridge.all() or np.max(np.abs(x @ step)) < 0.1
            return np.asarray(theta + step) if settled else None
        length = 1.0
        here = loss(theta)
        while length > 1e-9 and loss(theta + length * step) > here - 1e-4 * length * decrease:
            length /= 2
        theta = theta + length * step
    return None
