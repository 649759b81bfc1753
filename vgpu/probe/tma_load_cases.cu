// SPDX-License-Identifier: Apache-2.0
// TMA loads: the shared-memory image of a box for every mode, swizzle, edge, stride, fill and type.
#include "device.cuh"
#include "tensor_maps.hpp"

namespace probe {
namespace {

constexpr uint32_t kImageWords = 16384;  // 64 KiB of shared memory, all of it compared
constexpr uint32_t kSourceElements = 1 << 20;

template <int RANK, bool IM2COL>
__device__ void load(uint32_t target, const CUtensorMap* map, const Start& s, uint32_t barrier) {
  const uint64_t m = reinterpret_cast<uint64_t>(map);
  if constexpr (!IM2COL && RANK == 1) {
    asm volatile(
        "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%2}], [%3];" ::"r"(target),
        "l"(m), "r"(s.c[0]), "r"(barrier)
        : "memory");
  } else if constexpr (!IM2COL && RANK == 2) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%2,%3}], [%4];" ::"r"(target),
        "l"(m), "r"(s.c[0]), "r"(s.c[1]), "r"(barrier)
        : "memory");
  } else if constexpr (!IM2COL && RANK == 3) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%2,%3,%4}], [%5];" ::"r"(target),
        "l"(m), "r"(s.c[0]), "r"(s.c[1]), "r"(s.c[2]), "r"(barrier)
        : "memory");
  } else if constexpr (!IM2COL && RANK == 4) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%2,%3,%4,%5}], [%6];" ::"r"(target),
        "l"(m), "r"(s.c[0]), "r"(s.c[1]), "r"(s.c[2]), "r"(s.c[3]), "r"(barrier)
        : "memory");
  } else if constexpr (!IM2COL && RANK == 5) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%2,%3,%4,%5,%6}], [%7];" ::"r"(target),
        "l"(m), "r"(s.c[0]), "r"(s.c[1]), "r"(s.c[2]), "r"(s.c[3]), "r"(s.c[4]), "r"(barrier)
        : "memory");
  } else if constexpr (IM2COL && RANK == 3) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%2,%3,%4}], [%5], {%6};" ::"r"(target),
        "l"(m), "r"(s.c[0]), "r"(s.c[1]), "r"(s.c[2]), "r"(barrier), "h"(s.offset[0])
        : "memory");
  } else if constexpr (IM2COL && RANK == 4) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%2,%3,%4,%5}], [%6], {%7,%8};" ::"r"(target),
        "l"(m), "r"(s.c[0]), "r"(s.c[1]), "r"(s.c[2]), "r"(s.c[3]), "r"(barrier), "h"(s.offset[0]),
        "h"(s.offset[1])
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%2,%3,%4,%5,%6}], [%7], {%8,%9,%10};" ::"r"(target),
        "l"(m), "r"(s.c[0]), "r"(s.c[1]), "r"(s.c[2]), "r"(s.c[3]), "r"(s.c[4]), "r"(barrier),
        "h"(s.offset[0]), "h"(s.offset[1]), "h"(s.offset[2])
        : "memory");
  }
}

template <int RANK, bool IM2COL>
__global__ void load_kernel(const __grid_constant__ CUtensorMap map, const Start start,
                            uint32_t bytes, uint32_t shift, uint32_t* out) {
  extern __shared__ __align__(1024) uint32_t image[];
  __shared__ __align__(8) uint64_t barrier_storage;
  const uint32_t barrier = shared_address(&barrier_storage);
  for (uint32_t i = threadIdx.x; i < kImageWords; i += blockDim.x) image[i] = kFillWord;
  if (threadIdx.x == 0) mbarrier_init(barrier, 1);
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_expect(barrier, bytes);
    load<RANK, IM2COL>(shared_address(image) + shift, &map, start, barrier);
  }
  const bool done = mbarrier_wait(barrier, 0);
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < kImageWords; i += blockDim.x) {
    out[i] = done ? image[i] : kTimeoutWord;
  }
}

using LoadKernel = void (*)(const CUtensorMap, const Start, uint32_t, uint32_t, uint32_t*);

LoadKernel kernel_for(uint32_t rank, bool im2col) {
  if (im2col) {
    return rank == 3   ? load_kernel<3, true>
           : rank == 4 ? load_kernel<4, true>
                       : load_kernel<5, true>;
  }
  switch (rank) {
    case 1:
      return load_kernel<1, false>;
    case 2:
      return load_kernel<2, false>;
    case 3:
      return load_kernel<3, false>;
    case 4:
      return load_kernel<4, false>;
    default:
      return load_kernel<5, false>;
  }
}

// 32-bit patterns that tell whether a type flushes or rounds: denormals, NaNs, infinities, numbers
// with low mantissa bits.
std::vector<uint32_t> special_floats(size_t count) {
  static constexpr uint32_t kSpecial[] = {0x00000001, 0x80000001, 0x007fffff, 0x00800000,
                                          0x7f800000, 0xff800000, 0x7f800001, 0x7fc00000,
                                          0xffffffff, 0x3f800001, 0x3f801000, 0x3f800fff,
                                          0x3f803000, 0x7f7fffff, 0x80000000};
  std::vector<uint32_t> data(count);
  for (uint32_t i = 0; i < count; ++i) {
    data[i] = i % 2 ? kSpecial[i / 2 % 15] : hash32(i);
  }
  return data;
}

struct LoadOptions {
  uint32_t shift = 0;        // of the target in shared memory, bytes
  uint32_t kernel_rank = 0;  // 0: the map's rank
  int kernel_im2col = -1;    // -1: the map's mode
  bool special = false;      // special float data
};

void load_case(const std::string& name, const TensorSpec& spec, const Start& start,
               LoadOptions options = {}) {
  add("tma load " + name, [=](Result& result) {
    Buffer source(kSourceElements * 2), out(kImageWords * 4);
    if (options.special) {
      const auto data = special_floats(kSourceElements / 2);
      cudaMemcpy(source.get(), data.data(), kSourceElements * 2, cudaMemcpyHostToDevice);
    } else {
      const auto data = pattern16(kSourceElements);
      cudaMemcpy(source.get(), data.data(), kSourceElements * 2, cudaMemcpyHostToDevice);
    }
    CUtensorMap map;
    if (const int code = encode(spec, source.get(), map)) {
      result.note = "encode refuses, " + std::to_string(code);
      return;
    }
    const LoadKernel kernel =
        kernel_for(options.kernel_rank ? options.kernel_rank : spec.rank,
                   options.kernel_im2col < 0 ? spec.im2col : options.kernel_im2col != 0);
    cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                         cudaFuncAttributeMaxDynamicSharedMemorySize, kImageWords * 4 + 1024);
    kernel<<<1, 128, kImageWords * 4 + 1024>>>(map, start, spec.box_bytes(), options.shift,
                                               out.get<uint32_t>());
    fetch(result, out.get(), kImageWords);
  });
}

TensorSpec tiled_2d(uint32_t inner, int swizzle) {
  TensorSpec spec;
  spec.dims = {200, 100, 1, 1, 1};
  spec.strides = {512};
  spec.box = {inner, 20, 1, 1, 1};
  spec.swizzle = swizzle;
  return spec;
}

void add_tiled() {
  for (int swizzle = 0; swizzle <= 6; ++swizzle) {
    for (uint32_t inner : {8u, 16u, 24u, 32u, 64u}) {
      const TensorSpec spec = tiled_2d(inner, swizzle);
      const std::string name =
          "tiled 2d swizzle " + std::to_string(swizzle) + " inner " + std::to_string(inner);
      for (Start at : {Start{{8, 5}}, Start{{192, -3}}, Start{{-8, 90}}}) {
        load_case(name + " " + text(at, 2), spec, at);
      }
    }
  }
  // Which start coordinates fault? Multiples of 16 bytes and others, inside and outside.
  for (int swizzle : {0, 3}) {
    const TensorSpec spec = tiled_2d(16, swizzle);
    for (Start at :
         {Start{{1, 5}},    Start{{2, 5}},   Start{{4, 5}},    Start{{12, 5}},   Start{{196, 5}},
          Start{{196, -3}}, Start{{192, 5}}, Start{{192, 95}}, Start{{8, -3}},   Start{{8, 99}},
          Start{{8, 100}},  Start{{-4, 5}},  Start{{-8, 5}},   Start{{-16, 5}},  Start{{-24, 5}},
          Start{{200, 5}},  Start{{208, 5}}, Start{{8, -20}},  Start{{8, -100}}, Start{{-1, -1}}}) {
      load_case("tiled 2d start swizzle " + std::to_string(swizzle) + " " + text(at, 2), spec, at);
    }
  }
  TensorSpec line;
  line.rank = 1;
  line.dims = {1000, 1, 1, 1, 1};
  line.box = {64, 1, 1, 1, 1};
  for (int c : {0, 8, 4, 960, 992, -16, 1000}) {
    load_case("tiled 1d at " + std::to_string(c), line, Start{{c}});
  }
  line.box[0] = 256;
  load_case("tiled 1d box 256", line, Start{{800}});
}

void add_element_strides() {
  TensorSpec spec;
  spec.rank = 3;
  spec.dims = {64, 50, 7, 1, 1};
  spec.strides = {128, 6400};
  spec.box = {64, 12, 3, 1, 1};
  spec.swizzle = 3;
  for (uint32_t first : {1u, 2u, 3u, 8u}) {
    for (uint32_t second : {1u, 2u}) {
      spec.element_strides = {1, first, second, 1, 1};
      for (Start at : {Start{{0, 44, 5}}, Start{{0, -3, -1}}, Start{{8, 1, 0}}}) {
        load_case("tiled 3d element strides " + std::to_string(first) + "," +
                      std::to_string(second) + " " + text(at, 3),
                  spec, at);
      }
    }
  }
  spec.element_strides = {2, 1, 1, 1, 1};
  load_case("tiled 3d element stride 2 along dimension 0", spec, Start{{0, 0, 0}});
  spec.element_strides = {1, 1, 1, 1, 1};

  TensorSpec four;
  four.rank = 4;
  four.dims = {32, 9, 8, 5, 1};
  four.box = {32, 4, 3, 2, 1};
  four.swizzle = 2;
  for (Start at : {Start{{0, 0, 0, 0}}, Start{{0, 7, 6, 4}}, Start{{0, -2, -1, -1}}}) {
    load_case("tiled 4d " + text(at, 4), four, at);
  }
  four.element_strides = {1, 2, 2, 1, 1};
  load_case("tiled 4d element strides 2,2", four, Start{{0, -1, 1, 3}});

  TensorSpec five;
  five.rank = 5;
  five.dims = {16, 6, 5, 4, 3};
  five.box = {16, 3, 2, 2, 2};
  five.swizzle = 1;
  for (Start at : {Start{{0, 0, 0, 0, 0}}, Start{{0, 5, 4, 3, 2}}, Start{{0, -1, -1, -1, -1}}}) {
    load_case("tiled 5d " + text(at, 5), five, at);
  }
}

void add_types() {
  struct Type {
    const char* name;
    CUtensorMapDataType type;
    uint32_t bytes;
    bool is_float;
  };
  static const Type kTypes[] = {{"u8", CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, false},
                                {"u16", CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, false},
                                {"u32", CU_TENSOR_MAP_DATA_TYPE_UINT32, 4, false},
                                {"s32", CU_TENSOR_MAP_DATA_TYPE_INT32, 4, false},
                                {"u64", CU_TENSOR_MAP_DATA_TYPE_UINT64, 8, false},
                                {"s64", CU_TENSOR_MAP_DATA_TYPE_INT64, 8, false},
                                {"f16", CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, true},
                                {"f32", CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, true},
                                {"f64", CU_TENSOR_MAP_DATA_TYPE_FLOAT64, 8, true},
                                {"bf16", CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, true},
                                {"f32.ftz", CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ, 4, true},
                                {"tf32", CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, 4, true},
                                {"tf32.ftz", CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ, 4, true}};
  for (const Type& type : kTypes) {
    TensorSpec spec;
    spec.type = type.type;
    spec.element_bytes = type.bytes;
    spec.dims = {400 / type.bytes, 30, 1, 1, 1};
    spec.strides = {512};
    spec.box = {64 / type.bytes, 8, 1, 1, 1};
    spec.swizzle = 2;
    // Half the box lies past the right edge, two rows past the bottom.
    const Start at{{static_cast<int>(368 / type.bytes), 24}};
    LoadOptions special;
    special.special = true;
    load_case(std::string("type ") + type.name, spec, at, special);
    spec.fill = 1;
    load_case(std::string("type ") + type.name + " NaN fill", spec, at, special);
    spec.fill = 0;
    // One more element past the edge: its start is not a multiple of 16 bytes.
    load_case(std::string("type ") + type.name + " start off by one element", spec,
              Start{{at.c[0] + 1, 0}}, special);
  }
}

TensorSpec image_4d(int lower, int upper, uint32_t pixels, uint32_t stride, int swizzle,
                    uint32_t channels) {
  TensorSpec spec;
  spec.rank = 4;
  spec.im2col = true;
  spec.dims = {64, 9, 8, 3, 1};
  spec.lower = {lower, lower, 0};
  spec.upper = {upper, upper, 0};
  spec.pixels = pixels;
  spec.channels = channels;
  spec.element_strides = {1, stride, stride, 1, 1};
  spec.swizzle = swizzle;
  return spec;
}

void add_im2col_4d() {
  struct Row {
    int lower, upper;
    uint32_t pixels, stride;
    int w, h, n;
    uint16_t ow, oh;
    int swizzle;
    uint32_t channels;
  };
  static const Row kRows[] = {
      {-1, -1, 64, 1, -1, -1, 0, 0, 0, 3, 64},   {-1, -1, 64, 1, -1, -1, 0, 2, 1, 3, 64},
      {-1, -1, 100, 1, 5, 3, 1, 1, 1, 3, 64},    {0, 0, 40, 1, 3, 2, 0, 0, 0, 2, 32},
      {-1, -1, 64, 2, -1, -1, 0, 1, 2, 3, 64},   {-2, -2, 96, 1, -2, -2, 1, 4, 4, 3, 64},
      {-1, -1, 128, 1, 4, 6, 2, 2, 2, 3, 64},    {0, 0, 64, 2, 1, 0, 0, 0, 0, 0, 32},
      {-1, 0, 64, 1, -1, -1, 0, 0, 0, 3, 64},    {-3, 2, 64, 3, -3, -3, 0, 1, 1, 3, 64},
      {0, 0, 256, 1, 0, 0, 0, 0, 0, 3, 64},      {-1, -1, 200, 1, -1, -1, -1, 1, 1, 3, 64},
      {-1, -1, 64, 1, -1, -1, 3, 1, 1, 3, 64},   {-1, -1, 64, 1, 8, 7, 0, 1, 1, 3, 64},
      {-1, -1, 64, 1, 20, 2, 0, 1, 1, 3, 64},    {-1, -1, 64, 1, -5, 2, 0, 1, 1, 3, 64},
      {-1, -1, 64, 1, 2, 20, 0, 1, 1, 3, 64},    {-1, -1, 64, 2, 0, 0, 0, 1, 1, 3, 64},
      {-2, -3, 64, 1, -2, -2, 0, 3, 5, 3, 64},   {0, -2, 64, 1, 0, 0, 0, 2, 2, 1, 16},
      {-1, -1, 64, 1, -1, -1, 0, 255, 0, 3, 64}, {-1, -1, 64, 1, 0, 0, 0, 1, 1, 0, 64},
      {-1, -1, 64, 1, 0, 0, 0, 1, 1, 1, 16},     {-1, -1, 64, 1, 0, 0, 0, 1, 1, 2, 16},
      {-1, -1, 64, 1, 0, 0, 0, 1, 1, 3, 8},      {-1, -1, 64, 1, 0, 0, 0, 1, 1, 4, 64},
      {-1, -1, 64, 1, 0, 0, 0, 1, 1, 5, 64},     {-1, -1, 64, 1, 0, 0, 0, 1, 1, 6, 64}};
  for (const Row& row : kRows) {
    const TensorSpec spec =
        image_4d(row.lower, row.upper, row.pixels, row.stride, row.swizzle, row.channels);
    const Start at{{0, row.w, row.h, row.n}, {row.ow, row.oh}};
    load_case("im2col 4d box " + std::to_string(row.lower) + "," + std::to_string(row.upper) +
                  " pixels " + std::to_string(row.pixels) + " stride " +
                  std::to_string(row.stride) + " " + text(at, 4) + " tap " +
                  std::to_string(row.ow) + "," + std::to_string(row.oh) + " swizzle " +
                  std::to_string(row.swizzle) + " channels " + std::to_string(row.channels),
              spec, at);
  }
  // Channels: a later block, a block past the end, a start that is no multiple of 16 bytes.
  for (int channel : {16, 32, 48, 64, -16, 4}) {
    load_case("im2col 4d channels from " + std::to_string(channel), image_4d(-1, -1, 64, 1, 2, 32),
              Start{{channel, -1, -1, 0}, {1, 1}});
  }
  // Different strides, corners and taps of W and H.
  TensorSpec mixed = image_4d(-1, -1, 90, 1, 3, 64);
  mixed.lower = {-2, 0, 0};
  mixed.upper = {-1, -2, 0};
  mixed.element_strides = {1, 2, 1, 1, 1};
  load_case("im2col 4d mixed corners and strides", mixed, Start{{0, -2, 0, 0}, {3, 2}});
  mixed.element_strides = {1, 1, 3, 1, 1};
  load_case("im2col 4d mixed corners and strides 2", mixed, Start{{0, 1, 3, 1}, {0, 2}});
  TensorSpec nan = image_4d(-1, -1, 64, 1, 3, 64);
  nan.fill = 1;
  load_case("im2col 4d NaN fill f16", nan, Start{{0, -1, -1, 0}, {0, 0}});
  nan.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  load_case("im2col 4d NaN fill bf16", nan, Start{{0, -1, -1, 0}, {0, 0}});
}

void add_im2col_other_ranks() {
  TensorSpec line;
  line.rank = 3;
  line.im2col = true;
  line.dims = {32, 40, 5, 1, 1};
  line.channels = 32;
  line.swizzle = 2;
  for (uint32_t stride : {1u, 2u}) {
    for (int corner : {0, -2, -30}) {
      line.lower = {corner, 0, 0};
      line.upper = {corner, 0, 0};
      line.element_strides = {1, stride, 1, 1, 1};
      load_case("im2col 3d corner " + std::to_string(corner) + " stride " + std::to_string(stride),
                line, Start{{0, corner, 1}, {1}});
    }
  }
  for (int t = 0; t < 8; ++t) {
    TensorSpec volume;
    volume.rank = 5;
    volume.im2col = true;
    volume.dims = {64, 6, 5, 4, 2};
    volume.lower = {-1, -1, t & 4 ? -2 : -1};
    volume.upper = {-1, -1, t & 4 ? -2 : -1};
    volume.element_strides = {1, t & 1 ? 2u : 1u, 1, t & 4 ? 2u : 1u, 1};
    volume.pixels = 100;
    volume.swizzle = 3;
    volume.fill = t & 2 ? 1 : 0;
    load_case("im2col 5d case " + std::to_string(t), volume,
              Start{{0, -1, 0, 1, t & 1}, {1, 0, 2}});
  }
}

void add_faults() {
  TensorSpec spec = tiled_2d(16, 0);
  for (uint32_t shift : {16u, 32u, 64u, 128u, 8u}) {
    LoadOptions options;
    options.shift = shift;
    load_case("target shifted by " + std::to_string(shift), spec, Start{{8, 5}}, options);
  }
  for (int swizzle : {1, 2, 3}) {
    for (uint32_t shift : {128u, 256u, 512u}) {
      LoadOptions options;
      options.shift = shift;
      load_case(
          "swizzle " + std::to_string(swizzle) + " target shifted by " + std::to_string(shift),
          tiled_2d(16, swizzle), Start{{8, 5}}, options);
    }
  }
  LoadOptions options;
  options.kernel_rank = 3;
  load_case("2d map in a 3d instruction", spec, Start{{8, 5, 0}}, options);
  options.kernel_rank = 4;
  options.kernel_im2col = 1;
  TensorSpec four;
  four.rank = 4;
  four.dims = {64, 9, 8, 3, 1};
  four.box = {64, 2, 2, 2, 1};
  load_case("tiled map in an im2col instruction", four, Start{{0, 0, 0, 0}}, options);
  options.kernel_im2col = 0;
  load_case("im2col map in a tiled instruction", image_4d(-1, -1, 64, 1, 3, 64),
            Start{{0, 0, 0, 0}}, options);
}

void add_refusals() {
  const auto refuse = [](const std::string& name, const std::function<void(TensorSpec&)>& change,
                         TensorSpec spec = tiled_2d(16, 0), size_t shift = 0) {
    change(spec);
    add("tensor map " + name, [spec, shift](Result& result) {
      Buffer source(1 << 20);
      CUtensorMap map;
      result.note = "encode " + std::to_string(encode(spec, source.get() + shift, map));
    });
  };
  refuse("legal", [](TensorSpec&) {});
  refuse(
      "address plus 8", [](TensorSpec&) {}, tiled_2d(16, 0), 8);
  refuse("rank 0", [](TensorSpec& s) { s.rank = 0; });
  refuse("dimension 0", [](TensorSpec& s) { s.dims[1] = 0; });
  refuse("dimension 2^32", [](TensorSpec& s) { s.dims[1] = 1ull << 32; });
  refuse("dimension 2^32 + 1", [](TensorSpec& s) { s.dims[1] = (1ull << 32) + 1; });
  refuse("stride 520", [](TensorSpec& s) { s.strides[0] = 520; });
  refuse("stride 2^40", [](TensorSpec& s) { s.strides[0] = 1ull << 40; });
  refuse("stride below the row", [](TensorSpec& s) { s.strides[0] = 128; });
  refuse("box 0", [](TensorSpec& s) { s.box[1] = 0; });
  refuse("box 256", [](TensorSpec& s) { s.box[1] = 256; });
  refuse("box 257", [](TensorSpec& s) { s.box[1] = 257; });
  refuse("inner box of 8 bytes", [](TensorSpec& s) { s.box[0] = 4; });
  refuse("inner box of 24 bytes", [](TensorSpec& s) { s.box[0] = 12; });
  refuse("box larger than the tensor", [](TensorSpec& s) { s.dims = {8, 4, 1, 1, 1}; });
  refuse("element stride 0", [](TensorSpec& s) { s.element_strides[1] = 0; });
  refuse("element stride 8", [](TensorSpec& s) { s.element_strides[1] = 8; });
  refuse("element stride 9", [](TensorSpec& s) { s.element_strides[1] = 9; });
  refuse("element stride 0 along dimension 0", [](TensorSpec& s) { s.element_strides[0] = 0; });
  refuse("element stride 9 along dimension 0", [](TensorSpec& s) { s.element_strides[0] = 9; });
  refuse("NaN fill of integers", [](TensorSpec& s) {
    s.fill = 1;
    s.type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
  });
  refuse("type 13", [](TensorSpec& s) { s.type = CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B; });
  const TensorSpec image = image_4d(-1, -1, 64, 1, 3, 64);
  refuse(
      "im2col legal", [](TensorSpec&) {}, image);
  refuse(
      "im2col rank 2", [](TensorSpec& s) { s.rank = 2; }, image);
  refuse(
      "im2col corner -128", [](TensorSpec& s) { s.lower[0] = -128; }, image);
  refuse(
      "im2col corner -129", [](TensorSpec& s) { s.lower[0] = -129; }, image);
  refuse(
      "im2col corner 128", [](TensorSpec& s) { s.upper[0] = 128; }, image);
  refuse(
      "im2col empty box", [](TensorSpec& s) { s.upper[0] = -10; }, image);
  refuse(
      "im2col box of one pixel", [](TensorSpec& s) { s.upper[0] = -9; }, image);
  refuse(
      "im2col channels 257",
      [](TensorSpec& s) {
        s.channels = 257;
        s.swizzle = 0;
      },
      image);
  refuse(
      "im2col channels 256",
      [](TensorSpec& s) {
        s.channels = 256;
        s.swizzle = 0;
      },
      image);
  refuse(
      "im2col channels 4", [](TensorSpec& s) { s.channels = 4; }, image);
  refuse(
      "im2col pixels 1024", [](TensorSpec& s) { s.pixels = 1024; }, image);
  refuse(
      "im2col pixels 1025", [](TensorSpec& s) { s.pixels = 1025; }, image);
  refuse(
      "im2col pixels 0", [](TensorSpec& s) { s.pixels = 0; }, image);
}

}  // namespace

void add_tma_load_cases() {
  add_tiled();
  add_element_strides();
  add_types();
  add_im2col_4d();
  add_im2col_other_ranks();
  add_faults();
  add_refusals();
}

}  // namespace probe
