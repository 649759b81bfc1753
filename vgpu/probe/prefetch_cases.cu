// SPDX-License-Identifier: Apache-2.0
// Prefetches: they move nothing, so what is asked is which addresses, sizes, boxes and maps fault.
#include "device.cuh"
#include "tensor_maps.hpp"

namespace probe {
namespace {

constexpr uint32_t kWords = 4;
constexpr uint32_t kSourceBytes = 1 << 16;

__device__ void finish(uint32_t* out) {
  for (uint32_t i = 0; i < kWords; ++i) out[i] = 11 * i + 1;
}

/// One instruction on an address, and what it takes besides.
enum class Form { l1, l2, evict_last, generic, uniform, bulk, tensormap };

template <Form FORM>
__global__ void address_kernel(uint64_t address, uint32_t size, uint32_t* out) {
  if constexpr (FORM == Form::l1) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(address) : "memory");
  } else if constexpr (FORM == Form::l2) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address) : "memory");
  } else if constexpr (FORM == Form::evict_last) {
    asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(address) : "memory");
  } else if constexpr (FORM == Form::generic) {
    asm volatile("prefetch.L1 [%0];" ::"l"(address) : "memory");
  } else if constexpr (FORM == Form::uniform) {
    asm volatile("prefetchu.L1 [%0];" ::"l"(address) : "memory");
  } else if constexpr (FORM == Form::bulk) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(size) : "memory");
  } else {
    asm volatile("prefetch.tensormap [%0];" ::"l"(address) : "memory");
  }
  finish(out);
}

/// A generic prefetch of the block's own memory.
__global__ void own_memory_kernel(uint32_t* out) {
  __shared__ uint32_t shared[32];
  uint32_t local[32];
  for (uint32_t i = 0; i < 32; ++i) shared[i] = local[i] = out[0] + i;
  asm volatile("prefetch.L1 [%0];" ::"l"(shared) : "memory");
  asm volatile("prefetch.L2 [%0];" ::"l"(&local[out[0] & 31]) : "memory");
  finish(out);
}

template <int RANK, bool IM2COL>
__global__ void box_kernel(const __grid_constant__ CUtensorMap map, const Start s, uint32_t* out) {
  const uint64_t m = reinterpret_cast<uint64_t>(&map);
  if constexpr (!IM2COL && RANK == 1) {
    asm volatile("cp.async.bulk.prefetch.tensor.1d.L2.global.tile [%0, {%1}];" ::"l"(m), "r"(s.c[0])
                 : "memory");
  } else if constexpr (!IM2COL && RANK == 2) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1,%2}];" ::"l"(m),
                 "r"(s.c[0]), "r"(s.c[1])
                 : "memory");
  } else if constexpr (!IM2COL) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1,%2,%3,%4}];" ::"l"(m),
                 "r"(s.c[0]), "r"(s.c[1]), "r"(s.c[2]), "r"(s.c[3])
                 : "memory");
  } else if constexpr (RANK == 3) {
    asm volatile(
        "cp.async.bulk.prefetch.tensor.3d.L2.global.im2col [%0, {%1,%2,%3}], {%4};" ::"l"(m),
        "r"(s.c[0]), "r"(s.c[1]), "r"(s.c[2]), "h"(s.offset[0])
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.prefetch.tensor.4d.L2.global.im2col [%0, {%1,%2,%3,%4}], {%5,%6};" ::"l"(m),
        "r"(s.c[0]), "r"(s.c[1]), "r"(s.c[2]), "r"(s.c[3]), "h"(s.offset[0]), "h"(s.offset[1])
        : "memory");
  }
  finish(out);
}

using BoxKernel = void (*)(const CUtensorMap, const Start, uint32_t*);

void box_case(const std::string& name, const TensorSpec& spec, BoxKernel kernel,
              const Start& start) {
  add("prefetch box " + name + " " + text(start, spec.rank), [=](Result& result) {
    Buffer source(kSourceBytes), out(kWords * 4);
    CUtensorMap map;
    if (const int code = encode(spec, source.get(), map)) {
      result.note = "encode refuses, " + std::to_string(code);
      return;
    }
    kernel<<<1, 1>>>(map, start, out.get<uint32_t>());
    fetch(result, out.get(), kWords);
  });
}

using AddressKernel = void (*)(uint64_t, uint32_t, uint32_t*);

/// `offset` from the start of a buffer; or the address itself, where `absolute`.
void address_case(const std::string& name, AddressKernel kernel, uint64_t offset, uint32_t size = 0,
                  bool absolute = false) {
  add("prefetch " + name, [=](Result& result) {
    Buffer source(4096), out(kWords * 4);
    cudaMemset(source.get(), 0, 4096);
    const uint64_t base = absolute ? 0 : reinterpret_cast<uint64_t>(source.get());
    kernel<<<1, 1>>>(base + offset, size, out.get<uint32_t>());
    fetch(result, out.get(), kWords);
  });
}

}  // namespace

void add_prefetch_cases() {
  struct Plain {
    const char* name;
    AddressKernel kernel;
  };
  for (const Plain& form :
       {Plain{"global.L1", address_kernel<Form::l1>}, Plain{"global.L2", address_kernel<Form::l2>},
        Plain{"global.L2 evict_last", address_kernel<Form::evict_last>},
        Plain{"L1", address_kernel<Form::generic>},
        Plain{"prefetchu.L1", address_kernel<Form::uniform>}}) {
    const std::string name = form.name;
    address_case(name, form.kernel, 128);
    address_case(name + " odd address", form.kernel, 129);
    address_case(name + " unmapped", form.kernel, uint64_t{1} << 40);
    address_case(name + " null", form.kernel, 0, 0, true);
  }
  add("prefetch of shared and local memory", [](Result& result) {
    Buffer out(kWords * 4);
    cudaMemset(out.get(), 0, kWords * 4);
    own_memory_kernel<<<1, 1>>>(out.get<uint32_t>());
    fetch(result, out.get(), kWords);
  });
  for (uint32_t size : {0u, 8u, 16u, 24u, 4096u}) {
    address_case("bulk bytes " + std::to_string(size), address_kernel<Form::bulk>, 0, size);
  }
  address_case("bulk odd address", address_kernel<Form::bulk>, 8, 64);
  address_case("bulk unmapped", address_kernel<Form::bulk>, uint64_t{1} << 40, 64);
  address_case("tensormap of zeros", address_kernel<Form::tensormap>, 0);
  for (uint32_t offset : {16u, 32u, 64u, 128u}) {
    address_case("tensormap offset " + std::to_string(offset), address_kernel<Form::tensormap>,
                 offset);
  }

  TensorSpec tiled;
  tiled.dims = {200, 100, 1, 1, 1};
  tiled.strides = {512};
  tiled.box = {64, 20, 1, 1, 1};
  tiled.swizzle = 3;
  for (Start at : {Start{{8, 5}}, Start{{4, 5}}, Start{{192, -3}}, Start{{196, -3}},
                   Start{{-8, 90}}, Start{{-1, -1}}, Start{{8, 100}}, Start{{208, 5}}}) {
    box_case("tiled 2d", tiled, box_kernel<2, false>, at);
  }
  box_case("of a 2d map by a 4d instruction", tiled, box_kernel<4, false>, Start{{0, 0, 0, 0}});
  box_case("of a tiled map by an im2col instruction", tiled, box_kernel<3, true>, Start{{0, 0, 0}});
  TensorSpec line = tiled;
  line.rank = 1;
  line.box[1] = 1;
  for (int c : {0, 8, 4, -16, 1000}) box_case("tiled 1d", line, box_kernel<1, false>, Start{{c}});
  TensorSpec image;
  image.rank = 4;
  image.im2col = true;
  image.dims = {64, 9, 8, 3, 1};
  image.lower = {-1, -1, 0};
  image.upper = {-1, -1, 0};
  image.swizzle = 3;
  for (Start at :
       {Start{{0, -1, -1, 0}, {0, 0}}, Start{{0, 2, 3, 1}, {2, 2}}, Start{{0, -2, 0, 0}, {0, 0}},
        Start{{0, 9, 0, 0}, {0, 0}}, Start{{4, 0, 0, 0}, {1, 1}}, Start{{0, 0, 0, 3}, {1, 1}}}) {
    box_case("im2col 4d", image, box_kernel<4, true>, at);
  }
  box_case("of an im2col map by a tiled instruction", image, box_kernel<4, false>,
           Start{{0, 0, 0, 0}});
}

}  // namespace probe
