// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "convoy/elementwise.hpp"
#include "core/candidate.hpp"

namespace convoy {

/// A chain with everything decided. Its output is not empty.
struct ElementwiseRequest {
  ElementwiseProblem problem;
  ElementwiseOptions options;
  DeviceInfo device;

  std::int64_t pixels() const {
    return problem.batch * problem.depth * problem.height * problem.width;
  }
  std::int64_t elements() const { return pixels() * problem.channels; }
};

/// From an operand's first element to its last, in elements.
std::int64_t extent_of(const ElementwiseProblem& problem, const ElementwiseOperand& operand);
/// The operand has each element where the output has it.
bool is_dense(const ElementwiseProblem& problem, const ElementwiseOperand& operand);

/// A chain bound to a problem on one device. Immutable once made; the arguments of `run` are
/// checked.
class ElementwiseKernel {
 public:
  virtual ~ElementwiseKernel() = default;
  virtual std::string name() const = 0;
  virtual void run(const ElementwiseArguments& arguments, cudaStream_t stream) const = 0;
};

/// The chains of one backend, as dispatch sees them.
class ElementwiseBackend {
 public:
  virtual ~ElementwiseBackend() = default;
  /// Why it cannot run the request: condition, value, what is legal; empty if it can.
  virtual std::string refusal(const ElementwiseRequest& request) const = 0;
  virtual std::unique_ptr<ElementwiseKernel> make(const ElementwiseRequest& request) const = 0;
};

}  // namespace convoy
