"""`duoplda score`: likelihood ratios of trials, of all pairs, or the highest of each test recording."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from duoplda.cli import _cohort, _voices
from duoplda.cli._common import AllowMissing, Force, Json, Quiet, missing, release_memory, result_json, say, usage
from duoplda.cli._voices import Channels, Dask, Device, Ids, Sessions, check_files, labels_of, reader, write_counted

EXAMPLES = """\
duoplda score --model model.safetensors --embeddings eval.scp --enroll enroll --trials trials --out scores.txt
duoplda score --model model.safetensors --embeddings eval.scp --enrolled voices.safetensors --top 10 --out best.tsv
duoplda score --model model.safetensors --embeddings shards/ --enroll enroll --top 10 --dask local --out best.tsv
duoplda score --model model.safetensors --embeddings eval.scp --trials trials --cohort others.scp --out normalised"""


def score(
    model: Annotated[Path, typer.Option(help="A model that `duoplda train` wrote.")],
    embeddings: Annotated[Path, typer.Option(help="Embeddings of the enrolment, and of the tests unless given apart.")],
    test_embeddings: Annotated[Path | None, typer.Option(help="Embeddings of the tests.")] = None,
    enroll: Annotated[Path | None, typer.Option(help="Lines `model recording`; else models are recordings.")] = None,
    enrolled: Annotated[Path | None, typer.Option(help="Models that `duoplda enroll` wrote.")] = None,
    trials: Annotated[Path | None, typer.Option(help="Kaldi, VoxCeleb, NIST, hyperion, Parquet or BOSARIS.")] = None,
    out: Annotated[Path | None, typer.Option(help="Kaldi text, .tsv, .csv, .parquet, .h5 or .npz.  [stdout]")] = None,
    sessions: Sessions = None,
    channels: Channels = None,
    ids: Ids = None,
    test_ids: Annotated[str | None, typer.Option(help="The same for --test-embeddings.")] = None,
    top: Annotated[int | None, typer.Option(min=1, help="The TOP highest-scoring models of each test.")] = None,
    matrix: Annotated[bool, typer.Option("--matrix", help="All models against all test recordings.")] = False,
    cosine: Annotated[bool, typer.Option("--cosine", help="The cosine of mean vectors instead of the PLDA.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Without the model's calibration.")] = False,
    cohort: _cohort.File = None,
    cohort_ids: _cohort.Ids = None,
    cohort_sessions: _cohort.Sessions = None,
    cohort_speakers: _cohort.Speakers = None,
    normalize: _cohort.Normalize = None,
    cohort_top: _cohort.Top = None,
    device: Device = "cpu",
    dask: Dask = None,
    no_domain_check: _voices.NoDomainCheck = False,
    allow_missing: AllowMissing = False,
    force: Force = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Score trials: natural-log likelihood ratios that two sides are of one speaker.

    With --matrix or --top, --trials only says which models and recordings are meant; without it, all of the models and
    all of the test embeddings are. With --cohort, scores are normalised, and not calibrated. A warning tells where
    recordings are unlike those that the model was trained on: its ratios may then mislead, see `duoplda adapt`.
    """
    if top is not None and matrix:
        usage("--top and --matrix exclude each other")
    if trials is None and not matrix and top is None:
        usage("give --trials, or --matrix or --top for all pairs")
    if enrolled is not None and (enroll is not None or cosine):
        usage("--enrolled has models for the PLDA: leave out --enroll and --cosine")
    if trials is None and enroll is None and enrolled is None:
        usage("without --trials, --enroll or --enrolled must say which models there are")
    if out is None and json:
        usage("--json prints a summary to standard output: give --out for the scores")
    others = _cohort.CohortOptions(cohort, cohort_ids, cohort_sessions, cohort_speakers, normalize, cohort_top).check()

    from duoplda import io
    from duoplda.estimators import scoring
    from duoplda.estimators.backend import Backend

    _voices.domain_check(no_domain_check)
    lists = model, enrolled, enroll, trials, sessions, channels, cohort_sessions, cohort_speakers
    check_files(out, force, [embeddings, test_embeddings, cohort], [ids, test_ids, cohort_ids], *lists)
    with ExitStack() as stack:
        read, place = reader(stack, "scoring", device, dask)
        chain = Backend.load(model)
        listed = None if trials is None else io.read_trials(trials)
        release_memory()
        options: dict[str, Any] = labels_of(sessions, channels) | {"cosine": cosine}
        # And the recordings of the enrolment, where they are named
        labels = dict(options)
        members = set[str]()
        if enrolled is not None:
            voices = chain.load_sides(enrolled, device=place)
        else:
            pairs = scoring.members(None if enroll is None else io.read_enrollment(enroll), listed)
            members.update(pairs[1].values.tolist())
            options["absent"] = partial(missing, "recordings of the enrolment have no embedding", allow=allow_missing)
            voices = scoring.enroll_recordings(chain, read(embeddings, ids), *pairs, **options, device=place)
        if listed is not None:
            rows = voices.rows(listed.enroll.names)
            missing("models of the trials are not enrolled", listed.enroll.names[rows < 0], allow_missing)
            voices = voices.select(sorted(rows[rows >= 0])) if len(rows) < len(voices) else voices
        options |= others.load(chain, read, place, sorted(members), allow_missing, **labels)
        tests = read(test_embeddings or embeddings, test_ids if test_embeddings else ids)
        options["absent"] = partial(missing, "test recordings have no embedding", allow=allow_missing)
        if listed is not None and not matrix and top is None:
            scores: Any = [scoring.score_trials(chain, voices, listed, tests, **options, calibrated=not raw)]
        else:
            options |= {"top": top, "wanted": None if listed is None else listed.test.names, "calibrated": not raw}
            whole = matrix and out is not None and out.suffix.lower() in (".npz", ".h5", ".hdf5", ".hdf")
            convert = scoring.as_matrix if whole else scoring.as_scores
            scores = convert(scoring.score(chain, voices, tests, **options), voices.ids)
        counts = {"scores": 0, "models": len(voices), "tests": 0}
        write_counted(scores, out, force, counts)
    left_out = 0 if listed is None or matrix or top else len(listed) - counts["scores"]
    if json:
        how = {} if cohort is None else {"normalize": options["normalize"], "cohort": len(options["cohort"])}
        result_json({"out": str(out), **counts, "left_out": left_out, **how})
    elif out is not None:
        of = f"{counts['models']:,} models and {counts['tests']:,} recordings"
        say(f"{counts['scores']:,} scores of {of}" + f", {left_out:,} trials left out" * (left_out > 0) + f": {out}")
