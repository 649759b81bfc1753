// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace vgpu::cli {

/// `vgpu run`: starts a program on the virtual GPU. Returns only when that fails: 2 for a wrong
/// command line, 126 for a program that cannot run on it, 127 for one that cannot be started.
int run(const std::vector<std::string>& arguments);

/// The folder of libcudart.so.13 and libcuda.so.1; empty (and an explanation on stderr) when it is
/// not found.
std::string library_folder();

}  // namespace vgpu::cli
