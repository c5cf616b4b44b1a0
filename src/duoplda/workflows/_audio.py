"""Audio in place of embeddings, for commands that take either."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from duoplda.errors import OptionsError
from duoplda.workflows._files import Note, PathLike, Show, silent
from duoplda.workflows._quality import ranges_of, warn_of_quality

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
    if (audio is None) != (extractor is None):
        raise OptionsError("`audio` and `extractor` go together: recordings, and the network that embeds them")
    if audio is not None and embeddings is not None:
        raise OptionsError("`audio` is in place of `embeddings`: leave out either of the two")
    if needed and audio is None and embeddings is None:
        raise OptionsError("give either `embeddings`, or `audio` and `extractor`")
    if audio is not None and ids is not None:
        raise OptionsError("`ids` is for `embeddings`: recordings of `audio` are called as their files are")


@contextmanager
def embedded_recordings(
    audio: Sequence[PathLike] | None,
    extractor: PathLike | None,
    embeddings: PathLike | None,
    *,
    model: PathLike | None = None,
    allow_missing: bool = False,
    note: Note = silent,
    show: Show = silent,
) -> Iterator[PathLike | None]:
    """Give the block embeddings as a file: those that there are, if any, or else of each recording of the audio.

    A recording without speech has none, which is told. With `allow_missing`, files that cannot be read are told, too.
    Where the `model` knows of what quality its training was, there is a warning of audio that is unlike it.
    """
    if audio is None or extractor is None:
        yield embeddings
        return
    from duoplda.workflows.embed import embed_for

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "audio.npz")
        ranges = {} if model is None else ranges_of(model)
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
