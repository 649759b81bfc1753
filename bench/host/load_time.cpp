// SPDX-License-Identifier: Apache-2.0
//
// What a process waits for before its first result: loading the library, the first plan, the first
// run of a kernel (whose machine code is unpacked then), and the second run.
//
//   convoy_load_time LIBRARY.so [HEIGHT CHANNELS FILTERS TAPS]
//
// One line of CSV, milliseconds; each process measures once, so a shell repeats it:
//   for i in 1 2 3 4 5; do convoy_load_time libconvoy.so.0; done
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "convoy/convoy.h"
#include "cuda_check.hpp"

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

template <typename Function>
Function* get(void* library, const char* name) {
  void* const symbol = dlsym(library, name);
  if (symbol == nullptr) throw std::runtime_error(dlerror());
  return reinterpret_cast<Function*>(symbol);
}
// NOTE: the function's type alone, so that nothing has to be linked.
#define CONVOY_OF(library, name) get<decltype(::name)>(library, #name)

void* device_memory(std::int64_t bytes) {
  void* memory = nullptr;
  convoy::cli::check_cuda(cudaMalloc(&memory, static_cast<std::size_t>(bytes)), "cudaMalloc");
  convoy::cli::check_cuda(cudaMemset(memory, 0, static_cast<std::size_t>(bytes)), "cudaMemset");
  return memory;
}

void measure(const std::string& path, std::int64_t height, std::int64_t channels,
             std::int64_t filters, std::int64_t taps) {
  using convoy::cli::check_cuda;
  Clock::time_point begin = Clock::now();
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const double load = milliseconds_since(begin);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto last_error = CONVOY_OF(library, convoy_last_error);
  const auto require = [&](convoy_status_t status, const char* call) {
    if (status != CONVOY_OK) throw std::runtime_error(std::string(call) + ": " + last_error());
  };

  // The context is the runtime's own cost.
  begin = Clock::now();
  check_cuda(cudaFree(nullptr), "cudaFree");
  const double context = milliseconds_since(begin);
  void* const activation = device_memory(2 * height * height * channels);
  void* const filter = device_memory(2 * filters * taps * taps * channels);
  void* const output = device_memory(2 * height * height * filters);

  begin = Clock::now();
  convoy_conv2d_shape_t shape;
  CONVOY_OF(library, convoy_conv2d_shape_init)(&shape, sizeof shape);
  shape.in_height = shape.in_width = height;
  shape.in_channels = channels;
  shape.out_channels = filters;
  shape.filter_h = shape.filter_w = taps;
  shape.pad_top = shape.pad_bottom = shape.pad_left = shape.pad_right = taps / 2;
  convoy_plan_options_t options;
  CONVOY_OF(library, convoy_plan_options_init)(&options, sizeof options);
  options.device = CONVOY_DEVICE_CUDA;
  convoy_plan_t plan = nullptr;
  require(CONVOY_OF(library, convoy_plan_conv2d)(&shape, &options, &plan), "plan");
  const double planned = milliseconds_since(begin);

  convoy_plan_info_t info{};
  info.struct_size = sizeof info;
  require(CONVOY_OF(library, convoy_plan_info)(plan, &info), "info");
  std::size_t workspace = 0;
  require(CONVOY_OF(library, convoy_plan_workspace_bytes)(plan, &workspace), "workspace");
  convoy_run_arguments_t arguments;
  CONVOY_OF(library, convoy_run_arguments_init)(&arguments, sizeof arguments);
  arguments.output = output;
  arguments.activation = activation;
  arguments.filter = filter;
  if (workspace > 0) arguments.workspace = device_memory(static_cast<std::int64_t>(workspace));
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  double runs[2] = {};
  for (double& run : runs) {
    begin = Clock::now();
    require(CONVOY_OF(library, convoy_run)(plan, &arguments, nullptr), "run");
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    run = milliseconds_since(begin);
  }
  std::printf("load_ms,context_ms,plan_ms,first_run_ms,second_run_ms,kernel\n");
  std::printf("%.2f,%.2f,%.2f,%.2f,%.2f,%s\n", load, context, planned, runs[0], runs[1],
              info.kernel);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 6) {
    std::fprintf(stderr, "usage: convoy_load_time LIBRARY.so [HEIGHT CHANNELS FILTERS TAPS]\n");
    return 2;
  }
  const auto number = [&](int i, std::int64_t otherwise) {
    return argc == 6 ? std::atoll(argv[i]) : otherwise;
  };
  try {
    measure(argv[1], number(2, 128), number(3, 128), number(4, 128), number(5, 3));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "convoy_load_time: %s\n", error.what());
    return 1;
  }
}
