// SPDX-License-Identifier: Apache-2.0
//
// A compiled configuration as a value. Apart from host.hpp, whose headers cost an instance compile
// time.
#pragma once

#include <string>
#include <vector>

#include "kernels/mma/config.hpp"

namespace convoy::mma {

/// The GPUs that a configuration has machine code for: any, or others than Hopper and Blackwell.
enum class Gpus { any, others };

/// A compiled configuration.
struct Instance {
  Config config;
  Gpus gpus = Gpus::any;
  const void* listing = nullptr;  ///< The kernel for any input (input.cuh) and epilogue; or none.
  const void* walking = nullptr;  ///< Faster, for what can be walked; or none.
  const void* linear = nullptr;   ///< For what can be walked, with a linear epilogue; or none.
  const void* rows = nullptr;     ///< The same for 1x1 layers.
};

/// Every instance of this build (instances.txt).
const std::vector<Instance>& instances();

/// As dispatch and tuning files name it: "mma_fprop_128x256_s3_bf16",
/// "mma_fprop_64x64_by2_s3_fp16".
std::string name_of(const Instance& instance);

}  // namespace convoy::mma
