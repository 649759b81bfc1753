// SPDX-License-Identifier: Apache-2.0
//
// Layers of an autoencoder on Convoy: each makes its plan and packs its weights once; then it runs.
#pragma once

#include <convoy/convoy.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "safetensors.hpp"

/// Frames of channels-last pixels, [frames, height, width, channels].
struct Tensor {
  std::shared_ptr<void> data;
  std::int64_t frames = 1, height = 0, width = 0, channels = 0;

  std::int64_t elements() const { return frames * height * width * channels; }
};

struct ConvOptions {
  std::int64_t pad = 0;       ///< Of height and width.
  std::int64_t upsample = 1;  ///< 2: nearest neighbours first.
  const Tensor* residual = nullptr;
};

class Layers {
 public:
  Layers(const SafeTensors& weights, bool cuda, convoy::DType dtype)
      : weights_(weights), cuda_(cuda), dtype_(dtype) {}

  const SafeTensors& weights() const { return weights_; }

  /// [frames, C, H, W] or [C, frames, H, W] of fp32, and back: [frames, H, W, C].
  Tensor upload(const Array& array, bool frames_first) const;
  std::vector<float> download(const Tensor& x) const;

  /// The layer `name` (.weight [K, C, R, S], .bias) of each frame.
  Tensor conv2d(const Tensor& x, const std::string& name, const ConvOptions& options = {});
  /// The same over frames (.weight [K, C, T, R, S]): before the first lies zero, or `cache`, which
  /// then becomes the last T - 1 frames.
  Tensor causal_conv3d(const Tensor& x, const std::string& name, Tensor& cache,
                       const ConvOptions& options = {});
  Tensor group_norm(const Tensor& x, const std::string& name, std::int64_t groups, bool silu);
  /// x / rms(x) over the channels, times .gamma.
  Tensor rms_norm(const Tensor& x, const std::string& name, bool silu);
  /// Attention of one head over the pixels of each frame, projected, plus `residual`. qkv: names of
  /// the weights of query, key and value, or of all three in one.
  Tensor attention(const Tensor& x, const std::vector<std::string>& qkv, const std::string& out,
                   const Tensor& residual);

  Tensor empty(std::int64_t frames, std::int64_t height, std::int64_t width,
               std::int64_t channels) const;
  /// `count` frames from `first` on, into `to` from frame `at` on.
  void copy_frames(const Tensor& from, std::int64_t first, std::int64_t count, Tensor& to,
                   std::int64_t at) const;
  /// The frames of `before`, if it has any, and of `x`.
  Tensor joined(const Tensor& before, const Tensor& x) const;
  /// Frame i becomes frames 2i and 2i + 1, from the two halves of its channels.
  Tensor frames_from_channels(const Tensor& x) const;

 private:
  struct Linear {  // Rows [begin, end) of a weight and its bias.
    std::shared_ptr<void> weight, bias;
    std::int64_t rows = 0, columns = 0;
  };

  std::shared_ptr<void> put(const std::vector<float>& values, convoy::DType dtype) const;
  std::shared_ptr<void> parameter(const std::string& name, const std::vector<std::int64_t>& shape);
  const Linear& linear(const std::string& name, std::int64_t begin, std::int64_t end);
  Tensor run(const convoy::ProblemShape& problem, const Tensor& x, const std::string& name,
             const Tensor* cache, const Tensor* residual);
  /// out [rows, K] = scale·(a [rows, C] · filter [K, C]ᵀ) + bias + residual.
  void multiply(std::int64_t rows, std::int64_t columns, std::int64_t filters, const void* a,
                const void* filter, void* out, float scale, const void* bias, const void* residual,
                convoy::DType out_dtype);
  void softmax(const float* scores, void* out, std::int64_t rows, std::int64_t columns) const;
  convoy::Device device() const { return cuda_ ? convoy::Device::cuda : convoy::Device::cpu; }
  std::size_t element() const { return convoy::size_of(dtype_); }

  const SafeTensors& weights_;
  bool cuda_;
  convoy::DType dtype_;
  std::map<std::string, convoy::Plan> plans_;
  std::map<std::string, convoy::NormPlan> norms_;
  std::map<std::string, convoy::PackedFilter> packed_;
  std::map<std::string, std::shared_ptr<void>> parameters_;
  std::map<std::string, Linear> linears_;
};
