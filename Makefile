# Start with `make demo` and `make test`. Every target creates .venv first.
# make test ARGS="-k codec"        arguments for pytest; WORKERS=1 runs one test at a time
# make quick                       the fast tests: about a minute, without a JVM
# make pythons                     the fast tests, and the embedded Kafka's, with every other Python >= 3.11 on this machine
# make oldest                      the tests of the client with the oldest confluent-kafka that is supported
# make oldest-spark                tests of the Spark source with the oldest PySpark that is supported
# make browser-test                the page of consumer-coord watch in a headless Chromium, which must be installed
# make demo ARGS=--web             the demo, and a page that shows its group live
# make bench ROWS="commits idle"   some of the benchmarks, which continue after an interruption; ARGS=--again measures anew
# make hunt MINUTES=10             simulated histories from fresh seeds, until one fails or the time is up; CORPUS=directory guides them
# make demo KAFKA=host:port        the demo on your own Kafka
# make PYTHON=/path/to/python ...  with that Python >= 3.11

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help env lint test quick pythons oldest oldest-spark browser-test hunt demo demo-spark soak bench docs release clean

# A version switcher's shim can be on the path without a Python behind it, so each candidate is tried.
ifeq ($(origin PYTHON), undefined)
PYTHON := $(shell for candidate in python3.13 python3.12 python3.11 python3; do \
	"$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo "$$candidate"; break; }; done)
endif
IN_ENV := .venv/bin/python
# If set to 1, every worker of pytest and every process of a test would compile its modules again.
export PYTHONDONTWRITEBYTECODE :=

help:
	@echo "make demo | test | quick | pythons | oldest | oldest-spark | browser-test | env | lint | hunt | demo-spark | soak | bench | docs | release | clean"

env:
	@test -n "$(PYTHON)" || { echo "Python >= 3.11 (with venv) is needed, and none was found on the path" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python >= 3.11 is needed, and $(PYTHON) is not one" >&2; exit 1; }
	@"$(PYTHON)" tools/make_env.py .venv
	@# Tests and Spark start hundreds of processes; without this, each would compile the packages again.
	@$(IN_ENV) -m compileall -q consumer_coord assignors examples benchmarks tests

# pytest compiles tests in its own format, and every worker of a fresh clone would repeat that. The next run reports a test
# module that cannot be imported.
.venv/tests-compiled: | env
	@$(IN_ENV) -m pytest --collect-only --quiet >/dev/null 2>&1 || true
	@touch $@

lint: env
	@$(IN_ENV) -m ruff check --quiet .
	@$(IN_ENV) -m ruff format --check --quiet . || { echo "run: .venv/bin/ruff format ." >&2; exit 1; }
	@$(IN_ENV) -m mypy --no-error-summary
	@$(IN_ENV) -m codespell_lib assignors benchmarks consumer_coord docs/*.md docs/reference examples tools *.md

# More than the two cores of a small machine: tests also wait for brokers. Five workers keep two cores busy all the time.
WORKERS ?= 5
test: env
	@$(MAKE) --no-print-directory --jobs=2 lint .venv/tests-compiled
	@$(IN_ENV) -m pytest -n $(WORKERS) $(ARGS)

quick: .venv/tests-compiled
	@$(IN_ENV) -m pytest -n $(WORKERS) -m "not kafka and not spark and not slow and not thorough" --hypothesis-profile=quick $(ARGS)

# Each Python gets an environment of its own, in .pythons.
pythons: env
	@WORKERS=$(WORKERS) $(IN_ENV) -m tools.pythons $(ARGS)

# The first run installs into a separate directory, and needs a network.
oldest: env
	@$(IN_ENV) -m tools.oldest confluent-kafka $(ARGS)

oldest-spark: env
	@$(IN_ENV) -m tools.oldest pyspark $(ARGS)

# In make test these are skipped where there is no Chromium.
browser-test: env
	@BROWSER=required $(IN_ENV) -m pytest -m browser $(ARGS)

# The command prints its first seed. A failed history is shrunk, printed, and kept for --replay.
hunt: env
	@$(IN_ENV) -m consumer_coord simulate --seeds 10000000 --fault-reads any --time-limit-ms $$(($(or $(MINUTES),10) * 60000)) \
		$(if $(CORPUS),--corpus $(CORPUS)) --keep artifacts/failed-$$(date +%Y%m%d-%H%M%S).json $(ARGS)

demo: env
	@$(IN_ENV) -m examples.demo $(if $(KAFKA),--kafka $(KAFKA)) $(ARGS)

demo-spark: env
	@$(IN_ENV) -m examples.spark_orders $(if $(KAFKA),--kafka $(KAFKA)) $(ARGS)

soak: env
	@$(IN_ENV) -m benchmarks.soak $(if $(SECONDS),--seconds $(SECONDS)) $(ARGS)

bench: env
	@$(IN_ENV) -m benchmarks $(ROWS) $(ARGS)

# A warning is an error; docs/_build/html/index.html is the first page.
docs: env
	@$(IN_ENV) -m sphinx --quiet --fail-on-warning --keep-going --jobs auto docs docs/_build/html $(ARGS)

# Checks that everything a release needs is there, and builds the source distribution and the wheel into dist/.
release: env
	@$(IN_ENV) -m tools.release

clean:
	rm -rf docs/_build dist .venv .venv.lock .pythons build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
