"""Pairs of sides drawn from the population in the structure of a case, or in the nearest one that it can fill.

The structure of a side is its sessions, each with its number of recordings of each kind of channel, and the number of
occasions on which these sessions were. A speaker can fill the structure of both sides who has enough sessions with at
least these recordings, if no session (and no occasion, where these are known) is on both sides. A matching in random
order assigns sessions to places; recordings of a kind are drawn at random from the session.

Where too few speakers can fill a structure, the nearest one with fewer demands is taken: a session less, a recording
less, or another kind of channel. The nearest structure is the one with the most similar expected ratio (c0, the mutual
information of both sides), because this tells hard comparisons from easy ones.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from duoplda.arrays import take
from duoplda.case.material import Material
from duoplda.case.result import CaseRefused, SideStructure
from duoplda.data.labels import Ints
from duoplda.model.parameters import Model, Terms
from duoplda.trials.structure import log_determinants

FEWEST_SPEAKERS = 10  # with fewer speakers, nothing can be said about how often ratios mislead
MOST_WANTED = 20  # speakers who can fill a structure, at which it is kept as it is however large the population is
DRAWS = 8  # ways in which each speaker fills a structure: more draws of the same sessions add little
TRIES = 20  # attempts to divide a speaker's occasions between the sides

Session = tuple[tuple[str, int], ...]  # its recordings by kind, in the order of the kinds' names
Slots = tuple[Session, ...]


class Shape(NamedTuple):
    """The structure of a comparison: the sessions of both sides, and their numbers of occasions (0: not known)."""

    known: Slots
    questioned: Slots
    known_occasions: int = 0
    questioned_occasions: int = 0

    def side(self, which: str) -> SideStructure:
        """Return one side in the form of the result."""
        occasions = getattr(self, f"{which}_occasions") or None
        return SideStructure(tuple(dict(session) for session in getattr(self, which)), occasions)


def slots_of(material: Material) -> Slots:
    """Return the sessions of a side, the largest first."""
    _, session = material.sessions
    kind = np.full(len(material), "") if material.kind is None else material.kind
    sessions = [
        tuple(sorted(Counter(kind[session == row].tolist()).items())) for row in range(int(session.max(initial=-1)) + 1)
    ]
    return _sorted(sessions)


def _sorted(sessions: list[Session]) -> Slots:
    return tuple(sorted(sessions, key=lambda session: (-sum(n for _, n in session), session)))


def shape_of(known: Material, questioned: Material, occasions: bool) -> Shape:
    """Return the structure of a case; occasions are part of it if those of the population are known as well."""
    numbers = [0, 0]
    if occasions and known.occasion is not None and questioned.occasion is not None:
        numbers = [len(np.unique(side.occasion)) for side in (known, questioned) if side.occasion is not None]
    return Shape(slots_of(known), slots_of(questioned), *numbers)


def expected_ratio(model: Model, shape: Shape) -> float:
    """Return c0, the mean ratio of same-speaker comparisons of this structure in nats, if the model is right."""
    kinds = {str(name): k for k, name in enumerate(model.kinds.tolist())}
    slots = [*shape.known, *shape.questioned]
    types = np.zeros((len(slots), model.K), np.int64)
    for row, session in enumerate(slots):
        for kind, n in session:
            types[row, kinds.get(kind, 0)] += n
    distinct, place = np.unique(types, axis=0, return_inverse=True)
    counts = np.zeros((3, len(distinct)), np.int64)
    side = np.repeat([0, 1], [len(shape.known), len(shape.questioned)])
    np.add.at(counts, (side, place.reshape(-1)), 1)
    counts[2] = counts[0] + counts[1]
    G = take(Terms(model, distinct).G, np.arange(len(distinct)))
    ln = [log_determinants(G, row[None])[0] for row in counts]
    return float(ln[0] + ln[1] - ln[2]) / 2


class Drawn(NamedTuple):
    """One way in which a speaker fills a structure: the rows of the recordings on either side."""

    known: Ints
    questioned: Ints


class Pool:
    """The population, from which sides are drawn. The draws of a speaker do not depend on the other speakers."""

    def __init__(self, material: Material, seed: int):
        self.material = material
        self.seed = seed
        self._names, session = material.sessions
        self._rows = {name: material.of_speaker(name) for name in material.speakers.tolist()}
        self._session = session

    @cached_property
    def kinds(self) -> list[str]:
        """The kinds of channels of the population, the most frequent first; [""] where they are not labelled."""
        if self.material.kind is None:
            return [""]
        return [name for name, _ in Counter(self.material.kind.tolist()).most_common()]

    def draw(self, speaker: str, shape: Shape, n: int) -> list[Drawn]:
        """Return `n` ways in which a speaker fills a structure, or none if there is none; each call gives the same."""
        rng = np.random.default_rng([self.seed, zlib.crc32(speaker.encode())])
        rows = self._rows[speaker]
        sessions = SpeakerSessions.of(self.material, rows, self._session[rows])
        drawn = []
        for _ in range(n):
            ways = (sessions.fill(shape, rng) for _ in range(TRIES if shape.known_occasions else 1))
            filled = next((way for way in ways if way is not None), None)
            if filled is None:
                break
            drawn.append(filled)
        return drawn

    def missing(self, shape: Shape) -> Ints:
        """Return (M,) how many sessions of the structure each speaker lacks, and occasions that both sides need."""
        out = []
        for rows in self._rows.values():
            sessions = SpeakerSessions.of(self.material, rows, self._session[rows])
            slots = [*shape.known, *shape.questioned]
            match = maximum_bipartite_matching(csr_matrix(sessions.eligible(slots)), perm_type="column")
            short = int((match < 0).sum())
            # The sides need this many occasions together: with fewer, one occasion would be on both sides.
            wanted = shape.known_occasions + shape.questioned_occasions
            short += max(0, wanted - len(np.unique(sessions.occasion))) if wanted else 0
            out.append(short)
        return np.array(out)


class SpeakerSessions(NamedTuple):
    """The sessions of one speaker."""

    rows: list[Ints]  # the rows of the recordings of each session
    kinds: list[list[str]]  # the kinds of these recordings
    occasion: NDArray[np.str_]  # (H,) the occasion of each session, "" where it is not known

    @classmethod
    def of(cls, material: Material, rows: Ints, session: Ints) -> SpeakerSessions:
        """Make it from the rows of a speaker, and the session of each."""
        parts = [rows[session == name] for name in np.unique(session)]
        kinds = [[""] * len(part) if material.kind is None else material.kind[part].tolist() for part in parts]
        occasion = ["" if material.occasion is None else str(material.occasion[part[0]]) for part in parts]
        return cls(parts, kinds, np.array(occasion))

    def eligible(self, slots: list[Session]) -> NDArray[np.bool_]:
        """Return (S, H) whether each session has the recordings that each place of a structure needs."""
        counts = [Counter(kinds) for kinds in self.kinds]
        return np.array(
            [[all(count[kind] >= n for kind, n in slot) for count in counts] for slot in slots], bool
        ).reshape(len(slots), len(self.rows))

    def fill(self, shape: Shape, rng: np.random.Generator) -> Drawn | None:
        """Draw one way to fill a structure; None if this draw finds none."""
        slots = [*shape.known, *shape.questioned]
        side = np.repeat([0, 1], [len(shape.known), len(shape.questioned)])
        eligible = self.eligible(slots)
        if shape.known_occasions:
            allowed = self._occasions(shape, rng)
            if allowed is None:
                return None
            eligible &= allowed[side]
        order = rng.permutation(len(self.rows))
        match = maximum_bipartite_matching(csr_matrix(eligible[:, order]), perm_type="column")
        if (match < 0).any():
            return None
        picked = [self._recordings(int(order[column]), slot, rng) for slot, column in zip(slots, match, strict=True)]
        known, questioned = (np.concatenate([p for p, s in zip(picked, side, strict=True) if s == t]) for t in (0, 1))
        return Drawn(known, questioned)

    def _occasions(self, shape: Shape, rng: np.random.Generator) -> NDArray[np.bool_] | None:
        """(2, H) the sessions that each side may have so that no occasion is on both; None if there are too few."""
        names = rng.permutation(np.unique(self.occasion))
        first = shape.known_occasions
        both = first + shape.questioned_occasions
        if len(names) < both:
            return None
        return np.stack([np.isin(self.occasion, names[:first]), np.isin(self.occasion, names[first:both])])

    def _recordings(self, session: int, slot: Session, rng: np.random.Generator) -> Ints:
        """Random recordings of a session, as many of each kind as a place of the structure needs."""
        kinds = np.array(self.kinds[session])
        parts = [rng.permutation(self.rows[session][kinds == kind])[:n] for kind, n in slot]
        return np.concatenate(parts)


# -- the nearest structure that enough speakers can fill


def nearest(pool: Pool, shape: Shape, model: Model) -> Shape:
    """Return the structure of the case, or the nearest one that enough speakers can fill; else a `CaseRefused`."""
    M = len(pool.material.speakers)
    # Half of the speakers are enough, within the limits above.
    enough = int(np.clip(-(-M // 2), FEWEST_SPEAKERS, MOST_WANTED))
    wanted = expected_ratio(model, shape)
    chosen = _with_kinds_of(pool, shape, model)
    missing = pool.missing(chosen)
    while (missing == 0).sum() < enough:
        steps = [(step, pool.missing(step)) for step in sorted(set(_less(chosen, pool.kinds)))]
        helpful = [step for step in steps if step[1].sum() < missing.sum()]
        # Where no single step helps any speaker, several may. Only steps that take something away remain, so it ends.
        steps = helpful or [step for step in steps if _size(step[0]) < _size(chosen)]
        if not steps:
            break
        apart = [abs(expected_ratio(model, step) - wanted) for step, _ in steps]
        chosen, missing = steps[int(np.argmin(apart))]
    n = int((missing == 0).sum())
    if n < FEWEST_SPEAKERS:
        least = "; ".join(f"{which}: {chosen.side(which)}" for which in ("known", "questioned"))
        raise CaseRefused(
            "population",
            f"{n} of {M} speakers of the population have recordings for both sides of a comparison ({least}), no "
            f"session being on both: a validation needs at least {FEWEST_SPEAKERS}. Give recordings of more speakers, "
            "or more sessions of each",
        )
    return chosen


def lacking(pool: Pool, wanted: Shape, drawn: Shape) -> tuple[str, ...]:
    """Return sentences that say what the population lacks for a structure, and what was drawn instead."""
    kinds = sorted(_kinds(wanted) - set(pool.kinds))
    sentences = [f"The population has no recordings of the kind {kind}." for kind in kinds]
    if drawn != wanted:
        able = int((pool.missing(wanted) == 0).sum())
        M = len(pool.material.speakers)
        sentences.append(f"Only {able} of the {M} speakers have recordings for both sides as in the case.")
    for which in ("known", "questioned"):
        before = wanted.side(which)
        after = drawn.side(which)
        if before != after:
            sentences.append(f"The {which} sides that were drawn have {after} instead of {before}.")
    return tuple(sentences)


def _size(shape: Shape) -> int:
    """The number of recordings and of occasions of both sides, by which structures shrink step by step."""
    recordings = sum(n for session in (*shape.known, *shape.questioned) for _, n in session)
    return recordings + shape.known_occasions + shape.questioned_occasions


def _with_kinds_of(pool: Pool, shape: Shape, model: Model) -> Shape:
    """The structure with kinds of the population in the place of those that the population does not have at all."""
    wanted = expected_ratio(model, shape)
    for kind in sorted(_kinds(shape) - set(pool.kinds)):
        others = [_renamed(shape, kind, other) for other in pool.kinds]
        shape = others[int(np.argmin([abs(expected_ratio(model, other) - wanted) for other in others]))]
    return shape


def _kinds(shape: Shape) -> set[str]:
    """The kinds of channels that occur in a structure."""
    return {kind for session in (*shape.known, *shape.questioned) for kind, _ in session}


def _less(shape: Shape, kinds: list[str]) -> Iterator[Shape]:
    """Structures with slightly smaller demands: a session less, a recording less, an occasion less, another kind."""
    for which in ("known", "questioned"):
        slots = getattr(shape, which)
        occasions = getattr(shape, f"{which}_occasions")
        for i, session in enumerate(slots):
            others = [*slots[:i], *slots[i + 1 :]]
            if others:
                yield _with_side(shape, which, others, min(occasions, len(others)))
            if sum(n for _, n in session) > 1:
                for kind, _ in session:
                    smaller = tuple((name, n - (name == kind)) for name, n in session if n > (name == kind))
                    yield _with_side(shape, which, [*others, smaller], occasions)
        if occasions > 1:
            yield _with_side(shape, which, list(slots), occasions - 1)
    for old in _kinds(shape):
        for new in kinds:
            if new != old:
                yield _renamed(shape, old, new)


def _with_side(shape: Shape, which: str, sessions: list[Session], occasions: int) -> Shape:
    """A structure with another known or questioned side."""
    changes: dict[str, Any] = {which: _sorted(sessions), f"{which}_occasions": occasions}
    return shape._replace(**changes)


def _renamed(shape: Shape, old: str, new: str) -> Shape:
    """A structure in which one kind takes the place of another."""
    sides = []
    for slots in (shape.known, shape.questioned):
        changed = []
        for session in slots:
            counts: Counter[str] = Counter()
            for kind, n in session:
                counts[new if kind == old else kind] += n
            changed.append(tuple(sorted(counts.items())))
        sides.append(_sorted(changed))
    return shape._replace(known=sides[0], questioned=sides[1])
