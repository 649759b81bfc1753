// SPDX-License-Identifier: Apache-2.0
// wgmma: the asynchronous side. The arithmetic is in tensor/wgmma. Source: PTX ISA 9.0,
// "Asynchronous Warpgroup Level Matrix Instructions".
#include "exec/async.hpp"
#include "exec/decoder.hpp"
#include "exec/tensor_visitor.hpp"
#include "tensor/wgmma.hpp"

namespace vgpu::exec {
namespace {

constexpr uint32_t kGroupWarps = 4;

struct WgmmaOp {
  tensor::WgmmaInstruction instruction;
  Ref scale_d;
  uint32_t metadata = 0;  ///< sparse: the place of sp-meta in the register file
};

/// One warp's part of a warpgroup instruction.
struct WgmmaIssue {
  const WgmmaOp* op = nullptr;
  const Instr* instr = nullptr;
  uint64_t number = 0;
  uint64_t a_descriptor = 0, b_descriptor = 0;
  bool scale_d = true;
  std::array<const uint32_t*, tensor::kWgmmaARegisters> a{};
  const uint32_t* metadata = nullptr;
  std::vector<uint32_t*> d;
};

/// The warps of a warp's warpgroup.
template <typename F>
void for_warpgroup(Warp& w, F&& f) {
  uint32_t first = w.id / kGroupWarps * kGroupWarps;
  for (uint32_t k = first; k < first + kGroupWarps; ++k) f(*w.cta->warps[k]);
}

/// NOTE: wgmma belongs to the whole warpgroup (PTX ISA, wgmma.mma_async): it starts when its four
/// warps have issued it and is done for all of them at once.
bool issued_by_all(Warp& w, uint64_t number) {
  bool all = true;
  for_warpgroup(w, [&](Warp& each) { all &= &each == &w || each.wgmma_issued > number; });
  return all;
}

const WgmmaIssue& issue_of(const AsyncTask& task) {
  return *static_cast<const WgmmaIssue*>(task.payload.get());
}

/// Computes an instruction for the four warps in one go. The observer hears of each warp's own
/// operation: every access has its issuer.
void compute(Warp& w, const WgmmaIssue& issue, const AsyncOp& op) {
  tensor::WgmmaOperands operands;
  operands.a_descriptor = issue.a_descriptor;
  operands.b_descriptor = issue.b_descriptor;
  operands.scale_d = issue.scale_d;
  auto add = [&](uint32_t warp, const WgmmaIssue& part) {
    operands.a_registers[warp % kGroupWarps] = part.a;
    operands.d_registers[warp % kGroupWarps] = part.d.data();
    operands.metadata[warp % kGroupWarps] = part.metadata;
  };
  add(w.id, issue);
  std::array<std::pair<Warp*, AsyncTask>, kGroupWarps - 1> others;
  uint32_t count = 0;
  for_warpgroup(w, [&](Warp& each) {
    if (&each == &w || each.wgmmas.empty()) return;
    auto& part = issue_of(each.wgmmas.front());
    if (part.number != issue.number) return;
    if (part.instr != issue.instr || part.b_descriptor != issue.b_descriptor ||
        part.a_descriptor != issue.a_descriptor || part.scale_d != issue.scale_d) {
      fault(kIllegalInstruction,
            "wgmma: warps %u and %u of a warpgroup execute different instructions or give "
            "different descriptors",
            w.id, each.id);
    }
    others[count] = {&each, std::move(each.wgmmas.front())};
    each.wgmmas.pop_front();
    add(each.id, issue_of(others[count++].second));
  });
  const auto& instruction = issue.op->instruction;
  if (w.cluster->observer) {
    tensor::WgmmaReads reads;
    tensor::find_reads(instruction, operands, shared_view(*w.cta), reads);
    auto tell = [&](const Warp& warp, const AsyncOp& its) {
      TensorVisitor visitor(*w.cluster, its, w.cta->rank);
      visitor.shared_chunks(0, reads.b.span());
      if (!instruction.a_in_registers) {
        visitor.set_rows(instruction.a_major == tensor::Major::k ? 1 : 8);
        visitor.shared_chunks(0, reads.a[warp.id % kGroupWarps].span());
      }
    };
    tell(w, op);
    for (uint32_t k = 0; k < count; ++k) {
      others[k].second.run = [&, k](const AsyncOp& its) { tell(*others[k].first, its); };
      perform(*w.cluster, others[k].second);
    }
  }
  tensor::wgmma(instruction, operands, shared_view(*w.cta));
}

Step mma_async(Warp& w, const Instr& i, uint32_t lanes) {
  if (!converged(w, lanes, kAllLanes)) return wait_for_lanes(w);
  if (lanes != kAllLanes) {
    fault(kIllegalInstruction, "wgmma by lanes %#x: .aligned needs all 32 lanes of the warp",
          lanes);
  }
  if (w.id / kGroupWarps * kGroupWarps + kGroupWarps > w.cta->warps.size()) {
    fault(kIllegalInstruction, "wgmma by warp %u: its warpgroup has less than 4 warps", w.id);
  }
  auto& op = *static_cast<const WgmmaOp*>(i.extra);
  auto issue_data = std::make_shared<WgmmaIssue>();
  issue_data->op = &op;
  issue_data->instr = &i;
  issue_data->number = w.wgmma_issued++;
  uint32_t l = 0;
  if (op.instruction.a_in_registers) {
    for (uint32_t k = 0; k < tensor::kWgmmaARegisters; ++k) {
      issue_data->a[k] = w.lanes<uint32_t>(i[1][k].at);
    }
  } else {
    issue_data->a_descriptor = read_lane(w, i[1], l);
  }
  issue_data->b_descriptor = read_lane(w, i[2], l);
  if (op.instruction.sparse) issue_data->metadata = w.lanes<uint32_t>(op.metadata);
  issue_data->scale_d = predicate(w, op.scale_d) & 1;
  for (uint32_t k = 0; k < i[0].count; ++k) issue_data->d.push_back(w.lanes<uint32_t>(i[0][k].at));

  AsyncTask task;
  task.op = make_async(w, lanes, AsyncKind::wgmma);
  task.op.accumulates = issue_data->scale_d;
  // Of a sparse A only what is stored is multiplied.
  task.op.macs = uint64_t{16} * op.instruction.n * tensor::wgmma_k(op.instruction.a);
  w.cluster->worker->mma_macs += task.op.macs;
  task.group = w.wgmma_committed;
  task.payload = issue_data;
  Warp* warp = &w;
  task.run = [=](const AsyncOp& async) { compute(*warp, *issue_data, async); };
  task.ready = [=] { return issued_by_all(*warp, issue_data->number); };
  issue(*w.cluster, w.wgmmas, std::move(task));
  wake(*w.cluster);
  return Step::next;
}

Step commit(Warp& w, const Instr&, uint32_t lanes) {
  if (!converged(w, lanes, kAllLanes)) return wait_for_lanes(w);
  ++w.wgmma_committed;
  if (w.cluster->observer) w.cluster->observer->group_commit(agent_of(w, lanes), GroupKind::wgmma);
  return Step::next;
}

Step wait(Warp& w, const Instr& i, uint32_t lanes) {
  if (!converged(w, lanes, kAllLanes)) return wait_for_lanes(w);
  // Everything in groups before the last imm committed ones happens now at the latest.
  auto keep = static_cast<uint64_t>(i.imm);
  while (!w.wgmmas.empty() && w.wgmmas.front().group + keep < w.wgmma_committed) {
    if (!w.wgmmas.front().ready()) {
      return block(w, "wgmma.wait_group: other warps of its warpgroup");
    }
    drain(*w.cluster, w.wgmmas, w.wgmmas.size() - 1);
  }
  if (w.cluster->observer) {
    w.cluster->observer->group_wait(agent_of(w, lanes), GroupKind::wgmma,
                                    static_cast<uint32_t>(keep));
  }
  return Step::next;
}

Step fence(Warp& w, const Instr&, uint32_t lanes) {
  if (!converged(w, lanes, kAllLanes)) return wait_for_lanes(w);
  if (w.cluster->observer) {
    w.cluster->observer->fence(agent_of(w, lanes), FenceKind::wgmma, Order::acq_rel, Scope::cta);
  }
  return Step::next;
}

bool element_type(std::string_view name, tensor::ElementType& type) {
  using E = tensor::ElementType;
  if (name == "f16") return type = E::f16, true;
  if (name == "bf16") return type = E::bf16, true;
  if (name == "tf32") return type = E::tf32, true;
  if (name == "e4m3") return type = E::e4m3, true;
  if (name == "e5m2") return type = E::e5m2, true;
  if (name == "s8") return type = E::s8, true;
  if (name == "u8") return type = E::u8, true;
  return false;
}

bool decode_mma(Decoder& d, bool sparse) {
  auto& op = d.extra<WgmmaOp>();
  auto& in = op.instruction;
  bool saturates = d.take("satfinite");
  auto shape = d.take_next(), accumulator = d.take_next(), a = d.take_next(), b = d.take_next();
  unsigned n = 0, k = 0;
  if (std::sscanf(std::string(shape).c_str(), "m64n%uk%u", &n, &k) != 2) return false;
  in.n = n;
  in.satfinite = saturates;
  if (!element_type(a, in.a) || !element_type(b, in.b)) return false;
  if (accumulator == "f32") {
    in.d = tensor::AccumulatorType::f32;
  } else if (accumulator == "f16") {
    in.d = tensor::AccumulatorType::f16;
  } else if (accumulator == "s32") {
    in.d = tensor::AccumulatorType::s32;
  } else {
    return false;
  }
  in.a_in_registers = d.is_vector(1);
  in.sparse = sparse;
  if (k != tensor::wgmma_k(in.a) * (sparse ? 2 : 1)) return false;
  // d, a, b, [sp-meta, sp-sel (sparse)], scale-d, [scale-a, scale-b], [trans-a (A in shared
  // memory)], [trans-b]
  unsigned at = 3;
  if (sparse) {
    op.metadata = d.source(at++, 4);
    in.sparsity_selector = static_cast<uint32_t>(d.immediate(at++));
  }
  op.scale_d = d.source_predicate(at++);
  bool is_float = !tensor::is_integer(in.a);
  bool transposes = in.a == tensor::ElementType::f16 || in.a == tensor::ElementType::bf16;
  auto flag = [&]() -> int64_t { return d.count() > at ? d.immediate(at++) : 0; };
  if (is_float && d.count() > at) {
    in.scale_a = static_cast<int>(flag());
    in.scale_b = static_cast<int>(flag());
  }
  if (transposes && d.count() > at) {
    if (!in.a_in_registers) in.a_major = flag() ? tensor::Major::mn : tensor::Major::k;
    in.b_major = flag() ? tensor::Major::mn : tensor::Major::k;
  }
  if (at != d.count()) return false;
  try {
    tensor::validate(in);
  } catch (const Fault& fault) {
    throw BadOperand{fault.text};
  }
  auto& registers = d.operand(0);
  if (registers.kind != ptx::Operand::Kind::vector ||
      registers.count != tensor::wgmma_d_registers(in)) {
    throw BadOperand{format("wgmma needs %u accumulator registers", tensor::wgmma_d_registers(in))};
  }
  for (unsigned r = 0; r < registers.count; ++r) d.dest(d.child(registers, r), 4);
  if (in.a_in_registers) {
    if (d.operand(1).count != tensor::kWgmmaARegisters) {
      throw BadOperand{"wgmma needs 4 registers of A"};
    }
    for (unsigned r = 0; r < tensor::kWgmmaARegisters; ++r) d.source(d.child(d.operand(1), r), 4);
  } else {
    d.source(1, 8);
  }
  d.source(2, 8);
  d.make_refs(8);
  d.out.handler = mma_async;
  return true;
}

bool decode_wgmma(Decoder& d) {
  int kind = d.take_one({"mma_async", "commit_group", "wait_group", "fence"});
  const bool sparse = kind == 0 && d.take("sp");
  if (kind < 0 || !d.take("sync") || !d.take("aligned")) return false;
  switch (kind) {
    case 0:
      return decode_mma(d, sparse);
    case 1:
      d.out.handler = commit;
      return true;
    case 2:
      d.out.imm = d.immediate(0);
      d.out.handler = wait;
      return d.out.imm >= 0;
    default:
      d.out.handler = fence;
      return true;
  }
}

}  // namespace

const OpcodeList& wgmma_opcodes() {
  static const OpcodeList list{{"wgmma", decode_wgmma}};
  return list;
}

}  // namespace vgpu::exec
