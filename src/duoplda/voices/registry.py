"""The registry of known voices: it enrols, changes and removes voices, and answers who speaks in recordings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np
import sqlalchemy as sa
from numpy.typing import ArrayLike, NDArray

from duoplda.arrays import Device, on_device
from duoplda.diarization.known import voice_ratios
from duoplda.diarization.linking import level_of_segments
from duoplda.errors import DuopldaError, MissingIds, some
from duoplda.estimators import domain
from duoplda.estimators.backend import Backend
from duoplda.estimators.files import fingerprint
from duoplda.estimators.plda import PLDA
from duoplda.estimators.scoring import chain_of
from duoplda.io.common import PathLike
from duoplda.trials.identification import (
    Costs,
    Probabilities,
    decide,
    decide_together,
    identify,
    identify_together,
    voice_priors,
)
from duoplda.trials.sides import Seen, Sides
from duoplda.voices import rows
from duoplda.voices.answers import Candidate, Identification, Verification, Voice
from duoplda.voices.exports import read_export, write_export
from duoplda.voices.gallery import Gallery
from duoplda.voices.given import Given, Labels, checked_name, joined, numbered, together
from duoplda.voices.snapshots import drop_blocks, read_snapshot, write_block
from duoplda.voices.store import REGISTRY, REGISTRY_FORMAT, REMOVED, SESSIONS, VOICES, Store
from duoplda.voices.sums import StoredSums

KEEP = ("statistics", "embeddings")

Model = Backend | PLDA


class Registry:
    """Known voices in one SQLite file, or in tables of a PostgreSQL server.

    `Registry.create` makes a registry and `Registry.open` opens one; both can be used in a `with` statement. A registry
    holds the sufficient statistics of each session, under one model. With `keep="embeddings"` it also holds the vectors
    of the recordings, from which `migrate` makes the statistics under another model.

    Threads may share a registry, and several programs may open the same one. Changes come one after another. Each is
    made as a whole or not at all, is on the disk before its call returns, and is seen by the next question of every
    program. Removed data are gone from the file as well: the file is written anew without them.

    Do not rely on its probabilities where the model was not calibrated on recordings like those that are asked about.

    >>> import tempfile
    >>> from duoplda import PLDA
    >>> plda = PLDA.from_parameters([0.0], [[3.0]], None, [[1.0]])
    >>> with tempfile.TemporaryDirectory() as folder, Registry.create(folder + "/voices.db", plda) as registry:
    ...     for name, X in {"ann": [[4.0], [4.4]], "bob": [[-3.0]]}.items():
    ...         _ = registry.add(name, X)
    ...     answer = registry.identify([[4.1]])
    ...     [voice.name for voice in registry.voices()], answer.decision, answer.name, round(answer.someone_else, 2)
    (['ann', 'bob'], 'accept', 'ann', 0.25)
    """

    def __init__(self, store: Store, chain: Backend | None, by: str | None = None, device: Device = None):
        self._store = store
        self._device = device
        self._chain = chain
        self._by = by
        self._lock = threading.RLock()
        self._gallery: Gallery | None = None
        self._version = -1

    # -- opening

    @classmethod
    def create(
        cls, location: PathLike, model: Model, keep: str = "statistics", *, by: str | None = None, device: Device = None
    ) -> Self:
        """Make a new registry, and open it; a registry that exists is an error.

        Parameters
        ----------
        location : the path of a SQLite file, or the URL of a PostgreSQL database (postgresql+psycopg://user@host/name)
        model : the fitted `Backend` or `PLDA` by which voices are enrolled and compared
        keep : "statistics", or "embeddings" to keep the vectors of the recordings as well
        by : the name that is noted with changes whose call gives no name
        device : a device of torch, such as "cuda", on which voices are compared. It holds a copy of all voices, which
            the first question after a change makes again
        """
        if keep not in KEEP:
            raise DuopldaError(f"keep={keep!r} must be one of {some(KEEP)}")
        on_device(np.zeros(1), device)  # an impossible device is an error now, and not with the first question
        return cls._made(location, chain_of(model), {"keep": keep, "created": rows.now()}, by, device=device)

    @classmethod
    def open(
        cls, location: PathLike, model: Model | None = None, by: str | None = None, *, device: Device = None
    ) -> Self:
        """Open a registry with the model that enrolled its voices; another model is an error.

        Without a model, voices can be listed, renamed, removed and exported, but nobody can be enrolled or identified.
        `by` and `device` are those of `create`.
        """
        on_device(np.zeros(1), device)
        registry = cls(Store(location, new=False), None if model is None else chain_of(model), by, device)
        try:
            with registry._store.reading() as connection:
                row = connection.execute(sa.select(REGISTRY)).one_or_none()
                if row is None or row.format != REGISTRY_FORMAT:
                    what = "not a registry" if row is None else f"a registry of format {row.format}"
                    ours = f"this duoplda reads format {REGISTRY_FORMAT}"
                    raise DuopldaError(f"{registry._store.name}: it is {what}, and {ours}")
                registry._check_model(row)
        except BaseException:
            registry.close()
            raise
        return registry

    def close(self) -> None:
        """Close all connections; the registry can no longer be used."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Registry {self._store.name}>"

    @property
    def keep(self) -> str:
        """What the registry keeps of recordings: "statistics" or "embeddings"."""
        return str(self._row().keep)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the model that enrolled the voices."""
        return str(self._row().fingerprint)

    def _row(self) -> sa.Row[Any]:
        with self._store.reading() as connection:
            return connection.execute(sa.select(REGISTRY)).one()

    # -- who is there

    def __len__(self) -> int:
        with self._store.reading() as connection:
            return int(connection.execute(sa.select(sa.func.count()).select_from(VOICES)).scalar_one())

    def voices(self, search: str | None = None) -> list[Voice]:
        """Return all voices in the order of their names, or those whose name contains a text, whatever its case."""
        with self._store.reading() as connection:
            all_voices = connection.execute(rows.counted_voices()).all()
        wanted = (search or "").casefold()
        matching = (rows.voice_of(row) for row in all_voices if wanted in row.name.casefold())
        return sorted(matching, key=lambda voice: voice.name)  # here, as each database has its own order of texts

    def sides(self) -> Sides:
        """Return all voices as sides of trials under their names, for instance for `known` of `PLDA.cluster`."""
        chain = self._model
        with self._store.reading() as connection:
            self._check_model(connection.execute(sa.select(REGISTRY)).one())
            names = rows.names_of(connection, sa.select(VOICES.c.id, VOICES.c.name))
            out = Sides.empty(chain.ratio_model_, np.zeros(0, "U1"))
            for part in rows.sides_of(connection, chain.ratio_model_, names, every=True):
                out.add(part)
        return out

    def voice(self, name: str) -> Voice:
        """Return one voice, with its sessions in the order in which they were added."""
        with self._store.reading() as connection:
            number = rows.number_of(connection, name)
            row = connection.execute(rows.counted_voices().where(VOICES.c.id == number)).one()
            sessions = sa.select(SESSIONS).where(SESSIONS.c.voice == number).order_by(SESSIONS.c.id)
            return rows.voice_of(row, connection.execute(sessions))

    # -- changes

    def add(
        self,
        name: str,
        X: ArrayLike,
        session: Labels = None,
        kind: Labels = None,
        by: str | None = None,
        *,
        join: bool = False,
    ) -> Voice:
        """Enrol a voice, or add recordings to it, and return it.

        Parameters
        ----------
        name : the name of the voice
        X : (n, d) recordings, or one recording (d,)
        session : one name for all recordings, or (n,) names. None: each recording is a session of its own, and gets a
            number. Two voices may use the same name for different sessions.
        kind : one kind of channel for all recordings, or (n,) kinds. None: it is inferred.
        by : the name of the person or program that adds them
        join : add recordings to sessions that the voice has already. Otherwise such a session is an error, because
            recordings that are sent twice must not count twice.
        """
        self.add_all({name: X}, {name: session}, {name: kind}, by, join=join)
        return self.voice(name)

    def add_all(
        self,
        voices: Mapping[str, ArrayLike],
        session: Mapping[str, Labels] | None = None,
        kind: Mapping[str, Labels] | None = None,
        by: str | None = None,
        *,
        join: bool = False,
    ) -> None:
        """Enrol several voices, or add to them, as `add` does; an error in one of them leaves all as they were.

        Parameters
        ----------
        voices : name -> the recordings of a voice
        session, kind : name -> the sessions and the kinds of channels of these recordings
        by, join : as for `add`
        """
        additions = {
            checked_name(name): Given.of(X, (session or {}).get(name), (kind or {}).get(name))
            for name, X in voices.items()
        }
        if len(additions) < len(voices):
            raise DuopldaError("a name occurs twice, in composed and in decomposed letters: give it once")
        if not additions:
            return
        X, kinds, sessions, first = together(additions.values())
        sums = StoredSums.of(self._model, X, sessions, kinds)
        with self._store.changing() as (connection, registry):
            self._check_model(registry)
            for (name, given), (start, stop) in zip(additions.items(), pairwise(first.tolist()), strict=True):
                self._enrol(connection, registry, name, given, sums[start:stop], by or self._by, join)

    def _enrol(
        self,
        connection: sa.Connection,
        registry: sa.Row[Any],
        name: str,
        given: Given,
        sums: StoredSums,
        by: str | None,
        join: bool,
    ) -> None:
        """Add sessions to one voice, which is made if it does not exist."""
        number = rows.find_voice(connection, name)
        if number is None:
            number = rows.insert(connection, VOICES, name=name, created=rows.now(), changed=rows.now(), version=0)
        enrolled = rows.sessions_by_name(connection, number)
        names = given.sessions or numbered(len(sums), enrolled)
        known = [label for label in names if label in enrolled]
        if known and not join:
            remedy = "give sessions other names, or `join` them"
            raise DuopldaError(f"{name!r} has {len(known)} of these sessions already: {some(known)}: {remedy}")
        for i, label in enumerate(names):
            if label in enrolled:
                session_id = enrolled[label]
                before = rows.sums_of(connection, self._model.ratio_model_, session_id)
                rows.replace_sums(connection, session_id, before.joined(sums[[i]], self._model.ratio_model_))
            else:
                values = {"voice": number, "name": label, "added": rows.now(), "by": by}
                session_id = rows.insert(connection, SESSIONS, **values, **rows.bytes_of(sums[[i]]))
            if registry.keep == "embeddings":
                rows.keep_embeddings(connection, session_id, *given.part(i))
        rows.touch(connection, number, registry.version, by)

    def rename(self, old: str, new: str, by: str | None = None) -> Voice:
        """Give a voice another name, which no other voice may have. The old name is gone from the file."""
        new = checked_name(new)
        with self._store.changing() as (connection, registry):
            number = rows.number_of(connection, old)
            other = rows.find_voice(connection, new)
            if other not in (None, number):
                raise DuopldaError(f"there is a voice {new!r} already: `merge` makes one voice of two")
            connection.execute(sa.update(VOICES).where(VOICES.c.id == number).values(name=new))
            rows.touch(connection, number, registry.version, by or self._by)
        self._store.wipe()
        return self.voice(new)

    def merge(self, name: str, into: str, by: str | None = None) -> Voice:
        """Give all sessions of one voice to another, and remove the first voice.

        Where both voices have a session of the same name, these become one session. This cannot be undone.
        """
        with self._store.changing() as (connection, registry):
            number = rows.number_of(connection, name)
            target = rows.number_of(connection, into)
            if number == target:
                raise DuopldaError(f"{name!r} and {into!r} are one voice: give two")
            sessions = rows.sessions_by_name(connection, target)
            for label, session_id in rows.sessions_by_name(connection, number).items():
                if label in sessions:
                    self._check_model(registry)
                    rows.join_sessions(connection, self._model.ratio_model_, session_id, sessions[label])
                else:
                    connection.execute(sa.update(SESSIONS).where(SESSIONS.c.id == session_id).values(voice=target))
            rows.forget(connection, number, registry.version, by or self._by)
            rows.touch(connection, target, registry.version, by or self._by)
        self._store.wipe()
        return self.voice(into)

    def remove_session(self, name: str, session: str, by: str | None = None) -> Voice:
        """Remove one session of a voice, as if it had never been added."""
        with self._store.changing() as (connection, registry):
            number = rows.number_of(connection, name)
            sessions = rows.sessions_by_name(connection, number)
            if session not in sessions:
                raise MissingIds(f"{name!r} has no session {session!r}: it has {some(sessions)}")
            if len(sessions) == 1:
                raise DuopldaError(f"{session!r} is the only session of {name!r}: remove the voice")
            rows.drop_sessions(connection, SESSIONS.c.id == sessions[session])
            drop_blocks(connection, number)
            rows.touch(connection, number, registry.version, by or self._by)
        self._store.wipe()
        return self.voice(name)

    def remove(self, name: str | Sequence[str], by: str | None = None) -> None:
        """Remove one or several voices. Nothing of them remains in the file, but copies of the file keep them."""
        names = [name] if isinstance(name, str) else list(name)
        with self._store.changing() as (connection, registry):
            for one in names:
                number = rows.number_of(connection, one)
                rows.drop_sessions(connection, SESSIONS.c.voice == number)
                rows.forget(connection, number, registry.version, by or self._by)
        self._store.wipe()

    # -- questions

    def identify(
        self,
        X: ArrayLike,
        session: Labels = None,
        k: int = 5,
        known: float = 0.5,
        prior: Mapping[str, float] | None = None,
        costs: Costs = Costs(),  # noqa: B008 (it is frozen)
        *,
        kind: Labels = None,
    ) -> Identification:
        """Say which of the voices speaks in recordings of one person, or that it is somebody else.

        The probabilities are only as good as the model's calibration on such recordings; `domain_warning` of the answer
        says if they are unlike those of its training. They also depend on `known`: a person who decides by them should
        be able to say why that prior is right.

        Parameters
        ----------
        X : (n, d) recordings of one person, or one recording (d,)
        session, kind : as for `add`. Recordings of one session are not independent evidence.
        k : how many candidates the answer lists
        known : the prior probability that it is one of the voices; each voice has an equal part of it
        prior : name -> the prior probability of a voice; the other voices have equal parts of the rest of `known`
        costs : the costs of wrong decisions (see `Costs`)
        """
        _check_candidates(k)
        tests = self._tests([Given.of(X, session, kind)])
        with self._lock:
            gallery = self._current()
            (answer,) = self._answers(gallery, tests, gallery.ratios(tests, k), k, known, prior, costs)
        return answer

    def name_speakers(
        self,
        speakers: Mapping[str, ArrayLike],
        k: int = 5,
        known: float = 0.5,
        prior: Mapping[str, float] | None = None,
        costs: Costs = Costs(),  # noqa: B008 (it is frozen)
        *,
        session: Mapping[str, Labels] | None = None,
        kind: Mapping[str, Labels] | None = None,
        discount: float = 1.0,
        once: bool = True,
    ) -> dict[str, Identification]:
        """Say who the speakers of one file are. No two of them are the same voice, unless `once` is False.

        What all speakers of the file have in common is taken for its room, and recordings of one file say less than as
        many from different days, as in `duoplda.diarization.diarize` with known voices. If there is one speaker only,
        voice and room cannot be told apart, and fewer names are given.

        Parameters
        ----------
        speakers : label in the file -> the recordings (n, d) of a speaker, such as embeddings of turns or windows
        k, known, prior, costs : as for `identify`
        session, kind : as for `add`, by label. Without sessions, all recordings of a speaker are of one session if the
            sessions of the model were files (`--sessions-are files`), and otherwise each is a session of its own.
        discount : how much each recording counts, if one turn counts 1: hop / length for windows that overlap, and more
            than 1 for the mean of much speech (10 was right for means of a speaker's whole speech of minutes)
        once : whether the speakers are different people, so that each voice can be only one of them
        """
        _check_candidates(k)
        if not 0 < discount < np.inf:
            raise DuopldaError(f"discount={discount!r} must be greater than 0")
        if session is None and level_of_segments(self._model) == "recordings":
            session = dict.fromkeys(speakers, "file")
        parts = [Given.of(X, (session or {}).get(label), (kind or {}).get(label)) for label, X in speakers.items()]
        tests = self._tests(parts)
        with self._lock:
            gallery = self._current()
            ratios = voice_ratios(self._model, tests, gallery.sides, np.zeros(len(tests)), discount=discount)
            answers = self._answers(gallery, tests, ratios, k, known, prior, costs, apart=once)
        return dict(zip(speakers, answers, strict=True))

    def verify(
        self,
        name: str,
        X: ArrayLike,
        session: Labels = None,
        prior: float = 0.5,
        costs: Costs = Costs(),  # noqa: B008 (it is frozen)
        *,
        kind: Labels = None,
    ) -> Verification:
        """Say whether recordings of one person are of this voice.

        `prior` is the probability of that before the recordings are heard; the other parameters are those of
        `identify`. For a court, use `duoplda.case`, which validates and bounds the ratio.
        """
        tests = self._tests([Given.of(X, session, kind)])
        with self._lock:
            gallery = self._current()
            llr = gallery.ratio(gallery.row(name), tests)
        probabilities = identify([[llr]], prior)
        (decision,) = decide_together(probabilities, costs)
        warning = self._domain_warning(tests)
        return Verification(name, llr, float(probabilities.voices[0, 0]), decision.verdict, warning)

    def _answers(
        self,
        gallery: Gallery,
        tests: Sides,
        ratios: NDArray[np.float64],
        k: int,
        known: float,
        prior: Mapping[str, float] | None,
        costs: Costs,
        apart: bool = False,
    ) -> list[Identification]:
        """The answers for several people, by their ratios (n, voices); with `apart` no two are the same voice."""
        names = gallery.names
        priors = None if prior is None else _priors(prior, gallery, known)
        if apart:
            probabilities = identify_together(ratios, known, priors)
            decisions = decide_together(probabilities, costs)
        else:
            probabilities = identify(ratios, known, priors)
            decisions = [decide(Probabilities(*one), costs) for one in zip(*probabilities, strict=True)]
        warning = self._domain_warning(tests)
        out = []
        for s, decision in enumerate(decisions):
            P = probabilities.voices[s]
            first = np.argsort(-P, kind="stable")[:k]
            # Where probabilities underflow to equal values, the ratios still give an order.
            first = first[np.lexsort((-ratios[s, first], -P[first]))]
            candidates = tuple(Candidate(names[i], float(ratios[s, i]), float(P[i])) for i in first.tolist())
            name = None if decision.voice is None else names[decision.voice]
            out.append(
                Identification(candidates, float(probabilities.someone_else[s]), decision.verdict, name, warning)
            )
        return out

    def _tests(self, parts: Sequence[Given]) -> Sides:
        """Sets of recordings as sides of trials."""
        if not parts:
            raise DuopldaError("there is nobody to name: give the recordings of at least one speaker")
        X, kinds, session, _ = together(parts)
        side = np.repeat(np.arange(len(parts)), [len(part.X) for part in parts])
        return self._model.enroll(X, side, session, kinds)

    def _domain_warning(self, tests: Sides) -> str | None:
        """A sentence if recordings are unlike those of the training. They count as one: all may be copies of it."""
        seen = tests.seen
        if seen is None or not seen.n:
            return None
        measured = domain.measure(self._model, Seen(1, seen.sum / seen.n), len(tests))
        if measured.within:
            return None
        return (
            "these recordings are not like those that the model was trained on: their mean is at a squared distance "
            f"of {measured.distance:.3g} from that of the model, and up to {measured.limit:.3g} is usual. Ratios may "
            "mislead"
        )

    # -- another model, another place

    def migrate(self, model: Model) -> None:
        """Enrol all voices anew under another model, from the embeddings, in one change.

        The registry must have been made with `keep="embeddings"`. Answers change with the model.
        """
        chain = chain_of(model)
        with self._lock, self._store.changing() as (connection, registry):
            if registry.keep != "embeddings":
                raise DuopldaError(
                    f"{self._store.name} keeps statistics, and no embeddings from which others could be made: enrol "
                    'the recordings in a new registry, with keep="embeddings" if you will change the model again'
                )
            for session_id, parts in rows.kept_embeddings(connection):
                X, kinds = joined(parts)
                rows.replace_sums(connection, session_id, StoredSums.of(chain, X, np.zeros(len(X), np.int64), kinds))
            drop_blocks(connection)
            connection.execute(sa.update(REGISTRY).values(**rows.described(chain)))
            connection.execute(sa.update(VOICES).values(version=registry.version))
        self._chain = chain
        self._gallery = None
        self._version = -1
        self._store.wipe()

    def snapshot(self) -> None:
        """Store the sums of all voices as they are now, so that programs open a large registry faster.

        Voices that change afterwards are read from their sessions, as all voices are without a snapshot. So make
        another one from time to time, for instance after many voices were enrolled.
        """
        with self._store.changing() as (connection, registry):
            self._check_model(registry)
            drop_blocks(connection)
            numbers = connection.execute(sa.select(VOICES.c.id)).scalars().all()
            model = self._model.ratio_model_
            for block in rows.sides_of(connection, model, {number: number for number in numbers}, every=True):
                write_block(connection, registry.version, block)

    def export(self, path: PathLike, *, force: bool = False) -> None:
        """Write all voices to one safetensors file, from which `import_` makes a registry.

        The file appears whole or not at all. It holds data about people, as the registry does.
        """
        with self._store.reading() as connection:
            write_export(path, connection, force=force)

    @classmethod
    def import_(cls, path: PathLike, location: PathLike, model: Model, *, by: str | None = None) -> Self:
        """Make a registry from a file of `export`, with the same names and dates, and open it."""
        chain = chain_of(model)
        export = read_export(path, chain.ratio_model_, fingerprint(chain))
        row = {"keep": export.header["keep"], "created": export.header["created"]}
        return cls._made(location, chain, row, by, export.insert)

    @classmethod
    def _made(
        cls,
        location: PathLike,
        chain: Backend,
        row: dict[str, str],
        by: str | None,
        fill: Callable[[sa.Connection], None] = lambda _: None,
        device: Device = None,
    ) -> Self:
        store = Store(location, new=True)
        try:
            store.create({**rows.described(chain), **row}, fill)
        except BaseException:
            store.close()
            raise
        return cls(store, chain, by, device)

    # -- what is in memory

    @property
    def _model(self) -> Backend:
        if self._chain is None:
            raise DuopldaError("the registry was opened without its model: give the model to enrol or to identify")
        return self._chain

    def _check_model(self, row: sa.Row[Any]) -> None:
        """Refuse a model other than that of the registry."""
        if self._chain is not None and row.fingerprint != fingerprint(self._chain):
            remedy = "give that model, or `migrate` the registry to this one"
            if row.keep != "embeddings":
                remedy = "give that model, or enrol the recordings anew (embeddings were not kept)"
            raise DuopldaError(f"{self._store.name}: its voices were enrolled by another model: {remedy}")

    def _current(self) -> Gallery:
        """Return the voices as they are now; changes by others since the last question are read."""
        chain = self._model
        with self._store.reading() as connection:
            registry = connection.execute(sa.select(REGISTRY)).one()
            if self._gallery is not None and registry.version == self._version:
                return self._gallery
            self._check_model(registry)
            gallery = self._gallery or Gallery(chain, self._device)
            if self._gallery is not None:
                gone = sa.select(REMOVED.c.voice).where(REMOVED.c.version > self._version)
                gallery.remove(connection.execute(gone).scalars())
            changed = sa.select(VOICES.c.id, VOICES.c.name).where(VOICES.c.version > self._version)
            voices = rows.names_of(connection, changed)
            since = self._version
            self._gallery = None  # after an error half-way, the next question reads everything anew
            self._version = -1
            read = read_snapshot(connection, chain.ratio_model_) if since < 0 else None
            if read is not None:
                gallery.begin([voices.pop(number) for number in read.ids.tolist()], read)
            numbers = {number: number for number in voices}
            for part in rows.sides_of(connection, chain.ratio_model_, numbers, every=since < 0 and read is None):
                gallery.put([voices[number] for number in part.ids.tolist()], part)
        self._version = int(registry.version)
        self._gallery = gallery
        return gallery


def _check_candidates(k: int) -> None:
    if k < 1:
        raise DuopldaError(f"k={k!r} must be a whole number from 1 on")


def _priors(prior: Mapping[str, float], gallery: Gallery, known: float) -> NDArray[np.float64]:
    """Prior probabilities of all voices: those of `prior`, and equal parts of the rest of `known` for the others."""
    places = [gallery.row(name) for name in prior]
    given = np.asarray([*prior.values()], float)
    left = max(0.0, known - float(given.sum()))
    n_other = len(gallery.names) - len(places)
    out = voice_priors(len(gallery.names), left * len(gallery.names) / n_other if n_other else 0.0)
    out[places] = given
    return out
