"""What could change an exit code after the error line: `python -m benchmarks.exit_codes` counts them under load."""

import json
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cli_cases import ENVIRONMENT
from duoplda.cli import COMMANDS
from duoplda.io import read_labels, write_map


class Watched(np.ndarray):
    """Bytes of which one can learn who let go of them last."""


def test_no_thread_of_arrow_keeps_our_bytes(tmp_path, monkeypatch):
    """If one did, and let go of them while Python shuts down, the process would abort with code 134."""
    last = set()
    reader = pa.BufferReader

    def watched(block):
        array = np.frombuffer(block, np.uint8).view(Watched)
        weakref.finalize(array, lambda: last.add(threading.current_thread().ident))
        return reader(pa.py_buffer(array))

    monkeypatch.setattr(pa, "BufferReader", watched)
    ids = [f"utt{i}" for i in range(500)]
    write_map(tmp_path / "utt2spk", ids, ids)
    for _ in range(200):
        read_labels(tmp_path / "utt2spk")
    assert last == {threading.main_thread().ident}


def test_every_command_is_counted(tmp_path):
    from benchmarks.exit_codes import every_command

    commands = {arguments[0] for arguments, _ in every_command(tmp_path)}
    assert commands == set(COMMANDS) - {"embed", "serve"}


EVERY_COMMAND = """if True:
    import json, os, sys
    from contextlib import suppress
    from pathlib import Path
    from benchmarks.exit_codes import every_command
    from duoplda.__main__ import main

    number, folder = int(sys.argv[1]), Path(sys.argv[2])
    codes = []
    for arguments, prints in every_command(folder):
        if arguments[0] == "demo" or (number == 1 and not prints):
            continue
        setattr(sys, ("stdin", "stdout", "stderr")[number], None)  # as Python starts where a stream is closed
        with suppress(OSError):
            os.close(number)
        sys.argv = ["duoplda", *arguments]
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code
        codes.append([arguments[0], code])
    (folder / "codes").write_text(json.dumps(codes))
"""


@pytest.mark.parametrize(("number", "code"), [(1, 1), (2, 0)], ids=["output", "error"])
def test_every_command_ends_as_promised_where_a_stream_is_closed(tmp_path, number, code):
    command = [sys.executable, "-c", EVERY_COMMAND, str(number), tmp_path]
    place = {"cwd": Path(__file__).parents[1], "env": ENVIRONMENT}
    said = subprocess.run(command, capture_output=True, text=True, **place).stderr
    codes = json.loads((tmp_path / "codes").read_text())
    assert {found for _, found in codes} == {code}, codes
    assert len(codes) > 6
    assert "Traceback" not in said
    assert said.count("duoplda: error: standard output: Bad file descriptor") == (len(codes) if number == 1 else 0)
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
@pytest.mark.parametrize(("arguments", "shell", "code"), [
    (["--version"], ">&-", 1),
    (["--help"], ">/dev/full", 1),
    (["evaluate", "--no-such-option"], "2>&-", 2),
])  # fmt: skip
def test_streams_that_cannot_be_written(arguments, shell, code):
    command = ["sh", "-c", f'exec "$@" {shell}', "sh", sys.executable, "-m", "duoplda", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert ended.returncode == code
    assert ended.stderr.startswith("duoplda: error: standard output: ") == (code == 1)
    assert ended.stderr.count("\n") == (code == 1)
