// SPDX-License-Identifier: Apache-2.0
// cp.async, cp.async.bulk, cp.reduce.async.bulk, st.async, red.async, st.bulk and their groups.
// Source: PTX ISA 9.0, "Data Movement and Conversion Instructions: Asynchronous copy".
#include "exec/copy_ops.hpp"

#include "exec/lanes.hpp"
#include "exec/memory_ops.hpp"
#include "tma/traverse.hpp"

namespace vgpu::exec {

using ptx::Type;

uint32_t shared_operand(uint64_t address, const char* what) {
  if (address >> 32 && address >> 32 != kSharedWindow >> 32) {
    fault(kInvalidAddressSpace, "%s: generic address 0x%llx is not shared memory", what,
          static_cast<unsigned long long>(address));
  }
  return static_cast<uint32_t>(address);
}

void notify_async(Cluster& cluster, const AsyncOp& op, Memory memory, Access access, uint32_t cta,
                  uint64_t address, uint64_t bytes, Proxy proxy, uint8_t lane) {
  if (!cluster.observer) return;
  AsyncAccess event;
  event.memory = memory;
  event.access = access;
  event.proxy = proxy;
  event.cta = cta;
  event.address = address;
  event.bytes = bytes;
  event.lane = lane;
  cluster.observer->async_access(op, event);
}

std::vector<CopyTarget> copy_targets(Warp& w, uint32_t destination, uint32_t barrier,
                                     bool multicast, uint32_t mask, bool pair) {
  Cluster& cluster = *w.cluster;
  uint32_t offset = destination & kSharedOffsetMask, barrier_offset = barrier & kSharedOffsetMask;
  uint32_t barrier_rank = barrier >> kSharedRankShift;
  std::vector<CopyTarget> targets;
  auto add = [&](Cta& cta, Cta& barrier_cta) {
    for (Cta* each : {&cta, &barrier_cta}) {
      if (each->live_warps == 0) {
        fault(kIllegalAddress,
              "asynchronous copy to the shared memory of CTA rank %u, which has "
              "exited",
              each->rank);
      }
    }
    targets.push_back({&cta, offset, &barrier_cta, barrier_offset});
  };
  if (!multicast) {
    Cta& cta = shared_cta(cluster, destination);
    Cta& barrier_cta = shared_cta(cluster, barrier);
    // NOTE: The barrier must be in the destination's CTA; with cta_group::2 it may be in the other
    // CTA of the pair (PTX ISA, cp.async.bulk.tensor, .cta_group).
    bool legal = &cta == &barrier_cta || (pair && (cta.rank ^ 1) == barrier_cta.rank);
    if (!legal) {
      fault(kIllegalInstruction,
            "asynchronous copy to CTA rank %u with an mbarrier in CTA rank %u: it must be in the "
            "same CTA%s",
            cta.rank, barrier_cta.rank, pair ? " or the other one of its pair" : "");
    }
    add(cta, barrier_cta);
    return targets;
  }
  if (mask == 0 || mask >> cluster.ctas.size()) {
    fault(kIllegalInstruction, "multicast with CTA mask %#x in a cluster of %zu", mask,
          cluster.ctas.size());
  }
  for_lanes(mask, [&](uint32_t rank) {
    uint32_t barrier_of_rank = pair ? (rank & ~1u) | (barrier_rank & 1) : rank;
    if (barrier_of_rank >= cluster.ctas.size()) {
      fault(kIllegalInstruction, "multicast mbarrier in CTA rank %u of a cluster of %zu",
            barrier_of_rank, cluster.ctas.size());
    }
    add(*cluster.ctas[rank], *cluster.ctas[barrier_of_rank]);
  });
  return targets;
}

namespace {

// ------------------------------------------------------------------ cp.async (generic proxy)

struct ThreadCopy {
  uint32_t lane;
  uint64_t group;
  uint8_t* to;
  uint32_t to_offset;
  uint64_t from;
  uint32_t bytes;
};

/// x: bytes, y: 0 all, 1 source size given, 2 ignore-src predicate.
Step copy_async(Warp& w, const Instr& i, uint32_t lanes) {
  uint64_t to[kLanes], from[kLanes];
  read_addresses(w, i[0], to);
  read_addresses(w, i[1], from);
  auto copies = std::make_shared<std::vector<ThreadCopy>>();
  for_lanes(lanes, [&](uint32_t l) {
    uint32_t destination = shared_operand(to[l], "cp.async");
    if ((destination | from[l]) & (i.x - 1)) {
      fault(kMisalignedAddress,
            "cp.async of %u bytes from 0x%llx to shared address %#x: misaligned", i.x,
            static_cast<unsigned long long>(from[l]), destination);
    }
    uint32_t size = i.x;
    if (i.y == 1) size = static_cast<uint32_t>(read_lane(w, i[3], l));
    if (i.y == 2 && read_lane(w, i[3], l)) size = 0;
    if (size > i.x) {
      fault(kIllegalInstruction, "cp.async with a source size of %u and a copy size of %u", size,
            i.x);
    }
    if (size) global_pointer(*w.cluster->worker, from[l], size, false);
    Cta& cta = shared_cta(*w.cluster, destination);
    uint32_t offset = destination & kSharedOffsetMask;
    copies->push_back({l, enter_group(w.cp_async, l), shared_range(cta, offset, i.x, "cp.async"),
                       offset, from[l], size});
  });
  AsyncTask task;
  task.op = make_async(w, lanes, AsyncKind::cp_async);
  task.op.bytes = uint64_t{i.x} * copies->size();
  Warp* warp = &w;
  uint32_t bytes = i.x;
  task.run = [=](const AsyncOp& op) {
    for (auto& copy : *copies) {
      if (warp->cluster->observer) {
        if (copy.bytes) {
          notify_async(*warp->cluster, op, Memory::global, Access::read, 0, copy.from, copy.bytes,
                       Proxy::generic);
        }
        notify_async(*warp->cluster, op, Memory::shared, Access::write, warp->cta->rank,
                     copy.to_offset, bytes, Proxy::generic, static_cast<uint8_t>(copy.lane));
      }
      std::memset(copy.to, 0, bytes);
      if (copy.bytes) std::memcpy(copy.to, reinterpret_cast<const void*>(copy.from), copy.bytes);
    }
  };
  task.signal = [=](const AsyncOp&) {
    for (auto& copy : *copies) leave_group(warp->cp_async, copy.lane, copy.group);
  };
  issue(*w.cluster, w.cluster->copies, std::move(task));
  return Step::next;
}

Step commit_copies(Warp& w, const Instr&, uint32_t lanes) {
  groups_of(w.cp_async);
  commit_group(w.cp_async, lanes);
  if (w.cluster->observer) {
    w.cluster->observer->group_commit(agent_of(w, lanes), GroupKind::cp_async);
  }
  return Step::next;
}

/// imm: groups that may be incomplete; x: wait_all.
Step wait_copies(Warp& w, const Instr& i, uint32_t lanes) {
  bool done = true;
  for_lanes(lanes, [&](uint32_t l) {
    done &= groups_done(w.cp_async, l, static_cast<uint64_t>(i.imm), i.x != 0);
  });
  if (!done) return block(w, "cp.async.wait_group", static_cast<uint64_t>(i.imm));
  if (ClusterObserver* observer = w.cluster->observer) {
    // wait_all is a commit_group and a wait_group of all.
    if (i.x) observer->group_commit(agent_of(w, lanes), GroupKind::cp_async);
    observer->group_wait(agent_of(w, lanes), GroupKind::cp_async, static_cast<uint32_t>(i.imm));
  }
  return Step::next;
}

/// cp.async.mbarrier.arrive: an arrival when the thread's earlier copies are complete.
Step arrive_after_copies(Warp& w, const Instr& i, uint32_t lanes) {  // x: noinc
  for_lanes(lanes, [&](uint32_t l) {
    uint32_t address = mbarrier_address(read_address(w, i[0], l));
    uint32_t offset = address & kSharedOffsetMask;
    Cta& cta = shared_cta(*w.cluster, address);
    load_mbarrier(cta, offset);
    if (!i.x) mbarrier_raise(cta, offset);
    // All copies so far: up to and including the open group's operations.
    auto& thread = groups_of(w.cp_async).threads[l];
    uint64_t last = thread.first + thread.pending.size() - 1;
    AsyncTask task;
    task.op = make_async(w, 1u << l, AsyncKind::cp_async);
    Warp* warp = &w;
    Cta* target = &cta;
    task.ready = [=] {
      auto& now = warp->cp_async->threads[l];
      for (size_t k = 0; k < now.pending.size() && now.first + k <= last; ++k) {
        if (now.pending[k]) return false;
      }
      return true;
    };
    task.signal = [=](const AsyncOp& op) {
      mbarrier_arrive(*target, offset, 1, false, op.issuer, &op, Order::release, Scope::cta);
    };
    issue(*w.cluster, w.cluster->copies, std::move(task));
  });
  return Step::next;
}

bool decode_copy_async(Decoder& d) {
  if (d.take("commit_group")) {
    d.out.handler = commit_copies;
    return true;
  }
  if (d.take("wait_all")) {
    d.out.x = 1;
    d.out.handler = wait_copies;
    return true;
  }
  if (d.take("wait_group")) {
    d.out.imm = d.immediate(0);
    d.out.handler = wait_copies;
    return d.out.imm >= 0;
  }
  if (d.take("mbarrier")) {
    if (!d.take("arrive")) return false;
    d.out.x = d.take("noinc");
    d.take_one({"shared", "shared::cta"});
    d.make_refs(8);
    d.out.handler = arrive_after_copies;
    return d.take("b64");
  }
  int cache = d.take_one({"ca", "cg"});
  if (d.take_one({"shared", "shared::cta"}) < 0 || !d.take("global")) return false;
  take_cache_hints(d);
  int64_t bytes = d.immediate(2);
  bool legal = cache == 1 ? bytes == 16 : bytes == 4 || bytes == 8 || bytes == 16;
  if (cache < 0 || !legal) return false;
  d.out.x = static_cast<uint32_t>(bytes);
  bool policy = d.has("L2::cache_hint");
  unsigned extra = d.count() - 3 - policy;
  if (extra > 1) return false;
  d.out.y = extra == 0 ? 0 : d.is_predicate(3) ? 2 : 1;
  if (policy && extra == 0) d.out.y = 0;
  d.make_refs(4);
  d.out.handler = copy_async;
  return true;
}

// ------------------------------------------------------------------ cp.async.bulk

struct BulkCopy {
  enum class From : uint8_t { global, shared } from = From::global;
  enum class To : uint8_t { shared, global } to = To::shared;
  bool multicast = false, reduces = false, bulk_group = false, byte_mask = false;
  tma::ReduceOp op = tma::ReduceOp::add;
  tma::ReduceType type = tma::ReduceType::u32;
  unsigned destination = 0, source = 1, size = 2, barrier = 3, mask = 4;
};

/// The size that is copied. NOTE: the H200 drops the bytes past the last multiple of 16 without a
/// fault (probe, "bulk copy bytes 8"); the barrier then misses them.
uint32_t check_bulk(const char* what, uint64_t to, uint64_t from, uint32_t bytes) {
  if ((to | from) & 15) {
    fault(kMisalignedAddress, "%s from 0x%llx to 0x%llx: both must be 16-byte aligned", what,
          static_cast<unsigned long long>(from), static_cast<unsigned long long>(to));
  }
  return bytes & ~15u;
}

Step bulk_copy(Warp& w, const Instr& i, uint32_t lanes) {
  auto& c = *static_cast<const BulkCopy*>(i.extra);
  Cluster& cluster = *w.cluster;
  const char* what = c.reduces ? "cp.reduce.async.bulk" : "cp.async.bulk";
  for_lanes(lanes, [&](uint32_t l) {
    uint64_t to = read_address(w, i[c.destination], l), from = read_address(w, i[c.source], l);
    uint32_t bytes = check_bulk(what, to, from, static_cast<uint32_t>(read_lane(w, i[c.size], l)));
    Warp* warp = &w;
    AsyncTask task;
    task.op = make_async(w, 1u << l, AsyncKind::bulk_load);
    task.op.bytes = bytes;
    cluster.worker->tma_bytes += bytes;
    if (c.to == BulkCopy::To::shared) {
      // To shared memory: completes on an mbarrier.
      uint32_t barrier = mbarrier_address(read_address(w, i[c.barrier], l));
      uint32_t mask = c.multicast ? static_cast<uint32_t>(read_lane(w, i[c.mask], l)) & 0xffff : 0;
      auto targets = copy_targets(w, shared_operand(to, what), barrier, c.multicast, mask, false);
      const uint8_t* source;
      uint32_t source_offset = 0;
      bool from_global = c.from == BulkCopy::From::global;
      if (from_global) {
        source = global_pointer(*cluster.worker, from, bytes, false);
      } else {
        uint32_t a = shared_operand(from, what);
        source_offset = a & kSharedOffsetMask;
        if (&shared_cta(cluster, a) != w.cta) {
          fault(kIllegalAddress, "%s: the shared source must be in the executing CTA", what);
        }
        source = shared_range(*w.cta, source_offset, bytes, what);
        task.op.kind = AsyncKind::bulk_shared;
      }
      for (auto& target : targets) shared_range(*target.cta, target.offset, bytes, what);
      auto op = c.op;
      auto type = c.type;
      bool reduces = c.reduces;
      task.run = [=](const AsyncOp& async) {
        for (auto& target : targets) {
          uint8_t* p = target.cta->shared.data() + target.offset;
          if (from_global) {
            notify_async(*warp->cluster, async, Memory::global, Access::read, 0, from, bytes);
          } else {
            notify_async(*warp->cluster, async, Memory::shared, Access::read, warp->cta->rank,
                         source_offset, bytes);
          }
          notify_async(*warp->cluster, async, Memory::shared,
                       reduces ? Access::atomic : Access::write, target.cta->rank, target.offset,
                       bytes);
          if (reduces) {
            tma::reduce(op, type, p, source, bytes);
          } else {
            std::memmove(p, source, bytes);
          }
        }
      };
      task.signal = [=](const AsyncOp& async) {
        for (auto& target : targets) {
          mbarrier_complete(*target.barrier_cta, target.barrier, bytes, async.issuer, &async);
        }
      };
      issue(cluster, cluster.copies, std::move(task));
      return;
    }
    // To global memory: reads its source first, completes in the thread's bulk group.
    uint32_t a = shared_operand(from, what);
    if (&shared_cta(cluster, a) != w.cta) {
      fault(kIllegalAddress, "%s: the shared source must be in the executing CTA", what);
    }
    uint32_t offset = a & kSharedOffsetMask;
    const uint8_t* source = shared_range(*w.cta, offset, bytes, what);
    uint8_t* target = global_pointer(*cluster.worker, to, bytes, true);
    uint64_t read_group = enter_group(w.bulk_reads, l), write_group = enter_group(w.bulk_writes, l);
    auto byte_mask = c.byte_mask ? static_cast<uint32_t>(read_lane(w, i[c.mask], l)) : 0xffffu;
    task.op.kind = c.reduces ? AsyncKind::bulk_reduce : AsyncKind::bulk_store;
    task.last = false;
    auto data = std::make_shared<std::vector<uint8_t>>();
    task.run = [=](const AsyncOp& async) {
      notify_async(*warp->cluster, async, Memory::shared, Access::read, warp->cta->rank, offset,
                   bytes);
      data->assign(source, source + bytes);
      if (warp->cluster->observer) warp->cluster->observer->async_read_done(async);
    };
    auto op = c.op;
    auto type = c.type;
    bool reduces = c.reduces;
    task.signal = [=](const AsyncOp& async) {
      leave_group(warp->bulk_reads, l, read_group);
      AsyncTask write;
      write.op = async;
      write.run = [=](const AsyncOp& again) {
        notify_async(*warp->cluster, again, Memory::global,
                     reduces ? Access::atomic : Access::write, 0, to, bytes);
        if (reduces) {
          tma::reduce(op, type, target, data->data(), bytes);
        } else if (byte_mask == 0xffffu) {
          std::copy_n(data->data(), bytes, target);
        } else {
          for (uint32_t k = 0; k < bytes; ++k) {
            if (byte_mask >> (k & 15) & 1) target[k] = (*data)[k];
          }
        }
      };
      write.signal = [=](const AsyncOp&) { leave_group(warp->bulk_writes, l, write_group); };
      issue_stage(*warp->cluster, warp->cluster->copies, std::move(write));
    };
    issue(cluster, cluster.copies, std::move(task));
  });
  return Step::next;
}

Step commit_bulk(Warp& w, const Instr&, uint32_t lanes) {
  groups_of(w.bulk_reads);
  groups_of(w.bulk_writes);
  commit_group(w.bulk_reads, lanes);
  commit_group(w.bulk_writes, lanes);
  if (w.cluster->observer) w.cluster->observer->group_commit(agent_of(w, lanes), GroupKind::bulk);
  return Step::next;
}

Step wait_bulk(Warp& w, const Instr& i, uint32_t lanes) {  // x: .read
  bool done = true;
  for_lanes(lanes, [&](uint32_t l) {
    done &= groups_done(i.x ? w.bulk_reads : w.bulk_writes, l, static_cast<uint64_t>(i.imm));
  });
  if (!done) {
    return block(w, i.x ? "cp.async.bulk.wait_group.read" : "cp.async.bulk.wait_group",
                 static_cast<uint64_t>(i.imm));
  }
  if (w.cluster->observer) {
    w.cluster->observer->group_wait(agent_of(w, lanes),
                                    i.x ? GroupKind::bulk_read : GroupKind::bulk,
                                    static_cast<uint32_t>(i.imm));
  }
  return Step::next;
}

bool take_reduction(Decoder& d, tma::ReduceOp& op, tma::ReduceType& type) {
  int index = d.take_one({"add", "min", "max", "inc", "dec", "and", "or", "xor"});
  if (index < 0) return false;
  op = static_cast<tma::ReduceOp>(index);
  d.take("noftz");
  int t = d.take_one({"f16", "bf16", "f32", "f64", "u32", "s32", "u64", "s64", "b32", "b64"});
  if (t < 0) return false;
  type = static_cast<tma::ReduceType>(t);
  auto why = tma::check_reduction(op, type);
  if (!why.empty()) throw BadOperand{why};
  return true;
}

bool decode_bulk(Decoder& d, bool reduces) {
  if (d.take("commit_group")) {
    d.out.handler = commit_bulk;
    return true;
  }
  if (d.take("wait_group")) {
    d.out.x = d.take("read");
    d.out.imm = d.immediate(0);
    d.out.handler = wait_bulk;
    return d.out.imm >= 0;
  }
  if (d.has("tensor")) return false;
  if (d.take("prefetch")) {
    if (!d.take("L2") || !d.take("global")) return false;
    take_cache_hints(d);
    d.make_refs(8);
    d.out.handler = [](Warp& w, const Instr& i, uint32_t lanes) {
      for_lanes(lanes, [&](uint32_t l) {
        check_bulk("cp.async.bulk.prefetch", 0, read_address(w, i[0], l),
                   static_cast<uint32_t>(read_lane(w, i[1], l)));
      });
      return Step::next;
    };
    return true;
  }
  auto& c = d.extra<BulkCopy>();
  c.reduces = reduces;
  // Destination first, then source, in the order of the opcode.
  auto to = d.take_next(), from = d.take_next();
  if (to == "global" && from == "shared::cta") {
    c.to = BulkCopy::To::global;
    c.from = BulkCopy::From::shared;
    if (!d.take("bulk_group")) return false;
    c.byte_mask = d.take("cp_mask");
    take_cache_hints(d);
    c.mask = 3 + d.has("L2::cache_hint");
  } else if ((to == "shared::cluster" || to == "shared::cta") &&
             (from == "global" || from == "shared::cta")) {
    c.to = BulkCopy::To::shared;
    c.from = from == "global" ? BulkCopy::From::global : BulkCopy::From::shared;
    if (!d.take("mbarrier::complete_tx::bytes")) return false;
    c.multicast = d.take("multicast::cluster");
    take_cache_hints(d);
    if (c.multicast && c.from != BulkCopy::From::global) return false;
  } else {
    return false;
  }
  if (reduces && !take_reduction(d, c.op, c.type)) return false;
  if (reduces && c.from == BulkCopy::From::global) return false;
  d.make_refs(4);
  d.operand(c.to == BulkCopy::To::shared ? c.barrier : c.size);
  if (c.multicast || c.byte_mask) d.operand(c.mask);
  d.out.handler = bulk_copy;
  return true;
}

bool decode_cp(Decoder& d) {
  bool reduces = d.take("reduce");
  if (!d.take("async")) return false;
  if (!d.take("bulk")) return !reduces && decode_copy_async(d);
  if (d.has("tensor")) return decode_tensor_copy(d);
  return decode_bulk(d, reduces);
}

// ------------------------------------------------------------------ st.async, red.async, st.bulk

struct AsyncStore {
  unsigned element = 4, vector = 1;
  bool reduces = false;
  tma::ReduceOp op = tma::ReduceOp::add;
  tma::ReduceType type = tma::ReduceType::u32;
};

Step store_async(Warp& w, const Instr& i, uint32_t lanes) {
  auto& s = *static_cast<const AsyncStore*>(i.extra);
  uint32_t bytes = s.element * s.vector;
  for_lanes(lanes, [&](uint32_t l) {
    uint32_t to = shared_operand(read_address(w, i[0], l), "st.async");
    uint32_t barrier = mbarrier_address(read_address(w, i[2], l));
    if (to & (bytes - 1)) {
      fault(kMisalignedAddress, "st.async of %u bytes to shared address %#x: misaligned", bytes,
            to);
    }
    auto targets = copy_targets(w, to, barrier, false, 0, false);
    uint8_t* p = shared_range(*targets[0].cta, targets[0].offset, bytes, "st.async");
    std::array<uint8_t, 16> data{};
    for (unsigned k = 0; k < s.vector; ++k) {
      uint64_t value = read_lane(w, s.vector == 1 ? i[1] : i[1][k], l);
      std::memcpy(&data[k * s.element], &value, s.element);
    }
    AsyncTask task;
    task.op = make_async(w, 1u << l, AsyncKind::st_async);
    task.op.bytes = bytes;
    Cluster* cluster = w.cluster;
    auto target = targets[0];
    auto store = s;
    task.run = [=](const AsyncOp& op) {
      notify_async(*cluster, op, Memory::shared, store.reduces ? Access::atomic : Access::write,
                   target.cta->rank, target.offset, bytes, Proxy::generic);
      if (store.reduces) {
        tma::reduce(store.op, store.type, p, data.data(), bytes);
      } else {
        std::memcpy(p, data.data(), bytes);
      }
    };
    task.signal = [=](const AsyncOp& op) {
      mbarrier_complete(*target.barrier_cta, target.barrier, bytes, op.issuer, &op);
    };
    issue(*cluster, cluster->copies, std::move(task));
  });
  return Step::next;
}

Step store_bulk(Warp& w, const Instr& i, uint32_t lanes) {
  for_lanes(lanes, [&](uint32_t l) {
    uint32_t to = shared_operand(read_address(w, i[0], l), "st.bulk");
    uint64_t bytes = read_lane(w, i[1], l);
    if ((to & 7) || (bytes & 7)) {
      fault(kMisalignedAddress, "st.bulk of %llu bytes at %#x: both must be multiples of 8",
            static_cast<unsigned long long>(bytes), to);
    }
    uint32_t offset = to & kSharedOffsetMask;
    uint8_t* p = shared_range(*w.cta, offset, bytes, "st.bulk");
    for (uint64_t k = 0; k < bytes && w.cluster->observer; k += 8) {
      uint64_t addresses[kLanes];
      uint8_t ctas[kLanes];
      addresses[l] = offset + k;
      ctas[l] = static_cast<uint8_t>(w.cta->rank);
      w.cluster->observer->access(agent_of(w, 1u << l), {Memory::shared, Access::write, Order::weak,
                                                         Scope::cta, 8, addresses, ctas});
    }
    std::memset(p, 0, bytes);
  });
  ++w.cluster->activity;
  return Step::next;
}

}  // namespace

bool decode_async_store(Decoder& d) {
  if (d.take("bulk")) {
    d.take("weak");
    d.take_one({"shared::cta"});
    d.make_refs(8);
    if (d.immediate(2) != 0) throw BadOperand{"st.bulk writes zeros only"};
    d.out.handler = store_bulk;
    return true;
  }
  auto& s = d.extra<AsyncStore>();
  if (!d.take("async")) return false;
  d.take("weak");
  d.take("shared::cluster");
  if (!d.take("mbarrier::complete_tx::bytes")) return false;
  int vector = d.take_one({"v2", "v4"});
  s.vector = vector < 0 ? 1 : 2u << vector;
  Type type = d.take_type();
  s.element = ptx::size_of(type);
  if ((s.element != 4 && s.element != 8) || s.element * s.vector > 16) return false;
  if (s.vector > 1 && d.operand(1).count != s.vector) return false;
  d.make_refs(s.element);
  d.operand(2);
  d.out.handler = store_async;
  return true;
}

bool decode_async_red(Decoder& d) {
  auto& s = d.extra<AsyncStore>();
  if (!d.take("async") || !d.take("relaxed") || !d.take("cluster")) return false;
  d.take("shared::cluster");
  if (!d.take("mbarrier::complete_tx::bytes")) return false;
  s.reduces = true;
  if (!take_reduction(d, s.op, s.type)) return false;
  bool wide = s.type == tma::ReduceType::u64 || s.type == tma::ReduceType::s64 ||
              s.type == tma::ReduceType::b64;
  s.element = wide ? 8 : 4;
  d.make_refs(s.element);
  d.operand(2);
  d.out.handler = store_async;
  return true;
}

const OpcodeList& copy_opcodes() {
  static const OpcodeList list{{"cp", decode_cp}};
  return list;
}

}  // namespace vgpu::exec
