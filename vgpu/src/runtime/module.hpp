// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "exec/launch.hpp"
#include "runtime/fatbin.hpp"

namespace vgpu {
class GlobalMemory;
}

namespace vgpu::runtime {

/// One registered fat binary. Its PTX is chosen and parsed at the first use of one of its kernels
/// or variables, as CUDA's lazy loading does.
class Module {
 public:
  explicit Module(std::vector<FatEntry> entries) : entries_(std::move(entries)) {}
  /// A module whose image could not be read: every use throws `problem`.
  explicit Module(Fault problem) : problem_(std::make_exception_ptr(std::move(problem))) {}

  /// Loads on first use; throws the same Fault every time when that fails.
  const exec::Program& load(uint32_t arch, GlobalMemory& memory);

  /// Addresses in the order of Program::symbols(); valid once loaded.
  const std::vector<uint64_t>& symbol_addresses() const { return symbol_addresses_; }
  /// Gives the variables new storage at the next use (cudaDeviceReset).
  void forget_storage() { symbol_addresses_.clear(); }

 private:
  void load_variables(GlobalMemory& memory);

  std::vector<FatEntry> entries_;
  std::exception_ptr problem_;
  std::unique_ptr<exec::Program> program_;
  std::vector<uint64_t> symbol_addresses_;
};

/// A kernel of a module, with the attributes that cudaFuncSetAttribute sets.
struct Kernel {
  Module* module = nullptr;
  std::string name;             ///< mangled
  int max_dynamic_shared = -1;  ///< -1: not set
  bool nonportable_cluster = false;
  int carveout = -1;
};

/// A `__device__`, `__constant__` or `__managed__` variable.
struct Variable {
  Module* module = nullptr;
  std::string name;
  size_t bytes = 0;
};

}  // namespace vgpu::runtime
