// SPDX-License-Identifier: Apache-2.0
//
// What the Blackwell kernel builds on, instruction by instruction, against what PTX says of it:
// operand descriptors that start at any row and whose groups of rows lie any number of rows apart
// (Input::halo), of one CTA and of pairs; im2col copies at the corners of their box, in images that
// are not there, counted at a pair's leader, multicast; launch control; programmatic launches. No
// result of the virtual GPU is needed: each case computes its own.
//
//   convoy_sm100_probe --list | CASE     exit status 0: as PTX says
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/common/launch.hpp"
#include "kernels/common/tensor_map.hpp"
#include "kernels/sm100/tcgen05.cuh"

namespace convoy {
namespace {

constexpr int kColumns = 32;
constexpr std::uint32_t kImageBytes = 48 * 1024;  // of the A operand; B's follows
constexpr std::uint32_t kBytes = kImageBytes + kColumns * 128;

struct Operand {
  std::uint32_t start;        // byte of the first row
  std::uint32_t group_bytes;  // between groups of 8 rows
};

template <int kCtaGroup>
__global__ void __launch_bounds__(128)
    multiply(const std::uint32_t* image, Operand a, Operand b, float* d) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  __shared__ std::uint32_t tmem_address;
  __shared__ ptx::Barrier done;
  const std::uint32_t rank = kCtaGroup == 1 ? 0 : ptx::cluster_cta_rank();
  for (std::uint32_t i = threadIdx.x; i < kBytes / 4; i += blockDim.x) {
    reinterpret_cast<std::uint32_t*>(shared)[i] = image[rank * (kBytes / 4) + i];
  }
  ptx::fence_async_shared();
  if (threadIdx.x == 0) {
    ptx::barrier_init(&done, 1);
    ptx::fence_barrier_init();
  }
  __syncwarp();
  if (ptx::warp_id() == 0) ptx::tmem_allocate<kCtaGroup, 32>(&tmem_address);
  ptx::tmem_fence_before_sync();
  __syncthreads();
  if constexpr (kCtaGroup == 2) ptx::cluster_sync();
  ptx::tmem_fence_after_sync();
  const std::uint32_t tmem = *static_cast<volatile std::uint32_t*>(&tmem_address);
  if (rank == 0 && ptx::warp_id() == 0) {
    if (ptx::elect_one()) {
      const std::uint32_t base = ptx::shared_address(shared);
      ptx::mma_f16<kCtaGroup>(tmem, ptx::mma_operand<128>(base + a.start, a.group_bytes),
                              ptx::mma_operand<128>(base + kImageBytes + b.start, b.group_bytes),
                              ptx::mma_instruction(true, 128 * kCtaGroup, kColumns), false);
      if constexpr (kCtaGroup == 1) {
        ptx::mma_commit_local(&done);
      } else {
        ptx::mma_commit<2>(&done, 3);
      }
    }
    __syncwarp();
  }
  ptx::barrier_wait(&done, 0);
  ptx::tmem_fence_after_sync();
  std::uint32_t v[kColumns];
  ptx::tmem_load_x32(tmem + (ptx::warp_id() << 21), v);
  ptx::tmem_wait_load(v);
  for (int i = 0; i < kColumns; ++i) {
    d[(rank * 128 + threadIdx.x) * kColumns + i] = __uint_as_float(v[i]);
  }
  ptx::tmem_fence_before_sync();
  __syncthreads();
  if constexpr (kCtaGroup == 2) ptx::cluster_sync();
  ptx::tmem_fence_after_sync();
  if (ptx::warp_id() == 0) ptx::tmem_free<kCtaGroup, 32>(tmem);
}

int element(std::uint32_t index) {
  index = (index ^ index >> 16) * 0x7feb352du;
  index = (index ^ index >> 15) * 0x846ca68bu;
  return static_cast<int>((index ^ index >> 16) % 9) - 4;
}

// Element of the image at byte `address` as TMA lays it with 128-byte swizzle: address bits 4-6 are
// exclusive-or'ed with bits 7-9.
int swizzled(std::uint32_t cta, std::uint32_t address) {
  address ^= address >> 3 & 0x70;
  return element(cta * kBytes + address);
}

template <int kCtaGroup>
std::string run_multiply(Operand a, Operand b) {
  constexpr int kRows = 128 * kCtaGroup;
  std::vector<std::uint16_t> image(kCtaGroup * kBytes / 2);
  for (std::uint32_t cta = 0; cta < kCtaGroup; ++cta) {
    for (std::uint32_t address = 0; address < kBytes; address += 2) {
      const auto value = static_cast<float>(element(cta * kBytes + address));
      std::uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      image[(cta * kBytes + address) / 2] = static_cast<std::uint16_t>(bits >> 16);
    }
  }
  const auto in = allocate_device_memory(image.size() * 2);
  const auto out = allocate_device_memory(kRows * kColumns * 4);
  cudaMemcpy(in.get(), image.data(), image.size() * 2, cudaMemcpyHostToDevice);
  raise_shared_memory_limit(multiply<kCtaGroup>, kBytes, "multiply");
  launch_kernel(multiply<kCtaGroup>,
                {.name = "multiply",
                 .grid = kCtaGroup,
                 .block = 128,
                 .shared_bytes = kBytes,
                 .cluster = dim3(kCtaGroup, 1, 1)},
                static_cast<const std::uint32_t*>(in.get()), a, b, static_cast<float*>(out.get()));
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) {
    return error_text(error);
  }
  std::vector<float> d(kRows * kColumns);
  cudaMemcpy(d.data(), out.get(), d.size() * 4, cudaMemcpyDeviceToHost);
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kColumns; ++n) {
      // With two CTAs each holds half of B's rows.
      const auto row = static_cast<std::uint32_t>(m % 128);
      const auto column = static_cast<std::uint32_t>(n % (kColumns / kCtaGroup));
      int expected = 0;
      for (std::uint32_t k = 0; k < 16; ++k) {
        expected +=
            swizzled(static_cast<std::uint32_t>(m / 128),
                     a.start + row / 8 * a.group_bytes + row % 8 * 128 + 2 * k) *
            swizzled(static_cast<std::uint32_t>(n / (kColumns / kCtaGroup)),
                     kImageBytes + b.start + column / 8 * b.group_bytes + column % 8 * 128 + 2 * k);
      }
      const float got = d[static_cast<std::size_t>(m * kColumns + n)];
      if (got != static_cast<float>(expected)) {
        return "row " + std::to_string(m) + ", column " + std::to_string(n) + " is " +
               std::to_string(got) + ", expected " + std::to_string(expected);
      }
    }
  }
  return {};
}

// Pixels of an im2col copy: a CTA's tile is 64 of them, 64 channels each.
constexpr int kPixels = 64, kChannels = 64, kTileBytes = kPixels * kChannels * 2;

struct Im2col {
  int stride = 1, dilation = 1;
  int offset_w = 0, offset_h = 0;  // the tap
  int image = 0;                   // of the first pixel
  bool multicast = false;
};
// An activation of 2 x 5 x 7 x 64, a filter of 3 x 3 with a border of 1.
constexpr int kImages = 2, kHeight = 5, kWidth = 7, kPad = 1;

struct Starts {
  int w[4], h[4], n[4];  // of what each CTA of the cluster loads
};

// Each CTA loads its tile; with multicast half of it, the other half comes from the other pair (or
// CTA). Bytes are counted by the leaders.
template <int kCtaGroup, bool kMulticast>
__global__ void __launch_bounds__(128)
    load_pixels(const __grid_constant__ CUtensorMap map, Starts starts, int offset_w, int offset_h,
                uint4* tiles) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  __shared__ ptx::Barrier full;
  const std::uint32_t rank = ptx::cluster_cta_rank();
  const std::uint32_t leader = rank / kCtaGroup * kCtaGroup;
  if (threadIdx.x == 0) {
    ptx::barrier_init(&full, 1);
    ptx::fence_barrier_init();
    if (rank == leader) ptx::barrier_arrive_expect(&full, kCtaGroup * kTileBytes);
  }
  __syncwarp();
  ptx::cluster_sync();
  if (threadIdx.x == 0) {
    const std::uint32_t slice = rank / kCtaGroup;
    const auto mask = static_cast<std::uint16_t>((1u | 1u << kCtaGroup) << rank % kCtaGroup);
    ptx::tma_load_im2col_nhwc<kCtaGroup, kMulticast>(
        shared + (kMulticast ? slice * (kTileBytes / 2) : 0), &map,
        ptx::map_shared_rank(ptx::shared_address(&full), leader), mask, ptx::kL2EvictNormal, 0,
        starts.w[rank], starts.h[rank], starts.n[rank], static_cast<std::uint16_t>(offset_w),
        static_cast<std::uint16_t>(offset_h));
  }
  __syncwarp();
  if (rank == leader) ptx::barrier_wait(&full, 0);
  ptx::cluster_sync();
  for (int i = static_cast<int>(threadIdx.x); i < kTileBytes / 16; i += 128) {
    tiles[rank * (kTileBytes / 16) + i] = reinterpret_cast<const uint4*>(shared)[i];
  }
}

template <int kCtaGroup, bool kMulticast>
std::string run_load_pixels(const Im2col& copy) {
  constexpr int kCtas = kMulticast ? 2 * kCtaGroup : kCtaGroup;
  const int upper = kPad - 2 * copy.dilation;
  std::vector<std::uint16_t> activation(kImages * kHeight * kWidth * kChannels);
  for (std::size_t i = 0; i < activation.size(); ++i) {
    activation[i] = static_cast<std::uint16_t>(i + 1);  // never 0
  }
  const auto in = allocate_device_memory(activation.size() * 2);
  const auto out = allocate_device_memory(kCtas * kTileBytes);
  cudaMemcpy(in.get(), activation.data(), activation.size() * 2, cudaMemcpyHostToDevice);
  Im2colTensorMap map;
  map.extents = {kChannels, kWidth, kHeight, kImages};
  map.strides_bytes = {2, 2 * kChannels, 2 * kChannels * kWidth, 2 * kChannels * kWidth * kHeight};
  map.lower_corner = {-kPad, -kPad};
  map.upper_corner = {upper, upper};
  map.channels = kChannels;
  map.pixels = kMulticast ? kPixels / 2 : kPixels;
  map.element_strides = {1, copy.stride, copy.stride, 1};
  // Places that the box's pixels go through, after `index` of them.
  struct Pixel {
    int w, h, n;
  };
  const auto pixel = [&](int index) {
    const int per_row = (kWidth + upper + kPad - 1) / copy.stride + 1;
    const int rows = (kHeight + upper + kPad - 1) / copy.stride + 1;
    return Pixel{-kPad + index % per_row * copy.stride,
                 -kPad + index / per_row % rows * copy.stride, copy.image + index / per_row / rows};
  };
  const auto first = [&](int rank) {
    return kMulticast ? rank % kCtaGroup * kPixels + rank / kCtaGroup * (kPixels / 2)
                      : rank * kPixels;
  };
  Starts starts{};
  for (int rank = 0; rank < kCtas; ++rank) {
    const Pixel at = pixel(first(rank));
    starts.w[rank] = at.w;
    starts.h[rank] = at.h;
    starts.n[rank] = at.n;
  }
  launch_kernel(load_pixels<kCtaGroup, kMulticast>,
                {.name = "load_pixels",
                 .grid = kCtas,
                 .block = 128,
                 .shared_bytes = kTileBytes,
                 .cluster = dim3(kCtas, 1, 1)},
                at_address(encode_template(map), "activation", in.get()), starts, copy.offset_w,
                copy.offset_h, static_cast<uint4*>(out.get()));
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) {
    return error_text(error);
  }
  std::vector<std::uint16_t> tiles(kCtas * kTileBytes / 2);
  cudaMemcpy(tiles.data(), out.get(), tiles.size() * 2, cudaMemcpyDeviceToHost);
  for (int i = 0; i < static_cast<int>(tiles.size()); ++i) {
    const int byte = 2 * i % kTileBytes, plain = byte ^ (byte >> 3 & 0x70),
              rank = 2 * i / kTileBytes;
    const Pixel at = pixel((kMulticast ? rank % kCtaGroup : rank) * kPixels + plain / 128);
    const int w = at.w + copy.offset_w, h = at.h + copy.offset_h;
    const bool inside =
        w >= 0 && w < kWidth && h >= 0 && h < kHeight && at.n >= 0 && at.n < kImages;
    const int index = ((at.n * kHeight + h) * kWidth + w) * kChannels + plain % 128 / 2;
    const int expected = inside ? activation[static_cast<std::size_t>(index)] : 0;
    if (tiles[static_cast<std::size_t>(i)] != expected) {
      return "CTA " + std::to_string(rank) + ", pixel " + std::to_string(plain / 128) + " is " +
             std::to_string(tiles[static_cast<std::size_t>(i)]) + ", expected " +
             std::to_string(expected);
    }
  }
  return {};
}

// Every cluster runs once, by itself or by one that asked for it.
__global__ void __launch_bounds__(32) count_clusters(std::uint32_t* runs) {
  __shared__ ptx::ClcResponse response;
  __shared__ ptx::Barrier answered;
  if (threadIdx.x != 0) return;
  ptx::barrier_init(&answered, 1);
  ptx::fence_barrier_init();
  std::uint32_t index = blockIdx.x, parity = 0;
  bool more = true;
  while (more) {
    atomicAdd(&runs[index], 1u);
    ptx::fence_async_shared();
    ptx::barrier_arrive_expect(&answered, sizeof(ptx::ClcResponse));
    ptx::clc_try_cancel(&response, &answered);
    ptx::barrier_wait(&answered, parity);
    parity ^= 1u;
    more = ptx::clc_query(&response, index);
  }
}

std::string run_launch_control() {
  constexpr std::size_t kClusters = 3000;
  const auto memory = allocate_device_memory(kClusters * 4);
  cudaMemset(memory.get(), 0, kClusters * 4);
  launch_kernel(count_clusters,
                {.name = "count_clusters", .grid = static_cast<unsigned>(kClusters), .block = 32},
                static_cast<std::uint32_t*>(memory.get()));
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) {
    return error_text(error);
  }
  std::vector<std::uint32_t> runs(kClusters);
  cudaMemcpy(runs.data(), memory.get(), kClusters * 4, cudaMemcpyDeviceToHost);
  for (std::size_t i = 0; i < kClusters; ++i) {
    if (runs[i] != 1)
      return "cluster " + std::to_string(i) + " ran " + std::to_string(runs[i]) + "x";
  }
  return {};
}

// Each of a chain of overlapped launches reads what the one before wrote last.
__global__ void __launch_bounds__(128) add_one(std::uint32_t* value) {
  ptx::dependent_launch_trigger();
  ptx::dependent_launch_wait();
  if (blockIdx.x == 0) value[threadIdx.x] += 1;
}

std::string run_dependent_launches() {
  const auto memory = allocate_device_memory(128 * 4);
  cudaMemset(memory.get(), 0, 128 * 4);
  for (int i = 0; i < 500; ++i) {
    launch_kernel(add_one, {.name = "add_one", .grid = 300, .block = 128, .overlapped = true},
                  static_cast<std::uint32_t*>(memory.get()));
  }
  std::uint32_t values[128];
  if (const cudaError_t error =
          cudaMemcpy(values, memory.get(), sizeof values, cudaMemcpyDeviceToHost);
      error != cudaSuccess) {
    return error_text(error);
  }
  for (const std::uint32_t value : values) {
    if (value != 500) return "500 launches added " + std::to_string(value);
  }
  return {};
}

// Launches that overlap and whose CTAs share an SM, each with all of the tensor memory: none takes
// it before the launch before it has ended, and none lets the next begin before it has taken it.
__global__ void __launch_bounds__(32) take_tensor_memory(std::uint32_t* count) {
  __shared__ std::uint32_t address;
  ptx::dependent_launch_wait();
  ptx::tmem_allocate<1, 512>(&address);
  ptx::dependent_launch_trigger();
  if (threadIdx.x == 0) atomicAdd(count, 1);
  __syncwarp();
  ptx::tmem_free<1, 512>(*static_cast<volatile std::uint32_t*>(&address));
}

std::string run_dependent_allocations() {
  constexpr unsigned kLaunches = 20, kBlocks = 300;
  const auto memory = allocate_device_memory(4);
  cudaMemset(memory.get(), 0, 4);
  for (unsigned i = 0; i < kLaunches; ++i) {
    launch_kernel(take_tensor_memory,
                  {.name = "take_tensor_memory", .grid = kBlocks, .block = 32, .overlapped = true},
                  static_cast<std::uint32_t*>(memory.get()));
  }
  std::uint32_t count = 0;
  if (const cudaError_t error = cudaMemcpy(&count, memory.get(), 4, cudaMemcpyDeviceToHost);
      error != cudaSuccess) {
    return error_text(error);
  }
  if (count == kLaunches * kBlocks) return {};
  return std::to_string(count) + " of " + std::to_string(kLaunches * kBlocks) + " blocks ran";
}

struct Case {
  std::string name;
  std::function<std::string()> run;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  list.push_back({"launch_control", run_launch_control});
  list.push_back({"dependent_launches", run_dependent_launches});
  list.push_back({"dependent_allocations", run_dependent_allocations});
  for (const bool pair : {false, true}) {
    const std::string who = pair ? "pair" : "one";
    const auto load = [&](const char* what, const Im2col& copy) {
      const auto run = copy.multicast
                           ? (pair ? run_load_pixels<2, true> : run_load_pixels<1, true>)
                           : (pair ? run_load_pixels<2, false> : run_load_pixels<1, false>);
      list.push_back({"im2col_" + who + "_" + what, [=] { return run(copy); }});
    };
    load("first_tap", {});
    load("last_tap", {.offset_w = 2, .offset_h = 2});
    load("stride", {.stride = 2, .offset_w = 1, .offset_h = 2});
    load("dilation", {.dilation = 2, .offset_w = 4, .offset_h = 2});
    load("image_before_the_first", {.offset_w = 1, .offset_h = 1, .image = -1});
    load("image_behind_the_last", {.offset_w = 1, .offset_h = 1, .image = 1});
    load("multicast", {.offset_w = 1, .offset_h = 1, .multicast = true});
    load("multicast_before_the_first", {.offset_w = 2, .image = -1, .multicast = true});
    const auto multiply = pair ? run_multiply<2> : run_multiply<1>;
    const auto put = [&](std::uint32_t start, std::uint32_t rows, std::uint32_t b_start) {
      list.push_back({who + "_start" + std::to_string(start) + "_rows" + std::to_string(rows) +
                          "_b" + std::to_string(b_start),
                      [=] {
                        return multiply({start, rows * 128}, {b_start, 1024});
                      }});
    };
    for (const std::uint32_t step : {0u, 32u, 64u, 96u}) put(step, 8, step);
    // Groups 8 to 12 and 18 rows apart (patches of 8 columns and their borders), any first row.
    for (const std::uint32_t rows : {9u, 10u, 11u, 12u, 18u}) {
      for (std::uint32_t first = 0; first < 10; ++first) put(first * 128, rows, 0);
    }
    put(23 * 128 + 64, 10, 64);
  }
  return list;
}

}  // namespace
}  // namespace convoy

int main(int argc, char** argv) {
  const std::string chosen = argc == 2 ? argv[1] : "";
  for (const convoy::Case& test : convoy::cases()) {
    if (chosen == "--list") std::puts(test.name.c_str());
    if (chosen != test.name && chosen != "--all") continue;
    const std::string wrong = test.run();
    std::printf("%s: %s\n", test.name.c_str(), wrong.empty() ? "as PTX says" : wrong.c_str());
    if (!wrong.empty()) return 1;
    if (chosen == test.name) return 0;
  }
  if (chosen == "--list" || chosen == "--all") return 0;
  std::fprintf(stderr, "usage: convoy_sm100_probe --list | --all | CASE\n");
  return 2;
}
