# Set-up, results and checks. `make stats` and `make test` work on a fresh machine.
# Options: PYTHON=python3.12 makes .venv with another Python; PYTEST_ARGS="-k meps" goes to pytest.

PYTHON ?= python3
PYTEST_ARGS ?=
PATIENCE := --multigpu-timeout 300  # seconds: hundreds of examples, on machines that are busy
VENV := .venv
BIN := $(VENV)/bin
# Stamps say which extras are installed; a newer pyproject.toml or constraints.txt installs again.
CORE := $(VENV)/.installed-core
DEV := $(VENV)/.installed-dev
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help stats test lint types imports check example clean

help:  ## List the targets.
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

stats: $(CORE)  ## Statistics of the example data set, into stats/meps_example.
	$(BIN)/neural-prep stats --config configs/meps.yaml

test: $(DEV)  ## Every test; those of sharded layers on 1, 2, 3 and 4 ranks.
	$(BIN)/pytest --multigpu-all --nproc-per-node 2 $(PATIENCE) $(PYTEST_ARGS)
ifeq ($(PYTEST_ARGS),)
	for ranks in 1 3 4; do \
	  $(BIN)/pytest tests/sharding --multigpu-static --nproc-per-node $$ranks $(PATIENCE) || exit; \
	done
endif

lint: $(DEV)  ## Style and format of the code.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/shellcheck --exclude=SC1091 slurm/*.sbatch .ci/run

types: $(DEV)  ## Static types.
	$(BIN)/mypy

imports: $(DEV)  ## Who may import whom.
	$(BIN)/lint-imports

check: test lint types imports  ## All of the checks above.

example: $(CORE)  ## Write the example data set again.
	$(BIN)/python tests/data/make_meps_example.py

clean:  ## Remove .venv, caches, build outputs and the example's statistics.
	rm -rf $(VENV) build dist *.egg-info stats/meps_example
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage*
	find neural_prep tests -name __pycache__ -type d -prune -exec rm -rf {} +

# pip is the last thing that venv installs: an interrupted attempt is made anew.
$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null || \
	  { echo "$(PYTHON) is not installed; neural-prep needs Python 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("$(PYTHON) is Python %d.%d; neural-prep needs 3.11 or newer: make PYTHON=python3.11" % sys.version_info[:2])'
	@echo "Making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv --clear $(VENV)

$(CORE): $(BIN)/pip pyproject.toml constraints.txt
	@echo "Installing neural-prep into $(VENV) (the first time takes a few minutes)"
	@$(INSTALL) -e .
	@touch $@

$(DEV): $(BIN)/pip pyproject.toml constraints.txt
	@echo "Installing neural-prep and its test tools into $(VENV) (the first time takes a few minutes)"
	@$(INSTALL) -e '.[dev]'
	@touch $(CORE) $@
