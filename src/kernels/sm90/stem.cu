// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/stem.cuh"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/checked.hpp"
#include "core/text.hpp"
#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/device_geometry.cuh"
#include "kernels/common/requirements.hpp"
#include "kernels/common/time_correction.hpp"
#include "kernels/sm90/stem.hpp"

namespace convoy::sm90 {
namespace {

constexpr int kPackThreads = 256;
// What keeps cells, coordinates and products of the layout inside the bits that they have.
constexpr std::int64_t kMaxPatchPixels = 1 << 14;
constexpr std::int64_t kMaxTiles = 1 << 28;
constexpr std::int64_t kMaxTaps = 64;  // Of filter and dilation along an axis.
constexpr std::int64_t kMaxStride = 8;
constexpr std::int64_t kMaxExtent = 1 << 24;  // Of height and width.
constexpr std::int64_t kMaxFilters = 1 << 20;

// Dense KTRSC filters to the cells of each block of filters; one element a thread.
struct StemPacking {
  int block_n, steps, chunks, planes, filters;
  int run;     // Elements of a tap's cells, or of a run's.
  int offset;  // Of the first tap that is left, in a filter.
  std::int64_t pitch, elements;
};
__global__ void __launch_bounds__(kPackThreads)
    pack_stem_filter_kernel(std::uint16_t* packed, const std::uint16_t* filter, StemPacking p) {
  const std::int64_t step = std::int64_t{gridDim.x} * kPackThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kPackThreads + threadIdx.x; i < p.elements;
       i += step) {
    const auto element = static_cast<int>(i % 8);
    const auto within = static_cast<int>(i / 8 % p.block_n);
    const auto chunk = static_cast<int>(i / 8 / p.block_n % (2 * p.steps));
    const std::int64_t k =
        i / 8 / p.block_n / (2 * p.steps) * p.block_n + stem_filter_of_column(within);
    const int position = chunk % p.planes * 8 + element;
    const bool exists = k < p.filters && chunk < p.chunks && position < p.run;
    packed[i] = exists ? filter[k * p.pitch + p.offset + chunk / p.planes * p.run + position]
                       : std::uint16_t{0};
  }
}

// The layout of a launch, or why there is none.
struct StemChoice {
  StemLayout layout{};
  int block_n = 0;
  int filter_tiles = 0;
  int sets = 0;  // Blocks for each filter tile.
  std::string refusal;
};

StemCells cells_of(const ConvGeometry& g) {
  if (g.in_channels % 8 == 0) return StemCells::pixels;
  return g.in_channels == 4 ? StemCells::fours : StemCells::runs;
}

StemChoice stem_choice(const ConvGeometry& g, int block_n, const DeviceInfo& device) {
  StemChoice choice;
  StemLayout& l = choice.layout;
  const StemCells cells = cells_of(g);
  const bool of_columns = cells != StemCells::pixels;  // Output columns have cells of their own.
  const std::int64_t depth = depth_taps(g).count;
  // Two cells of a K step come from one tap or run, or (one plane) from two in a row.
  const std::int64_t planes = cells == StemCells::pixels ? g.in_channels / 8
                              : cells == StemCells::runs ? ceil_div(g.filter[2] * g.in_channels, 8)
                              : g.filter[2] <= 2         ? 1
                                                         : ceil_div(g.filter[2], 4) * 2;
  const std::int64_t rows = (kStemSide - 1) * g.stride[1] + (g.filter[1] - 1) * g.dilation[1] + 1;
  const std::int64_t columns =
      of_columns ? kStemSide : kStemSide + (g.filter[2] - 1) * g.dilation[2];
  const std::int64_t chunks = depth * g.filter[1] * (of_columns ? 1 : g.filter[2]) * planes;
  const std::int64_t steps = ceil_div(chunks, 2);
  if (columns * planes > 128) {
    choice.refusal =
        text("16-byte cells of a patch row = ", columns * planes, "; legal: at most 128");
  } else if (steps > kStemMaxSteps) {
    choice.refusal = text("T·R·S·C in steps of 16 = ", steps, "; legal: at most ", kStemMaxSteps);
  } else if (rows * columns * depth > kMaxPatchPixels) {
    choice.refusal = text("pixels of a patch = ", depth, "x", rows, "x", columns,
                          "; legal: at most ", kMaxPatchPixels);
  }
  if (!choice.refusal.empty()) return choice;

  const DeviceGeometry d = trimmed_device_geometry(g);
  for (int axis = 0; axis < 3; ++axis) {
    l.filter[axis] = d.filter[axis];
    l.stride[axis] = d.stride[axis];
    l.dilation[axis] = d.dilation[axis];
    l.pad[axis] = d.pad[axis];
    l.out[axis] = d.out[axis];
  }
  l.frames = d.seen[0];
  l.cached_frames = d.cached_frames;
  l.height = d.in[1];
  l.width = d.in[2];
  l.filters = d.filters;
  l.planes = static_cast<int>(planes);
  l.rows = static_cast<int>(rows);
  l.columns = static_cast<int>(columns);
  const int pixels = static_cast<int>(depth) * l.rows * l.columns;
  // NOTE: planes 64 bytes apart modulo 128, so that the cells of a pixel, written together, meet
  // different banks. Those of runs lie side by side in a patch row, so that each cell of a filter
  // lies behind the one before it, however many they are: a distance of an operand is not negative.
  const bool is_runs = cells == StemCells::runs;
  l.plane_pitch = is_runs ? kStemSide : (pixels + 3) / 8 * 8 + 4;
  l.patch_row = is_runs ? l.planes * kStemSide : l.columns;
  l.stride_cells = static_cast<std::uint32_t>(g.stride[1] * l.patch_row);
  l.zero_cells = chunks % 2 == 0 ? 0 : static_cast<int>(7 * l.stride_cells) + kStemSide;
  l.patch_cells = l.planes * (is_runs ? pixels : l.plane_pitch) + l.zero_cells;
  l.channels = d.channels;
  l.run = d.filter[2] * d.channels;
  l.pixel_pitch = d.channels * 2;
  l.row_pitch = std::int64_t{l.width} * l.pixel_pitch;
  l.frame_pitch = l.height * l.row_pitch;
  l.tap_pitch = l.dilation[0] * l.frame_pitch;
  l.tile_stride[0] = kStemSide * l.stride[1];
  l.tile_stride[1] = kStemSide * l.stride[2];
  l.row_cells = l.columns * l.planes;
  l.rows_at_once = std::min(128 / l.row_cells, l.rows);
  l.rows_pitch = l.rows_at_once * l.row_pitch;
  l.row_rounds = static_cast<int>(ceil_div(l.rows, l.rows_at_once));
  // NOTE: exact for the 128 threads of a warpgroup.
  l.row_multiplier = static_cast<std::uint32_t>(ceil_div(1 << 16, l.row_cells));
  l.plane_multiplier = static_cast<std::uint32_t>(ceil_div(1 << 16, l.planes));
  l.loads = static_cast<int>(depth) * l.row_rounds;
  // NOTE: exact: a patch that shared memory holds has at most 227 rounds.
  l.round_multiplier = static_cast<std::uint32_t>(ceil_div(1 << 16, l.row_rounds));
  l.chunks = static_cast<int>(chunks);
  l.steps = static_cast<int>(steps);
  l.part_steps =
      static_cast<int>(std::max<std::int64_t>(9, ceil_div(steps, 3 * kStemFilterParts) * 3));
  l.first_frames = static_cast<int>(std::min(depth, ceil_div(2 * l.part_steps, chunks / depth)));
  l.turn_step = steps <= 12 ? l.steps : 0;
  choice.filter_tiles = static_cast<int>(ceil_div(g.out_channels, block_n));
  const std::int64_t tiles_p = ceil_div(g.out[1], kStemSide);
  const std::int64_t tiles_q = ceil_div(g.out[2], kStemSide);
  const std::int64_t tiles = g.batch * g.out[0] * tiles_p * tiles_q;
  // Four times the tiles, so that a warpgroup may count past the last one.
  if (tiles > kMaxTiles) {
    choice.refusal = text("output tiles = ", tiles, "; legal: at most ", kMaxTiles);
    return choice;
  }
  l.tiles = static_cast<int>(tiles);
  const int bytes = l.shared_bytes(block_n);
  if (bytes > static_cast<int>(device.shared_memory)) {
    choice.refusal = text("patches and filters of ", bytes, " bytes; legal: at most ",
                          device.shared_memory, " (shared memory)");
    return choice;
  }

  // Cells of the reduction in the order of the filter's memory: taps, and planes within a tap.
  const auto cell = [&](int chunk) {
    if (chunk == l.chunks) return l.patch_cells - l.zero_cells;
    const int plane = chunk % l.planes;
    int tap = chunk / l.planes;
    const int taps_s = of_columns ? 1 : static_cast<int>(g.filter[2]);
    const int s = tap % taps_s;
    tap /= taps_s;
    const int r = tap % static_cast<int>(g.filter[1]);
    const int t = tap / static_cast<int>(g.filter[1]);
    const int row = t * l.rows + r * static_cast<int>(g.dilation[1]);
    return plane * l.plane_pitch + row * l.patch_row + s * static_cast<int>(g.dilation[2]);
  };
  for (int i = 0; i < l.steps; ++i) {
    const int first = cell(2 * i), second = cell(2 * i + 1);
    l.step_cells[i] = static_cast<std::uint32_t>(first | (second - first) << 16);
  }

  const int processors = std::max(1, device.multiprocessors);
  const int sets = std::clamp(processors / choice.filter_tiles, 1, l.tiles);
  choice.block_n = block_n;
  choice.sets = sets;
  l.walk = {FastDivide(tiles_q), FastDivide(tiles_p), FastDivide(g.out[0])};
  l.step = l.walk.position(sets * kStemWarpgroups);
  return choice;
}

// NOTE: with 64 filters a block twice as many patches are loaded, which cost more than what a block
// with one tile too many does: 6 shapes of 320 to 512 filters took 6 to 28 % longer.
StemChoice best_stem_choice(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  if (g.out_channels > 64) {
    StemChoice best = stem_choice(g, 128, request.device);
    if (best.refusal.empty()) return best;
  }
  return stem_choice(g, g.out_channels > 32 ? 64 : 32, request.device);
}

class StemPlan final : public CudaPlan {
 public:
  explicit StemPlan(const PlanRequest& request) : CudaPlan(request) {
    StemChoice choice = best_stem_choice(request);
    if (!choice.refusal.empty()) throw Error(Status::unsupported, choice.refusal);
    layout_ = choice.layout;
    block_n_ = choice.block_n;
    grid_ = dim3(static_cast<unsigned>(choice.filter_tiles), static_cast<unsigned>(choice.sets));
    shared_bytes_ = layout_.shared_bytes(block_n_);
    if (request.dtype == DType::bf16) {
      choose_kernels<__nv_bfloat16>();
    } else {
      choose_kernels<__half>();
    }
    for (Kernel* const kernel : kernels_) {
      raise_shared_memory_limit(kernel, shared_bytes_, "sm90_stem");
    }
    const ConvGeometry& g = request.geometry;
    const DepthTaps taps = depth_taps(g);
    const std::int64_t tap_elements = g.filter[1] * g.filter[2] * g.in_channels;
    packing_ = {.block_n = block_n_,
                .steps = layout_.steps,
                .chunks = layout_.chunks,
                .planes = layout_.planes,
                .filters = layout_.filters,
                .run = static_cast<int>(
                    cells_of(g) == StemCells::pixels ? g.in_channels : g.filter[2] * g.in_channels),
                .offset = static_cast<int>(taps.first * tap_elements),
                .pitch = g.filter[0] * tap_elements,
                .elements = std::int64_t{choice.filter_tiles} * layout_.steps * 16 * block_n_};
    format_ = text("stem_lanes_", block_n_, "_taps_", taps.first, "_", taps.count);
  }

  std::string filter_format() const override { return format_; }
  std::size_t packed_filter_bytes() const override {
    return static_cast<std::size_t>(packing_.elements) * 2;
  }
  void pack_filter(void* packed, const void* filter, FilterLayout layout,
                   cudaStream_t stream) const override {
    pack_from_dense(filter, layout, stream, [&](const void* dense) {
      launch_kernel(pack_stem_filter_kernel,
                    {.name = "pack_stem_filter",
                     .grid = blocks_for(packing_.elements, kPackThreads),
                     .block = kPackThreads,
                     .stream = stream},
                    static_cast<std::uint16_t*>(packed), static_cast<const std::uint16_t*>(dense),
                    packing_);
    });
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    const ConvOutput output =
        conv_output(pointers, request_.output_dtype, g.out_channels, g.out_channels);
    const bool in_fours = g.out_channels % 4 == 0 && request_.output_dtype == request_.dtype;
    const StemStore store =
        !in_fours                         ? StemStore::any
        : at_most_a_bias(output.epilogue) ? StemStore::bias
        : is_short(output.epilogue, request_.output_dtype) && !output.epilogue.has_residual
            ? StemStore::activation
            : StemStore::any;
    StemArguments arguments{.filter = pointers.filter,
                            .activation = pointers.activation,
                            .cache = pointers.cache,
                            .layout = layout_,
                            .output = output};
    launch_kernel(kernels_[static_cast<int>(store)],
                  {.name = "sm90_stem",
                   .grid = grid_,
                   .block = kStemThreads,
                   .shared_bytes = static_cast<std::size_t>(shared_bytes_),
                   .stream = stream},
                  arguments);
    store_next_cache(pointers, stream);
  }

 private:
  using Kernel = void(StemArguments);

  template <typename Element, int kN, StemCells kCells>
  void set_kernels() {
    kernels_[static_cast<int>(StemStore::bias)] = stem_kernel<Element, kN, kCells, StemStore::bias>;
    kernels_[static_cast<int>(StemStore::activation)] =
        stem_kernel<Element, kN, kCells, StemStore::activation>;
    kernels_[static_cast<int>(StemStore::any)] = stem_kernel<Element, kN, kCells, StemStore::any>;
  }
  template <typename Element, int kN>
  void set_kernels() {
    switch (cells_of(request_.geometry)) {
      case StemCells::pixels:
        return set_kernels<Element, kN, StemCells::pixels>();
      case StemCells::fours:
        return set_kernels<Element, kN, StemCells::fours>();
      case StemCells::runs:
        return set_kernels<Element, kN, StemCells::runs>();
    }
  }
  template <typename Element>
  void choose_kernels() {
    switch (block_n_) {
      case 32:
        return set_kernels<Element, 32>();
      case 64:
        return set_kernels<Element, 64>();
      default:
        return set_kernels<Element, 128>();
    }
  }

  StemLayout layout_;
  StemPacking packing_;
  std::string format_;
  Kernel* kernels_[3] = {};  // Of each StemStore.
  int block_n_ = 0;
  int shared_bytes_ = 0;
  dim3 grid_;
};

// Model time, fitted to 160 layers on an H100: tiles of the busiest block, bounded by MMAs, by what
// any tile costs, or by the waits of a warpgroup. Mean error on layers that it was not fitted to:
// 4 % of 63 of up to 8 channels, 11 % of 40 of more.
double estimate_us(const PlanRequest& request, const StemChoice& choice) {
  constexpr double kLaunchUs = 5.59;
  constexpr double kColdUs = 2.65;        // Until the general epilogue's code has come,
  constexpr double kShortColdUs = 0.31;   // and that of an activation.
  constexpr double kStepUs = 4e-4;        // A K step of a tile, a filter.
  constexpr double kRunsUs = 0.0835;      // To load a round of patch rows through registers.
  constexpr double kGeneralUs = 3.4e-4;   // A value that the general epilogue stores,
  constexpr double kResidualUs = 1.2e-4;  // one with a residual more,
  constexpr double kSingly = 2.58;        // times this where rows are not of 16 bytes,
  constexpr double kFoursUs = 2.9e-4;     // one that is stored in fours,
  constexpr double kShortUs = 1.6e-5;     // one with an activation,
  constexpr double kCurvedUs = 4.4e-5;    // with one that divides.
  constexpr double kRowUs = 0.045;        // A round of patch rows of a warpgroup's tile.
  constexpr double kFilterUs = 4.3e-4;    // A K step of a filter, once a block.
  constexpr double kBytesPerUs = 3.7e6;

  const ConvGeometry& g = request.geometry;
  const StemLayout& l = choice.layout;
  const int processors = std::max(1, request.device.multiprocessors);
  const double rounds = std::ceil(double(choice.sets) * choice.filter_tiles / processors);
  const double tiles = std::ceil(double(l.tiles) / choice.sets);  // Of a block.
  const double filters = double(g.out_channels) / choice.filter_tiles;
  const double values = double(g.gemm_m()) / l.tiles * filters;  // Of a tile.
  const bool in_vectors = g.out_channels % 8 == 0;
  const bool direct = is_stored_short(request);
  const Activation activation = request.epilogue.activation;
  const bool curved = activation == Activation::silu || activation == Activation::hardswish ||
                      activation == Activation::gelu || activation == Activation::gelu_tanh;
  const double value_us = curved ? kCurvedUs : activation != Activation::none ? kShortUs : 0.0;
  const double store_us =
      !direct ? values * (kGeneralUs + (request.epilogue.residual ? kResidualUs : 0.0)) *
                    (in_vectors ? 1.0 : kSingly)
              : values * (in_vectors ? 0.0 : kFoursUs) + 64.0 * choice.block_n * value_us;
  // A tile at least, the waits of a warpgroup's tile, and to load a patch.
  const bool is_wide = choice.block_n == 128, of_pixels = cells_of(g) == StemCells::pixels;
  const double least_us = is_wide ? 0.46 : choice.block_n == 64 || of_pixels ? 0.29 : 0.222;
  const double wait_us = is_wide ? 0.357 : of_pixels ? 0.2 : 0.126;
  const double load_us = cells_of(g) == StemCells::runs
                             ? l.loads * kRunsUs
                             : l.patch_cells * (of_pixels ? 5.5e-4 : 3.8e-4);
  const double tile_us =
      std::max(l.steps * choice.block_n * kStepUs, least_us) + store_us + load_us;
  const double turn_us = wait_us + kRowUs * l.loads;
  const double block_us = std::max(tiles * tile_us, std::ceil(tiles / kStemWarpgroups) * turn_us) +
                          kFilterUs * l.steps * choice.block_n;
  const double compute_us = rounds * block_us;
  const double memory_us = min_bytes(request) / (kBytesPerUs * memory_share(request.device));
  return kLaunchUs +
         (!direct                          ? kColdUs
          : activation != Activation::none ? kShortColdUs
                                           : 0.0) +
         (of_pixels ? std::cbrt(std::pow(compute_us, 3) + std::pow(memory_us, 3))
                    : std::max(compute_us, memory_us));
}

class StemCandidate final : public KernelCandidate {
 public:
  std::string name() const override { return "sm90_stem"; }
  Device device() const override { return Device::cuda; }

  Judgement judge(const PlanRequest& request) const override {
    const ConvGeometry& g = request.geometry;
    if (auto refused = require_capability(request.device, 90, "wgmma")) return *refused;
    if (request.dtype == DType::fp32) return "dtype = fp32; legal: bf16 or fp16";
    if (!request.packed_filter) {
      return "a dense filter; legal: a packed filter (PlanOptions::packed_filter)";
    }
    if (g.groups != 1) return text("groups = ", g.groups, "; legal: 1");
    const std::int64_t c = g.in_channels;
    if (c > 8 && c != 16 && c != 32 && c != 48 && c != 64) {
      return text("in_channels = ", c, "; legal: 1 to 8, 16, 32, 48 or 64");
    }
    const StemCells cells = cells_of(g);
    if (cells == StemCells::pixels && g.stride[2] != 1) {
      return text("stride of width = ", g.stride[2], "; legal: 1");
    }
    if (cells == StemCells::runs) {
      if (g.filter[2] > 1 && g.dilation[2] != 1) {
        return text("dilation of width = ", g.dilation[2], "; legal: 1 (of in_channels = ", c, ")");
      }
      // NOTE: elements are loaded in pairs.
      for (const std::int64_t frames : {g.in[0], g.cached_frames}) {
        const std::int64_t elements = g.batch * frames * g.in[1] * g.in[2] * c;
        if (elements % 2 != 0) return text("elements of a tensor = ", elements, "; legal: even");
      }
    }
    std::string reason = device_geometry_refusal(g);
    if (!reason.empty()) return reason;
    for (int axis = 0; axis < 3; ++axis) {
      const std::tuple<const char*, std::int64_t, std::int64_t> extents[] = {
          {"filter", g.filter[axis], kMaxTaps},
          {"stride", g.stride[axis], kMaxStride},
          {"dilation", g.dilation[axis], kMaxTaps}};
      for (const auto& [name, extent, most] : extents) {
        if (extent > most) {
          return text(name, " of ", kAxisNames[axis], " = ", extent, "; legal: at most ", most,
                      "; nearest: ", most);
        }
      }
    }
    reason = zero_padding_refusal(g);
    if (!reason.empty()) return reason;
    if (g.upsample != 1) return text("upsample = ", g.upsample, "; legal: 1");
    for (int axis = 1; axis < 3; ++axis) {
      if (g.in[axis] > kMaxExtent) {
        return text("in_", kAxisNames[axis], " = ", g.in[axis], "; legal: at most ", kMaxExtent,
                    "; nearest: ", kMaxExtent);
      }
    }
    constexpr std::int64_t kMaxFrames = std::numeric_limits<std::int32_t>::max();
    const std::int64_t frames = g.batch * std::max(g.out[0], g.seen()[0]);
    if (frames > kMaxFrames) return text("frames = ", frames, "; legal: at most ", kMaxFrames);
    if (g.out_channels > kMaxFilters) {
      return text("out_channels = ", g.out_channels, "; legal: at most ", kMaxFilters,
                  "; nearest: ", kMaxFilters);
    }
    const StemChoice choice = best_stem_choice(request);
    if (!choice.refusal.empty()) return choice.refusal;

    return corrected_us(CorrectedKernel::stem, {.us = estimate_us(request, choice)}, request);
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<StemPlan>(request);
  }
};

}  // namespace

std::unique_ptr<KernelCandidate> make_stem_candidate() {
  return std::make_unique<StemCandidate>();
}

}  // namespace convoy::sm90
