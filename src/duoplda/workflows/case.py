"""A forensic case: from a case file to a page for the court, and all numbers as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from duoplda.case import assess_case, read_case
from duoplda.case.file import template
from duoplda.case.record import files_read
from duoplda.errors import DuopldaError
from duoplda.io import atomic_path, atomic_paths, check_output
from duoplda.report import write_case_report
from duoplda.workflows import option
from duoplda.workflows.option import refuse


def case(
    file: option.CaseFile,
    out: option.CaseOut = None,
    *,
    new: option.NewCase = False,
    force: option.Force = False,
) -> dict[str, Any]:
    """Assess a case, write `case.html` and `case.json` into the folder `out`, and return the content of the latter.

    With `new`, write a template of a case file instead, and return nothing.
    """
    refuse(new and out is not None, "`new` writes a template of a case file: leave out `out`")
    if new:
        with atomic_path(file, force=force) as temporary:
            temporary.write_text(template(), encoding="utf-8")
        return {}
    refuse(out is None, "give `out`, the folder for case.html and case.json, or `new` for a template")
    assert out is not None
    asked = read_case(file)
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise DuopldaError(f"{folder}: exists and is not a folder; give another name")
    page, data = folder / "case.html", folder / "case.json"
    if folder.is_dir():
        for path in (page, data):
            check_output(path, force, inputs=files_read(asked))
    record = assess_case(asked)
    numbers = record.as_dict()
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_paths(page, data, force=force) as (page, data):
        write_case_report(page, record, force=True)
        data.write_text(json.dumps(numbers, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    return numbers
