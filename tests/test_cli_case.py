"""`duoplda case`: from a case file to a page and JSON; refusals, mistakes in recordings, and what is left behind."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re

import numpy as np
import pytest

from case_cases import changed
from cli_cases import done, duoplda
from duoplda import Backend
from duoplda.case import read_case, template, write_example
from duoplda.case.recordings import read_case_recordings
from duoplda.io import read_embeddings, write_embeddings

LN10 = math.log(10)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_example(tmp_path_factory.mktemp("case"))


@pytest.fixture(scope="module")
def printed(path):
    """What the command prints on the case as it is."""
    return done("case", path, "--out", path.parent / "out").stdout


@pytest.fixture(scope="module")
def assessed(path, printed):
    """Its numbers."""
    return json.loads((path.parent / "out" / "case.json").read_text(encoding="utf-8"))


def refused(file, code=1):
    """The error of a case of which nothing is written."""
    out = file.parent / "never"
    result = duoplda("case", file, "--out", out)
    assert result.exit_code == code, result.output
    assert not out.exists()
    assert [*file.parent.glob(".*")] == []
    lines = result.stderr.splitlines()
    assert lines[-1].startswith("duoplda: error: ")
    assert "Traceback" not in result.output
    return lines[-1]


# -- the template


def test_a_template_and_then_the_case(tmp_path):
    file = tmp_path / "case.toml"
    result = done("case", file, "--new")
    assert file.read_text(encoding="utf-8") == template()
    assert "fill in the texts between quotes, then: duoplda case" in result.stderr
    assert duoplda("case", file, "--new").exit_code == 1  # it replaces nothing
    file.write_text("mine")
    assert file.read_text() == "mine"
    done("case", file, "--new", "--force")
    assert "propositions.same: is empty" in refused(file)


@pytest.mark.parametrize("options", [[], ["--new", "--out", "x"]], ids=["neither", "both"])
def test_usage(path, options):
    result = duoplda("case", path, *options)
    assert result.exit_code == 2
    assert "--new" in result.stderr
    assert "--out" in result.stderr


# -- a case


def test_what_is_printed(printed):
    sentence, interval = printed.splitlines()
    assert re.match(r"What was measured on these recordings is (at least|about) [\d.,]+ times as probable", sentence)
    assert "“The man in the call is Mr A.”" in sentence
    assert interval.startswith("The 95 % interval over the speakers of the population ")


def test_the_same_again(path, assessed):
    """Whatever it is called from, and at another place: the bytes are the same, but for the date."""
    here = os.getcwd()
    try:
        os.chdir(path.parent)
        done("case", path.name, "--out", "elsewhere/deep", "--quiet")
    finally:
        os.chdir(here)
    for name in ("case.html", "case.json"):
        first, second = (path.parent / folder / name for folder in ("out", "elsewhere/deep"))
        texts = [re.sub(r"\d{4}-\d\d-\d\d", "date", file.read_text(encoding="utf-8")) for file in (first, second)]
        assert texts[0] == texts[1]
        assert texts[0].count("date") >= 1


def test_numbers(path, assessed):
    ratio = assessed["result"]["ratio"]
    for name in ("raw", "own", "calibrated", "low", "high", "stated"):
        assert ratio[name]["log10"] == pytest.approx(ratio[name]["ln"] / LN10, rel=1e-12)
    assert ratio["low"]["ln"] <= ratio["calibrated"]["ln"] <= ratio["high"]["ln"]
    assert ratio["support"]["lower"]["ln"] <= ratio["stated"]["ln"] <= ratio["support"]["upper"]["ln"]
    validation = assessed["result"]["validation"]
    n = validation["n_same"] + validation["n_different"]
    assert len(validation["scores"]["ln"]) == len(validation["scores"]["log10"]) == len(validation["labels"]) == n
    assert assessed["result"]["known"]["sessions"] == [{"": 2}, {"": 2}]
    assert assessed["result"]["questioned"]["sessions"] == [{"": 2}]
    assert assessed["result"]["seed"] == 3
    assert assessed["program"]["version"]
    assert assessed["prior"] is None
    assert assessed["words"]["posterior"] is None
    assert assessed["words"]["verbal"] is None


def test_every_file_has_its_hash(path, assessed):
    names = {"case.toml", "model.safetensors", "case.npz", "population.npz", "labels.csv"}
    assert set(assessed["files"]) == names
    for name, value in assessed["files"].items():
        assert value == hashlib.sha256((path.parent / name).read_bytes()).hexdigest()


def test_prior_scale_and_another_seed(path, assessed):
    file = changed(path, ("seed = 3", 'seed = 4\nprior = 0.01\nscale = "ENFSI"'))
    numbers = json.loads(done("case", file, "--out", path.parent / "prior", "--json").stdout)
    assert numbers == json.loads((path.parent / "prior" / "case.json").read_text(encoding="utf-8"))
    words, ratio = numbers["words"], numbers["result"]["ratio"]
    assert "was 1.0 % before these recordings" in words["posterior"]
    stated = ratio["stated"]["ln"]
    percent = float(re.search(r"it is (?:at least )?([\d.]+) %", words["posterior"])[1])
    assert percent == pytest.approx(100 / (1 + 99 * math.exp(-stated)), rel=0.06)
    assert "ENFSI Guideline for Evaluative Reporting in Forensic Science (2015)" in words["verbal"]
    assert numbers["result"]["validation"]["scores"] != assessed["result"]["validation"]["scores"]
    assert ratio["raw"] == assessed["result"]["ratio"]["raw"]


def test_quality_of_the_recordings(path):
    ids = ["k1", "k2", "k3", "k4", "q1", "q2", *[f"r{i:03}" for i in range(210, 400)]]
    seconds = {"q1": "0.5", "k1": "nan"}
    rows = [f"{i},{seconds.get(i, 3 + n % 7)},phone" for n, i in enumerate(ids)]
    (path.parent / "quality.csv").write_text("\n".join(["id,seconds,device", *rows]))
    file = changed(path, ("seed = 3", 'quality = "quality.csv"'))
    numbers = json.loads(done("case", file, "--out", path.parent / "quality", "--json").stdout)
    measure = numbers["quality"]["measures"]["seconds"]
    assert measure["known"]["n"] == 3
    assert (measure["questioned"]["lowest"], measure["population"]["lowest"]) == (0.5, 3)
    assert numbers["quality"]["recordings"]["q1"] == {"seconds": "0.5", "device": "phone"}
    assert "unusual: questioned" in (path.parent / "quality" / "case.html").read_text(encoding="utf-8")
    assert "quality.csv" in numbers["files"]
    (path.parent / "quality.csv").write_text("\n".join(["id,seconds,device", *rows[1:]]))
    assert "quality: 1 recordings of the case have no row: 'k1'" in refused(file, 3)


def test_nothing_is_replaced_without_force(path, assessed):
    before = {file.name: file.read_bytes() for file in (path.parent / "out").iterdir()}
    result = duoplda("case", changed(path, ("seed = 3", "seed = 5")), "--out", path.parent / "out")
    assert result.exit_code == 1
    assert "--force" in result.stderr
    assert {file.name: file.read_bytes() for file in (path.parent / "out").iterdir()} == before


def test_a_file_where_the_folder_should_be(path):
    result = duoplda("case", path, "--out", path)
    assert result.exit_code == 1
    assert "exists and is not a folder" in result.stderr


# -- refusals: no ratio, and what to do


def test_too_few_speakers(path):
    lines = (path.parent / "labels.csv").read_text().splitlines()
    (path.parent / "few.csv").write_text("\n".join(lines[:25]))
    said = refused(changed(path, ("labels.csv", "few.csv")))
    assert "no ratio is given: 4 of 4 speakers of the population" in said
    assert "Give recordings of more speakers" in said


def test_another_domain_without_adaptation(path):
    parts = [(ids, X + 9) for ids, X in read_embeddings(path.parent / "population.npz")]
    write_embeddings(path.parent / "far.npz", *map(np.concatenate, zip(*parts, strict=True)))
    said = refused(changed(path, ("population.npz", "far.npz")))
    assert "no ratio is given: the recordings of the population are not like those" in said
    assert "Adapt the model to the population (adapt = true)" in said


def test_adaptation(path):
    lines = (path.parent / "labels.csv").read_text().splitlines()
    (path.parent / "twelve.csv").write_text("\n".join(lines[: 1 + 12 * 6]))
    file = changed(path, ("seed = 3", "adapt = true"), ("labels.csv", "twelve.csv"))
    numbers = json.loads(done("case", file, "--out", path.parent / "adapted", "--json").stdout)
    assert numbers["result"]["adapted"]["target"]["speakers"] == 12
    assert [check["adapted"] for check in numbers["result"]["domain"]] == [False, False, True]


# -- mistakes in the recordings


def add(path, name, ids, X):
    """A file of embeddings beside the case."""
    write_embeddings(path.parent / name, np.array(ids), np.asarray(X, np.float32), force=True)


@pytest.fixture(scope="module")
def vectors(path):
    """The vectors of the case by their ids."""
    return {
        id: x for ids, X in read_embeddings(path.parent / "case.npz") for id, x in zip(ids.tolist(), X, strict=True)
    }


def test_an_unknown_id(path):
    said = refused(changed(path, ('"k2"', '"k9"')), 3)
    assert "line 14: known.recordings: 1 recordings have no embedding: 'k9'" in said


def test_swapped_sides(path, vectors):
    """The labels say who speaks: not the known speaker in question, and nobody else on the known side."""
    rows = [f"{id},{'Mr A' if id[0] == 'k' else 'unknown'},{id[0]}" for id in vectors]
    (path.parent / "who.csv").write_text("\n".join(["id,speaker,session", *rows]))
    listed = re.findall(r"recordings = \[\n.*?\]\n", path.read_text(), re.DOTALL)
    with_labels = [
        (part, f'labels = "who.csv"\nrecordings = {ids}\n')
        for part, ids in zip(listed, (["k1", "k2"], ["q1"]), strict=True)
    ]
    case = read_case(changed(path, *with_labels))
    sides = read_case_recordings(case, Backend.load(case.model))
    assert [side.ids.tolist() for side in (sides.known, sides.questioned)] == [["k1", "k2"], ["q1"]]
    swapped = [(old, new.replace("'k1', 'k2'", "'q2'").replace("'q1'", "'k1'")) for old, new in with_labels]
    said = refused(changed(path, *swapped))
    assert "known.labels: recording 'q2' is labelled as 'unknown', and the known speaker is 'Mr A'" in said
    assert "are the two sides swapped?" in said
    both_known = [with_labels[0], (listed[1], 'labels = "who.csv"\nrecordings = ["k3"]\n')]
    assert "questioned.labels: recording 'k3' is labelled as the known speaker" in refused(changed(path, *both_known))


def test_a_recording_on_both_sides(path, vectors):
    assert "questioned.recordings: recording 'k1' is on both sides" in refused(changed(path, ('"q1"', '"k1"')))
    add(path, "copy.npz", ["q1", "q2"], [vectors["k3"], vectors["q2"]])
    questioned = ('[questioned]\nembeddings = "case.npz"', '[questioned]\nembeddings = "copy.npz"')
    said = refused(changed(path, questioned))
    assert "'q1' has the very same vector as 'k3' of the known speaker: one recording on both sides" in said


def test_a_session_on_both_sides(path):
    assert "session 'talk-2' is on both sides" in refused(changed(path, ('session = "call"', 'session = "talk-2"')))


def test_the_known_speaker_in_the_population(path):
    name = (path.parent / "labels.csv").read_text().splitlines()[1].split(",")[1]
    said = refused(changed(path, ('"Mr A"', f'"{name}"')))
    assert f"the known speaker, '{name}', is a speaker of the population" in said


def test_a_recording_of_the_case_in_the_population(path, vectors):
    first = (path.parent / "labels.csv").read_text().splitlines()[1].split(",")[0]
    ids, X = zip(*read_embeddings(path.parent / "population.npz"), strict=True)
    ids, X = np.concatenate(ids), np.concatenate(X)
    X[ids == first] = vectors["q2"]
    add(path, "with.npz", ids, X)
    said = refused(changed(path, ("population.npz", "with.npz")))
    assert f"recording 'q2' of [questioned] is among those of the population, as '{first}'" in said
    (path.parent / "same.csv").write_text("id,speaker,session\nk1,somebody,call\n")
    same = [("labels.csv", "same.csv"), ("population.npz", "case.npz")]
    assert "recording 'k1' of [known] is among those of the population" in refused(changed(path, *same))


def test_vectors_that_are_none(path, vectors):
    known = ('embeddings = "case.npz"', 'embeddings = "broken.npz"')
    for value in (np.nan, np.inf):
        add(path, "broken.npz", list(vectors), [x * (value if id == "k3" else 1) for id, x in vectors.items()])
        said = refused(changed(path, known))
        assert "'k3'" in said or "k3" in said
        assert "NaN" in said or "not finite" in said or "infinit" in said
    add(path, "broken.npz", list(vectors), [x[:5] for x in vectors.values()])
    assert "known.embeddings: vectors have 5 numbers, and the model takes 8" in refused(changed(path, known))


def test_one_recording_under_two_ids(path, vectors):
    add(path, "twice.npz", list(vectors), [vectors["k1"] if id == "k4" else x for id, x in vectors.items()])
    said = refused(changed(path, ('embeddings = "case.npz"', 'embeddings = "twice.npz"')))
    assert "'k1' and 'k4' have the very same vector: one recording under two ids" in said


def test_two_recordings_of_one_id(path, vectors):
    add(path, "more.npz", ["k1"], [vectors["k1"] + 1])
    said = refused(changed(path, ('embeddings = "case.npz"', 'embeddings = ["case.npz", "more.npz"]')))
    assert "several files have a recording 'k1'; two recordings need two ids" in said
    np.savez(path.parent / "doubled.npz", ids=["k1", "k1"], embeddings=np.eye(2, 8, dtype=np.float32))
    assert "k1" in refused(changed(path, ('embeddings = "case.npz"', 'embeddings = "doubled.npz"')))


def test_labels_that_lack(path):
    some = changed(path, (', session = "talk-1"', ""))
    assert "no session is given for 'k1'; say the session of each recording, or of none" in refused(some)
    none = [(', session = "call"', "")] * 2
    assert "questioned: no sessions are given; name the conversation" in refused(changed(path, *none))
    rows = (path.parent / "labels.csv").read_text().splitlines()
    (path.parent / "two.csv").write_text("\n".join(row.rpartition(",")[0] for row in rows))
    said = refused(changed(path, ("labels.csv", "two.csv")))
    assert "session" in said
    other = [("labels.csv", "other.csv")]
    (path.parent / "other.csv").write_text("id,speaker,session\nx,y,z\n")
    assert "none of the recordings has a label; the labels have 'x': do the ids agree?" in refused(
        changed(path, *other), 3
    )


def test_kinds_of_channels(path):
    some = [(f'"{id}", session = "call"', f'"{id}", session = "call", channel = "phone"') for id in ("q1", "q2")]
    said = refused(changed(path, *some))
    assert "kinds of channels are given, but not in [known] and [population]" in said


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"PK\3\4 no archive", b"\x80\4pickle"])
@pytest.mark.parametrize("name", ["model.safetensors", "case.npz", "labels.csv"])
def test_files_that_are_something_else(path, name, content):
    (path.parent / f"broken-{name}").write_bytes(content)
    assert f"broken-{name}" in refused(changed(path, (f'"{name}"', f'"broken-{name}"')))


def test_a_folder_and_a_pattern(path, vectors):
    known = 'embeddings = "case.npz"'
    assert "no file matches this pattern" in refused(changed(path, (known, 'embeddings = "no-*.npz"')))
    case = read_case(changed(path, (known, 'embeddings = "cas?.npz"')))
    assert len(read_case_recordings(case, Backend.load(case.model)).known.ids) == 4
    assert "model" in refused(changed(path, ('"model.safetensors"', '"."')))
