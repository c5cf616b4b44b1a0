"""The commands and the code of docs/coming_from.md that are ours, and what it says of the formulas of others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from cli_cases import done, duoplda
from duoplda import PLDA, Backend, metrics
from duoplda.io import (
    read_embeddings,
    read_enrollment,
    read_model,
    read_scores,
    read_trials,
    write_embeddings,
    write_trials,
)
from duoplda.metrics import act_dcf, eer, min_dcf
from test_examples import ROOT, code, commands, folder, run  # noqa: F401 - folder is a fixture

PAGE = "docs/coming_from.md"
D = 10  # dimensions after the LDA of the page


@pytest.fixture
def files(folder):  # noqa: F811
    """The files that the page names, beside those of `folder`: models of others, prepared vectors, a key."""
    h5py = pytest.importorskip("h5py")
    pytest.importorskip("matplotlib")
    train = ["--embeddings", "xvectors.scp", "--speakers", "utt2spk", "--out"]
    done("train", *train, "first", "--shrinkage", "0.1", "--lda", D, "--quiet")
    done("convert", "first", "plda", "--to", "kaldi", "--quiet")
    first = Backend.load("first")
    ids, X = read_embeddings("eval.scp").load()
    processed = first.transform(X)
    write_embeddings("processed.scp", ids, processed)
    enrollment = read_enrollment("enroll")
    models = dict.fromkeys(enrollment.model.values.tolist())
    for model, recording in zip(enrollment.model.values, enrollment.recording.values, strict=True):
        models[model] = [*(models[model] or []), recording]
    Path("spk2utt").write_text("".join(f"{m} {' '.join(own)}\n" for m, own in models.items()))
    write_trials("key.h5", read_trials("trials"))
    model, _ = first.collapsed()
    Path("exp").mkdir()
    with h5py.File("exp/plda", "w") as f:
        arrays = {"mu": model.mean, "transform": model.transform, "psi": model.psi}
        for name, array in {**arrays, "offset": -model.transform @ model.mean}.items():
            f.create_dataset(name, data=array)
    found = read_model("plda")
    with h5py.File("plda.h5", "w") as f:
        f.create_dataset("config", data=np.array(json.dumps({"class_name": "SPLDA", "name": "plda"}), dtype="S"))
        own = {"mu": found.mean, "V": found.speaker_loadings.T, "W": found.noise_precision}
        for name, array in own.items():
            f.create_dataset(f"plda/{name}", data=array)
    done("train", *train, "chain", "--shrinkage", "0.1", "--preset", "vbx", "--lda", 8, "--quiet")
    done("convert", "chain", "vbx", "--to", "vbx", "--quiet")
    person = np.arange(len(ids)) // 4 % 2
    write_embeddings("x.ark", ids, X)
    Path("x.seg").write_text("".join(f"{n} file {i}.0 {i + 1}.0\n" for i, n in enumerate(ids)))
    turns = (f"SPEAKER file 1 {i}.0 1.0 <NA> <NA> s{k} <NA> <NA>\n" for i, k in enumerate(person))
    Path("truth.rttm").write_text("".join(turns))
    for out, more in (("dev.h5", ["--raw"]), ("scores.h5", [])):
        trials = ["--embeddings", "eval.scp", "--enroll", "enroll", "--trials", "trials"]
        done("score", "--model", "first", *trials, *more, "--out", out, "--quiet")
    labels = {name: folder[name] for name in ("speaker", "session")}
    return SimpleNamespace(ids=ids, X=processed, models=models, X_train=folder["X"], **labels)


def pair_ratios(model, vectors, models, n=None):
    """Kaldi's ratio of the mean of a model's vectors, which counts as n (None: as their number), with each vector.

    In the space where recordings of a speaker differ by I and speakers by diag(psi), for the mean u of n recordings,
    ln N(t; n psi u / (n psi + 1), 1 + psi / (n psi + 1)) - ln N(t; 0, 1 + psi) (Ioffe 2006).
    """
    A = np.linalg.cholesky(model.noise_precision).T
    psi, R = np.linalg.eigh(A @ model.speaker_loadings @ model.speaker_loadings.T @ A.T)
    psi, A = psi.clip(0), R.T @ A
    space = {i: A @ (x - model.mean) for i, x in vectors.items()}
    found = {}
    for m, own in models.items():
        k, u = n or len(own), np.mean([space[i] for i in own], axis=0)
        share = k * psi / (k * psi + 1)
        for i, t in space.items():
            one = norm.logpdf(t, share * u, np.sqrt(1 + psi / (k * psi + 1)))
            found[m, i] = float(np.sum(one - norm.logpdf(t, 0, np.sqrt(1 + psi))))
    return found


def listed(path):
    scores = read_scores(path)
    return {(e, t): s for e, t, s in zip(scores.enroll.values, scores.test.values, scores.score, strict=True)}


def test_commands_of_the_page(files):
    typed = commands(PAGE)
    assert (
        len({command[0] for command in typed}) == 8
    )  # train, score, evaluate, convert, adapt, diarize, calibrate, report
    for command in typed:
        done(*command)
    expected = pair_ratios(read_model("plda"), dict(zip(files.ids.tolist(), files.X, strict=True)), files.models)
    for path in ("from-kaldi.txt", "from-wespeaker.txt", "from-hyperion.h5"):  # one model in three formats
        scores = listed(path)
        assert len(scores) == 144
        for pair, score in scores.items():
            assert score == pytest.approx(expected[pair], rel=1e-4, abs=1e-4)
    assert Backend.load("plain.safetensors").plda_.session_loadings_.shape == (D, 0)
    assert Backend.load("plain.safetensors").calibration_ is None
    two = Backend.load("model.safetensors")
    assert two.plda_.session_loadings_.shape[1] > 0
    assert Backend.load("adapted-kaldi.safetensors").adapted_["method"] == "kaldi"
    pairs = [Backend.load(f"from-{tool}.safetensors") for tool in ("vbx", "pyannote")]
    X = read_embeddings("eval.scp").load()[1]
    ratios = [b.llr(b.enroll(X[:9], range(9)), b.enroll(X[9:], range(39))) for b in pairs]
    np.testing.assert_allclose(*ratios, rtol=1e-6, atol=1e-6)


def test_raw_leaves_out_the_calibration(files):
    command = next(c for c in commands(PAGE) if c[0] == "train" and "--sessions" in c)
    done(*command, "--quiet")
    model = Backend.load("model.safetensors")
    assert model.calibration_ is not None
    score = next(c for c in commands(PAGE) if c[0] == "score" and "model.safetensors" in c)
    done(*score)
    done(*score[:-1], "raw.txt", "--raw")
    calibrated, raw = listed("scores.txt"), listed("raw.txt")
    for pair in raw:
        assert calibrated[pair] == pytest.approx(
            float(model.calibration_.transform([raw[pair]])[0]), rel=1e-4, abs=1e-4
        )


def test_score_files_with_labels_are_to_be_cut(files):
    """As the page says of wespeaker's score files, which have a fourth column."""
    Path("four").write_text("".join(f"{e} {t} {s} x\n" for (e, t), s in listed("scores.h5").items()))
    assert duoplda("evaluate", "--scores", "four", "--trials", "trials").exit_code == 1
    cut = "".join(" ".join(line.split(" ")[:3]) + "\n" for line in Path("four").read_text().splitlines())
    Path("three").write_text(cut)
    done("evaluate", "--scores", "three", "--trials", "trials")


def test_code_of_the_page(files, capsys):
    kaldi, speechbrain, bosaris, _, definitions = code(PAGE)
    plda = run(kaldi)["kaldi"]
    assert "a Kaldi Plda (10, 10)" in capsys.readouterr().out
    F, Sigma = plda.speaker_loadings_, np.linalg.inv(plda.noise_precision_)
    names = np.array([f"t{i}" for i in range(10)], dtype=object)
    given = {
        "train_stat": SimpleNamespace(stat1=files.X_train, modelset=files.speaker.astype(object)),
        "sessions": files.session,
        "plda": SimpleNamespace(mean=plda.mean_, F=F, Sigma=Sigma),
        "enrol_stat": SimpleNamespace(stat1=files.X[:5], modelset=np.array(list("abcde"), dtype=object)),
        "test_stat": SimpleNamespace(stat1=files.X[5:15], segset=names),
    }
    scores = run(speechbrain, given)["scores"]
    between, total = F @ F.T, F @ F.T + Sigma
    both = np.block([[total, between], [between, total]])
    alone = multivariate_normal(plda.mean_, total).logpdf(files.X)
    for i in range(5):
        for j in range(10):
            pair = np.concatenate([files.X[i], files.X[5 + j]])
            joint = multivariate_normal(np.tile(plda.mean_, 2), both).logpdf(pair)
            assert scores[i, j] == pytest.approx(joint - alone[i] - alone[5 + j], rel=1e-6, abs=1e-6)
    loaded = Backend.load("from-speechbrain.safetensors").plda_
    np.testing.assert_allclose(loaded.noise_precision_, plda.noise_precision_, rtol=1e-9)
    found = run(bosaris)
    assert len(found["calibrated"]) == 144
    labels, scores = found["labels"], found["scores"]
    rates = [((scores[labels] < t).mean(), (scores[~labels] >= t).mean()) for t in [*scores, np.inf]]
    plain = min(
        0.01 * miss + 0.99 * fa for miss, fa in rates
    )  # SpeechBrain's minDCF, BOSARIS's without a last argument
    assert 0.01 * min_dcf(scores, labels, 0.01) == pytest.approx(plain)
    assert act_dcf(scores, labels, 0.01) >= min_dcf(scores, labels, 0.01)
    nearest = min(rates, key=lambda r: abs(r[0] - r[1]))
    assert eer(scores, labels, "nearest") == pytest.approx(np.mean(nearest))
    assert eer(scores, labels) <= eer(scores, labels, "interpolated") + 1e-12
    capsys.readouterr()
    run(definitions)
    few, many, most = (float(line.split()[1]) for line in capsys.readouterr().out.splitlines())
    assert few > 0.5 > 0.2 > many > 0.05 > most  # points, as the page says roughly


def test_lirs_data_objects_there_and_back(files):
    pytest.importorskip("lir")
    found = run(code(PAGE)[3])
    scores, labels = found["scores"], found["labels"]
    np.testing.assert_allclose(found["ratios"], found["bounded"].transform(scores), rtol=1e-12)
    np.testing.assert_array_equal(found["truth"], labels)
    np.testing.assert_allclose((found["low"], found["high"]), found["fitted"].interval(scores), rtol=1e-12)
    ends = [end * np.log(10) for end in found["theirs"].llr_bounds]
    np.testing.assert_allclose(ends, [found["bounded"].lower_, found["bounded"].upper_], rtol=1e-12)
    from lir.metrics import cllr

    assert cllr(found["theirs"]) == pytest.approx(metrics.cllr(found["ratios"], labels), rel=1e-9)


def test_log10_scores_of_the_page(files):
    for command in commands(PAGE):
        if command[0] == "train" and "--sessions" in command:
            done(*command, "--quiet")
        if "--log10" in command or (command[0] == "score" and "model.safetensors" in command):
            done(*command)
    natural, ten = listed("scores.txt"), listed("log10.txt")
    for pair, score in natural.items():
        assert np.log(10) * ten[pair] == pytest.approx(score, rel=1e-4, abs=1e-4)
    assert max(listed("bounded.txt").values()) < max(ten.values())


def test_warning_of_vectors_that_were_not_prepared(files):
    done("convert", "plda", "from-kaldi.safetensors")
    write_embeddings("wrong.scp", files.ids, files.X + 2)
    trials = ["--enroll", "spk2utt", "--trials", "trials"]
    outputs = [
        done("score", "--model", "from-kaldi.safetensors", "--embeddings", x, *trials, "--out", f"{x}.txt").output
        for x in ("processed.scp", "wrong.scp")
    ]
    assert ["warning" in output for output in outputs] == [False, True]


def test_means_and_counts():
    """What the page says of averages: n recordings without session names are Kaldi's mean that counts as n."""
    rng = np.random.default_rng(0)
    V, X = rng.standard_normal((4, 3)), rng.standard_normal((6, 4))
    plda = PLDA.from_parameters(np.ones(4), V, None, np.diag([1.0, 2.0, 3.0, 0.5]))
    model = SimpleNamespace(mean=np.ones(4), speaker_loadings=V, noise_precision=np.diag([1.0, 2.0, 3.0, 0.5]))
    vectors, models = dict(enumerate(X)), {"m": [0, 1, 2]}
    exact = plda.llr(plda.enroll(X[:3], ["m"] * 3), plda.enroll(X[3:], range(3)))[0]
    averaged = plda.llr(plda.enroll(X[:3].mean(0)[None], ["m"]), plda.enroll(X[3:], range(3)))[0]
    counted, once = (pair_ratios(model, vectors, models, n) for n in (None, 1))
    np.testing.assert_allclose(exact, [counted["m", i] for i in (3, 4, 5)], rtol=1e-8)
    np.testing.assert_allclose(averaged, [once["m", i] for i in (3, 4, 5)], rtol=1e-8)


def test_commands_of_others_are_marked():
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / PAGE).read_text(), re.DOTALL | re.MULTILINE)
    assert {kind for kind, _ in blocks} == {"", "text", "python"}
    for kind, block in blocks:
        if kind != "python":
            assert all(line.startswith("duoplda ") == (kind == "") for line in block.splitlines())
