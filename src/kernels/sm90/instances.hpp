// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "convoy/types.hpp"

namespace convoy::sm90 {

/// A compiled FpropConfig, as the host sees it. The list is src/kernels/sm90/instances.txt.
struct FpropInstance {
  DType in = DType::bf16;
  DType out = DType::bf16;
  int block_m = 0;
  int block_n = 0;
  int consumers = 0;
  int cluster = 1;    ///< CTAs that share tiles:
  int cluster_n = 1;  ///< along N activation tiles, otherwise along M filter tiles.
  bool halo = false;
  bool resident = false;  ///< 1x1 filters stay in their stages.
  bool split = false;
  bool pingpong = false;
  bool swapped = false;  ///< Filters are the rows of the MMA.
  int stages = 0;
  int act_stages = 0;
  int chunk_n = 0;      ///< Filters of a piece that is stored at once,
  int chunk_rows = 0;   ///< and its pixels.
  int halo_pixels = 0;  ///< Largest halo tile (rows · columns of input pixels) a stage holds.
  int threads = 0;
  int shared_bytes = 0;
  /// For cudaLaunchKernelExC, by EpiloguePath; an instance with ops has the general one alone.
  const void* kernels[4] = {};

  int cluster_m() const { return cluster / cluster_n; }
  /// "256x128_2cta_halo", "128x64_splitk" ...
  std::string name() const;
};

/// Every instance of this build.
const std::vector<FpropInstance>& fprop_instances();

}  // namespace convoy::sm90
