// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <locale>
#include <sstream>
#include <string>

#include "convoy/error.hpp"

namespace convoy {

/// The arguments, printed one after the other.
template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  stream.imbue(std::locale::classic());  // NOTE: a program's global one may write 1.024 for 1024.
  stream.exceptions(
      std::ios_base::badbit);  // NOTE: else it would swallow bad_alloc, and cut the text.
  (stream << ... << parts);
  return stream.str();
}

template <typename... Parts>
[[noreturn]] void throw_invalid(const Parts&... parts) {
  throw Error(Status::invalid_argument, text(parts...));
}

}  // namespace convoy
