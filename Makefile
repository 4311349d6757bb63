# Everything this needs of a machine: Python 3.11 to 3.14 with pip, and make.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

VENV := .venv
BIN := $(VENV)/bin
CANDIDATES := python3 python3.13 python3.12 python3.11 python3.14 python
PYTHON ?= $(shell for p in $(CANDIDATES); do \
	"$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null \
	&& command -v "$$p" && break; done)
OTHER_PYTHONS = $(shell for p in python3.11 python3.12 python3.13 python3.14; do \
	command -v "$$p" >/dev/null && "$$p" -c 'import sys; sys.exit(0)' 2>/dev/null \
	&& ! cmp -s <("$$p" -V) <($(BIN)/python -V) && echo "$$p"; done)
# The lock is complete, so pip has nothing to resolve; hashes are checked for every file.
PIP_OPTIONS := --no-deps --disable-pip-version-check --no-input

NETWORK ?= resnet18
TARGET ?= vta-pynq
TUNER ?= default
# 64 trials per layer make ResNet-18 faster by another 0.06 %, in three times the time.
TRIALS ?= 16
SEED ?= 0
OUT ?= tuned/$(NETWORK)-$(TARGET)
FUZZ_EXAMPLES ?= 4000
# One worker more than cores, for tests wait for servers, locks and clocks; each takes up to a
# gigabyte. tests/conftest.py wants its work distributed in files, the longest first. No worker that
# dies is replaced: pytest-xdist would deal its files out again, and wait for them for ever.
WORKERS = $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist loadfile \
	--no-loadscope-reorder --max-worker-restart 0

.PHONY: help setup setup-dev tune deploy worker check test test-all release-check attack fuzz matrix docs browser-test team-test \
	lint lock clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: $(VENV)/.compiled ## Build .venv from the lock and install tilewright into it

setup-dev: $(VENV)/.installed-dev

tune: setup ## Tune ResNet-18 for a VTA (NETWORK=, TARGET=, TUNER=, TRIALS=, SEED=, OUT=)
	@$(BIN)/tilewright tune $(NETWORK) --target $(TARGET) --tuner $(TUNER) --trials $(TRIALS) \
		--seed $(SEED) --out $(OUT)

deploy: setup ## Register every flow with your Prefect server, and say what to start (PREFECT_API_URL=)
	@$(BIN)/python -m tilewright.flows.deploy_all deployments

worker: setup ## Run what the deployments ask for, until Ctrl-C
	@$(BIN)/python -m tilewright.flows.worker

check: setup-dev $(VENV)/.compiled-all lint ## Lint, type-check and run the quick half of the tests, in two minutes
	@$(PYTEST) -m "not slow and not release"

test: setup-dev $(VENV)/.compiled-all lint ## Lint, type-check and run the test-suite
	@$(PYTEST) -m "not nightly and not release"

test-all: setup-dev $(VENV)/.compiled-all lint ## All tests: those at night, other Pythons, longer fuzzing, PostgreSQL; takes hours
	@$(PYTEST) -m "not release"
	@$(MAKE) --no-print-directory matrix fuzz team-test

matrix: ## The quick half of the tests on every other Python of the range that the machine has
	@for python in $(OTHER_PYTHONS); do \
		echo "testing with $$python"; \
		$(MAKE) --no-print-directory check PYTHON="$$python" VENV=".venv-$$(basename $$python)"; \
	done

release-check: setup setup-dev ## Build wheel and sdist, install them away from here and run a network with them
	@$(BIN)/python -m pytest tests/test_release.py -rs -p no:xdist

attack: setup setup-dev ## Carry out the attacks of docs/explanation/security.md and docs/evidence/reliability.md, and say which could not be
	@$(PYTEST) -m attack -rs

fuzz: setup-dev ## Fuzz what strangers may send, for longer than the suite does (FUZZ_EXAMPLES=)
	@FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest -s tests/reliability/test_fuzz.py

docs: setup-dev ## Build the site into build/site, without a warning and without the network
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open build/site/index.html"

browser-test: setup setup-dev ## See both servers' pages in Debian's Chromium (PICTURES=1 renews those of the docs)
	$(call debian,/usr/bin/chromium,chromium)
	@$(BIN)/python -m pytest -m "browser and not nightly" tests/browser $(if $(PICTURES),--update-golden)

team-test: setup setup-dev ## A team's servers behind nginx, as root: attacks, load, PostgreSQL killed; prints figures
	$(call debian,$(wildcard /usr/lib/postgresql/*/bin/initdb),postgresql)
	$(call debian,/usr/sbin/nginx,nginx)
	$(call debian,/usr/bin/htpasswd,apache2-utils)
	$(call debian,/usr/bin/curl,curl)
	@$(BIN)/python -m pytest -s -m team tests/team

lint: setup-dev ## Ruff, spelling, mypy and the arrows between the rooms
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/codespell
	@$(BIN)/mypy
	@$(BIN)/lint-imports

lock: ## Recompute both locks (needs uv on the PATH)
	uv pip compile pyproject.toml --extra build --extra all --output-file requirements.lock $(COMPILE)
	uv pip compile pyproject.toml --extra build --extra all --extra dev --extra neural --extra team \
		--extra postgres --extra docs \
		--constraint requirements.lock --output-file requirements-dev.lock $(COMPILE)

COMPILE := --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-strip-extras --no-header

clean: ## Remove .venv and caches; runs under .tilewright/ and tuned/ stay
	rm -rf $(VENV) $(VENV)-python3.* build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 to 3.14 found; install one, or name it: make PYTHON=/path/to/python3.11"; exit 2; }
	@echo "creating $(VENV) with $(PYTHON)"
	@"$(PYTHON)" -c 'import ensurepip' 2>/dev/null && "$(PYTHON)" -m venv $(VENV) \
		|| "$(PYTHON)" -m venv --without-pip $(VENV)

# Makes the environment hold what a lock says, and Tilewright. uv takes seconds where pip takes
# minutes, but it does not read pip's configuration: where it does not reach an index by its own
# settings, pip installs. Where the system's Python cannot bootstrap pip, the system's pip does.
# pip compiles bytecode on one core; compileall uses all of them, and skips the tests of packages. It
# fails for templates of code, which are no Python; no command imports those.
# Tilewright's own modules are compiled to bytecode: where PYTHONDONTWRITEBYTECODE is set, every
# command would compile them again.
define install
	@packages=$$(grep -c == $(1)); \
	(while sleep 5; do \
		found=$$(find $(VENV)/lib -maxdepth 3 -name '*.dist-info' | wc -l); \
		echo "… $$((found < packages ? found : packages)) of $$packages packages installed"; \
	done) & progress=$$!; trap "kill $$progress" EXIT; \
	if command -v uv >/dev/null && VIRTUAL_ENV=$(VENV) uv pip sync --compile-bytecode --require-hashes $(1); \
	then VIRTUAL_ENV=$(VENV) uv pip install --quiet --no-deps --no-build-isolation -e .; \
	else \
		pip="$(BIN)/python -m pip"; $(BIN)/python -c 'import pip' 2>/dev/null \
			|| pip="$(PYTHON) -m pip --python $(BIN)/python"; \
		if command -v uv >/dev/null; then echo "uv could not install; using pip"; fi; \
		$$pip install $(PIP_OPTIONS) --no-compile --progress-bar off --require-hashes -r $(1) \
			| awk -v all=$$packages '/^Collecting / { n += 1 } \
				/^Collecting / && n % 10 == 1 { print "… downloading " n " of " all ": " $$2; fflush() }' \
		&& $$pip install $(PIP_OPTIONS) --quiet --no-build-isolation -e . || exit 1; \
		echo "compiling packages to bytecode"; \
		$(BIN)/python -m compileall -qq -j 0 -x '/tests/' $(VENV)/lib || true; \
	fi
	@echo "compiling tilewright to bytecode"
	@$(BIN)/python -m compileall -q -j 0 tilewright
endef

$(VENV)/.installed: requirements.lock pyproject.toml | $(VENV)/bin/python
	@echo "installing $$(grep -c == requirements.lock) pinned packages (minutes the first time)"
	$(call install,requirements.lock)
	@touch $@

# Installs a package of Debian's, where the program that it has is missing.
define debian
	@test -n "$(1)" && test -x "$(firstword $(1))" || { \
		test "$$(id -u)" = 0 || { echo "error: $(2) is missing; sudo apt-get install $(2)"; exit 2; }; \
		apt-get update --quiet && apt-get install --yes --no-install-recommends $(2); }
endef

# Whenever their sources changed: the kernels that tuning a network uses, and all of them for tests, so
# that no two processes compile the same kernels at once.
$(VENV)/.compiled: $(VENV)/.installed $(shell find tilewright/targets -name '*.py')
	@echo "compiling kernels"
	@$(BIN)/tilewright warm-up
	@touch $@

$(VENV)/.compiled-all: $(VENV)/.compiled
	@$(BIN)/python -m tilewright.targets.vta.precompile
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.lock
	@echo "installing the tools for development"
	$(call install,requirements-dev.lock)
	@touch $@
