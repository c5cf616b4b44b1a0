"""`duoplda serve`: answer who is speaking, over HTTP and on a page for the browser."""

from duoplda.cli._commands import Run
from duoplda.cli._terminal import result

EXAMPLES = """duoplda serve --model model.safetensors --registry voices.db
duoplda serve --model model.safetensors --registry voices.db --extractor campplus.onnx
duoplda serve --model model.safetensors --registry voices.db --host 0.0.0.0 --token-file tokens"""


def serve(run: Run) -> None:
    """Answer who is speaking, over HTTP and in a page for the browser.

    The address is printed once the service takes requests. Logs go to standard error, a JSON object on each line.
    SIGTERM or Ctrl-C ends the service: it takes no more requests, and answers those that have come in.
    """
    run(started=result)
