// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>
#include <vector>

#include "commands.hpp"
#include "version.hpp"

namespace {

const char* const kUsage = R"(usage: vgpu <command> [arguments]

The virtual GPU runs CUDA programs on the CPU, to test and debug kernels for NVIDIA H200 and B200
GPUs where none is at hand.

  vgpu run [options] -- program [arguments]      run a program on it
  vgpu mutate [options] -- program [arguments]   delete its synchronising instructions one at a time
                                                 and tell what notices
  vgpu --version                                 print the version

'vgpu <command> --help' lists the options.
)";

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.empty()) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  const std::string& command = arguments[0];
  if (command == "--help" || command == "-h" || command == "help") {
    std::fputs(kUsage, stdout);
    return 0;
  }
  if (command == "--version") {
    std::printf("vgpu %s\n", vgpu::kVersion);
    return 0;
  }
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  if (command == "run") return vgpu::cli::run(rest);
  if (command == "mutate") return vgpu::cli::mutate(rest);
  std::fprintf(stderr, "vgpu: unknown command %s\n%s", command.c_str(), kUsage);
  return 2;
}
