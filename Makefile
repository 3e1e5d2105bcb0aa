# Tidings. `make help` lists what there is; every target sets up what it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PORT   ?= 9000
READY  := $(VENV)/.ready
BENCH_READY := $(VENV)/.ready-bench
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo run test pytest chaos cluster bench lock sbom check clean

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Tidings needs Python 3.11 or newer: install it, or name one with make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "setting up $(VENV) (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) -e '.[dev]'
	@touch $@

$(BENCH_READY): $(READY)
	@$(INSTALL) -e '.[dev,bench]'
	@touch $@

demo: $(READY) ## the whole path once, from S3 calls through Spark to Pub/Sub and three registries
	@$(BIN)/tidings demo

run: $(READY) ## the same stack in the foreground, its data in ./data; Ctrl-C stops it
	@$(BIN)/tidings up --data data --port $(PORT)

test: $(READY) ## all checks and tests, side by side
	@$(MAKE) --no-print-directory -j2 check pytest

pytest: $(READY)
	@$(BIN)/pytest -m "not chaos" -n 3 --dist loadgroup --no-loadscope-reorder

chaos: $(READY) ## the long forms of the fault tests
	@$(BIN)/pytest -m chaos -s

cluster: $(READY) ## the pipeline's tests, on a Spark standalone cluster of two workers
	@TIDINGS_TEST_MASTER=cluster $(BIN)/pytest -m "not chaos"

bench: $(BENCH_READY) ## measure, print a table, write bench/latest.json
	@$(BIN)/python -m bench

lock: $(READY) ## requirements.lock anew: every distribution of production with its hashes, from constraints.txt
	@$(BIN)/python -m tools.lock

sbom: $(READY) ## dist/sbom.json (CycloneDX) and dist/licences.txt, of what requirements.lock names
	@$(BIN)/python -m tools.sbom dist

check: $(READY) ## ruff, mypy, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

clean: ## remove the virtual environment and all caches; ./data stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
