# Builds .venv from the lock and runs everything else inside it.
#
# `make setup PYTHON=python3.12` chooses the interpreter; run `make clean` first if .venv exists.

PYTHON ?= python3
FAULTS ?= 500
MUTANTS ?= 5000
MINUTES ?= 20
MAXTEXT := .venv-maxtext
BIN := .venv/bin
READY := .venv/ready
# XLA's compiler for GPUs: 182 MB that only proofs for GPUs need. CI has it.
GPU ?= $(if $(CI),1)
GPU_READY := .venv/gpu-ready
LOCK := $(BIN)/uv pip compile --quiet --universal --fork-strategy fewest \
	--python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	--custom-compile-command "make lock"
LOCK_COMMAND := $(LOCK) --extra dev pyproject.toml -o requirements.lock
# The extra `gpu` alone, for an environment that has the rest.
GPU_PINS := sed -n '/^gpu = /,/^]/s/^ *"\(jax-cuda[^"]*\)".*/\1/p' pyproject.toml

# --compile writes bytecode even where the environment says not to.
INSTALL := $(BIN)/python -m pip install --no-input --disable-pip-version-check --compile

# Turns pip's output into a progress line now and then, and shows an error in full. The line `failed`
# comes from the recipe below, not from pip.
define FOLLOW
all=$$(grep -c '^[a-z].*==' requirements.lock); done=0; wrong=; \
	while read -r word rest; do case "$$word" in \
		Collecting|Processing|Requirement|Ignoring) done=$$((done + 1)); \
			[ $$((done % 30)) -ne 0 ] || echo "setup: $$done of $$all packages fetched" ;; \
		Installing) echo "setup: unpacking and compiling them (a minute or more)" ;; \
		ERROR:) wrong=yes ;; \
		failed) exit 1 ;; \
	esac; [ -z "$$wrong" ] || echo "$$word $$rest" >&2; done
endef

WANTED := orch needs Python 3.11 or newer; choose one with make setup PYTHON=python3.12
refuse = { echo "setup: $(1)" >&2; exit 1; }

# The tests of pages need a browser. CI installs one; on a person's machine they skip without it.
BROWSER := [ -z "$$CI" ] || command -v chromium >/dev/null || ! command -v apt-get >/dev/null || \
	{ echo "test: installing chromium"; apt-get update -qq && apt-get install -qq -y \
	--no-install-recommends chromium >/dev/null; } || echo "test: no chromium: browser tests skip"

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-docs test-slow lint style bench score bench-launch bench-calibrate \
	bench-proof bench-huggingface bench-maxtext bench-schedule bench-slowdowns chaos chaos-train fuzz mutants lock clean

help:  ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r name text; \
		do printf '%-23s %s\n' "$$name" "$$text"; done

setup: $(READY) $(if $(GPU),$(GPU_READY))  ## build .venv from requirements.lock (minutes, 2.5 GB; GPU=1: 3 GB)
	@:

demo: setup  ## plan, prove and rehearse Llama 3 70B on four v5p pods
	@$(BIN)/orch submit specs/llama3_70b_4pod.yaml --steps 10

# Four workers keep two cores busy: many tests wait for clusters and servers. mypy works beside them,
# and has the last word. Bytecode of the tests is written even where the environment says not to.
test: style  ## lint, types and the tests (nine minutes on two cores)
	@$(BROWSER)
	@said=$$(mktemp); $(BIN)/mypy >$$said 2>&1 & types=$$!; tests=0; \
		PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 4 --dist loadfile \
			--no-loadscope-reorder || tests=$$?; \
		wait $$types || tests=1; cat $$said; rm $$said; exit $$tests

test-docs: setup  ## run every command of the README and the docs
	@$(BIN)/python -m pytest -n 2 --dist load -m docs

test-slow: setup  ## tests that take minutes each
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m "slow or chaos"

lint: style  ## ruff, mypy and import-linter
	@$(BIN)/mypy

style: setup  ## ruff and import-linter alone
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@out=$$($(BIN)/lint-imports --no-logo) || { echo "$$out"; exit 1; }

bench: setup  ## costs of planning, proving, tracking, training, studies and launching
	@$(BIN)/python -m tests.bench.plan_speed
	@$(BIN)/python -m tests.bench.proof_cost
	@$(BIN)/python -m tests.bench.record_cost
	@$(BIN)/python -m tests.bench.watch_cost
	@JAX_PLATFORMS=cpu $(BIN)/python -m tests.bench.tracking_trouble
	@$(BIN)/python -m tests.bench.study_cost
	@JAX_PLATFORMS=cpu $(BIN)/python -m tests.bench.train_overhead
	@$(BIN)/python -m tests.bench.launch_time

bench-launch: setup  ## from orch submit of four pods to its first step, against a bare script
	@$(BIN)/python -m tests.bench.launch_time --spec specs/llama3_70b_4pod.yaml --steps 8 --rounds 2

bench-calibrate: setup  ## compare predicted with measured steps of ten shapes (10 minutes)
	@$(BIN)/python -m tests.bench.calibration --write

bench-slowdowns: setup  ## slow six rehearsals on purpose, and none of ten others: what is found (15 minutes)
	@$(BIN)/python -m tests.bench.slowdowns

chaos: setup  ## 500 faults strike runs; FAULTS=20 runs a part and goes on where the last stopped
	@$(BIN)/python -m tests.chaos.campaign --faults $(FAULTS)

mutants: setup  ## change the code in 5,000 places; a test must notice each. MUTANTS=50 runs a part
	@$(BIN)/python -m tests.mutants.campaign --mutants $(MUTANTS)

chaos-train: setup  ## kill training on five meshes and compare losses bit for bit
	@$(BIN)/python -m tests.chaos.train_campaign

fuzz: setup  ## load 20,000 mutated specs
	@$(BIN)/python -m pytest -m fuzz

score: setup  ## learn constants from published runs, score them on unseen runs
	@$(BIN)/python -m tests.bench.score_table
	@$(BIN)/python -m tests.bench.gpu_table
	@$(BIN)/python -m tests.bench.serving_table

# torch is large, and needed for nothing else: it has an environment of its own.
bench-huggingface: setup  ## logits of transformers for small models, and those of the trainer
	@[ -e .venv-huggingface/ready ] || { $(PYTHON) -m venv .venv-huggingface && \
		.venv-huggingface/bin/pip install -q torch transformers && touch .venv-huggingface/ready; }
	@rm -rf build/huggingface
	@$(BIN)/python -m tests.bench.huggingface_logits write build/huggingface
	@.venv-huggingface/bin/python tests/bench/huggingface_logits.py logits build/huggingface
	@$(BIN)/python -m pytest -m "slow or not slow" tests/test_huggingface_weights.py -k logits

bench-proof: setup  ## compile some ninety plans and write docs/proof-bench.md (four hours)
	@$(BIN)/python -m tests.bench.proof_table && $(BIN)/python -m tests.bench.proof_serving

bench-maxtext: setup $(MAXTEXT)/ready  ## compile MaxText's program and ours for fifteen runs: docs/maxtext-bench.md (hours)
	@$(BIN)/python -m tests.bench.maxtext_table --python $(MAXTEXT)/bin/python

# It goes on where the last part stopped: repeat it until no row is left.
bench-schedule: setup $(MAXTEXT)/ready  ## schedules of MaxText's programs against measured steps: docs/schedule-bench.md (MINUTES=20 a part)
	@$(BIN)/python -m tests.bench.schedule_table --python $(MAXTEXT)/bin/python --minutes $(MINUTES)

# MaxText asks for a newer Python and a newer JAX than it needs for these runs.
$(MAXTEXT)/ready: tests/bench/maxtext_requirements.txt
	@$(PYTHON) -m venv $(MAXTEXT)
	@$(MAXTEXT)/bin/python -m pip install --quiet --no-input --disable-pip-version-check --no-deps \
		--ignore-requires-python -r $<
	@touch $@

lock: setup  ## rewrite requirements.lock; UPGRADE=1 for newer versions
	@$(LOCK_COMMAND) $(if $(UPGRADE),--upgrade)
	@$(GPU_PINS) | $(LOCK) --no-deps - -o requirements-gpu.lock
	@echo "requirements.lock: $$(grep -c '^[a-z].*==' requirements.lock) packages"

clean:  ## remove .venv and every cache; runs/ stays
	@rm -rf .venv .venv-maxtext build dist *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache \
		.ruff_cache
	@find orchestrator trainers tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A finished environment is updated in place. An unfinished one may hold half a package that pip
# believes complete, so it starts over.
$(READY): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || $(call refuse,no $(PYTHON) on PATH. $(WANTED))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		$(call refuse,$(PYTHON) is $$($(PYTHON) --version 2>&1). $(WANTED))
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		$(call refuse,$(PYTHON) lacks venv or ensurepip (Debian: apt install python3-venv))
	@echo "setup: installing the locked packages into .venv (minutes, 2.5 GB)"
	@if [ -e $@ ]; then rm $@; else $(PYTHON) -m venv --clear .venv; fi
	@{ $(INSTALL) --progress-bar off --require-hashes --only-binary :all: -r requirements.lock \
		2>&1 || echo failed; } | { $(FOLLOW); }
	@$(INSTALL) -qq --no-build-isolation --no-deps -e .
	@$(BIN)/python -m compileall -q orchestrator trainers
	@$(BIN)/python -c "$$CHECK_BYTECODE"
	@touch $@
	@echo "setup: done"

$(GPU_READY): $(READY) requirements-gpu.lock
	@echo "setup: installing XLA's compiler for GPUs (182 MB)"
	@$(INSTALL) -qq --require-hashes --only-binary :all: --no-deps -r requirements-gpu.lock
	@touch $@

# Without bytecode every process of a rehearsal compiles these packages again: the first step comes
# after 47 s instead of 25.
define CHECK_BYTECODE
import importlib.util, pathlib, sys
bare = [name for name in ("jax", "mlflow", "numpy", "pandas", "ray") if not pathlib.Path(
    importlib.util.cache_from_source(importlib.util.find_spec(name).origin)).exists()]
sys.exit(f"setup: no bytecode for {', '.join(bare)}" if bare else 0)
endef
export CHECK_BYTECODE
