// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "ptx/module.hpp"

namespace vgpu::exec {

/// Which registers of a function may share storage: registers of one color have the same width and
/// are never live at once.
struct RegisterColors {
  std::vector<uint32_t> color;  ///< of each register
  uint32_t count = 0;
};

/// Colors a function's registers by liveness, so that the register file of a warp fits a cache.
/// PTX from a compiler is close to single assignment: thousands of registers, few live at a time.
/// Registers of wgmma keep storage of their own: they are read and written after the instruction.
RegisterColors color_registers(const ptx::Module& module, const ptx::Function& function);

}  // namespace vgpu::exec
