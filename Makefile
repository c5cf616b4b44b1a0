# Every target creates what it needs: a virtual environment in .venv with the package and its tools.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet
TORCH  ?= torch==2.13.0

.PHONY: demo test lint check bench test-torch clean

demo: $(VENV)/.installed
	$(BIN)/duoplda demo --out demo --force

test: lint
	$(BIN)/python -m pytest

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks

# The same tests with torch tensors as input: an environment of its own, as torch is large.
test-torch: .venv-torch/.installed
	.venv-torch/bin/python -m pytest tests/test_array.py

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "duoplda needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[test]'
	touch $@

.venv-torch/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip --disable-pip-version-check install --quiet $(TORCH)
	.venv-torch/bin/python -m pip --disable-pip-version-check install --quiet --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) .venv-torch demo dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
