# Two commands do everything: `make demo` and `make test`. Both install what they need into .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TORCH  := $(shell grep '^torch==' constraints.txt)
# What `make check` runs: the pure parts, in seconds. `make test` runs everything.
FAST   := tests/protocol tests/cottage tests/coordinator/planner \
          $(addprefix tests/coordinator/jobs/test_,lifecycle.py rounds.py leases.py naming.py) tests/coordinator/audits/test_trust.py \
          $(addprefix tests/ledger/test_,money.py events.py) tests/trainer/stage/test_schedules.py tests/trainer/worker/test_boxes.py \
          tests/common/test_virtual_clock.py tests/transport/messages/test_message_frames.py tests/transport/ice/test_ice_rules.py \
          $(addprefix --ignore=tests/cottage/test_,ask.py completion.py odd_machines.py output_not_taken.py) \
          $(addprefix --ignore=tests/,coordinator/planner/test_plan_chains.py coordinator/planner/test_planner_search.py)
# Where end-to-end tests are, so that this run reads no others (tests/support/together.py refuses one that is elsewhere).
STORIES := $(addprefix tests/,e2e chaos installer desktop/windows)
STAMP  := $(VENV)/.installed

# Images of containers set it; thousands of processes would compile the same modules again, and each run every assertion.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-long check lint types types-win32 types-darwin bench fuzz bench-transport bench-training bench-utilisation chaos payouts soak desktop docs setup clean

demo: setup
	$(BIN)/cottage demo --dir build/demo $(ARGS)

test: setup
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not e2e and not long" $(ARGS)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "e2e and not long" $(STORIES) $(ARGS)

# What is long by nature: hundreds of worlds, the catalogue of cheats, kills for half an hour. docs/benchmarks/testing.md says what it covers.
test-long: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -m long $(ARGS)

check: lint
	$(BIN)/python -m pytest -q -n 2 -m "not e2e and not long and not slow and not docker and not browser" $(FAST)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory types
	@$(MAKE) --no-print-directory -j 2 -O types-win32 types-darwin

# The names of one system by two processes, then of the two others that the program runs on, side by side.
types:
	$(BIN)/mypy --num-workers 2

types-win32 types-darwin: types-%:
	$(BIN)/mypy --platform $* --cache-dir .mypy_cache/$* --no-warn-unreachable -p desktop.agent -p desktop.gui

# All but those that take long or need root, which have a word of their own below.
LONG := $(addprefix benchmarks/,links/home_links.py learning/training.py learning/adapters.py learning/finetune.py upkeep/chaos.py upkeep/cell_storm.py upkeep/fleet.py money/payouts.py links/utilisation.py upkeep/streams.py serving/answers.py serving/drafts.py serving/few_rows.py serving/fit_draft.py serving/stages.py serving/streams.py serving/takeovers.py trust/answers.py hostile/fuzz.py)

bench: setup
	@for program in $(filter-out $(LONG),$(wildcard benchmarks/*/[!_]*.py)); do \
	  module=$$(echo $${program%.py} | tr / .); echo "== $$module"; $(BIN)/python -m $$module || exit 1; done

# Rates, manners, cold starts and control latency between two emulated homes, beside four others; about half an hour, as root.
# ARGS=--all-peers: the others in every cell and relayed, an hour; --resume goes on with a run that was broken off.
bench-transport: setup
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python -m benchmarks.links.home_links $(ARGS)

# Coverage-guided bytes at every parser of strangers' bytes; a minute for each of 18. ARGS="--seconds 600 --only archive" for other times.
fuzz: setup
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python -m benchmarks.hostile.fuzz $(ARGS)

# Loss and bytes of the methods between replicas beside DDP, Flower and one worker alone. ARGS=--quick: minutes; all of it: hours.
bench-training: setup
	$(BIN)/python -m benchmarks.learning.training $(ARGS)

# How busy computing is over home lines, with real nodes in emulated homes; a quarter of an hour, as root.
bench-utilisation: setup
	$(BIN)/python -m benchmarks.links.utilisation $(ARGS)

# Two hundred kills over a run of 4 stages x 3 replicas, beside the same run in calm; half an hour on two cores. ARGS="--kills 20 ..." for less.
chaos: setup
	$(BIN)/python -m benchmarks.upkeep.chaos $(ARGS)

# 100,000 payouts through a ledger that forks and an endpoint that fails; some twenty minutes of one processor.
payouts: setup
	$(BIN)/python -m benchmarks.money.payouts $(ARGS)

# Ten minutes of everything at once over a bad line.
soak: setup
	COTTAGE_SOAK_S=600 $(BIN)/python -m benchmarks.links.soak

# The provider's program as a folder and as a Debian package, in build/desktop. ARGS=--run: also for one user, without root.
desktop: setup
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[installer]'
	$(BIN)/python -m installer.desktop.build $(ARGS)

# The documents as a site, in build/docs, the reference made from the code; ends at a link that leads nowhere. ARGS=serve shows it while you write.
docs: setup
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs $(or $(ARGS),build --strict)

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Cottage needs Python 3.11 or newer; $(PYTHON) is older. Name another: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "Could not make a virtual environment. On Debian and Ubuntu: sudo apt install python3-venv"; exit 1; }
	@echo "Installing Python packages into $(VENV) (a few minutes the first time) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check "$(TORCH)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[coordinator,postgres,hub,gguf,track,agent,desktop,trainer,dev]'
	@touch $(STAMP)

clean:
	rm -rf build dist *.egg-info
