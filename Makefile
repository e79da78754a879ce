# Everything that is needed is set up by these targets: a venv of their own, and on Debian or
# Ubuntu, when root, the packages of tests/packages.txt.

VENV := .venv
BIN := $(VENV)/bin
# What the nodes of the tests train with; some 300 MB, or 3 GB where only the CUDA build is offered.
TORCH := .venv-torch
# Most tests wait more than they compute, so a machine of two cores bears four at a time.
WORKERS ?= 4
PYTEST_ARGS ?=

.PHONY: demo test check picture packages clean
# Packages go before what needs them, whatever -j says.
.NOTPARALLEL:

demo: $(VENV)/installed
	@$(BIN)/preflight demo

test: packages $(VENV)/ready $(TORCH)/ready
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

check: packages $(VENV)/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/vermin -q -t=3.8- --no-tips --violations --eval-annotations-off preflight/__init__.py preflight/api.py preflight/node checks

picture: $(VENV)/ready
	$(BIN)/python docs/picture.py docs/demo.svg

packages:
	@sh tests/packages.sh

$(VENV)/installed: pyproject.toml
	@python=$$(sh tests/python.sh) && echo "venv from $$python" && $$python -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/ready: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

$(TORCH)/ready:
	@python=$$(sh tests/python.sh) && $$python -m venv $(TORCH)
	$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@touch $@

clean:
	rm -rf $(VENV) $(TORCH) .mypy_cache .ruff_cache .pytest_cache .hypothesis
