// SPDX-License-Identifier: Apache-2.0
// What the checker does with each access: compares it with those before it, and remembers it.
#include <algorithm>
#include <bit>

#include "check/cluster_checker.hpp"
#include "fault.hpp"

namespace vgpu::check {

using exec::Access;
using exec::Agent;
using exec::AsyncAccess;
using exec::AsyncKind;
using exec::AsyncOp;
using exec::Memory;
using exec::Order;
using exec::Proxy;
using exec::WarpAccess;

namespace {

uint64_t barrier_key(exec::BarrierRef ref) {
  return uint64_t{ref.cta} << 32 | ref.offset;
}

}  // namespace

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
  if (access.memory == Memory::shared && context_.options.race && !lanes_told_)
    follow_lanes(agent, access);
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
  if (access.access != Access::write) {
    acquire(warp, flag);
    warp.meet_lanes();
  }
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
      if (context_.options.race && !lanes_told_) follow_lanes(operation, access);
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

/// Remarks on plain loads of what another lane of the warp stored since the lanes last met; then
/// remembers stores.
void ClusterChecker::follow_lanes(const Agent& agent, const WarpAccess& access) {
  WarpState& warp = warp_of(agent);
  warp.lanes_used_shared = true;
  const auto self = static_cast<uint16_t>(warp.self);
  const bool loads = access.access == Access::read && access.order == Order::weak;
  if (!loads && access.access == Access::read) return;
  for (uint32_t lanes = agent.lanes; lanes; lanes &= lanes - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(lanes));
    const uint32_t cta = access.ctas ? access.ctas[lane] : agent.cta;
    if (cta >= lane_writes_.size()) continue;
    const uint64_t address = access.addresses[lane];
    if (!loads) {
      const auto number = static_cast<uint8_t>(lane);
      lane_writes_[cta].store(address, access.bytes, shared_[cta].size() * kSharedCellBytes,
                              {warp.epoch(), self, number, number, agent.instruction});
      continue;
    }
    if (const auto* store = lane_writes_[cta].by_other_lane(address, access.bytes, self, lane,
                                                            warp.lanes_met, warp.epoch()))
      remark_lanes(*store, lane,
                   format("read by lane %u at %s", lane, location(agent.instruction).c_str()),
                   {Memory::shared, cta, static_cast<uint32_t>(address)});
  }
}

/// The same for a copy that one lane issued.
void ClusterChecker::follow_lanes(const Operation& operation, const AsyncAccess& access) {
  if (access.cta >= lane_writes_.size()) return;
  LaneWrites& writes = lane_writes_[access.cta];
  if (access.access != Access::read) {
    writes.forget(access.address, access.bytes);
    return;
  }
  if (std::popcount(operation.lanes) != 1) return;
  const auto lane = static_cast<uint32_t>(std::countr_zero(operation.lanes));
  const auto* store =
      writes.by_other_lane(access.address, access.bytes, static_cast<uint16_t>(operation.issuer),
                           lane, operation.lanes_met, operation.issuer_epoch);
  if (store)
    remark_lanes(*store, lane,
                 format("read by a %s that lane %u issued at %s", operation_name(operation.kind),
                        lane, location(operation.instruction).c_str()),
                 {Memory::shared, access.cta, static_cast<uint32_t>(access.address)});
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

}  // namespace vgpu::check
