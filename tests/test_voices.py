"""The registry of known voices: what it answers, what it keeps, and what is left of what was removed."""

import multiprocessing
import os
import resource
import signal
import sqlite3
import threading
import time
from multiprocessing import reduction

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")

from duoplda import PLDA, Backend
from duoplda.datasets import make_recordings
from duoplda.diarization.known import voice_ratios
from duoplda.errors import DuopldaError
from duoplda.trials.identification import identify, identify_together
from duoplda.voices import Costs, Registry

D = 12
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["duoplda.voices", "duoplda.datasets"])


def drawn(n_speakers, seed=0, model=None):
    factors = {"n_speaker_factors": 8, "n_session_factors": 6}
    return make_recordings(n_speakers, 4, 2, n_dimensions=D, seed=seed, model=model, **factors)


def trained(seed=0):
    data = drawn(60, seed)
    return Backend(plda=PLDA(6, 5, shrinkage=None)).fit(data.X, data.speaker, session=data.session)


@pytest.fixture(scope="module")
def chain():
    return trained()


@pytest.fixture(scope="module")
def people():
    """Recordings of six people in four sessions of two recordings: their vectors, speaker and session."""
    data = drawn(6, seed=7, model=drawn(60).model)
    return data.X, data.speaker, data.session


@pytest.fixture
def registry(tmp_path, chain):
    with Registry.create(tmp_path / "voices.db", chain) as registry:
        yield registry


def enrol(registry, people, sessions=3):
    """The first sessions of each person; what is left of each is returned."""
    X, speaker, session = people
    left = {}
    for i, who in enumerate(np.unique(speaker)):
        names = np.unique(session[speaker == who])
        first = (speaker == who) & np.isin(session, names[:sessions])
        registry.add(f"person {i}", X[first], session[first])
        left[f"person {i}"] = X[(speaker == who) & ~first]
    return left


def ratios_of(registry, tests):
    """The ratios of all voices with each test, by name."""
    k = len(registry)
    return [{c.name: c.llr for c in registry.identify(X, "s", k=k).candidates} for X in tests]


def by_name(enrolled, values):
    return dict(zip(enrolled.ids.tolist(), values.tolist(), strict=True))


# -- answers


def test_answers_are_those_of_the_model_and_of_the_formula(registry, chain, people):
    X, speaker, session = people
    left = enrol(registry, people)
    who = np.unique(speaker, return_inverse=True)[1]
    kept = np.flatnonzero([s != np.sort(session[speaker == w])[-1] for s, w in zip(session, speaker, strict=True)])
    enrolled = chain.enroll(X[kept], [f"person {i}" for i in who[kept]], session[kept])
    tests = chain.enroll(np.concatenate([*left.values()]), np.repeat(np.arange(6), 2), np.repeat(np.arange(6), 2))
    ratios = np.asarray(chain.llr(enrolled, tests)).T
    for i, (name, rows) in enumerate(left.items()):
        answer = registry.identify(rows, "one call", k=6)
        llr = {c.name: c.llr for c in answer.candidates}
        assert llr == pytest.approx(by_name(enrolled, ratios[i]), abs=1e-9)
        expected = identify(ratios[i])
        posteriors = {c.name: c.posterior for c in answer.candidates}
        assert posteriors == pytest.approx(by_name(enrolled, expected.voices), abs=1e-12)
        assert answer.someone_else == pytest.approx(float(expected.someone_else))
        assert [c.posterior for c in answer.candidates] == sorted(posteriors.values(), reverse=True)
        one = registry.verify(name, rows, "one call")
        assert one.llr == pytest.approx(ratios[i, i], abs=1e-9)
        assert one.posterior == pytest.approx(1 / (1 + np.exp(-one.llr)))
    windows = chain.enroll(np.concatenate([*left.values()]), np.repeat(np.arange(6), 2))  # sessions of their own
    together = registry.name_speakers(left, k=6)
    expected = identify_together(voice_ratios(chain, windows, enrolled, np.zeros(6)))
    for i, answer in enumerate(together.values()):
        posteriors = {c.name: c.posterior for c in answer.candidates}
        assert posteriors == pytest.approx(by_name(enrolled, expected.voices[i]), abs=1e-12)
    some_kinds = dict.fromkeys([*left][:2], "clean")  # those of the others are inferred, of the only kind there is
    assert registry.name_speakers(left, k=6, kind=some_kinds) == together


def test_a_calibration_is_applied(registry, chain, people, tmp_path):
    from duoplda.evaluation.calibration import AffineCalibration

    left = enrol(registry, people)
    plain = registry.verify("person 0", left["person 0"]).llr
    calibrated = Backend.from_plda(chain.plda_)
    calibrated.steps_, calibrated.n_features_in_ = chain.steps_, chain.n_features_in_
    calibrated.calibration_ = AffineCalibration.of(0.5, 1.0)
    with Registry.open(tmp_path / "voices.db", calibrated) as other:  # a calibration does not change what is enrolled
        assert other.verify("person 0", left["person 0"]).llr == pytest.approx(0.5 * plain + 1.0)


def test_two_speakers_of_a_file_are_not_one_voice(registry, people):
    left = enrol(registry, people)
    X = left.pop("person 3")[:1]
    speakers = {"A": X, "B": X + 0.01, **left}
    together = registry.name_speakers(speakers)
    assert sorted(str(a.name) for a in together.values()) != ["person 3", "person 3"]
    assert sum(a.candidates[0].posterior for a in together.values() if a.candidates[0].name == "person 3") <= 1
    apart = registry.name_speakers(speakers, once=False)
    assert [apart[label].name for label in "AB"] == ["person 3", "person 3"]


def test_the_room_of_a_file_is_not_taken_for_a_voice(tmp_path):
    """All speakers are moved towards a voice: enrolled ones are found, and the others are nobody."""
    rng = np.random.default_rng(1)
    V = 3 * rng.normal(size=(20, 20)) / 20**0.5
    plda = PLDA.from_parameters(np.full(20, 5.0), V, None, np.eye(20))
    centre = 5 + rng.normal(size=(6, 20)) @ V.T
    names = [f"person {i}" for i in range(6)]
    room = 0.6 * (centre[0] - 5)
    heard = {name: c + room + rng.normal(size=(4, 20)) for name, c in zip(names, centre, strict=True)}
    with Registry.create(tmp_path / "voices.db", plda) as registry:
        registry.add_all({name: centre[i] + rng.normal(size=(6, 20)) for i, name in enumerate(names[:3])})
        together = [answer.name for answer in registry.name_speakers(heard).values()]
        alone = [registry.identify(X, "call").name for X in heard.values()]
    assert together == [*names[:3], None, None, None]
    assert alone != together  # one by one, the room is a part of each voice


def test_what_recordings_of_a_file_count(registry, chain, people):
    """Windows that overlap count less; a file is one session if the sessions of the model were files."""
    left = enrol(registry, people)
    repeated = {name: np.repeat(X, 5, axis=0) for name, X in left.items()}
    once, discounted, counted = (
        registry.name_speakers(X, discount=discount) for X, discount in ((left, 1.0), (repeated, 0.2), (repeated, 1.0))
    )
    someone_else = lambda answers: np.array([answer.someone_else for answer in answers.values()])  # noqa: E731
    # The room is weighed by the mean session of both sides, which the copies change a little.
    assert np.abs(someone_else(discounted) - someone_else(once)).max() < 0.05
    assert np.abs(someone_else(counted) - someone_else(once)).max() > 0.1
    one_session = registry.name_speakers(left, session=dict.fromkeys(left, "file"))
    assert one_session != once
    chain.provenance_["sessions_are"] = "files"
    try:
        assert registry.name_speakers(left) == one_session
    finally:
        del chain.provenance_["sessions_are"]


def test_nobody_is_known(registry, people):
    answers = registry.name_speakers({"A": people[0][:2], "B": people[0][-1]})
    assert [(a.candidates, a.someone_else, a.name) for a in answers.values()] == [((), 1.0, None)] * 2


def test_priors_by_name(registry, people):
    left = enrol(registry, people)
    answer = registry.identify(left["person 2"], k=6, prior={"person 2": 0.0})
    posteriors = {c.name: c.posterior for c in answer.candidates}
    assert posteriors["person 2"] == 0.0
    assert registry.identify(left["person 2"], known=0.0).someone_else == 1.0
    with pytest.raises(DuopldaError, match="no voice 'nobody'"):
        registry.identify(left["person 2"], prior={"nobody": 0.1})


def test_an_empty_registry_knows_nobody(registry):
    answer = registry.identify(np.zeros(D))
    assert (answer.candidates, answer.someone_else, answer.decision, answer.name) == ((), 1.0, "nobody", None)


def test_costs_decide(registry, people):
    left = enrol(registry, people)
    P = registry.identify(left["person 0"]).candidates[0].posterior
    assert registry.identify(left["person 0"], costs=Costs(wrong_name=0.5 / (1 - P) + 1)).decision == "unsure"


def test_recordings_of_another_domain_are_told(registry, people):
    left = enrol(registry, people)
    assert registry.identify(left["person 0"]).domain_warning is None
    answer = registry.identify(left["person 0"] + 9 * left["person 0"].std())
    assert "not like those that the model was trained on" in answer.domain_warning


# -- changes


def test_without_a_session_it_is_as_if_it_had_never_been(registry, people, tmp_path, chain):
    X, speaker, session = people
    left = enrol(registry, people, sessions=4)
    assert all(len(rows) == 0 for rows in left.values())
    tests = [X[:2], X[20:22]]
    with Registry.create(tmp_path / "fewer.db", chain) as fewer:
        enrol(fewer, people, sessions=3)
        for i, who in enumerate(np.unique(speaker)):
            registry.remove_session(f"person {i}", str(np.unique(session[speaker == who])[3]))
        for ours, theirs in zip(ratios_of(registry, tests), ratios_of(fewer, tests), strict=True):
            assert ours == pytest.approx(theirs, rel=1e-12, abs=1e-12)


def test_merged_voices_are_one_enrolled_at_once(registry, people, tmp_path, chain):
    X = people[0]
    with Registry.create(tmp_path / "one.db", chain) as one:
        one.add("ann", X[:6], ["a", "a", "b", "b", "b", "c"])
        registry.add("ann", X[:3], ["a", "a", "b"])
        registry.add("anne", X[3:6], ["b", "b", "c"])  # a part of b, too
        voice = registry.merge("anne", "ann")
        assert [(s.name, s.n_recordings) for s in voice.sessions] == [("a", 2), ("b", 3), ("c", 1)]
        assert [v.name for v in registry.voices()] == ["ann"]
        for ours, theirs in zip(ratios_of(registry, [X[7:8]]), ratios_of(one, [X[7:8]]), strict=True):
            assert ours == pytest.approx(theirs, rel=1e-12, abs=1e-12)


def test_recordings_of_a_known_session_are_joined_only_if_told(registry, people, tmp_path, chain):
    X = people[0]
    registry.add("ann", X[:2], "monday")
    with pytest.raises(DuopldaError, match=r"1 of these sessions already: 'monday': .*`join`"):
        registry.add("ann", X[2:4], "monday")
    assert registry.voice("ann").n_recordings == 2
    registry.add("ann", X[2:4], "monday", join=True)
    with Registry.create(tmp_path / "one.db", chain) as one:
        one.add("ann", X[:4], "monday")
        assert ratios_of(registry, [X[4:5]])[0]["ann"] == pytest.approx(ratios_of(one, [X[4:5]])[0]["ann"], rel=1e-12)


def test_lists(registry, people):
    X = people[0]
    registry.add("Zoë", X[:3], by="ann")
    registry.add("bob", X[3:6], ["x", "x", "y"], by="ann")
    assert [(v.name, v.n_sessions, v.n_recordings) for v in registry.voices()] == [("Zoë", 3, 3), ("bob", 2, 3)]
    assert [v.name for v in registry.voices("O")] == ["Zoë", "bob"]
    assert [v.name for v in registry.voices("ZO")] == ["Zoë"]
    assert [(s.name, s.n_recordings, s.by) for s in registry.voice("Zoë").sessions] == [
        ("1", 1, "ann"),
        ("2", 1, "ann"),
        ("3", 1, "ann"),
    ]
    registry.add("bob", X[6], by="cid")
    assert [s.name for s in registry.voice("bob").sessions] == ["x", "y", "3"]
    voice = registry.voice("bob")
    assert voice.by == "cid"
    assert voice.created < voice.changed
    assert registry.rename("Zoe\u0308", "zoe").name == "zoe"  # composed and decomposed letters are the same


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda r, X: r.add("", X), "'' is not a name"),
        (lambda r, X: r.add(" ann", X), "without spaces at the ends"),
        (lambda r, X: r.add("a\x1b[31m", X), "do not print"),
        (lambda r, X: r.add("n" * 501, X), "500 characters"),
        (lambda r, X: r.add("x", X[:0]), "at least one"),
        (lambda r, X: r.add("x", X[:, :3]), "3 features"),
        (lambda r, X: r.add("x", np.where(np.arange(len(X))[:, None] == 1, np.nan, X)), "NaN"),
        (lambda r, X: r.add("x", [["a", "b"]]), "must be numbers"),
        (lambda r, X: r.add("x", X[:3], ["a", "b"]), "3 recordings and 2 names"),
        (lambda r, X: r.add("x", X[:3], kind=["a", "b"]), "3 recordings and 2 kinds"),
        (lambda r, X: r.rename("ann", "bob"), "there is a voice 'bob' already"),
        (lambda r, X: r.rename("cid", "x"), "no voice 'cid'"),
        (lambda r, X: r.merge("ann", "ann"), "are one voice"),
        (lambda r, X: r.remove(["ann", "cid"]), "no voice 'cid'"),
        (lambda r, X: r.remove_session("ann", "9"), "has no session '9': it has '1'"),
        (lambda r, X: r.remove_session("ann", "1"), "is the only session"),
        (lambda r, X: r.identify(X, k=0), "k=0"),
        (lambda r, X: r.identify(X, known=2), "known=2"),
        (lambda r, X: r.verify("cid", X), "no voice 'cid'"),
        (lambda r, X: r.name_speakers({}), "nobody to name"),
        (lambda r, X: r.name_speakers({"A": X}, discount=0.0), "discount=0.0 must be greater than 0"),
    ],
)
def test_mistakes_change_nothing(registry, people, call, words):
    X = people[0]
    registry.add("ann", X[:1])
    registry.add("bob", X[1:2])
    before = registry.voices()
    with pytest.raises(DuopldaError, match=words):
        call(registry, X[:4])
    assert registry.voices() == before


# -- the file


def test_another_model_is_refused(tmp_path, registry, people, chain):
    enrol(registry, people)
    with pytest.raises(DuopldaError, match=r"enrolled by another model.*embeddings were not kept"):
        Registry.open(tmp_path / "voices.db", trained(seed=1))
    shifted = Backend.from_plda(chain.plda_)  # the same PLDA after other steps is another model, too
    with pytest.raises(DuopldaError, match="another model"):
        Registry.open(tmp_path / "voices.db", shifted)
    with pytest.raises(DuopldaError, match="keeps statistics"):
        registry.migrate(trained(seed=1))
    with Registry.open(tmp_path / "voices.db") as bare:
        assert len(bare.voices()) == 6
        with pytest.raises(DuopldaError, match="without its model"):
            bare.identify(people[0][:1])


def test_migration_enrols_everybody_anew(tmp_path, people, chain):
    new = trained(seed=1)
    X = people[0]
    path = tmp_path / "kept.db"
    with (
        Registry.create(path, chain, keep="embeddings") as kept,
        Registry.open(path, chain) as reader,
        Registry.create(tmp_path / "new.db", new) as fresh,
    ):
        for registry in (kept, fresh):
            enrol(registry, people)
            registry.add("person 0", X[6:7].astype(np.float32), "0", join=True) if registry is kept else None
        fresh.add("person 0", X[6:7].astype(np.float32), "0", join=True)
        reader.identify(X[:1])
        kept.migrate(new)
        assert ratios_of(kept, [X[7:8]])[0] == pytest.approx(ratios_of(fresh, [X[7:8]])[0], rel=1e-12, abs=1e-12)
        with pytest.raises(DuopldaError, match="another model"):
            reader.identify(X[:1])
        with pytest.raises(DuopldaError, match="another model"):
            reader.add("late", X[:1])
    with Registry.open(path, new) as again:
        assert len(again) == 6


def bytes_there(folder, *needles):
    """Which of some bytes are in any file of a folder."""
    data = b"".join(path.read_bytes() for path in folder.iterdir())
    return [needle in data for needle in needles]


def test_nothing_is_left_of_who_was_removed(tmp_path, chain):
    """Among many, so that pages were split and merged before; names, numbers and vectors."""
    rng = np.random.default_rng(0)
    with Registry.create(tmp_path / "voices.db", chain, keep="embeddings") as registry:
        for i in range(40):
            registry.add(f"Somebody Number {i}", rng.normal(size=(3, D)), by=f"clerk {i}")
        row = rng.normal(size=(1, D))
        registry.add("Agatha Christie", row, "secret session", by="a clerk")
        needles = [b"Agatha Christie", b"secret session", b"a clerk", row.astype("<f8").tobytes()]
        raw = sqlite3.connect(tmp_path / "voices.db")
        query = "SELECT gamma, z FROM sessions WHERE name = 'secret session'"
        needles += raw.execute(query).fetchone()
        raw.close()
        assert all(bytes_there(tmp_path, *needles))
        for i in range(40, 50):
            registry.add(f"Somebody Number {i}", rng.normal(size=(3, D)))
        registry.remove("Agatha Christie", by="officer")
        assert not any(bytes_there(tmp_path, *needles))
        registry.add("Hercule Poirot", rng.normal(size=(2, D)), ["first day", "second day"])
        assert all(bytes_there(tmp_path, b"Hercule Poirot", b"second day"))
        registry.rename("Hercule Poirot", "x")
        registry.remove_session("x", "second day")
        assert bytes_there(tmp_path, b"Hercule Poirot", b"second day", b"first day") == [False, False, True]


def test_damaged_rows_are_named(tmp_path, registry, people, chain):
    enrol(registry, people)
    raw = sqlite3.connect(tmp_path / "voices.db")
    first, second = (row[0] for row in raw.execute("SELECT id FROM sessions ORDER BY id LIMIT 2"))
    raw.execute("UPDATE sessions SET gamma = substr(gamma, 1, 7) WHERE id = ?", [first])
    raw.execute("UPDATE sessions SET z = zeroblob(length(z)) WHERE id = ?", [second])
    raw.commit()
    raw.close()
    with Registry.open(tmp_path / "voices.db", chain) as other:
        for _ in range(2):
            with pytest.raises(DuopldaError, match=r"damaged rows: session .* of 'person 0' .7 bytes.*checksum"):
                other.identify(people[0][:1])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "no such registry"),
        (lambda path: path.write_text("not a database, whatever its name is"), "not a database"),
        (lambda path: sqlite3.connect(path).execute("CREATE TABLE a (b)").connection.close(), "not a registry"),
        (lambda path: path.write_bytes(b""), "not a registry"),
    ],
)
def test_what_is_no_registry(tmp_path, make, words, chain):
    make(tmp_path / "voices.db")
    with pytest.raises(DuopldaError, match=words):
        Registry.open(tmp_path / "voices.db", chain)


def test_creating_twice(tmp_path, registry, chain):
    with pytest.raises(DuopldaError, match="there is a registry already"):
        Registry.create(tmp_path / "voices.db", chain)
    with pytest.raises(DuopldaError, match="folder that exists"):
        Registry.create(tmp_path / "nowhere" / "voices.db", chain)
    for address, words in (("mysql://host/x", "not in 'mysql'"), ("://", "not a URL")):
        with pytest.raises(DuopldaError, match=words):
            Registry.create(address, chain)
    with pytest.raises(DuopldaError, match="keep='audio'"):
        Registry.create(tmp_path / "other.db", chain, keep="audio")


def test_a_device_that_is_not_there(tmp_path, registry, chain):
    for opened, name in ((Registry.open, "voices.db"), (Registry.create, "other.db")):
        with pytest.raises(DuopldaError, match="device 'nowhere'"):
            opened(tmp_path / name, chain, device="nowhere")
    assert not (tmp_path / "other.db").exists()


# -- several programs


def write(path, chain, first, count, acknowledged):
    """Enrol voices one by one, and say so of each."""
    pipe = acknowledged.detach()
    with Registry.open(path, chain) as registry:
        for i in range(first, first + count):
            registry.add(f"voice {i}", np.full(D, float(i)))
            registry.add("everybody", np.full(D, float(i)), f"session {i}")
            os.write(pipe, b"%d\n" % i)


def started(path, chain, first, count):
    reads, writes = os.pipe()
    arguments = (path, chain, first, count, reduction.DupFd(writes))
    process = PROCESSES.Process(target=write, args=arguments)
    process.start()
    os.close(writes)
    return process, reads


def test_changes_of_several_programs_are_all_there(tmp_path, registry, chain):
    registry.add("everybody", np.zeros(D), "session")
    running = [started(tmp_path / "voices.db", chain, 100 * w, 6) for w in range(3)]
    while any(process.is_alive() for process, _ in running):
        registry.identify(np.ones(D))
    for process, reads in running:
        process.join()
        assert process.exitcode == 0
        os.close(reads)
    assert len(registry) == 19
    assert registry.voice("everybody").n_sessions == 19
    assert len(registry.identify(np.ones(D), k=100).candidates) == 19  # read by the next question


def test_what_was_acknowledged_survives_a_kill(tmp_path, registry, chain):
    registry.add("everybody", np.zeros(D), "session")
    rng = np.random.default_rng(0)
    told = 0
    for k in range(6):
        process, reads = started(tmp_path / "voices.db", chain, 10000 * (k + 1), 5000)
        lines = os.read(reads, 64)  # it is at work
        time.sleep(rng.uniform(0, 0.1))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        while more := os.read(reads, 1 << 16):
            lines += more
        os.close(reads)
        numbers = [int(line) for line in lines.split(b"\n")[:-1]]
        told += len(numbers)
        names = {voice.name for voice in registry.voices()}
        sessions = {session.name for session in registry.voice("everybody").sessions}
        assert {f"voice {i}" for i in numbers} <= names
        assert {f"session {i}" for i in numbers} <= sessions
    assert told >= 6
    raw = sqlite3.connect(tmp_path / "voices.db")
    assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    raw.close()
    registry.identify(np.ones(D))  # all checksums hold
    registry.add("after", np.ones(D))


def fill(path, chain, result):
    """Enrol until no file may grow any more, as on a full disk; tell how many voices there are, and the error."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, 120_000))
    done = 0
    try:
        with Registry.open(path, chain) as registry:
            for i in range(10_000):
                registry.add(f"voice {i}", np.full(D, float(i)))
                done += 1
    except DuopldaError as error:
        result.send((done, str(error)))
    else:
        result.send((done, ""))


def test_a_full_disk_is_told_and_costs_nothing_that_was_there(tmp_path, registry, chain):
    reads, writes = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=fill, args=(tmp_path / "voices.db", chain, writes))
    process.start()
    writes.close()  # the process alone has it: if it ends without a word, nothing waits for one
    done, message = reads.recv()
    process.join()
    assert "nothing of this change was written" in message
    assert 0 < done == len(registry)
    registry.identify(np.ones(D))
    registry.add("after", np.ones(D))


def test_threads_share_a_registry(registry, people):
    left = enrol(registry, people)
    expected = registry.identify(left["person 0"]).candidates[0].llr
    wrong = []

    def ask():
        for _ in range(10):
            llr = next(c.llr for c in registry.identify(left["person 0"], k=50).candidates if c.name == "person 0")
            if abs(llr - expected) > 1e-9:
                wrong.append(llr)

    def change(t):
        for i in range(5):
            registry.add(f"thread {t} {i}", people[0][i])

    threads = [threading.Thread(target=ask) for _ in range(3)]
    threads += [threading.Thread(target=change, args=(t,)) for t in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(registry) == 16


def test_removals_of_others_are_seen(tmp_path, registry, people, chain):
    left = enrol(registry, people)
    with Registry.open(tmp_path / "voices.db", chain) as other:
        assert other.identify(left["person 1"], k=9).candidates[0].name == "person 1"
        registry.remove("person 1")
        registry.rename("person 2", "person two")
        registry.merge("person 3", "person 4")
        names = {c.name for c in other.identify(left["person 1"], k=9).candidates}
        assert names == {"person 0", "person two", "person 4", "person 5"}
        for name in ("person 1", "person 2"):
            with pytest.raises(DuopldaError, match=f"no voice '{name}'"):
                other.verify(name, left[name])


def snapshot_blocks(path):
    """How many blocks the snapshot of a registry has."""
    raw = sqlite3.connect(path)
    (n,) = raw.execute("SELECT count(*) FROM snapshot").fetchone()
    raw.close()
    return n


def test_a_start_from_a_snapshot_is_as_from_sessions(tmp_path, registry, people, chain, monkeypatch):
    """Whatever has changed since it was made; and blocks with what was removed go with it."""
    from duoplda.voices import rows as module

    monkeypatch.setattr(module, "VOICES_OF_A_QUERY", 2)  # voices of a block
    X = people[0]
    path = tmp_path / "voices.db"
    left = enrol(registry, people)
    registry.add("person 0", X[:3], ["a", "a", "b"])

    def same(blocks):
        assert snapshot_blocks(path) == blocks
        with Registry.open(path, chain) as again:
            for ours, theirs in zip(ratios_of(again, left.values()), ratios_of(registry, left.values()), strict=True):
                assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-9)
                assert len(ours) == len(registry)

    registry.snapshot()
    same(3)
    registry.add("person 3", X[:2])
    registry.add("person 9", X[4:5])
    registry.rename("person 5", "person five")
    same(3)
    registry.remove_session("person 0", "b")
    same(2)
    registry.remove("person 4")
    same(1)
    registry.snapshot()
    same(3)
    registry.merge("person 9", "person 1")
    same(2)
    raw = sqlite3.connect(path)
    raw.execute("UPDATE snapshot SET gamma = zeroblob(length(gamma))")
    raw.commit()
    raw.close()
    with Registry.open(path, chain) as again, pytest.raises(DuopldaError, match=r"the snapshot .*make a new one"):
        again.identify(X[:1])
    registry.snapshot()
    same(3)


def test_a_snapshot_keeps_nothing_of_who_was_removed_or_of_another_model(tmp_path, people, chain):
    X = people[0]
    with Registry.create(tmp_path / "voices.db", chain, keep="embeddings") as registry:
        enrol(registry, people)
        registry.add("Agatha Christie", X[:1])
        registry.snapshot()
        raw = sqlite3.connect(tmp_path / "voices.db")
        (gamma,) = raw.execute("SELECT gamma FROM sessions ORDER BY id DESC LIMIT 1").fetchone()
        raw.close()
        assert bytes_there(tmp_path, gamma) == [True]
        registry.remove("Agatha Christie")
        assert bytes_there(tmp_path, gamma) == [False]
        registry.snapshot()
        new = trained(seed=1)
        registry.migrate(new)
        assert snapshot_blocks(tmp_path / "voices.db") == 0
        expected = ratios_of(registry, [X[:1]])
    with Registry.open(tmp_path / "voices.db", new) as again:
        assert ratios_of(again, [X[:1]])[0] == pytest.approx(expected[0], rel=1e-9)


@pytest.mark.parametrize("keep", ["statistics", "embeddings"])
def test_an_export_is_the_same_registry_elsewhere(tmp_path, people, chain, keep):
    X = people[0]
    with Registry.create(tmp_path / "voices.db", chain, keep, by="ann") as registry:
        enrol(registry, people)
        registry.add("person 0", X[6:7].astype(np.float32), "0", join=False)
        registry.remove("person 1")
        registry.export(tmp_path / "export.safetensors")
        with Registry.import_(tmp_path / "export.safetensors", tmp_path / "other.db", chain) as other:
            assert other.keep == keep
            assert other.voices() == registry.voices()
            assert other.voice("person 0") == registry.voice("person 0")
            assert ratios_of(other, [X[7:8]]) == ratios_of(registry, [X[7:8]])
            other.add("person 9", X[:1])
            assert len(other) == len(registry) + 1
            other.export(tmp_path / "again.safetensors")
            if keep == "embeddings":
                new = trained(seed=1)
                other.migrate(new)
        with pytest.raises(DuopldaError, match="exists"):
            registry.export(tmp_path / "export.safetensors")
    with pytest.raises(DuopldaError, match="another model"):
        Registry.import_(tmp_path / "export.safetensors", tmp_path / "third.db", trained(seed=1))
    data = (tmp_path / "export.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(data[:-8])
    (tmp_path / "renamed.safetensors").write_bytes(data.replace(b"person 3", b"person 2"))
    for name in ("cut", "renamed"):
        with pytest.raises(DuopldaError, match="damaged"):
            Registry.import_(tmp_path / f"{name}.safetensors", tmp_path / "third.db", chain)
    assert not (tmp_path / "third.db").exists()
