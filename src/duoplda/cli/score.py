"""`duoplda score`: likelihood ratios of trials, of all pairs, or the highest of each test recording."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from duoplda.cli import _options as options
from duoplda.cli._options import File, option
from duoplda.cli._terminal import printing, result_json, terminal, usage, work_options
from duoplda.errors import printable

if TYPE_CHECKING:
    from duoplda.io import Scores

EXAMPLES = """\
duoplda score --model model.safetensors --embeddings eval.scp --enroll enroll --trials trials --out scores.txt
duoplda score --model model.safetensors --embeddings eval.scp --enrolled voices.safetensors --top 10 --out best.tsv
duoplda score --model model.safetensors --audio recordings --extractor m.onnx --trials trials --out scores.txt
duoplda score --model model.safetensors --embeddings shards/ --enroll enroll --top 10 --dask local --out best.tsv
duoplda score --model model.safetensors --embeddings eval.scp --trials trials --cohort others.scp --out normalised"""

Normalization = StrEnum("Normalization", ["z", "t", "s", "as1", "as2"])


def score(
    model: options.Model,
    embeddings: Annotated[
        File, option("Embeddings of the enrolment, and of the tests if --test-embeddings is not given.")
    ] = None,
    audio: options.Audio = None,
    extractor: options.Extractor = None,
    test_embeddings: Annotated[File, option("Embeddings of the tests.")] = None,
    enroll: Annotated[File, option("The recordings of each model.  [each model of the trials is a recording]")] = None,
    enrolled: Annotated[File, option("Models that `duoplda enroll` wrote.")] = None,
    trials: Annotated[
        File, option("The trials, as Kaldi, VoxCeleb, NIST, hyperion, Parquet or BOSARIS has them.")
    ] = None,
    out: Annotated[
        File,
        option("The scores to write: Kaldi's text, .tsv, .csv, .parquet, .h5 or .npz.  [standard output]"),
    ] = None,
    sessions: options.Sessions = None,
    channels: options.Channels = None,
    occasions: options.Occasions = None,
    ids: options.Ids = None,
    columns: options.Columns = None,
    test_ids: Annotated[str | None, option("The same as --ids, for --test-embeddings.")] = None,
    top: Annotated[int | None, option("Give the TOP highest-scoring models of each test recording.", min=1)] = None,
    matrix: Annotated[bool, option("Score all models against all test recordings.", "--matrix")] = False,
    cosine: Annotated[bool, option("Give cosines of mean vectors instead of likelihood ratios.", "--cosine")] = False,
    raw: Annotated[bool, option("Leave out the calibration of the model.", "--raw")] = False,
    log10: options.Log10 = False,
    cohort: Annotated[
        File, option("Normalise scores with these embeddings, or with a file of `duoplda enroll`.")
    ] = None,
    cohort_ids: Annotated[str | None, option("The same as --ids, for --cohort.")] = None,
    cohort_sessions: Annotated[File, option("The session of each recording of the cohort.  [as in --sessions]")] = None,
    cohort_speakers: Annotated[
        File,
        option("The speakers of cohort and trials (utt2spk), none of whom may be in both."),
    ] = None,
    normalize: Annotated[Normalization | None, option("How scores are normalised with --cohort.  [as1]")] = None,
    cohort_top: Annotated[
        int | None, option("How many members of the cohort a side selects in as1 and as2.  [300]", min=2)
    ] = None,
    device: options.Device = "cpu",
    dask: options.Dask = None,
    domain_check: options.DomainCheck = True,
    allow_missing: options.AllowMissing = False,
    strict: options.Strict = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Score trials: natural-log likelihood ratios (log10 with --log10) that two sides are of one speaker.

    With --matrix or --top, --trials only says which models and recordings are meant; without it, all of the models and
    all of the test embeddings are. With --cohort, scores are normalised, and not calibrated. A warning tells where
    recordings are unlike those that the model was trained on: its ratios may then mislead, see `duoplda adapt`.
    """
    typed = work_options(locals())
    if out is None and json:  # both would go to standard output
        usage("--json prints a summary to standard output: give --out for the scores")
    from duoplda.workflows import score as workflow

    with terminal("scoring", quiet) as screen:
        counts = workflow.score(**typed, note=screen.note, show=screen.show, receive=print_scores)
    if json:
        result_json({"out": str(out), **counts})
    elif out is not None:
        left_out = f", {counts['left_out']:,} trials left out" if counts["left_out"] else ""
        sides = f"{counts['models']:,} models and {counts['tests']:,} recordings"
        screen.note(f"{counts['scores']:,} scores of {sides}{left_out}: {out}")


def print_scores(scores: "Scores") -> None:
    """Print lines `model test score` on standard output."""
    with printing():
        for row in zip(scores.enroll.values, scores.test.values, scores.score.tolist(), strict=True):
            print(*map(printable, row))
