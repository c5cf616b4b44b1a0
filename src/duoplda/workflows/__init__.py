"""What each command does, as one function: from files to files.

A workflow checks that its options go together, opens what it reads, does the work and writes its result, whole or not
at all. Its parameters are the options of the command, each declared in `option`; programs call it with the same names,
and `duoplda train --help` explains those of `train`. It prints nothing: messages go to `note`, progress goes to `show`,
warnings are Python's; `command` is what was typed, which models and pages keep. Errors put names of options into
backticks, which the command line shows as it takes them.

>>> import tempfile
>>> from pathlib import Path
>>> from duoplda.workflows.demo import demo
>>> from duoplda.workflows.score import score
>>> from duoplda.workflows.train import train
>>> with tempfile.TemporaryDirectory() as name:
...     at = Path(name)
...     _ = demo(at)
...     model = train(at / "train.scp", at / "m", speakers=at / "utt2spk", sessions=at / "utt2sess", shrinkage=None)
...     counts = score(at / "m", at / "eval.scp", at / "s.txt", enroll=at / "enroll", trials=at / "trials.tsv")
>>> model.counts_["speakers"], counts["models"], counts["scores"]
(300, 150, 30000)
"""
