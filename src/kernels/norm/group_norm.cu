// SPDX-License-Identifier: Apache-2.0
//
// GroupNorm over channels-last tensors, in two launches: the statistics of every chunk of an image,
// then the normalisation, whose blocks merge them first. An image is cut into tiles of pixels,
// which the blocks of an image, its chunks, take in turn. The first kernel walks them from the end
// to the start, the second from the start to the end: what the kernel before left in the L2 cache
// is read first.
//
// Statistics are (count, mean, sum of squared deviations): each thread makes those of a few values
// at a time in two passes over its registers and merges them (Chan, Golub, LeVeque 1979). Every
// merge has a fixed order.
#include <algorithm>
#include <bit>
#include <numeric>

#include "core/checked.hpp"
#include "kernels/common/launch.hpp"
#include "kernels/norm/norm.cuh"
#include "kernels/norm/norm.hpp"

namespace convoy::norm {
namespace {

constexpr int kThreads = 1024;
constexpr int kUnroll = 4;  // Pixels that a thread has under way at the same time.

/// How the work is cut. Channels: C = columns · kVec; a slice of columns goes to one block.
struct GroupNormLayout {
  std::int64_t pixels = 0;  ///< Of an image.
  int channels = 0;
  int group_channels = 0;
  int columns = 0;
  int slice_columns = 0;  ///< Of a slice; the last may have fewer.
  int slices = 0;
  int slice_groups = 0;  ///< Groups that a slice touches, at most.
  int chunks = 0;        ///< Of an image.
  // The tiles of a chunk: chunk, chunk + chunks, ...
  std::int64_t tiles = 0;
  std::int64_t chunk_tiles = 0;  ///< tiles / chunks; the first `longer_chunks` have one more.
  int longer_chunks = 0;
  int last_chunk = 0;      ///< The one with the last tile,
  int missing_pixels = 0;  ///< which lacks so many.
};

struct GroupNormArguments {
  GroupNormLayout layout;
  const void* input = nullptr;
  void* output = nullptr;
  float2* partials = nullptr;     ///< (mean, squares) [N][chunks][slices][slice_groups]
  std::int64_t image_pitch = 0;   ///< Elements of the input from one image to the next.
  const float2* given = nullptr;  ///< (mean, variance) [N][groups], in place of the partials'.
  float2* statistics = nullptr;   ///< The same, to be written.
  NormParameters parameters;
  float epsilon = 0;
  bool streaming = false;
};

struct Statistics {
  float count, mean, squares;
};

__device__ __forceinline__ Statistics merge(const Statistics& a, const Statistics& b) {
  if (a.count == 0.0f) return b;
  if (b.count == 0.0f) return a;
  const float total = a.count + b.count, delta = b.mean - a.mean, weight = b.count / total;
  return {total, fmaf(delta, weight, a.mean),
          a.squares + b.squares + delta * (delta * (a.count * weight))};
}

/// Pixels of a chunk.
__device__ __forceinline__ std::int64_t pixels_of(const GroupNormLayout& g, int chunk,
                                                  int tile_pixels) {
  const std::int64_t tiles = g.chunk_tiles + (chunk < g.longer_chunks ? 1 : 0);
  return tiles * tile_pixels - (chunk == g.last_chunk ? g.missing_pixels : 0);
}

/// kSplit: parts of a thread's vector that belong to different groups. They are merged per group
/// at the end.
template <typename Element, int kVec, int kSplit>
__global__ void __launch_bounds__(kThreads, 1)
    group_norm_statistics_kernel(const __grid_constant__ GroupNormArguments arguments) {
  constexpr int kPart = kVec / kSplit;  // Channels of a part.
  __shared__ Statistics all[kThreads];
  __shared__ Statistics parts[kThreads];  // slice_columns · kSplit of them at most.
  const GroupNormLayout& g = arguments.layout;
  const int thread = static_cast<int>(threadIdx.x);
  const int slice = static_cast<int>(blockIdx.y);
  const int rows = kThreads / g.slice_columns;
  const int row = thread / g.slice_columns, column = thread % g.slice_columns;
  const int columns = min(g.slice_columns, g.columns - slice * g.slice_columns);
  const bool active = row < rows && column < columns;
  const std::int64_t image = blockIdx.x / static_cast<unsigned>(g.chunks);
  const int chunk = static_cast<int>(blockIdx.x % static_cast<unsigned>(g.chunks));
  const auto* input = static_cast<const Element*>(arguments.input) + image * arguments.image_pitch +
                      (slice * g.slice_columns + column) * kVec;

  float count = 0;  // Pixels.
  float mean[kSplit] = {}, squares[kSplit] = {};
  // Statistics of the first `here` of kUnroll vectors, merged into the thread's.
  const auto take = [&](const ChannelVector<Element, kVec>(&vectors)[kUnroll], int here,
                        auto full) {
    float sums[kSplit] = {};
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      float v[kVec];
      vectors[i].widen(v);
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        if (full || i < here) sums[j / kPart] += v[j];
      }
    }
    const float values = static_cast<float>(full ? kUnroll : here);
    const float inverse = 1.0f / (values * kPart), weight = values / (count + values);
    float deviations[kSplit] = {};
#pragma unroll
    for (int s = 0; s < kSplit; ++s) sums[s] *= inverse;
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      float v[kVec];
      vectors[i].widen(v);
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        const float deviation = v[j] - sums[j / kPart];
        if (full || i < here) {
          deviations[j / kPart] = fmaf(deviation, deviation, deviations[j / kPart]);
        }
      }
    }
#pragma unroll
    for (int s = 0; s < kSplit; ++s) {
      const float delta = sums[s] - mean[s];
      mean[s] = fmaf(delta, weight, mean[s]);
      // NOTE: the first time the factor is 0, and delta² may be infinite.
      squares[s] += fmaf(delta, delta * (count * weight * kPart), deviations[s]);
    }
    count += values;
  };

  ptx::dependent_launch_wait();
  // NOTE: only now, since the kernel after reads the input, which those before may have written.
  ptx::dependent_launch_trigger();

  const std::int64_t tile_pixels = rows * kUnroll;
  const std::int64_t step = std::int64_t{g.chunks} * tile_pixels;
  const std::int64_t tiles = g.chunk_tiles + (chunk < g.longer_chunks ? 1 : 0);
  std::int64_t pixel = (chunk + (tiles - 1) * g.chunks) * tile_pixels + row;
  for (std::int64_t tile = 0; active && tile < tiles; ++tile, pixel -= step) {
    ChannelVector<Element, kVec> vectors[kUnroll] = {};
    int here = 0;
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (pixel + i * rows < g.pixels) {
        vectors[i].load(input + (pixel + i * rows) * g.channels);
        ++here;
      }
    }
    if (here == kUnroll) {
      take(vectors, kUnroll, std::true_type());
    } else if (here > 0) {
      take(vectors, here, std::false_type());
    }
  }

  // Over the rows of the block.
#pragma unroll
  for (int s = 0; s < kSplit; ++s) {
    Statistics mine = {count * kPart, mean[s], squares[s]};
    all[thread] = mine;
    __syncthreads();
    for (int stride = 1 << (31 - __clz(rows)); stride > 0; stride /= 2) {
      if (row < stride && row + stride < rows) {
        mine = merge(mine, all[thread + stride * g.slice_columns]);
        all[thread] = mine;
      }
      __syncthreads();
    }
    if (row == 0) parts[column * kSplit + s] = mine;
  }
  __syncthreads();

  // Over the parts of a group, which lie side by side.
  const int first_channel = slice * g.slice_columns * kVec;
  const int first_group = first_channel / g.group_channels;
  const int group = (first_channel + thread * kPart) / g.group_channels;
  const int begin = max(0, (group * g.group_channels - first_channel) / kPart);
  const int end = min(columns * kSplit, ((group + 1) * g.group_channels - first_channel) / kPart);
  const int place = thread - begin;
  for (int stride = 1; stride < g.group_channels / kPart && stride < columns * kSplit;
       stride *= 2) {
    if (thread + stride < end && place % (2 * stride) == 0) {
      parts[thread] = merge(parts[thread], parts[thread + stride]);
    }
    __syncthreads();
  }
  if (thread < end && place == 0) {
    const std::int64_t at = (std::int64_t{blockIdx.x} * g.slices + slice) * g.slice_groups;
    arguments.partials[at + group - first_group] =
        make_float2(parts[thread].mean, parts[thread].squares);
  }
}

/// Mean and variance of the groups of an image that the block's slice touches, into `results`, from
/// all chunks or as given. Threads from 0 have one each.
template <int kVec>
__device__ void merge_chunks(const GroupNormArguments& arguments, std::int64_t image,
                             Statistics* results) {
  const GroupNormLayout& g = arguments.layout;
  const int thread = static_cast<int>(threadIdx.x);
  const int slice_channels = g.slice_columns * kVec;
  const int first_channel = static_cast<int>(blockIdx.y) * slice_channels;
  const int last_channel = min(first_channel + slice_channels, g.channels) - 1;
  const int first_group = first_channel / g.group_channels;
  const int groups = last_channel / g.group_channels - first_group + 1;
  if (arguments.given != nullptr) {
    const int all = g.channels / g.group_channels;
    if (thread < groups) {
      const float2 known = arguments.given[image * all + first_group + thread];
      results[thread] = {1.0f, known.x, known.y};
    }
    __syncthreads();
    return;
  }
  const int teams = kThreads / groups;  // Threads of a group, each for every teams-th partial.
  const int team = thread / groups, group = first_group + thread % groups;
  const int tile_pixels = kThreads / g.slice_columns * kUnroll;
  Statistics mine = {0, 0, 0};
  if (team < teams) {
    const int channel = group * g.group_channels;
    const int first_slice = channel / slice_channels;
    const int slices = (channel + g.group_channels - 1) / slice_channels - first_slice + 1;
    for (int i = team; i < g.chunks * slices; i += teams) {
      const int chunk = i / slices, slice = first_slice + i % slices;
      const int slice_begin = slice * slice_channels;
      const int overlap =
          min(slice_begin + slice_channels, channel + g.group_channels) - max(slice_begin, channel);
      const std::int64_t at = ((image * g.chunks + chunk) * g.slices + slice) * g.slice_groups;
      const float2 partial = arguments.partials[at + group - slice_begin / g.group_channels];
      const float count =
          static_cast<float>(pixels_of(g, chunk, tile_pixels)) * static_cast<float>(overlap);
      mine = merge(mine, {count, partial.x, partial.y});
    }
  }
  results[thread] = mine;
  __syncthreads();
  for (int stride = 1 << (31 - __clz(teams)); stride > 0; stride /= 2) {
    if (team < stride && team + stride < teams) {
      mine = merge(mine, results[thread + stride * groups]);
      results[thread] = mine;
    }
    __syncthreads();
  }
  if (team == 0) results[thread].squares = mine.squares / mine.count;
  __syncthreads();
}

/// The statistics of every image.
template <int kVec>
__global__ void __launch_bounds__(kThreads, 1)
    group_norm_merge_kernel(const __grid_constant__ GroupNormArguments arguments) {
  __shared__ Statistics results[kThreads];
  const GroupNormLayout& g = arguments.layout;
  if (blockIdx.x % static_cast<unsigned>(g.chunks) != 0) return;
  const std::int64_t image = blockIdx.x / static_cast<unsigned>(g.chunks);
  merge_chunks<kVec>(arguments, image, results);
  const int thread = static_cast<int>(threadIdx.x);
  const int first = static_cast<int>(blockIdx.y) * g.slice_columns * kVec;
  const int last = min(first + g.slice_columns * kVec, g.channels) - 1;
  const int group = first / g.group_channels + thread;
  // NOTE: a group of several slices is written by each, with the same bits.
  if (group > last / g.group_channels) return;
  arguments.statistics[image * (g.channels / g.group_channels) + group] =
      make_float2(results[thread].mean, results[thread].squares);
}

template <typename Element, int kVec, NormActivation kActivation>
__global__ void __launch_bounds__(kThreads, 1)
    group_norm_apply_kernel(const __grid_constant__ GroupNormArguments arguments) {
  __shared__ Statistics results[kThreads];
  const GroupNormLayout& g = arguments.layout;
  const int thread = static_cast<int>(threadIdx.x);
  const int slice = static_cast<int>(blockIdx.y);
  const int rows = kThreads / g.slice_columns;
  const int row = thread / g.slice_columns, column = thread % g.slice_columns;
  const int channel = (slice * g.slice_columns + column) * kVec;
  const bool active =
      row < rows && column < min(g.slice_columns, g.columns - slice * g.slice_columns);
  const std::int64_t image = blockIdx.x / static_cast<unsigned>(g.chunks);
  const int chunk = static_cast<int>(blockIdx.x % static_cast<unsigned>(g.chunks));
  const std::int64_t origin = image * g.pixels * g.channels + channel;
  const auto* input = static_cast<const Element*>(arguments.input) + origin;
  auto* output = static_cast<Element*>(arguments.output) + origin;

  const std::int64_t tile_pixels = rows * kUnroll;
  std::int64_t pixel = chunk * tile_pixels + row;
  ChannelVector<Element, kVec> vectors[kUnroll] = {};
  const auto load = [&] {
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (active && pixel + i * rows < g.pixels) {
        vectors[i].load_last(input + (pixel + i * rows) * g.channels);
      }
    }
  };
  load();  // The first tile is under way while the statistics are awaited and merged.
  ptx::dependent_launch_wait();
  ptx::dependent_launch_trigger();
  merge_chunks<kVec>(arguments, image, results);
  if (!active) return;

  float mean[kVec], factor[kVec], bias[kVec];
  const int first_group = slice * g.slice_columns * kVec / g.group_channels;
#pragma unroll
  for (int j = 0; j < kVec; ++j) {
    const Statistics& group = results[(channel + j) / g.group_channels - first_group];
    const NormParameters& p = arguments.parameters;
    mean[j] = group.mean;
    factor[j] = 1.0f / sqrtf(group.squares + arguments.epsilon) *
                load_parameter(p.scale, p.dtype, channel + j, 1.0f);
    bias[j] = load_parameter(p.bias, p.dtype, channel + j, 0.0f);
  }
  while (pixel < g.pixels) {
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      float v[kVec];
      vectors[i].widen(v);
#pragma unroll
      for (int j = 0; j < kVec; ++j) v[j] = fmaf(v[j] - mean[j], factor[j], bias[j]);
      activate_norm<kActivation>(arguments.parameters.epilogue, v);
      vectors[i].narrow(v);
      if (pixel + i * rows < g.pixels) {
        vectors[i].store(output + (pixel + i * rows) * g.channels, arguments.streaming);
      }
    }
    pixel += g.chunks * tile_pixels;
    load();
  }
}

/// Scale and shift of every channel, [2, N, C]: a block for a slice of an image.
template <int kVec>
__global__ void __launch_bounds__(kThreads, 1)
    group_norm_coefficients_kernel(const __grid_constant__ GroupNormArguments arguments) {
  __shared__ Statistics results[kThreads];
  const GroupNormLayout& g = arguments.layout;
  const std::int64_t image = blockIdx.x;
  ptx::dependent_launch_wait();
  ptx::dependent_launch_trigger();
  merge_chunks<kVec>(arguments, image, results);
  const NormParameters& p = arguments.parameters;
  const int first = static_cast<int>(blockIdx.y) * g.slice_columns * kVec;
  const int end = min(first + g.slice_columns * kVec, g.channels);
  auto* const scales = static_cast<float*>(arguments.output) + image * g.channels;
  auto* const shifts = scales + std::int64_t{gridDim.x} * g.channels;
  for (int channel = first + static_cast<int>(threadIdx.x); channel < end; channel += kThreads) {
    const Statistics& group = results[channel / g.group_channels - first / g.group_channels];
    const float factor = 1.0f / sqrtf(group.squares + arguments.epsilon) *
                         load_parameter(p.scale, p.dtype, channel, 1.0f);
    scales[channel] = factor;
    shifts[channel] = fmaf(-group.mean, factor, load_parameter(p.bias, p.dtype, channel, 0.0f));
  }
}

class GroupNorm final : public NormKernel {
 public:
  explicit GroupNorm(const NormRequest& request) : request_(request) {
    const auto channels = static_cast<int>(request.channels);
    const int wide = 16 / static_cast<int>(size_of(request.options.dtype));
    vector_ = channels % wide == 0 ? wide : 1;
    g_.pixels = request.pixels;
    g_.channels = channels;
    g_.group_channels = channels / static_cast<int>(request.groups);
    split_ = vector_ / std::gcd(vector_, g_.group_channels);
    g_.columns = channels / vector_;
    g_.slices = static_cast<int>(ceil_div(g_.columns, kThreads / split_));
    g_.slice_columns = static_cast<int>(ceil_div(g_.columns, g_.slices));
    g_.slices = static_cast<int>(ceil_div(g_.columns, g_.slice_columns));
    const int slice_channels = g_.slice_columns * vector_;
    for (int slice = 0; slice < g_.slices; ++slice) {
      const int last = std::min((slice + 1) * slice_channels, channels) - 1;
      const int groups = last / g_.group_channels - slice * slice_channels / g_.group_channels + 1;
      g_.slice_groups = std::max(g_.slice_groups, groups);
    }

    const int tile_pixels = kThreads / g_.slice_columns * kUnroll;
    g_.tiles = ceil_div(request.pixels, tile_pixels);
    // One block a multiprocessor: more would have more partials to merge.
    const std::int64_t blocks = request.batch * g_.slices;
    const std::int64_t wanted = std::max<std::int64_t>(request.device.multiprocessors / blocks, 1);
    g_.chunks = static_cast<int>(std::min(wanted, g_.tiles));
    g_.chunk_tiles = g_.tiles / g_.chunks;
    g_.longer_chunks = static_cast<int>(g_.tiles % g_.chunks);
    g_.last_chunk = static_cast<int>((g_.tiles - 1) % g_.chunks);
    g_.missing_pixels = static_cast<int>(g_.tiles * tile_pixels - request.pixels);
    if (request.batch * g_.chunks > INT32_MAX) {
      throw Error(Status::unsupported,
                  text("batch = ", request.batch, "; legal: at most ", INT32_MAX / g_.chunks,
                       " (blocks of a grid); nearest: ", INT32_MAX / g_.chunks));
    }
    const std::size_t bytes =
        static_cast<std::size_t>(request.elements()) * size_of(request.options.dtype);
    streaming_ = bytes > request.device.l2_bytes / 2;
  }

  std::string name() const override {
    return writes_coefficients() ? "group_norm_coefficients" : "group_norm";
  }
  std::size_t workspace_bytes() const override {
    return static_cast<std::size_t>(request_.batch) * static_cast<std::size_t>(g_.chunks) *
           static_cast<std::size_t>(g_.slices) * static_cast<std::size_t>(g_.slice_groups) *
           sizeof(float2);
  }

  void run(const NormArguments& given, cudaStream_t stream) const override {
    start({.layout = g_,
           .input = given.input,
           .output = given.output,
           .partials = static_cast<float2*>(given.workspace),
           .image_pitch = request_.pixels * request_.channels,
           .given = reinterpret_cast<const float2*>(given.statistics),
           .parameters = NormParameters(given, request_.options),
           .epsilon = request_.epsilon,
           .streaming = streaming_},
          stream);
  }

  void statistics(const NormStatisticsArguments& given, cudaStream_t stream) const override {
    start({.layout = g_,
           .input = given.input,
           .partials = static_cast<float2*>(given.workspace),
           .image_pitch = given.image_pitch,
           .statistics = reinterpret_cast<float2*>(given.output)},
          stream);
  }

 private:
  void start(const GroupNormArguments& arguments, cudaStream_t stream) const {
    const dim3 grid(static_cast<unsigned>(request_.batch * g_.chunks),
                    static_cast<unsigned>(g_.slices));
    dispatch_element(request_.options.dtype, [&]<typename Element>() {
      constexpr int kWide = kChannelVector<Element>;
      if (vector_ == 1) {
        launch<Element, 1, 1>(arguments, grid, stream);
      } else if (split_ == 1) {
        launch<Element, kWide, 1>(arguments, grid, stream);
      } else if (split_ == 2) {
        launch<Element, kWide, 2>(arguments, grid, stream);
      } else if (split_ == 4) {
        launch<Element, kWide, 4>(arguments, grid, stream);
      } else {
        launch<Element, kWide, kWide>(arguments, grid, stream);
      }
    });
  }

  template <typename Element, int kVec, int kSplit>
  void launch(const GroupNormArguments& arguments, dim3 grid, cudaStream_t stream) const {
    const auto start = [&](auto kernel, const char* name) {
      launch_kernel(kernel,
                    // NOTE: the second reads its input at once, which the first has waited for.
                    {.name = name,
                     .grid = grid,
                     .block = kThreads,
                     .stream = stream,
                     .overlapped = arguments.given == nullptr},
                    arguments);
    };
    if (arguments.given == nullptr) {
      start(group_norm_statistics_kernel<Element, kVec, kSplit>, "group_norm_statistics");
    }
    if (arguments.statistics != nullptr) {
      launch_kernel(group_norm_merge_kernel<kVec>,
                    {.name = "group_norm_merge", .grid = grid, .block = kThreads, .stream = stream},
                    arguments);
      return;
    }
    if (writes_coefficients()) {
      grid.x = static_cast<unsigned>(request_.batch);
      return start(group_norm_coefficients_kernel<kVec>, "group_norm_coefficients");
    }
    const auto apply = [&](auto kernel) { start(kernel, "group_norm_apply"); };
    if constexpr (kVec == 1) {
      apply(group_norm_apply_kernel<Element, kVec, NormActivation::any>);
    } else {
      dispatch_activation(arguments.parameters.epilogue.activation,
                          [&]<NormActivation kActivation>() {
                            apply(group_norm_apply_kernel<Element, kVec, kActivation>);
                          });
    }
  }

  bool writes_coefficients() const { return request_.options.result == NormResult::coefficients; }

  NormRequest request_;
  GroupNormLayout g_;
  int vector_ = 1;
  int split_ = 1;
  bool streaming_ = false;
};

}  // namespace

std::unique_ptr<NormKernel> make_group_norm(const NormRequest& request) {
  return std::make_unique<GroupNorm>(request);
}

}  // namespace convoy::norm
