# Everything happens in .venv, a virtual environment inside this checkout. `make help` lists the targets.

PYTHON ?= python3
BIN := .venv/bin
PORT ?= 8000

.PHONY: help train serve test slow versions clean

help:
	@echo "make train    set up and train on the embedded digits"
	@echo "make serve    set up and answer encrypted digits over HTTP"
	@echo "make test     set up, lint, type-check and run the tests"
	@echo "make slow     set up and run the slow tests"
	@echo "make versions renew requirements.txt: the newest versions that pass the tests"
	@echo "make clean    remove the environment"

train: .venv/installed
	$(BIN)/polynext train

# Prints the address when it is ready. PORT=0 takes a free one.
serve: .venv/installed
	$(BIN)/polynext encrypted serve --port $(PORT)

test: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto

slow: .venv/installed
	$(BIN)/pytest -m slow

# Installs the newest of everything, tests it, and writes its names and versions down if it passes.
versions: .venv/python
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --upgrade --editable ".[dev]"
	touch .venv/installed
	$(MAKE) test
	echo "# Versions that are known to work together, by make versions." > requirements.txt
	$(BIN)/uv pip freeze --quiet --python $(BIN)/python --exclude-editable >> requirements.txt

clean:
	rm -rf .venv

# uv resolves and installs in a fraction of pip's time; it is itself installed into the environment only.
.venv/python:
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	touch $@

.venv/installed: .venv/python pyproject.toml requirements.txt
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraints requirements.txt --editable ".[dev]"
	touch $@
