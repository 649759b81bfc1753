// SPDX-License-Identifier: Apache-2.0
#include "io/printable.hpp"

namespace convoy::io {

std::string printable(std::string text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < ' ' || byte == 0x7f) text[i] = '?';
    // U+0080 to U+009F are C2 80 to C2 9F; some terminals take them for escapes.
    if (byte == 0xc2 && i + 1 < text.size()) {
      const auto next = static_cast<unsigned char>(text[i + 1]);
      if (next >= 0x80 && next <= 0x9f) text.replace(i, 2, "?");
    }
  }
  return text;
}

}  // namespace convoy::io
