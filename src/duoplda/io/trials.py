"""Lists of trials, each of a model and a recording, and enrolment maps, which say what recordings make up a model.

Kaldi       enrol test target|nontarget        (the label may be missing)
VoxCeleb    1 enrol test                       (1 target, 0 nontarget)
NIST        a header and tabs: modelid, segmentid, targettype; other columns are conditions
hyperion    the same with commas
Parquet     the same columns
BOSARIS     HDF5 Ndx and Key
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from duoplda.errors import DuopldaError
from duoplda.io._atomic import atomic_path
from duoplda.io.bosaris import read_bosaris_trials, write_bosaris_trials
from duoplda.io.common import HDF5_SUFFIXES, TABLE_SUFFIXES, PathLike, bad, content, held, shown
from duoplda.io.ids import ID_NAMES, Coded, check_ids
from duoplda.io.labels import write_table
from duoplda.io.text import (
    has_groups,
    is_table,
    line_of,
    read_groups,
    read_header,
    read_list,
    read_table,
    write_columns,
)

# Names that a column of a list of trials may have, the likeliest first.
TRIAL_COLUMNS: dict[str, tuple[str, ...]] = {
    "enroll": ("modelid", "model", "model_id", "enroll", "enrol", "enrollment", "enroll_id", "enrolment", "enroll_utt"),
    "test": (
        "segmentid",
        "segment",
        "segment_id",
        "test",
        "test_id",
        "test_utt",
        "probe",
        "recording",
        "utt",
        "utt_id",
    ),
    "target": ("targettype", "target", "label", "key", "is_target", "same", "truth"),
}
# The words that may label a trial, and whether they say that it is a target.
LABEL_WORDS = dict.fromkeys(("target", "tgt", "tar", "true", "1"), True)
LABEL_WORDS |= dict.fromkeys(("nontarget", "non-target", "nontgt", "non", "imposter", "impostor", "false", "0"), False)


@dataclass(frozen=True, eq=False)
class Trials:
    """A list of n trials, each of which compares a model with a recording.

    >>> trials = Trials(Coded.of(["m1", "m1"]), Coded.of(["a", "b"]), np.array([True, False]))
    >>> len(trials), trials.test.values[trials.target].tolist()
    (2, ['a'])
    """

    enroll: Coded  # ids of models
    test: Coded  # ids of recordings
    target: np.ndarray | None = None  # (n,) bool, or None if the list does not say which trials are targets
    conditions: Mapping[str, Coded] = field(default_factory=dict)  # further columns of the list, by name

    def __len__(self) -> int:
        return len(self.enroll)


@dataclass(frozen=True, eq=False)
class Enrollment:
    """The recordings that each model was enrolled with: n pairs (model, recording).

    >>> enrollment = Enrollment(Coded.of(["m1", "m1", "m2"]), Coded.of(["a", "b", "c"]))
    >>> enrollment.recording.values[enrollment.model.values == "m1"].tolist()
    ['a', 'b']
    """

    model: Coded
    recording: Coded

    def __len__(self) -> int:
        return len(self.model)


def read_trials(path: PathLike, *, form: str = "auto", columns: Mapping[str, str] | None = None) -> Trials:
    """Read a list of trials.

    Parameters
    ----------
    path : a list of Kaldi, VoxCeleb, NIST or hyperion, a Parquet table, or a BOSARIS Ndx or Key
    form : "kaldi", "voxceleb", "table" or "bosaris"; "auto" tells them apart by content
    columns : names of the columns of a table, e.g. {"enroll": "model", "test": "file", "target": "label"}; where there
        is no header, their numbers, e.g. {"enroll": "2", "test": "1"}

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "trials").write_text("m1 a target\\nm1 b nontarget\\n")
    ...     trials = read_trials(folder + "/trials")
    >>> trials.enroll.values.tolist(), trials.test.values.tolist(), trials.target.tolist()
    (['m1', 'm1'], ['a', 'b'], [True, False])
    """
    forms = ("auto", "kaldi", "voxceleb", "table", "bosaris")
    if form not in forms:
        raise DuopldaError(f"form must be one of {', '.join(forms)}, got {form!r}")
    path = held(path)
    if form == "bosaris" or (form == "auto" and content(path) == "hdf5"):
        return Trials(*read_bosaris_trials(path))
    if form == "table" or (form == "auto" and is_table(path, TRIAL_COLUMNS, ("enroll", "test"), columns)):
        header = read_header(path, TRIAL_COLUMNS, columns, ("target",))
        table = read_table(header, others=header.written)
        enroll, test, target = (table.pop(meaning, None) for meaning in TRIAL_COLUMNS)
        return Trials(enroll, test, None if target is None else _labels(path, target, header=header.written), table)
    parts = read_list(path, fields=(2, 3))
    if len(parts) == 2:
        if form == "voxceleb":
            raise bad(path, "line 1", "has 2 fields", "VoxCeleb lines are `1 enrol test`")
        return Trials(*parts)
    target = _labels(path, parts.pop(_label_column(path, parts, form)))
    return Trials(parts[0], parts[1], target)


def _label_column(path: PathLike, parts: list[Coded], form: str) -> int:
    """Return which of three columns has the labels: of the first and the last, the one with nothing but labels."""
    if form != "auto":
        return 0 if form == "voxceleb" else 2
    labels = set(LABEL_WORDS)
    fit = [i for i in (0, 2) if set(np.char.lower(parts[i].names).tolist()) <= labels]
    if len(fit) == 2:
        raise bad(path, "line 1", "the label may be the first or the last field", "say form='kaldi' or 'voxceleb'")
    if fit:
        return fit[0]
    # Neither has labels only. The likelier one is returned, and the error will name the word in it that is no label.
    first, _, last = (str(column[:1].values[0]).lower() for column in parts)
    return 0 if first in labels and last not in labels else 2


def _labels(path: PathLike, column: Coded, *, header: bool = False) -> np.ndarray:
    """Return which trials are targets, (n,) bool, by a column of labels."""
    words = np.char.lower(column.names).tolist()
    for code, word in enumerate(words):
        if word not in LABEL_WORDS:
            place = line_of(path, int((column.codes == code).argmax()), header=header)
            cause = f"label {shown(str(column.names[code]))} is neither target nor nontarget"
            raise bad(path, place, cause, "lines are `enrol test target|nontarget` or `1|0 enrol test`")
    return np.array([LABEL_WORDS[word] for word in words], bool)[column.codes]


def write_trials(path: PathLike, trials: Trials, *, force: bool = False, form: str = "auto") -> None:
    """Write trials: a table (`.tsv`, `.csv`, `.parquet`), BOSARIS (`.h5`), or else Kaldi lines.

    `form="voxceleb"` puts the label first, as 1 or 0. Conditions are only kept in tables.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_trials(folder + "/trials", Trials(Coded.of(["m"]), Coded.of(["a"]), np.array([True])))
    ...     Path(folder, "trials").read_text()
    'm a target\\n'
    """
    suffix = Path(path).suffix.lower()
    lines = suffix not in (*TABLE_SUFFIXES, *HDF5_SUFFIXES)
    columns = {"modelid": trials.enroll, "segmentid": trials.test}
    for column in columns.values():
        check_ids(path, np.ascontiguousarray(column.names), token=lines)
    voxceleb = lines and form == "voxceleb"
    if trials.target is not None:
        words = np.array(["0", "1"] if voxceleb else ["nontarget", "target"])
        columns["targettype"] = Coded(words, np.asarray(trials.target, bool).astype(np.int32))
    elif voxceleb:
        raise bad(path, "", "VoxCeleb lists need labels", "write Kaldi lines instead")
    if suffix in TABLE_SUFFIXES:
        write_table(path, columns | dict(trials.conditions), force=force)
        return
    with atomic_path(path, force=force) as temporary:
        if lines:
            enroll, test, *label = columns.values()
            write_columns(temporary, "", [[*label, enroll, test] if voxceleb else [enroll, test, *label]])
        else:
            write_bosaris_trials(temporary, trials.enroll, trials.test, trials.target)


def read_enrollment(path: PathLike, *, columns: Mapping[str, str] | None = None) -> Enrollment:
    """Read which recordings make up each model.

    Lines `model recording`, lines `model recording recording ...` (`spk2utt`), or a table with the columns modelid and
    segmentid (NIST, hyperion, Parquet; `columns` may name them as "model" and "recording", or number them where there
    is no header).

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "enroll").write_text("m1 a b\\nm2 c\\n")
    ...     read_enrollment(folder + "/enroll").model.values.tolist()
    ['m1', 'm1', 'm2']
    """
    path = held(path)
    wanted = {
        "model": TRIAL_COLUMNS["enroll"],
        "recording": tuple(dict.fromkeys((*TRIAL_COLUMNS["test"], *ID_NAMES))),
    }
    if is_table(path, wanted, ("model", "recording"), columns):
        result = Enrollment(**read_table(read_header(path, wanted, columns)))
    else:
        result = Enrollment(*(read_groups(path) if has_groups(path) else read_list(path, fields=(2,))))
    pairs = result.model.codes.astype(np.int64) * len(result.recording.names) + result.recording.codes
    first = np.unique(pairs, return_index=True)[1]
    if len(first) < len(pairs):
        row = int(np.setdiff1d(np.arange(len(pairs)), first)[0])
        name = " ".join(str(c.names[c.codes[row]]) for c in (result.model, result.recording))
        raise bad(path, f"pair {row + 1}", f"{shown(name)} is there already", "give each recording once per model")
    return result
