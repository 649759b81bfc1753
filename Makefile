# SPDX-License-Identifier: Apache-2.0
# Everything from a bare machine. Those who manage their own: cmake --preset release, or default with tests.

JOBS ?= $(shell nproc)
GPU := $(wildcard /dev/nvidiactl)
CONVOY_CUDA ?= AUTO
export CONVOY_CUDA

.PHONY: help demo demo-virtual build test test-default build-asan test-asan test-fuzz test-torch lint format tidy tidy-deep docs clean

help:
	@echo "make demo    set up, build, and convolve a picture"
	@echo "make test    set up, build, and run all tests"
	@echo "make test-torch  PyTorch and diffusers into .deps/torch (5.5 GB), and their tests"
	@echo "make build   build in build/default, what is needed being there"
	@echo "make lint    set up, and check the sources: format, linters, types, arrows between folders"
	@echo "make format  clang-format over the sources"
	@echo "make tidy    clang-tidy over the host code (tidy-deep: clang's analyzer)"
	@echo "make docs    the pages as a site, build/docs/html"
	@echo "make clean   remove build/"

# On the GPU where there is one; else on the CPU, and then the Blackwell kernels on the virtual B200.
# `make demo CONVOY_CUDA=OFF` builds for the CPU alone, which is faster.
demo:
	scripts/bootstrap.sh
	cmake --preset test -B build/demo -DCONVOY_CUDA=$(CONVOY_CUDA) -DCONVOY_TESTS=OFF \
	  $(if $(GPU),,-DCONVOY_SM90=OFF -DCONVOY_SASS=OFF)
	cmake --build build/demo --parallel $(JOBS) --target convoy_program
	build/demo/bin/convoy demo --output demo-output
	$(if $(GPU),,@$(MAKE) --no-print-directory demo-virtual)

demo-virtual:
	@if ! cmake --build build/demo --target help | grep '^vgpu_cli:' > /dev/null; then \
	  echo "demo: no virtual B200: it is built where CUDA 13's compiler is"; \
	elif ! grep -qw avx2 /proc/cpuinfo; then \
	  echo "demo: no virtual B200: it needs a processor with AVX2"; \
	else \
	  echo "demo: the same on a virtual B200, the Blackwell kernels interpreted: about a minute" && \
	  cmake --build build/demo --parallel $(JOBS) --target vgpu_cli vgpu_cudart && \
	  build/demo/vgpu/bin/vgpu run --gpu b200 --threads $(JOBS) -- \
	    build/demo/bin/convoy demo --device cuda --output demo-output/b200; \
	fi

build:
	cmake --preset default -DCONVOY_CUDA=$(CONVOY_CUDA) -DCONVOY_TESTS=ON
	cmake --build --preset default --parallel $(JOBS)

test:
	scripts/bootstrap.sh --tests
	scripts/test.sh

# Where there is no GPU the kernels' PTX is enough: the virtual GPU runs that.
test-default:
	cmake --preset test -DCONVOY_CUDA=$(CONVOY_CUDA) \
	  $(if $(GPU),,-DCONVOY_SASS=OFF -DCONVOY_FAST_COMPILE=min -DCONVOY_EPILOGUES=turns) \
	  $(if $(CONVOY_TORCH_PYTHON),-DCONVOY_TORCH=ON -DCONVOY_TORCH_PYTHON=$(CONVOY_TORCH_PYTHON))
	cmake --build --preset test --parallel $(JOBS)
	ctest --preset test --parallel $(JOBS)

# The host code under AddressSanitizer and UndefinedBehaviorSanitizer, and the fuzzers.
build-asan:
	cmake --preset asan
	cmake --build --preset asan --parallel $(JOBS)

test-asan: build-asan
	ctest --preset asan --parallel $(JOBS) --label-exclude package

# A bounded run of the readers' fuzzers; scripts/fuzz.sh runs longer ones.
test-fuzz: build-asan
	scripts/fuzz.sh 100000 3

# What needs PyTorch, in an environment of its own, on the CPU; on the GPU too where there is one.
test-torch:
	scripts/bootstrap.sh --tests
	JOBS=$(JOBS) scripts/test_torch.sh

# The tools come into .deps/lint, at the versions of scripts/lint-requirements.txt.
lint:
	scripts/bootstrap.sh --tests
	JOBS=$(JOBS) scripts/lint.sh

format:
	scripts/lint.sh reformat

tidy tidy-deep:
	JOBS=$(JOBS) scripts/lint.sh $@

docs:
	scripts/build_docs.sh

clean:
	rm -rf build
