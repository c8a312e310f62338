# Every target sets up what it needs: a virtual environment with pinned packages, once.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test test-slow lint types format clean
help:
	@echo "make demo       dense training, three prunings, attacks, a table and a page, offline, in some minutes"
	@echo "make test       all tests but the slow ones"
	@echo "make test-slow  the slow ones: workers killed 20 times, a Ray cluster that loses a node, every objective on the digits, PACS"
	@echo "                and property tests on many new examples"
	@echo "make lint types format clean"

# The stamp is newer than what it was made from, so a second call installs nothing.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dap needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/python examples/demo.py

# A worker for every core, each with one thread: tests are many and small. The threads of processes that tests start
# sleep while they wait: cores are busy with other tests, and spinning makes a step ten times as slow.
test: $(READY)
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n auto --dist loadfile

# Tests with @given, which are not slow by themselves, try many new examples in each run.
test-slow: $(READY)
	$(BIN)/python -m pytest -m "slow or hypothesis" --hypothesis-profile explore

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/pyright

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build src/*.egg-info .pytest_cache .ruff_cache .hypothesis
