// SPDX-License-Identifier: Apache-2.0
#include "runtime/module.hpp"

#include <cstring>

#include "check/mutation.hpp"
#include "memory.hpp"

namespace vgpu::runtime {
const exec::Program& Module::load(uint32_t arch, GlobalMemory& memory) {
  if (problem_) std::rethrow_exception(problem_);
  try {
    if (!program_) {
      program_ =
          exec::Program::load(check::mutate_from_environment(choose_ptx(entries_, arch).ptx));
    }
    if (symbol_addresses_.empty() && !program_->symbols().empty()) load_variables(memory);
  } catch (const Fault&) {
    problem_ = std::current_exception();
    throw;
  }
  entries_.clear();  // the texts are parsed: give their memory back
  return *program_;
}

void Module::load_variables(GlobalMemory& memory) {
  const auto& symbols = program_->symbols();
  std::unordered_map<std::string_view, uint64_t> address_of;
  for (const exec::Symbol& symbol : symbols) {
    const auto kind = symbol.is_constant ? MemoryKind::constant : MemoryKind::symbol;
    const uint64_t bytes = symbol.size ? symbol.size : 1;
    Allocation* storage = memory.allocate(bytes, kind, symbol.name);
    if (storage == nullptr) {
      fault(kMemoryAllocation, "variable %s of %llu bytes does not fit into the device's memory",
            symbol.name.c_str(), static_cast<unsigned long long>(bytes));
    }
    symbol_addresses_.push_back(storage->base());
    address_of[symbol.name] = storage->base();
  }
  // Initial values, once every variable has its address.
  for (size_t i = 0; i < symbols.size(); ++i) {
    const ptx::Variable& variable = *symbols[i].variable;
    auto* storage = reinterpret_cast<uint8_t*>(symbol_addresses_[i]);
    if (!variable.init.empty()) {
      std::memcpy(storage, variable.init.data(),
                  std::min<size_t>(variable.init.size(), symbols[i].size));
    }
    for (const auto& relocation : variable.relocations) {
      const auto& functions = program_->module().function_by_name;
      if (const auto function = functions.find(relocation.symbol); function != functions.end()) {
        const uint64_t value = exec::function_address(function->second);
        std::memcpy(storage + relocation.offset, &value, sizeof value);
        continue;
      }
      const auto target = address_of.find(relocation.symbol);
      if (target == address_of.end()) {
        fault(kInvalidPtx,
              "variable %s is initialised with the address of %s, which is no variable",
              symbols[i].name.c_str(), relocation.symbol.c_str());
      }
      const uint64_t value = target->second + static_cast<uint64_t>(relocation.addend);
      std::memcpy(storage + relocation.offset, &value, sizeof value);
    }
  }
}

}  // namespace vgpu::runtime
