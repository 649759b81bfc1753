// SPDX-License-Identifier: Apache-2.0
#include "cpu/backend.hpp"

#include <oneapi/dnnl/dnnl.hpp>

#include "cpu/kernels.hpp"

const convoy::cpu::Backend* convoy_cpu_backend() {
  using namespace convoy;
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
