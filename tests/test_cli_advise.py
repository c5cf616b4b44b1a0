"""`duoplda advise`: the label files that train takes, and a last line that can be pasted."""

import json
import re
import shlex

import numpy as np
import pytest

from cli_cases import QUICK, done, duoplda, recordings
from duoplda import Backend, advise
from duoplda.io import LabelColumns, read_embeddings, read_labels, write_embeddings, write_labels


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    at = tmp_path_factory.mktemp("advise")
    recordings(at)
    table = read_labels(at / "utt2spk", at / "utt2sess", at / "utt2chan")
    write_labels(at / "table.csv", table)
    return at


@pytest.fixture(scope="module")
def parquet(folder):
    """A table, and embeddings that have the labels as columns."""
    pytest.importorskip("pyarrow")
    table = read_labels(folder / "table.csv")
    write_labels(folder / "table.parquet", table)
    ids, X = read_embeddings(folder / "x.npz").load()
    rows = np.argsort(table.ids)[np.searchsorted(np.sort(table.ids), ids)]
    own = LabelColumns(ids, *(column[rows] for column in (table.speaker, table.session, table.channel)))
    (folder / "shards").mkdir()
    write_embeddings(folder / "x.parquet", ids, X, labels=own)
    write_embeddings(folder / "shards" / "x.parquet", ids, X, labels=own)
    return folder


def said(*arguments):
    return json.loads(done("advise", *arguments, "--json", "--quiet").stdout)


def expected(folder, session=True, channel=True, dimensions=None):
    table = read_labels(folder / "table.csv")
    found = advise(table.speaker, table.session if session else None, table.channel if channel else None)
    return {**json.loads(json.dumps(found.as_dict())), "dimensions": dimensions}


def but_for(found, *names):
    """Without what depends on dimensions, and `names`."""
    return {name: value for name, value in found.items() if name not in ("commands", "cautions", "chosen", *names)}


def test_a_table(folder):
    found = said("--labels", folder / "table.csv")
    assert but_for(found) == but_for(expected(folder))
    assert found["commands"] == [
        f"duoplda train --embeddings EMBEDDINGS --labels {folder}/table.csv --out model.safetensors"
    ]


def test_lists(folder):
    lists = ["--speakers", folder / "utt2spk", "--sessions", folder / "utt2sess"]
    found = said(*lists, "--embeddings", folder / "x.npz")
    assert but_for(found) == but_for(expected(folder, channel=False, dimensions=12))
    assert found["model"] == "two-source"
    assert said(*lists, "--channels", folder / "utt2chan")["model"] == "kinds"
    assert said("--speakers", folder / "utt2spk")["model"] == "plain"


def test_a_table_in_parquet(parquet):
    found = said("--labels", parquet / "table.parquet")
    assert but_for(found) == but_for(expected(parquet))
    assert "--embeddings EMBEDDINGS" in found["commands"][0]


@pytest.mark.parametrize("name", ["x.parquet", "shards", "shards/*.parquet"])
@pytest.mark.parametrize("given", [True, False])
def test_embeddings_that_have_labels(parquet, name, given):
    options = ["--labels", parquet / name, *(["--embeddings", parquet / name] if given else [])]
    found = said(*options)
    assert but_for(found) == but_for(expected(parquet, dimensions=12))
    path = shlex.quote(str(parquet / name))
    assert found["commands"][0].startswith(f"duoplda train --embeddings {path} --labels {path} ")


def test_the_last_line_can_be_pasted(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    odd = tmp_path / "my table's.csv"
    odd.write_bytes((folder / "table.csv").read_bytes())
    text = done("advise", "--labels", odd, "--embeddings", folder / "x.npz").stdout
    command, *words = shlex.split(text.splitlines()[-1])
    assert command == "duoplda"
    done(*words, *QUICK, "--quiet")
    trained = Backend.load("model.safetensors")
    assert len(trained.plda_.channels_) == 2
    for name, n in trained.counts_.items():
        assert f"{n:,} {name}" in text.splitlines()[0]


def test_where_speakers_have_one_session_it_is_adapt(folder, tmp_path):
    table = read_labels(folder / "table.csv")
    write_labels(tmp_path / "one.csv", LabelColumns(table.ids, table.speaker, table.speaker))
    found = said("--labels", tmp_path / "one.csv")
    assert [command.split()[1] for command in found["commands"]] == ["adapt", "train"]
    known = duoplda("adapt", "--help").output
    assert all(option in known for option in re.findall(r"--[a-z]+", found["commands"][0]))


def test_where_training_refuses_there_is_no_command_for_it(folder, tmp_path):
    table = read_labels(folder / "table.csv")
    write_labels(tmp_path / "one.csv", LabelColumns(table.ids, np.repeat("alice", len(table)), table.ids))
    found = said("--labels", tmp_path / "one.csv")
    assert found["model"] is None
    assert [command.split()[1] for command in found["commands"]] == ["adapt"]


def test_options_that_it_names_exist(folder):
    known = duoplda("train", "--help").output
    for speakers in (["--labels", folder / "table.csv"], ["--speakers", folder / "utt2spk"]):
        text = done("advise", *speakers).stdout
        assert set(re.findall(r"--[a-z-]+", text)) <= set(re.findall(r"--[a-z-]+", known))


def test_names_of_sessions_count_within_their_speaker(folder, tmp_path):
    """As for train."""
    table = read_labels(folder / "table.csv")
    short = np.array([name.split("-")[-1] for name in table.session])
    write_labels(tmp_path / "t.csv", LabelColumns(table.ids, table.speaker, short, table.channel))
    assert said("--labels", tmp_path / "t.csv")["counts"] == expected(folder)["counts"]
    assert "names of sessions repeat" in done("advise", "--labels", tmp_path / "t.csv").stderr


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ([], 2, "give either --labels or --speakers"),
        (["--labels", "table.csv", "--speakers", "utt2spk"], 2, "leave out --speakers"),
        (["--labels", "table.csv", "--sessions", "utt2sess"], 2, "leave out --sessions"),
        (["--labels", "table.csv", "--ids", "rows"], 2, "give --embeddings"),
        (["--labels", "nowhere.csv"], 1, "nowhere.csv: no such file"),
        (["--labels", "nowhere"], 1, "nowhere: no such file"),
        (["--labels", "empty.csv"], 1, "empty.csv"),
        (["--labels", "x.npz"], 1, "x.npz: line 1: is not UTF-8"),
        (["--labels", "x.npz", "--embeddings", "x.npz"], 1, "is npz, which has no room for labels"),
        (["--labels", "."], 1, "is a folder"),
        (["--labels", "twice.csv"], 1, "line 3: id 'a' is there already"),
        (["--labels", "table.csv", "--embeddings", "table.csv"], 1, "table.csv"),
        (["--labels", "damaged.parquet"], 1, "damaged.parquet"),
        (["--speakers", "utt2spk", "--sessions", "few"], 3, "few: lacks"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(folder, monkeypatch, options, code, message):
    monkeypatch.chdir(folder)
    (folder / "empty.csv").write_text("")
    (folder / "twice.csv").write_text("id,speaker\na,x\na,y\n")
    (folder / "few").write_text("utt00000 s\n")
    (folder / "damaged.parquet").write_bytes(b"PAR1 not at all")
    if "damaged.parquet" in options:
        pytest.importorskip("pyarrow")
    result = duoplda("advise", *options)
    assert (result.exit_code, result.stdout) == (code, "")
    *_, line = result.stderr.splitlines()
    assert line.startswith("duoplda: error: ")
    assert message in line


def test_sessions_that_ids_name_are_proposed_and_written(tmp_path):
    lines = [f"{who}/{day}/{n} {who}\n" for who in ("ann", "bob", "cy") for day in ("mon", "tue") for n in (1, 2)]
    (tmp_path / "utt2spk").write_text("".join(lines))
    shown = said("--speakers", tmp_path / "utt2spk")
    example = ["ann/mon/1", "ann/mon/2"]
    assert shown["proposed"] == {"form": "speaker/session/utterance", "sessions": 6, "example": example}
    assert "that would be 6 sessions" in " ".join(shown["cautions"])
    first, second = (shlex.split(line) for line in shown["commands"])
    first[first.index("utt2sess")] = str(tmp_path / "utt2sess")
    written = done(*first[1:]).stdout
    assert second[second.index("--sessions") + 1] == "utt2sess"
    assert f"--sessions {tmp_path}/utt2sess" in written.splitlines()[-1]
    found = said("--speakers", tmp_path / "utt2spk", "--sessions", tmp_path / "utt2sess")
    assert found["counts"]["sessions"] == 6
    assert found["proposed"] is None
    again = ["advise", "--speakers", tmp_path / "utt2spk", "--sessions", tmp_path / "utt2sess"]
    failed = duoplda(*again, "--write-sessions", tmp_path / "other")
    assert failed.exit_code == 1
    assert "nothing to write" in failed.stderr
    done("advise", "--speakers", tmp_path / "utt2spk", "--write-sessions", tmp_path / "s.csv")
    assert (tmp_path / "s.csv").read_text().startswith("id,session\nann/mon/1,ann/mon\n")


def test_a_column_of_sessions_is_named_and_not_dropped(tmp_path):
    rows = [f"{who}{day}{n},{who},{who}{day},x\n" for who in "abc" for day in "12" for n in "12"]
    (tmp_path / "meta.csv").write_text("utt_id,spk_id,take,device\n" + "".join(rows))
    result = done("advise", "--labels", tmp_path / "meta.csv")
    assert "take, device are not used" in result.stderr
    assert "--columns session=NAME" in result.stderr
    named = done("advise", "--labels", tmp_path / "meta.csv", "--columns", "session=take")
    assert "6 sessions, 12 recordings" in named.stdout
    assert "--columns session=take" in named.stdout.splitlines()[-1]
    assert "not used: device" in named.stderr
    assert "warning" not in named.stderr
    for typed, code in (("session", 2), ("sesion=take", 2), ("session=tak", 1)):
        assert duoplda("advise", "--labels", tmp_path / "meta.csv", "--columns", typed).exit_code == code
