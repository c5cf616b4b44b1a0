# Every target creates what it needs: a virtual environment in .venv with the package and its tools.
PYTHON  ?= python3
VENV    ?= .venv
BIN     := $(VENV)/bin
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
STAMP   := .python$(VERSION)
INSTALL := bin/python -m pip --disable-pip-version-check install --quiet
TORCH   ?= torch==2.13.0
BUILD   ?= build==1.6.1 twine==7.0.0
JOBS    ?= 2
# One thread in each process: the tests' problems are small (tests of threads set their own number). Bytecode is written
# even where the environment forbids it: without it, each process that a test starts would compile the package again.
pytest   = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(1)/bin/python -m pytest -n $(JOBS) --dist loadfile

.PHONY: demo serve-demo test lint mutants bench bench-peers browser test-lowest test-torch test-package docs test-docs clean

demo: $(VENV)/$(STAMP)-demo
	$(BIN)/duoplda demo --out demo --force

# Known voices over HTTP on built-in data, until Ctrl-C: open the address that it prints.
serve-demo: $(VENV)/$(STAMP)-serve
	$(BIN)/python tools/serve_demo.py demo-voices
	$(BIN)/duoplda serve --model demo-voices/model.safetensors --registry demo-voices/voices.db

test: $(VENV)/$(STAMP) browser
	$(call pytest,$(VENV))

# The report is tested in a real browser, where there is one or Debian's can be installed.
browser:
	@command -v chromedriver >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y chromium chromium-driver >/dev/null; } || \
	  echo "no Chromium here, and it could not be installed: the browser tests of the report will be skipped"

# The type stubs ask for a NumPy of their own: an environment for them.
lint: .venv-lint/$(STAMP)
	.venv-lint/bin/ruff check .
	.venv-lint/bin/ruff format --check .
	.venv-lint/bin/mypy

# The tests with the lowest version that pyproject.toml allows of each requirement. Beside the newest release of what they
# need in turn, old libraries warn of deprecations.
test-lowest: .venv-lowest/$(STAMP) browser
	$(call pytest,.venv-lowest) -W default::DeprecationWarning

# The files of tests that use torch: an environment of its own, as torch is large.
test-torch: .venv-torch/$(STAMP)
	$(call pytest,.venv-torch) $$(grep -lE 'import torch|skip\("torch"|def .*[(, ]library[,)]' tests/test_*.py)

# What users get: the wheel and the source distribution, where nothing else is installed, with the lowest versions and with
# the newest.
test-package: .venv-package/$(STAMP)
	rm -rf dist
	.venv-package/bin/python -m build --outdir dist .
	.venv-package/bin/python -m twine check --strict dist/*
	.venv-package/bin/python .ci/package.py dist

# The code is broken on purpose, one line at a time: do the tests notice?
mutants: $(VENV)/$(STAMP)
	$(BIN)/python tools/mutants.py

bench: $(VENV)/$(STAMP)
	$(BIN)/python -m benchmarks

# Beside other libraries, in an environment of their own.
bench-peers: .venv-peers/$(STAMP)
	.venv-peers/bin/python -m benchmarks.peers

# The site, in docs/_build/html. Warnings are errors; examples of the gallery that have not changed are not run again.
docs: .venv-docs/$(STAMP)
	OMP_NUM_THREADS=1 .venv-docs/bin/python -m sphinx -E -a -W --keep-going -q -j $(JOBS) -d docs/_build/doctrees docs docs/_build/html
	@echo "open docs/_build/html/index.html"

# The built site in a real browser: console, search, links, widths.
test-docs: $(VENV)/$(STAMP) browser
	@[ -e docs/_build/html/index.html ] || { echo "there is no site yet: run make docs first"; exit 1; }
	DUOPLDA_SITE=docs/_build/html $(BIN)/python -m pytest tests/test_site.py

# An environment of another Python is removed first.
define environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "duoplda needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ...")'
@[ -x $(@D)/bin/python$(VERSION) ] || [ ! -e $(@D)/pyvenv.cfg ] || rm -rf $(@D)
@$(PYTHON) -m venv $(@D)
endef

# What the demonstration needs, and no more; bytecode is made of what it imports alone. The tests install what they need
# beside it, in either order.
$(VENV)/$(STAMP)-demo: pyproject.toml
	$(environment)
	$(@D)/$(INSTALL) --no-compile --editable '.[cli]'
	touch $@

$(VENV)/$(STAMP)-serve: pyproject.toml
	$(environment)
	$(@D)/$(INSTALL) --editable '.[serve]'
	touch $@

$(VENV)/$(STAMP): pyproject.toml
	$(environment)
	$(@D)/$(INSTALL) --editable '.[test,scorers]'
	touch $@

.venv-lint/$(STAMP): pyproject.toml
	$(environment)
	$(@D)/$(INSTALL) --editable '.[test,lint]'
	touch $@

.venv-lowest/$(STAMP): pyproject.toml .ci/lowest.py
	$(environment)
	$(@D)/bin/python .ci/lowest.py > $(@D)/lowest.txt
	$(@D)/$(INSTALL) --constraint $(@D)/lowest.txt --editable '.[test]'
	touch $@

.venv-torch/$(STAMP): pyproject.toml
	$(environment)
	$(@D)/$(INSTALL) '$(TORCH)'
	$(@D)/$(INSTALL) --editable '.[test]'
	touch $@

.venv-package/$(STAMP):
	$(environment)
	$(@D)/$(INSTALL) $(BUILD)
	touch $@

.venv-docs/$(STAMP): pyproject.toml
	$(environment)
	$(@D)/$(INSTALL) --editable '.[docs]'
	touch $@

# Peers without what they ask for (torch, audio libraries): their PLDA needs only the few named first.
.venv-peers/$(STAMP): pyproject.toml
	$(environment)
	$(@D)/$(INSTALL) --editable '.[files,plots]' pandas six jsonargparse statsmodels
	$(@D)/$(INSTALL) --no-deps speechbrain==1.1.2 hyperion-ml==0.3.2 pyannote.audio==4.0.4
	touch $@

clean:
	rm -rf docs/_build docs/gallery docs/api/generated docs/api/backreferences docs/sg_execution_times.rst
	rm -rf .venv .venv-* demo demo-voices dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
