// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ptx/module.hpp"

/// Deleting one synchronising instruction of a module, as text, to see whether anything notices.
namespace vgpu::check {

/// A synchronising instruction of a PTX text.
struct SyncSite {
  uint32_t line = 0;   ///< of the PTX text, from 1
  uint32_t nth = 0;    ///< which use of `opcode` in that line, from 0
  std::string opcode;  ///< with its modifiers
  std::string function;
  std::string source;  ///< "file:line" where the text has .loc lines, else empty
};

/// Whether an opcode orders threads, proxies or asynchronous operations: barriers, mbarriers,
/// fences, commits, waits.
bool is_synchronising(std::string_view opcode);

/// All of them, in order of the text.
std::vector<SyncSite> find_sync_sites(const ptx::Module& module);

/// The text without that instruction (its guard goes too); lines keep their numbers. A
/// mbarrier.test_wait / try_wait becomes one that succeeds at once.
std::string delete_site(std::string ptx, const SyncSite& site);

/// What `vgpu mutate` asks of the runtime through VGPU_MUTATE, applied to a module's text:
/// "list:<file>" appends its sites to a file, one a line ("<index>\t<line>\t<function>\t<source>\t
/// <opcode>"); "delete:<index>" removes one. Indices count over the modules in the order in which
/// they are loaded. Any other value, or none: the text as it is.
std::string mutate_from_environment(std::string ptx);

}  // namespace vgpu::check
