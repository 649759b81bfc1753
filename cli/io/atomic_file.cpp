// SPDX-License-Identifier: Apache-2.0
#include "io/atomic_file.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "convoy/error.hpp"

namespace convoy::io {
namespace {

/// The temporary file to remove when a signal ends the program; one file is written at a time.
std::array<char, 4096> interrupted_path{};
std::atomic<bool> interrupted_path_set = false;
/// A file is there whose name is not yet in `interrupted_path`.
std::atomic<bool> is_being_made = false;

}  // namespace

void remove_unfinished() {
  if (interrupted_path_set) unlink(interrupted_path.data());
}

namespace {

void remove_and_end(int signal) {
  // NOTE: the thread that makes a file blocks signals meanwhile; this one is another.
  while (is_being_made) {
    constexpr timespec kMoment{.tv_sec = 0, .tv_nsec = 100'000};
    nanosleep(&kMoment, nullptr);
  }
  remove_unfinished();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

/// What ends a program from outside. A write past `ulimit -f` is to fail, not to end it.
void handle_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXCPU}) {
    struct sigaction old {};
    sigaction(signal, nullptr, &old);
    // NOTE: what the caller ignores stays ignored: nohup ignores SIGHUP.
    if (old.sa_handler == SIG_DFL) std::signal(signal, remove_and_end);
  }
  std::signal(SIGXFSZ, SIG_IGN);
}

/// No signal arrives while it lives.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

/// mkstemp, whose file a signal removes.
int make_temporary(std::string& path) {
  handle_signals();
  const SignalsBlocked blocked;
  is_being_made = true;
  const int descriptor = mkstemp(path.data());
  if (descriptor >= 0 && path.size() < interrupted_path.size()) {
    std::memcpy(interrupted_path.data(), path.c_str(), path.size() + 1);
    interrupted_path_set = true;
  }
  is_being_made = false;
  return descriptor;
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

/// A name beside `path` for mkstemp to finish; where that would be too long for a name, of as many
/// of the path's characters as leave room.
std::string temporary_name(const std::string& path) {
  const std::string end = ".part-XXXXXX";
  const std::size_t begin = path.rfind('/') + 1;  // 0 where there is no slash.
  const long limit = pathconf(folder_of(path).c_str(), _PC_NAME_MAX);
  const std::size_t most = limit > 0 ? static_cast<std::size_t>(limit) : NAME_MAX;
  if (path.size() - begin + end.size() <= most || most <= end.size()) return path + end;
  std::size_t cut = begin + most - end.size();
  while (cut > begin && (static_cast<unsigned char>(path[cut]) & 0xc0) == 0x80) --cut;  // UTF-8.
  return path.substr(0, cut) + end;
}

[[noreturn]] void fail_for(const std::string& path, const std::string& what) {
  throw Error(Status::io_error, path + ": " + what);
}

}  // namespace

FolderLock::FolderLock(const std::string& path)
    : descriptor_(
          open(folder_of(resolve_links(path)).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (descriptor_ < 0) return;
  while (flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
  }
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) close(descriptor_);  // And with it the lock.
}

AtomicFile::AtomicFile(const std::string& path)
    : path_(path), target_(resolve_links(path)), temporary_(temporary_name(target_)) {
  check_can_write(path_);
  const int descriptor = make_temporary(temporary_);
  if (descriptor < 0) fail(std::string("cannot make a file beside it: ") + std::strerror(errno));
  // mkstemp makes a private file; give it what the old file has, or what a new one would have had.
  struct stat old {};
  if (stat(target_.c_str(), &old) == 0) {
    // NOTE: the owner first, which takes set-user-id bits away; only root may give files away.
    if (fchown(descriptor, old.st_uid, old.st_gid) != 0) errno = 0;
    fchmod(descriptor, old.st_mode & 07777);
  } else {
    const mode_t mask = umask(0);
    umask(mask);
    fchmod(descriptor, 0666 & ~mask);
  }
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
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) {
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

std::string resolve_links(const std::string& path) {
  std::filesystem::path at = path;
  std::error_code error;
  for (int link = 0; std::filesystem::is_symlink(at, error); ++link) {
    constexpr int kMostLinks = 40;  // As Linux follows.
    if (link == kMostLinks) fail_for(path, "cannot write: too many symbolic links");
    const std::filesystem::path to = std::filesystem::read_symlink(at, error);
    if (error) fail_for(path, "cannot read the symbolic link: " + error.message());
    at = at.parent_path() / to;  // `to` alone where it is absolute.
  }
  return at.string();
}

bool is_same_path(const std::string& path, const std::string& other) {
  const auto place = [](const std::string& given) {
    std::error_code error;  // Where it cannot be resolved, writing says why.
    return std::filesystem::weakly_canonical(std::filesystem::absolute(resolve_links(given), error),
                                             error);
  };
  return place(path) == place(other);
}

void check_can_write(const std::string& path) {
  const std::string target = resolve_links(path);
  std::error_code error;
  const std::string folder = folder_of(target);
  if (!std::filesystem::is_directory(folder, error)) {
    const bool absent = !error || error == std::errc::no_such_file_or_directory;
    fail_for(path, absent ? "cannot write: there is no folder " + folder
                          : "cannot write into its folder: " + error.message());
  }
  const std::filesystem::file_status status = std::filesystem::status(target, error);
  if (std::filesystem::is_directory(status)) fail_for(path, "cannot write: it is a folder");
  if (std::filesystem::exists(status)) {
    if (!std::filesystem::is_regular_file(status)) {
      fail_for(path, "cannot write: it is not a regular file");
    }
    if (access(target.c_str(), W_OK) != 0) {
      fail_for(path, std::string("cannot write: ") + std::strerror(errno));
    }
  }
  if (access(folder.c_str(), W_OK) != 0) {
    fail_for(path, "cannot write into folder " + folder + ": " + std::strerror(errno));
  }
}

}  // namespace convoy::io
