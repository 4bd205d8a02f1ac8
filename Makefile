# Every command of this repository; `make help` lists them. Needs: GNU make, bash, python3 >= 3.11.
# Variables for the command line: K= selects tests (pytest -k), ARGS= goes to the program as it is.

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-builtin-rules --no-print-directory

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ai-models
PYTHON := .venv/bin/python
ROOTS := core ray_jobs nodecache operator
CODE := $(ROOTS) tests perf

# Steps that fetch (packages, binaries) keep the caller's proxies, certificates and indexes, and lose what is known to break them:
# PYTHONDONTWRITEBYTECODE makes each start of Ray compile everything again, AWS_CA_BUNDLE replaces the certificates of registries.
FETCH := env -u PYTHONDONTWRITEBYTECODE -u PYTHONPATH -u PYTHONHOME -u VIRTUAL_ENV -u AWS_CA_BUNDLE

# Everything else starts from an empty environment and gets only what is named here.
KEPT := PATH HOME USER TMPDIR XDG_CACHE_HOME TERM COLUMNS NO_COLOR CI
CLEAN = env -i $(foreach v,$(KEPT),$${$v+"$v=$$$v"}) LANG=C.UTF-8 \
  RAY_ENABLE_UV_RUN_RUNTIME_ENV=0 RAY_USAGE_STATS_ENABLED=0 HF_HUB_DISABLE_TELEMETRY=1

# $(STEP) "name" command…: run it and say how long it took. With K=, a step that selects no test (5) is no failure.
STEP = step() { local name=$$1 rc=0 from=$$SECONDS; shift; printf '\n== %s\n' "$$name"; "$$@" || rc=$$?; \
  if [[ $$rc == 5 && -n "$(K)" ]]; then rc=0; fi; \
  printf '== %s: %d s, exit code %d\n' "$$name" $$((SECONDS - from)) "$$rc"; return "$$rc"; }; step

PYTEST = $(CLEAN) $(PYTHON) -m pytest --durations=10 $(if $(K),-k "$(K)")

##@ Use
.PHONY: help
help: ## List the commands
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: env
env: ## Make .venv with the command line .venv/bin/ai-models (quick when nothing changed)
	@$(FETCH) scripts/env "$(CACHE)"

.PHONY: demo
demo: env ## Publish two real models through Ray, again, pull, verify, load
	@$(CLEAN) $(PYTHON) -m tests.demo $(ARGS)

##@ Test
.PHONY: test
test: test-fast test-integration $(if $(wildcard tests/cluster/cluster.mk),test-cluster) ## Everything: fast, integration, cluster

.PHONY: test-fast
test-fast: env ## Unit tests, doctests, contract tests
	@$(STEP) "unit tests and doctests" $(PYTEST) tests/unit --doctest-modules $(ROOTS)
	@$(MAKE) real-components
	@$(STEP) "contract tests" $(PYTEST) tests/contract

.PHONY: test-integration
test-integration: env real-components ## Real Ray, registries, S3 and models
	@$(STEP) "integration tests" $(PYTEST) tests/integration

.PHONY: real-components
real-components: env
	@$(STEP) "Debian packages for tests" $(FETCH) $(PYTHON) -m tests.support.binaries --debian base
	@$(STEP) "registry, S3 server, Helm, csi-sanity and promtool for tests" $(FETCH) $(PYTHON) -m tests.support.binaries registry versitygw helm csi-sanity promtool

.PHONY: soak
soak: env real-components ## Long campaigns of faults (hours with all of them; K= selects)
	@$(STEP) "soak" $(PYTEST) -m soak --timeout=0 tests --ignore=tests/cluster
	@$(MAKE) soak-cluster

.PHONY: perf
perf: env real-components ## Benchmarks against their baselines; results in perf/results/
	@$(STEP) "programs of the cluster" $(FETCH) $(STAND) --no-images --prepare
	@$(STEP) "benchmarks" $(CLEAN) $(PYTHON) -m perf $(ARGS)

##@ Change
.PHONY: check
check: lint types contracts ## Lint, formatting, types, import contracts

.PHONY: lint
lint: env ## Lint and formatting
	@$(STEP) "ruff check" $(CLEAN) .venv/bin/ruff check $(CODE)
	@$(STEP) "ruff format" $(CLEAN) .venv/bin/ruff format --check $(CODE)

.PHONY: types
types: env ## Types
	@$(STEP) "mypy" $(CLEAN) .venv/bin/mypy

.PHONY: contracts
contracts: env ## Who may import whom
	@$(STEP) "import contracts" $(CLEAN) .venv/bin/lint-imports --no-logo

.PHONY: fix
fix: env ## Format, and mend what the linter can mend
	@$(CLEAN) .venv/bin/ruff check --fix $(CODE)
	@$(CLEAN) .venv/bin/ruff format $(CODE)

.PHONY: clean
clean: ## Remove .venv and caches of the checkout (stores such as ./dmcr stay)
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
	@find $(wildcard $(CODE)) -name __pycache__ -type d -prune -exec rm -rf {} +

-include tests/cluster/cluster.mk
