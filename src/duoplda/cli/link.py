"""`duoplda link`: find the same people among the speakers of several files."""

from duoplda.cli._commands import Run
from duoplda.cli._words import present_clusters

EXAMPLES = """\
duoplda link --model m.safetensors --embeddings x.scp --segments segments --rttm a.rttm --rttm b.rttm --out all.rttm
duoplda link --model m.safetensors --embeddings x.scp --local utt2spk --out utt2spk.tsv"""


def link(run: Run) -> None:
    """Find the same people among the speakers of several files, and give each of them one name.

    The local speakers of the files come from RTTM (--rttm) or from a list (--local). With RTTM, a segment belongs to
    the speaker whose turns overlap it for the longest time. In a list, names hold within a file if --segments says
    which file that is. All segments of a local speaker are enrolled together: if two people share a local speaker,
    linking does not separate them. Each segment is a session. With `--segments-are recordings` all segments of a local
    speaker are recordings of one session, which is right if files were sessions in training. --sessions has priority
    over both.
    """
    present_clusters(run("linking"), run)
