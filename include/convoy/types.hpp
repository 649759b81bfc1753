// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "convoy/export.h"

/// The only CUDA name in the public headers; the same declaration as in the CUDA runtime's own.
typedef struct CUstream_st* cudaStream_t;  // NOLINT(modernize-use-using)

/// Convolutions and norms: problems, plans, and what a run is told.
namespace convoy {

/// Element types. Accumulation is always fp32.
enum class DType : int {
  bf16 = 0,  ///< bfloat16, 2 bytes.
  fp16 = 1,  ///< IEEE half, 2 bytes.
  fp32 = 2,  ///< IEEE single, 4 bytes.
};

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
  return dtype == DType::fp32 ? 4 : 2;
}
/// The enumerator's name, "bf16".
CONVOY_API const char* to_string(DType dtype) noexcept;

/// Activation layouts: channels last, rows dense.
enum class Layout : int {
  nhwc = 0,   ///< [N, H, W, C]
  ndhwc = 1,  ///< [N, D, H, W, C]
};
/// The enumerator's name, "nhwc".
CONVOY_API const char* to_string(Layout layout) noexcept;

/// Filter layouts, slowest axis first. K: filters, T: depth, R: height, S: width, C: channels of
/// one group. `krsc` / `ktrsc` is what the kernels read; the others are repacked by `pack_filter`.
/// `trscf` (called QRSCF in some frameworks) has the filters fastest.
enum class FilterLayout : int {
  krsc = 0,   ///< [K, R, S, C], 2-D: what kernels read.
  kcrs = 1,   ///< [K, C, R, S], 2-D: PyTorch's.
  rscf = 2,   ///< [R, S, C, K], 2-D: TensorFlow's.
  ktrsc = 3,  ///< [K, T, R, S, C], 3-D: what kernels read.
  kctrs = 4,  ///< [K, C, T, R, S], 3-D: PyTorch's.
  trscf = 5,  ///< [T, R, S, C, K], 3-D: TensorFlow's.
};
/// The enumerator's name, "krsc".
CONVOY_API const char* to_string(FilterLayout layout) noexcept;

/// What a tap reads outside the input.
enum class PadMode : int {
  zero = 0,       ///< Zero.
  replicate = 1,  ///< The nearest border element.
  reflect = 2,    ///< The element as far inside the border, which is not repeated.
};
/// The enumerator's name, "zero".
CONVOY_API const char* to_string(PadMode mode) noexcept;

/// How a kernel may fold a nearest-2× upsampling and the 3×3 filter behind it into four 2×2 filters
/// of the input as it was, whose elements are sums of up to four taps.
enum class UpsampleFolding : int {
  /// Sums keep twice the bits of the type, as two filter elements: the result is as near to the
  /// unfolded convolution as another order of summation, and 2^-16·Σ|a·w| (bf16; fp16: 2^-22).
  exact = 0,
  /// Sums are rounded to the type: half the work, and up to 2^-8·Σ|a·w| (bf16; fp16: 2^-11) from
  /// the unfolded convolution, before the output is rounded.
  fast = 1,
};
/// The enumerator's name, "exact".
CONVOY_API const char* to_string(UpsampleFolding folding) noexcept;

/// Where a plan runs. `automatic`: the current CUDA device if it can run the problem, else the CPU.
enum class Device : int {
  automatic = 0,  ///< CUDA where it can run the problem, else the CPU.
  cpu = 1,        ///< The CPU.
  cuda = 2,       ///< A CUDA device.
};
/// The enumerator's name, "cuda".
CONVOY_API const char* to_string(Device device) noexcept;

}  // namespace convoy
