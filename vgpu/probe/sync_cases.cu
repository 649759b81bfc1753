// SPDX-License-Identifier: Apache-2.0
// mbarriers, clusters, distributed shared memory, and the errors that faults end with.
#include <cooperative_groups.h>

#include "device.cuh"
#include "probe.hpp"

namespace probe {
namespace {

__device__ uint64_t arrive(uint32_t barrier) {
  uint64_t state;
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(barrier) : "memory");
  return state;
}

__device__ uint64_t arrive_count(uint32_t barrier, uint32_t count) {
  uint64_t state;
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1], %2;"
               : "=l"(state)
               : "r"(barrier), "r"(count)
               : "memory");
  return state;
}

__device__ uint32_t pending(uint64_t state) {
  uint32_t count;
  asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(count) : "l"(state));
  return count;
}

__device__ uint32_t test_state(uint32_t barrier, uint64_t state) {
  uint32_t done;
  asm volatile(
      "{ .reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(done)
      : "r"(barrier), "l"(state)
      : "memory");
  return done;
}

// Both parities in one word.
__device__ uint32_t parities(uint32_t barrier) {
  return mbarrier_test(barrier, 0) | mbarrier_test(barrier, 1) << 4;
}

// One thread goes through the life of a barrier; every answer is a word.
__global__ void mbarrier_kernel(uint32_t* out) {
  __shared__ __align__(8) uint64_t storage;
  const uint32_t barrier = shared_address(&storage);
  uint32_t at = 0;
  mbarrier_init(barrier, 3);
  out[at++] = parities(barrier);
  uint64_t state = arrive(barrier);
  out[at++] = pending(state);
  out[at++] = test_state(barrier, state);
  state = arrive(barrier);
  out[at++] = pending(state);
  out[at++] = parities(barrier);
  state = arrive(barrier);
  out[at++] = pending(state);
  out[at++] = test_state(barrier, state);
  out[at++] = parities(barrier);
  // Second phase: two arrivals at once, then one that does not complete, then the last.
  uint64_t partial;
  asm volatile("mbarrier.arrive.noComplete.shared::cta.b64 %0, [%1], 2;"
               : "=l"(partial)
               : "r"(barrier)
               : "memory");
  out[at++] = pending(partial);
  state = arrive(barrier);
  out[at++] = pending(state);
  out[at++] = parities(barrier);
  state = arrive_count(barrier, 3);
  out[at++] = pending(state);
  out[at++] = parities(barrier);
  // Transactions hold a phase back, in either order.
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 64;" ::"r"(barrier)
               : "memory");
  arrive_count(barrier, 3);
  out[at++] = parities(barrier);
  asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 48;" ::"r"(barrier)
               : "memory");
  out[at++] = parities(barrier);
  asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 16;" ::"r"(barrier)
               : "memory");
  out[at++] = parities(barrier);
  // Completed before it is expected.
  asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 32;" ::"r"(barrier)
               : "memory");
  arrive_count(barrier, 2);
  out[at++] = parities(barrier);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 32;" ::"r"(barrier) : "memory");
  out[at++] = parities(barrier);
  // Dropping lowers the count of the phases to come.
  asm volatile("mbarrier.arrive_drop.shared::cta.b64 %0, [%1];"
               : "=l"(state)
               : "r"(barrier)
               : "memory");
  out[at++] = pending(state);
  state = arrive_count(barrier, 2);
  out[at++] = pending(state);
  out[at++] = parities(barrier);
  state = arrive(barrier);
  out[at++] = pending(state);
  state = arrive(barrier);
  out[at++] = pending(state);
  out[at++] = parities(barrier);
  // A try_wait that succeeds at once, and an invalidated barrier that is used again.
  uint32_t done;
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2; selp.u32 "
      "%0, 1, 0, p; }"
      : "=r"(done)
      : "r"(barrier), "r"(mbarrier_test(barrier, 0) ? 0 : 1)
      : "memory");
  out[at++] = done;
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
  mbarrier_init(barrier, 1);
  state = arrive(barrier);
  out[at++] = pending(state);
  out[at++] = test_state(barrier, state);
  // A large count.
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
  mbarrier_init(barrier, (1 << 20) - 1);
  state = arrive(barrier);
  out[at++] = pending(state);
}

// ---- clusters

__device__ uint3 special_cluster_ctaid() {
  uint3 v;
  asm("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(v.x));
  asm("mov.u32 %0, %%cluster_ctaid.y;" : "=r"(v.y));
  asm("mov.u32 %0, %%cluster_ctaid.z;" : "=r"(v.z));
  return v;
}

__global__ void cluster_ids_kernel(uint32_t* out) {
  const uint32_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  if (threadIdx.x != 0) return;
  out += block * 24;
  const uint3 id = special_cluster_ctaid();
  uint32_t v[24] = {id.x, id.y, id.z};
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(v[3]));
  asm("mov.u32 %0, %%cluster_nctaid.y;" : "=r"(v[4]));
  asm("mov.u32 %0, %%cluster_nctaid.z;" : "=r"(v[5]));
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(v[6]));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(v[7]));
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(v[8]));
  asm("mov.u32 %0, %%clusterid.y;" : "=r"(v[9]));
  asm("mov.u32 %0, %%clusterid.z;" : "=r"(v[10]));
  asm("mov.u32 %0, %%nclusterid.x;" : "=r"(v[11]));
  asm("mov.u32 %0, %%nclusterid.y;" : "=r"(v[12]));
  asm("mov.u32 %0, %%nclusterid.z;" : "=r"(v[13]));
  asm("{ .reg .pred p; mov.pred p, %%is_explicit_cluster; selp.u32 %0, 1, 0, p; }" : "=r"(v[14]));
  asm("mov.u32 %0, %%nctaid.x;" : "=r"(v[15]));
  asm("mov.u32 %0, %%ctaid.y;" : "=r"(v[16]));
  asm("mov.u32 %0, %%ctaid.z;" : "=r"(v[17]));
  asm("mov.u32 %0, %%ntid.x;" : "=r"(v[18]));
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(v[19]));
  asm("mov.u32 %0, %%total_smem_size;" : "=r"(v[20]));
  for (int i = 0; i < 21; ++i) out[i] = v[i];
}

__global__ void distributed_kernel(uint32_t* out) {
  __shared__ uint32_t cells[64];
  __shared__ __align__(8) uint64_t storage[2];
  const uint32_t rank = cluster_rank();
  uint32_t size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  const uint32_t next = (rank + 1) % size;
  const uint32_t own = shared_address(cells), barrier = shared_address(storage);
  for (uint32_t i = threadIdx.x; i < 64; i += blockDim.x) cells[i] = rank * 1000 + i;
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1 + size);
    mbarrier_init(barrier + 8, 1);
  }
  __syncthreads();
  cluster_sync();
  const uint32_t theirs = map_shared(own, next);
  uint32_t word = 0, remote_rank = 0, old = 0;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(word) : "r"(theirs + 12) : "memory");
  asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(remote_rank) : "r"(theirs));
  cluster_sync();
  if (threadIdx.x < 8) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(theirs + 4 * threadIdx.x),
                 "r"(7000 + rank * 10 + threadIdx.x)
                 : "memory");
  }
  if (threadIdx.x < 32) {
    asm volatile("atom.shared::cluster.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "r"(map_shared(own, 0) + 80), "r"(threadIdx.x + 1)
                 : "memory");
  }
  // Everyone arrives at everyone's first barrier.
  if (threadIdx.x < size) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                     map_shared(barrier, threadIdx.x))
                 : "memory");
  }
  if (threadIdx.x == 0) {
    arrive(barrier);
    // st.async and red.async bring their own bytes to the neighbour's second barrier.
    mbarrier_expect(barrier + 8, 4 + 16 + 4);
  }
  cluster_sync();
  if (threadIdx.x == 0) {
    const uint32_t remote_barrier = map_shared(barrier + 8, next);
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(
            theirs + 128),
        "r"(0xabc0u + rank), "r"(remote_barrier)
        : "memory");
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, "
        "[%5];" ::"r"(theirs + 144),
        "r"(1), "r"(2), "r"(3), "r"(rank), "r"(remote_barrier)
        : "memory");
    asm volatile(
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], %1, "
        "[%2];" ::"r"(theirs + 160),
        "r"(100 + rank), "r"(remote_barrier)
        : "memory");
  }
  const bool first = mbarrier_wait(barrier, 0), second = mbarrier_wait(barrier + 8, 0);
  __syncthreads();
  cluster_sync();
  out += rank * 128;
  for (uint32_t i = threadIdx.x; i < 64; i += blockDim.x) out[i] = cells[i];
  if (threadIdx.x == 0) {
    out[64] = word;
    out[65] = remote_rank;
    out[66] = theirs - own;  // what mapa adds
    out[67] = first | second << 1;
  }
  // The old values of the shared counter: their sum does not depend on the order only for one CTA.
  if (size == 1 && threadIdx.x < 32) out[68 + threadIdx.x] = old >= rank * 1000;
}

void add_cluster(dim3 grid, dim3 cluster, bool distributed) {
  const uint32_t blocks = grid.x * grid.y * grid.z;
  const std::string name =
      std::string(distributed ? "cluster distributed shared memory " : "cluster ids ") +
      std::to_string(cluster.x) + "x" + std::to_string(cluster.y) + "x" +
      std::to_string(cluster.z) + " in " + std::to_string(blocks);
  add(name, [=](Result& result) {
    Buffer out(blocks * 512);
    cudaMemset(out.get(), 0, blocks * 512);
    const auto kernel = distributed ? distributed_kernel : cluster_ids_kernel;
    if (cluster.x * cluster.y * cluster.z > 8) {
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                           cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    }
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster.x;
    attribute.val.clusterDim.y = cluster.y;
    attribute.val.clusterDim.z = cluster.z;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = 64;
    config.attrs = &attribute;
    config.numAttrs = 1;
    const cudaError_t launched = cudaLaunchKernelEx(&config, kernel, out.get<uint32_t>());
    if (launched != cudaSuccess) {
      result.error = launched;
      return;
    }
    fetch(result, out.get(), blocks * (distributed ? 128 : 24));
  });
}

// ---- faults

__device__ uint32_t sink;

__global__ void fault_kernel(int kind, uint32_t* memory) {
  __shared__ __align__(16) uint32_t cells[64];
  __shared__ __align__(8) uint64_t storage;
  const uint32_t barrier = shared_address(&storage);
  uint32_t value = 0;
  cells[threadIdx.x] = threadIdx.x;
  __syncthreads();
  switch (kind) {
    case 0:
      asm volatile("trap;");
      break;
    case 1:
      asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(0ull));
      break;
    case 2:
      asm volatile("ld.global.u32 %0, [%1];"
                   : "=r"(value)
                   : "l"(reinterpret_cast<uint64_t>(memory) + 2));
      break;
    case 3:
      asm volatile("st.global.u32 [%0], 1;" ::"l"(0x10ull) : "memory");
      break;
    case 4:
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(shared_address(cells) + 2));
      break;
    case 5:
      asm volatile("ld.shared.u32 %0, [%1];"
                   : "=r"(value)
                   : "r"(shared_address(cells) + (1 << 20)));
      break;
    case 6:
      asm volatile(
          "{ .reg .b32 a,b,c,d; ld.shared.v4.b32 {a,b,c,d}, [%1]; xor.b32 a, a, b; xor.b32 c, c, "
          "d; xor.b32 %0, a, c; }"
          : "=r"(value)
          : "r"(shared_address(cells) + 8));
      break;
    case 7:
      asm volatile(
          "{ .reg .b32 a,b,c,d; ld.global.v4.b32 {a,b,c,d}, [%1]; xor.b32 a, a, b; xor.b32 c, c, "
          "d; xor.b32 %0, a, c; }"
          : "=r"(value)
          : "l"(reinterpret_cast<uint64_t>(memory) + 4));
      break;
    case 8:
      mbarrier_init(barrier + 4, 1);
      break;  // misaligned barrier
    case 9:   // transaction count past its limit
      mbarrier_init(barrier, 1);
      for (int i = 0; i < 4; ++i) {
        asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 1048575;" ::"r"(barrier)
                     : "memory");
      }
      break;
    case 10:  // more arrivals than pending
      mbarrier_init(barrier, 2);
      arrive_count(barrier, 3);
      break;
    case 11:
      asm volatile("atom.global.add.u32 %0, [%1], 1;"
                   : "=r"(value)
                   : "l"(reinterpret_cast<uint64_t>(memory) + 2)
                   : "memory");
      break;
    case 12:  // generic load of shared memory past its end
      value = *(volatile uint32_t*)(reinterpret_cast<char*>(cells) + (1 << 20));
      break;
    case 13:  // past the CTA's shared memory, within the SM's
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(shared_address(cells) + 65536));
      break;
    case 14:
      asm volatile(
          "{ .reg .u32 a; mapa.shared::cluster.u32 a, %1, 7; ld.shared::cluster.u32 %0, [a]; }"
          : "=r"(value)
          : "r"(barrier));
      break;
  }
  sink = value;
}

void add_faults() {
  static const char* const kNames[] = {"trap",
                                       "load from null",
                                       "misaligned global load",
                                       "store to 0x10",
                                       "misaligned shared load",
                                       "shared load past the window",
                                       "misaligned shared vector load",
                                       "misaligned global vector load",
                                       "misaligned mbarrier",
                                       "transaction count overflow",
                                       "more arrivals than pending",
                                       "misaligned atomic",
                                       "generic shared load past the end",
                                       "shared load past the block's end",
                                       "load from a rank outside the cluster"};
  for (int kind = 0; kind < 15; ++kind) {
    add(std::string("fault ") + kNames[kind], [kind](Result& result) {
      Buffer memory(4096);
      cudaMemset(memory.get(), 0, 4096);
      fault_kernel<<<1, 1>>>(kind, memory.get<uint32_t>());
      fetch(result, memory.get(), 1);
      result.words.clear();
    });
  }
}

}  // namespace

void add_sync_cases() {
  add("mbarrier life", [](Result& result) {
    Buffer out(256);
    cudaMemset(out.get(), 0, 256);
    mbarrier_kernel<<<1, 1>>>(out.get<uint32_t>());
    fetch(result, out.get(), 32);
  });
  add_cluster({4, 6, 2}, {2, 3, 1}, false);
  add_cluster({8, 1, 1}, {8, 1, 1}, false);
  add_cluster({3, 1, 1}, {1, 1, 1}, false);
  add_cluster({16, 1, 1}, {16, 1, 1}, false);
  add_cluster({2, 1, 1}, {2, 1, 1}, true);
  add_cluster({4, 1, 1}, {4, 1, 1}, true);
  add_cluster({4, 2, 1}, {4, 2, 1}, true);
  add_cluster({8, 1, 1}, {8, 1, 1}, true);
  add_faults();
}

}  // namespace probe
