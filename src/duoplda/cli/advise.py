"""`duoplda advise`: what labels can teach a model, what training will choose for them, and what to do."""

import shlex
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from duoplda.cli._common import Json, Quiet, labels_or_speakers, result, result_json, say, usage
from duoplda.cli._voices import Ids
from duoplda.errors import DuopldaError

EXAMPLES = """duoplda advise --labels table.csv
duoplda advise --speakers utt2spk --sessions utt2sess --embeddings xvectors.scp
duoplda advise --labels x.parquet --json"""


def advise(
    labels: Annotated[Path | None, typer.Option(help="A table: id, speaker, session, channel; or EMBEDDINGS.")] = None,
    speakers: Annotated[Path | None, typer.Option(help="utt2spk or spk2utt.")] = None,
    sessions: Annotated[Path | None, typer.Option(help="utt2sess: the session of each recording.")] = None,
    channels: Annotated[Path | None, typer.Option(help="utt2channel: the kind of channel of each recording.")] = None,
    embeddings: Annotated[Path | None, typer.Option(help="For their dimensions; vectors are not read.")] = None,
    ids: Ids = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Say what labels can teach a model, what `duoplda train` will choose for them and why, and which options pay.

    docs/choosing.md has the same chart, with what was measured. The last line is a command to paste. Some limits depend
    on the number of dimensions: give --embeddings to hear of them.
    """
    labels_or_speakers(labels, speakers, sessions, channels)
    if embeddings is None and ids is not None:
        usage("--ids is about embeddings: give --embeddings")
    if embeddings is None and labels is not None and _has_vectors(labels):
        embeddings = labels

    from duoplda.estimators.advice import advise as look
    from duoplda.io import read_embeddings, read_labels, read_recordings
    from duoplda.io.recordings import LabelIndex

    if labels is not None and labels == embeddings:
        data = read_recordings(labels, ids=ids, own_labels=True, note=say)
        found = look(data, dimensions=data.source.dim)
    else:
        table = read_labels(speakers or labels, sessions, channels)  # type: ignore[arg-type]
        d = None if embeddings is None else read_embeddings(embeddings, ids).dim
        found = look(LabelIndex.of(table, say).labels, dimensions=d)
    given = {"--embeddings": embeddings or "EMBEDDINGS", "--ids": ids, "--labels": labels, "--speakers": speakers}
    commands = _commands(found, given | {"--sessions": sessions, "--channels": channels})
    if json:
        result_json({**found.as_dict(), "commands": commands})
    else:
        result("\n".join([str(found), "", *commands]))


def _has_vectors(path: Path) -> bool:
    """Whether a table, or a folder or pattern, is embeddings that bring their own labels."""
    from duoplda.io import read_embeddings

    if path.suffix.lower() in (".parquet", ".pq") or path.is_dir() or "*" in path.name:
        with suppress(DuopldaError):
            return read_embeddings(path).dim > 0
    return False


def _commands(found: Any, given: dict[str, Any]) -> list[str]:
    """What to paste; none where training would refuse."""
    files = [str(word) for option, value in given.items() if value is not None for word in (option, value)]
    adapt = ["duoplda", "adapt", "--model", "MODEL", *files, "--out", "adapted.safetensors"]
    train = ["duoplda", "train", *files, "--out", "model.safetensors"]
    other = any(leaf.letter == "A" for leaf in found.leaves)
    return [shlex.join(words) for words in (*([adapt] if other else []), *([train] if found.model else []))]
