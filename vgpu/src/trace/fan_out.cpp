// SPDX-License-Identifier: Apache-2.0
#include "trace/fan_out.hpp"

namespace vgpu::trace {
namespace {

using namespace exec;

class ClusterFanOut final : public ClusterObserver {
 public:
  explicit ClusterFanOut(std::vector<std::unique_ptr<ClusterObserver>> parts)
      : parts_(std::move(parts)) {
    ask();
  }

  void instruction(const Agent& a) override { each(&ClusterObserver::instruction, a); }
  void blocked(const Agent& a, const char* why) override {
    each(&ClusterObserver::blocked, a, why);
  }
  void unblocked(const Agent& a) override { each(&ClusterObserver::unblocked, a); }
  void exited(const Agent& a) override { each(&ClusterObserver::exited, a); }
  void access(const Agent& a, const WarpAccess& access) override {
    each(&ClusterObserver::access, a, access);
    ask();
  }
  void tmem_alloc(const Agent& a, uint32_t cta, uint32_t column, uint32_t columns) override {
    each(&ClusterObserver::tmem_alloc, a, cta, column, columns);
  }
  void tmem_dealloc(const Agent& a, uint32_t cta, uint32_t column, uint32_t columns) override {
    each(&ClusterObserver::tmem_dealloc, a, cta, column, columns);
  }
  void tmem_other_lanes(const Agent& a, uint32_t address) override {
    each(&ClusterObserver::tmem_other_lanes, a, address);
  }
  void launch_before_ended(const Agent& a) override {
    each(&ClusterObserver::launch_before_ended, a);
  }
  void launch_after_may_start(const Agent& a) override {
    each(&ClusterObserver::launch_after_may_start, a);
  }
  void box_off_pattern(const Agent& a, uint32_t offset, uint32_t period) override {
    each(&ClusterObserver::box_off_pattern, a, offset, period);
  }
  void barrier_arrive(const Agent& a, uint32_t barrier) override {
    each(&ClusterObserver::barrier_arrive, a, barrier);
  }
  void barrier_pass(const Agent& a, uint32_t barrier) override {
    each(&ClusterObserver::barrier_pass, a, barrier);
  }
  void cluster_arrive(const Agent& a, bool release) override {
    each(&ClusterObserver::cluster_arrive, a, release);
  }
  void cluster_pass(const Agent& a, bool acquire) override {
    each(&ClusterObserver::cluster_pass, a, acquire);
  }
  void warp_sync(const Agent& a) override { each(&ClusterObserver::warp_sync, a); }
  void fence(const Agent& a, FenceKind kind, Order order, Scope scope) override {
    each(&ClusterObserver::fence, a, kind, order, scope);
  }
  void mbarrier_init(const Agent& a, BarrierRef barrier, uint32_t count) override {
    each(&ClusterObserver::mbarrier_init, a, barrier, count);
  }
  void mbarrier_inval(const Agent& a, BarrierRef barrier) override {
    each(&ClusterObserver::mbarrier_inval, a, barrier);
  }
  void mbarrier_arrive(const Agent& a, const AsyncOp* op, BarrierRef barrier, uint32_t count,
                       Order order, Scope scope, const BarrierState& state) override {
    each(&ClusterObserver::mbarrier_arrive, a, op, barrier, count, order, scope, state);
  }
  void mbarrier_expect_tx(const Agent& a, BarrierRef barrier, uint32_t bytes,
                          const BarrierState& state) override {
    each(&ClusterObserver::mbarrier_expect_tx, a, barrier, bytes, state);
  }
  void mbarrier_complete_tx(const Agent& a, const AsyncOp* op, BarrierRef barrier, uint32_t bytes,
                            const BarrierState& state) override {
    each(&ClusterObserver::mbarrier_complete_tx, a, op, barrier, bytes, state);
  }
  void mbarrier_wait(const Agent& a, BarrierRef barrier, uint32_t parity, Order order,
                     Scope scope) override {
    each(&ClusterObserver::mbarrier_wait, a, barrier, parity, order, scope);
  }
  void async_issue(const AsyncOp& op) override { each(&ClusterObserver::async_issue, op); }
  void async_begin(const AsyncOp& op) override { each(&ClusterObserver::async_begin, op); }
  void async_access(const AsyncOp& op, const AsyncAccess& access) override {
    each(&ClusterObserver::async_access, op, access);
    ask();
  }
  void async_chunks(const AsyncOp& op, const AsyncAccess& access,
                    std::span<const uint32_t> addresses) override {
    each(&ClusterObserver::async_chunks, op, access, addresses);
  }
  void async_end(const AsyncOp& op) override { each(&ClusterObserver::async_end, op); }
  void async_done(const AsyncOp& op) override { each(&ClusterObserver::async_done, op); }
  void async_read_done(const AsyncOp& op) override { each(&ClusterObserver::async_read_done, op); }
  void group_commit(const Agent& a, GroupKind kind) override {
    each(&ClusterObserver::group_commit, a, kind);
  }
  void group_wait(const Agent& a, GroupKind kind, uint32_t pending) override {
    each(&ClusterObserver::group_wait, a, kind, pending);
  }
  void end(std::span<const uint32_t> leaked) override { each(&ClusterObserver::end, leaked); }

 private:
  template <typename... Parameters, typename... Arguments>
  void each(void (ClusterObserver::*event)(Parameters...), const Arguments&... arguments) {
    for (const auto& part : parts_) (part.get()->*event)(arguments...);
  }

  void ask() {
    for (const auto& part : parts_) wants_instructions |= part->wants_instructions;
  }

  std::vector<std::unique_ptr<ClusterObserver>> parts_;
};

class FanOut final : public Observer {
 public:
  explicit FanOut(std::vector<Observer*> parts) : parts_(std::move(parts)) {}

  void launch_begin(const LaunchRequest& request, const KernelInfo& kernel) override {
    for (Observer* part : parts_) part->launch_begin(request, kernel);
  }
  std::unique_ptr<ClusterObserver> cluster_begin(const ClusterInfo& info) override {
    std::vector<std::unique_ptr<ClusterObserver>> parts;
    for (Observer* part : parts_) {
      if (auto cluster = part->cluster_begin(info)) parts.push_back(std::move(cluster));
    }
    return std::make_unique<ClusterFanOut>(std::move(parts));
  }
  void launch_end(const LaunchRequest& request, const LaunchResult& result) override {
    for (Observer* part : parts_) part->launch_end(request, result);
  }

 private:
  std::vector<Observer*> parts_;
};

}  // namespace

std::unique_ptr<exec::Observer> make_fan_out(std::vector<exec::Observer*> parts) {
  return std::make_unique<FanOut>(std::move(parts));
}

}  // namespace vgpu::trace
