# Each task is one command: `make serve` runs the server, `make test` the tests, `make lint` the linters, and
# `make bench` the benchmarks.
#
# PYTHON       interpreter for the virtual environment (3.11 or newer)
# MODEL        what `make serve` serves: a folder or hub name; default: the small demo model of this repository
# SGLANG       virtual environment with sglang-router, which `make bench-router-fleet` then measures too
# PEER         virtual environment with vLLM, for `make bench-compare`, `bench-client` and `bench-quantization`
# LLAMA        folder with llama.cpp's server, for `make bench-compare` and `bench-quantization`
# TORCH_INDEX  index to install torch from instead of PyPI, such as https://download.pytorch.org/whl/cpu
# CASES, SEED  how many cases `make fuzz` tries in each test, and which
# ARGS         further options for `quire serve`, pytest or the benchmark

PYTHON ?= python3
VENV ?= .venv
CLIENTS := .venv-clients
SBOM := .venv-sbom
MODEL ?=
SGLANG ?=
TORCH_INDEX ?=
PEER ?=
LLAMA ?=
ARGS ?=

BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
SOURCES := quire gateway router tokenizer_svc engine_svc tests benchmarks demo_model setup.py

# Tests spend half of their time waiting for processes and timers: run two per core, or one per core if there are many.
WORKERS := $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores < 4 ? 2 * cores : cores < 8 ? 8 : cores)))
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --durations 25 --durations-min 10

.PHONY: serve test test-fast test-slow test-lm-eval test-arm test-emulated-gpu fuzz sbom clients lint format protos docs models bench bench-compare bench-client bench-quantization bench-gpu check-gpu bench-speculation bench-router-fleet bench-router-simulation lock clean

serve: $(VENV)/.installed
	$(BIN)/quire serve $(MODEL) $(ARGS)

# The fast tests run first, so that most failures show up within minutes.
test: test-fast test-slow

# Runs the tests that match a marker expression, with the given xdist distribution mode, and prints how long they took.
# pytest's exit status 5 is accepted: ARGS may select none of them.
define STAGE
@start=$$(date +%s); $(PYTEST) -m "$(1)" --dist $(2) $(ARGS) || test $$? = 5 || exit 1; \
  echo "$@ took $$(($$(date +%s) - start)) s"
endef

test-fast: $(VENV)/.installed-dev
	$(call STAGE,not slow,worksteal)

test-slow: $(VENV)/.installed-dev $(CLIENTS)/.installed
	$(call STAGE,slow,loadscope)

# The one client that CI leaves out: its dependencies are as large as those of all the others together.
test-lm-eval: $(VENV)/.installed-dev $(CLIENTS)/.installed
	$(CLIENTS_INSTALL) --requirement tests/clients/requirements-lm-eval.txt
	$(BIN)/python -m pytest tests/clients -k lm_eval $(ARGS)

# Tests of the CPU kernels at ARM's instruction levels, cross-compiled and run in QEMU. Takes some minutes.
test-arm: $(VENV)/.installed-dev
	$(BIN)/python -m tests.support.arm $(ARGS)

# The GPU tests on an emulated GPU, with kernels in Triton's interpreter. Takes some minutes.
test-emulated-gpu: $(VENV)/.installed-dev
	$(PYTEST) -p tests.support.emulated_gpu.plugin tests/gpu/test_gpu.py --dist worksteal $(ARGS)

# Random messages, bodies and files, more of them than the suite tries, and others each time. The first line tells the seed.
CASES ?= 5000
fuzz: SEED := $(shell date +%s)
fuzz: $(VENV)/.installed-dev
	@echo "SEED=$(SEED)"
	QUIRE_FUZZ_CASES=$(CASES) QUIRE_FUZZ_SEED=$(SEED) $(PYTEST) tests/fuzzing --dist worksteal $(ARGS)

# Lists all packages that are installed, with versions and licenses, in sbom.json (CycloneDX).
sbom: $(VENV)/.installed $(SBOM)/.installed
	$(SBOM)/bin/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml --output-reproducible -o sbom.json

# Installs the clients of tests/clients in a virtual environment of their own: in ours, they would pin our packages.
clients: $(CLIENTS)/.installed

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(MAKE) --no-print-directory protos PROTO_OUT=$$(mktemp -d) PROTO_CHECK=1

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

# Generates the stubs in quire/v1. With PROTO_CHECK=1, generates them in PROTO_OUT and compares them instead.
PROTO_OUT ?= .
protos: $(VENV)/.installed-dev
	$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=$(PROTO_OUT) --pyi_out=$(PROTO_OUT) \
	  --grpc_python_out=$(PROTO_OUT) protos/quire/v1/*.proto
ifdef PROTO_CHECK
	@for stub in quire/v1/*_pb2*; do cmp $$stub $(PROTO_OUT)/$$stub || { echo "run make protos"; exit 1; }; done
endif

# Writes the reference pages of all options and of the compatibility with vLLM.
docs: $(VENV)/.installed
	$(BIN)/python -m quire.docs > docs/options.md
	$(BIN)/python -m quire.compatibility > docs/compatibility.md

# Writes the page of all models; tries those again that ARGS names.
models: $(VENV)/.installed-dev
	$(BIN)/python -m tests.support.model_zoo.page $(ARGS)

# Compares with vLLM's CPU build in the virtual environment PEER, and llama.cpp's server in LLAMA: docs/performance.md
bench-compare: $(VENV)/.installed
	$(BIN)/python -m benchmarks.compare --peer $(PEER) $(if $(LLAMA),--llama $(LLAMA)) $(ARGS)

# Compares `quire bench serve` with vLLM's client in PEER: benchmarks/results/bench_serve.md
bench-client: $(VENV)/.installed
	$(BIN)/python -m benchmarks.bench_serve --vllm $(PEER) $(ARGS)

# Compares weight formats, and llama.cpp on the same GGUF files; PEER and LLAMA as above
bench-quantization: $(VENV)/.installed
	$(BIN)/python -m benchmarks.quantization --peer $(PEER) --llama $(LLAMA) $(ARGS)

# Checks whether Quire works on a GPU, and how fast: the tests that need one, then the benchmarks, each with a deadline,
# in under half an hour. Writes benchmarks/results/gpu.md. `ARGS="--only tests stack"` selects parts.
check-gpu: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.gpu $(ARGS)

# Only the benchmarks of check-gpu: steps against the machine's limits, the engine against Transformers' continuous
# batching, and the whole stack.
bench-gpu: $(VENV)/.installed
	$(BIN)/python -m benchmarks.gpu --only machine floors Transformers stack $(ARGS)

# Measures the gain of speculative decoding, through the whole stack with the demo model: docs/speculation.md
bench-speculation: $(VENV)/.installed
	$(BIN)/python -m benchmarks.speculation $(ARGS)

# With a fleet of real processes: what happens to streams when a worker fails, and what placement gains.
bench-router-fleet: $(VENV)/.installed
	$(BIN)/python -m benchmarks.router_faults
	$(BIN)/python -m benchmarks.router_fleet $(if $(SGLANG),--sglang-venv $(SGLANG)) $(ARGS)

# Compares routing policies on simulated engines, and draws benchmarks/results/router_simulation.svg. Takes several
# minutes.
SIMULATION := $(BIN)/python -m benchmarks.router_simulation
bench-router-simulation: $(VENV)/.installed
	$(SIMULATION) $(ARGS)
	$(SIMULATION) --arrivals bursty --trace chat zipf one-prefix --policy prefix least_loaded round_robin $(ARGS)
	$(SIMULATION) --routers 4 --workers 16 --requests 8000 --trace unique zipf one-prefix chat \
	  --policy prefix least_loaded round_robin $(ARGS)
	$(SIMULATION) --workers 1000 --requests 20000 --trace zipf --policy prefix least_loaded $(ARGS)
	$(SIMULATION) --requests 64 --workers 16 --trace burst --policy prefix least_loaded $(ARGS)
	$(SIMULATION) --trace zipf --curves benchmarks/results/router_simulation.svg $(ARGS)

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.scheduler
	$(BIN)/python -m benchmarks.router_cost
	$(BIN)/python -m benchmarks.serving $(ARGS)

# Writes the exact versions of all installed packages to constraints.txt, except for triton and NVIDIA's libraries,
# whose versions follow from torch's build.
lock: $(VENV)/.installed-dev
	$(BIN)/pip freeze --exclude-editable | sed 's/+cpu$$//' | grep -vE '^(quire|triton|nvidia-|cuda-)' > constraints.txt

clean:
	rm -rf $(VENV) $(CLIENTS) $(SBOM) sbom.json .cache .pytest_cache .mypy_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	$(if $(TORCH_INDEX),$(PIP_INSTALL) --index-url $(TORCH_INDEX) torch)
	$(PIP_INSTALL) --editable ".[all]"
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP_INSTALL) --editable ".[dev]"
	@touch $@

$(SBOM)/.installed: $(BIN)/python
	$(PYTHON) -m venv $(SBOM)
	$(SBOM)/bin/pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0
	@touch $@

CLIENTS_INSTALL := $(CLIENTS)/bin/pip install --quiet --disable-pip-version-check --no-compile \
  --constraint tests/clients/constraints.txt
# --no-compile, because half of the time would go into files that no test imports. Without npm, its package is left out
# and the test is skipped.
$(CLIENTS)/.installed: tests/clients/requirements.txt tests/clients/constraints.txt tests/clients/package.json
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS_INSTALL) --requirement tests/clients/requirements.txt
	cp tests/clients/package.json $(CLIENTS)
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(CLIENTS) || echo "npm's openai is left out"
	@touch $@
