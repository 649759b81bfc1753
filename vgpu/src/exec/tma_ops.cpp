// SPDX-License-Identifier: Apache-2.0
// cp.async.bulk.tensor, cp.reduce.async.bulk.tensor, cp.async.bulk.prefetch.tensor: the engine's
// side of TMA. What a box is and where its bytes lie is in tma/. Source: PTX ISA 9.0, "Tensor
// copy".
#include <algorithm>

#include "exec/copy_ops.hpp"
#include "exec/lanes.hpp"
#include "exec/memory_ops.hpp"
#include "tma/traverse.hpp"

namespace vgpu::exec {
namespace {

constexpr uint32_t kBoxAlignment = 128;    // shared address of a box (PTX ISA, tensor copy)
constexpr uint32_t kSwizzlePeriod = 1024;  // shared addresses this far apart swizzle alike

struct TensorCopy {
  enum class Kind : uint8_t { load, store, reduce, prefetch } kind = Kind::load;
  uint32_t rank = 0;
  bool im2col = false;
  bool four_rows = false;  ///< .tile::gather4, .tile::scatter4
  bool multicast = false, pair = false;
  tma::ReduceOp op = tma::ReduceOp::add;
  unsigned map = 1, shared = 0, barrier = 2, offsets = 3, mask = 3;
};

/// One instruction of one thread, decoded.
struct BoxCopy {
  tma::TensorMap map;
  tma::Coordinates at;
  std::vector<tma::Run> runs;
  uint32_t bytes = 0, footprint = 0;
};

const uint8_t* tensor_map_bytes(Warp& w, uint32_t lane, uint64_t address) {
  if (address & 63) {
    fault(kMisalignedAddress, "tensor map at 0x%llx: it must be 64-byte aligned",
          static_cast<unsigned long long>(address));
  }
  return generic_pointer(w, lane, address, 128, Access::read);
}

/// NOTE: which copies probe is not documented, so every one needs the memory.
void check_probed_memory(Warp& w, const tma::TensorMap& map) {
  if (!map.probes_128k) return;
  constexpr uint64_t kProbed = 128 << 10;
  auto* memory = w.cluster->worker->grid->request->memory;
  const auto range = memory ? memory->find(map.address) : GlobalMemory::Range{};
  const uint64_t before = map.address - range.base;
  if (before < range.size && range.size - before >= kProbed) return;
  fault(
      kIllegalAddress,
      "tensor map with bit 85 set, at 0x%llx with %llu bytes of its allocation: Blackwell's TMA "
      "may probe 128 KiB from there on. Drivers set the bit for tensors that are not dense; clear "
      "it (((uint64_t*)&map)[1] &= ~(1ull << 21)) where less than 128 KiB are described: %s",
      static_cast<unsigned long long>(map.address),
      static_cast<unsigned long long>(before < range.size ? range.size - before : 0),
      tma::describe(map).c_str());
}

std::shared_ptr<BoxCopy> decode_box(Warp& w, const Instr& i, const TensorCopy& c, uint32_t lane,
                                    uint32_t shared) {
  auto box = std::make_shared<BoxCopy>();
  const Ref& operand = i[c.map];
  uint64_t address = read_address(w, operand, lane);
  const uint8_t* bytes = tensor_map_bytes(w, lane, address);
  if (!tma::decode(bytes, box->map)) {
    fault(kIllegalInstruction,
          "the 128 bytes at 0x%llx are not a tensor map made by cuTensorMapEncode*",
          static_cast<unsigned long long>(address));
  }
  if (tma::was_replaced(bytes)) {
    const DeviceSpec& device = *w.cluster->grid->request->device;
    const std::string why =
        tma::validate(box->map, static_cast<int>(device.compute_major * 10 + device.compute_minor));
    if (!why.empty()) {
      fault(kIllegalInstruction, "a tensor map changed by tensormap.replace: %s (%s)", why.c_str(),
            tma::describe(box->map).c_str());
    }
  }
  check_probed_memory(w, box->map);
  if (box->map.rank != c.rank) {
    fault(kIllegalInstruction, "the instruction is %uD, its tensor map has rank %u: %s", c.rank,
          box->map.rank, tma::describe(box->map).c_str());
  }
  if (box->map.im2col != c.im2col) {
    fault(kIllegalInstruction, "the instruction is %s, its tensor map is %s: %s",
          c.im2col ? "im2col" : "tiled", box->map.im2col ? "im2col" : "tiled",
          tma::describe(box->map).c_str());
  }
  int32_t rows[4];
  if (c.four_rows) {
    auto why = tma::make_four_rows(box->map);
    if (!why.empty()) fault(kIllegalInstruction, "%s", why.c_str());
    for (uint32_t k = 0; k < 4; ++k) {
      rows[k] = static_cast<int32_t>(read_lane(w, operand[1][k + 1], lane));
    }
  }
  for (uint32_t k = 0; k < c.rank; ++k) {
    box->at.start[k] = static_cast<int32_t>(read_lane(w, operand[1][k], lane));
  }
  if (c.im2col && c.kind != TensorCopy::Kind::store && c.kind != TensorCopy::Kind::reduce) {
    for (uint32_t k = 0; k + 2 < c.rank; ++k) {
      box->at.im2col_offset[k] = static_cast<uint16_t>(read_lane(w, i[c.offsets][k], lane));
    }
  }
  if (shared & (kBoxAlignment - 1)) {
    fault(kMisalignedAddress, "TMA box at shared address %#x: it must be 128-byte aligned", shared);
  }
  const uint32_t period = 8 * tma::swizzle_span(box->map.swizzle);
  if (w.cluster->observer && box->map.swizzle != tma::Swizzle::none && shared % period != 0) {
    w.cluster->observer->box_off_pattern(agent_of(w, 1u << lane), shared & kSharedOffsetMask,
                                         period);
  }
  const bool writes = c.kind == TensorCopy::Kind::store || c.kind == TensorCopy::Kind::reduce;
  for (uint32_t k = 0; k < (c.four_rows ? 4 : 1); ++k) {
    if (c.four_rows) box->at.start[1] = rows[k];
    auto why = tma::check_coordinates(box->map, box->at, writes);
    if (!why.empty()) fault(kIllegalInstruction, "%s", why.c_str());
  }
  if (c.four_rows) {
    tma::traverse_four_rows(box->map, box->at.start[0], rows, box->runs);
  } else {
    tma::traverse(box->map, box->at, box->runs);
  }
  box->bytes = tma::box_bytes(box->map);
  box->footprint = tma::box_footprint(box->map);
  return box;
}

/// Checks and reports the global side of a box.
void touch_global(Cluster& cluster, const AsyncOp& op, const BoxCopy& box, Access access) {
  for (auto& run : box.runs) {
    if (!run.in_bounds) continue;
    global_pointer(*cluster.worker, run.global, run.bytes, access != Access::read);
    notify_async(cluster, op, Memory::global, access, 0, run.global, run.bytes);
  }
}

/// Reports the shared side: one range when the box is dense, else its pieces.
void touch_shared(Cluster& cluster, const AsyncOp& op, const BoxCopy& box, Access access,
                  uint32_t cta, uint32_t offset) {
  if (!cluster.observer) return;
  // NOTE: the gaps of sub-byte types count as written: what they hold is undefined, and the tensor
  // cores, which do not use them, are told to read whole chunks.
  if (box.footprint == box.bytes || tma::has_gaps(box.map.type)) {
    notify_async(cluster, op, Memory::shared, access, cta, offset, box.footprint);
    return;
  }
  for (auto& run : box.runs) {
    tma::for_each_piece(box.map.swizzle, offset, run.offset, run.bytes,
                        [&](uint32_t address, uint32_t, uint32_t bytes) {
                          notify_async(cluster, op, Memory::shared, access, cta, address, bytes);
                        });
  }
}

/// The shared side of a store: what lies outside the tensor is not stored, so it is not read either
/// (CTAs at the edge leave it unwritten, and rows that are padded against bank conflicts).
void touch_source(Cluster& cluster, const AsyncOp& op, const BoxCopy& box, uint32_t cta,
                  uint32_t offset) {
  if (!cluster.observer) return;
  auto inside = [](const tma::Run& run) { return run.in_bounds; };
  if (tma::has_gaps(box.map.type) || std::all_of(box.runs.begin(), box.runs.end(), inside)) {
    touch_shared(cluster, op, box, Access::read, cta, offset);
    return;
  }
  constexpr uint32_t kLine = 128;  // bytes that no swizzle leaves
  for (auto run = box.runs.begin(); run != box.runs.end();) {
    if (!run->in_bounds) {
      ++run;
      continue;
    }
    const auto first = run;
    uint32_t end = run->offset;
    for (; run != box.runs.end() && run->in_bounds && run->offset == end; ++run) end += run->bytes;
    if ((offset + first->offset) % kLine == 0 && (offset + end) % kLine == 0) {
      notify_async(cluster, op, Memory::shared, Access::read, cta, offset + first->offset,
                   end - first->offset);
      continue;
    }
    tma::for_each_piece(box.map.swizzle, offset, first->offset, end - first->offset,
                        [&](uint32_t address, uint32_t, uint32_t bytes) {
                          notify_async(cluster, op, Memory::shared, Access::read, cta, address,
                                       bytes);
                        });
  }
}

void load(Warp& w, const Instr& i, const TensorCopy& c, uint32_t lane) {
  Cluster& cluster = *w.cluster;
  uint32_t to = shared_operand(read_address(w, i[c.shared], lane), "cp.async.bulk.tensor");
  uint32_t barrier = mbarrier_address(read_address(w, i[c.barrier], lane));
  uint32_t mask = c.multicast ? static_cast<uint32_t>(read_lane(w, i[c.mask], lane)) & 0xffff : 0;
  auto box = decode_box(w, i, c, lane, to);
  auto targets = copy_targets(w, to, barrier, c.multicast, mask, c.pair);
  for (auto& target : targets) shared_range(*target.cta, target.offset, box->footprint, "TMA box");
  AsyncTask task;
  task.op = make_async(w, 1u << lane, AsyncKind::tma_load);
  task.op.bytes = uint64_t{box->bytes} * targets.size();
  cluster.worker->tma_bytes += task.op.bytes;
  Cluster* where = &cluster;
  task.run = [=](const AsyncOp& op) {
    touch_global(*where, op, *box, Access::read);
    for (auto& target : targets) {
      touch_shared(*where, op, *box, Access::write, target.cta->rank, target.offset);
      tma::load_box(box->map, box->runs, target.cta->shared.data(), target.offset);
    }
  };
  task.signal = [=](const AsyncOp& op) {
    for (auto& target : targets) {
      mbarrier_complete(*target.barrier_cta, target.barrier, box->bytes, op.issuer, &op);
    }
  };
  issue(cluster, cluster.copies, std::move(task));
}

void store(Warp& w, const Instr& i, const TensorCopy& c, uint32_t lane) {
  Cluster& cluster = *w.cluster;
  bool reduces = c.kind == TensorCopy::Kind::reduce;
  uint32_t from = shared_operand(read_address(w, i[c.shared], lane), "cp.async.bulk.tensor");
  if (&shared_cta(cluster, from) != w.cta) {
    fault(kIllegalAddress, "TMA store from the shared memory of another CTA (address %#x)", from);
  }
  uint32_t offset = from & kSharedOffsetMask;
  auto box = decode_box(w, i, c, lane, from);
  shared_range(*w.cta, offset, box->footprint, "TMA box");
  tma::ReduceType type{};
  if (reduces) {
    auto why = tma::reduction_type(box->map, c.op, type);
    if (!why.empty()) fault(kIllegalInstruction, "%s", why.c_str());
  }
  uint64_t read_group = enter_group(w.bulk_reads, lane);
  uint64_t write_group = enter_group(w.bulk_writes, lane);
  AsyncTask task;
  task.op = make_async(w, 1u << lane, reduces ? AsyncKind::tma_reduce : AsyncKind::tma_store);
  task.op.bytes = box->bytes;
  cluster.worker->tma_bytes += box->bytes;
  task.last = false;
  Warp* warp = &w;
  // The source is read first, global memory written later: a copy with the same swizzle phase lies
  // between.
  auto data = std::make_shared<std::vector<uint8_t>>();
  uint32_t phase = offset % kSwizzlePeriod;
  task.run = [=](const AsyncOp& op) {
    touch_source(*warp->cluster, op, *box, warp->cta->rank, offset);
    auto& shared = warp->cta->shared;
    // Swizzled bytes of a narrow row may lie past its footprint, inside its 128-byte line.
    uint64_t end = std::min<uint64_t>(shared.size(), uint64_t{offset} + box->footprint + 128);
    data->assign(phase + box->footprint + 128, 0);
    std::memcpy(data->data() + phase, shared.data() + offset, end - offset);
    if (warp->cluster->observer) warp->cluster->observer->async_read_done(op);
  };
  auto reduce_op = c.op;
  task.signal = [=](const AsyncOp& op) {
    leave_group(warp->bulk_reads, lane, read_group);
    AsyncTask write;
    write.op = op;
    write.run = [=](const AsyncOp& again) {
      touch_global(*warp->cluster, again, *box, reduces ? Access::atomic : Access::write);
      if (reduces) {
        tma::reduce_box(box->map, box->runs, data->data(), phase, reduce_op, type);
      } else {
        tma::store_box(box->map, box->runs, data->data(), phase);
      }
    };
    write.signal = [=](const AsyncOp&) { leave_group(warp->bulk_writes, lane, write_group); };
    issue_stage(*warp->cluster, warp->cluster->copies, std::move(write));
  };
  issue(cluster, cluster.copies, std::move(task));
}

Step tensor_copy(Warp& w, const Instr& i, uint32_t lanes) {
  auto& c = *static_cast<const TensorCopy*>(i.extra);
  for_lanes(lanes, [&](uint32_t l) {
    switch (c.kind) {
      case TensorCopy::Kind::load:
        load(w, i, c, l);
        break;
      case TensorCopy::Kind::prefetch:
        decode_box(w, i, c, l, 0);
        break;
      default:
        store(w, i, c, l);
    }
  });
  return Step::next;
}

}  // namespace

bool decode_tensor_copy(Decoder& d) {
  using Kind = TensorCopy::Kind;
  auto& c = d.extra<TensorCopy>();
  bool prefetch = d.take("prefetch");
  if (!d.take("tensor")) return false;
  int rank = d.take_one({"1d", "2d", "3d", "4d", "5d"});
  if (rank < 0) return false;
  c.rank = static_cast<uint32_t>(rank) + 1;
  int group = d.take_one({"cta_group::1", "cta_group::2"});
  c.pair = group == 1;
  // Load modes: .tile is the default; .im2col_no_offs is that of stores.
  bool no_offsets = d.take("im2col_no_offs");
  c.im2col = no_offsets || d.take("im2col");
  // gather4 is that of loads, scatter4 that of stores.
  const int four_rows = c.im2col ? -1 : d.take_one({"tile::gather4", "tile::scatter4"});
  c.four_rows = four_rows >= 0;
  if (four_rows < 0) d.take("tile");
  if (c.four_rows && (c.rank != 2 || (four_rows == 1) != d.has("bulk_group"))) return false;
  bool reduces = d.has("reduce");
  if (prefetch) {
    c.kind = Kind::prefetch;
    if (!d.take("L2") || !d.take("global")) return false;
    c.map = 0;
    c.offsets = 1;
  } else if (d.has("bulk_group")) {
    if (reduces && c.four_rows) return false;
    c.kind = reduces ? Kind::reduce : Kind::store;
    c.map = 0;
    c.shared = 1;
    if (!d.take("bulk_group") || !d.take("global") || !d.take("shared::cta")) return false;
    if (c.im2col && !no_offsets) return false;
    if (reduces) {
      int op = d.take_one({"add", "min", "max", "inc", "dec", "and", "or", "xor"});
      if (op < 0) return false;
      c.op = static_cast<tma::ReduceOp>(op);
    }
  } else {
    c.kind = Kind::load;
    if (d.take_one({"shared::cluster", "shared::cta"}) < 0 || !d.take("global") ||
        !d.take("mbarrier::complete_tx::bytes") || no_offsets) {
      return false;
    }
    c.multicast = d.take("multicast::cluster");
    c.mask = c.im2col ? 4 : 3;
  }
  if (group >= 0 && c.kind != Kind::load) return false;
  take_cache_hints(d);
  if (c.im2col && c.rank < 3) return false;
  auto& map = d.operand(c.map);
  if (map.kind != ptx::Operand::Kind::address || map.count != 2 ||
      d.child(map, 1).kind != ptx::Operand::Kind::vector ||
      d.child(map, 1).count != (c.four_rows ? 5 : c.rank)) {
    throw BadOperand{
        format("a tensor map and %u coordinates are needed", c.four_rows ? 5 : c.rank)};
  }
  if (c.im2col && (c.kind == Kind::load || c.kind == Kind::prefetch) &&
      (d.operand(c.offsets).kind != ptx::Operand::Kind::vector ||
       d.operand(c.offsets).count != c.rank - 2)) {
    throw BadOperand{format("%u im2col offsets are needed", c.rank - 2)};
  }
  if (c.multicast) d.operand(c.mask);
  d.make_refs(4);
  d.out.handler = tensor_copy;
  return true;
}

}  // namespace vgpu::exec
