"""Do the names of recordings say that some are copies of one another?

Tools that augment data, and arrays of microphones, mark copies by a word before or after the name of the original:
`utt1-noise`, `utt1-reverb`, `utt1_ch2`, `sp0.9-utt1`, `rev1_utt1`. What is left without the mark is the stem.
"""

import re
from collections import Counter
from collections.abc import Iterable

# Words by which tools that augment data, and corpora with several microphones, mark copies.
_WORDS = (
    "noise|noisy|babble|music|reverb(?:eration|erated)?|rvb|rev|rir|clean|orig(?:inal)?|raw|copy|aug(?:mented)?"
    "|pert|perturbed|codec|gsm|amr|opus|mp3|aac|ulaw|alaw|pitch|volp?|specaug|snr|ch|chan(?:nel)?|mic|array"
    "|headset|lapel|lavalier|beamformed|distant|farfield|nearfield"
)
_MARK = rf"(?:(?:{_WORDS})[-+]?\d{{0,2}}(?:db)?|(?:sp|speed|tempo)[01]\.\d{{1,2}})"
# Compiled once, as there may be millions of names.
_MARK_AFTER = re.compile(rf"(.+)[-_.]({_MARK})", re.IGNORECASE)
_MARK_BEFORE = re.compile(rf"({_MARK})[-_](.+)", re.IGNORECASE)


def suggests_copies(ids: Iterable[object]) -> tuple[str, ...] | None:
    """Return a few ids that seem to name copies of one recording; None where the ids do not suggest that there are any.

    They do where marked ids are the rule and not the exception: of the stems that occur with a mark, at least two
    occur more than once, and so does at least every second one, and different marks are few. Marks with the numbers of
    microphones or channels count if four out of five stems have the same of them.

    Example
    -------
    >>> suggests_copies(["a", "a-noise", "a-reverb", "b", "b-noise", "b-reverb"])
    ('a', 'a-noise', 'a-reverb')
    >>> suggests_copies(["ann-utt1", "ann-utt2", "bob-utt1", "bob-utt2"])
    """
    stems: dict[str, list[str]] = {}
    marked: dict[str, set[str]] = {}
    marks: set[str] = set()
    for name in map(str, ids):
        stem, mark = _split(name)
        stems.setdefault(stem, []).append(name)
        if mark:
            marked.setdefault(stem, set()).add(mark)
            marks.add(mark)
            # Copies are of few kinds; chapters or utterances that are numbered after such a word are many.
            if len(marks) > 24:
                return None
    several = [stem for stem in marked if len(stems[stem]) > 1]
    if len(several) < 2 or 2 * len(several) < len(marked):
        return None
    numbered = re.compile(r"(?:ch|chan(?:nel)?|mic|array)\d+")  # microphones, or else chapters
    sets = Counter(frozenset(filter(numbered.fullmatch, marked[stem])) for stem in several)
    if any(sets) and 5 * sets.most_common(1)[0][1] < 4 * len(several):
        return None
    return tuple(stems[several[0]][:3])


def _split(name: str) -> tuple[str, str]:
    """The stem of a name, and the marks before and after it, which may be empty."""
    before = after = ""
    if match := _MARK_AFTER.fullmatch(name):
        name = match[1]
        after = match[2].lower()
    if match := _MARK_BEFORE.fullmatch(name):
        before = match[1].lower()
        name = match[2]
    return name, " ".join(filter(None, (before, after)))
