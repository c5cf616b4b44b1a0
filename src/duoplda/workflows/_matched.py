"""Scores, the trials they belong to and the speakers of these, as evaluation, calibration and reports read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duoplda.evaluation.matching import Matched, match_files, speaker_sides
from duoplda.io import read_enrollment, read_map
from duoplda.workflows._files import Columns, Note, PathLike


def read_matched(
    scores: Sequence[PathLike], trials: PathLike, columns: Columns, allow_missing: bool, note: Note
) -> Matched:
    """Read and match scores and trials, and say what was left out."""
    matched = match_files(trials, scores, columns=columns, allow_missing=allow_missing)  # type: ignore[arg-type]
    for path, absent, unused in zip(scores, matched.missing.values(), matched.unused.values(), strict=True):
        if absent:
            note(f"{path}: {absent:,} trials without a score are left out")
        if unused:
            note(f"{path}: {unused:,} scores belong to no trial and are not used")
    return matched


def read_speaker_sides(
    matched: Matched, speakers: PathLike | None, enroll: PathLike | None, columns: Columns
) -> tuple[Any, Any] | None:
    """The speakers of both sides of the trials; None where no file gives the speakers of the recordings."""
    known = read_map(speakers, "speaker", columns)
    enrollment = read_enrollment(enroll, columns=columns) if enroll else None
    return speaker_sides(matched.trials, known, enrollment) if known else None
