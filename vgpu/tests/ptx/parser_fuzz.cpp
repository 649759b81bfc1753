// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: any bytes are a module or an explained fault, never a crash or a hang.
//   vgpu_parser_fuzz -max_len=384 -dict=ptx.dict corpus/ seeds/
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "fault.hpp"
#include "ptx/module.hpp"

namespace {

using vgpu::ptx::Function;
using vgpu::ptx::Module;
using vgpu::ptx::Operand;

void require(bool condition) {
  if (!condition) std::abort();
}

/// What the parser promises to those who read its result: every index is inside its table.
void check(const Module& module, const Function& function, const Operand& operand) {
  switch (operand.kind) {
    case Operand::Kind::reg:
      require(operand.index < function.registers.size());
      break;
    case Operand::Kind::special:
      require(operand.index < module.specials.size());
      break;
    case Operand::Kind::variable:
      require(operand.index < module.variables.size());
      break;
    case Operand::Kind::external:
      require(operand.index < module.externals.size());
      break;
    case Operand::Kind::label:
      require(operand.index <= function.code.size());  // past the end: a label in front of '}'
      break;
    case Operand::Kind::table:
      require(operand.index < function.branch_tables.size());
      break;
    default:
      require(uint64_t{operand.first} + operand.count <= function.operands.size());
  }
}

void check(const Module& module) {
  for (const Function& function : module.functions) {
    for (const auto& instruction : function.code) {
      require(instruction.form < module.forms.size());
      require(uint64_t{instruction.first} + instruction.count <= function.operands.size());
      require(instruction.guard < static_cast<int64_t>(function.registers.size()));
      require(instruction.line > 0);
    }
    for (const Operand& operand : function.operands) check(module, function, operand);
    for (const auto& table : function.branch_tables) {
      for (const uint32_t target : table) require(target <= function.code.size());
    }
    for (const auto* list : {&function.params, &function.returns, &function.locals}) {
      for (const uint32_t index : *list) require(index < module.variables.size());
    }
  }
  for (const auto& variable : module.variables) require(variable.size >= variable.init.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    check(*vgpu::ptx::parse(std::string(reinterpret_cast<const char*>(data), size)));
  } catch (const vgpu::Fault& fault) {
    require(!fault.text.empty());
  }
  return 0;
}
