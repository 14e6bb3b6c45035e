# demo   simulate the shipped study and print where its report is
# test   run the tests: test-fast, then test-deepspeed
# test-fast       tests without torch; PYTEST_ARGS="tests/test_layers.py -x" runs a part of them
# test-deepspeed  tests that run real DeepSpeed on the CPU, in a separate environment
# test-pythons    commands under every Python from 3.11 to 3.14 that is found, each with the runtime's packages
# check  lint, formatting, types, layers
# bench  time the engine, whole scenarios, sweeps, planning and start-up
# reference  write docs/schema and docs/reference, after a change of keys or options
# docs   build the documentation as a site in build/site; internal links are checked
# notebooks  run the notebooks and store their outputs
# docs-links  try the links of the documentation to other sites (needs the network)
# validation  predict all measured and published figures; write docs/VALIDATION.md and the shipped tables
# lock   write requirements/*.txt from pyproject.toml (needs uv; LOCK_FLAGS=--upgrade for newer versions)
# clean  remove everything that these targets made

PYTHON ?= python3
UV ?= uv
VENV := .venv
CALIBRATE_VENV := .venv-calibrate
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

DEMO_OUTPUT := demo-output
DEMO := compare scenarios/ddn/bloom-176b.yaml --on gpu,dram,raid,nfs,ai400x2 --output-dir $(DEMO_OUTPUT)
# A file is run by one process, which computes what its tests share; files with slow tests come first.
MAKING ?=
PYTEST_ARGS ?= -n 2 --dist loadfile --no-loadscope-reorder
# Twice quiet: errors only. Empty it to watch pip: make test PIP_FLAGS=
PIP_FLAGS ?= --quiet --quiet

.PHONY: help demo test say-deepspeed test-fast test-deepspeed test-pythons check bench reference docs notebooks docs-links validation lock clean
.DELETE_ON_ERROR:

help:
	@sed -n '/^$$/q; s/^# //p' Makefile

demo: $(VENV)/.runtime
	$(BIN)/simoffload $(DEMO)
	@echo "The report and its data are in $(DEMO_OUTPUT)/:"
	@find $(DEMO_OUTPUT) -type f | sort | sed 's/^/  /'

# A part of the tests was asked for: then it is that part and no more.
WHOLE := $(filter file,$(origin PYTEST_ARGS))
test: $(if $(WHOLE),say-deepspeed) test-fast $(if $(WHOLE),test-deepspeed)

# What is missing is known before minutes have passed with the other tests.
say-deepspeed:
	@why=$$($(PYTHON) tests/calibration/needs.py); \
	if [ -n "$$why" ]; then echo "make test: the DeepSpeed tests at the end will be skipped: $$why" >&2; fi

test-fast: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not deepspeed" $(PYTEST_ARGS)

# Where it cannot run it says so in one line; with REQUIRE_DEEPSPEED=1, as in CI, that is an error.
# A compilation that was interrupted leaves a lock behind, and every later one would wait for it.
# MAKING is the number of a process that makes the environment already.
test-deepspeed: SKIP = echo "make test-deepspeed: skipped, $$why" >&2; test -z "$(REQUIRE_DEEPSPEED)"
test-deepspeed:
	@while kill -0 $(MAKING) 2>/dev/null; do sleep 1; done
	@rm -f $(CALIBRATE_VENV)/extensions/*/lock
	@why=$$($(PYTHON) tests/calibration/needs.py); \
	if [ -n "$$why" ]; then \
	  $(SKIP); \
	elif ! $(MAKE) --silent --no-print-directory $(CALIBRATE_VENV)/.ready; then \
	  why="its environment $(CALIBRATE_VENV) could not be made"; $(SKIP); \
	else \
	  $(CALIBRATE) -m pytest -m deepspeed -n 2 --dist loadfile tests/calibration; \
	fi

# Each environment has what `make demo` installs and no more.
PYTHONS := .venv-pythons
.PHONY: $(PYTHONS)
$(PYTHONS): $(VENV)/.dev
	@for python in $$($(BIN)/python tests/pythons.py); do \
	  venv=$(PYTHONS)/$${python##*/python}; \
	  if ! cmp -s requirements/runtime.txt $$venv/.locked; then \
	    echo "installing the locked packages into $$venv …"; \
	    $$python -m venv --clear $$venv && $$venv/bin/python -m pip --disable-pip-version-check --no-input install \
	      $(PIP_FLAGS) --require-hashes -r requirements/runtime.txt && cp requirements/runtime.txt $$venv/.locked || exit 1; \
	  fi; \
	done

test-pythons: $(PYTHONS)
	$(BIN)/python -m pytest -n 2 tests/test_starts.py

check: $(VENV)/.dev
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports --no-cache --no-logo

reference: $(VENV)/.dev
	$(BIN)/python docs/generate.py

SPHINX := $(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -c docs .

docs: $(VENV)/.docs
	$(SPHINX) build/site
	@echo "The site is build/site/index.html"

notebooks: $(VENV)/.dev
	$(BIN)/python docs/notebooks.py

docs-links: $(VENV)/.docs
	$(SPHINX) build/links -b linkcheck

validation: $(VENV)/.dev
	$(BIN)/python -m validation

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/bench_engine.py
	$(BIN)/python benchmarks/bench_scenarios.py
	$(BIN)/python benchmarks/bench_sweep.py
	$(BIN)/python benchmarks/bench_planning.py
	$(BIN)/python benchmarks/bench_startup.py

# ---- environment: each stamp is written last, so that an interrupted run starts its step again ----

# An environment holds absolute paths: one that came along with a copied checkout is made anew.
COPIED := $(foreach venv,$(VENV) $(CALIBRATE_VENV),$(if $(filter-out $(CURDIR),$(shell cat $(venv)/.made 2>/dev/null)),$(venv)/.made))
.PHONY: $(COPIED)

$(VENV)/.made $(CALIBRATE_VENV)/.made:
	@command -v $(PYTHON) >/dev/null || \
	  { echo "error: $(PYTHON) not found; install Python 3.11 or newer (Debian: apt install python3 python3-venv)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is $$($(PYTHON) -V 2>&1); Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 …" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "error: $(PYTHON) cannot make environments; install its venv module (Debian: apt install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(@D)
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

$(VENV)/.docs: $(VENV)/.dev requirements/docs.txt
	@echo "installing Sphinx into $(VENV) …"
	$(PIP) install $(PIP_FLAGS) --require-hashes -r requirements/docs.txt
	@touch $@

# ---- the environment with DeepSpeed ----

# Python with the programs of this environment (ninja is one of them). DeepSpeed's libraries are compiled into
# the environment once. Its models here are tiny: more threads than one only wait for each other.
CALIBRATE := DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 TORCH_EXTENSIONS_DIR="$(CURDIR)/$(CALIBRATE_VENV)/extensions" \
  PATH="$(CURDIR)/$(CALIBRATE_VENV)/bin:$$PATH" $(CALIBRATE_VENV)/bin/python

# torch comes alone and first, as requirements/torch.txt says; DeepSpeed is built from its source.
$(CALIBRATE_VENV)/.packages: $(CALIBRATE_VENV)/.made requirements/torch.txt requirements/calibrate.txt pyproject.toml
	@echo "installing torch and DeepSpeed into $(CALIBRATE_VENV) (about a minute; 1.4 GB) …"
	$(CALIBRATE) -m pip --disable-pip-version-check --no-input install $(PIP_FLAGS) -r requirements/torch.txt
	$(CALIBRATE) -m pip --disable-pip-version-check --no-input install $(PIP_FLAGS) --use-pep517 --no-deps --require-hashes -r requirements/calibrate.txt
	$(CALIBRATE) -m pip --disable-pip-version-check --no-input install $(PIP_FLAGS) --no-deps --no-build-isolation -e .
	@touch $@

$(CALIBRATE_VENV)/.ready: $(CALIBRATE_VENV)/.packages
	@echo "compiling DeepSpeed's storage, optimizer and communication libraries (two minutes of one core) …"
	@$(CALIBRATE) tests/calibration/libraries.py \
	  >$(CALIBRATE_VENV)/compile.log 2>&1 || { tail -n 30 $(CALIBRATE_VENV)/compile.log >&2; exit 1; }
	@touch $@

# ---- lock files: exact versions and hashes, one version for every Python where one exists ----

# What PyPI's torch for Linux asks for and its CPU build does not.
CUDA := cuda-bindings cuda-toolkit nvidia-cudnn-cu13 nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvshmem-cu13 triton

COMPILE := $(UV) pip compile pyproject.toml --quiet --universal --fork-strategy fewest --generate-hashes \
  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" $(LOCK_FLAGS)

lock:
	$(COMPILE) --group build --extra web -o requirements/runtime.txt
	$(COMPILE) --group dev -c requirements/runtime.txt -o requirements/dev.txt
	$(COMPILE) --group docs -c requirements/dev.txt -o requirements/docs.txt
	printf '%s\n' $(CUDA) | $(COMPILE) --group build --group pytest --extra calibrate --excludes - \
	  --no-emit-package torch -c requirements/dev.txt -o requirements/calibrate.txt

clean:
	rm -rf $(VENV) $(CALIBRATE_VENV) $(PYTHONS) $(DEMO_OUTPUT) build dist .hypothesis .import_linter_cache .mypy_cache \
	  .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
