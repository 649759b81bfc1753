// SPDX-License-Identifier: Apache-2.0
#include "core/elementwise.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/checked.hpp"
#include "core/text.hpp"

namespace convoy {
namespace {

void require_between(std::int64_t value, std::int64_t least, std::int64_t most,
                     const std::string& name) {
  if (value >= least && value <= most) return;
  throw_invalid(name, " = ", value, " is not legal; legal: ", least, " to ", most,
                "; nearest: ", std::clamp(value, least, most));
}

constexpr std::int64_t kMost = std::int64_t{1} << 48;

void check_operand(const ElementwiseProblem& problem, const ElementwiseOperand& operand, int i) {
  const std::string name = text("operands[", i, "].");
  for (int axis = 0; axis < 5; ++axis) {
    require_between(operand.strides[axis], 0, axis == 4 ? 1 : kMost,
                    text(name, "strides[", axis, "]"));
  }
  for (int axis = 0; axis < 3; ++axis) {
    const std::int64_t ratio = operand.ratio[axis];
    require_between(ratio, 1, std::int64_t{1} << 20, text(name, "ratio[", axis, "]"));
    require_between(operand.offset[axis], 0, ratio - 1, text(name, "offset[", axis, "]"));
  }
  extent_of(problem, operand);
}

void check_step(const ElementwiseProblem& problem, const ElementwiseStep& step, int i) {
  const std::string name = text("steps[", i, "].");
  require_between(static_cast<int>(step.op), 0, static_cast<int>(ElementwiseOp::affine),
                  name + "op");
  if (step.op == ElementwiseOp::affine) return;
  if (step.op == ElementwiseOp::activation) {
    require_between(static_cast<int>(step.activation), 0, static_cast<int>(Activation::clamp),
                    name + "activation");
    return;
  }
  const int count = static_cast<int>(problem.operands.size());
  if (step.operand < ElementwiseStep::kKept || step.operand >= count) {
    throw_invalid(name, "operand = ", step.operand, " is not legal; legal: 0 to ", count - 1, ", ",
                  ElementwiseStep::kNumber, " (the step's number), ", ElementwiseStep::kKept,
                  " (the kept value)");
  }
  if (step.operand == ElementwiseStep::kKept &&
      std::none_of(problem.steps.begin(), problem.steps.begin() + i,
                   [](const ElementwiseStep& s) { return s.op == ElementwiseOp::load; })) {
    throw_invalid(name, "operand = ", step.operand,
                  " is the kept value, and no step before it keeps one; legal: a load first");
  }
}

}  // namespace

const char* to_string(ElementwiseOp op) noexcept {
  switch (op) {
    case ElementwiseOp::load:
      return "load";
    case ElementwiseOp::add:
      return "add";
    case ElementwiseOp::subtract:
      return "subtract";
    case ElementwiseOp::subtract_from:
      return "subtract_from";
    case ElementwiseOp::multiply:
      return "multiply";
    case ElementwiseOp::activation:
      return "activation";
    case ElementwiseOp::affine:
      return "affine";
  }
  return "unknown elementwise op";
}

std::int64_t extent_of(const ElementwiseProblem& p, const ElementwiseOperand& operand) {
  const std::int64_t extents[5] = {p.batch, p.depth, p.height, p.width, p.channels};
  std::int64_t last = 0;
  for (int axis = 0; axis < 5; ++axis) {
    std::int64_t most = std::max<std::int64_t>(extents[axis] - 1, 0);
    if (axis >= 1 && axis <= 3) {
      most = (most + operand.offset[axis - 1]) / operand.ratio[axis - 1];
    }
    last =
        checked_add(last, checked_product({most, operand.strides[axis], 8}, "bytes of an operand"),
                    "bytes of an operand");
  }
  return last / 8;
}

bool is_dense(const ElementwiseProblem& p, const ElementwiseOperand& operand) {
  const auto dense = ElementwiseOperand::dense(p.depth, p.height, p.width, p.channels);
  const std::int64_t extents[5] = {p.batch, p.depth, p.height, p.width, p.channels};
  for (int axis = 0; axis < 5; ++axis) {
    if (extents[axis] > 1 && operand.strides[axis] != dense.strides[axis]) return false;
    if (axis >= 1 && axis <= 3 && extents[axis] > 1 && operand.ratio[axis - 1] != 1) return false;
  }
  return true;
}

void ElementwiseProblem::validate() const {
  const std::pair<const char*, std::int64_t> extents[] = {
      {"batch", batch}, {"depth", depth}, {"height", height}, {"width", width}};
  for (const auto& [name, value] : extents) require_between(value, 0, kMost, name);
  require_between(channels, 1, std::int64_t{1} << 30, "channels");
  checked_product({batch, depth, height, width, channels, 8}, "bytes of the tensor");
  require_between(std::ssize(operands), 1, kOperands, "operands.size()");
  require_between(std::ssize(steps), 0, kSteps, "steps.size()");
  for (int i = 0; i < static_cast<int>(operands.size()); ++i) check_operand(*this, operands[i], i);
  for (int i = 0; i < static_cast<int>(steps.size()); ++i) check_step(*this, steps[i], i);
}

std::string ElementwiseProblem::to_string() const {
  std::string result =
      text("elementwise n", batch, "d", depth, "h", height, "w", width, "c", channels);
  const char* separator = ": ";
  for (const ElementwiseStep& step : steps) {
    result += separator;
    separator = ", ";
    if (step.op == ElementwiseOp::activation) {
      result += convoy::to_string(step.activation);
      continue;
    }
    result += convoy::to_string(step.op);
    if (step.op == ElementwiseOp::affine) continue;
    if (step.operand == ElementwiseStep::kNumber) {
      result += text(" ", step.number);
    } else if (step.operand == ElementwiseStep::kKept) {
      result += " kept";
    } else {
      result += text(" ", step.operand);
    }
  }
  return result;
}

}  // namespace convoy
