// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace convoy::io {

/// Random-access bytes whose number is known before anything is read: the readers check what a
/// header promises against it, so that no memory is reserved on a header's word alone.
class ByteSource {
 public:
  explicit ByteSource(std::string name) : name_(std::move(name)) {}
  virtual ~ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  virtual std::uint64_t size() const = 0;

  /// Copies `bytes` bytes from `offset` on. Throws Error{io_error} where the source is shorter.
  void read(std::uint64_t offset, void* into, std::size_t bytes);

  /// What messages call it: the path.
  const std::string& name() const { return name_; }

  /// Throws Error{io_error} "<name>: <what>".
  [[noreturn]] void fail(const std::string& what) const;

 protected:
  /// The range is known to lie inside the source.
  virtual void read_checked(std::uint64_t offset, void* into, std::size_t bytes) = 0;

 private:
  std::string name_;
};

/// A regular file. The constructor throws Error{io_error} for anything else.
class FileSource : public ByteSource {
 public:
  explicit FileSource(const std::string& path);
  ~FileSource() override;
  std::uint64_t size() const override { return size_; }

 protected:
  void read_checked(std::uint64_t offset, void* into, std::size_t bytes) override;

 private:
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

/// All bytes of the regular file `path`. Throws Error{io_error} where it has more than `most`, or
/// cannot be read.
std::string read_all(const std::string& path, std::uint64_t most = UINT64_MAX);

/// The same; nothing where there is no file. Throws Error{io_error} for whatever else keeps it from
/// being read: who takes that for "no file" overwrites it.
std::optional<std::string> read_if_there(const std::string& path, std::uint64_t most = UINT64_MAX);

/// Bytes in memory that outlive the source: tests and fuzzers.
class MemorySource : public ByteSource {
 public:
  MemorySource(std::string name, std::span<const std::byte> bytes)
      : ByteSource(std::move(name)), bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }

 protected:
  void read_checked(std::uint64_t offset, void* into, std::size_t bytes) override;

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace convoy::io
