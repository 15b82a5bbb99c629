# `make` lists the targets. They run in .venv, which scripts/bootstrap makes from the two locks.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.SUFFIXES:

# Without bytecode each of the hundreds of processes that tests and benchmarks start compiles its modules anew: half a
# second and more. Empty is unset.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
# How many baskets the demo takes through the checkouts.
N ?= 5000
# How long nemesis goes on, and the seed of its schedule (a new one each time by default).
MINUTES ?= 20
SEED ?=
# `make lock UPGRADE=--upgrade` takes the newest versions; without it only what pyproject.toml asks for.
UPGRADE ?=
# Which tests: the suite, demo, cluster, browser, selftest, or all of them, as CI does.
STAGE ?= suite
# How many processes run them (auto: see tests/support/work_units.py).
WORKERS ?= auto
UV := $(or $(shell command -v uv),build/uv/bin/uv)
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-annotate --no-header $(UPGRADE)

.PHONY: help demo test lint format bench bench-reconcile faults nemesis mutation lock dist clean kafka docs reference pictures

help: ## list the targets
	@echo 'shieldtx: make needs Python 3.11 or newer and Java 17 or newer, and fetches everything else.'
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 24

demo: .venv/.ready ## see it work: two services, real baskets, two kills, an incident found and repaired (N=5000)
	@$(BIN)/python -m examples.retail --baskets $(N)

test: .venv/.ready kafka ## run the tests on real PostgreSQL and real Kafka (STAGE=all: as CI does)
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder \
		--stage=$(STAGE) --durations=10 $(ARGS)

lint: .venv/.ready ## check style, types, the layers of imports, the compose file and the scripts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/ci.yml
	scripts/check-modules
	for script in .ci/run scripts/bootstrap scripts/render-diagrams; do bash -n $$script; done

docs: .venv/.ready ## build the documentation in build/docs; a warning is an error
	@$(BIN)/sphinx-build -q -W --keep-going -b html docs build/docs
	@echo 'build/docs/index.html'

reference: .venv/.ready ## write the generated pages of docs/reference from the code
	@$(BIN)/python -m docs.reference_pages

pictures: reference ## draw docs/diagrams as docs/pictures (needs npm and Chromium)
	scripts/render-diagrams

format: .venv/.ready ## bring the code into shape
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: .venv/.ready kafka ## measure everything beside the peers: half an hour (QUICK=1: 4 minutes)
	@$(BIN)/python -m benchmarks $(if $(QUICK),--quick) $(ARGS)

bench-reconcile: .venv/.ready ## reconcile 10 million events beside a plain Spark join: 15 minutes (ROWS=...)
	@$(BIN)/python -m benchmarks.reconciliation $(if $(ROWS),--rows $(ROWS)) $(ARGS)

faults: .venv/.ready kafka ## break everything on real servers and count: matrix, sweep, mutants, simulation, model
	@$(BIN)/python -m tests.verification.faults $(ARGS)

nemesis: .venv/.ready kafka ## break everything at once, at random (MINUTES=20 SEED=...)
	@$(BIN)/python -m tests.verification.faults.nemesis --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

mutation: .venv/.ready ## try small defects in the protocol's code against its tests: an hour (ARGS="--only store.fence")
	@nice -n 5 $(BIN)/python -m tests.verification.mutation $(ARGS)

dist: .venv/.ready ## build the wheel and the source archive into dist/
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation

lock: $(UV) ## write the requirement locks anew (UPGRADE=--upgrade: to the newest versions)
	$(COMPILE) pyproject.toml --all-extras --group dev --output-file requirements.lock
	$(COMPILE) --group build --output-file requirements-build.lock
	$(COMPILE) --group bench --output-file benchmarks/requirements.txt

clean: ## remove .venv and everything that was built (the cache of Kafka's jars stays)
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf spark-warehouse metastore_db derby.log *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Before the tests, whose own time limits do not reckon with a download. $SHIELDTX_CACHE keeps it, and what lets each of
# the dozens of brokers start in half the time.
kafka: .venv/.ready
	@$(BIN)/python -c 'from shieldtx.embedded.jars import fetch_jdbc_driver; \
		from shieldtx.embedded.kafka import archive_classes; \
		archive_classes(progress=print); fetch_jdbc_driver(progress=print)'

build/uv/bin/uv:
	@python3 -m venv build/uv
	@build/uv/bin/python -m pip install --quiet --disable-pip-version-check uv

.venv/.ready: requirements-build.lock requirements.lock pyproject.toml
	@scripts/bootstrap
