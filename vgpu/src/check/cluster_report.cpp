// SPDX-License-Identifier: Apache-2.0
// How the checker words what it found.
#include "check/cluster_checker.hpp"
#include "fault.hpp"

namespace vgpu::check {

using exec::Access;
using exec::AsyncKind;
using exec::Memory;

namespace {

const char* access_name(Access access) {
  switch (access) {
    case Access::read:
      return "read";
    case Access::write:
      return "write";
    case Access::atomic:
      return "atomic or ordered access";
  }
  return "access";
}

}  // namespace

std::string ClusterChecker::location(const ptx::Instruction* instruction) const {
  return instruction ? exec::describe_location(module_, *instruction) : "an unknown place";
}

std::string ClusterChecker::warp_name(Component warp) const {
  std::string text = format("warp %u", warp % info_.warps);
  if (info_.ctas > 1) text += format(" of CTA %u", warp / info_.warps);
  return text;
}

std::string ClusterChecker::place_name(const Place& place) const {
  if (place.memory == Memory::tensor) {
    return format("TMEM of CTA %u at lane %u, column %u", place.cta, place.address >> 16,
                  place.address & 0xffff);
  }
  return format("shared memory of CTA %u at offset 0x%x (byte %d of the CTA's own)", place.cta,
                place.address, static_cast<int>(place.address) - 1024);
}

std::string ClusterChecker::describe(const Actor& actor) const {
  if (actor.operation) {
    return format("%s by a %s that %s issued at %s", access_name(actor.access),
                  operation_name(actor.operation->kind), warp_name(actor.warp).c_str(),
                  location(actor.instruction).c_str());
  }
  return format("%s by %s at %s", access_name(actor.access), warp_name(actor.warp).c_str(),
                location(actor.instruction).c_str());
}

std::string ClusterChecker::describe(const PastAccess& past) const {
  if (past.who.is_operation()) {
    const Operation& operation = operations_[past.who.index()];
    return format("%s by a %s that %s issued at %s", access_name(past.access),
                  operation_name(operation.kind), warp_name(operation.issuer).c_str(),
                  location(past.instruction).c_str());
  }
  return format("%s by %s at %s", access_name(past.access), warp_name(past.who.index()).c_str(),
                location(past.instruction).c_str());
}

/// The mbarriers that tell of an operation's end.
std::string ClusterChecker::release_name(const Operation& operation) const {
  std::string text;
  operation.releases.any([&](Component component, Epoch epoch) {
    for (const auto& [key, barrier] : mbarriers_) {
      if (barrier.phases == component) {
        text += format("%sphase %u of the mbarrier at shared offset 0x%x of CTA %u",
                       text.empty() ? "" : " or ", epoch - 1, static_cast<uint32_t>(key),
                       static_cast<uint32_t>(key >> 32));
      }
    }
    return false;
  });
  return text;
}

/// What tells the issuer of an operation, or those who wait for its mbarrier, that it is done.
std::string ClusterChecker::missing_wait(const Operation& operation, Component waiter) const {
  const std::string issuer = warp_name(operation.issuer), other = warp_name(waiter);
  std::string wait;
  switch (operation.kind) {
    case AsyncKind::tma_store:
    case AsyncKind::tma_reduce:
    case AsyncKind::bulk_store:
    case AsyncKind::bulk_reduce:
      wait = "cp.async.bulk.commit_group and cp.async.bulk.wait_group.read by " + issuer;
      break;
    case AsyncKind::cp_async:
      wait = "cp.async.wait_group by " + issuer;
      break;
    case AsyncKind::wgmma:
      wait = "wgmma.commit_group and wgmma.wait_group by " + issuer;
      break;
    case AsyncKind::tcgen05_ld:
      wait = "tcgen05.wait::ld by " + issuer;
      break;
    case AsyncKind::tcgen05_st:
      wait = "tcgen05.wait::st by " + issuer;
      break;
    case AsyncKind::tcgen05_mma:
    case AsyncKind::tcgen05_cp:
    case AsyncKind::tcgen05_shift:
      return "tcgen05.commit by " + issuer + " and a wait for its mbarrier by " + other;
    default: {
      const std::string barrier = release_name(operation);
      return "a wait (mbarrier.try_wait) by " + other + " for " +
             (barrier.empty() ? "the mbarrier that the operation completes" : barrier);
    }
  }
  if (operation.issuer == waiter) return wait;
  return wait + ", then a barrier or an mbarrier arrival that " + other + " waits for";
}

std::string ClusterChecker::missing_order(const Actor& actor, const PastAccess& past) const {
  const std::string later = warp_name(actor.warp);
  // The operation was issued before the first access and is still under way.
  const bool overtaken = actor.operation && actor.who.index() <= past.last_issued;
  if (!past.who.is_operation()) {
    const Component first = past.who.index();
    std::string order =
        format("a barrier, or an arrival by %s on an mbarrier that %s waits for, between the two",
               warp_name(first).c_str(), later.c_str());
    if (!overtaken) return order;
    return missing_wait(*actor.operation, first) + ", before the first access" +
           (first == actor.warp ? "" : "; or, if that access is to come first, " + order);
  }
  const Operation& operation = operations_[past.who.index()];
  // Groups are waited for by the issuer, mbarriers by anyone.
  const bool in_group = group_kind_of(operation.kind).has_value();
  const bool issuer_knows = released(operation, warps_[operation.issuer].view.order);
  if (in_group && issuer_knows && operation.issuer != actor.warp) {
    return format(
        "an arrival by %s on an mbarrier that %s waits for, or a barrier, after %s has "
        "waited for the operation: by now it has, but %s cannot know",
        warp_name(operation.issuer).c_str(), later.c_str(), warp_name(operation.issuer).c_str(),
        later.c_str());
  }
  return missing_wait(operation, actor.warp) + ", before the second access";
}

void ClusterChecker::report_registers(const exec::Agent& agent, const RegisterHazard& hazard) {
  if (hazard.early_load) warp_of(agent).loads_used = last_issued_;
  if (hazard.early_load && early_load_told_) return;
  const std::string here = location(agent.instruction);
  const RegisterSlot& slot = *hazard.slot;
  if (hazard.missing_fence) {
    report("registers",
           format("register %s is used by wgmma.mma_async after an ordinary access, without a "
                  "wgmma.fence between\n  accessed: at %s\n  then:     at %s\n  missing: "
                  "wgmma.fence.sync.aligned between the two",
                  hazard.name->c_str(), location(slot.toucher).c_str(), here.c_str()));
  }
  const bool wgmma = !hazard.early_load && slot.pending == RegisterUse::wgmma;
  const std::string text = format(
      "register %s is accessed while a %s that uses it may be in flight\n  issued:   at "
      "%s\n  accessed: at %s\n  missing: %s between the two",
      hazard.name->c_str(), wgmma ? "wgmma.mma_async" : "tcgen05.ld",
      location(slot.operation).c_str(), here.c_str(),
      wgmma ? "wgmma.commit_group and wgmma.wait_group" : "tcgen05.wait::ld");
  if (!hazard.early_load) report("registers", text);
  // NOTE: true register dependencies on a tcgen05.ld are respected (PTX ISA, "Register
  // dependencies, same thread"), and compilers place readers before the wait (CUTLASS epilogues);
  // what the wait orders is memory.
  early_load_told_ = true;
  remark(Remark::early_load, "registers", text);
}

void ClusterChecker::report_race(const Actor& actor, const PastAccess& past, const Place& place) {
  const std::string text = race_text(actor, past, place);
  if (follow_rows(actor, "race", text)) return;
  if (past.rows &&
      follow_rows(operations_[past.who.index()], past.first, past.who.index(), "race", text)) {
    return;
  }
  report("race", text);
}

std::string ClusterChecker::race_text(const Actor& actor, const PastAccess& past,
                                      const Place& place) const {
  // Asynchronous operations may happen long after they were issued.
  const bool overtaken = actor.operation && actor.who.index() <= past.last_issued;
  return format(
      "%s: nothing orders these two accesses\n  first:   %s\n  second:  %s\n  "
      "missing: %s",
      place_name(place).c_str(), describe(past).c_str(),
      (describe(actor) + (overtaken ? " (issued before the first access, still under way)" : ""))
          .c_str(),
      missing_order(actor, past).c_str());
}

void ClusterChecker::remark_lanes(const LaneWrites::Store& store, uint32_t lane,
                                  const std::string& second, const Place& place) {
  lanes_told_ = true;
  remark(Remark::lanes, "race",
         format("%s: two lanes of %s exchange data and nothing orders them\n  first:   write by "
                "lane %u at %s\n  second:  %s\n  missing: __syncwarp() (bar.warp.sync) between the "
                "two, by lanes %u and %u",
                place_name(place).c_str(), warp_name(store.warp).c_str(), store.lane,
                location(store.instruction).c_str(), second.c_str(), store.lane, lane));
}

void ClusterChecker::remark(Remark kind, const char* check, const std::string& text) {
  if (context_.options.strict) report(check, text);
  context_.note(
      module_, kind,
      format("note: %s check: %s\n  (told once for this program; --check all,strict makes "
             "it an error)",
             check, text.c_str()));
}

void ClusterChecker::report(const char* check, const std::string& text) const {
  throw Fault(kLaunchFailure, std::string(check) + " check: " + text);
}

}  // namespace vgpu::check
