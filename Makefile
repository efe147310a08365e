# Two commands do all set-up on a fresh Debian machine: `make demo` and `make test`.
# PYTHON picks the interpreter (3.11 or newer) that the virtual environment is made from.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help install check test test-engine test-clients demo bench faults soak fuzz grafana-shots lock sbom clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

install: $(READY)  ## make .venv with everything that is needed

$(READY): requirements.lock pyproject.toml tools/bootstrap.sh
	@PYTHON=$(PYTHON) VENV=$(VENV) sh tools/bootstrap.sh
	@touch $@

check: $(READY)  ## format, lint, types, import contracts, spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell
	$(BIN)/validate-pyproject pyproject.toml
	$(BIN)/python -m tools.check_floors

test: $(READY)  ## all tests, about ten minutes on two cores
	$(BIN)/pytest -n auto --dist worksteal -m "not real_engine and not alone"
	$(BIN)/pytest -m "alone and not real_engine"

test-engine: $(READY)  ## a real vLLM on the CPU: tests, and short requests beside long ones (half an hour; x86-64)
	$(BIN)/python -m tests.engine --table

test-clients: $(READY)  ## real client libraries through the proxy: what their users see (installs them; ten minutes)
	$(BIN)/python -m tests.clients --table

demo: $(READY)  ## the whole loop on this machine: engine, proxy, replay, before and after
	$(BIN)/lanewise-load demo --out runs/demo

bench: $(READY)  ## what the proxy costs, beside nginx (writes runs/bench/latest.json)
	PYTHON=$(BIN)/python sh tests/bench/run.sh

faults: $(READY)  ## bytes and behaviour that break proxies, each with its verdict (writes runs/faults/latest.json)
	$(BIN)/python -m tests.faults --table

soak: $(READY)  ## three minutes of load and trouble, or as many SECONDS as you say (writes runs/soak/latest.json)
	$(BIN)/python -m tests.soak --seconds $(or $(SECONDS),180)

fuzz: $(READY)  ## look for input that breaks a reader, SECONDS (60) for each of five (installs atheris; x86-64)
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60)

grafana-shots: $(READY)  ## draw every dashboard with Grafana's own components, from a real run (node, Chromium, 15 minutes)
	$(BIN)/python -m tools.grafana.shots

lock: $(READY)  ## renew requirements.lock from pyproject.toml
	$(BIN)/python tools/lock.py

sbom: $(READY)  ## list what requirements.lock installs as CycloneDX (writes dist/sbom.cdx.json)
	$(BIN)/python -m tools.sbom

clean:  ## remove what the other targets made
	rm -rf $(VENV) runs dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
