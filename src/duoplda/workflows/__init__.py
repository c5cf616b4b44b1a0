"""The work of each command as one function, from files to files.

A workflow checks that its options go together, opens the files that it reads, does the work and writes its result,
whole or not at all. Its parameters are the options of the command, each declared in `option`; programs call it with
the same names, and `duoplda train --help` explains those of `train`. It prints nothing: messages go to `note`, progress
goes to `show`, and warnings are those of Python. `command` is the command line that was typed, which models and pages
keep. In errors, names of options stand in backticks; the command line replaces `test_ids` by `--test-ids`.

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
