// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convoy/epilogue.hpp"
#include "shape_string.hpp"

namespace convoy::cli {

/// One line of a shape file, or one shape of the command line.
struct ShapeCase {
  ProblemShape problem;
  std::optional<DType> dtype;
  std::string name;
  std::int64_t count = 1;  ///< Times the layer runs in one forward, decode or step.
  std::optional<EpilogueKind> epilogue;
};

/// "none", or steps joined by '+' as to_string() of a kind has them: "bias_fp32+silu+residual".
/// "bias" is one of fp32. Throws Error{invalid_argument} for a step that there is not.
EpilogueKind parse_epilogue(std::string_view words);

/// Lines "SHAPE [count=N] [dtype=TYPE] [epilogue=STEPS] [name=TEXT]"; '#' begins a comment. Throws
/// Error{invalid_argument} that names file and line, Error{io_error} where the file cannot be read.
std::vector<ShapeCase> read_shape_file(const std::string& path);

/// The file of a named set ("flux1_vae_decode"), or an empty string. Sets lie in
/// ../share/convoy/shapes beside the program's folder.
std::string find_shape_set(const std::string& name);
std::vector<std::string> list_shape_sets();

/// A shape string, a named set, or the path of a shape file.
std::vector<ShapeCase> resolve_shapes(const std::string& argument);

}  // namespace convoy::cli
