"""Labels while people speak: no later than asked, corrected where they were wrong, and in the end those of the file."""

import numpy as np
import pytest

from duoplda import Backend
from duoplda.diarization import Online, as_turns, der, diarize
from duoplda.diarization.diarizer import Labelled
from duoplda.diarization.online import final_labels
from duoplda.errors import DuopldaError
from test_diarization import TRUE, error, talk, turn_order, two_levels, windows


@pytest.fixture(scope="module")
def stream():
    plda, rng = two_levels(), np.random.default_rng(4)
    y = rng.normal(size=(3, 12))
    who = turn_order(rng, 3, 24)
    return plda, y, who, talk(plda, who, y=y)


def run(online, X):
    """The answers to all windows of a second each, and to the end."""
    return [*(online.add(x, t, t + 1) for t, x in enumerate(X)), online.finish()]


@pytest.mark.parametrize("memory", [1000.0, 60.0])
def test_labels_are_in_the_end_those_of_the_file(stream, memory):
    plda, _, who, X = stream
    answers = run(Online(plda, delay=5.0, memory=memory, **TRUE), X)
    speaker = final_labels([label for answer in answers for label in answer])
    segments = windows(len(who))
    found = as_turns(segments, [speaker[t, t + 1] for t in range(len(who))])
    assert der(found, diarize(plda, X, segments, **TRUE)).rate < 0.01
    assert error(found, segments, who) < 0.02


def test_no_label_is_late_and_corrections_say_what_they_replace(stream):
    plda, _, who, X = stream
    told = {}
    for t, answer in enumerate(run(Online(plda, delay=5.0, **TRUE), X)):
        for label in answer:
            key = label.start, label.end
            assert told.get(key, "") == label.replaces
            assert label.speaker != label.replaces
            assert 0 < label.posterior <= 1
            told[key] = label.speaker
        assert all((i, i + 1) in told for i in range(min(t - 4, len(who))))
    assert len(told) == len(who)


def test_what_is_older_than_the_memory_is_final(stream):
    """Also where each round has another opinion, of the windows by which speakers are known again too."""
    online = Online(stream[0], delay=1.0, memory=5.0)
    rng = np.random.default_rng(0)

    def fickle(model, Z, X, start, end):
        labels = np.append([0, 1], rng.integers(2, size=len(Z)))[: len(Z)]
        return Labelled(labels, np.eye(2)[labels][:, : labels.max() + 1], {}, 2)

    online._diarizer = fickle
    corrected = 0
    for t, answer in enumerate(run(online, stream[3][:40])):
        assert all(label.end > min(t + 1, 40) - 5 for label in answer)
        corrected += sum(label.replaces != "" for label in answer)
    assert corrected > 10
    assert len(online._X) > 6  # some older windows are kept


def test_known_voices_are_named(stream):
    plda, y, who, X = stream
    chain = Backend.from_plda(plda)
    known = chain.enroll(talk(plda, np.repeat([0, 1], 6), y=y, seed=8), np.repeat(["ann", "bob"], 6))
    online = Online(chain, known=known, delay=5.0, **TRUE)
    speaker = final_labels([label for answer in run(online, X) for label in answer])
    right = [
        speaker[t, t + 1] == ("ann", "bob")[k] if k < 2 else "speaker" in speaker[t, t + 1] for t, k in enumerate(who)
    ]
    assert np.mean(right) > 0.98


def test_what_is_wrong_with_a_stream_is_named(stream):
    plda, _, _, X = stream
    with pytest.raises(DuopldaError, match="memory longer"):
        Online(plda, delay=10.0, memory=5.0)
    online = Online(plda)
    online.add(X[0], 3.0, 4.0)
    for window, message in (
        ((X[1], 2.0, 5.0), "starts or ends earlier than the window before it"),
        ((X[1], 5.0, 5.0), "is empty"),
        ((X[1][:5], 5.0, 6.0), "5 dimensions"),
        ((X[1] * np.nan, 5.0, 6.0), "NaN"),
    ):
        with pytest.raises(DuopldaError, match=message):
            online.add(*window)
    assert [label.start for label in online.finish()] == [3.0]
    assert online.finish() == []
