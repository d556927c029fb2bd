# Everything a contributor runs. `make` alone lists it.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint sim mutants chaos bench docs clean check-python check-java

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Options that are passed on: make sim SEED=7, make sim SEEDS=1000, make bench PEERS=1, make test ARGS="-k wire"
SEED ?=
SEEDS ?=
PEERS ?=
CHAOS_ROUNDS ?= 20
ARGS ?=

help: ## Lists what there is
	@if [ -t 1 ]; then bold='\033[1m'; plain='\033[0m'; fi; awk -F ':.*## ' -v bold="$$bold" -v plain="$$plain" \
		'/^[a-z-]+:.*## / { printf "  %smake %-7s%s %s\n", bold, $$1, plain, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) | check-java ## Runs a job that is killed on purpose and goes on without losing a record
	$(BIN)/penstock demo

test: lint $(STAMP) | check-java ## Runs lint, then all tests in four lanes (ARGS= for pytest)
	$(BIN)/python -m pytest -q -n 4 --dist loadgroup --no-loadscope-reorder $(ARGS)

lint: $(STAMP) ## Checks style, types and layers; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports --no-logo

sim: $(STAMP) ## Runs 100,000 simulated schedules with faults (SEEDS=n: so many); SEED=n replays one
	$(BIN)/python -m penstock.shells.sim $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

mutants: $(STAMP) ## Puts known bugs into the code, one at a time, and shows what catches each (ARGS=--help)
	$(BIN)/python -m tests.mutants $(ARGS)

chaos: $(STAMP) | check-java ## Kills real workers and drivers at random, longer than the tests do: CHAOS_ROUNDS=n
	CHAOS_ROUNDS=$(CHAOS_ROUNDS) $(BIN)/python -m pytest tests/chaos -m chaos -q --timeout 3600 $(ARGS)

bench: $(STAMP) | check-java ## Measures; PEERS=1 runs other systems beside it
	$(BIN)/python -m bench $(if $(PEERS),--peers $(PEERS)) $(ARGS)

docs: $(STAMP) ## Checks that every link in the documentation leads somewhere and every code block compiles
	$(BIN)/python tools/check_docs.py

clean: ## Removes what was built, the virtual environment included
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf spark-warehouse metastore_db derby.log .coverage
	find src tests bench -type d -name __pycache__ -prune -exec rm -rf {} +

# ---- what the targets stand on

# Made once, and again when the dependencies change.
$(STAMP): pyproject.toml | check-python
	@echo "Installing Penstock and what it needs into $(VENV): about a minute, once."
	@if command -v uv >/dev/null 2>&1; then \
		test -x $(BIN)/python || uv venv --python $(PYTHON) $(VENV); \
		uv pip install --quiet --python $(BIN)/python --editable . --group dev; \
	else \
		test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); \
		$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'; \
		$(BIN)/python -m pip install --quiet --editable . --group dev; \
	fi
	@touch $@

check-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Penstock needs Python 3.11 or newer, and '$(PYTHON)' is not." >&2; \
		echo "Name another one: make PYTHON=/path/to/python3.12 ..." >&2; \
		exit 2; }

check-java:
	@java=java; test -z "$$JAVA_HOME" || java="$$JAVA_HOME/bin/java"; \
	version=$$("$$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1); \
	test "$${version:-0}" -ge 17 || { \
		if test -n "$$version"; then echo "Spark needs Java 17 or newer; '$$java' is $$version." >&2; \
		else echo "Spark needs Java 17 or newer, and '$$java' does not run." >&2; fi; \
		echo "Install it:" >&2; \
		echo "  Debian, Ubuntu   sudo apt install openjdk-17-jre-headless   (Debian 13: openjdk-21-jre-headless)" >&2; \
		echo "  Fedora           sudo dnf install java-21-openjdk-headless" >&2; \
		echo "  macOS            brew install openjdk@17" >&2; \
		echo "  SDKMAN           sdk install java 17.0.15-tem" >&2; \
		echo "or let JAVA_HOME name one." >&2; \
		exit 2; }
