// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "convoy/error.hpp"
#include "io/byte_source.hpp"
#include "io/host_tensor.hpp"

namespace convoy::io {

/// Reads a file given as a string; returns the message where the reader refuses it, and fails the
/// test where it throws anything but io_error.
template <typename Reader>
std::string refusal(const std::string& bytes, const Reader& read) {
  MemorySource source("file", std::as_bytes(std::span(bytes)));
  try {
    read(source);
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::io_error);
    return error.what();
  }
  return "accepted";
}

/// A folder of its own that goes away with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "convoy-test-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  std::size_t files() const {
    return std::size_t(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::string path_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

template <typename T>
const T* values(const HostTensor& tensor) {
  return reinterpret_cast<const T*>(tensor.bytes.data());
}

}  // namespace convoy::io
