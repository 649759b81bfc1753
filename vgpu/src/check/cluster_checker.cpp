// SPDX-License-Identifier: Apache-2.0
#include "check/cluster_checker.hpp"

#include <algorithm>
#include <bit>

#include "check/mutation.hpp"
#include "fault.hpp"

namespace vgpu::check {

using exec::Access;
using exec::Agent;
using exec::AsyncKind;
using exec::AsyncOp;
using exec::BarrierRef;
using exec::BarrierState;
using exec::FenceKind;
using exec::GroupKind;
using exec::Memory;
using exec::Order;
using exec::Scope;

namespace {

bool arrives_only(const ptx::Form& form) {
  return std::find(form.parts.begin(), form.parts.end(), "arrive") != form.parts.end();
}
bool releases(Order order) {
  return order == Order::release || order == Order::acq_rel;
}
bool acquires(Order order) {
  return order == Order::acquire || order == Order::acq_rel;
}

uint64_t barrier_key(BarrierRef ref) {
  return uint64_t{ref.cta} << 32 | ref.offset;
}

}  // namespace

bool in_tensor_pipeline(AsyncKind kind) {
  return kind == AsyncKind::tcgen05_mma || kind == AsyncKind::tcgen05_cp ||
         kind == AsyncKind::tcgen05_shift;
}

std::optional<GroupKind> group_kind_of(AsyncKind kind) {
  switch (kind) {
    case AsyncKind::tma_store:
    case AsyncKind::tma_reduce:
    case AsyncKind::bulk_store:
    case AsyncKind::bulk_reduce:
      return GroupKind::bulk;
    case AsyncKind::cp_async:
      return GroupKind::cp_async;
    case AsyncKind::wgmma:
      return GroupKind::wgmma;
    case AsyncKind::tcgen05_ld:
      return GroupKind::tcgen05_ld;
    case AsyncKind::tcgen05_st:
      return GroupKind::tcgen05_st;
    default:
      return std::nullopt;
  }
}

ClusterChecker::ClusterChecker(const CheckContext& context, const exec::ClusterInfo& info)
    : context_(context), info_(info), module_(info.request->program->module()) {
  warps_.resize(size_t{info.ctas} * info.warps);
  for (Component c = 0; c < warps_.size(); ++c) {
    warps_[c].self = c;
    warps_[c].next_epoch();
  }
  next_component_ = static_cast<Component>(warps_.size());
  for (WarpState& warp : warps_) {
    warp.tensor_pipeline = new_component();
    tcgen05_components_.push_back(warp.tensor_pipeline);
  }
  launch_before_ = new_component();
  // Offsets start behind the KiB that the hardware keeps.
  const size_t cells =
      (info.shared_bytes + kReservedBytes + kSharedCellBytes - 1) / kSharedCellBytes;
  shared_.resize(info.ctas);
  for (auto& cta : shared_) cta.resize(cells, kFreshCell);
  lane_writes_.resize(info.ctas);
  tmem_.resize(info.ctas);
  barriers_.resize(info.ctas);
  exited_.resize(info.ctas);
}

ClusterChecker::~ClusterChecker() {
  if (context_.effects) context_.effects(module_, effects_);
}

Operation& ClusterChecker::operation_of(uint64_t id) {
  return operations_.at(id);
}

GroupStream& ClusterChecker::group_of(GroupKind kind, Component warp, uint32_t lane) {
  if (kind == GroupKind::bulk_read) kind = GroupKind::bulk;
  uint64_t key = uint64_t{warp} << 16 | uint64_t{static_cast<uint8_t>(kind)} << 8 | lane;
  auto [at, is_new] = groups_.try_emplace(key);
  if (is_new) {
    at->second.component = kind == GroupKind::wgmma ? wgmma_component(warp) : new_component();
    if (kind == GroupKind::tcgen05_ld || kind == GroupKind::tcgen05_st) {
      tcgen05_components_.push_back(at->second.component);
    }
  }
  return at->second;
}

/// NOTE: a wgmma is done for the four warps of its warpgroup at once, and they issue the same ones:
/// what one warp has waited for is over for all.
Component ClusterChecker::wgmma_component(Component warp) {
  const Component cta = warp / info_.warps, group = warp % info_.warps / 4;
  auto [at, is_new] = wgmma_components_.try_emplace(uint64_t{cta} << 32 | group);
  if (is_new) at->second = new_component();
  return at->second;
}

MbarrierState& ClusterChecker::mbarrier_of(BarrierRef ref) {
  const uint64_t key = barrier_key(ref);
  auto& [recent_key, recent] = recent_mbarriers_[ref.offset / 8 % recent_mbarriers_.size()];
  if (recent && recent_key == key) return *recent;
  auto [at, is_new] = mbarriers_.try_emplace(key);
  if (is_new) at->second.phases = new_component();
  recent_key = key;
  recent = &at->second;
  return at->second;
}

void ClusterChecker::note_effect(const Agent& agent, bool useful) {
  if (!context_.effects) return;
  effects_[agent.instruction].useful += useful;
}

// ---------------------------------------------------------------- passing knowledge on

/// Adds what an arrival with release semantics passes on.
void ClusterChecker::release_into(Message& message, const WarpState& warp) const {
  message.order.join(warp.view.order);
  message.proxy.join(warp.view.proxy);
  message.inits.join(warp.view.inits);
  message.weak.join(warp.view.weak);
  message.tcgen05.join(warp.tcgen05_before);
  message.tcgen05.join(warp.view.tcgen05);
  message.tcgen05.join(warp.view.tcgen05_arrived);
}

/// Adds what an arrival without release semantics passes on: what fences published before it.
void ClusterChecker::relaxed_into(Message& message, const WarpState& warp) const {
  message.join(warp.fenced);
  message.inits.join(warp.view.inits);
  message.weak.join(warp.view.weak);
  message.weak.join(warp.view.order);
  // tcgen05.fence::before_thread_sync orders what came before it before any arrival.
  message.tcgen05.join(warp.tcgen05_before);
  for (Component c : tcgen05_components_) message.order.raise(c, warp.tcgen05_before[c]);
}

bool ClusterChecker::acquire(WarpState& warp, const Message& message) {
  bool news = warp.view.order.join(message.order);
  bool other = warp.view.proxy.join(message.proxy);
  other |= warp.view.inits.join(message.inits);
  other |= warp.view.weak.join(message.weak);
  other |= warp.view.tcgen05_arrived.join(message.tcgen05);
  if (news || other) warp.touch();
  return news;
}

void ClusterChecker::barrier_arrive(const Agent& agent, uint32_t barrier) {
  WarpState& warp = warp_of(agent);
  release_into(barriers_[agent.cta][barrier].arrive(warp.self), warp);
  release_done(warp);
  // What those who wait learn of an arrival that does not wait is not known here; bar.sync counts
  // when it passes.
  if (context_.effects && arrives_only(module_.forms[agent.instruction->form])) {
    note_effect(agent, true);
  }
}

void ClusterChecker::barrier_pass(const Agent& agent, uint32_t barrier) {
  WarpState& warp = warp_of(agent);
  // NOTE: a barrier of the whole CTA does not wait for warps that have exited. PTX orders nothing
  // behind an exit, but kernels in the field store and return before the others' __syncthreads()
  // (llm.c's softmax and layer norm), and the barrier does wait until they are gone.
  const bool whole = agent.instruction->count == 1;
  const Message& message =
      barriers_[agent.cta][barrier].pass(warp.self, whole ? &exited_[agent.cta] : nullptr);
  note_effect(agent, acquire(warp, message));
  warp.meet_lanes();
}

void ClusterChecker::exited(const Agent& agent) {
  WarpState& warp = warp_of(agent);
  exited_[agent.cta].join(warp.view.order);
  release_done(warp);
}

void ClusterChecker::cluster_arrive(const Agent& agent, bool release) {
  WarpState& warp = warp_of(agent);
  Message& message = cluster_barrier_.arrive(warp.self);
  release ? release_into(message, warp) : relaxed_into(message, warp);
  release_done(warp);
  note_effect(agent, true);
}

void ClusterChecker::cluster_pass(const Agent& agent, bool acquires_all) {
  WarpState& warp = warp_of(agent);
  const Message& message = cluster_barrier_.pass(warp.self);
  note_effect(agent, acquires_all && acquire(warp, message));
  warp.meet_lanes();
}

void ClusterChecker::fence(const Agent& agent, FenceKind kind, Order order, Scope) {
  WarpState& warp = warp_of(agent);
  switch (kind) {
    case FenceKind::proxy_async: {
      // Useful when it covers a known generic write that no earlier fence covered.
      bool useful = false;
      for (Component c = 0; c < warps_.size(); ++c) {
        const Epoch last = std::max(last_generic_write_[c], last_generic_read_[c]);
        Epoch known = std::min(warp.view.order[c], last);
        useful |= known > warp.view.proxy[c];
      }
      warp.view.proxy.join(warp.view.order);
      for (uint64_t key : warp.unfenced_inits) mbarriers_[key].init_fenced = true;
      useful |= !warp.unfenced_inits.empty();
      warp.unfenced_inits.clear();
      warp.touch();
      release_done(warp);  // later writes of this warp are not covered
      note_effect(agent, useful);
      return;
    }
    case FenceKind::mbarrier_init:
      note_effect(agent, !warp.unfenced_inits.empty());
      for (uint64_t key : warp.unfenced_inits) mbarriers_[key].init_fenced = true;
      warp.unfenced_inits.clear();
      // NOTE: its release semantics cover mbarrier.init only (PTX ISA "membar/fence"); a relaxed
      // arrival on the cluster barrier then publishes the objects.
      if (warp.view.inits.raise(warp.self, warp.epoch())) warp.touch();
      release_done(warp);
      return;
    case FenceKind::tcgen05_before_thread_sync:
      // What arrived ready for others needs no fence of this warp to be passed on.
      if (context_.effects) {
        Message message;
        release_into(message, warp);
        note_effect(agent, knows_more_tcgen05(warp.view.order, message.tcgen05));
      }
      if (warp.tcgen05_before.join(warp.view.order)) warp.touch();
      return;
    case FenceKind::tcgen05_after_thread_sync:
      if (context_.effects) {
        note_effect(agent, knows_more_tcgen05(warp.view.tcgen05_arrived, warp.view.tcgen05));
      }
      // PTX ISA, "Specialized Inter-thread Synchronization for tcgen05 instructions": after a
      // relaxed wait the fence orders tcgen05 operations, and those alone.
      for (Component c : tcgen05_components_) {
        if (warp.view.order.raise(c, warp.waited.order[c])) warp.touch();
      }
      if (warp.view.tcgen05.join(warp.view.tcgen05_arrived)) warp.touch();
      return;
    case FenceKind::wgmma:
      // Whether it orders anything is known where the registers are watched.
      note_effect(agent, !warp.wgmma_fenced || !context_.options.registers ||
                             warp.registers.touched_since_fence());
      warp.registers.wgmma_fence();
      warp.wgmma_fenced = true;
      return;
    case FenceKind::memory:
      // A relaxed wait and then a fence acquire together.
      if (order != Order::release) acquire(warp, warp.waited);
      if (order != Order::acquire) {
        warp.fenced.clear();
        release_into(warp.fenced, warp);
      }
      release_done(warp);
      note_effect(agent, true);
      return;
    case FenceKind::proxy_tensormap:
    case FenceKind::proxy_alias:
      note_effect(agent, true);
      return;
  }
}

/// Whether `more` knows of tcgen05 operations that `less` does not.
bool ClusterChecker::knows_more_tcgen05(const VectorClock& more, const VectorClock& less) const {
  return std::any_of(tcgen05_components_.begin(), tcgen05_components_.end(),
                     [&](Component c) { return more[c] > less[c]; });
}

// ---------------------------------------------------------------- mbarriers

void ClusterChecker::mbarrier_init(const Agent& agent, BarrierRef ref, uint32_t) {
  WarpState& warp = warp_of(agent);
  MbarrierState& barrier = mbarrier_of(ref);
  Actor actor = actor_of(agent, Access::write);
  barrier.live = false;
  guard(ref);
  touch_shared(actor, ref.cta, ref.offset, 8);
  barrier.live = true;
  guard(ref);
  barrier.start_gathering();
  barrier.complete.clear();
  barrier.initialiser = warp.self;
  barrier.init_epoch = warp.epoch();
  barrier.init_instruction = agent.instruction;
  barrier.init_fenced = false;
  warp.unfenced_inits.push_back(barrier_key(ref));
  note_effect(agent, true);
}

void ClusterChecker::mbarrier_inval(const Agent& agent, BarrierRef ref) {
  if (context_.options.mbarrier && !mbarrier_of(ref).live) {
    remark(Remark::second_inval, "mbarrier",
           format("mbarrier.inval by %s of shared offset 0x%x of CTA %u, where no mbarrier is: it "
                  "was never initialised, or is invalid already\n  at: %s\n  missing: "
                  "mbarrier.init before it (PTX ISA, \"mbarrier.inval\": undefined without)",
                  warp_name(warp_of(agent).self).c_str(), ref.offset, ref.cta,
                  location(agent.instruction).c_str()));
  }
  mbarrier_of(ref).live = false;
  guard(ref);
  touch_shared(actor_of(agent, Access::write), ref.cta, ref.offset, 8);
}

void ClusterChecker::check_mbarrier_use(const BarrierRef& ref, const MbarrierState& barrier,
                                        const Actor& actor, const char* what) {
  if (!context_.options.mbarrier || !barrier.live) return;
  bool own = !actor.operation && actor.warp == barrier.initialiser;
  bool known = actor.view->order[barrier.initialiser] >= barrier.init_epoch ||
               actor.view->inits[barrier.initialiser] >= barrier.init_epoch ||
               (actor.operation && actor.warp == barrier.initialiser &&
                actor.operation->issuer_epoch >= barrier.init_epoch);
  if (!own && !known) {
    const bool relaxed = actor.view->weak[barrier.initialiser] >= barrier.init_epoch;
    const std::string text = format(
        "%s the mbarrier at shared offset 0x%x of CTA %u before its initialisation is ordered\n  "
        "initialised: by %s at %s\n  used:        %s\n  missing: %s",
        what, ref.offset, ref.cta, warp_name(barrier.initialiser).c_str(),
        location(barrier.init_instruction).c_str(), describe(actor).c_str(),
        relaxed ? "fence.mbarrier_init.release.cluster after mbarrier.init: only a relaxed arrival "
                  "comes between the two"
                : "a barrier (__syncthreads, barrier.cluster) between the two");
    if (!relaxed) report("mbarrier", text);
    remark(Remark::relaxed_init, "mbarrier", text);
  }
  // NOTE: cp.async and its arrival on an mbarrier are of the generic proxy (PTX ISA, "Async proxy":
  // the operations through it are cp{.reduce}.async.bulk, wgmma and tcgen05 only).
  if (actor.operation && actor.operation->kind != AsyncKind::cp_async && !barrier.init_fenced &&
      actor.view->proxy[barrier.initialiser] < barrier.init_epoch) {
    // NOTE: kernels in the field publish their objects with __syncthreads() alone (ThunderKittens'
    // GEMMs), and work.
    remark(Remark::unfenced_init, "mbarrier",
           format("%s the mbarrier at shared offset 0x%x of CTA %u, whose initialisation was not "
                  "made visible to the async proxy\n  initialised: by %s at %s\n  used:        %s\n"
                  "  missing: fence.mbarrier_init.release.cluster (or fence.proxy.async) after "
                  "mbarrier.init, before the barrier that publishes it",
                  what, ref.offset, ref.cta, warp_name(barrier.initialiser).c_str(),
                  location(barrier.init_instruction).c_str(), describe(actor).c_str()));
  }
}

void ClusterChecker::complete_phase(MbarrierState& barrier, const BarrierState& state) {
  if (!state.completed) return;
  ++barrier.completed;
  barrier.complete.join(barrier.gathering);
  barrier.complete.order.raise(barrier.phases, barrier.completed);
  barrier.start_gathering();
}

void ClusterChecker::mbarrier_arrive(const Agent& agent, const AsyncOp* op, BarrierRef ref,
                                     uint32_t, Order order, Scope, const BarrierState& state) {
  MbarrierState& barrier = mbarrier_of(ref);
  if (op) {
    mbarrier_complete_tx(agent, op, ref, 0, state);
    return;
  }
  WarpState& warp = warp_of(agent);
  Actor actor = actor_of(agent, Access::atomic);
  check_mbarrier_use(ref, barrier, actor, "arrival on");
  if (agent.cta != ref.cta) come_from_elsewhere(barrier, warp.self, agent.instruction);
  if (!releases(order)) {
    relaxed_into(barrier.gathering, warp);
  } else if (barrier.arrived == warp.self && barrier.arrived_version == warp.version) {
    barrier.gathering.order.raise(warp.self, warp.epoch());
  } else {
    release_into(barrier.gathering, warp);
    barrier.arrived = warp.self;
    barrier.arrived_version = warp.version;
  }
  release_done(warp);
  complete_phase(barrier, state);
  note_effect(agent, true);
}

void ClusterChecker::come_from_elsewhere(MbarrierState& barrier, Component issuer,
                                         const ptx::Instruction* instruction) const {
  barrier.outside = barrier.completed + 1;
  barrier.outside_issuer = issuer;
  barrier.outside_instruction = instruction;
}

/// A CTA's shared memory must outlive what others do to it: nothing but a wait for the phase of the
/// same mbarrier tells that an arrival is there.
void ClusterChecker::check_arrivals_seen(uint64_t key, const MbarrierState& barrier) {
  if (!barrier.live || barrier.outside == 0) return;
  const auto cta = static_cast<uint32_t>(key >> 32);
  for (uint32_t warp = 0; warp < info_.warps; ++warp) {
    const View& view = warps_[cta * info_.warps + warp].view;
    // A relaxed wait is enough: it orders no memory, but the arrival has come.
    if (view.order[barrier.phases] >= barrier.outside) return;
    if (view.weak[barrier.phases] >= barrier.outside) return;
  }
  remark(
      Remark::arrival_at_exit, "mbarrier",
      format("CTA %u ends without any of its warps knowing that the last arrival at its mbarrier "
             "at shared offset 0x%x has come: PTX orders arrivals at two mbarriers with nothing\n"
             "  arrival: by %s at %s\n  missing: a wait for phase %u of that mbarrier",
             cta, static_cast<uint32_t>(key), warp_name(barrier.outside_issuer).c_str(),
             location(barrier.outside_instruction).c_str(), barrier.outside - 1));
}

void ClusterChecker::mbarrier_expect_tx(const Agent& agent, BarrierRef ref, uint32_t,
                                        const BarrierState& state) {
  MbarrierState& barrier = mbarrier_of(ref);
  check_mbarrier_use(ref, barrier, actor_of(agent, Access::atomic), "expect_tx on");
  complete_phase(barrier, state);
  note_effect(agent, true);
}

void ClusterChecker::mbarrier_complete_tx(const Agent& agent, const AsyncOp* op, BarrierRef ref,
                                          uint32_t, const BarrierState& state) {
  MbarrierState& barrier = mbarrier_of(ref);
  if (op) {
    Operation& operation = operation_of(op->id);
    Actor actor;
    actor.who = Who::operation(op->id);
    actor.warp = operation.issuer;
    actor.operation = &operation;
    actor.view = operation.start.get();
    actor.instruction = operation.instruction;
    actor.lanes = operation.lanes;
    check_mbarrier_use(ref, barrier, actor, "completion on");
    // NOTE: cp.async and its arrivals end with the thread that issued them; an H200 takes a kernel
    // that ends with a copy of no bytes under way.
    const bool commits = operation.kind == AsyncKind::tcgen05_commit;
    if (operation.kind != AsyncKind::cp_async && (commits || !operation.moves_nothing)) {
      come_from_elsewhere(barrier, operation.issuer, operation.instruction);
    }
    const ReleasePoints::Point point{barrier.phases, barrier.completed + 1};
    operation.releases.push_back(point);
    for (uint64_t tracked : operation.tracked) operation_of(tracked).releases.push_back(point);
    if (!operation.tracked.empty()) {
      std::vector<uint64_t>& copies = warps_[operation.issuer].copies;
      const uint64_t last = operation.tracked.back();
      copies.erase(copies.begin(), std::upper_bound(copies.begin(), copies.end(), last));
    }
    if (operation.kind == AsyncKind::tcgen05_commit) {
      const Component pipeline = warps_[operation.issuer].tensor_pipeline;
      barrier.gathering.order.raise(pipeline, operation.covers);
      barrier.gathering.tcgen05.raise(pipeline, operation.covers);
    }
    // What came before the operation comes before its completion.
    barrier.gathering.order.raise(operation.issuer, operation.issuer_epoch);
    if (barrier.arrived_start != operation.start) {
      barrier.arrived_start = operation.start;
      barrier.gathering.order.join(operation.start->order);
      barrier.gathering.proxy.join(operation.start->proxy);
      barrier.gathering.inits.join(operation.start->inits);
      barrier.gathering.weak.join(operation.start->weak);
      barrier.gathering.tcgen05.join(operation.start->tcgen05);
      barrier.gathering.tcgen05.join(operation.start->tcgen05_arrived);
    }
  } else {
    check_mbarrier_use(ref, barrier, actor_of(agent, Access::atomic), "complete_tx on");
  }
  complete_phase(barrier, state);
}

void ClusterChecker::mbarrier_wait(const Agent& agent, BarrierRef ref, uint32_t, Order order,
                                   Scope) {
  WarpState& warp = warp_of(agent);
  MbarrierState& barrier = mbarrier_of(ref);
  check_mbarrier_use(ref, barrier, actor_of(agent, Access::atomic), "wait on");
  const bool known = barrier.waited == warp.self;
  if (acquires(order)) {
    note_effect(agent, !known && acquire(warp, barrier.complete));
    barrier.waited = warp.self;
  } else {
    note_effect(agent, warp.waited.order.join(barrier.complete.order));
    warp.waited.join(barrier.complete);
    warp.view.weak.join(barrier.complete.order);
    warp.view.weak.join(barrier.complete.weak);
    warp.view.tcgen05_arrived.join(barrier.complete.tcgen05);
    warp.touch();
  }
  warp.meet_lanes();
}

// ---------------------------------------------------------------- asynchronous operations

void ClusterChecker::async_issue(const AsyncOp& op) {
  WarpState& warp = warp_of(op.issuer);
  last_issued_ = op.id;
  in_flight_.insert(op.id);
  Operation& operation = operation_of(op.id);
  operation.kind = op.kind;
  operation.issuer = warp.self;
  operation.issuer_epoch = warp.epoch();
  operation.lanes_met = warp.lanes_met;
  operation.moves_nothing = op.bytes == 0;
  operation.lanes = op.issuer.lanes;
  operation.instruction = op.issuer.instruction;
  operation.start = warp.take_snapshot();
  if (const auto kind = group_kind_of(op.kind)) {
    const uint32_t lane =
        kind == GroupKind::bulk ? static_cast<uint32_t>(std::countr_zero(op.issuer.lanes)) : 0;
    GroupStream& group = group_of(*kind, warp.self, lane);
    operation.group = group.open;
    operation.releases.push_back({group.component, group.open});
  }
  if (in_tensor_pipeline(op.kind)) {
    operation.releases.push_back({warp.tensor_pipeline, ++warp.tensor_issued});
    warp.uncommitted_lanes |= op.issuer.lanes;
  }
  // NOTE: a commit covers everything that was issued before, not only since the last one.
  if (op.kind == AsyncKind::tcgen05_commit) {
    operation.covers = warp.tensor_issued;
    // PTX ISA, "tcgen05.commit": operations that the executing thread initiated.
    if (warp.uncommitted_lanes & ~op.issuer.lanes && context_.options.race) {
      remark(Remark::others_commit, "race",
             format("a tcgen05.commit by lanes 0x%x of %s does not track what lanes 0x%x issued\n  "
                    "at %s\n  missing: one thread that issues and commits",
                    op.issuer.lanes, warp_name(warp.self).c_str(),
                    warp.uncommitted_lanes & ~op.issuer.lanes,
                    location(op.issuer.instruction).c_str()));
    }
    warp.uncommitted_lanes = 0;
    note_effect(op.issuer, true);
  }
  // cp.async.mbarrier.arrive moves nothing: it tells of the copies before it.
  if (op.kind == AsyncKind::cp_async) {
    if (op.bytes == 0) {
      operation.tracked = warp.copies;
      // The mbarrier tells whoever waits for it, lanes of the warp too.
      std::erase_if(warp.lane_copies,
                    [&](const LaneCopy& copy) { return (op.issuer.lanes >> copy.lane & 1) != 0; });
    } else {
      warp.copies.push_back(op.id);
    }
  }
  if (op.kind == AsyncKind::wgmma && !warp.wgmma_fenced && context_.options.race) {
    report("race",
           format("wgmma.mma_async without a wgmma.fence before it: the registers it uses are "
                  "not ordered\n  at %s\n  missing: wgmma.fence.sync.aligned before the first "
                  "wgmma.mma_async of %s",
                  location(op.issuer.instruction).c_str(), warp_name(warp.self).c_str()));
  }
  if (op.kind == AsyncKind::wgmma) begin_sum(op);
  release_done(warp);
}

void ClusterChecker::async_done(const AsyncOp& op) {
  operation_of(op.id).start.reset();
}

void ClusterChecker::group_commit(const Agent& agent, GroupKind kind) {
  WarpState& warp = warp_of(agent);
  if (kind != GroupKind::bulk && kind != GroupKind::bulk_read) {
    ++group_of(kind, warp.self, 0).open;
  } else {
    for (uint32_t lanes = agent.lanes; lanes; lanes &= lanes - 1) {
      ++group_of(kind, warp.self, static_cast<uint32_t>(std::countr_zero(lanes))).open;
    }
  }
  note_effect(agent, true);
}

void ClusterChecker::group_wait(const Agent& agent, GroupKind kind, uint32_t pending) {
  WarpState& warp = warp_of(agent);
  bool news = false;
  auto wait = [&](uint32_t lane) {
    GroupStream& group = group_of(kind, warp.self, lane);
    // tcgen05.wait has no commit: it closes and awaits the open group.
    bool tcgen05 = kind == GroupKind::tcgen05_ld || kind == GroupKind::tcgen05_st;
    if (tcgen05) ++group.open;
    if (group.open - 1 <= pending) return;
    if (kind == GroupKind::cp_async) end_lane_copies(warp, group.open - 1 - pending);
    if (kind == GroupKind::wgmma) warp.registers.wgmma_done(group.open - 1 - pending);
    if (kind == GroupKind::tcgen05_ld) warp.registers.loads_done(group.open - 1 - pending);
    news |= warp.view.order.raise(group.component, group.open - 1 - pending);
  };
  if (kind == GroupKind::bulk || kind == GroupKind::bulk_read) {
    for (uint32_t lanes = agent.lanes; lanes; lanes &= lanes - 1) {
      wait(static_cast<uint32_t>(std::countr_zero(lanes)));
    }
  } else {
    wait(0);
  }
  if (news) warp.touch();
  note_effect(agent, news);
}

// ---------------------------------------------------------------- registers

const FunctionRegisters& ClusterChecker::registers_of(const ptx::Function& function) {
  if (&function != function_) {
    function_ = &function;
    function_registers_ = &registers_.try_emplace(&function, module_, function).first->second;
  }
  return *function_registers_;
}

void ClusterChecker::instruction(const Agent& agent) {
  undefined_stored_.lanes = 0;
  if (!undefined_.empty()) follow_undefined(agent);
  if (context_.effects && is_synchronising(module_.forms[agent.instruction->form].text)) {
    ++effects_[agent.instruction].executed;
  }
  const FunctionRegisters& registers = registers_of(*agent.function);
  const auto index = static_cast<size_t>(agent.instruction - agent.function->code.data());
  if (registers.touched(index).empty()) return;
  WarpState& warp = warp_of(agent);
  const Epoch wgmmas = group_of(GroupKind::wgmma, warp.self, 0).open;
  const Epoch loads = group_of(GroupKind::tcgen05_ld, warp.self, 0).open;
  for (;;) {
    const RegisterHazard hazard = warp.registers.execute(registers, index, agent.instruction,
                                                         wgmmas, loads, agent.lanes == ~0u);
    if (!hazard.slot) return;
    report_registers(agent, hazard);  // comes back from what is only remarked on
  }
}

// ---------------------------------------------------------------- TMEM allocation and the end

/// NOTE: a dependent's CTA on the same SM may take the columns and keep them behind
/// griddepcontrol.wait, which waits for this grid.
void ClusterChecker::tmem_alloc(const Agent& agent, uint32_t cta, uint32_t column,
                                uint32_t columns) {
  if (context_.options.tcgen05 && (let_dependents_ >> cta & 1) != 0) {
    remark(Remark::late_alloc, "tcgen05",
           format("%s allocates tensor memory behind griddepcontrol.launch_dependents of its CTA\n"
                  "  at %s\n  missing: the allocation before it: a CTA of the next kernel may take "
                  "the columns, and wait for the end of this grid with them",
                  warp_name(warp_of(agent).self).c_str(), location(agent.instruction).c_str()));
  }
  std::vector<Cell>& cells = tmem_[cta];
  if (cells.empty()) cells.resize(kTmemCells, kFreshCell);
  for (uint32_t row = 0; row < 128 / kTmemCellLanes; ++row) {
    for (uint32_t c = column / kTmemCellColumns; c < (column + columns) / kTmemCellColumns; ++c) {
      cells[row * kTmemCellsPerRow + c] = kFreshCell;
    }
  }
}

void ClusterChecker::tmem_dealloc(const Agent& agent, uint32_t cta, uint32_t column,
                                  uint32_t columns) {
  std::vector<Cell>& cells = tmem_[cta];
  if (cells.empty() || !context_.options.race) return;
  Actor actor = actor_of(agent, Access::write);
  for (uint32_t row = 0; row < 128 / kTmemCellLanes; ++row) {
    for (uint32_t c = column / kTmemCellColumns; c < (column + columns) / kTmemCellColumns; ++c) {
      Cell& cell = cells[row * kTmemCellsPerRow + c];
      const Place place{Memory::tensor, cta, row * kTmemCellLanes << 16 | c * kTmemCellColumns};
      for (const PastAccess& past : states_.at(cell).accesses) {
        if (!knows(actor, past) && !freed_after_load(actor, past, place) &&
            !works_in_the_field(actor, past, place)) {
          report_race(actor, past, place);
        }
        check_tcgen05(actor, past, place);
      }
      cell = kFreshCell;
    }
  }
}

void ClusterChecker::tmem_other_lanes(const Agent& agent, uint32_t address) {
  if (!context_.options.tcgen05) return;
  const uint32_t quarter = agent.warp % 4 * 32;
  remark(Remark::other_lanes, "tcgen05",
         format("a tcgen05.ld or .st of %s names lane %u; it reaches lanes %u to %u, those of its "
                "place in its warpgroup\n  at %s\n  missing: %u << 16 in the address: PTX promises "
                "nothing for other lanes",
                warp_name(warp_of(agent).self).c_str(), address >> 16, quarter, quarter + 31,
                location(agent.instruction).c_str(), quarter));
}

void ClusterChecker::launch_after_may_start(const Agent& agent) {
  let_dependents_ |= uint64_t{1} << agent.cta;
}

void ClusterChecker::launch_before_ended(const Agent& agent) {
  WarpState& warp = warp_of(agent);
  const bool news = warp.view.order.raise(launch_before_, 1);
  if (news) warp.touch();
  note_effect(agent, news && info_.request->early);
}

/// NOTE: TMA swizzles by the address (seen on an H200), so that such a box can be read back; a
/// matrix descriptor without base offset cannot describe what lies off the pattern.
void ClusterChecker::box_off_pattern(const Agent& agent, uint32_t offset, uint32_t period) {
  remark(Remark::box_off_pattern, "oob",
         format("a swizzled TMA box at shared offset 0x%x, whose pattern repeats every %u bytes\n"
                "  at %s\n  missing: alignment of the buffer to %u bytes",
                offset, period, location(agent.instruction).c_str(), period));
}

/// Copies must be known to be done before their CTA's shared memory goes away.
void ClusterChecker::check_finished(const Operation& operation) {
  switch (operation.kind) {
    case AsyncKind::tma_load:
    case AsyncKind::bulk_load:
    case AsyncKind::tma_store:
    case AsyncKind::tma_reduce:
    case AsyncKind::bulk_store:
    case AsyncKind::bulk_reduce:
      break;
    default:
      return;
  }
  // An H200 takes a kernel that ends with a copy of no bytes under way.
  if (operation.moves_nothing) return;
  for (const WarpState& warp : warps_) {
    if (released(operation, warp.view.order)) return;
  }
  const std::string barrier = release_name(operation);
  const std::string text = format(
      "the kernel ends without any warp knowing that a %s is done: the shared memory it uses may "
      "go "
      "away under it\n  issued: by %s at %s\n  missing: %s",
      operation_name(operation.kind), warp_name(operation.issuer).c_str(),
      location(operation.instruction).c_str(),
      barrier.empty() ? "cp.async.bulk.commit_group and cp.async.bulk.wait_group"
                      : ("a wait for " + barrier).c_str());
  // NOTE: kernels in the field leave their last stores unawaited; loads are another matter.
  const bool load = operation.kind == AsyncKind::tma_load || operation.kind == AsyncKind::bulk_load;
  if (load) report("race", text);
  remark(Remark::store_at_exit, "race", text);
}

void ClusterChecker::warp_sync(const Agent& agent) {
  note_effect(agent, warp_of(agent).meet_lanes());
}

void ClusterChecker::end(std::span<const uint32_t> leaked_columns) {
  if (context_.options.race) {
    operations_.for_each([&](const Operation& operation) {
      if (operation.instruction) check_finished(operation);
    });
  }
  if (unused_rows_) {
    remark(Remark::unused_rows, unused_rows_->check,
           unused_rows_->text + "\n  used:    never: they are rows behind the tile of a wgmma");
  }
  if (context_.options.mbarrier) {
    for (const auto& [key, barrier] : mbarriers_) check_arrivals_seen(key, barrier);
  }
  if (!context_.options.leak) return;
  for (size_t cta = 0; cta < leaked_columns.size(); ++cta) {
    if (leaked_columns[cta] != 0) {
      throw Fault(
          kTensorMemoryLeak,
          format("leak check: CTA %zu ends with %u TMEM columns still allocated\n  missing: "
                 "tcgen05.dealloc by the warp that allocated them",
                 cta, leaked_columns[cta]));
    }
  }
}

}  // namespace vgpu::check
