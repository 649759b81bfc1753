// SPDX-License-Identifier: Apache-2.0
#include "cpu/backend.hpp"

#ifdef _OPENMP
#include <omp.h>
#include <pthread.h>
#endif

#include <oneapi/dnnl/dnnl.hpp>

#include "cpu/kernels.hpp"

namespace {

/// NOTE: a child of fork() has the forking thread alone, but libgomp's memory of a team: its first
/// parallel region would wait for threads that are not there. The team is sent home beforehand; the
/// next parallel region, of parent or child, makes a new one.
void survive_forks() {
#ifdef _OPENMP
  pthread_atfork([] { omp_pause_resource_all(omp_pause_hard); }, nullptr, nullptr);
#endif
}

}  // namespace

const convoy::cpu::Backend* convoy_cpu_backend() {
  using namespace convoy;
  [[maybe_unused]] static const bool forks = (survive_forks(), true);
  static const std::string interface = cpu::interface_text();
  static const std::string onednn = [] {
    const dnnl_version_t* const version = dnnl::version();
    return text("oneDNN ", version->major, ".", version->minor, ".", version->patch);
  }();
  static const cpu::Backend backend = {.interface = interface.c_str(),
                                       .onednn = onednn.c_str(),
                                       .register_kernels = cpu::register_kernels,
                                       .make_norm = cpu::make_norm};
  return &backend;
}
