// SPDX-License-Identifier: Apache-2.0
// bar / barrier, barrier.cluster, fences. Source: PTX ISA 9.0, "Parallel Synchronization and
// Communication Instructions".
#include "exec/barrier_ops.hpp"

#include "exec/decoder.hpp"
#include "exec/lanes.hpp"

namespace vgpu::exec {

Step warp_sync(Warp& w, const Instr& i, uint32_t lanes);  // warp_ops.cpp

uint32_t barrier_expectation(const Cta& cta, const CtaBarrier& barrier) {
  return barrier.expected ? barrier.expected : cta.live_warps * kLanes;
}

namespace {

/// Completes the barrier if enough threads have arrived.
void complete_if_full(Cta& cta, CtaBarrier& barrier) {
  if (!barrier.open || barrier.arrived < barrier_expectation(cta, barrier)) return;
  barrier.arrived = 0;
  barrier.open = false;
  ++barrier.generation;
  barrier.result_popc = barrier.popc;
  barrier.result_lanes = barrier.lanes;
  barrier.popc = barrier.lanes = 0;
  wake(*cta.cluster);
}

void complete_cluster_if_full(Cluster& cluster) {
  if (cluster.barrier_arrived == 0 || cluster.barrier_arrived < cluster.live_warps) return;
  cluster.barrier_arrived = 0;
  ++cluster.barrier_generation;
  wake(cluster);
}

}  // namespace

void leave_barriers(Warp& w) {
  for (auto& barrier : w.cta->barriers) complete_if_full(*w.cta, barrier);
  // A warp that arrived and then exited has been counted: take it out with the live ones.
  if (w.cluster_counted && w.cluster_generation == w.cluster->barrier_generation) {
    --w.cluster->barrier_arrived;
  }
  complete_cluster_if_full(*w.cluster);
}

namespace {

enum Mode : uint32_t { kSync, kArrive, kRedPopc, kRedAnd, kRedOr };
constexpr uint32_t kAligned = 8;  // flag in Instr::x

void finish(Warp& w, const Instr& i, uint32_t lanes, const CtaBarrier& barrier) {
  switch (i.x & 7) {
    case kRedPopc:
      write_lanes<uint32_t>(w, i.d, lanes, [&](uint32_t) { return barrier.result_popc; });
      break;
    case kRedAnd:
      set_predicate(w, i.d, lanes, barrier.result_popc == barrier.result_lanes ? kAllLanes : 0);
      break;
    case kRedOr:
      set_predicate(w, i.d, lanes, barrier.result_popc ? kAllLanes : 0);
      break;
    default:
      break;
  }
}

Step cta_barrier(Warp& w, const Instr& i, uint32_t lanes) {
  LaneGroup& group = *w.group;
  Cta& cta = *w.cta;
  uint32_t number = w.lanes<uint32_t>(i.a)[first_lane(lanes)];
  if (number > 15) fault(kIllegalInstruction, "barrier %u: a CTA has barriers 0 to 15", number);
  CtaBarrier& barrier = cta.barriers[number];
  auto* observer = w.cluster->observer;

  if (group.token == 0) {
    // NOTE: Barriers count whole warps (PTX ISA, barrier): the aligned form needs all live lanes at
    // this instruction, the other one collects them.
    if (i.x & kAligned) {
      if (!converged(w, lanes, kAllLanes)) return wait_for_lanes(w);
    }
    uint32_t expected = i.y ? w.lanes<uint32_t>(i.b)[first_lane(lanes)] : 0;
    if (i.y && (expected == 0 || expected % kLanes || expected > 1024)) {
      fault(kIllegalInstruction,
            "barrier %u with a thread count of %u: it must be a multiple of 32 up to 1024", number,
            expected);
    }
    // NOTE: with and without a count are two things even where the numbers agree: the H200 raises
    // an illegal instruction (probe, "barrier with and without a thread count").
    auto text = [&](uint32_t count) {
      return count ? format("%u threads", count)
                   : format("all %u threads of the CTA (no thread count)", cta.live_warps * kLanes);
    };
    if (barrier.open && barrier.expected != expected) {
      fault(kIllegalInstruction, "barrier %u: this warp expects %s, an earlier one %s", number,
            text(expected).c_str(), text(barrier.expected).c_str());
    }
    barrier.open = true;
    barrier.expected = expected;
    if (barrier.warp_lanes.size() < cta.warps.size()) barrier.warp_lanes.resize(cta.warps.size());
    uint32_t& arrived = barrier.warp_lanes[w.id];
    arrived |= lanes;
    if ((i.x & 7) >= kRedPopc) {
      uint32_t votes = (w.predicates[i.c] ^ static_cast<uint32_t>(i.imm)) & lanes;
      barrier.popc += static_cast<uint32_t>(std::popcount(votes));
      barrier.lanes += static_cast<uint32_t>(std::popcount(lanes));
    }
    if (observer) observer->barrier_arrive(agent_of(w, lanes), number);
    uint32_t generation = barrier.generation;
    if ((arrived & w.live) == w.live) {
      arrived = 0;
      barrier.arrived += kLanes;
      wake(*w.cluster);
      complete_if_full(cta, barrier);
    }
    if ((i.x & 7) == kArrive) return Step::next;
    if (barrier.generation != generation) {
      if (observer) observer->barrier_pass(agent_of(w, lanes), number);
      finish(w, i, lanes, barrier);
      return Step::next;
    }
    group.token = generation + 1;
  } else if (barrier.generation + 1 != group.token) {
    group.token = 0;
    if (observer) observer->barrier_pass(agent_of(w, lanes), number);
    finish(w, i, lanes, barrier);
    return Step::next;
  }
  return block(w, "bar.sync", number);
}

bool decode_cta_barrier(Decoder& d, bool aligned) {
  d.take("cta");
  int mode = d.take_one({"sync", "arrive", "red"});
  if (mode < 0) return false;
  aligned |= d.take("aligned");
  d.out.handler = cta_barrier;
  d.out.x = static_cast<uint32_t>(mode) | (aligned ? kAligned : 0);
  unsigned at = 0;
  if (mode == 2) {
    int op = d.take_one({"popc", "and", "or"});
    if (op < 0 || !d.take(op == 0 ? "u32" : "pred")) return false;
    d.out.x = (kRedPopc + static_cast<uint32_t>(op)) | (aligned ? kAligned : 0);
    d.out.d = op == 0 ? d.dest(0, 4) : d.dest_predicate(0);
    unsigned last = d.count() - 1;
    Ref vote = d.source_predicate(last);
    d.out.c = vote.at;
    d.out.imm = vote.negated ? kAllLanes : 0;
    at = 1;
    d.out.a = d.source(1, 4);
    d.out.y = last == 3;
    if (d.out.y) d.out.b = d.source(2, 4);
    return d.count() >= 3;
  }
  if (d.count() == 0) return false;
  d.out.a = d.source(at, 4);
  d.out.y = d.count() > 1;
  if (d.out.y) d.out.b = d.source(at + 1, 4);
  return mode == 0 || d.out.y;
}

bool decode_bar(Decoder& d) {
  if (d.take("warp")) {
    if (!d.take("sync")) return false;
    d.out.a = d.source(0, 4);
    d.out.handler = warp_sync;
    return true;
  }
  // NOTE: bar.sync is barrier.cta.sync.aligned (PTX ISA, bar).
  return decode_cta_barrier(d, true);
}

// ------------------------------------------------------------------ barrier.cluster

Step cluster_arrive(Warp& w, const Instr& i, uint32_t lanes) {  // x: aligned, y: release
  Cluster& cluster = *w.cluster;
  if (i.x && !converged(w, lanes, kAllLanes)) return wait_for_lanes(w);
  if (w.cluster_arrived && w.cluster_generation == cluster.barrier_generation &&
      (w.cluster_arrived & lanes)) {
    fault(kLaunchFailure,
          "barrier.cluster.arrive: lanes %#x arrive twice without a barrier.cluster.wait between",
          w.cluster_arrived & lanes);
  }
  if (w.cluster_generation != cluster.barrier_generation) {
    w.cluster_arrived = 0;
    w.cluster_counted = false;
  }
  w.cluster_generation = cluster.barrier_generation;
  w.cluster_arrived |= lanes;
  if (cluster.observer) cluster.observer->cluster_arrive(agent_of(w, lanes), i.y != 0);
  if ((w.cluster_arrived & w.live) == w.live) {
    w.cluster_counted = true;
    ++cluster.barrier_arrived;
    wake(cluster);
    complete_cluster_if_full(cluster);
  }
  return Step::next;
}

Step cluster_wait(Warp& w, const Instr& i, uint32_t lanes) {
  Cluster& cluster = *w.cluster;
  if (i.x && !converged(w, lanes, kAllLanes)) return wait_for_lanes(w);
  if ((w.cluster_arrived & lanes) != lanes) {
    fault(kLaunchFailure, "barrier.cluster.wait by lanes %#x that have not arrived",
          lanes & ~w.cluster_arrived);
  }
  if (w.cluster_generation == cluster.barrier_generation) return block(w, "barrier.cluster.wait");
  w.cluster_arrived &= ~lanes;
  if (cluster.observer) cluster.observer->cluster_pass(agent_of(w, lanes), i.y != 0);
  return Step::next;
}

bool decode_barrier(Decoder& d) {
  if (!d.take("cluster")) return decode_cta_barrier(d, false);
  int mode = d.take_one({"arrive", "wait"});
  bool relaxed = d.take("relaxed");
  if (mode == 0) d.take("release");
  if (mode == 1) d.take("acquire");
  d.out.x = d.take("aligned");
  d.out.y = !relaxed;
  d.out.handler = mode == 0 ? cluster_arrive : cluster_wait;
  return mode == 0 || (mode == 1 && !relaxed);
}

// ------------------------------------------------------------------ fences
// The interpreter runs one instruction at a time: fences only matter to the checker.

Step fence(Warp& w, const Instr& i, uint32_t lanes) {
  if (auto* observer = w.cluster->observer) {
    observer->fence(agent_of(w, lanes), static_cast<FenceKind>(i.x), static_cast<Order>(i.y & 0xff),
                    static_cast<Scope>(i.y >> 8));
  }
  return Step::next;
}

bool decode_fence(Decoder& d) {
  auto set = [&](FenceKind kind, Order order, Scope scope) {
    d.out.x = static_cast<uint32_t>(kind);
    d.out.y = static_cast<uint32_t>(order) | static_cast<uint32_t>(scope) << 8;
    d.out.handler = fence;
    return true;
  };
  auto take_scope = [&](Scope& scope) {
    int index = d.take_one({"cta", "cluster", "gpu", "sys"});
    scope = static_cast<Scope>(index < 0 ? 0 : index);
    return index >= 0;
  };
  Scope scope = Scope::cta;
  if (d.opcode() == "membar") {
    if (d.take("proxy")) {
      if (d.take("async") || d.take_one({"async.global"}) >= 0) {
        return set(FenceKind::proxy_async, Order::acq_rel, Scope::gpu);
      }
      return d.take("alias") && set(FenceKind::proxy_alias, Order::acq_rel, Scope::gpu);
    }
    int level = d.take_one({"cta", "gl", "sys"});
    static constexpr Scope kScopes[] = {Scope::cta, Scope::gpu, Scope::sys};
    return level >= 0 && set(FenceKind::memory, Order::acq_rel, kScopes[level]);
  }
  if (d.take("mbarrier_init")) {
    d.take("release");
    return d.take("cluster") && set(FenceKind::mbarrier_init, Order::release, Scope::cluster);
  }
  if (d.take("proxy")) {
    if (d.take("alias")) return set(FenceKind::proxy_alias, Order::acq_rel, Scope::gpu);
    if (d.take("async")) {
      d.take_one({"global", "shared::cta", "shared::cluster"});
      return set(FenceKind::proxy_async, Order::acq_rel, Scope::cluster);
    }
    if (d.take("tensormap::generic")) {
      int order = d.take_one({"release", "acquire"});
      if (order < 0 || !take_scope(scope)) return false;
      if (order == 1) d.make_refs(8);
      return set(FenceKind::proxy_tensormap, order ? Order::acquire : Order::release, scope);
    }
    if (d.take("async::generic")) {
      int order = d.take_one({"release", "acquire"});
      d.take_one({"sync_restrict::shared::cta", "sync_restrict::shared::cluster"});
      return order >= 0 && d.take("cluster") &&
             set(FenceKind::proxy_async, order ? Order::acquire : Order::release, Scope::cluster);
    }
    return false;
  }
  int order = d.take_one({"sc", "acq_rel", "acquire", "release"});
  d.take_one({"sync_restrict::shared::cta", "sync_restrict::shared::cluster"});
  static constexpr Order kOrders[] = {Order::acq_rel, Order::acq_rel, Order::acquire,
                                      Order::release};
  if (!take_scope(scope)) return false;
  return set(FenceKind::memory, order < 0 ? Order::acq_rel : kOrders[order], scope);
}

}  // namespace

const OpcodeList& barrier_opcodes() {
  static const OpcodeList list{
      {"bar", decode_bar},
      {"barrier", decode_barrier},
      {"fence", decode_fence},
      {"membar", decode_fence},
  };
  return list;
}

}  // namespace vgpu::exec
