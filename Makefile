# `make` lists the targets. They run in .venv, which scripts/bootstrap makes from the two locks.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.SUFFIXES:

# Without bytecode, each of the hundreds of processes of tests and benchmarks would compile its modules: half a second
# or more. Empty is unset.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
# Number of baskets in the demo.
N ?= 5000
# Duration of nemesis, and the seed of its schedule (by default a new seed each time).
MINUTES ?= 20
SEED ?=
# `make lock UPGRADE=--upgrade` takes the newest versions; without it, only changes of pyproject.toml.
UPGRADE ?=
# Tests to run: suite, demo, cluster, connect, browser, selftest, or all, as in CI.
STAGE ?= suite
# Number of test processes (auto: see tests/support/work_units.py).
WORKERS ?= auto
UV := $(or $(shell command -v uv),build/uv/bin/uv)
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-annotate --no-header $(UPGRADE)

.PHONY: help demo test lint format bench bench-reconcile faults nemesis mutation lock pin-jars dist clean kafka docs reference pictures demo-pictures

help: ## list the targets
	@echo 'shieldtx: make needs Python 3.11 or newer and Java 17 or newer, and fetches everything else.'
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 24

demo: .venv/.ready ## run the demo: two services, real baskets, two kills, an incident found and repaired (N=5000)
	@$(BIN)/python -m examples.retail --baskets $(N)

test: .venv/.ready kafka ## run the tests on real PostgreSQL and real Kafka (STAGE=all: every test)
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder \
		--stage=$(STAGE) --durations=10 $(ARGS)

lint: .venv/.ready ## check style, types, the layers of imports, the compose file and the scripts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini --cache-dir .mypy_cache/tests
	$(BIN)/lint-imports --no-logo
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/ci.yml
	scripts/check-modules
	scripts/check-prose
	for script in .ci/run scripts/bootstrap scripts/render-diagrams; do bash -n $$script; done

docs: .venv/.ready ## build the documentation in build/docs; a warning is an error
	@$(BIN)/sphinx-build -q -W --keep-going -b html docs build/docs
	@echo 'build/docs/index.html'

reference: .venv/.ready ## write the generated pages of docs/reference from the code
	@$(BIN)/python -m docs.reference_pages

demo-pictures: .venv/.ready ## run the demo, and draw its output and its report (N=1000; needs Chromium)
	@$(BIN)/python scripts/record-demo $(if $(filter command line,$(origin N)),$(N),1000)

pictures: reference ## draw docs/diagrams as docs/pictures (needs npm and Chromium)
	scripts/render-diagrams

format: .venv/.ready ## format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: .venv/.ready kafka ## measure everything, with the peers: half an hour (QUICK=1: 4 minutes)
	@$(BIN)/python -m benchmarks $(if $(QUICK),--quick) $(ARGS)

bench-reconcile: .venv/.ready ## reconcile 10 million events, and compare with a plain Spark join: 15 minutes (ROWS=...)
	@$(BIN)/python -m benchmarks.reconciliation $(if $(ROWS),--rows $(ROWS)) $(ARGS)

faults: .venv/.ready kafka ## inject faults on real servers and check the counts: matrix, sweep, mutants, simulation, model
	@$(BIN)/python -m tests.verification.faults $(ARGS)

nemesis: .venv/.ready kafka ## inject ten kinds of faults at random, one after the other (MINUTES=20 SEED=...)
	@$(BIN)/python -m tests.verification.faults.nemesis --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

mutation: .venv/.ready ## run the protocol's tests on small defects in its code: an hour (ARGS="--only store.fence")
	@nice -n 5 $(BIN)/python -m tests.verification.mutation $(ARGS)

dist: .venv/.ready ## build the wheel and the source archive into dist/
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation

lock: $(UV) ## write the requirement locks (UPGRADE=--upgrade: with the newest versions)
	$(COMPILE) pyproject.toml --all-extras --group dev --output-file requirements.lock
	$(COMPILE) --group build --output-file requirements-build.lock
	$(COMPILE) --group bench --output-file benchmarks/requirements.txt

pin-jars: .venv/.ready ## write the lists of pinned jars, after a change of a version in shieldtx/embedded/jars.py
	@$(BIN)/python scripts/pin-jars

clean: ## remove .venv and all build results (the cache of Kafka's jars stays)
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf spark-warehouse metastore_db derby.log *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Before the tests, whose time limits do not include a download. $SHIELDTX_CACHE keeps the jars, and the class archive
# with which each of the dozens of brokers starts in half the time.
kafka: .venv/.ready
	@$(BIN)/python scripts/fetch-jars $(if $(filter all ci connect,$(STAGE)),--connect)

build/uv/bin/uv:
	@python3 -m venv build/uv
	@build/uv/bin/python -m pip install --quiet --disable-pip-version-check uv

.venv/.ready: requirements-build.lock requirements.lock pyproject.toml
	@scripts/bootstrap
