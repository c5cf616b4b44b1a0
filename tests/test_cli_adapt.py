"""`duoplda adapt`: what it is given and refuses, interruptions, clusters of machines, and what is told of it later."""

import hashlib
import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cli_cases import ENVIRONMENT, done, duoplda, same_model
from duoplda import PLDA, Backend
from duoplda.datasets import make_recordings
from duoplda.estimators import adaptation, checkpoint
from duoplda.io import (
    Coded,
    LabelColumns,
    Trials,
    read_container,
    write_container,
    write_embeddings,
    write_labels,
    write_map,
    write_trials,
)
from duoplda.model.em import State
from duoplda.selection import adaptation as selected
from duoplda.workflows.adapt import adapt

D = 12
STAGES = [  # of clusters, in the beginning
    "partition source 1",
    "levels sessions",
    "levels source 1",
    "calibration source 1",
]


class Target:
    """Recordings of another domain in files: embeddings, lists and a table."""

    def __init__(self, at, model, n_speakers=20, seed=1):
        rng = np.random.default_rng(seed)
        drawn = make_recordings(n_speakers, (3, 5), (2, 4), model=model, seed=seed)
        X = drawn.X - drawn.X.mean(axis=0)
        A = np.eye(D) + 0.25 * rng.normal(size=(D, D))
        order = rng.permutation(len(X))
        noise = 0.4 * rng.normal(size=X.shape)
        self.X = (X @ A + noise + 3.0)[order].astype(np.float32)
        self.speaker, self.session = drawn.speaker[order], drawn.session[order]
        self.channel = np.array(["far", "near"])[rng.integers(2, size=len(X))]
        self.ids = np.array([f"utt{i:04}" for i in range(len(X))])
        self.at = at
        write_embeddings(at / "x.ark", self.ids, self.X)
        for name, values in {"utt2spk": self.speaker, "utt2sess": self.session, "utt2chan": self.channel}.items():
            write_map(at / name, self.ids, values)
        write_labels(at / "table.csv", LabelColumns(self.ids, self.speaker, self.session, self.channel))

    def __getitem__(self, name):
        return self.at / name


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of a source `m`, and one with kinds of channels `kinds`; the target is in `target`."""
    at = tmp_path_factory.mktemp("adapt")
    options = {"n_dimensions": D, "n_speaker_factors": 8, "n_session_factors": 6}
    source = make_recordings(60, 4, 3, **options, speaker_variance=2.0, seed=0)
    ids = np.array([f"s{i:04}" for i in range(len(source.X))])
    write_embeddings(at / "source.ark", ids, source.X)
    kind = np.array(["far", "near"])[np.arange(len(ids)) % 2]
    X = source.X + (kind == "far")[:, None] * np.random.default_rng(5).normal(size=source.X.shape)
    who = np.char.add("source-", source.speaker)  # speakers of the target have the names without this
    write_labels(at / "source.csv", LabelColumns(ids, who, source.session))
    origin = {"command": "duoplda train --what was typed", "sha256": {"first.scp": "0123"}}
    Backend().fit(source.X, source.speaker, session=source.session).save(at / "m", provenance=origin)
    plda = PLDA(shrinkage=0.1)
    Backend(plda=plda).fit(X, source.speaker, session=source.session, channel=kind).save(at / "kinds")
    (at / "target").mkdir()
    return at, Target(at / "target", source.model)


def command(folder, out, *options, model="m"):
    at, target = folder
    return ["adapt", "--model", at / model, "--embeddings", target["x.ark"], *options, "--out", out]


def sessions(folder):
    return ["--sessions", folder[1]["utt2sess"]]


def labelled(folder):
    return ["--speakers", folder[1]["utt2spk"], *sessions(folder)]


@pytest.fixture(scope="module")
def adapted(folder, tmp_path_factory):
    """The file of the model that is adapted by the lists `labelled` or `sessions`; each is made once."""
    at = tmp_path_factory.mktemp("adapted")

    @cache
    def make(lists):
        done(*command(folder, at / lists.__name__, *lists(folder)))
        return at / lists.__name__

    return make


def refused(*arguments, code=1):
    """The one line of an error."""
    result = duoplda(*arguments)
    assert result.exit_code == code, result.output
    said = [line for line in result.stderr.splitlines() if not line.startswith("duoplda: warning")]
    assert len(said) == 1, result.stderr
    assert said[0].startswith("duoplda: error: ")
    assert result.stdout == ""
    return said[0]


SEARCHED = 1e-7  # to which a calibration is the same: Newton's steps end where they gain next to nothing


def alike(path, backend, tolerance=1e-9):
    """Is a model file equal to a back-end, and does it tell the same story?"""
    own = path.with_name(f"{path.name}.own")
    backend.save(own, force=True)
    (a, told), (b, wanted) = (read_container(p, ["duoplda-backend"]) for p in (path, own))
    assert set(a) == set(b)
    for name in a:
        limit = max(tolerance, SEARCHED) if name.startswith("calibration") else tolerance
        np.testing.assert_allclose(a[name], b[name], rtol=limit, atol=limit, err_msg=name)
    assert close(told["adapted"], wanted["adapted"], tolerance)


def close(a, b, tolerance):
    if isinstance(a, dict):
        limits = {k: max(tolerance, SEARCHED) if k in ("scale", "offset") else tolerance for k in a}
        return a.keys() == b.keys() and all(close(a[k], b[k], limits[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(close, a, b, [tolerance] * len(a)))
    return a == pytest.approx(b, rel=tolerance, abs=tolerance) if isinstance(a, float) else a == b


@contextmanager
def remembered():
    """What stages keep while commands run, by name."""
    kept = {}
    with pytest.MonkeyPatch.context() as patch:
        done = checkpoint.Checkpoint.stage_done

        def watched(self, name, results):
            kept[name] = results
            done(self, name, results)

        patch.setattr(checkpoint.Checkpoint, "stage_done", watched)
        yield kept


# -- the same as the library


WAYS = {
    "labels": (labelled, {}, "speakers"),
    "clusters": (sessions, {}, "sessions"),
    "total": (lambda _: [], {}, "nothing"),
    "sessions": (sessions, {"method": "sessions", "prior": 0.2}, "sessions"),
    "given sessions": (sessions, {"method": "sessions", "weights": (0.3, 0.1)}, "sessions"),
    "given total": (labelled, {"method": "total", "weights": (0.3,), "centre": 0.5}, "speakers"),
    "labels with weights": (labelled, {"method": "labels", "weights": (0.3, 0.2, 0.1)}, "speakers"),
    "centre": (sessions, {"method": "centre"}, "sessions"),
    "kaldi": (lambda _: [], {"method": "kaldi", "weights": (0.2, 0.6)}, "nothing"),
}


def arrays(target, known):
    labels = {"speakers": (target.speaker, target.session), "sessions": (None, target.session), "nothing": ()}
    return target.X, *labels[known]


@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_library(folder, tmp_path, way):
    at, target = folder
    lists, options, known = WAYS[way]
    typed = []
    for name, value in options.items():
        typed += [f"--{name}", ",".join(map(str, value)) if isinstance(value, tuple) else value]
    found = json.loads(done(*command(folder, tmp_path / "a", *lists(folder), *typed), "--json").stdout)
    own = Backend.load(at / "m").adapt(*arrays(target, known), **options)
    alike(tmp_path / "a", own)
    assert found["model"] == str(tmp_path / "a")
    assert close({k: v for k, v in found.items() if k != "model"}, json.loads(json.dumps(own.adapted_)), 1e-9)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "a.own"]
    origin = Backend.load(tmp_path / "a").provenance_["adaptation"]
    files = [target["x.ark"], at / "m", *(path for path in lists(folder) if isinstance(path, Path))]
    assert origin["sha256"] == {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert set(origin["fingerprint"]) == {str(target["x.ark"])}
    if way == "clusters":
        assert len(own.adapted_["partitions"]) >= 2  # else the tests below would show little


def test_kinds_of_channels(folder, tmp_path):
    at, target = folder
    channels = ["--channels", target["utt2chan"]]
    for name, lists, known in (("s", sessions, "sessions"), ("l", labelled, "speakers")):
        done(*command(folder, tmp_path / name, *lists(folder), *channels, model="kinds"))
        X, speaker, session = arrays(target, known)
        alike(tmp_path / name, Backend.load(at / "kinds").adapt(X, speaker, session, target.channel))


@pytest.mark.parametrize("what", ["speakers", "sessions"])
def test_a_table_is_the_same_as_lists(folder, tmp_path, what):
    _, target = folder
    rows = [line.split(",") for line in target["table.csv"].read_text().splitlines()]
    if what == "sessions":
        rows = [[row[0], *row[2:]] for row in rows]
    (tmp_path / "table.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    done(*command(folder, tmp_path / "a", "--labels", tmp_path / "table.csv", model="kinds"))
    lists = (labelled if what == "speakers" else sessions)(folder)
    done(*command(folder, tmp_path / "b", *lists, "--channels", target["utt2chan"], model="kinds"))
    assert same_model(tmp_path / "a", tmp_path / "b")
    assert ("speakers" in Backend.load(tmp_path / "a").adapted_["target"]) == (what == "speakers")


def test_labels_that_are_columns_of_the_embeddings(folder, adapted, tmp_path):
    import pyarrow.parquet as pq

    _, target = folder
    own = LabelColumns(target.ids, target.speaker, target.session)
    write_embeddings(tmp_path / "x.parquet", target.ids, target.X, labels=own)
    pq.write_table(pq.read_table(tmp_path / "x.parquet").drop(["speaker"]), tmp_path / "y.parquet")
    for name, lists in (("x", labelled), ("y", sessions)):
        path = tmp_path / f"{name}.parquet"
        arguments = command(folder, tmp_path / name, "--labels", path)
        arguments[4] = path
        done(*arguments)
        assert same_model(tmp_path / name, adapted(lists))
    arguments = command(folder, tmp_path / "z", "--labels", target["x.ark"])
    assert "is ark, which has no room for labels" in refused(*arguments)


def test_ids_of_rows(folder, adapted, tmp_path):
    _, target = folder
    np.save(tmp_path / "x.npy", target.X)
    (tmp_path / "ids").write_text("".join(f"{name}\n" for name in target.ids))
    arguments = command(folder, tmp_path / "a", *sessions(folder), "--ids", tmp_path / "ids")
    arguments[4] = tmp_path / "x.npy"
    done(*arguments)
    assert same_model(tmp_path / "a", adapted(sessions))
    arguments[-3:] = ["rows", "--out", tmp_path / "c"]
    del arguments[5:7]
    done(*arguments)
    assert Backend.load(tmp_path / "c").adapted_["target"] == {"recordings": len(target.ids)}


@pytest.mark.parametrize("lists", [labelled, sessions])
def test_neither_the_order_nor_the_files_matter(folder, tmp_path, lists):
    """The partitions are the same to the last bit, and the models but for rounding."""
    _, target = folder
    order = np.random.default_rng(9).permutation(len(target.ids))
    (tmp_path / "shards").mkdir()
    for i, rows in enumerate(np.array_split(order, 4)):
        write_embeddings(tmp_path / f"shards/x.{i}.ark", target.ids[rows], target.X[rows])
    typed = []
    for option, path in zip(*[iter(lists(folder))] * 2, strict=True):
        kept = path.read_text().splitlines()
        (tmp_path / path.name).write_text("".join(f"{kept[i]}\n" for i in order[::-1]))
        typed += [option, tmp_path / path.name]
    with remembered() as first:
        done(*command(folder, tmp_path / "a", *lists(folder)))
    with remembered() as second:
        arguments = command(folder, tmp_path / "b", *typed)
        arguments[4] = tmp_path / "shards"
        done(*arguments)
    assert first.keys() == second.keys()
    for stage in first:
        for name, values in first[stage].items():
            if stage.startswith("partition"):
                assert values.dtype == second[stage][name].dtype
                np.testing.assert_array_equal(values, second[stage][name])
            else:
                np.testing.assert_allclose(values, second[stage][name], rtol=SEARCHED)
    alike(tmp_path / "b", Backend.load(tmp_path / "a"))


def test_on_a_device_of_torch(folder, adapted, tmp_path):
    pytest.importorskip("torch")
    for lists in (labelled, sessions):
        done(*command(folder, tmp_path / "b", *lists(folder), "--device", "cpu:0", "--force"))
        alike(tmp_path / "b", Backend.load(adapted(lists)))


# -- a cluster of machines


@pytest.fixture(scope="module")
def address():
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with distributed.LocalCluster(**options, silence_logs=50) as cluster:
        yield cluster.scheduler_address


@pytest.fixture(scope="module")
def shards(folder, tmp_path_factory):
    """Shards that cut sessions in two."""
    at, target = tmp_path_factory.mktemp("shards"), folder[1]
    for i, rows in enumerate(np.array_split(np.arange(len(target.ids)), 3)):
        own = LabelColumns(target.ids[rows], target.speaker[rows], target.session[rows])
        write_embeddings(at / f"x.{i}.parquet", target.ids[rows], target.X[rows], labels=own)
    assert len(np.unique(target.session[:100])) + len(np.unique(target.session[100:])) > len(np.unique(target.session))
    return at


@pytest.mark.parametrize("way", ["labels", "clusters", "total", "own"])
def test_a_cluster_gives_the_same(folder, adapted, shards, address, tmp_path, way):
    lists = ["--labels", shards] if way == "own" else WAYS[way][0](folder)
    arguments = command(folder, tmp_path / "a", *lists, "--dask", address)
    arguments[4] = shards
    done(*arguments)
    if way == "total":
        done(*command(folder, tmp_path / "b", *lists))
    here = tmp_path / "b" if way == "total" else adapted(sessions if way == "clusters" else labelled)
    alike(tmp_path / "a", Backend.load(here))
    origin = Backend.load(tmp_path / "a").provenance_["adaptation"]
    assert set(origin["fingerprint"]) == {str(shards)}
    assert str(shards) not in origin["sha256"]  # a pattern is no file


# -- errors


@pytest.mark.parametrize(
    ("wrong", "code", "message"),
    [
        (["--method", "best"], 2, "'best' is not one of 'auto', 'labels', 'clusters'"),
        (["--weights", "much"], 2, "--weights 'much' must be numbers"),
        (["--channels", "c"], 2, "--channels need --speakers or --sessions"),
        (["--labels", "t", "--sessions", "s"], 2, "leave out --sessions"),
        (["--dask", "local", "--device", "cuda"], 2, "leave out --device"),
        (["--centre", "2"], 2, "centre"),
        (["--method", "clusters"], 1, "method='clusters' needs sessions of the target's recordings"),
        (["--method", "labels"], 1, "method='labels' needs speakers"),
        (["--weights", "0.5"], 1, "method='auto' takes no weights"),
        (["--method", "total", "--weights", "0.5,0.1"], 1, "takes 1 weights"),
        (["--method", "total", "--weights", "1.5"], 1, "must be numbers from 0 to 1"),
        (["--sessions", "nothing"], 1, "nothing: no such file"),
    ],
)
def test_options_that_make_no_sense(folder, tmp_path, monkeypatch, wrong, code, message):
    monkeypatch.chdir(tmp_path)
    result = duoplda(*command(folder, tmp_path / "a"), *wrong)
    assert result.exit_code == code
    assert message in result.stderr
    assert not list(tmp_path.iterdir())


def test_the_output_is_no_input_and_replaces_nothing_unasked(folder, tmp_path):
    at, target = folder
    before = (at / "m").read_bytes()
    for option in ([], ["--force"]):
        assert "is also read by this command" in refused(*command(folder, at / "m", *option))
        assert "is also read by this command" in refused(*command(folder, target["x.ark"], *option))
    assert (at / "m").read_bytes() == before
    (tmp_path / "a").write_text("mine")
    assert "exists already" in refused(*command(folder, tmp_path / "a"))
    assert (tmp_path / "a").read_text() == "mine"
    done(*command(folder, tmp_path / "a", "--force"))
    assert Backend.load(tmp_path / "a").adapted_["method"] == "total"


@pytest.mark.parametrize("lists", [labelled, sessions, lambda _: []])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda X: np.where(np.arange(len(X))[:, None] == 7, np.nan, X), "NaN or infinity in 'utt0007'"),
        (lambda X: np.where(np.arange(D) == 4, 1.0, X), "columns 4 of the target are constant"),
        (lambda X: X[:, :-1], "have 11 dimensions, the model takes 12"),
    ],
)
def test_vectors_that_make_no_sense(folder, tmp_path, lists, spoil, message):
    _, target = folder
    write_embeddings(tmp_path / "y.ark", target.ids, spoil(target.X).astype(np.float32))
    arguments = command(folder, tmp_path / "a", *lists(folder), "--quiet")
    arguments[4] = tmp_path / "y.ark"
    assert message in refused(*arguments)
    assert [p.name for p in tmp_path.iterdir()] == ["y.ark"]


def test_two_labelled_speakers_are_too_few(folder, tmp_path):
    _, target = folder
    few = np.isin(target.speaker, ["spk0", "spk1"])
    write_map(tmp_path / "utt2spk", target.ids[few], target.speaker[few])
    arguments = command(folder, tmp_path / "a", "--speakers", tmp_path / "utt2spk", *sessions(folder), "--quiet")
    assert "2 labelled speakers are too few to adapt to (at least 3)" in refused(*arguments)
    assert not (tmp_path / "a").exists()


def test_few_clusters_tell_nothing_of_speakers_and_it_is_said(folder, tmp_path):
    at, target = folder
    few = np.isin(target.speaker, ["spk0", "spk1"])
    write_map(tmp_path / "utt2sess", target.ids[few], target.session[few])
    prior = ["--prior", "0.9"]
    result = done(*command(folder, tmp_path / "a", "--sessions", tmp_path / "utt2sess", *prior))
    assert "fewer than 4: they do not show how speakers differ" in result.stderr
    source, new = Backend.load(at / "m"), Backend.load(tmp_path / "a")
    assert list(new.adapted_["shares"]) == ["total"]  # as if nothing were known
    assert np.abs(new.steps_["center"].mean_ - source.steps_["center"].mean_).max() > 0.1


def test_missing_ids(folder, tmp_path):
    _, target = folder
    keep = np.arange(len(target.ids)) >= 3
    write_embeddings(tmp_path / "y.ark", target.ids[keep], target.X[keep])
    for lists in (labelled, sessions):
        arguments = command(folder, tmp_path / "a", *lists(folder), "--force")
        arguments[4] = tmp_path / "y.ark"
        error = refused(*arguments, code=3)
        assert "3 labelled recordings have no embedding: utt0000, utt0001, utt0002" in error
        assert not (tmp_path / "a").exists()
        done(*arguments, "--allow-missing")
        assert Backend.load(tmp_path / "a").adapted_["target"]["recordings"] == keep.sum()
        (tmp_path / "a").unlink()
    write_map(tmp_path / "utt2chan", target.ids[keep], target.channel[keep])
    error = refused(*command(folder, tmp_path / "a", *sessions(folder), "--channels", tmp_path / "utt2chan"), code=3)
    assert "3 recordings have a session and no channel, the first: utt0000" in error


@pytest.mark.parametrize("place", [0, -1])
def test_a_session_that_is_missing_altogether_changes_nothing(folder, tmp_path, place):
    _, target = folder
    keep = target.session != np.unique(target.session)[place]
    write_embeddings(tmp_path / "y.ark", target.ids[keep], target.X[keep])
    write_map(tmp_path / "utt2sess", target.ids[keep], target.session[keep])
    models = []
    for lists in (sessions(folder), ["--sessions", tmp_path / "utt2sess"]):
        arguments = command(folder, tmp_path / "a", *lists, "--allow-missing", "--force")
        arguments[4] = tmp_path / "y.ark"
        done(*arguments)
        models.append(Backend.load(tmp_path / "a"))
    with_missing, without = models
    assert with_missing.adapted_["target"] == without.adapted_["target"]
    np.testing.assert_allclose(with_missing.plda_.noise_precision_, without.plda_.noise_precision_, rtol=1e-9)


# -- what is said


def test_words_go_to_standard_error(folder, tmp_path):
    result = done(*command(folder, tmp_path / "a", *sessions(folder)))
    assert result.stdout == ""
    story = Backend.load(tmp_path / "a").adapted_
    last = story["partitions"][-1]
    for text in (
        f"adapted to: {len(folder[1].ids):,} recordings",
        f"{story['target']['clusters']} clusters (method clusters: the target's sessions are known",
        f"squared distance of {story['distance']:.4g} from the source",
        f"partition by {last['by']}, trust {last['trust']:g}: {last['clusters']} clusters",
        f"calibration after adaptation: scale {story['calibration']['scale']:.4g}, offset",
        "from trials between clusters that were left out of the adaptation in turn",
        f"model: {tmp_path / 'a'}",
    ):
        assert text in result.stderr
    assert done(*command(folder, tmp_path / "b", *sessions(folder), "--quiet")).output == ""


def test_progress_names_the_stages(folder, tmp_path):
    at, target = folder
    shown = []
    options = {"sessions": target["utt2sess"], "show": lambda done, message: shown.append(message)}
    adapt(at / "m", target["x.ark"], tmp_path / "a", **options)
    assert [s for s in shown if s in STAGES] == STAGES
    assert f"{len(folder[1].ids)} vectors" in shown


def test_info_tells_source_and_target(folder, adapted):
    at, target = folder
    path = adapted(labelled)
    said = done("info", path).stdout
    for text in (
        "trained on: 60 speakers, 240 sessions, 720 recordings",  # the source
        "command: duoplda train --what was typed",
        "sha256: first.scp 0123",
        f"adapted to: {len(target.ids)} recordings, {len(set(target.session))} sessions, 20 speakers",
        "(method labels: the target's speakers are known",
        "levels that held-out speakers choose: speaker ",
        "shares of the target: speaker 0.",
        "from trials between speakers that were left out",
        f"adaptation command: duoplda adapt --model {at / 'm'} --embeddings {target['x.ark']} --speakers",
        f"adaptation fingerprint: {target['x.ark']} ",
        f"adaptation sha256: {at / 'm'} ",
        "adaptation versions: duoplda ",
    ):
        assert text in said
    summary = json.loads(done("info", path, "--json").stdout)
    assert summary["adapted"] == json.loads(json.dumps(Backend.load(path).adapted_))
    assert set(summary["provenance"]["adaptation"]) == {"command", "sha256", "fingerprint", "versions"}
    assert "adapt" not in done("info", at / "m").stdout


def test_adapting_again_keeps_what_was_done_before(folder, tmp_path):
    done(*command(folder, tmp_path / "a"))
    again = command(folder, tmp_path / "b", *labelled(folder))
    again[2] = tmp_path / "a"
    done(*again)
    said = done("info", tmp_path / "b").stdout
    n = len(folder[1].ids)
    assert f"\nbefore that, adapted to: {n} recordings (method total: nothing is known of the target" in said
    assert "\nadaptation before command: duoplda adapt " in said
    assert Backend.load(tmp_path / "b").adapted_["before"] == Backend.load(tmp_path / "a").adapted_


def test_a_report_on_before_and_after(folder, adapted, tmp_path):
    at, target = folder
    first = [np.flatnonzero(target.speaker == name)[0] for name in np.unique(target.speaker)]
    rest = np.setdiff1d(np.arange(len(target.ids)), first)[::3]
    left, right = np.repeat(first, len(rest)), np.tile(rest, len(first))
    same = target.speaker[left] == target.speaker[right]
    write_trials(tmp_path / "trials", Trials(Coded.of(target.ids[left]), Coded.of(target.ids[right]), same))
    scores = []
    for name, model in (("before", at / "m"), ("after", adapted(labelled))):
        scores += ["--scores", tmp_path / f"{name}.txt"]
        trials = ["--embeddings", target["x.ark"], "--trials", tmp_path / "trials", "--no-domain-check"]
        done("score", "--model", model, *trials, "--out", tmp_path / f"{name}.txt")
    page = tmp_path / "page.html"
    trials = ["--trials", tmp_path / "trials", "--bootstrap", 0]
    done("report", *scores, *trials, "--model", adapted(labelled), "--out", page)
    text = page.read_text()
    assert "2 systems on" in text
    assert "before, after" in text
    assert "<dt>adapted to</dt>" in text
    assert "20 speakers (method labels)" in text
    evaluated = json.loads(done("evaluate", *scores, *trials, "--json").stdout)
    before, after = (evaluated["systems"][name]["cllr"] for name in ("before", "after"))
    assert after < before
    done("report", *scores, *trials, "--model", at / "m", "--out", page, "--force")
    assert "adapted to" not in page.read_text()


@pytest.mark.parametrize("to", ["kaldi", "vbx"])
def test_adapted_models_are_converted(folder, adapted, tmp_path, to):
    at, path = folder[0], adapted(labelled)
    done("convert", path, tmp_path / f"{to}.npz", "--to", to, "--quiet")
    done("convert", tmp_path / f"{to}.npz", tmp_path / "back.safetensors", "--quiet")
    done("convert", at / "m", tmp_path / "source.npz", "--to", to, "--quiet")
    back, new = Backend.load(tmp_path / "back.safetensors"), Backend.load(path)
    model, _ = new.collapsed()
    V = back.plda_.speaker_loadings_
    wanted = new.plda_.speaker_loadings_
    np.testing.assert_allclose(V @ V.T, wanted @ wanted.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(back.plda_.mean_, model.mean, rtol=1e-5, atol=1e-5)
    assert back.adapted_ is None
    assert (tmp_path / "source.npz").read_bytes() != (tmp_path / f"{to}.npz").read_bytes()


# -- the file of an adapted model


SPOILT = {
    "no dictionary": lambda s: "clusters",
    "no method": lambda s: {k: v for k, v in s.items() if k != "method"},
    "no target": lambda s: {k: v for k, v in s.items() if k != "target"},
    "a text for a number": lambda s: {**s, "distance": "far"},
    "too large a number": lambda s: {**s, "centre": 10**400},
    "a number for a text": lambda s: {**s, "notes": [3]},
    "no reason": lambda s: {**s, "calibration": {"scale": 1.0}},
    "half a partition": lambda s: {**s, "partitions": [{"by": "source"}]},
    "before": lambda s: {**s, "before": {"method": "total"}},
}


@pytest.mark.parametrize("how", SPOILT)
def test_damaged_stories_are_one_line(adapted, tmp_path, how):
    arrays, header = read_container(adapted(labelled), ["duoplda-backend"])
    write_container(tmp_path / "b", "duoplda-backend", arrays, {**header, "adapted": SPOILT[how](header["adapted"])})
    error = refused("info", tmp_path / "b")
    assert f"{tmp_path / 'b'} is damaged: " in error


def test_models_without_a_story_load(folder, tmp_path):
    at, _ = folder
    arrays, header = read_container(at / "m", ["duoplda-backend"])
    assert "adapted" not in header
    write_container(tmp_path / "old", "duoplda-backend", arrays, header)
    assert Backend.load(tmp_path / "old").adapted_ is None


# -- interruptions


@contextmanager
def counted(monkeypatch, interrupt_at=None):
    """How often sessions are clustered, and trials are made; at one of these calls of either there is a Ctrl-C."""
    calls = []

    def watched(what, function):
        def call(*args, **kwargs):
            if len(calls) + 1 == interrupt_at:
                raise KeyboardInterrupt
            calls.append(what)
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(adaptation, "cluster", watched("partition", adaptation.cluster))
        patch.setattr(selected, "HeldOutTrials", watched("trials", selected.HeldOutTrials))
        yield calls


def test_an_interrupted_adaptation_goes_on(folder, tmp_path, monkeypatch):
    arguments = command(folder, tmp_path / "a", *sessions(folder))
    with counted(monkeypatch) as whole:
        done(*command(folder, tmp_path / "whole", *sessions(folder)))
    assert whole.count("partition") >= 5
    assert whole.count("trials") >= 4
    for at in (1, 2, len(whole) // 2, len(whole)):
        for path in tmp_path.glob("a*"):
            path.unlink()
        with counted(monkeypatch, at) as first:
            result = duoplda(*arguments)
        assert result.exit_code == 130
        assert result.stderr.splitlines()[-1] == "duoplda: error: interrupted"
        assert not (tmp_path / "a").exists()
        assert (tmp_path / "a.resume").exists() == (at > 1) == ("the same command with --resume" in result.stderr)
        with counted(monkeypatch) as second:
            result = done(*arguments, "--resume")
        said = "going on after " if at > 1 else "the work starts from the beginning"
        assert said in result.stderr
        assert first.count("partition") + second.count("partition") == whole.count("partition")
        assert len(first) + len(second) < len(whole) + 4  # no more than one stage, of four turns, is done again
        assert same_model(tmp_path / "a", tmp_path / "whole")
        assert Backend.load(tmp_path / "a").adapted_ == Backend.load(tmp_path / "whole").adapted_
        assert not (tmp_path / "a.resume").exists()


@pytest.mark.parametrize("lists", [labelled, sessions])
def test_a_killed_adaptation_goes_on(folder, adapted, tmp_path, lists):
    """Killed right after a stage was written, again and again."""
    kill = (
        "import os, signal, sys; from duoplda.estimators.checkpoint import Checkpoint as C; done = C.stage_done\n"
        "C.stage_done = lambda self, *stage: (done(self, *stage), os.kill(os.getpid(), signal.SIGKILL))\n"
        "from duoplda.cli import app; app(sys.argv[1:], prog_name='duoplda')"
    )
    arguments = [str(a) for a in command(folder, tmp_path / "a", *lists(folder))]
    for times in range(2):
        run = [sys.executable, "-c", kill, *arguments, *["--resume"] * (times > 0)]
        assert subprocess.run(run, env=ENVIRONMENT, capture_output=True, check=False).returncode == -signal.SIGKILL
        assert sorted(p.name for p in tmp_path.iterdir()) == ["a.resume"]
        assert len(read_container(tmp_path / "a.resume", ["duoplda-resume"])[1]["stages"]) == times + 1
    done(*arguments, "--resume")
    assert same_model(tmp_path / "a", adapted(lists))


@pytest.fixture
def interrupted(folder, tmp_path, monkeypatch):
    """The command of an interrupted adaptation, whose stages are in `a.resume`."""
    arguments = command(folder, tmp_path / "a", *sessions(folder))
    with counted(monkeypatch, 3):
        assert duoplda(*arguments).exit_code == 130
    return arguments


def test_a_resume_file_of_something_else_is_refused(folder, tmp_path, interrupted):
    _, target = folder
    remedy = "repeat the command that wrote it, or remove it and start anew"
    before = (tmp_path / "a.resume").read_bytes()
    write_embeddings(tmp_path / "y.ark", target.ids, 2 * target.X)
    write_map(tmp_path / "other", target.ids, target.session[::-1])
    model, data, labels = ([*interrupted] for _ in range(3))
    model[2], data[4], labels[6] = folder[0] / "kinds", tmp_path / "y.ark", tmp_path / "other"
    options = [*interrupted, "--prior", "0.1"]
    for other, what in ((model, "model"), (labels, "model"), (options, "model"), (data, "other recordings")):
        error = refused(*other, "--resume")
        assert what in error
        assert remedy in error
    assert (tmp_path / "a.resume").read_bytes() == before
    done(*interrupted, "--resume")


def test_a_damaged_resume_file_is_refused(tmp_path, interrupted):
    arrays, header = read_container(tmp_path / "a.resume", ["duoplda-resume"])
    names = [name for name in arrays if name.endswith((": sessions", ": speakers"))]
    assert len(names) >= 2
    stages = [*header["stages"]]
    for spoilt, other_header in (
        ({k: v for k, v in arrays.items() if k not in names}, {}),
        ({k: v + 0x110000 if k in names else v for k, v in arrays.items()}, {}),
        ({k: v[: len(v) // 2] if k in names else v for k, v in arrays.items()}, {}),  # half of the sessions
        ({k: v[:0] for k, v in arrays.items()}, {}),
        ({k: v * np.nan if v.dtype == float else v + 1 for k, v in arrays.items()}, {}),  # other shares
        (arrays, {"stages": {stages[0]: {}}}),
        (arrays, {"stages": []}),
        (arrays, {"data": 5}),
        (arrays, {"checksum": None}),
    ):
        write_container(tmp_path / "a.resume", "duoplda-resume", spoilt, {**header, **other_header}, force=True)
        assert "a.resume is damaged: remove it, and start anew" in refused(*interrupted, "--resume")
    (tmp_path / "a.resume").write_bytes(b"garbage")
    assert "damaged" in (error := refused(*interrupted, "--resume"))
    assert error.endswith("remove it")
    done(*interrupted)  # not asked to go on: from the beginning
    assert not (tmp_path / "a.resume").exists()


def test_a_file_of_a_training_is_none_of_an_adaptation_nor_the_reverse(folder, tmp_path, interrupted):
    at, _ = folder
    arguments = ["train", "--embeddings", at / "source.ark", "--labels", at / "source.csv", "--shrinkage", "none"]
    error = refused(*arguments, "--out", tmp_path / "a", "--resume", "--quiet")
    assert "a.resume is of another model, or of other labels or options" in error
    model = Backend.load(at / "m").plda_.model_
    checkpoint.Checkpoint(tmp_path / "a.resume", {}, SimpleNamespace(digest="")).state(State(model, (-1.0,)))
    assert "is of another model, or of other labels or options" in refused(*interrupted, "--resume")
