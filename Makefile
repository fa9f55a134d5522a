# The two commands of a new user are `make demo` and `make test`; `make help` lists the rest.
# The environment is .venv in this folder; a stamp in it spares installing again until what is installed changes.

SHELL := /bin/sh
# The first Python of at least 3.12; `make demo PYTHON=/path/to/python` chooses another.
PYTHON ?= $(shell for p in python3 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e

.PHONY: help demo test test-all test-environments test-gpu test-tpu-aot test-wheels wheels check docs bench clean

help:
	@echo "make demo    install into .venv, fetch the default model, score a small example"
	@echo "make test    install into .venv, and test every feature once"
	@echo "make test-all  build the environments with PyTorch, clients and the TPU compiler, and run the rest of the tests"
	@echo "make test-gpu  the kernels on an NVIDIA GPU, with GPU_PYTHON (default: python3), which must have jax for it and pytest"
	@echo "make test-tpu-aot    compile the whole matrix of models, modes and TPU topologies (hours; goes on where it was)"
	@echo "make wheels  build wheels with the C++ libraries inside, for x86-64 and ARM64 Linux, into dist"
	@echo "make test-wheels  the libraries of every instruction set that this machine can run, ARM64 by emulation (qemu-user)"
	@echo "make check   ruff and mypy"
	@echo "make docs    write docs/cli.md from the commands' own help, docs/performance.md and README's table from result files"
	@echo "make bench   time the default model on this machine, beside the peers that are installed (20 minutes)"
	@echo "make clean   remove .venv, the other environments and caches (not the models in your user cache)"

demo: .venv/.installed
	$(BIN)/onepass score \
	  --query "Review: The food was delicious. Sentiment: positive. Review: The room was dirty and cold. Sentiment: negative. Review:" \
	  --items " It was a complete waste of time. Sentiment:" " The best movie I have seen this year! Sentiment:" \
	          " Boring, badly written and far too long. Sentiment:" " A wonderful film with brilliant acting. Sentiment:" \
	          " I loved every minute of it. Sentiment:" " I walked out after twenty minutes. Sentiment:" \
	  --labels " positive" " negative"
	@echo
	@echo "Try next:"
	@echo "  $(BIN)/onepass score --query \"The capital of\" --items \" France is\" \" Italy is\" --labels \" Paris\" \" Rome\""
	@echo "  $(BIN)/onepass models            what can be scored with, and what is on this machine"
	@echo "  $(BIN)/onepass info              what the default model is made of"
	@echo "  $(BIN)/onepass score --help      files, JSON, other models"
	@echo "  $(BIN)/onepass serve             the same over HTTP"

PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test: .venv/.installed-test
	$(PYTEST) -m "not slow and not extended"

# What `make test` leaves out (tests/tiers.py). The environments are built side by side: each mostly waits for downloads.
test-all: .venv/.installed-test
	+@$(MAKE) --jobs 3 test-environments
	$(PYTEST) -m "extended and not slow"

test-environments: .libtpu/.installed .zig/.installed reference-environment clients-environments browser-environment ray-environment eval-environments

.PHONY: reference-environment clients-environments browser-environment ray-environment eval-environments
reference-environment: .venv/.installed-test
	$(BIN)/python tests/reference/build_env.py

clients-environments: .venv/.installed-test
	$(BIN)/python tests/clients/build_env.py

browser-environment: .venv/.installed-test
	$(BIN)/python tests/browser/build_env.py

ray-environment: .venv/.installed-test
	$(BIN)/python tests/integrations/ray_env/build_env.py

# After the one with PyTorch, whose packages it shares.
eval-environments: .venv/.installed-test reference-environment
	$(BIN)/python tests/integrations/lm_eval_env/build_env.py

# Installs nothing: a Python with JAX for CUDA is the machine's own.
GPU_PYTHON ?= python3
test-gpu:
	ONEPASS_TEST_PLATFORM=cuda PYTHONPATH=src:tests:$$PYTHONPATH $(GPU_PYTHON) -m pytest -q -W default \
	  tests/kernels/hopper tests/models/test_heads_gpu.py

# What was compiled already is kept in benchmarks/results/tpu-aot.json; remove that file to compile everything anew.
test-tpu-aot: .venv/.installed .libtpu/.installed
	$(BIN)/python benchmarks/tpu_aot.py
	$(BIN)/python benchmarks/figures.py

wheels: .venv/.installed .zig/.installed
	$(BIN)/python release/build_wheels.py

test-wheels: .venv/.installed-test .zig/.installed
	$(BIN)/python -m pytest tests/release

check: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/.installed
	$(BIN)/python -m onepass.cli.reference > docs/cli.md
	$(BIN)/python benchmarks/figures.py

bench: .venv/.installed
	$(BIN)/onepass bench smollm2-135m --workload small --modes serial,packed-segment,extend,auto \
	  --dtype bfloat16,float32 --peers cheap --out artifacts/bench
	$(BIN)/onepass bench smollm2-135m --workload mixed --seconds 60 --peers all --out artifacts/bench

clean:
	rm -rf .venv .reference-venv .clients-venv .decision-clients-venv .ray-venv .eval-venv .browser .libtpu .zig build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) ".[server]"
	@touch $@

.venv/.installed-test: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) ".[test]"
	@touch $@

# The TPU compiler, apart: within .venv, JAX would look for a TPU at every start. Its makers build it for x86-64 alone;
# elsewhere the tests that compile for TPUs are skipped.
.libtpu/.installed: constraints.txt | $(BIN)/python
	@mkdir -p .libtpu
	@case "$$(uname -m)" in \
	  x86_64|amd64) $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps --upgrade --target .libtpu libtpu ;; \
	  *) echo "no TPU compiler: libtpu is for x86-64, and this is $$(uname -m); tests that need it are skipped" ;; \
	esac
	@touch $@

# The compiler of wheels, apart: no user needs it.
.zig/.installed: constraints.txt | $(BIN)/python
	@mkdir -p .zig
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps --upgrade --target .zig ziglang
	@touch $@

.venv/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) ".[dev]"
	@touch $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "onepass needs Python 3.12 or newer; none was found (give PYTHON=...)"; exit 1; }
	$(PYTHON) -m venv .venv
