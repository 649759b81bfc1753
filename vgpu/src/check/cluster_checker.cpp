// SPDX-License-Identifier: Apache-2.0
#include "check/cluster_checker.hpp"

#include <algorithm>
#include <bit>

#include "fault.hpp"

namespace vgpu::check {

using exec::Access;
using exec::Agent;
using exec::AsyncAccess;
using exec::AsyncKind;
using exec::AsyncOp;
using exec::BarrierRef;
using exec::BarrierState;
using exec::FenceKind;
using exec::GroupKind;
using exec::Memory;
using exec::Order;
using exec::Proxy;
using exec::Scope;
using exec::WarpAccess;

namespace {

bool releases(Order order) {
  return order == Order::release || order == Order::acq_rel;
}
bool acquires(Order order) {
  return order == Order::acquire || order == Order::acq_rel;
}

uint64_t barrier_key(BarrierRef ref) {
  return uint64_t{ref.cta} << 32 | ref.offset;
}

/// Operations that run in order when one warp issues them (PTX ISA "Pipelined tcgen05
/// instructions").
bool in_tensor_pipeline(AsyncKind kind) {
  return kind == AsyncKind::tcgen05_mma || kind == AsyncKind::tcgen05_cp;
}

}  // namespace

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
  for (Component c = 0; c < warps_.size(); c++) {
    warps_[c].self = c;
    warps_[c].next_epoch();
  }
  next_component_ = static_cast<Component>(warps_.size());
  for (WarpState& warp : warps_) {
    warp.tensor_pipeline = new_component();
    tcgen05_components_.push_back(warp.tensor_pipeline);
  }
  // Offsets start behind the KiB that the hardware keeps.
  const size_t cells = (info.shared_bytes + 1024 + kSharedCellBytes - 1) / kSharedCellBytes;
  shared_.resize(info.ctas);
  for (auto& cta : shared_) cta.resize(cells);
  tmem_.resize(info.ctas);
  barriers_.resize(info.ctas);
}

ClusterChecker::~ClusterChecker() {
  if (context_.effects) context_.effects(module_, effects_);
}

Operation& ClusterChecker::operation_of(uint64_t id) {
  if (id >= operations_.size())
    operations_.resize(std::max<size_t>(id + 1, 2 * operations_.size()));
  return operations_[id];
}

GroupStream& ClusterChecker::group_of(GroupKind kind, Component warp, uint32_t lane) {
  if (kind == GroupKind::bulk_read) kind = GroupKind::bulk;
  uint64_t key = uint64_t{warp} << 16 | uint64_t{static_cast<uint8_t>(kind)} << 8 | lane;
  auto [at, is_new] = groups_.try_emplace(key);
  if (is_new) {
    at->second.component = kind == GroupKind::wgmma ? wgmma_component(warp) : new_component();
    if (kind == GroupKind::tcgen05_ld || kind == GroupKind::tcgen05_st)
      tcgen05_components_.push_back(at->second.component);
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
  auto [at, is_new] = mbarriers_.try_emplace(barrier_key(ref));
  if (is_new) at->second.phases = new_component();
  return at->second;
}

void ClusterChecker::note_effect(const Agent& agent, bool useful) {
  if (!context_.effects) return;
  SyncEffect& effect = effects_[agent.instruction];
  effect.executed++;
  effect.useful += useful;
}

// ---------------------------------------------------------------- passing knowledge on

Message ClusterChecker::message_of(const WarpState& warp) const {
  Message message{warp.view.order, warp.view.proxy, warp.view.inits, warp.view.weak,
                  warp.tcgen05_before};
  message.tcgen05.join(warp.view.tcgen05);
  message.tcgen05.join(warp.view.tcgen05_arrived);
  return message;
}

/// What an arrival without release semantics passes on: what fences published before it.
Message ClusterChecker::relaxed_message_of(const WarpState& warp) const {
  Message message = warp.fenced;
  message.inits.join(warp.view.inits);
  message.weak.join(warp.view.weak);
  message.weak.join(warp.view.order);
  return message;
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
  barriers_[agent.cta][barrier].arrive(warp.self, message_of(warp));
  release_done(warp);
}

void ClusterChecker::barrier_pass(const Agent& agent, uint32_t barrier) {
  WarpState& warp = warp_of(agent);
  note_effect(agent, acquire(warp, barriers_[agent.cta][barrier].pass(warp.self)));
}

void ClusterChecker::cluster_arrive(const Agent& agent, bool release) {
  WarpState& warp = warp_of(agent);
  cluster_barrier_.arrive(warp.self, release ? message_of(warp) : relaxed_message_of(warp));
  release_done(warp);
  note_effect(agent, true);
}

void ClusterChecker::cluster_pass(const Agent& agent, bool acquires_all) {
  WarpState& warp = warp_of(agent);
  const Message& message = cluster_barrier_.pass(warp.self);
  note_effect(agent, acquires_all && acquire(warp, message));
}

void ClusterChecker::fence(const Agent& agent, FenceKind kind, Order, Scope) {
  WarpState& warp = warp_of(agent);
  switch (kind) {
    case FenceKind::proxy_async: {
      // Useful when it covers a known generic write that no earlier fence covered.
      bool useful = false;
      for (Component c = 0; c < warps_.size(); c++) {
        Epoch known = std::min(warp.view.order[c], last_generic_write_[c]);
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
      note_effect(agent, knows_more_tcgen05(warp.view.order, message_of(warp).tcgen05));
      warp.tcgen05_before.join(warp.view.order);
      return;
    case FenceKind::tcgen05_after_thread_sync:
      note_effect(agent, knows_more_tcgen05(warp.view.tcgen05_arrived, warp.view.tcgen05));
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
      warp.fenced = message_of(warp);
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
  touch_shared(actor, ref.cta, ref.offset, 8);
  barrier.live = true;
  barrier.gathering.clear();
  barrier.complete.clear();
  barrier.initialiser = warp.self;
  barrier.init_epoch = warp.epoch();
  barrier.init_instruction = agent.instruction;
  barrier.init_fenced = false;
  warp.unfenced_inits.push_back(barrier_key(ref));
  note_effect(agent, true);
}

void ClusterChecker::mbarrier_inval(const Agent& agent, BarrierRef ref) {
  mbarrier_of(ref).live = false;
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
  if (actor.operation && !barrier.init_fenced &&
      actor.view->proxy[barrier.initialiser] < barrier.init_epoch)
    report("mbarrier",
           format("%s the mbarrier at shared offset 0x%x of CTA %u, whose initialisation was not "
                  "made visible to the async proxy\n  initialised: by %s at %s\n  used:        %s\n"
                  "  missing: fence.mbarrier_init.release.cluster (or fence.proxy.async) after "
                  "mbarrier.init, before the barrier that publishes it",
                  what, ref.offset, ref.cta, warp_name(barrier.initialiser).c_str(),
                  location(barrier.init_instruction).c_str(), describe(actor).c_str()));
}

void ClusterChecker::complete_phase(MbarrierState& barrier, const BarrierState& state) {
  if (!state.completed) return;
  barrier.completed++;
  barrier.complete.join(barrier.gathering);
  barrier.complete.order.raise(barrier.phases, barrier.completed);
  barrier.gathering.clear();
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
  barrier.gathering.join(releases(order) ? message_of(warp) : relaxed_message_of(warp));
  release_done(warp);
  complete_phase(barrier, state);
  note_effect(agent, true);
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
    const std::pair<Component, Epoch> point{barrier.phases, barrier.completed + 1};
    operation.releases.push_back(point);
    for (uint64_t tracked : operation.tracked) operation_of(tracked).releases.push_back(point);
    if (operation.kind == AsyncKind::tcgen05_commit) {
      const Component pipeline = warps_[operation.issuer].tensor_pipeline;
      barrier.gathering.order.raise(pipeline, operation.covers);
      barrier.gathering.tcgen05.raise(pipeline, operation.covers);
    }
    // What came before the operation comes before its completion.
    barrier.gathering.order.join(operation.start->order);
    barrier.gathering.order.raise(operation.issuer, operation.issuer_epoch);
    barrier.gathering.proxy.join(operation.start->proxy);
    barrier.gathering.inits.join(operation.start->inits);
    barrier.gathering.weak.join(operation.start->weak);
    barrier.gathering.tcgen05.join(operation.start->tcgen05);
    barrier.gathering.tcgen05.join(operation.start->tcgen05_arrived);
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
  note_effect(agent, acquires(order) && acquire(warp, barrier.complete));
}

// ---------------------------------------------------------------- asynchronous operations

void ClusterChecker::async_issue(const AsyncOp& op) {
  WarpState& warp = warp_of(op.issuer);
  last_issued_ = op.id;
  Operation& operation = operation_of(op.id);
  operation.kind = op.kind;
  operation.issuer = warp.self;
  operation.issuer_epoch = warp.epoch();
  operation.lanes = op.issuer.lanes;
  operation.instruction = op.issuer.instruction;
  operation.start = warp.take_snapshot();
  if (const auto kind = group_kind_of(op.kind)) {
    const uint32_t lane =
        kind == GroupKind::bulk ? static_cast<uint32_t>(std::countr_zero(op.issuer.lanes)) : 0;
    GroupStream& group = group_of(*kind, warp.self, lane);
    operation.releases.push_back({group.component, group.open});
  }
  if (in_tensor_pipeline(op.kind))
    operation.releases.push_back({warp.tensor_pipeline, ++warp.tensor_issued});
  if (op.kind == AsyncKind::tcgen05_commit) operation.covers = warp.tensor_issued;
  if (op.kind == AsyncKind::wgmma && !warp.wgmma_fenced && context_.options.race)
    report("race",
           format("wgmma.mma_async without a wgmma.fence before it: the registers it uses are "
                  "not ordered\n  at %s\n  missing: wgmma.fence.sync.aligned before the first "
                  "wgmma.mma_async of %s",
                  location(op.issuer.instruction).c_str(), warp_name(warp.self).c_str()));
  release_done(warp);
}

void ClusterChecker::async_track(const AsyncOp& commit, std::span<const uint64_t> tracked) {
  // NOTE: a tcgen05.commit covers everything its thread issued before, not only what came after
  // the previous commit; Operation::covers says that.
  if (commit.kind != AsyncKind::tcgen05_commit)
    operation_of(commit.id).tracked.assign(tracked.begin(), tracked.end());
  note_effect(commit.issuer, true);
}

void ClusterChecker::async_end(const AsyncOp& op) {
  Operation& operation = operation_of(op.id);
  // Operations that end in a group signal nothing later: their start is no longer needed.
  if (group_kind_of(op.kind) || op.kind == AsyncKind::tcgen05_mma) operation.start.reset();
}

void ClusterChecker::group_commit(const Agent& agent, GroupKind kind) {
  WarpState& warp = warp_of(agent);
  if (kind != GroupKind::bulk && kind != GroupKind::bulk_read) {
    group_of(kind, warp.self, 0).open++;
  } else {
    for (uint32_t lanes = agent.lanes; lanes; lanes &= lanes - 1)
      group_of(kind, warp.self, static_cast<uint32_t>(std::countr_zero(lanes))).open++;
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
    if (tcgen05) group.open++;
    if (group.open - 1 <= pending) return;
    if (kind == GroupKind::wgmma) warp.registers.wgmma_done(group.open - 1 - pending);
    if (kind == GroupKind::tcgen05_ld) warp.registers.loads_done(group.open - 1 - pending);
    news |= warp.view.order.raise(group.component, group.open - 1 - pending);
  };
  if (kind == GroupKind::bulk || kind == GroupKind::bulk_read) {
    for (uint32_t lanes = agent.lanes; lanes; lanes &= lanes - 1)
      wait(static_cast<uint32_t>(std::countr_zero(lanes)));
  } else {
    wait(0);
  }
  if (news) warp.touch();
  note_effect(agent, news);
}

// ---------------------------------------------------------------- registers

void ClusterChecker::instruction(const Agent& agent) {
  if (agent.function != function_) {
    function_ = agent.function;
    function_registers_ =
        &registers_.try_emplace(agent.function, module_, *agent.function).first->second;
  }
  const auto index = static_cast<size_t>(agent.instruction - agent.function->code.data());
  if (function_registers_->touched(index).empty()) return;
  WarpState& warp = warp_of(agent);
  RegisterHazard hazard = warp.registers.execute(
      *function_registers_, index, agent.instruction, group_of(GroupKind::wgmma, warp.self, 0).open,
      group_of(GroupKind::tcgen05_ld, warp.self, 0).open);
  if (hazard.slot) report_registers(agent, hazard);
}

// ---------------------------------------------------------------- accesses

ClusterChecker::Actor ClusterChecker::actor_of(const Agent& agent, Access access) {
  WarpState& warp = warp_of(agent);
  Actor actor;
  actor.who = Who::warp(warp.self);
  actor.warp = warp.self;
  actor.epoch = warp.epoch();
  actor.view = &warp.view;
  actor.instruction = agent.instruction;
  actor.access = access;
  actor.lanes = agent.lanes;
  return actor;
}

void ClusterChecker::access(const Agent& agent, const WarpAccess& access) {
  if (access.memory == Memory::local) return;
  // Ordered accesses synchronise; they do not race with each other.
  const bool strong = access.order != Order::weak;
  Actor actor = actor_of(agent, strong ? Access::atomic : access.access);
  for (uint32_t lanes = agent.lanes; lanes; lanes &= lanes - 1) {
    auto lane = static_cast<uint32_t>(std::countr_zero(lanes));
    uint64_t address = access.addresses[lane];
    if (access.memory == Memory::global) {
      actor.access = access.access;
      touch_global(actor, address, access.bytes);
      continue;
    }
    uint32_t cta = access.ctas ? access.ctas[lane] : agent.cta;
    uint64_t bytes = access.bytes;
    // Lanes that follow each other in memory are one range.
    while (lanes & (lanes - 1)) {
      auto next = static_cast<uint32_t>(std::countr_zero(lanes & (lanes - 1)));
      if (access.addresses[next] != address + bytes || (access.ctas && access.ctas[next] != cta))
        break;
      bytes += access.bytes;
      lanes &= lanes - 1;
    }
    touch_shared(actor, cta, address, bytes);
  }
  if (strong || access.access == Access::atomic) synchronise_through(agent, access);
}

/// Atomics and ordered accesses pass knowledge through the word they touch.
/// NOTE: relaxed ones too: whether a fence makes them release or acquire depends on fences of both
/// sides; counting all of them avoids false alarms.
void ClusterChecker::synchronise_through(const Agent& agent, const WarpAccess& access) {
  WarpState& warp = warp_of(agent);
  const auto lane = static_cast<uint32_t>(std::countr_zero(agent.lanes));
  uint64_t key = access.addresses[lane];
  if (access.memory == Memory::shared) {
    uint64_t cta = access.ctas ? access.ctas[lane] : agent.cta;
    key |= (cta + 1) << 56;
  }
  Message& flag = flags_[key];
  if (access.access != Access::write) acquire(warp, flag);
  if (access.access != Access::read) {
    flag.join(message_of(warp));
    release_done(warp);
  }
}

void ClusterChecker::async_access(const AsyncOp& op, const AsyncAccess& access) {
  Operation& operation = operation_of(op.id);
  if (!operation.start) return;
  Actor actor;
  actor.who = Who::operation(op.id);
  actor.warp = operation.issuer;
  actor.view = operation.start.get();
  actor.operation = &operation;
  actor.instruction = operation.instruction;
  actor.access = access.access;
  actor.proxy = access.proxy;
  actor.lanes = operation.lanes;
  switch (access.memory) {
    case Memory::shared:
      touch_shared(actor, access.cta, access.address, access.bytes);
      return;
    case Memory::tensor:
      touch_tmem(actor, access);
      return;
    case Memory::global:
      touch_global(actor, access.address, access.bytes);
      return;
    case Memory::local:
      return;
  }
}

void ClusterChecker::touch_shared(const Actor& actor, uint32_t cta, uint64_t address,
                                  uint64_t bytes) {
  if (cta >= shared_.size()) return;
  std::vector<Cell>& cells = shared_[cta];
  if (!actor.operation && actor.access == Access::write)
    last_generic_write_.raise(actor.warp, actor.epoch);
  for (uint64_t at = address; at < address + bytes;) {
    const uint64_t cell = at / kSharedCellBytes;
    if (cell >= cells.size()) return;
    const auto first = static_cast<uint32_t>(at % kSharedCellBytes);
    const auto count =
        static_cast<uint32_t>(std::min<uint64_t>(kSharedCellBytes - first, address + bytes - at));
    touch(cells[cell], actor, unit_mask(first, count),
          {Memory::shared, cta, static_cast<uint32_t>(at)});
    at += count;
  }
}

void ClusterChecker::touch_tmem(const Actor& actor, const AsyncAccess& access) {
  std::vector<Cell>& cells = tmem_[access.cta];
  if (cells.empty()) cells.resize(kTmemCells);
  const auto lane0 = static_cast<uint32_t>(access.address >> 16);
  const auto column0 = static_cast<uint32_t>(access.address & 0xffff);
  for (uint32_t lane = lane0; lane < lane0 + access.lanes; lane += kTmemCellLanes) {
    for (uint32_t column = column0; column < column0 + access.columns;) {
      const uint32_t first = column % kTmemCellColumns;
      const uint32_t count = std::min(kTmemCellColumns - first, column0 + access.columns - column);
      Cell& cell = cells[lane / kTmemCellLanes * kTmemCellsPerRow + column / kTmemCellColumns];
      touch(cell, actor, unit_mask(first, count),
            {Memory::tensor, access.cta, lane << 16 | column});
      column += count;
    }
  }
}

void ClusterChecker::touch_global(const Actor& actor, uint64_t address, uint64_t bytes) {
  if (!context_.options.init || !context_.memory) return;
  if (!allocation_ || !allocation_->contains(address, bytes))
    allocation_ = context_.memory->find(address);
  if (!allocation_ || !allocation_->tracks_writes() || !allocation_->contains(address, bytes))
    return;
  if (actor.access != Access::write) {
    uint64_t missing = allocation_->first_unwritten(address, bytes);
    if (missing != address + bytes)
      report("init", format("read of global memory that was never written: %s\n  byte 0x%llx is %s",
                            describe(actor).c_str(), static_cast<unsigned long long>(missing),
                            context_.memory->describe(missing).c_str()));
  }
  if (actor.access != Access::read)
    const_cast<Allocation*>(allocation_)->mark_written(address, bytes);
}

bool ClusterChecker::released(const Operation& operation, const VectorClock& clock) const {
  for (auto [component, epoch] : operation.releases)
    if (clock[component] >= epoch) return true;
  return false;
}

bool ClusterChecker::pipelined(const Operation& earlier, const Actor& later) const {
  return later.operation && earlier.issuer == later.operation->issuer &&
         in_tensor_pipeline(earlier.kind) && later.operation->kind == AsyncKind::tcgen05_mma;
}

bool ClusterChecker::knows(const Actor& actor, const PastAccess& past) const {
  if (past.who == actor.who) return true;
  if (past.who.is_operation()) {
    const Operation& earlier = operations_[past.who.index()];
    return released(earlier, actor.view->order) || pipelined(earlier, actor);
  }
  const Component warp = past.who.index();
  // The issuer's own earlier accesses; its view may be older than its last steps.
  if (actor.operation && warp == actor.warp) return actor.operation->issuer_epoch >= past.epoch;
  return actor.view->order[warp] >= past.epoch;
}

void ClusterChecker::check_written(const Cell& cell, const Actor& actor, uint32_t units,
                                   const Place& place) {
  if (!context_.options.init || actor.access != Access::read) return;
  uint32_t missing = units & ~cell.written;
  if (missing == 0) return;
  Place first = place;
  const auto unit = static_cast<uint32_t>(std::countr_zero(missing));
  first.address = place.memory == Memory::shared
                      ? place.address / kSharedCellBytes * kSharedCellBytes + unit
                      : place.address / kTmemCellColumns * kTmemCellColumns + unit;
  report("init", format("read of %s, which was never written: %s", place_name(first).c_str(),
                        describe(actor).c_str()));
}

void ClusterChecker::touch(Cell& cell, const Actor& actor, uint32_t units, const Place& place) {
  check_written(cell, actor, units, place);
  for (const PastAccess& past : cell.accesses) {
    if (!(past.units & units)) continue;
    const bool both_read = past.access == Access::read && actor.access == Access::read;
    const bool both_atomic = past.access == Access::atomic && actor.access == Access::atomic;
    if (both_read || both_atomic) continue;
    // One operation meets the same past in cell after cell: what held once holds on.
    if (actor.who == checked_actor_ && past.who == checked_past_ && past.epoch == checked_epoch_ &&
        past.access == checked_access_)
      continue;
    if (context_.options.race && !knows(actor, past)) report_race(actor, past, place);
    if (place.memory == Memory::shared) check_proxy(actor, past, place);
    if (place.memory == Memory::tensor) check_tcgen05(actor, past, place);
    checked_actor_ = actor.who;
    checked_past_ = past.who;
    checked_epoch_ = past.epoch;
    checked_access_ = past.access;
  }
  if (context_.options.mbarrier && place.memory == Memory::shared && actor.access != Access::read &&
      !mbarriers_.empty()) {
    for (uint32_t half : {0u, 8u}) {
      uint32_t offset = place.address / kSharedCellBytes * kSharedCellBytes + half;
      if (!(units & unit_mask(half, 8))) continue;
      auto at = mbarriers_.find(barrier_key({place.cta, offset}));
      if (at != mbarriers_.end() && at->second.live)
        report("mbarrier",
               format("write over the live mbarrier at shared offset 0x%x of CTA %u: %s\n  "
                      "initialised: by %s at %s",
                      offset, place.cta, describe(actor).c_str(),
                      warp_name(at->second.initialiser).c_str(),
                      location(at->second.init_instruction).c_str()));
    }
  }
  remember(cell, actor, units);
}

/// Whether a new access stands for an earlier one: whoever knows of the new one knows of both.
bool ClusterChecker::stands_for(const Actor& actor, uint32_t units, const PastAccess& past) const {
  if (past.access != actor.access) return false;
  const bool covered = (past.units & ~units) == 0;
  if (past.who == actor.who) return covered || past.epoch == actor.epoch;
  // Operations of one in-order engine.
  if (!covered || !past.who.is_operation() || !actor.operation) return false;
  const Operation& earlier = operations_[past.who.index()];
  return earlier.issuer == actor.operation->issuer && earlier.kind == actor.operation->kind &&
         (earlier.kind == AsyncKind::tcgen05_mma || earlier.kind == AsyncKind::wgmma);
}

void ClusterChecker::remember(Cell& cell, const Actor& actor, uint32_t units) {
  if (actor.access != Access::read) cell.written |= units;
  std::vector<PastAccess>& list = cell.accesses;
  PastAccess now{actor.who,        actor.epoch, units,
                 actor.access,     actor.proxy, static_cast<uint32_t>(last_issued_),
                 actor.instruction};
  size_t kept = 0;
  for (const PastAccess& past : list) {
    PastAccess rest = past;
    // A write hides what came before it, which it was checked against.
    if (actor.access == Access::write) rest.units &= ~units;
    if (rest.units == 0) continue;
    if (stands_for(actor, units, rest))
      now.units |= rest.units;
    else
      list[kept++] = rest;
  }
  list.resize(kept);
  list.push_back(now);
}

void ClusterChecker::check_proxy(const Actor& actor, const PastAccess& past, const Place& place) {
  if (!context_.options.proxy || actor.proxy != Proxy::async) return;
  if (past.access == Access::read || past.proxy == Proxy::async) return;
  // cp.async writes through the generic proxy too: its group must be behind the fence.
  const bool copied = past.who.is_operation();
  const Component writer = copied ? operations_[past.who.index()].issuer : past.who.index();
  if (copied ? released(operations_[past.who.index()], actor.view->proxy)
             : actor.view->proxy[writer] >= past.epoch)
    return;
  const std::string one = warp_name(writer), other = warp_name(actor.warp);
  const std::string who = writer == actor.warp ? one + ", between the two"
                                               : one + " before it synchronises with " + other +
                                                     ", or by " + other + " after that";
  report("proxy",
         format("%s was written through the generic proxy and is %s through the async proxy "
                "without a proxy fence\n  written: %s\n  then:    %s\n  missing: "
                "fence.proxy.async by %s",
                place_name(place).c_str(), actor.access == Access::read ? "read" : "written",
                describe(past).c_str(), describe(actor).c_str(), who.c_str()));
}

void ClusterChecker::check_tcgen05(const Actor& actor, const PastAccess& past, const Place& place) {
  if (!context_.options.tcgen05 || !past.who.is_operation()) return;
  const Operation& earlier = operations_[past.who.index()];
  if (earlier.issuer == actor.warp || released(earlier, actor.view->tcgen05)) return;
  const bool arrived = released(earlier, actor.view->tcgen05_arrived);
  std::string missing =
      arrived
          ? format("tcgen05.fence::after_thread_sync by %s between its wait and this instruction",
                   warp_name(actor.warp).c_str())
          : format("tcgen05.fence::before_thread_sync by %s before it signals that it is done",
                   warp_name(earlier.issuer).c_str());
  std::string text = format(
      "%s is used by tcgen05 operations of two warps, ordered by thread "
      "synchronisation without a tcgen05.fence\n  first: %s\n  then:  %s\n  "
      "missing: %s",
      place_name(place).c_str(), describe(past).c_str(), describe(actor).c_str(), missing.c_str());
  remark(arrived ? Remark::tcgen05_after : Remark::tcgen05_before, "tcgen05", text);
}

// ---------------------------------------------------------------- TMEM allocation and the end

void ClusterChecker::tmem_alloc(const Agent&, uint32_t cta, uint32_t column, uint32_t columns) {
  std::vector<Cell>& cells = tmem_[cta];
  if (cells.empty()) cells.resize(kTmemCells);
  for (uint32_t row = 0; row < 128 / kTmemCellLanes; row++)
    for (uint32_t c = column / kTmemCellColumns; c < (column + columns) / kTmemCellColumns; c++)
      cells[row * kTmemCellsPerRow + c] = {};
}

void ClusterChecker::tmem_dealloc(const Agent& agent, uint32_t cta, uint32_t column,
                                  uint32_t columns) {
  std::vector<Cell>& cells = tmem_[cta];
  if (cells.empty() || !context_.options.race) return;
  Actor actor = actor_of(agent, Access::write);
  for (uint32_t row = 0; row < 128 / kTmemCellLanes; row++)
    for (uint32_t c = column / kTmemCellColumns; c < (column + columns) / kTmemCellColumns; c++) {
      Cell& cell = cells[row * kTmemCellsPerRow + c];
      const Place place{Memory::tensor, cta, row * kTmemCellLanes << 16 | c * kTmemCellColumns};
      for (const PastAccess& past : cell.accesses) {
        if (!knows(actor, past)) report_race(actor, past, place);
        check_tcgen05(actor, past, place);
      }
      cell = {};
    }
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
  for (const WarpState& warp : warps_)
    if (released(operation, warp.view.order)) return;
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
  note_effect(agent, true);
}

void ClusterChecker::end(std::span<const uint32_t> leaked_columns) {
  if (context_.options.race)
    for (const Operation& operation : operations_)
      if (operation.instruction) check_finished(operation);
  if (!context_.options.leak) return;
  for (size_t cta = 0; cta < leaked_columns.size(); cta++)
    if (leaked_columns[cta] != 0)
      throw Fault(
          kTensorMemoryLeak,
          format("leak check: CTA %zu ends with %u TMEM columns still allocated\n  missing: "
                 "tcgen05.dealloc by the warp that allocated them",
                 cta, leaked_columns[cta]));
}

}  // namespace vgpu::check
