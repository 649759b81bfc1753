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
template <class T, class F>
void update(uint8_t* target, const uint8_t* source, F&& f) {
  std::atomic_ref<T> cell(*reinterpret_cast<T*>(target));
  T operand;
  std::memcpy(&operand, source, sizeof operand);
  T old = cell.load(std::memory_order_relaxed);
  while (!cell.compare_exchange_weak(old, f(old, operand), std::memory_order_relaxed)) {
  }
}

// Unsigned arithmetic wraps; `Signed` decides how min and max compare.
template <class U, class Signed>
U integer(ReduceOp op, U a, U b) {
  switch (op) {
    case ReduceOp::kAdd:
      return a + b;
    case ReduceOp::kMin:
      return static_cast<Signed>(a) < static_cast<Signed>(b) ? a : b;
    case ReduceOp::kMax:
      return static_cast<Signed>(a) > static_cast<Signed>(b) ? a : b;
    // PTX ISA "red": inc wraps to 0 past the operand, dec wraps to the operand below 0.
    case ReduceOp::kInc:
      return a >= b ? 0 : a + 1;
    case ReduceOp::kDec:
      return a == 0 || a > b ? b : a - 1;
    case ReduceOp::kAnd:
      return a & b;
    case ReduceOp::kOr:
      return a | b;
    case ReduceOp::kXor:
      return a ^ b;
  }
  return a;
}

// f16 and bf16: one operand that is NaN loses against a number in min and max (PTX ISA "min").
template <float (*Decode)(uint16_t), uint16_t (*Encode)(float)>
uint16_t half(ReduceOp op, uint16_t a, uint16_t b) {
  const float x = Decode(a), y = Decode(b);
  if (op == ReduceOp::kAdd) return Encode(x + y);
  if (std::isnan(x)) return std::isnan(y) ? uint16_t{0x7fff} : b;
  if (std::isnan(y)) return a;
  // NOTE: -0 counts as less than +0.
  const bool less = x < y || (x == y && std::signbit(x) && !std::signbit(y));
  return less == (op == ReduceOp::kMin) ? a : b;
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
    case ReduceOp::kAdd:
      return legal({kU32, kS32, kU64, kF32, kF32Ftz, kF64, kF16, kBf16});
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return legal({kU32, kS32, kU64, kS64, kF16, kBf16});
    case ReduceOp::kInc:
    case ReduceOp::kDec:
      return legal({kU32});
    case ReduceOp::kAnd:
    case ReduceOp::kOr:
    case ReduceOp::kXor:
      return legal({kB32, kB64});
  }
  return "unknown reduction";
}

std::string reduction_type(const TensorMap& map, ReduceOp op, ReduceType& type) {
  const bool bitwise = op == ReduceOp::kAnd || op == ReduceOp::kOr || op == ReduceOp::kXor;
  switch (map.type) {
    case DataType::kUint32:
      type = bitwise ? ReduceType::kB32 : ReduceType::kU32;
      break;
    case DataType::kInt32:
      type = bitwise ? ReduceType::kB32 : ReduceType::kS32;
      break;
    case DataType::kUint64:
      type = bitwise ? ReduceType::kB64 : ReduceType::kU64;
      break;
    // NOTE: two's complement addition is the same for both signs.
    case DataType::kInt64:
      type = bitwise                ? ReduceType::kB64
             : op == ReduceOp::kAdd ? ReduceType::kU64
                                    : ReduceType::kS64;
      break;
    case DataType::kFloat16:
      type = ReduceType::kF16;
      break;
    case DataType::kBfloat16:
      type = ReduceType::kBf16;
      break;
    // NOTE: reductions do not round to tf32, unlike loads (measured on an H200).
    case DataType::kFloat32:
    case DataType::kTfloat32:
      type = ReduceType::kF32;
      break;
    case DataType::kFloat32Ftz:
    case DataType::kTfloat32Ftz:
      type = ReduceType::kF32Ftz;
      break;
    case DataType::kFloat64:
      type = ReduceType::kF64;
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
  const auto each = [&]<class T>(T, auto&& f) {
    for (uint64_t i = 0; i < bytes; i += sizeof(T)) update<T>(global + i, source + i, f);
  };
  switch (type) {
    case ReduceType::kF16:
      each(uint16_t{}, [op](uint16_t a, uint16_t b) {
        return half<tensor::f16_to_f32, tensor::f32_to_f16>(op, a, b);
      });
      break;
    case ReduceType::kBf16:
      each(uint16_t{}, [op](uint16_t a, uint16_t b) {
        return half<bf16_to_f32, tensor::f32_to_bf16>(op, a, b);
      });
      break;
    case ReduceType::kF32:
      each(float{}, [](float a, float b) { return canonical(a + b); });
      break;
    case ReduceType::kF32Ftz:
      each(float{}, [](float a, float b) { return canonical(flush(flush(a) + flush(b))); });
      break;
    case ReduceType::kF64:
      each(double{}, [](double a, double b) { return a + b; });
      break;
    case ReduceType::kU32:
    case ReduceType::kB32:
      each(uint32_t{},
           [op](uint32_t a, uint32_t b) { return integer<uint32_t, uint32_t>(op, a, b); });
      break;
    case ReduceType::kS32:
      each(uint32_t{},
           [op](uint32_t a, uint32_t b) { return integer<uint32_t, int32_t>(op, a, b); });
      break;
    case ReduceType::kU64:
    case ReduceType::kB64:
      each(uint64_t{},
           [op](uint64_t a, uint64_t b) { return integer<uint64_t, uint64_t>(op, a, b); });
      break;
    case ReduceType::kS64:
      each(uint64_t{},
           [op](uint64_t a, uint64_t b) { return integer<uint64_t, int64_t>(op, a, b); });
      break;
  }
}

}  // namespace vgpu::tma
