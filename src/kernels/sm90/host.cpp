// SPDX-License-Identifier: Apache-2.0
//
// Host twin of kernel.cuh: binds an instance to a problem that it does not refuse (tiling, tensor
// maps) and launches it.
#include "kernels/sm90/host.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/checked.hpp"
#include "core/text.hpp"
#include "kernels/common/gates.hpp"
#include "kernels/common/implicit_gemm.hpp"
#include "kernels/sm90/loading.hpp"

namespace convoy::sm90 {
namespace {

using implicit_gemm::KernelView;
using implicit_gemm::kMaxCoordinate;

[[noreturn]] void refuse(const std::string& reason) {
  throw Error(Status::unsupported, reason);
}

// Of a tensor whose pixels have the channels of all groups: their dimension behind the first, so
// that copies end where a group does.
void divide_groups(TiledTensorMap& map, std::int64_t groups) {
  if (groups == 1) return;
  for (int i = map.rank; i > 1; --i) {
    map.extents[i] = map.extents[i - 1];
    map.strides_bytes[i] = map.strides_bytes[i - 1];
    map.box[i] = map.box[i - 1];
    map.element_strides[i] = map.element_strides[i - 1];
  }
  ++map.rank;
  map.extents[0] /= groups;
  map.extents[1] = groups;
  map.strides_bytes[1] = map.extents[0] * static_cast<std::int64_t>(size_of(map.dtype));
  map.box[1] = 1;
  map.element_strides[1] = 1;
}

// The activation in a form of CurvedActivation.
void set_curved_activation(const Epilogue& epilogue, CurvedActivation* curved) {
  using Form = CurvedActivation::Form;
  CurvedActivation& f = *curved;
  const auto be_sigmoid = [&](float factor) {
    f.form = Form::sigmoid;
    f.c[0] = silu_exponent(factor);
  };
  const auto be_clamp = [&](float factor, float offset, float low, float high, bool times_x) {
    f.form = Form::clamp;
    f.times_x = times_x;
    f.c[0] = factor;
    f.c[1] = offset;
    f.c[2] = low;
    f.c[3] = high;
  };
  switch (epilogue.activation) {
    case Activation::leaky_relu:
      f.form = Form::leaky;
      f.c[0] = parameter_a_of(epilogue.activation, epilogue.parameter_a);
      break;
    case Activation::clamp:
      // NOTE: plus -0 leaves zeros their sign.
      be_clamp(1.0f, -0.0f, parameter_a_of(epilogue.activation, epilogue.parameter_a),
               parameter_b_of(epilogue.parameter_b), false);
      break;
    case Activation::hardswish:
      be_clamp(1.0f / 6.0f, 0.5f, 0.0f, 1.0f, true);
      break;
    case Activation::sigmoid:
      be_sigmoid(1.0f);
      break;
    case Activation::tanh:  // 2·sigmoid(2x) - 1
      f.scale = 2.0f;
      f.offset = -1.0f;
      f.linear_to = 0.03f;
      be_sigmoid(2.0f);
      break;
    default: {
      const GatePolynomial polynomial = gelu_gate(epilogue.activation);
      f.form = Form::gate;
      std::copy(std::begin(polynomial.c), std::end(polynomial.c), f.c);
    }
  }
}

// A product of matrices: [pixels, C] as one run by filters of one tap (Input::matrix).
bool is_matrix(const Params& p) {
  return p.loader == Loader::tiled && p.output_frames == 1 && p.phases == 1 && p.filter[0] == 1 &&
         p.cached_frames == 0 && !p.skip_taps;
}

// The entry point that computes this epilogue; fills in p.activation where its path wants it.
const void* choose_kernel(const Instance& instance, const Epilogue& epilogue, Params& p) {
  // Of the residual as a launch has it.
  const EpilogueKind kind{.activation = p.epilogue.activation,
                          .residual = p.epilogue.has_residual,
                          .rounding = p.epilogue.round_each_step ? EpilogueRounding::each_step
                                                                 : EpilogueRounding::once};
  const EpiloguePath path = p.statistics.slots > 0 ? EpiloguePath::statistics
                                                   : path_of(instance.config, kind, p.direct_store);
  if (path != EpiloguePath::general) set_curved_activation(epilogue, &p.activation);
  p.steps_in_place = p.epilogue.scale != 1.0f || p.epilogue.bias != nullptr ||
                     (path == EpiloguePath::plain && p.epilogue.activation == Activation::silu);
  const void* const entry = entry_of(instance, path, is_matrix(p));
  if (entry == nullptr) {
    refuse(text(name_of(instance), ": an epilogue ", to_string(epilogue),
                p.direct_store ? ", rows of no multiple of 16 bytes" : "",
                "; legal: ", legal_epilogues(instance), ", by TMA stores"));
  }
  return entry;
}

// NOTE: 96 channels are 48 and 48, not 64 and 32: a box whose rows reach past the last channel
// takes several times as long as its bytes.
void lay_out_channels(const Config& config, const ConvGeometry& g, Params& p) {
  const std::int64_t block = block_channels(config, g);
  p.channel_blocks = static_cast<int>(ceil_div(g.group_channels(), block));
  p.block_channels = static_cast<int>(block);
  p.filter_block = p.block_channels;
  p.block_bytes = p.block_channels * static_cast<int>(size_of(config.in));
  p.block_steps = p.block_channels / config.step_k();
  const std::int64_t last = g.group_channels() - (p.channel_blocks - 1) * block;
  p.last_block_steps = static_cast<int>(ceil_div(last, config.step_k()));
}

// Tiles may straddle frames where no tap leaves its frame, or a 5-D copy knows the frames.
bool straddles_frames(Loader loader, const ConvGeometry& g) {
  if (is_patched(loader) || loader == Loader::line || !g.dense_output()) return false;
  return loader == Loader::im2col_5d ||
         (implicit_gemm::is_planar(g) && g.gemm_m() <= kMaxCoordinate);
}

// Tiles of block_m pixels, the frames that they may straddle, and what set-up may load.
void lay_out_pixels(const Config& config, const ConvGeometry& g, const KernelView& view,
                    Params& p) {
  const std::int64_t plane = view.out[1] * view.out[2];
  const bool straddles = straddles_frames(p.loader, g);
  p.output_frames = static_cast<int>(straddles ? 1 : g.batch * g.out[0]);
  p.frames_per_batch = straddles ? 1 : static_cast<int>(g.out[0]);
  p.frame_pixels = straddles ? g.gemm_m() : plane;
  p.skip_taps = p.loader != Loader::im2col_5d && p.pad_mode[0] == PadMode::zero &&
                (g.pad_begin[0] > 0 || g.pad_end[0] > 0);
  // NOTE: measured on 1x1 layers of few filters whose input is about as large as L2: 3 to 8 %
  // faster, since what was read makes room first. Slower (up to 13 %) where tiles of other filters
  // come back for it, or where it streams through L2 so fast that a row's second 128 bytes are gone
  // again, and where taps along the depth come for it.
  p.read_once = p.loader == Loader::tiled && implicit_gemm::is_planar(g) &&
                g.in_channels >= 2 * g.out_channels &&
                g.activation_elements() * static_cast<std::int64_t>(size_of(config.in)) <=
                    (std::int64_t{64} << 20);
  // What set-up may load: plain runs of pixels, and patches, that need no thought about frames.
  p.preloaded = 0;
  if (implicit_gemm::is_planar(g) && !config.splits_k()) {
    if (p.loader == Loader::tiled && !p.is_grouped) {
      p.preloaded = std::min(config.act_ring_stages(), p.channel_blocks);
    }
    // NOTE: the loader goes on in the block of channels behind, of the same temporal tap.
    if (config.has_halo() && (p.filter[0] == 1 || p.channel_blocks > 1)) {
      p.preloaded = std::min<int>(config.filter_stages, p.filter[1] * p.filter[2]);
    }
  }
  std::int64_t m_tiles = ceil_div(p.frame_pixels, config.block_m);
  p.patch_columns = 1;
  if (config.has_halo() || is_patched(p.loader)) {
    const PatchTiling tiling = choose_patch(config, g, view);
    p.patch_columns = tiling.columns;
    p.tile_columns = static_cast<int>(tiling.tile_width);
    p.tile_rows = static_cast<int>(tiling.tile_height);
    p.patches_across = FastDivide(tiling.tiles_across);
    p.halo_width = static_cast<int>(tiling.halo_width);
    p.halo_height = static_cast<int>(tiling.halo_height);
    p.box_width = static_cast<int>(tiling.box_width);
    m_tiles = tiling.tiles_across * tiling.tiles_down;
  }
  p.m_clusters = static_cast<int>(ceil_div(m_tiles, config.cluster_m));
  p.plane = FastDivide(std::min(plane, kMaxCoordinate));
}

// Clusters of M tiles that are walked through all frames before the next: those whose input rows,
// for all temporal taps, stay in a part of L2.
int choose_band(const Config& config, const ConvGeometry& g, const Params& p, std::int64_t n_tiles,
                int multiprocessors) {
  if (p.frames_per_batch <= 1) return p.m_clusters;
  constexpr std::int64_t kBandBytes = 12 << 20;
  const std::int64_t bytes = config.block_m * config.cluster_m * g.in_channels *
                             static_cast<std::int64_t>(size_of(config.in)) * g.stride[1] *
                             g.stride[2] * std::min(g.filter[0], g.seen()[0]);
  const std::int64_t busy = ceil_div(multiprocessors, config.cluster_size() * n_tiles * p.phases);
  return static_cast<int>(std::clamp<std::int64_t>(
      std::max(kBandBytes / std::max<std::int64_t>(bytes, 1), busy), 1, p.m_clusters));
}

// By times on an H100 (docs/lab/2026-11-25-epilogues.md): CTAs that run together should cover some
// more filters than pixels, the more so the taller a tile is. Filters first covers all filters,
// which is right up to some 2,048.
TileOrder choose_order(const Config& config, const Params& p, std::int64_t slots) {
  constexpr double kFilters = 10.0;  // That a group of one M tile goes with, in heights of a tile.
  TileOrder order;
  order.m_tiles = p.m_clusters * p.output_frames;
  // Groups of channels share no pixels.
  if (config.is_resident() || p.is_grouped || p.num_cluster_tiles <= slots) return order;
  const double height = config.block_m * config.cluster_m;
  const double width = config.block_n * config.cluster_n;
  const double filters = width * p.phase_filter_tiles.divisor;
  const double group = std::round(filters / (kFilters * height) * std::min(1.0, width / height));
  order.group = static_cast<int>(std::clamp(group, 1.0, double(order.m_tiles)));
  order.group_size = FastDivide(order.group);
  const int last = order.m_tiles % order.group;
  order.last_group_size = FastDivide(last == 0 ? order.group : last);
  return order;
}

// The activation, or the cache, as the loader reads it.
std::variant<TiledTensorMap, Im2colTensorMap> input_map(const Config& config, const ConvGeometry& g,
                                                        const Params& p, const char* name,
                                                        std::int64_t frames) {
  if (p.loader == Loader::im2col || p.loader == Loader::im2col_5d) {
    return im2col_map(config, g, name, frames, p.loader == Loader::im2col_5d);
  }
  TiledTensorMap map = implicit_gemm::frames_map(g, config.in, name, frames);
  if (p.loader == Loader::tiled) {  // pixels as they lie: {C, pixels, frames}
    map.rank = 3;
    map.extents[1] = p.frame_pixels;
    map.extents[2] = straddles_frames(p.loader, g) ? 1 : map.extents[3];
    map.strides_bytes[2] = map.strides_bytes[3];
    map.box = {static_cast<int>(block_channels(config, g)), config.block_m / config.cluster_n, 1, 0,
               0};
  } else {
    const int width = config.has_halo() ? p.box_width : 8;
    const int height = config.has_halo() ? p.halo_height : 8;
    map.box = {static_cast<int>(block_channels(config, g)), (width - 1) * p.stride[2] + 1,
               (height - 1) * p.stride[1] + 1, 1, 0};
    map.element_strides = {1, p.stride[2], p.stride[1], 1, 1};
  }
  map.as_tf32 = config.in == DType::fp32;
  return map;
}

// Filters {C, K of all phases, taps}.
TiledTensorMap filter_map(const Config& config, const ConvGeometry& g, const KernelView& view,
                          bool in_lines) {
  const std::int64_t channels = in_lines ? packed_blocks(config, g).row() : g.group_channels();
  const std::int64_t tap = channels * static_cast<std::int64_t>(size_of(config.in));
  TiledTensorMap map;
  map.name = "filter";
  map.dtype = config.in;
  map.rank = 3;
  map.extents = {channels, g.out_channels * view.phases, view.taps(), 0, 0};
  map.strides_bytes = {0, tap * view.taps(), tap, 0, 0};
  map.box = {static_cast<int>(block_channels(config, g)), config.block_n / config.cluster_m, 1, 0,
             0};
  map.as_tf32 = config.in == DType::fp32;
  return map;
}

// Output or residual, of one phase: {K, pixels of a frame, 1, frames}, or {K, W, H, frames}.
TiledTensorMap output_map(const Config& config, const ConvGeometry& g, const KernelView& view,
                          const Params& p) {
  const auto element = static_cast<std::int64_t>(size_of(config.out));
  const std::int64_t pixel = g.out_channels * element;
  const std::int64_t row = g.output_row_elements() * element;
  const std::int64_t frame = g.output_frame_elements() * element;
  TiledTensorMap map;
  map.name = "output";
  map.dtype = config.out;
  map.rank = 4;
  map.swizzle = config.is_odd()                  ? Swizzle::none
                : config.piece_row_bytes() == 64 ? Swizzle::b64
                                                 : Swizzle::b128;
  if (is_patched(p.loader)) {
    const std::int64_t scale = view.phases == 4 ? 2 : 1;
    map.extents = {g.out_channels, view.out[2], view.out[1], p.output_frames, 0};
    map.strides_bytes = {0, pixel * scale, row * scale, frame, 0};
    map.box = {config.piece_n(), 8, 2, 1, 0};
  } else {
    map.extents = {g.out_channels, p.frame_pixels, 1, p.output_frames, 0};
    map.strides_bytes = {0, pixel, p.frame_pixels * pixel,
                         g.dense_output() ? p.frame_pixels * pixel : frame, 0};
    map.box = {config.piece_n(), config.piece_m(), 1, 1, 0};
  }
  divide_groups(map, g.groups);
  return map;
}

// One map a phase of an upsampling; groups are a dimension of theirs.
int output_maps(const Params& p) {
  return p.is_grouped ? 1 : p.phases;
}

// A warpgroup takes every second tile of its CTA. Where those of an image all have the same filters
// it leaves one record, in the place of the last one; else one of every tile.
StatisticsMerge plan_statistics(const Tiling& tiling, const ConvGeometry& g, std::int64_t groups,
                                int ctas) {
  const Params& p = tiling.params;
  StatisticsMerge merge;
  merge.batch = g.batch;
  merge.groups = static_cast<int>(groups);
  merge.filter_tiles = static_cast<int>(ceil_div(g.out_channels, tiling.config.block_n));
  merge.tile_slices = tiling.config.block_n / kSliceFilters;
  merge.group_slices = static_cast<int>(g.out_channels / groups) / kSliceFilters;
  const int step = 2 * ctas;
  merge.partials.image_tiles = static_cast<int>(p.num_cluster_tiles / g.batch);
  merge.partials.slots = merge.partials.image_tiles;
  if (step % (merge.filter_tiles * p.phases) == 0) {
    merge.partials.slots = std::min(merge.partials.slots, step);
  }
  merge.first_tile = (merge.partials.image_tiles - merge.partials.slots) % merge.filter_tiles;
  merge.slice_records = static_cast<int>(ceil_div(merge.partials.slots, merge.filter_tiles)) * 4;
  merge.by_records = FastDivide(merge.slice_records);
  merge.by_slices = FastDivide(merge.tile_slices);
  return merge;
}

}  // namespace

std::string name_of(const Instance& instance) {
  const Config& config = instance.config;
  std::string name = text("sm90_fprop_", config.block_m, "x", config.block_n);
  if (config.is_pingpong()) name += "_pingpong";
  if (config.cluster_n > 1) {
    name += text("_1x", config.cluster_n, "cta");
  } else if (config.cluster_m > 1) {
    name += text("_", config.cluster_m, "cta");
  }
  if (config.has_halo()) {
    name += config.has_planes() ? "_planes" : config.normalises() ? "_normalised" : "_halo";
  }
  if (config.is_resident()) name += "_resident";
  if (config.input == Input::grouped_runs) name += "_grouped";
  if (config.splits_k()) name += "_splitk";
  if (config.is_blockwise()) name += "_blockwise";
  if (config.is_swapped()) name += "_swapped";
  name += config.in == DType::fp32 ? "_tf32" : text("_", to_string(config.in));
  if (config.out != config.in) name += text("_", to_string(config.out));
  return name;
}

int resident_ctas(const Tiling& tiling, int multiprocessors) {
  const auto n_tiles = static_cast<int>(ceil_div(tiling.params.filters, tiling.config.block_n));
  return multiprocessors / n_tiles * n_tiles;
}

void set_band(Params& p, int band) {
  p.band = band;
  p.tiles_per_band = FastDivide(static_cast<std::int64_t>(band) * p.frames_per_batch);
  p.full_band = FastDivide(band);
  p.last_band = FastDivide(p.m_clusters % band == 0 ? band : p.m_clusters % band);
}

Tiling plan_tiling(const Instance& instance, const ConvGeometry& g, const LaunchOptions& options) {
  std::string reason = refusal(instance, g, options.packed_filter);
  if (reason.empty()) reason = prologue_refusal(instance, g, options.prologue);
  if (!reason.empty()) refuse(reason);
  const Config& config = instance.config;
  const KernelView view = implicit_gemm::kernel_view(g);
  const std::int64_t n_tiles = ceil_div(g.group_filters(), config.block_n);
  if (config.is_resident() && n_tiles > options.multiprocessors) {
    refuse(text("out_channels = ", g.out_channels, " are ", n_tiles, " tiles of ", config.block_n,
                " filters; legal: at most ", options.multiprocessors,
                " (each stays in a multiprocessor)"));
  }

  Tiling tiling;
  tiling.config = config;
  Params& p = tiling.params;
  p.loader = choose_loader(config, g);
  p.channels = static_cast<int>(g.group_channels());
  p.filters = static_cast<int>(g.group_filters());
  p.is_grouped = g.groups > 1;
  p.phases = static_cast<int>(p.is_grouped ? g.groups : view.phases);
  for (int i = 0; i < 3; ++i) {
    p.filter[i] = static_cast<int>(view.filter[i]);
    p.out[i] = static_cast<int>(view.out[i]);
    p.pad[i] = static_cast<int>(g.pad_begin[i]);
    p.stride[i] = static_cast<int>(g.stride[i]);
    p.dilation[i] = static_cast<int>(view.dilation[i]);
    p.pad_mode[i] = implicit_gemm::view_pad_mode(g, i);
  }
  for (int i = 0; i < 2; ++i) {
    p.in[i] = static_cast<int>(g.in[i + 1]);
    p.pad_behind[i] = static_cast<int>(g.pad_end[i + 1]);
  }
  p.fills_border = p.pad_mode[1] != PadMode::zero || p.pad_mode[2] != PadMode::zero;
  p.cached_frames = static_cast<int>(g.cached_frames);
  p.new_frames = static_cast<int>(g.in[0]);
  lay_out_channels(config, g, p);
  const bool in_lines = packs_in_lines(config, g, options.packed_filter);
  if (in_lines) p.filter_block = static_cast<int>(packed_blocks(config, g).pitch);
  for (int i = 0; i < 2; ++i) {
    p.planes[i] = config.has_planes() ? std::min(p.stride[i + 1], p.filter[i + 1]) : 1;
  }
  lay_out_pixels(config, g, view, p);
  p.norm = p.prologue.norm = options.prologue.norm;
  p.prologue.activation = options.prologue.activation;
  p.patch_width = FastDivide(p.halo_width);
  p.inverse_rms_pitch = static_cast<int>(implicit_gemm::inverse_rms_pitch(p.halo_width));
  p.inverse_rms_bytes = p.inverse_rms_pitch * p.halo_height * static_cast<int>(sizeof(float));
  set_band(p, choose_band(config, g, p, n_tiles, options.multiprocessors));

  const std::int64_t n_clusters = n_tiles / config.cluster_n;
  const std::int64_t cluster_tiles =
      static_cast<std::int64_t>(p.m_clusters) * p.output_frames * n_clusters * p.phases;
  tiling.cluster_size = config.splits_k() ? options.splits : config.cluster_size();
  if (cluster_tiles * tiling.cluster_size > kMaxCoordinate) {
    refuse(text(cluster_tiles * tiling.cluster_size, " tiles; legal: at most ", kMaxCoordinate,
                " (32-bit counters)"));
  }
  p.num_cluster_tiles = static_cast<int>(cluster_tiles);
  tiling.num_tiles = p.num_cluster_tiles * tiling.cluster_size;
  p.phase_filter_tiles = FastDivide(n_clusters * p.phases);
  // NOTE: statistics are merged by the order of tiles.
  if (options.statistics_groups == 0) {
    p.order = choose_order(config, p, options.multiprocessors / tiling.cluster_size);
  }
  p.filter_tiles = FastDivide(n_clusters);
  p.tiles_per_batch = FastDivide(static_cast<std::int64_t>(p.m_clusters) * p.frames_per_batch);
  p.blocks = FastDivide(p.channel_blocks);
  p.width = FastDivide(p.out[2]);
  p.depth = FastDivide(p.out[0]);
  p.direct_store = g.out_channels * static_cast<std::int64_t>(size_of(config.out)) % 16 != 0;

  tiling.activation = input_map(config, g, p, "activation", g.in[0]);
  tiling.cache = input_map(config, g, p, "cache", std::max<std::int64_t>(1, g.cached_frames));
  tiling.filter = filter_map(config, g, view, in_lines);
  tiling.output = output_map(config, g, view, p);
  const auto require = [&](const std::string& limit) {
    if (!limit.empty()) refuse(limit);
  };
  require(std::visit([](const auto& map) { return tensor_map_refusal(map); }, tiling.activation));
  if (g.cached_frames > 0) {
    require(std::visit([](const auto& map) { return tensor_map_refusal(map); }, tiling.cache));
  }
  require(tensor_map_refusal(tiling.filter));
  if (p.norm == PrologueNorm::rms) {
    tiling.inverse_rms = implicit_gemm::inverse_rms_map(g, p.halo_width, p.halo_height);
    require(tensor_map_refusal(tiling.inverse_rms));
  }
  if (!p.direct_store) require(tensor_map_refusal(tiling.output));
  return tiling;
}

Launch plan_launch(const Instance& instance, const ConvGeometry& g, const LaunchOptions& options) {
  const Tiling tiling = plan_tiling(instance, g, options);
  const Config& config = instance.config;
  Launch plan{.name = name_of(instance), .instance = instance, .params = tiling.params};
  Params& p = plan.params;
  const auto encoded = [](const auto& map) { return encode_template(map); };
  p.activation_map = std::visit(encoded, tiling.activation);
  if (p.cached_frames > 0) p.cache_map = std::visit(encoded, tiling.cache);
  if (p.norm == PrologueNorm::rms) p.inverse_rms_map = encode_template(tiling.inverse_rms);
  p.filter_map = encode_template(tiling.filter);
  if (!p.direct_store) p.output_map[0] = encode_template(tiling.output);
  for (int i = 0; i < output_maps(p); ++i) {
    plan.phase_offset_bytes[i] = implicit_gemm::phase_offset_bytes(g, config.out, i);
  }

  // Split tiles get a cluster each; other CTAs stay for several tiles.
  int ctas = tiling.num_tiles;
  if (!config.splits_k()) {
    const int clusters = std::max(1, options.multiprocessors / tiling.cluster_size);
    ctas = std::min(ctas, clusters * tiling.cluster_size);
  }
  if (config.is_resident()) ctas = std::min(ctas, resident_ctas(tiling, options.multiprocessors));
  plan.config.grid = dim3(static_cast<unsigned>(ctas));
  plan.config.block = dim3(static_cast<unsigned>(config.threads()));
  plan.config.shared_bytes = static_cast<std::size_t>(instance.shared_bytes);
  plan.config.overlapped = true;
  // NOTE: split kernels have cluster barriers, which a launch without clusters runs as block
  // barriers.
  if (tiling.cluster_size > 1 || config.splits_k()) {
    plan.config.cluster = dim3(static_cast<unsigned>(tiling.cluster_size));
  }
  if (options.statistics_groups > 0) {
    plan.statistics = plan_statistics(tiling, g, options.statistics_groups, ctas);
    p.statistics = plan.statistics.partials;
  }
  return plan;
}

void prepare(const Instance& instance) {
  for (const auto& kernels : {instance.kernels, instance.matrix_kernels}) {
    for (int path = 0; path < kEpiloguePaths; ++path) {
      if (kernels[path] == nullptr) continue;
      raise_shared_memory_limit(kernels[path], instance.shared_bytes, name_of(instance).c_str());
    }
  }
}

void launch(const Launch& plan, const RunPointers& pointers, const void* compute_op,
            const void* store_op, cudaStream_t stream) {
  Params p = plan.params;
  p.epilogue = EpilogueParams(pointers.epilogue);
  const void* const kernel = choose_kernel(plan.instance, pointers.epilogue, p);
  p.output_pointer = pointers.output;
  p.source_pointer = pointers.epilogue.residual;
  p.activation_map = at_address(p.activation_map, "activation", pointers.activation);
  if (p.cached_frames > 0) p.cache_map = at_address(p.cache_map, "cache", pointers.cache);
  p.filter_map = at_address(p.filter_map, "filter", pointers.filter);
  p.prologue = pointers.prologue;
  if (p.norm == PrologueNorm::rms) {
    p.inverse_rms_map =
        at_address(p.inverse_rms_map, "prologue.inverse_rms", pointers.prologue.inverse_rms);
  }
  for (int i = 0; i < output_maps(p) && !p.direct_store; ++i) {
    const CUtensorMap& map = plan.params.output_map[0];
    const std::int64_t offset = plan.phase_offset_bytes[i];
    auto* const output = static_cast<char*>(pointers.output);
    p.output_map[i] = at_address(map, "output", output + offset);
    if (p.epilogue.has_residual) {
      auto* const residual = static_cast<const char*>(pointers.epilogue.residual);
      p.source_map[i] = at_address(map, "residual", residual + offset);
    }
  }
  StatisticsMerge merge = plan.statistics;
  if (merge.groups > 0) {
    auto* const workspace = static_cast<std::byte*>(pointers.workspace);
    p.statistics.partials = reinterpret_cast<float2*>(workspace);
    p.statistics.pixels = reinterpret_cast<float*>(workspace + merge.partials_bytes());
    merge.partials = p.statistics;
  }
  LaunchConfig config = plan.config;
  config.name = plan.name.c_str();
  config.stream = stream;
  void* arguments[] = {&p, const_cast<void*>(compute_op), const_cast<void*>(store_op)};
  launch_kernel(kernel, config, arguments);
  if (merge.groups > 0) {
    merge_statistics(merge, reinterpret_cast<float2*>(pointers.statistics), stream);
  }
}

}  // namespace convoy::sm90
