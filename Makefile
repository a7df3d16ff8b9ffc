# Every target gets what it needs: uv, the environment, the servers. Python: `make test PY=3.12`.
PY ?= 3.11
STORE ?=

export PY
export UV_PYTHON_DOWNLOADS := never
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

V1 := .venv/v1-$(PY)
V2 := .venv/v2-$(PY)
BENCH := .venv/bench-$(PY)
DOCS := .venv/docs-$(PY)
PYTEST_ARGS ?=
# What needs pydantic_graph.persistence is skipped in v2 by the tests themselves.
CODE := src tests $(wildcard examples benchmarks scripts)

.PHONY: help demo demo-research demo-approvals demo-chat test smoke test-v1 test-v2 lint format types bench docs lock dist wheel clean env
.DELETE_ON_ERROR:

help:
	@echo 'make demo    the example: a run is killed and resumed (STORE=postgresql://… or redis://…)'
	@echo 'make demo-research   the other example: a map is killed and goes on, with pydantic-graph 2.x (STORE=…)'
	@echo 'make demo-approvals   refunds that people approve, their worker killed at every bad moment (STORE=…)'
	@echo 'make demo-chat   a chat, killed in the middle of a tool call, goes on (STORE=…)'
	@echo 'make test    lint, types, and all tests with pydantic-graph 1.x and 2.x (PY=3.12 for another Python)'
	@echo 'make smoke   the quick tests, both environments'
	@echo 'make lint | format | types | test-v1 | test-v2 | bench | docs | wheel | lock | clean'

# An environment is made again when its lock changes.
.venv/%-$(PY)/.ready: requirements/%.txt
	@set -e; uv=$$(scripts/find-uv); python=$$(scripts/find-python $(PY)); \
	echo "environment $(@D)"; \
	"$$uv" venv --quiet --no-config --clear --python "$$python" $(@D); \
	"$$uv" pip install --quiet --no-config --python $(@D)/bin/python --require-hashes -r $<; \
	if [ -x $(@D)/bin/pytest ]; then \
	"$$uv" pip install --quiet --no-config --python $(@D)/bin/python --no-deps --no-build-isolation --editable .; fi; \
	touch $@

env: $(V1)/.ready $(V2)/.ready

demo: $(V1)/.ready
	STORE='$(STORE)' $(V1)/bin/python examples/triage/demo.py

demo-research: $(V2)/.ready
	STORE='$(STORE)' $(V2)/bin/python examples/research/demo.py

demo-approvals: $(V2)/.ready
	STORE='$(STORE)' $(V2)/bin/python examples/approvals/demo.py

demo-chat: $(V2)/.ready
	STORE='$(STORE)' $(V2)/bin/python -m examples.chat.demo --pace 0.3

test: lint types test-v1 test-v2

test-v1: $(V1)/.ready
	$(V1)/bin/python -m pytest $(PYTEST_ARGS)

test-v2: $(V2)/.ready
	$(V2)/bin/python -m pytest $(PYTEST_ARGS)

# For other Pythons: what depends on the language. Kills, wires and the databases do not.
SMOKE := tests --ignore=tests/crash --ignore=tests/stores --ignore=tests/test_contract.py \
	--ignore=tests/test_wire.py --ignore=tests/test_examples.py --ignore=tests/test_examples_approvals.py \
	--ignore=tests/test_state_machine.py --ignore=tests/builder/test_pausing_deaths.py \
	--ignore=tests/agents/test_deaths.py --ignore=tests/agents/test_keeping_deaths.py
smoke: env
	$(V1)/bin/python -m pytest -m 'not slow' $(SMOKE) $(PYTEST_ARGS)
	$(V2)/bin/python -m pytest -m 'not slow' tests/builder tests/golden tests/test_docs.py \
	tests/agents/test_conversation_messages.py tests/agents/test_keep_run.py \
	--ignore=tests/builder/test_pausing_deaths.py $(PYTEST_ARGS)

lint: $(V1)/.ready
	$(V1)/bin/ruff check $(CODE)
	$(V1)/bin/ruff format --check $(CODE)

format: $(V1)/.ready
	$(V1)/bin/ruff check --fix $(CODE)
	$(V1)/bin/ruff format $(CODE)

types: env
	$(V1)/bin/pyright --pythonpath $(V1)/bin/python
	$(V2)/bin/pyright --project pyright-v2.json --pythonpath $(V2)/bin/python

bench: $(BENCH)/.ready $(V2)/.ready
	$(BENCH)/bin/python benchmarks/run.py

docs: $(DOCS)/.ready
	$(DOCS)/bin/mkdocs build --strict --site-dir build/site

dist: $(V1)/.ready
	rm -rf build/dist
	"$$(scripts/find-uv)" build --quiet --no-config --no-build-isolation --python $(V1)/bin/python --out-dir build/dist

# The built wheel in an environment without drivers, away from the source tree.
wheel: dist
	rm -rf build/wheel && mkdir -p build/wheel
	"$$(scripts/find-uv)" venv --quiet --no-config --python $(V1)/bin/python build/wheel/env
	"$$(scripts/find-uv)" pip install --quiet --no-config --python build/wheel/env/bin/python \
		--constraint requirements/v1.txt build/dist/*.whl
	cd build/wheel && env/bin/python -I "$(CURDIR)/scripts/smoke_wheel.py"

lock:
	scripts/lock

clean:
	rm -rf .venv .uv build .pytest_cache .ruff_cache .hypothesis .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
