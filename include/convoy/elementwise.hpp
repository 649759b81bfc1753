// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "convoy/epilogue.hpp"
#include "convoy/export.h"
#include "convoy/plan.hpp"
#include "convoy/types.hpp"

namespace convoy {

/// A step of a chain. `v` is the value so far, `x` the step's operand, number or kept value.
enum class ElementwiseOp : int {
  load = 0,           ///< Keeps v and begins again: kept = v, v = x.
  add = 1,            ///< v + x
  subtract = 2,       ///< v - x
  subtract_from = 3,  ///< x - v
  multiply = 4,       ///< v · x
  activation = 5,     ///< activation(v), on fp32.
  /// v · scale[n, c] + shift[n, c] of ElementwiseArguments::coefficients, in fp32: a GroupNorm
  /// whose NormResult::coefficients are known.
  affine = 6,
};
/// The enumerator's name.
CONVOY_API const char* to_string(ElementwiseOp op) noexcept;

/// What a step works with beside v.
struct ElementwiseStep {
  static constexpr int kNumber = -1;  ///< `operand`: the step's `number`.
  static constexpr int kKept = -2;    ///< `operand`: what the last `load` kept.

  ElementwiseOp op = ElementwiseOp::load;      ///< What is done.
  int operand = kNumber;                       ///< An operand from 0 on, kNumber or kKept.
  float number = 0.0f;                         ///< Rounded to nothing: fp32.
  Activation activation = Activation::none;    ///< Of ElementwiseOp::activation.
  float parameter_a = Epilogue{}.parameter_a;  ///< As in Epilogue.
  float parameter_b = Epilogue{}.parameter_b;  ///< As in Epilogue.
};

/// Where an operand has the element that goes with element (n, d, h, w, c) of the output, in
/// elements from its pointer: the sum of the coordinates times `strides`, where each of d, h, w is
/// (coordinate + offset) / ratio, rounded down. A stride of 0 repeats along its axis; a ratio above
/// 1 is an operand of fewer pixels, enlarged to the nearest.
struct ElementwiseOperand {
  std::int64_t strides[5] = {0, 0, 0, 0, 0};  ///< Of n, d, h, w, c; at least 0; of c 0 or 1.
  std::int64_t ratio[3] = {1, 1, 1};          ///< Of d, h, w; at least 1.
  std::int64_t offset[3] = {0, 0, 0};         ///< Of d, h, w; 0 to ratio - 1.

  /// The operand of a dense channels-last tensor of these extents.
  static ElementwiseOperand dense(std::int64_t depth, std::int64_t height, std::int64_t width,
                                  std::int64_t channels) {
    return {{depth * height * width * channels, height * width * channels, width * channels,
             channels, 1}};
  }
};

/// A chain of pointwise steps over tensors, [N, D, H, W, C] dense channels-last the output:
/// v = operand 0, then each step. After every step v is rounded to the type of the tensors, as a
/// chain of separate kernels does.
struct CONVOY_API ElementwiseProblem {
  static constexpr int kOperands = 4;  ///< At most.
  static constexpr int kSteps = 12;    ///< At most.

  std::int64_t batch = 1;                         ///< N
  std::int64_t depth = 1;                         ///< D
  std::int64_t height = 1;                        ///< H
  std::int64_t width = 1;                         ///< W
  std::int64_t channels = 0;                      ///< C
  std::vector<ElementwiseOperand> operands = {};  ///< 1 to kOperands.
  std::vector<ElementwiseStep> steps = {};        ///< 0 to kSteps.

  /// Throws Error{invalid_argument} naming the field, its value and what is legal.
  void validate() const;
  /// "elementwise n1d4h60w104c96: multiply 1, add 2, silu"
  std::string to_string() const;
};

/// How a chain is to be run.
struct ElementwiseOptions {
  DType dtype = DType::bf16;          ///< Type of every tensor.
  Device device = Device::automatic;  ///< Where it is to run.
  int device_index = -1;              ///< CUDA device; -1: the current one.
};

/// Pointers of one run. All memory is on the plan's device, 16-byte aligned but for operands that
/// repeat along the channels.
struct ElementwiseArguments {
  void* output = nullptr;  ///< [N, D, H, W, C]; it may be a dense operand.
  const void* operands[ElementwiseProblem::kOperands] = {};  ///< As the problem has them.
  const float* coefficients = nullptr;  ///< [2, N, C] where a step is `affine`.
};

/// A chain that is ready to run. Cheap to copy; several threads may call `run`.
class CONVOY_API ElementwisePlan {
 public:
  /// Enqueues the chain on `stream`. No allocation, synchronisation, file access or compilation;
  /// safe under CUDA-graph capture. An empty tensor returns at once. Throws Error{invalid_argument}
  /// for null or misaligned pointers and memory that overlaps the output;
  /// Error{launch_failure} where the launch fails.
  void run(const ElementwiseArguments& arguments, cudaStream_t stream = nullptr) const;
  /// `min_bytes`: every operand's bytes once, and the output's.
  const PlanInfo& info() const;

  class Impl;
  /// For the library; `plan` makes them.
  explicit ElementwisePlan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<const Impl> impl_;
};

/// Plans a chain. Throws Error{invalid_argument} for an illegal problem or option,
/// Error{unsupported} where nothing on the wanted device can run it: chains run on CUDA devices.
CONVOY_API ElementwisePlan plan(const ElementwiseProblem& problem,
                                const ElementwiseOptions& options = {});

}  // namespace convoy
