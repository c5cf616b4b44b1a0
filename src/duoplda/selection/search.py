"""The search for the parameters at which held-out trials cost least."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from duoplda.observer import SILENT, Observer
from duoplda.selection.cost import Expansion, Floats, calibrate, cost_expansion, newton

Scores = tuple[Floats, Floats]  # of targets and of non-targets


@dataclass(eq=False)
class Search:
    """Gauss-Newton steps down the cost, penalised by the squared distance of each parameter from the start.

    Scores are nearly linear in the parameters, s + J delta. With eta = a delta, the cost of a (s + J delta) + b is that
    of a logistic regression on (s, 1, J), which is convex. J is computed by differences, and corrected at each further
    point (Broyden), so that a step takes one evaluation. The search is smooth in the data: data that differ by rounding
    end at points that hardly differ.
    """

    scores: Callable[[list[Floats]], list[Scores]]  # at several points
    limits: Floats  # how far each parameter may go from 0
    priors: Sequence[float]
    penalty: Floats  # of each parameter, by the square of its distance from the start
    weight: Floats | None = None  # of the non-targets
    observer: Observer = SILENT
    snap: Callable[[Floats], Floats] = lambda theta: theta  # rounds a point to the nearest at which the search may end

    def __call__(self, start: Floats, scores: Scores | None = None) -> tuple[Floats, float, Floats]:
        """The lowest point that is reached, its cost and calibration; `scores` are those at the start, if known."""
        self.start = self.best = start
        self.best_scores = self.scores([start])[0] if scores is None else scores
        guess = np.array([1.0, 0.0])  # scores are ratios, which need no calibration if the model is right
        cost, affine = calibrate(*self.best_scores, self.priors, self.weight, guess)
        self.value = self.cost = cost
        self.affine = affine
        self.tried = [(start, cost)]
        self._descend()
        # Where the first steps gain much, derivatives have changed on the way, and are computed once more. Much is 30
        # times the penalty of moving the least penalised parameter by 1.
        if self.tried[0][1] - self.value >= 30.0 * self.penalty.min():
            self._descend()
        return self.best, self.cost, self.affine

    def _descend(self, max_steps: int = 5, radius: float = 2.0, tolerance: float = 0.02) -> None:
        """Take at most `max_steps` steps, none longer than `radius`, until one is shorter than `tolerance`."""
        slope = self._differences()
        for _ in range(max_steps):
            step = self._step(slope)
            step *= min(1.0, radius / max(float(np.abs(step).max()), radius))
            step = self.snap(np.clip(self.best + step, -self.limits, self.limits)) - self.best
            length = float(np.abs(step).max())
            if length < tolerance:
                break
            theta = self.best + step
            scores = self.scores([theta])[0]
            cost, affine = calibrate(*scores, self.priors, self.weight, self.affine)
            self.tried.append((theta, cost))
            self.observer.search(len(self.tried), cost)
            for J, new, old in zip(slope, scores, self.best_scores, strict=True):
                J += np.outer(step / (step @ step), new - old - step @ J)
            value = cost + float(self.penalty @ (theta - self.start) ** 2)
            if value < self.value:
                self.best = theta
                self.best_scores = scores
                self.value = value
                self.cost = cost
                self.affine = affine
            else:
                radius = length / 4

    def _differences(self, size: float = 0.05) -> list[Floats]:
        """Derivatives of the scores of targets and of non-targets, a row for each parameter, by differences.

        The differences are taken towards 0, away from the limits.
        """
        sizes = np.where(self.best > 0, -size, size)
        points = [self.best + h for h in np.diag(sizes)]
        moved = zip(*self.scores(points), strict=True)
        return [(np.stack(new) - old) / sizes[:, None] for new, old in zip(moved, self.best_scores, strict=True)]

    def _step(self, slope: list[Floats]) -> Floats:
        """The step to the point where the penalised cost would be lowest if the scores were linear."""
        scale = float(self.affine[0]) or 1.0
        features = [
            np.concatenate([s[None], np.ones_like(s)[None], J]) for s, J in zip(self.best_scores, slope, strict=True)
        ]
        pull = 2 * self.penalty / scale**2
        ridge = np.diag([1e-9, 1e-12, *pull])
        away = np.concatenate([[0, 0], scale * (self.best - self.start)])

        def expand(v: Floats) -> Expansion:
            value, gradient, curvature = cost_expansion(features[0], features[1], v, self.priors, self.weight)
            u = v + away
            return value + float(u @ ridge @ u) / 2, gradient + ridge @ u, curvature + ridge

        # Four steps of Newton suffice: the scores are linear only nearby.
        v, _ = newton(expand, np.concatenate([self.affine, np.zeros(len(self.best))]), max_steps=4)
        return v[2:] / (float(v[0]) or 1.0)
