"""`duoplda cluster`: what the library finds, written and told; and `duoplda evaluate --clusters` reads it."""

import json

import numpy as np
import pytest

from cli_cases import done, duoplda, lines, make_folder
from duoplda.estimators.backend import Backend
from duoplda.io import read_map, read_partition, read_recordings, write_embeddings, write_map
from duoplda.metrics import partition_metrics


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    at = tmp_path_factory.mktemp("cluster")
    make_folder(at)
    return at


def clustering(folder, out, *more, sessions=True):
    files = ["--model", folder / "model.safetensors", "--embeddings", folder / "x.npz", "--out", out]
    return ["cluster", *files, *(["--sessions", folder / "utt2sess"] if sessions else []), *more]


def library(folder, **options):
    """What the library finds: the clustering, and the cluster of each recording."""
    session = read_map(folder / "utt2sess", "session")
    chain = Backend.load(folder / "model.safetensors")
    found = chain.cluster(read_recordings(folder / "x.npz"), **{"session": session, **options})
    return found, dict(zip(found.ids.tolist(), found.names[found.labels].tolist(), strict=True))


def rows(path):
    head, *body = [line.split("\t") for line in path.read_text().splitlines()]
    return [dict(zip(head, row, strict=True)) for row in body]


def test_the_table_is_what_the_library_finds(tmp_path, folder):
    done(*clustering(folder, tmp_path / "utt2spk.tsv"))
    found, cluster = library(folder)
    table, session = rows(tmp_path / "utt2spk.tsv"), dict(lines(folder / "utt2sess"))
    assert list(table[0]) == ["recording", "cluster", "session", "margin", "second"]
    assert [row["recording"] for row in table] == found.ids.tolist()
    for row, item in zip(table, found.item.tolist(), strict=True):
        assert row["cluster"] == cluster[row["recording"]]
        assert row["session"] == session[row["recording"]]
        assert float(row["margin"]) == pytest.approx(found.margin[item], abs=1e-4)
        second = int(found.runner_up[item])
        assert row["second"] == ("-" if second < 0 else found.names[second])
    assert "-" in {row["second"] for row in table} > {"-"}


def test_evaluate_reads_it(tmp_path, folder):
    done(*clustering(folder, tmp_path / "utt2spk.tsv", "--quiet"))
    files = ["--clusters", tmp_path / "utt2spk.tsv", "--reference", folder / "utt2spk", "--bootstrap", 0, "--json"]
    shown = json.loads(done("evaluate", *files).stdout)
    _, cluster = library(folder)
    speaker = dict(lines(folder / "utt2spk"))
    expected = partition_metrics([cluster[i] for i in speaker], list(speaker.values()), n_resamples=0)
    assert shown["missing"] == 0
    assert shown["b_cubed_f"] == pytest.approx(expected["b_cubed_f"].estimate, rel=1e-12)


@pytest.mark.parametrize("name", ["o.csv", "o.parquet", "utt2spk", "o.tsv"])
def test_every_form_holds_the_same_clusters(tmp_path, folder, name):
    done(*clustering(folder, tmp_path / name))
    assert read_partition(tmp_path / name) == library(folder)[1]
    if name == "utt2spk":
        assert {len(line) for line in lines(tmp_path / name)} == {2}


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (["--prior", 0.3], {"prior": 0.3}),
        (["--weight", 0.4], {"weight": 0.4}),
        (["--no-refine"], {"refine": False}),
        (["--speakers", 17], {"n_speakers": 17}),
        (["--max-speakers", 20], {"max_speakers": 20}),
        (["--min-speakers", 100], {"min_speakers": 100}),
    ],
)
def test_options_reach_the_library(tmp_path, folder, given, options):
    shown = json.loads(done(*clustering(folder, tmp_path / "o", *given, "--json")).stdout)
    found, cluster = library(folder, **options)
    assert read_partition(tmp_path / "o") == cluster
    assert shown["speakers"] == len(found)
    if "refine" not in options:  # they make a difference here
        assert len(found) != len(library(folder)[0])


def test_labels_in_one_table(tmp_path, folder):
    """Sessions and kinds of channels as columns, of which either may be absent."""
    session, kind = dict(lines(folder / "utt2sess")), dict(lines(folder / "utt2chan"))
    (tmp_path / "both.csv").write_text("id,session,channel\n" + "".join(f"{i},{session[i]},{kind[i]}\n" for i in kind))
    (tmp_path / "one.tsv").write_text("id\tsession\n" + "".join(f"{i}\t{s}\n" for i, s in session.items()))
    (tmp_path / "none.csv").write_text("id,speaker\n" + "".join(f"{i},{s}\n" for i, s in session.items()))
    labels = ["--labels", tmp_path / "one.tsv"]
    done(*clustering(folder, tmp_path / "a", *labels, sessions=False))
    assert read_partition(tmp_path / "a") == library(folder)[1]
    done(*clustering(folder, tmp_path / "b", "--labels", tmp_path / "both.csv", sessions=False))
    done(*clustering(folder, tmp_path / "c", "--channels", folder / "utt2chan"))
    assert read_partition(tmp_path / "b") == read_partition(tmp_path / "c")
    failed = duoplda(*clustering(folder, tmp_path / "d", "--labels", tmp_path / "none.csv", sessions=False))
    assert failed.exit_code == 1
    assert "neither a session nor a channel" in failed.stderr


def test_pairs_that_are_known(tmp_path, folder):
    """Two recordings that would be apart are together, and two that would be together are apart."""
    _, cluster = library(folder)
    apart = next([a, b] for a in cluster for b in cluster if cluster[a] != cluster[b])
    session = dict(lines(folder / "utt2sess"))
    together = next([a, b] for a in cluster for b in cluster if cluster[a] == cluster[b] and session[a] != session[b])
    write_map(tmp_path / "must", [apart[0]], [apart[1]])
    write_map(tmp_path / "cannot", [together[0]], [together[1]])
    done(*clustering(folder, tmp_path / "o", "--must-link", tmp_path / "must", "--cannot-link", tmp_path / "cannot"))
    linked = read_partition(tmp_path / "o")
    assert linked[apart[0]] == linked[apart[1]]
    assert linked[together[0]] != linked[together[1]]

    (tmp_path / "truth").write_text(" ".join([*apart, "target"]) + "\n")
    failed = duoplda(*clustering(folder, tmp_path / "p", "--must-link", tmp_path / "truth"))
    assert failed.exit_code == 1
    assert "give only pairs" in failed.stderr
    write_map(tmp_path / "strange", ["nobody"], [apart[1]])
    for option in ("--must-link", "--cannot-link"):
        failed = duoplda(*clustering(folder, tmp_path / "p", option, tmp_path / "strange"))
        assert failed.exit_code == 3
        assert f"error: {option} names 1 ids that are not to be clustered: 'nobody'; leave" in failed.stderr
    assert failed.stderr.count("\n") == 1
    assert not (tmp_path / "p").exists()


def test_known_speakers_give_clusters_their_names(tmp_path, folder):
    """Voices enrolled from some sessions; the other sessions are clustered."""
    session, speaker = dict(lines(folder / "utt2sess")), dict(lines(folder / "utt2spk"))
    first = {name: s for i, name in session.items() if (s := speaker[i]) and name.endswith("-0")}
    own = [(f"voice-{speaker[i]}", i) for i in session if session[i] in first]
    write_map(tmp_path / "enroll", *zip(*own, strict=True))
    files = ["--model", folder / "model.safetensors", "--embeddings", folder / "x.npz"]
    labels = ["--enroll", tmp_path / "enroll", "--sessions", folder / "utt2sess"]
    done("enroll", *files, *labels, "--out", tmp_path / "voices", "--quiet")
    with np.load(folder / "x.npz") as data:
        rest = np.array([session[i] not in first for i in data["ids"].tolist()])
        write_embeddings(tmp_path / "rest.npz", data["ids"][rest], data["embeddings"][rest])
    given = ["--embeddings", tmp_path / "rest.npz", "--sessions", folder / "utt2sess"]
    more = ["--speakers-known", tmp_path / "voices", "--merges", tmp_path / "merges.tsv", "--json"]
    shown = json.loads(done("cluster", *files[:2], *given, *more, "--out", tmp_path / "o").stdout)
    chain = Backend.load(folder / "model.safetensors")
    voices = chain.load_sides(tmp_path / "voices")
    names = read_map(folder / "utt2sess", "session")
    found = chain.cluster(read_recordings(tmp_path / "rest.npz"), session=names, known=voices)
    expected = dict(zip(found.ids.tolist(), found.names[found.labels].tolist(), strict=True))
    assert read_partition(tmp_path / "o") == expected
    assert shown["known"] == int(found.known.sum()) > 5
    assert {name for name in expected.values() if name.startswith("voice-")} == {*found.names[found.known].tolist()}
    used = {row[k] for row in rows(tmp_path / "merges.tsv") for k in ("first", "second")}
    assert {name for name in used if name.startswith("voice-")} >= {*found.names[found.known].tolist()}


@pytest.mark.parametrize("suffix", ["tsv", "csv"])
def test_merges_give_the_clusters_when_they_are_done_again(tmp_path, folder, suffix):
    out, merges = tmp_path / "o.tsv", tmp_path / f"merges.{suffix}"
    done(*clustering(folder, out, "--no-refine", "--prior", 0.02, "--merges", merges))
    head, *body = [line.split("\t" if suffix == "tsv" else ",") for line in merges.read_text().splitlines()]
    assert head == ["merge", "first", "second", "gain", "sessions"]
    parts = {row["session"]: {row["session"]} for row in rows(out)}
    gains = [float(gain) for *_, gain, _ in body]
    assert min(np.cumsum(gains[::-1])) > 0  # a merge may lose a little, if those that follow gain more
    for step, first, second, _, sessions in body:
        parts[step] = parts.pop(first) | parts.pop(second)
        assert len(parts[step]) == int(sessions)
    expected = {}
    for row in rows(out):
        expected.setdefault(row["cluster"], set()).add(row["session"])
    assert sorted(map(sorted, parts.values())) == sorted(map(sorted, expected.values()))


def test_what_people_are_told(tmp_path, folder):
    said = done(*clustering(folder, tmp_path / "a")).stderr
    found, _ = library(folder)
    first, *rest = said.splitlines()
    assert (
        first
        == f"{len(found.ids)} recordings, {found.sessions.sum()} sessions, {len(found)} speakers: {tmp_path / 'a'}"
    )
    (number, probability), *_ = sorted(found.number_posterior.items(), key=lambda pair: -pair[1])
    assert rest[0].startswith(f"probable numbers of speakers: {number} ({100 * probability:.0f} %)")
    weakest = found.names[np.argmin(found.split)]
    assert rest[2].split() == [weakest, f"{found.split.min():.1f}"]
    pair = rest[rest.index("nearest pairs of speakers, and nats that merging them would gain:") + 1].split()
    k = int(np.argmax(found.merge))
    assert {*pair[:2]} == {found.names[k], found.names[found.nearest[k]]}
    assert pair[2] == f"{found.merge[k]:.1f}"
    assert done(*clustering(folder, tmp_path / "b", "--quiet")).stderr == ""
    shown = json.loads(done(*clustering(folder, tmp_path / "c", "--json")).stdout)
    assert shown["weak_merges"][0] == {"speaker": weakest, "nats": pytest.approx(found.split.min())}
    assert shown["near_pairs"][0]["nats"] == pytest.approx(found.merge[k])
    assert shown["log_posterior"] == pytest.approx(found.log_posterior)


def test_sessions_that_are_not_given(tmp_path, folder):
    """Ids that look like copies are a warning, unless sessions are given; recordings without a session are counted."""
    with np.load(folder / "x.npz") as data:
        X, n = data["embeddings"], len(data["ids"]) // 2
    ids = [f"utt{i:04}{suffix}" for i in range(n) for suffix in ("", "-noise")]
    write_embeddings(tmp_path / "x.npz", ids, X[: 2 * n])
    write_map(tmp_path / "utt2sess", ids, [i.removesuffix("-noise") for i in ids])
    given = ["cluster", "--model", folder / "model.safetensors", "--embeddings", tmp_path / "x.npz"]
    warned = done(*given, "--out", tmp_path / "a", "--quiet").stderr
    assert "warning" in warned
    assert "utt0000-noise" in warned
    assert warned.count("\n") == 1
    quiet = done(*given, "--out", tmp_path / "b", "--quiet", "--sessions", tmp_path / "utt2sess").stderr
    assert quiet == ""
    assert "warning" not in done(*clustering(folder, tmp_path / "c", sessions=False)).stderr  # ordinary ids
    write_map(tmp_path / "fewer", ids[4:], [i.removesuffix("-noise") for i in ids[4:]])
    said = done(*given, "--out", tmp_path / "d.tsv", "--sessions", tmp_path / "fewer").stderr
    assert "4 embeddings have no label, and are left out" in said
    assert {row["session"] for row in rows(tmp_path / "d.tsv")} == {i.split("-")[0] for i in ids[4:]}


def test_a_page_is_written(tmp_path, folder):
    done(*clustering(folder, tmp_path / "o", "--report", tmp_path / "page.html", "--quiet"))
    text = (tmp_path / "page.html").read_text()
    found, _ = library(folder)
    assert f"{len(found.ids)} recordings of {found.sessions.sum()} sessions: {len(found)} speakers" in text
    assert "duoplda cluster --model" in text
    assert "utt2sess" in text


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--labels", "t", "--sessions", "s"], "leave out --sessions"),
        (["--speakers", 3, "--max-speakers", 4], "leave out --min-speakers"),
        (["--report", "o"], "different files"),
        (["--report", "p", "--merges", "./p"], "different files"),
        (["--dask", "local", "--device", "cuda"], "--device"),
    ],
)
def test_options_that_do_not_go_together(tmp_path, folder, monkeypatch, more, message):
    monkeypatch.chdir(tmp_path)
    files = ["--model", folder / "model.safetensors", "--embeddings", folder / "x.npz", "--out", "o"]
    failed = duoplda("cluster", *files, *more)
    assert failed.exit_code == 2
    assert message in failed.stderr
    assert failed.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--prior", 2], "prior"),
        (["--weight", 0], "weight"),
        (["--min-speakers", 9, "--max-speakers", 3], "min_speakers"),
        (["--speakers-known", "{folder}/model.safetensors"], "not a file of enrolled speakers"),
        (["--must-link", "{folder}/absent"], "absent"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(tmp_path, folder, more, message):
    failed = duoplda(*clustering(folder, tmp_path / "o", *(str(m).format(folder=folder) for m in more)))
    assert failed.exit_code == 1
    assert message in failed.stderr
    assert failed.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--out", "--report", "--merges"])
def test_no_output_is_an_input_or_replaces_a_file(tmp_path, folder, option):
    (tmp_path / "utt2sess").write_bytes((folder / "utt2sess").read_bytes())
    (tmp_path / "old").write_text("old")
    files = ["--model", folder / "model.safetensors", "--embeddings", folder / "x.npz"]
    more = ["--sessions", tmp_path / "utt2sess", *([] if option == "--out" else ["--out", tmp_path / "o"])]
    failed = duoplda("cluster", *files, *more, option, tmp_path / "utt2sess", "--force")
    assert failed.exit_code == 1
    assert "also read by this command" in failed.stderr
    failed = duoplda("cluster", *files, *more, option, tmp_path / "old")
    assert failed.exit_code == 1
    assert "exists already" in failed.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["old", "utt2sess"]
    assert (tmp_path / "old").read_text() == "old"
    assert (tmp_path / "utt2sess").read_bytes() == (folder / "utt2sess").read_bytes()
