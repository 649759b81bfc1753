// SPDX-License-Identifier: Apache-2.0
//
// Neighbouring channels of a pixel, as kernels that pass over a tensor move them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/epilogue.cuh"

namespace convoy {

/// Channels that a thread moves in one access: 16 bytes, or one where C is no multiple of that.
template <typename Element>
constexpr int kChannelVector = 16 / static_cast<int>(sizeof(Element));

/// kVec neighbours as they lie in memory.
template <typename Element, int kVec>
struct ChannelVector {
  static constexpr bool kWide = kVec * sizeof(Element) == 16;
  static_assert(kWide || kVec == 1);
  uint4 wide;
  Element single;

  __device__ __forceinline__ void load(const Element* from) {
    if constexpr (kWide) {
      wide = *reinterpret_cast<const uint4*>(from);
    } else {
      single = *from;
    }
  }
  /// The last time that these bytes are read.
  __device__ __forceinline__ void load_last(const Element* from) {
    if constexpr (kWide) {
      wide = __ldcs(reinterpret_cast<const uint4*>(from));
    } else {
      single = *from;
    }
  }
  /// `streaming`: the tensor is too large for the cache, whoever reads it next.
  __device__ __forceinline__ void store(Element* to, bool streaming) const {
    if constexpr (kWide) {
      if (streaming) {
        __stcs(reinterpret_cast<uint4*>(to), wide);
      } else {
        *reinterpret_cast<uint4*>(to) = wide;
      }
    } else {
      *to = single;
    }
  }
  __device__ __forceinline__ void widen(float (&v)[kVec]) const {
    if constexpr (!kWide) {
      v[0] = to_float(single);
    } else if constexpr (sizeof(Element) == 4) {
      v[0] = __uint_as_float(wide.x), v[1] = __uint_as_float(wide.y);
      v[2] = __uint_as_float(wide.z), v[3] = __uint_as_float(wide.w);
    } else {
      const std::uint32_t words[4] = {wide.x, wide.y, wide.z, wide.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack2<Element>(words[i]);
        v[2 * i] = pair.x, v[2 * i + 1] = pair.y;
      }
    }
  }
  __device__ __forceinline__ void narrow(const float (&v)[kVec]) {
    if constexpr (!kWide) {
      single = from_float<Element>(v[0]);
    } else if constexpr (sizeof(Element) == 4) {
      wide = make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                        __float_as_uint(v[3]));
    } else {
      wide = make_uint4(pack2<Element>(v[0], v[1]), pack2<Element>(v[2], v[3]),
                        pack2<Element>(v[4], v[5]), pack2<Element>(v[6], v[7]));
    }
  }
};

}  // namespace convoy
