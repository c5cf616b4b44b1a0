"""Diarisation errors: against frames that are counted, pyannote.metrics, and the published figure of VBx's example."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from duoplda.diarization import Regions, Turns, der, read_rttm
from duoplda.errors import DuopldaError, MissingIds

VBX = Path(__file__).parents[2] / "shared/data/diarization/vbx"
Lists = list[tuple[str, float, float]]  # speaker, start, duration

# Turns on a grid of 1/8 s: short files, many speakers at a time, one speaker twice at a time.
turns = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 60).map(lambda n: n / 8), st.integers(0, 24).map(lambda n: n / 8)),
    max_size=10,
)
collars = st.integers(0, 6).map(lambda n: n / 8)
areas = st.none() | st.lists(
    st.tuples(st.integers(0, 60).map(lambda n: n / 8), st.integers(1, 40).map(lambda n: n / 8)), min_size=1, max_size=3
)


def made(rows: Lists, file: str = "f") -> Turns:
    return Turns.of([file] * len(rows), [s for _, s, _ in rows], [d for *_, d in rows], [who for who, *_ in rows])


def united(rows: Lists) -> list[tuple[str, float, float]]:
    """Speaker, start and end of turns, those of one speaker that overlap as one; they stay two where they touch."""
    left = [(who, s, s + d) for who, s, d in rows if d > 0]
    done = []
    while left:
        who, s, e = left.pop()
        other = next((x for x in left if x[0] == who and x[1] < e and s < x[2]), None)
        if other is None:
            done.append((who, s, e))
        else:
            left.remove(other)
            left.append((who, min(s, other[1]), max(e, other[2])))
    return done


def by_frames(ours: Lists, truth: Lists, collar: float, skip: bool, area: Any) -> list[float]:
    """Miss, false alarm, confusion and total by the middles of frames of 1/8 s, which is the grid."""
    middle = np.arange(-8, 8 * 24) / 8 + 1 / 16

    def speaking(rows: Lists) -> np.ndarray:
        found = [[(s <= middle) & (middle < s + d) for who, s, d in rows if who == name] for name in "abc"]
        return np.array([np.any(one, axis=0) if one else np.zeros(len(middle), bool) for one in found])

    R, H = speaking(truth), speaking(ours)
    scored = np.ones(len(middle), bool) if area is None else np.zeros(len(middle), bool)
    for s, d in area or ():
        scored |= (s <= middle) & (middle < s + d)
    for _, s, e in united(truth):
        for edge in (s, e):
            scored &= np.abs(middle - edge) >= collar
    if skip:
        scored &= R.sum(axis=0) < 2
    R, H = R[:, scored].astype(int), H[:, scored].astype(int)
    together = R @ H.T
    correct = together[linear_sum_assignment(together, maximize=True)].sum()
    r, h = R.sum(axis=0), H.sum(axis=0)
    parts = [np.maximum(r - h, 0).sum(), np.maximum(h - r, 0).sum(), np.minimum(r, h).sum() - correct, r.sum()]
    return [float(x) / 8 for x in parts]


@given(turns, turns, collars, st.booleans(), areas)
@settings(max_examples=300)
def test_errors_are_those_of_frames(ours: Lists, truth: Lists, collar: float, skip: bool, area: Any) -> None:
    truth = [("a", 0.0, 1.0), *truth]
    regions = None if area is None else Regions.of(["f"] * len(area), [s for s, _ in area], [s + d for s, d in area])
    found = der(made(ours), made(truth), collar=collar, skip_overlap=skip, regions=regions)
    assert found[:4] == pytest.approx(by_frames(ours, truth, collar, skip, area), abs=1e-12)
    assert found.files["f"][:4] == found[:4]


def pyannote_errors(ours: Lists, truth: Lists, collar: float, skip: bool, area: Any = None) -> list[float]:
    """The same of pyannote.metrics, whose collar is the whole width that is left out around a boundary."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        core, metrics = pytest.importorskip("pyannote.core"), pytest.importorskip("pyannote.metrics.diarization")
        annotations = []
        for rows in (truth, ours):
            annotations.append(core.Annotation())
            for i, (who, s, d) in enumerate(rows):
                annotations[-1][core.Segment(s, s + d), i] = who
        uem = None if area is None else core.Timeline([core.Segment(s, s + d) for s, d in area]).support()
        metric = metrics.DiarizationErrorRate(collar=2 * collar, skip_overlap=skip)
        found = metric(*annotations, uem=uem, detailed=True)
    return [found[name] for name in ("missed detection", "false alarm", "confusion", "total")]


times = st.floats(0, 20).map(lambda t: round(t, 4))  # pyannote drops what is shorter than a microsecond


@st.composite
def apart(draw: Any) -> Lists:
    """Turns of three speakers, who may speak at the same time, but none twice at a time."""
    rows: Lists = []
    for who in "abc":
        edges = sorted(set(draw(st.lists(times, max_size=8))))
        rows += [(who, s, e - s) for s, e in zip(edges[::2], edges[1::2], strict=False)]
    return rows


@given(apart(), apart(), st.floats(0, 1).map(lambda t: round(t, 3)), st.booleans(), st.none() | st.tuples(times, times))
@settings(max_examples=300, deadline=None)
def test_errors_are_those_of_pyannote(ours: Lists, truth: Lists, collar: float, skip: bool, area: Any) -> None:
    truth = [("d", 21.0, 1.5), *truth]
    uem = None if area is None else [(area[0], area[1] + 0.5)]
    regions = None if uem is None else Regions.of(["f"], [uem[0][0]], [uem[0][0] + uem[0][1]])
    found = der(made(ours), made(truth), collar=collar, skip_overlap=skip, regions=regions)
    assert found[:4] == pytest.approx(pyannote_errors(ours, truth, collar, skip, uem), abs=1e-9)


@pytest.mark.skipif(not VBX.exists(), reason="the shared data are not here")
@pytest.mark.parametrize("collar", [0.0, 0.125, 0.25])
@pytest.mark.parametrize("skip", [False, True])
def test_vbx_output_against_its_reference(collar: float, skip: bool) -> None:
    """VBx's page gives 7.06 for this file, by dscore --collar 0.25 --ignore_overlaps (md-eval underneath)."""
    ours, truth = (read_rttm(VBX / f"ES2005a.{name}.rttm") for name in ("vbx-output", "reference"))
    found = der(ours, truth, collar=collar, skip_overlap=skip)
    lists = [list(zip(t.speaker.values, t.start, t.duration, strict=True)) for t in (ours, truth)]
    assert found[:4] == pytest.approx(pyannote_errors(*lists, collar, skip), abs=1e-9)
    if (collar, skip) == (0.25, True):
        assert round(100 * found.rate, 2) == 7.06


@given(turns, turns, st.permutations("xyz"), st.randoms(use_true_random=False))
def test_names_and_order_do_not_matter(ours: Lists, truth: Lists, names: Any, random: Any) -> None:
    truth = [("a", 0.0, 1.0), *truth]
    expected = der(made(ours), made(truth), collar=0.25)
    renamed = [(dict(zip("abc", names, strict=True))[who], s, d) for who, s, d in random.sample(ours, len(ours))]
    found = der(made(renamed), made(random.sample(truth, len(truth))), collar=0.25)
    assert found[:4] == pytest.approx(expected[:4], abs=1e-12)
    assert der(made(truth), made(truth)).rate == 0


def joined(*parts: Turns) -> Turns:
    columns = [np.concatenate([getattr(p, c) for p in parts]) for c in ("start", "duration")]
    names = [np.concatenate([np.asarray(getattr(p, c)) for p in parts]) for c in ("file", "speaker")]
    return Turns.of(names[0], *columns, names[1])


def test_files_are_mapped_one_by_one_and_added() -> None:
    truth = joined(made([("a", 0, 4), ("b", 4, 4)], "one"), made([("a", 0, 2), ("b", 2, 8)], "two"))
    ours = joined(made([("1", 0, 4), ("2", 4, 4)], "one"), made([("2", 0, 2), ("1", 2, 7)], "two"))
    found = der(ours, truth)
    assert found.files["one"][:4] == (0, 0, 0, 8)
    assert found.files["two"][:4] == (1, 0, 0, 10)  # another mapping than that of the first file
    assert found[:4] == (1, 0, 0, 18)
    assert found.rate == pytest.approx(1 / 18)
    assert list(found.files) == ["one", "two"]


def test_files_that_one_side_does_not_have() -> None:
    truth = joined(made([("a", 0, 4)], "one"), made([("a", 0, 2)], "two"))
    assert der(made([("x", 0, 4)], "one"), truth)[:4] == (2, 0, 0, 6)  # all of "two" is missed
    assert der(made([]), truth)[:4] == (6, 0, 0, 6)
    ours = joined(truth, made([("x", 1, 3)], "silent"))
    with pytest.raises(MissingIds, match=r"1 files of the hypothesis .*'silent'"):
        der(ours, truth)
    regions = Regions.of(["one", "silent", "silent"], [0, 0, 3], [3, 2, 9])
    found = der(ours, truth, regions=regions)
    assert found.files["silent"][:4] == (0, 2, 0, 0)
    assert found.files["silent"].rate == float("inf")
    assert found[:4] == (0, 2, 0, 3)  # "two" has no regions and is not scored


def test_where_nothing_is_scored_there_is_no_rate() -> None:
    truth = joined(made([("a", 0, 2)]), made([("a", 0.1, 0.6)], "short"))
    assert np.isnan(der(made([]), truth, regions=Regions.of(["f"], [5], [6])).rate)
    found = der(truth, truth, collar=0.3)  # .1 + .3 and .7 - .3 differ by a rounding error
    assert found.files["short"].total == 0
    assert np.isnan(found.files["short"].rate)
    assert found.rate == 0
    assert np.isnan(der(truth, truth, collar=30).rate)
    assert np.isnan(der(truth, truth, regions=Regions.of(["f", "silent"], [0, 0], [9, 9])).files["silent"].rate)


def test_turns_of_one_speaker_that_touch_keep_their_boundary() -> None:
    """It is a boundary of the reference as md-eval reads it; sums that end a rounding error late touch too."""
    twice = made([("a", 0.0, 4.0), ("a", 4.0, 4.0)])
    assert der(twice, twice, collar=0.5).total == 8 - 4 * 0.5
    late = Turns.of(["f", "f"], [0.1, 0.1 + 0.2], [0.2, 4.0], ["a", "a"])
    assert late.end[0] == late.start[1] > 0.3
    slightly = Turns.of(["f", "f"], [0.1, 0.3], [0.2, 4.0], ["a", "a"])
    assert slightly.end[0] > slightly.start[1]
    assert der(late, late, collar=0.05).total == pytest.approx(der(late, slightly, collar=0.05).total, abs=1e-12)
    overlapping = made([("a", 0.0, 5.0), ("a", 4.0, 4.0)])
    assert der(twice, overlapping, collar=0.5).total == 8 - 2 * 0.5


def test_what_is_wrong_is_said() -> None:
    truth = made([("a", 0, 4)])
    for collar in (-0.1, float("nan"), float("inf")):
        with pytest.raises(DuopldaError, match="collar="):
            der(truth, truth, collar=collar)
    with pytest.raises(DuopldaError, match="reference is empty"):
        der(made([]), made([]))
    with pytest.raises(DuopldaError, match=r"no file of the reference is in the regions, which are for 'g'"):
        der(truth, truth, regions=Regions.of(["g"], [0], [1]))
    n = 9000
    crowd = Turns.of(["f"] * n, np.arange(n), np.full(n, 0.5), [f"s{i}" for i in range(n)])
    with pytest.raises(DuopldaError, match="file f: 9,000 and 9,000 speakers are too many"):
        der(crowd, crowd)
    crowd = Turns.of(["f"] * n, np.arange(n), np.full(n, float(n)), [f"s{i}" for i in range(n)])
    with pytest.raises(DuopldaError, match="file f: too many turns overlap"):
        der(crowd, crowd)
