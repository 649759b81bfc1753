// SPDX-License-Identifier: Apache-2.0
//
// The host twin of the few_filters kernels: what they take, how they cut it, how long it takes.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "core/candidate.hpp"
#include "core/checked.hpp"
#include "kernels/common/device_geometry.cuh"
#include "kernels/common/mma_rate.hpp"
#include "kernels/small/few_filters.cuh"

namespace convoy::small {

// GEMM columns that kernels are built for.
inline constexpr int kBuiltColumns[] = {16, 32, 48, 64};
inline constexpr std::int64_t kMostColumns = 64;
inline constexpr std::int64_t kMostTaps = 9;  // Of the filter along height and width.
// What keeps every product of the layout inside 32 bits.
inline constexpr std::int64_t kFewFiltersMaxTiles = 1 << 30;
inline constexpr std::int64_t kFewFiltersMaxRow = 1 << 20;  // R·C

inline int built_columns(const ConvGeometry& g) {
  const std::int64_t needed = depth_taps(g).count * g.filter[2] * g.out_channels;
  for (int columns : kBuiltColumns) {
    if (needed <= columns) return columns;
  }
  return 0;
}

inline FewFiltersLayout few_filters_layout(const ConvGeometry& g, int rows, int consumers,
                                           int multiprocessors) {
  FewFiltersLayout l{};
  l.consumers = consumers;
  for (int axis = 0; axis < 3; ++axis) {
    l.filter[axis] = static_cast<int>(g.filter[axis]);
    l.pad[axis] = static_cast<int>(g.pad_begin[axis]);
    l.out[axis] = static_cast<int>(g.out[axis]);
    const bool is_padded = g.pad_begin[axis] != 0 || g.pad_end[axis] != 0;
    l.pad_mode[axis] = is_padded ? g.pad_mode[axis] : PadMode::zero;
  }
  for (int i = 0; i < 2; ++i) {
    l.pad_behind[i] = static_cast<int>(g.pad_end[i + 1]);
    l.in[i] = static_cast<int>(g.in[i + 1]);
  }
  const DepthTaps taps = depth_taps(g);
  l.filter[0] = static_cast<int>(taps.count);
  l.first_tap = static_cast<int>(taps.first);
  l.filter_depth = static_cast<int>(g.filter[0]);
  l.pad[0] -= l.first_tap;
  l.frames = static_cast<int>(g.seen()[0]);
  l.cached_frames = static_cast<int>(g.cached_frames);
  l.channels = static_cast<int>(g.in_channels);
  l.filters = static_cast<int>(g.out_channels);
  l.steps = (l.channels + 15) / 16;
  // NOTE: an odd number of 16-byte units from row to row keeps ldmatrix free of bank conflicts.
  l.filter_pitch = l.filter[1] * l.steps * 16 + 8;
  l.strip_columns = kFewFiltersColumns - (l.filter[2] - 1);
  l.side_by_side = l.filter[1] == 1 && l.out[1] == 1;
  const int tile_rows = l.side_by_side ? 1 : consumers * rows;
  l.tile_columns = l.strip_columns * (l.side_by_side ? consumers * rows : 1);
  l.tiles_p = (l.out[1] + tile_rows - 1) / tile_rows;
  l.tiles_q = (l.out[2] + l.tile_columns - 1) / l.tile_columns;
  // Cut along depth where the image alone does not fill the device; each cut reads T − 1 frames
  // once more.
  const double columns = double(g.batch) * l.tiles_p * l.tiles_q;
  double best = 0;
  for (int cuts = 1; cuts <= l.out[0]; ++cuts) {
    const int chunk = (l.out[0] + cuts - 1) / cuts;
    const double rounds =
        std::ceil(columns * ((l.out[0] + chunk - 1) / chunk) / std::max(1, multiprocessors));
    const double cost = rounds * (chunk + l.filter[0] - 1);
    if (cuts == 1 || cost < best) {
      best = cost;
      l.depth_chunk = chunk;
    }
    if (cuts >= 64) break;
  }
  l.tiles_z = (l.out[0] + l.depth_chunk - 1) / l.depth_chunk;
  l.tiles = static_cast<int>(g.batch) * l.tiles_z * l.tiles_p * l.tiles_q;
  return l;
}

// Time of a layout in units of one input row: rounds of work items times their rows, and what an
// item costs whatever its size. Warps of one row read the filters twice as often: 12 % (measured).
inline double few_filters_cost(const FewFiltersLayout& l, int rows, int multiprocessors) {
  const double rounds = std::ceil(double(l.tiles) / std::max(1, multiprocessors));
  return rounds * (l.depth_chunk + l.filter[0] - 1) * (l.stage_rows(rows) + 2) *
         (rows == 1 ? 1.12 : 1.0);
}

// Rows and number of consumer warps: tiles that share the image evenly among the multiprocessors,
// with little halo.
struct FewFiltersTiling {
  int rows = 0;
  FewFiltersLayout layout{};
};
/// `most_rows`: of a warp, 1 or 2.
inline FewFiltersTiling few_filters_tiling(const PlanRequest& request, int columns,
                                           int most_rows = 2) {
  const int processors = request.device.multiprocessors;
  const auto shared_memory = static_cast<int>(request.device.shared_memory);
  FewFiltersTiling best;
  double best_cost = 0;
  for (int rows = columns <= 32 ? most_rows : 1; rows >= 1; --rows) {
    for (int consumers = few_filters_most_consumers(rows); consumers >= 4; --consumers) {
      const FewFiltersLayout layout =
          few_filters_layout(request.geometry, rows, consumers, processors);
      if (layout.shared_bytes(rows, columns) > shared_memory) continue;
      const double cost = few_filters_cost(layout, rows, processors);
      if (best.rows == 0 || cost < 0.98 * best_cost) {
        best = {rows, layout};
        best_cost = cost;
      }
    }
  }
  return best;
}

/// Empty, or why no few_filters kernel takes the problem, whatever loads it.
inline std::string few_filters_refusal(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  if (request.dtype == DType::fp32) return "dtype = fp32; legal: bf16 or fp16";
  if (g.groups != 1) return text("groups = ", g.groups, "; legal: 1");
  if (g.upsample != 1) return text("upsample = ", g.upsample, "; legal: 1");
  if (g.in_channels % 8 != 0) {
    return text(
        "in_channels = ", g.in_channels,
        "; legal: a multiple of 8 (copies of 16 bytes); nearest: ", ceil_div(g.in_channels, 8) * 8);
  }
  if (g.in[0] == 0) return "new frames = 0; legal: at least 1; nearest: 1";
  for (int axis = 0; axis < 3; ++axis) {
    if (g.stride[axis] != 1) {
      return text("stride of ", kAxisNames[axis], " = ", g.stride[axis], "; legal: 1");
    }
    if (g.dilation[axis] != 1 && g.filter[axis] != 1) {
      return text("dilation of ", kAxisNames[axis], " = ", g.dilation[axis], "; legal: 1");
    }
  }
  for (int axis = 1; axis < 3; ++axis) {
    if (g.filter[axis] > kMostTaps) {
      return text("filter of ", kAxisNames[axis], " = ", g.filter[axis], "; legal: 1 to ",
                  kMostTaps, "; nearest: ", kMostTaps);
    }
  }
  if (g.filter[0] > kMostColumns || g.out_channels > kMostColumns || built_columns(g) == 0) {
    return text("T·S·K = ", g.filter[0], "·", g.filter[2], "·", g.out_channels, "; legal: at most ",
                kMostColumns, " (columns of the GEMM)");
  }
  std::string reason = device_geometry_refusal(g);
  if (!reason.empty()) return reason;
  // Of the smallest tiles: 4 rows of 24 columns (a filter of 9).
  const std::int64_t most_tiles = g.batch * g.out[0] * ceil_div(g.out[1], 4) *
                                  ceil_div(g.out[2], kFewFiltersColumns - (kMostTaps - 1));
  if (most_tiles > kFewFiltersMaxTiles) {
    return text("output tiles = ", most_tiles, "; legal: at most ", kFewFiltersMaxTiles);
  }
  if (g.filter[1] * g.in_channels > kFewFiltersMaxRow) {
    return text("R·C = ", g.filter[1] * g.in_channels, "; legal: at most ", kFewFiltersMaxRow);
  }
  const int columns = built_columns(g);
  if (few_filters_tiling(request, columns).rows == 0) {
    const int bytes =
        few_filters_layout(g, 1, 4, request.device.multiprocessors).shared_bytes(1, columns);
    return text("input tile and filters of ", bytes, " bytes; legal: at most ",
                request.device.shared_memory, " (shared memory)");
  }
  return {};
}

/// Model time. `copy_cycles`: of the consumers, for a row of 64 channels of a stage, where they
/// load it themselves.
inline double few_filters_us(const PlanRequest& request, const FewFiltersTiling& tiling,
                             int columns, double copy_cycles = 0.0) {
  const int processors = std::max(1, request.device.multiprocessors);
  const int rows = tiling.rows;
  const FewFiltersLayout& l = tiling.layout;
  const double cycles_per_us = mma_rate(request.device).cycles_per_us;
  // A frame of a work item: tensor-core steps at about 600 multiply-adds a cycle and 1.7 GHz, or
  // the sums and stores of its outputs (measured on an H200; of other GPUs by their rates).
  const double rounds = std::ceil(double(l.tiles) / processors);
  const double macs =
      double(l.consumers) * rows * kFewFiltersColumns * columns * l.filter[1] * l.steps * 16;
  const double frame_us = std::max(macs / (600.0 * 1700.0 * mma_share(request.device)),
                                   (1.0 + 0.3 * l.filters * rows) * 1700.0 / cycles_per_us);
  const double copy_us = l.stage_rows(rows) * ceil_div(l.steps, 4) * copy_cycles / cycles_per_us;
  const double frames = l.depth_chunk + l.filter[0] - 1;
  const double moving_us = min_bytes(request) / (2.7e6 * memory_share(request.device));
  const double computing_us = 1.18 * rounds * frames * (frame_us + copy_us);
  // With as many sums as that the two hide each other but in part (1x1 to 17 and 19 filters).
  constexpr double kPower = 1.3;
  if (l.filters > 16) {
    return 7.0 + std::pow(std::pow(moving_us, kPower) + std::pow(computing_us, kPower), 1 / kPower);
  }
  return 7.0 + std::max(moving_us, computing_us);
}

}  // namespace convoy::small
