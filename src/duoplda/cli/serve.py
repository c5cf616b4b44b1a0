"""`duoplda serve`: known voices over HTTP, and a page for people."""

from typing import Annotated

from duoplda.cli import _options as options
from duoplda.cli._options import File, option
from duoplda.cli._terminal import result, work_options

EXAMPLES = """duoplda serve --model model.safetensors --registry voices.db
duoplda serve --model model.safetensors --registry voices.db --extractor campplus.onnx
duoplda serve --model model.safetensors --registry voices.db --host 0.0.0.0 --token-file tokens"""


def serve(
    model: options.Model,
    registry: options.Registry,
    extractor: Annotated[
        File, option("Take audio, too: the extractor of embeddings (ONNX) that the model was trained on.")
    ] = None,
    host: Annotated[str, option("The address to listen on; other machines can reach any but this machine's own.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, option("The port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    token_file: Annotated[
        File, option("Who may do what: lines `NAME read|write TOKEN`; needed where other machines can reach the host.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, option("A name under which a proxy asks for the service; repeat the option for more.")
    ] = None,
    audit_log: Annotated[
        File, option("Append who did what to which voice, and when; without it, that goes to standard error.")
    ] = None,
    max_body: Annotated[int, option("The most megabytes of a request.", min=1)] = 8,
    max_rows: Annotated[int, option("The most recordings of a request.", min=1)] = 2000,
    max_requests: Annotated[int, option("The most requests at a time; others are told to try again.", min=1)] = 32,
    timeout: Annotated[int, option("The most seconds for a request to come in, and to be answered.", min=1)] = 30,
    device: options.Device = "cpu",
) -> None:
    """Answer who is speaking, over HTTP and in a page for the browser.

    The address is printed once requests are taken. Logs go to standard error, a JSON object on each line. SIGTERM or
    Ctrl-C ends the service: it takes no more requests, and answers those that have come in.
    """
    typed = work_options(locals())
    from duoplda.workflows import serve as workflow

    workflow.serve(**typed, started=result)
