// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: any bytes are a module or an explained fault, never a crash or a hang.
//   parser_fuzz -max_len=4096 -dict=ptx.dict corpus/
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "fault.hpp"
#include "ptx/module.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    auto module = vgpu::ptx::parse(std::string(reinterpret_cast<const char*>(data), size));
    // What the parser promises to those who read its result.
    for (auto& function : module->functions)
      for (auto& instruction : function.code) {
        if (instruction.form >= module->forms.size()) std::abort();
        if (instruction.first + instruction.count > function.operands.size()) std::abort();
        if (instruction.guard >= static_cast<int64_t>(function.registers.size())) std::abort();
      }
  } catch (const vgpu::Fault& fault) {
    if (fault.text.empty()) std::abort();
  }
  return 0;
}
