// SPDX-License-Identifier: Apache-2.0
// atom and red. Source: PTX ISA 9.0, "atom", "red". Lanes go one after the other; global memory is
// updated with the host's atomics, since other clusters may run on other threads.
#include "exec/float_math.hpp"
#include "exec/lanes.hpp"
#include "exec/memory_ops.hpp"

namespace vgpu::exec {
namespace {

using ptx::Type;

enum class Op { add, min, max, and_op, or_op, xor_op, inc, dec, exch, cas };

struct Atomic {
  MemoryRequest request;
  unsigned vector = 1;
  unsigned bytes = 4;
  Type type = Type::u32;
  Op op = Op::add;
  bool returns = false;
  Ref result, value, swap;  ///< vectors have children copied into `results` / `values`
  std::vector<Ref> results, values;
  uint64_t (*apply)(uint64_t, uint64_t, uint64_t) = nullptr;
  uint64_t (*apply_global)(uint64_t, uint64_t, uint64_t) = nullptr;  ///< in global memory
};

template <typename T>
T from_bits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
template <typename T>
uint64_t to_bits(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

template <typename T, Op kOp>
uint64_t apply_integer(uint64_t old_bits, uint64_t b_bits, uint64_t c_bits) {
  T old = from_bits<T>(old_bits), b = from_bits<T>(b_bits), c = from_bits<T>(c_bits);
  using U = std::make_unsigned_t<T>;
  switch (kOp) {
    case Op::add:
      return to_bits(static_cast<T>(static_cast<U>(old) + static_cast<U>(b)));
    case Op::min:
      return to_bits(b < old ? b : old);
    case Op::max:
      return to_bits(old < b ? b : old);
    case Op::and_op:
      return to_bits(static_cast<T>(old & b));
    case Op::or_op:
      return to_bits(static_cast<T>(old | b));
    case Op::xor_op:
      return to_bits(static_cast<T>(old ^ b));
    case Op::inc:
      return to_bits(static_cast<T>(b <= old ? T(0) : old + 1));
    case Op::dec:
      return to_bits(static_cast<T>(old == 0 || b < old ? b : old - 1));
    case Op::exch:
      return b_bits;
    case Op::cas:
      return old == b ? to_bits(c) : old_bits;
  }
  return old_bits;
}

template <typename T, Op kOp>
uint64_t apply_float(uint64_t old_bits, uint64_t b_bits, uint64_t) {
  T old = from_bits<T>(old_bits), b = from_bits<T>(b_bits);
  if (kOp == Op::add) return to_bits(canonical(old + b));
  return to_bits(kOp == Op::min ? min_number(old, b) : max_number(old, b));
}

/// add.f32 of global memory flushes subnormals, that of shared memory does not (PTX ISA, "atom",
/// "red").
uint64_t add_flushed(uint64_t old_bits, uint64_t b_bits, uint64_t) {
  const float old = flush(from_bits<float>(old_bits)), b = flush(from_bits<float>(b_bits));
  return to_bits(flush(canonical(old + b)));
}

template <typename F, Op kOp>
uint16_t apply_half(uint16_t old, uint16_t b) {
  float x = F::widen(old), y = F::widen(b);
  if (kOp == Op::add) return F::narrow(x + y);
  if (x != x && y != y) return 0x7fff;
  return F::narrow(kOp == Op::min ? min_number(x, y) : max_number(x, y));
}
template <typename F, Op kOp, bool kPair>
uint64_t apply_halves(uint64_t old, uint64_t b, uint64_t) {
  uint64_t low = apply_half<F, kOp>(static_cast<uint16_t>(old), static_cast<uint16_t>(b));
  if (!kPair) return low;
  return low | uint64_t{apply_half<F, kOp>(static_cast<uint16_t>(old >> 16),
                                           static_cast<uint16_t>(b >> 16))}
                   << 16;
}

/// old = *p; *p = f(old): atomically with respect to other host threads.
template <typename T, typename F>
uint64_t update(uint8_t* p, F&& apply, uint64_t b, uint64_t c) {
  auto* target = reinterpret_cast<T*>(p);
  T old = __atomic_load_n(target, __ATOMIC_SEQ_CST);
  for (;;) {
    T next = static_cast<T>(apply(old, b, c));
    if (__atomic_compare_exchange_n(target, &old, next, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST)) {
      return old;
    }
  }
}

/// b128: exch and cas; one lock for all. True when the value changed.
bool update_128(uint8_t* p, const Warp& w, const Atomic& a, uint32_t lane, uint8_t* old) {
  std::lock_guard guard(wide_access());
  std::memcpy(old, p, 16);
  const uint8_t* b = w.registers + a.value.at + lane * 16;
  if (a.op == Op::exch) {
    std::memcpy(p, b, 16);
  } else if (!std::memcmp(old, b, 16)) {
    std::memcpy(p, w.registers + a.swap.at + lane * 16, 16);
  }
  return std::memcmp(old, p, 16) != 0;
}

Step atomic(Warp& w, const Instr& i, uint32_t lanes) {
  auto& a = *static_cast<const Atomic*>(i.extra);
  uint64_t addresses[kLanes];
  uint8_t* pointers[kLanes];
  read_addresses(w, i[a.returns ? 1 : 0], addresses);
  const uint64_t activity = w.cluster->activity;
  bool changed = false;
  resolve(w, a.request, lanes, addresses, pointers);
  for_lanes(lanes, [&](uint32_t l) {
    if (a.bytes == 16) {
      uint8_t old[16];
      changed |= update_128(pointers[l], w, a, l, old);
      if (a.returns && a.result.kind == Ref::Kind::reg) {
        std::memcpy(w.registers + a.result.at + l * 16, old, 16);
      }
      return;
    }
    const auto apply = is_global(a.request, addresses[l]) ? a.apply_global : a.apply;
    for (unsigned k = 0; k < a.vector; ++k) {
      uint64_t b = read_lane(w, a.values[k], l);
      uint64_t c = a.op == Op::cas ? read_lane(w, a.swap, l) : 0;
      uint8_t* p = pointers[l] + k * a.bytes;
      uint64_t old = a.bytes == 2   ? update<uint16_t>(p, apply, b, c)
                     : a.bytes == 4 ? update<uint32_t>(p, apply, b, c)
                                    : update<uint64_t>(p, apply, b, c);
      changed |= apply(old, b, c) != old;
      if (a.returns) write_lane(w, a.results[k], l, old);
    }
  });
  // What changes nothing may be the poll of a lock or a counter: no sign of life.
  if (!changed) w.cluster->activity = activity;
  return !changed || a.op == Op::cas || a.op == Op::exch ? Step::poll : Step::next;
}

template <typename T>
uint64_t (*integer_function(Op op))(uint64_t, uint64_t, uint64_t) {
  switch (op) {
    case Op::add:
      return apply_integer<T, Op::add>;
    case Op::min:
      return apply_integer<T, Op::min>;
    case Op::max:
      return apply_integer<T, Op::max>;
    case Op::and_op:
      return apply_integer<T, Op::and_op>;
    case Op::or_op:
      return apply_integer<T, Op::or_op>;
    case Op::xor_op:
      return apply_integer<T, Op::xor_op>;
    case Op::inc:
      return apply_integer<T, Op::inc>;
    case Op::dec:
      return apply_integer<T, Op::dec>;
    case Op::exch:
      return apply_integer<T, Op::exch>;
    case Op::cas:
      return apply_integer<T, Op::cas>;
  }
  return nullptr;
}

bool pick_function(Atomic& a) {
  bool bitwise = a.op == Op::and_op || a.op == Op::or_op || a.op == Op::xor_op;
  bool swap = a.op == Op::exch || a.op == Op::cas;
  bool counts = a.op == Op::inc || a.op == Op::dec;
  bool min_max = a.op == Op::min || a.op == Op::max;
  switch (a.type) {
    case Type::b16:
      a.apply = integer_function<uint16_t>(a.op);
      return swap;
    case Type::b32:
      a.apply = integer_function<uint32_t>(a.op);
      return swap || bitwise;
    case Type::b64:
      a.apply = integer_function<uint64_t>(a.op);
      return swap || bitwise;
    case Type::b128:
      return swap;
    case Type::u32:
      a.apply = integer_function<uint32_t>(a.op);
      return a.op == Op::add || min_max || counts;
    case Type::s32:
      a.apply = integer_function<int32_t>(a.op);
      return a.op == Op::add || min_max;
    case Type::u64:
      a.apply = integer_function<uint64_t>(a.op);
      return a.op == Op::add || min_max;
    case Type::s64:
      a.apply = integer_function<int64_t>(a.op);
      return min_max || a.op == Op::add;
    case Type::f32:
      a.apply = a.op == Op::add   ? apply_float<float, Op::add>
                : a.op == Op::min ? apply_float<float, Op::min>
                                  : apply_float<float, Op::max>;
      return a.op == Op::add || (min_max && a.vector > 1);
    case Type::f64:
      a.apply = apply_float<double, Op::add>;
      return a.op == Op::add;
#define VGPU_HALF(type, format, pair)                                  \
  case Type::type:                                                     \
    a.apply = a.op == Op::add   ? apply_halves<format, Op::add, pair>  \
              : a.op == Op::min ? apply_halves<format, Op::min, pair>  \
                                : apply_halves<format, Op::max, pair>; \
    return a.op == Op::add || (min_max && a.vector > 1);
      VGPU_HALF(f16, Half, false)
      VGPU_HALF(f16x2, Half, true)
      VGPU_HALF(bf16, Bfloat16, false)
      VGPU_HALF(bf16x2, Bfloat16, true)
#undef VGPU_HALF
    default:
      return false;
  }
}

bool decode_atomic(Decoder& d) {
  if (d.has("async")) return decode_async_red(d);
  auto& a = d.extra<Atomic>();
  a.returns = d.opcode() == "atom";
  take_order(d, a.request.order, a.request.scope);
  // atom is relaxed by default, at GPU scope.
  if (a.request.order == Order::weak) a.request.order = Order::relaxed;
  if (!d.has("cta") && !d.has("cluster") && !d.has("sys")) a.request.scope = Scope::gpu;
  a.request.space = take_space(d);
  a.request.access = Access::atomic;
  int op = d.take_one({"add", "min", "max", "and", "or", "xor", "inc", "dec", "exch", "cas"});
  if (op < 0) return false;
  a.op = static_cast<Op>(op);
  bool noftz = d.take("noftz");
  take_cache_hints(d);
  int vector = d.take_one({"v2", "v4", "v8"});
  a.vector = vector < 0 ? 1 : 2u << vector;
  a.type = d.take_type();
  a.bytes = ptx::size_of(a.type);
  a.request.bytes = a.bytes * a.vector;
  bool half = a.type == Type::f16 || a.type == Type::f16x2 || a.type == Type::bf16 ||
              a.type == Type::bf16x2;
  if (noftz && !half) return false;
  if (a.vector > 1 && (a.request.space != AddressSpace::global || (!half && a.type != Type::f32))) {
    return false;
  }
  if (!pick_function(a)) return false;
  a.apply_global = a.type == Type::f32 && a.op == Op::add ? add_flushed : a.apply;
  d.make_refs(a.bytes);
  unsigned at = a.returns ? 1 : 0;
  if (d.count() < at + 2) return false;
  a.value = d.make_ref(d.operand(at + 1), a.bytes);
  if (a.op == Op::cas) a.swap = d.make_ref(d.operand(at + 2), a.bytes);
  auto members = [&](unsigned k, std::vector<Ref>& out) {
    auto& o = d.operand(k);
    if (a.vector == 1) {
      out.push_back(d.make_ref(o, a.bytes));
    } else {
      for (unsigned m = 0; m < a.vector; ++m) out.push_back(d.make_ref(d.child(o, m), a.bytes));
    }
  };
  members(at + 1, a.values);
  if (a.returns) {
    members(0, a.results);
    if (a.vector == 1) a.result = a.results[0];
  }
  // Registers of the values must be as wide as the type.
  for (auto* list : {&a.values, &a.results}) {
    for (auto& ref : *list) {
      if (ref.kind == Ref::Kind::reg && ref.bytes != a.bytes) {
        throw BadOperand{"a register is not as wide as the type"};
      }
    }
  }
  d.out.handler = atomic;
  return true;
}

}  // namespace

const OpcodeList& atomic_opcodes() {
  static const OpcodeList list{{"atom", decode_atomic}, {"red", decode_atomic}};
  return list;
}

}  // namespace vgpu::exec
