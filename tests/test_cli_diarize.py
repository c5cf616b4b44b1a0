"""`duoplda diarize`: VBx's own example, drawn files from segments to RTTM, and what is wrong with the files."""

import json
from pathlib import Path

import numpy as np
import pytest

from cli_cases import done, duoplda, lines
from duoplda import PLDA, Backend
from duoplda.diarization import der, diarize, read_rttm, read_segments
from duoplda.io import read_embeddings, write_embeddings

SHARED = Path(__file__).parents[2] / "shared" / "data" / "diarization"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not here")
CAST = {"mon": [0, 1], "tue": [1, 2, 0], "wed": [3, 2]}  # who is in which file


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three drawn files with four people, each segment a session, and the model that they were drawn from."""
    at, rng, d = tmp_path_factory.mktemp("diarize"), np.random.default_rng(0), 16
    Q = np.linalg.qr(rng.normal(size=(d, d)))[0]
    V, U = 3 * Q[:, :8], 2 * Q[:, 8:]
    Backend.from_plda(PLDA.from_parameters(np.zeros(d), V, U, np.eye(d))).save(at / "model.safetensors")
    y, ids, X, table, truth = rng.normal(size=(4, 8)), [], [], [], []
    for name, cast in CAST.items():
        for clock, k in enumerate(np.tile(cast, 4).repeat(6)):
            ids.append(f"{name}-{clock:03}")
            X.append(V @ y[k] + U @ rng.normal(size=8) + rng.normal(size=d))
            table.append(f"{ids[-1]} {name} {clock} {clock + 1}\n")
            truth.append(f"SPEAKER {name} 1 {clock} 1 <NA> <NA> person{k} <NA> <NA>\n")
    order = rng.permutation(len(ids))
    write_embeddings(at / "x.npz", np.array(ids)[order], np.array(X)[order])
    (at / "segments").write_text("".join(table))
    (at / "truth.rttm").write_text("".join(truth))
    return at


def given(folder, out, **changes):
    files = {"model": "model.safetensors", "embeddings": "x.npz", "segments": "segments"} | changes
    return ["diarize", *(x for name, file in files.items() for x in (f"--{name}", folder / file)), "--out", out]


TRUE = ["--Fa", 1, "--Fb", 1]  # the scales of independent segments


def test_each_file_has_its_speakers(folder, tmp_path):
    said = done(*given(folder, tmp_path / "x.rttm"), *TRUE)
    found, truth = read_rttm(tmp_path / "x.rttm"), read_rttm(folder / "truth.rttm")
    assert der(found, truth).rate < 0.02
    assert set(found.speaker.values) == {f"{f}-{k + 1}" for f, cast in CAST.items() for k in range(len(cast))}
    assert "3 files, 7 speakers (each of one file)" in said.stderr
    assert "segments are taken for sessions" in said.stderr
    said = done(*given(folder, tmp_path / "x.rttm"), *TRUE, "--force", "--segments-are", "sessions")
    assert "are taken for" not in said.stderr


def test_people_are_linked_across_files(folder, tmp_path):
    done(*given(folder, tmp_path / "x.rttm"), *TRUE, "--link", "--quiet")
    found, truth = read_rttm(tmp_path / "x.rttm"), read_rttm(folder / "truth.rttm")
    assert set(found.speaker.values) == {"spk1", "spk2", "spk3", "spk4"}
    pairs = set()  # of a name that was found and a true one, wherever a true turn begins
    for f, t, who in zip(truth.file.values, truth.start, truth.speaker.values, strict=True):
        at = (found.file.values == f) & (found.start <= t) & (found.end > t)
        pairs.add((str(found.speaker.values[at][0]), str(who)))
    assert len(pairs) == 4
    shown = done(*given(folder, tmp_path / "y.rttm"), *TRUE, "--link", "--cannot-link-within", "--json").stdout
    assert json.loads(shown)["speakers"] == 4


def test_the_command_is_the_library(folder, tmp_path):
    options = {
        "refine": "gmm",
        "discount": 0.5,
        "prior": 0.1,
        "min_speakers": 3,
        "segments_are": "recordings",
        "Fa": 0.5,
    }
    typed = ["--no-hmm", "--discount", 0.5, "--prior", 0.1, "--min-speakers", 3, "--segments-are", "recordings"]
    shown = done(*given(folder, tmp_path / "x.rttm"), *typed, "--Fa", 0.5, "--dimensions", 9, "--json").stdout
    segments, (ids, X) = read_segments(folder / "segments"), read_embeddings(folder / "x.npz").load()
    rows = [ids.tolist().index(i) for i in segments.ids]
    expected = diarize(Backend.load(folder / "model.safetensors"), X[rows], segments, n_dimensions=9, **options)
    found = read_rttm(tmp_path / "x.rttm")
    for name in ("file", "start", "end", "speaker"):
        assert np.asarray(getattr(found, name)).tolist() == np.asarray(getattr(expected, name)).tolist()
    shown = json.loads(shown)
    assert shown["turns"] == len(expected)
    assert list(shown["files"]) == list(CAST)
    assert all(f["speakers"] >= 3 for f in shown["files"].values())
    assert sum(f["seconds"] for f in shown["files"].values()) == len(segments)


@pytest.mark.parametrize("how", [[], ["--no-hmm"], ["--no-refine"], ["--start", "vbx"], ["--start", "pyannote"]])
def test_the_number_of_speakers(folder, tmp_path, how):
    shown = json.loads(done(*given(folder, tmp_path / "x.rttm"), *how, "--speakers", 3, "--json").stdout)
    assert [f["speakers"] for f in shown["files"].values()] == [3, 3, 3]
    shown = done(*given(folder, tmp_path / "y.rttm"), *how, "--max-speakers", 1, "--json").stdout
    assert [f["speakers"] for f in json.loads(shown)["files"].values()] == [1, 1, 1]


def test_the_number_of_speakers_has_a_posterior(folder, tmp_path):
    shown = json.loads(done(*given(folder, tmp_path / "x.rttm"), *TRUE, "--json").stdout)
    for file in shown["files"].values():
        numbers = file["number_posterior"]
        assert sum(numbers.values()) == pytest.approx(1)
        assert max(numbers, key=numbers.get) == str(file["speakers"])


def test_missing_ids(folder, tmp_path):
    table = (folder / "segments").read_text().splitlines(keepends=True)
    (tmp_path / "fewer").write_text("".join(table[1:]))
    (tmp_path / "more").write_text("".join([*table, "late mon 90 91\n"]))
    for name, what, strict in (
        ("fewer", "1 embeddings have no segment: mon-000", ["--strict"]),
        ("more", "1 segments have no embedding: late", []),
    ):
        failed = duoplda(*given(folder, tmp_path / "x.rttm", segments=tmp_path / name), *strict)
        assert failed.exit_code == 3
        assert what in failed.stderr
        assert not (tmp_path / "x.rttm").exists()
        said = done(
            *given(folder, tmp_path / name, segments=tmp_path / name)[:-1], tmp_path / f"{name}.rttm", "--allow-missing"
        )
        left_out = what.partition(": ")[0] + ", and are left out" if strict else what.replace(": ", ", left out: ")
        assert left_out in said.stderr
        assert len(lines(tmp_path / f"{name}.rttm"))


def test_wrong_files(folder, tmp_path):
    ids, X = read_embeddings(folder / "x.npz").load()
    bad = X.copy()
    bad[3, 0] = np.nan
    write_embeddings(tmp_path / "nan.npz", ids, bad)
    write_embeddings(tmp_path / "short.npz", ids, X[:, :9])
    (tmp_path / "empty").write_text("")
    (tmp_path / "backwards").write_text("a mon 5 4\n")
    (tmp_path / "within").write_text((folder / "segments").read_text().replace("mon-003 mon 3 4", "mon-003 mon 3 9"))
    cases = [
        ({"embeddings": tmp_path / "nan.npz"}, f"NaN or infinity in them: '{ids[3]}'"),
        ({"embeddings": tmp_path / "short.npz"}, "9"),
        ({"segments": tmp_path / "empty"}, "is empty"),
        ({"segments": tmp_path / "backwards"}, "line 1"),
        ({"segments": tmp_path / "within"}, "file mon: segments lie within others: 'mon-004'"),
        ({"segments": tmp_path / "absent"}, "absent"),
        ({"model": folder / "segments"}, "is no model"),
    ]
    for change, message in cases:
        failed = duoplda(*given(folder, tmp_path / "x.rttm", **change))
        assert failed.exit_code == 1, change
        assert message in failed.stderr
        assert "Traceback" not in failed.output
        assert not (tmp_path / "x.rttm").exists()
    for out in ("segments", "x.npz", "model.safetensors"):  # not even with --force
        before = (folder / out).read_bytes()
        assert duoplda(*given(folder, folder / out), "--force").exit_code == 1
        assert (folder / out).read_bytes() == before
    done(*given(folder, tmp_path / "x.rttm"))
    assert duoplda(*given(folder, tmp_path / "x.rttm")).exit_code == 1


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--start", "kmeans"], 2),
        (["--segments-are", "files"], 2),
        (["--no-hmm", "--no-refine"], 2),
        (["--speakers", 2, "--max-speakers", 3], 2),
        (["--speakers", 0], 2),
        (["--cannot-link-within"], 2),
        (["--discount", 1.5], 1),
        (["--loop", 2], 1),
        (["--Fb", 0], 1),
        (["--prior", 0], 1),
        (["--link", "--link-prior", 1], 1),
        (["--min-speakers", 3, "--max-speakers", 2], 1),
        (["--speakers", 1000], 1),
    ],
)
def test_wrong_options(folder, tmp_path, options, code):
    failed = duoplda(*given(folder, tmp_path / "x.rttm"), *options)
    assert failed.exit_code == code, failed.output
    assert failed.stderr.startswith(("duoplda: error: ", "Usage", "segments are taken"))
    assert "Traceback" not in failed.output
    assert not (tmp_path / "x.rttm").exists()


def test_help_ends_in_an_example():
    text = done("diarize", "--help").stdout
    assert "--segments x.seg --out x.rttm" in text.split("Example:")[1]


# -- what VBx computed


@needs_shared
def test_vbx_gives_its_fifty_turns(tmp_path):
    at, out = SHARED / "vbx", tmp_path / "x.rttm"
    files = ["--model", at / "plda", "--transform", at / "transform.h5"]
    files += ["--embeddings", at / "ES2005a.ark", "--segments", at / "ES2005a.seg", "--out", out]
    done("diarize", *files, "--start", "vbx", "--Fa", 0.3, "--Fb", 17, "--loop", 0.99)
    found, theirs = read_rttm(out), read_rttm(at / "ES2005a.vbx-output.rttm")
    assert len(found) == len(theirs) == 50
    np.testing.assert_allclose(found.start, theirs.start, atol=2e-6)
    np.testing.assert_allclose(found.duration, theirs.duration, atol=2e-6)
    assert len(set(zip(found.speaker.values, theirs.speaker.values, strict=True))) == len(theirs.speaker.names)
    assert len(set(found.speaker.values)) == len(theirs.speaker.names)
    shown = done(
        "evaluate",
        "--clusters",
        out,
        "--reference",
        at / "ES2005a.reference.rttm",
        "--collar",
        0.25,
        "--skip-overlap",
        "--json",
    ).stdout
    assert 7.05 <= round(100 * json.loads(shown)["der"], 2) <= 7.06


def arrays(path):
    with np.load(path) as file:
        return dict(file)


@needs_shared
@pytest.mark.parametrize("name", ["01_dialogue", "02_pyannote_sample", "05_four_speaker"])
def test_pyannote_gives_its_clusters(name, tmp_path):
    """The embeddings that pyannote clustered, as segments one after another: the speakers that it found."""
    at = SHARED / "pyannote" / name
    stages, state, raw = (arrays(at / f"{name}.npz") for name in ("plda_embeddings", "vbx_state", "raw_embeddings"))
    X = raw["embeddings"][stages["train_chunk_idx"], stages["train_speaker_idx"]]
    ids = np.array([f"s{i:05}" for i in range(len(X))])
    write_embeddings(tmp_path / "x.npz", ids, X)
    (tmp_path / "segments").write_text("".join(f"{s} f {2 * i} {2 * i + 1}\n" for i, s in enumerate(ids)))
    pair = ["--model", SHARED / "pyannote" / "plda.npz", "--transform", SHARED / "pyannote" / "xvec_transform.npz"]
    data = ["--embeddings", tmp_path / "x.npz", "--segments", tmp_path / "segments", "--out", tmp_path / "x.rttm"]
    how = ["--start", "pyannote", "--no-hmm", "--Fa", float(state["fa"]), "--Fb", float(state["fb"])]
    done("diarize", *pair, *data, *how)
    found, theirs = read_rttm(tmp_path / "x.rttm").speaker.values, state["q_final"].argmax(axis=1)
    assert len(found) == len(theirs)
    assert len(set(zip(found, theirs, strict=True))) == len(set(found)) == len(set(theirs))


# -- known voices


@pytest.fixture(scope="module")
def voices(folder, tmp_path_factory):
    """Voices of two of the four people, from sessions of their own."""
    rng = np.random.default_rng(7)
    chain = Backend.load(folder / "model.safetensors")
    plda, y = chain.plda_, np.random.default_rng(0)
    np.linalg.qr(y.normal(size=(16, 16)))
    y = y.normal(size=(4, 8))
    V, U = np.asarray(plda.speaker_loadings_), np.asarray(plda.session_loadings_)
    X = np.concatenate([V @ y[k] + rng.normal(size=(6, 8)) @ U.T + rng.normal(size=(6, 16)) for k in (0, 2)])
    path = tmp_path_factory.mktemp("voices") / "voices.safetensors"
    chain.enroll(X, np.repeat(["person0", "person2"], 6)).save(path)
    return path


@pytest.mark.parametrize("link", [[], ["--link"]])
def test_known_voices_have_their_names(folder, voices, tmp_path, link):
    typed = [*TRUE, *link, "--speakers-known", voices, "--confidence", tmp_path / "sure.tsv"]
    shown = json.loads(done(*given(folder, tmp_path / "x.rttm"), *typed, "--json").stdout)
    assert shown["known"] == 2
    found, truth = read_rttm(tmp_path / "x.rttm"), read_rttm(folder / "truth.rttm")
    for f, t, who in zip(truth.file.values, truth.start, truth.speaker.values, strict=True):
        (name,) = found.speaker.values[(found.file.values == f) & (found.start <= t) & (found.end > t)]
        assert name == who if who in ("person0", "person2") else name.startswith(("spk",) if link else f)
    table = lines(tmp_path / "sure.tsv")
    assert table[0][-2:] == ["voice", "voice_posterior"]
    assert len(table) == len(found) + 1
    turn = shown["files"]["mon"]["confidence"][0]
    assert turn["speaker"] == turn["voice"] == "person0"
    assert turn["voice_posterior"] > 0.5


def test_naming_and_linking_agree(folder, voices, tmp_path):
    """`duoplda link` of the turns of each file gives the names that `diarize --link` gives."""
    known = ["--speakers-known", voices]
    done(*given(folder, tmp_path / "local.rttm"), *TRUE)
    done(*given(folder, tmp_path / "x.rttm"), *TRUE, "--link", *known)
    files = [part for name in ("model.safetensors", "x.npz") for part in (f"--{name[0]}", folder / name)]
    files[0], files[2] = "--model", "--embeddings"
    done(
        "link",
        *files,
        "--segments",
        folder / "segments",
        "--rttm",
        tmp_path / "local.rttm",
        *known,
        "--out",
        tmp_path / "y.rttm",
    )
    names = [[n for n in read_rttm(tmp_path / f"{k}.rttm").speaker.values if n.startswith("person")] for k in "xy"]
    assert names[0] == names[1]
    assert {*names[0]} == {"person0", "person2"}


# -- inputs that people have


def renamed_to_times(folder, at, point):
    """The embeddings of the folder, whose ids now say `file-start-end`."""
    ids, X = read_embeddings(folder / "x.npz").load()
    place = {line[0]: line[1:] for line in lines(folder / "segments")}
    form = "{}-{:.2f}-{:.2f}" if point else "{}-{:07.0f}-{:07.0f}"
    scale = 1 if point else 100
    names = [form.format(f, scale * float(a), scale * float(b)) for f, a, b in (place[i] for i in ids.tolist())]
    write_embeddings(at, np.array(names), X)


@pytest.mark.parametrize("point", [True, False])
def test_ids_may_say_where_segments_are(folder, tmp_path, point):
    done(*given(folder, tmp_path / "x.rttm"), *TRUE)
    renamed_to_times(folder, tmp_path / "x.npz", point)
    typed = ["diarize", "--model", folder / "model.safetensors", *TRUE]
    done(*typed, "--embeddings", tmp_path / "x.npz", "--out", tmp_path / "y.rttm")
    assert (tmp_path / "y.rttm").read_text() == (tmp_path / "x.rttm").read_text()
    failed = duoplda(*typed, "--embeddings", folder / "x.npz", "--out", tmp_path / "z.rttm")
    assert failed.exit_code == 1
    assert "72 ids of embeddings are not like `file-start-end`" in failed.stderr.replace("168", "72")


@pytest.mark.parametrize("kind", ["rttm", "lab", "list"])
def test_regions_of_speech(folder, tmp_path, kind):
    """Windows outside of them are left out, with a note."""
    renamed_to_times(folder, tmp_path / "x.npz", point=True)
    path = tmp_path / f"mon.{kind}"
    path.write_text(
        {"rttm": "SPEAKER mon 1 0 6 <NA> <NA> sp <NA> <NA>\n", "lab": "0 6 sp\n", "list": "mon 0 6\n"}[kind]
    )
    files = {"embeddings": tmp_path / "x.npz", "segments": path}
    said = done(*given(folder, tmp_path / "x.rttm", **files), *TRUE).stderr
    assert "embeddings have no segment, and are left out" in said
    found = read_rttm(tmp_path / "x.rttm")
    assert {*found.file.values} == {"mon"}
    assert found.end.max() == 6
    assert duoplda(*given(folder, tmp_path / "y.rttm", **files), *TRUE, "--strict").exit_code == 3
    path.write_text(path.read_text().replace("6", "x"))
    assert duoplda(*given(folder, tmp_path / "y.rttm", **files), *TRUE).exit_code == 1


def test_overlapped_speech_gets_a_second_speaker(folder, tmp_path):
    (tmp_path / "overlap").write_text("mon 5.5 6.5\ntue 0 1\nnone 0 1\n")
    done(*given(folder, tmp_path / "x.rttm"), *TRUE)
    done(*given(folder, tmp_path / "y.rttm"), *TRUE, "--overlap", tmp_path / "overlap")
    one, two = (read_rttm(tmp_path / f"{k}.rttm") for k in "xy")
    assert len(two) == len(one) + 3
    mon = two.file.values == "mon"
    for a, b in ((5.5, 6.0), (6.0, 6.5)):
        at = mon & (two.start <= a) & (two.end >= b)
        assert {*two.speaker.values[at]} == {"mon-1", "mon-2"}
    assert two.duration.sum() == pytest.approx(one.duration.sum() + 2)


def test_a_page_is_written(folder, tmp_path):
    done(*given(folder, tmp_path / "x.rttm"), *TRUE, "--report", tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text()
    assert page.count("<rect") == len(read_rttm(tmp_path / "x.rttm"))
    assert "duoplda diarize" in page
    same = duoplda(*given(folder, tmp_path / "y.rttm"), "--report", tmp_path / "y.rttm")
    assert same.exit_code == 2
