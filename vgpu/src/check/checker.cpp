// SPDX-License-Identifier: Apache-2.0
#include "check/checker.hpp"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "check/cluster_checker.hpp"
#include "fault.hpp"

namespace vgpu::check {
namespace {

/// Adds up what the synchronising instructions of a program were good for and keeps a file of it
/// up to date: one line "<ptx line> <executed> <useful>" each (for `vgpu mutate`).
class EffectLog {
 public:
  explicit EffectLog(std::string path) : path_(std::move(path)) {}

  void add(const SyncEffects& effects) {
    std::lock_guard lock(mutex_);
    for (const auto& [instruction, effect] : effects) {
      if (!instruction) continue;
      SyncEffect& total = by_line_[instruction->line];
      total.executed += effect.executed;
      total.useful += effect.useful;
    }
  }
  void write() {
    std::lock_guard lock(mutex_);
    std::FILE* file = std::fopen(path_.c_str(), "w");
    if (!file) return;
    for (const auto& [line, effect] : by_line_) {
      std::fprintf(file, "%u %llu %llu\n", line, static_cast<unsigned long long>(effect.executed),
                   static_cast<unsigned long long>(effect.useful));
    }
    std::fclose(file);
  }

 private:
  std::string path_;
  std::mutex mutex_;
  std::map<uint32_t, SyncEffect> by_line_;
};

class Checker final : public exec::Observer {
 public:
  Checker(const CheckOptions& options, GlobalMemory* memory,
          std::function<void(std::string_view)> note)
      : note_(std::move(note)) {
    context_.options = options;
    context_.memory = memory;
    context_.note = [this](const ptx::Module& module, Remark kind, const std::string& text) {
      note_once(module, kind, text);
    };
    context_.touched = [this](uint64_t allocation, uint8_t how) {
      std::lock_guard lock(mutex_);
      touched_[allocation] |= how;
    };
    if (const char* path = std::getenv("VGPU_SYNC_EFFECTS"); path && *path) {
      effects_ = std::make_unique<EffectLog>(path);
      context_.effects = [this](const ptx::Module&, const SyncEffects& effects) {
        effects_->add(effects);
      };
    }
  }

  std::unique_ptr<exec::ClusterObserver> cluster_begin(const exec::ClusterInfo& info) override {
    auto cluster = std::make_unique<ClusterChecker>(context_, info);
    cluster->wants_instructions = effects_ || (context_.options.registers &&
                                               watches_registers(info.request->program->module()));
    return cluster;
  }

  void launch_begin(const exec::LaunchRequest&, const exec::KernelInfo&) override {
    std::lock_guard lock(mutex_);
    context_.before = std::exchange(touched_, {});
  }

  void launch_end(const exec::LaunchRequest&, const exec::LaunchResult&) override {
    if (effects_) effects_->write();
  }

 private:
  bool watches_registers(const ptx::Module& module) {
    std::lock_guard lock(mutex_);
    auto [at, is_new] = watched_.try_emplace(&module);
    if (is_new) at->second = has_asynchronous_registers(module);
    return at->second;
  }
  /// Kernels do the same thing in many places and loops.
  void note_once(const ptx::Module& module, Remark kind, const std::string& text) {
    std::lock_guard lock(mutex_);
    if (noted_.insert({&module, kind}).second && note_) note_(text);
  }

  CheckContext context_;
  std::map<const ptx::Module*, bool> watched_;  // whose registers are
  std::function<void(std::string_view)> note_;
  std::unique_ptr<EffectLog> effects_;
  std::unordered_map<uint64_t, uint8_t> touched_;  // by the running launch
  std::mutex mutex_;
  std::set<std::pair<const ptx::Module*, Remark>> noted_;
};

}  // namespace

CheckOptions CheckOptions::parse(std::string_view list) {
  CheckOptions options;
  size_t at = 0;
  while (at <= list.size()) {
    size_t comma = std::min(list.find(',', at), list.size());
    std::string_view word = list.substr(at, comma - at);
    at = comma + 1;
    // "-word" takes one out again.
    const bool on = !word.starts_with('-');
    if (!on) word.remove_prefix(1);
    if (word == "all") {
      options.race = options.proxy = options.tcgen05 = options.init = on;
      options.mbarrier = options.leak = options.registers = on;
    } else if (word == "race") {
      options.race = on;
    } else if (word == "proxy") {
      options.proxy = on;
    } else if (word == "tcgen05") {
      options.tcgen05 = on;
    } else if (word == "strict") {
      options.strict = on;
    } else if (word == "init") {
      options.init = on;
    } else if (word == "mbarrier") {
      options.mbarrier = on;
    } else if (word == "leak") {
      options.leak = on;
    } else if (word == "registers") {
      options.registers = on;
    } else if (word == "reads") {
      options.reads = on;
    } else if (word != "none" && word != "oob") {
      fault(kInvalidValue,
            "check '%.*s' is unknown; legal: all, none, or a list of race, proxy, tcgen05, "
            "init, mbarrier, leak, registers, reads, oob, strict, each also with '-' in front",
            static_cast<int>(word.size()), word.data());
    }
  }
  return options;
}

std::unique_ptr<exec::Observer> make_checker(const CheckOptions& options, GlobalMemory* memory,
                                             std::function<void(std::string_view)> note) {
  return std::make_unique<Checker>(options, memory, std::move(note));
}

}  // namespace vgpu::check
