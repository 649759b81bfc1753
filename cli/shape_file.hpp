// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shape_string.hpp"

namespace convoy::cli {

/// One line of a shape file, or one shape of the command line.
struct ShapeCase {
  ProblemShape problem;
  std::optional<DType> dtype;
  std::string name;
  std::int64_t count = 1;  ///< Times the layer runs in one forward, decode or step.
};

/// Lines "SHAPE [count=N] [name=TEXT]"; '#' begins a comment. Throws Error{invalid_argument} that
/// names file and line, Error{io_error} where the file cannot be read.
std::vector<ShapeCase> read_shape_file(const std::string& path);

/// The file of a named set ("flux1_vae_decode"), or an empty string. Sets lie in
/// ../share/convoy/shapes beside the program's folder.
std::string find_shape_set(const std::string& name);
std::vector<std::string> list_shape_sets();

/// A shape string, a named set, or the path of a shape file.
std::vector<ShapeCase> resolve_shapes(const std::string& argument);

}  // namespace convoy::cli
