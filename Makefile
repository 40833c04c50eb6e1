# Every target makes .venv by itself. On a machine whose python3 is too old: make test PYTHON=python3.12
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
WHEEL_VENV := build/wheel-venv
# What can run without extras: those of the optional parts lie in folders or import torch on top,
# and others are about this checkout. (A core test that tries torch as well skips that part.)
CHECKOUT_TESTS = tests/test_house.py tests/test_docs.py $(wildcard tests/test_experiments*.py)
CORE_TESTS = $(filter-out $(CHECKOUT_TESTS),$(shell grep -LE '^(import|from) torch' tests/test_*.py))

.DEFAULT_GOAL := help
.PHONY: help demo test bench docs dist clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## the main job end to end: build/demo/report.html, a page with pictures
	$(PY) -m groupsparse.cli.demo

test: $(STAMP) ## lint, strict types, every test and every doctest
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -m pytest -n 2 --dist loadfile

bench: $(STAMP) ## time everything side by side and rewrite benchmarks/RESULTS.md
	$(PY) -m benchmarks

docs: $(STAMP) ## build the documentation into build/docs, every example executed
	rm -rf docs/api/generated # a name that is gone must not leave its page behind
	$(PY) -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "open build/docs/index.html"

dist: $(STAMP) ## build wheel and sdist, and test the wheel in an environment without extras
	rm -rf dist $(WHEEL_VENV)
	$(PY) -m build
	$(PYTHON) -m venv $(WHEEL_VENV)
	$(WHEEL_VENV)/bin/python -m pip install --quiet dist/*.whl pytest hypothesis mpmath
	@# Without its extra a part says which one it needs.
	$(WHEEL_VENV)/bin/groupsparse --version 2>&1 | grep -F 'groupsparse[cli]'
	$(WHEEL_VENV)/bin/python -c 'import groupsparse.prune' 2>&1 | grep -F 'groupsparse[torch]'
	$(WHEEL_VENV)/bin/python -c 'import groupsparse.nmf' 2>&1 | grep -F 'groupsparse[sklearn]'
	$(WHEEL_VENV)/bin/python -m pytest -q --override-ini=addopts= $(CORE_TESTS)

clean: ## remove everything that the targets write, .venv too
	rm -rf $(VENV) build dist docs/api/generated docs/auto_examples docs/sg_execution_times.rst
	find . -name __pycache__ -prune -exec rm -rf {} +
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The stamp is newer than both files only when their contents are installed. An environment that is
# already there is brought up to date, not made anew.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "groupsparse needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
	       "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@echo "installing into $(VENV); this takes a few minutes and says nothing meanwhile"
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
