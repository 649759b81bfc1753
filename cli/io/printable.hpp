// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace convoy::io {

/// A name fit for one line of a terminal: control characters (C0, DEL, and C1 in UTF-8) as '?'.
std::string printable(std::string text);

}  // namespace convoy::io
