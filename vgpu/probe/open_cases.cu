// SPDX-License-Identifier: Apache-2.0
// Questions that h200.txt has no answer to yet: run them with `--only open` on an H200, add the
// lines to h200.txt and move the cases to where they belong.
#include "device.cuh"
#include "probe.hpp"

namespace probe {
namespace {

constexpr uint32_t kWords = 256;

/// Member masks that differ by lane: tiles of eight, lanes of a tile at a time.
__global__ void member_mask_kernel(uint32_t* out) {
  const uint32_t lane = threadIdx.x, mask = 0xffu << (lane & 24);
  out[lane] = __shfl_down_sync(mask, lane, 4, 8);
  out[32 + lane] = __ballot_sync(mask, lane & 1);
  out[64 + lane] = __any_sync(mask, lane == 9);
  out[96 + lane] = __reduce_add_sync(mask, lane);
  out[128 + lane] = __match_any_sync(mask, lane / 2);
  __syncwarp(mask);
  out[160 + lane] = __all_sync(mask, lane < 30);
}

/// Where the KiB of shared memory that the system keeps begins and ends, and its parts.
__global__ void reserved_kernel(uint32_t* out) {
  asm("mov.u32 %0, %%reserved_smem_offset_begin;" : "=r"(out[0]));
  asm("mov.u32 %0, %%reserved_smem_offset_end;" : "=r"(out[1]));
  asm("mov.u32 %0, %%reserved_smem_offset_cap;" : "=r"(out[2]));
  asm("mov.u32 %0, %%reserved_smem_offset_0;" : "=r"(out[3]));
  asm("mov.u32 %0, %%reserved_smem_offset_1;" : "=r"(out[4]));
}

/// An mbarrier that only __syncthreads() publishes, used by a bulk copy of another warp.
__global__ void unfenced_kernel(const uint32_t* in, uint32_t* out) {
  __shared__ alignas(128) uint32_t cells[64];
  __shared__ uint64_t barrier;
  const uint32_t address = shared_address(&barrier);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address) : "memory");
  }
  __syncthreads();
  if (threadIdx.x == 32) {
    mbarrier_expect(address, 256);
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 256, "
        "[%2];" ::"r"(shared_address(cells)),
        "l"(in), "r"(address)
        : "memory");
  }
  const bool done = mbarrier_wait(address, 0);
  out[threadIdx.x] = done ? cells[threadIdx.x] : kTimeoutWord;
}

}  // namespace

void add_open_cases() {
  add("open member masks by lane", [](Result& result) {
    Buffer out(kWords * 4);
    cudaMemset(out.get(), 0, kWords * 4);
    member_mask_kernel<<<1, 32>>>(out.get<uint32_t>());
    fetch(result, out.get(), kWords);
  });
  add("open reserved shared memory", [](Result& result) {
    Buffer out(kWords * 4);
    cudaMemset(out.get(), 0, kWords * 4);
    reserved_kernel<<<1, 1>>>(out.get<uint32_t>());
    fetch(result, out.get(), 8);
  });
  add("open mbarrier without a fence", [](Result& result) {
    const std::vector<uint16_t> source = pattern16(128);
    Buffer in(256), out(kWords * 4);
    cudaMemcpy(in.get(), source.data(), 256, cudaMemcpyHostToDevice);
    unfenced_kernel<<<1, 64>>>(in.get<uint32_t>(), out.get<uint32_t>());
    fetch(result, out.get(), 64);
  });
}

}  // namespace probe
