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

/// Whether the 32 lanes of a warp touch one range, in their order.
bool is_one_range(uint32_t lanes, const WarpAccess& access) {
  if (lanes != ~0u) return false;
  uint64_t gaps = 0;
  for (uint64_t l = 0; l < 32; ++l) {
    gaps |= access.addresses[l] ^ (access.addresses[0] + l * access.bytes);
  }
  return gaps == 0;
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

ClusterChecker::LoadKind ClusterChecker::load_kind(const Agent& agent) {
  if (load_kinds_.empty()) {
    load_kinds_.reserve(module_.forms.size());
    for (const ptx::Form& form : module_.forms) {
      const std::string_view opcode = form.parts[0];
      load_kinds_.push_back(opcode == "ldmatrix"                ? LoadKind::matrix
                            : opcode == "ld" || opcode == "ldu" ? LoadKind::plain
                                                                : LoadKind::none);
    }
  }
  return load_kinds_[agent.instruction->form];
}

void ClusterChecker::access(const Agent& agent, const WarpAccess& access) {
  if (access.memory == Memory::local) {
    if (!undefined_.empty() || !undefined_local_.empty()) follow_local(agent, access);
    return;
  }
  // Ordered accesses synchronise; they do not race with each other.
  const bool strong = access.order != Order::weak;
  Actor actor = actor_of(agent, strong ? Access::atomic : access.access);
  if (access.memory == Memory::shared && context_.options.race && !lanes_told_) {
    follow_lanes(agent, access);
  }
  const bool global = access.memory == Memory::global;
  if (global) actor.access = access.access;
  // What a load finds unwritten is followed; other reads need it now.
  const LoadKind load = access.access == Access::read ? load_kind(agent) : LoadKind::none;
  follows_reads_ = context_.options.init && load != LoadKind::none;
  found_unwritten_ = found_spoiled_ = false;
  auto touch_range = [&](uint32_t cta, uint64_t address, uint64_t bytes) {
    if (global) {
      touch_global(actor, address, bytes);
    } else {
      touch_shared(actor, cta, address, bytes);
    }
  };
  // Lanes that follow each other in memory are one range; often the whole warp is.
  if (!access.ctas && is_one_range(agent.lanes, access)) {
    actor.unchanged = access.unchanged == ~0u;
    touch_range(agent.cta, access.addresses[0], uint64_t{32} * access.bytes);
  } else if (global) {
    touch_global_lanes(actor, access);
  } else {
    const bool reads = access.access == Access::read;
    for (uint32_t lanes = agent.lanes; lanes; lanes &= lanes - 1) {
      auto lane = static_cast<uint32_t>(std::countr_zero(lanes));
      uint64_t address = access.addresses[lane];
      uint32_t cta = access.ctas ? access.ctas[lane] : agent.cta;
      uint64_t bytes = access.bytes;
      actor.unchanged = access.unchanged >> lane & 1;
      while (lanes & (lanes - 1)) {
        auto next = static_cast<uint32_t>(std::countr_zero(lanes & (lanes - 1)));
        const uint64_t begin = access.addresses[next];
        if (access.ctas && access.ctas[next] != cta) break;
        if (begin == address + bytes) {
          bytes += access.bytes;
        } else if (!reads || begin - address > bytes - access.bytes) {
          break;  // lanes that read what lanes before them read change nothing
        }
        actor.unchanged &= access.unchanged >> next & 1;
        lanes &= lanes - 1;
      }
      touch_range(cta, address, bytes);
    }
  }
  if (follows_reads_ && found_unwritten_) {
    load == LoadKind::matrix ? mark_undefined_matrix(agent, access) : mark_undefined(agent, access);
  }
  follows_reads_ = false;
  if (found_spoiled_ && module_.forms[agent.instruction->form].parts[0] == "atom") {
    mark_undefined(agent, access);
  }
  if (access.access != Access::read && undefined_stored_.lanes) store_undefined(agent, access);
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
    release_into(flag, warp);
    release_done(warp);
  }
}

ClusterChecker::Actor ClusterChecker::actor_of(uint64_t id, const Operation& operation) const {
  Actor actor;
  actor.who = Who::operation(id);
  actor.warp = operation.issuer;
  actor.view = operation.start.get();
  actor.operation = &operation;
  actor.instruction = operation.instruction;
  actor.lanes = operation.lanes;
  return actor;
}

void ClusterChecker::async_access(const AsyncOp& op, const AsyncAccess& access) {
  const Operation& operation = operation_of(op.id);
  if (!operation.start) return;
  Actor actor = actor_of(op.id, operation);
  actor.access = access.access;
  actor.proxy = access.proxy;
  switch (access.memory) {
    case Memory::shared:
      touch_shared(actor, access.cta, access.address, access.bytes);
      if (watches_lanes(operation, access)) {
        follow_lanes(operation, access, access.address, access.bytes);
      }
      return;
    case Memory::tensor:
      follows_reads_ = context_.options.init && op.kind == AsyncKind::tcgen05_ld;
      found_unwritten_ = false;
      touch_tmem(actor, access);
      if (follows_reads_ && found_unwritten_) mark_undefined(op.issuer, access);
      follows_reads_ = false;
      if (op.kind == AsyncKind::tcgen05_cp && copied_unwritten_) forget_copied(access);
      return;
    case Memory::global:
      touch_global(actor, access.address, access.bytes);
      return;
    case Memory::local:
      return;
  }
}

void ClusterChecker::async_chunks(const AsyncOp& op, const AsyncAccess& access,
                                  std::span<const uint32_t> addresses) {
  const Operation& operation = operation_of(op.id);
  if (!operation.start || access.cta >= shared_.size()) return;
  Actor actor = actor_of(op.id, operation);
  actor.access = access.access;
  actor.proxy = access.proxy;
  actor.rows = access.rows != 0;
  std::vector<Cell>& cells = shared_[access.cta];
  next_accessor(actor);
  // A copy into TMEM leaves it as unwritten as its source: kernels copy scales in blocks of 128.
  // Rows of A spoil their own products.
  const bool rows = access.rows && context_.options.registers && !context_.options.strict;
  follows_reads_ = context_.options.init && (op.kind == AsyncKind::tcgen05_cp || rows);
  copied_unwritten_ = 0;
  uint32_t unwritten_rows = 0, chunk = 0;
  Place first{Memory::shared, access.cta, 0};          // unwritten
  Cell before = StateTable::kUnknown, after = before;  // of the last chunk
  uint32_t missing = 0;
  for (uint32_t address : addresses) {
    const uint32_t number = chunk++;
    if (address / kSharedCellBytes >= cells.size()) continue;
    Cell& cell = cells[address / kSharedCellBytes];
    if (cell != before) {
      before = cell;
      missing = follows_reads_ ? kAllBytes & ~states_.at(cell).written : 0;
      for (uint32_t word = 0; word < 4 && missing; ++word) {
        if (missing & unit_mask(word * 4, 4)) copied_unwritten_ |= 1u << word;
      }
      after = touch(cell, actor, kAllBytes, {Memory::shared, access.cta, address});
    }
    cell = after;
    if (missing && rows) {
      if (unwritten_rows == 0) {
        first.address = address + static_cast<uint32_t>(std::countr_zero(missing));
      }
      const auto row = static_cast<uint32_t>(number * 16 / addresses.size());
      unwritten_rows |= unit_mask(row / access.rows * access.rows, access.rows);
    }
  }
  follows_reads_ = false;
  if (unwritten_rows) {
    const auto [check, text] = unwritten_text(actor, first);
    if (!follow_unwritten(op, unwritten_rows, check, text)) report(check, text);
  }
  if (watches_lanes(operation, access)) {
    for (uint32_t address : addresses) follow_lanes(operation, access, address, kSharedCellBytes);
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
  if (!loads) warp.lanes_stored_in = warp.epoch();
  if (loads && warp.lanes_stored_in < warp.lanes_met) return;
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
                                                            warp.lanes_met, warp.epoch())) {
      remark_lanes(*store, lane,
                   format("read by lane %u at %s", lane, location(agent.instruction).c_str()),
                   {Memory::shared, cta, static_cast<uint32_t>(address)});
    }
  }
}

/// Whether the lanes of the issuer may have to do with this access of a copy.
bool ClusterChecker::watches_lanes(const Operation& operation, const AsyncAccess& access) const {
  if (!context_.options.race || lanes_told_ || access.cta >= lane_writes_.size()) return false;
  if (access.access != Access::read) return true;
  return std::popcount(operation.lanes) == 1 &&
         warps_[operation.issuer].lanes_stored_in >= operation.lanes_met;
}

/// The same for a copy that one lane issued.
void ClusterChecker::follow_lanes(const Operation& operation, const AsyncAccess& access,
                                  uint64_t address, uint64_t bytes) {
  LaneWrites& writes = lane_writes_[access.cta];
  if (access.access != Access::read) {
    writes.forget(address, bytes);
    if (operation.kind == AsyncKind::cp_async && access.lane != AsyncAccess::kAnyLane) {
      warps_[operation.issuer].lane_copies.push_back(
          {operation.group, access.cta, address, bytes, access.lane, operation.instruction});
    }
    return;
  }
  const auto lane = static_cast<uint32_t>(std::countr_zero(operation.lanes));
  const auto* store = writes.by_other_lane(address, bytes, static_cast<uint16_t>(operation.issuer),
                                           lane, operation.lanes_met, operation.issuer_epoch);
  if (store) {
    remark_lanes(*store, lane,
                 format("read by a %s that lane %u issued at %s", operation_name(operation.kind),
                        lane, location(operation.instruction).c_str()),
                 {Memory::shared, access.cta, static_cast<uint32_t>(address)});
  }
}

/// The copies by cp.async up to `group` are known to be there, each to the lane that made it alone
/// (PTX ISA, "cp.async.wait_group"): to the others they are stores of this moment.
void ClusterChecker::end_lane_copies(WarpState& warp, Epoch group) {
  const auto self = static_cast<uint16_t>(warp.self);
  const auto done = [&](const LaneCopy& copy) { return copy.group <= group; };
  for (const LaneCopy& copy : warp.lane_copies) {
    if (!done(copy)) continue;
    lane_writes_[copy.cta].store(copy.address, copy.bytes,
                                 shared_[copy.cta].size() * kSharedCellBytes,
                                 {warp.epoch(), self, copy.lane, copy.lane, copy.instruction});
    warp.lanes_stored_in = warp.epoch();
    warp.lanes_used_shared = true;
  }
  std::erase_if(warp.lane_copies, done);
}

/// Changes of cell states that were worked out hold as long as nothing that they depend on
/// differs. NOTE: what an accessor knows and what tells that an operation is done only grow, so
/// what has passed its checks once would pass again.
void ClusterChecker::next_accessor(const Actor& actor) {
  const Accessor now{actor.who,    actor.epoch,       actor.access,    actor.proxy,
                     last_issued_, actor.instruction, actor.unchanged, actor.rows};
  if (now == accessor_) return;
  accessor_ = now;
  states_.next_accessor();
  if (!states_.crowded()) return;
  states_.collect([&](auto&& mark) {
    for (const auto* memory : {&shared_, &tmem_}) {
      for (const std::vector<Cell>& cells : *memory) mark(cells);
    }
  });
}

void ClusterChecker::touch_shared(const Actor& actor, uint32_t cta, uint64_t address,
                                  uint64_t bytes) {
  if (cta >= shared_.size()) return;
  std::vector<Cell>& cells = shared_[cta];
  if (!actor.operation && actor.access == Access::write) {
    last_generic_write_.raise(actor.warp, actor.epoch);
  }
  if (!actor.operation && actor.access == Access::read && context_.options.reads) {
    last_generic_read_.raise(actor.warp, actor.epoch);
  }
  next_accessor(actor);
  const uint64_t end = std::min<uint64_t>(address + bytes, cells.size() * kSharedCellBytes);
  auto part_of_cell = [&](uint64_t from, uint64_t to) {
    Cell& cell = cells[from / kSharedCellBytes];
    cell = touch(
        cell, actor,
        unit_mask(static_cast<uint32_t>(from % kSharedCellBytes), static_cast<uint32_t>(to - from)),
        {Memory::shared, cta, static_cast<uint32_t>(from)});
  };
  uint64_t at = address;
  if (at % kSharedCellBytes != 0 && at < end) {
    const uint64_t stop = std::min(end, (at / kSharedCellBytes + 1) * kSharedCellBytes);
    part_of_cell(at, stop);
    at = stop;
  }
  // Whole cells: neighbours in one state change alike.
  const auto last = static_cast<size_t>(end / kSharedCellBytes);
  for (auto k = static_cast<size_t>(at / kSharedCellBytes); k < last;) {
    const Cell before = cells[k];
    const Cell after = touch(before, actor, kAllBytes,
                             {Memory::shared, cta, static_cast<uint32_t>(k * kSharedCellBytes)});
    do {
      cells[k++] = after;
    } while (k < last && cells[k] == before);
  }
  at = std::max<uint64_t>(at, last * kSharedCellBytes);
  if (at < end) part_of_cell(at, end);
}

void ClusterChecker::touch_tmem(const Actor& actor, const AsyncAccess& access) {
  std::vector<Cell>& cells = tmem_[access.cta];
  if (cells.empty()) cells.resize(kTmemCells, kFreshCell);
  next_accessor(actor);
  const auto lane0 = static_cast<uint32_t>(access.address >> 16);
  const auto column0 = static_cast<uint32_t>(access.address & 0xffff);
  for (uint32_t lane = lane0; lane < lane0 + access.lanes; lane += kTmemCellLanes) {
    for (uint32_t column = column0; column < column0 + access.columns;) {
      const uint32_t first = column % kTmemCellColumns;
      const uint32_t count = std::min(kTmemCellColumns - first, column0 + access.columns - column);
      Cell& cell = cells[lane / kTmemCellLanes * kTmemCellsPerRow + column / kTmemCellColumns];
      cell = touch(cell, actor, unit_mask(first, count),
                   {Memory::tensor, access.cta, lane << 16 | column});
      column += count;
    }
  }
}

/// The allocation that holds an address, or null; it is accessed now (`how` 0: it is not).
/// NOTE: kernels go back and forth between a few; the registry's lock is shared by all threads.
Allocation* ClusterChecker::allocation_at(uint64_t address, uint8_t how) {
  for (Recent& recent : allocations_) {
    if (!recent.allocation || !recent.allocation->contains(address, 1)) continue;
    if ((recent.how & how) != how) {
      recent.how |= how;
      context_.touched(recent.allocation->base(), how);
    }
    return recent.allocation;
  }
  Allocation* found = context_.memory->find(address);
  if (found) {
    allocations_[next_allocation_++ % allocations_.size()] = {found, how};
    if (how) context_.touched(found->base(), how);
  }
  return found;
}

/// A launch that may start early must not touch what the one before uses until it has waited.
/// NOTE: told by whole allocations.
void ClusterChecker::check_early(const Actor& actor, const Allocation& allocation, uint8_t how) {
  if (!context_.options.race || actor.view->order[launch_before_] != 0) return;
  const auto before = context_.before.find(allocation.base());
  if (before == context_.before.end()) return;
  if (!((before->second | how) & CheckContext::kWritten)) return;
  remark(Remark::early_access, "race",
         format("a kernel that may start before the one before it has ended accesses allocation "
                "#%llu (%s), which that one %s\n  access:  %s\n  missing: griddepcontrol.wait "
                "(cudaGridDependencySynchronize()) by %s, or by a warp that it waits for",
                static_cast<unsigned long long>(allocation.serial()), allocation.label().c_str(),
                before->second & CheckContext::kWritten ? "writes" : "reads",
                describe(actor).c_str(), warp_name(actor.warp).c_str()));
}

uint8_t ClusterChecker::how_of(const Actor& actor) {
  return actor.access == Access::read    ? CheckContext::kRead
         : actor.access == Access::write ? CheckContext::kWritten
                                         : CheckContext::kRead | CheckContext::kWritten;
}

void ClusterChecker::touch_global(const Actor& actor, uint64_t address, uint64_t bytes) {
  if (!context_.memory || !(context_.options.init || context_.options.race)) return;
  const uint8_t how = how_of(actor);
  for (const uint64_t end = address + bytes; address < end;) {
    Allocation* allocation = allocation_at(address, how);
    if (!allocation) return;
    const uint64_t here = std::min(end, allocation->end()) - address;
    if (info_.request->early) check_early(actor, *allocation, how);
    if (context_.options.init && allocation->tracks_writes()) {
      const uint64_t missing =
          actor.access != Access::write ? allocation->first_unwritten(address, here) : 0;
      if (actor.access != Access::write && missing != address + here) {
        if (follows_reads_) {
          found_unwritten_ = true;
          return;
        }
        if (const auto rule = allocation->spoiled(missing, 1)) {
          // A sum over what is spoiled stays spoiled.
          found_spoiled_ = actor.access == Access::atomic && !context_.options.strict;
          if (found_spoiled_) return;
          report(rule->check,
                 format("%s\n  then:    %s", rule->text.c_str(), describe(actor).c_str()));
        }
        report("init",
               format("read of global memory that was never written: %s\n  byte 0x%llx is %s",
                      describe(actor).c_str(), static_cast<unsigned long long>(missing),
                      context_.memory->describe(missing).c_str()));
      }
      if (actor.access != Access::read) allocation->mark_written(address, here);
    }
    address += here;
  }
}

/// Lanes that go to different places, mostly of one allocation.
void ClusterChecker::touch_global_lanes(const Actor& actor, const WarpAccess& access) {
  if (!context_.memory || !(context_.options.init || context_.options.race)) return;
  const uint32_t bytes = access.bytes;
  const uint64_t* addresses = access.addresses;
  Allocation* allocation = allocation_at(addresses[std::countr_zero(actor.lanes)], how_of(actor));
  bool apart = !allocation || allocation->bytes() < bytes;
  for (uint32_t lanes = actor.lanes; lanes && !apart; lanes &= lanes - 1) {
    apart = !allocation->contains(addresses[std::countr_zero(lanes)], bytes);
  }
  if (!apart && info_.request->early) check_early(actor, *allocation, how_of(actor));
  const bool watched = context_.options.init && (apart || allocation->tracks_writes());
  for (uint32_t lanes = watched || apart ? actor.lanes : 0; lanes; lanes &= lanes - 1) {
    const uint64_t address = addresses[std::countr_zero(lanes)];
    if (apart) {
      touch_global(actor, address, bytes);
    } else if (actor.access == Access::write) {
      allocation->mark_written_aligned(address, bytes);
    } else if (!allocation->is_written_aligned(address, bytes)) {
      touch_global(actor, address, bytes);
    }
  }
}

bool ClusterChecker::released(const Operation& operation, const VectorClock& clock) const {
  return operation.releases.any(
      [&](Component component, Epoch epoch) { return clock[component] >= epoch; });
}

/// Whether two tcgen05 instructions have the same .cta_group and .kind.
bool ClusterChecker::alike(const ptx::Instruction& one, const ptx::Instruction& other) const {
  auto differ = [&](const ptx::Instruction& here, const ptx::Instruction& there) {
    for (const auto& part : module_.forms[here.form].parts) {
      const bool counts = part.starts_with("cta_group") || part.starts_with("kind");
      if (counts && !module_.forms[there.form].has(part)) return true;
    }
    return false;
  };
  return one.form == other.form || !(differ(one, other) || differ(other, one));
}

/// PTX ISA, "Pipelined tcgen05 Instructions". NOTE: of two products it asks for the same
/// accumulator and shape too; one that overwrites what an earlier one only reads (A, scales,
/// metadata) has another.
bool ClusterChecker::pipelined(const Operation& earlier, const PastAccess& past,
                               const Actor& later) const {
  if (!later.operation || earlier.issuer != later.operation->issuer) return false;
  switch (later.operation->kind) {
    case AsyncKind::tcgen05_mma:
      if (earlier.kind != AsyncKind::tcgen05_mma) return in_tensor_pipeline(earlier.kind);
      return !(past.access == Access::read && later.access == Access::write) &&
             alike(*earlier.instruction, *later.instruction);
    case AsyncKind::tcgen05_shift:
      return earlier.kind == AsyncKind::tcgen05_mma;
    case AsyncKind::tcgen05_cp:
      return earlier.kind == AsyncKind::tcgen05_shift &&
             module_.forms[later.instruction->form].has("4x256b");
    default:
      return false;
  }
}

bool ClusterChecker::knows(const Actor& actor, const PastAccess& past) const {
  if (past.who == actor.who) return true;
  if (past.who.is_operation()) {
    const Operation& earlier = operations_[past.who.index()];
    return released(earlier, actor.view->order) || pipelined(earlier, past, actor);
  }
  const Component warp = past.who.index();
  // The issuer's own earlier accesses; its view may be older than its last steps.
  if (actor.operation && warp == actor.warp) return actor.operation->issuer_epoch >= past.epoch;
  return actor.view->order[warp] >= past.epoch;
}

std::pair<const char*, std::string> ClusterChecker::unwritten_text(const Actor& actor,
                                                                   const Place& first) {
  if (const auto broken = broken_at(first.memory, first.cta, first.address)) {
    return {broken->check,
            format("%s\n  used:    what it gave was stored to %s, then %s", broken->text.c_str(),
                   place_name(first).c_str(), describe(actor).c_str())};
  }
  if (const Operation* writer = context_.options.race ? pending_writer(first) : nullptr) {
    const Actor late = actor_of(0, *writer);
    return {"race",
            format("%s is read, and nothing has written it, while a %s is under way that "
                   "may\n  first:   %s\n  second:  a %s that %s issued at %s\n  missing: %s, "
                   "before the first access",
                   place_name(first).c_str(), operation_name(writer->kind), describe(actor).c_str(),
                   operation_name(writer->kind), warp_name(late.warp).c_str(),
                   location(late.instruction).c_str(), missing_wait(*writer, actor.warp).c_str())};
  }
  return {"init", format("read of %s, which was never written: %s", place_name(first).c_str(),
                         describe(actor).c_str())};
}

void ClusterChecker::check_written(const CellState& cell, const Actor& actor, uint32_t units,
                                   const Place& place) {
  if (!context_.options.init || actor.access != Access::read || follows_reads_) return;
  // The KiB that the hardware keeps is its own to fill.
  if (place.memory == Memory::shared && place.address < kReservedBytes) return;
  uint32_t missing = units & ~cell.written;
  if (missing == 0) return;
  Place first = place;
  const auto unit = static_cast<uint32_t>(std::countr_zero(missing));
  first.address = place.memory == Memory::shared
                      ? place.address / kSharedCellBytes * kSharedCellBytes + unit
                      : place.address / kTmemCellColumns * kTmemCellColumns + unit;
  const auto [check, text] = unwritten_text(actor, first);
  report(check, text);
}

/// Checks an access of a cell; what the cell is then.
Cell ClusterChecker::touch(Cell cell, const Actor& actor, uint32_t units, const Place& place) {
  const Cell guard = cell & kGuardedCell, before = cell & ~kGuardedCell;
  if (follows_reads_ && (units & ~states_.at(before).written)) found_unwritten_ = true;
  Cell after = states_.find(before, units);
  if (after == StateTable::kUnknown) {
    const CellState& state = states_.at(before);
    check_written(state, actor, units, place);
    check_order(state, actor, units, place);
    remember(state, actor, units);
    after = states_.add(before, units, scratch_);
  }
  if (guard && actor.access != Access::read) check_overwrite(actor, units, place);
  return after | guard;
}

void ClusterChecker::check_order(const CellState& cell, const Actor& actor, uint32_t units,
                                 const Place& place) {
  for (const PastAccess& past : cell.accesses) {
    if (!(past.units & units)) continue;
    const bool both_read = past.access == Access::read && actor.access == Access::read;
    const bool both_atomic = past.access == Access::atomic && actor.access == Access::atomic;
    if (both_read || both_atomic) continue;
    if (context_.options.race && !knows(actor, past) && !works_in_the_field(actor, past, place)) {
      report_race(actor, past, place);
    }
    if (place.memory == Memory::shared) check_proxy(actor, past, place);
    if (place.memory == Memory::tensor) check_tcgen05(actor, past, place);
  }
}

/// NOTE: TMEM that is freed after a tcgen05.ld or .st without its tcgen05.wait, but after its warp
/// went on to signal: kernels in the field do that (CUTLASS epilogues that reuse their
/// accumulators, example 77). Who stored the loaded values had them.
bool ClusterChecker::freed_after_load(const Actor& actor, const PastAccess& past,
                                      const Place& place) {
  if (!past.who.is_operation()) return false;
  const Operation& load = operations_[past.who.index()];
  if (load.kind != AsyncKind::tcgen05_ld && load.kind != AsyncKind::tcgen05_st) return false;
  if (actor.warp != load.issuer && actor.view->order[load.issuer] < load.issuer_epoch) return false;
  remark(Remark::load_at_dealloc, "race",
         format("%s is freed after a %s that nothing waited for\n  first:   %s\n  second:  "
                "%s\n  missing: %s",
                place_name(place).c_str(), operation_name(load.kind), describe(past).c_str(),
                describe(actor).c_str(), missing_wait(load, actor.warp).c_str()));
  return true;
}

/// What PTX does not order but kernels in the field do, and it works. NOTE:
/// - two warps store the same value to one word (flags that several set);
/// - data behind barrier.cluster.arrive.relaxed, for which PTX promises neither order nor
///   visibility ("barrier.cluster"), or an mbarrier arrival that is relaxed; also what an operation
///   wrote that the arriving warp had waited for (CUTLASS example 93: cp.async), and TMEM freed
///   behind one (DeepGEMM's pairs of CTAs);
/// - tcgen05.st to cells that the warp's own tcgen05.ld read, after its result was used (CUTLASS's
///   stream-K fix-up);
/// - tcgen05.ld or .st of cells after a tcgen05.st without tcgen05.wait::st, by the same warp or
///   one that it has signalled (CUTLASS example 77); likewise products and copies into such cells
///   by one that it has signalled (CUTLASS's stream-K fix-up hands its accumulators back so);
/// - tcgen05.cp over what an earlier tcgen05.cp or .mma of the warp uses: only cp -> mma is a
///   pipeline of PTX ("Pipelined tcgen05 Instructions"), but main loops with scales or sparsity
///   metadata copy those of the next step behind the products of this one (CUTLASS example 83);
///   likewise products over what earlier ones of another accumulator or kind use.
bool ClusterChecker::works_in_the_field(const Actor& actor, const PastAccess& past,
                                        const Place& place) {
  auto tell = [&](Remark kind) {
    remark(kind, "race", race_text(actor, past, place));
    return true;
  };
  if (!past.who.is_operation()) {
    const bool both_write = past.access == Access::write && actor.access == Access::write;
    if (both_write && actor.unchanged && !actor.operation) return tell(Remark::same_value);
    if (actor.view->weak[past.who.index()] >= past.epoch) return tell(Remark::relaxed_data);
    return false;
  }
  const Operation& earlier = operations_[past.who.index()];
  if (!actor.operation) {
    return released(earlier, actor.view->weak) && tell(Remark::relaxed_data);
  }
  const AsyncKind first = earlier.kind, second = actor.operation->kind;
  const bool own = actor.warp == earlier.issuer;
  if (first == AsyncKind::tcgen05_ld && second == AsyncKind::tcgen05_st && own) {
    const bool used =
        !context_.options.registers || warps_[actor.warp].loads_used >= past.who.index();
    return used && tell(Remark::overwritten_load);
  }
  if (second == AsyncKind::tcgen05_cp && own && in_tensor_pipeline(first)) {
    return tell(Remark::ordered_copy);
  }
  if (second == AsyncKind::tcgen05_mma && own && first == AsyncKind::tcgen05_mma) {
    return tell(Remark::ordered_products);
  }
  if (first == AsyncKind::tcgen05_st) {
    const bool signalled = actor.view->order[earlier.issuer] >= earlier.issuer_epoch;
    const bool thread = second == AsyncKind::tcgen05_ld || second == AsyncKind::tcgen05_st;
    return ((own && thread) || signalled) && tell(Remark::unwaited_store);
  }
  return false;
}

/// The oldest operation under way that may yet write there, or null.
const Operation* ClusterChecker::pending_writer(const Place& place) const {
  for (uint64_t id : in_flight_) {
    const Operation& operation = operations_[id];
    switch (operation.kind) {
      case AsyncKind::tcgen05_mma:
      case AsyncKind::tcgen05_cp:
      case AsyncKind::tcgen05_shift:
        if (place.memory == Memory::tensor) return &operation;
        break;
      case AsyncKind::tma_load:
      case AsyncKind::bulk_load:
      case AsyncKind::bulk_shared:
      case AsyncKind::st_async:
      case AsyncKind::clc_try_cancel:
        if (place.memory == Memory::shared) return &operation;
        break;
      case AsyncKind::cp_async:
        if (place.memory == Memory::shared && !operation.moves_nothing) return &operation;
        break;
      default:
        break;
    }
  }
  return nullptr;
}

void ClusterChecker::check_overwrite(const Actor& actor, uint32_t units, const Place& place) {
  if (!context_.options.mbarrier) return;
  for (uint32_t half : {0u, 8u}) {
    const uint32_t offset = place.address / kSharedCellBytes * kSharedCellBytes + half;
    if (!(units & unit_mask(half, 8))) continue;
    const auto at = mbarriers_.find(barrier_key({place.cta, offset}));
    if (at != mbarriers_.end() && at->second.live) {
      report("mbarrier",
             format("write over the live mbarrier at shared offset 0x%x of CTA %u: %s\n  "
                    "initialised: by %s at %s",
                    offset, place.cta, describe(actor).c_str(),
                    warp_name(at->second.initialiser).c_str(),
                    location(at->second.init_instruction).c_str()));
    }
  }
}

/// Marks the cell of an mbarrier while one of its halves holds a live one.
void ClusterChecker::guard(exec::BarrierRef ref) {
  if (ref.cta >= shared_.size() || ref.offset / kSharedCellBytes >= shared_[ref.cta].size()) return;
  Cell& cell = shared_[ref.cta][ref.offset / kSharedCellBytes];
  cell &= ~kGuardedCell;
  for (uint32_t half : {0u, 8u}) {
    const auto at = mbarriers_.find(
        barrier_key({ref.cta, ref.offset / kSharedCellBytes * kSharedCellBytes + half}));
    if (at != mbarriers_.end() && at->second.live) cell |= kGuardedCell;
  }
}

/// Whether a new access stands for an earlier one: whoever knows of the new one knows of both.
bool ClusterChecker::stands_for(const Actor& actor, uint32_t units, const PastAccess& past) const {
  if (past.access != actor.access || past.rows != actor.rows) return false;
  const bool covered = (past.units & ~units) == 0;
  if (past.who == actor.who) return covered || past.epoch == actor.epoch;
  // Operations of one in-order engine.
  if (!covered || !past.who.is_operation() || !actor.operation) return false;
  const Operation& earlier = operations_[past.who.index()];
  return earlier.issuer == actor.operation->issuer && earlier.kind == actor.operation->kind &&
         (earlier.kind == AsyncKind::tcgen05_mma || earlier.kind == AsyncKind::wgmma);
}

/// Puts into `scratch_` what `cell` becomes.
void ClusterChecker::remember(const CellState& cell, const Actor& actor, uint32_t units) {
  scratch_.written = actor.access == Access::read ? cell.written : cell.written | units;
  std::vector<PastAccess>& list = scratch_.accesses;
  list.clear();
  PastAccess now{actor.who,
                 actor.epoch,
                 units,
                 actor.access,
                 actor.proxy,
                 actor.rows,
                 static_cast<uint32_t>(last_issued_),
                 actor.rows ? actor.who.index() : 0,
                 actor.instruction};
  for (const PastAccess& past : cell.accesses) {
    PastAccess rest = past;
    // A write hides what came before it, which it was checked against.
    if (actor.access == Access::write) rest.units &= ~units;
    if (rest.units == 0) continue;
    if (stands_for(actor, units, rest)) {
      now.units |= rest.units;
      now.first = std::min(now.first, rest.first);
    } else {
      list.push_back(rest);
    }
  }
  list.push_back(now);
}

void ClusterChecker::check_proxy(const Actor& actor, const PastAccess& past, const Place& place) {
  if (actor.proxy != Proxy::async || past.proxy == Proxy::async) return;
  const bool read = past.access == Access::read;
  if (read ? actor.access == Access::read || !watches_reads(actor) : !context_.options.proxy) {
    return;
  }
  // cp.async writes through the generic proxy too: its group must be behind the fence.
  const bool copied = past.who.is_operation();
  const Component writer = copied ? operations_[past.who.index()].issuer : past.who.index();
  if (copied ? released(operations_[past.who.index()], actor.view->proxy)
             : actor.view->proxy[writer] >= past.epoch) {
    return;
  }
  const std::string one = warp_name(writer), other = warp_name(actor.warp);
  const std::string who = writer == actor.warp ? one + ", between the two"
                                               : one + " before it synchronises with " + other +
                                                     ", or by " + other + " after that";
  const std::string text = format(
      "%s was %s through the generic proxy and is %s through the async proxy "
      "without a proxy fence\n  first:   %s\n  then:    %s\n  missing: "
      "fence.proxy.async by %s",
      place_name(place).c_str(), read ? "read" : "written",
      actor.access == Access::read ? "read" : "written", describe(past).c_str(),
      describe(actor).c_str(), who.c_str());
  // NOTE: products of what cp.async brought work without the fence (FlashAttention 3
  // gathers packed queries so).
  if (copied && actor.access == Access::read && actor.operation &&
      actor.operation->kind == AsyncKind::wgmma) {
    return remark(Remark::unfenced_copy, "proxy", text);
  }
  if (!read || context_.options.reads) {
    if (!follow_rows(actor, "proxy", text)) report("proxy", text);
    return;
  }
  remark(Remark::answer_reread, "proxy", text);
}

/// Whether generic reads must pass a proxy fence before this write.
/// NOTE: formally all of them; an mbarrier alone between a load and the next TMA write of a stage
/// is what most kernels have, so that only the word `reads` asks for it. PTX's text on launch
/// control itself puts the fence between an answer's load and the next request
/// ("clusterlaunchcontrol").
bool ClusterChecker::watches_reads(const Actor& actor) const {
  return context_.options.reads || (context_.options.proxy && actor.operation &&
                                    actor.operation->kind == AsyncKind::clc_try_cancel);
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
