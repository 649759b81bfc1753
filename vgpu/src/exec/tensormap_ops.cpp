// SPDX-License-Identifier: Apache-2.0
// tensormap.replace and tensormap.cp_fenceproxy: tensor maps made on the device. Source: PTX ISA
// 9.0, "tensormap.replace", "tensormap.cp_fenceproxy".
#include "exec/lanes.hpp"
#include "exec/memory_ops.hpp"
#include "tma/tensor_map.hpp"

namespace vgpu::exec {
namespace {

constexpr uint32_t kMapBytes = 128, kHalf = 64;  // a map is aligned to half its size

/// The bytes of a map, checked and told to the observer.
uint8_t* map_bytes(Warp& w, uint32_t lane, AddressSpace space, uint64_t address, Access access) {
  uint8_t* halves[2];
  for (uint32_t k = 0; k < 2; ++k) {
    uint64_t addresses[kLanes];
    uint8_t* pointers[kLanes];
    addresses[lane] = address + uint64_t{k} * kHalf;
    resolve(w, {space, kHalf, access, Order::weak, Scope::cta}, 1u << lane, addresses, pointers);
    halves[k] = pointers[lane];
  }
  return halves[0];
}

struct Replacement {
  AddressSpace space = AddressSpace::generic;
  tma::Field field = tma::Field::global_address;
  bool has_ordinal = false;
};

Step replace(Warp& w, const Instr& i, uint32_t lanes) {
  auto& r = *static_cast<const Replacement*>(i.extra);
  for_lanes(lanes, [&](uint32_t l) {
    uint8_t* map = map_bytes(w, l, r.space, read_address(w, i[0], l), Access::write);
    const auto ordinal = r.has_ordinal ? static_cast<uint32_t>(read_lane(w, i[1], l)) : 0;
    const uint64_t value = read_lane(w, i[r.has_ordinal ? 2 : 1], l);
    const std::string why = tma::replace(map, r.field, ordinal, value);
    if (!why.empty()) fault(kIllegalInstruction, "tensormap.replace: %s", why.c_str());
  });
  return Step::next;
}

bool decode_replace(Decoder& d) {
  auto& r = d.extra<Replacement>();
  if (!d.take("tile")) return false;
  const int field = d.take_one({"global_address", "rank", "box_dim", "global_dim", "global_stride",
                                "element_stride", "elemtype", "interleave_layout", "swizzle_mode",
                                "swizzle_atomicity", "fill_mode"});
  if (field < 0) return false;
  r.field = static_cast<tma::Field>(field);
  r.has_ordinal = field >= 2 && field <= 5;
  r.space = take_space(d);
  const bool wide = r.field == tma::Field::global_address || r.field == tma::Field::global_stride;
  if (!d.take("b1024") || !d.take(wide ? "b64" : "b32")) return false;
  if (d.count() != 2u + r.has_ordinal) return false;
  if (d.operand(0).kind != ptx::Operand::Kind::address) throw BadOperand{"an address is needed"};
  if (r.has_ordinal) d.source(1, 4);
  d.source(r.has_ordinal ? 2 : 1, wide ? 8 : 4);
  d.make_refs(wide ? 8 : 4);
  d.out.handler = replace;
  return true;
}

/// Copies a map from shared to global memory for the whole warp, and fences it.
Step copy_fenced(Warp& w, const Instr& i, uint32_t lanes) {
  if (!converged(w, lanes, kAllLanes)) return wait_for_lanes(w);
  const uint32_t lane = first_lane(lanes);
  const uint8_t* from =
      map_bytes(w, lane, AddressSpace::shared_cta, read_address(w, i[1], lane), Access::read);
  uint8_t* to =
      map_bytes(w, lane, AddressSpace::global, read_address(w, i[0], lane), Access::write);
  std::memcpy(to, from, kMapBytes);
  if (auto* observer = w.cluster->observer) {
    observer->fence(agent_of(w, lanes), FenceKind::proxy_tensormap, Order::release,
                    static_cast<Scope>(i.x));
  }
  return Step::next;
}

bool decode_copy_fenced(Decoder& d) {
  if (!d.take("global") || !d.take("shared::cta") || !d.take("tensormap::generic") ||
      !d.take("release")) {
    return false;
  }
  const int scope = d.take_one({"cta", "cluster", "gpu", "sys"});
  if (scope < 0 || !d.take("sync") || !d.take("aligned")) return false;
  if (d.immediate(2) != kMapBytes) throw BadOperand{"the size must be 128"};
  d.out.x = static_cast<uint32_t>(scope);
  d.make_refs(8);
  d.out.handler = copy_fenced;
  return true;
}

bool decode_tensormap(Decoder& d) {
  if (d.take("replace")) return decode_replace(d);
  return d.take("cp_fenceproxy") && decode_copy_fenced(d);
}

}  // namespace

const OpcodeList& tensormap_opcodes() {
  static const OpcodeList list{{"tensormap", decode_tensormap}};
  return list;
}

}  // namespace vgpu::exec
