# Two commands do everything on a fresh machine that has Python 3.11 and make: `make demo` and `make test`.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 3000
export DAGSTER_HOME := $(CURDIR)/dagster_home

.PHONY: help demo test lint ui bench clean

help:
	@echo "make demo   ingest, check and pack the sample dataset with Dagster, then load batches from it"
	@echo "make test   linters, types and the whole test suite"
	@echo "make ui     the Dagster UI on http://127.0.0.1:3000 (stop with Ctrl-C)"
	@echo "            another port: make ui PORT=3055"
	@echo "make bench  the benchmarks: speed as ratios against this machine's limits"
	@echo "make lint   linters and types alone"
	@echo "make clean  remove the virtual environment and the sample's data; your own datasets stay"

demo: $(VENV)/.pipeline
	@$(BIN)/python -m knonik_assets.orchestration.demo

test: $(VENV)/.dev lint
	@$(BIN)/python -m pytest -n 2 -q

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/codespell knonik_loader knonik_assets compat benchmarks docs/*.md README.md CHANGELOG.md

ui: $(VENV)/.pipeline
	@$(BIN)/dagster dev --host 127.0.0.1 --port $(PORT)

bench: $(VENV)/.dev
	@$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) dagster_home/lake/aloha_sim

# The stamp files say what is installed; the development set contains the pipeline's.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Knonik needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@echo "making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.pipeline: pyproject.toml | $(VENV)/bin/python
	@test -e $(VENV)/.dev -a $(VENV)/.dev -nt pyproject.toml || \
		{ echo "installing Knonik with the pipeline (a minute or two)" && $(BIN)/python -m pip install -q -e '.[pipeline]'; }
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	@echo "installing Knonik with everything that development needs (a few minutes)"
	@$(BIN)/python -m pip install -q -e '.[dev]'
	@$(BIN)/python -m pip install -q --upgrade --target $(VENV)/hydra 'hydra-core>=1.3' # aside: see the extra in pyproject
	@touch $@
