// SPDX-License-Identifier: Apache-2.0
// mov (with packing, unpacking and special registers), cvta, isspacep. Source: PTX ISA 9.0, "Data
// Movement and Conversion Instructions".
#include <chrono>

#include "exec/decoder.hpp"
#include "exec/lanes.hpp"

namespace vgpu::exec {
namespace {

using ptx::Type;

Step move_predicate(Warp& w, const Instr& i, uint32_t lanes) {
  set_predicate(w, i.d, lanes, w.predicates[i.a] ^ i.x);
  return Step::next;
}

/// %is_explicit_cluster is a predicate; special registers are kept as words.
Step special_predicate(Warp& w, const Instr& i, uint32_t lanes) {
  const uint32_t* a = w.lanes<uint32_t>(i.a);
  uint32_t bits = 0;
  for_lanes(lanes, [&](uint32_t l) { bits |= uint32_t{a[l] != 0} << l; });
  set_predicate(w, i.d, lanes, bits);
  return Step::next;
}

Step move_128(Warp& w, const Instr& i, uint32_t lanes) {
  const uint8_t* a = w.lanes<uint8_t>(i.a);
  uint8_t* d = w.lanes<uint8_t>(i.d);
  for_lanes(lanes, [&](uint32_t l) { std::memcpy(d + 16 * l, a + 16 * l, 16); });
  return Step::next;
}

/// A vector's members are parts of a scalar, the first at the low end. Instr::x: bytes of a part,
/// Instr::y: of the scalar.
Step unpack(Warp& w, const Instr& i, uint32_t lanes) {
  const Ref& parts = i[0];
  const uint8_t* scalar = w.registers + i[1].at;
  for_lanes(lanes, [&](uint32_t l) {
    // Read all before writing: a destination may be part of the source.
    uint8_t bytes[16];
    std::memcpy(bytes, scalar + l * i.y, i.y);
    for (uint32_t k = 0; k < parts.count; ++k) {
      uint64_t value = 0;
      std::memcpy(&value, bytes + k * i.x, i.x);
      write_lane(w, parts[k], l, value);
    }
  });
  return Step::next;
}
Step pack(Warp& w, const Instr& i, uint32_t lanes) {
  const Ref& parts = i[1];
  uint8_t* scalar = w.registers + i.d;
  for_lanes(lanes, [&](uint32_t l) {
    uint8_t bytes[16];
    for (uint32_t k = 0; k < parts.count; ++k) {
      uint64_t value = read_lane(w, parts[k], l);
      std::memcpy(bytes + k * i.x, &value, i.x);
    }
    std::memcpy(scalar + l * i.y, bytes, i.y);
  });
  return Step::next;
}
/// {lo, hi}, halves of 32 or 16 bits: the frequent cases.
template <typename Wide, typename Half>
Step pack_pair(Warp& w, const Instr& i, uint32_t lanes) {
  const Half *a = w.lanes<Half>(i.a), *b = w.lanes<Half>(i.b);
  write_lanes<Wide>(w, i.d, lanes,
                    [=](uint32_t l) { return Wide{b[l]} << 8 * sizeof(Half) | a[l]; });
  return Step::next;
}
template <typename Wide, typename Half>
Step unpack_pair(Warp& w, const Instr& i, uint32_t lanes) {
  const Wide* a = w.lanes<Wide>(i.a);
  Wide value[kLanes];
  std::memcpy(value, a, sizeof value);
  write_lanes<Half>(w, i.d, lanes, [&](uint32_t l) { return static_cast<Half>(value[l]); });
  write_lanes<Half>(w, i.b, lanes,
                    [&](uint32_t l) { return static_cast<Half>(value[l] >> 8 * sizeof(Half)); });
  return Step::next;
}

/// %clock, %clock64: instructions executed by the warp; %globaltimer: host nanoseconds.
template <typename T, int kWhich>
Step read_clock(Warp& w, const Instr& i, uint32_t lanes) {
  uint64_t value = w.cluster->worker->warp_instructions * 4;
  if (kWhich == 1) value >>= 32;
  if (kWhich >= 2) {
    value = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                      std::chrono::steady_clock::now().time_since_epoch())
                                      .count());
  }
  write_lanes<T>(w, i.d, lanes, [=](uint32_t) { return static_cast<T>(value); });
  return Step::next;
}

bool decode_clock(Decoder& d, const std::string& name, unsigned bytes) {
  if (name == "%clock64" || name == "%globaltimer") {
    d.out.d = d.dest(0, 8);
    d.out.handler = name == "%clock64" ? read_clock<uint64_t, 0> : read_clock<uint64_t, 2>;
    return bytes == 8;
  }
  d.out.d = d.dest(0, 4);
  d.out.handler = name == "%clock"      ? read_clock<uint32_t, 0>
                  : name == "%clock_hi" ? read_clock<uint32_t, 1>
                                        : read_clock<uint32_t, 2>;
  return bytes == 4;
}

bool decode_pack(Decoder& d, unsigned bytes) {
  bool unpacks = d.is_vector(0);
  auto& group = d.operand(unpacks ? 0 : 1);
  if (group.count < 2 || bytes % group.count) return false;
  unsigned part = bytes / group.count;
  for (unsigned k = 0; k < group.count; ++k) {
    // Parts of one byte live in 16-bit registers.
    unsigned width = d.register_bytes(d.child(group, k));
    if (width && width != std::max(2u, part)) throw BadOperand{"parts of mov have the wrong width"};
  }
  d.out.x = part;
  d.out.y = bytes;
  bool pair = group.count == 2;
  if (unpacks) {
    d.out.a = d.source(1, bytes);
    d.make_refs(bytes);
    if (pair && (bytes == 8 || bytes == 4)) {
      d.out.d = d.dest(d.child(group, 0), part);
      d.out.b = d.dest(d.child(group, 1), part);
      // Both halves into one register would depend on the order: leave that to the slow path.
      if (d.out.d != d.out.b) {
        d.out.handler =
            bytes == 8 ? unpack_pair<uint64_t, uint32_t> : unpack_pair<uint32_t, uint16_t>;
        return true;
      }
    }
    d.out.handler = unpack;
    return true;
  }
  d.out.d = d.dest(0, bytes);
  if (pair && (bytes == 8 || bytes == 4)) {
    d.out.a = d.source(d.child(group, 0), part);
    d.out.b = d.source(d.child(group, 1), part);
    d.out.handler = bytes == 8 ? pack_pair<uint64_t, uint32_t> : pack_pair<uint32_t, uint16_t>;
    return true;
  }
  d.make_refs(part);
  d.out.handler = pack;
  return true;
}

bool decode_mov(Decoder& d) {
  Type type = d.take_type();
  if (type == Type::pred && d.operand(1).kind == ptx::Operand::Kind::special) {
    d.out.d = d.dest_predicate(0);
    d.out.a = d.source(1, 4);
    d.out.handler = special_predicate;
    return true;
  }
  if (type == Type::pred) {
    Ref from = d.source_predicate(1);
    d.out.d = d.dest_predicate(0);
    d.out.a = from.at;
    d.out.x = from.negated ? kAllLanes : 0;
    d.out.handler = move_predicate;
    return true;
  }
  unsigned bytes = ptx::size_of(type);
  if (bytes < 2) return false;
  if (d.is_vector(0) || d.is_vector(1)) return decode_pack(d, bytes);
  if (d.operand(1).kind == ptx::Operand::Kind::special) {
    auto& name = d.module().specials[d.operand(1).index];
    if (name == "%clock" || name == "%clock64" || name == "%clock_hi" || name == "%globaltimer" ||
        name == "%globaltimer_lo") {
      return decode_clock(d, name, bytes);
    }
  }
  d.out.d = d.dest(0, bytes);
  d.out.a = d.source(1, bytes);
  switch (bytes) {
    case 2:
      d.out.handler = unary<uint16_t, uint16_t, [](uint16_t a) { return a; }>;
      break;
    case 4:
      d.out.handler = unary<uint32_t, uint32_t, [](uint32_t a) { return a; }>;
      break;
    case 8:
      d.out.handler = unary<uint64_t, uint64_t, [](uint64_t a) { return a; }>;
      break;
    case 16:
      d.out.handler = move_128;
      break;
    default:
      break;
  }
  return true;
}

// ------------------------------------------------------------------ generic addresses
// Global and param addresses are host addresses: the same in the generic space.

bool decode_cvta(Decoder& d) {
  bool to = d.take("to");
  int space = d.take_one({"global", "const", "param", "param::entry", "shared", "shared::cta",
                          "shared::cluster", "local"});
  if (space < 0 || d.take_type() != Type::u64) return false;
  d.out.d = d.dest(0, 8);
  d.out.a = d.source(1, 8);
  using U = uint64_t;
  if (space <= 3) {
    d.out.handler = unary<U, U, [](U a) { return a; }>;
  } else if (space <= 6) {
    d.out.handler = to ? unary<U, U, [](U a) { return a & 0xffffffffu; }>
                       : unary<U, U, [](U a) { return (a & 0xffffffffu) | kSharedWindow; }>;
  } else {
    d.out.handler = to ? unary<U, U, [](U a) { return a - kLocalWindow; }>
                       : unary<U, U, [](U a) { return a + kLocalWindow; }>;
  }
  return true;
}

Step is_space(Warp& w, const Instr& i, uint32_t lanes) {
  const uint64_t* a = w.lanes<uint64_t>(i.a);
  uint32_t bits = 0;
  for (uint32_t l = 0; l < kLanes; ++l) {
    bool shared = (a[l] >> 32) == (kSharedWindow >> 32);
    bool local = (a[l] >> 56) == (kLocalWindow >> 56);
    bool own = ((a[l] & 0xffffffffu) >> kSharedRankShift) == w.cta->rank;
    auto params = reinterpret_cast<uint64_t>(w.cluster->grid->params);
    bool param = a[l] - params < w.cluster->grid->param_bytes;
    // The parameters lie within the global window (PTX ISA, "isspacep"), constants do not.
    auto* memory = w.cluster->grid->request->memory;
    bool constant =
        !shared && !local && !param && i.x <= 1 && memory && memory->find(a[l]).read_only;
    bool r = i.x == 0   ? !shared && !local && !constant
             : i.x == 1 ? constant
             : i.x == 2 ? param
             : i.x == 3 ? shared && own
             : i.x == 4 ? shared
                        : local;
    bits |= uint32_t{r} << l;
  }
  set_predicate(w, i.d, lanes, bits);
  return Step::next;
}

bool decode_isspacep(Decoder& d) {
  static constexpr uint32_t kWhich[] = {0, 1, 2, 2, 3, 3, 4, 5};
  int space = d.take_one({"global", "const", "param", "param::entry", "shared", "shared::cta",
                          "shared::cluster", "local"});
  if (space < 0) return false;
  d.out.d = d.dest_predicate(0);
  d.out.a = d.source(1, 8);
  d.out.x = kWhich[space];
  d.out.handler = is_space;
  return true;
}

}  // namespace

const OpcodeList& move_opcodes() {
  static const OpcodeList list{
      {"mov", decode_mov}, {"cvta", decode_cvta}, {"isspacep", decode_isspacep}};
  return list;
}

}  // namespace vgpu::exec
