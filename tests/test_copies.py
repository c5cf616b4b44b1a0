"""Ids that suggest copies: those of augmented and of parallel recordings do, those of ordinary data do not."""

import random

import pytest

from duoplda.data.copies import sessions_in_names, suggests_copies

STEMS = [f"spk{s:02}-utt{u:03}" for s in range(12) for u in range(7)]


def marked(form, marks):
    return [form.format(stem, mark) for mark in marks for stem in STEMS]


@pytest.mark.parametrize(
    "ids",
    [
        STEMS + marked("{0}-{1}", ["noise", "reverb", "music", "babble"]),
        marked("{0}_{1}", ["ch1", "ch2", "ch3"]),
        marked("{0}.{1}", ["mic1", "mic2"]),
        STEMS + marked("{1}-{0}", ["sp0.9", "sp1.1"]),
        STEMS + marked("{0}-{1}", ["sp0.9", "sp1.1"]),
        STEMS + marked("{1}_{0}", ["rev1"]),
        STEMS + [f"{stem}-{random.Random(i).choice(['noise', 'music'])}" for i, stem in enumerate(STEMS)],
        [f"{stem}_{mark}" for stem in STEMS for mark in ("clean", "snr5", "snr-5db", "SNR10dB")],
        STEMS + [f"{stem}-noise" for stem in STEMS[::2]],
    ],
)
def test_copies_are_suspected_in_any_order(ids):
    random.Random(0).shuffle(ids)
    example = suggests_copies(ids)
    assert len(example) > 1
    assert set(example) <= set(ids)
    assert sum(all(stem in name for name in example) for stem in STEMS) == 1  # they are copies of one recording


@pytest.mark.parametrize(
    "ids",
    [
        [],
        [f"spk1-utt{i:03}" for i in range(1, 101)],
        STEMS,
        [f"{stem}-{side}" for stem in STEMS for side in "AB"],  # two sides of a telephone call are two speakers
        [f"{stem}_{i}" for stem in STEMS for i in range(1, 4)],
        [f"id{s}/{v}/{i:05}.wav" for s in range(5) for v in ("5r0dWxy17C8", "music") for i in range(4)],
        [f"{s}-ch{c}-{u}" for s in range(5) for c in range(9) for u in range(9)],
        [f"{s}-ch{c:02}" for s in range(5) for c in range(60)],  # chapters: marks that are many
        [f"{stem}-ch{c}" for i, stem in enumerate(STEMS) for c in range(i % 5 + 2)],  # chapters of books of any length
        [f"spk{s}-speech{k}" for s in range(9) for k in range(3)],
        [f"noise-free-sound-{i:04}" for i in range(50)] + [f"music-fma-{i:04}" for i in range(50)],
        [*STEMS, "spk00-utt000-noise"],  # one name
        [f"{stem}-noise" for stem in STEMS],  # all through noise, each once
        STEMS[:3] + [f"{stem}-noise" for stem in STEMS],  # most of them once
        range(100),
    ],
)
def test_ordinary_ids_are_not(ids):
    assert suggests_copies(ids) is None


VOX = [(f"id1000{s}", f"{'abc'[v]}-_defghij{s}", u) for s in range(3) for v in range(2) for u in range(2)]


@pytest.mark.parametrize(
    ("form", "ids", "speaker", "sessions"),
    [
        ("VoxCeleb", [f"{s}/{v}/{u:05}.wav" for s, v, u in VOX], [s for s, *_ in VOX], 6),
        ("VoxCeleb", [f"wav/{s}/{v}/{u:05}.wav" for s, v, u in VOX], [s[4:] for s, *_ in VOX], 6),
        ("VoxCeleb", [f"{s}-{v}-{u:05}-noise" for s, v, u in VOX], [s for s, *_ in VOX], 6),
        ("speaker-session-utterance", ["84-1-0", "84-1-1", "84-2-0", "85-1-0"], ["84", "84", "84", "85"], 3),
        ("copies", ["a", "a-noise", "b", "b-noise"], ["ann", "ann", "bob", "bob"], 2),
    ],
)
def test_sessions_that_names_tell(form, ids, speaker, sessions):
    words, names = sessions_in_names(ids, speaker)
    assert words.startswith(form)
    assert len({*names}) == sessions
    assert len({*zip(names, speaker, strict=True)}) == sessions


@pytest.mark.parametrize(
    "ids",
    [["ann_utt_1", "ann_utt_2", "bob_utt_1"], ["utt1", "utt2", "utt3"], ["ann-1-1", "ann-2-1", "bob-1-1"]],
    ids=["one session each", "no parts", "one recording each"],
)
def test_names_that_tell_no_sessions(ids):
    assert sessions_in_names(ids, ["ann", "ann", "bob"]) is None
