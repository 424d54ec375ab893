# Every target makes what it needs, from nothing, and leaves alone what is in order:
# scripts/setup.sh, which also describes the variables PYTHON, VENV and POSENC_TORCH.

VENV ?= .venv
export PYTHON VENV POSENC_TORCH POSENC_CUDA POSENC_TARGETS CUDAARCHS KIT KIT_PYTHON
SETUP := scripts/setup.sh
BIN := $(VENV)/bin

# As git sees them: tracked, or new and not ignored; less what is deleted but not yet committed.
CXX_SOURCES = $(wildcard $(shell git ls-files --cached --others --exclude-standard \
	'*.h' '*.cc' '*.cu' '*.cuh'))
SHELL_SCRIPTS := .ci/run scripts/aarch64.sh scripts/engine_kernels.sh scripts/engine_vllm.sh scripts/free_threaded.sh scripts/fuzz.sh \
	scripts/gpu_kit.sh scripts/release_libraries.sh scripts/sanitize.sh scripts/setup.sh scripts/wheels.sh

.DEFAULT_GOAL := help
.PHONY: help demo test test-all asan tsan mutants fuzz own-tests engines engine-kernels engine-vllm fuzz-core free-threaded check check-ruff check-mypy \
	check-clang-format check-shellcheck check-workflows check-prose lint-tools actionlint audit format docs \
	docs-links pages bench growth instructions gpu gpu-kit gpu-resources aarch64 wheels release setup clean distclean

# A line `##@ Title` begins a group of the list; a target with `##` is in it.
help:
	@awk -F ':.*## ' '/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\n%s\n' "Variables"
	@echo "  PYTHON=python3.12    the interpreter of a new virtual environment (default: python3)"
	@echo "  VENV=DIR             where the virtual environment is (default: .venv)"

##@ Begin here

# Processes that share the test files. Two use two cores well; each takes up to 4 GiB.
TEST_JOBS ?= 2

demo:  ## set up, build, run a real model both ways; ARGS='--text FILE' for another text
	@$(SETUP) demo native-package
	@$(BIN)/python -m posenc_native demo $(ARGS)

test:  ## set up, build, run the tests; PYTEST_ARGS='-k rotary -x' to choose some
	@$(SETUP) test oracles docs package
	@$(BIN)/python -m pytest --numprocesses $(TEST_JOBS) --dist loadfile $(PYTEST_ARGS)

# Warnings are errors: a reference that leads nowhere, a missing picture, a public name without a page.
SPHINX_BUILD = $(BIN)/python -m sphinx --fail-on-warning --keep-going --jobs auto --quiet \
	--doctree-dir build/docs/doctrees

PAGES = PYTHONPATH=scripts $(BIN)/python -m pages

docs:  ## set up, build, make the documentation: build/docs/html/index.html
	@$(SETUP) docs native-package
	@$(PAGES)
	@$(SPHINX_BUILD) --builder html docs build/docs/html
	@echo "build/docs/html/index.html"

bench:  ## set up, build, and compare with peers and the memory limit; ARGS='--filter rotary' for a part
	@$(SETUP) bench package
	@$(BIN)/python -m benchmarks $(ARGS)

##@ Check

check: check-ruff check-mypy check-clang-format check-shellcheck check-workflows check-prose  ## lint, form, types, English

check-ruff: lint-tools
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

check-mypy: lint-tools
	$(BIN)/mypy

check-clang-format: lint-tools
	$(BIN)/clang-format --dry-run --Werror $(CXX_SOURCES)

check-shellcheck: lint-tools
	$(BIN)/shellcheck $(SHELL_SCRIPTS)

check-workflows: lint-tools
	$(BIN)/zizmor --offline --quiet .github

# Spelling everywhere, style in documents and docstrings (docs/style.md).
check-prose: lint-tools
	git ls-files -z --cached --others --exclude-standard | xargs -0 $(BIN)/codespell
	PYTHONPATH=scripts $(BIN)/python -m prose

# mypy reads the types of what the package imports where it is there: of the demo's packages too.
lint-tools:
	@$(SETUP) demo lint

format: lint-tools  ## put sources and tables into the project's form
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/python scripts/model_rows.py --write
	$(BIN)/clang-format -i $(CXX_SOURCES)

test-all:  ## the slow tests too, and every SIMD target: what takes an hour
	@$(SETUP) test oracles docs package
	@POSENC_TEST_TARGETS=all $(BIN)/python -m pytest --numprocesses $(TEST_JOBS) --dist loadfile -m "" \
		$(PYTEST_ARGS)

asan:  ## tests on a build with AddressSanitizer and UndefinedBehaviorSanitizer; PYTEST_ARGS=tests/core/calls
	@$(SETUP) test oracles docs package
	@TEST_JOBS=$(TEST_JOBS) scripts/sanitize.sh address $(PYTEST_ARGS)

tsan:  ## tests on a build with ThreadSanitizer; PYTEST_ARGS=tests/engines
	@$(SETUP) test oracles docs package
	@TEST_JOBS=$(TEST_JOBS) scripts/sanitize.sh thread $(PYTEST_ARGS)

free-threaded:  ## build and test for a Python without the interpreter lock; PYTHON=python3.14t
	@scripts/free_threaded.sh $(ARGS)

aarch64:  ## build for Arm, compare bits and test under an emulator; ARGS=tests/encodings/rotary
	@$(SETUP) aarch64 qemu package
	@TEST_JOBS=$(TEST_JOBS) scripts/aarch64.sh $(ARGS)

mutants:  ## plant ten known faults and see the test of each fail; ARGS=--all: every one, in an hour and a half
	@$(SETUP) test oracles docs mutants package
	@PYTHONPATH=scripts $(BIN)/python -m mutants $(ARGS)

fuzz:  ## set up, build, call everything at random; ARGS='--seconds 3600 --jobs 2', --planted
	@$(SETUP) test package
	@$(BIN)/python -m fuzz $(ARGS)

fuzz-core:  ## the checks and the arithmetic of csrc/core under libFuzzer; ARGS='600 calls'
	@scripts/fuzz.sh $(ARGS)

# A compiler is all that it needs.
own-tests:  ## timm's own tests of its models, patched, in half an hour; ARGS='-k eva02_tiny' for some
	@$(SETUP) test oracles package
	@scripts/own_tests.sh $(ARGS)

ENGINE ?= all

engines:  ## run other engines, ENGINE=vllm or all, and renew the records that tests compare explain with
	@$(SETUP) test oracles package
	@$(BIN)/python tests/engines_at_hand $(ENGINE) $(ARGS)

engine-kernels:  ## test transformers' own hook with the package kernels, in a pair of versions that fit
	@$(SETUP) test oracles package
	@scripts/engine_kernels.sh $(ARGS)

engine-vllm:  ## the plugin inside vLLM, on tiny models, half an hour; ARGS='-k far' for some
	@$(SETUP) test oracles package
	@scripts/engine_vllm.sh $(ARGS)

actionlint:  ## check the workflows' expressions, inputs and shell; needs a network
	@$(SETUP) workflows
	@$(BIN)/actionlint -shellcheck $(BIN)/shellcheck

# A package that the service does not know is an error too: where it does not answer, all are unknown.
audit:  ## ask which pinned packages have a known vulnerability; needs a network
	@$(SETUP) audit
	@$(BIN)/pip-audit --strict --disable-pip --no-deps --requirement requirements/constraints.txt

pages:  ## write what pages and notebooks show of records and code: tables, pictures
	@$(SETUP) docs native-package
	@$(PAGES) --write

docs-links: docs  ## see whether the addresses that the documentation names still answer
	@$(SPHINX_BUILD) --builder linkcheck docs build/docs/linkcheck

##@ Measure

growth:  ## set up, build, and time as work grows, with a picture; ARGS='--curve dim' for a part
	@$(SETUP) bench package
	@$(BIN)/python -m benchmarks.studies.growth $(ARGS)

instructions:  ## count the instructions of kernels with valgrind; ARGS=--compare: since the record
	@$(SETUP) bench valgrind package
	@$(BIN)/python -m benchmarks.studies.instructions $(ARGS)

# No set-up: a machine with a GPU has its own torch, and often no network.
gpu:  ## test, check and time on a machine with a GPU, in calls of nine minutes; ARGS='--steps tests'
	@$(or $(PYTHON),python3) -m benchmarks.gpu $(ARGS)

gpu-kit:  ## set up, build, make a folder to bring along for make gpu; KIT_PYTHON=3.12 CUDAARCHS=90
	@$(SETUP) wheels
	@scripts/gpu_kit.sh

gpu-resources: export POSENC_CUDA := ON
gpu-resources:  ## set up, build, judge what each CUDA kernel takes: registers, code, barriers, accesses
	@$(SETUP) package
	@$(BIN)/python scripts/gpu_resources.py $(ARGS)

##@ Release

wheels:  ## build wheels for the Pythons at hand, check them; PYTHONS='3.11 3.12' to choose
	@$(SETUP) wheels
	@scripts/wheels.sh

release:  ## build all that a release publishes, try it where nothing compiles; ARGS='--pythons 3.11'
	@$(SETUP) release
	@$(BIN)/python scripts/release.py $(ARGS)

##@ The working copy

setup:  ## the set-up of all the above at once, and git's pre-commit hooks
	@$(SETUP) demo test lint docs bench package
	$(BIN)/pre-commit install

clean:  ## remove what was built, keep the virtual environment
	rm -rf build dist benchmarks/.cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f $(VENV)/.posenc-setup/package
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## remove the virtual environments as well
	rm -rf $(VENV) .engines
