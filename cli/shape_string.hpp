// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "convoy/geometry.hpp"
#include "convoy/problem.hpp"

namespace convoy::cli {

/// What a shape string says.
struct ParsedShape {
  ProblemShape problem;
  std::optional<DType> dtype;  ///< Said by MIOpenDriver's convfp16 and convbfp16.
  std::string name;            ///< benchdnn's n"name".
};

/// Reads a problem in one of three notations:
///
///   convoy     n1h256w256c512k512r3s3ph1pw1   what to_string() of a problem gives
///   benchdnn   mb1ic512ih256oc512oh256kh3ph1n"up1"   dilation counts from 0, as there
///   MIOpen     conv -n 1 -c 512 -H 256 -W 256 -k 512 -y 3 -x 3 -p 1 -q 1
///
/// Only the text is judged: `validate` of the problem says whether the shape is legal. Throws
/// Error{invalid_argument} that names the field and the character.
ParsedShape parse_shape(std::string_view text);

}  // namespace convoy::cli
