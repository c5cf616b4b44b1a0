"""The two files of VBx, pyannote and DiariZen: read, written, converted, and refused where they cannot hold a chain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from scipy.linalg import eigh

from duoplda import PLDA, Backend, DuopldaError
from duoplda.datasets import make_recordings
from duoplda.estimators.preprocessing import Center, LengthNorm
from duoplda.io import DiagonalModel, Transform, read_model, read_transform, write_kaldi_plda, write_pair
from duoplda.io.kaldi_plda import read_kaldi_plda
from duoplda.io.vbx import read_vbx
from test_convert import run

FILES = {"pyannote": ("xvec_transform.npz", "plda.npz"), "vbx": ("transform.h5", "plda")}
SHARED = Path(__file__).parents[2] / "shared" / "data" / "diarization"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not here")
D, K = 9, 6
# Vectors are drawn apart from the models, or are a few windows of one file: only whether ratios agree matters here.
pytestmark = pytest.mark.filterwarnings("ignore::duoplda.DomainWarning")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


@pytest.fixture
def pair(rng: np.random.Generator) -> tuple[Transform, DiagonalModel]:
    """A random model, in our scale; no psi is 0."""
    transform = Transform(rng.normal(size=D), rng.normal(size=(D, K)), rng.normal(size=K))
    psi = np.array([5.0, 2.0, 0.7, 0.3, 0.05, 0.01])
    return transform, DiagonalModel(rng.normal(size=K), rng.normal(size=(K, K)) + 2 * np.eye(K), psi)


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, ...]:
    made = make_recordings(40, (2, 3), (1, 3), n_dimensions=D, n_speaker_factors=4, n_session_factors=3, seed=3)
    channel = np.array(["mic", "phone"])[np.random.default_rng(0).integers(2, size=len(made[0]))]
    return (*made[:3], channel)


def trained(data: tuple[np.ndarray, ...], sessions: bool = True, **chain: Any) -> Backend:
    X, speaker, session, channel = data
    plda = PLDA(n_session_factors=None if sessions else 0, shrinkage=(0.1, 0.1, 0.1), tol=1e-3)
    kinds = channel if chain.get("center_by_channel") else None
    return Backend(plda=plda, **chain).fit(X, speaker, session=session, channel=kinds)


# -- what the tools do with their files, from the descriptions of their sources


def unit(X: np.ndarray) -> np.ndarray:
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def space(mu: np.ndarray, tr: np.ndarray, psi: np.ndarray, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The generalised eigenvectors of (between, within), by inverses of what is in the file."""
    within, between = np.linalg.inv(tr.T @ tr), np.linalg.inv((tr.T / psi) @ tr)
    phi, E = eigh(between, within)
    return (X - mu) @ E[:, ::-1], phi[::-1]


def pyannote(folder: Path, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x, p = np.load(folder / "xvec_transform.npz"), np.load(folder / "plda.npz")
    d, k = x["lda"].shape
    rows = np.sqrt(k) * unit(np.sqrt(d) * unit(X - x["mean1"]) @ x["lda"] - x["mean2"])
    return space(p["mu"], p["tr"], p["psi"], rows)


def vbx(folder: Path, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with h5py.File(folder / "transform.h5") as f:
        mean1, lda, mean2 = (f[name][()] for name in ("mean1", "lda", "mean2"))
    rows = unit(unit(X - mean1) @ lda - mean2)
    model = read_kaldi_plda(folder / "plda")
    return space(model.mean, model.transform, model.psi, rows)


def ratios(rows: np.ndarray, phi: np.ndarray) -> np.ndarray:
    """(T, T) ln ratios of all pairs of rows, by densities of one dimension after another."""
    out = np.zeros((len(rows), len(rows)))
    for x, b in zip(rows.T, phi, strict=True):
        for i, j in np.ndindex(out.shape):
            same = np.array([[1 + b, b], [b, 1 + b]])
            pair = np.array([x[i], x[j]])
            alone = -0.5 * (pair @ pair / (1 + b) + 2 * np.log(1 + b))
            out[i, j] += -0.5 * (pair @ np.linalg.solve(same, pair) + np.linalg.slogdet(same)[1]) - alone
    return out


def our_ratios(backend: Backend, X: np.ndarray) -> np.ndarray:
    sides = backend.enroll(X, range(len(X)))
    return np.asarray(backend.llr(sides, sides, calibrated=False))


def loaded(folder: Path, tool: str) -> Backend:
    steps, plda = (folder / name for name in FILES[tool])
    return Backend.from_foreign(read_model(plda, steps))


# -- in and out


@pytest.mark.parametrize("tool", ["pyannote", "vbx"])
def test_the_tool_sees_the_ratios_that_we_see(tmp_path: Path, pair: Any, rng: np.random.Generator, tool: str) -> None:
    paths, raised = write_pair(tmp_path, *pair, tool)
    assert [p.name for p in paths] == list(FILES[tool])
    assert raised == 0
    X = rng.normal(size=(7, D)) * 3
    theirs = ratios(*(pyannote if tool == "pyannote" else vbx)(tmp_path, X))
    backend = loaded(tmp_path, tool)
    np.testing.assert_allclose(our_ratios(backend, X), theirs, atol=1e-9)
    assert (backend.lda, backend.whiten, backend.length_norm) == (K, False, "twice")


def test_converting_back_and_forth_changes_no_ratio(tmp_path: Path, pair: Any, rng: np.random.Generator) -> None:
    X = rng.normal(size=(20, D))
    for name in "abc":
        (tmp_path / name).mkdir()
    write_pair(tmp_path / "a", *pair, "vbx")
    first = loaded(tmp_path / "a", "vbx")
    model, loss = first.collapsed()
    assert loss.lossless
    write_pair(tmp_path / "b", first.folded(), model, "pyannote")
    second = loaded(tmp_path / "b", "pyannote")
    write_pair(tmp_path / "c", second.folded(), second.collapsed()[0], "vbx")
    third = loaded(tmp_path / "c", "vbx")
    np.testing.assert_allclose(our_ratios(second, X), our_ratios(first, X), atol=1e-10)
    np.testing.assert_allclose(our_ratios(third, X), our_ratios(first, X), atol=1e-10)
    with h5py.File(tmp_path / "a" / "transform.h5") as f, h5py.File(tmp_path / "c" / "transform.h5") as g:
        for step in ("mean1", "lda", "mean2"):
            np.testing.assert_allclose(g[step][()], f[step][()], rtol=1e-13)


@needs_shared
def test_the_example_of_vbx_becomes_a_pair_of_pyannote_and_comes_back(tmp_path: Path) -> None:
    from duoplda.io import read_embeddings

    source, X = SHARED / "vbx", read_embeddings(SHARED / "vbx" / "ES2005a.ark").load()[1][::50].astype(float)
    model = tmp_path / "model.safetensors"
    commands = [
        (source / "plda", model, "--transform", source / "transform.h5"),
        (model, tmp_path / "py", "--to", "pyannote"),
        (tmp_path / "py" / "plda.npz", tmp_path / "2.safetensors", "--transform", tmp_path / "py/xvec_transform.npz"),
        (tmp_path / "2.safetensors", tmp_path / "vbx", "--to", "vbx"),
        (tmp_path / "vbx" / "plda", tmp_path / "3.safetensors", "--transform", tmp_path / "vbx" / "transform.h5"),
    ]
    for command in commands:
        done = run(*command)
        assert done.exit_code == 0, done.stderr
    rows, phi = vbx(source, X)
    for folder, read in ((tmp_path / "py", pyannote), (tmp_path / "vbx", vbx)):
        theirs, variances = read(folder, X)
        np.testing.assert_allclose(variances, phi, rtol=1e-8)
        np.testing.assert_allclose(np.abs(theirs), np.abs(rows), atol=1e-7)  # an eigenvector has no sign
    first = our_ratios(Backend.load(model), X)
    for name in ("2", "3"):
        np.testing.assert_allclose(our_ratios(Backend.load(tmp_path / f"{name}.safetensors"), X), first, atol=1e-10)
    assert str(source / "transform.h5") in Backend.load(model).provenance_["sha256"]


@needs_shared
def test_the_pair_of_pyannote_gives_what_pyannote_computed(tmp_path: Path) -> None:
    source, name = SHARED / "pyannote", "02_pyannote_sample"
    done = run(source / "plda.npz", tmp_path / "m.safetensors", "--transform", source / "xvec_transform.npz")
    assert done.exit_code == 0, done.stderr
    backend = Backend.load(tmp_path / "m.safetensors")
    stages = np.load(source / name / "plda_embeddings.npz")
    X = np.load(source / name / "raw_embeddings.npz")["embeddings"]
    X = X[stages["train_chunk_idx"], stages["train_speaker_idx"]]
    np.testing.assert_allclose(backend.transform(X), stages["post_xvec"], atol=1e-10)
    first = our_ratios(backend, X)
    for i, tool in enumerate(("vbx", "pyannote")):
        assert run(tmp_path / "m.safetensors", tmp_path / str(i), "--to", tool).exit_code == 0
        np.testing.assert_allclose(our_ratios(loaded(tmp_path / str(i), tool), X), first, atol=1e-10)


# -- which chains the files can hold


@pytest.mark.parametrize(
    "chain",
    [
        {"length_norm": "twice", "lda": 5, "whiten": False},
        {"length_norm": "twice", "lda": 5},
        {"length_norm": "twice"},
        {"length_norm": "twice", "whiten": False},
        {},
        {"lda": 4},
        {"lda": 4, "whiten": False},
        {"whiten": False},
    ],
)
def test_chains_that_can_be_folded_are_folded_exactly(tmp_path: Path, data: Any, chain: dict[str, Any]) -> None:
    backend = trained(data, **chain)
    again = Backend.from_transform(backend.folded(), backend.plda_)
    np.testing.assert_allclose(again.transform(data[0]), backend.transform(data[0]), atol=1e-10)
    np.testing.assert_allclose(our_ratios(again, data[0][:9]), our_ratios(backend, data[0][:9]), atol=1e-8)


def test_chains_that_cannot_be_folded_are_refused(tmp_path: Path, data: Any) -> None:
    with pytest.raises(DuopldaError, match=r"center -> whiten cannot be written.*normalise lengths twice"):
        trained(data, length_norm=False).folded()
    with pytest.raises(DuopldaError, match=r"center has means of 2 kinds of channels.*hold one mean"):
        trained(data, center_by_channel=True).folded()
    with pytest.raises(DuopldaError, match="center has means"):
        trained(data, center_by_channel=True, length_norm="twice").folded()
    with pytest.raises(DuopldaError, match="no preprocessing cannot be written"):
        Backend.from_plda(trained(data).plda_).folded()
    backend = trained(data)
    steps = backend.steps_
    more = {**steps, "center_2": Center().fit(backend.transform(data[0])), "length_norm_2": LengthNorm()}
    backend.steps_ = more
    with pytest.raises(DuopldaError, match="whiten comes before the first of two length normalisations"):
        backend.folded()
    backend.steps_ = {**steps, "center_2": more["center_2"]}
    with pytest.raises(DuopldaError, match="once at the end"):
        backend.folded()
    backend.steps_ = {"whiten": steps["whiten"], "center": steps["center"], "length_norm": steps["length_norm"]}
    with pytest.raises(DuopldaError, match="the mean must be subtracted first"):
        backend.folded()


# -- the session level


def test_what_becomes_of_the_session_level(tmp_path: Path, data: Any) -> None:
    backend = trained(data, length_norm="twice", whiten=False)
    backend.save(tmp_path / "m.safetensors")
    V, U, W = backend.plda_.speaker_loadings_, backend.plda_.session_loadings_, backend.plda_.noise_precision_
    noise = np.linalg.inv(W)
    for options, between, within in (([], V @ V.T, U @ U.T + noise), (["--one-session"], V @ V.T + U @ U.T, noise)):
        done = run(tmp_path / "m.safetensors", tmp_path / "out", "--to", "pyannote", "--force", *options)
        assert done.exit_code == 0, done.stderr
        model = read_vbx(tmp_path / "out" / "plda.npz")
        A = np.linalg.inv(model.transform)
        np.testing.assert_allclose(A @ A.T, within, atol=1e-9)
        np.testing.assert_allclose(A @ np.diag(model.psi) @ A.T, between, atol=1e-4 * np.trace(between))
        assert "this is lossy" in done.stderr
        assert ("inside one session" in done.stderr) == bool(options)


def test_one_session_is_exact_inside_a_session(data: Any) -> None:
    """Recordings of one session on both sides: the model of two sources, by its covariances, gives the same ratio."""
    backend = trained(data, length_norm="twice", whiten=False)
    p = backend.plda_
    V, U, N = p.speaker_loadings_, p.session_loadings_, np.linalg.inv(p.noise_precision_)
    model, loss = backend.collapsed(one_session=True)
    B = V @ V.T + U @ U.T
    total = np.linalg.inv(B + N)
    assert loss.session == pytest.approx(np.trace(total @ U @ U.T) / np.trace(total @ B))
    Z = np.asarray(backend.transform(data[0]))[:2] - p.mean_
    joint = np.block([[B + N, B], [B, B + N]])
    pair = Z.ravel()
    same = -0.5 * (pair @ np.linalg.solve(joint, pair) + np.linalg.slogdet(joint)[1])
    alone = sum(-0.5 * (z @ total @ z - np.linalg.slogdet(total)[1]) for z in Z)
    rows = Z @ model.transform.T
    assert ratios(rows, model.psi)[0, 1] == pytest.approx(same - alone, abs=1e-8)


# -- the command


def test_command_says_what_it_wrote_and_keeps_what_is_there(tmp_path: Path, data: Any) -> None:
    trained(data, length_norm="twice", lda=5, sessions=False).save(tmp_path / "m.safetensors")
    out = tmp_path / "out"
    done = run(tmp_path / "m.safetensors", out, "--to", "pyannote")
    assert done.exit_code == 0, done.stderr
    assert str(out / "plda.npz") in done.stderr
    assert "nothing is lost" in done.stderr
    assert sorted(p.name for p in out.iterdir()) == ["plda.npz", "xvec_transform.npz"]
    before = (out / "plda.npz").read_bytes()
    (out / "xvec_transform.npz").unlink()
    done = run(tmp_path / "m.safetensors", out, "--to", "pyannote")
    assert done.exit_code == 1
    assert "--force" in done.stderr
    assert [p.name for p in out.iterdir()] == ["plda.npz"]
    assert (out / "plda.npz").read_bytes() == before
    assert run(tmp_path / "m.safetensors", out, "--to", "pyannote", "--force").exit_code == 0
    done = run(out / "plda.npz", out, "--to", "pyannote", "--transform", out / "xvec_transform.npz", "--force")
    assert done.exit_code == 1
    assert "is also read by this command" in done.stderr


def test_command_refuses_what_does_not_go_together(tmp_path: Path, data: Any, pair: Any) -> None:
    model, wide = tmp_path / "m.safetensors", tmp_path / "wide.safetensors"
    trained(data, length_norm="twice", whiten=False).save(model)
    trained(data, length_norm=False).save(wide)
    write_pair(tmp_path / "v", *pair, "vbx")
    write_pair(tmp_path / "p", *pair, "pyannote")
    smaller = DiagonalModel(np.zeros(2), np.eye(2), np.ones(2))
    write_kaldi_plda(tmp_path / "small", smaller)
    (tmp_path / "file").write_text("mine")
    steps = {"v": tmp_path / "v" / "transform.h5", "p": tmp_path / "p" / "xvec_transform.npz"}
    cases = [
        (2, "cannot end in .npz", [model, tmp_path / "x.npz", "--to", "pyannote"]),
        (2, "--one-session is for", [tmp_path / "v" / "plda", tmp_path / "x.safetensors", "--one-session"]),
        (2, "--text is for", [model, tmp_path / "x", "--to", "vbx", "--text"]),
        (1, "is a file", [model, tmp_path / "file", "--to", "vbx"]),
        (1, "its folder does not exist", [model, tmp_path / "no" / "x", "--to", "vbx"]),
        (1, "normalise lengths twice", [wide, tmp_path / "x", "--to", "vbx"]),
        (1, "are no pair", [tmp_path / "v" / "plda", tmp_path / "x.safetensors", "--transform", steps["p"]]),
        (1, "are no pair", [tmp_path / "p" / "plda.npz", tmp_path / "x.safetensors", "--transform", steps["v"]]),
        (1, "has 2 dimensions", [tmp_path / "small", tmp_path / "x.safetensors", "--transform", steps["v"]]),
        (1, "has its preprocessing", [model, tmp_path / "x", "--transform", steps["v"]]),
        (1, "as --transform", [steps["v"], tmp_path / "x.safetensors"]),
        (1, "as --transform", [steps["p"], tmp_path / "x.safetensors"]),
        (
            1,
            "is the PLDA",
            [tmp_path / "p/plda.npz", tmp_path / "x.safetensors", "--transform", tmp_path / "p/plda.npz"],
        ),
        (1, "no preprocessing cannot", [tmp_path / "v" / "plda", tmp_path / "x", "--to", "pyannote"]),
    ]
    for code, words, arguments in cases:
        done = run(*arguments)
        assert (done.exit_code, words in done.stderr) == (code, True), (arguments, done.stderr)
        assert not [p for p in tmp_path.iterdir() if p.name.startswith("x")]
    assert (tmp_path / "file").read_text() == "mine"


def test_command_warns_of_what_the_files_do_not_hold(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    transform = Transform(np.zeros(140), np.eye(140)[:, :130], np.zeros(130))
    psi = np.r_[np.linspace(3, 1, 129), 0.0]
    plda = PLDA.from_parameters(*DiagonalModel(rng.normal(size=130), np.eye(130), psi).parameters())
    Backend.from_transform(transform, plda).save(tmp_path / "m.safetensors")
    done = run(tmp_path / "m.safetensors", tmp_path / "out", "--to", "vbx")
    assert done.exit_code == 0, done.stderr
    assert "130 dimensions: VBx uses the number that its option --lda-dim gives" in done.stderr
    refused = run(tmp_path / "m.safetensors", tmp_path / "other", "--to", "pyannote")
    assert (refused.exit_code, (tmp_path / "other").exists()) == (1, False)
    assert "uses 128 dimensions of a PLDA, and this has 130: train with --lda 128" in refused.stderr
    assert "1 directions without speaker variance" in done.stderr
    rows, phi = vbx(tmp_path / "out", rng.normal(size=(3, 140)))
    assert np.isfinite(rows).all()
    np.testing.assert_allclose(phi[:129], psi[:129], rtol=1e-6)


def test_a_plda_npz_is_still_one_file(tmp_path: Path, data: Any) -> None:
    trained(data).save(tmp_path / "m.safetensors")
    for i, options in enumerate(([], ["--to", "vbx"])):
        done = run(tmp_path / "m.safetensors", tmp_path / f"plda{i}.npz", *options)
        assert done.exit_code == 0, done.stderr
        assert "only the PLDA is written" in done.stderr
        assert read_vbx(tmp_path / f"plda{i}.npz").mean.shape == (D,)


# -- damaged transforms


def npz(path: Path, **arrays: Any) -> None:
    good = {"mean1": np.zeros(3), "lda": np.eye(3)[:, :2], "mean2": np.zeros(2)} | arrays
    with path.open("wb") as f:
        np.savez(f, **{name: array for name, array in good.items() if array is not None})


def hdf5(path: Path, **arrays: Any) -> None:
    good = {"mean1": np.zeros(3), "lda": np.eye(3)[:, :2], "mean2": np.zeros(2)} | arrays
    with h5py.File(path, "w") as f:
        for name, array in good.items():
            if array is not None:
                f.create_dataset(name, data=array)


@pytest.mark.parametrize("write", [npz, hdf5])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lda": np.eye(3)[:, :1]}, "the shapes do not fit"),
        ({"mean1": np.zeros(4)}, "the shapes do not fit"),
        ({"lda": np.zeros(3)}, "the shapes do not fit"),
        ({"mean2": None}, "has no array mean2"),
        ({"mean1": np.array([0, np.nan, 0])}, "mean1: .*NaN"),
        ({"lda": np.zeros((3, 2))}, "columns of zeros"),
        ({"mean2": np.array([1, 2])}, "mean2: holds int64"),
        ({"mean1": np.zeros(9000)}, "dimension 9000"),
        ({"mean1": np.zeros(0)}, "dimension 0"),
    ],
)
def test_wrong_transforms_are_named(tmp_path: Path, write: Any, change: dict[str, Any], words: str) -> None:
    write(tmp_path / "t", **change)
    with pytest.raises(DuopldaError, match=words) as error:
        read_transform(tmp_path / "t")
    assert str(error.value).startswith(str(tmp_path / "t"))


def test_other_files_are_no_transforms(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("hello")
    with pytest.raises(DuopldaError, match="no transform that duoplda knows"):
        read_transform(tmp_path / "t")
    npz(tmp_path / "o", lda=np.array([[{}]], object))
    with pytest.raises(DuopldaError, match="pickled"):
        read_transform(tmp_path / "o")


def test_a_pair_that_cannot_be_written_leaves_nothing(tmp_path: Path, pair: Any, monkeypatch: Any) -> None:
    transform, model = pair
    with pytest.raises(DuopldaError, match="gives 6 dimensions, the PLDA has 2"):
        write_pair(tmp_path / "x", transform, DiagonalModel(np.zeros(2), np.eye(2), np.ones(2)), "vbx")

    def fail(*_: Any, **__: Any) -> None:
        raise DuopldaError("no")

    monkeypatch.setattr("duoplda.io.vbx.write_kaldi_plda", fail)
    with pytest.raises(DuopldaError, match="no"):
        write_pair(tmp_path / "x", transform, model, "vbx")
    assert not list(tmp_path.iterdir())
    with pytest.raises(DuopldaError, match="6 dimensions, the PLDA has 2"):
        Backend.from_transform(transform, PLDA.from_parameters(np.zeros(2), np.eye(2), np.zeros((2, 0)), np.eye(2)))
