"""CITATION.cff says what pyproject.toml says."""

import tomllib
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML, which dask brings, is not here")
ROOT = Path(__file__).parents[1]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_what_the_schema_requires():
    assert {"cff-version", "message", "title", "authors"} <= set(CITATION)
    assert (CITATION["cff-version"], CITATION["type"]) == ("1.2.0", "software")
    for reference in CITATION["references"]:
        assert {"type", "title", "authors"} <= set(reference)


def test_it_agrees_with_the_project():
    assert [author["name"] for author in CITATION["authors"]] == [author["name"] for author in PROJECT["authors"]]
    assert str(CITATION["version"]) == PROJECT["version"]
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION["keywords"] == PROJECT["keywords"]
    assert CITATION["title"].lower().startswith(f"{PROJECT['name']}: plda with two sources")


def test_the_model_is_cited():
    (reference,) = CITATION["references"]
    assert reference["authors"][0]["family-names"] == "Villalba"
    assert reference["year"] == 2012
    assert reference["title"] in (ROOT / "README.md").read_text(encoding="utf-8")
