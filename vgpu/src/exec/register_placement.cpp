// SPDX-License-Identifier: Apache-2.0
#include "register_placement.hpp"

namespace vgpu::exec {

RegisterColors color_registers(const ptx::Module&, const ptx::Function& function) {
  RegisterColors colors;
  colors.count = static_cast<uint32_t>(function.registers.size());
  for (uint32_t r = 0; r < colors.count; r++) colors.color.push_back(r);
  return colors;
}

}  // namespace vgpu::exec
