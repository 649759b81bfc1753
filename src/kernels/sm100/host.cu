// SPDX-License-Identifier: Apache-2.0
//
// Host twin of kernel.cuh: judges a problem, lays its rows over the output, encodes the
// tensor maps and launches.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "convoy/error.hpp"
#include "core/checked.hpp"
#include "core/text.hpp"
#include "kernels/common/filter_packing.hpp"
#include "kernels/common/tensor_map.hpp"
#include "kernels/sm100/host.hpp"
#include "kernels/sm100/params.hpp"

namespace convoy::sm100 {
namespace {

constexpr const char* kAxes[3] = {"depth", "height", "width"};
// Everything that a tile coordinate or a tensor map counts in 32 bits, with room for a tile.
constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max() - 4096;

Swizzle swizzle_of(int bytes) {
  return bytes == 128 ? Swizzle::b128 : Swizzle::b64;
}

// Where no tap leaves its frame, frames are images of a larger batch.
bool is_planar(const ConvGeometry& g) {
  return g.filter[0] == 1 && g.stride[0] == 1 && g.pad_begin[0] == 0 && g.pad_end[0] == 0 &&
         g.cached_frames == 0;
}

// 1x1 filters that read the pixels of a frame as they lie.
bool is_pointwise(const ConvGeometry& g) {
  for (int axis = 1; axis < 3; ++axis) {
    if (g.filter[axis] != 1 || g.stride[axis] != 1 || g.pad_begin[axis] != 0 ||
        g.pad_end[axis] != 0) {
      return false;
    }
  }
  return g.upsample == 1;
}

// Activations come by tiled copies, not by im2col.
bool loads_tiles(RowGroups groups, const ConvGeometry& g) {
  return groups == RowGroups::patches || (groups != RowGroups::volumes && is_pointwise(g));
}

// The convolution that the kernel runs: with folded upsampling a 2x2 one over the low-resolution
// input, whose phases differ by where the first tap falls.
struct KernelView {
  std::int64_t filter[3], out[3], pad_end[3];
  std::int64_t phases = 1;
};

KernelView view_of(const ConvGeometry& g) {
  KernelView view;
  for (int i = 0; i < 3; ++i) {
    view.filter[i] = g.filter[i];
    view.out[i] = g.out[i];
    view.pad_end[i] = g.pad_end[i];
  }
  if (g.upsample == 2) {
    view.phases = 4;
    for (int i = 1; i < 3; ++i) {
      view.filter[i] = 2;
      view.out[i] = g.in[i];
      view.pad_end[i] = 0;
    }
  }
  return view;
}

// The activation (or cache) as an im2col map of `pixels` pixels; volumes are 5-D.
Im2colTensorMap activation_map(const ConvKernelConfig& config, const ConvGeometry& g,
                               const char* name, RowGroups groups, std::int64_t frames) {
  const KernelView view = view_of(g);
  const auto element = static_cast<std::int64_t>(size_of(config.act_dtype));
  const std::int64_t row = g.in[2] * g.in_channels * element;
  Im2colTensorMap map;
  map.name = name;
  map.dtype = config.act_dtype;
  map.rank = groups == RowGroups::volumes ? 5 : 4;
  map.extents = {g.in_channels, g.in[2], g.in[1], g.batch * frames, 0};
  map.strides_bytes = {0, g.in_channels * element, row, g.in[1] * row, 0};
  if (groups == RowGroups::volumes) {
    map.extents[3] = frames;
    map.extents[4] = g.batch;
    map.strides_bytes[4] = frames * map.strides_bytes[3];
  }
  // Corners bound the positions of the filter's first tap: from -pad to where it last fits.
  for (int i = 0; i < map.rank - 2; ++i) {
    const int axis = 2 - i;
    map.lower_corner[i] = static_cast<int>(-g.pad_begin[axis]);
    map.upper_corner[i] =
        static_cast<int>(view.pad_end[axis] - (view.filter[axis] - 1) * g.dilation[axis]);
    map.element_strides[i + 1] = static_cast<int>(g.stride[axis]);
  }
  map.channels = config.atom_k();
  map.pixels = config.act_slice_rows();
  map.swizzle = swizzle_of(config.a_swizzle);
  return map;
}

// The activation (or cache) as a tiled map {C, x, y, frame}: pixels as they lie, or patches whose
// pixels are a stride apart.
TiledTensorMap tiled_activation_map(const ConvKernelConfig& config, const ConvGeometry& g,
                                    const char* name, RowGroups groups, std::int64_t frames) {
  const auto element = static_cast<std::int64_t>(size_of(config.act_dtype));
  const std::int64_t pixel = g.in_channels * element, frame = g.in[1] * g.in[2];
  TiledTensorMap map;
  map.name = name;
  map.dtype = config.act_dtype;
  map.rank = 4;
  map.swizzle = swizzle_of(config.a_swizzle);
  if (groups == RowGroups::patches) {
    const int rows = config.act_slice_rows() / kPatchColumns;
    const int stride_h = static_cast<int>(g.stride[1]), stride_w = static_cast<int>(g.stride[2]);
    map.extents = {g.in_channels, g.in[2], g.in[1], g.batch * frames, 0};
    map.strides_bytes = {0, pixel, g.in[2] * pixel, frame * pixel, 0};
    map.box = {config.atom_k(), (kPatchColumns - 1) * stride_w + 1, (rows - 1) * stride_h + 1, 1,
               0};
    map.element_strides = {1, stride_w, stride_h, 1, 1};
    return map;
  }
  const bool images = groups == RowGroups::images;
  const std::int64_t pixels = images ? g.batch * frames * frame : frame;
  map.extents = {g.in_channels, pixels, 1, images ? 1 : g.batch * frames, 0};
  map.strides_bytes = {0, pixel, pixels * pixel, pixels * pixel, 0};
  map.box = {config.atom_k(), config.act_slice_rows(), 1, 1, 0};
  return map;
}

// Filters {C, taps, K, phases}.
TiledTensorMap filter_map(const ConvKernelConfig& config, const ConvGeometry& g) {
  const KernelView view = view_of(g);
  const auto element = static_cast<std::int64_t>(size_of(config.filter_dtype));
  const std::int64_t taps = view.filter[0] * view.filter[1] * view.filter[2];
  TiledTensorMap map;
  map.name = "filter";
  map.dtype = config.filter_dtype;
  map.rank = 4;
  map.extents = {g.in_channels, taps, g.out_channels, view.phases, 0};
  map.strides_bytes = {0, g.in_channels * element, taps * g.in_channels * element,
                       g.out_channels * taps * g.in_channels * element, 0};
  map.box = {config.atom_k(), 1, config.filter_slice_rows(), 1, 0};
  map.swizzle = swizzle_of(config.b_swizzle);
  return map;
}

// Extents of the row groups.
struct Rows {
  std::int64_t groups, rows;
};

Rows rows_of(const ConvKernelConfig& config, RowGroups row_groups, const ConvGeometry& g) {
  switch (row_groups) {
    case RowGroups::frames:
      return {g.batch * g.out[0], g.out[1] * g.out[2]};
    case RowGroups::patches:
      return {g.batch * g.out[0], ceil_div(g.out[1], config.block_tile_shape.m / kPatchColumns) *
                                      ceil_div(g.out[2], kPatchColumns) *
                                      config.block_tile_shape.m};
    case RowGroups::phases:
      return {4, g.batch * g.in[0] * g.in[1] * g.in[2]};
    case RowGroups::images:
    case RowGroups::volumes:
      break;
  }
  return {1, g.gemm_m()};
}

// Output or residual as {K, x, y, n}: rows of a group along x, or with patches columns and rows.
TiledTensorMap output_map(const ConvKernelConfig& config, const ConvGeometry& g, const char* name,
                          RowGroups row_groups) {
  const std::int64_t pitch = g.out_channels * config.out_bytes();
  const Rows rows = rows_of(config, row_groups, g);
  TiledTensorMap map;
  map.name = name;
  map.dtype = config.out_dtype;
  map.rank = 4;
  if (row_groups == RowGroups::patches) {
    map.extents = {g.out_channels, g.out[2], g.out[1], rows.groups, 0};
    map.strides_bytes = {0, pitch, g.out[2] * pitch, g.out[1] * g.out[2] * pitch, 0};
    map.box = {config.output_tile_shape.n, kPatchColumns,
               config.output_tile_shape.m / kPatchColumns, 1, 0};
  } else {
    map.extents = {g.out_channels, rows.rows, 1, rows.groups, 0};
    map.strides_bytes = {0, pitch, rows.rows * pitch, rows.rows * pitch, 0};
    map.box = {config.output_tile_shape.n, config.output_tile_shape.m, 1, 1, 0};
  }
  map.swizzle = swizzle_of(config.c_swizzle);
  return map;
}

// Output or residual of one phase: every second pixel of every second row, walked in im2col mode.
Im2colTensorMap phase_map(const ConvKernelConfig& config, const ConvGeometry& g, const char* name) {
  const std::int64_t pitch = g.out_channels * config.out_bytes();
  Im2colTensorMap map;
  map.name = name;
  map.dtype = config.out_dtype;
  map.rank = 4;
  map.extents = {g.out_channels, g.in[2], g.in[1], g.batch * g.in[0], 0};
  map.strides_bytes = {0, 2 * pitch, 2 * g.out[2] * pitch, g.out[1] * g.out[2] * pitch, 0};
  map.channels = config.output_tile_shape.n;
  map.pixels = config.output_tile_shape.m;
  map.swizzle = swizzle_of(config.c_swizzle);
  return map;
}

bool stores_by_tma(const ConvKernelConfig& config, const ConvGeometry& g) {
  return g.out_channels * config.out_bytes() % 16 == 0;
}

// Taps' offsets from the first tap: 8 bits an axis in 4-D copies, 5 bits in 5-D ones (PTX ISA,
// im2col offsets).
std::string offset_refusal(const ConvGeometry& g, int first_axis, std::int64_t limit) {
  for (int axis = first_axis; axis < 3; ++axis) {
    const std::int64_t reach = (g.filter[axis] - 1) * g.dilation[axis];
    if (reach > limit) {
      return text("(filter - 1) * dilation of ", kAxes[axis], " = ", reach, "; legal: at most ",
                  limit, " (im2col offsets)");
    }
  }
  return {};
}

std::string volumes_refusal(const ConvKernelConfig& config, const ConvGeometry& g) {
  if (g.cached_frames != 0) return text("cached_frames = ", g.cached_frames, "; legal: 0");
  if (g.gemm_m() > kMax) return text("M = ", g.gemm_m(), " rows pass 32-bit coordinates");
  std::string reason = offset_refusal(g, 0, 31);
  if (reason.empty()) {
    reason =
        tensor_map_refusal(activation_map(config, g, "activation", RowGroups::volumes, g.in[0]));
  }
  return reason;
}

}  // namespace

std::string name_of(const ConvKernelConfig& config) {
  std::string name = text("sm100_fprop_", config.mma_shape.m, "x", config.mma_shape.n, "x",
                          config.block_tile_shape.k, "_", config.cta_group, "sm_c",
                          config.cluster_shape.m, "x", config.cluster_shape.n);
  if (config.splits_reduction()) name += text("x", config.cluster_shape.k);
  if (config.a_swizzle != 128) name += text("_s", config.a_swizzle);
  if (config.k_group_size != 1) name += text("_k", config.k_group_size);
  return name;
}

std::string im2col_refusal(const ConvKernelConfig& config, const ConvGeometry& g) {
  std::string reason = offset_refusal(g, 1, 255);
  if (!reason.empty()) return reason;
  return tensor_map_refusal(activation_map(config, g, "activation", RowGroups::frames, g.in[0]));
}

RowGroups row_groups_of(const ConvKernelConfig& config, const ConvGeometry& g) {
  if (g.upsample == 2) return RowGroups::phases;
  const std::int64_t plane = g.out[1] * g.out[2];
  const bool reads_frames = is_pointwise(g) || im2col_refusal(config, g).empty();
  if (is_planar(g)) {
    if (reads_frames && g.gemm_m() <= kMax) return RowGroups::images;
  } else if (volumes_refusal(config, g).empty()) {
    // Frames fill their tiles, or skip filter depths that meet only padding, or let tiles straddle
    // frames: the layout with fewer rows of work, counting half of what is skipped.
    const std::int64_t tile = config.block_tile_shape.m * config.cluster_shape.m;
    const auto by_frames = static_cast<double>(ceil_div(plane, tile) * tile * g.out[0] * g.batch);
    const auto by_volumes = static_cast<double>(ceil_div(g.gemm_m(), tile) * tile);
    if (!reads_frames || by_frames > 1.1 * by_volumes) return RowGroups::volumes;
  }
  return reads_frames && plane <= kMax ? RowGroups::frames : RowGroups::patches;
}

std::string refusal(const ConvKernelConfig& config, const ConvGeometry& g) {
  if (g.groups != 1) return text("groups = ", g.groups, "; this kernel computes 1 group");
  if (g.in_channels % 8 != 0) {
    return text("in_channels = ", g.in_channels,
                " is not a multiple of 8 (TMA needs rows of 16 bytes); nearest: ",
                ceil_div(g.in_channels, 8) * 8);
  }
  for (int axis = 0; axis < 3; ++axis) {
    const bool padded = g.pad_begin[axis] != 0 || g.pad_end[axis] != 0;
    if (padded && g.pad_mode[axis] != PadMode::zero) {
      return text("padding mode of ", kAxes[axis], " is ", to_string(g.pad_mode[axis]),
                  "; this kernel pads with zero");
    }
    if (axis > 0 && g.stride[axis] > 8) {
      return text("stride of ", kAxes[axis], " = ", g.stride[axis],
                  "; legal: 1 to 8 (tensor map element strides)");
    }
  }
  if (g.upsample == 2) {
    std::string reason = upsample_folding_refusal(g);
    if (!reason.empty()) return reason;
    if (!stores_by_tma(config, g)) {
      return text("out_channels = ", g.out_channels,
                  " with upsampling; legal: rows of a multiple of 16 bytes");
    }
  } else if (g.upsample != 1) {
    return text("upsample = ", g.upsample, "; legal: 1 or 2");
  }
  for (const std::int64_t extent :
       {g.in_channels, g.out_channels, g.out[1], g.out[2], g.stride[0], g.batch * g.in[0],
        g.batch * g.cached_frames, g.batch * g.out[0], g.taps()}) {
    if (extent > kMax) return text("an extent of ", extent, " passes 32-bit coordinates");
  }
  for (int axis = 0; axis < 3; ++axis) {
    const std::int64_t reach = g.in[axis] + g.cached_frames + g.pad_begin[axis] + g.pad_end[axis] +
                               g.filter[axis] * g.dilation[axis];
    if (reach > kMax) {
      return text("extent, padding and filter of ", kAxes[axis], " reach ", reach,
                  ", past 32-bit coordinates");
    }
  }
  const RowGroups groups = row_groups_of(config, g);
  std::string reason =
      loads_tiles(groups, g)
          ? tensor_map_refusal(tiled_activation_map(config, g, "activation", groups, g.in[0]))
          : tensor_map_refusal(activation_map(config, g, "activation", groups, g.in[0]));
  if (reason.empty()) reason = tensor_map_refusal(filter_map(config, g));
  const KernelView view = view_of(g);
  const bool frame_at_a_time = groups == RowGroups::frames || groups == RowGroups::patches;
  const std::int64_t atoms = (frame_at_a_time ? 1 : view.filter[0]) * view.filter[1] *
                             view.filter[2] * ceil_div(g.in_channels, config.atom_k());
  if (reason.empty() && atoms < config.cluster_shape.k) {
    reason =
        text("a reduction of ", atoms, " spans of ", config.atom_k(), " channels cannot be split ",
             config.cluster_shape.k, " ways; legal: at most ", atoms);
  }
  if (reason.empty() && g.taps() * ceil_div(g.in_channels, config.atom_k()) > kMax / 8) {
    reason = text(g.taps(), " taps of ", g.in_channels, " channels pass 32-bit counters");
  }
  if (reason.empty() && !config.register_based_epilogue && !stores_by_tma(config, g)) {
    reason = text("out_channels = ", g.out_channels,
                  " with an epilogue on staged tiles; legal: rows of a multiple of 16 bytes");
  }
  const Rows rows = rows_of(config, groups, g);
  if (reason.empty() && rows.rows > kMax) {
    reason = text("M = ", rows.rows, " rows pass 32-bit coordinates");
  }
  if (reason.empty() && stores_by_tma(config, g)) {
    reason = groups == RowGroups::phases
                 ? tensor_map_refusal(phase_map(config, g, "output"))
                 : tensor_map_refusal(output_map(config, g, "output", groups));
  }
  if (!reason.empty()) return reason;
  const std::int64_t tiles =
      rows.groups * (ceil_div(rows.rows, config.block_tile_shape.m) + config.cluster_shape.m) *
      (ceil_div(g.out_channels, config.mma_shape.n) + config.cluster_shape.n);
  if (tiles > kMax) return text(tiles, " tiles pass the grid's 2^31");
  return {};
}

ConvArguments describe(const ConvKernelConfig& config, const ConvGeometry& g,
                       const RunPointers& pointers) {
  const std::string reason = refusal(config, g);
  if (!reason.empty()) throw Error(Status::unsupported, name_of(config) + ": " + reason);
  const KernelView view = view_of(g);
  ConvArguments a{};
  a.row_groups = row_groups_of(config, g);
  const Rows rows = rows_of(config, a.row_groups, g);
  a.tiled_loads = loads_tiles(a.row_groups, g);
  a.patches_across = static_cast<int>(ceil_div(g.out[2], kPatchColumns));
  a.groups = static_cast<int>(rows.groups);
  a.rows = static_cast<int>(rows.rows);
  a.filters = static_cast<int>(g.out_channels);
  a.m_clusters =
      static_cast<int>(ceil_div(rows.rows, config.block_tile_shape.m * config.cluster_shape.m));
  a.n_clusters =
      static_cast<int>(ceil_div(g.out_channels, config.mma_shape.n * config.cluster_shape.n));
  a.channel_atoms = static_cast<int>(ceil_div(g.in_channels, config.atom_k()));
  a.last_atom_channels = static_cast<int>(
      ceil_div(g.in_channels - (a.channel_atoms - 1) * std::int64_t{config.atom_k()}, 16) * 16);
  for (int axis = 0; axis < 3; ++axis) {
    a.filter_extent[axis] = static_cast<int>(view.filter[axis]);
    a.out_extent[axis] = static_cast<int>(view.out[axis]);
    a.stride[axis] = static_cast<int>(g.stride[axis]);
    a.pad[axis] = static_cast<int>(g.pad_begin[axis]);
    a.dilation[axis] = static_cast<int>(g.dilation[axis]);
  }
  a.frames = static_cast<int>(g.in[0]);
  a.cached_frames = static_cast<int>(g.cached_frames);
  a.epilogue = EpilogueParams(pointers.epilogue);
  a.tma_store = stores_by_tma(config, g);
  a.out_pointer = pointers.output;
  a.source_pointer = pointers.epilogue.residual;

  const auto encode_activation = [&](const char* name, std::int64_t frames, const void* data) {
    if (a.tiled_loads) {
      TiledTensorMap map = tiled_activation_map(config, g, name, a.row_groups, frames);
      map.address = data;
      return encode(map);
    }
    Im2colTensorMap map = activation_map(config, g, name, a.row_groups, frames);
    map.address = data;
    return encode(map);
  };
  a.activation = encode_activation("activation", g.in[0], pointers.activation);
  a.cache = g.cached_frames > 0 ? encode_activation("cache", g.cached_frames, pointers.cache)
                                : a.activation;
  TiledTensorMap filter = filter_map(config, g);
  filter.address = pointers.filter;
  a.filter = encode(filter);
  if (!a.tma_store) return a;

  const auto encode_result = [&](CUtensorMap* maps, const char* name, const void* data) {
    if (a.row_groups == RowGroups::phases) {
      Im2colTensorMap map = phase_map(config, g, name);
      for (int phase = 0; phase < 4; ++phase) {
        const std::int64_t pixel = (phase >> 1) * g.out[2] + (phase & 1);
        map.address = static_cast<const char*>(data) + pixel * g.out_channels * config.out_bytes();
        maps[phase] = encode(map);
      }
    } else {
      TiledTensorMap map = output_map(config, g, name, a.row_groups);
      map.address = data;
      maps[0] = encode(map);
    }
  };
  encode_result(a.output, "output", pointers.output);
  if (a.epilogue.has_residual) encode_result(a.source, "residual", pointers.epilogue.residual);
  return a;
}

void prepare(const ConvKernel& kernel) {
  const std::pair<const void*, std::size_t> entries[] = {
      {kernel.run, kernel.shared_bytes},
      {kernel.run_with_residual, kernel.shared_bytes_with_residual}};
  for (const auto& [function, bytes] : entries) {
    const cudaError_t error = cudaFuncSetAttribute(
        function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      throw Error(Status::launch_failure,
                  text(name_of(kernel.config), ": cannot have ", bytes,
                       " bytes of shared memory: ", cudaGetErrorString(error)));
    }
  }
}

void launch(const ConvKernel& kernel, const ConvArguments& arguments, const void* compute_op,
            const void* store_op, cudaStream_t stream) {
  if (kernel.has_hooks && !arguments.tma_store) {
    throw Error(Status::unsupported,
                text(name_of(kernel.config), ": out_channels = ", arguments.filters,
                     ", but hooks see whole vectors; legal: a multiple of ",
                     16 / kernel.config.out_bytes()));
  }
  const GemmShape cluster = kernel.config.cluster_shape;
  const bool residual = arguments.epilogue.has_residual;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(cluster.m),
                                  static_cast<unsigned>(cluster.n),
                                  static_cast<unsigned>(cluster.k)};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(arguments.groups * arguments.m_clusters *
                                              arguments.n_clusters * cluster.m),
                        static_cast<unsigned>(cluster.n), static_cast<unsigned>(cluster.k));
  config.blockDim = dim3(256, 1, 1);
  config.dynamicSmemBytes = residual ? kernel.shared_bytes_with_residual : kernel.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  void* parameters[] = {const_cast<ConvArguments*>(&arguments), const_cast<void*>(compute_op),
                        const_cast<void*>(store_op)};
  const cudaError_t error =
      cudaLaunchKernelExC(&config, residual ? kernel.run_with_residual : kernel.run, parameters);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    throw Error(Status::launch_failure,
                text(name_of(kernel.config), ": grid ", config.gridDim.x, " x ", config.gridDim.y,
                     " x ", config.gridDim.z, ", cluster ", cluster.m, " x ", cluster.n, " x ",
                     cluster.k, ", ", config.dynamicSmemBytes, " bytes of shared memory: ",
                     cudaGetErrorName(error), ": ", cudaGetErrorString(error)));
  }
}

double estimate_us(const ConvKernelConfig& config, const ConvGeometry& g, int multiprocessors) {
  constexpr double kClockMhz = 1850.0;            // B200 boost clock.
  constexpr double kMacsPerCycle = 4096.0;        // Dense bf16 per SM: 2.25 PFLOP/s / 148 / clock.
  constexpr double kSharedBytesPerCycle = 128.0;  // Shared-memory read bandwidth of an SM.
  constexpr double kTileOverheadCycles = 900.0;   // First loads and last epilogue step of a tile.
  // NOTE: rate at which an SM sends to others of its cluster: what has been measured on Hopper.
  constexpr double kExchangeBytesPerCycle = 16.0;
  constexpr double kLaunchUs = 3.0;
  constexpr double kBytesPerUs = 8e6 * 0.9;  // 8 TB/s, nine tenths of it.
  const RowGroups groups = row_groups_of(config, g);
  const Rows rows = rows_of(config, groups, g);
  const KernelView view = view_of(g);
  const GemmShape block = config.block_tile_shape;
  const double tiles =
      double(rows.groups) * double(ceil_div(rows.rows, block.m * config.cluster_shape.m)) *
      double(ceil_div(g.out_channels, config.mma_shape.n * config.cluster_shape.n));
  const double clusters =
      std::max(1.0, std::floor(double(multiprocessors) / config.cluster_size()));
  const double waves = std::ceil(tiles / clusters);
  const double taps = double(view.filter[0] * view.filter[1] * view.filter[2]);
  const double steps = taps * double(ceil_div(g.in_channels, 16));
  // A 16-deep step: the tensor core's own rate, or reading both operands from shared memory.
  const double mma = double(block.m) * config.mma_shape.n * 16.0 / kMacsPerCycle;
  const double shared = (block.m + block.n) * 32.0 / kSharedBytesPerCycle;
  const double parts = config.cluster_shape.k;
  const double exchange = config.exchange_bytes() * (parts - 1) / parts / kExchangeBytesPerCycle;
  const double cycles =
      waves * (steps / parts * std::max(mma, shared) + exchange + kTileOverheadCycles);
  const double bytes =
      double(g.activation_elements() + g.filter_elements()) * size_of(config.act_dtype) +
      double(g.output_elements()) * config.out_bytes();
  return kLaunchUs + std::max(cycles / kClockMhz, bytes / kBytesPerUs);
}

}  // namespace convoy::sm100
