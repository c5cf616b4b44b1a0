"""`duoplda cluster`: put unlabelled recordings into clusters, one for each speaker."""

from duoplda.cli._commands import Run
from duoplda.cli._words import present_clusters

EXAMPLES = """\
duoplda cluster --model model.safetensors --embeddings x.scp --sessions utt2sess --out utt2spk.tsv
duoplda cluster --model model.safetensors --embeddings x.scp --sessions utt2sess --out utt2spk.tsv --report page.html
duoplda cluster --model model.safetensors --embeddings x.scp --speakers-known voices.safetensors --out utt2spk.tsv"""


def cluster(run: Run) -> None:
    """Put recordings into clusters, one for each speaker, however many there are.

    There is no threshold: sessions are merged as long as that makes the partition more probable. Expect a good number
    of speakers for recordings like the training data, and a wrong one for others. The recordings of a session are of
    one speaker and count as one: give --sessions if recordings are copies of one another. OUT has the columns
    recording, cluster, session, margin (by how many nats the session fits its cluster better than the second-best) and
    second (the second-best cluster; - if it is to be a speaker of its own). `duoplda evaluate --clusters OUT` reads it.
    With `--segments-are recordings`, all recordings are of one session, such as the segments of one file.
    """
    present_clusters(run("clustering"), run)
