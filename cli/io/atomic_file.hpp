// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

namespace convoy::io {

/// A file that appears under its name complete or not at all: written beside it under a temporary
/// name, renamed by `commit`. Without `commit`, and where the program is interrupted, the temporary
/// file is removed and a file that was there before stays as it is.
class AtomicFile {
 public:
  /// Throws Error{io_error} where the folder cannot be written.
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Throws Error{io_error}, e.g. on a full disk.
  void write(const void* data, std::size_t bytes);
  void commit();

  const std::string& path() const { return path_; }
  [[noreturn]] void fail(const std::string& what) const;

 private:
  std::string path_;
  std::string temporary_;
  std::FILE* file_ = nullptr;
};

/// A whole file at once. Throws Error{io_error}.
void write_file(const std::string& path, std::string_view content);

/// Throws Error{io_error} where a file at `path` could not be made: its folder is missing or may
/// not be written, or `path` is a folder. Asked before long work begins.
void check_can_write(const std::string& path);

}  // namespace convoy::io
