"""Sides of trials: sets of recordings, summed up by what likelihood ratios need of them.

A side is (n, gamma, Lambda): its counts of sessions by type, and the vector and the precision of the posterior of its
speaker factor y (docs/model.md). For sides 1 and 2 that share no session, and 3 for both together,

    gamma_3 = gamma_1 + gamma_2,   Lambda_3 = Lambda_1 + Lambda_2 - I,   Q = (gamma'Lambda^-1 gamma - ln|Lambda|) / 2
    LLR = Q_3 - Q_1 - Q_2 = gamma_1'Lambda_3^-1 gamma_2 + a_1 + a_2
    a_1 = gamma_1'(Lambda_3^-1 - Lambda_1^-1) gamma_1 / 2
    a_2 = [gamma_2'(Lambda_3^-1 - Lambda_2^-1) gamma_2 + ln|Lambda_1| + ln|Lambda_2| - ln|Lambda_3|] / 2

Lambda depends only on the counts of sessions by type, which are called the *pattern* of the side.

`duoplda.trials.meeting` has the ratios of sides that share a session. Sessions of one occasion of a side count for rho
each (`duoplda.trials.occasions`), in Lambda, gamma and session terms.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duoplda.arrays import Array, add_rows, add_segments, namespace, put, segment_sums, set_rows, take, to_numpy, zeros
from duoplda.data import labels as lab
from duoplda.data.labels import Ints, Labels
from duoplda.errors import DuopldaError, some
from duoplda.io import read_container, write_container
from duoplda.model.parameters import Model, Terms, same
from duoplda.model.posteriors import sessions
from duoplda.model.ragged import Patterns, Speakers, speakers
from duoplda.trials.meeting import Meeting
from duoplda.trials.occasions import Occasions
from duoplda.trials.side_files import SIDES_FILE, checked, fingerprint
from duoplda.trials.tables import Table, as_names, packed, unpacked

if TYPE_CHECKING:
    from duoplda.trials.ranking import Ranking

# A product of sides takes up to this many patterns, each with a unit vector of its own (`duoplda.trials.ratios`), which
# makes a product of 150 factors half as large again. Where more patterns are rare, sides are called ragged.
MOST_PATTERNS = 64
STATE = ("model", "types", "version", "seen", "_people", "_sessions", "occasions")  # what is not computed from others


@dataclass(frozen=True, eq=False)
class Seen:
    """The number of recordings that were enrolled, and the sum of their differences from the mean of the training data.

    `duoplda.estimators.domain` tells from it whether recordings are like the training data. With `inside`, the vectors
    are those that the PLDA takes, after all steps of preprocessing; otherwise they are those that the user gave.

    >>> both = Seen(2, np.array([1.0, 3.0])) + Seen(1, np.array([2.0, 0.0]))
    >>> both.n, both.sum.tolist()
    (3, [3.0, 3.0])
    """

    n: int = 0
    sum: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))  # (d,); (1,) before the first recording
    inside: bool = False

    def __add__(self, other: Seen) -> Seen:
        return Seen(self.n + other.n, self.sum + other.sum, self.inside or other.inside)


class Sides:
    """Sets of recordings, each of which is one side of trials.

    `PLDA.enroll` and `Backend.enroll` make them. Sides can be added, removed and saved; `load_sides` of the model that
    made them reads them again. No other model can score them.

    Attributes
    ----------
    ids : (n,) the names of the sides
    types : (C, K) types of sessions: how many recordings of each kind of channel they have
    counts : (n, C) sessions of each side by type
    gamma : (n, ny)
    model : the parameters with which recordings were summed up
    session, session_side, session_type, z : (h,), (h,), (h,), (h, nx) the sessions that have names: their name, the
        row of their side, their type and their z. They tell when the two sides of a trial share a session.
    occasions : the occasions of the sessions, as far as they are known
    session_occasion : (h,) the occasion of each named session, as a row of `occasions`, or -1
    version : the number of changes by `add` and `remove`
    seen : the sum of all recordings that were enrolled, including those of sides that were removed or not selected
        later; None where it is not known
    """

    seen: Seen | None = None
    ranking: Ranking | None = None  # finds the highest-scoring of many sides; made at the first search
    _weighed: Self | None = None

    def __init__(
        self,
        model: Model,
        types: Ints,
        people: Table,
        sessions: Table | None = None,
        occasions: Occasions | None = None,
    ):
        """`people` has the columns ids, counts and gamma; `sessions`, those with names, name, side, type, z, occasion.

        Without `sessions`, none has a name; without a column `occasion`, no occasion is known.
        """
        self.model = model
        self.types = types
        self.occasions = Occasions.none(len(types), people["gamma"]) if occasions is None else occasions
        if sessions is None:
            none = np.zeros(0, np.int64)
            sessions = Table(name=np.zeros(0, "U1"), side=none, type=none, z=zeros((0, model.nx), people["gamma"]))
        sessions.columns.setdefault("occasion", np.full(sessions.n, -1))
        self.version = 0
        self._people = people
        self._sessions = sessions

    ids = property(lambda self: self._people["ids"])
    counts = property(lambda self: self._people["counts"])
    gamma = property(lambda self: self._people["gamma"])
    session = property(lambda self: self._sessions["name"])
    session_side = property(lambda self: self._sessions["side"])
    session_type = property(lambda self: self._sessions["type"])
    z = property(lambda self: self._sessions["z"])
    session_occasion = property(lambda self: self._sessions["occasion"])
    named = property(lambda self: self._sessions.index)  # the rows of named sessions by their name

    @classmethod
    def empty(cls, model: Model, ids: ArrayLike = ()) -> Self:
        """Sides without recordings, to which recordings are added later."""
        names = as_names(np.asarray(ids))
        gamma = zeros((len(names), model.ny), model.V)
        people = Table(ids=names, counts=np.zeros((len(names), 0), np.int64), gamma=gamma)
        out = cls(model, np.zeros((0, model.K), np.int64), people)
        out.seen = Seen()
        return out

    def __len__(self) -> int:
        return self._people.n

    def __repr__(self) -> str:
        n_recordings = int((self.counts @ self.types.sum(axis=1)).sum())
        parts = [f"{len(self):,} sides", f"{self.counts.sum():,} sessions", f"{n_recordings:,} recordings"]
        if len(self.occasions):
            parts.insert(1, f"{len(self.occasions):,} occasions")
        if namespace(self.gamma) is not np:
            parts.append(f"on {self.gamma.device}")
        return f"<Sides: {', '.join(parts)}, ids {some(self.ids, most=4)}>"

    def __getstate__(self) -> dict[str, Any]:
        return {k: getattr(self, k) for k in STATE}

    # -- what is computed once, and forgotten when sides change

    @property
    def weighed(self) -> Self:
        """The sides with each session weighed by what it counts for as evidence, which is less within one occasion.

        Where every session counts for one, these are the sides themselves.
        """
        rho = self.occasions.weight
        if (rho == 1).all():  # not kept in `_weighed`: sides that refer to themselves would stay in memory
            return self
        if self._weighed is None:
            counts, gamma = self.occasions.weighed(self.counts, self.gamma)
            people = Table(ids=self.ids, counts=counts, gamma=gamma, n_sessions=self.n_sessions)
            weight = np.append(rho, 1.0)[self.session_occasion]  # the last one is for -1, no occasion
            columns = {name: self._sessions[name] for name in ("name", "side", "type", "z")}
            out = self._plain(self.model, people)
            out._sessions = Table(**columns, occasion=np.full(len(weight), -1), weight=weight)
            out.terms = self.terms
            self._weighed = out
        return self._weighed

    @property
    def n_sessions(self) -> Ints:
        """(n,) numbers of sessions, whatever each of them counts for as evidence."""
        columns = self._people.columns
        return self._people["n_sessions"] if "n_sessions" in columns else self.counts.sum(axis=1)

    @property
    def session_weight(self) -> NDArray[np.float64] | None:
        """(h,) what each named session of weighed sides counts for; None: each is one."""
        return self._sessions["weight"] if "weight" in self._sessions.columns else None

    @cached_property
    def terms(self) -> Terms:
        return Terms(self.model, self.types)

    @cached_property
    def patterns(self) -> Patterns:
        return Patterns(self.counts)

    @cached_property
    def groups(self) -> Groups:
        return Groups(self)

    @cached_property
    def posterior(self) -> Speakers:
        return speakers(self.terms.G, self.patterns, self.gamma)

    @cached_property
    def quadratic(self) -> Array:
        """(n,) gamma' Lambda^-1 gamma."""
        return namespace(self.gamma).sum(self.gamma * self.posterior.mean, axis=1)

    @cached_property
    def Q(self) -> Array:
        """(n,) (gamma' Lambda^-1 gamma - ln|Lambda|) / 2."""
        return (self.quadratic - take(self.posterior.ln_Lambda, self.patterns.index)) / 2

    # -- use

    def rows(self, ids: ArrayLike) -> Ints:
        """Rows of sides by id, -1 where there is none."""
        return self._people.index.last(np.asarray(ids).reshape(-1))

    def find(self, ids: ArrayLike) -> Ints:
        """Rows of sides by id; an error names the ids that are not enrolled."""
        wanted = np.asarray(ids).reshape(-1)
        rows = self.rows(wanted)
        if (rows < 0).any():
            unknown = list(dict.fromkeys(wanted[rows < 0].tolist()))
            raise DuopldaError(f"{len(unknown)} ids are not among the {len(self)} enrolled: {some(unknown)}")
        return rows

    def select(self, rows: slice | Sequence[int] | NDArray[Any]) -> Self:
        """Some of the sides, with their sessions: a slice of them, or those of row numbers in any order.

        >>> from duoplda import PLDA
        >>> plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
        >>> plda.enroll([[1.0], [2.0], [3.0]], ["a", "b", "c"]).select([2, 0]).ids.tolist()
        ['c', 'a']
        """
        rows = np.ascontiguousarray(np.arange(len(self))[rows])
        part, side = _rows_of(rows, self.session_side, len(self))
        sessions = self._sessions.take(part)
        sessions.columns["side"] = side
        n = len(self.occasions)
        part, of_side = _rows_of(rows, self.occasions.side, len(self))
        old = sessions["occasion"]
        new = np.searchsorted(of_side * n + part, side * n + old)
        sessions.columns["occasion"] = np.where(old < 0, -1, new)
        occasions = self.occasions.select(part, of_side)
        out = type(self)(self.model, self.types, self._people.take(rows), sessions, occasions)
        out.seen = self.seen
        return out

    def __sub__(self, other: object) -> NoReturn:
        raise DuopldaError("nothing can be subtracted from sides: use `remove` to take sides out by their ids")

    def __copy__(self) -> Self:
        """Sides that can be changed without changing these."""
        return self.select(slice(None))

    def rename(self, ids: ArrayLike) -> None:
        """Give the sides other ids (n,), in place."""
        columns = {name: self._people[name] for name in self._people.columns}
        self._people = Table(**columns | {"ids": as_names(np.asarray(ids))})

    def unnamed(self, ids: ArrayLike | None = None) -> Self:
        """A copy whose sessions have no names, so that no other side shares them; with other ids if these are given."""
        names = self.ids if ids is None else as_names(np.asarray(ids))
        sums = Table(ids=names, counts=self.counts, gamma=self.gamma).take(np.arange(len(self)))
        out = self._plain(self.model, sums)
        out.occasions = self.occasions.select(np.arange(len(self.occasions)), self.occasions.side)
        return out

    def grouped(self, group: Ints) -> Self:
        """The sums of groups of weighed sides as k sides; `group` (n,) is 0 .. k - 1. Sessions lose their names."""
        k = int(group.max()) + 1
        order = np.argsort(group, kind="stable")
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))
        counts = segment_sums(self.counts[order], starts)
        gamma = segment_sums(take(self.gamma, order), starts)
        n_sessions = segment_sums(self.n_sessions[order, None], starts)[:, 0]
        return self._plain(self.model, Table(ids=np.arange(k), counts=counts, gamma=gamma, n_sessions=n_sessions))

    def moved_to(self, model: Model) -> Self:
        """The sides in the library and on the device of `model`, an equal model. Sessions lose their names."""
        if namespace(self.gamma) is namespace(model.V):
            return self
        sums = Table(ids=self.ids.copy(), counts=self.counts.copy(), gamma=put(to_numpy(self.gamma), model.V))
        out = self._plain(model, sums)
        o = self.occasions
        out.occasions = Occasions(o.kappa, o.name, o.side, o.counts, put(to_numpy(o.gamma), model.V))
        return out

    def _plain(self, model: Model, sums: Table) -> Self:
        """Sides with the same types of sessions, and with these sums; their sessions have no names."""
        out = type(self)(model, self.types, sums)
        out.seen = Seen()
        return out

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the sides to a safetensors file, whole or not at all, with a fingerprint of their model.

        `PLDA.load_sides` and `Backend.load_sides` of that model read them again. `force` replaces an existing file.
        """
        numbers = ("types", "counts", "gamma", "session_side", "session_type", "z")
        arrays = {"ids": packed(self.ids), "session": packed(self.session)}
        arrays |= {name: to_numpy(getattr(self, name)) for name in numbers}
        if self.seen is not None:
            name = "seen_inside" if self.seen.inside else "seen"
            arrays |= {name: self.seen.sum, "n_seen": np.array([self.seen.n])}
        if len(o := self.occasions):
            arrays |= {"occasion": packed(o.name), "occasion_side": o.side, "occasion_counts": o.counts}
            arrays |= {"occasion_gamma": to_numpy(o.gamma), "kappa": np.array([o.kappa])}
            arrays["session_occasion"] = self.session_occasion + 1  # 0: none
        write_container(path, SIDES_FILE, arrays, {"model": fingerprint(self.model)}, force=force)

    # -- changes

    def add(self, other: Sides) -> Self:
        """Add the sessions of other sides of the same model, in place, as if all had been enrolled at once.

        A session of a known id costs O(ny); new ids are appended. Where a side already has a session of the same name,
        the two are parts of one session and are joined. Recordings are not remembered: do not add one twice, as it
        would count twice.

        >>> from duoplda import PLDA
        >>> plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
        >>> sides = plda.enroll([[1.0], [2.0]], ["a", "b"])
        >>> sides.add(plda.enroll([[0.5], [3.0]], ["b", "c"])).ids.tolist()
        ['a', 'b', 'c']
        >>> sides.counts.tolist()
        [[1], [2], [1]]
        """
        our_place, their_place = ((namespace(s.gamma), str(s.gamma.device)) for s in (self, other))
        if our_place != their_place:
            raise DuopldaError("the sides are in different array libraries or on different devices: enroll both alike")
        if not same(self.model, other.model):
            raise DuopldaError("the sides were enrolled by different models: enroll both with one model")
        rows = self.rows(other.ids)
        new = np.flatnonzero(rows < 0)
        rows[new] = len(self) + np.arange(len(new))
        if len(np.unique(rows)) < len(rows):
            raise DuopldaError("an id occurs twice among the sides to be added: give each id once")
        if len(self.occasions) and len(other.occasions) and self.occasions.kappa != other.occasions.kappa:
            raise DuopldaError("the sides were enrolled with different correlations of occasions: enroll both with one")
        met = self._meet(other, rows)
        columns = self._columns_of(other.types)
        counts = np.zeros((len(new), len(self.types)), np.int64)
        gamma = zeros((len(new), self.model.ny), self.gamma)
        self._people.append(ids=other.ids[new], counts=counts, gamma=gamma)
        self.counts[rows[:, None], columns] += other.counts
        add_rows(self.gamma, rows, other.gamma)
        occasions = np.zeros(0, np.int64)
        if len(other.occasions):
            self.occasions.kappa = other.occasions.kappa
            occasions = self.occasions.add(other.occasions, rows[other.occasions.side], columns)
        self._join(other, rows, columns, np.append(occasions, -1)[other.session_occasion], *met)
        self.seen = seen_together(self.seen, other.seen)
        ranking = self.ranking
        self.__dict__ = self.__getstate__()  # all else that was computed from the sides is out of date
        self.version += 1
        if ranking is not None:
            ranking.update(rows)
            self.ranking = ranking
        return self

    def put(self, other: Sides) -> Self:
        """As `add`, but a side whose id is known is replaced by that of `other`. Its sessions must have no names.

        >>> from duoplda import PLDA
        >>> plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
        >>> sides = plda.enroll([[1.0], [2.0]], ["a", "b"])
        >>> sides.put(plda.enroll([[5.0], [3.0]], ["b", "c"])).gamma[:, 0].tolist()
        [1.0, 5.0, 3.0]
        """
        rows = self.rows(other.ids)
        rows = rows[rows >= 0]
        self.counts[rows] = 0
        self.gamma[rows, ...] = 0.0
        return self.add(other)

    def remove(self, ids: ArrayLike) -> Self:
        """Remove sides by id, in place."""
        kept = np.setdiff1d(np.arange(len(self)), self.find(ids))
        version = self.version
        self.__dict__ = self.select(kept).__dict__
        self.version = version + 1
        return self

    def _columns_of(self, types: Ints) -> Ints:
        """The columns of `counts` for these types of sessions; types that are new get a column."""
        known = {t: c for c, t in enumerate(map(tuple, self.types.tolist()))}
        columns = np.array([known.setdefault(t, len(known)) for t in map(tuple, types.tolist())], np.int64)
        more = len(known) - len(self.types)
        if more:
            self.types = np.array(list(known), np.int64)
            self._people.columns["counts"] = np.pad(self._people.columns["counts"], ((0, 0), (0, more)))
            self.occasions.widen(len(known))
        return columns

    def _meet(self, other: Sides, rows: Ints) -> tuple[Ints, Ints]:
        """Named sessions of which `other` has a further part: their rows among our named sessions and among its own."""
        if not len(other.session):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        cell, part = self.named.find(other.session)
        hit = self.session_side[cell] == rows[other.session_side][part]
        cell = cell[hit]
        part = part[hit]
        if len(self.occasions) or len(other.occasions):
            before = self.occasions.names(self.session_occasion[cell])
            after = other.occasions.names(other.session_occasion[part])
            torn = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
            if torn:
                i = torn[0]
                raise lab.torn_occasion(other.session[part[i]], [before[i], after[i]], len(torn) - 1)
        return cell, part

    def _join(self, other: Sides, rows: Ints, columns: Ints, occasion: Ints, cell: Ints, part: Ints) -> None:
        """Take over the named sessions of `other`, whose sides have the rows `rows` here.

        `columns` are the columns of its types here, and `occasion` (h,) the occasions of its sessions. Our sessions
        `cell` and its sessions `part` are parts of the same sessions: each two become one, which has the sum of the
        types and of z.
        """
        if not len(other.session):
            return
        side = rows[other.session_side]
        type_ = columns[other.session_type]
        if len(cell):
            before = self.session_type[cell]
            after = type_[part]
            z1 = take(self.z, cell)
            z2 = take(other.z, part)
            meet = Meeting(self.model, self.types[before], self.types[after])
            whole = self._columns_of(self.types[before] + self.types[after])
            shift = meet.shift(z1, z2)
            known = np.flatnonzero(occasion[part] >= 0)
            for sums, row, rows in (
                (self, side[part], np.arange(len(part))),
                (self.occasions, occasion[part][known], known),
            ):
                order = np.argsort(row, kind="stable")
                add_segments(sums.gamma, row[order], take(shift, rows[order]))
                for types, change in ((before, -1), (after, -1), (whole, 1)):
                    np.add.at(sums.counts, (row, types[rows]), change)
            self.session_type[cell] = whole
            set_rows(self.z, cell, z1 + z2)
        new = np.setdiff1d(np.arange(len(side)), part)
        columns_of_new = {"name": other.session[new], "side": side[new], "type": type_[new], "z": take(other.z, new)}
        self._sessions.append(**columns_of_new, occasion=occasion[new])


def _rows_of(sides: Ints, side: Ints, n: int) -> tuple[Ints, Ints]:
    """The rows that belong to some sides, one side after the other, and for each row the place of its side in `sides`.

    `side` (h,) is the side, 0 .. n - 1, of each row.
    """
    order = np.argsort(side, kind="stable")
    size = np.bincount(side, minlength=n)
    start = (np.cumsum(size) - size)[sides]
    times = size[sides]
    rows = order[np.repeat(start - np.cumsum(times) + times, times) + np.arange(times.sum())]
    return rows, np.repeat(np.arange(len(sides)), times)


def seen_together(a: Seen | None, b: Seen | None) -> Seen | None:
    """The sum over the recordings of two sets of sides; None where one is unknown, or of another chain of steps."""
    if a is None or b is None or (a.n and b.n and (a.sum.shape, a.inside) != (b.sum.shape, b.inside)):
        return None
    return a + b


def load(path: str | os.PathLike[str], model: Model) -> Sides:
    """Read sides that `Sides.save` wrote, onto the device of their model."""
    arrays, header = read_container(path, [SIDES_FILE])
    if header.get("model") != fingerprint(model):
        raise DuopldaError(
            f"{path}: these speakers were enrolled with another model, and this one cannot score them: give the model "
            "that enrolled them, or enroll them again"
        )
    ids, session = checked(path, arrays, model)
    types, counts, side, type_ = (arrays[k] for k in ("types", "counts", "session_side", "session_type"))
    people = Table(ids=ids, counts=counts, gamma=put(arrays["gamma"], model.V))
    sessions = Table(name=session, side=side, type=type_, z=put(arrays["z"], model.V))
    occasions = None
    if "occasion" in arrays:
        name, side, counts = (arrays[k] for k in ("occasion", "occasion_side", "occasion_counts"))
        gamma = put(arrays["occasion_gamma"], model.V)
        occasions = Occasions(float(arrays["kappa"][0]), unpacked(name), side, counts, gamma)
        sessions.columns["occasion"] = arrays["session_occasion"] - 1
    out = Sides(model, types, people, sessions, occasions)
    for total in ("seen", "seen_inside"):
        if total in arrays:
            out.seen = Seen(int(arrays["n_seen"][0]), arrays[total], inside=total == "seen_inside")
    return out


class Groups:
    """Sides grouped by pattern.

    Two sets of sides with the same patterns have the same `key`, whichever sides they hold: patterns are in
    lexicographic order. Only where sides are ragged (many patterns are rare) do rare patterns come first.
    """

    def __init__(self, side: Sides):
        p = side.patterns
        rare = int(np.searchsorted(p.multiplicity, 64))  # for fewer than 64 sides, an inverse costs more than it saves
        if rare <= MOST_PATTERNS:
            rare = 0
        elif 4 * p.start[rare] > 3 * len(
            side
        ):  # frequent patterns have few sides, and writing to parts of columns is slow
            rare = len(p)
        used = np.flatnonzero(p.rows.any(axis=0))
        used = used[np.lexsort(side.types[used].T[::-1])]
        rows = p.rows[:, used]
        order = np.arange(len(p))
        if len(used) and not rare:
            order = np.lexsort(rows.T[::-1])
        self.types: Ints = side.types[used]  # (C, K) the types that occur
        self.rows: Ints = rows[order]  # (P, C) sessions by type
        self.index: Ints = np.argsort(order)[p.index]  # (n,) the pattern of each side
        self.multiplicity: Ints = p.multiplicity[order]  # (P,) sides of each pattern
        self.G = take(side.terms.G, used)  # (C, ny, ny)
        self.ln_Lambda = take(side.posterior.ln_Lambda, order)  # (P,)
        ranges = ((range(rare), True), (range(rare, len(p)), False))
        self.parts = [(r, is_rare) for r, is_rare in ranges if len(r)]  # ranges of patterns, and whether these are rare
        self.key = (self.types.tobytes(), self.rows.shape, self.rows.tobytes(), rare, int(p.start[rare]))

    def __len__(self) -> int:
        return len(self.rows)


def enroll(
    model: Model,
    X: Array,
    ids: ArrayLike,
    session: ArrayLike | None = None,
    channel: Ints | None = None,
    occasion: ArrayLike | None = None,
    kappa: float = 0.0,
) -> Sides:
    """Sum up sets of recordings X (n, d); `ids` (n,) is the set of each.

    A session may be in several sets, since sets are not assumed to be different speakers. `session` and `occasion` (n,)
    are names, `channel` (n,) rows of the model's kinds of channels; `kappa` is what sessions of one occasion have in
    common (`duoplda.model.occasions`).
    """
    side_ids, side = lab.codes(ids, "speaker", X.shape[0])
    cell = np.arange(len(side))  # a cell is a session of a side
    n_cells = len(side)
    names = np.zeros(0, "U1")
    if session is not None:
        known, name = lab.codes(session, "session", X.shape[0])
        cells, cell = np.unique(side * len(known) + name, return_inverse=True)
        n_cells = len(cells)
        names = as_names(known)[cells % len(known)]
    kind = np.zeros(len(side), np.int64) if channel is None else channel
    labels = Labels(side_ids, np.arange(n_cells), model.kinds, side, cell, kind)
    s = sessions(model, X, labels)
    terms = Terms(model, s.types)
    named = slice(0, len(names))
    z = zeros((0, model.nx), model.V) if session is None else s.z
    people = Table(ids=as_names(side_ids), counts=s.counts, gamma=s.gamma(terms))
    parts = Table(name=names, side=labels.session_speaker[named], type=s.type[named], z=z)
    occasions = None
    if occasion is not None:
        encoded = lab.encode(None, session, None, X.shape[0], occasion=occasion)
        occasion_names = np.asarray(encoded.occasion_ids)
        occasion_of_cell = np.zeros(n_cells, np.int64)
        occasion_of_cell[cell] = np.asarray(encoded.occasion)
        # The sessions of one side and occasion are summed up as if they were of a speaker of their own.
        key = labels.session_speaker * len(occasion_names) + occasion_of_cell
        groups, group = np.unique(key, return_inverse=True)
        side_of_group, name_of_group = np.divmod(groups, len(occasion_names))
        sums = replace(s, labels=replace(labels, speaker_ids=groups, speaker=group[cell]))
        names_of_groups = occasion_names[name_of_group]
        occasions = Occasions(kappa, names_of_groups, side_of_group, sums.counts, sums.gamma(terms))
        parts.columns["occasion"] = group[named]
    sides = Sides(model, s.types, people, parts, occasions)
    sides.terms = terms
    return sides
