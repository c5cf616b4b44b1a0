"""`duoplda case`: a likelihood ratio for a court, from questioned and known recordings."""

from pathlib import Path
from typing import Annotated

import typer

from duoplda.cli import _options as options
from duoplda.cli._options import option
from duoplda.cli._terminal import Terminal, result, result_json, work_options
from duoplda.cli._words import case_lines

EXAMPLES = """\
duoplda case case.toml --new
duoplda case case.toml --out case"""


def case(
    file: Annotated[Path, typer.Argument(metavar="CASE", help="The case file, such as case.toml.")],
    out: Annotated[
        Path | None, option("The folder for case.html and case.json; it is made where it is missing.")
    ] = None,
    new: Annotated[bool, option("Write a template of a case file, to be filled in, and end.", "--new")] = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Compare questioned recordings with those of a known speaker, for a court.

    The case file says the two propositions in words, the recordings with their sessions and kinds of channels, the
    relevant population and why it is that, and the model. The ratio is calibrated and validated on comparisons of the
    population that are built like the case, and nothing is stated beyond what these support.

    case.html begins with one page of plain words: the sentence to read out, and the sentences that must not be said.
    case.json has every number. No ratio is given without a population that can validate it, or where recordings are
    unlike those of the training and the model was not adapted: the error says what to do.
    """
    typed = work_options(locals())
    from duoplda.workflows import case as workflow

    numbers = workflow.case(**typed)
    if new:
        Terminal(quiet).note(f"{file}: fill in what stands between quotes, then: duoplda case {file} --out case")
    elif json:
        result_json(numbers)
    else:
        result("\n".join(case_lines(numbers)))
