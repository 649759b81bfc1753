// SPDX-License-Identifier: Apache-2.0
// Rules that programs of others rely on: sparse products, changed tensor maps, wmma, member masks,
// device code's heap. What h200.txt does not answer yet is asked by `--only open` alone.
#include <cooperative_groups.h>
#include <mma.h>

#include <cstring>

#include "device.cuh"
#include "probe.hpp"
#include "tensor_maps.hpp"
#include "wgmma_table.cuh"

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

/// Warps that store and return before the first one comes to its __syncthreads().
__global__ void exit_kernel(uint32_t* out) {
  __shared__ uint32_t cells[992];
  if (threadIdx.x >= 32) {
    cells[threadIdx.x - 32] = 3 * threadIdx.x;
    return;
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < 992; i += 32) out[i] = cells[i];
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

/// Elections and matches whose member masks differ by lane.
__global__ void elect_kernel(uint32_t* out) {
  const uint32_t lane = threadIdx.x, mask = 0xffu << (lane & 24);
  uint32_t leader, elected;
  asm volatile("{ .reg .pred p; elect.sync %0|p, %2; selp.u32 %1, 1, 0, p; }"
               : "=r"(leader), "=r"(elected)
               : "r"(mask));
  int same = 0;
  out[lane] = leader;
  out[32 + lane] = elected;
  out[64 + lane] = __match_all_sync(mask, lane / 16, &same);
  out[96 + lane] = static_cast<uint32_t>(same);
  out[128 + lane] = __shfl_xor_sync(mask, lane * 3, 5, 8);
  out[160 + lane] = __reduce_max_sync(mask, lane ^ 5);
}

/// One relaxed flag of 128 bits, written and read as one.
__global__ void wide_order_kernel(uint32_t* out) {
  const uint64_t low = 0x0123456789abcdefull * (threadIdx.x + 1), high = ~low;
  auto* cell = reinterpret_cast<uint64_t*>(out) + threadIdx.x * 4;
  asm volatile(
      "{ .reg .b128 v; mov.b128 v, {%1, %2}; st.release.gpu.global.b128 [%0], v; }" ::"l"(cell),
      "l"(low), "l"(high)
      : "memory");
  uint64_t back_low, back_high;
  asm volatile("{ .reg .b128 v; ld.acquire.gpu.global.b128 v, [%2]; mov.b128 {%0, %1}, v; }"
               : "=l"(back_low), "=l"(back_high)
               : "l"(cell)
               : "memory");
  cell[2] = back_high;
  cell[3] = back_low;
}

/// The barrier of a whole grid, which finds its cell through %envreg1 and %envreg2.
__global__ void grid_barrier_kernel(uint32_t* cells, uint32_t* out) {
  cells[blockIdx.x * blockDim.x + threadIdx.x] = blockIdx.x * 100 + threadIdx.x;
  cooperative_groups::this_grid().sync();
  const uint32_t other = (blockIdx.x + 1) % gridDim.x;
  out[blockIdx.x * blockDim.x + threadIdx.x] = cells[other * blockDim.x + threadIdx.x];
}

/// What device malloc gives: a null, an alignment, what fits into 8 MiB.
__global__ void heap_kernel(uint32_t* out) {
  void* small = malloc(24);
  void* none = malloc(0);
  void* large = malloc(64u << 20);
  out[0] = small != nullptr;
  out[1] = static_cast<uint32_t>(reinterpret_cast<uint64_t>(small) % 16);
  out[2] = none != nullptr;
  out[3] = large != nullptr;
  free(none);
  free(small);
  free(nullptr);
}

/// cp.async that arrives on an mbarrier of the block, which other threads wait for.
__global__ void copy_arrival_kernel(const uint32_t* in, uint32_t* out) {
  __shared__ alignas(16) uint32_t cells[256];
  __shared__ uint64_t barrier;
  const uint32_t address = shared_address(&barrier), lane = threadIdx.x;
  if (lane == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 64;" ::"r"(address) : "memory");
  }
  __syncthreads();
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(shared_address(cells + lane * 4)),
               "l"(in + lane * 4)
               : "memory");
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address) : "memory");
  const bool done = mbarrier_wait(address, 0);
  out[lane] = done ? cells[255 - lane] : kTimeoutWord;
}

/// Loads through a tensor map that the kernel changed, in one field.
template <int kVariant>
__global__ void replace_kernel(const __grid_constant__ CUtensorMap map, const uint8_t* in,
                               uint8_t* made, uint32_t bytes, uint32_t* out) {
  __shared__ alignas(1024) uint32_t box[1024];
  __shared__ alignas(128) uint32_t copy[32];
  __shared__ uint64_t barrier;
  const uint32_t lane = threadIdx.x;
  // Variant 8 makes a map out of nothing.
  copy[lane] = kVariant == 8 ? 0 : reinterpret_cast<const uint32_t*>(&map)[lane];
  for (uint32_t i = lane; i < 1024; i += 32) box[i] = kFillWord;
  const uint32_t full = shared_address(&barrier), text = shared_address(copy);
  if (lane == 0) mbarrier_init(full, 1);
  fence_proxy_async();
  __syncwarp();
#define PROBE_REPLACE(field, type, ...)                                                         \
  asm volatile("tensormap.replace.tile." field ".shared::cta.b1024." type " [%0], " __VA_ARGS__ \
               : "memory")
  if (lane == 0) {
    if (kVariant == 0) PROBE_REPLACE("global_address", "b64", "%1;" ::"r"(text), "l"(in + 512));
    if (kVariant == 1) {
      PROBE_REPLACE("global_dim", "b32", "0, 24;" ::"r"(text));
      PROBE_REPLACE("global_dim", "b32", "1, 5;" ::"r"(text));
    }
    if (kVariant == 2) PROBE_REPLACE("global_stride", "b64", "0, 256;" ::"r"(text));
    if (kVariant == 3) {
      PROBE_REPLACE("box_dim", "b32", "0, 16;" ::"r"(text));
      PROBE_REPLACE("box_dim", "b32", "1, 4;" ::"r"(text));
    }
    if (kVariant == 4) PROBE_REPLACE("swizzle_mode", "b32", "2;" ::"r"(text));
    if (kVariant == 5) PROBE_REPLACE("element_stride", "b32", "1, 1;" ::"r"(text));
    if (kVariant == 6) PROBE_REPLACE("elemtype", "b32", "10;" ::"r"(text));
    if (kVariant == 7) PROBE_REPLACE("fill_mode", "b32", "1;" ::"r"(text));
    if (kVariant == 8) {
      PROBE_REPLACE("global_address", "b64", "%1;" ::"r"(text), "l"(in));
      PROBE_REPLACE("rank", "b32", "1;" ::"r"(text));
      PROBE_REPLACE("box_dim", "b32", "0, 32;" ::"r"(text));
      PROBE_REPLACE("box_dim", "b32", "1, 8;" ::"r"(text));
      PROBE_REPLACE("global_dim", "b32", "0, 64;" ::"r"(text));
      PROBE_REPLACE("global_dim", "b32", "1, 32;" ::"r"(text));
      PROBE_REPLACE("global_stride", "b64", "0, 128;" ::"r"(text));
      PROBE_REPLACE("element_stride", "b32", "0, 1;" ::"r"(text));
      PROBE_REPLACE("element_stride", "b32", "1, 1;" ::"r"(text));
      PROBE_REPLACE("elemtype", "b32", "6;" ::"r"(text));
      PROBE_REPLACE("swizzle_mode", "b32", "2;" ::"r"(text));
    }
  }
#undef PROBE_REPLACE
  __syncwarp();
  asm volatile(
      "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
      "[%0], [%1], 128;" ::"l"(made),
      "r"(text)
      : "memory");
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(made) : "memory");
  if (lane == 0) {
    mbarrier_expect(full, bytes);
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%2, %3}], [%4];" ::"r"(shared_address(box)),
        "l"(made), "r"(8), "r"(3), "r"(full)
        : "memory");
  }
  const bool done = mbarrier_wait(full, 0);
  for (uint32_t i = lane; i < 1024; i += 32) out[i] = done ? box[i] : kTimeoutWord;
}

template <int kVariant>
void add_replace_case(const char* name) {
  add(std::string("rule tensormap.replace ") + name, [](Result& result) {
    const std::vector<uint16_t> source = pattern16(32768);
    Buffer in(65536), made(128), out(4096);
    cudaMemcpy(in.get(), source.data(), 65536, cudaMemcpyHostToDevice);
    TensorSpec spec;
    spec.dims = {64, 32, 1, 1, 1};
    spec.box = {32, 8, 1, 1, 1};
    CUtensorMap map;
    if (const int refused = encode(spec, in.get(), map); refused) {
      result.note = "encode refuses, " + std::to_string(refused);
      return;
    }
    // Variant 3: boxes of 16 x 4.
    const uint32_t bytes = kVariant == 3 ? 16 * 4 * 2 : 512;
    replace_kernel<kVariant><<<1, 32>>>(map, in.get(), made.get(), bytes, out.get<uint32_t>());
    fetch(result, out.get(), 1024);
  });
}

/// wgmma.sp: a row's metadata comes from the threads that the selector names.
#define PROBE_SPARSE_KERNEL(name, form, selector, rest)                                       \
  __global__ void __launch_bounds__(128)                                                      \
      name(const uint32_t* image, uint64_t desc_a, uint64_t desc_b, const uint32_t* metadata, \
           uint32_t* out) {                                                                   \
    extern __shared__ __align__(1024) uint32_t shared[];                                      \
    load_image(image, shared, desc_a, desc_b);                                                \
    uint32_t d[8] = {};                                                                       \
    asm volatile(                                                                             \
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.fence.sync.aligned; "                     \
        "wgmma.mma_async.sp.sync.aligned." form                                               \
        " {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, %10, " selector ", p" rest                       \
        "; wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; }"               \
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), \
          "+r"(d[7])                                                                          \
        : "l"(desc_a), "l"(desc_b), "r"(metadata[threadIdx.x])                                \
        : "memory");                                                                          \
    for (int i = 0; i < 8; ++i) out[threadIdx.x * 8 + i] = d[i];                              \
  }
PROBE_SPARSE_KERNEL(sparse_f16_0, "m64n16k32.f32.f16.f16", "0", ", 1, 1, 0, 0")
PROBE_SPARSE_KERNEL(sparse_f16_1, "m64n16k32.f32.f16.f16", "1", ", 1, 1, 0, 0")
PROBE_SPARSE_KERNEL(sparse_bf16, "m64n16k32.f32.bf16.bf16", "0", ", 1, 1, 0, 0")
PROBE_SPARSE_KERNEL(sparse_tf32_0, "m64n16k16.f32.tf32.tf32", "0", ", 1, 1")
PROBE_SPARSE_KERNEL(sparse_tf32_1, "m64n16k16.f32.tf32.tf32", "1", ", 1, 1")
PROBE_SPARSE_KERNEL(sparse_e4m3, "m64n16k64.f32.e4m3.e4m3", "0", ", 1, 1")
PROBE_SPARSE_KERNEL(sparse_s8, "m64n16k64.s32.s8.s8", "0", "")
#undef PROBE_SPARSE_KERNEL

using SparseKernel = void (*)(const uint32_t*, uint64_t, uint64_t, const uint32_t*, uint32_t*);

void add_sparse_case(const char* name, SparseKernel kernel, const char* type) {
  add(std::string("rule wgmma.sp ") + name, [=](Result& result) {
    std::vector<uint32_t> image(kWgmmaImageWords), metadata(128);
    for (uint32_t i = 0; i < kWgmmaImageWords; ++i) image[i] = operand_word(type, false, i);
    constexpr uint32_t kPairs[] = {0x4, 0x8, 0xc, 0x9, 0xd, 0xe}, kHalves[] = {0x4, 0xe};
    const bool two_wide = std::strcmp(type, "tf32") == 0;
    for (uint32_t t = 0; t < 128; ++t) {
      for (uint32_t k = 0; k < 8; ++k) {
        const uint32_t h = hash32(t * 8 + k + 77);
        metadata[t] |= (two_wide ? kHalves[h % 2] : kPairs[h % 6]) << 4 * k;
      }
    }
    const uint64_t descriptor = uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 16;
    constexpr uint32_t kWords = 128 * 8, kBytes = kWgmmaImageWords * 4;
    Buffer in(kBytes), chosen(512), out(kWords * 4);
    cudaMemcpy(in.get(), image.data(), kBytes, cudaMemcpyHostToDevice);
    cudaMemcpy(chosen.get(), metadata.data(), 512, cudaMemcpyHostToDevice);
    cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                         cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    kernel<<<1, 128, kBytes>>>(in.get<uint32_t>(), descriptor, descriptor, chosen.get<uint32_t>(),
                               out.get<uint32_t>());
    fetch(result, out.get(), kWords);
  });
}

/// A product by wmma, of operands in global memory: what a fragment holds where does not show.
template <int kM, int kN, int kK, typename A, typename D, typename Layout, typename Fragment = A>
__global__ void wmma_kernel(const A* a, const A* b, D* d) {
  using namespace nvcuda::wmma;
  fragment<matrix_a, kM, kN, kK, Fragment, Layout> fa;
  fragment<matrix_b, kM, kN, kK, Fragment, col_major> fb;
  fragment<accumulator, kM, kN, kK, D> fd;
  load_matrix_sync(fa, a, std::is_same_v<Layout, row_major> ? kK : kM);
  load_matrix_sync(fb, b, kK);
  fill_fragment(fd, static_cast<D>(3.0f));
  mma_sync(fd, fa, fb, fd);
  store_matrix_sync(d, fd, kN, mem_row_major);
}

template <int kM, int kN, int kK, typename A, typename D, typename Layout, typename Fragment = A>
void add_wmma_case(const char* name) {
  add(std::string("rule wmma ") + name, [](Result& result) {
    std::vector<A> a(kM * kK), b(kK * kN);
    const auto small = [](uint32_t i) {
      return static_cast<A>(static_cast<float>(static_cast<int>(hash32(i) % 9) - 4));
    };
    for (uint32_t i = 0; i < a.size(); ++i) a[i] = small(i);
    for (uint32_t i = 0; i < b.size(); ++i) b[i] = small(i + 10000);
    Buffer in_a(a.size() * sizeof(A)), in_b(b.size() * sizeof(A)), out(kM * kN * sizeof(D));
    cudaMemcpy(in_a.get(), a.data(), a.size() * sizeof(A), cudaMemcpyHostToDevice);
    cudaMemcpy(in_b.get(), b.data(), b.size() * sizeof(A), cudaMemcpyHostToDevice);
    wmma_kernel<kM, kN, kK, A, D, Layout, Fragment>
        <<<1, 32>>>(in_a.get<A>(), in_b.get<A>(), out.get<D>());
    fetch(result, out.get(), kM * kN * sizeof(D) / 4);
  });
}

}  // namespace

void add_rule_cases() {
  using nvcuda::wmma::col_major, nvcuda::wmma::row_major;
  add_sparse_case("f16 selector 0", sparse_f16_0, "f16");
  add_sparse_case("f16 selector 1", sparse_f16_1, "f16");
  add_sparse_case("bf16", sparse_bf16, "bf16");
  add_sparse_case("tf32 selector 0", sparse_tf32_0, "tf32");
  add_sparse_case("tf32 selector 1", sparse_tf32_1, "tf32");
  add_sparse_case("e4m3", sparse_e4m3, "e4m3");
  add_sparse_case("s8", sparse_s8, "s8");
  add_replace_case<0>("global_address");
  add_replace_case<1>("global_dim");
  add_replace_case<2>("global_stride");
  add_replace_case<3>("box_dim");
  add_replace_case<4>("swizzle_mode");
  add_replace_case<5>("element_stride");
  add_replace_case<6>("elemtype");
  add_replace_case<7>("fill_mode");
  add_replace_case<8>("all of zeros");
  add_wmma_case<16, 16, 16, __half, float, row_major>("m16n16k16 f16 to f32");
  add_wmma_case<32, 8, 16, __half, float, col_major>("m32n8k16 f16 to f32");
  add_wmma_case<8, 32, 16, __half, __half, row_major>("m8n32k16 f16 to f16");
  add_wmma_case<16, 16, 16, __nv_bfloat16, float, col_major>("m16n16k16 bf16 to f32");
  add_wmma_case<16, 16, 8, float, float, row_major, nvcuda::wmma::precision::tf32>(
      "m16n16k8 tf32 to f32");
  add_wmma_case<16, 16, 16, signed char, int, row_major>("m16n16k16 s8 to s32");
  add_wmma_case<8, 8, 4, double, double, row_major>("m8n8k4 f64");
  add("rule elections by lane", [](Result& result) {
    Buffer out(kWords * 4);
    cudaMemset(out.get(), 0, kWords * 4);
    elect_kernel<<<1, 32>>>(out.get<uint32_t>());
    fetch(result, out.get(), kWords);
  });
  add("rule 128-bit release and acquire", [](Result& result) {
    Buffer out(32 * 32);
    wide_order_kernel<<<1, 32>>>(out.get<uint32_t>());
    fetch(result, out.get(), 256);
  });
  add("rule grid barrier", [](Result& result) {
    Buffer cells(4 * 64 * 4), out(4 * 64 * 4);
    uint32_t *first = cells.get<uint32_t>(), *second = out.get<uint32_t>();
    void* arguments[] = {&first, &second};
    cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(grid_barrier_kernel), 4, 64,
                                arguments);
    fetch(result, out.get(), 256);
  });
  add("rule device heap", [](Result& result) {
    Buffer out(16);
    heap_kernel<<<1, 1>>>(out.get<uint32_t>());
    fetch(result, out.get(), 4);
  });
  add("rule cp.async arrivals", [](Result& result) {
    const std::vector<uint16_t> source = pattern16(512);
    Buffer in(1024), out(256);
    cudaMemcpy(in.get(), source.data(), 1024, cudaMemcpyHostToDevice);
    copy_arrival_kernel<<<1, 64>>>(in.get<uint32_t>(), out.get<uint32_t>());
    fetch(result, out.get(), 64);
  });
  add("rule member masks by lane", [](Result& result) {
    Buffer out(kWords * 4);
    cudaMemset(out.get(), 0, kWords * 4);
    member_mask_kernel<<<1, 32>>>(out.get<uint32_t>());
    fetch(result, out.get(), kWords);
  });
  add("rule mbarrier without a fence", [](Result& result) {
    const std::vector<uint16_t> source = pattern16(128);
    Buffer in(256), out(kWords * 4);
    cudaMemcpy(in.get(), source.data(), 256, cudaMemcpyHostToDevice);
    unfenced_kernel<<<1, 64>>>(in.get<uint32_t>(), out.get<uint32_t>());
    fetch(result, out.get(), 64);
  });
  add("rule reserved shared memory", [](Result& result) {
    Buffer out(kWords * 4);
    cudaMemset(out.get(), 0, kWords * 4);
    reserved_kernel<<<1, 1>>>(out.get<uint32_t>());
    fetch(result, out.get(), 8);
  });
}

/// What the text says of subnormals, but no card was asked: red.add.f32 in global and in shared
/// memory, a bulk reduction; then the upper halves of rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64.
__global__ void subnormal_kernel(uint32_t* out) {
  __shared__ uint32_t word;
  __shared__ alignas(16) uint32_t ones[4];
  if (threadIdx.x == 0) {
    word = 1;
    asm volatile("red.shared.add.f32 [%0], 0f00000001;" ::"r"(
                     static_cast<uint32_t>(__cvta_generic_to_shared(&word)))
                 : "memory");
    out[0] = word;
    out[1] = 1;
    asm volatile("red.global.add.f32 [%0], 0f00000001;" ::"l"(out + 1) : "memory");
    out[2] = 0x80000001;
    asm volatile("red.global.add.f32 [%0], 0f80000001;" ::"l"(out + 2) : "memory");
    for (uint32_t k = 0; k < 4; ++k) ones[k] = 1, out[4 + k] = 1;
    asm volatile(
        "fence.proxy.async;\n"
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 16;\n"
        "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::"l"(out + 4),
        "r"(static_cast<uint32_t>(__cvta_generic_to_shared(ones)))
        : "memory");
  }
  const double x = __hiloint2double(0x3ff00000 + threadIdx.x * 0x8123, 0x9abcdef0);
  double rcp, rsqrt;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(rcp) : "d"(x));
  asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(rsqrt) : "d"(x));
  out[8 + threadIdx.x] = __double2hiint(rcp);
  out[40 + threadIdx.x] = __double2hiint(rsqrt);
  if (threadIdx.x == 0) out[3] = __double2loint(rcp) | __double2loint(rsqrt);
}

void add_open_cases() {
  add("open subnormals and gross reciprocals", [](Result& result) {
    Buffer out(72 * 4);
    subnormal_kernel<<<1, 32>>>(out.get<uint32_t>());
    fetch(result, out.get(), 72);
  });
  add("open stores before an exit", [](Result& result) {
    Buffer out(992 * 4);
    exit_kernel<<<1, 1024>>>(out.get<uint32_t>());
    fetch(result, out.get(), 992);
  });
}

}  // namespace probe
