// SPDX-License-Identifier: Apache-2.0
#include "random_layer.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "convoy/dtype.hpp"

namespace convoy::cli {
namespace {

/// splitmix64, one well mixed number a step.
std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// Uniform in [-amplitude, amplitude). Past 2^22 elements the values repeat with a period that is
/// prime, so that no row of a tensor is like another: filling gigabytes takes no longer than
/// copying them.
io::HostTensor random_tensor(DType dtype, std::vector<std::int64_t> shape, float amplitude,
                             std::uint64_t seed) {
  constexpr std::int64_t kPeriod = 4194301;
  io::HostTensor tensor(dtype, std::move(shape));
  std::uint64_t state = seed;
  const std::int64_t fresh = std::min(tensor.elements(), kPeriod);
  for (std::int64_t i = 0; i < fresh; ++i) {
    const float unit = float(std::int64_t(next_random(state) >> 40) - (1 << 23)) * 0x1p-23f;
    store_element(tensor.bytes.data(), i, dtype, amplitude * unit);
  }
  for (std::int64_t done = fresh; done < tensor.elements(); done += fresh) {
    const std::int64_t count = std::min(fresh, tensor.elements() - done);
    std::memcpy(tensor.bytes.data() + std::size_t(done) * size_of(dtype), tensor.bytes.data(),
                std::size_t(count) * size_of(dtype));
  }
  return tensor;
}

}  // namespace

Layer make_random_layer(const ProblemShape& problem, const RandomLayerOptions& options) {
  const ConvGeometry g = geometry_of(problem);
  Layer layer;
  layer.problem = problem;
  layer.options.dtype = options.dtype;
  layer.filter_layout = g.rank == 2 ? FilterLayout::krsc : FilterLayout::ktrsc;

  const auto activation = [&](std::int64_t frames) -> std::vector<std::int64_t> {
    if (g.rank == 2) return {g.batch, g.in[1], g.in[2], g.in_channels};
    return {g.batch, frames, g.in[1], g.in[2], g.in_channels};
  };
  std::uint64_t seed = options.seed * 1000003u;
  layer.activation = random_tensor(options.dtype, activation(g.in[0]), 1.0f, ++seed);
  // Uniform values have a variance of 1/3; n products of two of them one of n / 9.
  const float amplitude = 3.0f / std::sqrt(float(g.gemm_k()));
  layer.filter = random_tensor(options.dtype, {g.out_channels, g.gemm_k()}, amplitude, ++seed);
  if (g.cached_frames > 0) {
    layer.cache = random_tensor(options.dtype, activation(g.cached_frames), 1.0f, ++seed);
  }
  if (options.bias) layer.bias = random_tensor(DType::fp32, {g.out_channels}, 1.0f, ++seed);
  if (options.residual) {
    layer.residual = random_tensor(options.dtype, {g.output_elements()}, 1.0f, ++seed);
  }
  return layer;
}

}  // namespace convoy::cli
