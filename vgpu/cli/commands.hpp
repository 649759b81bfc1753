// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace vgpu::cli {

/// `vgpu run`: starts a program on the virtual GPU. Returns only when that fails: 2 for a wrong
/// command line, 126 for a program that cannot run on it, 127 for one that cannot be started.
int run(const std::vector<std::string>& arguments);

/// `vgpu mutate`: deletes one synchronising instruction of the program's kernels at a time, runs
/// the program, and tells what noticed. Returns the exit status: 0, 1 for survivors that must not
/// be, 2 for a wrong command line or a program that fails unchanged.
int mutate(const std::vector<std::string>& arguments);

}  // namespace vgpu::cli
