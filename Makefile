# Every target that needs the environment creates it first; with nothing changed that costs nothing.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TYPED := src scripts $(wildcard benchmarks)
BASE ?=
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install demo test test-exact sanitize lint format docs bench clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml CMakeLists.txt scripts/install.sh $(wildcard src/jitney/kernels/native/csrc/*)
	PYTHON="$(PYTHON)" VENV="$(VENV)" scripts/install.sh
	@touch $@

install: $(STAMP)  ## Create the environment (.venv) and install everything

demo: $(STAMP)  ## Run real prompts through static and continuous batching, side by side
	$(BIN)/jitney demo $(ARGS)

test: $(STAMP)  ## Run the test suite
	$(BIN)/python -m pytest $(ARGS)

test-exact: $(STAMP)  ## Compare every output with transformers' generate (long)
	$(BIN)/python -m pytest tests/exact -m exact --timeout 0 -s -v $(ARGS)

sanitize: $(STAMP)  ## Run the native code's tests under sanitizers
	PYTHON=$(BIN)/python scripts/sanitize.sh

lint: $(STAMP)  ## Check style, types, layers and file sizes (BASE=main compares sizes with a git ref)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(TYPED)
	$(BIN)/lint-imports
	$(BIN)/python scripts/generate_docs.py --check
	$(BIN)/python scripts/size_report.py $(if $(BASE),--base $(BASE))

format: $(STAMP)  ## Format the code and apply safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)  ## Write the docs that are derived from the code
	$(BIN)/python scripts/generate_docs.py

bench: $(STAMP)  ## Measure host cost, overlap and the five ways to batch (about 7 minutes)
	$(BIN)/python benchmarks/host_overhead.py --json out/bench/host_overhead.json
	$(BIN)/python benchmarks/async_hides_host.py --json out/bench/async_hides_host.json
	$(BIN)/python benchmarks/policies.py --json out/bench/policies.json

clean:  ## Remove the environment, caches and build results
	rm -rf $(VENV) build dist out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
