# rocketshim: `make help` lists what there is. Everything below sets itself up: it needs Python >= 3.11 with venv,
# make and git, and nothing else. PYTHON=python3.12 make … chooses another interpreter.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST_ARGS ?=
DEMO_ARGS ?=
# Most tests wait for a broker: four processes, each with a broker of its own, 500 MB for both. How they divide the
# tests is written in test_support/schedule.py. `make test PROCESSES=0` for one process.
PROCESSES ?= 4
SHARED_OUT := -n $(PROCESSES) --dist loadscope --max-worker-restart=2

.PHONY: help demo test test-unit test-integration test-long chaos simulate soak check docs package public-api format bench compat compat-pythons compat-lowest compat-spark lock broker-jars spark-jars vendor dev clean

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.run broker-jars ## one day of real flights through delay, retry and dead letters on a real Kafka
	@$(BIN)/rocketshim demo $(DEMO_ARGS)

# With COVERAGE=1 the same tests run in two parts: under coverage a test takes three times as long, so few are measured.
test: $(VENV)/.dev broker-jars spark-jars ## every test, on a real broker too; COVERAGE=1 measures unit tests
ifdef COVERAGE
	@$(MAKE) --no-print-directory coverage
	@$(BIN)/python -m pytest -m "not long and not measured" $(SHARED_OUT) $(PYTEST_ARGS)
else
	@$(BIN)/python -m pytest -m "not long" $(SHARED_OUT) $(PYTEST_ARGS)
endif

test-unit: $(VENV)/.dev ## unit and property tests only; no broker
	@$(BIN)/python -m pytest -m "not long" $(SHARED_OUT) spark/tests shim/tests topics/tests proof/tests $(PYTEST_ARGS)

test-integration: $(VENV)/.dev broker-jars spark-jars ## integration tests only; one real broker
	@$(BIN)/python -m pytest -m "not long" $(SHARED_OUT) integration_tests $(PYTEST_ARGS)

# Without a broker; each unit test with its first parameters, and no property tests: both add little, and take long.
# 92 % are required of the pure parts, 85 % of all; the report names what is below 100 %.
coverage: $(VENV)/.dev ## branch coverage of the unit tests, in all their processes
	@rm -rf .coverage && mkdir .coverage
	@$(BIN)/python -m coverage run -m pytest -m "measured and not long" $(SHARED_OUT) shim/tests topics/tests $(PYTEST_ARGS)
	@$(BIN)/python -m coverage combine --quiet
	@$(BIN)/python -m coverage report
	@for pure in rocketshim/core rocketshim_topics; do echo "$$pure, in %:"; \
	  $(BIN)/python -m coverage report --include="*/$$pure/*" --fail-under=92 --format=total; done

test-long: $(VENV)/.dev broker-jars spark-jars ## the tests that run for minutes; results stand in docs/reliability.md
	@$(BIN)/python -m pytest -m long --timeout=7200 -o faulthandler_timeout=7190 $(PYTEST_ARGS)

check: $(VENV)/.dev ## lint, format, types (of the tests, too), import contracts, public API, measures
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy topics/rocketshim_topics shim/rocketshim shim/rocketshim_local spark/rocketshim_spark examples benchmarks tools proof shim/tests/conformance
	@for tests in shim/tests topics/tests spark/tests "integration_tests test_support conftest.py"; do \
	  $(BIN)/mypy --config-file tools/tests.mypy.ini --cache-dir .mypy_cache/tests $$tests || exit 1; done
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tools/public_api.py
	@$(BIN)/python -m tools.reference
	@$(BIN)/codespell
	@$(BIN)/python tools/plain_words.py
	@$(BIN)/python -m tools.measures

docs: $(VENV)/.dev ## build the documentation site into site/; a broken link or anchor is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

package: $(VENV)/.dev ## build wheel and sdist, check both, install the wheel into an empty environment
	@rm -rf dist
	@$(BIN)/python -m hatchling build --directory dist
	@$(BIN)/python -m twine check --strict dist/*
	@$(BIN)/python -m venv dist/empty
	@dist/empty/bin/python -m pip --disable-pip-version-check --quiet install dist/*.whl
	@cd dist && empty/bin/rocketshim --version && empty/bin/rocketshim send --help > /dev/null

public-api: $(VENV)/.dev ## write the snapshot of the public API and the pages of docs/reference again
	@$(BIN)/python tools/public_api.py --write
	@$(BIN)/python -m tools.reference --write

format: $(VENV)/.dev ## put the code into its form
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

SEED ?= 1
MINUTES ?= 15
RATE ?= 1200
chaos: $(VENV)/.dev broker-jars ## run under faults on three real brokers, and judge it: MINUTES=15 SEED=1 RATE=1200
	@$(BIN)/python -m proof chaos --seed $(SEED) --minutes $(MINUTES) --rate $(RATE)

SEEDS ?= 20000
simulate: $(VENV)/.dev ## run the real shells in memory under faults that a seed chooses: SEEDS=20000
	@$(BIN)/python -m proof simulate --seeds $(SEEDS)

soak: MINUTES = 120
soak: RATE = 150
soak: $(VENV)/.dev broker-jars ## run a mixed load, and judge memory, threads and file handles: MINUTES=120 RATE=150
	@$(BIN)/python -m proof soak --minutes $(MINUTES) --rate $(RATE)

bench: $(VENV)/.dev broker-jars ## measure; docs/performance.md says how to read it
	@$(BIN)/python -m benchmarks

BROKERS ?= 2.8.2 3.3.2 3.6.2 3.9.2 4.0.1 4.1.2 4.2.2 4.4.0
compat: $(VENV)/.dev ## one whole round on other versions of Kafka, into docs/compatibility.md: BROKERS="3.9.2 4.4.0"
	@$(BIN)/python -m tools.compat brokers $(BROKERS)

PYTHONS ?= python3.12 python3.13 python3.14
compat-pythons: $(VENV)/.dev ## the unit tests on other Pythons, into docs/compatibility.md: PYTHONS="python3.13"
	@$(BIN)/python -m tools.compat pythons $(PYTHONS)

compat-lowest: $(VENV)/.dev ## every command and the unit tests with the lowest versions of all packages, likewise
	@$(BIN)/python -m tools.compat lowest

SPARKS ?= 4.0.0 4.1.1 4.2.0
compat-spark: $(VENV)/.dev ## the tests of the Spark jobs on other versions of PySpark, likewise: SPARKS="4.1.1"
	@$(BIN)/python -m tools.compat spark $(SPARKS)

broker-jars: $(VENV)/.run ## fetch the broker's jars (and a Java runtime where there is none >= 17)
	@$(BIN)/rocketshim broker fetch

spark-jars: $(VENV)/.dev ## fetch the jars with which Spark reads Kafka and writes Delta; tests only
	@$(BIN)/rocketshim spark fetch

lock: $(VENV)/.run ## resolve the development versions again
	@$(PIP) install uv
	@$(BIN)/uv pip compile pyproject.toml --extra local --extra console --group build --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-header --quiet -o locks/run.lock
	@$(BIN)/uv pip compile pyproject.toml --extra local --extra console --group dev --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-header --quiet -c locks/run.lock -o locks/dev.lock

vendor: $(VENV)/.dev ## fetch the browser's files of the console again from npm, as their lock file says
	@$(BIN)/python tools/vendor.py

dev: $(VENV)/.dev ## the development environment, without running anything
	@$(BIN)/pre-commit install >/dev/null 2>&1 || true

clean: ## remove the environment and what tests leave
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .compat dist build site

$(BIN)/python:
	@echo "set-up: a virtual environment in $(VENV), with a current pip"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rocketshim needs Python >= 3.11")'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade 'pip>=25.1'

$(VENV)/.run: locks/run.lock pyproject.toml | $(BIN)/python
	@echo "set-up: the packages the shim runs with (about 30 MB)"
	@$(PIP) install --require-hashes --requirement locks/run.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: locks/dev.lock $(VENV)/.run
	@echo "set-up: the packages for development (PySpark among them: about 500 MB)"
	@$(PIP) install --require-hashes --requirement locks/dev.lock
	@touch $@
