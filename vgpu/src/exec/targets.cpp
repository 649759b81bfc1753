// SPDX-License-Identifier: Apache-2.0
//
// The oldest target of instructions that came after sm_80. Source: PTX ISA 9.0, "Target ISA Notes"
// of each instruction.
#include "exec/targets.hpp"

#include <algorithm>
#include <cstdlib>

#include "fault.hpp"

namespace vgpu::exec {
namespace {

// Forms of `opcode` that have `modifier` (any, where it is empty) need `target`.
struct Since {
  std::string_view opcode, modifier;
  unsigned target;
};
constexpr Since kSince[] = {
    {"mma", "e4m3", 89},
    {"mma", "e5m2", 89},
    {"cvt", "e4m3x2", 89},
    {"cvt", "e5m2x2", 89},
    {"barrier", "cluster", 90},
    {"clusterlaunchcontrol", "", 100},
    {"cp", "bulk", 90},
    {"elect", "", 90},
    {"fence", "async", 90},
    {"fence", "mbarrier_init", 90},
    {"fence", "tensormap", 90},
    {"fence", "cluster", 90},
    {"getctarank", "", 90},
    {"griddepcontrol", "", 90},
    {"ld", "cluster", 90},
    {"st", "cluster", 90},
    {"ld", "shared::cluster", 90},
    {"st", "shared::cluster", 90},
    {"atom", "shared::cluster", 90},
    {"red", "shared::cluster", 90},
    {"atom", "cluster", 90},
    {"red", "cluster", 90},
    {"atom", "b128", 90},
    {"mapa", "", 90},
    {"mbarrier", "try_wait", 90},
    {"mbarrier", "expect_tx", 90},
    {"mbarrier", "complete_tx", 90},
    {"mbarrier", "cluster", 90},
    {"mbarrier", "shared::cluster", 90},
    {"multimem", "", 90},
    {"prefetch", "tensormap", 90},
    {"red", "async", 90},
    {"setmaxnreg", "", 90},
    {"st", "async", 90},
    {"stmatrix", "", 90},
    {"tensormap", "", 90},
    {"wgmma", "", 90},
    {"ldmatrix", "m16n16", 100},
    {"ldmatrix", "m8n16", 100},
    {"st", "bulk", 100},
    {"stmatrix", "m16n8", 100},
    {"tcgen05", "", 100},
};

}  // namespace

std::string newer_than_target(const ptx::Form& form, const std::string& target) {
  const size_t at = target.find("sm_");
  if (at == std::string::npos) return {};
  const auto has = static_cast<unsigned>(std::strtoul(target.c_str() + at + 3, nullptr, 10));
  unsigned needs = 0;
  for (const Since& since : kSince) {
    if (form.opcode() != since.opcode) continue;
    if (since.modifier.empty() || form.has(since.modifier)) needs = std::max(needs, since.target);
  }
  // Of doubles, sm_80 has one shape.
  if (form.opcode() == "mma" && form.has("f64") && !form.has("m8n8k4")) {
    needs = std::max(needs, 90u);
  }
  return needs > has ? format("needs .target sm_%u or later", needs) : std::string();
}

}  // namespace vgpu::exec
