// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

/// The only CUDA name in the public headers; the same declaration as in the CUDA runtime's own.
typedef struct CUstream_st* cudaStream_t;  // NOLINT(modernize-use-using)

namespace convoy {

/// Element types. Accumulation is always fp32.
enum class DType : int { bf16 = 0, fp16 = 1, fp32 = 2 };

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
  return dtype == DType::fp32 ? 4 : 2;
}
const char* to_string(DType dtype) noexcept;

/// Activation layouts: channels last, rows dense.
enum class Layout : int { nhwc = 0, ndhwc = 1 };
const char* to_string(Layout layout) noexcept;

/// Filter layouts, slowest axis first. K: filters, T: depth, R: height, S: width, C: channels of
/// one group. `krsc` / `ktrsc` is what the kernels read; the others are repacked by `pack_filter`.
/// `trscf` (called QRSCF in some frameworks) has the filters fastest.
enum class FilterLayout : int { krsc = 0, kcrs = 1, rscf = 2, ktrsc = 3, kctrs = 4, trscf = 5 };
const char* to_string(FilterLayout layout) noexcept;

/// What a tap reads outside the input.
enum class PadMode : int { zero = 0, replicate = 1, reflect = 2 };
const char* to_string(PadMode mode) noexcept;

/// Where a plan runs. `automatic`: the current CUDA device if it can run the problem, else the CPU.
enum class Device : int { automatic = 0, cpu = 1, cuda = 2 };
const char* to_string(Device device) noexcept;

}  // namespace convoy
