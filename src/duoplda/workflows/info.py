"""What is in a model file, and how far recordings are from its training data."""

from __future__ import annotations

from typing import Any

from duoplda.errors import DuopldaError, OptionsError
from duoplda.estimators import domain
from duoplda.estimators.backend import Backend
from duoplda.io import read_map, read_recordings
from duoplda.workflows._files import PathLike


def info(
    model: PathLike, *, embeddings: PathLike | None = None, ids: str | None = None, speakers: PathLike | None = None
) -> dict[str, Any]:
    """The summary of a model; with `embeddings`, under `domain`, their distance from its training data and its limit.

    Without `speakers`, the speaker of each recording, every recording counts as a speaker of its own.
    """
    if embeddings is None and (ids is not None or speakers is not None):
        raise OptionsError("`ids` and `speakers` are about recordings: give `embeddings`")
    chain = Backend.load(model)
    summary = chain.summary()
    if embeddings is None:
        return summary
    known = read_map(speakers, "speaker")
    seen, names = domain.look(chain, read_recordings(embeddings, ids=ids), None if known is None else [*known])
    if not seen.n:
        cause = f"is in {speakers}" if speakers else "can be summed up"
        raise DuopldaError(f"{embeddings}: no recording of it {cause}")
    n_speakers = seen.n if known is None else len({known[name] for name in names.tolist()})
    measured = domain.measure(chain, seen, n_speakers)
    return summary | {"domain": {**measured._asdict(), "within": measured.within}}
