"""`duoplda score --cohort`: the scores that the library normalises, and cohorts that are refused."""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from cli_cases import done, duoplda, lines, make_folder, scoring
from duoplda import Backend, Recordings
from duoplda.estimators import scoring as library
from duoplda.io import read_map, read_score_matrix, read_scores, read_trials, write_embeddings, write_map

NOTE = "normalised scores are not likelihood ratios"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the other commands, a cohort of other speakers' recordings, and the same people enrolled."""
    at = tmp_path_factory.mktemp("cohort")
    make_folder(at)
    speaker = read_map(at / "utt2spk", "speaker")
    with np.load(at / "x.npz") as data:
        ids, X = data["ids"], data["embeddings"]
    who = np.array([speaker[i] for i in ids.tolist()])
    others = np.isin(who, np.unique(who)[6:])
    write_embeddings(at / "cohort.scp", ids[others], X[others])
    write_embeddings(at / "all.npz", ids, X)
    write_map(at / "people", who[others], ids[others])
    files = ["--model", at / "model.safetensors", "--embeddings", at / "x.npz", "--enroll", at / "people"]
    done("enroll", *files, "--sessions", at / "utt2sess", "--out", at / "people.safetensors", "--quiet")
    return at


def trials_of(folder, *more):
    return [*scoring(folder), "--enroll", folder / "enroll", "--trials", folder / "trials", *more]


def from_library(folder, method, top, sets=False):
    """Normalised scores of the trials, with everything in memory."""
    chain, trials = Backend.load(folder / "model.safetensors"), read_trials(folder / "trials")
    with np.load(folder / "x.npz") as data:
        ids, X = data["ids"], data["embeddings"]
    session, row = read_map(folder / "utt2sess", "session"), {i: k for k, i in enumerate(ids.tolist())}

    def sides(pairs):
        rows = [row[i] for _, i in pairs]
        return chain.enroll(X[rows], [m for m, _ in pairs], [session[i] for _, i in pairs])

    models, people = sides(lines(folder / "enroll")), lines(folder / "people")
    cohort = sides(people if sets else [(i, i) for _, i in people])
    options = {"session": session, "cohort": cohort, "normalize": method, "cohort_top": top}
    tests = Recordings.from_arrays(X, ids=ids)
    return library.score_trials(chain, models, trials, tests, **options)


@pytest.mark.parametrize("sets", [False, True])
@pytest.mark.parametrize("method", ["z", "t", "s", "as1", "as2"])
def test_it_is_what_the_library_gives(tmp_path, folder, method, sets):
    cohort = folder / ("people.safetensors" if sets else "cohort.scp")
    more = ["--sessions", folder / "utt2sess", "--cohort", cohort, "--normalize", method, "--cohort-top", 9]
    said = done(*trials_of(folder, *more, "--out", tmp_path / "s.npz")).stderr
    assert said.count(NOTE) == 1
    assert "duoplda calibrate" in said
    found, expected = read_scores(tmp_path / "s.npz"), from_library(folder, method, 9, sets)
    assert found.enroll.values.tolist() == expected.enroll.values.tolist()
    np.testing.assert_allclose(found.score, expected.score, rtol=1e-9, atol=1e-9)


def test_the_defaults(tmp_path, folder):
    """as1, and the highest 300 or as many as there are; --json tells."""
    shown = done(*trials_of(folder, "--cohort", folder / "cohort.scp", "--out", tmp_path / "a", "--json")).stdout
    n = len(lines(folder / "people"))
    assert json.loads(shown).items() >= {"normalize": "as1", "cohort": n}.items()
    for method in ("as1", "s"):
        more = ["--cohort", folder / "cohort.scp", "--normalize", method, "--out", tmp_path / method]
        done(*trials_of(folder, *more, "--cohort-top", min(n, 300)))
    a, same = (lines(tmp_path / name) for name in ("a", "as1"))
    assert a == same
    assert n < 300 or lines(tmp_path / "s") != a


def test_the_calibration_of_the_model_is_not_applied(tmp_path, folder):
    chain = Backend.load(folder / "model.safetensors")
    chain.calibrate([-1.0, 1.0, -0.5, 3.0, 2.0], [False, False, True, True, True]).save(tmp_path / "calibrated")
    with_it, values = ["--model", tmp_path / "calibrated"], {}
    for name, more in (("plain", []), ("raw", ["--raw"]), ("cohort", ["--cohort", folder / "cohort.scp"])):
        done(*trials_of(folder, *with_it, *more, "--out", tmp_path / name))
        values[name] = read_scores(tmp_path / name).score
    assert np.abs(values["plain"] - values["raw"]).max() > 0.1
    done(*trials_of(folder, "--cohort", folder / "cohort.scp", "--out", tmp_path / "without"))
    np.testing.assert_array_equal(values["cohort"], read_scores(tmp_path / "without").score)


def test_matrix_and_top(tmp_path, folder):
    more = ["--cohort", folder / "cohort.scp", "--normalize", "as2", "--cohort-top", 5]
    done(*trials_of(folder, *more, "--matrix", "--out", tmp_path / "m.npz"))
    done(*trials_of(folder, *more, "--top", 1, "--out", tmp_path / "top"))
    whole, best = read_score_matrix(tmp_path / "m.npz"), read_scores(tmp_path / "top")
    place = {t: k for k, t in enumerate(whole.test_ids.tolist())}
    highest = whole.enroll_ids[whole.score.argmax(axis=0)]
    assert best.enroll.values.tolist() == [highest[place[t]] for t in best.test.values.tolist()]


def test_recordings_that_are_in_the_trials_are_refused(tmp_path, folder):
    result = duoplda(*trials_of(folder, "--cohort", folder / "all.npz", "--out", tmp_path / "s"))
    assert result.exit_code == 1
    assert "speakers or recordings with the recordings of the enrolment: 'utt" in result.stderr
    assert NOTE not in result.stderr
    assert not (tmp_path / "s").exists()


def test_speakers_that_are_in_the_trials_are_refused(tmp_path, folder):
    """Other recordings of the same people: only a list of speakers tells."""
    used = {i for _, i in lines(folder / "enroll")} | {t for _, t, *_ in lines(folder / "trials")}
    with np.load(folder / "x.npz") as data:
        ids, X = data["ids"], data["embeddings"]
    mine = [k for k, i in enumerate(ids.tolist()) if i in used][:3]
    copies = [f"copy-{ids[k]}" for k in mine]
    others = lines(folder / "people")
    rows = [*mine, *(ids.tolist().index(i) for _, i in others)]
    write_embeddings(tmp_path / "c.npz", [*copies, *(i for _, i in others)], X[rows])
    common = trials_of(folder, "--cohort", tmp_path / "c.npz", "--out", tmp_path / "s")
    done(*common)
    speaker = read_map(folder / "utt2spk", "speaker")
    write_map(tmp_path / "utt2spk", [*speaker], [*speaker.values()])
    result = duoplda(*common, "--cohort-speakers", tmp_path / "utt2spk", "--force", "--strict")
    assert result.exit_code == 3
    assert f"3 recordings of the cohort have no speaker: {', '.join(sorted(copies))}" in result.stderr
    more = {copy: speaker[ids[k]] for copy, k in zip(copies, mine, strict=True)}
    write_map(tmp_path / "all", [*speaker, *more], [*speaker.values(), *more.values()])
    result = duoplda(*common, "--cohort-speakers", tmp_path / "all", "--force")
    assert result.exit_code == 1
    assert "the cohort shares" in result.stderr
    done(*trials_of(folder, "--cohort", folder / "cohort.scp"), "--cohort-speakers", folder / "utt2spk",
         "--out", tmp_path / "t")  # fmt: skip


def test_sessions_that_are_in_the_trials_are_refused(tmp_path, folder):
    """Of a cohort whose recordings have other names."""
    session, test = read_map(folder / "utt2sess", "session"), lines(folder / "trials")[0][1]
    others = [i for _, i in lines(folder / "people")]
    write_map(tmp_path / "sessions", others, [session[test], *(f"new {i}".replace(" ", "-") for i in others[1:])])
    given = ["--cohort", folder / "cohort.scp", "--cohort-sessions", tmp_path / "sessions"]
    result = duoplda(*trials_of(folder, *given, "--sessions", folder / "utt2sess", "--out", tmp_path / "s"))
    assert result.exit_code == 1
    assert f"the cohort shares 1 sessions with the test recordings: '{session[test]}'" in result.stderr or (
        f"the cohort shares 1 sessions with the models: '{session[test]}'" in result.stderr
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--normalize", "s"], "need --cohort"),
        (["--cohort-top", 5], "need --cohort"),
        (["--cohort-speakers", "x"], "need --cohort"),
        (["--cohort", "x", "--normalize", "snorm"], "'snorm' is not one of 'z', 't', 's', 'as1', 'as2'"),
        (["--cohort", "x", "--cohort-top", 1], "--cohort-top"),
    ],
)
def test_options_that_do_not_go_together(folder, more, message):
    result = duoplda(*trials_of(folder, *more))
    assert result.exit_code == 2
    assert message in result.stderr


def test_files_that_are_no_cohort(tmp_path, folder):
    result = duoplda(*trials_of(folder, "--cohort", folder / "model.safetensors", "--out", tmp_path / "s"))
    assert result.exit_code == 1
    assert "is a model of duoplda, not a file of enrolled speakers" in result.stderr
    voices = ["--cohort", folder / "people.safetensors"]
    for more in (["--cosine"], ["--cohort-sessions", folder / "utt2sess"], ["--cohort-ids", "rows"]):
        result = duoplda(*trials_of(folder, *voices, *more, "--out", tmp_path / "s"))
        assert result.exit_code == 2
        assert "--cohort is a file of enrolled sets" in result.stderr
    with np.load(folder / "x.npz") as data:
        write_embeddings(tmp_path / "one.npz", ["single"], data["embeddings"][:1])
    result = duoplda(*trials_of(folder, "--cohort", tmp_path / "one.npz", "--out", tmp_path / "s"))
    assert "the cohort has 1 members: give at least 2" in result.stderr
    result = duoplda(*trials_of(folder, "--cohort", folder / "cohort.scp", "--out", folder / "cohort.scp", "--force"))
    assert result.exit_code == 1
    assert str(folder / "cohort.scp") in result.stderr
    assert not (tmp_path / "s").exists()


def test_the_page(tmp_path, folder, monkeypatch):
    """The commands and the code of docs/normalization.md."""
    names = {"x.npz": "eval.npz", "people.safetensors": "others.safetensors", "cohort.scp": "others.scp"}
    for name in ("model.safetensors", "trials", "enroll", "utt2spk", *names, *(p.name for p in folder.glob("*.ark"))):
        shutil.copy(folder / name, tmp_path / names.get(name, name))
    text = (Path(__file__).parents[1] / "docs/normalization.md").read_text()
    monkeypatch.chdir(tmp_path)
    typed = [shlex.split(line)[1:] for line in re.findall(r"^duoplda .*", text, re.MULTILINE)]
    assert [words[0] for words in typed] == ["score", "calibrate", "score", "enroll", "score"]
    for words in typed:
        if words[0] == "enroll":
            shutil.copy(folder / "people", tmp_path / "people")
            Path("others.safetensors").unlink()
        done(*words)
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    found = {}
    exec(compile(block, "docs/normalization.md", "exec"), found)
    listed = read_scores("normalised.txt")
    np.testing.assert_allclose(found["scores"].score, listed.score, rtol=1e-6, atol=1e-6)
