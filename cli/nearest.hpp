// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace convoy::cli {

/// The known word that is nearest to `word` by letters to change, add or drop; one that begins with
/// it, or that it begins with, first. Empty where none is near.
std::string nearest_word(std::string_view word, const std::vector<std::string>& known);

/// "; nearest: WORD", or nothing.
std::string nearest_hint(std::string_view word, const std::vector<std::string>& known);

}  // namespace convoy::cli
