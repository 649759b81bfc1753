// SPDX-License-Identifier: Apache-2.0
// What a kernel author reads when a launch fails.
#include <algorithm>

#include "exec/barrier_ops.hpp"
#include "exec/mbarrier.hpp"
#include "exec/scheduler.hpp"

namespace vgpu::exec {

std::string describe_location(const ptx::Module& module, const ptx::Instruction& instruction) {
  std::string text = std::string(module.line_text(instruction.line));
  if (text.size() > 100) text = text.substr(0, 97) + "...";
  std::string ptx = format("PTX line %u: %s", instruction.line, text.c_str());
  const std::string source = module.source_of(instruction);
  return source.empty() ? ptx : source + " (" + ptx + ")";
}

namespace {

std::string place(const Cluster& cluster, const Agent& agent) {
  auto& module = cluster.grid->request->program->module();
  auto& cta = *cluster.ctas[agent.cta];
  std::string at =
      agent.instruction ? describe_location(module, *agent.instruction) : "no instruction";
  return format(
      "at %s\n  by CTA (%u,%u,%u)%s, warp %u, lanes %#010x", at.c_str(), cta.index[0], cta.index[1],
      cta.index[2],
      cluster.ctas.size() > 1 ? format(" (rank %u of its cluster)", cta.rank).c_str() : "",
      agent.warp, agent.lanes);
}

std::string describe_mbarrier(const Cluster& cluster, uint32_t address, uint32_t parity) {
  uint32_t rank = address >> kSharedRankShift, offset = address & kSharedOffsetMask;
  std::string text = format("mbarrier at shared offset %u", offset - kSharedReserved);
  if (cluster.ctas.size() > 1) text += format(" of CTA rank %u", rank);
  if (rank >= cluster.ctas.size()) return text;
  try {
    Mbarrier barrier = load_mbarrier(*cluster.ctas[rank], offset);
    text += format(", parity %u: that phase is incomplete, %u of %u arrivals pending", parity,
                   barrier.pending, barrier.expected);
    if (barrier.tx > 0) text += format(", %d bytes missing", barrier.tx);
    if (barrier.tx < 0) text += format(", %d bytes arrived that nobody expected", -barrier.tx);
    if (barrier.phase != parity) text += " (it has completed since)";
  } catch (const Fault& fault) {
    text += ": " + fault.text;
  }
  return text;
}

/// A wait by parity cannot tell a phase from the next but one.
std::string describe_laps(const Cluster& cluster, const LaneGroup& group) {
  const uint32_t rank = static_cast<uint32_t>(group.detail) >> kSharedRankShift;
  if (group.polls != (group.detail | uint64_t{group.detail2} << 32) ||
      rank >= cluster.ctas.size()) {
    return {};
  }
  const auto& phases = cluster.ctas[rank]->phases;
  const auto found = phases.find(static_cast<uint32_t>(group.detail) & kSharedOffsetMask);
  if (found == phases.end() || found->second < group.phases_before + 2) return {};
  return format(
      "; lapped: %llu phases have completed since the wait began, and their parity is the "
      "same again",
      static_cast<unsigned long long>(found->second - group.phases_before));
}

std::string describe_wait(const Cluster& cluster, const Warp& warp, const LaneGroup& group) {
  if (!group.why) return "runnable";
  std::string_view why = group.why;
  if (why == "mbarrier.try_wait" || why == "mbarrier.test_wait") {
    return std::string("waits (") + group.why + ") for " +
           describe_mbarrier(cluster, static_cast<uint32_t>(group.detail), group.detail2) +
           describe_laps(cluster, group);
  }
  if (why == "bar.sync") {
    auto& barrier = warp.cta->barriers[group.detail];
    return format("waits at barrier %llu: %u of %u threads have arrived",
                  static_cast<unsigned long long>(group.detail), barrier.arrived,
                  barrier_expectation(*warp.cta, barrier));
  }
  if (why == "barrier.cluster.wait") {
    return format("waits for the cluster barrier: %u of %u warps have arrived",
                  cluster.barrier_arrived, cluster.live_warps);
  }
  if (why.substr(0, 3) == "cp.") {
    return format("waits in %s %llu", group.why, static_cast<unsigned long long>(group.detail));
  }
  return group.blocked ? std::string(why) : "runnable";
}

/// One line for each distinct (CTA, lanes, place, wait), with its warps.
std::string cluster_state(const Cluster& cluster) {
  auto& module = cluster.grid->request->program->module();
  std::string out;
  for (auto& cta : cluster.ctas) {
    std::vector<std::pair<std::string, std::vector<uint32_t>>> lines;
    uint32_t exited = 0;
    for (auto& warp : cta->warps) {
      if (warp->groups.empty()) ++exited;
      for (auto& group : warp->groups) {
        auto* instruction = warp->kernel->source[group.pc].instruction;
        std::string line =
            format("lanes %08x %s\n        at %s", group.mask,
                   describe_wait(cluster, *warp, group).c_str(),
                   instruction ? describe_location(module, *instruction).c_str() : "the end");
        auto found =
            std::find_if(lines.begin(), lines.end(), [&](auto& e) { return e.first == line; });
        if (found == lines.end()) {
          lines.push_back({line, {warp->id}});
        } else {
          found->second.push_back(warp->id);
        }
      }
    }
    out += format("\n  CTA (%u,%u,%u)", cta->index[0], cta->index[1], cta->index[2]);
    if (cluster.ctas.size() > 1) out += format(", rank %u", cta->rank);
    out += format(": %u of %zu warps have exited", exited, cta->warps.size());
    for (auto& [line, warps] : lines) {
      std::string who = warps.size() == 1 ? "warp" : "warps";
      for (size_t k = 0; k < warps.size(); ++k) who += format("%s%u", k ? "," : " ", warps[k]);
      out += format("\n    %s %s", who.c_str(), line.c_str());
    }
  }
  return out;
}

std::string headline_of(const Cluster& cluster) {
  return format("kernel %s, cluster %llu", cluster.grid->kernel->function->name.c_str(),
                static_cast<unsigned long long>(cluster.number));
}

}  // namespace

std::string fault_report(const Cluster& cluster, const Agent& agent, const std::string& text) {
  return format("%s\n  in %s\n  %s\n  The cluster's state:%s", text.c_str(),
                headline_of(cluster).c_str(), place(cluster, agent).c_str(),
                cluster_state(cluster).c_str());
}

std::string stuck_report(const Cluster& cluster, const std::string& headline) {
  return format("%s\n  in %s%s", headline.c_str(), headline_of(cluster).c_str(),
                cluster_state(cluster).c_str());
}

}  // namespace vgpu::exec
