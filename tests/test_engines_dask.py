"""Statistics and training on a real cluster of processes: the same as on one machine."""

import os
import shutil
import signal
import traceback
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("distributed")

from dask import delayed
from distributed import Client, LocalCluster

from cli_cases import DEADLINE, done, duoplda, long_training, start, training, wait_for
from duoplda import PLDA, Backend, Statistics
from duoplda.datasets import make_recordings
from duoplda.engines import dask as engine
from duoplda.errors import DuopldaError
from duoplda.estimators.scoring import enroll_recordings, score
from duoplda.io import LabelColumns, embedding_shards, read_embeddings, read_labels, write_embeddings, write_labels
from test_statistics import assert_equal_statistics


@pytest.fixture(scope="module")
def client():
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with LocalCluster(**options, silence_logs=50) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


@pytest.fixture(scope="module")
def data():
    """Sessions of 1 to 9 recordings in random order, so that every cut goes through sessions; far from 0."""
    made = make_recordings(40, (1, 5), (1, 9), n_dimensions=6, n_speaker_factors=4, n_session_factors=3, seed=0)
    order = np.random.default_rng(0).permutation(len(made.X))
    channel = np.random.default_rng(1).choice(["mic", "tel"], len(order))
    return made.X[order] + 1e3, made.speaker[order], made.session[order], channel


@pytest.fixture(scope="module")
def folder(tmp_path_factory, data):
    """The same as Parquet shards with labels, as Kaldi archives, and a table of labels."""
    here = tmp_path_factory.mktemp("shards")
    X, speaker, session, channel = data
    ids = np.array([f"utt{i:05}" for i in range(len(X))])
    labels = LabelColumns(ids, speaker.astype(str), session.astype(str), channel)
    write_labels(here / "labels.csv", labels)
    for name in ("parquet", "arks"):
        (here / name).mkdir()
    for i, rows in enumerate(np.array_split(np.arange(len(X)), 5)):
        own = LabelColumns(ids[rows], labels.speaker[rows], labels.session[rows], channel[rows])
        write_embeddings(here / f"parquet/part-{i}.parquet", ids[rows], X[rows], labels=own)
        write_embeddings(here / f"arks/x.{i}.ark", ids[rows], X[rows])
    return here


def chunks(data, size=97):
    return [delayed(tuple(c[i : i + size] for c in data)) for i in range(0, len(data[0]), size)]


def equal(stats, whole):
    assert_equal_statistics(stats, whole, 1e-9)
    assert len(stats.folds) == len(whole.folds)
    for a, b in zip(stats.folds, whole.folds, strict=True):
        assert_equal_statistics(a, b, 1e-9)


@pytest.mark.parametrize("columns", [2, 3, 4])
def test_delayed_chunks_cut_through_sessions(client, data, columns):
    part = data[:columns]
    cut = np.concatenate([data[2][:97], data[2][97:194]])
    assert len(np.unique(data[2][:97])) + len(np.unique(data[2][97:194])) > len(np.unique(cut))  # sessions are cut
    told = []
    there = engine.recordings(chunks(part), client=client, show=lambda n, note: told.append(note))
    stats = Statistics.of(there, n_folds=3)
    equal(stats, Statistics.from_arrays(*part, n_folds=3))
    assert told[-1] == f"statistics: {len(chunks(part))} of {len(chunks(part))} shards"


def test_parts_in_several_buckets(client, data):
    there = replace(engine.recordings(chunks(data), client=client), joined_bytes=4096)
    assert there.buckets > 1
    equal(Statistics.of(there), Statistics.from_arrays(*data))


def test_a_data_frame(client, data, folder):
    import dask.dataframe as dd
    import pandas as pd

    X, speaker, session, _ = data
    ddf = dd.read_parquet(folder / "parquet").rename(columns={"speaker": "who"})
    equal(
        Statistics.of(engine.recordings(ddf, speaker="who", channel="channel", client=client)),
        Statistics.from_arrays(*data),
    )
    lists = pd.DataFrame({"speaker": speaker, "session": session, "embedding": list(X)})
    with pytest.raises(DuopldaError, match=r"partition \d: column embedding holds text.*convert-string"):
        Statistics.of(engine.recordings(dd.from_pandas(lists, npartitions=2), client=client))
    numbers = pd.DataFrame(X, columns=list("abcdef")).assign(speaker=speaker, session=session)
    ddf = dd.from_pandas(numbers, npartitions=3)
    equal(
        Statistics.of(engine.recordings(ddf, vectors=list("abcdef"), client=client)),
        Statistics.from_arrays(X, speaker, session),
    )
    with pytest.raises(DuopldaError, match=r"no column 'embedding', 'who'|no column 'who', 'embedding'"):
        Statistics.of(engine.recordings(ddf, speaker="who", client=client))


@pytest.mark.parametrize("where", ["parquet", "arks/x.*.ark"])
@pytest.mark.parametrize("own", [True, False])
def test_shards_on_shared_storage(client, data, folder, where, own):
    from duoplda.io import read_labels

    shards = embedding_shards(folder / where, bytes_each=2000)
    if own and where != "parquet":
        with pytest.raises(DuopldaError, match=r"x\.\d\.ark: is ark, which has no room for labels"):
            Statistics.of(engine.recordings(shards, True, client=client))
        return
    labels = True if own else read_labels(folder / "labels.csv")
    X, speaker, session, channel = data
    stats = Statistics.of(engine.recordings(shards, labels, client=client))
    names = [f"{a} {b}" for a, b in zip(speaker, session, strict=True)]  # in tables a session is its speaker's own
    equal(stats, Statistics.from_arrays(X, speaker.astype(str), names, channel))


def dies_once(part, flag):
    """A worker that is killed in the middle of its work, the first time."""
    if not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return part


def test_a_killed_worker_changes_nothing(client, data, tmp_path):
    before = set(client.scheduler_info()["workers"])
    flags = [tmp_path / "first pass", tmp_path / "second pass"]
    flags[1].touch()
    parts = chunks(data)
    parts[3] = delayed(dies_once)(parts[3], str(flags[0]))
    parts[5] = delayed(dies_once_later)(parts[5], str(flags[0]), str(tmp_path / "calls"))
    equal(Statistics.of(engine.recordings(parts, client=client)), Statistics.from_arrays(*data))
    assert flags[0].exists()
    assert (tmp_path / "calls.killed").exists()
    client.wait_for_workers(2, timeout=DEADLINE)
    assert set(client.scheduler_info()["workers"]) != before  # another process has taken over


def dies_once_later(part, first, calls):
    """Lives through the first pass over the labels; is killed in the second, once."""
    count = len(list(Path(calls).parent.glob("calls.[0-9]*")))
    Path(f"{calls}.{count}").touch()
    if count >= 1 and not Path(calls + ".killed").exists():
        Path(calls + ".killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return part


def fails(part):
    raise OSError("the disk is gone")


def test_what_is_wrong_is_named_by_its_shard(client, data, folder, tmp_path):
    parts = chunks(data)
    parts[4] = delayed(fails)(parts[4])
    with pytest.raises(DuopldaError, match=r"^chunk 4: OSError: the disk is gone$"):
        Statistics.of(engine.recordings(parts, client=client))
    X = data[0].copy()
    X[200, 1] = np.nan
    with pytest.raises(DuopldaError, match=r"^chunk 2: Input X contains NaN or infinity in 1 of 97 rows: 6") as raised:
        Statistics.of(engine.recordings(chunks((X, *data[1:])), client=client))
    names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert "check_finite" in names  # what ran on the worker, for a developer who asks
    with pytest.raises(DuopldaError, match=r"^chunk 0: a chunk must be"):
        Statistics.of(engine.recordings([delayed(7)], client=client))
    for i in range(5):
        content = (folder / f"parquet/part-{i}.parquet").read_bytes()
        (tmp_path / f"part-{i}.parquet").write_bytes(content)
    shards = embedding_shards(tmp_path)
    content = bytearray((tmp_path / "part-3.parquet").read_bytes())
    content[100:2000] = bytes(1900)
    (tmp_path / "part-3.parquet").write_bytes(content)
    with pytest.raises(DuopldaError, match=r"part-3\.parquet"):
        Statistics.of(engine.recordings(shards, True, client=client))
    (tmp_path / "part-3.parquet").unlink()
    with pytest.raises(DuopldaError, match=r"part-3\.parquet"):
        Statistics.of(engine.recordings(shards, True, client=client))


def names_of(part):
    yield part.labels().n_recordings


def test_a_shard_that_is_replaced_between_passes_is_named(client, data, folder, tmp_path):
    """It has the same size, the same ids and the same labels: only its vectors are others."""
    shutil.copytree(folder / "arks", tmp_path / "shards")
    recordings = engine.recordings(tmp_path / "shards", read_labels(folder / "labels.csv"), client=client)
    equal(Statistics.of(recordings), Statistics.of(recordings))
    assert sum(recordings.map(names_of)) == len(data[0])
    file = sorted((tmp_path / "shards").iterdir())[3]
    ids, X = read_embeddings(file).load()
    size = file.stat().st_size
    write_embeddings(file, ids, -X, force=True)
    assert file.stat().st_size == size
    for work in (lambda: Statistics.of(recordings), lambda: list(recordings.map(names_of))):
        with pytest.raises(DuopldaError, match=f"{file.name}.*has changed since the first pass over it; leave"):
            work()


def test_chunks_that_are_others_each_time_are_named(client, data):
    def drawn(seed):
        return np.random.default_rng(seed).normal(size=(20, 3)), np.arange(20) % 5

    sound = [delayed(drawn)(0), delayed(drawn)(1)]
    Backend(plda=PLDA(2, 0)).fit(engine.recordings(sound, client=client))
    with pytest.raises(DuopldaError, match="chunk 1: has changed since the first pass"):
        Backend(plda=PLDA(2, 0)).fit(engine.recordings([sound[0], delayed(drawn)(None)], client=client))


def test_a_session_of_two_speakers_in_different_chunks(client, data):
    X, speaker, session = (c.copy() for c in data[:3])
    other = np.flatnonzero(speaker != speaker[0])[-1]
    session[[0, other]] = "torn"
    with pytest.raises(DuopldaError, match=r"session torn belongs to 2 speakers .*, in different shards"):
        Statistics.of(engine.recordings(chunks((X, speaker, session)), client=client))


def test_no_shards_at_all(client):
    with pytest.raises(DuopldaError, match="there are no shards"):
        engine.recordings([], client=client)


def test_without_a_client(data):
    with pytest.raises(DuopldaError, match="no client of Dask: make one first"):
        Statistics.of(engine.recordings(chunks(data)))


@pytest.mark.parametrize("options", [{}, {"lda": 4}, {"center_by_channel": True}, {"length_norm": False}])
def test_the_whole_chain(client, data, folder, options):
    from duoplda.io import read_labels

    X, speaker, session, channel = data
    given = {"plda": PLDA(shrinkage=(0.1, 0.1, 0.1), tol=1e-7), **options}
    here = Backend(**given).fit(X, speaker.astype(str), session, channel)
    cluster = engine.recordings(folder / "arks", read_labels(folder / "labels.csv"), client=client)
    there = Backend(**given).fit(cluster)
    assert there.counts_ == here.counts_
    np.testing.assert_allclose(there.plda_.log_likelihoods_, here.plda_.log_likelihoods_, rtol=1e-9)
    a, b = (m.enroll(X[:50], np.arange(50), None, channel[:50]) for m in (here, there))
    np.testing.assert_allclose(there.llr(b, b), here.llr(a, a), rtol=1e-6, atol=1e-6)


def test_clusters_are_those_of_one_machine(client, data):
    X, speaker, session, _ = data
    plda = PLDA(shrinkage=0.1).fit(X, speaker, session=session)
    here = plda.cluster(X, session)
    ids = np.array([f"r{i:05}" for i in range(len(X))])
    given = [delayed({"X": X[part], "ids": ids[part]}) for part in np.array_split(np.arange(len(X)), 5)]
    there = plda.cluster(
        engine.recordings(given, client=client), dict(zip(ids.tolist(), session.tolist(), strict=True))
    )
    assert there.ids.tolist() == ids.tolist()
    assert there.log_posterior == pytest.approx(here.log_posterior, abs=1e-8)
    assert len(set(zip(here.labels.tolist(), there.labels.tolist(), strict=True))) == len(here) == len(there)


# -- command line


def apart(*arguments):
    """Run a command in a process of its own. Most tests need none: the workers are other processes in any case."""
    process = start(*arguments)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, err


def test_train_on_a_cluster(client, folder, tmp_path):
    outs = []
    address = client.scheduler.address
    for name, more in (("one", []), ("table", ["--dask", address]), ("own", ["--dask", address])):
        labels = folder / "parquet" if name == "own" else folder / "labels.csv"
        out = tmp_path / f"{name}.safetensors"
        arguments = ["train", "--embeddings", folder / "parquet", "--labels", labels, "--out", out, "--max-iter", "30"]
        (apart if name == "own" else done)(*arguments, *more)
        outs.append(Backend.load(out))
    for other in outs[1:]:
        assert other.counts_ == outs[0].counts_
        np.testing.assert_allclose(other.plda_.log_likelihoods_, outs[0].plda_.log_likelihoods_, rtol=1e-9)
        assert other.plda_.shrinkage_ == outs[0].plda_.shrinkage_


def test_train_on_processes_of_this_machine(folder, tmp_path):
    out = tmp_path / "m.safetensors"
    arguments = ["train", "--embeddings", folder / "arks", "--labels", folder / "labels.csv", "--out", out]
    apart(*arguments, "--max-iter", "3", "--shrinkage", "0.1", "--dask", "local")
    assert Backend.load(out).counts_["recordings"] > 0


def test_what_the_command_line_says_of_a_cluster(client, folder, tmp_path):
    out = tmp_path / "m.safetensors"
    arguments = ["train", "--embeddings", folder / "arks", "--out", out, "--labels"]
    result = duoplda(*arguments, folder / "labels.csv", "--dask", "nowhere")
    assert result.exit_code == 1
    assert "no scheduler of Dask at 'nowhere'" in result.stderr
    result = duoplda(*arguments, folder / "labels.csv", "--dask", "local", "--device", "cuda")
    assert result.exit_code == 2
    more = (folder / "labels.csv").read_text() + "nobody,spk,sess,mic\n"
    (tmp_path / "more.csv").write_text(more)
    result = duoplda(*arguments, tmp_path / "more.csv", "--dask", client.scheduler.address)
    assert result.exit_code == 3
    assert "1 labelled recordings have no embedding: nobody" in result.stderr
    assert not out.exists()


# -- scores


@pytest.fixture(scope="module")
def scored(data, folder):
    """A model, two enrolled sets of sessions, and what one machine gives for all recordings."""
    X, speaker, session, channel = data
    backend = Backend(plda=PLDA(shrinkage=(0.1, 0.1, 0.1), tol=1e-4)).fit(X, speaker, session, channel)
    enrolled = backend.enroll(X[:60], speaker[:60], session[:60], channel[:60])
    ids = np.array([f"utt{i:05}" for i in range(len(X))])
    labels = {"session": dict(zip(ids, session, strict=True)), "channel": dict(zip(ids, channel, strict=True))}
    tests = backend.enroll(X, np.arange(len(X)), session, channel)
    return backend, enrolled, ids, labels, backend.llr(enrolled, tests)


def test_score_blocks_are_the_matrix(client, folder, scored):
    backend, enrolled, ids, labels, whole = scored
    shards = embedding_shards(folder / "parquet", bytes_each=2000)
    told = []
    tests = engine.recordings(shards, client=client, show=lambda n, note: told.append(n))
    blocks = list(score(backend, enrolled, tests, **labels))
    assert told == list(range(1, len(shards) + 1))
    assert len(shards) > 4
    np.testing.assert_array_equal(np.concatenate([b.ids for b in blocks]), ids)
    np.testing.assert_allclose(np.concatenate([b.scores for b in blocks], axis=1), whole, rtol=1e-9, atol=1e-9)


def test_the_best_models_of_each_recording(client, data, scored):
    backend, enrolled, ids, labels, whole = scored
    chunks = [delayed({"X": data[0][i : i + 100], "ids": ids[i : i + 100]}) for i in range(0, len(ids), 100)]
    blocks = list(score(backend, enrolled, engine.recordings(chunks, client=client), **labels, top=3))
    order = np.argsort(-whole, axis=0, kind="stable")[:3].T
    np.testing.assert_array_equal(np.concatenate([b.rows for b in blocks]), order)
    scores = np.concatenate([b.scores for b in blocks])
    np.testing.assert_allclose(scores, np.take_along_axis(whole.T, order, axis=1), rtol=1e-9, atol=1e-9)


def test_listed_trials_come_back_with_their_places(client, folder, scored):
    backend, enrolled, ids, labels, whole = scored
    rng = np.random.default_rng(0)
    model, test = rng.integers(0, len(enrolled), 500), rng.integers(0, len(ids) // 3, 500) * 2
    tests, out = engine.recordings(folder / "arks", client=client), np.full(500, np.nan)
    for b in score(backend, enrolled, tests, **labels, trials=(model, ids[test])):
        out[b.rows] = b.scores
    np.testing.assert_allclose(out, whole[model, test], rtol=1e-9, atol=1e-9)


def test_a_plda_alone_scores_too(client, data, scored):
    X, speaker, session, _ = data
    plda = PLDA(4, 3).fit(X, speaker, session=session)
    enrolled = plda.enroll(X[:60], speaker[:60], session[:60])
    tests = engine.recordings([delayed({"X": X[:2], "ids": ["a", "b"]})], client=client)
    blocks = list(score(plda, enrolled, tests))
    np.testing.assert_allclose(blocks[0].scores, plda.llr(enrolled, plda.enroll(X[:2], [0, 1])), rtol=1e-9)


def test_models_are_enrolled_where_the_recordings_lie(client, data, folder, scored):
    backend, _, ids, labels, _ = scored
    names, members = np.array(["a", "b", "a"]), ids[[5, 300, 7]]
    there = enroll_recordings(backend, engine.recordings(folder / "arks", client=client), names, members, **labels)
    rows = np.searchsorted(ids, members)
    here = backend.enroll(data[0][rows], names, data[2][rows], data[3][rows])
    assert there.ids.tolist() == ["a", "b"]
    np.testing.assert_allclose(there.gamma, here.gamma, rtol=1e-9)


def test_what_is_wrong_with_tests_is_named(client, data, folder, scored):
    backend, enrolled, ids, _, _ = scored
    X = data[0].copy()
    X[150, 2] = np.inf

    def tests(*parts):
        chunks = [delayed({"X": X[p][:, c], "ids": ids[p]}) for p, c in parts]
        return list(score(backend, enrolled, engine.recordings(chunks, client=client)))

    with pytest.raises(DuopldaError, match=r"^chunk 1: .*NaN or infinity in 1 recordings: 'utt00150'"):
        tests((slice(0, 100), slice(None)), (slice(100, 200), slice(None)))
    with pytest.raises(DuopldaError, match=r"^chunk 0: .*the model takes 6"):
        tests((slice(0, 3), slice(0, 2)))


@pytest.fixture(scope="module")
def lists(folder, scored):
    """A model file, an enrolment map, trials, sessions and channels."""
    from duoplda.io import Coded, Trials, write_map, write_trials

    backend, _, ids, labels, _ = scored
    backend.save(folder / "model.safetensors")
    rng = np.random.default_rng(0)
    write_map(folder / "enroll", rng.choice(["anna", "bert", "cleo", "dora"], 60), ids[:60])
    write_map(folder / "utt2sess", ids, [labels["session"][i] for i in ids])
    write_map(folder / "utt2channel", ids, [labels["channel"][i] for i in ids])
    models, tests = rng.choice(["anna", "bert", "cleo"], 300), ids[rng.integers(0, len(ids), 300)]
    pairs = sorted(set(zip(models, tests, strict=True)))
    write_trials(folder / "trials", Trials(Coded.of([p[0] for p in pairs]), Coded.of([p[1] for p in pairs])))
    return folder


@pytest.mark.parametrize("what", [["--trials"], ["--matrix"], ["--top", "2"], ["--trials", "--top", "2"]])
def test_score_on_a_cluster(client, lists, tmp_path, what):
    arguments = ["score", "--model", lists / "model.safetensors", "--enroll", lists / "enroll"]
    arguments += ["--sessions", lists / "utt2sess", "--channels", lists / "utt2channel"]
    for option in what:
        arguments += [option, lists / "trials"] if option == "--trials" else [option]
    tables = []
    for name, more in (("here", ["--embeddings", lists / "arks"]), ("there", ["--embeddings", lists / "parquet"])):
        if name == "there":
            more += ["--dask", client.scheduler.address]
        done(*arguments, *more, "--out", tmp_path / f"{name}.txt")
        rows = [line.split() for line in (tmp_path / f"{name}.txt").read_text().splitlines()]
        tables.append(rows if what == ["--trials"] else sorted(rows))
    assert len(tables[0]) > 100
    assert [r[:2] for r in tables[0]] == [r[:2] for r in tables[1]]
    np.testing.assert_allclose(*([float(r[2]) for r in t] for t in tables), rtol=1e-8, atol=1e-8)


def test_a_score_matrix_from_a_cluster(client, lists, tmp_path):
    from duoplda.io import read_score_matrix

    arguments = ["score", "--model", lists / "model.safetensors", "--enroll", lists / "enroll", "--matrix"]
    for name, more in (("here", []), ("there", ["--dask", client.scheduler.address])):
        done(*arguments, "--embeddings", lists / "arks", "--out", tmp_path / f"{name}.npz", *more)
    here, there = (read_score_matrix(tmp_path / f"{n}.npz") for n in ("here", "there"))
    assert here.enroll_ids.tolist() == there.enroll_ids.tolist()
    assert here.test_ids.tolist() == there.test_ids.tolist()
    np.testing.assert_allclose(there.score, here.score, rtol=1e-8, atol=1e-8)


def test_what_score_says_of_a_cluster(client, lists, tmp_path):
    arguments = ["score", "--model", lists / "model.safetensors", "--enroll", lists / "enroll"]
    arguments += ["--embeddings", lists / "arks", "--out", tmp_path / "s.txt", "--dask", client.scheduler.address]
    (tmp_path / "trials").write_text("anna nobody\n")
    result = duoplda(*arguments, "--trials", tmp_path / "trials")
    assert result.exit_code == 3
    assert "1 test recordings have no embedding: nobody" in result.stderr
    assert duoplda(*arguments, "--matrix", "--device", "cuda").exit_code == 2
    assert not (tmp_path / "s.txt").exists()


def test_an_interrupt_ends_the_cluster_without_noise(tmp_path):
    """Ctrl-C goes to every process of the terminal; only the command has something to say."""
    long_training(tmp_path, "x.parquet")
    out = tmp_path / "m.safetensors"
    options = ["--shrinkage", "none", "--tol", "0", "--max-iter", "1000000", "--dask", "local"]
    process = start(*training(tmp_path, "x.parquet"), *options, "--out", out, start_new_session=True)
    wait_for(Path(f"{out}.resume").exists, process)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert err.splitlines()[-1] == "duoplda: error: interrupted"
    assert "--resume" in err
    assert not out.exists()
