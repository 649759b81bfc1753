// SPDX-License-Identifier: Apache-2.0
#include "io/byte_source.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "convoy/error.hpp"

namespace convoy::io {

void ByteSource::fail(const std::string& what) const {
  throw Error(Status::io_error, name_ + ": " + what);
}

void ByteSource::read(std::uint64_t offset, void* into, std::size_t bytes) {
  if (offset > size() || bytes > size() - offset) {
    fail("truncated: " + std::to_string(bytes) + " bytes expected at offset " +
         std::to_string(offset) + ", the file ends at " + std::to_string(size()));
  }
  if (bytes > 0) read_checked(offset, into, bytes);
}

FileSource::FileSource(const std::string& path) : ByteSource(path) {
  descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) fail(std::string("cannot open: ") + std::strerror(errno));
  struct stat status {};
  if (fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(descriptor_);
    fail("is not a regular file; a pipe or a folder cannot be read");
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

FileSource::~FileSource() {
  close(descriptor_);
}

void FileSource::read_checked(std::uint64_t offset, void* into, std::size_t bytes) {
  auto* out = static_cast<char*>(into);
  while (bytes > 0) {
    const ssize_t got = pread(descriptor_, out, std::min<std::size_t>(bytes, std::size_t{1} << 30),
                              static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(std::string("cannot read: ") + std::strerror(errno));
    if (got == 0) fail("truncated while it was being read");
    out += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
}

std::string read_all(const std::string& path, std::uint64_t most) {
  FileSource source(path);
  if (source.size() > most) {
    source.fail("too large, " + std::to_string(source.size()) + " bytes; legal: at most " +
                std::to_string(most));
  }
  std::string content(source.size(), '\0');
  source.read(0, content.data(), content.size());
  return content;
}

std::optional<std::string> read_if_there(const std::string& path, std::uint64_t most) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    throw Error(Status::io_error, path + ": cannot read: " + std::strerror(errno));
  }
  return read_all(path, most);
}

void MemorySource::read_checked(std::uint64_t offset, void* into, std::size_t bytes) {
  std::memcpy(into, bytes_.data() + offset, bytes);
}

}  // namespace convoy::io
