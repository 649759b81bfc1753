// SPDX-License-Identifier: Apache-2.0
//
// A compiled configuration as a value. Apart from host.hpp, whose headers cost an instance more
// compile time than its kernels.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/sm90/config.hpp"
#include "kernels/sm90/params.hpp"

namespace convoy::sm90 {

/// A compiled configuration with its ops.
struct Instance {
  Config config;
  /// Entry points by EpiloguePath; an instance with ops has the general one alone, and so have some
  /// of a build with CONVOY_EPILOGUES=turns. EpiloguePath::statistics: where
  /// Config::takes_statistics().
  const void* kernels[kEpiloguePaths] = {};
  int shared_bytes = 0;

  /// Each path of the epilogue has an entry point of its own.
  bool has_every_path() const {
    const auto* const end = kernels + static_cast<int>(EpiloguePath::statistics);
    return std::find(kernels, end, nullptr) == end;
  }
};

/// Every instance of this build (instances.txt), with the run-time epilogue and no ops.
const std::vector<Instance>& instances();

/// As dispatch and tuning files name it: "sm90_fprop_128x128_pingpong_2cta_bf16",
/// "sm90_fprop_64x128_splitk_bf16_fp32".
std::string name_of(const Instance& instance);

}  // namespace convoy::sm90
