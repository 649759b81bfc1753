// SPDX-License-Identifier: Apache-2.0
//
// Stamps for bench/sm90/cta_trace.py, with CONVOY_SM90_TRACE; otherwise nothing at all. Of a CTA's
// kTraceSlots slots 0 and 1 are nanoseconds, the others cycles of the SM; from slot 8 on, of each
// of its first 6 tiles: main loop begins, first stage full, main loop ends, tile stored.
#pragma once

#include "kernels/sm90/params.hpp"

namespace convoy::sm90 {

#ifdef CONVOY_SM90_TRACE

__device__ __forceinline__ void stamp(const Params& p, int slot) {
  long long time;
  if (slot < 2) {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time)::"memory");
  } else {
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(time)::"memory");
  }
  if (p.trace != nullptr && slot < kTraceSlots) p.trace[blockIdx.x * kTraceSlots + slot] = time;
}

/// Of a CTA.
struct Trace {
  const Params& p;
  __device__ __forceinline__ void begin() const { by_first_thread(0, 2); }
  __device__ __forceinline__ void ready() const { by_first_thread(3, 3); }
  __device__ __forceinline__ void load(bool first = true) const {
    if (first) stamp(p, 6);
  }
  __device__ __forceinline__ void end() const { by_first_thread(1, 7); }

 private:
  __device__ __forceinline__ void by_first_thread(int a, int b) const {
    if (threadIdx.x != 0) return;
    stamp(p, a);
    if (b != a) stamp(p, b);
  }
};

/// Of a consumer warpgroup, tile by tile: only the first one's where they share tiles.
struct TileTrace {
  const Params& p;
  bool pingpong;
  int warpgroup;
  int tile = pingpong ? warpgroup : 0;
  __device__ __forceinline__ void turn() const { by_first_thread(8 + 4 * tile); }
  __device__ __forceinline__ void full(bool first) const {
    if (first) by_first_thread(9 + 4 * tile);
  }
  __device__ __forceinline__ void multiplied() const { by_first_thread(10 + 4 * tile); }
  __device__ __forceinline__ void stored() {
    by_first_thread(11 + 4 * tile);
    tile += pingpong ? 2 : 1;
  }
  __device__ __forceinline__ void done() const { by_first_thread(4 + warpgroup); }

 private:
  __device__ __forceinline__ void by_first_thread(int slot) const {
    if (threadIdx.x == (pingpong ? 128 + 128 * warpgroup : 128)) stamp(p, slot);
  }
};

#else

struct Trace {
  const Params& p;
  __device__ __forceinline__ void begin() const {}
  __device__ __forceinline__ void ready() const {}
  __device__ __forceinline__ void load(bool = true) const {}
  __device__ __forceinline__ void end() const {}
};
struct TileTrace {
  const Params& p;
  bool pingpong;
  int warpgroup;
  __device__ __forceinline__ void turn() const {}
  __device__ __forceinline__ void full(bool) const {}
  __device__ __forceinline__ void multiplied() const {}
  __device__ __forceinline__ void stored() const {}
  __device__ __forceinline__ void done() const {}
};

#endif

}  // namespace convoy::sm90
