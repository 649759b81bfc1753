// SPDX-License-Identifier: Apache-2.0
// One small kernel for each check, in two forms: with exactly one bug, and without it.
//   check_cases <case> good|bad
// Runs it and exits 0 when the runtime saw no error. The test runs both forms on the virtual GPU
// and expects a report of the bad one only.
#include <cstring>

#include "ptx.cuh"

namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ON_SM90 1
#endif
#if defined(__CUDA_ARCH_FEAT_SM100_ALL)
#define ON_SM100 1
#endif

constexpr uint32_t kBytes = 1024;  // of the buffers that copies move

__device__ void bulk_load(void* destination, const void* source, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(destination)),
      "l"(source), "r"(kBytes), "r"(shared_address(barrier))
      : "memory");
}
__device__ void bulk_store(void* destination, const void* source) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(destination),
               "r"(shared_address(source)), "r"(kBytes)
               : "memory");
}

/// Gives a buffer a first value that copies may overwrite.
template <typename Buffer>
__device__ void clear(Buffer& buffer) {
  for (uint32_t i = threadIdx.x; i < sizeof(Buffer) / 4; i += blockDim.x) buffer[i] = 0;
  fence_proxy_async();
  __syncthreads();
}

/// One thread initialises a barrier for one arrival and makes it visible.
__device__ void make_barrier(uint64_t* barrier, uint32_t count = 1) {
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, count);
    fence_mbarrier_init();
  }
  __syncthreads();
}

// ---- races on shared memory

template <bool BUG>
__global__ void race_shared(uint32_t* data) {
  __shared__ uint32_t buffer[32];
  if (threadIdx.x < 32) buffer[threadIdx.x] = threadIdx.x;
  if (!BUG) __syncthreads();
  if (threadIdx.x >= 32) data[threadIdx.x] = buffer[threadIdx.x - 32];
}

__device__ void wait_relaxed(uint64_t* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (!done) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  }
}

/// A relaxed wait makes nothing known; with a fence behind it, it does.
template <bool BUG>
__global__ void race_relaxed_wait(uint32_t* data) {
  __shared__ uint32_t buffer[32];
  __shared__ uint64_t full;
  make_barrier(&full, 32);
  if (threadIdx.x >= 32) {
    buffer[threadIdx.x - 32] = threadIdx.x;
    mbarrier_arrive(&full);
  } else {
    wait_relaxed(&full, 0);
    if (!BUG) asm volatile("fence.acquire.sync_restrict::shared::cluster.cluster;" ::: "memory");
    data[threadIdx.x] = buffer[threadIdx.x];
  }
}

/// Warp 1 stores and returns before warp 0 comes to the barrier.
template <bool BUG>
__global__ void race_exited(uint32_t* data) {
  __shared__ uint32_t buffer[32];
  if (threadIdx.x >= 32) {
    buffer[threadIdx.x - 32] = threadIdx.x;
    if (BUG) return;
  }
  __syncthreads();
  if (threadIdx.x < 32) data[threadIdx.x] = buffer[threadIdx.x];
}

template <bool BUG>
__global__ void race_load(uint32_t* data) {
  __shared__ alignas(128) uint32_t buffer[kBytes / 4];
  __shared__ uint64_t full;
  clear(buffer);
  make_barrier(&full);
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(&full, kBytes);
    bulk_load(buffer, data, &full);
  }
  if (!BUG || threadIdx.x < 32) mbarrier_wait(&full, 0);
  data[256 + threadIdx.x] = buffer[threadIdx.x];
}

template <bool BUG>
__global__ void race_reload(uint32_t* data) {
  __shared__ alignas(128) uint32_t buffer[kBytes / 4];
  __shared__ uint64_t full[2], empty;
  if (threadIdx.x == 0) {
    mbarrier_init(&full[1], 1);
    mbarrier_init(&empty, 1);
  }
  make_barrier(&full[0]);
  for (uint32_t round = 0; round < 2; ++round) {
    if (threadIdx.x == 0) {
      if (!BUG) mbarrier_wait(&empty, round ^ 1);
      mbarrier_arrive_expect_tx(&full[round], kBytes);
      bulk_load(buffer, data, &full[round]);
    }
    if (threadIdx.x >= 32) {
      mbarrier_wait(&full[round], 0);
      data[256 + threadIdx.x] = buffer[threadIdx.x];
      __syncwarp();
      if (threadIdx.x == 32) mbarrier_arrive(&empty);
    }
  }
}

/// As race_reload, with a fence between the loads of a buffer and the next copy into it.
__global__ void reload_fenced(uint32_t* data) {
  __shared__ alignas(128) uint32_t buffer[kBytes / 4];
  __shared__ uint64_t full;
  make_barrier(&full);
  for (uint32_t round = 0; round < 2; ++round) {
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect_tx(&full, kBytes);
      bulk_load(buffer, data, &full);
    }
    mbarrier_wait(&full, round);
    data[256 + threadIdx.x] = buffer[threadIdx.x];
    fence_proxy_async();
    __syncthreads();
  }
}

template <bool BUG>
__global__ void race_store_reuse(uint32_t* data) {
  __shared__ alignas(128) uint32_t buffer[kBytes / 4];
  for (int round = 0; round < 2; ++round) {
    for (uint32_t i = threadIdx.x; i < kBytes / 4; i += blockDim.x) buffer[i] = i + round;
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {
      bulk_store(data, buffer);
      bulk_commit();
      if (!BUG || round == 1) bulk_wait_read();
    }
    __syncthreads();
  }
}

template <bool BUG>
__global__ void store_at_exit(uint32_t* data) {
  __shared__ alignas(128) uint32_t buffer[kBytes / 4];
  for (uint32_t i = threadIdx.x; i < kBytes / 4; i += blockDim.x) buffer[i] = i;
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(data, buffer);
    bulk_commit();
    if (!BUG) bulk_wait();
  }
}

template <bool BUG>
__global__ void race_cp_async(uint32_t* data) {
  __shared__ alignas(16) uint32_t buffer[64];
  clear(buffer);
  if (threadIdx.x < 16) {
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(&buffer[threadIdx.x * 4])),
        "l"(data + threadIdx.x * 4)
        : "memory");
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
  if (!BUG) asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  data[256 + threadIdx.x] = buffer[threadIdx.x];
}

template <bool BUG>
__global__ void race_cp_async_arrive(uint32_t* data) {
  __shared__ alignas(16) uint32_t buffer[64];
  __shared__ uint64_t full;
  clear(buffer);
  make_barrier(&full, 64);
  if (threadIdx.x < 16) {
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(&buffer[threadIdx.x * 4])),
        "l"(data + threadIdx.x * 4)
        : "memory");
  }
  if (BUG) {
    mbarrier_arrive(&full);
  } else {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&full))
                 : "memory");
  }
  mbarrier_wait(&full, 0);
  data[256 + threadIdx.x] = buffer[threadIdx.x];
}

template <bool BUG>
__global__ void __cluster_dims__(2) race_cluster(uint32_t* data) {
  __shared__ uint32_t word;
  uint32_t rank, remote;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) word = 100 + rank;
  if (!BUG) {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  }
  if (BUG) {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::
                     : "memory");
  }
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(remote)
               : "r"(shared_address(&word)), "r"(rank ^ 1));
  uint32_t value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(remote) : "memory");
  data[256 + rank] = value;
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

/// A copy that a warp has waited for, published to the other warps of its CTA by an arrival at the
/// cluster's barrier that is relaxed.
template <bool BUG>
__global__ void __cluster_dims__(2) race_cluster_copy(uint32_t* data) {
  __shared__ uint32_t word;
  if (threadIdx.x == 0) {
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], 4;\ncp.async.wait_all;" ::"r"(shared_address(&word)),
        "l"(data)
        : "memory");
  }
  if (BUG) {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::
                     : "memory");
  } else {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  }
  data[256 + threadIdx.x] = word;
}

/// CTA 1 arrives at two mbarriers of CTA 0. In the bad one CTA 0 waits for the second alone.
template <bool BUG>
__global__ void __cluster_dims__(2) arrival_at_exit(uint32_t*) {
  __shared__ uint64_t barriers[2];
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  make_barrier(&barriers[0]);
  make_barrier(&barriers[1]);
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  for (uint64_t& barrier : barriers) {
    if (rank == 1 && threadIdx.x == 0) {
      uint32_t remote;
      asm volatile("mapa.shared::cluster.u32 %0, %1, 0;"
                   : "=r"(remote)
                   : "r"(shared_address(&barrier)));
      asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
    }
    if (rank == 0 && (!BUG || &barrier == &barriers[1])) mbarrier_wait(&barrier, 0);
  }
}

/// Launched twice, each time with leave to start early.
template <bool BUG>
__global__ void early_access(uint32_t* data) {
  if (!BUG) asm volatile("griddepcontrol.wait;" ::: "memory");
  data[256 + threadIdx.x] = data[threadIdx.x];
}

__device__ CUtensorMap rows_map;  // rows of 128 bytes of `data`, 128-byte swizzle, boxes of 8

/// A swizzled box that begins in the middle of the swizzle's pattern.
template <bool BUG>
__global__ void box_off_pattern(uint32_t* data) {
  __shared__ alignas(1024) uint32_t tile[2 * kBytes / 4];
  __shared__ uint64_t full;
  make_barrier(&full);
  uint32_t* box = tile + (BUG ? 512 / 4 : 0);
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(&full, kBytes);
    tma_load_2d(box, &rows_map, &full, 0, 0);
  }
  mbarrier_wait(&full, 0);
  data[256 + threadIdx.x] = box[threadIdx.x];
}

/// Two warps store to one word: the same value is a remark, another is a race.
template <bool BUG, bool SAME>
__device__ void two_stores(uint32_t* data) {
  __shared__ uint32_t word;
  if (threadIdx.x == 0) word = 0;
  __syncthreads();
  const uint32_t warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0 && (BUG || warp == 0)) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared_address(&word)), "r"(SAME ? 7 : 7 + warp)
                 : "memory");
  }
  __syncthreads();
  data[256 + threadIdx.x] = word;
}
template <bool BUG>
__global__ void race_same_value(uint32_t* data) {
  two_stores<BUG, true>(data);
}
template <bool BUG>
__global__ void race_two_values(uint32_t* data) {
  two_stores<BUG, false>(data);
}

/// cp.async and its arrival are of the generic proxy: the mbarrier needs no fence.
__global__ void cp_async_unfenced(uint32_t* data) {
  __shared__ alignas(16) uint32_t buffer[128];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) mbarrier_init(&full, blockDim.x);
  __syncthreads();
  if (threadIdx.x < 16) {
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(&buffer[threadIdx.x * 4])),
        "l"(data + threadIdx.x * 4)
        : "memory");
  }
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&full))
               : "memory");
  mbarrier_wait(&full, 0);
  data[256 + threadIdx.x] = buffer[threadIdx.x];
}

// ---- lanes of one warp

template <bool BUG>
__global__ void lanes_exchange(uint32_t* data) {
  __shared__ uint32_t buffer[32];
  buffer[threadIdx.x] = threadIdx.x;
  if (!BUG) __syncwarp();
  data[256 + threadIdx.x] = buffer[threadIdx.x ^ 1];
}

template <bool BUG>
__global__ void lanes_halves(uint32_t* data) {
  __shared__ uint16_t buffer[32];
  buffer[threadIdx.x] = threadIdx.x;
  if (!BUG) __syncwarp();
  data[256 + threadIdx.x] = buffer[threadIdx.x ^ 2];
}

template <bool BUG>
__global__ void lanes_copy(uint32_t* data) {
  __shared__ alignas(128) uint32_t buffer[kBytes / 4];
  for (uint32_t i = threadIdx.x; i < kBytes / 4; i += 32) buffer[i] = i;
  fence_proxy_async();
  if (!BUG) __syncwarp();
  if (threadIdx.x == 0) {
    bulk_store(data, buffer);
    bulk_commit();
    bulk_wait();
  }
}

/// A lane waits for its own copies alone.
template <bool BUG>
__global__ void lanes_cp_async(uint32_t* data) {
  __shared__ alignas(16) uint32_t buffer[32];
  asm volatile(
      "cp.async.ca.shared.global [%0], [%1], 4;\ncp.async.commit_group;\n"
      "cp.async.wait_group 0;" ::"r"(shared_address(&buffer[threadIdx.x])),
      "l"(data + threadIdx.x)
      : "memory");
  data[512 + threadIdx.x] = buffer[threadIdx.x];  // Its own.
  if (!BUG) __syncwarp();
  data[256 + threadIdx.x] = buffer[threadIdx.x ^ 1];
}

/// What needs no __syncwarp: each lane reads what it wrote itself, two lanes share a word.
__global__ void lanes_apart(uint32_t* data) {
  __shared__ uint16_t halves[32];
  __shared__ uint8_t bytes[32];
  __shared__ alignas(16) uint32_t vectors[128];
  halves[threadIdx.x] = threadIdx.x;
  bytes[threadIdx.x] = threadIdx.x;
  reinterpret_cast<uint4*>(vectors)[threadIdx.x] = make_uint4(1, 2, 3, threadIdx.x);
  asm volatile(
      "{\n.reg .b16 h, b;\n.reg .b32 x, y, z;\nld.shared.u16 h, [%0];\nld.shared.u8 b, [%1];\n"
      "ld.shared.v4.u32 {x, y, x, z}, [%2];\ncvt.u32.u16 x, h;\nst.global.u32 [%3], x;\n"
      "st.global.u32 [%3], z;\n}" ::"r"(shared_address(&halves[threadIdx.x])),
      "r"(shared_address(&bytes[threadIdx.x])), "r"(shared_address(&vectors[4 * threadIdx.x])),
      "l"(data + 256 + threadIdx.x)
      : "memory");
}

/// A copy of no bytes is under way when the kernel ends: an H200 takes that.
__global__ void empty_copy(uint32_t* data) {
  __shared__ alignas(128) uint32_t buffer[4];
  __shared__ uint64_t full;
  make_barrier(&full);
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(&full, 0);
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(buffer)),
        "l"(data), "r"(0), "r"(shared_address(&full))
        : "memory");
  }
}

// ---- bounds, alignment, use after free (always checked)

template <bool BUG>
__global__ void oob_global(uint32_t* data) {
  data[(BUG ? 2048 - 32 : 0) + threadIdx.x] = 1;
}

template <bool BUG>
__global__ void oob_misaligned(uint32_t* data) {
  char* bytes = reinterpret_cast<char*>(data);
  asm volatile("st.global.u32 [%0], 1;" ::"l"(bytes + (BUG ? 2 : 4)) : "memory");
}

template <bool BUG>
__global__ void oob_freed(uint32_t* data) {  // the host frees `data` before the bad one
  data[threadIdx.x] = 1;
}

template <bool BUG>
__global__ void oob_shared(uint32_t* data) {
  __shared__ uint32_t buffer[64];
  asm volatile("st.shared.u32 [%0], 1;" ::"r"(shared_address(buffer) + (BUG ? 256 : 252))
               : "memory");
}

template <bool BUG>
__global__ void oob_local(uint32_t* data) {
  uint32_t mine[16];
  for (uint32_t i = 0; i < 16; ++i) mine[i] = i;
  const uint32_t index = data[0] + (BUG ? 100000 : 3);  // data[0] is 0
  data[256] = *(volatile uint32_t*)&mine[index];
}

// ---- proxies

template <bool BUG>
__global__ void proxy_store(uint32_t* data) {
  __shared__ alignas(128) uint32_t buffer[kBytes / 4];
  for (uint32_t i = threadIdx.x; i < kBytes / 4; i += blockDim.x) buffer[i] = i;
  if (!BUG) fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(data, buffer);
    bulk_commit();
    bulk_wait();
  }
}

template <bool BUG>
__global__ void proxy_load(uint32_t* data) {
  __shared__ alignas(128) uint32_t buffer[kBytes / 4];
  __shared__ uint64_t full;
  make_barrier(&full);
  for (uint32_t i = threadIdx.x; i < kBytes / 4; i += blockDim.x) buffer[i] = 0;
  if (!BUG) fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(&full, kBytes);
    bulk_load(buffer, data, &full);
  }
  mbarrier_wait(&full, 0);
  data[256 + threadIdx.x] = buffer[threadIdx.x];
}

// ---- unwritten memory

template <bool BUG>
__global__ void init_shared(uint32_t* data) {
  __shared__ uint32_t buffer[64];
  if (!BUG || threadIdx.x != 40) buffer[threadIdx.x] = threadIdx.x;
  __syncthreads();
  data[256 + threadIdx.x] = buffer[threadIdx.x ^ 1];
}

/// Word 40 is not written in the bad ones; the good ones read it and do not use it.
template <bool BUG, int USE>
__device__ void init_use(uint32_t* data) {
  __shared__ uint32_t buffer[64];
  if (threadIdx.x != 40) buffer[threadIdx.x] = threadIdx.x;
  __syncthreads();
  uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(shared_address(&buffer[threadIdx.x])));
  const uint32_t sum = value * 3 + 1;
  const bool used = BUG || threadIdx.x != 40;
  if (USE == 0 && used) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(data + 256 + threadIdx.x), "r"(sum) : "memory");
  }
  if (USE == 1 && used) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 5;\n@p st.global.u32 [%0], 1;\n}" ::"l"(
                     data + 256 + threadIdx.x),
                 "r"(sum)
                 : "memory");
  }
  if (USE == 2 && used) {
    asm volatile(
        "{\n.reg .b32 v;\nand.b32 v, %0, 12;\nadd.u32 v, v, %1;\nld.shared.u32 v, [v];\n}" ::"r"(
            sum),
        "r"(shared_address(buffer))
        : "memory");
  }
}
template <bool BUG>
__global__ void init_follow(uint32_t* data) {
  init_use<BUG, 0>(data);
}
template <bool BUG>
__global__ void init_branch(uint32_t* data) {
  init_use<BUG, 1>(data);
}
template <bool BUG>
__global__ void init_address(uint32_t* data) {
  init_use<BUG, 2>(data);
}

/// Padding moves with its structure through registers and shared memory.
__global__ void init_padding(uint32_t* data) {
  __shared__ uint2 from[64], to[64];
  from[threadIdx.x].x = threadIdx.x;  // .y is padding
  __syncthreads();
  uint32_t x, y;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
               : "=r"(x), "=r"(y)
               : "r"(shared_address(&from[threadIdx.x ^ 1])));
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(shared_address(&to[threadIdx.x])), "r"(x),
               "r"(y)
               : "memory");
  __syncthreads();
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
               : "=r"(x), "=r"(y)
               : "r"(shared_address(&to[threadIdx.x ^ 1])));
  data[256 + threadIdx.x] = x;
}

/// A flag in front of padding, read in one word: the padding decides only in the bad one.
template <bool BUG>
__global__ void init_fields(uint32_t* data) {
  __shared__ alignas(8) uint8_t flags[64 * 8];
  flags[threadIdx.x * 8] = threadIdx.x & 1;
  flags[threadIdx.x * 8 + 7] = 0;
  __syncthreads();
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 v;\n.reg .b32 l, h;\n"
      "ld.shared.u64 v, [%1];\n"
      "st.shared.u64 [%1], v;\n"
      "ld.shared.u64 v, [%1];\n"
      "mov.b64 {l, h}, v;\n"
      "shr.u32 h, h, %2;\n"
      "and.b32 l, l, 255;\n"
      "add.u32 l, l, h;\n"
      "setp.ne.u32 p, l, 0;\n"
      "@p st.global.u32 [%0], 1;\n}" ::"l"(data + 256 + threadIdx.x),
      "r"(shared_address(&flags[threadIdx.x * 8])), "n"(BUG ? 16 : 24)
      : "memory");
}

/// 16 rows of which 6 are loaded, multiplied by a matrix of ones: the products of the others are
/// dropped, but in the bad one. With stmatrix they go through shared memory again.
template <bool BUG, bool STORED>
__device__ void multiply_rows(uint32_t* data) {
  __shared__ alignas(16) uint16_t rows[16][8], sums[8][8];
  if (threadIdx.x >= 32) return;
  const uint32_t lane = threadIdx.x;
  if (lane < 6) {
    *reinterpret_cast<uint4*>(rows[lane]) = {0x3c003c00, 0x3c003c00, 0x3c003c00, 0x3c003c00};
  }
  __syncwarp();
  uint32_t a0, a1, d0, d1;
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(a0), "=r"(a1)
               : "r"(shared_address(rows[lane % 16]))
               : "memory");
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%4}, {%5, %5};"
      : "=r"(d0), "=r"(d1)
      : "r"(a0), "r"(a1), "r"(0x3c003c00), "r"(0));
  if (STORED) {
    asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(
                     shared_address(sums[lane % 8])),
                 "r"(d0)
                 : "memory");
    __syncwarp();
    uint32_t word;
    asm volatile("ld.shared.u32 %0, [%1];"
                 : "=r"(word)
                 : "r"(shared_address(&sums[lane / 4][lane % 4 * 2]))
                 : "memory");
    d0 = word + lane;
  }
  if (lane < (BUG ? 28 : 24)) data[256 + lane] = d0;
}
template <bool BUG>
__global__ void init_rows(uint32_t* data) {
  multiply_rows<BUG, false>(data);
}
template <bool BUG>
__global__ void init_rows_stored(uint32_t* data) {
  multiply_rows<BUG, true>(data);
}

/// Six words of 32 are written. What is defined decides before what is not: `lane < n && word > 0`,
/// put together from predicates, then a ballot. The bad form takes one lane too many.
template <bool BUG>
__global__ void init_decided(uint32_t* data) {
  __shared__ uint32_t words[32];
  if (threadIdx.x >= 32) return;
  const uint32_t lane = threadIdx.x;
  if (lane < 6) words[lane] = lane + 1;
  __syncwarp();
  uint32_t lanes;
  asm volatile(
      "{\n.reg .pred p, q;\n.reg .b32 v, m;\n"
      "ld.shared.u32 v, [%1];\n"
      "setp.gt.u32 p, v, 0;\n"
      "vote.sync.any.pred q, p, 0xffffffff;\n"
      "setp.lt.and.u32 p, %2, %3, p;\n"
      "vote.sync.ballot.b32 m, p, 0xffffffff;\n"
      "@!q mov.u32 m, 0;\n"
      "mov.u32 %0, m;\n}"
      : "=r"(lanes)
      : "r"(shared_address(&words[lane])), "r"(lane), "n"(BUG ? 7 : 6));
  if (lanes == 63) data[256 + lane] = 1;
}

/// The same words: a choice between them and zero (WHAT 0), what other lanes give (1), what was
/// kept in local memory (2).
template <bool BUG, int WHAT>
__device__ void init_take(uint32_t* data) {
  __shared__ uint32_t words[32];
  if (threadIdx.x >= 32) return;
  const uint32_t lane = threadIdx.x, count = BUG ? 7 : 6;
  if (lane < 6) words[lane] = lane + 1;
  __syncwarp();
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(shared_address(&words[lane])));
  if (WHAT == 0) {
    asm volatile("{\n.reg .pred p;\nsetp.lt.u32 p, %1, %2;\nselp.u32 %0, %0, 0, p;\n}"
                 : "+r"(word)
                 : "r"(lane), "r"(count));
  }
  if (WHAT == 1) word = __shfl_sync(~0u, word, lane % count);
  if (WHAT == 2) {
    asm volatile(
        "{\n.local .b32 kept;\nst.local.u32 [kept], %0;\nmov.u32 %0, 0;\n"
        "ld.local.u32 %0, [kept];\n}"
        : "+r"(word));
    if (lane >= count) return;
  }
  data[256 + lane] = word + 1;
}
template <bool BUG>
__global__ void init_choice(uint32_t* data) {
  init_take<BUG, 0>(data);
}
template <bool BUG>
__global__ void init_exchange(uint32_t* data) {
  init_take<BUG, 1>(data);
}
template <bool BUG>
__global__ void init_spilled(uint32_t* data) {
  init_take<BUG, 2>(data);
}

/// The same words go into a workspace as a whole, are added to there, and taken up again as far as
/// they count: what the host copies lies behind the workspace.
template <bool BUG>
__global__ void init_workspace(uint32_t* data) {
  __shared__ uint32_t words[32];
  if (threadIdx.x >= 32) return;
  const uint32_t lane = threadIdx.x;
  if (lane < 6) words[lane] = lane + 1;
  __syncwarp();
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(shared_address(&words[lane])));
  data[256 + lane] = word + 1;
  atomicAdd(&data[256 + lane], word);
  const uint32_t sum = *const_cast<volatile uint32_t*>(&data[256 + lane]);
  if (lane < (BUG ? 7 : 6)) data[512 + lane] = 2 * sum;
}

template <bool BUG>
__global__ void init_global(uint32_t* data) {
  // The host wrote the first 1024 words; the next ones are unwritten.
  data[256 + threadIdx.x] = data[(BUG ? 1000 : 900) + threadIdx.x];
}

// ---- mbarriers

template <bool BUG>
__global__ void mbarrier_order(uint32_t* data) {
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) mbarrier_init(&barrier, 1);
  if (!BUG) __syncthreads();
  // Time stands for luck: the barrier happens to be there.
  if (BUG && threadIdx.x == 32) {
    for (int i = 0; i < 10; ++i) asm volatile("nanosleep.u32 1000;");
  }
  if (threadIdx.x == 32) mbarrier_arrive(&barrier);
  if (threadIdx.x == 32) mbarrier_wait(&barrier, 0);
  data[256 + threadIdx.x] = 1;
}

template <bool BUG>
__global__ void mbarrier_fence(uint32_t* data) {
  __shared__ alignas(128) uint32_t buffer[kBytes / 4];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    if (!BUG) fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(&full, kBytes);
    bulk_load(buffer, data, &full);
  }
  mbarrier_wait(&full, 0);
  data[256 + threadIdx.x] = buffer[threadIdx.x];
}

// A barrier that is destroyed twice.
template <bool BUG>
__global__ void mbarrier_inval(uint32_t* data) {
  __shared__ uint64_t barrier;
  make_barrier(&barrier);
  if (threadIdx.x == 0) {
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(&barrier));
    for (int i = 0; i < (BUG ? 2 : 1); ++i) {
      asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(address) : "memory");
    }
  }
  data[256 + threadIdx.x] = 1;
}

template <bool BUG>
__global__ void mbarrier_overwritten(uint32_t* data) {
  __shared__ struct {
    uint32_t words[64];
    uint64_t barrier;
  } shared;
  make_barrier(&shared.barrier);
  // One element too many lands on the barrier.
  for (uint32_t i = threadIdx.x; i < (BUG ? 65 : 64); i += blockDim.x) {
    reinterpret_cast<volatile uint32_t*>(&shared)[i] = i;
  }
  __syncthreads();
  data[256 + threadIdx.x] = shared.words[threadIdx.x];
}

// ---- wgmma

template <bool BUG, int WHAT>
__device__ void wgmma_case(uint32_t* data) {
#ifdef ON_SM90
  __shared__ alignas(1024) __nv_bfloat16 a[64 * 16];
  __shared__ alignas(1024) __nv_bfloat16 b[8 * 16];
  if (WHAT != 5) {
    for (uint32_t i = threadIdx.x; i < 64 * 16; i += 128) a[i] = __float2bfloat16(1.0f);
  }
  for (uint32_t i = threadIdx.x; i < 8 * 16; i += 128) b[i] = __float2bfloat16(1.0f);
  if (!(BUG && WHAT == 0)) fence_proxy_async();
  if (WHAT == 5) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\ncp.async.wait_all;" ::"r"(
                     shared_address(&a[threadIdx.x * 8])),
                 "l"(data + threadIdx.x * 4)
                 : "memory");
    if (!BUG) fence_proxy_async();
  }
  __syncthreads();
  // No swizzle: core matrices of 128 bytes, LBO 128, SBO 256.
  auto descriptor = [](const void* start) {
    return uint64_t{(shared_address(start) & 0x3ffff) >> 4} | uint64_t{128 >> 4} << 16 |
           uint64_t{256 >> 4} << 32;
  };
  float d[4] = {};
  if (!(BUG && WHAT == 1)) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "l"(descriptor(a)), "l"(descriptor(b)));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  if (BUG && WHAT == 3) data[256 + threadIdx.x] = __float_as_uint(d[0]);
  if (!(BUG && WHAT == 2)) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  __syncthreads();
  a[threadIdx.x] = __float2bfloat16(2.0f);  // the operand's buffer is used again
  if (BUG && WHAT == 2) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  if (WHAT == 4) {
    // The accumulator is scaled, then accumulated into again.
    for (float& value : d) asm volatile("mul.f32 %0, %0, 0f40000000;" : "+f"(value));
    fence_proxy_async();
    __syncthreads();
    if (!BUG) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "l"(descriptor(a)), "l"(descriptor(b)));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  data[256 + threadIdx.x] = __float_as_uint(d[0]);
#endif
}
template <bool BUG>
__global__ void wgmma_proxy(uint32_t* data) {
  wgmma_case<BUG, 0>(data);
}
template <bool BUG>
__global__ void wgmma_copied(uint32_t* data) {
  wgmma_case<BUG, 5>(data);
}
template <bool BUG>
__global__ void wgmma_fence(uint32_t* data) {
  wgmma_case<BUG, 1>(data);
}
template <bool BUG>
__global__ void wgmma_wait(uint32_t* data) {
  wgmma_case<BUG, 2>(data);
}

template <bool BUG>
__global__ void wgmma_early_read(uint32_t* data) {
  wgmma_case<BUG, 3>(data);
}
template <bool BUG>
__global__ void wgmma_refence(uint32_t* data) {
  wgmma_case<BUG, 4>(data);
}

enum Rows { kDropped, kStored, kBranch };

/// A tile of 32 rows in a wgmma of 64, while a copy fills the 32 rows behind it; the good form
/// waits for the copy first. What becomes of their products:
template <bool BUG, Rows ROWS>
__device__ void wgmma_rows(uint32_t* data) {
#ifdef ON_SM90
  __shared__ alignas(1024) __nv_bfloat16 a[64 * 16];
  __shared__ alignas(1024) __nv_bfloat16 b[8 * 16];
  __shared__ uint64_t full;
  for (uint32_t i = threadIdx.x; i < 64 * 16; i += 128) a[i] = __float2bfloat16(1.0f);
  for (uint32_t i = threadIdx.x; i < 8 * 16; i += 128) b[i] = __float2bfloat16(1.0f);
  fence_proxy_async();
  make_barrier(&full);
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(&full, kBytes);
    bulk_load(a + 32 * 16, data, &full);
  }
  if (!BUG) mbarrier_wait(&full, 0);
  // No swizzle: core matrices of 128 bytes, LBO 128, SBO 256.
  auto descriptor = [](const void* start) {
    return uint64_t{(shared_address(start) & 0x3ffff) >> 4} | uint64_t{128 >> 4} << 16 |
           uint64_t{256 >> 4} << 32;
  };
  float d[4] = {};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "l"(descriptor(a)), "l"(descriptor(b)));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  const uint32_t value = __float_as_uint(d[0]);
  if (ROWS == kStored || threadIdx.x < 64) data[256 + threadIdx.x] = value;
  if (ROWS == kBranch && value == 5) data[256 + threadIdx.x] = 1;
  mbarrier_wait(&full, 0);
#endif
}
template <bool BUG>
__global__ void wgmma_rows_dropped(uint32_t* data) {
  wgmma_rows<BUG, kDropped>(data);
}
template <bool BUG>
__global__ void wgmma_rows_stored(uint32_t* data) {
  wgmma_rows<BUG, kStored>(data);
}
template <bool BUG>
__global__ void wgmma_rows_branch(uint32_t* data) {
  wgmma_rows<BUG, kBranch>(data);
}

/// Attention in small: products are multiplied again as A in registers, and the sums go through
/// shared memory to global memory. A is 64 rows, of which the bad forms write four; one of them
/// drops the sums of the others.
template <bool BUG, Rows ROWS>
__device__ void wgmma_unwritten(uint32_t* data) {
#ifdef ON_SM90
  __shared__ alignas(1024) __nv_bfloat16 a[64 * 16];
  __shared__ alignas(1024) __nv_bfloat16 b[16 * 16];
  __shared__ float sums[64][2];
  // No swizzle: core matrices of 8 rows of 16 bytes, LBO 128, SBO 256.
  for (uint32_t i = threadIdx.x; i < 64 * 16; i += 128) {
    if (!BUG || i / 128 * 8 + i / 8 % 8 < 4) a[i] = __float2bfloat16(1.0f);
  }
  for (uint32_t i = threadIdx.x; i < 16 * 16; i += 128) b[i] = __float2bfloat16(1.0f);
  fence_proxy_async();
  __syncthreads();
  auto descriptor = [](const void* start) {
    return uint64_t{(shared_address(start) & 0x3ffff) >> 4} | uint64_t{128 >> 4} << 16 |
           uint64_t{256 >> 4} << 32;
  };
  float d[8], e[4];
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, 0, "
      "1, 1, 0, 0;"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]),
        "=f"(d[7])
      : "l"(descriptor(a)), "l"(descriptor(b)));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  uint32_t p[4];
  for (int k = 0; k < 4; ++k) {
    asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(p[k]) : "f"(d[2 * k + 1]), "f"(d[2 * k]));
  }
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 0, 1, "
      "1, 0;"
      : "=f"(e[0]), "=f"(e[1]), "=f"(e[2]), "=f"(e[3])
      : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(descriptor(b)));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  // Each lane has two columns of two rows; the first column's lanes store.
  const uint32_t row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  if (threadIdx.x % 4 == 0) {
    for (uint32_t k = 0; k < 4; ++k) sums[row + k / 2 * 8][k % 2] = e[k];
  }
  __syncthreads();
  const float sum = sums[threadIdx.x / 2][threadIdx.x % 2] * 0.5f;
  if (threadIdx.x < (ROWS == kDropped ? 8 : 9)) data[256 + threadIdx.x] = __float_as_uint(sum);
#endif
}
template <bool BUG>
__global__ void wgmma_unwritten_dropped(uint32_t* data) {
  wgmma_unwritten<BUG, kDropped>(data);
}
template <bool BUG>
__global__ void wgmma_unwritten_stored(uint32_t* data) {
  wgmma_unwritten<BUG, kStored>(data);
}

// ---- tcgen05

enum Tcgen05Bug {
  kNone,
  kProxy,
  kUnwritten,
  kNoCommitWait,
  kNoWaitLd,
  kNoFenceAfter,
  kNoFenceBefore,
  kLeak,
  kEarlyDealloc,
  kEarlyRead,
  kEarlyCopy,
  kOutside,
  kOtherLanes,
  kFreedTwice,
  kBaseOffset,
  kReservedBits,
  kHopperDescriptor,
  kShape,
  kCommitAtExit,
  kOthersCommit,
  kLateAlloc,
  kRelaxed,
  kStoreWaited,
  kStoreUnwaited
};

__device__ void arrive_relaxed(uint64_t* barrier) {
  asm volatile(
      "mbarrier.arrive.relaxed.cluster.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
      : "memory");
}

/// Warp 0 multiplies twice into one accumulator's place; warps 0-3 read the results.
template <Tcgen05Bug BUG>
__device__ void tcgen05_case(uint32_t* data) {
#ifdef ON_SM100
  __shared__ alignas(1024) __nv_bfloat16 a[128 * 16];
  __shared__ alignas(1024) __nv_bfloat16 b[8 * 16];
  __shared__ uint64_t done, read, last;
  __shared__ uint32_t tmem_address;
  const uint32_t warp = threadIdx.x / 32;
  for (uint32_t i = threadIdx.x; i < 128 * 16; i += 160) a[i] = __float2bfloat16(1.0f);
  for (uint32_t i = threadIdx.x; i < 8 * 16; i += 160) b[i] = __float2bfloat16(1.0f);
  if (BUG != kProxy) fence_proxy_async();
  if (threadIdx.x == 0) {
    mbarrier_init(&read, 4);
    mbarrier_init(&last, 1);
  }
  if (warp == 4) {
    if (BUG == kLateAlloc) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;" ::"r"(
                     shared_address(&tmem_address))
                 : "memory");
    if (BUG != kLateAlloc) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  }
  make_barrier(&done);
  const uint32_t tmem = *reinterpret_cast<volatile uint32_t*>(&tmem_address);
  auto descriptor = [](const void* start) {
    return uint64_t{(shared_address(start) & 0x3ffff) >> 4} | uint64_t{128 >> 4} << 16 |
           uint64_t{256 >> 4} << 32 | uint64_t{BUG != kHopperDescriptor} << 46 |
           uint64_t{BUG == kBaseOffset} << 49 | uint64_t{BUG == kReservedBits} << 53;
  };
  constexpr uint32_t kRows = BUG == kShape ? 96 : 128;
  constexpr uint32_t kInstruction = 1 << 4 | 1 << 7 | 1 << 10 | 1 << 17 | kRows / 16 << 24;
  for (uint32_t round = 0; round < 2; ++round) {
    if (threadIdx.x == 128) {
      BUG == kRelaxed ? wait_relaxed(&read, round ^ 1) : mbarrier_wait(&read, round ^ 1);
      asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
      asm volatile(
          "{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
          "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n}" ::"r"(tmem),
          "l"(descriptor(a)), "l"(descriptor(b)), "r"(kInstruction), "r"(BUG == kUnwritten ? 1 : 0)
          : "memory");
    }
    __syncwarp();
    if (threadIdx.x == (BUG == kOthersCommit ? 129 : 128)) {
      asm volatile(
          "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
              shared_address(&done))
          : "memory");
    }
    if (warp < 4) {
      if (BUG == kRelaxed) {
        wait_relaxed(&done, round);
      } else if (BUG != kNoCommitWait) {
        mbarrier_wait(&done, round);
      }
      if (BUG != kNoFenceAfter) asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
      uint32_t value;
      asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];"
                   : "=r"(value)
                   : "r"(tmem + ((BUG == kOtherLanes ? warp ^ 1 : warp) * 32 << 16) +
                         (BUG == kOutside ? 32 : 0)));
      if (BUG == kEarlyRead) data[256 + threadIdx.x] = value;
      uint32_t copy;  // through a pair, as compilers pack registers
      asm volatile("{\n.reg .b64 pair;\nmov.b64 pair, {%1, %1};\nmov.b64 {_, %0}, pair;\n}"
                   : "=r"(copy)
                   : "r"(value));
      if (BUG == kEarlyCopy) data[256 + threadIdx.x] = copy;
      if (BUG != kNoWaitLd) asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
      if (BUG == kStoreWaited || BUG == kStoreUnwaited) {
        asm volatile(
            "tcgen05.st.sync.aligned.32x32b.x1.b32 [%0], {%1};" ::"r"(tmem + (warp * 32 << 16)),
            "r"(copy + 1)
            : "memory");
        if (BUG == kStoreWaited) asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
      }
      if (BUG != kNoFenceBefore) asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
      if (threadIdx.x % 32 == 0) {
        BUG == kRelaxed ? arrive_relaxed(&read) : mbarrier_arrive(&read);
      }
      if (BUG == kNoWaitLd) asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
      data[256 + threadIdx.x] = copy;
    }
    __syncwarp();
  }
  if (threadIdx.x == 128) {
    asm volatile(
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
            shared_address(&last))
        : "memory");
    if (BUG != kCommitAtExit) mbarrier_wait(&last, 0);
  }
  __syncwarp();
  if (BUG != kEarlyDealloc) {
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    __syncthreads();
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
  }
  if (warp == 4 && BUG != kLeak) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 32;" ::"r"(tmem));
  }
  if (warp == 4 && BUG == kFreedTwice) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 32;" ::"r"(tmem));
  }
#endif
}
/// The pattern of the PTX ISA: relaxed arrivals and waits between tcgen05.fence.
__global__ void tcgen05_relaxed(uint32_t* data) {
  tcgen05_case<kRelaxed>(data);
}
/// What was loaded is stored again, before the next products go there.
template <bool BUG>
__global__ void tcgen05_stored(uint32_t* data) {
  tcgen05_case<BUG ? kStoreUnwaited : kStoreWaited>(data);
}
/// Rows of TMEM shifted, then columns copied over them: only .4x256b follows a shift in order.
template <bool BUG>
__global__ void tcgen05_shift_copy(uint32_t* data) {
#ifdef ON_SM100
  __shared__ alignas(1024) uint32_t tile[512];
  __shared__ uint64_t done;
  __shared__ uint32_t tmem_address;
  for (uint32_t i = threadIdx.x; i < 512; i += blockDim.x) tile[i] = data[i % 64];
  fence_proxy_async();
  if (threadIdx.x < 32) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;" ::"r"(
                     shared_address(&tmem_address))
                 : "memory");
  }
  make_barrier(&done);
  const uint32_t tmem = *reinterpret_cast<volatile uint32_t*>(&tmem_address);
  uint32_t phase = 0;
  auto wait = [&] {
    asm volatile(
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
            shared_address(&done))
        : "memory");
    mbarrier_wait(&done, phase++ & 1);
  };
  auto copy = [&](uint32_t column) {
    asm volatile("tcgen05.cp.cta_group::1.128x128b [%0], %1;" ::"r"(tmem + column),
                 "l"(uint64_t{(shared_address(tile) & 0x3ffff) >> 4} | uint64_t{128 >> 4} << 16 |
                     uint64_t{128 >> 4} << 32 | uint64_t{1} << 46)
                 : "memory");
  };
  if (threadIdx.x == 0) {
    copy(0);
    copy(4);
    wait();
    asm volatile("tcgen05.shift.cta_group::1.down [%0];" ::"r"(tmem) : "memory");
    if (!BUG) wait();
    copy(0);
    wait();
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 32;" ::"r"(tmem));
  }
#endif
}
/// A second copy to TMEM columns that nothing orders behind the first.
template <bool BUG>
__global__ void tcgen05_copies(uint32_t* data) {
#ifdef ON_SM100
  __shared__ alignas(1024) uint32_t tile[512];
  __shared__ uint64_t done;
  __shared__ uint32_t tmem_address;
  for (uint32_t i = threadIdx.x; i < 512; i += blockDim.x) tile[i] = data[i % 64];
  fence_proxy_async();
  if (threadIdx.x < 32) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;" ::"r"(
                     shared_address(&tmem_address))
                 : "memory");
  }
  make_barrier(&done);
  const uint32_t tmem = *reinterpret_cast<volatile uint32_t*>(&tmem_address);
  if (threadIdx.x == 0) {
    for (uint32_t round = 0; round < 2; ++round) {
      asm volatile("tcgen05.cp.cta_group::1.128x128b [%0], %1;" ::"r"(tmem),
                   "l"(uint64_t{(shared_address(tile) & 0x3ffff) >> 4} | uint64_t{128 >> 4} << 16 |
                       uint64_t{128 >> 4} << 32 | uint64_t{1} << 46)
                   : "memory");
      if (BUG && round == 0) continue;
      asm volatile(
          "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
              shared_address(&done))
          : "memory");
      mbarrier_wait(&done, BUG ? 0 : round);
    }
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 32;" ::"r"(tmem));
  }
#endif
}
#define TCGEN05_CASE(NAME, WHAT)            \
  template <bool BUG>                       \
  __global__ void NAME(uint32_t* data) {    \
    tcgen05_case<BUG ? WHAT : kNone>(data); \
  }
TCGEN05_CASE(tcgen05_proxy, kProxy)
TCGEN05_CASE(tcgen05_unwritten, kUnwritten)
TCGEN05_CASE(tcgen05_commit_wait, kNoCommitWait)
TCGEN05_CASE(tcgen05_wait_ld, kNoWaitLd)
TCGEN05_CASE(tcgen05_fence_after, kNoFenceAfter)
TCGEN05_CASE(tcgen05_fence_before, kNoFenceBefore)
TCGEN05_CASE(tcgen05_early_read, kEarlyRead)
TCGEN05_CASE(tcgen05_early_copy, kEarlyCopy)
TCGEN05_CASE(tcgen05_leak, kLeak)
TCGEN05_CASE(tcgen05_early_dealloc, kEarlyDealloc)
TCGEN05_CASE(tcgen05_outside, kOutside)
TCGEN05_CASE(tcgen05_other_lanes, kOtherLanes)
TCGEN05_CASE(tcgen05_freed_twice, kFreedTwice)
TCGEN05_CASE(tcgen05_base_offset, kBaseOffset)
TCGEN05_CASE(tcgen05_reserved_bits, kReservedBits)
TCGEN05_CASE(tcgen05_hopper_descriptor, kHopperDescriptor)
TCGEN05_CASE(tcgen05_shape, kShape)
TCGEN05_CASE(tcgen05_commit_at_exit, kCommitAtExit)
TCGEN05_CASE(tcgen05_others_commit, kOthersCommit)
TCGEN05_CASE(tcgen05_late_alloc, kLateAlloc)

// ---- launch control

/// Takes clusters until there is none: reads an answer before it asks for the next one.
enum AnswerBug { kNoBug, kReread, kAfterEnd, kUnawaited };
template <AnswerBug BUG>
__device__ void take_clusters() {
#ifdef ON_SM100
  __shared__ alignas(16) uint32_t answer[4];
  __shared__ uint64_t full;
  make_barrier(&full);
  if (threadIdx.x != 0) return;
  uint32_t taken = 1;
  for (uint32_t round = 0, after = 0; taken || (BUG == kAfterEnd && after++ == 0); ++round) {
    mbarrier_arrive_expect_tx(&full, 16);
    asm volatile(
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%0], "
        "[%1];" ::"r"(shared_address(answer)),
        "r"(shared_address(&full))
        : "memory");
    if (BUG != kUnawaited) mbarrier_wait(&full, round % 2);
    asm volatile(
        "{\n.reg .b128 answer;\n.reg .pred p;\nld.shared.b128 answer, [%1];\n"
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, answer;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(taken)
        : "r"(shared_address(answer))
        : "memory");
    if (BUG != kReread) fence_proxy_async();
  }
#endif
}
template <bool BUG>
__global__ void answer_reread(uint32_t*) {
  take_clusters<BUG ? kReread : kNoBug>();
}
template <bool BUG>
__global__ void answer_after_end(uint32_t*) {
  take_clusters<BUG ? kAfterEnd : kNoBug>();
}
template <bool BUG>
__global__ void answer_unawaited(uint32_t*) {
  take_clusters<BUG ? kUnawaited : kNoBug>();
}

/// A ring of one slot: a producer fills it, two warps read it. In the bad one they never free it.
template <bool BUG>
__device__ void ring_case(uint32_t* data) {
  __shared__ alignas(128) uint32_t slot[kBytes / 4];
  __shared__ uint64_t full, empty;
  if (threadIdx.x == 0) mbarrier_init(&empty, 2);
  make_barrier(&full);
  for (uint32_t round = 0; round < 3; ++round) {
    if (threadIdx.x == 0) {
      mbarrier_wait(&empty, (round ^ 1) & 1);
      mbarrier_arrive_expect_tx(&full, kBytes);
      bulk_load(slot, data, &full);
    }
    if (threadIdx.x >= 32) {
      mbarrier_wait(&full, round & 1);
      data[256 + threadIdx.x] = slot[threadIdx.x];
      __syncwarp();
      if (!BUG && threadIdx.x % 32 == 0) mbarrier_arrive(&empty);
    }
  }
}
extern "C" __global__ void ring(uint32_t* data) {
  ring_case<true>(data);
}
__global__ void good_ring(uint32_t* data) {
  ring_case<false>(data);
}

struct Case {
  const char* name;
  void (*good)(uint32_t*);
  void (*bad)(uint32_t*);  ///< null: a kernel that must not be reported
  uint32_t blocks, threads;
};
#define CASE(NAME, BLOCKS, THREADS) \
  { #NAME, NAME < false>, NAME < true>, BLOCKS, THREADS }
const Case kCases[] = {
    CASE(race_shared, 1, 64),
    CASE(race_exited, 1, 64),
    CASE(race_relaxed_wait, 1, 64),
    CASE(race_load, 1, 64),
    CASE(race_reload, 1, 64),
    {"reload_fenced", reload_fenced, nullptr, 1, 64},
    CASE(race_store_reuse, 1, 64),
    CASE(store_at_exit, 1, 64),
    CASE(race_cp_async, 1, 64),
    CASE(race_cp_async_arrive, 1, 64),
    CASE(race_cluster, 2, 32),
    CASE(race_cluster_copy, 2, 64),
    CASE(arrival_at_exit, 2, 32),
    CASE(box_off_pattern, 1, 64),
    CASE(early_access, 1, 64),
    CASE(lanes_exchange, 1, 32),
    CASE(race_same_value, 1, 64),
    CASE(race_two_values, 1, 64),
    {"cp_async_unfenced", cp_async_unfenced, nullptr, 1, 64},
    CASE(lanes_halves, 1, 32),
    CASE(lanes_copy, 1, 32),
    CASE(lanes_cp_async, 1, 32),
    {"lanes_apart", lanes_apart, nullptr, 1, 32},
    {"empty_copy", empty_copy, nullptr, 1, 32},
    {"ring", good_ring, ring, 1, 96},
    CASE(oob_global, 1, 64),
    CASE(oob_misaligned, 1, 64),
    CASE(oob_freed, 1, 64),
    CASE(oob_shared, 1, 32),
    CASE(oob_local, 1, 64),
    CASE(proxy_store, 1, 64),
    CASE(proxy_load, 1, 64),
    CASE(init_shared, 1, 64),
    CASE(init_follow, 1, 64),
    CASE(init_branch, 1, 64),
    CASE(init_address, 1, 64),
    {"init_padding", init_padding, nullptr, 1, 64},
    CASE(init_fields, 1, 64),
    CASE(init_rows, 1, 64),
    CASE(init_rows_stored, 1, 64),
    CASE(init_decided, 1, 64),
    CASE(init_choice, 1, 64),
    CASE(init_exchange, 1, 64),
    CASE(init_spilled, 1, 64),
    CASE(init_workspace, 1, 64),
    CASE(init_global, 1, 64),
    CASE(mbarrier_order, 1, 64),
    CASE(mbarrier_fence, 1, 64),
    CASE(mbarrier_inval, 1, 64),
    CASE(mbarrier_overwritten, 1, 64),
    CASE(wgmma_proxy, 1, 128),
    CASE(wgmma_copied, 1, 128),
    CASE(wgmma_fence, 1, 128),
    CASE(wgmma_wait, 1, 128),
    CASE(wgmma_early_read, 1, 128),
    CASE(wgmma_refence, 1, 128),
    CASE(wgmma_rows_dropped, 1, 128),
    CASE(wgmma_rows_stored, 1, 128),
    CASE(wgmma_rows_branch, 1, 128),
    CASE(wgmma_unwritten_dropped, 1, 128),
    CASE(wgmma_unwritten_stored, 1, 128),
    CASE(tcgen05_proxy, 1, 160),
    CASE(tcgen05_unwritten, 1, 160),
    CASE(tcgen05_commit_wait, 1, 160),
    CASE(tcgen05_wait_ld, 1, 160),
    CASE(tcgen05_fence_after, 1, 160),
    CASE(tcgen05_fence_before, 1, 160),
    CASE(tcgen05_early_read, 1, 160),
    CASE(tcgen05_early_copy, 1, 160),
    CASE(tcgen05_leak, 1, 160),
    CASE(tcgen05_copies, 1, 160),
    CASE(tcgen05_shift_copy, 1, 160),
    CASE(tcgen05_stored, 1, 160),
    {"tcgen05_relaxed", tcgen05_relaxed, nullptr, 1, 160},
    CASE(tcgen05_early_dealloc, 1, 160),
    CASE(tcgen05_outside, 1, 160),
    CASE(tcgen05_other_lanes, 1, 160),
    CASE(tcgen05_freed_twice, 1, 160),
    CASE(tcgen05_base_offset, 1, 160),
    CASE(tcgen05_reserved_bits, 1, 160),
    CASE(tcgen05_hopper_descriptor, 1, 160),
    CASE(tcgen05_shape, 1, 160),
    CASE(tcgen05_commit_at_exit, 1, 160),
    CASE(tcgen05_others_commit, 1, 160),
    CASE(tcgen05_late_alloc, 1, 160),
    CASE(answer_reread, 16, 32),
    CASE(answer_after_end, 16, 32),
    CASE(answer_unawaited, 16, 32),
};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3) {
    for (const Case& test : kCases) {
      const bool bad = std::strcmp(argv[2], "bad") == 0;
      if (std::strcmp(argv[1], test.name) != 0 || (bad && !test.bad)) continue;
      uint32_t* data;
      CHECK_CUDA(cudaMalloc(&data, 8192));
      CHECK_CUDA(cudaMemset(data, 0, 4096));  // the rest stays unwritten
      const CUtensorMap map = make_tensor_map(CU_TENSOR_MAP_DATA_TYPE_UINT32, 4, data, 32, 32, 32,
                                              8, CU_TENSOR_MAP_SWIZZLE_128B);
      CHECK_CUDA(cudaMemcpyToSymbol(rows_map, &map, sizeof map));
      if (bad && std::strcmp(test.name, "oob_freed") == 0) CHECK_CUDA(cudaFree(data));
      cudaLaunchAttribute early{.id = cudaLaunchAttributeProgrammaticStreamSerialization};
      early.val.programmaticStreamSerializationAllowed = 1;
      const bool twice = std::strcmp(test.name, "early_access") == 0;
      const cudaLaunchConfig_t launch{.gridDim = test.blocks,
                                      .blockDim = test.threads,
                                      .attrs = &early,
                                      .numAttrs = twice ? 1u : 0u};
      for (int k = 0; k < (twice ? 2 : 1); ++k) {
        CHECK_CUDA(cudaLaunchKernelEx(&launch, bad ? test.bad : test.good, data));
      }
      CHECK_CUDA(cudaDeviceSynchronize());
      if (std::strcmp(test.name, "oob_freed") != 0) {
        static uint32_t results[1024];  // what the kernels store; the rest stays unwritten
        const uint32_t* from = data + (std::strcmp(test.name, "init_workspace") ? 256 : 512);
        CHECK_CUDA(cudaMemcpy(results, from, sizeof results, cudaMemcpyDeviceToHost));
      }
      std::puts("no error");
      return 0;
    }
  }
  std::printf("usage: check_cases <case> good|bad, with a case of:");
  for (const Case& test : kCases) std::printf(" %s", test.name);
  std::printf("\n");
  return 2;
}
