"""Statistics of chunks of rows, for tests of what comes in pieces."""

from duoplda import Recordings, Statistics


def accumulate(chunks, labels, **options):
    """`labels` are (speaker, session) or (speaker, session, channel), in the order of the rows."""
    return Statistics.of(Recordings.from_chunks(lambda: chunks, *labels), **options)
