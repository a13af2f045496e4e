# Two commands, each doing its own set-up in .venv: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS := $(VENV)/.docs
FRAMEWORKS := $(VENV)/.frameworks
# Torch for CUDA, as the index has it, brings a Triton of its own and takes no other; torch for CPUs alone brings none.
TRITON := triton==3.9.0
# The packages of extras alone: with `-e '.[docs]'` pip would compile the kernels a second time.
PACKAGES := import sys, tomllib; extras = tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']; \
	print(*(package for name in sys.argv[1:] for package in extras[name]))
NATIVE := pyproject.toml constraints.txt CMakeLists.txt $(wildcard thinwire/*/*.cpp thinwire/kernels/cpu/*.cpp thinwire/kernels/cpu/*.h)

.PHONY: demo test test-long test-fsdp test-frameworks test-gpu test-torch docs test-docs lint format figures golden wheels try-wheels \
	clean

demo: $(STAMP)
	$(BIN)/thinwire demo

# Three workers on two cores: one of them mostly waits for ranks that are gone (tests/schedule.py).
# Bytecode is kept, whatever the environment says: every worker and every process that a test starts reads it.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(STAMP)
	$(BIN)/python -m pytest -n 3 --ignore=tests/site --ignore=tests/frameworks --ignore=tests/lab/test_report_browser.py

# Adapters, with the real Transformers, Accelerate, Lightning, Ray, TensorBoard and W&B, which are a gigabyte to install.
test-frameworks: $(FRAMEWORKS)
	$(BIN)/python -m pytest tests/frameworks

# Everything that needs a GPU, on a machine that has one: the kernels compiled, and the engine with CUDA tensors.
test-gpu: $(STAMP)
	$(BIN)/python -m pytest -n 8 tests/kernels tests/distributed/test_cuda.py tests/distributed/test_cuda_engine.py \
		tests/distributed/test_cuda_fsdp.py tests/distributed/test_cuda_reduce_scatter.py tests/planning/test_device.py tests/sim/test_load.py

# All cases of tw.fsdp, with those that take too long for `make test`: torch.compile, checkpoints, a reduce-scatter inside;
# and an example that torchrun runs, which imports torch in three processes.
test-fsdp: $(STAMP)
	THINWIRE_LONG=1 $(BIN)/python -m pytest tests/distributed/test_fsdp.py tests/distributed/test_reduce_scatter.py \
		tests/examples -k "fsdp or shards or torchrun"

# What takes too long for `make test`: more cases of each kind, more of Triton's interpreter, more steps.
test-long: $(STAMP)
	$(BIN)/python -m pytest -n 3 --long -m long tests/test_*.py tests/codecs tests/compressors tests/exchange \
		tests/kernels tests/methods tests/sim tests/distributed/test_nccl_rules.py tests/distributed/test_misuse.py tests/distributed/test_partition.py \
		tests/cli tests/lab tests/examples

# The documentation site in build/site, with search and a reference from docstrings; nothing is fetched to build it.
docs: $(DOCS)
	$(BIN)/python -m thinwire.lab.site

# Builds the site and tries it: links, code of every page, and a browser, which looks at reports, too.
test-docs: export PYTHONDONTWRITEBYTECODE :=
test-docs: $(DOCS)
	$(BIN)/python -m pytest tests/site tests/lab/test_report_browser.py

# The engine's tests on another version of torch, in a virtual environment of its own (5 GB: torch brings CUDA's libraries).
TORCH ?= 2.15.0
OTHER := .venv-torch-$(TORCH)
test-torch: $(OTHER)/.installed
	THINWIRE_PATIENCE=5 $(OTHER)/bin/python -m pytest -n 2 tests/distributed tests/engine tests/sim $(ARGS)

$(OTHER)/.installed: pyproject.toml CMakeLists.txt
	test -x $(OTHER)/bin/python || $(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/python -m pip install --quiet --upgrade pip
	$(OTHER)/bin/python -m pip install --quiet torch==$(TORCH) -e '.[lab,dev]' -Cbuild-dir=$(OTHER)/build
	touch $@

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Tables and plots in README and docs from benchmarks/data; the rows come from `thinwire demo` and `thinwire bench`.
figures: $(STAMP)
	$(BIN)/python -m thinwire.lab.figures

# Writes the wire bytes of new compressors; those that are committed change only with the version of the format.
golden: $(STAMP)
	$(BIN)/python -m pytest tests/test_golden.py --write-golden

$(STAMP): $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[lab,dev,torchft]'
	$(BIN)/python -c 'import triton' 2>/dev/null || $(BIN)/python -m pip install --quiet $(TRITON)
	touch $@

$(DOCS): $(STAMP)
	$(BIN)/python -c "$(PACKAGES)" docs | xargs $(BIN)/python -m pip install --quiet -c constraints.txt
	touch $@

$(FRAMEWORKS): $(STAMP)
	$(BIN)/python -c "$(PACKAGES)" transformers accelerate lightning ray tensorboard wandb | \
		xargs $(BIN)/python -m pip install --quiet -c constraints.txt
	touch $@

# Wheels for x86-64 and aarch64, and the sdist, into dist/, cross-compiled and checked; then tried without a compiler.
wheels:
	$(PYTHON) tools/wheels.py $(ARGS)

try-wheels:
	$(PYTHON) tools/try_wheels.py $(ARGS)

clean:
	rm -rf $(VENV) .venv-torch-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
