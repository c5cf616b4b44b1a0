"""Scores, the trials they belong to and the speakers of these, as evaluation, calibration and reports read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from duoplda.evaluation.matching import Matched, match_files, speaker_sides
from duoplda.evaluation.support import LN10
from duoplda.io import ScoreMatrix, Scores, read_enrollment, read_map
from duoplda.workflows._files import Columns, Note, PathLike

AnyScores = TypeVar("AnyScores", Scores, ScoreMatrix)


def in_log10(scores: AnyScores, wanted: bool = True) -> AnyScores:
    """Convert natural-log ratios to log10 ratios, if that is wanted."""
    return replace(scores, score=scores.score / LN10) if wanted else scores


def in_nats(scores: AnyScores, are_log10: bool) -> AnyScores:
    """Convert scores to natural-log ratios, if they are log10 ratios."""
    return replace(scores, score=LN10 * scores.score) if are_log10 else scores


def read_matched(
    scores: Sequence[PathLike], trials: PathLike, columns: Columns, allow_missing: bool, note: Note, log10: bool = False
) -> Matched:
    """Read scores and trials, match them, and report what was left out; with `log10`, scores are log10 ratios."""
    matched = match_files(trials, scores, columns=columns, allow_missing=allow_missing)  # type: ignore[arg-type]
    for path, absent, unused in zip(scores, matched.missing.values(), matched.unused.values(), strict=True):
        if absent:
            note(f"{path}: {absent:,} trials without a score are left out")
        if unused:
            note(f"{path}: {unused:,} scores belong to no trial and are not used")
    return replace(matched, systems={name: LN10 * s for name, s in matched.systems.items()}) if log10 else matched


def read_speaker_sides(
    matched: Matched, speakers: PathLike | None, enroll: PathLike | None, columns: Columns
) -> tuple[Any, Any] | None:
    """The speakers of both sides of the trials; None if no file gives the speakers of the recordings."""
    known = read_map(speakers, "speaker", columns)
    enrollment = read_enrollment(enroll, columns=columns) if enroll else None
    return speaker_sides(matched.trials, known, enrollment) if known else None
