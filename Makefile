# SPDX-License-Identifier: Apache-2.0
# Everything from a bare machine. Those who manage their own: cmake --preset default.

JOBS ?= $(shell nproc)
# The demo's kernels: as asked for, else where there is an NVIDIA GPU to run them.
DEMO_CUDA := $(or $(CONVOY_CUDA),$(if $(wildcard /dev/nvidiactl),AUTO))
CONVOY_CUDA ?= AUTO
export CONVOY_CUDA

.PHONY: help demo build test test-default test-asan test-fuzz format tidy clean

help:
	@echo "make demo    set up, build, and convolve a picture"
	@echo "make test    set up, build, and run all tests"
	@echo "make build   build in build/default, what is needed being there"
	@echo "make format  clang-format over the sources"
	@echo "make tidy    clang-tidy over the host code"
	@echo "make clean   remove build/"

# Without a GPU the demo runs on the CPU, and the CUDA kernels, which are most of the build, are left
# out; `make demo CONVOY_CUDA=ON` builds them all the same.
demo: export CONVOY_CUDA := $(or $(DEMO_CUDA),OFF)
demo:
	@test $(CONVOY_CUDA) != OFF || echo "demo: for the CPU, without CUDA kernels"
	scripts/bootstrap.sh
	cmake --preset default -B build/demo -DCONVOY_CUDA=$(CONVOY_CUDA) -DCONVOY_TESTS=OFF
	cmake --build build/demo --parallel $(JOBS) --target convoy_program
	build/demo/bin/convoy demo --output demo-output

build:
	cmake --preset default -DCONVOY_CUDA=$(CONVOY_CUDA) -DCONVOY_TESTS=ON
	cmake --build --preset default --parallel $(JOBS)

test:
	scripts/bootstrap.sh --tests
	$(MAKE) test-default test-asan test-fuzz

test-default: build
	ctest --preset default --parallel $(JOBS)

# The host code under AddressSanitizer and UndefinedBehaviorSanitizer.
test-asan:
	cmake --preset asan
	cmake --build --preset asan --parallel $(JOBS)
	ctest --preset asan --parallel $(JOBS) --label-exclude package

# A bounded run of the readers' fuzzers; scripts/fuzz.sh runs longer ones.
test-fuzz:
	scripts/fuzz.sh 500000 20

format:
	git ls-files '*.cpp' '*.hpp' '*.h' '*.cu' '*.cuh' | xargs clang-format -i

tidy:
	scripts/tidy.sh

clean:
	rm -rf build
