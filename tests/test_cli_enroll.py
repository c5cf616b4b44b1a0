"""`duoplda enroll` and `duoplda score --enrolled`: speakers in a file, enrolled once and scored every day."""

import hashlib
import json

import numpy as np
import pytest

from cli_cases import QUICK, done, duoplda, lines, make_folder, scoring, training
from duoplda.estimators.backend import Backend
from duoplda.io import read_score_matrix, read_scores, write_map


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    at = tmp_path_factory.mktemp("enroll")
    make_folder(at)
    done(*enrolling(at), "--out", at / "voices.safetensors", "--quiet")
    return at


def enrolling(folder, enroll="enroll", model="model.safetensors"):
    files = ["--model", folder / model, "--embeddings", folder / "x.npz", "--enroll", folder / enroll]
    return ["enroll", *files, "--sessions", folder / "utt2sess"]


def scores(folder, out, *how):
    done(*scoring(folder), *how, "--sessions", folder / "utt2sess", "--quiet", "--out", out)
    return read_scores(out)


@pytest.mark.parametrize("what", [["--trials"], ["--trials", "--matrix"], ["--trials", "--top", "2"], ["--top", "2"]])
def test_enrolled_once_is_enrolled_each_time(tmp_path, folder, what):
    how = [x for option in what for x in ((option, folder / "trials") if option == "--trials" else (option,))]
    a = scores(folder, tmp_path / "a", *how, "--enroll", folder / "enroll")
    b = scores(folder, tmp_path / "b", *how, "--enrolled", folder / "voices.safetensors")
    assert a.enroll.values.tolist() == b.enroll.values.tolist()
    assert a.test.values.tolist() == b.test.values.tolist()
    np.testing.assert_allclose(a.score, b.score, rtol=1e-9, atol=1e-9)


def test_a_matrix_of_all_tests(tmp_path, folder):
    done(*scoring(folder), "--enrolled", folder / "voices.safetensors", "--matrix", "--out", tmp_path / "m.npz")
    m = read_score_matrix(tmp_path / "m.npz")
    chain = Backend.load(folder / "model.safetensors")
    voices = chain.load_sides(folder / "voices.safetensors")
    with np.load(folder / "x.npz") as data:
        assert m.test_ids.tolist() == data["ids"].tolist()
        expected = chain.llr(voices, chain.enroll(data["embeddings"], np.arange(len(data["ids"]))))
    assert m.enroll_ids.tolist() == voices.ids.tolist()
    np.testing.assert_allclose(m.score, expected, rtol=1e-9, atol=1e-9)


def test_added_later_is_enrolled_at_once(tmp_path, folder):
    """Further recordings of old sessions, new sessions of known speakers, new speakers; and removed again."""
    table = lines(folder / "enroll")
    session = dict(lines(folder / "utt2sess"))
    speaker = dict(lines(folder / "utt2spk"))
    more = [(m, i) for m, _ in table for i in speaker if m == f"m-{speaker[i]}" and (m, i) not in map(tuple, table)]
    more = [*dict.fromkeys(more), ("new", "utt00000"), ("new", "utt00001")]
    assert {session[i] for _, i in more} & {session[i] for _, i in table}
    write_map(tmp_path / "more", *zip(*more, strict=True))
    write_map(tmp_path / "all", *zip(*map(tuple, table), *more, strict=True))
    add = ["--add-to", folder / "voices.safetensors"]
    said = done(*enrolling(folder, tmp_path / "more"), *add, "--out", tmp_path / "added", "--json").stdout
    done(*enrolling(folder, tmp_path / "all"), "--out", tmp_path / "once")
    chain = Backend.load(folder / "model.safetensors")
    added, once = (chain.load_sides(tmp_path / name) for name in ("added", "once"))
    assert json.loads(said) == {"out": str(tmp_path / "added"), "speakers": 7, "sessions": int(once.counts.sum())}
    np.testing.assert_allclose(added.gamma[added.find(once.ids)], once.gamma, rtol=1e-9, atol=1e-9)
    assert added.counts.sum() == once.counts.sum()

    change = ["enroll", "--model", folder / "model.safetensors", "--add-to", tmp_path / "added"]
    gone = table[0][0]
    said = done(*change, "--remove", "new", "--remove", gone, "--out", tmp_path / "fewer").stderr
    assert "5 speakers with" in said
    fewer = chain.load_sides(tmp_path / "fewer")
    assert sorted(fewer.ids.tolist()) == sorted({m for m, _ in table} - {gone})
    np.testing.assert_array_equal(fewer.gamma, added.gamma[added.find(fewer.ids)])


def test_ids_that_are_not_there(tmp_path, folder):
    (tmp_path / "enroll").write_text((folder / "enroll").read_text() + "m-spk0 gone\n")
    result = duoplda(*enrolling(folder, tmp_path / "enroll"), "--out", tmp_path / "v")
    assert result.exit_code == 3
    assert "1 recordings of the enrolment have no embedding: gone" in result.stderr
    done(*enrolling(folder, tmp_path / "enroll"), "--allow-missing", "--out", tmp_path / "v")
    change = ["enroll", "--model", folder / "model.safetensors", "--add-to", tmp_path / "v", "--remove", "nobody"]
    result = duoplda(*change, "--out", tmp_path / "w")
    assert result.exit_code == 3
    assert "1 speakers to be removed are not enrolled: nobody" in result.stderr
    assert not (tmp_path / "w").exists()
    (tmp_path / "trials").write_text(
        f"stranger {lines(folder / 'trials')[0][1]} nontarget\n" + (folder / "trials").read_text()
    )
    common = [*scoring(folder), "--enrolled", folder / "voices.safetensors", "--trials", tmp_path / "trials"]
    result = duoplda(*common, "--out", tmp_path / "s")
    assert result.exit_code == 3
    assert "1 models of the trials are not enrolled: stranger" in result.stderr
    assert "1 trials left out" in done(*common, "--allow-missing", "--out", tmp_path / "s").stderr


@pytest.mark.parametrize("how", [["--top", "1"], ["--matrix"]])
def test_wanted_tests_that_are_not_there_leave_no_file(tmp_path, folder, how):
    (tmp_path / "trials").write_text((folder / "trials").read_text() + f"{lines(folder / 'trials')[0][0]} ghost\n")
    (tmp_path / "trials").write_text("".join(f"{a} {b}\n" for a, b, *_ in lines(tmp_path / "trials")))
    common = [*scoring(folder), "--enrolled", folder / "voices.safetensors", "--trials", tmp_path / "trials", *how]
    result = duoplda(*common, "--out", tmp_path / "s")
    assert result.exit_code == 3
    assert "1 test recordings have no embedding: ghost" in result.stderr
    assert not (tmp_path / "s").exists()
    assert "left out: ghost" in done(*common, "--out", tmp_path / "s", "--allow-missing").stderr


def test_voices_of_another_model_are_refused(tmp_path, folder):
    done(*training(folder), *QUICK, "--lda", 5, "--out", tmp_path / "other", "--quiet")
    result = duoplda(*enrolling(folder, model=tmp_path / "other"), "--add-to", folder / "voices.safetensors",
                     "--out", tmp_path / "v")  # fmt: skip
    assert result.exit_code == 1
    assert "enrolled with another model" in result.stderr
    files = [
        "--model",
        tmp_path / "other",
        "--embeddings",
        folder / "x.npz",
        "--enrolled",
        folder / "voices.safetensors",
    ]
    result = duoplda("score", *files, "--trials", folder / "trials", "--out", tmp_path / "s")
    assert result.exit_code == 1
    assert "enrolled with another model" in result.stderr
    assert result.stderr.count("\n") == 1
    files[5] = folder / "model.safetensors"
    result = duoplda("score", *files, "--trials", folder / "trials", "--out", tmp_path / "s")
    assert "is a model of duoplda, not a file of enrolled speakers" in result.stderr


@pytest.mark.parametrize("victim", ["x.npz", "enroll", "utt2sess", "voices.safetensors", "model.safetensors", "trials"])
@pytest.mark.parametrize("command", ["enroll", "score"])
def test_no_command_writes_over_its_own_input(tmp_path, folder, victim, command):
    """With --force too."""
    for name in ("x.npz", "enroll", "utt2sess", "voices.safetensors", "model.safetensors", "trials"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    before = (tmp_path / victim).read_bytes()
    if command == "enroll":
        arguments = [*enrolling(tmp_path), "--add-to", tmp_path / "voices.safetensors"]
        if victim == "trials":
            return
    else:
        how = (
            ["--enroll", tmp_path / "enroll"] if victim == "enroll" else ["--enrolled", tmp_path / "voices.safetensors"]
        )
        arguments = [*scoring(tmp_path), *how, "--trials", tmp_path / "trials", "--sessions", tmp_path / "utt2sess"]
    result = duoplda(*arguments, "--force", "--out", tmp_path / victim)
    assert result.exit_code == 1
    assert str(tmp_path / victim) in result.stderr
    assert (tmp_path / victim).read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["enroll", "--model", "m", "--out", "v"], "give --embeddings and --enroll"),
        (["enroll", "--model", "m", "--out", "v", "--embeddings", "x"], "go together"),
        (["enroll", "--model", "m", "--out", "v", "--remove", "a"], "--add-to"),
        (["enroll", "--model", "m", "--out", "v", "--add-to", "w", "--dask", "local", "--device", "cuda"], "--device"),
        (["score", "--model", "m", "--embeddings", "x", "--enrolled", "v", "--enroll", "e", "--matrix"], "--enrolled"),
        (["score", "--model", "m", "--embeddings", "x", "--enrolled", "v", "--cosine", "--matrix"], "--enrolled"),
        (["score", "--model", "m", "--embeddings", "x", "--matrix"], "--enroll or --enrolled"),
    ],
)
def test_options_that_do_not_go_together(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = duoplda(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_names_of_a_file_cannot_steer_the_terminal(tmp_path, folder):
    chain = Backend.load(folder / "model.safetensors")
    with np.load(folder / "x.npz") as data:
        chain.enroll(data["embeddings"][:2], ["\x1b[31mred", "plain"]).save(tmp_path / "voices")
    result = done(*scoring(folder), "--enrolled", tmp_path / "voices", "--top", 2)
    assert "\\x1b[31mred utt" in result.stdout
    assert "\x1b" not in result.output


def test_info_lists_who_is_enrolled(tmp_path, folder):
    voices = folder / "voices.safetensors"
    sides = Backend.load(folder / "model.safetensors").load_sides(voices)
    known = {name: {"sessions": 0, "recordings": 0} for name in sides.ids.tolist()}
    session = dict(lines(folder / "utt2sess"))
    for name in known:
        recordings = [recording for model, recording in lines(folder / "enroll") if model == name]
        known[name] = {"sessions": len({session[r] for r in recordings}), "recordings": len(recordings)}
    shown = json.loads(done("info", voices, "--json").stdout)
    assert shown["enrolled"] == known
    assert shown["sha256"] == hashlib.sha256(voices.read_bytes()).hexdigest()
    assert shown["model"] == json.loads(done("info", folder / "model.safetensors", "--json").stdout)["fingerprint"]
    said = done("info", voices).stdout.splitlines()
    n_sessions = sum(counts["sessions"] for counts in known.values())
    assert said[0] == f"enrolled: 6 speakers, {n_sessions} sessions, 12 recordings"
    assert [line.split() for line in said[-6:]] == [[name, *map(str, n.values())] for name, n in known.items()]
    failed = duoplda("info", voices, "--embeddings", folder / "x.npz")
    assert failed.exit_code == 2
    assert "holds enrolled speakers" in failed.stderr
    (tmp_path / "half").write_bytes(voices.read_bytes()[:-100])
    assert "damaged" in duoplda("info", tmp_path / "half").stderr
