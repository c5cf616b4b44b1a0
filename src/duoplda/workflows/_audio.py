"""Audio instead of embeddings, for commands that take either."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from duoplda.estimators.backend import Backend
from duoplda.workflows._files import Note, PathLike, Show
from duoplda.workflows._quality import ranges_of, warn_of_quality
from duoplda.workflows.option import refuse

WINDOW = 1.5  # the length in seconds of a window of `duoplda diarize --audio`


def check_audio(
    audio: Sequence[PathLike] | None,
    extractor: PathLike | None,
    embeddings: PathLike | None,
    ids: str | None = None,
    *,
    needed: bool = True,
) -> None:
    """Refuse options that do not go together; if `needed`, also refuse neither embeddings nor audio."""
    cause = "`audio` and `extractor` go together: recordings, and the network that embeds them"
    refuse((audio is None) != (extractor is None), cause)
    both = audio is not None and embeddings is not None
    refuse(both, "`audio` replaces `embeddings`: give only one of the two")
    neither = audio is None and embeddings is None
    refuse(needed and neither, "give either `embeddings`, or `audio` and `extractor`")
    cause = "`ids` is for `embeddings`: recordings of `audio` have the names of their files"
    refuse(audio is not None and ids is not None, cause)


@contextmanager
def embedded_recordings(
    audio: Sequence[PathLike] | None,
    extractor: PathLike | None,
    embeddings: PathLike | None,
    model: PathLike | None,
    allow_missing: bool,
    note: Note,
    show: Show,
) -> Iterator[PathLike]:
    """Give the block a file of embeddings: the one that was given, or else one with those of the audio.

    Recordings without speech have no embedding; a note names them. With `allow_missing`, so does one for files that
    cannot be read, which are otherwise an error. If the `model` was trained with a table of quality, there is a warning
    where the audio is unlike that.
    """
    if embeddings is not None:
        yield embeddings
        return
    from duoplda.workflows.embed import embed_for

    assert audio is not None
    assert extractor is not None
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "audio.npz")
        ranges = {} if model is None else ranges_of(Backend.load(model))
        measured = embed_for(
            extractor, audio, out, quality=bool(ranges), allow_missing=allow_missing, note=note, show=show
        )
        warn_of_quality(ranges, measured)
        yield out


@contextmanager
def embedded_windows(
    audio: Sequence[PathLike] | None,
    extractor: PathLike | None,
    embeddings: PathLike | None,
    segments: PathLike | None,
    note: Note,
    show: Show,
) -> Iterator[tuple[PathLike, PathLike | None]]:
    """Give the block files of embeddings and of segments: those given, or else those of windows of the audio."""
    if embeddings is not None:
        yield embeddings, segments
        return
    from duoplda.workflows.embed import embed_for

    assert audio is not None
    assert extractor is not None
    with tempfile.TemporaryDirectory() as folder:
        windows = Path(folder, "windows.npz"), Path(folder, "segments")
        embed_for(extractor, audio, windows[0], segments_out=windows[1], windows=WINDOW, note=note, show=show)
        yield windows
