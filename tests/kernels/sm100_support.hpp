// SPDX-License-Identifier: Apache-2.0
//
// What the Blackwell kernel tests share: problems with exact integer data, device buffers with
// guards, and an integer reference of the convolution.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/geometry.hpp"
#include "core/text.hpp"

namespace convoy::test {

#define CONVOY_ASSERT_CUDA(call)                                              \
  do {                                                                        \
    const cudaError_t convoy_error = (call);                                  \
    ASSERT_EQ(convoy_error, cudaSuccess) << cudaGetErrorString(convoy_error); \
  } while (false)

inline bool on_blackwell() {
  int major = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess &&
         major == 10;
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

/// Device memory between two guards; `check` fails where a kernel wrote outside.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t bytes) : bytes_(bytes) {
    EXPECT_EQ(cudaMalloc(&base_, bytes + 2 * kGuard), cudaSuccess);
    EXPECT_EQ(cudaMemset(base_, kPattern, bytes + 2 * kGuard), cudaSuccess);
  }
  ~DeviceBuffer() { cudaFree(base_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* data() const { return static_cast<char*>(base_) + kGuard; }
  std::size_t bytes() const { return bytes_; }
  void upload(const void* from) {
    EXPECT_EQ(cudaMemcpy(data(), from, bytes_, cudaMemcpyHostToDevice), cudaSuccess);
  }
  /// Fill with 0xff: a NaN in bf16, fp16 and fp32.
  void poison() { EXPECT_EQ(cudaMemset(data(), 0xff, bytes_), cudaSuccess); }
  std::vector<char> download() const {
    std::vector<char> copy(bytes_);
    EXPECT_EQ(cudaMemcpy(copy.data(), data(), bytes_, cudaMemcpyDeviceToHost), cudaSuccess);
    return copy;
  }
  void check(const char* name) const {
    std::vector<unsigned char> all(bytes_ + 2 * kGuard);
    ASSERT_EQ(cudaMemcpy(all.data(), base_, all.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    for (std::size_t i = 0; i < kGuard; ++i) {
      ASSERT_EQ(all[i], kPattern) << name << ": written " << kGuard - i << " bytes before it";
      ASSERT_EQ(all[kGuard + bytes_ + i], kPattern)
          << name << ": written " << i << " bytes past it";
    }
  }

 private:
  static constexpr std::size_t kGuard = 256;
  static constexpr unsigned char kPattern = 0x5a;
  void* base_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Small integers, about half of them 0: sums of products stay exact in fp32 and mostly in bf16.
inline std::vector<float> integers(std::int64_t count, int largest, std::mt19937& random) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    const auto draw = static_cast<int>(random());
    value = (draw & 1) != 0 ? static_cast<float>((draw >> 1) % (largest + 1)) : 0.0f;
  }
  return values;
}

inline std::vector<char> encoded(const std::vector<float>& values, DType dtype) {
  std::vector<char> bytes(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    store_element(bytes.data(), static_cast<std::int64_t>(i), dtype, values[i]);
  }
  return bytes;
}

/// A problem with its data, on the host as floats.
struct Problem {
  ConvGeometry geometry;
  std::vector<float> activation, cache, filter, bias, source;

  explicit Problem(const ConvGeometry& g, unsigned seed = 1) : geometry(g) {
    std::mt19937 random(seed);
    activation = integers(g.activation_elements(), 2, random);
    cache = integers(g.cache_elements(), 2, random);
    filter = integers(g.filter_elements(), 2, random);
    bias = integers(g.out_channels, 7, random);
    source = integers(g.output_elements(), 9, random);
  }

  /// The convolution, [N, Z, P, Q, K], by definition, in 64-bit integers (exact).
  std::vector<double> convolution() const {
    const ConvGeometry& g = geometry;
    const auto seen = g.seen();
    const std::int64_t channels = g.group_channels(), filters = g.group_filters();
    std::vector<double> out(static_cast<std::size_t>(g.output_elements()));
    std::size_t index = 0;
    std::vector<std::int64_t> row(static_cast<std::size_t>(g.gemm_k()));
    for (std::int64_t n = 0; n < g.batch; ++n) {
      for (std::int64_t z = 0; z < g.out[0]; ++z) {
        for (std::int64_t p = 0; p < g.out[1]; ++p) {
          for (std::int64_t q = 0; q < g.out[2]; ++q) {
            for (std::int64_t group = 0; group < g.groups; ++group) {
              gather(n, z, p, q, group, seen, row);
              for (std::int64_t k = 0; k < filters; ++k) {
                const float* weights =
                    filter.data() + (group * filters + k) * static_cast<std::int64_t>(row.size());
                std::int64_t sum = 0;
                for (std::size_t i = 0; i < row.size(); ++i) {
                  sum += row[i] * static_cast<std::int64_t>(weights[i]);
                }
                out[index++] = static_cast<double>(sum);
              }
            }
          }
        }
      }
    }
    (void)channels;
    return out;
  }

 private:
  // The inputs of one output pixel, taps in filter order, channels fastest.
  void gather(std::int64_t n, std::int64_t z, std::int64_t p, std::int64_t q, std::int64_t group,
              const std::array<std::int64_t, 3>& seen, std::vector<std::int64_t>& row) const {
    const ConvGeometry& g = geometry;
    const std::int64_t channels = g.group_channels();
    std::size_t i = 0;
    for (std::int64_t t = 0; t < g.filter[0]; ++t) {
      for (std::int64_t r = 0; r < g.filter[1]; ++r) {
        for (std::int64_t s = 0; s < g.filter[2]; ++s) {
          const std::int64_t at[3] = {z * g.stride[0] - g.pad_begin[0] + t * g.dilation[0],
                                      p * g.stride[1] - g.pad_begin[1] + r * g.dilation[1],
                                      q * g.stride[2] - g.pad_begin[2] + s * g.dilation[2]};
          bool inside = true;
          std::int64_t mapped[3];
          for (int axis = 0; axis < 3; ++axis) {
            mapped[axis] = pad(at[axis], seen[axis], g.pad_mode[axis], inside);
          }
          const float* pixel = nullptr;
          if (inside) {
            const std::int64_t h = mapped[1] / g.upsample, w = mapped[2] / g.upsample;
            const bool cached = mapped[0] < g.cached_frames;
            const std::int64_t frame = cached ? n * g.cached_frames + mapped[0]
                                              : n * g.in[0] + mapped[0] - g.cached_frames;
            pixel = (cached ? cache : activation).data() +
                    ((frame * g.in[1] + h) * g.in[2] + w) * g.in_channels + group * channels;
          }
          for (std::int64_t c = 0; c < channels; ++c) {
            row[i++] = pixel == nullptr ? 0 : static_cast<std::int64_t>(pixel[c]);
          }
        }
      }
    }
  }

  static std::int64_t pad(std::int64_t x, std::int64_t extent, PadMode mode, bool& inside) {
    if (x >= 0 && x < extent) return x;
    if (mode == PadMode::replicate) return x < 0 ? 0 : extent - 1;
    if (mode == PadMode::reflect) return x < 0 ? -x : 2 * (extent - 1) - x;
    inside = false;
    return 0;
  }
};

/// Where and how two results differ first, and how often; empty where every element agrees within
/// `tolerance` · max(1, |expected|).
inline std::string difference(const std::vector<char>& bytes, const std::vector<double>& expected,
                              DType dtype, std::int64_t filters, double tolerance = 0.0) {
  std::int64_t wrong = 0, nans = 0;
  std::string first;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const float got = load_element(bytes.data(), static_cast<std::int64_t>(i), dtype);
    nans += std::isnan(got) ? 1 : 0;
    const double limit = tolerance * std::max(1.0, std::abs(expected[i]));
    if (std::abs(static_cast<double>(got) - expected[i]) <= limit) continue;
    if (wrong++ == 0) {
      first =
          text("pixel ", static_cast<std::int64_t>(i) / filters, ", filter ",
               static_cast<std::int64_t>(i) % filters, ": got ", got, ", expected ", expected[i]);
    }
  }
  if (wrong == 0) return {};
  return text(first, "; ", wrong, " of ", expected.size(), " wrong, ", nans, " NaN");
}

}  // namespace convoy::test
