// SPDX-License-Identifier: Apache-2.0
// Runs every case and prints one line for each: its name, then the error or the hash of its words
// and the first few of them. A fault poisons a CUDA context, so cases run in child processes: a
// child goes on until a case faults, and the next child continues behind it.
//
//   vgpu_probe [--only TEXT] [--list] [--images FILE]
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "probe.hpp"

namespace probe {

std::vector<Case>& cases() {
  static std::vector<Case> list;
  return list;
}

void* driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult status;
  if (cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &status) !=
          cudaSuccess ||
      function == nullptr) {
    std::fprintf(stderr, "driver entry point %s not found\n", name);
    std::exit(2);
  }
  return function;
}

std::vector<uint16_t> pattern16(size_t count) {
  std::vector<uint16_t> data(count);
  for (uint32_t i = 0; i < count; ++i) data[i] = static_cast<uint16_t>(i * 40503u >> 3 ^ i);
  return data;
}

uint32_t hash32(uint32_t value) {
  value = (value ^ value >> 16) * 0x7feb352du;
  value = (value ^ value >> 15) * 0x846ca68bu;
  return value ^ value >> 16;
}

}  // namespace probe

namespace {

using namespace probe;

constexpr int kExitFaulted = 3;
constexpr int kSilenceLimitSeconds = 60;  // a child without a line for so long hangs
constexpr size_t kShownWords = 16;

void print(const std::string& name, const Result& result) {
  std::string line = name + ":";
  if (!result.note.empty()) line += " " + result.note;
  if (result.error != cudaSuccess) {
    line += " error " + std::to_string(result.error) + " " + cudaGetErrorName(result.error);
  } else if (!result.words.empty()) {
    uint64_t hash = 1469598103934665603ull;
    for (uint32_t word : result.words) hash = (hash ^ word) * 1099511628211ull;
    char text[32];
    std::snprintf(text, sizeof text, " %016llx", static_cast<unsigned long long>(hash));
    line += text;
    for (size_t i = 0; i < result.words.size() && i < kShownWords; ++i) {
      std::snprintf(text, sizeof text, " %08x", result.words[i]);
      line += text;
    }
  }
  std::puts(line.c_str());
  std::fflush(stdout);
}

void append_image(const char* path, const std::string& name, const Result& result) {
  FILE* file = std::fopen(path, "ab");
  if (file == nullptr) return;
  std::fprintf(file, "%s\n%zu\n", name.c_str(), result.words.size());
  std::fwrite(result.words.data(), 4, result.words.size(), file);
  std::fclose(file);
}

int run_child(size_t first, const std::vector<size_t>& chosen, const char* images) {
  for (size_t i = first; i < chosen.size(); ++i) {
    const Case& current = cases()[chosen[i]];
    Result result;
    current.run(result);
    print(current.name, result);
    if (images != nullptr) append_image(images, current.name, result);
    // A sticky error (a fault) stays; others are forgotten here.
    cudaGetLastError();
    if (cudaDeviceSynchronize() != cudaSuccess) return kExitFaulted;
  }
  return 0;
}

// Copies the child's lines to stdout; returns how many cases it has answered.
size_t relay(int pipe, pid_t child) {
  size_t lines = 0;
  char buffer[65536];
  for (;;) {
    pollfd wait{pipe, POLLIN, 0};
    if (poll(&wait, 1, kSilenceLimitSeconds * 1000) == 0) {
      kill(child, SIGKILL);
      return lines;
    }
    const ssize_t got = read(pipe, buffer, sizeof buffer);
    if (got <= 0) return lines;
    for (ssize_t i = 0; i < got; ++i) lines += buffer[i] == '\n';
    std::fwrite(buffer, 1, static_cast<size_t>(got), stdout);
    std::fflush(stdout);
  }
}

int run_parent(const std::vector<size_t>& chosen, const char* images) {
  for (size_t next = 0; next < chosen.size();) {
    int ends[2];
    if (pipe(ends) != 0) return 2;
    const pid_t child = fork();
    if (child == 0) {
      dup2(ends[1], STDOUT_FILENO);
      close(ends[0]);
      close(ends[1]);
      std::exit(run_child(next, chosen, images));
    }
    close(ends[1]);
    const size_t answered = relay(ends[0], child);
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    next += answered;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != kExitFaulted) {
      // It crashed or hung inside a case: say so and go on behind it.
      if (next < chosen.size()) std::printf("%s: no answer\n", cases()[chosen[next]].name.c_str());
      std::fflush(stdout);
      ++next;
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const char *only = nullptr, *images = nullptr;
  bool list = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--list") {
      list = true;
    } else if (argument == "--only" && i + 1 < argc) {
      only = argv[++i];
    } else if (argument == "--images" && i + 1 < argc) {
      images = argv[++i];
    } else {
      std::fprintf(stderr, "usage: vgpu_probe [--only TEXT] [--list] [--images FILE]\n");
      return argument == "--help" ? 0 : 2;
    }
  }
  add_tma_load_cases();
  add_tma_store_cases();
  add_sync_cases();
  add_thread_cases();
  add_prefetch_cases();
  add_math_cases();
  add_wgmma_cases();
  add_host_cases();
  add_rule_cases();
  if (only != nullptr && std::string(only).starts_with("open")) add_open_cases();
  std::vector<size_t> chosen;
  for (size_t i = 0; i < cases().size(); ++i) {
    if (only == nullptr || cases()[i].name.find(only) != std::string::npos) chosen.push_back(i);
  }
  if (list) {
    for (size_t i : chosen) std::puts(cases()[i].name.c_str());
    return 0;
  }
  return run_parent(chosen, images);
}
