// SPDX-License-Identifier: Apache-2.0
#include "nearest.hpp"

#include <algorithm>

namespace convoy::cli {
namespace {

/// Letters to change, add or drop to get from a to b; or to the beginning of b, which counts as one
/// more.
std::size_t distance_to(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
    }
  }
  return std::min(row[b.size()], *std::min_element(row.begin(), row.end()) + 1);
}

}  // namespace

std::string nearest_word(std::string_view word, const std::vector<std::string>& known) {
  constexpr std::size_t kLongest = 64;  // Words of people.
  if (word.empty() || word.size() > kLongest) return "";
  std::string nearest;
  std::size_t least = (word.size() + 2) / 2;
  for (const std::string& candidate : known) {
    const bool begins = candidate.starts_with(word) || word.starts_with(candidate);
    const std::size_t distance = begins ? 0 : distance_to(word, candidate);
    if (distance >= least) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

std::string nearest_hint(std::string_view word, const std::vector<std::string>& known) {
  const std::string nearest = nearest_word(word, known);
  return nearest.empty() ? "" : "; nearest: " + nearest;
}

}  // namespace convoy::cli
