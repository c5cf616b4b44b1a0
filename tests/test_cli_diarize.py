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


def test_missing_ids(folder, tmp_path):
    table = (folder / "segments").read_text().splitlines(keepends=True)
    (tmp_path / "fewer").write_text("".join(table[1:]))
    (tmp_path / "more").write_text("".join([*table, "late mon 90 91\n"]))
    for name, what in (
        ("fewer", "1 embeddings have no segment: mon-000"),
        ("more", "1 segments have no embedding: late"),
    ):
        failed = duoplda(*given(folder, tmp_path / "x.rttm", segments=tmp_path / name))
        assert failed.exit_code == 3
        assert what in failed.stderr
        assert not (tmp_path / "x.rttm").exists()
        said = done(
            *given(folder, tmp_path / name, segments=tmp_path / name)[:-1], tmp_path / f"{name}.rttm", "--allow-missing"
        )
        assert what.replace(": ", ", left out: ") in said.stderr
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
