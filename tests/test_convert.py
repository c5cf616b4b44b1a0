"""Models of other tools: read, written, and scored as those tools score."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from duoplda import PLDA
from duoplda.cli import app
from duoplda.errors import DuopldaError
from duoplda.estimators.backend import Backend
from duoplda.io import DiagonalModel, ForeignModel, read_model, write_kaldi_plda, write_vbx
from duoplda.io.kaldi_plda import read_kaldi_plda
from duoplda.io.vbx import read_vbx
from duoplda.io.wespeaker import read_wespeaker
from duoplda.model.collapse import Loss, collapse

D = 6


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["convert", *map(str, arguments)])


def as_plda(model: ForeignModel) -> PLDA:
    return PLDA.from_parameters(*model.parameters)


def collapsed(plda: PLDA) -> tuple[DiagonalModel, Loss]:
    W = plda.noise_precision_
    return collapse(plda.channel_means_, plda.speaker_loadings_, plda.session_loadings_, W, plda.channel_priors_)


def spd(rng: np.random.Generator, d: int = D) -> np.ndarray:
    A = rng.standard_normal((d, 2 * d))
    return A @ A.T / (2 * d)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def foreign(rng: np.random.Generator) -> DiagonalModel:
    """A model as Kaldi keeps it: transform neither symmetric nor orthogonal, one direction without speakers."""
    psi = np.array([5.0, 2.0, 0.7, 0.3, 0.05, 0.0])
    return DiagonalModel(rng.standard_normal(D) * 3, rng.standard_normal((D, D)) + 2 * np.eye(D), psi)


@pytest.fixture
def plda(rng: np.random.Generator) -> PLDA:
    V, U = rng.standard_normal((D, 3)), rng.standard_normal((D, 2))
    return PLDA.from_parameters(rng.standard_normal(D), V, U, spd(rng))


# -- an independent reader and an independent scorer, from the descriptions in Kaldi's sources


def parse_binary(data: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """<Plda>, a double vector, a double matrix, a double vector, </Plda>."""
    assert data[:9] == b"\0B<Plda> "
    at, out = 9, []
    for letters, ndim in ((b"DV ", 1), (b"DM ", 2), (b"DV ", 1)):
        assert data[at : at + 3] == letters
        at += 3
        shape = []
        for _ in range(ndim):
            assert data[at] == 4
            shape.append(int.from_bytes(data[at + 1 : at + 5], "little", signed=True))
            at += 5
        n = int(np.prod(shape))
        out.append(np.array(struct.unpack(f"<{n}d", data[at : at + 8 * n])).reshape(shape))
        at += 8 * n
    assert data[at:] == b"</Plda> "
    return out[0], out[1], out[2]


def parse_text(text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Words between brackets; a matrix has a line per row, and nothing on the line of its bracket."""
    words = text.split()
    assert (words[0], words[-1]) == ("<Plda>", "</Plda>")
    assert text.startswith("<Plda> ")
    assert text.endswith("</Plda> ")
    blocks = [b.rsplit("[", 1)[1] for b in text.split("]")[:-1]]
    assert "\n" not in blocks[0]
    assert "\n" not in blocks[2]
    rows = blocks[1].split("\n")
    assert not rows[0].strip()
    return (
        np.array(blocks[0].split(), float),
        np.array([r.split() for r in rows[1:]], float),
        np.array(blocks[2].split(), float),
    )


def kaldi_llr(mean: np.ndarray, A: np.ndarray, psi: np.ndarray, enrol: np.ndarray, test: np.ndarray) -> float:
    """N(u; n psi / (n psi + 1) m, 1 + psi / (n psi + 1)) / N(u; 0, 1 + psi), m the mean of n enrolment vectors."""
    n, m, u = len(enrol), A @ (enrol.mean(0) - mean), A @ (test - mean)
    at, variance = n * psi / (n * psi + 1) * m, 1 + psi / (n * psi + 1)
    given_class = -0.5 * np.sum(np.log(variance) + (u - at) ** 2 / variance)
    return float(given_class + 0.5 * np.sum(np.log(1 + psi) + u**2 / (1 + psi)))


def our_llr(plda: PLDA, enrol: np.ndarray, test: np.ndarray) -> float:
    sides = plda.enroll(enrol, ["m"] * len(enrol)), plda.enroll(test[None, :], ["t"])
    return float(plda.llr(*sides)[0, 0])


# -- Kaldi


@pytest.mark.parametrize("text", [False, True])
def test_kaldi_round_trip_is_exact(tmp_path: Path, foreign: DiagonalModel, text: bool) -> None:
    path = tmp_path / "plda"
    write_kaldi_plda(path, foreign, text=text)
    parsed = parse_text(path.read_text()) if text else parse_binary(path.read_bytes())
    again = read_kaldi_plda(path)
    for wanted, found, ours in zip(
        (foreign.mean, foreign.transform, foreign.psi), parsed, (again.mean, again.transform, again.psi), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(ours, wanted)


def test_kaldi_floats_and_variants_of_text(tmp_path: Path, foreign: DiagonalModel) -> None:
    path = tmp_path / "plda"
    f4 = [np.asarray(a, "<f4") for a in (foreign.mean, foreign.transform, foreign.psi)]
    size = b"\4" + struct.pack("<i", D)
    vectors = [b"FV " + size + f4[0].tobytes(), b"FM " + 2 * size + f4[1].tobytes(), b"FV " + size + f4[2].tobytes()]
    path.write_bytes(b"\0B<Plda> " + b"".join(vectors) + b"</Plda> ")
    np.testing.assert_array_equal(read_kaldi_plda(path).transform, f4[1])
    path.write_text("<Plda> [ 1 -2e0 ]\r\n[ 1 0; 0 2 ]\n [ 3 .5 ]\n</Plda>\n")
    model = read_kaldi_plda(path)
    assert (model.mean.tolist(), model.transform.tolist(), model.psi.tolist()) == (
        [1, -2],
        [[1, 0], [0, 2]],
        [3, 0.5],
    )


@pytest.mark.parametrize("n", [1, 2, 7])
def test_a_kaldi_model_scores_as_kaldi_scores(
    tmp_path: Path, foreign: DiagonalModel, rng: np.random.Generator, n: int
) -> None:
    write_kaldi_plda(tmp_path / "plda", foreign)
    plda = as_plda(read_model(tmp_path / "plda"))
    assert plda.speaker_loadings_.shape == (D, 5)
    X = rng.standard_normal((n + 1, D)) * 2
    expected = kaldi_llr(foreign.mean, foreign.transform, foreign.psi, X[:n], X[n])
    assert our_llr(plda, X[:n], X[n]) == pytest.approx(expected, rel=1e-9)


# -- collapse


def test_collapse_keeps_the_covariances_of_a_recording(plda: PLDA) -> None:
    model, loss = collapsed(plda)
    V, U = plda.speaker_loadings_, plda.session_loadings_
    within = U @ U.T + np.linalg.inv(plda.noise_precision_)
    A = model.transform
    np.testing.assert_allclose(A @ within @ A.T, np.eye(D), atol=1e-12)
    np.testing.assert_allclose(A @ V @ V.T @ A.T, np.diag(model.psi), atol=1e-12)
    assert (np.diff(model.psi) <= 0).all()
    assert (model.psi[3:] == 0).all()
    T = V @ V.T + within
    share = np.trace(np.linalg.solve(T, U @ U.T)) / np.trace(np.linalg.solve(T, within))
    assert loss.session == pytest.approx(share)
    assert not loss.lossless
    assert f"{100 * share:.1f} %" in loss.sentence()
    assert f"{1 + 4 * share:.2f} times" in loss.sentence(5)


def test_collapse_scores_recordings_of_different_sessions_as_before(plda: PLDA, rng: np.random.Generator) -> None:
    model, _ = collapsed(plda)
    plain = PLDA.from_parameters(*model.parameters())
    X = rng.standard_normal((6, D))
    assert our_llr(plain, X[:5], X[5]) == pytest.approx(our_llr(plda, X[:5], X[5]), rel=1e-9)


def test_collapse_counts_copies_as_many_times_as_it_says() -> None:
    """One dimension: the mean of 5 copies has noise variance S + N/5, taken for (S + N)/5 by the collapsed model."""
    plda = PLDA.from_parameters([0.0], [[1.0]], [[1.5]], [[2.0]])
    model, loss = collapsed(plda)
    copies = np.zeros((5, 1)), ["m"] * 5, ["s"] * 5
    plain = PLDA.from_parameters(*model.parameters()).posterior(*copies[:2]).speaker_precision[0, 0, 0] - 1
    true = plda.posterior(*copies).speaker_precision[0, 0, 0] - 1
    assert true == pytest.approx(1 / (1.5**2 + 0.5 / 5))
    assert f"{plain / true:.2f} times" in loss.sentence(5)


def test_collapse_of_kinds_is_what_a_recording_of_unknown_kind_has(rng: np.random.Generator) -> None:
    means, W, priors = rng.standard_normal((2, D)), np.stack([spd(rng), spd(rng)]), np.array([0.3, 0.7])
    V, U = rng.standard_normal((D, 2)), rng.standard_normal((D, 1))
    plda = PLDA.from_parameters(means, V, U, W, ["a", "b"], priors)
    model, loss = collapsed(plda)
    centre = priors @ means
    second = sum(
        p * (np.linalg.inv(w) + np.outer(m - centre, m - centre)) for p, w, m in zip(priors, W, means, strict=True)
    )
    np.testing.assert_allclose(model.mean, centre)
    np.testing.assert_allclose(np.linalg.inv(model.transform.T @ model.transform), U @ U.T + second, rtol=1e-9)
    assert 0 < loss.kinds < 1
    assert "2 kinds" in loss.sentence()


def test_a_model_without_sessions_loses_nothing(foreign: DiagonalModel) -> None:
    plda = PLDA.from_parameters(*foreign.parameters())
    model, loss = collapsed(plda)
    assert loss.lossless
    np.testing.assert_allclose(model.psi, foreign.psi, atol=1e-12)
    within = [np.linalg.inv(a.T @ a) for a in (model.transform, foreign.transform)]
    np.testing.assert_allclose(within[0], within[1], rtol=1e-9)


# -- VBx, hyperion, wespeaker


def vbx_space(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Between- and within-class covariance as VBx and pyannote make them from the file."""
    with np.load(path) as p:
        tr, psi = p["tr"], p["psi"]
    return np.linalg.inv((tr.T / psi) @ tr), np.linalg.inv(tr.T @ tr)


def test_vbx_round_trip(tmp_path: Path, foreign: DiagonalModel) -> None:
    path = tmp_path / "plda.npz"
    assert write_vbx(path, foreign) == 1  # the 0 was raised
    between, within = vbx_space(path)
    A = np.linalg.inv(foreign.transform)
    np.testing.assert_allclose(between, A @ np.diag(foreign.psi) @ A.T, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(within, A @ A.T, rtol=1e-9)
    again = read_vbx(path)
    np.testing.assert_array_equal(again.mean, foreign.mean)
    np.testing.assert_array_equal(again.transform, foreign.transform)
    np.testing.assert_array_equal(again.psi, np.maximum(foreign.psi, 1e-6 * 5.0))


def write_hyperion(path: Path, kind: str, name: str | None, **parameters: np.ndarray) -> None:
    with h5py.File(path, "w") as f:
        f.create_dataset("config", data=np.array(json.dumps({"class_name": kind, "name": name, "y_dim": 3}), dtype="S"))
        for key, value in parameters.items():
            f.create_dataset(f"{name}/{key}" if name else key, data=value.astype("float32"))


@pytest.mark.parametrize("kind", ["SPLDA", "SPLDA-diagonal", "PLDA", "FRPLDA"])
@pytest.mark.parametrize("name", ["SPLDA", None])
def test_hyperion(tmp_path: Path, rng: np.random.Generator, kind: str, name: str | None) -> None:
    path = tmp_path / "plda.h5"
    mu, V, U = (rng.standard_normal(s).astype("float32").astype(float) for s in ((D,), (3, D), (2, D)))
    W, B, D_ = spd(rng), spd(rng), rng.uniform(1, 3, D)
    noise, speaker = np.linalg.inv(W), V.T @ V
    if kind == "SPLDA":
        write_hyperion(path, "SPLDA", name, mu=mu, V=V, W=W)
    elif kind == "SPLDA-diagonal":
        write_hyperion(path, "SPLDA", name, mu=mu, V=V, W=D_)
        noise = np.diag(1 / D_)
    elif kind == "PLDA":
        write_hyperion(path, "PLDA", name, mu=mu, V=V, U=U, D=D_)
        noise = U.T @ U + np.diag(1 / D_)
    else:
        write_hyperion(path, "FRPLDA", name, mu=mu, B=B, W=W)
        speaker = np.linalg.inv(B)
    plda = as_plda(read_model(path))
    np.testing.assert_allclose(plda.mean_, mu)
    np.testing.assert_allclose(plda.speaker_loadings_ @ plda.speaker_loadings_.T, speaker, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(np.linalg.inv(plda.noise_precision_), noise, rtol=1e-3, atol=1e-4)
    assert plda.session_loadings_.shape == (D, 0)


def hyperion_llr(path: Path, A: np.ndarray, B: np.ndarray) -> float:
    """The ratio of the sets A and B as hyperion makes it, by the book, of what its SPLDA.load reads from a file.

    With L(n) = I + n V W V' and g = V W (sum of x - n mu): 2 ln LR = |g_A + g_B|^2 - |g_A|^2 - |g_B|^2 in the metrics
    of L(n_A + n_B)^-1, L(n_A)^-1 and L(n_B)^-1, plus ln|L(n_A)| + ln|L(n_B)| - ln|L(n_A + n_B)|.
    """
    with h5py.File(path, "r") as f:
        config = json.loads(str(np.asarray(f["config"]).astype("U")))
        mu, V, W = (np.asarray(f[f"{config['name']}/{name}"]).astype(float) for name in ("mu", "V", "W"))
    assert config["class_name"] == "SPLDA"
    assert (config["x_dim"], config["y_dim"]) == (len(mu), len(V))
    assert V.shape[1] == len(mu) == W.shape[0] == W.shape[1]

    def terms(n: int, g: np.ndarray) -> float:
        L = np.eye(len(V)) + n * V @ W @ V.T
        return g @ np.linalg.solve(L, g) - np.linalg.slogdet(L)[1]

    g_A, g_B = (V @ W @ (X - mu).sum(axis=0) for X in (A, B))
    return (terms(len(A) + len(B), g_A + g_B) - terms(len(A), g_A) - terms(len(B), g_B)) / 2


@pytest.mark.parametrize("factors", [2, D])
def test_hyperion_is_written_as_it_reads_it(tmp_path: Path, rng: np.random.Generator, factors: int) -> None:
    V = rng.standard_normal((D, factors))
    plda = PLDA.from_parameters(rng.standard_normal(D), V, None, spd(rng))
    Backend.from_plda(plda).save(tmp_path / "model.safetensors")
    done = run(tmp_path / "model.safetensors", tmp_path / "plda.h5", "--to", "hyperion")
    assert done.exit_code == 0, done.stderr
    assert "nothing is lost" in done.stderr
    X = rng.standard_normal((5, D))
    sides = plda.enroll(X, [0, 0, 0, 1, 1])
    expected = plda.llr(sides.select([0]), sides.select([1]))[0, 0]
    assert hyperion_llr(tmp_path / "plda.h5", X[:3], X[3:]) == pytest.approx(expected, rel=1e-9)
    assert our_llr(as_plda(read_model(tmp_path / "plda.h5")), X[:3], X[3]) == pytest.approx(
        our_llr(plda, X[:3], X[3]), rel=1e-9
    )
    again = run(tmp_path / "model.safetensors", tmp_path / "plda.h5")  # the suffix says which format
    assert again.exit_code == 1
    assert "exists already" in again.stderr


def write_wespeaker(path: Path, model: DiagonalModel, **more: Any) -> None:
    arrays = {"mu": model.mean, "transform": model.transform, "psi": model.psi, "offset": -model.transform @ model.mean}
    with h5py.File(path, "w") as f:
        for name, value in arrays.items():
            f.create_dataset(name, data=value, maxshape=(None,) * value.ndim, compression="gzip", fletcher32=True)
        for name, value in more.items():
            f.create_dataset(name, data=value)


def test_wespeaker(tmp_path: Path, foreign: DiagonalModel, rng: np.random.Generator) -> None:
    path = tmp_path / "plda"
    write_wespeaker(path, foreign, normalize_length=1, subtract_train_set_mean=0)
    found = read_model(path)
    X = rng.standard_normal((3, D))
    expected = kaldi_llr(foreign.mean, foreign.transform, foreign.psi, X[:2], X[2])
    assert our_llr(as_plda(found), X[:2], X[2]) == pytest.approx(expected, rel=1e-9)
    assert len(found.notes) == 1
    assert "length" in found.notes[0]
    with h5py.File(path, "a") as f:
        f["offset"][0] += 1
    with pytest.raises(DuopldaError, match="offset"):
        read_wespeaker(path)


# -- the command


def test_command_kaldi_to_ours_and_back(tmp_path: Path, foreign: DiagonalModel) -> None:
    write_kaldi_plda(tmp_path / "plda", foreign)
    done = run(tmp_path / "plda", tmp_path / "model.safetensors")
    assert done.exit_code == 0, done.stderr
    backend = Backend.load(tmp_path / "model.safetensors")
    assert str(tmp_path / "plda") in backend.provenance_["sha256"]
    done = run(tmp_path / "model.safetensors", tmp_path / "back", "--text")
    assert done.exit_code == 0, done.stderr
    assert "nothing is lost" in done.stderr
    np.testing.assert_allclose(read_kaldi_plda(tmp_path / "back").psi, foreign.psi, atol=1e-12)


def test_command_warns_how_much_is_lost_and_of_the_chain(tmp_path: Path, rng: np.random.Generator) -> None:
    speaker = np.repeat(np.arange(30), 4)
    X = (
        rng.standard_normal((30, 4))[speaker]
        + rng.standard_normal((60, 4)).repeat(2, 0)
        + rng.standard_normal((120, 4))
    )
    backend = Backend(plda=PLDA(max_iter=20, tol=1e-3)).fit(X, speaker, session=np.arange(60).repeat(2))
    backend.save(tmp_path / "model.safetensors")
    done = run(tmp_path / "model.safetensors", tmp_path / "plda.npz", "--quiet")
    assert done.exit_code == 0, done.stderr
    _, loss = collapsed(backend.plda_)
    assert f"{100 * loss.session:.1f} % of the within-class variance" in done.stderr
    assert "counted as independent" in done.stderr
    assert "center, whiten, length_norm" in done.stderr
    between, within = vbx_space(tmp_path / "plda.npz")
    V, U = backend.plda_.speaker_loadings_, backend.plda_.session_loadings_
    np.testing.assert_allclose(between, V @ V.T, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(within, U @ U.T + np.linalg.inv(backend.plda_.noise_precision_), rtol=1e-6, atol=1e-9)


def test_command_keeps_what_is_there(tmp_path: Path, foreign: DiagonalModel) -> None:
    write_kaldi_plda(tmp_path / "plda", foreign)
    out = tmp_path / "plda.npz"
    out.write_text("mine")
    done = run(tmp_path / "plda", out)
    assert done.exit_code == 1
    assert "--force" in done.stderr
    assert out.read_text() == "mine"
    assert run(tmp_path / "plda", out, "--force").exit_code == 0
    assert read_vbx(out).mean.tolist() == pytest.approx(foreign.mean.tolist())
    assert run(tmp_path / "plda", tmp_path / "x.npz", "--text").exit_code == 2
    assert run(tmp_path / "plda", tmp_path / "x", "--to", "wespeaker").exit_code == 2


def test_command_never_replaces_what_it_reads(tmp_path: Path, foreign: DiagonalModel) -> None:
    write_kaldi_plda(tmp_path / "plda", foreign)
    (tmp_path / "link").symlink_to("plda")
    before = (tmp_path / "plda").read_bytes()
    for out in ("plda", "link"):
        done = run(tmp_path / "plda", tmp_path / out, "--force")
        assert done.exit_code == 1
        assert "is also read by this command" in done.stderr
    assert (tmp_path / "plda").read_bytes() == before


def test_command_finds_an_output_that_cannot_be_written_first(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "nowhere" / "model")
    done = run(tmp_path / "there is no such model", tmp_path / "out")
    assert done.exit_code == 1
    assert "its folder does not exist" in done.stderr
