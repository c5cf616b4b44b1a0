"""`duoplda score`: likelihood ratios of trials, of all pairs, or the best few of each recording."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duoplda.cli._common import (
    AllowMissing,
    Force,
    Json,
    Quiet,
    missing,
    progress,
    refuse_existing,
    result_json,
    say,
    usage,
)
from duoplda.errors import DuopldaError

if TYPE_CHECKING:
    import numpy as np

    from duoplda.estimators.backend import Backend
    from duoplda.io import Scores

EXAMPLE = """\b
Example:
  duoplda score --model model.safetensors --embeddings eval.scp --enroll enroll --trials trials --out scores.txt
  duoplda score --model model.safetensors --embeddings eval.scp --enroll enroll --top 10 --out best.tsv
  duoplda score --model model.safetensors --embeddings shards/ --enroll enroll --top 10 --dask local --out best.tsv
"""
PAIRS = 1 << 20  # scored at a time
CELLS = 1 << 23


def score(
    model: Annotated[Path, typer.Option(help="A model that `duoplda train` wrote.")],
    embeddings: Annotated[Path, typer.Option(help="Embeddings of the enrolment, and of the tests unless given apart.")],
    test_embeddings: Annotated[Path | None, typer.Option(help="Embeddings of the tests.")] = None,
    enroll: Annotated[
        Path | None, typer.Option(help="Lines `model recording ...`; else models are recordings.")
    ] = None,
    trials: Annotated[Path | None, typer.Option(help="Kaldi, VoxCeleb, NIST, hyperion, Parquet or BOSARIS.")] = None,
    out: Annotated[Path | None, typer.Option(help="Kaldi text, .tsv, .csv, .parquet, .h5 or .npz.  [stdout]")] = None,
    sessions: Annotated[Path | None, typer.Option(help="utt2sess; names must differ between speakers.")] = None,
    channels: Annotated[Path | None, typer.Option(help="utt2channel; kinds not given are inferred.")] = None,
    ids: Annotated[str | None, typer.Option(help="Of the rows of npy and npz: a list, or `rows` to number.")] = None,
    test_ids: Annotated[str | None, typer.Option(help="The same for --test-embeddings.")] = None,
    top: Annotated[int | None, typer.Option(min=1, help="The best so many models of each test recording.")] = None,
    matrix: Annotated[bool, typer.Option("--matrix", help="All models against all test recordings.")] = False,
    cosine: Annotated[bool, typer.Option("--cosine", help="The cosine of mean vectors instead of the PLDA.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Without the model's calibration.")] = False,
    device: Annotated[str, typer.Option(help="cpu, or a device of torch such as cuda.")] = "cpu",
    dask: Annotated[str | None, typer.Option(help="Score on a cluster: a scheduler's address, or local.")] = None,
    allow_missing: AllowMissing = False,
    force: Force = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Score trials: natural-log likelihood ratios that two sides are of one speaker.

    With --matrix or --top, --trials only says which models and recordings are meant; without it, all of --enroll and
    all of the test embeddings.
    """
    if top is not None and matrix:
        usage("--top and --matrix exclude each other")
    if trials is None and not matrix and top is None:
        usage("give --trials, or --matrix or --top for all pairs")
    if trials is None and enroll is None:
        usage("without --trials, --enroll must say which models there are")
    if out is None and json:
        usage("--json prints a summary to standard output: give --out for the scores")
    if dask is not None and (cosine or device != "cpu"):
        usage("--dask scores on the workers' processors, with the PLDA: leave out --device and --cosine")
    refuse_existing(out, force)

    from duoplda.estimators.backend import Backend

    chain = Backend.load(model)
    if raw:
        chain.calibration_ = None
    lists = (embeddings, test_embeddings, enroll, trials, sessions, channels, (ids, test_ids), allow_missing)
    with ExitStack() as stack:
        client = None
        if dask is not None:
            from duoplda.cli._cluster import dask_client

            client = stack.enter_context(dask_client(dask))
        work = _prepare(chain, *lists, client)
        work.cosine, work.device = cosine, None if device == "cpu" else device
        _run(work, top, matrix, out, force, json)


def _run(work: Work, top: int | None, matrix: bool, out: Path | None, force: bool, json: bool) -> None:
    from duoplda.io import write_scores

    parts = work.best(top) if top is not None else work.everything() if matrix else work.listed()
    n = 0

    def counted() -> Iterator[Scores]:
        nonlocal n
        with progress("scoring") as show:
            for part in parts:
                n += len(part.score)
                show(n, f"{n:,} scores")
                yield part

    if out is None:
        for part in counted():
            for e, t, s in zip(part.enroll.values, part.test.values, part.score.tolist(), strict=True):
                print(e, t, repr(s))
    elif matrix and out.suffix.lower() in (".npz", ".h5", ".hdf5", ".hdf"):
        whole = work.full()
        n = whole.score.size
        write_scores(out, whole, force=force)
    else:
        write_scores(out, counted(), force=force)
    counts = {"scores": n, "models": len(work.models), "tests": work.n_tests, "left_out": work.left_out}
    if json:
        result_json({"out": str(out), **counts})
    elif out is not None:
        left = f", {work.left_out:,} trials left out" if work.left_out else ""
        say(f"{n:,} scores of {counts['models']:,} models and {counts['tests']:,} recordings{left}: {out}")


@dataclass
class Work:
    """Everything that is scored: recordings as the PLDA takes them, and which of them make up a model."""

    chain: Backend
    models: np.ndarray  # (m,) names, sorted
    enroll_rows: tuple[np.ndarray, np.ndarray]  # model (index into names) and row of `Z` of each enrolment recording
    test_ids: np.ndarray  # (t,) sorted
    Z: tuple[np.ndarray, np.ndarray]  # enrolment (n, k), tests (t, k)
    sessions: tuple[Any, Any]  # of the rows of enrolment (as listed) and of the tests, or None
    channels: tuple[Any, Any]
    pairs: Any = None  # (n, 2) trials, rows of models and of test_ids
    left_out: int = 0
    cosine: bool = False
    device: str | None = None

    @property
    def n_tests(self) -> int:
        return len(self.test_ids)

    def _enroll(self, Z: Any, which: Any, side: int) -> Any:
        session, channel = self.sessions[side], self.channels[side]
        return self.chain.plda_.enroll(Z, which, session, channel, device=self.device)

    def sides(self) -> Any:
        """The models."""
        import numpy as np

        which, rows = self.enroll_rows
        if not self.cosine:
            return self._enroll(self.Z[0][rows], which, 0)
        sums = np.zeros((len(self.models), self.Z[0].shape[1]))
        np.add.at(sums, which, self.Z[0][rows])
        return _unit(sums)

    def tests(self) -> Any:
        """The tests, one recording each."""
        import numpy as np

        if self.cosine:
            return _unit(self.Z[1])
        return self._enroll(self.Z[1], np.arange(len(self.test_ids)), 1)

    def listed(self) -> Iterator[Scores]:
        """The trials, in their order."""
        import numpy as np

        from duoplda.arrays import to_numpy
        from duoplda.io import Coded, Scores

        models, tests = self.sides(), self.tests()
        for i in range(0, len(self.pairs), PAIRS):
            pairs = self.pairs[i : i + PAIRS]
            if self.cosine:
                values = np.vecdot(models[pairs[:, 0]], tests[pairs[:, 1]])
            else:
                values = to_numpy(self.chain.llr(models, tests, pairs))
            codes = pairs.astype(np.int32)
            yield Scores(Coded(self.models, codes[:, 0]), Coded(self.test_ids, codes[:, 1]), values)

    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """All models against some tests at a time: (models, tests)."""
        models, tests = self.sides(), self.tests()
        if not self.cosine:
            yield from self.chain.llr_blocks(models, tests, host=True)
            return
        for part in self._parts(CELLS):
            yield part, models @ tests[part].T

    def _parts(self, cells: int) -> Iterator[slice]:
        """Slices of the tests with about so many scores each."""
        step = max(1, cells // max(len(self.models), 1))
        for i in range(0, len(self.test_ids), step):
            yield slice(i, min(i + step, len(self.test_ids)))

    def everything(self) -> Iterator[Scores]:
        """All pairs, as a list."""
        import numpy as np

        for part, block in self.blocks():
            rows = np.tile(np.arange(len(self.models)), (block.shape[1], 1))
            columns = np.repeat(np.arange(part.start, part.stop), len(self.models))
            yield self._scores(rows.reshape(-1), columns, block.T.reshape(-1))

    def best(self, top: int) -> Iterator[Scores]:
        """The best models of each test, best first; the matrix is never whole."""
        import numpy as np

        from duoplda.arrays import to_numpy
        from duoplda.trials.blocks import best

        top = min(top, len(self.models))
        if self.cosine:
            found = ((part, *best(block, top)) for part, block in self.blocks())
        else:
            models, tests = self.sides(), self.tests()
            parts = self._parts(16 * CELLS)  # so that progress shows
            found = ((part, *self.chain.top(models, tests.select(part), top)) for part in parts)
        for part, rows, values in found:
            columns = np.repeat(np.arange(part.start, part.stop), top)
            yield self._scores(to_numpy(rows).reshape(-1), columns, to_numpy(values).reshape(-1))

    def full(self) -> Any:
        """The whole matrix."""
        import numpy as np

        from duoplda.io import ScoreMatrix

        out = np.empty((len(self.models), len(self.test_ids)))
        for part, block in self.blocks():
            out[:, part] = block
        return ScoreMatrix(self.models, self.test_ids, out)

    def _scores(self, rows: Any, columns: Any, values: Any) -> Scores:
        import numpy as np

        from duoplda.io import Coded, Scores

        return Scores(Coded(self.models, rows.astype(np.int32)), Coded(self.test_ids, columns.astype(np.int32)), values)


def _prepare(
    chain: Backend,
    embeddings: Path,
    test_embeddings: Path | None,
    enroll: Path | None,
    trials: Path | None,
    sessions: Path | None,
    channels: Path | None,
    ids: tuple[str | None, str | None],
    allow: bool,
    client: Any = None,
) -> Work:
    """Read lists and vectors, and look every id up; with a client of Dask, vectors of tests stay in their shards."""
    import numpy as np

    from duoplda.io import Coded, embedding_shards, read_embeddings, read_enrollment, read_trials

    listed = read_trials(trials) if trials is not None else None
    if enroll is not None:
        table = read_enrollment(enroll)
        member, recording = table.model, table.recording
    else:
        assert listed is not None
        member = recording = Coded(listed.enroll.names, np.arange(len(listed.enroll.names), dtype=np.int32))
    if listed is not None:
        wanted = np.isin(member.names, listed.enroll.names)[member.codes]
        unknown = listed.enroll.names[~np.isin(listed.enroll.names, member.names)]
        missing("models of the trials are not in the enrolment map", unknown, allow)
        member, recording = member[wanted], recording[wanted]
    maps = [read_map(sessions, "session"), read_map(channels, "channel")]
    enroll_ids = np.unique(recording.values)
    test_ids = None if listed is None else np.unique(listed.test.names)
    shards: list[Any] = []
    if client is not None:
        from duoplda.engines.dask import present, vectors

        shards = [embedding_shards(embeddings, ids=ids[0])]
        shards.append(shards[0] if test_embeddings is None else embedding_shards(test_embeddings, ids=ids[1]))
        have, Z_enroll = vectors(chain, shards[0], enroll_ids, maps[1], client=client)
        have_test, Z_test = np.zeros(0, "U1") if test_ids is None else present(shards[1], test_ids, client=client), None
    elif test_embeddings is None and test_ids is not None:  # one pass over one file
        both = np.union1d(enroll_ids, test_ids)
        both, Z = _vectors(chain, read_embeddings(embeddings, ids=ids[0]), both, maps[1])
        found = [np.isin(both, x) for x in (enroll_ids, test_ids)]
        (have, Z_enroll), (have_test, Z_test) = ((both[f], Z[f]) for f in found)
    else:
        source = read_embeddings(embeddings, ids=ids[0])
        tests = source if test_embeddings is None else read_embeddings(test_embeddings, ids=ids[1])
        have, Z_enroll = _vectors(chain, source, enroll_ids, maps[1])
        have_test, Z_test = _vectors(chain, tests, test_ids, maps[1])
    missing("recordings of the enrolment have no embedding", np.setdiff1d(enroll_ids, have), allow)
    if test_ids is not None:
        missing("test recordings have no embedding", np.setdiff1d(test_ids, have_test), allow)
    rows = _places(recording.names, have)[recording.codes]
    used = np.unique(member.codes[rows >= 0])
    models = np.sort(member.names[used])
    which = _places(member.names, models)[member.codes]
    keep = rows >= 0
    which, rows = which[keep], rows[keep]
    if not len(models) or (not len(have_test) and (client is None or test_ids is not None)):
        raise DuopldaError("there is nothing to score: no model or no test recording has embeddings")
    kind: Any = Work
    if client is not None:
        from duoplda.cli._cluster import ClusterWork

        kind = partial(ClusterWork, client=client, shards=shards[1], maps=maps)
    work: Work = kind(
        chain,
        models,
        (which, rows),
        have_test,
        (Z_enroll, Z_test),
        _both(maps[0], have[rows], have_test, "recording "),
        _both(maps[1], have[rows], have_test, None),
    )
    if listed is not None:
        pairs = np.column_stack(
            [
                _places(listed.enroll.names, models)[listed.enroll.codes],
                _places(listed.test.names, have_test)[listed.test.codes],
            ]
        )
        complete = (pairs >= 0).all(axis=1)
        work.pairs, work.left_out = pairs[complete], int((~complete).sum())
    return work


def _vectors(chain: Backend, source: Any, wanted: Any, channels: dict[str, str] | None) -> tuple[Any, Any]:
    """Ids (sorted) of those that are wanted and there, and their vectors as the PLDA takes them."""
    import numpy as np

    from duoplda.engines._scores import recordings

    if source.dim != chain.n_features_in_:
        raise DuopldaError(
            f"{source.path}: vectors have {source.dim} dimensions, the model takes {chain.n_features_in_}"
        )
    names, parts = [], []
    for chunk in source.chunks(4096):
        try:
            ids, Z = recordings(chain, chunk, wanted, channels)
        except DuopldaError as error:
            raise DuopldaError(f"{source.path}: {error}") from None
        if len(ids):
            names.append(ids)
            parts.append(Z)
    if not names:
        return np.zeros(0, "U1"), np.zeros((0, chain.plda_.n_features_in_))
    found = np.concatenate(names)
    order = np.argsort(found, kind="stable")
    return found[order], np.concatenate(parts)[order]


def read_map(path: Path | None, column: str) -> dict[str, str] | None:
    """Lines `recording value`, or a table with the columns id and the one named."""
    from duoplda.io._text import has_columns, is_parquet, read_list, read_table
    from duoplda.io.labels import COLUMNS

    if path is None:
        return None
    wanted = {name: COLUMNS[name] for name in ("id", column)}
    if is_parquet(path) or path.suffix.lower() in (".csv", ".tsv") or has_columns(path, wanted, ("id", column)):
        table = read_table(path, wanted)
        ids, values = table["id"], table[column]
    else:
        ids, values = read_list(path, fields=(2,))
    if len(ids.names) != len(ids):
        raise DuopldaError(f"{path}: an id is there twice; each recording has one line")
    return dict(zip(ids.values.tolist(), values.values.tolist(), strict=True))


def _both(values: dict[str, str] | None, enroll: Any, test: Any, unknown: str | None) -> tuple[Any, Any]:
    """Values of enrolment and test recordings; where they are not known, "" or a name of its own."""
    import numpy as np

    if values is None:
        return None, None
    sides = ([values.get(i, "" if unknown is None else unknown + i) for i in ids.tolist()] for ids in (enroll, test))
    a, b = (np.array(side, dtype=str) for side in sides)
    return a, b


def _places(names: Any, among: Any) -> Any:
    """The index of each name among sorted ones, -1 where it is not there."""
    import numpy as np

    if not len(among):
        return np.full(len(names), -1)
    place = np.minimum(np.searchsorted(among, names), len(among) - 1)
    return np.where(among[place] == names, place, -1)


def _unit(X: Any) -> Any:
    import numpy as np

    return X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-300)
