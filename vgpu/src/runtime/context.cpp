// SPDX-License-Identifier: Apache-2.0
#include "runtime/context.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "runtime/streams.hpp"
#include "tensor/cut_sum.hpp"

namespace vgpu::runtime {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

// The interpreter is compiled for x86-64-v3; elsewhere its first instruction would be a crash.
void require_processor() {
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c")) {
    return;
  }
  std::fprintf(stderr, "[vgpu] the virtual GPU needs a processor with AVX2, FMA, BMI2 and F16C\n");
  std::exit(2);
}

// The context never ends, so that programs can call at exit too; reports are written at exit.
Context* make_context() {
  require_processor();
  try {
    auto* context = new Context;
    std::atexit([] {
      Context::get().queue.stop();
      Context::get().observers.finish();
    });
    return context;
  } catch (const Fault& problem) {
    // Going on with other options than those asked for would mislead.
    std::fprintf(stderr, "[vgpu] %s\n", problem.text.c_str());
    std::exit(2);
  }
}

}  // namespace

Context& Context::get() {
  static Context* context = make_context();
  return *context;
}

Context::Context()
    : options(read_options()),
      device(make_device_model(options)),
      memory(device.memory_bytes),
      device_heap(memory),
      observers(options, memory),
      default_stream(std::make_unique<Stream>()) {
  default_stream->id = 1;
  tensor::set_cut_sums(options.cut_sums);
}

Kernel* Context::find_kernel(const void* function) {
  if (kernel_handles.contains(static_cast<const Kernel*>(function))) {
    return const_cast<Kernel*>(static_cast<const Kernel*>(function));
  }
  const auto found = kernels_by_stub.find(function);
  return found == kernels_by_stub.end() ? nullptr : found->second.get();
}

const exec::KernelInfo& Context::info(Kernel& kernel) {
  const exec::Program& program = kernel.module->load(device.arch, memory);
  const exec::KernelInfo* info = program.find_kernel(kernel.name);
  if (info == nullptr) {
    fault(kInvalidDeviceFunction, "kernel %s is not in the PTX of its module", kernel.name.c_str());
  }
  return *info;
}

void log(int level, const std::string& text) {
  if (Context::get().options.log_level >= level) std::fprintf(stderr, "[vgpu] %s\n", text.c_str());
}

cudaError_t fail(cudaError_t error, const char* format, ...) {
  char text[4096];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  log(1, std::string(cudaGetErrorName(error)) + ": " + text);
  return error;
}

cudaError_t record_error(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

}  // namespace vgpu::runtime

VGPU_API cudaError_t cudaPeekAtLastError() {
  return vgpu::runtime::last_error;
}

VGPU_API cudaError_t cudaGetLastError() {
  return std::exchange(vgpu::runtime::last_error, cudaSuccess);
}
