"""`duoplda link`: local speakers of several files get names that hold for all of them."""

import json

import numpy as np
import pytest

from cli_cases import done, duoplda, lines
from duoplda import PLDA, Backend
from duoplda.datasets import make_recordings
from duoplda.diarization import Segments, Turns, read_rttm, write_rttm
from duoplda.diarization.local_speakers import speakers_by_overlap
from duoplda.estimators.clustering import unscaled
from duoplda.io import Coded, read_partition, write_embeddings, write_map

FILES, SPEAKERS, SECONDS = 4, 5, 2.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four files in which three of five people speak, named anew in each; a segment of two seconds is a recording.

    In the last file one person has two names.
    """
    at = tmp_path_factory.mktemp("link")
    X, speaker, session, _ = make_recordings(40, 4, 3, n_dimensions=40, seed=1)
    own = np.isin(speaker, np.unique(speaker)[:SPEAKERS])
    Backend(plda=PLDA(20, 30, tol=1e-4)).fit(X[~own], speaker[~own], session=session[~own]).save(at / "model")
    X, speaker, session = X[own], speaker[own], session[own]
    people, n_of = np.unique(speaker), {}
    cuts, turns, labels, vectors = [], [], {}, []
    for f in range(FILES):
        for k in range(SPEAKERS):
            if (k + f) % SPEAKERS > 2 and f < 3:
                continue
            rows = np.flatnonzero((speaker == people[k]) & (session == np.unique(session[speaker == people[k]])[f]))
            for i, row in enumerate(rows):
                name = "extra" if f == 3 and k == 0 and i > 0 else f"S{(7 * k + f) % 5}"
                start = SECONDS * n_of.setdefault(f, 0)
                n_of[f] += 1
                cuts.append((f"f{f}-{n_of[f]:03}", f"f{f}", start, start + SECONDS))
                turns.append((f"f{f}", start + 0.1, SECONDS - 0.2, name))
                labels[cuts[-1][0]] = (f"f{f}", name, str(people[k]))
                vectors.append(X[row])
    write_embeddings(at / "x.npz", list(labels), np.array(vectors))
    (at / "segments").write_text("".join(f"{i} {f} {a:.2f} {b:.2f}\n" for i, f, a, b in cuts))
    for f in range(FILES):
        write_rttm(at / f"f{f}.rttm", Turns.of(*zip(*[t for t in turns if t[0] == f"f{f}"], strict=True)))
    write_map(at / "local", labels, [f"{file}-{name}" for file, name, _ in labels.values()])
    write_map(at / "names", labels, [name for _, name, _ in labels.values()])
    write_map(at / "truth", labels, [person for *_, person in labels.values()])
    return at, labels


def linking(at, out, *more, local=None, rttm=range(FILES)):
    files = ["--model", at / "model", "--embeddings", at / "x.npz"]
    if local is not None:
        return ["link", *files, "--local", at / local, "--out", out, *more]
    turns = [part for f in rttm for part in ("--rttm", at / f"f{f}.rttm")]
    return ["link", *files, "--segments", at / "segments", *turns, "--out", out, *more]


def one_to_one(pairs):
    """Whether two names always go together."""
    pairs = {*pairs}
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def test_turns_get_global_names(tmp_path, folder):
    at, labels = folder
    said = done(*linking(at, tmp_path / "all.rttm")).stderr
    person = {(file, name): who for file, name, who in labels.values()}
    found, given = read_rttm(tmp_path / "all.rttm"), [read_rttm(at / f"f{f}.rttm") for f in range(FILES)]
    assert np.allclose(found.start, np.concatenate([t.start for t in given]))
    assert np.allclose(found.duration, np.concatenate([t.duration for t in given]))
    local = np.concatenate([t.speaker.values for t in given])
    files = found.file.values.tolist()
    assert files == np.concatenate([t.file.values for t in given]).tolist()
    truth = [person[key] for key in zip(files, local.tolist(), strict=True)]
    assert one_to_one(zip(found.speaker.values.tolist(), truth, strict=True))
    assert f"{len(labels)} segments, {len(person)} local speakers, {SPEAKERS} speakers: {tmp_path / 'all.rttm'}" in said


@pytest.mark.parametrize("how", ["rttm", "local", "names"])
def test_recordings_get_global_names(tmp_path, folder, how):
    """By turns, by a list with names that differ between files, and by one with names that count within a file."""
    at, labels = folder
    more = ["--segments", at / "segments"] if how == "names" else []
    out = tmp_path / "utt2spk.tsv"
    done(*linking(at, out, *more, local=None if how == "rttm" else how))
    found = read_partition(out)
    assert one_to_one((found[i], labels[i][2]) for i in labels)
    assert len(found) == len(labels)
    files = ["--clusters", out, "--reference", at / "truth", "--bootstrap", 0, "--json"]
    assert json.loads(done("evaluate", *files).stdout)["b_cubed_f"] == 1
    assert lines(out)[0] == ["recording", "cluster", "local"]


@pytest.mark.parametrize(("are", "discount"), [("sessions", 1.0), ("recordings", 1.0), ("sessions", 0.4)])
def test_it_is_what_the_library_finds(tmp_path, folder, are, discount):
    at, labels = folder
    more = ["--segments-are", are, "--prior", 0.3, "--discount", discount, "--json"]
    shown = done(*linking(at, tmp_path / "o", *more)).stdout
    chain = unscaled(Backend.load(at / "model"))
    with np.load(at / "x.npz") as data:
        ids, X = data["ids"].tolist(), data["embeddings"]
    sides = [" ".join(labels[i][:2]) for i in ids]
    found = chain.cluster(chain.enroll(X, sides, sides if are == "recordings" else None), prior=0.3, discount=discount)
    name = dict(zip(found.ids.tolist(), found.names[found.labels].tolist(), strict=True))
    assert read_partition(tmp_path / "o") == {i: name[side] for i, side in zip(ids, sides, strict=True)}
    assert json.loads(shown)["log_posterior"] == pytest.approx(found.log_posterior, rel=1e-9)


def test_what_segments_are_makes_a_difference(tmp_path, folder):
    at, labels = folder
    write_map(tmp_path / "one", labels, ["1"] * len(labels))
    values = []
    for k, more in enumerate([[], ["--segments-are", "recordings"], ["--sessions", tmp_path / "one"]]):
        shown = done(*linking(at, tmp_path / f"o{k}", "--json", *more)).stdout
        values.append(json.loads(shown)["log_posterior"])
    assert values[0] != pytest.approx(values[1])
    assert values[1] == pytest.approx(values[2], rel=1e-12)  # a session counts within a local speaker


def test_speakers_of_one_file_may_be_kept_apart(tmp_path, folder):
    at, labels = folder
    pair = [next(i for i in labels if labels[i][:2] == ("f3", name)) for name in ("extra", labels[first_of(labels)][1])]
    assert labels[pair[0]][2] == labels[pair[1]][2]
    done(*linking(at, tmp_path / "a"))
    done(*linking(at, tmp_path / "b", "--cannot-link-within"))
    free, apart = read_partition(tmp_path / "a"), read_partition(tmp_path / "b")
    assert free[pair[0]] == free[pair[1]]
    locals_of = {}
    for i, (file, name, _) in labels.items():
        locals_of.setdefault(file, {}).setdefault(name, apart[i])
    for names in locals_of.values():
        assert len({*names.values()}) == len(names)


def first_of(labels):
    """A recording of the first person in the last file, under the usual name."""
    person = labels[next(iter(labels))][2]
    return next(i for i, (file, name, who) in labels.items() if file == "f3" and who == person and name != "extra")


def test_known_speakers_keep_their_names(tmp_path, folder):
    at, labels = folder
    first = [i for i in labels if i.startswith("f0")]
    write_map(tmp_path / "enroll", [f"voice-{labels[i][2]}" for i in first], first)
    files = ["--model", at / "model", "--embeddings", at / "x.npz"]
    done("enroll", *files, "--enroll", tmp_path / "enroll", "--out", tmp_path / "voices", "--quiet")
    done(*linking(at, tmp_path / "o", "--speakers-known", tmp_path / "voices", rttm=[1, 2, 3]))
    known = {labels[i][2] for i in first}
    for i, name in read_partition(tmp_path / "o").items():
        assert name == f"voice-{labels[i][2]}" if labels[i][2] in known else name.startswith("spk")


def test_segments_that_are_missing(tmp_path, folder):
    """Segments without an embedding are an error, or are left out; a speaker without any keeps a name of its own."""
    at, labels = folder
    gone = [i for i in labels if labels[i][:2] == ("f3", "extra")]
    with np.load(at / "x.npz") as data:
        keep = ~np.isin(data["ids"], gone)
        write_embeddings(tmp_path / "x.npz", data["ids"][keep], data["embeddings"][keep])
    given = linking(at, tmp_path / "o.rttm")
    given[given.index(at / "x.npz")] = tmp_path / "x.npz"
    failed = duoplda(*given)
    assert failed.exit_code == 3
    assert f"{len(gone)} segments have no embedding: {gone[0]}" in failed.stderr
    assert not (tmp_path / "o.rttm").exists()
    said = done(*given, "--allow-missing").stderr
    assert "1 local speakers have no segment, and get names of their own: 'f3_extra'" in said
    assert "f3_extra" in read_rttm(tmp_path / "o.rttm").speaker.names.tolist()
    given[given.index(tmp_path / "o.rttm")] = tmp_path / "o"
    done(*given, "--allow-missing")
    assert {*read_partition(tmp_path / "o")} == {*labels} - {*gone}


def test_segments_without_a_turn_are_not_used(tmp_path, folder):
    at, labels = folder
    said = done(*linking(at, tmp_path / "o", rttm=[0, 1])).stderr
    others = sum(file in ("f2", "f3") for file, *_ in labels.values())
    assert f"{others} segments overlap no turn, and are left out" in said
    assert {*read_partition(tmp_path / "o")} == {i for i in labels if labels[i][0] in ("f0", "f1")}


def test_segments_that_overlap_are_a_warning(tmp_path, folder):
    """Each second but the first and the last few of a file is in three segments."""
    at, _ = folder
    wider = [(i, f, float(a), float(a) + 3 * SECONDS) for i, f, a, _ in lines(at / "segments")]
    (tmp_path / "segments").write_text("".join(f"{i} {f} {a:.2f} {b:.2f}\n" for i, f, a, b in wider))
    given = linking(at, tmp_path / "o")
    given[given.index(at / "segments")] = tmp_path / "segments"
    seconds = {f: max(b for _, g, _, b in wider if g == f) for _, f, _, _ in wider}
    often = 3 * SECONDS * len(wider) / sum(seconds.values())
    assert f"a second of speech is in {often:.1f} segments" in done(*given, "--quiet").stderr
    assert done(*given, "--quiet", "--force", "--discount", 0.4).stderr == ""
    assert done(*linking(at, tmp_path / "p", "--quiet")).stderr == ""


@pytest.mark.parametrize("seed", range(20))
def test_a_segment_goes_to_the_speaker_who_speaks_in_it_longest(seed):
    """Against sums over a grid of hundredths of a second, on which all times lie; turns of a speaker may overlap."""
    rng = np.random.default_rng(seed)
    files, names = np.array(["f", "g"]), np.array(["a", "b", "c"])
    start, length = rng.integers(0, 500, 12), rng.integers(0, 200, 12)
    of, who = rng.integers(0, 2, 12), rng.integers(0, 3, 12)
    turns = Turns.of(files[of], start / 100, length / 100, names[who])
    begin, size = rng.integers(0, 700, 30), rng.integers(1, 150, 30)
    at = rng.integers(0, 2, 30)
    ids = np.array([f"u{k}" for k in range(30)])
    segments = Segments(ids, Coded.of(files[at]), begin / 100, (begin + size) / 100)
    spoken = np.zeros((2, 3, 1000), bool)
    for f, s, a, n in zip(of, who, start, length, strict=True):
        spoken[f, s, a : a + n] = True
    found = speakers_by_overlap(segments, turns)
    seen = 0
    for k, (f, a, n) in enumerate(zip(at, begin, size, strict=True)):
        ticks = spoken[f, :, a : a + n].sum(axis=1)
        if not ticks.any():
            assert ids[k] not in found
        elif (ticks == ticks.max()).sum() == 1:
            assert found[ids[k]] == (files[f], names[ticks.argmax()])
            seen += 1
    assert seen > 5


def test_turns_of_a_file_in_two_lists_are_refused(tmp_path, folder):
    at, _ = folder
    failed = duoplda(*linking(at, tmp_path / "o.rttm", rttm=[0, 1, 0]))
    assert failed.exit_code == 1
    assert "'f0'" in failed.stderr
    assert failed.stderr.count("\n") == 1


def test_files_that_do_not_agree(tmp_path, folder):
    at, _ = folder
    (tmp_path / "segments").write_text("u other 0 1\n")
    given = linking(at, tmp_path / "o")
    given[given.index(at / "segments")] = tmp_path / "segments"
    failed = duoplda(*given)
    assert failed.exit_code == 1
    assert "do the names of the files agree?" in failed.stderr
    failed = duoplda(*linking(at, tmp_path / "o", "--segments", tmp_path / "segments", local="names"))
    assert failed.exit_code == 3
    assert "are not among the segments" in failed.stderr
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--out", "o"], "--rttm with --segments, or --local"),
        (["--out", "o", "--rttm", "r"], "--rttm with --segments, or --local"),
        (["--out", "o", "--rttm", "r", "--segments", "s", "--local", "u"], "--rttm with --segments, or --local"),
        (["--out", "o.rttm", "--local", "u"], "give --rttm"),
        (["--out", "o", "--local", "u", "--cannot-link-within"], "needs --segments"),
    ],
)
def test_options_that_do_not_go_together(tmp_path, monkeypatch, more, message):
    monkeypatch.chdir(tmp_path)
    failed = duoplda("link", "--model", "m", "--embeddings", "x", *more)
    assert failed.exit_code == 2
    assert message in failed.stderr
    assert failed.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("victim", ["f1.rttm", "segments", "model", "x.npz"])
def test_the_output_is_none_of_the_inputs(folder, victim):
    at, _ = folder
    before = (at / victim).read_bytes()
    failed = duoplda(*linking(at, at / victim, "--force"))
    assert failed.exit_code == 1
    assert "also read by this command" in failed.stderr
    assert (at / victim).read_bytes() == before


def test_files_are_those_that_the_tests_think(folder):
    """Names mean other people in other files, and in the last file one person has two."""
    _, labels = folder
    of = {}
    for _, name, who in labels.values():
        of.setdefault(name, set()).add(who)
    assert max(map(len, of.values())) > 1
    last = {labels[i] for i in labels if labels[i][0] == "f3"}
    assert len(last) == SPEAKERS + 1 == len({who for *_, who in last}) + 1
