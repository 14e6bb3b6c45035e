# demo   simulate the embedded study and say where its report lies
# test   run the tests
# check  lint, formatting, types, layers
# bench  time the engine and whole scenarios
# lock   write requirements/*.txt anew from pyproject.toml (needs uv; LOCK_FLAGS=--upgrade for newer versions)
# clean  remove everything that these targets made

PYTHON ?= python3
UV ?= uv
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

DEMO_OUTPUT := demo-output
DEMO := compare scenarios/ddn/bloom-176b.yaml --on gpu,dram,raid,nfs,ai400x2 --output-dir $(DEMO_OUTPUT)
PYTEST_ARGS ?= -n 2
# Twice quiet: errors only. Empty it to watch pip: make test PIP_FLAGS=
PIP_FLAGS ?= --quiet --quiet

.PHONY: help demo test check bench lock clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# //p' Makefile

demo: $(VENV)/.runtime
	$(BIN)/simoffload $(DEMO)
	@echo "The report and its data lie in $(DEMO_OUTPUT)/:"
	@find $(DEMO_OUTPUT) -type f | sort | sed 's/^/  /'

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(VENV)/.dev
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports --no-cache --no-logo

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/bench_engine.py
	$(BIN)/python benchmarks/bench_scenarios.py

# ---- environment: each stamp is written last, so that an interrupted run starts its step again ----

# An environment holds absolute paths: one that came along with a copied checkout is made anew.
ifneq ($(shell cat $(VENV)/.made 2>/dev/null),$(CURDIR))
.PHONY: $(VENV)/.made
endif

$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || \
	  { echo "error: $(PYTHON) not found; install Python 3.11 or newer (Debian: apt install python3 python3-venv)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is $$($(PYTHON) -V 2>&1); Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 …" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "error: $(PYTHON) cannot make environments; install its venv module (Debian: apt install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@printf '%s\n' '$(CURDIR)' > $@

$(VENV)/.runtime: $(VENV)/.made requirements/runtime.txt pyproject.toml
	@echo "installing the locked packages into $(VENV) …"
	$(PIP) install $(PIP_FLAGS) --require-hashes -r requirements/runtime.txt
	$(PIP) install $(PIP_FLAGS) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements/dev.txt
	@echo "installing the locked development tools into $(VENV) …"
	$(PIP) install $(PIP_FLAGS) --require-hashes -r requirements/dev.txt
	@touch $@

# ---- lock files: exact versions and hashes, one version for every Python where one exists ----

COMPILE := $(UV) pip compile pyproject.toml --quiet --universal --fork-strategy fewest --generate-hashes \
  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" $(LOCK_FLAGS)

lock:
	$(COMPILE) --group build -o requirements/runtime.txt
	$(COMPILE) --group dev --extra notebook -c requirements/runtime.txt -o requirements/dev.txt

clean:
	rm -rf $(VENV) $(DEMO_OUTPUT) build dist .hypothesis .import_linter_cache .mypy_cache \
	  .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
