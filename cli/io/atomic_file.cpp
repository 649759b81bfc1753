// SPDX-License-Identifier: Apache-2.0
#include "io/atomic_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "convoy/error.hpp"

namespace convoy::io {
namespace {

/// The temporary file to remove when a signal ends the program; one file is written at a time.
std::array<char, 4096> interrupted_path{};
std::atomic<bool> interrupted_path_set = false;

void remove_and_end(int signal) {
  if (interrupted_path_set) unlink(interrupted_path.data());
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void remember_for_signals(const std::string& path) {
  if (path.size() >= interrupted_path.size()) return;
  std::memcpy(interrupted_path.data(), path.c_str(), path.size() + 1);
  interrupted_path_set = true;
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, remove_and_end);
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

[[noreturn]] void fail_for(const std::string& path, const std::string& what) {
  throw Error(Status::io_error, path + ": " + what);
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path) : path_(path), temporary_(path + ".part-XXXXXX") {
  check_can_write(path_);
  const int descriptor = mkstemp(temporary_.data());
  if (descriptor < 0) fail(std::string("cannot make a file beside it: ") + std::strerror(errno));
  remember_for_signals(temporary_);
  // mkstemp makes a private file; give it what a new file would have had.
  const mode_t mask = umask(0);
  umask(mask);
  fchmod(descriptor, 0666 & ~mask);
  file_ = fdopen(descriptor, "wb");
  if (file_ == nullptr) {
    close(descriptor);
    unlink(temporary_.c_str());
    fail("cannot open for writing");
  }
}

AtomicFile::~AtomicFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  unlink(temporary_.c_str());
  interrupted_path_set = false;
}

void AtomicFile::fail(const std::string& what) const {
  fail_for(path_, what);
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  if (bytes > 0 && std::fwrite(data, 1, bytes, file_) != bytes) {
    fail(std::string("cannot write: ") + std::strerror(errno));
  }
}

void AtomicFile::commit() {
  if (std::fflush(file_) != 0 || fsync(fileno(file_)) != 0) {
    fail(std::string("cannot write: ") + std::strerror(errno));
  }
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail(std::string("cannot rename into place: ") + std::strerror(errno));
  }
  interrupted_path_set = false;
  std::fclose(file_);
  file_ = nullptr;
}

void write_file(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content.data(), content.size());
  file.commit();
}

void check_can_write(const std::string& path) {
  std::error_code error;
  const std::string folder = folder_of(path);
  if (!std::filesystem::is_directory(folder, error)) {
    fail_for(path, "cannot write: there is no folder " + folder);
  }
  if (std::filesystem::is_directory(path, error)) fail_for(path, "cannot write: it is a folder");
  if (access(folder.c_str(), W_OK) != 0) {
    fail_for(path, "cannot write into folder " + folder + ": " + std::strerror(errno));
  }
}

}  // namespace convoy::io
