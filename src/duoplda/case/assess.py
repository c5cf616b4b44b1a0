"""A case from its recordings to a stated ratio: the whole job, in the order in which it is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import reproducible
from duoplda.case import calibration
from duoplda.case.basis import distances
from duoplda.case.material import Material
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
from duoplda.case.structure import FEWEST_SPEAKERS, Pool, Shape, nearest, shape_of
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
    """Compare known and questioned recordings, validated and calibrated by a population in the structure of the case.

    Parameters
    ----------
    model : fitted; its training speakers should be neither of the case nor of the population
    known, questioned : recordings of one speaker each, with their sessions, and their kinds of channels if these are
        known (`Recordings.from_arrays(X, session=..., channel=..., ids=...)`). Without sessions, each recording is a
        session of its own.
    population : recordings of the relevant population with speakers, sessions and kinds, and occasions if known
    adapt : whether the model is adapted to the population first, by its labels (`Backend.adapt`)
    n_resamples, confidence : of the intervals over speakers
    seed : of all that is drawn; the same seed gives the same bits

    A `CaseRefused` says why no ratio can be given, and what to do: too few speakers for a validation, a session or a
    recording on both sides, a recording of the case in the population, or recordings unlike those of the training where
    the model is not adapted.

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
    """Refuse what cannot be a case."""
    for name, part in (("known", known), ("questioned", questioned), ("population", population)):
        if part.X.shape[1] != d:
            raise DuopldaError(f"{name}: vectors have {part.X.shape[1]} dimensions, the model takes {d}")
    both = np.intersect1d(known.session, questioned.session)
    if len(both):
        raise CaseRefused(
            "both sides",
            f"session {some(both, 3)} is on both sides: what one session says of two sides is no comparison of "
            "speakers. Leave it out on one side, or give the sessions names of their own",
        )
    rows = _alike(known, questioned)
    if rows is not None:
        raise CaseRefused(
            "both sides",
            f"{known.ids[rows[0]]!r} of the known and {questioned.ids[rows[1]]!r} of the questioned recordings have "
            "the same vector: leave the recording out on one side",
        )
    if not population.speaker.any():
        raise CaseRefused("population", "the speakers of the population are not known: give the speaker of each")
    for name, part in (("known", known), ("questioned", questioned)):
        rows = _alike(part, population)
        if rows is not None:
            who = population.speaker[rows[1]]
            raise CaseRefused(
                "in population",
                f"{part.ids[rows[0]]!r} of the {name} recordings is in the population, too, as "
                f"{population.ids[rows[1]]!r} of speaker {who!r}: leave out all recordings of this speaker there",
            )


def _alike(a: Material, b: Material) -> tuple[int, int] | None:
    """Rows of one vector that is in both; None if there is none."""
    places = {row.tobytes(): i for i, row in enumerate(np.asarray(b.X, np.float64))}
    for i, row in enumerate(np.asarray(a.X, np.float64)):
        if row.tobytes() in places:
            return i, places[row.tobytes()]
    return None


@dataclass(eq=False)
class Case:
    """A case on its way to its result. References of structures are made once, however often they are asked for."""

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
        self.match = nearest(self.pool, self.shape, self.models.whole.ratio_model_)

    def _refuse_few(self, n: int) -> None:
        if n < FEWEST_SPEAKERS:
            message = f"the population has {n} speakers: a validation needs at least {FEWEST_SPEAKERS}"
            raise CaseRefused("population", f"{message}. Give recordings of more speakers")

    def _refuse_far(self) -> None:
        """The check of the domain, where nothing has been adapted."""
        for check in self.domain:
            if not check.within:
                raise CaseRefused(
                    "domain",
                    f"the recordings of {check.what} are not like those that the model was trained on: their mean is "
                    f"at a squared distance of {check.distance:.3g} from it, up to {check.limit:.3g} is usual. Adapt "
                    "the model to the population (adapt = true), or take a model of this domain",
                )

    def _labelled_alike(self) -> tuple[Material, Material, Material]:
        """The population and both sides, without kinds for the structure where these are not known of all."""
        parts = (self.people, self.known, self.questioned)
        unlabelled = [part.kind is None for part in parts]
        if any(unlabelled) and not all(unlabelled):
            names = zip(("the population", "the known side", "the questioned side"), unlabelled, strict=True)
            lacking = " and ".join(name for name, lacks in names if lacks)
            self.notes.append(
                f"The kinds of channels of {lacking} are not labelled: the structure of the case counts recordings "
                "whatever their kind."
            )
            return self.people.without_kinds(), self.known.without_kinds(), self.questioned.without_kinds()
        return parts

    # -- references

    def reference(self, shape: Shape, adapted: bool = True) -> Reference:
        """The population in a structure, judged by the case's model, or by the unadapted one."""
        key = (shape, adapted)
        if key not in self._references:
            models = self.models if adapted or not self.adapt else Models(self.model, self.people, False, self.seed)
            self._references[key] = Reference(self.pool, models, shape)
        return self._references[key]

    @cached_property
    def main(self) -> Reference:
        """The population in the structure of the case, or in the nearest one."""
        return self.reference(self.match.shape)

    def own(self, model: Backend, known: Material, questioned: Material, calibrated: bool = True) -> float:
        """The ratio of two sets of recordings by a model."""
        first, second = (sides_of(model, part, [np.arange(len(part))]) for part in (known, questioned))
        return float(ratios(model, first, second, np.array([[0, 0]]), calibrated)[0])

    # -- the result

    def result(self) -> CaseResult:
        """All of it."""
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
                lacking=self.match.lacking,
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
        """The ratio of the case, its interval and what may be said of it."""
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
        """Of the calibrated ratio, over resamples of the population's speakers.

        An adaptation is made anew without some of the speakers in turn: what that moves the ratio is added.
        """
        values = maps[:, 0] * own + maps[:, 1]
        if self.adapt:
            models = [self.models.left_out(turn) for turn in range(self.models.n_groups)]
            error = self.models.moved(np.array([self.own(model, self.known, self.questioned) for model in models]))
            noise = np.random.default_rng([self.seed, 4]).standard_normal(len(values))
            values = values + maps[:, 0] * error * noise
        low, high = interval(np.array(value), values, expanded(self.confidence, self.main.M))
        return float(low), float(high)

    # -- what it rests on

    def calibrated(self, known: Material, questioned: Material, adapted: bool = True) -> tuple[float, Reference]:
        """The ratio of other sets of recordings, calibrated in their own structure, and what calibrated it."""
        unlabelled = self.pool.material.kind is None
        first, second = (part.without_kinds() if unlabelled else part for part in (known, questioned))
        shape = shape_of(first, second, self.people.occasion is not None)
        model = self.models.whole if adapted else self.model
        reference = self.reference(nearest(self.pool, shape, model.ratio_model_).shape, adapted)
        scale, offset = reference.map
        return scale * self.own(model, known, questioned) + offset, reference

    def _sides(self) -> dict[str, Material]:
        return {"known": self.known, "questioned": self.questioned}

    def _shares(self, whole: float) -> Iterator[SessionShare]:
        """Each session, left out in turn."""
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
        """The ratio under changes of what it rests on; sessions have a table of their own."""
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
        """Sentences on what a reader should know and no table says."""
        far: Sequence[DomainCheck] = [check for check in self.domain if check.adapted and not check.within]
        return [
            f"Even after adaptation, the recordings of {check.what} lie at a squared distance of {check.distance:.3g} "
            f"from the model's mean, where up to {check.limit:.3g} is usual."
            for check in far
        ]
