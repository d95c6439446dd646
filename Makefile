# Every recipe is short; what needs logic is Python. `make demo` and `make test` work on a bare machine.
CACHE  := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tidegate
UV     := $(CACHE)/uv/bin/uv
PYTHON := .venv/bin/python
PYTEST := $(PYTHON) -m pytest --durations=15
PARALLEL := -n 2 --dist loadfile # two workers: half of a suite waits for API servers and nodes
AUDIT := $(CACHE)/audit
LOCAL_CLUSTER := $(PYTHON) -m e2e.cluster

export UV
.DEFAULT_GOAL := help

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

.PHONY: demo
demo: install machine ## a pool with a real model on a real local cluster: load, scaling, teardown (root)
	$(PYTHON) -m e2e.demo

.PHONY: up
up: install machine ## the same cluster and pool, left running (root)
	$(PYTHON) -m e2e.demo --keep

.PHONY: down
down: install ## remove what `make up` left (NAME=net-200 where several are up)
	$(LOCAL_CLUSTER) $(if $(NAME),--cluster $(NAME)) down

.PHONY: test
test: check machine ## everything a change must pass (root)
	$(PYTEST) tests $(PARALLEL)
	$(PYTEST) e2e $(PARALLEL) --no-loadscope-reorder

.PHONY: test-fast
test-fast: check machine ## the same without e2e
	$(PYTEST) tests $(PARALLEL)

MINUTES := 30
.PHONY: soak
soak: install ## mixed load on a checked engine (MINUTES=30): nothing accepted is lost, memory is flat
	PYTHONPATH=engine:tests $(PYTHON) -m soak.run --minutes $(MINUTES)

.PHONY: check
check: install ## format, lint, types, import contracts, generated files
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	$(PYTEST) -q tests/pure/test_generated.py

.PHONY: generate
generate: install ## CRDs, chart copies, schemas, API reference, dashboard
	$(PYTHON) -m tidegate_operator.generated
	$(PYTHON) -m observability

.PHONY: audit
audit: install ## checkov over the rendered chart and the children of pools; exceptions in .checkov.yaml
	PYTHONPATH=operator:engine:tests:. $(PYTHON) -m audited $(AUDIT)
	$(UV) tool run -q --from checkov==3.3.30 checkov --config-file .checkov.yaml --directory $(AUDIT)

.PHONY: sbom
sbom: $(UV) ## CycloneDX bills of materials of both images into build/sbom
	mkdir -p build/sbom
	for half in operator engine; do $(UV) tool run -q --from cyclonedx-bom==7.5.0 cyclonedx-py requirements requirements-$$half.lock --pyproject pyproject.toml --mc-type application --output-reproducible --of JSON -o build/sbom/$$half.cdx.json 2>/dev/null || exit 1; done

.PHONY: bench
bench: install ## benchmarks; figures are ratios measured in one run
	$(PYTHON) -m benchmarks

.PHONY: lock
lock: $(UV) ## resolve pyproject.toml again into requirements*.lock
	$(UV) pip compile -q pyproject.toml --upgrade --all-extras --group dev --generate-hashes --no-emit-index-url --python-version 3.11 --custom-compile-command 'make lock' -o requirements.lock
	$(UV) pip compile -q pyproject.toml --extra operator -c requirements.lock --generate-hashes --no-emit-index-url --no-annotate --python-version 3.11 --custom-compile-command 'make lock' -o requirements-operator.lock
	$(UV) pip compile -q pyproject.toml --extra engine --extra gguf -c requirements.lock --generate-hashes --no-emit-index-url --no-annotate --python-version 3.11 --custom-compile-command 'make lock' -o requirements-engine.lock

.PHONY: install
install: .venv/.installed ## the Python environment

.PHONY: machine
machine: install ## system packages and the Kubernetes binary (about 13 minutes the first time, cached afterwards)
	$(LOCAL_CLUSTER) prepare

.venv/.installed: requirements.lock pyproject.toml | $(UV)
	$(UV) venv -q --allow-existing --python 3.11 .venv
	$(UV) pip sync -q --python $(PYTHON) --require-hashes requirements.lock
	$(UV) pip install -q --python $(PYTHON) --no-deps --editable .
	touch $@

$(UV):
	python3 -m venv $(CACHE)/uv || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq python3-venv && python3 -m venv $(CACHE)/uv; } || { echo "python3 has no venv module: apt-get install python3-venv"; exit 1; }
	$(CACHE)/uv/bin/pip install -q 'uv>=0.13,<0.14'
