// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "exec/launch.hpp"

namespace vgpu::runtime {

/// What `vgpu run` hands to the libraries through the environment. The variables are also the way
/// to use them without the launcher.
struct Options {
  std::string gpu = "b200";    ///< VGPU_GPU: see device_model.cpp
  exec::Options exec;          ///< VGPU_SEED, VGPU_DELIVERY, VGPU_THREADS
  bool cut_sums = false;       ///< VGPU_SUMS: fused or cut
  uint32_t sm_count = 0;       ///< VGPU_SMS; 0: as many as the GPU has
  std::string checks = "all";  ///< VGPU_CHECK: all, none, or a list such as race,oob
  bool stats = false;          ///< VGPU_STATS=1: statistics on stderr at exit
  std::string trace_path;      ///< VGPU_TRACE: Chrome-trace file
  int log_level = 1;           ///< VGPU_LOG: 0 silent, 1 failures and reports, 2 every launch
};

/// Reads the environment. Throws Fault (kInvalidValue) that names the variable, the value got and
/// what is legal.
Options read_options();

bool parse_delivery(const std::string& text, exec::Delivery& delivery);
const char* to_string(exec::Delivery delivery);

}  // namespace vgpu::runtime
