// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "convoy/epilogue.hpp"
#include "convoy/error.hpp"
#include "convoy/export.h"
#include "convoy/plan.hpp"
#include "convoy/types.hpp"

namespace convoy {

/// Group normalisation of a dense channels-last tensor [N, H, W, C] or [N, D, H, W, C]:
///   y = activation((x − mean) / sqrt(variance + epsilon) · scale[c] + bias[c])
/// where mean and (biased) variance are those of one image's C / groups channels over all pixels.
/// Statistics are kept in fp32 as means and squared deviations, which are merged, so that a large
/// offset does not cost their precision. A NaN or an infinity makes its whole group NaN.
struct CONVOY_API GroupNormProblem {
  std::int64_t batch = 1;     ///< N
  std::int64_t pixels = 0;    ///< H·W or D·H·W of one image.
  std::int64_t channels = 0;  ///< C
  std::int64_t groups = 32;   ///< Must divide C.
  float epsilon = 1e-5f;      ///< ≥ 0, finite.

  /// Throws Error{invalid_argument} naming the first field that is not legal, its value, and what
  /// is.
  void validate() const;
  /// E.g. "group_norm n1p65536c512g32".
  std::string to_string() const;
};

/// How RmsNormProblem's epsilon keeps the divisor from zero.
enum class RmsEpsilon : int {
  added = 0,      ///< x / sqrt(mean(x²) + epsilon), the default.
  norm_floor = 1  ///< x · sqrt(C) / max(sqrt(sum(x²)), epsilon): x normalised to length sqrt(C).
};
/// The enumerator's name.
CONVOY_API const char* to_string(RmsEpsilon rule) noexcept;

/// Root-mean-square normalisation over the channels of each pixel of a dense channels-last tensor:
///   y = activation(x / rms(x) · scale[c] + bias[c]),  rms(x) = sqrt(mean(x²) + epsilon)
/// or with RmsEpsilon::norm_floor as said there.
struct CONVOY_API RmsNormProblem {
  std::int64_t pixels = 0;              ///< N·H·W or N·D·H·W
  std::int64_t channels = 0;            ///< C
  float epsilon = 1e-6f;                ///< ≥ 0, finite.
  RmsEpsilon rule = RmsEpsilon::added;  ///< How epsilon keeps the divisor from zero.

  /// As GroupNormProblem's.
  void validate() const;
  /// E.g. "rms_norm p1597440c96".
  std::string to_string() const;
};

/// What a norm writes.
enum class NormResult : int {
  tensor = 0,  ///< The normalised tensor, the default.
  /// What Prologue reads to normalise inside a convolution, in fp32. GroupNorm: [2, N, C], the
  /// scales and then the shifts, the norm's own scale and bias multiplied in. RMSNorm: 1 / rms(x)
  /// of each pixel; its scale goes to the convolution, and it has no bias.
  coefficients = 1,
};
/// The enumerator's name.
CONVOY_API const char* to_string(NormResult result) noexcept;

/// How a norm is to be run.
struct NormOptions {
  DType dtype = DType::bf16;                 ///< Type of input and output.
  bool scale = true;                         ///< A run brings scale[C].
  bool bias = true;                          ///< A run brings bias[C].
  DType parameter_dtype = DType::fp32;       ///< Type of scale and bias.
  Activation activation = Activation::none;  ///< The pointwise function that follows.
  Device device = Device::automatic;         ///< Where it is to run.
  int device_index = -1;                     ///< CUDA device; -1: the current one.
  /// `coefficients`: without activation; RMSNorm also without scale and bias.
  NormResult result = NormResult::tensor;
};

/// Pointers and values of one run. All memory is on the plan's device, 16-byte aligned.
struct NormArguments {
  /// As large as the input, and maybe the input itself; or the coefficients.
  void* output = nullptr;
  const void* input = nullptr;  ///< [batch, pixels, C], dense.
  const void* scale = nullptr;  ///< [C] of `parameter_dtype` where the plan has a scale.
  const void* bias = nullptr;   ///< [C] of `parameter_dtype` where the plan has a bias.
  float parameter_a = Epilogue{}.parameter_a;  ///< As in Epilogue.
  float parameter_b = Epilogue{}.parameter_b;  ///< As in Epilogue.
  /// NormPlan::workspace_bytes() bytes, contents of no matter. On the CPU it may be null: the run
  /// then takes memory that all plans share.
  void* workspace = nullptr;
  /// GroupNorm: [batch, groups, 2] means and (biased) variances to normalise by, in place of the
  /// input's own: those of a tensor of which the input is a part. Null: the input's.
  const float* statistics = nullptr;
};

/// Pointers of NormPlan::statistics. All memory is on the plan's device, 16-byte aligned.
struct NormStatisticsArguments {
  float* output = nullptr;       ///< [batch, groups, 2]: means and (biased) variances.
  const void* input = nullptr;   ///< The first image, [pixels, C], dense.
  std::int64_t image_pitch = 0;  ///< Elements from one image to the next; 0: pixels · C.
  void* workspace = nullptr;     ///< As NormArguments'.
};

/// A norm that is ready to run. Cheap to copy; `run` may be called from several threads at once,
/// each with a workspace of its own.
class CONVOY_API NormPlan {
 public:
  /// Enqueues the norm on `stream` (the CPU runs it before returning). No allocation,
  /// synchronisation, file access or compilation; safe under CUDA-graph capture; the same input
  /// gives the same bits on the same device. An empty tensor returns at once. Throws
  /// Error{invalid_argument} for null or misaligned pointers, a scale or bias that the plan does
  /// not have, memory that overlaps; Error{launch_failure} where the launch fails.
  void run(const NormArguments& arguments, cudaStream_t stream = nullptr) const;

  /// GroupNorm: enqueues the statistics of an input alone. Several parts of a tensor are normalised
  /// as one by merging theirs. Throws as `run`, and Error{unsupported} for RMSNorm.
  void statistics(const NormStatisticsArguments& arguments, cudaStream_t stream = nullptr) const;

  /// Bytes that NormArguments::workspace must have.
  std::size_t workspace_bytes() const;
  /// `min_bytes` counts each input once and the output once; group_norm on a GPU reads its input
  /// twice.
  const PlanInfo& info() const;

  class Impl;
  /// For the library; `plan` makes them.
  explicit NormPlan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<const Impl> impl_;
};

/// Plans a norm. Throws Error{invalid_argument} for an illegal problem or option,
/// Error{unsupported} where nothing on the wanted device can run it.
CONVOY_API NormPlan plan(const GroupNormProblem& problem, const NormOptions& options = {});
/// The same for RMSNorm.
CONVOY_API NormPlan plan(const RmsNormProblem& problem, const NormOptions& options = {});

}  // namespace convoy
