"""What could change an exit code after the error line: `python -m benchmarks.exit_codes` counts them under load."""

import threading
import weakref

import numpy as np
import pyarrow as pa

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
