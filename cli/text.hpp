// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <string>

#include "convoy/error.hpp"

namespace convoy::cli {

/// The arguments, printed one after the other.
template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

template <typename... Parts>
[[noreturn]] void throw_invalid(const Parts&... parts) {
  throw Error(Status::invalid_argument, text(parts...));
}

}  // namespace convoy::cli
