"""`duoplda link`: find the same people among speakers who are named file by file."""

from duoplda.cli._commands import Run
from duoplda.cli._words import present_clusters

EXAMPLES = """\
duoplda link --model m.safetensors --embeddings x.scp --segments segments --rttm a.rttm --rttm b.rttm --out all.rttm
duoplda link --model m.safetensors --embeddings x.scp --local utt2spk --out utt2spk.tsv"""


def link(run: Run) -> None:
    """Find the same people among the speakers of several files: local speakers who are one person get one name.

    Local speakers come from RTTM, where a segment belongs to the speaker whose turns overlap it for the longest time,
    or from a list (--local), whose names count within a file if --segments says which file that is. All segments of a
    local speaker are enrolled together, so an error of the diarisation stays. To the model, each segment is a session,
    or with `--segments-are recordings` they are recordings of one session, which is right if the model was trained with
    files as sessions. --sessions has priority over both.
    """
    present_clusters(run("linking"), run)
