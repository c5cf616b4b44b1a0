"""Audio in place of embeddings, for commands that take either."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from duoplda.estimators.backend import Backend
from duoplda.workflows._files import Note, PathLike, Show
from duoplda.workflows._quality import ranges_of, warn_of_quality
from duoplda.workflows.option import refuse

WINDOW = 1.5  # seconds of a window where speakers are told apart


def check_audio(
    audio: Sequence[PathLike] | None,
    extractor: PathLike | None,
    embeddings: PathLike | None,
    ids: str | None = None,
    *,
    needed: bool = True,
) -> None:
    """Refuse options that do not go together; `needed`: there must be embeddings, or audio."""
    cause = "`audio` and `extractor` go together: recordings, and the network that embeds them"
    refuse((audio is None) != (extractor is None), cause)
    both = audio is not None and embeddings is not None
    refuse(both, "`audio` is in place of `embeddings`: leave out either of the two")
    neither = audio is None and embeddings is None
    refuse(needed and neither, "give either `embeddings`, or `audio` and `extractor`")
    cause = "`ids` is for `embeddings`: recordings of `audio` are called as their files are"
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
    """Give the block embeddings as a file: those that there are, or else of each recording of the audio.

    A recording without speech has none, which is told. With `allow_missing`, files that cannot be read are told, too.
    Where a `model` is given that knows of what quality its training was, audio that is unlike it gives a warning.
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
    """Give the block embeddings and segments as files: those that there are, or else of windows of the audio."""
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
