"""What names of recordings suggest: which recordings are copies of one another, and which sessions they are of.

Tools that augment data, and arrays of microphones, mark copies by a word before or after the name of the original:
`utt1-noise`, `utt1-reverb`, `utt1_ch2`, `sp0.9-utt1`, `rev1_utt1`. The name without the mark is called the stem.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

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
# VoxCeleb's id/video/utterance, also with dashes; names of videos have eleven characters, dashes among them.
_VOXCELEB = re.compile(r"((?:.+/)?[^/]+/[\w-]{11})/\d{5}[^/]*|(id\d{5}-[\w-]{11})-\d{5}.*")


def suggests_copies(ids: Iterable[object]) -> tuple[str, ...] | None:
    """Return a few ids that seem to name copies of one recording; None where the ids suggest no copies.

    Ids suggest copies where marks are the rule and not the exception: at least two of the stems that occur with a mark
    occur more than once, and at least half of them do, and there are few different marks. Marks that number microphones
    or channels count only if four out of five of these stems have the same ones.

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
            # There are few kinds of copies. Many marks are chapters or utterances that are numbered after such a word.
            if len(marks) > 24:
                return None
    several = [stem for stem in marked if len(stems[stem]) > 1]
    if len(several) < 2 or 2 * len(several) < len(marked):
        return None
    numbered = re.compile(r"(?:ch|chan(?:nel)?|mic|array)\d+")  # marks of microphones, or of chapters of a book
    sets = Counter(frozenset(filter(numbered.fullmatch, marked[stem])) for stem in several)
    if any(sets) and 5 * sets.most_common(1)[0][1] < 4 * len(several):
        return None
    return tuple(stems[several[0]][:3])


def sessions_in_names(ids: Sequence[str], speaker: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return how the ids seem to name sessions, in words, and the session of each id; None where they name none.

    Ids name sessions where all of them have VoxCeleb's form, or have three parts of which the first is the speaker;
    there must then be more sessions than speakers, fewer than ids, and none of two speakers. If there are no such
    sessions and the ids suggest copies, a session is an original with its copies.

    Example
    -------
    >>> sessions_in_names(["ann/1/a", "ann/1/b", "ann/2/a"], ["ann", "ann", "ann"])
    ('speaker/session/utterance', ['ann/1', 'ann/1', 'ann/2'])
    >>> sessions_in_names(["a", "a-noise", "b", "b-noise"], ["ann", "ann", "bob", "bob"])
    ('copies', ['a', 'a', 'b', 'b'])
    """
    matches = [_VOXCELEB.fullmatch(name) for name in ids]
    forms = {"VoxCeleb's id/video/utterance": [match[1] or match[2] for match in matches if match]}
    for mark in "/-_":
        prefixes = [f"{who}{mark}" for who in speaker]
        parts = zip(ids, prefixes, strict=True)
        inside = [name for name, prefix in parts if name.startswith(prefix) and mark in name[len(prefix) :]]
        stems = [name if mark == "/" else _split(name)[0] for name in inside]
        cut = [stem.rpartition(mark)[0] for stem in stems if mark == "/" or stem.count(mark) == 2]
        forms[f"speaker{mark}session{mark}utterance"] = cut
    for form, sessions in forms.items():
        owners = {*zip(sessions, speaker, strict=False)}
        if len(sessions) == len(ids) and len({*speaker}) < len({*sessions}) == len(owners) < len(ids):
            return form, sessions
    return ("copies", [_split(name)[0] for name in ids]) if suggests_copies(ids) else None


def _split(name: str) -> tuple[str, str]:
    """Return the stem of a name, and the marks before and after it as one text, which may be empty."""
    before = after = ""
    if match := _MARK_AFTER.fullmatch(name):
        name = match[1]
        after = match[2].lower()
    if match := _MARK_BEFORE.fullmatch(name):
        before = match[1].lower()
        name = match[2]
    return name, " ".join(filter(None, (before, after)))
