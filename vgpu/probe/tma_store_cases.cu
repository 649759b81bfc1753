// SPDX-License-Identifier: Apache-2.0
// TMA stores and reductions, one-dimensional bulk copies, multicast: what lands where.
#include "device.cuh"
#include "tensor_maps.hpp"

namespace probe {
namespace {

constexpr uint32_t kBoxWords = 4096;      // shared memory of a store: 16 KiB
constexpr uint32_t kTargetWords = 16384;  // global memory it goes to: 64 KiB

enum Operation { kStore, kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor };
const char* const kOperationNames[] = {"store", "add", "min", "max", "inc",
                                       "dec",   "and", "or",  "xor"};

#define STORE_2D(op)                                                   \
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta." op \
               ".bulk_group [%0, {%1,%2}], [%3];" ::"l"(m),            \
               "r"(s.c[0]), "r"(s.c[1]), "r"(from)                     \
               : "memory")

template <int RANK, bool IM2COL>
__device__ void store(const CUtensorMap* map, const Start& s, uint32_t from, int operation) {
  const uint64_t m = reinterpret_cast<uint64_t>(map);
  if constexpr (IM2COL) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group [%0, {%1,%2,%3,%4}], "
        "[%5];" ::"l"(m),
        "r"(s.c[0]), "r"(s.c[1]), "r"(s.c[2]), "r"(s.c[3]), "r"(from)
        : "memory");
  } else if constexpr (RANK == 3) {
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1,%2,%3}], [%4];" ::"l"(m),
        "r"(s.c[0]), "r"(s.c[1]), "r"(s.c[2]), "r"(from)
        : "memory");
  } else {
    switch (operation) {
      case kStore:
        asm volatile(
            "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1,%2}], [%3];" ::"l"(m),
            "r"(s.c[0]), "r"(s.c[1]), "r"(from)
            : "memory");
        break;
      case kAdd:
        STORE_2D("add");
        break;
      case kMin:
        STORE_2D("min");
        break;
      case kMax:
        STORE_2D("max");
        break;
      case kInc:
        STORE_2D("inc");
        break;
      case kDec:
        STORE_2D("dec");
        break;
      case kAnd:
        STORE_2D("and");
        break;
      case kOr:
        STORE_2D("or");
        break;
      default:
        STORE_2D("xor");
        break;
    }
  }
}

template <int RANK, bool IM2COL>
__global__ void store_kernel(const __grid_constant__ CUtensorMap map, const Start start,
                             int operation, const uint32_t* source) {
  extern __shared__ __align__(1024) uint32_t image[];
  for (uint32_t i = threadIdx.x; i < kBoxWords; i += blockDim.x) image[i] = source[i];
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    store<RANK, IM2COL>(&map, start, shared_address(image), operation);
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}

// Data that suit the type: floats are small integers, so that sums are exact.
std::vector<uint8_t> typed_data(CUtensorMapDataType type, size_t bytes, uint32_t seed) {
  std::vector<uint8_t> data(bytes);
  const auto fill = [&](auto value_of, auto zero) {
    for (size_t i = 0; i + sizeof zero <= bytes; i += sizeof zero) {
      const auto value = static_cast<decltype(zero)>(value_of(static_cast<uint32_t>(i)));
      std::memcpy(&data[i], &value, sizeof value);
    }
  };
  const auto small = [&](uint32_t i) { return static_cast<int>(hash32(i + seed) % 17) - 8; };
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
      fill(small, 0.0f);
      break;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
      fill(small, 0.0);
      break;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
      // Any finite halves: addition rounds.
      fill([&](uint32_t i) { return (hash32(i + seed) & 0x83ff) | 0x3800 + (i & 2) * 0x200; },
           uint16_t{});
      break;
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      fill([&](uint32_t i) { return (hash32(i + seed) & 0x807f) | 0x3f00 + (i & 2) * 0x40; },
           uint16_t{});
      break;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
      fill([&](uint32_t i) { return uint64_t{hash32(i + seed)} << 32 | hash32(i + seed + 1); },
           uint64_t{});
      break;
    default:
      fill([&](uint32_t i) { return hash32(i + seed); }, uint32_t{});
      break;
  }
  return data;
}

using StoreKernel = void (*)(const CUtensorMap, const Start, int, const uint32_t*);

void store_case(const std::string& name, const TensorSpec& spec, const Start& start,
                Operation operation = kStore, bool special = false) {
  add("tma " + std::string(kOperationNames[operation]) + " " + name, [=](Result& result) {
    Buffer target(kTargetWords * 4), source(kBoxWords * 4);
    auto before = typed_data(spec.type, kTargetWords * 4, 1);
    auto box = typed_data(spec.type, kBoxWords * 4, 77777);
    if (special) {
      // Denormals and NaNs, to see what a float reduction does with them.
      static constexpr uint32_t kSpecial[] = {1, 0x80000003, 0x7fc00000, 0x00400000};
      for (size_t i = 0; i < before.size() / 4; ++i) {
        std::memcpy(&before[4 * i], &kSpecial[i % 4], 4);
      }
      for (size_t i = 0; i < box.size() / 4; ++i) std::memcpy(&box[4 * i], &kSpecial[i / 4 % 4], 4);
    }
    cudaMemcpy(target.get(), before.data(), before.size(), cudaMemcpyHostToDevice);
    cudaMemcpy(source.get(), box.data(), box.size(), cudaMemcpyHostToDevice);
    CUtensorMap map;
    if (const int code = encode(spec, target.get(), map)) {
      result.note = "encode refuses, " + std::to_string(code);
      return;
    }
    const StoreKernel kernel = spec.im2col      ? store_kernel<4, true>
                               : spec.rank == 3 ? store_kernel<3, false>
                                                : store_kernel<2, false>;
    kernel<<<1, 128, kBoxWords * 4 + 1024>>>(map, start, operation, source.get<uint32_t>());
    fetch(result, target.get(), kTargetWords);
  });
}

TensorSpec store_2d(CUtensorMapDataType type, uint32_t element_bytes, uint32_t inner, int swizzle) {
  TensorSpec spec;
  spec.type = type;
  spec.element_bytes = element_bytes;
  spec.dims = {400 / element_bytes, 100, 1, 1, 1};
  spec.strides = {512};
  spec.box = {inner, 20, 1, 1, 1};
  spec.swizzle = swizzle;
  return spec;
}

void add_stores() {
  for (int swizzle = 0; swizzle <= 3; ++swizzle) {
    for (uint32_t inner : {8u, 16u, 64u}) {
      for (Start at : {Start{{8, 5}}, Start{{192, -3}}, Start{{-8, 90}}}) {
        store_case("2d swizzle " + std::to_string(swizzle) + " inner " + std::to_string(inner) +
                       " " + text(at, 2),
                   store_2d(CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, inner, swizzle), at);
      }
    }
  }
  // Does a store round or flush what a load of the type does?
  for (const auto& [name, type] : {std::pair{"tf32", CU_TENSOR_MAP_DATA_TYPE_TFLOAT32},
                                   std::pair{"tf32.ftz", CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ},
                                   std::pair{"f32.ftz", CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ}}) {
    store_case(std::string("2d ") + name, store_2d(type, 4, 16, 2), Start{{92, 85}});
    store_case(std::string("2d special ") + name, store_2d(type, 4, 16, 2), Start{{0, 0}}, kStore,
               true);
    store_case(std::string("2d ") + name, store_2d(type, 4, 16, 2), Start{{92, 85}}, kAdd);
    store_case(std::string("2d special ") + name, store_2d(type, 4, 16, 2), Start{{0, 0}}, kAdd,
               true);
  }
  store_case("2d start off by one element", store_2d(CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, 16, 0),
             Start{{9, 5}});
  TensorSpec three;
  three.type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
  three.rank = 3;
  three.dims = {32, 20, 9, 1, 1};
  three.box = {32, 6, 3, 1, 1};
  three.swizzle = 2;
  store_case("3d", three, Start{{0, 17, -1}});
  three.element_strides = {1, 2, 1, 1, 1};
  store_case("3d element stride 2", three, Start{{0, 3, 1}});
  for (int corner : {0, -1}) {
    TensorSpec image;
    image.type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
    image.rank = 4;
    image.im2col = true;
    image.dims = {64, 9, 8, 3, 1};
    image.lower = image.upper = {corner, corner, 0};
    image.pixels = 100;
    image.swizzle = 3;
    store_case("im2col 4d corner " + std::to_string(corner), image, Start{{0, 2, 3, 1}});
    store_case("im2col 4d corner " + std::to_string(corner) + " from the first", image,
               Start{{0, corner, corner, 0}});
  }
}

void add_reductions() {
  struct Type {
    const char* name;
    CUtensorMapDataType type;
    uint32_t bytes;
    std::vector<Operation> operations;
  };
  static const Type kTypes[] = {
      {"f16", CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, {kAdd, kMin, kMax}},
      {"bf16", CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, {kAdd, kMin, kMax}},
      {"f32", CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, {kAdd}},
      {"f64", CU_TENSOR_MAP_DATA_TYPE_FLOAT64, 8, {kAdd}},
      {"u32", CU_TENSOR_MAP_DATA_TYPE_UINT32, 4, {kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor}},
      {"s32", CU_TENSOR_MAP_DATA_TYPE_INT32, 4, {kAdd, kMin, kMax}},
      {"u64", CU_TENSOR_MAP_DATA_TYPE_UINT64, 8, {kAdd, kMin, kMax, kAnd, kOr, kXor}},
      {"s64", CU_TENSOR_MAP_DATA_TYPE_INT64, 8, {kMin, kMax}}};
  for (const Type& type : kTypes) {
    for (Operation operation : type.operations) {
      store_case(std::string("2d ") + type.name,
                 store_2d(type.type, type.bytes, 64 / type.bytes, 2),
                 Start{{static_cast<int>(368 / type.bytes), 85}}, operation);
    }
  }
  store_case("2d f32 denormals and NaNs", store_2d(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, 16, 0),
             Start{{0, 0}}, kAdd, true);
}

// ---- one-dimensional bulk copies

__global__ void bulk_kernel(const uint8_t* source, uint8_t* target, uint32_t bytes, uint32_t shift,
                            uint32_t* out) {
  extern __shared__ __align__(1024) uint32_t image[];
  __shared__ __align__(8) uint64_t barrier_storage;
  const uint32_t barrier = shared_address(&barrier_storage);
  for (uint32_t i = threadIdx.x; i < kBoxWords; i += blockDim.x) image[i] = kFillWord;
  if (threadIdx.x == 0) mbarrier_init(barrier, 1);
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_expect(barrier, bytes);
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(image) + shift),
        "l"(source), "r"(bytes), "r"(barrier)
        : "memory");
  }
  const bool done = mbarrier_wait(barrier, 0);
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < kBoxWords; i += blockDim.x) {
    out[i] = done ? image[i] : kTimeoutWord;
  }
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(target),
                 "r"(shared_address(image) + shift), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}

#define BULK_REDUCE(op, type)                                                    \
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group." op "." type \
               " [%0], [%1], %2;" ::"l"(target),                                 \
               "r"(shared_address(image)), "r"(kBoxWords * 4)                    \
               : "memory")

__global__ void bulk_reduce_kernel(const uint32_t* source, uint32_t* target, int operation) {
  extern __shared__ __align__(1024) uint32_t image[];
  for (uint32_t i = threadIdx.x; i < kBoxWords; i += blockDim.x) image[i] = source[i];
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    switch (operation) {
      case 0:
        BULK_REDUCE("add", "f32");
        break;
      case 1:
        BULK_REDUCE("add.noftz", "f16");
        break;
      case 2:
        BULK_REDUCE("add.noftz", "bf16");
        break;
      case 3:
        BULK_REDUCE("add", "u32");
        break;
      case 4:
        BULK_REDUCE("add", "u64");
        break;
      case 5:
        BULK_REDUCE("add", "f64");
        break;
      case 6:
        BULK_REDUCE("min", "s32");
        break;
      case 7:
        BULK_REDUCE("max", "u32");
        break;
      case 8:
        BULK_REDUCE("min", "f16");
        break;
      case 9:
        BULK_REDUCE("max", "bf16");
        break;
      case 10:
        BULK_REDUCE("and", "b32");
        break;
      case 11:
        BULK_REDUCE("xor", "b64");
        break;
      case 12:
        BULK_REDUCE("inc", "u32");
        break;
      default:
        BULK_REDUCE("max", "s64");
        break;
    }
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}

void add_bulk() {
  struct Row {
    uint32_t bytes, shift, source_shift;
  };
  for (Row row : {Row{16, 0, 0}, Row{48, 16, 32}, Row{4096, 0, 16}, Row{16384, 0, 0}, Row{0, 0, 0},
                  Row{16, 8, 0}, Row{16, 0, 8}}) {
    add("bulk copy bytes " + std::to_string(row.bytes) + " target +" + std::to_string(row.shift) +
            " source +" + std::to_string(row.source_shift),
        [row](Result& result) {
          Buffer source(1 << 16), target(1 << 16), out(2 * kBoxWords * 4);
          const auto data = pattern16(1 << 15);
          cudaMemcpy(source.get(), data.data(), 1 << 16, cudaMemcpyHostToDevice);
          cudaMemset(target.get(), 0x11, 1 << 16);
          bulk_kernel<<<1, 128, kBoxWords * 4 + 1024>>>(source.get() + row.source_shift,
                                                        target.get() + 64, row.bytes, row.shift,
                                                        out.get<uint32_t>());
          cudaMemcpyAsync(out.get() + kBoxWords * 4, target.get(), kBoxWords * 4,
                          cudaMemcpyDeviceToDevice);
          fetch(result, out.get(), 2 * kBoxWords);
        });
  }
  static const std::pair<const char*, CUtensorMapDataType> kReductions[] = {
      {"add f32", CU_TENSOR_MAP_DATA_TYPE_FLOAT32},
      {"add f16", CU_TENSOR_MAP_DATA_TYPE_FLOAT16},
      {"add bf16", CU_TENSOR_MAP_DATA_TYPE_BFLOAT16},
      {"add u32", CU_TENSOR_MAP_DATA_TYPE_UINT32},
      {"add u64", CU_TENSOR_MAP_DATA_TYPE_UINT64},
      {"add f64", CU_TENSOR_MAP_DATA_TYPE_FLOAT64},
      {"min s32", CU_TENSOR_MAP_DATA_TYPE_INT32},
      {"max u32", CU_TENSOR_MAP_DATA_TYPE_UINT32},
      {"min f16", CU_TENSOR_MAP_DATA_TYPE_FLOAT16},
      {"max bf16", CU_TENSOR_MAP_DATA_TYPE_BFLOAT16},
      {"and b32", CU_TENSOR_MAP_DATA_TYPE_UINT32},
      {"xor b64", CU_TENSOR_MAP_DATA_TYPE_UINT64},
      {"inc u32", CU_TENSOR_MAP_DATA_TYPE_UINT32},
      {"max s64", CU_TENSOR_MAP_DATA_TYPE_INT64}};
  for (int i = 0; i < 14; ++i) {
    const auto [name, type] = kReductions[i];
    add(std::string("bulk reduce ") + name, [i, type = type](Result& result) {
      Buffer source(kBoxWords * 4), target(kBoxWords * 4);
      const auto box = typed_data(type, kBoxWords * 4, 5),
                 before = typed_data(type, kBoxWords * 4, 6);
      cudaMemcpy(source.get(), box.data(), box.size(), cudaMemcpyHostToDevice);
      cudaMemcpy(target.get(), before.data(), before.size(), cudaMemcpyHostToDevice);
      bulk_reduce_kernel<<<1, 128, kBoxWords * 4 + 1024>>>(source.get<uint32_t>(),
                                                           target.get<uint32_t>(), i);
      fetch(result, target.get(), kBoxWords);
    });
  }
}

// ---- multicast and shared-to-shared copies in a cluster of four

__global__ void __cluster_dims__(4, 1, 1)
    multicast_kernel(const __grid_constant__ CUtensorMap map, const uint8_t* linear, int mode,
                     uint32_t bytes, uint32_t* out) {
  extern __shared__ __align__(1024) uint32_t image[];
  __shared__ __align__(8) uint64_t barrier_storage;
  const uint32_t barrier = shared_address(&barrier_storage), rank = cluster_rank();
  const uint32_t target = shared_address(image);
  for (uint32_t i = threadIdx.x; i < kBoxWords; i += blockDim.x) image[i] = kFillWord + rank;
  if (threadIdx.x == 0) mbarrier_init(barrier, 1);
  fence_proxy_async();
  __syncthreads();
  cluster_sync();
  // mode 0: rank 1 multicasts a box to ranks 0, 1, 3; mode 1: the same as a linear copy;
  // mode 2: rank 2 copies its shared memory to rank 0.
  const bool receives = mode == 2 ? rank == 0 : rank != 2;
  if (threadIdx.x == 0 && receives) mbarrier_expect(barrier, bytes);
  cluster_sync();
  if (threadIdx.x == 0 && mode == 0 && rank == 1) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
        "cluster [%0], [%1, {%2,%3}], [%4], %5;" ::"r"(target),
        "l"(&map), "r"(8), "r"(-2), "r"(barrier), "h"(static_cast<uint16_t>(0b1011))
        : "memory");
  }
  if (threadIdx.x == 0 && mode == 1 && rank == 1) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], "
        "[%1], %2, [%3], %4;" ::"r"(target),
        "l"(linear), "r"(bytes), "r"(barrier), "h"(static_cast<uint16_t>(0b1011))
        : "memory");
  }
  if (threadIdx.x == 0 && mode == 2 && rank == 2) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(map_shared(target, 0) + 1024),
        "r"(target), "r"(bytes), "r"(map_shared(barrier, 0))
        : "memory");
  }
  const bool done = !receives || mbarrier_wait(barrier, 0);
  __syncthreads();
  cluster_sync();
  for (uint32_t i = threadIdx.x; i < kBoxWords; i += blockDim.x) {
    out[rank * kBoxWords + i] = done ? image[i] : kTimeoutWord;
  }
}

void add_multicast() {
  const char* const names[] = {"tensor multicast", "bulk multicast", "bulk shared to shared"};
  for (int mode = 0; mode < 3; ++mode) {
    add(std::string("cluster ") + names[mode], [mode](Result& result) {
      Buffer source(1 << 16), out(4 * kBoxWords * 4);
      const auto data = pattern16(1 << 15);
      cudaMemcpy(source.get(), data.data(), 1 << 16, cudaMemcpyHostToDevice);
      const TensorSpec spec = store_2d(CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, 64, 3);
      CUtensorMap map;
      if (const int code = encode(spec, source.get(), map)) {
        result.note = "encode refuses, " + std::to_string(code);
        return;
      }
      multicast_kernel<<<4, 128, kBoxWords * 4 + 1024>>>(
          map, source.get() + 256, mode, mode == 0 ? spec.box_bytes() : 2048, out.get<uint32_t>());
      fetch(result, out.get(), 4 * kBoxWords);
    });
  }
}

}  // namespace

void add_tma_store_cases() {
  add_stores();
  add_reductions();
  add_bulk();
  add_multicast();
}

}  // namespace probe
