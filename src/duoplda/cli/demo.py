"""`duoplda demo`: the main job on built-in data, as the commands that a user would type."""

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from duoplda.cli import _options as options
from duoplda.cli._options import option
from duoplda.cli._terminal import Terminal, result

EXAMPLES = "duoplda demo --out demo"
TRAIN = "train --embeddings OUT/train.scp --speakers OUT/utt2spk"
SCORE = "score --embeddings OUT/eval.scp --enroll OUT/enroll --trials OUT/trials.tsv"
DEMO_COMMANDS = f"""{TRAIN} --sessions OUT/utt2sess --out OUT/duoplda.safetensors
{TRAIN} --out OUT/simplified.safetensors
{SCORE} --sessions OUT/utt2sess --model OUT/duoplda.safetensors --out OUT/duoplda.txt
{SCORE} --model OUT/simplified.safetensors --out OUT/simplified.txt
{SCORE} --model OUT/duoplda.safetensors --cosine --out OUT/cosine.txt
report --scores OUT/duoplda.txt --scores OUT/simplified.txt --scores OUT/cosine.txt --trials OUT/trials.tsv \
--model OUT/duoplda.safetensors --embeddings OUT/eval.scp --speakers OUT/utt2spk_eval --enroll OUT/enroll \
--out OUT/report.html"""


def demo(
    out: Annotated[Path, option("The folder to write.")] = Path("demo"),
    force: options.Force = False,
    quiet: options.Quiet = False,
) -> None:
    """Make data, train, score and write a report, all in one folder; the commands are printed, so you can repeat them.

    There are 300 speakers to train on and 50 to test on, drawn from a model in which a session is heard through several
    channels. The report compares duoplda, simplified PLDA (every recording is a session of its own) and the cosine.
    """
    from duoplda.workflows import demo as workflow

    screen = Terminal(quiet)
    begin = time.monotonic()
    workflow.write_demo_data(out, force=force)
    screen.note(f"data: {out}/train.scp, eval.scp (Kaldi), utt2spk, utt2sess, enroll, trials.tsv\n")
    run_commands(out, screen)
    screen.note(f"done in {time.monotonic() - begin:.0f} s; the report is at")
    result(str(out / "report.html"))


def run_commands(out: Path, screen: Terminal) -> None:
    """Print each command of the demonstration, and run it as if it had been typed."""
    from duoplda.cli import app

    typed = sys.argv
    for line in DEMO_COMMANDS.splitlines():
        arguments = [word.replace("OUT", str(out), 1) for word in [*line.split(), "--force"]]
        result(shlex.join(["duoplda", *arguments]))
        sys.argv = ["duoplda", *arguments]  # models and the page tell how they were made
        try:
            code = app([*arguments, "--quiet"] if screen.quiet else arguments, standalone_mode=False)
        finally:
            sys.argv = typed
        if isinstance(code, int) and code:
            raise typer.Exit(code)
        screen.note("")
