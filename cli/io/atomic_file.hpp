// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

namespace convoy::io {

/// A file that appears under its name complete or not at all: written beside it under a temporary
/// name, renamed by `commit`. Without `commit`, and where the program is interrupted, the temporary
/// file is removed and a file that was there before stays as it is. As with `cp`, symbolic links
/// are followed, and a file that is replaced hands on its mode, and its owner where that is
/// allowed; other hard links to it keep the old content.
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
  std::string path_;    ///< As given.
  std::string target_;  ///< Behind its symbolic links.
  std::string temporary_;
  std::FILE* file_ = nullptr;
};

/// Removes the temporary file that is being written, where there is one: for those who end the
/// program without unwinding.
void remove_unfinished();

/// A whole file at once. Throws Error{io_error}.
void write_file(const std::string& path, std::string_view content);

/// While it lives no other process holds one for a file of the same folder: for those who read a
/// file, change it and write it anew.
class FolderLock {
 public:
  /// NOTE: where a file system has no locks there is none: it is waited for, not relied on.
  explicit FolderLock(const std::string& path);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_;
};

/// Throws Error{io_error} where a file at `path` could not be made: its folder is missing or may
/// not be written, or `path` is a folder, a device, or a file that may not be written. Asked before
/// long work begins.
void check_can_write(const std::string& path);

/// Whether both lead to the same file, there or yet to be made.
bool is_same_path(const std::string& path, const std::string& other);

/// What a path's symbolic links lead to; the path itself where it is none.
std::string resolve_links(const std::string& path);

}  // namespace convoy::io
