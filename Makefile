# The names that everybody uses, CI too. Only Python 3.11 to 3.14 is needed; `make PYTHON=python3.12 setup` takes another one, on a clean checkout.
PYTHON ?= python3
PYTEST_ARGS ?=
# Tests wait more than they compute; each worker has a Synapse and a PostgreSQL of its own. WORKERS=0 runs one after the other.
WORKERS ?= 2
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation
LOUD := $(PYTHON) deploy/loud.py

.PHONY: help setup check test bench demo homeserver audit lock hooks clean

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile

setup: .venv/ready ## make .venv and Synapse's own environment from the pinned files
	@$(LOUD) "looking for Synapse's environment" $(BIN)/python -c "from hayate_matrix.demo.environment import find_python; find_python()"
	@$(BIN)/python -c 'import sys; print("Ready, with Python " + sys.version.split()[0] + ". For another one: make clean, then make PYTHON=python3.12 setup")'

.venv/ready: deploy/requirements-build.txt deploy/requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info[:2] <= (3, 14) else "Python 3.11 to 3.14 is needed; this one is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12 setup")'
	@$(LOUD) "making .venv" $(PYTHON) -m venv --clear .venv
	@$(LOUD) "installing what builds" $(PIP) --require-hashes -r deploy/requirements-build.txt
	@$(LOUD) "installing the pinned packages into .venv (about a minute)" $(PIP) --require-hashes -r deploy/requirements-dev.txt
	@$(LOUD) "installing the project into .venv" $(PIP) --no-deps --editable .
	@touch $@

check: .venv/ready ## ruff, mypy strict and the import contracts
	@$(LOUD) "reading with ruff" $(BIN)/ruff check .
	@$(LOUD) "comparing the format" $(BIN)/ruff format --check .
	@$(LOUD) "checking types with mypy" $(BIN)/mypy
	@$(LOUD) "checking the import contracts" $(BIN)/lint-imports

test: .venv/ready ## all tests, with a real Synapse and a real PostgreSQL; PYTEST_ARGS="tests/core -k name" for some
	@$(LOUD) "running the tests" $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

bench: .venv/ready ## measure beside the plainest bot on the same library, and print both figures; about six minutes, ends with 0
	@$(LOUD) "measuring" $(BIN)/python -m tests.bench

demo: .venv/ready ## a real homeserver on loopback, a conversation under hashtags; stays up until Ctrl-C, with ONCE=1 ends after it
	@$(BIN)/python -m hayate_matrix.demo $(if $(ONCE),--once)

homeserver: .venv/ready ## a real homeserver on loopback alone, with two accounts for docs/tutorial.md; until Ctrl-C
	@$(BIN)/python -m hayate_matrix.demo --homeserver

audit: ## ask the advisory database about the pinned packages (needs the network)
	@test -x .venv-audit/bin/pip-audit || $(PYTHON) -m venv --clear .venv-audit
	@$(LOUD) "installing the auditor into .venv-audit" \
	    .venv-audit/bin/python -m pip install --disable-pip-version-check --require-hashes --quiet -r deploy/requirements-audit.txt
	@$(LOUD) "asking about the pinned packages" \
	    .venv-audit/bin/pip-audit --strict --require-hashes --disable-pip -r deploy/requirements-run.txt

lock: ## write the pinned files anew from pyproject.toml (needs uv); UPGRADE=1 takes newer versions
	@sh deploy/lock.sh

hooks: ## run `make check` before each commit
	@printf '#!/bin/sh\nexec make check\n' > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit

clean: ## remove the environments and caches
	rm -rf .venv .venv-synapse .venv-audit .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build *.egg-info
