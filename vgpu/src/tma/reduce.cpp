// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

#include "tensor/number_formats.hpp"
#include "tma/traverse.hpp"

namespace vgpu::tma {
namespace {

// Replaces *target by f(*target, source) in one atomic step.
template <typename T, typename F>
void update(uint8_t* target, const uint8_t* source, F&& f) {
  std::atomic_ref<T> cell(*reinterpret_cast<T*>(target));
  T operand;
  std::memcpy(&operand, source, sizeof operand);
  T old = cell.load(std::memory_order_relaxed);
  while (!cell.compare_exchange_weak(old, f(old, operand), std::memory_order_relaxed)) {
  }
}

// Unsigned arithmetic wraps; `Signed` decides how min and max compare.
template <typename U, typename Signed>
U integer(ReduceOp op, U a, U b) {
  switch (op) {
    case ReduceOp::add:
      return a + b;
    case ReduceOp::min:
      return static_cast<Signed>(a) < static_cast<Signed>(b) ? a : b;
    case ReduceOp::max:
      return static_cast<Signed>(a) > static_cast<Signed>(b) ? a : b;
    // PTX ISA "red": inc wraps to 0 past the operand, dec wraps to the operand below 0.
    case ReduceOp::inc:
      return a >= b ? 0 : a + 1;
    case ReduceOp::dec:
      return a == 0 || a > b ? b : a - 1;
    case ReduceOp::and_op:
      return a & b;
    case ReduceOp::or_op:
      return a | b;
    case ReduceOp::xor_op:
      return a ^ b;
  }
  return a;
}

// f16 and bf16: one operand that is NaN loses against a number in min and max (PTX ISA "min").
template <float (*Decode)(uint16_t), uint16_t (*Encode)(float)>
uint16_t half(ReduceOp op, uint16_t a, uint16_t b) {
  const float x = Decode(a), y = Decode(b);
  if (op == ReduceOp::add) return Encode(x + y);
  if (std::isnan(x)) return std::isnan(y) ? uint16_t{0x7fff} : b;
  if (std::isnan(y)) return a;
  // NOTE: -0 counts as less than +0.
  const bool less = x < y || (x == y && std::signbit(x) && !std::signbit(y));
  return less == (op == ReduceOp::min) ? a : b;
}

// NOTE: f32 sums keep denormals unless the type flushes them, and every NaN is 0x7fffffff (measured
// on an H200).
float canonical(float sum) {
  return std::isnan(sum) ? std::bit_cast<float>(0x7fffffffu) : sum;
}

float flush(float value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
}

float bf16_to_f32(uint16_t bits) {
  return tensor::bf16_to_f32(bits);
}

}  // namespace

const char* to_string(ReduceOp op) {
  static constexpr const char* kNames[] = {"add", "min", "max", "inc", "dec", "and", "or", "xor"};
  return kNames[static_cast<unsigned>(op)];
}

const char* to_string(ReduceType type) {
  static constexpr const char* kNames[] = {"f16", "bf16", "f32", "f64", "u32",    "s32",
                                           "u64", "s64",  "b32", "b64", "f32.ftz"};
  return kNames[static_cast<unsigned>(type)];
}

std::string check_reduction(ReduceOp op, ReduceType type) {
  const auto legal = [&](std::initializer_list<ReduceType> types) -> std::string {
    std::string names;
    for (ReduceType candidate : types) {
      if (candidate == type) return {};
      names += std::string(names.empty() ? "" : ", ") + to_string(candidate);
    }
    return std::string("reduction .") + to_string(op) + " does not exist for ." + to_string(type) +
           "; its types are " + names;
  };
  using enum ReduceType;
  switch (op) {
    case ReduceOp::add:
      return legal({u32, s32, u64, f32, f32_ftz, f64, f16, bf16});
    case ReduceOp::min:
    case ReduceOp::max:
      return legal({u32, s32, u64, s64, f16, bf16});
    case ReduceOp::inc:
    case ReduceOp::dec:
      return legal({u32});
    case ReduceOp::and_op:
    case ReduceOp::or_op:
    case ReduceOp::xor_op:
      return legal({b32, b64});
  }
  return "unknown reduction";
}

std::string reduction_type(const TensorMap& map, ReduceOp op, ReduceType& type) {
  const bool bitwise = op == ReduceOp::and_op || op == ReduceOp::or_op || op == ReduceOp::xor_op;
  switch (map.type) {
    case DataType::uint32:
      type = bitwise ? ReduceType::b32 : ReduceType::u32;
      break;
    case DataType::int32:
      type = bitwise ? ReduceType::b32 : ReduceType::s32;
      break;
    case DataType::uint64:
      type = bitwise ? ReduceType::b64 : ReduceType::u64;
      break;
    // NOTE: two's complement addition is the same for both signs.
    case DataType::int64:
      type = bitwise ? ReduceType::b64 : op == ReduceOp::add ? ReduceType::u64 : ReduceType::s64;
      break;
    case DataType::float16:
      type = ReduceType::f16;
      break;
    case DataType::bfloat16:
      type = ReduceType::bf16;
      break;
    // NOTE: reductions do not round to tf32, unlike loads (measured on an H200).
    case DataType::float32:
    case DataType::tfloat32:
      type = ReduceType::f32;
      break;
    case DataType::float32_ftz:
    case DataType::tfloat32_ftz:
      type = ReduceType::f32_ftz;
      break;
    case DataType::float64:
      type = ReduceType::f64;
      break;
    default:
      return std::string("reduction .") + to_string(op) + " on a tensor map of " +
             to_string(map.type) +
             " is not modelled; supported: UINT32, INT32, UINT64, INT64 and the "
             "floating-point types";
  }
  return check_reduction(op, type);
}

void reduce(ReduceOp op, ReduceType type, uint8_t* global, const uint8_t* source, uint64_t bytes) {
  const auto each = [&]<typename T>(T, auto&& f) {
    for (uint64_t i = 0; i < bytes; i += sizeof(T)) update<T>(global + i, source + i, f);
  };
  switch (type) {
    case ReduceType::f16:
      each(uint16_t{}, [op](uint16_t a, uint16_t b) {
        return half<tensor::f16_to_f32, tensor::f32_to_f16>(op, a, b);
      });
      break;
    case ReduceType::bf16:
      each(uint16_t{}, [op](uint16_t a, uint16_t b) {
        return half<bf16_to_f32, tensor::f32_to_bf16>(op, a, b);
      });
      break;
    case ReduceType::f32:
      each(float{}, [](float a, float b) { return canonical(a + b); });
      break;
    case ReduceType::f32_ftz:
      each(float{}, [](float a, float b) { return canonical(flush(flush(a) + flush(b))); });
      break;
    case ReduceType::f64:
      each(double{}, [](double a, double b) { return a + b; });
      break;
    case ReduceType::u32:
    case ReduceType::b32:
      each(uint32_t{},
           [op](uint32_t a, uint32_t b) { return integer<uint32_t, uint32_t>(op, a, b); });
      break;
    case ReduceType::s32:
      each(uint32_t{},
           [op](uint32_t a, uint32_t b) { return integer<uint32_t, int32_t>(op, a, b); });
      break;
    case ReduceType::u64:
    case ReduceType::b64:
      each(uint64_t{},
           [op](uint64_t a, uint64_t b) { return integer<uint64_t, uint64_t>(op, a, b); });
      break;
    case ReduceType::s64:
      each(uint64_t{},
           [op](uint64_t a, uint64_t b) { return integer<uint64_t, int64_t>(op, a, b); });
      break;
  }
}

}  // namespace vgpu::tma
