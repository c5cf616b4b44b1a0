"""Text lists and tables are read and written without pyarrow, and just as with it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duoplda.errors import DuopldaError
from duoplda.io import Coded, read_enrollment, read_labels, read_scores, read_trials

FILES = {
    "utt2spk": "a alice\nb  bob\n\nc\talice\n",
    "enroll": "m1 a b\nm2 c\n",
    "pairs": "m1 a\nm1 b\nm2 c\n",
    "trials": "m1 a target\nm2 é nontarget\n",
    "voxceleb": "1 m1 a\n0 m2 b\n",
    "scores": "m1 a 1.5\r\nm2 b -2e-3\r\n",
    "labels.csv": 'id,speaker,session\n"a,b",s,1\nc,"t ""x""",2\n',
    "trials.tsv": "modelid\tsegmentid\ttargettype\tgender\nm1\ta\ttarget\tf\nm2\tb\tnontarget\t\n",
    "scores.csv": "modelid,segmentid,LLR\nm1,a,1.5\nm2,b,-inf\n",
}
READ = """if True:
    import sys
    if sys.argv[1] == "without":
        sys.modules["pyarrow"] = None
    import numpy as np
    from duoplda.io import Coded, read_enrollment, read_labels, read_scores, read_trials
    from duoplda.io import Scores, write_labels, write_map, write_scores, write_trials

    def show(x):
        parts = {k: np.asarray(v).tolist() for k, v in vars(x).items() if v is not None and k != "conditions"}
        print(parts, {k: np.asarray(v).tolist() for k, v in getattr(x, "conditions", {}).items()})

    show(read_labels("utt2spk"))
    show(read_labels("utt2spk", "utt2spk"))
    show(read_labels("labels.csv"))
    for name in ("enroll", "pairs"):
        show(read_enrollment(name))
    for name in ("trials", "voxceleb", "trials.tsv"):
        show(read_trials(name))
    for name in ("scores", "scores.csv"):
        show(read_scores(name))
    write_scores("out", read_scores("scores"), force=True)
    write_scores("out.csv", Scores(Coded.of(['a,"b"', "c"]), Coded.of(["é", "d"]), np.array([0.1, 2.0])), force=True)
    write_map("map", ["a", "b"], ["c", "d"], force=True)
    write_trials("out.tsv", read_trials("trials.tsv"), force=True)
    write_labels("out.labels.csv", read_labels("labels.csv"), force=True)
    for name in ("out", "out.csv"):
        show(read_scores(name))
    for name in ("map", "out.tsv", "out.labels.csv"):
        print(open(name).read())
    print("pyarrow" in sys.modules and sys.modules["pyarrow"] is not None)
"""


def test_everything_in_text_works_without_pyarrow(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_bytes(text.encode())
    outputs = []
    for how in ("without", "with"):
        command = [sys.executable, "-c", READ, how]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout.splitlines())
    assert outputs[0][:-1] == outputs[1][:-1]
    assert [lines[-1] for lines in outputs] == ["False", "True"]
    assert "{'enroll': ['m1', 'm2'], 'test': ['a', 'é'], 'target': [True, False]} {}" in outputs[0]
    assert any("'gender': ['f', '']" in line for line in outputs[0])


pieces = ["a", "b", "1", "1.5", "1_0", "target", "nontarget", " ", "\t", "\n", "\r", "\r\n", ",", '"', "é", "nan"]


@settings(deadline=None, max_examples=200, database=None)
@given(data=st.lists(st.sampled_from(pieces), max_size=30).map("".join))
@example(data="a\t\t\n\t\t")
@example(data="a nan")
@pytest.mark.filterwarnings("ignore:.* which is taken for a name")
@pytest.mark.parametrize("header", ["", "id,speaker\n", "modelid\tsegmentid\tLLR\n"])
@pytest.mark.parametrize("read", [read_labels, read_trials, read_enrollment, read_scores])
def test_both_parsers_agree(tmp_path_factory: pytest.TempPathFactory, read: Callable, header: str, data: str) -> None:
    """Whatever is read, or refused, is the same with and without pyarrow."""
    path = tmp_path_factory.getbasetemp() / "list"
    path.write_bytes((header + data).encode())
    found = []
    for plain in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            for name in ("pyarrow", "pyarrow.csv", "pyarrow.compute") if plain else ():
                patch.setitem(sys.modules, name, None)
            try:
                x = read(path)
                columns = {k: v for k, v in vars(x).items() if isinstance(v, Coded | np.ndarray)}
                found.append({k: np.asarray(v).tolist() for k, v in columns.items()})
            except DuopldaError as e:
                found.append(str(e))
    assert repr(found[0]) == repr(found[1])


def test_a_long_list_in_blocks(tmp_path: Path) -> None:
    """10 MB, which are parsed in several pieces, one of them without pyarrow."""
    n, list_ = 330_000, tmp_path / "list"
    lines = [f"utterance{i:07d} speaker{i // 10:05d}" for i in range(n)]
    lines[100_000] = lines[100_000].replace(" ", "\t")
    list_.write_text("\n".join(lines))
    labels = read_labels(list_)
    assert labels.ids.tolist() == [f"utterance{i:07d}" for i in range(n)]
    assert labels.speaker.tolist() == [f"speaker{i // 10:05d}" for i in range(n)]
    lines[300_000] = "utterance0300000"
    list_.write_text("\n".join(lines))
    with pytest.raises(DuopldaError, match="line 300001: has 1 fields, the first line 2"):
        read_labels(list_, form="utt2spk")
    lines[300_000] = "utterance0000017 speaker"
    list_.write_text("\n".join(lines))
    with pytest.raises(DuopldaError, match="line 300001: id 'utterance0000017' is there already"):
        read_labels(list_)
