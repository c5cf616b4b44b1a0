"""`duoplda demo`: the main job on built-in data, as the commands that a user would type."""

import shlex
import time
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from duoplda.cli._common import Force, Quiet, result, run, say
from duoplda.errors import DuopldaError

EXAMPLES = "duoplda demo --out demo"
TRAIN = "train --embeddings OUT/train.scp --speakers OUT/utt2spk"
SCORE = "score --embeddings OUT/eval.scp --enroll OUT/enroll --trials OUT/trials.tsv"
COMMANDS = f"""{TRAIN} --sessions OUT/utt2sess --out OUT/duoplda.safetensors
{TRAIN} --out OUT/simplified.safetensors
{SCORE} --sessions OUT/utt2sess --model OUT/duoplda.safetensors --out OUT/duoplda.txt
{SCORE} --model OUT/simplified.safetensors --out OUT/simplified.txt
{SCORE} --model OUT/duoplda.safetensors --cosine --out OUT/cosine.txt
report --scores OUT/duoplda.txt --scores OUT/simplified.txt --scores OUT/cosine.txt --trials OUT/trials.tsv \
--model OUT/duoplda.safetensors --embeddings OUT/eval.scp --speakers OUT/utt2spk_eval --enroll OUT/enroll \
--out OUT/report.html"""
SEED = 20
CONDITIONS = {"1 session x 1": (1, 1), "1 session x 5": (1, 5), "3 sessions x 5": (3, 5)}  # sessions, recordings


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("demo"),
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Make data, train, score and write a report, all in one folder; the commands are printed, so you can repeat them.

    There are 300 speakers to train on and 50 to test on, drawn from a model in which a session is heard through several
    channels. The report compares duoplda, simplified PLDA (every recording is a session of its own) and the cosine.
    """
    from duoplda.cli import app

    if out.exists() and not out.is_dir():
        raise DuopldaError(f"{out}: exists and is no folder; give another name")
    if out.is_dir() and any(out.iterdir()) and not force:
        raise DuopldaError(f"{out}: exists already; give another name, or allow writing into it with --force")
    begin = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    write_data(out)
    say(f"data: {out}/train.scp, eval.scp (Kaldi), utt2spk, utt2sess, enroll, trials.tsv\n")
    for line in COMMANDS.splitlines():
        arguments = [word.replace("OUT", str(out), 1) for word in [*line.split(), "--force"]]
        result(shlex.join(["duoplda", *arguments]))
        run(app, [*arguments, "--quiet"] if quiet else arguments)
        say("")
    say(f"done in {time.monotonic() - begin:.0f} s; the report is at")
    result(str(out / "report.html"))


def write_data(out: Path) -> None:
    """Write embeddings (ark and scp), labels, the enrolment map and the trials."""
    import numpy as np

    from duoplda.datasets import make_recordings
    from duoplda.io import Coded, Trials, write_embeddings, write_map, write_trials

    sizes: dict[str, Any] = {"n_dimensions": 40, "n_speaker_factors": 20, "n_session_factors": 40}
    sizes |= {"speaker_variance": 1.0, "session_variance": 1.2, "channel_variance": 1.0}
    train = make_recordings(300, sessions=(2, 8), recordings=(1, 6), seed=SEED, **sizes)
    test = make_recordings(50, sessions=7, recordings=5, seed=SEED + 1, model=train.model)
    sessions: list[tuple[str, str]] = []
    for part, data, labels in (("train", train, "utt2spk"), ("eval", test, "utt2spk_eval")):
        speaker, session = ([f"{part}-{name}" for name in column] for column in (data.speaker, data.session))
        names = [f"{s}-{k}" for s, group in groupby(session) for k, _ in enumerate(group)]  # a session is in one piece
        write_embeddings(out / f"{part}.scp", names, data.X.astype(np.float32), force=True)
        write_map(out / labels, names, speaker, force=True)
        sessions += zip(names, session, strict=True)
    write_map(out / "utt2sess", *zip(*sessions, strict=True), force=True)

    ids = np.array(names).reshape(50, 7, 5)  # of the test: speaker, session, recording
    models = [
        (f"model{who}-{number}", who, name, ids[who, :n_sessions, :n_recordings].ravel().tolist())
        for number, (name, (n_sessions, n_recordings)) in enumerate(CONDITIONS.items())
        for who in range(len(ids))
    ]
    members = [(model, recording) for model, _, _, recordings in models for recording in recordings]
    write_map(out / "enroll", *zip(*members, strict=True), force=True)
    tests = [(other, str(t)) for other in range(len(ids)) for t in ids[other, 3:, 0]]  # one of each other session
    rows = [(model, t, who == other, name) for model, who, name, _ in models for other, t in tests]
    left, right, target, condition = zip(*rows, strict=True)
    trials = Trials(Coded.of(left), Coded.of(right), np.array(target), {"enrolment": Coded.of(condition)})
    write_trials(out / "trials.tsv", trials, force=True)
