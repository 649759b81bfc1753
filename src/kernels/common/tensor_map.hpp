// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <string>

#include "convoy/types.hpp"

namespace convoy {

/// Shared-memory swizzle of a tensor copy: the innermost box dimension spans at most this many
/// bytes, and 16-byte chunks are permuted within rows of this size.
enum class Swizzle : int { none = 0, b32 = 32, b64 = 64, b128 = 128 };

/// A tiled tensor map without its address, innermost dimension first. All fields in elements,
/// strides in bytes.
struct TiledTensorMap {
  const char* name = "tensor";  ///< For error texts: "activation", "filter", "output" ...
  DType dtype = DType::bf16;
  int rank = 0;                                    ///< 1..5
  std::array<std::int64_t, 5> extents = {};        ///< Up to 2^32 each.
  std::array<std::int64_t, 5> strides_bytes = {};  ///< [0] is ignored (dense); multiples of 16.
  std::array<int, 5> box = {};                     ///< 1..256 each; box[0] bytes: multiple of 16.
  std::array<int, 5> element_strides = {1, 1, 1, 1, 1};  ///< 1..8
  Swizzle swizzle = Swizzle::b128;
  bool as_tf32 = false;  ///< Loads round fp32 elements to TF32, to nearest, ties to even.
};

/// The same of an im2col map: of an NHWC (rank 4) or NDHWC (rank 5) activation.
struct Im2colTensorMap {
  const char* name = "activation";
  DType dtype = DType::bf16;
  int rank = 4;
  std::array<std::int64_t, 5> extents = {};        ///< C, W, H, (D,) N
  std::array<std::int64_t, 5> strides_bytes = {};  ///< [0] ignored.
  std::array<int, 3> lower_corner = {};            ///< W, H, (D): −pad_begin
  std::array<int, 3> upper_corner = {};  ///< W, H, (D): pad_end − (filter − 1)·dilation
  int channels = 0;                      ///< Channels of a pixel in the box, 1..256.
  int pixels = 0;                        ///< Pixels in the box, 1..1024.
  /// 1, then the convolution's strides W, H, (D).
  std::array<int, 5> element_strides = {1, 1, 1, 1, 1};
  Swizzle swizzle = Swizzle::b128;
  bool as_tf32 = false;
};

/// Empty if the hardware can hold this map, else the limit that is broken: field, value, what is
/// legal. Limits: CUDA driver API, cuTensorMapEncodeTiled / cuTensorMapEncodeIm2col.
std::string tensor_map_refusal(const TiledTensorMap& map);
std::string tensor_map_refusal(const Im2colTensorMap& map);

/// Bytes from a map's first element to the end of its last.
std::int64_t span_bytes(const TiledTensorMap& map);
std::int64_t span_bytes(const Im2colTensorMap& map);

/// Bit 85 of an encoded map: Blackwell's TMA may probe 128 KiB from the tensor's address on.
/// Drivers set it for tensors that are not dense, however small, and copies then fault sporadically
/// (NVIDIA driver 595.71.05, release notes, known issues).
bool probes_128k(const CUtensorMap& map);

/// What a plan does: check and encode once, with a placeholder for the address. Throws
/// Error{unsupported} with `tensor_map_refusal`'s text, Error{launch_failure} with every field
/// where the driver refuses. Of tensors that span less than 128 KiB `probes_128k` is false.
CUtensorMap encode_template(const TiledTensorMap& map);
CUtensorMap encode_template(const Im2colTensorMap& map);

/// What a run does: `map` with `address`, `probes_128k` as it was. Throws Error{invalid_argument}
/// that names `name` where the address is null or not aligned to 16 bytes, Error{launch_failure}
/// where the driver refuses.
CUtensorMap at_address(const CUtensorMap& map, const char* name, const void* address);

}  // namespace convoy
