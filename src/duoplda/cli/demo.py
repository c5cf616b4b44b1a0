"""`duoplda demo`: the main job on built-in data or on audio, as the commands that a user would type."""

import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from duoplda.cli import _options as options
from duoplda.cli._options import File, option
from duoplda.cli._terminal import Terminal, result

EXAMPLES = """\
duoplda demo --audio recordings --extractor campplus.onnx --out demo
duoplda demo --out demo"""
COPIES = "clean,noise,telephone,reverb,codec"
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
# To whiten takes more recordings than there are dimensions: a folder of somebody's own may hold a few people's.
TRAIN_AUDIO = "train --embeddings OUT/x.npz --no-whiten --labels OUT/train.csv"
SCORE_AUDIO = "score --embeddings OUT/x.npz --enroll OUT/eval_enroll --trials OUT/eval_trials"
AUDIO_COMMANDS = f"""embed --extractor EXTRACTOR --audio AUDIO --speakers SPEAKERS --copies {COPIES} \
--out OUT/x.npz --labels-out OUT/labels.csv --quality-out OUT/quality.tsv
split --labels OUT/labels.csv --dev 0 --eval 0.5 --out OUT
{TRAIN_AUDIO} --model-type two-source --out OUT/duoplda.safetensors
{TRAIN_AUDIO} --model-type plain --out OUT/simplified.safetensors
{SCORE_AUDIO} --sessions OUT/eval.csv --model OUT/duoplda.safetensors --out OUT/duoplda.txt
{SCORE_AUDIO} --model OUT/simplified.safetensors --out OUT/simplified.txt
{SCORE_AUDIO} --model OUT/duoplda.safetensors --cosine --out OUT/cosine.txt
report --scores OUT/duoplda.txt --scores OUT/simplified.txt --scores OUT/cosine.txt --trials OUT/eval_trials \
--model OUT/duoplda.safetensors --channels OUT/eval.csv --speakers OUT/eval.csv --enroll OUT/eval_enroll \
--out OUT/report.html"""


def demo(
    out: Annotated[Path, option("The folder to write.")] = Path("demo"),
    audio: Annotated[
        File, option("Show it on this audio instead: a folder that holds a folder of recordings for each speaker.")
    ] = None,
    extractor: Annotated[File, option("The extractor of embeddings (ONNX) for --audio.")] = None,
    speakers: Annotated[File, option("Who speaks in --audio: a list (utt2spk), folders, or names.  [folders]")] = None,
    force: options.Force = False,
    quiet: options.Quiet = False,
) -> None:
    """Make data, train, score and write a report, all in one folder; the commands are printed, so you can repeat them.

    There are 300 speakers to train on and 50 to test on, drawn from a model in which a session is heard through several
    channels. The report compares duoplda, simplified PLDA (every recording is a session of its own) and the cosine.

    With --audio, the recordings of a folder and copies of them through simulated channels take the place of these data:
    half of the speakers train, the others are tested. This needs: pip install 'duoplda[audio]'.
    """
    from duoplda.workflows import demo as workflow

    screen = Terminal(quiet)
    begin = time.monotonic()
    screen.note(workflow.write_demo_data(out, audio=audio, extractor=extractor, speakers=speakers, force=force))
    run_commands(out, audio, extractor, speakers, screen)
    screen.note(f"done in {time.monotonic() - begin:.0f} s; the report is at")
    result(str(out / "report.html"))


def run_commands(
    out: Path, audio: Path | None, extractor: Path | None, speakers: Path | None, screen: Terminal
) -> None:
    """Print each command of the demonstration, and run it as if it had been typed."""
    from duoplda.cli import app

    typed = sys.argv
    given = {"OUT": out, "AUDIO": audio, "EXTRACTOR": extractor, "SPEAKERS": speakers or Path("folders")}
    for line in (DEMO_COMMANDS if audio is None else AUDIO_COMMANDS).splitlines():
        arguments = [_with_names(word, given) for word in [*line.split(), "--force"]]
        result(shlex.join(["duoplda", *arguments]))
        sys.argv = ["duoplda", *arguments]  # models and the page tell how they were made
        try:
            code = app([*arguments, "--quiet"] if screen.quiet else arguments, standalone_mode=False)
        finally:
            sys.argv = typed
        if isinstance(code, int) and code:
            raise typer.Exit(code)
        screen.note("")


def _with_names(word: str, given: Mapping[str, Path | None]) -> str:
    """A word of a command with the file or folder that its capitals stand for."""
    first, slash, rest = word.partition("/")
    return f"{given[first]}{slash}{rest}" if first in given else word
