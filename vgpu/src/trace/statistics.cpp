// SPDX-License-Identifier: Apache-2.0
#include "trace/statistics.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "exec/operation_names.hpp"
#include "ptx/module.hpp"

namespace vgpu::trace {
namespace {

using namespace exec;

constexpr size_t kShownConflicts = 8;
constexpr size_t kShownKinds = 6;

/// The groups that the instruction mix is shown in, by the opcode's first word.
std::string_view kind_of(std::string_view opcode) {
  struct Kind {
    std::string_view opcode, kind;
  };
  static constexpr Kind kKinds[] = {{"ld", "load"},
                                    {"st", "store"},
                                    {"ldmatrix", "load"},
                                    {"stmatrix", "store"},
                                    {"atom", "atomic"},
                                    {"red", "atomic"},
                                    {"cp", "async copy"},
                                    {"mbarrier", "barrier"},
                                    {"bar", "barrier"},
                                    {"barrier", "barrier"},
                                    {"fence", "fence"},
                                    {"membar", "fence"},
                                    {"wgmma", "wgmma"},
                                    {"tcgen05", "tcgen05"},
                                    {"mma", "mma"},
                                    {"wmma", "mma"},
                                    {"bra", "branch"},
                                    {"brx", "branch"},
                                    {"call", "branch"},
                                    {"ret", "branch"},
                                    {"exit", "branch"},
                                    {"setp", "compare"},
                                    {"selp", "compare"},
                                    {"set", "compare"},
                                    {"cvt", "convert"},
                                    {"cvta", "convert"},
                                    {"mov", "move"},
                                    {"mapa", "move"},
                                    {"fma", "fma and mad"},
                                    {"mad", "fma and mad"},
                                    {"add", "add and sub"},
                                    {"sub", "add and sub"},
                                    {"mul", "multiply"},
                                    {"and", "logic"},
                                    {"or", "logic"},
                                    {"xor", "logic"},
                                    {"not", "logic"},
                                    {"lop3", "logic"},
                                    {"shl", "shift"},
                                    {"shr", "shift"},
                                    {"shf", "shift"},
                                    {"shfl", "warp"},
                                    {"vote", "warp"},
                                    {"elect", "warp"},
                                    {"redux", "warp"},
                                    {"match", "warp"},
                                    {"ex2", "special function"},
                                    {"lg2", "special function"},
                                    {"rcp", "special function"},
                                    {"rsqrt", "special function"},
                                    {"sqrt", "special function"},
                                    {"sin", "special function"},
                                    {"cos", "special function"},
                                    {"tanh", "special function"},
                                    {"div", "special function"}};
  for (const Kind& kind : kKinds) {
    if (kind.opcode == opcode) return kind.kind;
  }
  return "other";
}

struct Conflict {
  uint64_t accesses = 0, passes = 0, minimum = 0;
};

struct Counts {
  // Executions of each instruction by each warp of a CTA, summed over CTAs.
  std::vector<std::unordered_map<const ptx::Instruction*, uint64_t>> by_warp;
  std::vector<uint64_t> warp_lanes;  // lane instructions
  std::array<uint64_t, 32> operations{}, bytes{};
  uint64_t macs = 0;
  uint64_t waits = 0, waits_blocked = 0;
  std::unordered_map<const ptx::Instruction*, Conflict> conflicts;

  void merge(const Counts& other) {
    if (by_warp.size() < other.by_warp.size()) {
      by_warp.resize(other.by_warp.size());
      warp_lanes.resize(other.by_warp.size());
    }
    for (size_t w = 0; w < other.by_warp.size(); ++w) {
      for (const auto& [instruction, count] : other.by_warp[w]) by_warp[w][instruction] += count;
      warp_lanes[w] += other.warp_lanes[w];
    }
    for (size_t i = 0; i < operations.size(); ++i) {
      operations[i] += other.operations[i];
      bytes[i] += other.bytes[i];
    }
    macs += other.macs;
    waits += other.waits;
    waits_blocked += other.waits_blocked;
    for (const auto& [instruction, conflict] : other.conflicts) {
      Conflict& total = conflicts[instruction];
      total.accesses += conflict.accesses;
      total.passes += conflict.passes;
      total.minimum += conflict.minimum;
    }
  }
};

struct KernelCounts {
  uint64_t launches = 0, clusters = 0, failed = 0;
  Counts counts;
};

class ClusterCounter final : public ClusterObserver {
 public:
  ClusterCounter(KernelCounts& total, std::mutex& mutex, uint32_t warps)
      : total_(total), mutex_(mutex) {
    wants_instructions = true;
    counts_.by_warp.resize(warps);
    counts_.warp_lanes.resize(warps);
  }
  ~ClusterCounter() override {
    const std::lock_guard lock(mutex_);
    total_.counts.merge(counts_);
    ++total_.clusters;
  }

  void instruction(const Agent& agent) override {
    ++step_;
    ++counts_.by_warp[agent.warp][agent.instruction];
    counts_.warp_lanes[agent.warp] += static_cast<uint64_t>(__builtin_popcount(agent.lanes));
  }
  void blocked(const Agent&, const char*) override { ++counts_.waits_blocked; }
  void unblocked(const Agent&) override { ++step_; }
  void barrier_pass(const Agent&, uint32_t) override { ++counts_.waits; }
  void cluster_pass(const Agent&, bool) override { ++counts_.waits; }
  // Told lane by lane: the lanes of one instruction are one wait.
  void mbarrier_wait(const Agent& agent, BarrierRef, uint32_t, Order, Scope) override {
    if (step_ == wait_step_ && agent.instruction == waiter_) return;
    wait_step_ = step_;
    waiter_ = agent.instruction;
    ++counts_.waits;
  }

  void access(const Agent& agent, const WarpAccess& access) override {
    if (access.memory != Memory::shared || access.bytes == 0) return;
    const BankPasses passes = bank_passes(access.addresses, agent.lanes, access.bytes);
    Conflict& conflict = counts_.conflicts[agent.instruction];
    ++conflict.accesses;
    conflict.passes += passes.passes;
    conflict.minimum += passes.minimum;
  }
  void async_issue(const AsyncOp& op) override {
    // The four warps of a warpgroup issue one wgmma.
    if (op.kind == AsyncKind::wgmma && op.issuer.warp % 4 != 0) return;
    ++counts_.operations[static_cast<size_t>(op.kind)];
    counts_.bytes[static_cast<size_t>(op.kind)] += op.bytes;
  }

 private:
  KernelCounts& total_;
  std::mutex& mutex_;
  Counts counts_;
  uint64_t step_ = 0, wait_step_ = ~0ull;  // of the instructions; that of the last mbarrier wait
  const ptx::Instruction* waiter_ = nullptr;
};

std::string thousands(uint64_t value) {
  std::string text = std::to_string(value);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, 1, ' ');
  return text;
}

class StatisticsImpl final : public Statistics {
 public:
  void launch_begin(const LaunchRequest& request, const KernelInfo& kernel) override {
    const std::lock_guard lock(mutex_);
    ++kernels_[key(request, kernel.name)].launches;
  }
  std::unique_ptr<ClusterObserver> cluster_begin(const ClusterInfo& info) override {
    const std::lock_guard lock(mutex_);
    return std::make_unique<ClusterCounter>(kernels_[key(*info.request, info.kernel->name)], mutex_,
                                            info.warps);
  }
  void launch_end(const LaunchRequest& request, const LaunchResult& result) override {
    const std::lock_guard lock(mutex_);
    KernelCounts& kernel = kernels_[key(request, request.kernel)];
    kernel.failed += result.cuda_error != 0;
    kernel.counts.macs += result.mma_macs;  // mma.sync too, which is no asynchronous operation
  }

  std::string report() const override {
    const std::lock_guard lock(mutex_);
    std::string text;
    for (const auto& [key, kernel] : kernels_) text += report(key.first, *key.second, kernel);
    return text;
  }

 private:
  // Modules may hold kernels of the same name.
  using Key = std::pair<std::string, const ptx::Module*>;
  static Key key(const LaunchRequest& request, const std::string& kernel) {
    return {kernel, &request.program->module()};
  }

  static std::string report(const std::string& name, const ptx::Module& module,
                            const KernelCounts& kernel) {
    std::string text =
        format("kernel %s: %s launches, %s clusters", name.c_str(),
               thousands(kernel.launches).c_str(), thousands(kernel.clusters).c_str());
    if (kernel.failed) text += format(", %s failed", thousands(kernel.failed).c_str());
    return text + "\n" + instruction_mix(module, kernel.counts) + asynchronous(kernel.counts) +
           conflicts(module, kernel.counts) + "\n";
  }

  // Warps that execute the same instructions equally often share a role.
  static std::string instruction_mix(const ptx::Module& module, const Counts& counts) {
    struct Role {
      std::vector<size_t> warps;
      std::map<std::string_view, uint64_t> kinds;
      uint64_t total = 0, lanes = 0;
    };
    std::vector<Role> roles;
    for (size_t warp = 0; warp < counts.by_warp.size(); ++warp) {
      Role role;
      role.warps = {warp};
      role.lanes = counts.warp_lanes[warp];
      for (const auto& [instruction, count] : counts.by_warp[warp]) {
        const ptx::Form& form = module.forms[instruction->form];
        role.kinds[kind_of(form.opcode())] += count;
        role.total += count;
      }
      // Spinning makes equal roles differ a little: the mix of kinds decides, within 10 %.
      const auto alike = [&](const Role& other) {
        for (const auto& [kind, count] : role.kinds) {
          const auto found = other.kinds.find(kind);
          const double mine = static_cast<double>(count) / static_cast<double>(role.total);
          const double theirs =
              found == other.kinds.end() || other.total == 0
                  ? 0
                  : static_cast<double>(found->second) / static_cast<double>(other.total);
          if (std::abs(mine - theirs) > 0.1) return false;
        }
        return role.total != 0 && other.total != 0;
      };
      const auto same = std::find_if(roles.begin(), roles.end(), alike);
      if (same == roles.end()) {
        roles.push_back(std::move(role));
        continue;
      }
      same->warps.push_back(warp);
      same->total += role.total;
      same->lanes += role.lanes;
      for (const auto& [kind, count] : role.kinds) same->kinds[kind] += count;
    }
    std::string text;
    for (const Role& role : roles) {
      text += format("  %s %s: %s warp instructions, %s lane instructions\n   ",
                     role.warps.size() == 1 ? "warp" : "warps", list(role.warps).c_str(),
                     thousands(role.total).c_str(), thousands(role.lanes).c_str());
      std::vector<std::pair<uint64_t, std::string_view>> order;
      for (const auto& [kind, count] : role.kinds) order.emplace_back(count, kind);
      std::sort(order.rbegin(), order.rend());
      for (size_t i = 0; i < std::min(order.size(), kShownKinds); ++i) {
        text += format(
            " %.*s %.0f%%%s", static_cast<int>(order[i].second.size()), order[i].second.data(),
            100.0 * static_cast<double>(order[i].first) / static_cast<double>(role.total),
            i + 1 < std::min(order.size(), kShownKinds) ? "," : "");
      }
      text += "\n";
    }
    return text;
  }

  // "0-3, 5"
  static std::string list(const std::vector<size_t>& numbers) {
    std::string text;
    for (size_t i = 0; i < numbers.size();) {
      size_t last = i;
      while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
      if (!text.empty()) text += ", ";
      text += std::to_string(numbers[i]);
      if (last > i) text.append("-").append(std::to_string(numbers[last]));
      i = last + 1;
    }
    return text;
  }

  static std::string asynchronous(const Counts& counts) {
    std::string text;
    for (size_t i = 0; i < counts.operations.size(); ++i) {
      if (counts.operations[i] == 0) continue;
      text += format("  %s: %s", operation_name(static_cast<AsyncKind>(i)),
                     thousands(counts.operations[i]).c_str());
      if (counts.bytes[i]) text += format(", %s bytes", thousands(counts.bytes[i]).c_str());
      text += "\n";
    }
    if (counts.macs) {
      text += format("  matrix products: %s multiply-accumulates, %.3f GFLOP\n",
                     thousands(counts.macs).c_str(), 2e-9 * static_cast<double>(counts.macs));
    }
    if (counts.waits) {
      text += format("  barrier waits passed: %s; times a warp blocked: %s\n",
                     thousands(counts.waits).c_str(), thousands(counts.waits_blocked).c_str());
    }
    return text;
  }

  static std::string conflicts(const ptx::Module& module, const Counts& counts) {
    std::vector<std::pair<const ptx::Instruction*, Conflict>> order(counts.conflicts.begin(),
                                                                    counts.conflicts.end());
    uint64_t accesses = 0, extra = 0;
    for (const auto& [instruction, conflict] : order) {
      accesses += conflict.accesses;
      extra += conflict.passes - conflict.minimum;
    }
    if (accesses == 0) return {};
    std::string text = format("  shared-memory accesses: %s, extra passes by bank conflicts: %s\n",
                              thousands(accesses).c_str(), thousands(extra).c_str());
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      const uint64_t x = a.second.passes - a.second.minimum, y = b.second.passes - b.second.minimum;
      return x != y ? x > y : a.first->line < b.first->line;
    });
    for (size_t i = 0; i < std::min(order.size(), kShownConflicts); ++i) {
      const auto& [instruction, conflict] = order[i];
      if (conflict.passes == conflict.minimum) break;
      text += format("    %.1f passes where %.1f would do, %s times: %s\n",
                     static_cast<double>(conflict.passes) / static_cast<double>(conflict.accesses),
                     static_cast<double>(conflict.minimum) / static_cast<double>(conflict.accesses),
                     thousands(conflict.accesses).c_str(),
                     describe_location(module, *instruction).c_str());
    }
    return text;
  }

  mutable std::mutex mutex_;
  std::map<Key, KernelCounts> kernels_;
};

}  // namespace

BankPasses bank_passes(const uint64_t* addresses, uint32_t lanes, uint32_t bytes) {
  constexpr uint32_t kBanks = 32, kWord = 4;
  const uint32_t words = bytes > kWord ? bytes / kWord : 1;
  // Wide accesses: 32 lanes of 4 bytes, 16 of 8 and 8 of 16 fill the 128 bytes of one pass.
  const uint32_t group = std::max(1u, 32 / words);
  BankPasses result;
  for (uint32_t first = 0; first < 32; first += group) {
    // Distinct words of each bank; a bank serves one word in a pass.
    std::array<std::array<uint64_t, 32>, kBanks> seen;
    std::array<uint32_t, kBanks> count{};
    for (uint32_t lane = first; lane < first + group && lane < 32; ++lane) {
      if (!(lanes >> lane & 1)) continue;
      for (uint32_t w = 0; w < words; ++w) {
        const uint64_t word = addresses[lane] / kWord + w;
        auto& bank = seen[word % kBanks];
        uint32_t& used = count[word % kBanks];
        const bool known =
            std::find(bank.begin(), bank.begin() + used, word) != bank.begin() + used;
        if (!known && used < bank.size()) bank[used++] = word;
      }
    }
    const uint32_t most = *std::max_element(count.begin(), count.end());
    result.passes += most;
    result.minimum += most > 0;
  }
  return result;
}

std::unique_ptr<Statistics> make_statistics() {
  return std::make_unique<StatisticsImpl>();
}

}  // namespace vgpu::trace
