// SPDX-License-Identifier: Apache-2.0
#include "exec/mbarrier.hpp"

#include <utility>

#include "exec/decoder.hpp"
#include "exec/lanes.hpp"
#include "exec/memory_access.hpp"
#include "exec/memory_ops.hpp"

namespace vgpu::exec {

namespace {
constexpr uint32_t kCountBits = 20;
constexpr uint64_t kCountMask = (1u << kCountBits) - 1;
constexpr int32_t kMaxTx = (1 << 20) - 1;
}  // namespace

// Bits 0-19 pending, 20-39 expected, 40-60 tx (two's complement), 61 phase, 62-63 tag 2.
uint64_t Mbarrier::bits() const {
  return pending | uint64_t{expected} << 20 | (static_cast<uint64_t>(tx) & 0x1fffff) << 40 |
         uint64_t{phase} << 61 | uint64_t{2} << 62;
}
bool Mbarrier::is_object(uint64_t bits) {
  return bits >> 62 == 2;
}
Mbarrier Mbarrier::from_bits(uint64_t bits) {
  return {static_cast<uint32_t>(bits & kCountMask), static_cast<uint32_t>(bits >> 20 & kCountMask),
          static_cast<int32_t>(static_cast<int64_t>(bits << 3) >> 43),
          static_cast<uint32_t>(bits >> 61 & 1)};
}

namespace {

uint8_t* object_bytes(Cta& cta, uint32_t offset) {
  if (offset & 7) {
    fault(kMisalignedAddress, "mbarrier at shared offset %u: it must be 8-byte aligned",
          offset - kSharedReserved);
  }
  return shared_range(cta, offset, 8, "mbarrier");
}

void store(Cta& cta, uint32_t offset, const Mbarrier& barrier) {
  uint64_t bits = barrier.bits();
  std::memcpy(object_bytes(cta, offset), &bits, 8);
}

/// Completes the phase when nothing is left to come.
bool settle(Mbarrier& barrier) {
  if (barrier.pending || barrier.tx) return false;
  barrier.pending = barrier.expected;
  barrier.phase ^= 1;
  return true;
}

/// A step of a phase is activity; only its end can end a wait.
void signal(Cta& cta, uint32_t offset, bool completed) {
  Cluster& cluster = *cta.cluster;
  ++cluster.activity;
  if (!completed) return;
  ++cluster.epoch;
  ++cta.phases[offset];
}

/// Remembers since when the running group waits, for the deadlock report.
void begin_wait(Warp& w, const Cta& cta, uint32_t address, uint32_t parity) {
  const uint64_t what = address | uint64_t{parity} << 32;
  if (w.group->polls == what) return;
  w.group->polls = what;
  const auto found = cta.phases.find(address & kSharedOffsetMask);
  w.group->phases_before = found == cta.phases.end() ? 0 : found->second;
}

BarrierState state_of(const Mbarrier& barrier, bool completed) {
  return {barrier.phase, barrier.pending, barrier.expected, barrier.tx, completed};
}

}  // namespace

Mbarrier load_mbarrier(Cta& cta, uint32_t offset) {
  uint64_t bits;
  std::memcpy(&bits, object_bytes(cta, offset), 8);
  if (!Mbarrier::is_object(bits)) {
    fault(kLaunchFailure,
          "no mbarrier at shared offset %u of CTA rank %u (the 8 bytes hold 0x%016llx): it was "
          "never initialised, was invalidated, or was overwritten",
          offset - kSharedReserved, cta.rank, static_cast<unsigned long long>(bits));
  }
  return Mbarrier::from_bits(bits);
}

namespace {

/// Adds to the transaction count; the barrier after it, and whether that completed a phase.
std::pair<Mbarrier, bool> add_transactions(Cta& cta, uint32_t offset, int64_t bytes) {
  Mbarrier barrier = load_mbarrier(cta, offset);
  const int64_t tx = barrier.tx + bytes;
  if (tx > kMaxTx || tx < -kMaxTx) {
    fault(kLaunchFailure,
          "mbarrier at shared offset %u: transaction count %lld is past its limit of %s",
          offset - kSharedReserved, static_cast<long long>(tx),
          tx > 0 ? "2^20 - 1" : "-(2^20 - 1)");
  }
  barrier.tx = static_cast<int32_t>(tx);
  // NOTE: expect-tx alone never completes a phase with arrivals pending; with none it may, when
  // the bytes came first.
  const bool completed = settle(barrier);
  store(cta, offset, barrier);
  return {barrier, completed};
}

}  // namespace

Mbarrier mbarrier_arrive(Cta& cta, uint32_t offset, uint32_t count, bool drop, const Agent& agent,
                         const AsyncOp* op, Order order, Scope scope) {
  Mbarrier barrier = load_mbarrier(cta, offset), before = barrier;
  if (count > barrier.pending) {
    fault(kLaunchFailure,
          "mbarrier at shared offset %u of CTA rank %u: %u arrivals, but only %u of %u are pending "
          "in this phase",
          offset - kSharedReserved, cta.rank, count, barrier.pending, barrier.expected);
  }
  if (drop) {
    if (barrier.expected < count) {
      fault(kLaunchFailure, "mbarrier at shared offset %u: arrive_drop below a count of 0",
            offset - kSharedReserved);
    }
    barrier.expected -= count;
  }
  barrier.pending -= count;
  bool completed = settle(barrier);
  store(cta, offset, barrier);
  if (auto* observer = cta.cluster->observer) {
    observer->mbarrier_arrive(agent, op, {cta.rank, offset}, count, order, scope,
                              state_of(barrier, completed));
  }
  signal(cta, offset, completed);
  return before;
}

void mbarrier_expect(Cta& cta, uint32_t offset, uint32_t bytes, const Agent& agent) {
  const auto [barrier, completed] = add_transactions(cta, offset, bytes);
  if (auto* observer = cta.cluster->observer) {
    observer->mbarrier_expect_tx(agent, {cta.rank, offset}, bytes, state_of(barrier, completed));
  }
  signal(cta, offset, completed);
}

void mbarrier_complete(Cta& cta, uint32_t offset, uint32_t bytes, const Agent& agent,
                       const AsyncOp* op) {
  const auto [barrier, completed] = add_transactions(cta, offset, -int64_t{bytes});
  if (auto* observer = cta.cluster->observer) {
    observer->mbarrier_complete_tx(agent, op, {cta.rank, offset}, bytes,
                                   state_of(barrier, completed));
  }
  signal(cta, offset, completed);
}

void mbarrier_raise(Cta& cta, uint32_t offset) {
  Mbarrier barrier = load_mbarrier(cta, offset);
  if (barrier.pending == kCountMask) {
    fault(kLaunchFailure, "mbarrier at shared offset %u: pending count past 2^20 - 1",
          offset - kSharedReserved);
  }
  ++barrier.pending;
  store(cta, offset, barrier);
}

// ------------------------------------------------------------------ instructions

uint32_t mbarrier_address(uint64_t address) {
  if (address >> 32 && address >> 32 != kSharedWindow >> 32) {
    fault(kInvalidAddressSpace, "mbarrier at generic address 0x%llx, which is not shared memory",
          static_cast<unsigned long long>(address));
  }
  return static_cast<uint32_t>(address);
}

namespace {

/// The CTA and window offset of a barrier operand in one lane. `remote`: .shared::cluster.
Cta& barrier_of(Warp& w, const Ref& address, uint32_t lane, bool remote, uint32_t& offset) {
  uint32_t a = mbarrier_address(read_address(w, address, lane));
  offset = a & kSharedOffsetMask;
  Cta& cta = shared_cta(*w.cluster, a);
  if (!remote && &cta != w.cta) {
    fault(kIllegalAddress,
          "mbarrier at address %#x lies in CTA rank %u, the instruction works on its own CTA "
          "(rank %u) only",
          a, cta.rank, w.cta->rank);
  }
  if (cta.live_warps == 0) {
    fault(kIllegalAddress, "mbarrier in the shared memory of CTA rank %u, which has exited",
          cta.rank);
  }
  return cta;
}

struct BarrierOp {
  bool remote = false;
  bool parity = false, is_try = false;
  bool expect = false, drop = false, no_complete = false, has_count = false;
  Order order = Order::release;
  Scope scope = Scope::cta;
  unsigned state = 0, address = 0, value = 0;  ///< operand numbers
  bool has_state = false;
};

const BarrierOp& op_of(const Instr& i) {
  return *static_cast<const BarrierOp*>(i.extra);
}

Step init(Warp& w, const Instr& i, uint32_t lanes) {
  for_lanes(lanes, [&](uint32_t l) {
    uint32_t offset;
    Cta& cta = barrier_of(w, i[0], l, false, offset);
    auto count = static_cast<uint32_t>(read_lane(w, i[1], l));
    if (count == 0 || count > kCountMask) {
      fault(kLaunchFailure, "mbarrier.init with a count of %u: legal are 1 to 2^20 - 1", count);
    }
    store(cta, offset, {count, count, 0, 0});
    if (w.cluster->observer) {
      w.cluster->observer->mbarrier_init(agent_of(w, 1u << l), {cta.rank, offset}, count);
    }
  });
  wake(*w.cluster);
  return Step::next;
}

Step invalidate(Warp& w, const Instr& i, uint32_t lanes) {
  for_lanes(lanes, [&](uint32_t l) {
    uint32_t offset;
    Cta& cta = barrier_of(w, i[0], l, false, offset);
    uint64_t bits;
    std::memcpy(&bits, object_bytes(cta, offset), 8);
    // NOTE: hardware clears the bytes, whatever they are; PTX leaves a second mbarrier.inval
    // undefined, and the checks say so.
    if (bits != 0) load_mbarrier(cta, offset);
    std::memset(object_bytes(cta, offset), 0, 8);
    if (w.cluster->observer) {
      w.cluster->observer->mbarrier_inval(agent_of(w, 1u << l), {cta.rank, offset});
    }
  });
  wake(*w.cluster);
  return Step::next;
}

/// Lanes of `lanes` whose address and value (`value_of`) are those of the first.
template <typename F>
uint32_t lanes_alike(const Warp& w, const Ref& address, uint32_t lanes, F&& value_of) {
  const uint32_t first = first_lane(lanes);
  if (lanes == 1u << first) return lanes;
  const uint64_t where = read_address(w, address, first), value = value_of(first);
  uint32_t alike = 0;
  for_lanes(lanes, [&](uint32_t l) {
    const bool same = read_address(w, address, l) == where && value_of(l) == value;
    alike |= uint32_t{same} << l;
  });
  return alike;
}

Step arrive(Warp& w, const Instr& i, uint32_t lanes) {
  auto& op = op_of(i);
  auto count_of = [&](uint32_t l) { return op.has_count ? read_lane(w, i[op.value], l) : 1; };
  // Lanes that arrive at one mbarrier are one arrival with a larger count, where nothing tells them
  // apart: neither a state that they get nor a phase that ends between them.
  if (!op.expect && !op.no_complete && (!op.has_state || i[op.state].kind == Ref::Kind::sink) &&
      lanes_alike(w, i[op.address], lanes, count_of) == lanes) {
    const uint32_t l = first_lane(lanes);
    uint32_t offset;
    Cta& cta = barrier_of(w, i[op.address], l, op.remote, offset);
    const uint64_t count = static_cast<uint32_t>(count_of(l)) * uint64_t(std::popcount(lanes));
    if (count > 0 && count <= load_mbarrier(cta, offset).pending) {
      mbarrier_arrive(cta, offset, static_cast<uint32_t>(count), op.drop, agent_of(w, lanes),
                      nullptr, op.order, op.scope);
      return Step::next;
    }
  }
  for_lanes(lanes, [&](uint32_t l) {
    uint32_t offset;
    Cta& cta = barrier_of(w, i[op.address], l, op.remote, offset);
    Agent agent = agent_of(w, 1u << l);
    uint32_t count = 1;
    if (op.expect) {
      mbarrier_expect(cta, offset, static_cast<uint32_t>(read_lane(w, i[op.value], l)), agent);
    } else if (op.has_count) {
      count = static_cast<uint32_t>(read_lane(w, i[op.value], l));
      if (count == 0) fault(kLaunchFailure, "mbarrier.arrive with a count of 0");
    }
    if (op.no_complete && load_mbarrier(cta, offset).pending == count) {
      fault(kLaunchFailure, "mbarrier.arrive.noComplete at shared offset %u completes the phase",
            offset - kSharedReserved);
    }
    Mbarrier before =
        mbarrier_arrive(cta, offset, count, op.drop, agent, nullptr, op.order, op.scope);
    if (op.has_state) write_lane(w, i[op.state], l, before.bits());
  });
  return Step::next;
}

Step transaction(Warp& w, const Instr& i, uint32_t lanes) {  // x: complete_tx
  auto& op = op_of(i);
  for_lanes(lanes, [&](uint32_t l) {
    uint32_t offset;
    Cta& cta = barrier_of(w, i[0], l, op.remote, offset);
    auto bytes = static_cast<uint32_t>(read_lane(w, i[1], l));
    if (i.x) {
      mbarrier_complete(cta, offset, bytes, agent_of(w, 1u << l), nullptr);
    } else {
      mbarrier_expect(cta, offset, bytes, agent_of(w, 1u << l));
    }
  });
  return Step::next;
}

/// test_wait, try_wait: the phase asked for is complete when the current one has another parity.
Step wait(Warp& w, const Instr& i, uint32_t lanes) {
  auto& op = op_of(i);
  auto parity_of = [&](uint32_t l) {
    const uint64_t value = read_lane(w, i[2], l);
    return op.parity ? static_cast<uint32_t>(value & 1) : Mbarrier::from_bits(value).phase;
  };
  uint32_t complete = 0;
  const uint8_t* phase_byte = nullptr;  // when all lanes wait for one mbarrier
  for (uint32_t rest = lanes; rest;) {
    const uint32_t alike = lanes_alike(w, i[1], rest, parity_of);
    const uint32_t l = first_lane(rest), parity = parity_of(l);
    rest &= ~alike;
    uint32_t offset;
    Cta& cta = barrier_of(w, i[1], l, false, offset);
    if (alike == lanes) phase_byte = cta.shared.data() + offset + kPhaseByte;
    if (load_mbarrier(cta, offset).phase == parity) continue;
    complete |= alike;
    if (w.cluster->observer) {
      w.cluster->observer->mbarrier_wait(agent_of(w, alike), {cta.rank, offset}, parity, op.order,
                                         op.scope);
    }
  }
  const uint32_t l = first_lane(lanes);
  if (!complete) {
    const uint32_t address = mbarrier_address(read_address(w, i[1], l));
    begin_wait(w, shared_cta(*w.cluster, address), address, parity_of(l));
  }
  if (!complete && op.is_try && !w.group->timed_out) {
    block(w, "mbarrier.try_wait", mbarrier_address(read_address(w, i[1], l)), parity_of(l));
    if (phase_byte) {
      w.group->phase_byte = phase_byte;
      w.group->phase_bits = *phase_byte & kPhaseBits;
    }
    return Step::block;
  }
  if (!complete) {
    // Remember what the poll looked at, for the deadlock report.
    w.group->why = op.is_try ? "mbarrier.try_wait" : "mbarrier.test_wait";
    w.group->detail = mbarrier_address(read_address(w, i[1], l));
    w.group->detail2 = parity_of(l);
  }
  w.group->timed_out = false;
  if (complete) {
    w.group->why = nullptr;
    w.group->polls = UINT64_MAX;
  }
  if (i[0].kind == Ref::Kind::pred) set_predicate(w, i[0].at, lanes, complete);
  return complete ? Step::next : Step::yield;
}

Step pending_count(Warp& w, const Instr& i, uint32_t lanes) {
  for_lanes(lanes, [&](uint32_t l) {
    write_lane(w, i[0], l, Mbarrier::from_bits(read_lane(w, i[1], l)).pending);
  });
  return Step::next;
}

/// .sem and .scope of mbarrier operations.
void take_semantics(Decoder& d, BarrierOp& op, Order standard) {
  int order = d.take_one({"release", "acquire", "relaxed"});
  op.order = order < 0    ? standard
             : order == 0 ? Order::release
             : order == 1 ? Order::acquire
                          : Order::relaxed;
  int scope = d.take_one({"cta", "cluster"});
  op.scope = scope == 1 ? Scope::cluster : Scope::cta;
}

/// The space: true when it may be another CTA's.
bool take_barrier_space(Decoder& d) {
  int space = d.take_one({"shared", "shared::cta", "shared::cluster"});
  return space == 2 || space < 0;
}

bool decode_mbarrier(Decoder& d) {
  auto& op = d.extra<BarrierOp>();
  int kind = d.take_one({"init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx",
                         "test_wait", "try_wait", "pending_count"});
  if (kind < 0) return false;
  switch (kind) {
    case 0:
    case 1:
      take_barrier_space(d);
      d.out.handler = kind == 0 ? init : invalidate;
      break;
    case 2:
    case 3: {
      op.expect = d.take("expect_tx");
      op.no_complete = d.take("noComplete");
      op.drop = kind == 3;
      take_semantics(d, op, Order::release);
      op.remote = take_barrier_space(d);
      op.has_state = d.operand(0).kind != ptx::Operand::Kind::address;
      op.address = op.has_state;
      op.value = op.address + 1;
      op.has_count = d.count() > op.value;
      if (op.expect && !op.has_count) return false;
      d.out.handler = arrive;
      break;
    }
    case 4:
    case 5:
      take_semantics(d, op, Order::relaxed);
      op.remote = take_barrier_space(d);
      d.out.x = kind == 5;
      d.out.handler = transaction;
      break;
    case 6:
    case 7:
      op.is_try = kind == 7;
      op.parity = d.take("parity");
      take_semantics(d, op, Order::acquire);
      take_barrier_space(d);
      d.out.handler = wait;
      break;
    default:
      d.out.handler = pending_count;
  }
  if (!d.take("b64")) return false;
  // States are 64-bit, everything else (counts, bytes, parities, time hints) 32-bit.
  bool state_operand = (kind == 6 || kind == 7) && !op.parity;
  d.make_refs(state_operand ? 8 : 4);
  auto needs_address = [&](unsigned k) {
    if (d.operand(k).kind != ptx::Operand::Kind::address) {
      throw BadOperand{"an mbarrier address is needed"};
    }
  };
  if (kind <= 1 || kind == 4 || kind == 5) needs_address(0);
  if (kind == 0 || kind == 4 || kind == 5) d.operand(1);
  if (kind == 2 || kind == 3) needs_address(op.address);
  if (kind == 6 || kind == 7) {
    needs_address(1);
    d.operand(2);
    d.dest_predicate(0);
  }
  if (kind == 8) d.dest(0, 4), d.source(1, 8);
  return true;
}

}  // namespace

const OpcodeList& mbarrier_opcodes() {
  static const OpcodeList list{{"mbarrier", decode_mbarrier}};
  return list;
}

}  // namespace vgpu::exec
