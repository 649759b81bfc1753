// SPDX-License-Identifier: Apache-2.0
#include "kernels/common/next_cache.hpp"

#include <algorithm>

#include "kernels/common/launch.hpp"

namespace convoy {
namespace {

constexpr int kCacheThreads = 256;
constexpr int kMostBlocks = 132 * 32;  // 32 for each multiprocessor of an H200.

// Extents in frames, and the words of one frame.
struct CacheCopy {
  std::int64_t frame_words;
  std::int64_t next_frames, cached_frames, new_frames;
  std::int64_t words;  // Of all of next_cache.
};

template <typename Word>
__global__ void __launch_bounds__(kCacheThreads)
    next_cache_kernel(Word* next, const Word* cache, const Word* activation, CacheCopy copy) {
  const std::int64_t step = std::int64_t{gridDim.x} * kCacheThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kCacheThreads + threadIdx.x; i < copy.words;
       i += step) {
    const std::int64_t word = i % copy.frame_words;
    const std::int64_t frame = i / copy.frame_words % copy.next_frames;
    const std::int64_t batch = i / copy.frame_words / copy.next_frames;
    // Frame of cache + activation, negative before the first.
    const std::int64_t seen = copy.cached_frames + copy.new_frames - copy.next_frames + frame;
    Word value{};
    if (seen >= copy.cached_frames) {
      const std::int64_t from = batch * copy.new_frames + seen - copy.cached_frames;
      value = activation[from * copy.frame_words + word];
    } else if (seen >= 0) {
      value = cache[(batch * copy.cached_frames + seen) * copy.frame_words + word];
    }
    next[i] = value;
  }
}

template <typename Word>
void launch(void* next, const void* cache, const void* activation, const ConvGeometry& g,
            std::int64_t frame_bytes, cudaStream_t stream) {
  CacheCopy copy{};
  copy.frame_words = frame_bytes / static_cast<std::int64_t>(sizeof(Word));
  copy.next_frames = g.next_cache_frames();
  copy.cached_frames = g.cached_frames;
  copy.new_frames = g.in[0];
  copy.words = g.batch * copy.next_frames * copy.frame_words;
  if (copy.words == 0) return;
  const auto blocks = static_cast<unsigned>(
      std::min<std::int64_t>((copy.words + kCacheThreads - 1) / kCacheThreads, kMostBlocks));
  launch_kernel(next_cache_kernel<Word>,
                {.name = "next_cache", .grid = blocks, .block = kCacheThreads, .stream = stream},
                static_cast<Word*>(next), static_cast<const Word*>(cache),
                static_cast<const Word*>(activation), copy);
}

}  // namespace

void write_next_cache(void* next_cache, const void* cache, const void* activation,
                      const ConvGeometry& g, DType dtype, cudaStream_t stream) {
  const std::int64_t frame_bytes =
      g.in[1] * g.in[2] * g.in_channels * static_cast<std::int64_t>(size_of(dtype));
  if (frame_bytes % 16 == 0) {
    launch<uint4>(next_cache, cache, activation, g, frame_bytes, stream);
  } else {
    launch<std::uint16_t>(next_cache, cache, activation, g, frame_bytes, stream);
  }
}

}  // namespace convoy
