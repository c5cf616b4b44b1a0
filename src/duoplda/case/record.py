"""An assessed case in one object: the question, the recordings, the result, and all that is needed to repeat it."""

from __future__ import annotations

import datetime
import math
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from duoplda.case.assess import assess
from duoplda.case.file import CaseFile
from duoplda.case.quality import CaseQuality, read_case_quality
from duoplda.case.recordings import CaseRecordings, Side, read_case_recordings
from duoplda.case.result import CaseRefused, CaseResult, in_log10
from duoplda.case.words import Words, in_words
from duoplda.estimators.backend import Backend
from duoplda.io import source_files
from duoplda.io.common import file_sha256

RECORD_FORMAT = 1
# Fields of a result that are natural logarithms of ratios, or differences of them; JSON has them to base 10, too.
LOGARITHMS = {"raw", "own", "calibrated", "low", "high", "offset", "stated", "stated_low", "stated_high"}
LOGARITHMS |= {"elub", "invariance", "lower", "upper"}
LOGARITHMS |= {"dev_pav", "lowest_same", "highest_different", "scores", "without", "share"}


@dataclass(frozen=True, eq=False)
class CaseRecord:
    """An assessed case, to be written as a page and as JSON.

    Attributes
    ----------
    case : the contents of the case file
    recordings : the recordings of both sides and of the population
    quality : the measures of the recordings; None if the case file names no table of them
    result, words : the result, as numbers and in words
    hashes : SHA-256 of the bytes of each file that was read, by its path
    version : the version of duoplda
    date : the day of the assessment; nothing else differs when it is repeated
    command : the command that repeats it

    >>> from dataclasses import fields
    >>> [field.name for field in fields(CaseRecord)][:5]  # `assess_case` fills them
    ['case', 'recordings', 'quality', 'result', 'words']
    """

    case: CaseFile
    recordings: CaseRecordings
    quality: CaseQuality | None
    result: CaseResult
    words: Words
    hashes: Mapping[str, str]
    version: str
    date: str
    command: str

    def as_dict(self) -> dict[str, Any]:
        """Return everything as dictionaries, lists, texts and numbers, with each log ratio as `ln` and as `log10`."""
        case = self.case
        return {
            "format": RECORD_FORMAT,
            "program": {"name": "duoplda", "version": self.version, "command": self.command},
            "date": self.date,
            "title": case.title,
            "propositions": {"same": case.same, "different": case.different},
            "prior": case.prior,
            "scale": case.scale,
            "adapt": case.adapt,
            "known": {"speaker": case.speaker, "recordings": listed(self.recordings.known)},
            "questioned": {"recordings": listed(self.recordings.questioned)},
            "population": {"why": case.why},
            "quality": None if self.quality is None else _plain_quality(self.quality),
            "words": asdict(self.words),
            "result": _both_logarithms(self.result.as_dict()),
            "files": dict(self.hashes),
        }


def assess_case(case: CaseFile) -> CaseRecord:
    """Read the files of a case, assess it, and put the result into words.

    A `CaseRefused` says why no ratio can be given. Any other mistake is a `DuopldaError`, which names the line of the
    case file. `duoplda.report.write_case_report` makes the page for the court from the record.

    >>> import tempfile
    >>> from duoplda.case import read_case, write_example
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     record = assess_case(read_case(write_example(folder)))
    >>> record.case.speaker, record.result.validation.n_speakers, record.words.favours
    ('Mr A', 35, 'first')
    """
    from duoplda import __version__

    model = Backend.load(case.model)
    recordings = read_case_recordings(case, model)
    quality = read_case_quality(case, recordings)
    sides = (side.recordings for side in recordings)
    try:
        result = assess(model, *sides, adapt=case.adapt, n_resamples=case.resamples, seed=case.seed)
    except CaseRefused as refused:
        raise CaseRefused(refused.reason, f"{case.path}: no ratio is given: {refused}") from None
    return CaseRecord(
        case=case,
        recordings=recordings,
        quality=quality,
        result=result,
        words=in_words(case, result),
        hashes={os.path.relpath(path, case.path.parent): file_sha256(path) for path in dict.fromkeys(files_read(case))},
        version=__version__,
        date=datetime.date.today().isoformat(),
        command=shlex.join(["duoplda", "case", case.path.name, "--out", "again"]),
    )


def files_read(case: CaseFile) -> Iterator[Path]:
    """Yield the case file and all files that it names."""
    yield case.path
    yield case.model
    if case.quality is not None:
        yield case.quality
    for source in (case.known, case.questioned, case.population):
        for path in source.embeddings:
            yield from source_files(path)
        yield from source.lists
        if source.ids not in (None, "rows"):
            yield Path(str(source.ids))


def listed(side: Side) -> list[dict[str, str]]:
    """Return the recordings of a side with those labels that are known.

    >>> import numpy as np
    >>> a = np.array(["a"])
    >>> listed(Side(a, np.eye(1), None, np.array(["monday"]), None, None))
    [{'id': 'a', 'session': 'monday'}]
    """
    levels = {"session": side.session, "channel": side.channel, "occasion": side.occasion}
    known = {"id": side.ids} | {name: values for name, values in levels.items() if values is not None}
    return [dict(zip(known, row, strict=True)) for row in zip(*(v.tolist() for v in known.values()), strict=True)]


def _plain_quality(quality: CaseQuality) -> dict[str, Any]:
    """The cells of each recording, and the ranges of the measures; None where nothing was measured."""
    measures = {}
    for measure in quality.measures:
        ranges = {name: getattr(measure, name)._asdict() for name in ("known", "questioned", "population")}
        measures[measure.name] = {
            name: {key: None if math.isnan(value) else value for key, value in values.items()}
            for name, values in ranges.items()
        }
    return {"recordings": {id: dict(cells) for id, cells in quality.cells.items()}, "measures": measures}


def _both_logarithms(value: Any) -> Any:
    """The same with each log ratio, or list of them, as {"ln": ..., "log10": ...}."""
    if isinstance(value, list):
        return [_both_logarithms(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: _logarithms(item) if name in LOGARITHMS else _both_logarithms(item) for name, item in value.items()}


def _logarithms(value: Any) -> Any:
    return None if value is None else {"ln": value, "log10": _to_base_10(value)}


def _to_base_10(value: Any) -> Any:
    """Natural logarithms to base 10, also those inside lists and dictionaries."""
    if isinstance(value, dict):
        return {name: _to_base_10(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_to_base_10(item) for item in value]
    return None if value is None else in_log10(value)
