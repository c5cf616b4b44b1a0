"""The chain of VBx: centre, length, LDA, centre, length, PLDA. As its steps by hand, in chunks, and from its file."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cli_cases import QUICK as QUICK_OPTIONS
from cli_cases import done, duoplda, make_folder, training
from duoplda import PLDA, Backend, DuopldaError, Recordings
from duoplda.datasets import make_recordings
from duoplda.estimators.preprocessing import LDA, Center, LengthNorm, Whiten
from duoplda.io import read_container, write_container
from test_backend import InParts
from test_convert_pairs import pyannote, ratios

SIZES = {"n_dimensions": 10, "n_speaker_factors": 6, "n_session_factors": 4}
QUICK = {"shrinkage": (0.1, 0.1, 0.1), "tol": 1e-5}
CHAINS = [
    {"lda": 6},
    {"lda": 6, "whiten": True},
    {"lda": None, "whiten": True},
    {"lda": None},
    {"lda": 6, "center_by_channel": True},
]
NAMES = ["center", "length_norm", "lda", "center_2", "length_norm_2"]


@pytest.fixture(scope="module")
def data():
    X, speaker, session, _ = make_recordings(60, (2, 4), (1, 3), seed=5, **SIZES)
    channel = np.array(["mic", "phone"])[np.random.default_rng(1).integers(2, size=len(X))]
    return (X + np.where(channel == "mic", 3.0, 0.0)[:, None] + 1.0).astype(np.float32), speaker, session, channel


def quick(**chain):
    return Backend.preset("vbx", plda=PLDA(**QUICK), **chain)


def by_hand(data, lda=None, whiten=False, center_by_channel=False):
    """Each step is fitted to what the steps before it give."""
    X, speaker, session, channel = data
    by = center_by_channel
    Z = LengthNorm().fit_transform(Center(by).fit(X, channel=channel).transform(X, channel))
    if lda:
        Z = LDA(lda, by_channel=by).fit(Z, speaker, session=session, channel=channel).transform(Z)
    if whiten:
        Z = Whiten(by_channel=by).fit(Z, channel=channel).transform(Z)
    return LengthNorm().fit_transform(Center(by).fit(Z, channel=channel).transform(Z, channel))


def scores(backend, data):
    X, speaker, session, channel = data
    enrolled = backend.enroll(X[:60], speaker[:60], session[:60], channel[:60])
    return backend.llr(enrolled, backend.enroll(X[60:100], range(40), None, channel[60:100]))


@pytest.mark.parametrize("chain", CHAINS)
def test_the_chain_is_its_steps(data, chain):
    X, speaker, session, channel = data
    backend = quick(**chain).fit(X, speaker, session=session, channel=channel)
    Z = by_hand(data, **chain)
    np.testing.assert_allclose(backend.transform(X, channel), Z, atol=1e-8)
    plda = PLDA(**QUICK).fit(Z, speaker, session=session, channel=channel)
    np.testing.assert_allclose(backend.plda_.log_likelihoods_, plda.log_likelihoods_, rtol=1e-8)
    assert [name for name, _ in backend.pipeline.steps] == [*backend.steps_, "plda"]
    unfitted = quick(**chain).pipeline.steps
    assert [name for name, _ in unfitted] == [*backend.steps_, "plda"]


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("rows", [7, 1000])
def test_chunks_are_read_three_times(data, chain, rows):
    X, speaker, session, channel = data
    passes = 0

    def chunks():
        nonlocal passes
        passes += 1
        return (X[i : i + rows] for i in range(0, len(X), rows))

    whole = quick(**chain).fit(X, speaker, session=session, channel=channel)
    parts = quick(**chain).fit(Recordings.from_chunks(chunks, speaker, session, channel))
    assert passes == 3
    np.testing.assert_allclose(scores(parts, data), scores(whole, data), atol=1e-6)


def test_parts_elsewhere_give_the_same_model(data):
    cut = np.searchsorted(np.unique(data[1]), data[1]) % 3
    parts = [Recordings.from_arrays(*(a[cut == i] for a in data)) for i in range(3)]
    X, speaker, session, channel = data
    whole = quick(lda=6).fit(X, speaker, session=session, channel=channel)
    np.testing.assert_allclose(scores(quick(lda=6).fit(InParts(parts)), data), scores(whole, data), atol=1e-6)


def test_a_cluster_gives_the_same_model(data, tmp_path):
    pytest.importorskip("distributed")
    from distributed import Client, LocalCluster

    from duoplda.engines import dask as engine
    from duoplda.io import read_labels, write_embeddings, write_map

    X, speaker, session, _ = data
    ids = np.array([f"u{i:04}" for i in range(len(X))])
    write_map(tmp_path / "utt2spk", ids, speaker)
    write_map(tmp_path / "utt2sess", ids, session)
    (tmp_path / "x").mkdir()
    for i, part in enumerate(np.array_split(np.arange(len(X)), 3)):
        write_embeddings(tmp_path / "x" / f"{i}.ark", ids[part], X[part])
    plda = PLDA(shrinkage="auto", tol=1e-4, random_state=0)
    here = Backend.preset("vbx", lda=6, plda=replace(plda)).fit(X, speaker.astype(str), session=session)
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with LocalCluster(**options, silence_logs=50) as cluster, Client(cluster, set_as_default=False) as client:
        labels = read_labels(tmp_path / "utt2spk", tmp_path / "utt2sess")
        there = engine.recordings(tmp_path / "x", labels, client=client)
        there = Backend.preset("vbx", lda=6, plda=replace(plda)).fit(there)
    assert there.plda_.shrinkage_ == here.plda_.shrinkage_
    assert there.plda_.cost_ == pytest.approx(here.plda_.cost_, abs=1e-6)
    np.testing.assert_allclose(there.transform(X), here.transform(X), atol=1e-8)


# -- held-out speakers


class Watching(PLDA):
    """A PLDA that keeps what it is trained on."""

    def fit_statistics(self, statistics, *args, **options):
        SEEN.append(statistics)
        return super().fit_statistics(statistics, *args, **options)


SEEN = []


def test_held_out_lengths_are_those_of_a_chain_that_has_not_seen_the_fold(data):
    """The second length of a held-out recording is that under LDA and mean of the other speakers."""
    X, speaker, session, _ = data
    plda = Watching(shrinkage="auto", tol=1e-3, random_state=0, n_folds=3)
    backend = Backend.preset("vbx", lda=6, plda=plda).fit(X, speaker, session=session)
    assert backend.plda_.cost_ < 1
    Z, T = LengthNorm().fit_transform(Center().fit_transform(X)), backend.transform(X)
    full = Z @ backend.steps_["lda"].matrix_ - backend.steps_["center_2"].mean_
    for fold in SEEN.pop().folds:
        others = ~np.isin(speaker, fold.speaker_ids)
        assert 0 < others.sum() < len(X)
        lda = LDA(6).fit(Z[others], speaker[others], session=session[others])
        own = Z @ lda.matrix_ - (Z[others] @ lda.matrix_).mean(axis=0)
        lengths = np.linalg.norm(fold.sample.X, axis=1)
        row = (LengthNorm().fit_transform(fold.sample.X) @ T.T).argmax(axis=1)  # directions are as they were
        assert not others[row].any()
        expected = np.sqrt(6) * np.linalg.norm(full[row], axis=1) / np.linalg.norm(own[row], axis=1)
        np.testing.assert_allclose(lengths, expected, rtol=1e-6)
        assert np.abs(lengths - np.sqrt(6)).max() > 1e-3


def test_rows_in_any_order_choose_the_same(data):
    columns = data[:3]
    order = np.random.default_rng(3).permutation(len(data[0]))
    options = {"lda": 6, "plda": PLDA(shrinkage="auto", tol=1e-4, random_state=0)}
    a, b = (Backend.preset("vbx", **options).fit(*(c[o] for c in columns)).plda_ for o in (slice(None), order))
    assert (a.shrinkage_, a.scales_) == (b.shrinkage_, b.scales_)
    assert a.cost_ == pytest.approx(b.cost_, abs=1e-7)


# -- files, parameters


def test_save_and_load(data, tmp_path):
    X, speaker, session, channel = data
    for i, chain in enumerate(CHAINS):
        backend = quick(**chain).fit(X, speaker, session=session, channel=channel)
        backend.save(tmp_path / str(i))
        again = Backend.load(tmp_path / str(i))
        assert again.length_norm == "twice"
        assert list(again.steps_) == list(backend.steps_)
        np.testing.assert_array_equal(again.transform(X, channel), backend.transform(X, channel))
        np.testing.assert_array_equal(scores(again, data), scores(backend, data))
        assert again.summary()["steps"] == [*backend.steps_, "plda"]


def test_a_file_whose_steps_do_not_fit_is_damaged(data, tmp_path):
    X, speaker, session, _ = data
    quick(lda=6).fit(X, speaker, session=session).save(tmp_path / "m")
    arrays, header = read_container(tmp_path / "m", ["duoplda-backend"])
    for change in ({"center_2.mean_": np.zeros(5)}, {"center_2.channel_means_": np.zeros((2, 6))}):
        write_container(tmp_path / "x", "duoplda-backend", {**arrays, **change}, header, force=True)
        with pytest.raises(DuopldaError, match="is damaged: means have shapes"):
            Backend.load(tmp_path / "x")
    header["steps"]["center_3"] = header["steps"]["center_2"]
    write_container(tmp_path / "x", "duoplda-backend", arrays, header, force=True)
    with pytest.raises(DuopldaError, match="is damaged: 'center_3'"):
        Backend.load(tmp_path / "x")


def test_parameters():
    backend = Backend.preset("vbx")
    assert (backend.lda, backend.whiten, backend.length_norm) == (128, False, "twice")
    assert Backend.preset("vbx", lda=20, whiten=True).whiten
    with pytest.raises(DuopldaError, match="there is no preset 'ivector'"):
        Backend.preset("ivector")
    X, speaker, session, _ = make_recordings(8, seed=1, **SIZES)
    with pytest.raises(DuopldaError, match="length_norm='thrice' must be True, False or 'twice'"):
        Backend(length_norm="thrice").fit(X, speaker, session=session)
    with pytest.raises(DuopldaError, match="n_components=128 must lie between 1 and 7"):
        backend.fit(X, speaker, session=session)


# -- the command line


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    at = tmp_path_factory.mktemp("preset")
    make_folder(at)
    return at


def test_train_a_preset_and_use_it_elsewhere(folder, tmp_path):
    model = tmp_path / "model.safetensors"
    done(*training(folder), *QUICK_OPTIONS, "--preset", "vbx", "--lda", "8", "--out", model, "--quiet")
    summary = json.loads(done("info", model, "--json").stdout)
    assert summary["steps"] == [*NAMES, "plda"]
    assert (summary["n_features_in"], summary["n_dimensions"]) == (12, 8)
    done("convert", model, tmp_path / "pair", "--to", "pyannote", "--quiet")
    X = np.load(folder / "x.npz")["embeddings"][:6].astype(float)
    backend = Backend.load(model)
    V, U = backend.plda_.speaker_loadings_, backend.plda_.session_loadings_
    one = PLDA.from_parameters(
        backend.plda_.mean_, V, np.zeros((8, 0)), np.linalg.inv(U @ U.T + np.linalg.inv(backend.plda_.noise_precision_))
    )
    Z = backend.transform(X)
    sides = one.enroll(Z, range(6))
    np.testing.assert_allclose(ratios(*pyannote(tmp_path / "pair", X)), one.llr(sides, sides), atol=1e-4)


def test_options_that_do_not_go_together(folder, tmp_path):
    out = ["--out", tmp_path / "m"]
    for options, words in (
        (["--preset", "vbx", "--no-length-norm"], "normalises lengths twice"),
        (["--preset", "kaldi"], "'kaldi' is not"),
    ):
        failed = duoplda(*training(folder), *options, *out)
        assert (failed.exit_code, words in failed.stderr) == (2, True), failed.stderr
    failed = duoplda(*training(folder), "--preset", "vbx", *out)
    assert failed.exit_code == 1
    assert "n_components=128" in failed.stderr


def test_whitening_is_the_default_without_a_preset(folder, tmp_path):
    for options, steps in (
        ([], ["center", "whiten", "length_norm"]),
        (["--no-whiten"], ["center", "length_norm"]),
        (["--preset", "vbx", "--lda", "8", "--whiten"], [*NAMES[:3], "whiten", *NAMES[3:]]),
    ):
        path = tmp_path / "m.safetensors"
        done(*training(folder), *QUICK_OPTIONS, *options, "--out", path, "--quiet", "--force")
        assert list(Backend.load(path).steps_) == steps


def test_the_page_can_be_followed(folder, tmp_path, monkeypatch, capsys):
    """Every command of docs/pyannote.md, and its Python but for pyannote's own, with fewer dimensions."""
    from duoplda.io import read_embeddings, write_embeddings

    page = (Path(__file__).parents[1] / "docs" / "pyannote.md").read_text()
    monkeypatch.chdir(tmp_path)
    ids, X = read_embeddings(folder / "x.npz").load()
    write_embeddings("xvectors.scp", ids, X)
    Path("xvectors.seg").write_text("".join(f"{name} talk {i} {i + 1.5}\n" for i, name in enumerate(ids)))
    for name in ("utt2spk", "utt2sess"):
        Path(name).write_bytes((folder / name).read_bytes())
    commands = re.findall(r"^duoplda .*", page, re.MULTILINE)
    assert len(commands) == 7
    for line in commands:
        short = QUICK_OPTIONS if " train " in line else []
        done(*shlex.split(line.replace("--lda 128", "--lda 8"))[1:], *short)
    first = Backend.load("from-pyannote.safetensors").transform(X)
    np.testing.assert_allclose(Backend.load("model.safetensors").transform(X), first, atol=1e-10)
    theirs, ours = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    compile(theirs, "a block of the page", "exec")
    exec(compile(ours.replace("128", "8"), "a block of the page", "exec"), {})
    assert "Turns(file=" in capsys.readouterr().out
