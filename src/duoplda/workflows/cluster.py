"""Clustering: which of some unlabelled recordings are of the same speaker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.errors import DuopldaError
from duoplda.estimators.backend import Backend
from duoplda.io import Coded, read_sessions, read_trials, write_partition
from duoplda.io.labels import write_table
from duoplda.report import weak_clusters, weak_pairs, write_cluster_report
from duoplda.trials.clustering import Clustering
from duoplda.workflows import _files as files
from duoplda.workflows import option
from duoplda.workflows._files import Columns, Note, PathLike, Show, silent
from duoplda.workflows._labels import one_table
from duoplda.workflows.option import refuse


def cluster(
    model: option.Model,
    embeddings: option.ClusterEmbeddings,
    out: option.ClustersOut,
    *,
    sessions: option.ClusterSessions = None,
    channels: option.Channels = None,
    labels: option.ClusterLabels = None,
    ids: option.Ids = None,
    columns: option.Columns = None,
    prior: option.ClusterPrior = None,
    speakers: option.NumberOfSpeakers = None,
    min_speakers: option.FewestSpeakers = None,
    max_speakers: option.MostSpeakers = None,
    speakers_known: option.SpeakersKnown = None,
    registry: option.KnownVoices = None,
    must_link: option.MustLink = None,
    cannot_link: option.CannotLink = None,
    weight: option.Weight = 1.0,
    segments_are: option.SegmentsAre = None,
    refine: option.Refine = True,
    report: option.ClusterReport = None,
    merges: option.Merges = None,
    device: option.Device = "cpu",
    dask: option.Dask = None,
    domain_check: option.DomainCheck = True,
    strict: option.Strict = False,
    force: option.Force = False,
    command: str = "",
    note: Note = silent,
    show: Show = silent,
) -> dict[str, Any]:
    """Put recordings into clusters, one for each speaker, write them, and return numbers and doubtful cases."""
    one_table(labels, sessions=sessions, channels=channels)
    cause = "`speakers` is the number itself: leave out `min_speakers` and `max_speakers`"
    refuse(speakers is not None and (min_speakers is not None or max_speakers is not None), cause)
    outputs = [Path(path).resolve() for path in (out, report, merges) if path is not None]
    refuse(len({*outputs}) < len(outputs), "`out`, `report` and `merges` must be different files")
    sessions, channels, labels, must_link, cannot_link = files.held_lists(
        sessions, channels, labels, must_link, cannot_link
    )
    lists = model, sessions, channels, labels, speakers_known, must_link, cannot_link
    files.check_outputs([out, report, merges], force, [embeddings], [ids, *lists])
    options: dict[str, Any] = {"prior": prior, "weight": weight, "refine": refine}
    options |= {"n_speakers": speakers, "min_speakers": min_speakers, "max_speakers": max_speakers}
    reading: dict[str, Any] = {"columns": columns, "allow_missing": None, "strict": strict, "hashed": False}
    with files.reader(device, dask, note, show, **reading, domain_check=domain_check) as (read, place):
        options |= {"must_link": _read_pairs(must_link, columns), "cannot_link": _read_pairs(cannot_link, columns)}
        known = files.labels_by_id(sessions, channels, columns)
        if labels is not None:
            known = dict(zip(("session", "channel"), read_sessions(labels, columns), strict=True))
        chain = Backend.load(model)
        unlabelled = sessions is None and labels is None
        if unlabelled and (segments_are or chain.provenance_.get("sessions_are")):
            options["within_session"] = files.segment_level(segments_are, chain, note) == "recordings"
        enrolled = files.known_speakers(chain, speakers_known, registry, place)
        source = read(embeddings, ids, files.only(known["session"]) if known["session"] else None, chain)
        clustering = chain.cluster(source, **known, known=enrolled, **options, device=place)
    recordings = clustering.ids.astype(str)
    session = known["session"] or {}
    session_of = np.array([session.get(name, name) for name in recordings.tolist()])
    second = np.array([*clustering.names.tolist(), "-"])[clustering.runner_up[clustering.item]]  # -1 is the last one
    margin = np.round(clustering.margin[clustering.item], 4)
    cluster_of = clustering.names[clustering.labels]
    write_partition(out, recordings, cluster_of, force=force, session=session_of, margin=margin, second=second)
    if merges is not None:
        items = session_of[np.unique(clustering.item, return_index=True)[1]].tolist()
        _write_merges(merges, clustering.merges, [*items, *([] if enrolled is None else enrolled.ids.tolist())], force)
    if report is not None:
        origin: dict[str, Any] = {"commands": [command], "hashes": files.file_hashes(lists)}
        write_cluster_report(report, clustering, session=session_of if session else None, **origin, force=force)
    counts = {"recordings": len(recordings), "sessions": int(clustering.sessions.sum()), "speakers": len(clustering)}
    return summarized(clustering, counts)


def summarized(clustering: Clustering, counts: dict[str, int], most: int = 5) -> dict[str, Any]:
    """The numbers of a clustering, and the `most` doubtful speakers and pairs of speakers.

    Each of `weak_merges` may be two speakers: splitting it would lose `nats` of the log posterior. Each of `near_pairs`
    may be one speaker: merging the two would gain `nats`.
    """
    names = clustering.names.tolist()
    weak = [{"speaker": names[k], "nats": float(clustering.split[k])} for k in weak_clusters(clustering, most)]
    near: list[dict[str, Any]] = []
    for a, b in weak_pairs(clustering, most):
        gain = max(float(clustering.merge[k]) for k, m in ((a, b), (b, a)) if clustering.nearest[k] == m)
        near.append({"speaker": names[a], "other": names[b], "nats": gain})
    more = {"known": int(clustering.known.sum()), "log_posterior": clustering.log_posterior}
    numbers = {str(k): round(p, 4) for k, p in clustering.number_posterior.items()}
    return {**counts, **more, "number_posterior": numbers, "weak_merges": weak, "near_pairs": near}


def _read_pairs(path: PathLike | None, columns: Columns) -> NDArray[np.str_] | None:
    """(k, 2) pairs of recordings, from lines `recording recording`."""
    if path is None:
        return None
    listed = read_trials(path, columns=columns)
    if listed.target is not None:
        raise DuopldaError(f"{path}: these are trials with their truth; give only pairs, lines `recording recording`")
    return np.column_stack([listed.enroll.values, listed.test.values])


def _write_merges(path: PathLike, merges: NDArray[np.float64], items: Sequence[str], force: bool) -> None:
    """Write the merges, one in each line. `#3` is what merge 3 made; other names are of sessions or known speakers."""
    pairs = merges[:, :2].astype(int)
    n = len(items)
    first, second = ([str(items[k]) if k < n else f"#{k - n + 1}" for k in column] for column in pairs.T.tolist())
    columns: dict[str, Coded | np.ndarray] = {
        "merge": Coded.of([f"#{t + 1}" for t in range(len(pairs))]),
        "first": Coded.of(first),
        "second": Coded.of(second),
        "gain": np.round(merges[:, 2], 4),
        "sessions": Coded.of([str(int(m)) for m in merges[:, 3]]),
    }
    write_table(path, columns, force=force)
