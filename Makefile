# The house: builds .venv from the lock and runs everything else inside it.
#
# `make setup PYTHON=python3.12` picks the interpreter; `make clean` first, if .venv stands.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
LOCK_COMMAND := $(BIN)/uv pip compile --quiet --universal --fork-strategy fewest \
	--python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	--custom-compile-command "make lock" --extra dev pyproject.toml -o requirements.lock

# pip writes bytecode whatever the environment says, unless it is told not to.
INSTALL := $(BIN)/python -m pip install --no-input --disable-pip-version-check --compile

# What pip says while it installs the lock, as a line now and then; and all that it says of an error,
# which comes last. `failed` is no word of pip's.
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

WANTED := Wanted: Python 3.11 or newer; say which with make setup PYTHON=python3.12
refuse = { echo "setup: $(1)" >&2; exit 1; }

# Pages are tested in a real browser. A machine that only tests gets one; a person's is left as it is.
BROWSER := [ -z "$$CI" ] || command -v chromium >/dev/null || ! command -v apt-get >/dev/null || \
	{ echo "test: installing chromium"; apt-get update -qq && apt-get install -qq -y \
	--no-install-recommends chromium >/dev/null; } || echo "test: no chromium: browser tests skip"

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench score bench-calibrate bench-proof chaos chaos-train fuzz lock clean

help:  ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r name text; \
		do printf '%-23s %s\n' "$$name" "$$text"; done

setup: $(READY)  ## build .venv from requirements.lock (minutes, 2.5 GB)
	@:

demo: setup  ## Llama 3 70B on four v5p pods
	@$(BIN)/orch submit specs/llama3_70b_4pod.yaml

test: setup  ## the whole suite
	@$(BROWSER)
	@$(BIN)/python -m pytest -n 2 --dist loadfile

lint: setup  ## ruff and mypy, both strict
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

bench: setup  ## what planning, recording, training and studies cost
	@$(BIN)/python -m tests.bench.plan_speed
	@$(BIN)/python -m tests.bench.record_cost
	@JAX_PLATFORMS=cpu $(BIN)/python -m tests.bench.tracking_trouble
	@$(BIN)/python -m tests.bench.study_cost
	@JAX_PLATFORMS=cpu $(BIN)/python -m tests.bench.train_overhead
	@$(BIN)/python -m tests.bench.launch_time

bench-calibrate: setup  ## measure this machine, hold ten shapes to it (10 minutes)
	@$(BIN)/python -m tests.bench.calibration

chaos: setup  ## hurt runs 50 times over, and see that nothing is lost
	@$(BIN)/python -m pytest -m chaos
	@$(BIN)/python -m tests.chaos.launch_campaign

chaos-train: setup  ## kill training on five meshes, compare losses to the bit
	@$(BIN)/python -m tests.chaos.train_campaign

fuzz: setup  ## 20,000 mutated specs
	@$(BIN)/python -m pytest -m fuzz

score: setup  ## learn from real runs, and score it on runs it never saw
	@$(BIN)/python -m tests.bench.score_table

bench-proof: setup  ## compile 22 plans, write docs/proof-bench.md (an hour)
	@$(BIN)/python -m tests.bench.proof_table --write

lock: setup  ## rewrite requirements.lock; UPGRADE=1 for newer versions
	@$(LOCK_COMMAND) $(if $(UPGRADE),--upgrade)
	@echo "requirements.lock: $$(grep -c '^[a-z].*==' requirements.lock) packages"

clean:  ## remove .venv and every cache; runs/ stays
	@rm -rf .venv build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find orchestrator trainers tests -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment that was once ready is brought up to date in place. One that never was, because
# setup was interrupted, may hold half a package that pip believes whole: it starts over.
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
	@$(BIN)/python -c "$$CHECK_BYTECODE"
	@touch $@
	@echo "setup: done"

# Without bytecode every process of a rehearsal compiles these packages again: 47 s to the first
# step instead of 25.
define CHECK_BYTECODE
import importlib.util, pathlib, sys
bare = [name for name in ("jax", "mlflow", "numpy", "pandas", "ray") if not pathlib.Path(
    importlib.util.cache_from_source(importlib.util.find_spec(name).origin)).exists()]
sys.exit(f"setup: no bytecode was written for {', '.join(bare)}" if bare else 0)
endef
export CHECK_BYTECODE
