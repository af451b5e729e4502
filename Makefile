# Everything happens in .venv, a virtual environment inside this checkout. `make help` lists the targets.

PYTHON ?= python3
BIN := .venv/bin
PORT ?= 8000
PAGE := polynext/service/page/index.html

.PHONY: help train serve page test docs slow sanitize versions clean

help:
	@echo "make train    set up and train on the embedded digits"
	@echo "make serve    set up and answer encrypted digits over HTTP, with a page in the browser"
	@echo "make page     build that page, with Node 20 or newer"
	@echo "make test     set up, lint, type-check and run the tests"
	@echo "make docs     set up and build the documentation, build/docs/index.html"
	@echo "make slow     set up and run the slow tests"
	@echo "make sanitize run the native evaluator's tests under the address, undefined-behaviour and thread sanitizers"
	@echo "make versions renew requirements.txt: the newest versions that pass the tests"
	@echo "make clean    remove the environment and the built page"

train: .venv/installed .venv/native
	$(BIN)/polynext train

# Prints the address when it is ready. PORT=0 takes a free one. Only the page needs Node.
serve: .venv/installed .venv/native
	@if command -v npm > /dev/null; then $(MAKE) --no-print-directory page; \
	else echo "There is no npm, which builds the page: install Node 20 or newer for it. All else is served."; fi
	$(BIN)/polynext encrypted serve --port $(PORT)

page: $(PAGE)

$(PAGE): web/node_modules/installed $(shell git ls-files web)
	cd web && npm run --silent build

web/node_modules/installed: web/package.json web/.npmrc
	cd web && npm install --silent
	touch $@

test: .venv/installed .venv/native
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto --dist loadgroup
	@if $(BIN)/python -c "import polynext_native" 2> /dev/null; then $(BIN)/pytest -q native/tests; \
	else echo "The tests of the native evaluator were left out: it is not installed."; fi

# Warnings are errors, among them links that lead nowhere. A test builds it too.
docs: .venv/installed
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/docs
	@echo "build/docs/index.html"

slow: .venv/installed .venv/native
	$(BIN)/pytest -m slow -n auto --dist loadgroup

# Installs the newest of everything, tests it, and writes its names and versions down if it passes.
versions: .venv/python
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --upgrade --editable ".[dev]"
	touch .venv/installed
	$(MAKE) test
	echo "# Versions that are known to work together, by make versions." > requirements.txt
	$(BIN)/uv pip freeze --quiet --python $(BIN)/python --exclude-editable >> requirements.txt

clean:
	rm -rf .venv web/node_modules polynext/service/page

# The native evaluator is optional: where there is no C++ compiler, SEAL computes.
NATIVE := $(shell git ls-files native)

.venv/native: .venv/installed $(NATIVE)
	@if command -v c++ > /dev/null; then $(BIN)/uv pip install --quiet --python $(BIN)/python --reinstall ./native; \
	else echo "There is no C++ compiler: the native evaluator of ciphertexts is left out."; fi
	touch $@

sanitize: .venv/native
	native/sanitize address,undefined $(BIN)
	native/sanitize thread $(BIN)

# uv resolves and installs in a fraction of pip's time; it is itself installed into the environment only.
.venv/python:
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	touch $@

.venv/installed: .venv/python pyproject.toml requirements.txt
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraints requirements.txt --editable ".[dev]"
	touch $@
