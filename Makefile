# Every target creates what it needs: a virtual environment in .venv with the package and its tools.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet
TORCH  ?= torch==2.13.0

.PHONY: demo test lint bench bench-peers browser test-torch clean

demo: $(VENV)/.installed
	$(BIN)/duoplda demo --out demo --force

# One thread: the tests' problems are small (tests of the threads set their own number).
test: lint browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

# The report is tested in a real browser, where there is one or Debian's can be installed.
browser:
	@command -v chromedriver >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y chromium chromium-driver >/dev/null; } || \
	  echo "no Chromium here, and it could not be installed: the browser tests of the report will be skipped"

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks

# Beside other libraries, in an environment of their own.
bench-peers: .venv-peers/.installed
	.venv-peers/bin/python -m benchmarks.peers

# The same tests with torch tensors as input: an environment of its own, as torch is large.
test-torch: .venv-torch/.installed
	.venv-torch/bin/python -m pytest tests/test_array.py tests/test_torch.py tests/test_llr_blocks.py

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

# Peers without what they ask for (torch, audio libraries): their PLDA needs only the few named first.
.venv-peers/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip --disable-pip-version-check install --quiet --editable '.[files,plots]' pandas six jsonargparse
	.venv-peers/bin/python -m pip --disable-pip-version-check install --quiet --no-deps speechbrain==1.1.2 hyperion-ml==0.3.2
	touch $@

clean:
	rm -rf $(VENV) .venv-torch .venv-peers demo dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
