"""`duoplda demo`: the main job on built-in data, as the commands that a user would type."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from duoplda.cli._common import Force, Quiet, as_typed, result, say
from duoplda.errors import DuopldaError

EXAMPLE = """\b
Example:
  duoplda demo --out demo
"""
SEED = 20
CONDITIONS = {"1 session x 1": (1, 1), "1 session x 5": (1, 5), "3 sessions x 5": (3, 5)}  # sessions, recordings


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("demo"),
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Make data, train, score and write a report, all in one folder; the commands are printed, so you can repeat them.

    There are 300 speakers to train on and 50 to test on, drawn from a model in which a session is heard through several
    channels. Three systems are compared: duoplda; simplified PLDA, which takes every recording for a session of its
    own; and the cosine.
    """
    if out.exists() and not out.is_dir():
        raise DuopldaError(f"{out}: exists and is no folder; give another name")
    if out.is_dir() and any(out.iterdir()) and not force:
        raise DuopldaError(f"{out}: exists already; give another name, or allow writing into it with --force")
    begin = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    write_data(out)
    say(f"data: {out}/train.scp, eval.scp (Kaldi), utt2spk, utt2sess, enroll, trials.tsv\n")
    for arguments in commands(out):
        result(shlex.join(["duoplda", *arguments]))
        _run([*arguments, "--quiet"] if quiet else arguments)
        say("")
    say(f"done in {time.monotonic() - begin:.0f} s; the report is at")
    result(str(out / "report.html"))


def _run(arguments: list[str]) -> None:
    """Run a command as if it had been typed; the errors it raises come out."""
    from duoplda.cli import app

    with as_typed(arguments):
        code = app(arguments, prog_name="duoplda", standalone_mode=False)
    if isinstance(code, int) and code:
        raise typer.Exit(code)


def commands(out: Path) -> list[list[str]]:
    """The commands of the demo, as arguments of `duoplda`."""

    def at(name: str) -> str:
        return str(out / name)

    train = ["train", "--embeddings", at("train.scp"), "--speakers", at("utt2spk")]
    score = ["score", "--embeddings", at("eval.scp"), "--enroll", at("enroll"), "--trials", at("trials.tsv")]
    sessions = ["--sessions", at("utt2sess")]
    ours, simple, cosine = at("duoplda.txt"), at("simplified.txt"), at("cosine.txt")
    model, other = at("duoplda.safetensors"), at("simplified.safetensors")
    report = ["report", "--scores", ours, "--scores", simple, "--scores", cosine, "--trials", at("trials.tsv")]
    report += ["--model", model, "--speakers", at("utt2spk_eval"), "--enroll", at("enroll")]
    steps = [
        [*train, *sessions, "--out", model],
        [*train, "--out", other],
        [*score, *sessions, "--model", model, "--out", ours],
        [*score, "--model", other, "--out", simple],
        [*score, "--model", model, "--cosine", "--out", cosine],
        [*report, "--out", at("report.html")],
    ]
    return [[*step, "--force"] for step in steps]


def write_data(out: Path) -> None:
    """Write embeddings (ark and scp), labels, the enrolment map and the trials."""
    import numpy as np

    from duoplda.datasets import make_recordings
    from duoplda.io import Coded, Trials, write_embeddings, write_map, write_trials

    sizes: dict[str, Any] = {"n_dimensions": 40, "n_speaker_factors": 20, "n_session_factors": 40}
    sizes |= {"speaker_variance": 1.0, "session_variance": 1.2, "channel_variance": 1.0}
    train = make_recordings(300, sessions=(2, 8), recordings=(1, 6), seed=SEED, **sizes)
    test = make_recordings(50, sessions=7, recordings=5, seed=SEED + 1, model=train.model)
    names = {}
    for part, data in (("train", train), ("eval", test)):
        session = np.array([f"{part}-{s}" for s in data.session])
        speaker = np.array([f"{part}-{s}" for s in data.speaker])
        first = np.unique(session, return_index=True, return_inverse=True)
        take = np.arange(len(session)) - first[1][first[2].reshape(-1)]  # sessions are in one piece
        ids = np.array([f"{s}-{k}" for s, k in zip(session, take, strict=True)])
        names[part] = (ids, speaker, session)
        write_embeddings(out / f"{part}.scp", ids, data.X.astype(np.float32), force=True)
    write_map(out / "utt2spk", *names["train"][:2], force=True)
    write_map(out / "utt2spk_eval", *names["eval"][:2], force=True)
    ids, sessions = (np.concatenate([names[part][k] for part in names]) for k in (0, 2))
    write_map(out / "utt2sess", ids, sessions, force=True)

    ids = names["eval"][0].reshape(50, 7, 5)  # speaker, session, recording
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
