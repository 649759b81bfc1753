// SPDX-License-Identifier: Apache-2.0
#include "cpu/convert.hpp"

#include <algorithm>
#include <cstring>

#include "convoy/dtype.hpp"
#include "cpu/simd.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace convoy::cpu {
namespace {

CONVOY_VECTOR_CLONES
void widen_bf16(float* out, const std::uint16_t* in, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = float_from_bf16(in[i]);
}

CONVOY_VECTOR_CLONES
void narrow_bf16(std::uint16_t* out, const float* in, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = bf16_from_float(in[i]);
}

CONVOY_VECTOR_CLONES
void round_bf16(float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = round_to(DType::bf16, values[i]);
}

#if defined(__x86_64__)

/// The processor converts fp16 itself (F16C).
// NOTE: clang 14 cannot ask for F16C by name; no processor has AVX2 without it.
bool has_f16c() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}

__attribute__((target("avx,f16c"))) std::int64_t widen_fp16_f16c(float* out,
                                                                 const std::uint16_t* in,
                                                                 std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(half));
  }
  return i;
}

__attribute__((target("avx,f16c"))) std::int64_t narrow_fp16_f16c(std::uint16_t* out,
                                                                  const float* in,
                                                                  std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), half);
  }
  return i;
}

#else

bool has_f16c() {
  return false;
}
std::int64_t widen_fp16_f16c(float*, const std::uint16_t*, std::int64_t) {
  return 0;
}
std::int64_t narrow_fp16_f16c(std::uint16_t*, const float*, std::int64_t) {
  return 0;
}

#endif

void widen_fp16(float* out, const std::uint16_t* in, std::int64_t count) {
  std::int64_t i = has_f16c() ? widen_fp16_f16c(out, in, count) : 0;
  for (; i < count; ++i) out[i] = float_from_fp16(in[i]);
}

void narrow_fp16(std::uint16_t* out, const float* in, std::int64_t count) {
  std::int64_t i = has_f16c() ? narrow_fp16_f16c(out, in, count) : 0;
  for (; i < count; ++i) out[i] = fp16_from_float(in[i]);
}

}  // namespace

void widen(float* out, const void* in, DType dtype, std::int64_t count) {
  switch (dtype) {
    case DType::bf16:
      return widen_bf16(out, static_cast<const std::uint16_t*>(in), count);
    case DType::fp16:
      return widen_fp16(out, static_cast<const std::uint16_t*>(in), count);
    case DType::fp32:
      std::memcpy(out, in, static_cast<std::size_t>(count) * sizeof(float));
  }
}

void narrow(void* out, const float* in, DType dtype, std::int64_t count) {
  switch (dtype) {
    case DType::bf16:
      return narrow_bf16(static_cast<std::uint16_t*>(out), in, count);
    case DType::fp16:
      return narrow_fp16(static_cast<std::uint16_t*>(out), in, count);
    case DType::fp32:
      std::memcpy(out, in, static_cast<std::size_t>(count) * sizeof(float));
  }
}

void round_in_place(float* values, DType dtype, std::int64_t count) {
  if (dtype == DType::fp32) return;
  if (dtype == DType::bf16) return round_bf16(values, count);
  constexpr std::int64_t kPiece = 1024;
  std::uint16_t half[kPiece];
  for (std::int64_t i = 0; i < count; i += kPiece) {
    const std::int64_t piece = std::min(kPiece, count - i);
    narrow_fp16(half, values + i, piece);
    widen_fp16(values + i, half, piece);
  }
}

}  // namespace convoy::cpu
