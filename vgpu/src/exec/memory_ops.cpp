// SPDX-License-Identifier: Apache-2.0
// ld, ldu and st in every state space. Source: PTX ISA 9.0, "ld", "ld.global.nc", "ldu", "st".
#include "exec/memory_ops.hpp"

#include "exec/lanes.hpp"

namespace vgpu::exec {

std::mutex& wide_access() {
  static std::mutex lock;
  return lock;
}

AddressSpace take_space(Decoder& d) {
  switch (d.take_one({"global", "shared", "shared::cta", "shared::cluster", "local", "param",
                      "param::entry", "param::func", "const"})) {
    case 0:
    case 8:
      return AddressSpace::global;
    case 1:
    case 2:
      return AddressSpace::shared_cta;
    case 3:
      return AddressSpace::shared_cluster;
    case 4:
      return AddressSpace::local;
    case 5:
    case 6:
    case 7:
      return AddressSpace::param;
    default:
      return AddressSpace::generic;
  }
}

void take_order(Decoder& d, Order& order, Scope& scope) {
  int index = d.take_one({"weak", "relaxed", "acquire", "release", "acq_rel", "volatile"});
  static constexpr Order kOrders[] = {Order::weak,    Order::relaxed, Order::acquire,
                                      Order::release, Order::acq_rel, Order::relaxed};
  order = index < 0 ? Order::weak : kOrders[index];
  if (index == 1) d.take("mmio");
  int where = d.take_one({"cta", "cluster", "gpu", "sys"});
  scope = where < 0 ? (index == 5 ? Scope::sys : Scope::cta) : static_cast<Scope>(where);
}

void take_cache_hints(Decoder& d) {
  while (d.take_one({"ca",
                     "cg",
                     "cs",
                     "lu",
                     "cv",
                     "wb",
                     "wt",
                     "nc",
                     "unified",
                     "L1::evict_normal",
                     "L1::evict_unchanged",
                     "L1::evict_first",
                     "L1::evict_last",
                     "L1::no_allocate",
                     "L2::evict_normal",
                     "L2::evict_last",
                     "L2::evict_first",
                     "L2::cache_hint",
                     "L2::64B",
                     "L2::128B",
                     "L2::256B"}) >= 0) {
  }
}

namespace {

using ptx::Type;

/// What a load or store does, in Instr::extra.
struct Transfer {
  MemoryRequest request;
  unsigned element = 4;  ///< bytes
  unsigned vector = 1;
  bool is_signed = false;
  bool atomic = false;              ///< relaxed, acquire, release, volatile: other threads may race
  std::vector<uint32_t> registers;  ///< offsets; stores of constants have one too
  std::vector<uint8_t> register_bytes;
  Ref address;
};

void gather_addresses(const Warp& w, const Instr& i, uint64_t* out) {
  // c: base, x: 1 when it is 32 bits wide.
  if (i.x) {
    const uint32_t* base = reinterpret_cast<const uint32_t*>(w.registers + i.c);
    for (uint32_t l = 0; l < kLanes; ++l) {
      out[l] = static_cast<uint32_t>(base[l] + static_cast<uint32_t>(i.imm));
    }
  } else {
    const uint64_t* base = reinterpret_cast<const uint64_t*>(w.registers + i.c);
    for (uint32_t l = 0; l < kLanes; ++l) out[l] = base[l] + static_cast<uint64_t>(i.imm);
  }
}

/// What a load or store does first: its lanes' addresses become host pointers.
const Transfer& begin_transfer(Warp& w, const Instr& i, uint32_t lanes, uint8_t** pointers) {
  auto& t = *static_cast<const Transfer*>(i.extra);
  uint64_t addresses[kLanes];
  gather_addresses(w, i, addresses);
  if (t.request.access == Access::write) {
    const StoredValues stored{t.element, t.vector, t.registers.data(), t.register_bytes.data()};
    resolve(w, t.request, lanes, addresses, pointers, &stored);
  } else {
    resolve(w, t.request, lanes, addresses, pointers);
  }
  return t;
}

/// Elements as wide as their registers.
template <typename T>
Step load_plain(Warp& w, const Instr& i, uint32_t lanes) {
  uint8_t* pointers[kLanes];
  auto& t = begin_transfer(w, i, lanes, pointers);
  for (unsigned k = 0; k < t.vector; ++k) {
    T* d = w.lanes<T>(t.registers[k]);
    for_lanes(lanes,
              [&](uint32_t l) { std::memcpy(&d[l], pointers[l] + k * sizeof(T), sizeof(T)); });
  }
  return Step::next;
}

template <typename T>
Step store_plain(Warp& w, const Instr& i, uint32_t lanes) {
  uint8_t* pointers[kLanes];
  auto& t = begin_transfer(w, i, lanes, pointers);
  for (unsigned k = 0; k < t.vector; ++k) {
    const T* s = w.lanes<T>(t.registers[k]);
    for_lanes(lanes,
              [&](uint32_t l) { std::memcpy(pointers[l] + k * sizeof(T), &s[l], sizeof(T)); });
  }
  return Step::next;
}

uint64_t load_element(const uint8_t* p, unsigned bytes, bool atomic) {
  uint64_t value = 0;
  if (!atomic) {
    std::memcpy(&value, p, bytes);
    return value;
  }
  switch (bytes) {
    case 1:
      return __atomic_load_n(p, __ATOMIC_ACQUIRE);
    case 2:
      return __atomic_load_n(reinterpret_cast<const uint16_t*>(p), __ATOMIC_ACQUIRE);
    case 4:
      return __atomic_load_n(reinterpret_cast<const uint32_t*>(p), __ATOMIC_ACQUIRE);
    default:
      return __atomic_load_n(reinterpret_cast<const uint64_t*>(p), __ATOMIC_ACQUIRE);
  }
}
void store_element(uint8_t* p, uint64_t value, unsigned bytes, bool atomic) {
  if (!atomic) {
    std::memcpy(p, &value, bytes);
    return;
  }
  switch (bytes) {
    case 1:
      __atomic_store_n(p, static_cast<uint8_t>(value), __ATOMIC_RELEASE);
      break;
    case 2:
      __atomic_store_n(reinterpret_cast<uint16_t*>(p), static_cast<uint16_t>(value),
                       __ATOMIC_RELEASE);
      break;
    case 4:
      __atomic_store_n(reinterpret_cast<uint32_t*>(p), static_cast<uint32_t>(value),
                       __ATOMIC_RELEASE);
      break;
    default:
      __atomic_store_n(reinterpret_cast<uint64_t*>(p), value, __ATOMIC_RELEASE);
  }
}

/// Any widths: elements are extended to their registers; b128; ordered accesses.
Step load_general(Warp& w, const Instr& i, uint32_t lanes) {
  uint8_t* pointers[kLanes];
  auto& t = begin_transfer(w, i, lanes, pointers);
  for (unsigned k = 0; k < t.vector; ++k) {
    for_lanes(lanes, [&](uint32_t l) {
      const uint8_t* p = pointers[l] + k * t.element;
      uint8_t* d = w.registers + t.registers[k] + l * t.register_bytes[k];
      if (t.element == 16) {
        std::unique_lock lock(wide_access(), std::defer_lock);
        if (t.atomic) lock.lock();
        std::memcpy(d, p, 16);
        return;
      }
      uint64_t value = load_element(p, t.element, t.atomic);
      unsigned shift = 64 - 8 * t.element;
      if (t.is_signed) value = static_cast<uint64_t>(static_cast<int64_t>(value << shift) >> shift);
      std::memcpy(d, &value, t.register_bytes[k]);
    });
  }
  return t.atomic ? Step::poll : Step::next;
}

Step store_general(Warp& w, const Instr& i, uint32_t lanes) {
  uint8_t* pointers[kLanes];
  auto& t = begin_transfer(w, i, lanes, pointers);
  for (unsigned k = 0; k < t.vector; ++k) {
    for_lanes(lanes, [&](uint32_t l) {
      uint8_t* p = pointers[l] + k * t.element;
      const uint8_t* s = w.registers + t.registers[k] + l * t.register_bytes[k];
      if (t.element == 16) {
        std::unique_lock lock(wide_access(), std::defer_lock);
        if (t.atomic) lock.lock();
        std::memcpy(p, s, 16);
        return;
      }
      uint64_t value = 0;
      std::memcpy(&value, s, t.register_bytes[k]);
      store_element(p, value, t.element, t.atomic);
    });
  }
  return Step::next;
}

/// Kernel parameters at a constant address: the same for all lanes.
template <typename T>
Step load_parameter(Warp& w, const Instr& i, uint32_t lanes) {
  auto& t = *static_cast<const Transfer*>(i.extra);
  const uint8_t* p = w.cluster->grid->params + i.imm;
  for (unsigned k = 0; k < t.vector; ++k) {
    T value;
    std::memcpy(&value, p + k * sizeof(T), sizeof(T));
    write_lanes<T>(w, t.registers[k], lanes, [=](uint32_t) { return value; });
  }
  return Step::next;
}

bool decode_transfer(Decoder& d, bool is_load) {
  auto& t = d.extra<Transfer>();
  take_order(d, t.request.order, t.request.scope);
  t.request.space = take_space(d);
  t.request.access = is_load ? Access::read : Access::write;
  t.atomic = t.request.order != Order::weak;
  take_cache_hints(d);
  int vector = d.take_one({"v2", "v4", "v8"});
  t.vector = vector < 0 ? 1 : 2u << vector;
  Type type = d.take_type();
  t.element = ptx::size_of(type);
  t.is_signed = type >= Type::s8 && type <= Type::s64;
  t.request.bytes = t.element * t.vector;
  if (!t.element || type == Type::f16x2 || type == Type::bf16x2 || type == Type::f32x2) {
    return false;
  }
  if (t.request.bytes > 32 || (t.element == 16 && t.vector > 1)) return false;
  unsigned value_at = is_load ? 0 : 1, address_at = is_load ? 1 : 0;
  // A cache-policy operand may follow.
  if (d.count() > 3 || d.count() < 2) return false;

  auto add = [&](const ptx::Operand& o) {
    unsigned bytes = d.register_bytes(o);
    if (!bytes) bytes = std::max(2u, t.element);
    if (bytes < t.element) throw BadOperand{"a register is narrower than the memory type"};
    t.registers.push_back(is_load ? d.dest(o, bytes) : d.source(o, bytes));
    t.register_bytes.push_back(static_cast<uint8_t>(bytes));
  };
  auto& value = d.operand(value_at);
  if (value.kind == ptx::Operand::Kind::vector) {
    if (value.count != t.vector) return false;
    for (unsigned k = 0; k < value.count; ++k) add(d.child(value, k));
  } else {
    if (t.vector != 1) return false;
    add(value);
  }
  auto& address = d.operand(address_at);
  if (address.kind != ptx::Operand::Kind::address || address.count != 1) {
    throw BadOperand{"an address is needed"};
  }
  auto& base = d.child(address, 0);
  unsigned base_bytes = d.register_bytes(base) == 4 ? 4 : 8;
  d.out.c = d.source(base, base_bytes);
  d.out.x = base_bytes == 4;
  d.out.imm = address.value;

  bool plain = !t.atomic && t.element != 16;
  for (auto bytes : t.register_bytes) plain &= bytes == t.element;
  if (!plain) {
    d.out.handler = is_load ? load_general : store_general;
    return true;
  }
  bool parameter = false;
  if (is_load && t.request.space == AddressSpace::param &&
      base.kind == ptx::Operand::Kind::variable && d.function().is_entry) {
    auto& variable = d.module().variables[base.index];
    for (uint32_t index : d.function().params) parameter |= index == base.index;
    if (parameter) {
      d.out.imm += static_cast<int64_t>(variable.offset) + base.value;
      if (d.out.imm < 0 ||
          static_cast<uint64_t>(d.out.imm) + t.request.bytes > d.function().param_bytes) {
        throw BadOperand{"parameter access out of bounds"};
      }
    }
  }
  auto pick = [&](auto zero) {
    using T = decltype(zero);
    d.out.handler = parameter ? load_parameter<T> : is_load ? load_plain<T> : store_plain<T>;
    return true;
  };
  switch (t.element) {
    case 2:
      return pick(uint16_t{});
    case 4:
      return pick(uint32_t{});
    case 8:
      return pick(uint64_t{});
    default:
      return false;
  }
}

bool decode_load(Decoder& d) {
  return decode_transfer(d, true);
}
bool decode_store(Decoder& d) {
  // st.async and st.bulk are asynchronous: copy_ops.cpp.
  if (d.has("async") || d.has("bulk")) return decode_async_store(d);
  return decode_transfer(d, false);
}

}  // namespace

const OpcodeList& memory_opcodes() {
  static const OpcodeList list{{"ld", decode_load}, {"ldu", decode_load}, {"st", decode_store}};
  return list;
}

}  // namespace vgpu::exec
