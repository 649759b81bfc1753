// SPDX-License-Identifier: Apache-2.0
// tcgen05: allocation of tensor memory and the asynchronous side of mma, cp, ld, st, commit. The
// arithmetic and the layouts are in tensor/. Source: PTX ISA 9.0, "TensorCore 5th Generation Family
// Instructions".
#include "exec/copy_ops.hpp"
#include "exec/lanes.hpp"
#include "exec/tensor_visitor.hpp"
#include "tensor/tcgen05_ldst.hpp"
#include "tensor/tcgen05_mma.hpp"
#include "tensor/tcgen05_scaled_mma.hpp"

namespace vgpu::exec {
namespace {

Step require_warp(Warp& w, uint32_t lanes, const char* what) {
  if (!converged(w, lanes, kAllLanes)) return wait_for_lanes(w);
  if (lanes != kAllLanes) {
    fault(kIllegalInstruction, "%s by lanes %#x: .aligned needs all 32 lanes of the warp", what,
          lanes);
  }
  return Step::next;
}

/// The CTAs an operation works on: this one, or the pair.
uint32_t first_rank(const Cta& cta, int cta_group) {
  return cta_group == 2 ? cta.rank & ~1u : cta.rank;
}
std::vector<tensor::CtaMemory> memories(Cta& cta, int cta_group) {
  uint32_t first = first_rank(cta, cta_group);
  auto& ctas = cta.cluster->ctas;
  if (first + static_cast<uint32_t>(cta_group) > ctas.size()) {
    fault(kIllegalInstruction, ".cta_group::2 in a cluster of %zu: CTA rank %u has no peer",
          ctas.size(), cta.rank);
  }
  std::vector<tensor::CtaMemory> out;
  for (int k = 0; k < cta_group; ++k) {
    Cta& each = *ctas[first + static_cast<uint32_t>(k)];
    out.push_back({shared_view(each), &each.tmem});
  }
  return out;
}

// ------------------------------------------------------------------ alloc, dealloc, relinquish

Step allocate(Warp& w, const Instr& i, uint32_t lanes) {  // x: cta_group
  if (auto step = require_warp(w, lanes, "tcgen05.alloc"); step != Step::next) return step;
  auto columns = static_cast<uint32_t>(read_lane(w, i[1], 0));
  uint32_t to = shared_operand(read_address(w, i[0], 0), "tcgen05.alloc");
  auto column = w.cta->tmem.allocate(columns, static_cast<int>(i.x));
  if (!column) return block(w, "tcgen05.alloc: no free columns", columns);
  uint64_t addresses[kLanes];
  uint8_t* pointers[kLanes];
  addresses[0] = to;
  resolve(w, {AddressSpace::shared_cta, 4, Access::write, Order::weak, Scope::cta}, 1, addresses,
          pointers);
  std::memcpy(pointers[0], &*column, 4);
  if (w.cluster->observer) {
    w.cluster->observer->tmem_alloc(agent_of(w, lanes), w.cta->rank, *column, columns);
  }
  return Step::next;
}

Step deallocate(Warp& w, const Instr& i, uint32_t lanes) {
  if (auto step = require_warp(w, lanes, "tcgen05.dealloc"); step != Step::next) return step;
  auto address = static_cast<uint32_t>(read_lane(w, i[0], 0));
  auto columns = static_cast<uint32_t>(read_lane(w, i[1], 0));
  w.cta->tmem.deallocate(address & 0xffff, columns, static_cast<int>(i.x));
  if (w.cluster->observer) {
    w.cluster->observer->tmem_dealloc(agent_of(w, lanes), w.cta->rank, address & 0xffff, columns);
  }
  wake(*w.cluster);
  return Step::next;
}

Step relinquish(Warp& w, const Instr& i, uint32_t lanes) {
  if (auto step = require_warp(w, lanes, "tcgen05.relinquish_alloc_permit"); step != Step::next) {
    return step;
  }
  w.cta->tmem.relinquish(static_cast<int>(i.x));
  wake(*w.cluster);
  return Step::next;
}

// ------------------------------------------------------------------ mma

struct MmaOp {
  tensor::MmaKind kind = tensor::MmaKind::f16;
  int cta_group = 1;
  bool a_in_tmem = false;
  bool weight_stationary = false;
  unsigned descriptor = 3;
  /// Operand numbers; 0: none.
  unsigned disable = 0, enable_d = 4, scale_d = 0, zero_mask = 0, sp_meta = 0;
};

/// Queues an MMA of the thread, which `compute` does on the CTAs of its group.
template <typename Compute>
void issue_mma(Warp& w, uint32_t lane, int cta_group, uint64_t macs, Compute compute) {
  AsyncTask task;
  task.op = make_async(w, 1u << lane, AsyncKind::tcgen05_mma);
  task.op.macs = macs;
  w.cluster->worker->mma_macs += macs;
  Cta* cta = w.cta;
  memories(*cta, cta_group);
  task.run = [=](const AsyncOp& async) {
    auto ctas = memories(*cta, cta_group);
    TensorVisitor visitor(*cta->cluster, async, first_rank(*cta, cta_group));
    compute(ctas, visitor.get());
  };
  issue(*w.cluster, w.cta->tensor_queue, std::move(task));
}

/// What all forms begin with: D, A, B and the instruction descriptor of one lane.
template <typename Mma, typename Op>
void read_operands(Mma& m, const Op& op, const Warp& w, const Instr& i, uint32_t l) {
  m.cta_group = op.cta_group;
  m.a_in_tmem = op.a_in_tmem;
  m.d_address = static_cast<uint32_t>(read_address(w, i[0], l));
  m.a = op.a_in_tmem ? read_address(w, i[1], l) & 0xffffffffu : read_lane(w, i[1], l);
  m.b_descriptor = read_lane(w, i[2], l);
  m.instruction_descriptor = static_cast<uint32_t>(read_lane(w, i[op.descriptor], l));
}

Step mma(Warp& w, const Instr& i, uint32_t lanes) {
  auto& op = *static_cast<const MmaOp*>(i.extra);
  for_lanes(lanes, [&](uint32_t l) {
    tensor::Tcgen05Mma m;
    m.kind = op.kind;
    read_operands(m, op, w, i, l);
    if (op.disable) {
      for (uint32_t k = 0; k < i[op.disable].count && k < 8; ++k) {
        m.disable_output_lane[k] = static_cast<uint32_t>(read_lane(w, i[op.disable][k], l));
      }
    }
    m.accumulate = read_lane(w, i[op.enable_d], l) != 0;
    if (op.scale_d) m.scale_input_d = static_cast<uint32_t>(read_lane(w, i[op.scale_d], l));
    if (op.zero_mask) m.zero_column_mask = read_lane(w, i[op.zero_mask], l);
    m.weight_stationary = op.weight_stationary;
    m.sparse = op.sp_meta != 0;
    if (m.sparse) m.sp_meta_address = static_cast<uint32_t>(read_address(w, i[op.sp_meta], l));
    issue_mma(w, l, m.cta_group, tensor::mma_macs(m),
              [m](auto& ctas, auto* visitor) { tensor::tcgen05_mma(m, ctas, visitor); });
  });
  return Step::next;
}

int take_cta_group(Decoder& d) {
  int group = d.take_one({"cta_group::1", "cta_group::2"});
  return group < 0 ? 0 : group + 1;
}

/// The operands that all forms begin with: D, A, B and the instruction descriptor. Whether A is in
/// TMEM.
bool check_mma_operands(Decoder& d, unsigned descriptor) {
  if (d.operand(0).kind != ptx::Operand::Kind::address) {
    throw BadOperand{"D must be a TMEM address"};
  }
  const bool a_in_tmem = d.operand(1).kind == ptx::Operand::Kind::address;
  if (!a_in_tmem) d.source(1, 8);
  d.source(2, 8);
  d.source(descriptor, 4);
  return a_in_tmem;
}

struct ScaledMmaOp {
  tensor::ScaledMmaKind kind = tensor::ScaledMmaKind::mxf8f6f4;
  uint32_t scales = 1;
  int cta_group = 1;
  bool a_in_tmem = false;
  unsigned sp_meta = 0;  ///< operand, 0: dense
  unsigned descriptor = 3;
};

Step scaled_mma(Warp& w, const Instr& i, uint32_t lanes) {
  auto& op = *static_cast<const ScaledMmaOp*>(i.extra);
  for_lanes(lanes, [&](uint32_t l) {
    tensor::Tcgen05ScaledMma m;
    m.kind = op.kind;
    m.scales = op.scales;
    read_operands(m, op, w, i, l);
    m.scale_a = static_cast<uint32_t>(read_address(w, i[op.descriptor + 1], l));
    m.scale_b = static_cast<uint32_t>(read_address(w, i[op.descriptor + 2], l));
    m.accumulate = read_lane(w, i[op.descriptor + 3], l) != 0;
    m.sparse = op.sp_meta != 0;
    if (m.sparse) m.sp_meta_address = static_cast<uint32_t>(read_address(w, i[op.sp_meta], l));
    issue_mma(w, l, m.cta_group, tensor::scaled_mma_macs(m),
              [m](auto& ctas, auto* visitor) { tensor::tcgen05_scaled_mma(m, ctas, visitor); });
  });
  return Step::next;
}

// The collector buffer only keeps copies of A: no effect on results.
void take_collector_a(Decoder& d) {
  d.take_one({"collector::a::fill", "collector::a::use", "collector::a::lastuse",
              "collector::a::discard"});
}

void check_metadata_operand(Decoder& d, unsigned at) {
  if (d.operand(at).kind != ptx::Operand::Kind::address) {
    throw BadOperand{"the sparsity metadata must be a TMEM address"};
  }
}

/// [D], A, B, [sp-meta (sparse)], descriptor, [scale-A], [scale-B], enable-input-d
bool decode_scaled_mma(Decoder& d, int cta_group, bool sparse) {
  using Kind = tensor::ScaledMmaKind;
  auto& op = d.extra<ScaledMmaOp>();
  op.cta_group = cta_group;
  int kind = d.take_one({"kind::mxf8f6f4", "kind::mxf4", "kind::mxf4nvf4"});
  if (kind < 0) return false;
  op.kind = static_cast<Kind>(kind);
  take_collector_a(d);
  int vector =
      d.take_one({"scale_vec::1X", "scale_vec::2X", "scale_vec::4X", "block16", "block32"});
  switch (vector) {
    case 3:
      op.scales = 4;
      break;
    case 4:
      op.scales = op.kind == Kind::mxf8f6f4 ? 1 : 2;
      break;
    case -1:  // has a default, but for mxf4nvf4
      if (op.kind == Kind::mxf4nvf4) return false;
      op.scales = op.kind == Kind::mxf8f6f4 ? 1 : 2;
      break;
    default:
      op.scales = 1u << vector;
  }
  if (!tensor::has_scales(op.kind, op.scales) || d.count() != (sparse ? 8u : 7u)) return false;
  if (sparse) {
    op.sp_meta = op.descriptor++;
    check_metadata_operand(d, op.sp_meta);
  }
  op.a_in_tmem = check_mma_operands(d, op.descriptor);
  for (unsigned k : {op.descriptor + 1, op.descriptor + 2}) {
    if (d.operand(k).kind != ptx::Operand::Kind::address) {
      throw BadOperand{"the scales must be TMEM addresses"};
    }
  }
  d.source_predicate(op.descriptor + 3);
  d.make_refs(8);
  d.out.handler = scaled_mma;
  return true;
}

bool decode_mma(Decoder& d) {
  const bool sparse = d.take("sp");
  if (sparse && d.has("ws")) {
    throw BadOperand{
        "sparse matrix products with .ws are not modelled: where their metadata lie is drawn in "
        "figures of the PTX ISA alone"};
  }
  const bool weight_stationary = d.take("ws");
  const int cta_group = take_cta_group(d);
  if (!cta_group || (weight_stationary && cta_group != 1)) return false;
  if (d.take("block_scale")) return !weight_stationary && decode_scaled_mma(d, cta_group, sparse);
  auto& op = d.extra<MmaOp>();
  op.cta_group = cta_group;
  op.weight_stationary = weight_stationary;
  int kind = d.take_one({"kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8"});
  if (kind < 0) return false;
  op.kind = static_cast<tensor::MmaKind>(kind);
  if (weight_stationary) {
    d.take_one({"collector::b0::fill", "collector::b0::use", "collector::b0::lastuse",
                "collector::b0::discard", "collector::b1::fill", "collector::b1::use",
                "collector::b1::lastuse", "collector::b1::discard", "collector::b2::fill",
                "collector::b2::use", "collector::b2::lastuse", "collector::b2::discard",
                "collector::b3::fill", "collector::b3::use", "collector::b3::lastuse",
                "collector::b3::discard"});
  } else {
    take_collector_a(d);
  }
  // [d], a, b, [sp-meta (sparse)], descriptor, ...
  unsigned at = 3;
  if (sparse) {
    check_metadata_operand(d, at);
    op.sp_meta = at++;
  }
  op.descriptor = at++;
  if (!weight_stationary && d.is_vector(at)) {
    if (d.operand(at).count != (op.cta_group == 1 ? 4u : 8u)) {
      throw BadOperand{"disable-output-lane needs 4 registers (cta_group::1) or 8 (cta_group::2)"};
    }
    op.disable = at++;
  }
  op.enable_d = at;
  d.source_predicate(at++);
  if (weight_stationary && d.count() > at) {
    d.source(at, 8);
    op.zero_mask = at++;
  } else if (d.count() > at) {
    int64_t scale = d.immediate(at);
    if (scale < 0 || scale > 15 || kind > 1) return false;
    op.scale_d = at++;
  }
  if (d.count() != at) return false;
  op.a_in_tmem = check_mma_operands(d, op.descriptor);
  d.make_refs(8);
  d.out.handler = mma;
  return true;
}

// ------------------------------------------------------------------ commit

Step commit(Warp& w, const Instr& i, uint32_t lanes) {  // x: multicast, y: cta_group
  for_lanes(lanes, [&](uint32_t l) {
    Cluster& cluster = *w.cluster;
    uint32_t address = mbarrier_address(read_address(w, i[0], l));
    uint32_t offset = address & kSharedOffsetMask;
    uint32_t mask = 0;
    if (i.x) {
      mask = static_cast<uint32_t>(read_lane(w, i[1], l)) & 0xffff;
      if (mask == 0 || mask >> cluster.ctas.size()) {
        fault(kIllegalInstruction, "tcgen05.commit with CTA mask %#x in a cluster of %zu", mask,
              cluster.ctas.size());
      }
    } else {
      mask = 1u << shared_cta(cluster, address).rank;
    }
    AsyncTask task;
    task.op = make_async(w, 1u << l, AsyncKind::tcgen05_commit);
    Cluster* where = &cluster;
    task.signal = [=](const AsyncOp& op) {
      for_lanes(mask, [&](uint32_t rank) {
        if (where->ctas[rank]->live_warps == 0) {
          fault(kIllegalAddress,
                "tcgen05.commit signals an mbarrier in CTA rank %u, which has exited", rank);
        }
        mbarrier_arrive(*where->ctas[rank], offset, 1, false, op.issuer, &op, Order::release,
                        Scope::cluster);
      });
    };
    ++cluster.worker->async_operations;
    if (cluster.observer) cluster.observer->async_issue(task.op);
    issue_stage(cluster, w.cta->tensor_queue, std::move(task));
  });
  return Step::next;
}

bool decode_commit(Decoder& d) {
  d.out.y = static_cast<uint32_t>(take_cta_group(d));
  if (!d.out.y || !d.take("mbarrier::arrive::one")) return false;
  d.take("shared::cluster");
  d.out.x = d.take("multicast::cluster");
  if (!d.take("b64")) return false;
  if (d.count() != (d.out.x ? 2u : 1u)) return false;
  d.make_refs(4);
  d.out.handler = commit;
  return true;
}

// ------------------------------------------------------------------ ld, st

struct TransferOp {
  tensor::TmemShape shape = tensor::TmemShape::s32x32b;
  uint32_t repeat = 1;
  bool pack16 = false;
  uint32_t half_split = 0;
  bool is_load = true;
  std::vector<uint32_t> registers;
};

Step transfer(Warp& w, const Instr& i, uint32_t lanes) {
  auto& op = *static_cast<const TransferOp*>(i.extra);
  if (auto step = require_warp(w, lanes, op.is_load ? "tcgen05.ld" : "tcgen05.st");
      step != Step::next) {
    return step;
  }
  tensor::TmemTransfer t;
  t.shape = op.shape;
  t.repeat = op.repeat;
  t.pack16 = op.pack16;
  t.half_split_offset = op.half_split;
  t.warp = w.id;
  t.address = static_cast<uint32_t>(read_address(w, i[op.is_load ? 1 : 0], 0));
  if (w.cluster->observer && !tensor::names_own_lanes(t)) {
    w.cluster->observer->tmem_other_lanes(agent_of(w, lanes), t.address);
  }
  AsyncTask task;
  task.op = make_async(w, lanes, op.is_load ? AsyncKind::tcgen05_ld : AsyncKind::tcgen05_st);
  Warp* warp = &w;
  size_t count = op.registers.size();
  if (op.is_load) {
    // NOTE: A load gives its registers at once. In machine code their readers wait for them, and
    // compilers place readers before tcgen05.wait::ld; only other accesses of the cells need it.
    std::array<uint32_t*, 128> registers;
    for (size_t k = 0; k < count; ++k) registers[k] = w.lanes<uint32_t>(op.registers[k]);
    task.run = [&](const AsyncOp& async) {
      TensorVisitor visitor(*warp->cluster, async, warp->cta->rank);
      tensor::tcgen05_load(warp->cta->tmem, t, {registers.data(), count}, visitor.get());
    };
    ++w.cluster->worker->async_operations;
    if (w.cluster->observer) w.cluster->observer->async_issue(task.op);
    perform(*w.cluster, task);
    return Step::next;
  }
  // NOTE: A store happens at once too. Kernels in the field load what their warps have stored, and
  // free it, without a tcgen05.wait::st; the checks know when the wait is missing.
  std::array<const uint32_t*, 128> registers;
  for (size_t k = 0; k < count; ++k) registers[k] = w.lanes<uint32_t>(op.registers[k]);
  task.run = [&](const AsyncOp& async) {
    TensorVisitor visitor(*warp->cluster, async, warp->cta->rank);
    tensor::tcgen05_store(warp->cta->tmem, t, {registers.data(), count}, visitor.get());
  };
  ++w.cluster->worker->async_operations;
  if (w.cluster->observer) w.cluster->observer->async_issue(task.op);
  perform(*w.cluster, task);
  return Step::next;
}

bool decode_transfer(Decoder& d, bool is_load) {
  auto& op = d.extra<TransferOp>();
  op.is_load = is_load;
  if (!d.take("sync") || !d.take("aligned")) return false;
  int shape = d.take_one({"32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"});
  int repeat = d.take_one({"x1", "x2", "x4", "x8", "x16", "x32", "x64", "x128"});
  if (shape < 0 || repeat < 0) return false;
  op.shape = static_cast<tensor::TmemShape>(shape);
  op.repeat = 1u << repeat;
  op.pack16 = d.take(is_load ? "pack::16b" : "unpack::16b");
  if (!d.take("b32")) return false;
  try {
    tensor::validate(op.shape, op.repeat);
  } catch (const Fault& fault) {
    throw BadOperand{fault.text};
  }
  bool split = op.shape == tensor::TmemShape::s16x32bx2;
  // ld r, [address] {, split}; st [address] {, split}, r
  unsigned value_at = is_load ? 0 : split ? 2 : 1;
  if (split) op.half_split = static_cast<uint32_t>(d.immediate(is_load ? 2 : 1));
  if (d.count() != 2u + split) return false;
  auto& value = d.operand(value_at);
  unsigned count = value.kind == ptx::Operand::Kind::vector ? value.count : 1;
  if (count != tensor::tmem_registers(op.shape, op.repeat)) {
    throw BadOperand{
        format("%u registers are needed", tensor::tmem_registers(op.shape, op.repeat))};
  }
  for (unsigned k = 0; k < count; ++k) {
    auto& o = value.kind == ptx::Operand::Kind::vector ? d.child(value, k) : value;
    op.registers.push_back(is_load ? d.dest(o, 4) : d.source(o, 4));
  }
  if (d.operand(is_load ? 1 : 0).kind != ptx::Operand::Kind::address) {
    throw BadOperand{"a TMEM address is needed"};
  }
  d.make_refs(4);
  d.out.handler = transfer;
  return true;
}

Step wait_transfers(Warp& w, const Instr& i, uint32_t lanes) {  // x: 0 ld, 1 st
  if (auto step = require_warp(w, lanes, "tcgen05.wait"); step != Step::next) return step;
  if (w.cluster->observer) {
    w.cluster->observer->group_wait(agent_of(w, lanes),
                                    i.x ? GroupKind::tcgen05_st : GroupKind::tcgen05_ld, 0);
  }
  return Step::next;
}

// ------------------------------------------------------------------ cp, shift

/// Issues a tensor operation of lane `l` that calls `f(memories, k, visitor)` for CTA k of the
/// group.
template <typename F>
void issue_for_each_cta(Warp& w, uint32_t l, AsyncKind kind, int group, F f) {
  AsyncTask task;
  task.op = make_async(w, 1u << l, kind);
  Cta* cta = w.cta;
  memories(*cta, group);  // faults now where the pair's other CTA is missing
  task.run = [=](const AsyncOp& async) {
    auto ctas = memories(*cta, group);
    TensorVisitor visitor(*cta->cluster, async, first_rank(*cta, group));
    for (uint32_t k = 0; k < ctas.size(); ++k) f(ctas[k], k, visitor.get());
  };
  issue(*w.cluster, w.cta->tensor_queue, std::move(task));
}

Step shift(Warp& w, const Instr& i, uint32_t lanes) {  // x: cta_group
  for_lanes(lanes, [&](uint32_t l) {
    auto address = static_cast<uint32_t>(read_address(w, i[0], l));
    issue_for_each_cta(w, l, AsyncKind::tcgen05_shift, static_cast<int>(i.x),
                       [=](auto& cta, uint32_t k, auto* visitor) {
                         tensor::tcgen05_shift(address, cta, k, visitor);
                       });
  });
  return Step::next;
}

bool decode_shift(Decoder& d) {
  d.out.x = static_cast<uint32_t>(take_cta_group(d));
  if (!d.out.x || !d.take("down") || d.count() != 1) return false;
  if (d.operand(0).kind != ptx::Operand::Kind::address) {
    throw BadOperand{"a TMEM address is needed"};
  }
  d.make_refs(8);
  d.out.handler = shift;
  return true;
}

Step copy(Warp& w, const Instr& i, uint32_t lanes) {  // x: TmemCopyShape, y: cta_group
  for_lanes(lanes, [&](uint32_t l) {
    auto address = static_cast<uint32_t>(read_address(w, i[0], l));
    uint64_t descriptor = read_lane(w, i[1], l);
    auto shape = static_cast<tensor::TmemCopyShape>(i.x);
    issue_for_each_cta(w, l, AsyncKind::tcgen05_cp, static_cast<int>(i.y),
                       [=](auto& cta, uint32_t k, auto* visitor) {
                         tensor::tcgen05_copy(shape, address, descriptor, cta, k, visitor);
                       });
  });
  return Step::next;
}

bool decode_copy(Decoder& d) {
  using Shape = tensor::TmemCopyShape;
  d.out.y = static_cast<uint32_t>(take_cta_group(d));
  if (!d.out.y) return false;
  int shape = d.take_one({"128x256b", "128x128b", "64x128b", "32x128b", "4x256b"});
  Shape which;
  switch (shape) {
    case 0:
      which = Shape::s128x256b;
      break;
    case 1:
      which = Shape::s128x128b;
      break;
    case 2:
      if (d.take("warpx2::02_13")) {
        which = Shape::s64x128b_02_13;
      } else if (d.take("warpx2::01_23")) {
        which = Shape::s64x128b_01_23;
      } else {
        return false;
      }
      break;
    case 3:
      if (!d.take("warpx4")) return false;
      which = Shape::s32x128b_warpx4;
      break;
    case 4:
      which = Shape::s4x256b;
      break;
    default:
      return false;
  }
  d.out.x = static_cast<uint32_t>(which);
  d.source(1, 8);
  d.make_refs(8);
  d.out.handler = copy;
  return true;
}

// ------------------------------------------------------------------ fences, dispatch

Step thread_fence(Warp& w, const Instr& i, uint32_t lanes) {
  if (w.cluster->observer) {
    w.cluster->observer->fence(agent_of(w, lanes), static_cast<FenceKind>(i.x), Order::acq_rel,
                               Scope::cta);
  }
  return Step::next;
}

bool decode_allocation(Decoder& d, Handler handler, bool has_address, bool has_count) {
  d.out.x = static_cast<uint32_t>(take_cta_group(d));
  if (!d.out.x || !d.take("sync") || !d.take("aligned")) return false;
  if (has_count) {
    if (has_address) d.take("shared::cta");
    if (!d.take("b32")) return false;
    d.make_refs(4);
    d.operand(1);
  }
  d.out.handler = handler;
  return true;
}

bool decode_tcgen05(Decoder& d) {
  if (d.take("alloc")) return decode_allocation(d, allocate, true, true);
  if (d.take("dealloc")) return decode_allocation(d, deallocate, false, true);
  if (d.take("relinquish_alloc_permit")) return decode_allocation(d, relinquish, false, false);
  if (d.take("mma")) return decode_mma(d);
  if (d.take("commit")) return decode_commit(d);
  if (d.take("ld")) return decode_transfer(d, true);
  if (d.take("st")) return decode_transfer(d, false);
  if (d.take("cp")) return decode_copy(d);
  if (d.take("shift")) return decode_shift(d);
  int wait = d.take_one({"wait::ld", "wait::st"});
  if (wait >= 0) {
    d.out.x = static_cast<uint32_t>(wait);
    d.out.handler = wait_transfers;
    return d.take("sync") && d.take("aligned");
  }
  int fence = d.take_one({"fence::before_thread_sync", "fence::after_thread_sync"});
  if (fence < 0) return false;
  d.out.x = static_cast<uint32_t>(fence == 0 ? FenceKind::tcgen05_before_thread_sync
                                             : FenceKind::tcgen05_after_thread_sync);
  d.out.handler = thread_fence;
  return true;
}

}  // namespace

const OpcodeList& tcgen05_opcodes() {
  static const OpcodeList list{{"tcgen05", decode_tcgen05}};
  return list;
}

}  // namespace vgpu::exec
