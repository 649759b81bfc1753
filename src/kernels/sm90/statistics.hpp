// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/fast_divide.hpp"
#include "kernels/sm90/params.hpp"

namespace convoy::sm90 {

/// What a launch with statistics leaves, and what becomes of it.
struct StatisticsMerge {
  StatisticsParams partials = {};
  int filter_tiles = 1;  ///< Of one phase: tiles are numbered filters first.
  int tile_slices = 0;   ///< Slices of a tile.
  int group_slices = 0;  ///< And of a group.
  int groups = 0;
  int first_tile = 0;     ///< Of filters: that of an image's first slot.
  int slice_records = 0;  ///< At most, of a slice.
  FastDivide by_records;  ///< slice_records
  FastDivide by_slices;   ///< tile_slices
  std::int64_t batch = 0;

  std::int64_t records() const { return batch * partials.slots * 4; }
  std::size_t partials_bytes() const {
    return static_cast<std::size_t>(records() * tile_slices) * sizeof(float2);
  }
  std::size_t workspace_bytes() const {
    return partials_bytes() + static_cast<std::size_t>(records()) * sizeof(float);
  }
};

/// Enqueue the merge into `output`, [batch][groups] of mean and (biased) variance.
void merge_statistics(const StatisticsMerge& merge, float2* output, cudaStream_t stream);

}  // namespace convoy::sm90
