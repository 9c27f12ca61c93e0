# Two commands do everything: `make demo` and `make test`. Both install what they need into .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TORCH  := $(shell grep '^torch==' constraints.txt)
STAMP  := $(VENV)/.installed

.PHONY: demo test check lint bench setup clean

demo: setup
	$(BIN)/cottage demo --dir build/demo $(ARGS)

test: setup
	$(BIN)/python -m pytest -n 2 -m "not e2e" $(ARGS)
	$(BIN)/python -m pytest -m e2e $(ARGS)

check: lint
	$(BIN)/python -m pytest -q -n 2 -m "not e2e and not slow and not docker and not browser"

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

bench: setup
	@for program in benchmarks/*.py; do echo "== $$program"; $(BIN)/python "$$program" || exit 1; done

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Cottage needs Python 3.11 or newer; $(PYTHON) is older. Name another: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "Could not make a virtual environment. On Debian and Ubuntu: sudo apt install python3-venv"; exit 1; }
	@echo "Installing Python packages into $(VENV) (a few minutes the first time) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check "$(TORCH)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[coordinator,agent,desktop,trainer,dev]'
	@touch $(STAMP)

clean:
	rm -rf build dist *.egg-info
