# Every target works on a fresh clone with only make and Python >= 3.11.
# Another Python: make test PYTHON=python3.12

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt
PYTEST_ARGS ?=
CASES ?= 20000
NEEDS := mist-sim needs Python >= 3.11
HINT := ; name another: make $(MAKECMDGOALS) PYTHON=python3.12

.DEFAULT_GOAL := help
.PHONY: help demo compile test test-slow pages test-deep fuzz kills exact lint bench docs package clean

help:
	@echo "make demo   install mist-sim and simulate the bundled workload"
	@echo "make compile  compile the engine's core anew, after a change of it; needs a C compiler"
	@echo "make test   install the developer's tools and run the tests"
	@echo "make test-slow  the tests that take more than a second and a half each"
	@echo "make pages  run the pages of the documentation, their long tables, and long examples"
	@echo "make exact  the exactness tests that catch most mistakes in an engine, in half a minute"
	@echo "make test-deep  more of what other tests show, and ten times as many random examples"
	@echo "make fuzz   20,000 damaged scenarios, traces, files and short runs, new ones every time"
	@echo "make kills  500 commands that are stopped at random moments: nothing is lost"
	@echo "make lint   ruff, mypy and import-linter"
	@echo "make bench  the speed budgets"
	@echo "make docs   build the documentation as a site into site/, and check its links"
	@echo "make package  build the sdist and the wheel, and try the wheel in a clean environment"
	@echo "make clean  remove the environment, caches and results"

compile: $(VENV)/.installed-dev
	$(BIN)/python build_core.py

demo: $(VENV)/.installed
	$(BIN)/mist demo

# Tests start many processes, each of which would compile mist-sim anew if bytecode were not kept.
test test-slow pages test-deep fuzz kills exact: export PYTHONDONTWRITEBYTECODE :=

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal $(PYTEST_ARGS)

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "slow and not deep and not page" -n auto --maxprocesses 8 --dist worksteal $(PYTEST_ARGS)

pages: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m page -n auto --maxprocesses 8 --dist worksteal $(PYTEST_ARGS)

# Draws at random anew every time; pytest prints the TEST_SEED that repeats it.
test-deep: export HYPOTHESIS_PROFILE := explore
test-deep: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m deep -n auto --maxprocesses 8 --dist worksteal $(PYTEST_ARGS)
	$(BIN)/python -m pytest tests/property -m "not page" -n auto --maxprocesses 8 --dist worksteal $(PYTEST_ARGS)

fuzz: $(VENV)/.installed-dev
	$(BIN)/python -m tests.damage --cases $(CASES)

kills: $(VENV)/.installed-dev
	$(BIN)/python -m tests.kills 500

exact: $(VENV)/.installed-dev
	HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest tests/property -m exact -x -q $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/typed
	$(BIN)/lint-imports --no-logo

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks

# The wheel, built from the sdist, in an environment that knows no checkout.
package: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m deep tests/packages/test_wheel.py $(PYTEST_ARGS)

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean --quiet
	$(BIN)/python tools/pages/check_site.py site

clean:
	rm -rf .venv build dist site out results mist-demo mist-demo-* .mypy_cache .ruff_cache .pytest_cache
	rm -rf .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps make a second call fast; new dependencies or versions make them stale.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP_INSTALL) -e ".[report]"
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP_INSTALL) -e ".[dev]" -e plugins/silicon
	@touch $(VENV)/.installed $@

$(VENV)/.installed-docs: pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP_INSTALL) -e ".[docs]"
	@touch $@

$(BIN)/pip:
	@command -v "$(PYTHON)" >/dev/null || { echo '$(NEEDS), but there is no $(PYTHON)$(HINT)'; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.version_info >= (3, 11) or sys.exit(\
		"$(NEEDS), but $(PYTHON) is %d.%d$(HINT)" % sys.version_info[:2])'
	"$(PYTHON)" -m venv $(VENV)
