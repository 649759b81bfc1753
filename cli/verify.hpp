// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "layer.hpp"

namespace convoy::cli {

/// How far an output is from the reference.
struct Verification {
  bool passed = true;
  std::int64_t outputs = 0;   ///< Elements checked: all of them.
  std::int64_t failures = 0;  ///< Elements past their bound.
  double max_error = 0;       ///< max |y - ref|
  double rms_error = 0;       ///< |y - ref|_2 / |ref|_2
  double worst_of_bound = 0;  ///< max |y - ref| / bound
  std::string worst;          ///< Where that is, with both values and the bound.
  std::string reference;      ///< "fp64 loops", or for large problems "oneDNN in fp32".
  std::string bound;          ///< The bound in one line, for people.
};

/// Compares every element with src/reference on the layer's own (rounded) tensors. The bound of an
/// element covers fp32 accumulation in any order, the epilogue in fp32 and one rounding at the
/// store; it follows from the types, from n = (C / groups)·T·R·S, and from Σ|a·w| of that element.
/// `info`: of the plan that made it; of one that multiplies as TF32 the operands count as so
/// rounded.
Verification verify(const Layer& layer, const PlanInfo& info, const io::HostTensor& output,
                    const std::string& filter_format);

}  // namespace convoy::cli
