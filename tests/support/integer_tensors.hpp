// SPDX-License-Identifier: Apache-2.0
//
// For tests that launch a kernel by hand: small integers for every tensor of a problem, and what
// their convolution is.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "convoy/problem.hpp"
#include "core/geometry.hpp"
#include "core/text.hpp"
#include "reference/reference.hpp"
#include "support/elements.hpp"
#include "support/guarded_buffer.hpp"

namespace convoy::test {

/// In a test, which has GoogleTest's header: this one, for programs that are none, has not.
#define CONVOY_ASSERT_CUDA(call)                                              \
  do {                                                                        \
    const cudaError_t convoy_error = (call);                                  \
    ASSERT_EQ(convoy_error, cudaSuccess) << cudaGetErrorString(convoy_error); \
  } while (false)

inline bool on_hopper() {
  return compute_capability() == 90;
}
inline bool on_blackwell() {
  return compute_capability() / 10 == 10;
}

inline ConvGeometry conv2d(std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t c,
                           std::int64_t k, std::int64_t r, std::int64_t s, std::int64_t ph = 0,
                           std::int64_t pw = 0,
                           const std::function<void(Conv2dProblemShape&)>& change = {}) {
  Conv2dProblemShape p{.batch = n,
                       .in_height = h,
                       .in_width = w,
                       .in_channels = c,
                       .out_channels = k,
                       .filter_h = r,
                       .filter_w = s,
                       .pad_h = ph,
                       .pad_w = pw};
  if (change) change(p);
  return geometry_of(p);
}

inline ConvGeometry conv3d(std::int64_t n, std::array<std::int64_t, 3> in, std::int64_t c,
                           std::int64_t k, std::array<std::int64_t, 3> filter,
                           std::array<std::int64_t, 3> begin, std::array<std::int64_t, 3> end,
                           std::int64_t cached = 0,
                           const std::function<void(Conv3dProblemShape&)>& change = {}) {
  Conv3dProblemShape p;
  p.batch = n;
  p.in_depth = in[0];
  p.in_height = in[1];
  p.in_width = in[2];
  p.in_channels = c;
  p.out_channels = k;
  p.filter = filter;
  p.pad_begin = begin;
  p.pad_end = end;
  p.cached_frames = cached;
  if (change) change(p);
  return geometry_of(p);
}

/// The tensors of a problem, on the host. About half of the values are 0: sums of products stay
/// exact in fp32 and mostly in bf16.
struct IntegerTensors {
  ConvGeometry geometry;
  std::vector<float> activation, cache, filter, bias, source;

  explicit IntegerTensors(const ConvGeometry& g, unsigned seed = 1) : geometry(g) {
    std::mt19937 random(seed);
    const auto integers = [&](std::int64_t count, int largest) {
      std::vector<float> values(static_cast<std::size_t>(count));
      for (float& value : values) {
        const auto draw = static_cast<int>(random());
        value = (draw & 1) != 0 ? static_cast<float>((draw >> 1) % (largest + 1)) : 0.0f;
      }
      return values;
    };
    activation = integers(g.activation_elements(), 2);
    cache = integers(g.cache_elements(), 2);
    filter = integers(g.filter_elements(), 2);
    bias = integers(g.out_channels, 7);
    source = integers(g.output_elements(), 9);
  }

  /// The convolution, [N, Z, P, Q, K], exact.
  std::vector<double> convolution() const {
    return reference::convolve_fp64(geometry, {activation.data(), cache.data(), filter.data()});
  }
};

/// What is wrong with a result that is to have the bits of `expected`, rounded once to `dtype`, or
/// with a tolerance to lie within tolerance · max(1, |expected|); empty if nothing is. `filters`:
/// elements of one pixel.
inline std::string difference(const std::vector<unsigned char>& bytes,
                              const std::vector<double>& expected, DType dtype,
                              std::int64_t filters, double tolerance = 0.0) {
  reference::Expectation expectation{.value = expected, .bound = {}};
  std::string wrong;
  if (tolerance == 0.0) {
    wrong = reference::compare_exactly(bytes.data(), dtype, expectation);
  } else {
    for (const double x : expected) {
      expectation.bound.push_back(tolerance * std::max(1.0, std::abs(x)));
    }
    const reference::Comparison c = reference::compare(bytes.data(), dtype, expectation);
    if (!c.pass) {
      wrong = text(c.mismatches, " of ", expected.size(), " wrong; element ", c.worst, " is ",
                   c.worst_got, ", expected ", c.worst_expected);
    }
  }
  return wrong.empty() ? wrong : text(wrong, " (", filters, " elements a pixel)");
}

}  // namespace convoy::test
