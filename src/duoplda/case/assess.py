"""A case from its recordings to a stated ratio: the whole job, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import reproducible
from duoplda.case import calibration
from duoplda.case.basis import distances
from duoplda.case.material import Material, same_vectors
from duoplda.case.models import Models, check_domain, ratios, sides_of
from duoplda.case.reference import Reference
from duoplda.case.result import (
    CaseRefused,
    CaseResult,
    DomainCheck,
    Population,
    Ratio,
    Sensitivity,
    SessionShare,
    Support,
)
from duoplda.case.structure import FEWEST_SPEAKERS, Pool, Shape, lacking, nearest, shape_of
from duoplda.case.validation import expanded, support, validate
from duoplda.data import Recordings
from duoplda.errors import DuopldaError, some
from duoplda.estimators.backend import Backend
from duoplda.evaluation.resampling import interval

Floats = NDArray[np.float64]


@reproducible()
def assess(
    model: Backend,
    known: Recordings,
    questioned: Recordings,
    population: Recordings,
    *,
    adapt: bool = False,
    n_resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> CaseResult:
    """Return the likelihood ratio of known and questioned recordings, calibrated and validated for this comparison.

    Pairs of sides with the structure of the case are drawn from the population. They calibrate the ratio, show how
    often and how far such ratios mislead, and bound what may be stated. To a court the ratio says how many times as
    probable the findings are under one proposition as under the other; it is not the probability of a proposition.

    Do not use it where the population does not fit the case: with people who could not have spoken, or with
    recordings that are unlike those of the case, every figure of the result is about something else.

    Parameters
    ----------
    model : a fitted model; none of its training speakers should be in the case or in the population
    known, questioned : recordings of one speaker each, with their sessions, and their kinds of channels if these are
        known (`Recordings.from_arrays(X, session=..., channel=..., ids=...)`). Without sessions, each recording is a
        session of its own.
    population : recordings of the relevant population with speakers, sessions and kinds, and occasions if known
    adapt : whether the model is adapted to the population first, by its labels (`Backend.adapt`)
    n_resamples, confidence : number of resamples, and confidence, of the intervals over speakers
    seed : the seed of all random draws; the same seed gives the same bits

    A `CaseRefused` says why no ratio can be given, and what to do: there are too few speakers for a validation, a
    session or a recording is on both sides, a recording of the case is in the population, or the recordings are unlike
    those of the training and the model is not adapted.

    >>> from duoplda import PLDA
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(80, seed=0)
    >>> number = np.char.lstrip(speaker, "spk").astype(int)
    >>> train, case, rest = number < 40, number == 40, number > 40
    >>> model = Backend(plda=PLDA()).fit(X[train], speaker[train], session[train])
    >>> names = np.unique(session[case])
    >>> sides = [Recordings.from_arrays(X[session == name], session=session[session == name]) for name in names[:2]]
    >>> population = Recordings.from_arrays(X[rest], speaker[rest], session[rest])
    >>> result = assess(model, *sides, population, n_resamples=50)
    >>> result.ratio.low <= result.ratio.calibrated <= result.ratio.high, result.validation.n_speakers
    (True, 27)
    """
    if n_resamples < 1 or not 0 < confidence < 1 or seed < 0:
        raise DuopldaError("a case needs n_resamples >= 1, confidence between 0 and 1, and a seed >= 0")
    of_known = Material.of(known, "known")
    in_question = Material.of(questioned, "questioned")
    people = Material.of(population, "population")
    _check(of_known, in_question, people, model.n_features_in_)
    return Case(model, of_known, in_question, people, adapt, n_resamples, confidence, seed).result()


def _check(known: Material, questioned: Material, population: Material, d: int) -> None:
    """Refuse recordings that must not be compared."""
    for name, part in (("known", known), ("questioned", questioned), ("population", population)):
        if part.X.shape[1] != d:
            raise DuopldaError(f"{name}: vectors have {part.X.shape[1]} dimensions, the model takes {d}")
    both = np.intersect1d(known.session, questioned.session)
    if len(both):
        raise CaseRefused(
            "both sides",
            f"session {some(both, 3)} is on both sides: two parts of one session are alike whoever speaks, so they do "
            "not compare speakers. Leave it out on one side, or give the sessions names of their own",
        )
    for i, j in same_vectors(known.X, questioned.X):
        raise CaseRefused(
            "both sides",
            f"{known.ids[i]!r} of the known and {questioned.ids[j]!r} of the questioned recordings have the same "
            "vector: leave the recording out on one side",
        )
    if not population.speaker.any():
        raise CaseRefused("population", "the speakers of the population are not known: give the speaker of each")
    for name, part in (("known", known), ("questioned", questioned)):
        for i, j in same_vectors(part.X, population.X):
            raise CaseRefused(
                "in population",
                f"{part.ids[i]!r} of the {name} recordings is in the population, too, as {population.ids[j]!r} of "
                f"speaker {population.speaker[j]!r}: leave out all recordings of this speaker there",
            )


@dataclass(eq=False)
class Case:
    """A case on its way to its result. The reference of each structure is made once, and kept for further questions."""

    model: Backend
    known: Material
    questioned: Material
    people: Material
    adapt: bool
    n_resamples: int
    confidence: float
    seed: int
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.domain = [check_domain(self.model, [self.people], "the population", False)]
        self.domain.append(check_domain(self.model, [self.known, self.questioned], "the case", False))
        if self.adapt:
            self._refuse_few(len(self.people.speakers))
        else:
            self._refuse_far()
        self.models = Models(self.model, self.people, self.adapt, self.seed)
        if self.adapt:
            adapted = self.models.whole
            self.domain.append(check_domain(adapted, [self.known, self.questioned], "the case", True))
        pool, known, questioned = self._labelled_alike()
        self.pool = Pool(pool, self.seed)
        self._references: dict[tuple[Shape, bool], Reference] = {}
        self.shape = shape_of(known, questioned, self.people.occasion is not None)
        self.drawn = nearest(self.pool, self.shape, self.models.whole.ratio_model_)

    def _refuse_few(self, n: int) -> None:
        if n < FEWEST_SPEAKERS:
            message = f"the population has {n} speakers: a validation needs at least {FEWEST_SPEAKERS}"
            raise CaseRefused("population", f"{message}. Give recordings of more speakers")

    def _refuse_far(self) -> None:
        """Refuse recordings of another domain; this is for a model that is not adapted."""
        for check in self.domain:
            if not check.within:
                raise CaseRefused(
                    "domain",
                    f"the recordings of {check.what} are not like those that the model was trained on: their mean is "
                    f"at a squared distance of {check.distance:.3g} from that of the model, and up to "
                    f"{check.limit:.3g} is usual. Adapt the model to the population (adapt = true), or take a model of "
                    "this domain",
                )

    def _labelled_alike(self) -> tuple[Material, Material, Material]:
        """The population and both sides, without kinds of channels unless these are labelled in all of them."""
        parts = (self.people, self.known, self.questioned)
        unlabelled = [part.kind is None for part in parts]
        if any(unlabelled) and not all(unlabelled):
            names = zip(("the population", "the known side", "the questioned side"), unlabelled, strict=True)
            unlabelled_parts = " and ".join(name for name, lacks in names if lacks)
            self.notes.append(
                f"The kinds of channels of {unlabelled_parts} are not labelled, so the structure of the case counts "
                "recordings of any kind alike."
            )
            return self.people.without_kinds(), self.known.without_kinds(), self.questioned.without_kinds()
        return parts

    # -- references

    def reference(self, shape: Shape, adapted: bool = True) -> Reference:
        """Return pairs of the population in a structure, judged by the model of the case or by the unadapted one."""
        key = (shape, adapted)
        if key not in self._references:
            models = self.models if adapted or not self.adapt else Models(self.model, self.people, False, self.seed)
            self._references[key] = Reference(self.pool, models, shape)
        return self._references[key]

    @cached_property
    def main(self) -> Reference:
        """Pairs of the population in the structure of the case, or in the nearest one that it can fill."""
        return self.reference(self.drawn)

    def own(self, model: Backend, known: Material, questioned: Material, calibrated: bool = True) -> float:
        """Return the ratio of two sets of recordings, by the model's own calibration or without any."""
        first, second = (sides_of(model, part, [np.arange(len(part))]) for part in (known, questioned))
        return float(ratios(model, first, second, np.array([[0, 0]]), calibrated)[0])

    # -- the result

    def result(self) -> CaseResult:
        """Assess the case."""
        main = self.main
        times, maps = main.resampled(self.n_resamples, self.seed)
        bounds = support(main)
        ratio = self._ratio(maps, bounds)
        sides = [sides_of(self.models.whole, part, [np.arange(len(part))]) for part in (self.known, self.questioned)]
        typical_known, typical_questioned, similar, different = distances(main, *sides)
        people = self.people
        return CaseResult(
            known=self.shape.side("known"),
            questioned=self.shape.side("questioned"),
            population=Population(
                n_speakers=len(people.speakers),
                n_sessions=len(people.sessions[0]),
                n_recordings=len(people),
                n_used=main.M,
                known=main.shape.side("known"),
                questioned=main.shape.side("questioned"),
                lacking=lacking(self.pool, self.shape, self.drawn),
            ),
            validation=validate(main, times, self.confidence),
            ratio=ratio,
            sessions=tuple(self._shares(ratio.calibrated)),
            typicality_known=typical_known,
            typicality_questioned=typical_questioned,
            similarity=similar,
            similarity_different=different,
            sensitivity=tuple(self._sensitivity(ratio)),
            domain=tuple(self.domain),
            adapted=self.models.whole.adapted_ if self.adapt else None,
            seed=self.seed,
            n_resamples=self.n_resamples,
            prior_weight=calibration.lambda_of(main.M),
            notes=tuple(self.notes + self._remarks()),
        )

    def _ratio(self, maps: Floats, bounds: Support) -> Ratio:
        """The ratio of the case, its interval, and both within the bounds."""
        own = self.own(self.models.whole, self.known, self.questioned)
        scale, offset = self.main.map
        value = scale * own + offset
        low, high = self._interval(value, maps, own)
        stated = min(max(value, bounds.lower), bounds.upper)
        relation = "at least" if value > bounds.upper else "at most" if value < bounds.lower else "about"
        narrowest = {"at least": bounds.upper, "at most": bounds.lower}.get(relation)
        bound_by = None
        if narrowest is not None:
            bound_by = "elub" if narrowest in bounds.elub else "invariance"
        return Ratio(
            raw=self.own(self.models.whole, self.known, self.questioned, calibrated=False),
            own=own,
            calibrated=value,
            low=low,
            high=high,
            confidence=self.confidence,
            scale=scale,
            offset=offset,
            stated=stated,
            relation=relation,
            bound_by=bound_by,
            stated_low=min(max(low, bounds.lower), bounds.upper),
            stated_high=min(max(high, bounds.lower), bounds.upper),
            support=bounds,
        )

    def _interval(self, value: float, maps: Floats, own: float) -> tuple[float, float]:
        """The interval of the calibrated ratio, over resamples of the population's speakers.

        If the model is adapted, the interval includes the standard error of the adaptation. Adaptations without some of
        the speakers in turn give it, as one for each resample would take too long.
        """
        values = maps[:, 0] * own + maps[:, 1]
        if self.adapt:
            models = [self.models.left_out(turn) for turn in range(self.models.n_groups)]
            error = self.models.moved(np.array([self.own(model, self.known, self.questioned) for model in models]))
            noise = np.random.default_rng([self.seed, 4]).standard_normal(len(values))
            values = values + maps[:, 0] * error * noise
        low, high = interval(np.array(value), values, expanded(self.confidence, self.main.M))
        return float(low), float(high)

    # -- what the ratio rests on

    def calibrated(self, known: Material, questioned: Material, adapted: bool = True) -> tuple[float, Reference]:
        """Return the ratio of other sets of recordings, calibrated in their own structure, and what calibrated it."""
        unlabelled = self.pool.material.kind is None
        first, second = (part.without_kinds() if unlabelled else part for part in (known, questioned))
        shape = shape_of(first, second, self.people.occasion is not None)
        model = self.models.whole if adapted else self.model
        reference = self.reference(nearest(self.pool, shape, model.ratio_model_), adapted)
        scale, offset = reference.map
        return scale * self.own(model, known, questioned) + offset, reference

    def _sides(self) -> dict[str, Material]:
        return {"known": self.known, "questioned": self.questioned}

    def _shares(self, whole: float) -> Iterator[SessionShare]:
        """The share of each session, by the ratio without it."""
        for side, material in self._sides().items():
            names, index = material.sessions
            for i, name in enumerate(names.tolist()):
                part = material.rows(np.flatnonzero(index == i))
                kinds = part.kind if part.kind is not None else np.full(len(part), "")
                structure = {str(k): int(n) for k, n in zip(*np.unique(kinds, return_counts=True), strict=True)}
                if len(names) == 1:
                    yield SessionShare(side, name, structure, None, None)
                    continue
                remaining = self._sides() | {side: material.rows(np.flatnonzero(index != i))}
                without = self.calibrated(remaining["known"], remaining["questioned"])[0]
                yield SessionShare(side, name, structure, without, whole - without)

    def _sensitivity(self, ratio: Ratio) -> Iterator[Sensitivity]:
        """The ratio under changes of its grounds; `_shares` has those without a session."""
        main = self.main
        halves = np.arange(main.M) % 2 == 0
        np.random.default_rng([self.seed, 5]).shuffle(halves)
        for name, half in (("one half", halves), ("the other half", ~halves)):
            scale, offset = main.half(half)
            n = int(half.sum())
            yield Sensitivity(f"calibrated by {name} of the population", "population", scale * ratio.own + offset, n)
        yield Sensitivity("by the model's own calibration", "calibration", ratio.own, 0)
        yield from self._without_kinds()
        if self.adapt:
            value, reference = self.calibrated(self.known, self.questioned, adapted=False)
            yield Sensitivity("without adaptation", "adaptation", value, reference.M)

    def _without_kinds(self) -> Iterator[Sensitivity]:
        """The ratio without the recordings of each kind of channel."""
        labels = [part.kind for part in self._sides().values() if part.kind is not None]
        for kind in np.unique(np.concatenate(labels)).tolist() if labels else []:
            remaining = {}
            for side, material in self._sides().items():
                kept = np.arange(len(material)) if material.kind is None else np.flatnonzero(material.kind != kind)
                remaining[side] = material.rows(kept)
            empty = [side for side, material in remaining.items() if not len(material)]
            what = f"without recordings of the kind {kind}"
            if empty:
                yield Sensitivity(what, "kind", None, 0, f"nothing is left of the {' and the '.join(empty)} side")
                continue
            value, reference = self.calibrated(remaining["known"], remaining["questioned"])
            yield Sensitivity(what, "kind", value, reference.M)

    def _remarks(self) -> list[str]:
        """Sentences for the reader on what no table says."""
        far: Sequence[DomainCheck] = [check for check in self.domain if check.adapted and not check.within]
        return [
            f"Even after adaptation, the recordings of {check.what} lie at a squared distance of {check.distance:.3g} "
            f"from the model's mean, where up to {check.limit:.3g} is usual."
            for check in far
        ]
