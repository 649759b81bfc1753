// SPDX-License-Identifier: Apache-2.0
// Exchange between the lanes of a warp: shfl, vote, match, redux, elect, activemask, bar.warp.sync.
// Source: PTX ISA 9.0, sections of those names. All but activemask wait until the live lanes of
// their member mask are at the instruction.
#include <limits>

#include "exec/decoder.hpp"
#include "exec/float_math.hpp"
#include "exec/lanes.hpp"

namespace vgpu::exec {
namespace {

using ptx::Type;

/// Calls f(lanes, present) for each set of lanes that name the same members: PTX requires that the
/// lanes of a member mask execute the instruction with that mask, not that all lanes of the warp
/// name one mask (PTX ISA, "shfl.sync", "vote.sync", "match.sync", "redux.sync", "bar.warp.sync").
/// `present` are the members that have not exited. Sets whose members have not all come yet wait.
template <typename F>
inline Step for_member_sets(Warp& w, uint32_t mask_at, uint32_t lanes, F&& f) {
  const uint32_t* masks = w.lanes<uint32_t>(mask_at);
  uint32_t waiting = 0;
  for (uint32_t rest = lanes; rest;) {
    const uint32_t members = masks[first_lane(rest)];
    uint32_t same = 0;
    for (uint32_t l = 0; l < kLanes; ++l) same |= uint32_t{masks[l] == members} << l;
    same &= rest;
    rest &= ~same;
    if (same & ~members) {
      fault(kIllegalInstruction,
            "lanes %#x execute a warp-level instruction whose member mask %#x lacks them",
            same & ~members, members);
    }
    const uint32_t present = members & w.live;
    if (present & lanes & ~same) {
      fault(kIllegalInstruction,
            "lanes %#x execute a warp-level instruction with member mask %#x, lanes %#x of it with "
            "another mask",
            same, members, present & lanes & ~same);
    }
    if (present & ~same) {
      waiting |= same;
    } else {
      f(same, present);
    }
  }
  if (waiting == 0) return Step::next;
  if (waiting == lanes) return wait_for_lanes(w);
  // Those whose set is complete go on.
  for_lanes(lanes, [&](uint32_t l) { w.jump_targets[l] = w.group->pc + !(waiting >> l & 1); });
  return Step::split;
}

// ------------------------------------------------------------------ shfl

enum class Shuffle { up, down, bfly, idx };

template <Shuffle kMode>
Step shuffle(Warp& w, const Instr& i, uint32_t arrived) {
  return for_member_sets(w, i.y, arrived, [&](uint32_t lanes, uint32_t) {
    const uint32_t *a = w.lanes<uint32_t>(i.a), *b = w.lanes<uint32_t>(i.b),
                   *c = w.lanes<uint32_t>(i.c);
    uint32_t result[kLanes] = {}, in_range = 0;
    for_lanes(lanes, [&](uint32_t l) {
      auto lane = static_cast<int32_t>(l), offset = static_cast<int32_t>(b[l] & 31);
      auto clamp = static_cast<int32_t>(c[l] & 31), segment = static_cast<int32_t>(c[l] >> 8 & 31);
      int32_t high = (lane & segment) | (clamp & ~segment), low = lane & segment, from = 0;
      bool valid = false;
      switch (kMode) {
        case Shuffle::up:
          from = lane - offset;
          valid = from >= high;
          break;
        case Shuffle::down:
          from = lane + offset;
          valid = from <= high;
          break;
        case Shuffle::bfly:
          from = lane ^ offset;
          valid = from <= high;
          break;
        case Shuffle::idx:
          from = low | (offset & ~segment);
          valid = from <= high;
          break;
      }
      if (!valid) from = lane;
      result[l] = a[from];
      in_range |= uint32_t{valid} << l;
    });
    write_lanes<uint32_t>(w, i.d, lanes, [&](uint32_t l) { return result[l]; });
    set_predicate(w, i.x, lanes, in_range);
  });
}

bool decode_shfl(Decoder& d) {
  if (!d.take("sync")) return false;
  int mode = d.take_one({"up", "down", "bfly", "idx"});
  if (d.take_type() != Type::b32) return false;
  auto& destination = d.operand(0);
  bool pair = destination.kind == ptx::Operand::Kind::pair;
  d.out.d = d.dest(pair ? d.child(destination, 0) : destination, 4);
  d.out.x = pair ? d.dest_predicate(d.child(destination, 1)) : 2;
  d.out.a = d.source(1, 4);
  d.out.b = d.source(2, 4);
  d.out.c = d.source(3, 4);
  d.out.y = d.source(4, 4);
  switch (mode) {
    case 0:
      d.out.handler = shuffle<Shuffle::up>;
      break;
    case 1:
      d.out.handler = shuffle<Shuffle::down>;
      break;
    case 2:
      d.out.handler = shuffle<Shuffle::bfly>;
      break;
    case 3:
      d.out.handler = shuffle<Shuffle::idx>;
      break;
    default:
      return false;
  }
  return true;
}

// ------------------------------------------------------------------ vote, match, redux, elect

Step vote(Warp& w, const Instr& i, uint32_t arrived) {  // x: 0 all, 1 any, 2 uni, 3 ballot
  return for_member_sets(w, i.c, arrived, [&](uint32_t lanes, uint32_t present) {
    uint32_t bits = (w.predicates[i.a] ^ i.y) & present;
    if (i.x == 3) {
      write_lanes<uint32_t>(w, i.d, lanes, [=](uint32_t) { return bits; });
      return;
    }
    bool r = i.x == 0 ? bits == present : i.x == 1 ? bits != 0 : bits == 0 || bits == present;
    set_predicate(w, i.d, lanes, r ? kAllLanes : 0);
  });
}

bool decode_vote(Decoder& d) {
  if (!d.take("sync")) return false;
  int mode = d.take_one({"all", "any", "uni", "ballot"});
  if (mode < 0) return false;
  if (!d.take(mode == 3 ? "b32" : "pred")) return false;
  d.out.x = static_cast<uint32_t>(mode);
  d.out.d = mode == 3 ? d.dest(0, 4) : d.dest_predicate(0);
  Ref from = d.source_predicate(1);
  d.out.a = from.at;
  d.out.y = from.negated ? kAllLanes : 0;
  d.out.c = d.source(2, 4);
  d.out.handler = vote;
  return true;
}

template <typename T, bool kAll>
Step match(Warp& w, const Instr& i, uint32_t arrived) {
  return for_member_sets(w, i.c, arrived, [&](uint32_t lanes, uint32_t present) {
    const T* a = w.lanes<T>(i.a);
    uint32_t result[kLanes] = {}, equal_all = 0;
    for_lanes(lanes, [&](uint32_t l) {
      for_lanes(present, [&](uint32_t m) { result[l] |= uint32_t{a[m] == a[l]} << m; });
      if (kAll) {
        if (result[l] == present) {
          equal_all |= 1u << l;
        } else {
          result[l] = 0;
        }
      }
    });
    write_lanes<uint32_t>(w, i.d, lanes, [&](uint32_t l) { return result[l]; });
    if (kAll) set_predicate(w, i.x, lanes, equal_all);
  });
}

bool decode_match(Decoder& d) {
  int mode = d.take_one({"any", "all"});
  if (mode < 0 || !d.take("sync")) return false;
  Type type = d.take_type();
  if (type != Type::b32 && type != Type::b64) return false;
  auto& destination = d.operand(0);
  bool pair = destination.kind == ptx::Operand::Kind::pair;
  d.out.d = d.dest(pair ? d.child(destination, 0) : destination, 4);
  d.out.x = pair ? d.dest_predicate(d.child(destination, 1)) : 2;
  d.out.a = d.source(1, ptx::size_of(type));
  d.out.c = d.source(2, 4);
  if (type == Type::b32) {
    d.out.handler = mode ? match<uint32_t, true> : match<uint32_t, false>;
  } else {
    d.out.handler = mode ? match<uint64_t, true> : match<uint64_t, false>;
  }
  return true;
}

enum class Reduce { add, min, max, and_op, or_op, xor_op };

template <typename T>
Step reduce(Warp& w, const Instr& i, uint32_t arrived) {
  return for_member_sets(w, i.c, arrived, [&](uint32_t lanes, uint32_t present) {
    const T* a = w.lanes<T>(i.a);
    T result = a[first_lane(present)];
    for_lanes(present & (present - 1), [&](uint32_t l) {
      switch (static_cast<Reduce>(i.x)) {
        case Reduce::add:
          result = static_cast<T>(static_cast<uint32_t>(result) + static_cast<uint32_t>(a[l]));
          break;
        case Reduce::min:
          result = a[l] < result ? a[l] : result;
          break;
        case Reduce::max:
          result = result < a[l] ? a[l] : result;
          break;
        case Reduce::and_op:
          result &= a[l];
          break;
        case Reduce::or_op:
          result |= a[l];
          break;
        case Reduce::xor_op:
          result ^= a[l];
          break;
      }
    });
    write_lanes<T>(w, i.d, lanes, [=](uint32_t) { return result; });
  });
}

/// The sm_100 form on f32; x: 1 min, 2 NaN, 4 abs.
Step reduce_float(Warp& w, const Instr& i, uint32_t arrived) {
  return for_member_sets(w, i.c, arrived, [&](uint32_t lanes, uint32_t present) {
    const float* a = w.lanes<float>(i.a);
    const bool is_min = i.x & 1, nan = i.x & 2, abs = i.x & 4;
    float result = std::numeric_limits<float>::quiet_NaN();
    bool any_nan = false;
    for_lanes(present, [&](uint32_t l) {
      const float value = abs ? std::fabs(a[l]) : a[l];
      any_nan |= value != value;
      result = is_min ? min_number(result, value) : max_number(result, value);
    });
    if (nan && any_nan) result = std::numeric_limits<float>::quiet_NaN();
    write_lanes<float>(w, i.d, lanes, [=](uint32_t) { return canonical(result); });
  });
}

bool decode_redux(Decoder& d) {
  if (!d.take("sync")) return false;
  int op = d.take_one({"add", "min", "max", "and", "or", "xor"});
  Type type = d.take_type();
  d.out.x = static_cast<uint32_t>(op);
  d.out.d = d.dest(0, 4);
  d.out.a = d.source(1, 4);
  d.out.c = d.source(2, 4);
  if (type == Type::f32) {
    d.out.x = uint32_t{op == 1} | uint32_t{d.take("NaN")} << 1 | uint32_t{d.take("abs")} << 2;
    d.out.handler = reduce_float;
    return op == 1 || op == 2;
  }
  d.out.handler = type == Type::s32 ? reduce<int32_t> : reduce<uint32_t>;
  return op >= 3 ? type == Type::b32 : op >= 0 && (type == Type::u32 || type == Type::s32);
}

Step elect(Warp& w, const Instr& i, uint32_t arrived) {
  return for_member_sets(w, i.c, arrived, [&](uint32_t lanes, uint32_t present) {
    uint32_t leader = first_lane(present);
    write_lanes<uint32_t>(w, i.d, lanes, [=](uint32_t) { return leader; });
    set_predicate(w, i.x, lanes, 1u << leader);
  });
}

bool decode_elect(Decoder& d) {
  if (!d.take("sync")) return false;
  auto& destination = d.operand(0);
  if (destination.kind != ptx::Operand::Kind::pair) throw BadOperand{"elect needs d|p"};
  d.out.d = d.dest(d.child(destination, 0), 4);
  d.out.x = d.dest_predicate(d.child(destination, 1));
  d.out.c = d.source(1, 4);
  d.out.handler = elect;
  return true;
}

bool decode_activemask(Decoder& d) {
  if (!d.take("b32")) return false;
  d.out.d = d.dest(0, 4);
  d.out.handler = [](Warp& w, const Instr& i, uint32_t lanes) {
    write_lanes<uint32_t>(w, i.d, lanes, [=](uint32_t) { return lanes; });
    return Step::next;
  };
  return true;
}

}  // namespace

Step warp_sync(Warp& w, const Instr& i, uint32_t arrived) {
  return for_member_sets(w, i.a, arrived, [&](uint32_t lanes, uint32_t) {
    if (w.cluster->observer) w.cluster->observer->warp_sync(agent_of(w, lanes));
  });
}

const OpcodeList& warp_opcodes() {
  static const OpcodeList list{
      {"shfl", decode_shfl},   {"vote", decode_vote},   {"match", decode_match},
      {"redux", decode_redux}, {"elect", decode_elect}, {"activemask", decode_activemask},
  };
  return list;
}

}  // namespace vgpu::exec
