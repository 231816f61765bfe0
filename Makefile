.DEFAULT_GOAL := help
.PHONY: help run test lint vectors bench clean

PYTHON ?= python3
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin

help: ## show what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/run.stamp ## serve the console on 127.0.0.1:$(PORT) (PORT=8000)
	@$(BIN)/python manage.py serve --port $(PORT)

test: $(VENV)/dev.stamp ## run all tests: SQLite, PostgreSQL, and a browser
	@$(BIN)/python -m tests.browser.chromium
	@echo "== Tests on SQLite"
	@CADENCE_TEST_ENGINE=sqlite $(BIN)/python -m pytest -q -n auto $(ARGS)
	@echo "== Tests on PostgreSQL"
	@CADENCE_TEST_ENGINE=postgresql $(BIN)/python -m pytest -q -n auto $(ARGS)

vectors: $(VENV)/dev.stamp ## check the rules against data of the real programs (CADENCE_VECTORS=<dir>)
	@CADENCE_TEST_ENGINE=sqlite $(BIN)/python -m pytest -q -m vectors -p no:randomly -rs $(ARGS)

lint: $(VENV)/dev.stamp ## check format, style, types and the borders between parts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python manage.py makemigrations --check --dry-run
	@$(BIN)/python -m pip_audit --progress-spinner off --local

bench: $(VENV)/run.stamp ## print a table of timings
	@$(BIN)/python -m benchmarks.run

clean: ## remove what was installed and made (var/ with the database stays)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo "Cadence Admin needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Name another with: make PYTHON=python3.12 ..."; exit 1; }
	@echo "== Making $(VENV) with $$($(PYTHON) -V)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/run.stamp: requirements.txt | $(VENV)/bin/python
	@echo "== Installing what the console needs"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/dev.stamp: requirements.txt requirements-dev.txt | $(VENV)/bin/python
	@echo "== Installing what the console and its tests need"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@ $(VENV)/run.stamp
