// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "convoy/norm.hpp"
#include "core/candidate.hpp"

namespace convoy {

/// A norm with everything decided: both kinds in one form. Its tensor is not empty.
struct NormRequest {
  bool rms = false;         ///< RMS over the channels of a pixel; else GroupNorm.
  std::int64_t batch = 1;   ///< 1 for RMS.
  std::int64_t pixels = 0;  ///< Of one image; of all for RMS.
  std::int64_t channels = 0;
  std::int64_t groups = 1;
  float epsilon = 0;
  RmsEpsilon rule = RmsEpsilon::added;
  NormOptions options;
  DeviceInfo device;

  std::int64_t elements() const { return batch * pixels * channels; }
  /// Of the tensor, or of the coefficients.
  std::size_t output_bytes() const {
    if (options.result == NormResult::tensor) {
      return static_cast<std::size_t>(elements()) * size_of(options.dtype);
    }
    const std::int64_t coefficients = rms ? pixels : 2 * batch * channels;
    return static_cast<std::size_t>(coefficients) * sizeof(float);
  }
};

/// A norm bound to a problem on one device. Immutable once made; the arguments of `run` are
/// checked.
class NormKernel {
 public:
  virtual ~NormKernel() = default;
  virtual std::string name() const = 0;
  virtual std::size_t workspace_bytes() const { return 0; }
  virtual void run(const NormArguments& arguments, cudaStream_t stream) const = 0;
  /// GroupNorm alone: `image_pitch` is not 0.
  virtual void statistics(const NormStatisticsArguments&, cudaStream_t) const {}
};

/// The norms of one backend, as dispatch sees them: what KernelCandidate is for convolutions.
class NormBackend {
 public:
  virtual ~NormBackend() = default;
  virtual Device device() const = 0;
  /// Why it cannot run the request: condition, value, what is legal; empty if it can.
  virtual std::string refusal(const NormRequest& request) const = 0;
  virtual std::unique_ptr<NormKernel> make(const NormRequest& request) const = 0;
};

using NormBackendList = std::vector<std::unique_ptr<NormBackend>>;

}  // namespace convoy
