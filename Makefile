# The project's commands; `make help` lists them. They need python3 (3.11 or newer to develop), pip and make.
# The work is described in noxfile.py; this file makes the environment that nox itself runs in.

PYTHON ?= python3
LANE ?=
ARGS ?=

TOOLS := .venvs/tools
NOX := $(TOOLS)/bin/nox
SESSIONS := $(if $(LANE),-s test-$(LANE),)

.DEFAULT_GOAL := help
.PHONY: help compare test lint docs aot-table tables prove clean clean-all

help:  ## list the commands
	@sed -n 's/^\([a-z%-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

compare: $(NOX)  ## train ResNet-50 on this machine and compare losses with XLA; records, results/compare.html
	$(NOX) -s compare

test: $(NOX)  ## lint, the tests of every backend, docs; LANE=cpu: the tests of one backend, ARGS="..." for pytest
	$(NOX) $(SESSIONS) $(if $(ARGS),-- $(ARGS))

test-%: $(NOX)  ## the tests of one backend: make test-cpu ARGS="tests/unit -k name"
	$(NOX) -s $@ $(if $(ARGS),-- $(ARGS))

lint: $(NOX)  ## ruff and mypy
	$(NOX) -s lint

docs: $(NOX)  ## build the documentation into build/docs
	$(NOX) -s docs

aot-table: $(NOX)  ## compile ResNet-50 for each TPU generation, with no TPU, into docs/aot
	$(NOX) -s aot_table $(if $(ARGS),-- $(ARGS))

tables: $(NOX)  ## measure and write the tables of the documentation anew, in docs/tables
	$(NOX) -s tables

prove: $(NOX)  ## the long proofs that make test leaves out
	$(NOX) -s prove $(if $(ARGS),-- $(ARGS))

clean:  ## remove what was built, and caches; the records under results/ stay
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venvs/*' -prune -exec rm -rf {} +

clean-all: clean  ## and the environments
	rm -rf .venvs

# nox and pip come from the pinned group `tools` of pyproject.toml.
$(NOX): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "developing accel needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet "$$(sed -n 's/^pip = \["\(.*\)"\]$$/\1/p' pyproject.toml)"
	$(TOOLS)/bin/python -m pip install --quiet --group tools
	touch $@
