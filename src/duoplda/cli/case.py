"""`duoplda case`: compute a likelihood ratio for a court from questioned and known recordings."""

from duoplda.cli._commands import Run
from duoplda.cli._terminal import result, result_json
from duoplda.cli._words import case_lines

EXAMPLES = """\
duoplda case case.toml --new
duoplda case case.toml --out case"""


def case(run: Run) -> None:
    """Compare questioned recordings with those of a known speaker, for a court.

    The case file says the two propositions in words, the recordings with their sessions and kinds of channels, the
    relevant population and why it is the relevant one, and the model. The ratio is calibrated and validated on
    comparisons of the population that are built like the case, and nothing is stated beyond what these support.

    case.html begins with one page of plain words: the sentence to read out, and the sentences that must not be said.
    case.json has every number. No ratio is given without a population that can validate it, or where recordings are
    unlike those of the training and the model was not adapted: the error says what to do.
    """
    numbers = run()
    if run.given["new"]:
        file = run.given["file"]
        run.note(f"{file}: fill in the texts between quotes, then: duoplda case {file} --out case")
    elif run.json:
        result_json(numbers)
    else:
        result("\n".join(case_lines(numbers)))
