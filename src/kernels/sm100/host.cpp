// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm100/host.hpp"

#include <algorithm>

#include "core/checked.hpp"
#include "core/text.hpp"
#include "kernels/common/implicit_gemm.hpp"

namespace convoy::sm100 {
namespace {

using implicit_gemm::kernel_view;
using implicit_gemm::KernelView;
using implicit_gemm::kMaxCoordinate;

Swizzle swizzle_of(int bytes) {
  return static_cast<Swizzle>(bytes);
}

// ---- Tensor maps --------------------------------------------------------------------------------

// Activations come by tiled copies, not by im2col.
bool loads_tiles(RowGroups groups, const ConvGeometry& g) {
  return groups == RowGroups::patches ||
         (groups != RowGroups::volumes && implicit_gemm::is_pointwise(g));
}

Im2colTensorMap im2col_activation_map(const Config& config, const ConvGeometry& g, const char* name,
                                      RowGroups groups, std::int64_t frames) {
  Im2colTensorMap map =
      implicit_gemm::im2col_map(g, config.act_dtype, name, frames, config.atom_k(),
                                config.act_slice_rows(), groups == RowGroups::volumes);
  map.swizzle = swizzle_of(config.a_swizzle);
  return map;
}

// A patch of a tile with its border: columns and rows.
struct HaloExtent {
  std::int64_t width, height;
  std::int64_t pixels() const { return width * height; }
};

HaloExtent halo_extent(const Config& config, const ConvGeometry& g) {
  const KernelView view = kernel_view(g);
  return {kPatchColumns + (view.filter[2] - 1) * g.dilation[2],
          config.block_tile_shape.m / kPatchColumns + (view.filter[1] - 1) * g.dilation[1]};
}

// {C, x, y, frame}: pixels as they lie, or patches whose pixels are a stride apart.
TiledTensorMap tiled_activation_map(const Config& config, const ConvGeometry& g, const char* name,
                                    RowGroups groups, std::int64_t frames) {
  TiledTensorMap map = implicit_gemm::frames_map(g, config.act_dtype, name, frames);
  map.swizzle = swizzle_of(config.a_swizzle);
  if (config.has_halo()) {
    const HaloExtent halo = halo_extent(config, g);
    map.box = {config.atom_k(), static_cast<int>(halo.width), static_cast<int>(halo.height), 1, 0};
    return map;
  }
  if (groups == RowGroups::patches) {
    const int rows = config.act_slice_rows() / kPatchColumns;
    const int stride_h = static_cast<int>(g.stride[1]), stride_w = static_cast<int>(g.stride[2]);
    map.box = {config.atom_k(), (kPatchColumns - 1) * stride_w + 1, (rows - 1) * stride_h + 1, 1,
               0};
    map.element_strides = {1, stride_w, stride_h, 1, 1};
    return map;
  }
  const bool images = groups == RowGroups::images;
  const std::int64_t frame = g.in[1] * g.in[2], all = g.batch * frames;
  const std::int64_t pixels = images ? all * frame : frame;
  map.extents = {g.in_channels, pixels, 1, images ? 1 : all, 0};
  map.strides_bytes[2] = map.strides_bytes[3] = pixels * map.strides_bytes[1];
  map.box = {config.atom_k(), config.act_slice_rows(), 1, 1, 0};
  return map;
}

// {C, taps, K, phases}
TiledTensorMap filter_map(const Config& config, const ConvGeometry& g) {
  const KernelView view = kernel_view(g);
  const std::int64_t row = g.in_channels * static_cast<std::int64_t>(size_of(config.filter_dtype));
  TiledTensorMap map;
  map.name = "filter";
  map.dtype = config.filter_dtype;
  map.rank = 4;
  map.extents = {g.in_channels, view.taps(), g.out_channels, view.phases, 0};
  map.strides_bytes = {0, row, view.taps() * row, g.out_channels * view.taps() * row, 0};
  map.box = {config.atom_k(), 1, config.filter_slice_rows(), 1, 0};
  map.swizzle = swizzle_of(config.b_swizzle);
  return map;
}

// {K, x, y, n}: rows of a group along x, or with patches columns and rows, of a phase.
TiledTensorMap output_map(const Config& config, const ConvGeometry& g, const RowLayout& layout) {
  const KernelView view = kernel_view(g);
  const std::int64_t pitch = g.out_channels * config.out_bytes();
  const std::int64_t frame = g.output_frame_elements() * config.out_bytes();
  TiledTensorMap map;
  map.name = "output";
  map.dtype = config.out_dtype;
  map.rank = 4;
  if (layout.row_groups == RowGroups::patches) {
    const std::int64_t step = view.phases == 4 ? 2 : 1;  // every second pixel of every second row
    map.extents = {g.out_channels, view.out[2], view.out[1], layout.groups / view.phases, 0};
    map.strides_bytes = {0, step * pitch, step * g.output_row_elements() * config.out_bytes(),
                         frame, 0};
    map.box = {config.output_tile_shape.n, kPatchColumns,
               config.output_tile_shape.m / kPatchColumns, 1, 0};
  } else {
    map.extents = {g.out_channels, layout.rows, 1, layout.groups, 0};
    map.strides_bytes = {0, pitch, layout.rows * pitch,
                         g.dense_output() ? layout.rows * pitch : frame, 0};
    map.box = {config.output_tile_shape.n, config.output_tile_shape.m, 1, 1, 0};
  }
  map.swizzle = swizzle_of(config.c_swizzle);
  return map;
}

// The output of one phase: every second pixel of every second row, walked in im2col mode.
Im2colTensorMap phase_map(const Config& config, const ConvGeometry& g) {
  const std::int64_t pitch = g.out_channels * config.out_bytes();
  Im2colTensorMap map;
  map.name = "output";
  map.dtype = config.out_dtype;
  map.rank = 4;
  map.extents = {g.out_channels, g.in[2], g.in[1], g.batch * g.in[0], 0};
  map.strides_bytes = {0, 2 * pitch, 2 * g.out[2] * pitch, g.out[1] * g.out[2] * pitch, 0};
  map.channels = config.output_tile_shape.n;
  map.pixels = config.output_tile_shape.m;
  map.swizzle = swizzle_of(config.c_swizzle);
  return map;
}

// Call `body` with the map of the activation, or of its cache, whichever kind it is.
template <typename Body>
auto with_activation_map(const Config& config, const ConvGeometry& g, const char* name,
                         RowGroups groups, std::int64_t frames, const Body& body) {
  return loads_tiles(groups, g) ? body(tiled_activation_map(config, g, name, groups, frames))
                                : body(im2col_activation_map(config, g, name, groups, frames));
}

template <typename Body>
auto with_output_map(const Config& config, const ConvGeometry& g, const RowLayout& layout,
                     const Body& body) {
  return layout.row_groups == RowGroups::phases ? body(phase_map(config, g))
                                                : body(output_map(config, g, layout));
}

bool stores_by_tma(const Config& config, const ConvGeometry& g) {
  return g.out_channels * config.out_bytes() % 16 == 0;
}

// ---- Rows ---------------------------------------------------------------------------------------

std::string volumes_refusal(const Config& config, const ConvGeometry& g) {
  if (g.cached_frames != 0) return text("cached_frames = ", g.cached_frames, "; legal: 0");
  // TMA counts the frames, and reads zeros outside.
  if (implicit_gemm::view_pad_mode(g, 0) != PadMode::zero) {
    return text("padding mode of depth = ", to_string(g.pad_mode[0]), "; legal: zero");
  }
  if (g.gemm_m() > kMaxCoordinate) {
    return text("M = ", g.gemm_m(), "; legal: at most ", kMaxCoordinate, " (32-bit coordinates)");
  }
  std::string reason = implicit_gemm::offset_refusal(g, 0, implicit_gemm::kMaxOffset5d);
  if (!reason.empty()) return reason;
  return tensor_map_refusal(
      im2col_activation_map(config, g, "activation", RowGroups::volumes, g.in[0]));
}

RowGroups row_groups_of(const Config& config, const ConvGeometry& g) {
  if (config.has_halo()) return RowGroups::patches;
  if (g.upsample == 2) return RowGroups::phases;
  if (!g.dense_output_rows()) return RowGroups::patches;  // Runs of pixels are none in the output.
  const std::int64_t plane = g.out[1] * g.out[2];
  const bool reads_frames = implicit_gemm::is_pointwise(g) || im2col_refusal(config, g).empty();
  if (!g.dense_output())
    return reads_frames && plane <= kMaxCoordinate ? RowGroups::frames : RowGroups::patches;
  if (implicit_gemm::is_planar(g)) {
    if (reads_frames && g.gemm_m() <= kMaxCoordinate) return RowGroups::images;
  } else if (volumes_refusal(config, g).empty()) {
    // Frames fill their tiles, or skip filter depths that meet only padding, or let tiles straddle
    // frames: the layout with fewer rows of work, counting half of what is skipped.
    const std::int64_t tile = config.block_tile_shape.m * config.cluster_shape.m;
    const auto by_frames = static_cast<double>(ceil_div(plane, tile) * tile * g.out[0] * g.batch);
    const auto by_volumes = static_cast<double>(ceil_div(g.gemm_m(), tile) * tile);
    if (!reads_frames || by_frames > 1.1 * by_volumes) return RowGroups::volumes;
  }
  return reads_frames && plane <= kMaxCoordinate ? RowGroups::frames : RowGroups::patches;
}

}  // namespace

std::string im2col_refusal(const Config& config, const ConvGeometry& g) {
  std::string reason = implicit_gemm::offset_refusal(g, 1, implicit_gemm::kMaxOffset4d);
  if (!reason.empty()) return reason;
  return tensor_map_refusal(
      im2col_activation_map(config, g, "activation", RowGroups::frames, g.in[0]));
}

RowLayout row_layout(const Config& config, const ConvGeometry& g) {
  const RowGroups row_groups = row_groups_of(config, g);
  const KernelView view = kernel_view(g);
  switch (row_groups) {
    case RowGroups::frames:
      return {row_groups, g.batch * g.out[0], g.out[1] * g.out[2]};
    case RowGroups::patches:
      return {row_groups, view.phases * g.batch * g.out[0],
              ceil_div(view.out[1], config.block_tile_shape.m / kPatchColumns) *
                  ceil_div(view.out[2], kPatchColumns) * config.block_tile_shape.m};
    case RowGroups::phases:
      return {row_groups, 4, g.batch * g.in[0] * g.in[1] * g.in[2]};
    case RowGroups::images:
    case RowGroups::volumes:
      break;
  }
  return {row_groups, 1, g.gemm_m()};
}

// ---- Refusals -----------------------------------------------------------------------------------

namespace {

// Rows of the output that are not whole 16-byte vectors, where something needs them to be.
std::string vectors_refusal(const Instance& instance, const ConvGeometry& g) {
  const char* const who = g.upsample == 2                            ? "upsampling"
                          : !instance.config.register_based_epilogue ? "an epilogue on staged tiles"
                          : instance.has_hooks                       ? "hooks"
                                                                     : nullptr;
  if (who == nullptr || stores_by_tma(instance.config, g)) return {};
  const int vector = 16 / instance.config.out_bytes();
  return text("out_channels = ", g.out_channels, " with ", who, "; legal: a multiple of ", vector,
              " (16-byte vectors); nearest: ", ceil_div(g.out_channels, vector) * vector);
}

// What 32-bit counters and the grid of the kernel cannot hold, and reductions too short to split.
std::string size_refusal(const Config& config, const ConvGeometry& g, const RowLayout& layout) {
  const KernelView view = kernel_view(g);
  const bool frame_at_a_time =
      layout.row_groups == RowGroups::frames || layout.row_groups == RowGroups::patches;
  const std::int64_t channel_atoms = ceil_div(g.in_channels, config.atom_k());
  const std::int64_t atoms = view.taps() / (frame_at_a_time ? view.filter[0] : 1) * channel_atoms;
  if (atoms < config.cluster_shape.k) {
    return text("a reduction of ", atoms, " spans of ", config.atom_k(), " channels split ",
                config.cluster_shape.k, " ways; legal: at most ", atoms);
  }
  if (g.taps() * channel_atoms > kMaxCoordinate / 8) {
    return text("a reduction of ", g.taps() * channel_atoms, " spans of ", config.atom_k(),
                " channels; legal: at most ", kMaxCoordinate / 8, " (32-bit counters)");
  }
  if (layout.rows > kMaxCoordinate) {
    return text("rows of a group = ", layout.rows, "; legal: at most ", kMaxCoordinate,
                " (32-bit coordinates)");
  }
  const std::int64_t tiles =
      layout.groups * (ceil_div(layout.rows, config.block_tile_shape.m) + config.cluster_shape.m) *
      (ceil_div(g.out_channels, config.mma_shape.n) + config.cluster_shape.n);
  if (tiles > kMaxCoordinate) {
    return text("tiles = ", tiles, "; legal: at most ", kMaxCoordinate, " (the grid)");
  }
  return {};
}

std::string halo_refusal(const Config& config, const ConvGeometry& g) {
  for (int axis = 1; axis < 3; ++axis) {
    if (g.stride[axis] != 1) {
      return text("stride of ", kAxisNames[axis], " = ", g.stride[axis],
                  "; legal: 1 (taps slide over a patch); nearest: 1");
    }
  }
  const KernelView view = kernel_view(g);
  if (view.filter[1] * view.filter[2] == 1) {
    return "a filter of 1x1; legal: more taps (a patch has no border)";
  }
  const HaloExtent halo = halo_extent(config, g);
  if (halo.width > 256 || halo.height > 256 || halo.pixels() > config.halo_pixels) {
    return text("a patch with the border of a ", view.filter[1], "x", view.filter[2],
                " filter of dilation ", g.dilation[1], "x", g.dilation[2], " has ", halo.pixels(),
                " pixels; legal: at most ", config.halo_pixels);
  }
  return {};
}

// Padding by replication and reflection across a frame: pixels of a patch that lie outside the
// input are copied from others of the same patch (border.cuh). Along depth any frame can be read.
std::string border_refusal(const Config& config, const ConvGeometry& g) {
  if (!config.has_halo()) return implicit_gemm::pad_mode_refusal(g, 1);
  const KernelView view = kernel_view(g);
  const HaloExtent halo = halo_extent(config, g);
  const std::int64_t rows = config.block_tile_shape.m / kPatchColumns;
  std::string reason =
      implicit_gemm::border_refusal(g, 1, {rows, halo.height, ceil_div(view.out[1], rows)});
  if (reason.empty()) {
    reason = implicit_gemm::border_refusal(
        g, 2, {kPatchColumns, halo.width, ceil_div(view.out[2], kPatchColumns)});
  }
  return reason;
}

std::string resident_refusal(const Config& config, const ConvGeometry& g) {
  if (!g.dense_output()) return "an output with pitches; legal: a dense one (one group of rows)";
  if (!implicit_gemm::is_planar(g) || !implicit_gemm::is_pointwise(g)) {
    return text("a filter of ", g.filter[0], "x", g.filter[1], "x", g.filter[2],
                " with its strides and padding; legal: 1x1x1, stride 1, no padding (filters stay "
                "in shared memory)");
  }
  // With a residual fewer stages are left.
  const std::int64_t most = std::int64_t{config.pipeline_stages(true)} * config.atom_k();
  if (g.in_channels > most) {
    return text("in_channels = ", g.in_channels, "; legal: at most ", most,
                " (filters stay in shared memory); nearest: ", most);
  }
  return {};
}

std::string input_refusal(const Config& config, const ConvGeometry& g) {
  switch (config.input) {
    case Input::halo:
    case Input::normalised:
      return halo_refusal(config, g);
    case Input::resident:
      return resident_refusal(config, g);
    case Input::runs:
      break;
  }
  return {};
}

}  // namespace

std::string refusal(const Instance& instance, const ConvGeometry& g, bool packed_filter) {
  const Config& config = instance.config;
  std::string reason = implicit_gemm::refusal(g, packed_filter);
  if (reason.empty()) reason = vectors_refusal(instance, g);
  if (reason.empty()) reason = implicit_gemm::output_pitch_refusal(g, config.out_dtype);
  if (reason.empty()) reason = implicit_gemm::coordinate_refusal(g);
  if (reason.empty()) reason = input_refusal(config, g);
  if (reason.empty()) reason = border_refusal(config, g);
  if (!reason.empty()) return reason;
  const RowLayout layout = row_layout(config, g);
  const auto judge = [](const auto& map) { return tensor_map_refusal(map); };
  reason = with_activation_map(config, g, "activation", layout.row_groups, g.in[0], judge);
  if (reason.empty()) reason = tensor_map_refusal(filter_map(config, g));
  if (reason.empty()) reason = size_refusal(config, g, layout);
  if (reason.empty() && stores_by_tma(config, g)) {
    reason = with_output_map(config, g, layout, judge);
  }
  return reason;
}

std::string prologue_refusal(const Instance& instance, const ConvGeometry& g,
                             const PrologueKind& prologue) {
  const Config& config = instance.config;
  if (!config.normalises()) {
    return prologue.any() ? text("prologue = ", to_string(prologue), "; legal: none") : "";
  }
  std::string reason = implicit_gemm::normaliser_refusal(g, prologue);
  if (!reason.empty() || prologue.norm != PrologueNorm::rms) return reason;
  const HaloExtent halo = halo_extent(config, g);
  const std::int64_t floats = implicit_gemm::inverse_rms_pitch(halo.width) * halo.height;
  if (floats > config.inverse_rms_floats()) {
    return text("a patch of ", halo.height, "x", halo.width, " pixels has ", floats,
                " of inverse RMS, in rows of 4; legal: at most ", config.inverse_rms_floats());
  }
  return {};
}

// ---- Launches -----------------------------------------------------------------------------------

std::string name_of(const Instance& instance) {
  const Config& config = instance.config;
  std::string name = text("sm100_fprop_", config.mma_shape.m, "x", config.mma_shape.n, "x",
                          config.block_tile_shape.k, "_", config.cta_group, "sm_c",
                          config.cluster_shape.m, "x", config.cluster_shape.n);
  if (config.splits_reduction()) name += text("x", config.cluster_shape.k);
  if (config.a_swizzle != 128) name += text("_s", config.a_swizzle);
  if (config.k_group_size != 1) name += text("_k", config.k_group_size);
  if (config.input == Input::halo) name += "_halo";
  if (config.input == Input::normalised) name += "_normalised";
  if (config.input == Input::resident) name += "_resident";
  name += text("_", to_string(config.act_dtype));
  if (config.out_dtype != config.act_dtype) name += text("_", to_string(config.out_dtype));
  return name;
}

namespace {

// What a launch asks for: so much that no two CTAs share an SM. NOTE: each takes all of the tensor
// memory, and those of two pairs, one on each of two SMs first, would wait for each other forever.
std::size_t launch_bytes(std::size_t shared_bytes) {
  return std::max<std::size_t>(shared_bytes, 116 * 1024);
}

}  // namespace

Launch plan_launch(const Instance& instance, const ConvGeometry& g, bool packed_filter,
                   const PrologueKind& prologue) {
  Launch plan{.name = name_of(instance), .instance = instance};
  std::string reason = refusal(instance, g, packed_filter);
  if (reason.empty()) reason = prologue_refusal(instance, g, prologue);
  if (!reason.empty()) throw Error(Status::unsupported, plan.name + ": " + reason);
  const Config& config = instance.config;
  const KernelView view = kernel_view(g);
  const RowLayout layout = row_layout(config, g);

  Params& p = plan.params;
  p.row_groups = layout.row_groups;
  p.tiled_loads = loads_tiles(layout.row_groups, g);
  p.patches_across = static_cast<int>(ceil_div(view.out[2], kPatchColumns));
  p.groups = static_cast<int>(layout.groups);
  p.phases = static_cast<int>(view.phases);
  p.groups_per_phase = static_cast<int>(layout.groups / view.phases);
  if (config.has_halo()) {
    const HaloExtent halo = halo_extent(config, g);
    p.halo_width = static_cast<int>(halo.width);
    p.halo_height = static_cast<int>(halo.height);
    p.halo_bytes = static_cast<int>(halo.pixels()) * config.a_swizzle;
    p.block_bytes = config.a_swizzle;
    p.patch_width = FastDivide(halo.width);
    p.inverse_rms_pitch = static_cast<int>(implicit_gemm::inverse_rms_pitch(halo.width));
    p.inverse_rms_bytes = p.inverse_rms_pitch * p.halo_height * static_cast<int>(sizeof(float));
    if (prologue.norm == PrologueNorm::rms) {
      p.inverse_rms_map =
          encode_template(implicit_gemm::inverse_rms_map(g, halo.width, halo.height));
    }
  }
  p.rows = static_cast<int>(layout.rows);
  p.filters = static_cast<int>(g.out_channels);
  p.channels = static_cast<int>(g.in_channels);
  p.prologue.norm = prologue.norm;
  p.prologue.activation = prologue.activation;
  p.m_clusters =
      static_cast<int>(ceil_div(layout.rows, config.block_tile_shape.m * config.cluster_shape.m));
  p.n_clusters =
      static_cast<int>(ceil_div(g.out_channels, config.mma_shape.n * config.cluster_shape.n));
  p.channel_atoms = static_cast<int>(ceil_div(g.in_channels, config.atom_k()));
  p.last_atom_channels = static_cast<int>(
      ceil_div(g.in_channels - (p.channel_atoms - 1) * std::int64_t{config.atom_k()}, 16) * 16);
  for (std::size_t axis = 0; axis < 3; ++axis) {
    p.filter_extent[axis] = static_cast<int>(view.filter[axis]);
    p.out_extent[axis] = static_cast<int>(view.out[axis]);
    p.stride[axis] = static_cast<int>(g.stride[axis]);
    p.pad[axis] = static_cast<int>(g.pad_begin[axis]);
    p.dilation[axis] = static_cast<int>(view.dilation[axis]);
    p.pad_mode[axis] = implicit_gemm::view_pad_mode(g, static_cast<int>(axis));
  }
  for (std::size_t i = 0; i < 2; ++i) {
    p.in[i] = static_cast<int>(g.in[i + 1]);
    p.pad_behind[i] = static_cast<int>(g.pad_end[i + 1]);
  }
  p.fills_border = p.pad_mode[1] != PadMode::zero || p.pad_mode[2] != PadMode::zero;
  p.frames = static_cast<int>(g.in[0]);
  p.cached_frames = static_cast<int>(g.cached_frames);
  p.tma_store = stores_by_tma(config, g);
  p.is_fp16 = config.act_dtype == DType::fp16;

  const auto encode = [](const auto& map) { return encode_template(map); };
  p.activation_map = with_activation_map(config, g, "activation", p.row_groups, g.in[0], encode);
  if (g.cached_frames > 0) {
    p.cache_map = with_activation_map(config, g, "cache", p.row_groups, g.cached_frames, encode);
  }
  p.filter_map = encode_template(filter_map(config, g));
  if (p.tma_store) p.output_map[0] = with_output_map(config, g, layout, encode);
  for (int phase = 0; phase < view.phases; ++phase) {
    plan.phase_offset_bytes[phase] = implicit_gemm::phase_offset_bytes(g, config.out_dtype, phase);
  }

  const auto extent = [](int value) { return static_cast<unsigned>(value); };
  const GemmShape cluster = config.cluster_shape;
  plan.config.cluster = dim3(extent(cluster.m), extent(cluster.n), extent(cluster.k));
  plan.config.grid = plan.config.cluster;
  plan.config.grid.x *= extent(p.groups * p.m_clusters * p.n_clusters);
  plan.config.block = dim3(extent(config.threads()));
  plan.config.shared_bytes = launch_bytes(instance.shared_bytes);
  plan.config.overlapped = true;
  return plan;
}

void prepare(const Instance& instance) {
  const std::string name = name_of(instance);
  raise_shared_memory_limit(instance.run, static_cast<int>(launch_bytes(instance.shared_bytes)),
                            name.c_str());
  raise_shared_memory_limit(instance.run_with_residual,
                            static_cast<int>(launch_bytes(instance.shared_bytes_with_residual)),
                            name.c_str());
}

void launch(const Launch& plan, const RunPointers& pointers, const void* compute_op,
            const void* store_op, cudaStream_t stream) {
  Params p = plan.params;
  p.epilogue = EpilogueParams(pointers.epilogue);
  p.prologue = pointers.prologue;
  if (p.prologue.norm == PrologueNorm::rms) {
    p.inverse_rms_map =
        at_address(p.inverse_rms_map, "prologue.inverse_rms", pointers.prologue.inverse_rms);
  }
  p.output_pointer = pointers.output;
  p.source_pointer = pointers.epilogue.residual;
  p.activation_map = at_address(p.activation_map, "activation", pointers.activation);
  p.cache_map =
      p.cached_frames > 0 ? at_address(p.cache_map, "cache", pointers.cache) : p.activation_map;
  p.filter_map = at_address(p.filter_map, "filter", pointers.filter);
  if (p.tma_store) {
    const CUtensorMap& output = plan.params.output_map[0];
    for (int phase = 0; phase < p.phases; ++phase) {
      const auto at = [&](const char* name, const void* data) {
        return at_address(output, name,
                          static_cast<const char*>(data) + plan.phase_offset_bytes[phase]);
      };
      p.output_map[phase] = at("output", pointers.output);
      if (p.epilogue.has_residual) {
        p.source_map[phase] = at("residual", pointers.epilogue.residual);
      }
    }
  }

  LaunchConfig config = plan.config;
  config.name = plan.name.c_str();
  config.stream = stream;
  const void* kernel = plan.instance.run;
  if (p.epilogue.has_residual) {
    kernel = plan.instance.run_with_residual;
    config.shared_bytes = launch_bytes(plan.instance.shared_bytes_with_residual);
  }
  void* arguments[] = {&p, const_cast<void*>(compute_op), const_cast<void*>(store_op)};
  launch_kernel(kernel, config, arguments);
}

}  // namespace convoy::sm100
