# `make` lists the targets. A machine needs Python 3.10+, Java 17 and this file; the rest is set up
# in .venv the first time (with uv where it is installed, else with venv and pip).

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

PY := $(abspath $(VENV))/bin/python
SETUP := conf/setup_env.py

# Every Spark started from here uses this Python on both sides and reads conf/.
export PYSPARK_PYTHON := $(PY)
export PYSPARK_DRIVER_PYTHON := $(PY)
export SPARK_CONF_DIR := $(CURDIR)/conf
# A Spark of another version, installed on the machine for something else, would be used instead.
unexport SPARK_HOME

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo cluster-demo test bench bench-stores bench-peers soak soak-spark soak-histories stores soak-stores mutants ways-in versions docs docs-look show-look lint clean python java

help: ## list the targets
	@echo "txnlog: exactly-once Spark pipelines on Delta tables"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  PYTHON=<path> chooses the Python (now: $(PYTHON)); ARGS='...' goes to the program that runs,"
	@echo "  for example: make test ARGS='-m \"not spark\" -x'"

venv: java $(VENV)/.jars ## set up .venv and the Delta jar, nothing else

demo: java $(VENV)/.jars ## the main job: flights, exactly once, through kills and a lost checkpoint
	@$(PY) jobs/flights.py $(ARGS)

cluster-demo: java $(VENV)/.jars $(VENV)/.stores/stamp ## the same on a cluster: S3, a master, two workers, spark-submit
	@$(PY) jobs/flights_cluster.py $(ARGS)

# Most JVMs of a test run live for seconds: the optimising compiler and the parallel collector would
# cost more than they gain.
test: export JDK_JAVA_OPTIONS ?= -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
test: java $(VENV)/.jars ## all tests but those of soak, ways-in and stores
	@$(PY) -m pytest -n 2 --dist worksteal $(ARGS)

bench: java $(VENV)/.jars ## the figures, see docs/benchmarks.md
	@$(PY) -m benchmarks $(ARGS)

bench-stores: java $(VENV)/.jars $(VENV)/.stores/stamp ## commits, groups, upkeep, micro-batches on an S3 server after 25 ms
	@$(PY) -m benchmarks.stores $(ARGS)

bench-peers: java $(VENV)/.jars $(VENV)/.peers/stamp ## beside Spark with Kafka and Delta, and confluent-kafka
	@$(PY) -m benchmarks.peers $(ARGS)

soak: soak-spark soak-histories ## the long proofs, an hour or more: both of the next

soak-spark: export JDK_JAVA_OPTIONS ?= -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
soak-spark: java $(VENV)/.jars ## drivers and jobs killed at every step, the demo, notebooks, benchmarks
	@$(PY) -m pytest -n 2 --dist worksteal -m "soak and spark and not stores" $(ARGS)

# Properties and long loops are tested by `make test`, too, with fewer examples and cases.
soak-histories: export TXNLOG_CASES := all
soak-histories: java $(VENV)/.jars ## random histories, searches and properties, with new seeds
	@$(PY) -m pytest -n 2 --dist worksteal -m "(soak or hypothesis or sampled) and not spark and not ways and not stores" --hypothesis-profile=soak $(ARGS)

stores: export JDK_JAVA_OPTIONS ?= -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
stores: java $(VENV)/.jars $(VENV)/.stores/stamp ## versitygw, Azurite and a fake of GCS behind a proxy with faults
	@$(PY) -m pytest -n 2 --dist loadgroup -m "stores and not soak" $(ARGS)

soak-stores: $(VENV)/.stores/stamp ## on each of those stores, clients killed amid faults for 10 minutes
	@$(PY) -m pytest -m "stores and soak" $(ARGS)

mutants: java $(VENV)/.jars ## one-line changes of the code: each must make its tests fail
	@$(PY) -m tests.mutants $(ARGS)

ways-in: java $(VENV)/.jars ## each way of docs/deploying.md: wheel, archive, zip, cluster, Connect
	@$(PY) -m pytest -m ways $(ARGS)

versions: java python ## tests/versions on Spark 4.0 to 4.3; PYTHONS='python3.12 ...' adds Pythons; minutes and GB first
	@$(PYTHON) -m tests.versions --folder $(VENV)/.versions --pythons '$(PYTHONS)' $(ARGS)

docs: $(VENV)/.docs/stamp ## the documentation site, into build/site
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict $(ARGS)

docs-look: $(VENV)/.docs/stamp ## that site in a headless browser: diagrams, overflow, links
	@$(PY) -m pytest -m browser tests/docs $(ARGS)

show-look: $(VENV)/.docs/stamp ## the page of `txnlog show` in a headless browser: the clicks to each answer
	@$(PY) -m pytest -m browser tests/ui $(ARGS)

lint: $(VENV)/.lint ## ruff and mypy
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

clean: ## remove what was made here: .venv, caches, builds, the demo's data
	rm -rf $(VENV) build dist demo-data bench-data .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf spark-warehouse metastore_db derby.log artifacts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written when its step succeeded; a step that failed is done again.
$(VENV)/.packages: pyproject.toml | python
	@$(PYTHON) $(SETUP) packages --venv $(VENV) --extras test,demo
	@touch $@

$(VENV)/.jars: conf/spark-defaults.conf $(VENV)/.packages | java
	@$(PY) $(SETUP) jars
	@touch $@

$(VENV)/.lint: $(VENV)/.packages
	@$(PYTHON) $(SETUP) packages --venv $(VENV) --extras test,demo,dev
	@touch $@

$(VENV)/.peers/stamp: benchmarks/peers/pom.xml $(VENV)/.packages | java
	@$(PYTHON) $(SETUP) packages --venv $(VENV) --extras test,demo,peers
	@$(PY) $(SETUP) peers
	@touch $@

$(VENV)/.stores/stamp: conf/setup_env.py $(VENV)/.packages
	@$(PY) $(SETUP) stores
	@mkdir -p $(@D)
	@touch $@

$(VENV)/.docs/stamp: conf/setup_env.py $(VENV)/.packages
	@$(PYTHON) $(SETUP) packages --venv $(VENV) --extras test,demo,docs
	@$(PY) $(SETUP) docs
	@mkdir -p $(@D)
	@touch $@

python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "There is no '$(PYTHON)' here. Install Python 3.10 or newer, or name it: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }

java: python
	@$(PYTHON) $(SETUP) java
