// SPDX-License-Identifier: Apache-2.0
#include "kernels/mma/host.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "core/checked.hpp"
#include "core/text.hpp"
#include "kernels/common/device_geometry.cuh"
#include "kernels/common/implicit_gemm.hpp"
#include "kernels/common/launch.hpp"
#include "kernels/mma/split_sum.cuh"

namespace convoy::mma {
namespace {

// NOTE: over fewer products the parts that splitting drops err by more than twice what an FMA loop
// does (docs/lab/2026-11-22-split-operands.md).
constexpr std::int64_t kLeastSplitReduction = 16;

// Shared memory that a walk may take beyond a list.
constexpr int kWalkedExtraBytes = 2048;

constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();

// The convolution that the kernel runs: of one phase of a folded upsampling, or the problem itself.
implicit_gemm::KernelView view_of(const ConvGeometry& g, bool folds) {
  if (folds) return implicit_gemm::kernel_view(g);
  return {.filter = g.filter, .dilation = g.dilation, .out = g.out, .pad_end = g.pad_end};
}

std::int64_t view_pixels(const ConvGeometry& g, const implicit_gemm::KernelView& view) {
  return g.batch * view.out[0] * view.out[1] * view.out[2];
}

// Taps that the list holds: those of two steps that follow each other, as a power of two.
int listed_taps(const Config& config, std::int64_t tap_copies) {
  // The last copy of a tap that a step can begin with.
  const std::int64_t begin = tap_copies - std::gcd(tap_copies, config.row_copies());
  const std::int64_t taps = (begin + 2 * config.row_copies() - 1) / tap_copies + 1;
  return static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(taps)));
}

// How tiles lie that are walked.
enum class Walked { no, anywhere, within_frames };

// Tiles stay within frames where taps along depth are told by frames: of a cache, of padding other
// than zeros, of many. NOTE: such tiles end at each frame; where that leaves more than an eighth of
// their pixels over, a list costs less.
Walked walked(const Config& config, const ConvGeometry& g, const implicit_gemm::KernelView& view,
              const Params& p) {
  if (!config.can_walk() || p.upsample_shift != 0 || view.filter[1] > kWalkedRows ||
      view.filter[2] > kWalkedColumns ||
      config.walked_bytes(p.taps) > config.listed_bytes(p.list_mask + 1) + kWalkedExtraBytes) {
    return Walked::no;
  }
  for (int axis = 1; axis < 3; ++axis) {
    if (p.pad_mode[axis] != PadMode::zero) return Walked::no;
  }
  // First taps lie in the input or in the padding around it, which the kernel counts in 32 bits.
  const auto padding = [&](int axis) { return std::abs(p.pad[axis]) + g.pad_end[axis]; };
  const std::int64_t around = (padding(0) * p.height + padding(1)) * p.row_copies +
                              padding(2) * std::int64_t{p.pixel_copies};
  if (g.activation_elements() / config.copy_elements() + around > kMax) return Walked::no;
  if (p.cached_frames == 0 && p.pad_mode[0] == PadMode::zero &&
      static_cast<int>(p.filter_extent[0].divisor) <= kWalkedFrames) {
    return Walked::anywhere;
  }
  const std::int64_t frame = view.out[1] * view.out[2];
  const std::int64_t tiles = ceil_div(frame, std::int64_t{config.block_m});
  const bool counted = g.batch * view.out[0] * tiles * view.phases * g.groups *
                           ceil_div(g.group_filters(), std::int64_t{config.block_n}) <=
                       kMax;
  return counted && tiles * config.block_m * 8 <= frame * 9 ? Walked::within_frames : Walked::no;
}

// Whether output pixels are input pixels.
bool is_matrix(const ConvGeometry& g, const implicit_gemm::KernelView& view, const Params& p) {
  bool same = p.taps == 1 && view.phases == 1;
  for (int axis = 0; axis < 3; ++axis) {
    same = same && p.stride[axis] == 1 && p.pad[axis] == 0 && g.pad_end[axis] == 0 &&
           view.out[axis] == p.seen[axis];
  }
  return same;
}

}  // namespace

std::string name_of(const Instance& instance) {
  const Config& c = instance.config;
  const std::string by = c.copy_bytes == 16 ? "" : text("_by", int{c.copy_bytes});
  return text("mma_fprop_", c.block_m, "x", c.block_n, by, "_s", c.stages, "_",
              c.split ? "tf32x3" : to_string(c.in));
}

std::string refusal(const Instance& instance, const ConvGeometry& g, bool packed_filter) {
  const Config& config = instance.config;
  if (g.group_channels() % config.copy_elements() != 0) {
    return text("in_channels / groups = ", g.group_channels(), "; legal: a multiple of ",
                config.copy_elements(), " (copies of ", int{config.copy_bytes},
                " bytes); nearest: ",
                ceil_div(g.group_channels(), config.copy_elements()) * config.copy_elements());
  }
  std::string reason = device_geometry_refusal(g);
  if (!reason.empty()) return reason;
  const implicit_gemm::KernelView view =
      view_of(g, implicit_gemm::folds_upsampling(g, packed_filter));
  const auto limit = [&](const char* name, std::int64_t value, std::int64_t most) {
    if (value > most && reason.empty()) {
      reason = text(name, " = ", value, "; legal: at most ", most, "; nearest: ", most);
    }
  };
  // What the kernel counts in 32 bits.
  limit("output pixels of one phase", view_pixels(g, view), kMax - config.block_m);
  limit("elements of the activation", g.activation_elements(), kMax * config.copy_elements());
  limit("elements of the cache", g.cache_elements(), kMax * config.copy_elements());
  if (config.split && view.taps() * g.group_channels() < kLeastSplitReduction && reason.empty()) {
    reason = text("channels of a group * taps = ", view.taps() * g.group_channels(),
                  "; legal with split operands: at least ", kLeastSplitReduction,
                  " (fewer do not average their errors out); nearest: ", kLeastSplitReduction);
  }
  limit("the reduction", view.taps() * g.group_channels(),
        std::min<std::int64_t>(kMax - 8 * config.block_k(),
                               kMax / config.block_n * config.copy_elements()));
  limit("tiles",
        ceil_div(view_pixels(g, view), std::int64_t{config.block_m}) * view.phases * g.groups *
            ceil_div(g.group_filters(), std::int64_t{config.block_n}),
        kMax);
  if (reason.empty() && instance.listing == nullptr &&
      !plan_tiling(instance, g, packed_filter, 1).walks) {
    reason = text("taps that the kernel would have to list; legal: zeros around rows and columns, ",
                  "upsampling folded into the filter, at most ", kWalkedRows, "x", kWalkedColumns,
                  " taps of a frame (this tile walks them); nearest: a tile that lists them");
  }
  return reason;
}

Tiling plan_tiling(const Instance& instance, const ConvGeometry& g, bool packed_filter,
                   int splits) {
  const Config& config = instance.config;
  const bool folds = implicit_gemm::folds_upsampling(g, packed_filter);
  const implicit_gemm::KernelView view = view_of(g, folds);
  // Taps along depth that meet no frame are left out.
  const DepthTaps depth = folds ? DepthTaps{0, view.filter[0]} : depth_taps(g);
  const std::int64_t copy = config.copy_elements();
  const std::int64_t frame_taps = view.filter[1] * view.filter[2];
  const std::int64_t reduction = depth.count * frame_taps * g.group_channels();

  Tiling tiling{.instance = instance};
  Params& p = tiling.params;
  p.pixels = static_cast<int>(view_pixels(g, view));
  for (int axis = 0; axis < 3; ++axis) {
    p.out[axis] = FastDivide(view.out[axis]);
    p.filter_extent[axis] = FastDivide(axis == 0 ? depth.count : view.filter[axis]);
    p.stride[axis] = static_cast<int>(g.stride[axis]);
    p.pad[axis] = static_cast<int>(g.pad_begin[axis]);
    p.dilation[axis] = FastDivide(view.dilation[axis]);
    p.pad_mode[axis] = folds ? implicit_gemm::view_pad_mode(g, axis) : g.pad_mode[axis];
    p.seen[axis] = static_cast<int>(folds && axis > 0 ? g.in[axis] : g.seen()[axis]);
  }
  p.tap_frames = static_cast<int>(view.dilation[0]);
  p.pad[0] -= static_cast<int>(depth.first * g.dilation[0]);
  p.frames = static_cast<int>(g.in[0]);
  p.cached_frames = static_cast<int>(g.cached_frames);
  p.height = static_cast<int>(g.in[1]);
  p.upsample_shift = g.upsample == 2 && !folds ? 1 : 0;
  p.pixel_copies = static_cast<std::uint32_t>(g.in_channels / copy);
  p.row_copies = static_cast<std::uint32_t>(g.in[2] * g.in_channels / copy);
  p.tap_copies = FastDivide(g.group_channels() / copy);
  p.reduction_copies = static_cast<int>(reduction / copy);
  const auto element = static_cast<std::int64_t>(size_of(config.in));
  p.filter_pitch = view.taps() * g.group_channels() * element;
  p.filter_offset = depth.first * frame_taps * g.group_channels() * element;
  p.phase_pitch = g.out_channels * p.filter_pitch;
  p.filters = static_cast<int>(g.group_filters());

  p.taps = static_cast<int>(depth.count * frame_taps);
  p.list_mask = listed_taps(config, p.tap_copies.divisor) - 1;
  const Walked walk = walked(config, g, view, p);
  tiling.walks = walk != Walked::no;
  tiling.shared_bytes =
      tiling.walks ? config.walked_bytes(p.taps) : config.listed_bytes(p.list_mask + 1);
  tiling.has_rows = walk == Walked::anywhere && is_matrix(g, view, p);
  p.within_frames = walk == Walked::within_frames;
  // NOTE: so a tile reads the same channels of nearly the same pixels in steps that follow each
  // other, most of them from L1 (docs/lab/2026-11-28-mma-cutlass.md).
  p.taps_first = tiling.walks && config.is_wide() && p.taps > 1 &&
                 p.tap_copies.divisor % static_cast<std::uint32_t>(config.row_copies()) == 0;
  p.inner = FastDivide(p.taps_first ? p.taps : static_cast<int>(p.tap_copies.divisor));
  p.run_pixels = p.within_frames ? static_cast<int>(view.out[1] * view.out[2]) : p.pixels;
  const std::int64_t run_tiles = ceil_div(std::int64_t{p.run_pixels}, std::int64_t{config.block_m});
  p.run_tiles = FastDivide(run_tiles);

  const std::int64_t filter_tiles = ceil_div(g.group_filters(), std::int64_t{config.block_n});
  p.filter_tiles = FastDivide(filter_tiles);
  p.last_filters = FastDivide(g.group_filters() - (filter_tiles - 1) * config.block_n);
  p.groups = FastDivide(g.groups);
  p.phases = FastDivide(view.phases);
  p.tiles = static_cast<int>(run_tiles * (p.pixels / p.run_pixels) * view.phases * g.groups *
                             filter_tiles);
  p.steps = static_cast<int>(ceil_div(reduction, std::int64_t{config.block_k()}));
  p.steps_per_split = static_cast<int>(ceil_div(p.steps, splits));
  tiling.splits = static_cast<int>(ceil_div(p.steps, p.steps_per_split));
  tiling.sums = g.output_elements();
  p.split_pitch = tiling.sums * static_cast<std::int64_t>(sizeof(float));
  return tiling;
}

// NOTE: of two blocks on a multiprocessor one stores while the other multiplies, and a new block
// takes what is free where tiles do not come out even. That is worth more than an early start, but
// for tiles of few steps, whose start and end take most of their time
// (docs/lab/2026-11-28-mma-turns.md).
bool takes_turns(const Tiling& tiling, Epilogues epilogues, int at_once) {
  const Config& config = tiling.instance.config;
  if (!config.can_persist(epilogues)) return false;
  if (config.is_alone()) return true;
  const int steps = tiling.params.steps, tiles = tiling.params.tiles;
  return steps <= 4 || (steps <= 8 && tiles >= 2 * at_once);
}

void prepare(Tiling& tiling, int multiprocessors) {
  tiling.name = name_of(tiling.instance);
  const char* const name = tiling.name.c_str();
  const auto blocks = [&](Epilogues epilogues) {
    const void* const kernel = tiling.kernel(epilogues);
    if (kernel == nullptr) return 0u;
    raise_shared_memory_limit(kernel, tiling.shared_bytes, name);
    const int threads = tiling.instance.config.threads();
    const int at_once =
        multiprocessors * resident_blocks(kernel, threads, tiling.shared_bytes, name);
    const int tiles = tiling.params.tiles;
    return static_cast<unsigned>(takes_turns(tiling, epilogues, at_once) ? std::min(tiles, at_once)
                                                                         : tiles);
  };
  tiling.blocks = blocks(Epilogues::all);
  tiling.linear_blocks = blocks(Epilogues::linear);
}

void launch(const Tiling& tiling, const RunPointers& pointers, DType output_dtype,
            cudaStream_t stream) {
  const Config& config = tiling.instance.config;
  Params p = tiling.params;
  p.activation = pointers.activation;
  p.cache = pointers.cache;
  p.filter = pointers.filter;
  const std::int64_t channels = std::int64_t{p.filters} * p.groups.divisor;
  const ConvOutput output = conv_output(pointers, output_dtype, channels, p.filters);
  p.output = output;
  if (tiling.splits > 1) {
    p.output = {.data = pointers.workspace,
                .residual = nullptr,
                .channels = channels,
                .dtype = DType::fp32,
                .vectors = output.vectors,
                .plain = true,
                .epilogue = {}};
  }
  const bool linear =
      tiling.kernel(Epilogues::linear) != nullptr && is_usual(p, config.in) && is_linear(p);
  const unsigned blocks = linear ? tiling.linear_blocks : tiling.blocks;
  void* arguments[] = {&p};
  launch_kernel(tiling.kernel(linear ? Epilogues::linear : Epilogues::all),
                {.name = tiling.name.c_str(),
                 .grid = dim3(blocks, static_cast<unsigned>(tiling.splits)),
                 .block = static_cast<unsigned>(config.threads()),
                 .shared_bytes = static_cast<std::size_t>(tiling.shared_bytes),
                 .stream = stream},
                arguments);
  if (tiling.splits == 1) return;
  const SplitSums sums{.sums = static_cast<const float*>(pointers.workspace),
                       .split_pitch = tiling.sums,
                       .splits = tiling.splits,
                       .pixels = tiling.sums / channels,
                       .output = output};
  launch_kernel(sum_splits_kernel,
                {.name = "sum_splits",
                 .grid = blocks_for(sums.pixels * ceil_div(channels, std::int64_t{8}), kSumThreads),
                 .block = kSumThreads,
                 .stream = stream},
                sums);
}

}  // namespace convoy::mma
