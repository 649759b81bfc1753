// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

/// A tensor of a file, as fp32.
struct Array {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

/// "[1, 2, 3]".
std::string text_of(const std::vector<std::int64_t>& shape);

/// A .safetensors file.
class SafeTensors {
 public:
  explicit SafeTensors(std::string path);

  bool has(const std::string& key) const { return entries_.contains(key); }
  std::vector<std::string> keys() const;
  /// Throws, with the nearest key that is there.
  const std::vector<std::int64_t>& shape(const std::string& key) const;
  Array read(const std::string& key) const;
  /// Throws where the shape is another.
  Array read(const std::string& key, const std::vector<std::int64_t>& shape) const;

 private:
  struct Entry {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0, end = 0;
  };
  const Entry& entry(const std::string& key) const;

  std::string path_;
  std::uint64_t data_ = 0;  // Where the first tensor lies.
  std::map<std::string, Entry> entries_;
};
