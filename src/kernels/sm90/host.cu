// SPDX-License-Identifier: Apache-2.0
//
// Host twin of kernel.cuh: binds an instance to a problem (loader, tiling, tensor maps)
// and launches it.
#include <cuda_runtime.h>

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "convoy/error.hpp"
#include "kernels/sm90/host.hpp"

namespace convoy::sm90 {
namespace {

constexpr int kBlockK = 64;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

std::string text(std::int64_t value) {
  return std::to_string(value);
}

// Spatial problem of one phase: a folded nearest-2x upsampling runs four 2x2 convolutions on the
// low-resolution input, phase (py, px) starting at row p - 1 + py.
struct PhaseGeometry {
  int phases = 1;
  std::int64_t filter[3], out[3], pad[3], pad_end[3];
};

PhaseGeometry phase_geometry(const ConvGeometry& g) {
  PhaseGeometry phase;
  for (int i = 0; i < 3; ++i) {
    phase.filter[i] = g.filter[i];
    phase.out[i] = g.out[i];
    phase.pad[i] = g.pad_begin[i];
    phase.pad_end[i] = g.pad_end[i];
  }
  if (g.upsample == 2) {
    phase.phases = 4;
    for (int i = 1; i < 3; ++i) {
      phase.filter[i] = 2;
      phase.out[i] = g.in[i];
    }
  }
  return phase;
}

// Tiles may straddle frames where a temporal tap never selects another frame.
bool can_straddle(const ConvGeometry& g) {
  return g.filter[0] == 1 && g.stride[0] == 1 && g.pad_begin[0] == 0 && g.pad_end[0] == 0 &&
         g.cached_frames == 0;
}

TiledTensorMap frames_map(const ConvGeometry& g, DType dtype, const char* name,
                          std::int64_t frames) {
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  TiledTensorMap map;
  map.name = name;
  map.dtype = dtype;
  map.rank = 4;
  map.extents = {g.in_channels, g.in[2], g.in[1], g.batch * frames, 0};
  map.strides_bytes = {0, g.in_channels * element, g.in[2] * g.in_channels * element,
                       g.in[1] * g.in[2] * g.in_channels * element, 0};
  return map;
}

Im2colTensorMap im2col_map(const ConvGeometry& g, DType dtype, const char* name,
                           std::int64_t frames, int pixels) {
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  Im2colTensorMap map;
  map.name = name;
  map.dtype = dtype;
  map.rank = 4;
  map.extents = {g.in_channels, g.in[2], g.in[1], g.batch * frames, 0};
  map.strides_bytes = {0, g.in_channels * element, g.in[2] * g.in_channels * element,
                       g.in[1] * g.in[2] * g.in_channels * element, 0};
  for (int i = 0; i < 2; ++i) {
    const int axis = 2 - i;
    map.lower_corner[i] = static_cast<int>(-g.pad_begin[axis]);
    map.upper_corner[i] =
        static_cast<int>(g.pad_end[axis] - (g.filter[axis] - 1) * g.dilation[axis]);
    map.element_strides[i + 1] = static_cast<int>(g.stride[axis]);
  }
  map.channels = kBlockK;
  map.pixels = pixels;
  return map;
}

Im2colTensorMap im2col_map_5d(const ConvGeometry& g, DType dtype, int pixels) {
  Im2colTensorMap map = im2col_map(g, dtype, "activation", g.in[0], pixels);
  map.rank = 5;
  map.extents[3] = g.in[0];
  map.extents[4] = g.batch;
  map.strides_bytes[4] = map.strides_bytes[3] * g.in[0];
  map.lower_corner[2] = static_cast<int>(-g.pad_begin[0]);
  map.upper_corner[2] = static_cast<int>(g.pad_end[0] - (g.filter[0] - 1) * g.dilation[0]);
  map.element_strides[3] = static_cast<int>(g.stride[0]);
  return map;
}

// Whether filter offsets fit the instruction: 8 bits per axis of a 4-D copy, 5 of a 5-D one.
bool offsets_fit(const ConvGeometry& g, int first_axis, std::int64_t limit) {
  for (int i = first_axis; i < 3; ++i) {
    if ((g.filter[i] - 1) * g.dilation[i] > limit) return false;
  }
  return true;
}

struct PatchTiling {
  int columns = 0;  // 8x8 sub-patches side by side; 0: none fits
  std::int64_t tiles_across = 0, tiles_down = 0;
  std::int64_t halo_width = 0, halo_height = 0;
};

// The patch shape with the fewest tiles, then the smallest halo.
PatchTiling choose_patch(const ConvGeometry& g, const PhaseGeometry& phase,
                         const FpropInstance& instance) {
  PatchTiling best;
  std::int64_t best_cost = std::numeric_limits<std::int64_t>::max();
  const int blocks = instance.block_m / 64;
  for (int columns = 1; columns <= blocks; ++columns) {
    if (blocks % columns != 0) continue;
    const int rows = blocks / columns;
    PatchTiling tiling;
    tiling.columns = columns;
    tiling.tiles_across = ceil_div(phase.out[2], 8 * columns);
    tiling.tiles_down = ceil_div(phase.out[1], 8 * rows);
    tiling.halo_width = 8 * columns + (phase.filter[2] - 1) * g.dilation[2];
    tiling.halo_height = 8 * rows + (phase.filter[1] - 1) * g.dilation[1];
    const std::int64_t pixels = tiling.halo_width * tiling.halo_height;
    if (instance.halo &&
        (pixels > instance.halo_pixels || tiling.halo_width > 256 || tiling.halo_height > 256)) {
      continue;
    }
    const std::int64_t cost =
        ceil_div(tiling.tiles_across * tiling.tiles_down, instance.cluster_m()) * 1000000 + pixels;
    if (cost < best_cost) {
      best_cost = cost;
      best = tiling;
    }
  }
  return best;
}

Loader choose_loader(const ConvGeometry& g, const FpropInstance& instance, DType dtype) {
  if (instance.halo) return Loader::halo;
  if (g.upsample == 2) return Loader::patch;
  const std::int64_t plane = g.out[1] * g.out[2];
  constexpr std::int64_t kMaxPixels = (std::int64_t{1} << 31) - 4096;
  if (plane > kMaxPixels) return Loader::patch;
  const bool pointwise = g.filter[1] == 1 && g.filter[2] == 1 && g.stride[1] == 1 &&
                         g.stride[2] == 1 && g.pad_begin[1] == 0 && g.pad_begin[2] == 0 &&
                         g.pad_end[1] == 0 && g.pad_end[2] == 0;
  if (pointwise) return Loader::tiled;
  // Small frames fill tiles only if tiles may straddle them, which needs the 5-D copy.
  if (!can_straddle(g) && g.cached_frames == 0 && g.gemm_m() <= kMaxPixels &&
      ceil_div(plane, instance.block_m) * instance.block_m * 10 > plane * 11 &&
      offsets_fit(g, 0, 31) &&
      tensor_map_refusal(im2col_map_5d(g, dtype, instance.block_m)).empty()) {
    return Loader::im2col_5d;
  }
  if (offsets_fit(g, 1, 255) &&
      tensor_map_refusal(im2col_map(g, dtype, "activation", g.in[0], instance.block_m)).empty()) {
    return Loader::im2col;
  }
  return Loader::patch;
}

// The activation in a form of EpiloguePath::curved; false where it has none. `exact`: without the
// approximations that only 16-bit outputs hide.
bool curved_activation(const Epilogue& epilogue, bool exact, CurvedActivation* curved) {
  using Form = CurvedActivation::Form;
  CurvedActivation& f = *curved;
  const auto sigmoid_of = [&](std::initializer_list<float> coefficients, float limit,
                              bool times_x) {
    constexpr float kLog2E = 1.44269504f;
    f.form = Form::sigmoid;
    f.times_x = times_x;
    f.limit = limit;
    int i = 0;
    for (const float c : coefficients) f.c[i++] = -kLog2E * c;
    return !exact;
  };
  const auto clamp_of = [&](float factor, float offset, float low, float high, bool times_x) {
    f.form = Form::clamp;
    f.times_x = times_x;
    f.c[0] = factor;
    f.c[1] = offset;
    f.c[2] = low;
    f.c[3] = high;
    return true;
  };
  constexpr float kNoLimit = 1e30f;
  switch (epilogue.activation) {
    case Activation::clamp:
      return clamp_of(1.0f, 0.0f, epilogue.parameter_a, epilogue.parameter_b, false);
    case Activation::hardswish:
      return clamp_of(1.0f / 6.0f, 0.5f, 0.0f, 1.0f, true);
    case Activation::sigmoid:
      return sigmoid_of({1.0f}, kNoLimit, false);
    case Activation::tanh:  // 2·sigmoid(2x) - 1
      f.scale = 2.0f;
      f.offset = -1.0f;
      f.linear_to = 0.03f;
      return sigmoid_of({2.0f}, kNoLimit, false);
    case Activation::gelu_tanh:  // (1 + tanh(y)) / 2 = sigmoid(2y)
      return sigmoid_of({1.59576912f, 0.0713548128f}, kNoLimit, true);
    case Activation::gelu:
      // The normal distribution function as sigmoid(x·P(x²)), P fitted to its logit on |x| < 5. The
      // GELU's error is at most 0.54·(2^-12·|GELU| + 2^-20): under the rounding of 16-bit outputs.
      return sigmoid_of({1.59569496f, 0.0728268901f, -0.000163110774f, -8.55014594e-05f,
                         4.88676169e-06f, -9.40833743e-08f},
                        25.0f, true);
    default:
      return false;
  }
}

// The shortest path that computes this epilogue; fills in p.activation where it is `curved`.
EpiloguePath choose_path(const FpropInstance& instance, const Epilogue& epilogue, FpropParams& p) {
  if (p.direct_store || p.epilogue.round_each_step) return EpiloguePath::general;
  switch (p.epilogue.activation) {
    case Activation::none:
      return p.epilogue.has_residual ? EpiloguePath::fused : EpiloguePath::plain;
    case Activation::relu:
    case Activation::silu:
      return EpiloguePath::fused;
    default:
      return curved_activation(epilogue, size_of(instance.out) == 4, &p.activation)
                 ? EpiloguePath::curved
                 : EpiloguePath::general;
  }
}

const void* choose_kernel(const FpropInstance& instance, const Epilogue& epilogue, FpropParams& p) {
  const EpiloguePath path = choose_path(instance, epilogue, p);
  const void* const kernel = instance.kernels[static_cast<int>(path)];
  return kernel != nullptr ? kernel : instance.kernels[static_cast<int>(EpiloguePath::general)];
}

}  // namespace

std::string FpropInstance::name() const {
  std::string result = text(block_m) + "x" + text(block_n);
  if (pingpong) result += "_pingpong";
  if (cluster_n > 1) {
    result += "_1x" + text(cluster_n) + "cta";
  } else if (cluster > 1) {
    result += "_" + text(cluster) + "cta";
  }
  if (halo) result += "_halo";
  if (resident) result += "_resident";
  if (split) result += "_splitk";
  if (swapped) result += "_swapped";
  return result;
}

std::string fprop_refusal(const ConvGeometry& g, const FpropInstance& instance,
                          bool packed_filter) {
  if (g.groups != 1) return "groups = " + text(g.groups) + "; this kernel computes 1 group";
  if (g.in_channels % 8 != 0) {
    return "C = " + text(g.in_channels) + " is not a multiple of 8 (16-byte rows for TMA)";
  }
  if (g.in_channels < 8) return "C = " + text(g.in_channels) + "; at least 8";
  for (int i = 0; i < 3; ++i) {
    static const char* const kAxes[3] = {"depth", "height", "width"};
    const bool padded = g.pad_begin[i] != 0 || g.pad_end[i] != 0;
    if (padded && g.pad_mode[i] != PadMode::zero) {
      return std::string("padding mode of ") + kAxes[i] + " is not zero";
    }
    if (i > 0 && g.stride[i] > 8) {
      return std::string("stride of ") + kAxes[i] + " = " + text(g.stride[i]) +
             "; TMA steps by 1..8";
    }
    if (g.pad_begin[i] > 30000 || g.pad_end[i] > 30000 ||
        (g.filter[i] - 1) * g.dilation[i] > 60000) {
      return std::string("padding or filter extent of ") + kAxes[i] + " exceeds 30000 / 60000";
    }
  }
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  for (const std::int64_t extent :
       {g.in[0], g.in[1], g.in[2], g.out[0], g.out[1], g.out[2], g.in_channels, 4 * g.out_channels,
        g.batch * (g.in[0] + g.cached_frames), g.batch * g.out[0], 4 * g.taps()}) {
    if (extent > kMax - 4096) return "an extent of " + text(extent) + " passes 32-bit coordinates";
  }
  if (g.upsample == 2) {
    const bool foldable = g.filter[1] == 3 && g.filter[2] == 3 && g.stride[1] == 1 &&
                          g.stride[2] == 1 && g.dilation[1] == 1 && g.dilation[2] == 1 &&
                          g.pad_begin[1] == 1 && g.pad_begin[2] == 1 && g.pad_end[1] == 1 &&
                          g.pad_end[2] == 1;
    if (!foldable) return "upsampling is folded for 3x3 filters with stride 1 and padding 1 only";
    if (!packed_filter)
      return "folded upsampling needs a packed filter (PlanOptions::packed_filter)";
  } else if (g.upsample != 1) {
    return "upsample = " + text(g.upsample) + "; 1 or 2";
  }
  const PhaseGeometry phase = phase_geometry(g);
  if (instance.halo) {
    if (g.stride[1] != 1 || g.stride[2] != 1) {
      return "the halo loader needs stride 1, got " + text(g.stride[1]) + "x" + text(g.stride[2]);
    }
    if (phase.filter[1] * phase.filter[2] == 1) {
      return "the halo loader gains nothing on 1x1 filters";
    }
    if (choose_patch(g, phase, instance).columns == 0) {
      return "the halo of a " + text(phase.filter[1]) + "x" + text(phase.filter[2]) +
             " filter does not fit " + text(instance.halo_pixels) + " pixels of a stage";
    }
  }
  if (instance.resident) {
    const std::int64_t blocks = ceil_div(g.in_channels, kBlockK);
    if (!can_straddle(g) || choose_loader(g, instance, instance.in) != Loader::tiled) {
      return "filters stay in shared memory for 1x1 convolutions of stride 1 without padding only";
    }
    if (blocks > instance.stages) {
      return "C = " + text(g.in_channels) + "; filters of at most " +
             text(instance.stages * kBlockK) + " channels stay in shared memory";
    }
  }
  if (instance.cluster_n > 1) {
    if (choose_loader(g, instance, instance.in) != Loader::tiled) {
      return "activation tiles are shared for 1x1 filters of stride 1 without padding only";
    }
    const std::int64_t n_tiles = ceil_div(g.out_channels, instance.block_n);
    if (n_tiles % instance.cluster_n != 0) {
      return "K = " + text(g.out_channels) + " is " + text(n_tiles) + " tiles of " +
             text(instance.block_n) + " filters; " + text(instance.cluster_n) +
             " CTAs with a filter tile each share activation tiles";
    }
  }
  if (instance.swapped && is_patched(choose_loader(g, instance, instance.in))) {
    return "pixels would have to be loaded in patches; swapped tiles take runs of pixels";
  }
  const std::int64_t m_tiles =
      std::max<std::int64_t>(1, ceil_div(g.gemm_m(), 32)) * ceil_div(g.out_channels, 64) * 4;
  if (m_tiles > kMax) return "more than 2^31 tiles";
  return {};
}

int resident_ctas(const FpropPlan& plan, int multiprocessors) {
  const auto n_tiles = static_cast<int>(ceil_div(plan.params.filters, plan.instance.block_n));
  return multiprocessors / n_tiles * n_tiles;
}

void set_band(FpropParams& p, int band) {
  p.band = band;
  p.tiles_per_band = FastDivide(static_cast<std::int64_t>(band) * p.frames_per_batch);
  p.full_band = FastDivide(band);
  p.last_band = FastDivide(p.m_clusters % band == 0 ? band : p.m_clusters % band);
}

FpropPlan plan_fprop(const ConvGeometry& g, const FpropInstance& instance, bool packed_filter,
                     int multiprocessors, int splits) {
  const std::string reason = fprop_refusal(g, instance, packed_filter);
  if (!reason.empty())
    throw Error(Status::unsupported, "sm90_fprop_" + instance.name() + ": " + reason);
  const PhaseGeometry phase = phase_geometry(g);
  const DType dtype = instance.in;
  const auto element = static_cast<std::int64_t>(size_of(dtype));

  FpropPlan plan;
  plan.instance = instance;
  FpropParams& p = plan.params;
  p.loader = choose_loader(g, instance, dtype);
  p.channels = static_cast<int>(g.in_channels);
  p.filters = static_cast<int>(g.out_channels);
  p.phases = phase.phases;
  for (int i = 0; i < 3; ++i) {
    p.filter[i] = static_cast<int>(phase.filter[i]);
    p.out[i] = static_cast<int>(phase.out[i]);
    p.pad[i] = static_cast<int>(phase.pad[i]);
    p.stride[i] = static_cast<int>(g.stride[i]);
    p.dilation[i] = static_cast<int>(g.dilation[i]);
  }
  p.cached_frames = static_cast<int>(g.cached_frames);
  p.new_frames = static_cast<int>(g.in[0]);
  p.channel_blocks = static_cast<int>(ceil_div(g.in_channels, kBlockK));
  p.last_block_steps =
      static_cast<int>(ceil_div(g.in_channels - (p.channel_blocks - 1) * kBlockK, 16));
  const std::int64_t n_tiles = ceil_div(g.out_channels, instance.block_n);
  if (instance.resident && n_tiles > multiprocessors) {
    throw Error(Status::unsupported, "sm90_fprop_" + instance.name() + ": " + text(n_tiles) +
                                         " filter tiles stay in " + text(multiprocessors) +
                                         " multiprocessors; one each is needed");
  }

  // Tiles along M.
  constexpr std::int64_t kMaxPixels = (std::int64_t{1} << 31) - 4096;
  const std::int64_t plane = phase.out[1] * phase.out[2];
  const bool straddle =
      p.loader == Loader::im2col_5d || ((p.loader == Loader::tiled || p.loader == Loader::im2col) &&
                                        can_straddle(g) && g.gemm_m() <= kMaxPixels);
  const std::int64_t output_frames = straddle ? 1 : g.batch * g.out[0];
  p.output_frames = static_cast<int>(output_frames);
  p.skip_taps = p.loader != Loader::im2col_5d && (g.pad_begin[0] > 0 || g.pad_end[0] > 0);
  // NOTE: measured on 1x1 layers of few filters whose input is about as large as L2: 3 to 8 %
  // faster, since what was read makes room first. Slower (up to 13 %) where tiles of other filters
  // come back for it, or where it streams through L2 so fast that a row's second 128 bytes are gone
  // again.
  p.read_once = p.loader == Loader::tiled && g.in_channels >= 2 * g.out_channels &&
                g.activation_elements() * element <= (std::int64_t{64} << 20);
  // What set-up may load: plain runs of pixels, and patches, that need no thought about frames.
  p.preloaded = 0;
  if (can_straddle(g) && !instance.split) {
    if (p.loader == Loader::tiled) p.preloaded = std::min(instance.act_stages, p.channel_blocks);
    if (p.loader == Loader::halo) {
      p.preloaded = std::min(instance.stages, p.filter[1] * p.filter[2]);
    }
  }
  p.frames_per_batch = straddle ? 1 : static_cast<int>(g.out[0]);
  p.frame_pixels = straddle ? g.gemm_m() : plane;
  std::int64_t m_tiles = ceil_div(p.frame_pixels, instance.block_m);
  p.patch_columns = 1;
  if (is_patched(p.loader)) {
    const PatchTiling tiling = choose_patch(g, phase, instance);
    p.patch_columns = tiling.columns;
    p.tile_columns = 8 * tiling.columns;
    p.tile_rows = instance.block_m / p.tile_columns;
    p.patches_across = FastDivide(tiling.tiles_across);
    p.halo_width = static_cast<int>(tiling.halo_width);
    p.halo_height = static_cast<int>(tiling.halo_height);
    m_tiles = tiling.tiles_across * tiling.tiles_down;
  }
  p.m_clusters = static_cast<int>(ceil_div(m_tiles, instance.cluster_m()));
  p.band = p.m_clusters;
  if (p.frames_per_batch > 1) {
    // Keep the input rows of a band of tiles, for all temporal taps, in a part of L2.
    constexpr std::int64_t kBandBytes = 12 << 20;
    const std::int64_t bytes = instance.block_m * instance.cluster_m() * g.in_channels * element *
                               g.stride[1] * g.stride[2] * std::min(g.filter[0], g.seen()[0]);
    const std::int64_t busy = ceil_div(multiprocessors, instance.cluster * n_tiles * p.phases);
    p.band = static_cast<int>(std::clamp<std::int64_t>(
        std::max(kBandBytes / std::max<std::int64_t>(bytes, 1), busy), 1, p.m_clusters));
  }
  const std::int64_t n_clusters = n_tiles / instance.cluster_n;
  const std::int64_t cluster_tiles =
      static_cast<std::int64_t>(p.m_clusters) * output_frames * n_clusters * p.phases;
  plan.cluster_size = instance.split ? splits : instance.cluster;
  if (cluster_tiles * plan.cluster_size > std::numeric_limits<std::int32_t>::max() - 4096) {
    throw Error(Status::unsupported, "sm90_fprop_" + instance.name() + ": more than 2^31 tiles");
  }
  p.num_cluster_tiles = static_cast<int>(cluster_tiles);
  plan.num_tiles = p.num_cluster_tiles * plan.cluster_size;
  set_band(p, p.band);
  p.phase_filter_tiles = FastDivide(n_clusters * p.phases);
  p.filter_tiles = FastDivide(n_clusters);
  p.tiles_per_batch = FastDivide(static_cast<std::int64_t>(p.m_clusters) * p.frames_per_batch);
  p.blocks = FastDivide(p.channel_blocks);
  p.plane = FastDivide(std::min<std::int64_t>(plane, kMaxPixels));
  p.width = FastDivide(p.out[2]);
  p.depth = FastDivide(p.out[0]);

  // Activation.
  switch (p.loader) {
    case Loader::tiled:
      plan.act_tiled = frames_map(g, dtype, "activation", g.in[0]);
      plan.cache_tiled = frames_map(g, dtype, "cache", std::max<std::int64_t>(1, g.cached_frames));
      for (TiledTensorMap* map : {&plan.act_tiled, &plan.cache_tiled}) {
        map->rank = 3;
        map->extents[1] = straddle ? g.gemm_m() : plane;
        map->extents[2] = straddle ? 1 : map->extents[3];
        map->strides_bytes[2] = map->strides_bytes[3];
        map->box = {kBlockK, instance.block_m / instance.cluster_n, 1, 0, 0};
      }
      break;
    case Loader::im2col:
      plan.im2col = true;
      plan.act_im2col = im2col_map(g, dtype, "activation", g.in[0], instance.block_m);
      plan.cache_im2col = im2col_map(g, dtype, "cache", std::max<std::int64_t>(1, g.cached_frames),
                                     instance.block_m);
      break;
    case Loader::im2col_5d:
      plan.im2col = true;
      plan.act_im2col = im2col_map_5d(g, dtype, instance.block_m);
      break;
    case Loader::patch:
    case Loader::halo:
      plan.act_tiled = frames_map(g, dtype, "activation", g.in[0]);
      plan.cache_tiled = frames_map(g, dtype, "cache", std::max<std::int64_t>(1, g.cached_frames));
      for (TiledTensorMap* map : {&plan.act_tiled, &plan.cache_tiled}) {
        if (p.loader == Loader::halo) {
          map->box = {kBlockK, p.halo_width, p.halo_height, 1, 0};
        } else {
          map->box = {kBlockK, 7 * p.stride[2] + 1, 7 * p.stride[1] + 1, 1, 0};
          map->element_strides = {1, p.stride[2], p.stride[1], 1, 1};
        }
      }
      break;
  }

  // Filter {C, K, taps}.
  const std::int64_t taps = phase.filter[0] * phase.filter[1] * phase.filter[2];
  plan.filter.name = "filter";
  plan.filter.dtype = dtype;
  plan.filter.rank = 3;
  plan.filter.extents = {g.in_channels, g.out_channels * phase.phases, taps, 0, 0};
  plan.filter.strides_bytes = {0, g.in_channels * taps * element, g.in_channels * element, 0, 0};
  plan.filter.box = {kBlockK, instance.block_n / instance.cluster_m(), 1, 0, 0};

  // Output and residual.
  const auto out_element = static_cast<std::int64_t>(size_of(instance.out));
  const std::int64_t row_bytes = g.out_channels * out_element;
  p.direct_store = row_bytes % 16 != 0;
  TiledTensorMap& output = plan.output;
  output.name = "output";
  output.dtype = instance.out;
  output.rank = 4;
  output.swizzle = instance.chunk_n * out_element == 64 ? Swizzle::b64 : Swizzle::b128;
  if (is_patched(p.loader)) {
    const std::int64_t scale = phase.phases == 4 ? 2 : 1;
    output.extents = {g.out_channels, phase.out[2], phase.out[1], output_frames, 0};
    output.strides_bytes = {0, row_bytes * scale, phase.out[2] * scale * row_bytes * scale,
                            plane * scale * scale * row_bytes, 0};
    output.box = {instance.chunk_n, 8, 2, 1, 0};
    for (int i = 0; i < phase.phases; ++i) {
      plan.phase_offset_bytes[i] = (i / 2 * phase.out[2] * scale + i % 2) * row_bytes;
    }
  } else {
    output.extents = {g.out_channels, p.frame_pixels, 1, output_frames, 0};
    output.strides_bytes = {0, row_bytes, p.frame_pixels * row_bytes, p.frame_pixels * row_bytes,
                            0};
    output.box = {instance.chunk_n, instance.chunk_rows, 1, 1, 0};
  }

  // Check every map now, so that run() cannot be refused.
  const auto require = [&](const std::string& refusal) {
    if (!refusal.empty()) {
      throw Error(Status::unsupported, "sm90_fprop_" + instance.name() + ": " + refusal);
    }
  };
  require(plan.im2col ? tensor_map_refusal(plan.act_im2col) : tensor_map_refusal(plan.act_tiled));
  require(tensor_map_refusal(plan.filter));
  if (!p.direct_store) require(tensor_map_refusal(plan.output));
  return plan;
}

void prepare_fprop(const FpropInstance& instance) {
  for (const void* kernel : instance.kernels) {
    if (kernel == nullptr) continue;
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, instance.shared_bytes);
    if (error != cudaSuccess) {
      cudaGetLastError();
      throw Error(Status::launch_failure,
                  "sm90_fprop_" + instance.name() + ": no " + text(instance.shared_bytes) +
                      " bytes of shared memory: " + cudaGetErrorString(error));
    }
  }
}

void launch_fprop(const FpropPlan& plan, const RunPointers& pointers, int multiprocessors,
                  const void* compute_op, const void* store_op, cudaStream_t stream) {
  FpropParams p = plan.params;
  p.epilogue = EpilogueParams(pointers.epilogue);
  const void* const kernel = choose_kernel(plan.instance, pointers.epilogue, p);
  p.output_pointer = pointers.output;
  p.source_pointer = pointers.epilogue.residual;

  // Tensor maps of these pointers.
  const auto at = [](auto map, const void* address) {
    map.address = address;
    return encode(map);
  };
  p.activation_map = plan.im2col ? at(plan.act_im2col, pointers.activation)
                                 : at(plan.act_tiled, pointers.activation);
  if (p.cached_frames > 0) {
    p.cache_map =
        plan.im2col ? at(plan.cache_im2col, pointers.cache) : at(plan.cache_tiled, pointers.cache);
  }
  p.filter_map = at(plan.filter, pointers.filter);
  if (!p.direct_store) {
    for (int i = 0; i < p.phases; ++i) {
      const std::int64_t offset = plan.phase_offset_bytes[i];
      p.output_map[i] = at(plan.output, static_cast<const char*>(pointers.output) + offset);
      if (p.epilogue.has_residual) {
        p.source_map[i] =
            at(plan.output, static_cast<const char*>(pointers.epilogue.residual) + offset);
      }
    }
  }

  // Persistent: one CTA per SM at most; split tiles get a cluster each.
  const FpropInstance& instance = plan.instance;
  int ctas = plan.num_tiles;
  if (!instance.split) {
    ctas = std::min(ctas, multiprocessors / plan.cluster_size * plan.cluster_size);
  }
  if (instance.resident) ctas = std::min(ctas, resident_ctas(plan, multiprocessors));
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(plan.cluster_size);
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(ctas));
  config.blockDim = dim3(static_cast<unsigned>(instance.threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(instance.shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  // NOTE: split kernels have cluster barriers, which a launch without clusters runs as block
  // barriers.
  config.numAttrs = plan.cluster_size > 1 || instance.split ? 2 : 1;
  void* arguments[] = {&p, const_cast<void*>(compute_op), const_cast<void*>(store_op)};
  const cudaError_t error = cudaLaunchKernelExC(&config, kernel, arguments);
  if (error != cudaSuccess) {
    throw Error(Status::launch_failure, "sm90_fprop_" + instance.name() + ": launch of " +
                                            text(ctas) + " CTAs in clusters of " +
                                            text(plan.cluster_size) +
                                            " failed: " + cudaGetErrorString(error));
  }
}

}  // namespace convoy::sm90
