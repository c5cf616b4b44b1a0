"""Speakers are dealt to parts, sessions are kept apart, and the lists that are written are those that commands take."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli_cases import QUICK, done, duoplda, lines, recordings
from duoplda import DuopldaError, split
from duoplda.evaluation.splitting import Part
from duoplda.io import LabelColumns, read_enrollment, read_labels, read_trials, write_labels
from io_cases import leftovers


def table(n_sessions: int = 3, n_recordings: int = 2, kinds: tuple[str, ...] = ()) -> LabelColumns:
    """Recordings with names such as s07-1-0; a session is heard through all kinds."""
    rows = [
        (f"s{i:02}-{j}-{k}", f"s{i:02}", f"s{i:02}-{j}", kinds[k % len(kinds)] if kinds else "")
        for i in range(20)
        for j in range(n_sessions)
        for k in range(n_recordings)
    ]
    ids, speaker, session, channel = map(np.array, zip(*rows, strict=True))
    return LabelColumns(ids, speaker, session, channel if kinds else None)


def speakers(part: Part) -> set[str]:
    return {*part.labels.speaker.tolist()}


def triples(part: Part) -> list[tuple[str, str, bool]]:
    columns = part.trials.enroll.values, part.trials.test.values, part.trials.target
    return [(str(m), str(t), bool(y)) for m, t, y in zip(*columns, strict=True)]


def written(parts: dict[str, Part]) -> str:
    """What tells one split from another."""
    lists = [(n, sorted(p.labels.ids.tolist()), p.trials and (triples(p), p.enrollment.recording.values.tolist()))
             for n, p in parts.items()]  # fmt: skip
    return hashlib.sha256(repr(lists).encode()).hexdigest()


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({}, {"train": 10, "dev": 5, "eval": 5}),
        ({"dev": 3, "eval": 4}, {"train": 13, "dev": 3, "eval": 4}),
        ({"dev": 0}, {"train": 15, "eval": 5}),
        ({"train": 0, "dev": 0, "eval": 1.0}, {"eval": 20}),
        ({"train": 0.7, "dev": 0.2, "eval": 0.1}, {"train": 14, "dev": 4, "eval": 2}),
        ({"train": 0.33, "dev": 0.33, "eval": 0.34}, {"train": 6, "dev": 7, "eval": 7}),
        ({"train": 2, "dev": np.int64(2), "eval": np.float32(0.5)}, {"train": 2, "dev": 2, "eval": 10}),
    ],
)
def test_numbers_and_fractions_of_speakers(shares: dict, expected: dict) -> None:
    parts = split(table(), **shares)
    assert {name: len(speakers(part)) for name, part in parts.items()} == expected


@settings(deadline=None, max_examples=60, database=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sessions=st.lists(st.integers(1, 4), min_size=8, max_size=14),
    enrolled=st.integers(1, 2),
    labelled=st.booleans(),
    cross=st.booleans(),
)
def test_nothing_is_on_two_sides(seed: int, sessions: list[int], enrolled: int, labelled: bool, cross: bool) -> None:
    """No speaker in two parts; no session in the enrolment and the tests; each model has its target trials."""
    rows = [(f"s{i}", f"{j}", "ab"[k]) for i, n in enumerate(sessions) for j in range(n) for k in range(2)]
    speaker, session, channel = map(np.array, zip(*rows, strict=True))
    ids = np.array([f"{s}-{j}-{c}" for s, j, c in rows])
    labels = LabelColumns(ids, speaker, session if labelled else None, channel)
    options = {"enroll_sessions": enrolled, "cross_channel": cross, "random_state": seed}
    try:
        parts = split(labels, dev=2, eval=3, **options)
    except DuopldaError as error:
        assert sum(n * (1 if labelled else 2) > enrolled for n in sessions) < 5 or "non-target" in str(error)  # noqa: PT017
        return
    assert sum(len(speakers(part)) for part in parts.values()) == len(sessions)
    assert set.union(*map(speakers, parts.values())) == {*speaker.tolist()}
    row = {name: i for i, name in enumerate(ids.tolist())}
    for name in ("dev", "eval"):
        models: dict[str, list[int]] = {}
        for model, member in zip(*[c.values.tolist() for c in vars(parts[name].enrollment).values()], strict=True):
            models.setdefault(model, []).append(row[member])
        assert {speaker[members[0]] for members in models.values()} == speakers(parts[name])
        trials = triples(parts[name])
        assert {speaker[row[test]] for _, test, target in trials if target} == speakers(parts[name])
        for model, test, target in trials:
            whose = {str(speaker[i]) for i in models[model]}
            assert (whose == {str(speaker[row[test]])}) == target
            held = {(str(speaker[i]), str(session[i]) if labelled else ids[i]) for i in models[model]}
            assert len(held) <= enrolled
            assert (str(speaker[row[test]]), str(session[row[test]]) if labelled else test) not in held
            assert not cross or {channel[i] for i in models[model]} == {*"ab"} - {channel[row[test]]}


def test_all_recordings_of_other_sessions_are_tested_against_all_models() -> None:
    part = split(table())["eval"]
    enrolled = {*part.enrollment.recording.values.tolist()}
    tests = [name for name in part.labels.ids.tolist() if name not in enrolled]
    assert len(enrolled) == 5 * 2
    assert [(m, t) for m, t, _ in triples(part)] == [(m, t) for m in sorted(speakers(part)) for t in sorted(tests)]
    two = split(table(), enroll_sessions=2)["eval"]
    assert len(two.enrollment) == 5 * 2 * 2
    assert len(two.trials) == 5 * 5 * 2


def test_the_same_seed_gives_the_same_bits() -> None:
    labels = table(kinds=("mic", "phone"))
    order = np.random.default_rng(1).permutation(len(labels))
    for options in ({}, {"cross_channel": True, "nontargets": 7, "enroll_sessions": 2}):
        first = written(split(labels, random_state=5, **options))
        assert written(split(labels[order], random_state=5, **options)) == first
        assert written(split(labels, random_state=6, **options)) != first
    # What later releases, and other machines, must give as well.
    enrolled = split(labels)["dev"].enrollment.recording.values
    assert enrolled[::2].tolist() == [
        "s01-2-0",
        "s08-0-0",
        "s10-1-0",
        "s18-0-0",
        "s19-0-0",
    ]


def test_trials_between_kinds_of_channels() -> None:
    part = split(table(kinds=("mic", "phone")), cross_channel=True)["dev"]
    kind = dict(zip(part.labels.ids.tolist(), part.labels.channel.tolist(), strict=True))
    assert len(set(part.enrollment.model.values.tolist())) == 5 * 2
    for model, member in zip(part.enrollment.model.values, part.enrollment.recording.values, strict=True):
        assert model.endswith(kind[member])
    for model, test, _ in triples(part):
        assert not model.endswith(kind[test])
    assert len(part.trials) == 10 * 5 * 2  # models, and tests of the other kind


def test_some_of_the_nontargets() -> None:
    part = split(table(), nontargets=3)["eval"]
    for model in speakers(part):
        answers = [target for name, _, target in triples(part) if name == model]
        assert (answers.count(True), answers.count(False)) == (4, 3)


def test_sessions_that_nobody_labelled() -> None:
    labels = table(n_sessions=1, n_recordings=3)
    part = split(LabelColumns(labels.ids, labels.speaker))["eval"]
    assert len(part.enrollment) == 5
    assert len(part.trials) == 5 * 10
    assert part.labels.session is None
    ids = np.array([f"u{i}{end}" for i in range(20) for end in ("", "-noise")])
    copies = LabelColumns(ids, np.repeat(labels.speaker[::3], 2))
    with pytest.warns(UserWarning, match=r"names look like copies of one recording \(u0, u0-noise\)"):
        split(copies)


def test_names_of_sessions_that_speakers_share_are_told_apart() -> None:
    labels = table()
    counted = LabelColumns(labels.ids, labels.speaker, np.array([name[-1] for name in labels.session]))
    part = split(counted)["eval"]
    assert sorted(set(part.labels.session))[0].split() == [min(speakers(part)), "0"]
    assert triples(part) == triples(split(labels)["eval"])


def test_blanks_in_the_names_of_speakers() -> None:
    labels = table()
    spaced = LabelColumns(labels.ids, np.array([f"Mr {name}" for name in labels.speaker]), labels.session)
    assert all(model.startswith("Mr_s") for model, _, _ in triples(split(spaced)["dev"]))
    twice = np.array([name.replace(" s0", " x ").replace(" s1", "_x_") for name in spaced.speaker])
    with pytest.raises(DuopldaError, match="several models would have the name 'Mr_x_"):
        split(LabelColumns(labels.ids, twice, labels.session), dev=0, eval=1.0)


ONE_KIND = table(kinds=("mic",))


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (table(), {"dev": 21}, "take 26 speakers, and there are 20: take fewer"),
        (table(), {"dev": 0.5, "eval": 0.6}, "take 22 speakers, and there are 20"),
        (table(), {"dev": 1}, "dev=1 of 20 speakers is 1: dev needs at least 2, or 0 to be left out"),
        (table(), {"eval": 0.01}, "eval=0.01 of 20 speakers is 0"),
        (table(), {"eval": 1.5}, "eval=1.5 must be a number of speakers (30) or a fraction of them (0.25)"),
        (table(), {"dev": -1}, "dev=-1 must be a number of speakers"),
        (table(), {"dev": "all"}, "dev='all' must be a number of speakers"),
        (table(), {"dev": True}, "dev=True must be a number of speakers"),
        (table(), {"dev": float("nan")}, "dev=nan must be a number of speakers"),
        (table(), {"dev": None}, "dev=None must be a number of speakers"),
        (table(n_sessions=1), {}, "dev and eval take 10 speakers, and 0 of 20 have recordings of more than 1 session"),
        (table(), {"enroll_sessions": 3}, "0 of 20 have recordings of more than 3 sessions"),
        (table(), {"enroll_sessions": 0}, "enroll_sessions=0 must be a whole number from 1 on"),
        (table(), {"nontargets": 0.5}, "nontargets=0.5 must be a whole number from 1 on"),
        (table(), {"random_state": -1}, "random_state=-1 must be a whole number from 0"),
        (table(), {"random_state": None}, "random_state=None must be a whole number from 0"),
        (table(), {"cross_channel": True}, "need labels of at least two kinds of channels"),
        (ONE_KIND, {"cross_channel": True}, "need labels of at least two kinds of channels"),
        (LabelColumns(np.array(["a"]), None, np.array(["s"])), {}, "speakers are not known"),
        (LabelColumns(np.array(["a", "a"]), np.array(["s", "t"])), {}, "id 'a' occurs twice"),
    ],
)  # fmt: skip
def test_what_cannot_be_split(labels: LabelColumns, options: dict, message: str) -> None:
    with pytest.raises(DuopldaError) as error:
        split(labels, **options)
    assert message in str(error.value)


# -- the command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    recordings(tmp_path)
    write_labels(tmp_path / "labels.csv", read_labels("utt2spk", "utt2sess", "utt2chan"))
    return tmp_path


FILES = ["dev.csv", "dev_enroll", "dev_trials", "eval.csv", "eval_enroll", "eval_trials", "train.csv"]


def test_what_is_written_is_what_python_gives(folder: Path) -> None:
    result = done("split", "--labels", "labels.csv", "--seed", "3", "--dev", "8", "--out", "data/new", "--json")
    counts = json.loads(result.stdout)["parts"]
    parts = split(read_labels("labels.csv"), dev=8, random_state=3)
    assert sorted(path.name for path in (folder / "data/new").iterdir()) == FILES
    for name, part in parts.items():
        labels = read_labels(f"data/new/{name}.csv")
        assert labels.ids.tolist() == part.labels.ids.tolist()
        assert labels.channel.tolist() == part.labels.channel.tolist()
        assert counts[name]["recordings"] == len(labels)
        if name != "train":
            trials, enrolment = read_trials(f"data/new/{name}_trials"), read_enrollment(f"data/new/{name}_enroll")
            assert triples(Part(labels, enrolment, trials)) == triples(part)
            assert enrolment.recording.values.tolist() == part.enrollment.recording.values.tolist()
            assert counts[name]["targets"] == trials.target.sum()


def test_lists_give_what_the_table_gives(folder: Path) -> None:
    done("split", "--labels", "labels.csv", "--out", "a")
    done("split", "--speakers", "utt2spk", "--sessions", "utt2sess", "--channels", "utt2chan", "--out", "b")
    for name in FILES:
        assert (folder / "a" / name).read_bytes() == (folder / "b" / name).read_bytes()


def test_other_commands_take_the_lists_as_they_are(folder: Path) -> None:
    text = done("split", "--labels", "labels.csv", "--out", ".").output
    assert [line.split()[0] for line in text.splitlines()] == ["part", "train", "dev", "eval"]
    embeddings = ["--embeddings", "x.npz"]
    done("advise", "--labels", "train.csv")
    done("train", *embeddings, "--labels", "train.csv", *QUICK, "--out", "model.safetensors")
    scoring = ["--enroll", "eval_enroll", "--trials", "eval_trials", "--sessions", "eval.csv", "--channels", "eval.csv"]
    done("score", "--model", "model.safetensors", *embeddings, *scoring, "--out", "scores")
    lists = ["--trials", "eval_trials", "--speakers", "eval.csv", "--enroll", "eval_enroll"]
    assert "Cllr" in done("evaluate", "--scores", "scores", *lists).output
    assert len(lines(folder / "scores")) == len(lines(folder / "eval_trials"))


def test_nothing_is_overwritten_and_nothing_half_written(folder: Path) -> None:
    done("split", "--labels", "labels.csv", "--out", "data")
    before = {name: (folder / "data" / name).read_bytes() for name in FILES}
    again = ["split", "--labels", "labels.csv", "--seed", "1", "--out", "data"]
    (folder / "data/train.csv").unlink()
    assert "data/dev.csv: exists already" in duoplda(*again).output
    assert not (folder / "data/train.csv").exists()
    result = duoplda(*again, "--dev", "0", "--force")
    assert "data/dev.csv: is of an earlier split, and this one has no dev; remove it" in result.output
    done(*again, "--force")
    after = {name: (folder / "data" / name).read_bytes() for name in FILES}
    assert all(after[name] != before[name] for name in FILES)
    for own in ("train.csv", "eval.csv"):
        result = duoplda("split", "--labels", f"data/{own}", "--out", "data", "--force")
        assert (result.exit_code, "is also read by this command" in result.output) == (1, True)
    spaced = (folder / "labels.csv").read_text().replace("utt000", "utt 000")
    (folder / "spaced.csv").write_text(spaced)
    result = duoplda("split", "--labels", "spaced.csv", "--out", "data", "--force")
    assert result.exit_code == 1
    assert "has a space" in result.output
    assert {name: (folder / "data" / name).read_bytes() for name in FILES} == after
    assert not leftovers(folder / "data")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--out", "data"], 2, "give either --labels or --speakers"),
        (["--labels", "labels.csv", "--speakers", "utt2spk", "--out", "data"], 2, "leave out --speakers"),
        (["--labels", "labels.csv", "--dev", "many", "--out", "data"], 2, "'many' must be a whole number (30)"),
        (["--labels", "labels.csv", "--dev", "400", "--out", "data"], 1, "there are 40: take fewer"),
        (["--labels", "labels.csv", "--out", "x.npz"], 1, "x.npz: exists and is not a folder"),
        (["--labels", "labels.csv", "--columns", "speaker=who", "--out", "data"], 1, "who"),
    ],
)
def test_options_that_do_not_go_together(folder: Path, options: list, code: int, message: str) -> None:
    result = duoplda("split", *options)
    assert result.exit_code == code
    assert message in result.output
    assert not (folder / "data").exists()


def test_speakers_who_are_left_over_are_told(folder: Path) -> None:
    shares = ["--train", "5", "--dev", "0", "--eval", "5"]
    assert "30 speakers are in no part" in done("split", "--labels", "labels.csv", *shares, "--out", "data").output
