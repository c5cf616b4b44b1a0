"""The command line, as a user meets it: help, exit codes, training, scoring."""

import hashlib
import json
import subprocess
import sys
from functools import cache

import numpy as np
import pytest

from cli_cases import QUICK, done, duoplda, lines, make_folder, recordings, same_model, scoring, training
from duoplda import PLDA
from duoplda.cli import COMMANDS
from duoplda.estimators.backend import Backend
from duoplda.io import read_container, read_score_matrix, read_scores, write_embeddings, write_map


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    at = tmp_path_factory.mktemp("cli")
    make_folder(at)
    return at


# -- help


def test_every_help_ends_in_an_example():
    result = done("--help")
    assert "duoplda demo --out demo" in result.output.splitlines()[-1]
    for name in COMMANDS:
        assert f"\n  {name} " in result.output
        text = done(name, "--help").output.rstrip().splitlines()
        examples = [i for i, line in enumerate(text) if line.strip() == "Example:"]
        assert examples, name
        assert all(line.strip().startswith(f"duoplda {name} ") for line in text[examples[-1] + 1 :])


def test_options_are_those_of_the_issue():
    text = done("train", "--help").output
    for option in ("embeddings", "speakers", "sessions", "channels", "labels", "out", "shrinkage", "lda"):
        assert f"--{option} " in text
    for option in (
        "no-whiten",
        "no-length-norm",
        "tol",
        "max-iter",
        "seed",
        "device",
        "resume",
        "force",
        "quiet",
        "json",
    ):
        assert f"--{option}" in text
    text = done("score", "--help").output
    for option in ("model", "embeddings", "test-embeddings", "enroll", "enrolled", "trials", "out", "top", "matrix"):
        assert f"--{option} " in text


@cache
def heavy(code):
    """Which heavy libraries a piece of code brings in."""
    names = "('sklearn', 'scipy', 'numpy', 'safetensors', 'pyarrow', 'h5py', 'matplotlib', 'torch')"
    code = f"{code}\nimport sys; print(*[m for m in {names} if m in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_the_command_line_brings_in_nothing_heavy_of_its_own():
    assert heavy("import duoplda.cli") == heavy("import duoplda")


def test_help_waits_for_nothing_heavy():
    """How long it takes is in benchmarks/files.py; this is why it is short."""
    assert heavy("import duoplda.cli") == []
    of_each = "[app([name, '--help'], standalone_mode=False) for name in COMMANDS]"
    silently = "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()):"
    assert heavy(f"from duoplda.cli import COMMANDS, app\n{silently} {of_each}\n") == []


# -- exit codes


def test_version_and_module():
    assert done("--version").output.strip() == "0.1.0"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nonsense"], 2, "nonsense"),
        (["train"], 2, "Missing option"),
        (["train", "--embeddings", "x", "--out", "m"], 2, "give either --labels or --speakers"),
        (["train", "--embeddings", "x", "--out", "m", "--speakers", "a", "--shrinkage", "2,0,0"], 2, "--shrinkage"),
        (["train", "--embeddings", "x", "--out", "m", "--speakers", "a", "--speaker-factors", "x"], 2, "full or auto"),
        (["train", "--embeddings", "x", "--out", "m", "--speakers", "a"], 1, "a: no such file"),
        (["train", "--embeddings", "x", "--out", "no/m", "--speakers", "a"], 1, "its folder does not exist"),
        (["train", "--embeddings", "x", "--out", ".", "--speakers", "a"], 1, "is a folder"),
        (["score", "--model", "m", "--embeddings", "x", "--out", "s"], 2, "give --trials"),
        (["score", "--model", "m", "--embeddings", "x", "--top", "0", "--out", "s"], 2, "top"),
        (["score", "--model", "m", "--embeddings", "x", "--top", "1", "--matrix"], 2, "exclude each other"),
        (["score", "--model", "m", "--embeddings", "x", "--trials", "t", "--out", "s"], 1, "m: cannot read the model"),
        (["info", "nothing"], 1, "nothing: cannot read the model"),
    ],
)
def test_exit_codes(arguments, code, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = duoplda(*arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert not result.stdout
    if "Usage" not in result.stderr:
        assert result.stderr.startswith("duoplda: error: ")
        assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_damaged_model_is_one_line(tmp_path, folder):
    whole = (folder / "model.safetensors").read_bytes()
    (tmp_path / "m").write_bytes(whole[: len(whole) // 2])
    result = duoplda("info", tmp_path / "m")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "truncated or damaged" in result.stderr


# -- train


def test_train_is_the_backend(tmp_path):
    X, _, speaker, session = recordings(tmp_path)
    result = done(*training(tmp_path), *QUICK, "--lda", 8, "--out", tmp_path / "m", "--json")
    report = json.loads(result.stdout)
    assert "names of sessions" not in result.stderr
    assert report["data"] == {"speakers": 40, "sessions": len(set(session)), "recordings": len(X)}
    assert report["training"]["converged"]
    assert report["n_dimensions"] == 8
    files = [tmp_path / name for name in ("x.npz", "utt2spk", "utt2sess")]
    assert report["provenance"]["sha256"] == {str(f): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}
    assert set(report["provenance"]["fingerprint"]) == {str(files[0])}
    plda = PLDA(shrinkage=(0.1, 0.1, 0.1), tol=1e-4, random_state=0)
    own = Backend(lda=8, plda=plda).fit(X, speaker, session=session)
    own.save(tmp_path / "own")
    a, b = (read_container(tmp_path / n, ["duoplda-backend"])[0] for n in ("m", "own"))
    assert set(a) == set(b)
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-6, atol=1e-9)
    assert not (tmp_path / "m.resume").exists()


def test_summary_in_words_goes_to_stderr(tmp_path):
    recordings(tmp_path)
    result = done("train", "--embeddings", tmp_path / "x.npz", "--speakers", tmp_path / "utt2spk", *QUICK,
                  "--out", tmp_path / "m")  # fmt: skip
    assert result.stdout == ""
    assert "each recording is taken for a session of its own" in result.stderr
    for words in ("40 speakers", "variance: speaker", "converged"):
        assert words in result.stderr
    quiet = done(*training(tmp_path), *QUICK, "--out", tmp_path / "n", "--quiet")
    assert quiet.output == ""


def test_too_few_iterations_are_a_warning(tmp_path):
    recordings(tmp_path)
    result = done(*training(tmp_path), "--shrinkage", "none", "--max-iter", 2, "--out", tmp_path / "m")
    assert "duoplda: warning: EM did not converge in 2 iterations" in result.stderr
    assert "2 iterations, not converged" in result.stderr


def test_channels_and_tables(tmp_path, folder):
    channels = ["--channels", folder / "utt2chan", "--center-by-channel"]
    done(*training(folder), *channels, *QUICK, "--out", tmp_path / "a", "--quiet")
    assert Backend.load(tmp_path / "a").plda_.channels_.tolist() == ["mic", "phone"]
    maps = [dict(lines(folder / n)) for n in ("utt2spk", "utt2sess", "utt2chan")]
    rows = ["id,speaker,session,channel", *(f"{i},{','.join(m[i] for m in maps)}" for i in maps[0])]
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n")
    table = ["train", "--embeddings", folder / "x.npz", "--labels", tmp_path / "table.csv", "--center-by-channel"]
    done(*table, *QUICK, "--out", tmp_path / "b", "--quiet")
    assert same_model(tmp_path / "a", tmp_path / "b")
    scores = [*scoring(folder), "--enroll", folder / "enroll", "--trials", folder / "trials", "--quiet"]
    scores[2] = tmp_path / "a"
    done(*scores, "--channels", folder / "utt2chan", "--out", tmp_path / "known")
    done(*scores, "--out", tmp_path / "inferred")
    known, inferred = (read_scores(tmp_path / n).score for n in ("known", "inferred"))
    assert np.isfinite(known).all()
    assert np.abs(known - inferred).max() > 1e-6


def test_names_of_sessions_may_repeat_from_speaker_to_speaker(tmp_path):
    recordings(tmp_path)
    unique = dict(lines(tmp_path / "utt2sess"))
    write_map(tmp_path / "short", unique, [s.partition("-")[2] for s in unique.values()])
    done(*training(tmp_path), *QUICK, "--out", tmp_path / "a", "--quiet")
    arguments = training(tmp_path)
    arguments[-1] = tmp_path / "short"
    result = done(*arguments, *QUICK, "--out", tmp_path / "b")
    assert "names of sessions repeat" in result.stderr
    assert Backend.load(tmp_path / "a").counts_ == Backend.load(tmp_path / "b").counts_
    a, b = (Backend.load(tmp_path / n).plda_.log_likelihoods_[-1] for n in "ab")
    assert abs(a - b) < 1e-6 * abs(a)


def test_missing_ids_of_training(tmp_path):
    X, ids, _, _ = recordings(tmp_path)
    keep = ~np.isin(ids, [f"utt{i:05}" for i in range(14)])
    write_embeddings(tmp_path / "x.npz", ids[keep], X[keep], force=True)
    for lda in ([], ["--lda", "5"]):
        result = duoplda(*training(tmp_path), *QUICK, *lda, "--out", tmp_path / "m")
        assert result.exit_code == 3
        assert "14 labelled recordings have no embedding: utt00000, utt00001" in result.stderr
        assert "utt00009, ..." in result.stderr
        assert "utt00010" not in result.stderr
        assert not (tmp_path / "m").exists()
    report = json.loads(done(*training(tmp_path), *QUICK, "--allow-missing", "--json", "--out", tmp_path / "m").stdout)
    assert report["data"]["recordings"] == keep.sum()


def test_embeddings_without_label_are_counted_and_left_out(tmp_path):
    X, ids, _, _ = recordings(tmp_path)
    more = np.array([f"other{i}" for i in range(7)])
    done(*training(tmp_path), *QUICK, "--out", tmp_path / "a", "--quiet")
    mixed = np.concatenate([more[:3], ids[:90], more[3:], ids[90:]])
    rows = np.concatenate([X[:3] + 9, X[:90], X[:4] - 9, X[90:]])
    write_embeddings(tmp_path / "x.npz", mixed, rows, force=True)
    result = done(*training(tmp_path), *QUICK, "--out", tmp_path / "b")
    assert "7 embeddings have no label" in result.stderr
    assert same_model(tmp_path / "a", tmp_path / "b")


def test_existing_output_stays(tmp_path, folder):
    out = tmp_path / "m"
    out.write_text("mine")
    for command in ([*training(folder), *QUICK], [*scoring(folder), "--trials", folder / "trials"]):
        result = duoplda(*command, "--out", out)
        assert result.exit_code == 1
        assert "exists already" in result.stderr
        assert out.read_text() == "mine"
    done(*training(folder), *QUICK, "--out", out, "--force", "--quiet")
    assert same_model(out, folder / "model.safetensors")


# -- score


def test_lists_matrices_and_top_agree(tmp_path, folder):
    common = [*scoring(folder), "--enroll", folder / "enroll", "--sessions", folder / "utt2sess", "--quiet"]
    done(*common, "--trials", folder / "trials", "--out", tmp_path / "list.tsv")
    listed = read_scores(tmp_path / "list.tsv")
    assert listed.enroll.values.tolist() == [line[0] for line in lines(folder / "trials")]
    assert listed.test.values.tolist() == [line[1] for line in lines(folder / "trials")]
    for name in ("m.npz", "m.txt", "m.h5", "m.parquet"):
        done(*common, "--trials", folder / "trials", "--matrix", "--out", tmp_path / name)
        m = read_score_matrix(tmp_path / name)
        rows = [m.enroll_ids.tolist().index(e) for e in listed.enroll.values]
        columns = [m.test_ids.tolist().index(t) for t in listed.test.values]
        np.testing.assert_allclose(m.score[rows, columns], listed.score, rtol=1e-6, atol=1e-6)
    done(*common, "--trials", folder / "trials", "--top", 2, "--out", tmp_path / "top")
    best = read_scores(tmp_path / "top")
    assert len(best) == 2 * len(m.test_ids)
    for i in range(0, len(best), 2):
        column = m.score[:, m.test_ids.tolist().index(best.test.values[i])]
        np.testing.assert_allclose(best.score[i : i + 2], np.sort(column)[::-1][:2], atol=1e-6)
        assert best.enroll.values[i] == m.enroll_ids[column.argmax()]
    # the same by hand
    chain = Backend.load(folder / "model.safetensors")
    with np.load(folder / "x.npz") as data:
        vectors = dict(zip(data["ids"].tolist(), data["embeddings"], strict=True))
    session = dict(lines(folder / "utt2sess"))
    models, members = zip(*lines(folder / "enroll"), strict=True)
    sides = chain.enroll([vectors[i] for i in members], models, [session[i] for i in members])
    tests = np.unique(listed.test.values)
    other = chain.enroll([vectors[i] for i in tests], tests, [session[i] for i in tests])
    pairs = np.column_stack([sides.find(listed.enroll.values), other.find(listed.test.values)])
    np.testing.assert_allclose(listed.score, chain.llr(sides, other, pairs), atol=1e-9)


def test_sessions_matter_and_files_may_differ(tmp_path, folder):
    common = ["--enroll", folder / "enroll", "--trials", folder / "trials", "--quiet"]
    done(*scoring(folder), *common, "--out", tmp_path / "without")
    done(*scoring(folder), *common, "--sessions", folder / "utt2sess", "--out", tmp_path / "with")
    a, b = (read_scores(tmp_path / n).score for n in ("without", "with"))
    assert np.abs(a - b).max() > 0.01
    with np.load(folder / "x.npz") as data:
        ids, X = data["ids"], data["embeddings"]
    enrolled = np.isin(ids, [line[1] for line in lines(folder / "enroll")])
    write_embeddings(tmp_path / "e.ark", ids[enrolled], X[enrolled])
    write_embeddings(tmp_path / "t.h5", ids[~enrolled], X[~enrolled])
    apart = ["score", "--model", folder / "model.safetensors", "--embeddings", tmp_path / "e.ark"]
    done(*apart, "--test-embeddings", tmp_path / "t.h5", *common, "--out", tmp_path / "apart")
    np.testing.assert_allclose(read_scores(tmp_path / "apart").score, a, atol=1e-9)
    everything = [*apart, "--test-embeddings", tmp_path / "t.h5", "--enroll", folder / "enroll", "--matrix"]
    report = json.loads(done(*everything, "--out", tmp_path / "all.npz", "--json").stdout)
    assert report["scores"] == 6 * (~enrolled).sum()
    table = "".join(f"{i},{s}\n" for i, s in lines(folder / "utt2sess"))
    (tmp_path / "sess.csv").write_text("id,session\n" + table)
    done(*scoring(folder), *common, "--sessions", tmp_path / "sess.csv", "--out", tmp_path / "table")
    np.testing.assert_array_equal(read_scores(tmp_path / "table").score, b)


def test_scores_on_standard_output(folder):
    (folder / "pair").write_text("utt00000 utt00001\n")
    result = done(*scoring(folder), "--trials", folder / "pair")
    left, right, value = result.stdout.split()
    assert (left, right) == ("utt00000", "utt00001")
    assert np.isfinite(float(value))


def test_cosine(tmp_path, folder):
    done(*scoring(folder), "--trials", folder / "trials", "--enroll", folder / "enroll", "--cosine", "--quiet",
         "--out", tmp_path / "s")  # fmt: skip
    values = read_scores(tmp_path / "s").score
    chain = Backend.load(folder / "model.safetensors")
    with np.load(folder / "x.npz") as data:
        Z = dict(zip(data["ids"].tolist(), chain.transform(data["embeddings"]), strict=True))
    members = {}
    for model, recording in lines(folder / "enroll"):
        members.setdefault(model, []).append(Z[recording])
    first = lines(folder / "trials")[0]
    a, b = np.mean(members[first[0]], axis=0), Z[first[1]]
    assert abs(values[0] - a @ b / np.linalg.norm(a) / np.linalg.norm(b)) < 1e-12


def test_missing_ids_of_trials(tmp_path, folder):
    trials = (folder / "trials").read_text()
    n = trials.count("\n")
    first = trials.split()[1]
    (tmp_path / "trials").write_text(trials + "m-spk0 ghost target\n" + f"nobody {first} nontarget\n")
    common = [*scoring(folder), "--enroll", folder / "enroll", "--trials", tmp_path / "trials"]
    result = duoplda(*common, "--out", tmp_path / "s")
    assert result.exit_code == 3
    assert "1 models of the trials are not enrolled: nobody" in result.stderr
    assert not (tmp_path / "s").exists()
    result = done(*common, "--allow-missing", "--out", tmp_path / "s")
    assert "1 test recordings have no embedding, left out: ghost" in result.stderr
    assert "2 trials left out" in result.stderr
    assert len(read_scores(tmp_path / "s")) == n
    (tmp_path / "enroll").write_text((folder / "enroll").read_text() + "m-spk0 gone\n")
    common = [*scoring(folder), "--enroll", tmp_path / "enroll", "--trials", folder / "trials"]
    assert duoplda(*common, "--out", tmp_path / "t").exit_code == 3
    assert "left out: gone" in done(*common, "--allow-missing", "--out", tmp_path / "t").stderr


def test_wrong_dimension_is_named(tmp_path, folder):
    write_embeddings(tmp_path / "y.ark", ["utt00000", "utt00001"], np.ones((2, 3), np.float32))
    (tmp_path / "pair").write_text("utt00000 utt00001\n")
    arguments = ["score", "--model", folder / "model.safetensors", "--embeddings", tmp_path / "y.ark"]
    result = duoplda(*arguments, "--trials", tmp_path / "pair")
    assert result.exit_code == 1
    assert "vectors have 3 dimensions, the model takes 12" in result.stderr


# -- info


def test_info(folder):
    text = done("info", folder / "model.safetensors").stdout
    for words in ("center -> whiten -> length_norm -> plda", "40 speakers", "converged", "command: duoplda train"):
        assert words in text
    values = json.loads(done("info", folder / "model.safetensors", "--json").stdout)
    assert values["data"]["speakers"] == 40
    assert len(values["training"]["log_likelihoods"]) == values["training"]["n_iter"] + 1


def test_summaries_of_commands_are_not_cut_off(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = done("--help").stdout
    listed = said.split("Commands:\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == list(COMMANDS)
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)
    assert "--install-completion" in said
    assert "--show-completion" in said
