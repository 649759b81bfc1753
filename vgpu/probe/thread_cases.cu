// SPDX-License-Identifier: Apache-2.0
// What threads, warps and blocks do without TMA: matrix fragments, mma.sync, elections, barriers,
// fences, register pools, dependent launches, asynchronous stores, address spaces, atomics.
#include "device.cuh"
#include "probe.hpp"

namespace probe {
namespace {

constexpr uint32_t kWords = 256;  // of a case's output

// ---- ldmatrix, stmatrix, movmatrix: kind = count (0, 1, 2: 1, 2, 4) + 4 transposed + 8 store

#define FRAGMENTS(OP, TRANS)              \
  switch (kind & 3) {                     \
    case 0:                               \
      OP("x1" TRANS, "{%0}", 1);          \
      break;                              \
    case 1:                               \
      OP("x2" TRANS, "{%0,%1}", 2);       \
      break;                              \
    default:                              \
      OP("x4" TRANS, "{%0,%1,%2,%3}", 4); \
  }
#define LOAD(FORM, REGISTERS, COUNT)                                                 \
  asm volatile("ldmatrix.sync.aligned.m8n8." FORM ".shared.b16 " REGISTERS ", [%4];" \
               : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3])                      \
               : "r"(row)                                                            \
               : "memory")
#define STORE(FORM, REGISTERS, COUNT)                                                             \
  asm volatile("stmatrix.sync.aligned.m8n8." FORM ".shared.b16 [%4], " REGISTERS ";" ::"r"(r[0]), \
               "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(row)                                          \
               : "memory")

__global__ void matrix_kernel(int kind, uint32_t* out) {
  __shared__ __align__(128) uint32_t cells[256];
  const uint32_t lane = threadIdx.x;
  for (uint32_t i = lane; i < 256; i += 32) cells[i] = 2 * i + 1 << 16 | 2 * i;
  __syncwarp();
  // Rows in a scrambled order.
  const uint32_t row = shared_address(cells) + (lane * 5 + 3) % 64 * 16;
  uint32_t r[4] = {lane, 100 + lane, 200 + lane, 300 + lane};
  if (kind == 16) {
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r[0]) : "r"(cells[lane]));
  } else if (kind & 8) {
    if (kind & 4) {
      FRAGMENTS(STORE, ".trans")
    } else {
      FRAGMENTS(STORE, "")
    }
  } else if (kind & 4) {
    FRAGMENTS(LOAD, ".trans")
  } else {
    FRAGMENTS(LOAD, "")
  }
  __syncwarp();
  for (uint32_t i = 0; i < 8; ++i) out[lane * 8 + i] = kind & 8 ? cells[lane * 8 + i] : 0;
  if (!(kind & 8)) {
    for (uint32_t i = 0; i < 4; ++i) out[lane * 8 + i] = r[i];
  }
}

// ---- mma.sync on small integers

__device__ uint32_t operand(uint32_t format, uint32_t seed) {
  // Formats: 0 f16, 1 bf16, 2 tf32, 3 s8/u8, 4 e4m3, 5 e5m2. Numbers 0 to 3.
  constexpr uint16_t kHalf[] = {0, 0x3c00, 0x4000, 0x4200}, kBrain[] = {0, 0x3f80, 0x4000, 0x4040};
  constexpr uint8_t kE4m3[] = {0, 0x38, 0x40, 0x44}, kE5m2[] = {0, 0x3c, 0x40, 0x42};
  const uint32_t bits = seed * 2654435761u >> 7;
  if (format <= 1) {
    const uint16_t* table = format == 0 ? kHalf : kBrain;
    return table[bits & 3] | uint32_t{table[bits >> 2 & 3]} << 16;
  }
  if (format == 2) return uint32_t{kBrain[bits & 3]} << 16;
  if (format == 3) return bits * 2654435761u;
  const uint8_t* table = format == 4 ? kE4m3 : kE5m2;
  uint32_t word = 0;
  for (uint32_t i = 0; i < 4; ++i) word |= uint32_t{table[bits >> 2 * i & 3]} << 8 * i;
  return word;
}

#define MMA_4_2(TEXT)                                                                            \
  asm volatile("mma.sync.aligned." TEXT " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                                  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define MMA_2_1(TEXT)                                                                   \
  asm volatile("mma.sync.aligned." TEXT " {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};" \
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                         \
               : "r"(a[0]), "r"(a[1]), "r"(b[0]))
#define MMA_HALF_4_2(TEXT)                                                           \
  asm volatile("mma.sync.aligned." TEXT " {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};" \
               : "+r"(d[0]), "+r"(d[1])                                              \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define MMA_HALF_2_1(TEXT)                                                  \
  asm volatile("mma.sync.aligned." TEXT " {%0,%1}, {%2,%3}, {%4}, {%0,%1};" \
               : "+r"(d[0]), "+r"(d[1])                                     \
               : "r"(a[0]), "r"(a[1]), "r"(b[0]))

struct MmaForm {
  const char* name;
  uint32_t a, b;  // formats
};
const MmaForm kMmaForms[] = {{"m16n8k16.f32.f16", 0, 0},
                             {"m16n8k8.f32.f16", 0, 0},
                             {"m16n8k16.f16.f16", 0, 0},
                             {"m16n8k8.f16.f16", 0, 0},
                             {"m16n8k16.f32.bf16", 1, 1},
                             {"m16n8k8.f32.bf16", 1, 1},
                             {"m16n8k8.f32.tf32", 2, 2},
                             {"m16n8k4.f32.tf32", 2, 2},
                             {"m16n8k32.s32.s8.s8", 3, 3},
                             {"m16n8k16.s32.u8.s8", 3, 3},
                             {"m16n8k32.satfinite.s32.u8.u8", 3, 3},
                             {"m16n8k32.f32.e4m3.e5m2", 4, 5}};

__global__ void mma_kernel(int kind, uint32_t a_format, uint32_t b_format, uint32_t* out) {
  const uint32_t lane = threadIdx.x;
  uint32_t a[4], b[2], d[4];
  for (uint32_t i = 0; i < 4; ++i) a[i] = operand(a_format, 17 * lane + i + 1);
  for (uint32_t i = 0; i < 2; ++i) b[i] = operand(b_format, 29 * lane + i + 1000);
  const bool integers = a_format == 3;
  for (uint32_t i = 0; i < 4; ++i) {
    d[i] = integers ? 0x7fff0000u * (i & 1) : 0x40000000u;  // 2.0, or near the limit
    if (kind == 2 || kind == 3) d[i] = 0x3c004000u;
  }
  switch (kind) {
    case 0:
      MMA_4_2("m16n8k16.row.col.f32.f16.f16.f32");
      break;
    case 1:
      MMA_2_1("m16n8k8.row.col.f32.f16.f16.f32");
      break;
    case 2:
      MMA_HALF_4_2("m16n8k16.row.col.f16.f16.f16.f16");
      break;
    case 3:
      MMA_HALF_2_1("m16n8k8.row.col.f16.f16.f16.f16");
      break;
    case 4:
      MMA_4_2("m16n8k16.row.col.f32.bf16.bf16.f32");
      break;
    case 5:
      MMA_2_1("m16n8k8.row.col.f32.bf16.bf16.f32");
      break;
    case 6:
      MMA_4_2("m16n8k8.row.col.f32.tf32.tf32.f32");
      break;
    case 7:
      MMA_2_1("m16n8k4.row.col.f32.tf32.tf32.f32");
      break;
    case 8:
      MMA_4_2("m16n8k32.row.col.s32.s8.s8.s32");
      break;
    case 9:
      MMA_2_1("m16n8k16.row.col.s32.u8.s8.s32");
      break;
    case 10:
      MMA_4_2("m16n8k32.row.col.satfinite.s32.u8.u8.s32");
      break;
    case 11:
      MMA_4_2("m16n8k32.row.col.f32.e4m3.e5m2.f32");
      break;
  }
  for (uint32_t i = 0; i < 4; ++i) out[lane * 4 + i] = d[i];
}

// ---- elections, lane masks

__global__ void warp_kernel(uint32_t* out) {
  const uint32_t lane = threadIdx.x;
  uint32_t leader = 99, chosen = 99, words[8] = {};
  asm volatile("{ .reg .pred p; elect.sync %0|p, 0xffffffff; selp.u32 %1, 1, 0, p; }"
               : "=r"(leader), "=r"(chosen));
  words[0] = leader << 8 | chosen;
  if (lane >= 5 && lane != 9) {
    asm volatile("{ .reg .pred p; elect.sync %0|p, 0xfffffde0; selp.u32 %1, 1, 0, p; }"
                 : "=r"(leader), "=r"(chosen));
    words[1] = leader << 8 | chosen;
    asm volatile("activemask.b32 %0;" : "=r"(words[2]));
  }
  __syncwarp();
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(words[3]));
  asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(words[4]));
  asm volatile("mov.u32 %0, %%lanemask_ge;" : "=r"(words[5]));
  asm volatile("mov.u32 %0, %%lanemask_eq;" : "=r"(words[6]));
  asm volatile("nanosleep.u32 20;");
  asm volatile("mov.u32 %0, WARP_SZ;" : "=r"(words[7]));
  for (uint32_t i = 0; i < 8; ++i) out[lane * 8 + i] = words[i];
}

// ---- barriers of a block of 128 threads

__global__ void barrier_kernel(uint32_t* out) {
  __shared__ uint32_t cell;
  const uint32_t thread = threadIdx.x, warp = thread / 32;
  uint32_t words[2] = {};
  asm volatile(
      "{ .reg .pred p, q; setp.lt.u32 p, %1, 77; bar.red.popc.u32 %0, 0, p; bar.red.and.pred q, 0, "
      "p; selp.u32 %0, 0x1000, %0, q; }"
      : "=r"(words[0])
      : "r"(thread));
  asm volatile(
      "{ .reg .pred p, q, r; setp.eq.u32 p, %1, 100; bar.red.or.pred q, 1, p; bar.red.and.pred r, "
      "2, "
      "128, !p; selp.u32 %0, 1, 0, q; @r add.u32 %0, %0, 2; }"
      : "=r"(words[1])
      : "r"(thread));
  // Warps 1 and 3 produce, warps 0 and 2 wait for both.
  if (warp & 1) {
    if (thread == 32) cell = 4711;
    __syncwarp();
    asm volatile("bar.arrive 5, 128;" ::: "memory");
  } else {
    asm volatile("bar.sync 5, 128;" ::: "memory");
    words[1] |= *static_cast<volatile uint32_t*>(&cell) << 8;
  }
  // The non-aligned form, reached by the halves of a warp on different ways.
  if (thread & 1) {
    asm volatile("barrier.cta.sync 7;" ::: "memory");
  } else {
    asm volatile("barrier.sync 7;" ::: "memory");
  }
  out[thread] = words[0];
  out[128 + thread] = words[1];
}

// One barrier with and without a thread count, which is that of the block.
__global__ void barrier_count_kernel(uint32_t* out) {
  if (threadIdx.x < 32) {
    asm volatile("bar.sync 7;" ::: "memory");
  } else {
    asm volatile("bar.sync 7, 128;" ::: "memory");
  }
  out[threadIdx.x] = threadIdx.x;
}

// ---- fences: all forms of compute capability 9.0, one after the other

__global__ void fence_kernel(uint32_t* out) {
  __shared__ __align__(8) uint64_t storage;
  const uint32_t barrier = shared_address(&storage);
  asm volatile("fence.sc.cta; fence.sc.cluster; fence.sc.gpu; fence.sc.sys;" ::: "memory");
  asm volatile("fence.acq_rel.cta; fence.acq_rel.cluster; fence.acq_rel.gpu; fence.acq_rel.sys;" ::
                   : "memory");
  asm volatile("fence.acquire.cta; fence.acquire.cluster; fence.acquire.gpu; fence.acquire.sys;" ::
                   : "memory");
  asm volatile("fence.release.cta; fence.release.cluster; fence.release.gpu; fence.release.sys;" ::
                   : "memory");
  asm volatile("membar.cta; membar.gl; membar.sys;" ::: "memory");
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 2;" ::"r"(barrier) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile(
      "fence.proxy.alias; fence.proxy.async; fence.proxy.async.global; "
      "fence.proxy.async.shared::cta; fence.proxy.async.shared::cluster;" ::
          : "memory");
  asm volatile(
      "fence.proxy.tensormap::generic.release.cta; fence.proxy.tensormap::generic.release.gpu; "
      "fence.proxy.tensormap::generic.release.sys;" ::
          : "memory");
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(out) : "memory");
  asm volatile(
      "fence.acquire.sync_restrict::shared::cluster.cluster; "
      "fence.release.sync_restrict::shared::cta.cluster;" ::
          : "memory");
  asm volatile(
      "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster; "
      "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;" ::
          : "memory");
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cta.b64 _, [%0];" ::"r"(barrier)
               : "memory");
  uint32_t done[4];
  asm volatile(
      "{ .reg .pred p; mbarrier.test_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0; "
      "selp.u32 %0, 1, 0, p; }"
      : "=r"(done[0])
      : "r"(barrier)
      : "memory");
  asm volatile(
      "{ .reg .pred p; mbarrier.test_wait.parity.relaxed.cta.shared::cta.b64 p, [%1], 0; selp.u32 "
      "%0, 1, 0, p; }"
      : "=r"(done[1])
      : "r"(barrier)
      : "memory");
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 1, 1000; selp.u32 %0, 1, "
      "0, p; }"
      : "=r"(done[2])
      : "r"(barrier)
      : "memory");
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%1], 0, 1000; "
      "selp.u32 %0, 1, 0, p; }"
      : "=r"(done[3])
      : "r"(barrier)
      : "memory");
  for (uint32_t i = 0; i < 4; ++i) out[i] = done[i];
}

// ---- register pools, dependent launches

__global__ void __launch_bounds__(256, 1) register_kernel(uint32_t* out) {
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    out[threadIdx.x] = threadIdx.x * 3;
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    out[threadIdx.x] = threadIdx.x * 5;
  }
}

__global__ void primary_kernel(uint32_t* out) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  for (uint32_t i = threadIdx.x; i < kWords; i += blockDim.x) out[i] = i * 7 + 1;
}

__global__ void dependent_kernel(uint32_t* out) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  for (uint32_t i = threadIdx.x; i < kWords; i += blockDim.x) out[i] = out[i] * 2;
}

// ---- prefetches and cache policies change nothing

__global__ void prefetch_kernel(uint32_t* memory, uint32_t* out) {
  const uint64_t address = reinterpret_cast<uint64_t>(memory);
  asm volatile(
      "prefetch.global.L1 [%0]; prefetch.global.L2 [%0]; prefetch.global.L2::evict_last [%0]; "
      "prefetch.global.L2::evict_normal [%0]; prefetch.L1 [%0]; prefetchu.L1 [%0];" ::"l"(address)
      : "memory");
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], 256;" ::"l"(address) : "memory");
  asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(address) : "memory");
  uint64_t policy, half, range;
  asm volatile("createpolicy.cvt.L2.b64 %0, 0x10000000;" : "=l"(policy));
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("createpolicy.fractional.L2::evict_first.L2::evict_unchanged.b64 %0, 0.5;"
               : "=l"(half));
  asm volatile(
      "createpolicy.range.global.L2::evict_last.L2::evict_unchanged.b64 %0, [%1], 128, 256;"
      : "=l"(range)
      : "l"(address));
  uint32_t words[5];
  asm volatile("ld.global.L2::cache_hint.u32 %0, [%1], %2;"
               : "=r"(words[0])
               : "l"(address), "l"(policy));
  asm volatile("ld.global.L1::no_allocate.L2::128B.u32 %0, [%1+4];"
               : "=r"(words[1])
               : "l"(address));
  asm volatile("ld.global.nc.L1::evict_last.L2::cache_hint.u32 %0, [%1+8], %2;"
               : "=r"(words[2])
               : "l"(address), "l"(half));
  asm volatile("st.global.L1::evict_first.L2::cache_hint.u32 [%0+12], 77, %1;" ::"l"(address),
               "l"(range)
               : "memory");
  asm volatile("ld.global.cv.u32 %0, [%1+12];" : "=r"(words[3]) : "l"(address) : "memory");
  asm volatile("discard.global.L2 [%0+128], 128;" ::"l"(address) : "memory");
  asm volatile("st.global.cs.u32 [%0+128], 78;" ::"l"(address) : "memory");
  asm volatile("ld.global.lu.u32 %0, [%1+128];" : "=r"(words[4]) : "l"(address) : "memory");
  for (uint32_t i = 0; i < 5; ++i) out[i] = words[i];
}

// ---- st.async and red.async in a cluster of two: each form to the other CTA's cells

#define ST_ASYNC(TYPE, AT, C, VALUE)                                              \
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes." TYPE \
               " [%0], %1, [%2];" ::"r"(cells + AT),                              \
               C(VALUE), "r"(barrier)                                             \
               : "memory")
#define RED_ASYNC(TYPE, AT, C, VALUE)                                                         \
  asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes." TYPE \
               " [%0], %1, [%2];" ::"r"(cells + AT),                                          \
               C(VALUE), "r"(barrier)                                                         \
               : "memory")

__global__ void __cluster_dims__(2, 1, 1) async_store_kernel(uint32_t* out) {
  __shared__ __align__(16) uint32_t words[64];
  __shared__ __align__(8) uint64_t storage;
  const uint32_t rank = cluster_rank();
  for (uint32_t i = threadIdx.x; i < 64; i += 32) words[i] = 0x80000010u + i;
  if (threadIdx.x == 0) {
    mbarrier_init(shared_address(&storage), 1);
    mbarrier_expect(shared_address(&storage), 4 * 4 + 8 * 3 + 8 + 16 * 3 + 4 * 11 + 8);
  }
  __syncwarp();
  cluster_sync();
  if (threadIdx.x == 0) {
    const uint32_t cells = map_shared(shared_address(words), rank ^ 1);
    const uint32_t barrier = map_shared(shared_address(&storage), rank ^ 1);
    ST_ASYNC("b32", 0, "r", 11u + rank);
    ST_ASYNC("u32", 4, "r", 12u);
    ST_ASYNC("s32", 8, "r", -13);
    ST_ASYNC("f32", 12, "f", 1.5f);
    ST_ASYNC("b64", 16, "l", 0x123456789abcdefull);
    ST_ASYNC("u64", 24, "l", 14ull);
    ST_ASYNC("f64", 32, "d", 2.5);
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1,%2}, [%3];" ::
            "r"(cells + 40),
        "r"(21), "r"(22), "r"(barrier)
        : "memory");
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.u64 [%0], {%1,%2}, [%3];" ::
            "r"(cells + 48),
        "l"(23ull), "l"(24ull), "r"(barrier)
        : "memory");
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, "
        "[%5];" ::"r"(cells + 64),
        "f"(1.f), "f"(2.f), "f"(3.f), "f"(4.f), "r"(barrier)
        : "memory");
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.s32 [%0], {%1,%2,%3,%4}, "
        "[%5];" ::"r"(cells + 80),
        "r"(1), "r"(2), "r"(3), "r"(4), "r"(barrier)
        : "memory");
    RED_ASYNC("inc.u32", 128, "r", 0x90000000u);
    RED_ASYNC("dec.u32", 132, "r", 5u);
    RED_ASYNC("min.u32", 136, "r", 3u);
    RED_ASYNC("min.s32", 140, "r", 3);
    RED_ASYNC("max.u32", 144, "r", 0xf0000000u);
    RED_ASYNC("max.s32", 148, "r", 9);
    RED_ASYNC("add.u32", 152, "r", 0x80000000u);
    RED_ASYNC("add.s32", 156, "r", -1);
    RED_ASYNC("and.b32", 160, "r", 0x8000000fu);
    RED_ASYNC("or.b32", 164, "r", 0xf00u);
    RED_ASYNC("xor.b32", 168, "r", ~0u);
    RED_ASYNC("add.u64", 176, "l", 0xffffffffffull);
  }
  const bool done = mbarrier_wait(shared_address(&storage), 0);
  cluster_sync();
  for (uint32_t i = threadIdx.x; i < 64; i += 32) out[rank * 65 + i] = words[i];
  if (threadIdx.x == 0) out[rank * 65 + 64] = done;
}

// ---- address spaces

__global__ void __cluster_dims__(2, 1, 1)
    address_kernel(const __grid_constant__ uint4 parameter, uint32_t* out) {
  __shared__ uint32_t cells[4];
  uint32_t local[8];
  local[threadIdx.x & 7] = threadIdx.x;
  const uint32_t rank = cluster_rank();
  cells[threadIdx.x & 3] = 40 + rank;
  cluster_sync();
  uint64_t mapped, addresses[5];
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(cells), "r"(rank ^ 1));
  addresses[0] = reinterpret_cast<uint64_t>(out);
  addresses[1] = reinterpret_cast<uint64_t>(&cells);
  addresses[2] = mapped;
  addresses[3] = reinterpret_cast<uint64_t>(&local[threadIdx.x & 7]);
  addresses[4] = reinterpret_cast<uint64_t>(&parameter);
  uint32_t words[8];
  for (int i = 0; i < 5; ++i) {
    asm volatile(
        "{ .reg .pred p; .reg .b32 b; isspacep.global p, %1; selp.u32 %0, 1, 0, p; "
        "isspacep.shared::cta p, %1; selp.u32 b, 2, 0, p; or.b32 %0, %0, b; "
        "isspacep.shared::cluster p, %1; selp.u32 b, 4, 0, p; or.b32 %0, %0, b; "
        "isspacep.local p, %1; selp.u32 b, 8, 0, p; or.b32 %0, %0, b; "
        "isspacep.param::entry p, %1; selp.u32 b, 16, 0, p; or.b32 %0, %0, b; }"
        : "=&r"(words[i])
        : "l"(addresses[i]));
  }
  // Which spaces a generic address of the parameter is in, apart from its own, is not specified.
  words[4] &= 16;
  asm volatile("ld.u32 %0, [%1];" : "=r"(words[5]) : "l"(mapped) : "memory");
  asm volatile("getctarank.u64 %0, %1;" : "=r"(words[6]) : "l"(mapped));
  uint32_t symbol;
  asm volatile(
      "{ .reg .u32 a; mapa.shared::cluster.u32 a, %1, 0; getctarank.shared::cluster.u32 %0, a; }"
      : "=r"(symbol)
      : "r"(shared_address(cells)));
  words[7] = symbol;
  cluster_sync();
  if (threadIdx.x == 0) {
    for (int i = 0; i < 8; ++i) out[rank * 8 + i] = words[i];
  }
}

// ---- cp.async

__global__ void copy_kernel(const uint32_t* in, uint32_t* out) {
  __shared__ __align__(16) uint32_t cells[128];
  __shared__ __align__(8) uint64_t storage;
  const uint32_t barrier = shared_address(&storage), to = shared_address(cells);
  for (uint32_t i = 0; i < 128; ++i) cells[i] = kFillWord;
  mbarrier_init(barrier, 1);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(in) : "memory");
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to + 8), "l"(in) : "memory");
  asm volatile("cp.async.ca.shared.global.L2::64B [%0], [%1], 16;" ::"r"(to + 16), "l"(in)
               : "memory");
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to + 32), "l"(in + 4)
               : "memory");
  constexpr uint32_t kSizes[] = {0, 1, 3, 4, 7, 8, 12, 15};
  for (uint32_t i = 0; i < 8; ++i) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to + 48 + 16 * i),
                 "l"(in + 8), "r"(kSizes[i])
                 : "memory");
  }
  asm volatile(
      "{ .reg .pred p; setp.eq.u32 p, %2, 0; cp.async.ca.shared.global [%0], [%1], 8, p; }" ::"r"(
          to + 192),
      "l"(in), "r"(0)
      : "memory");
  asm volatile(
      "{ .reg .pred p; setp.eq.u32 p, %2, 0; cp.async.cg.shared.global [%0], [%1], 16, p; }" ::"r"(
          to + 208),
      "l"(in), "r"(1)
      : "memory");
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
  out[128] = mbarrier_wait(barrier, 0);
  // Without .noinc the pending count rises first, so the thread's own arrival is needed too.
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to + 224), "l"(in) : "memory");
  asm volatile("cp.async.mbarrier.arrive.shared.b64 [%0];" ::"r"(barrier) : "memory");
  asm volatile("cp.async.commit_group; cp.async.wait_group 0; cp.async.wait_all;" ::: "memory");
  out[129] = mbarrier_test(barrier, 1);
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
  out[130] = mbarrier_wait(barrier, 1);
  for (uint32_t i = 0; i < 128; ++i) out[i] = cells[i];
}

// ---- atomics and reductions: old value and new value of each form

#define ATOM(INDEX, TYPE, C, REG, VALUE)                                \
  {                                                                     \
    REG old;                                                            \
    asm volatile("atom.global." TYPE " %0, [%1], %2;"                   \
                 : "=" C(old)                                           \
                 : "l"(cells + 2 * (INDEX)), C(static_cast<REG>(VALUE)) \
                 : "memory");                                           \
    memcpy(&olds[2 * (INDEX)], &old, sizeof old);                       \
  }

__global__ void atomic_kernel(uint32_t* cells, uint32_t* olds) {
  ATOM(0, "add.u32", "r", uint32_t, 7)
  ATOM(1, "add.s32", "r", uint32_t, -7)
  ATOM(2, "add.u64", "l", uint64_t, ~0ull)
  ATOM(3, "add.f32", "f", float, 0.1f)
  ATOM(4, "add.f64", "d", double, 0.1)
  ATOM(5, "add.noftz.f16x2", "r", uint32_t, 0x3c003c00)
  ATOM(6, "add.noftz.bf16x2", "r", uint32_t, 0x3f803f80)
  ATOM(7, "inc.u32", "r", uint32_t, 3)
  ATOM(8, "dec.u32", "r", uint32_t, 3)
  ATOM(9, "min.s32", "r", uint32_t, 5)
  ATOM(10, "max.s32", "r", uint32_t, 5)
  ATOM(11, "min.u32", "r", uint32_t, 5)
  ATOM(12, "max.u32", "r", uint32_t, 5)
  ATOM(13, "min.s64", "l", uint64_t, 5)
  ATOM(14, "max.u64", "l", uint64_t, 5)
  ATOM(15, "and.b32", "r", uint32_t, 0xff00ff)
  ATOM(16, "or.b64", "l", uint64_t, 0xff00ff)
  ATOM(17, "xor.b32", "r", uint32_t, 0xff00ff)
  ATOM(18, "exch.b64", "l", uint64_t, 99)
  ATOM(19, "relaxed.gpu.exch.b32", "r", uint32_t, 98)
  ATOM(20, "acq_rel.sys.add.u32", "r", uint32_t, 1)
  // cas that succeeds, cas that does not, and of 16 bits
  uint32_t old;
  asm volatile("atom.global.cas.b32 %0, [%1], %2, 55;"
               : "=r"(old)
               : "l"(cells + 42), "r"(cells[42])
               : "memory");
  olds[42] = old;
  asm volatile("atom.global.cas.b32 %0, [%1], 1, 55;" : "=r"(old) : "l"(cells + 44) : "memory");
  olds[44] = old;
  uint16_t half;
  asm volatile("atom.global.cas.b16 %0, [%1], %2, 55;"
               : "=h"(half)
               : "l"(cells + 46), "h"(static_cast<uint16_t>(cells[46]))
               : "memory");
  olds[46] = half;
  asm volatile("red.global.add.f32 [%0], 0f3dcccccd;" ::"l"(cells + 48) : "memory");
  asm volatile("red.global.add.v4.f32 [%0], {%1,%1,%1,%1};" ::"l"(cells + 52), "f"(0.3f)
               : "memory");
  asm volatile("red.global.add.noftz.v2.bf16x2 [%0], {%1,%1};" ::"l"(cells + 56), "r"(0x3f803f80)
               : "memory");
  float v[2];
  asm volatile("atom.global.add.v2.f32 {%0,%1}, [%2], {%3,%3};"
               : "=f"(v[0]), "=f"(v[1])
               : "l"(cells + 58), "f"(0.7f)
               : "memory");
  memcpy(&olds[58], v, 8);
  uint32_t h[2];
  asm volatile("atom.global.max.noftz.v2.f16x2 {%0,%1}, [%2], {%3,%3};"
               : "=r"(h[0]), "=r"(h[1])
               : "l"(cells + 60), "r"(0x3c007e00)
               : "memory");
  memcpy(&olds[60], h, 8);
}

/// A case whose kernel writes kWords words, launched by `launch(out)`.
template <typename Launch>
void add_words(const std::string& name, Launch launch) {
  add(name, [=](Result& result) {
    Buffer out(kWords * 4);
    cudaMemset(out.get(), 0, kWords * 4);
    launch(out.get<uint32_t>());
    fetch(result, out.get(), kWords);
  });
}

}  // namespace

void add_thread_cases() {
  for (int kind = 0; kind < 16; ++kind) {
    if ((kind & 3) == 3) continue;
    add_words(std::string("matrix ") + (kind & 8 ? "stmatrix x" : "ldmatrix x") +
                  std::to_string(1 << (kind & 3)) + (kind & 4 ? " trans" : ""),
              [kind](uint32_t* out) { matrix_kernel<<<1, 32>>>(kind, out); });
  }
  add_words("matrix movmatrix", [](uint32_t* out) { matrix_kernel<<<1, 32>>>(16, out); });
  int kind = 0;
  for (const MmaForm& form : kMmaForms) {
    add_words(std::string("mma.sync ") + form.name,
              [kind, form](uint32_t* out) { mma_kernel<<<1, 32>>>(kind, form.a, form.b, out); });
    ++kind;
  }
  add_words("warp elect and lane masks", [](uint32_t* out) { warp_kernel<<<1, 32>>>(out); });
  add_words("barrier forms", [](uint32_t* out) { barrier_kernel<<<1, 128>>>(out); });
  add_words("barrier with and without a thread count",
            [](uint32_t* out) { barrier_count_kernel<<<1, 128>>>(out); });
  add_words("fence forms", [](uint32_t* out) { fence_kernel<<<1, 1>>>(out); });
  add_words("setmaxnreg", [](uint32_t* out) { register_kernel<<<1, 256>>>(out); });
  add_words("griddepcontrol", [](uint32_t* out) {
    primary_kernel<<<1, 64>>>(out);
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = 1;
    config.blockDim = 64;
    config.attrs = &attribute;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, dependent_kernel, out);
  });
  add("prefetch and cache policies", [](Result& result) {
    Buffer memory(4096), out(kWords * 4);
    cudaMemset(memory.get(), 0x5a, 4096);
    cudaMemset(out.get(), 0, kWords * 4);
    prefetch_kernel<<<1, 1>>>(memory.get<uint32_t>(), out.get<uint32_t>());
    fetch(result, out.get(), kWords);
  });
  add_words("cluster st.async and red.async",
            [](uint32_t* out) { async_store_kernel<<<2, 32>>>(out); });
  add_words("cluster address spaces", [](uint32_t* out) {
    address_kernel<<<2, 32>>>(uint4{1, 2, 3, 4}, out);
  });
  add("cp.async forms", [](Result& result) {
    const std::vector<uint16_t> source = pattern16(256);
    Buffer in(512), out(kWords * 4);
    cudaMemcpy(in.get(), source.data(), 512, cudaMemcpyHostToDevice);
    cudaMemset(out.get(), 0, kWords * 4);
    copy_kernel<<<1, 1>>>(in.get<uint32_t>(), out.get<uint32_t>());
    fetch(result, out.get(), kWords);
  });
  for (uint32_t start : {0u, 2u, 0x3f800000u, 0x80000003u}) {
    char name[64];
    std::snprintf(name, sizeof name, "atomic forms on %08x", start);
    add(name, [start](Result& result) {
      Buffer out(kWords * 4);
      std::vector<uint32_t> words(kWords, start);
      for (uint32_t i = kWords / 2; i < kWords; ++i) words[i] = 0;
      cudaMemcpy(out.get(), words.data(), kWords * 4, cudaMemcpyHostToDevice);
      atomic_kernel<<<1, 1>>>(out.get<uint32_t>(), out.get<uint32_t>() + kWords / 2);
      fetch(result, out.get(), kWords);
    });
  }
}

}  // namespace probe
