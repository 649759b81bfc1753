// SPDX-License-Identifier: Apache-2.0
#include "safetensors.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "convoy/dtype.hpp"

static_assert(std::endian::native == std::endian::little);

namespace {

constexpr std::uint64_t kLongestHeader = 100'000'000;  // The format's own limit.

std::size_t bytes_of(const std::string& dtype) {
  if (dtype == "F32") return 4;
  return dtype == "BF16" || dtype == "F16" ? 2 : 0;
}

// Changes from one word to another, at most `limit`.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row.back();
}

}  // namespace

std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  }
  return text + "]";
}

SafeTensors::SafeTensors(std::string path) : path_(std::move(path)) {
  std::ifstream file(path_, std::ios::binary);
  if (!file) throw std::runtime_error(path_ + ": cannot be opened");
  file.seekg(0, std::ios::end);
  const auto size = static_cast<std::uint64_t>(file.tellg());
  file.seekg(0);
  std::uint64_t length = 0;
  if (size < 8 || !file.read(reinterpret_cast<char*>(&length), 8) || length > kLongestHeader ||
      length > size - 8) {
    throw std::runtime_error(path_ + ": no .safetensors file (a header of " +
                             std::to_string(length) + " bytes)");
  }
  std::string header(length, '\0');
  file.read(header.data(), static_cast<std::streamsize>(length));
  data_ = 8 + length;
  try {
    const auto described = nlohmann::json::parse(header);
    for (const auto& [key, value] : described.items()) {
      if (key == "__metadata__") continue;
      Entry entry{value.at("dtype"), value.at("shape"), value.at("data_offsets").at(0),
                  value.at("data_offsets").at(1)};
      std::uint64_t elements = 1;
      for (const std::int64_t extent : entry.shape) {
        if (extent < 0 || (extent > 0 && elements > (size / static_cast<std::uint64_t>(extent)))) {
          throw std::runtime_error("tensor " + key + " has shape " + text_of(entry.shape));
        }
        elements *= static_cast<std::uint64_t>(extent);
      }
      const std::size_t bytes = bytes_of(entry.dtype);
      if (entry.begin > entry.end || entry.end > size - data_ ||
          (bytes != 0 && entry.end - entry.begin != elements * bytes)) {
        throw std::runtime_error("tensor " + key + " lies from " + std::to_string(entry.begin) +
                                 " to " + std::to_string(entry.end) + " of " +
                                 std::to_string(size - data_) + " bytes; legal for " + entry.dtype +
                                 " " + text_of(entry.shape) + ": " +
                                 std::to_string(elements * bytes) + " bytes within the file");
      }
      entries_.emplace(key, std::move(entry));
    }
  } catch (const std::exception& error) {
    throw std::runtime_error(path_ + ": " + error.what());
  }
}

std::vector<std::string> SafeTensors::keys() const {
  std::vector<std::string> names;
  for (const auto& [key, entry] : entries_) names.push_back(key);
  return names;
}

const SafeTensors::Entry& SafeTensors::entry(const std::string& key) const {
  const auto found = entries_.find(key);
  if (found != entries_.end()) return found->second;
  std::string nearest = "none";
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const auto& [name, entry] : entries_) {
    const std::size_t changes = distance(key, name);
    if (changes < least) least = changes, nearest = name;
  }
  throw std::runtime_error(path_ + ": no tensor " + key + "; nearest: " + nearest);
}

const std::vector<std::int64_t>& SafeTensors::shape(const std::string& key) const {
  return entry(key).shape;
}

Array SafeTensors::read(const std::string& key, const std::vector<std::int64_t>& shape) const {
  const Entry& found = entry(key);
  if (found.shape != shape) {
    throw std::runtime_error(path_ + ": " + key + " has shape " + text_of(found.shape) +
                             "; legal: " + text_of(shape));
  }
  return read(key);
}

Array SafeTensors::read(const std::string& key) const {
  const Entry& found = entry(key);
  const std::size_t bytes = bytes_of(found.dtype);
  if (bytes == 0) {
    throw std::runtime_error(path_ + ": " + key + " is " + found.dtype + "; legal: F32, BF16, F16");
  }
  std::vector<char> raw(found.end - found.begin);
  std::ifstream file(path_, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(data_ + found.begin));
  if (!file.read(raw.data(), static_cast<std::streamsize>(raw.size()))) {
    throw std::runtime_error(path_ + ": " + key + " cannot be read");
  }
  Array array{found.shape, std::vector<float>(raw.size() / bytes)};
  for (std::size_t i = 0; i < array.values.size(); ++i) {
    if (bytes == 4) {
      std::memcpy(&array.values[i], &raw[4 * i], 4);
    } else {
      std::uint16_t bits = 0;
      std::memcpy(&bits, &raw[2 * i], 2);
      array.values[i] =
          found.dtype == "BF16" ? convoy::float_from_bf16(bits) : convoy::float_from_fp16(bits);
    }
  }
  return array;
}
