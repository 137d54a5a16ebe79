# `make` alone lists the targets. Each target sets up what it needs first; the second time that takes no time.

.DEFAULT_GOAL := help
.PHONY: help setup demo test bench bench-stats lint fmt clean

BIN := .venv/bin
PYTHON ?=
export PYTHON
# Checked beside the packages, which pyproject.toml names.
TYPED := deploy/demo/demo.py tests/captures.py tests/conftest.py tests/server.py tests/loaded.py tests/command_line.py \
    tests/unit/test_rollups.py tests/unit/test_migrations.py tests/unit/test_server_store.py \
    tests/unit/test_delete.py tests/unit/test_export.py tests/schemas.py tests/unit/test_schema.py \
    tests/unit/test_verdict_log.py tests/unit/test_history.py tests/unit/test_gate.py tests/unit/test_gate_server.py tests/gates.py \
    tests/unit/test_output_gate.py tests/unit/test_calibrations_kept.py tests/unit/test_command_calibrate.py \
    tests/integration/test_gate_command.py tests/standins/standins.py \
    tests/standins/in_process.py tests/standins/building.py tests/standins/device_batches.py tests/unit/test_docs.py \
    tests/unit/test_packaging.py tests/unit/test_device_library_build.py tests/integration/test_demo.py \
    tests/integration/test_device_library.py tests/integration/test_device_profilers.py \
    tests/integration/test_device_time.py tests/kills.py tests/disks.py tests/bpf_objects.py tests/integration/test_kill_chaos.py \
    tests/integration/test_losses.py tests/unit/test_probe_cost.py tests/unit/test_doctor_store.py tests/traces.py \
    tests/unit/test_import.py tests/unit/test_import_broken.py tests/unit/test_import_verdicts.py \
    tests/executions.py tests/unit/test_recorded_windows.py tests/unit/test_degenerate.py \
    tests/integration/test_import_h200.py

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what is missing: packages with apt (as root), Python packages into .venv (PYTHON=... picks the Python)
	@deploy/setup.sh

demo: setup ## Record a kernel swap that made one kernel slower, and let kdiff find it (root, about 30 s)
	@$(BIN)/python deploy/demo/demo.py

test: lint ## Lint, then run every test, those with probes one by one (root: real probes are attached)
	@status=0; \
	$(BIN)/pytest -m "not ebpf" --numprocesses auto --maxprocesses 4 tests/unit tests/integration || status=1; \
	$(BIN)/pytest -m ebpf tests/unit tests/integration || status=1; \
	exit $$status

bench: setup ## Measure what recording costs and how often verdicts are right (minutes; nothing else should run)
	@set -e; for bench in tests/bench/bench_*.py tests/bench/chaos_*.py; do echo "== $$bench"; $(BIN)/python "$$bench"; done

bench-stats: setup ## How often verdicts are right: simulations of known truth, 1,000 runs a line, and real recordings
	@set -e; for bench in statistics recorded; do echo "== $$bench"; $(BIN)/python "tests/bench/bench_$$bench.py"; done

lint: setup ## Check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@MYPYPATH=tests $(BIN)/mypy $(TYPED)

fmt: setup ## Format the code and mend what ruff can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## Remove all that make has made; captures stay
	@rm -rf .venv build dist ./*.egg-info tests/standins/build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
