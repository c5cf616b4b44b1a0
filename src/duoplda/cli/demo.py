"""`duoplda demo`: run the main commands on built-in data or on audio, as a user would type them."""

import re
import shlex
import sys
import time

import typer

from duoplda.cli._commands import Run
from duoplda.cli._terminal import result

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
# Whitening needs more recordings than there are dimensions, and a folder of a user may hold those of a few people.
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


def demo(run: Run) -> None:
    """Make data, train, score and write a report, all in one folder; the commands are printed, so you can repeat them.

    There are 300 speakers to train on and 50 to test on, drawn from a model in which a session is recorded through
    several channels. The report compares duoplda, simplified PLDA (each recording is a session) and the cosine.

    With --audio, the recordings of a folder and copies of them through simulated channels replace these data:
    half of the speakers are for training, the others for testing. This needs: pip install 'duoplda[audio]'.
    """
    begin = time.monotonic()
    run.note(run())
    run_commands(run)
    run.note(f"done in {time.monotonic() - begin:.0f} s; the report is at")
    result(str(run.given["out"] / "report.html"))


def run_commands(run: Run) -> None:
    """Print each command of the demonstration, and run it as if it had been typed."""
    from duoplda.cli import app

    typed = sys.argv
    given = {"OUT": run.given["out"], "AUDIO": run.given["audio"], "EXTRACTOR": run.given["extractor"]}
    given["SPEAKERS"] = run.given["speakers"] or "folders"
    for line in (DEMO_COMMANDS if run.given["audio"] is None else AUDIO_COMMANDS).splitlines():
        arguments = [re.sub(r"^[A-Z]+", lambda word: str(given[word[0]]), part) for part in [*line.split(), "--force"]]
        result(shlex.join(["duoplda", *arguments]))
        sys.argv = ["duoplda", *arguments]  # models and the page record the command line that made them
        try:
            code = app([*arguments, "--quiet"] if run.quiet else arguments, standalone_mode=False)
        finally:
            sys.argv = typed
        if isinstance(code, int) and code:
            raise typer.Exit(code)
        run.note("")
