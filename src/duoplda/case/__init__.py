"""A case: from the known and the questioned recordings to a likelihood ratio that is validated in their structure.

`assess` compares the two sides, draws pairs of the same structure from the relevant population, and states no ratio
beyond what these support. `read_case` reads a case file, `assess_case` assesses what it names, and `duoplda case` makes
a page of that (`duoplda.report.write_case_report`).
"""

from duoplda.case.assess import assess
from duoplda.case.example import write_example
from duoplda.case.file import CaseFile, read_case, template
from duoplda.case.record import CaseRecord, assess_case
from duoplda.case.result import (
    CaseRefused,
    CaseResult,
    Distance,
    DomainCheck,
    Estimate,
    Population,
    Ratio,
    Sensitivity,
    SessionShare,
    SideStructure,
    Support,
    Validation,
    in_log10,
)
from duoplda.case.words import Words, in_words

__all__ = [
    "CaseFile",
    "CaseRecord",
    "CaseRefused",
    "CaseResult",
    "Distance",
    "DomainCheck",
    "Estimate",
    "Population",
    "Ratio",
    "Sensitivity",
    "SessionShare",
    "SideStructure",
    "Support",
    "Validation",
    "Words",
    "assess",
    "assess_case",
    "in_log10",
    "in_words",
    "read_case",
    "template",
    "write_example",
]
