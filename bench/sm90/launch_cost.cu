// SPDX-License-Identifier: Apache-2.0
//
// What a launch costs, ingredient by ingredient: kernels that do nothing, one property changed at a
// time, between two events after the L2 cache was overwritten, interleaved.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -o launch_cost launch_cost.cu
//   ./launch_cost [rounds]
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

template <int kBytes>
struct Parameters {
  int words[kBytes / 4];
};

// Reads the first and the last word, so that nothing of the parameters can be dropped.
template <int kBytes, bool kWaits, bool kRegisters>
__global__ void __launch_bounds__(kRegisters ? 384 : 512, 1)
    nothing(const __grid_constant__ Parameters<kBytes> p, int* out) {
  if constexpr (kWaits) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
  }
  // NOTE: with setmaxnreg a kernel gets all registers that its launch bounds leave it.
  if constexpr (kRegisters) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
  if (p.words[0] + p.words[kBytes / 4 - 1] == 12345) *out = 1;
}

struct Launch {
  int ctas = 132, threads = 384, shared = 0, cluster = 0;
  bool dependent = false;
};

cudaStream_t stream;

template <int kBytes, bool kWaits = false, bool kRegisters = false>
std::function<void()> launcher(const Launch& l) {
  auto* const kernel = &nothing<kBytes, kWaits, kRegisters>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 232448),
        "shared");
  return [=] {
    cudaLaunchAttribute attributes[2] = {};
    unsigned count = 0;
    if (l.dependent) {
      attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (l.cluster > 0) {
      attributes[count].id = cudaLaunchAttributeClusterDimension;
      attributes[count].val.clusterDim.x = static_cast<unsigned>(l.cluster);
      attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
      ++count;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(l.ctas));
    config.blockDim = dim3(static_cast<unsigned>(l.threads));
    config.dynamicSmemBytes = static_cast<std::size_t>(l.shared);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    Parameters<kBytes> p = {};
    check(cudaLaunchKernelEx(&config, kernel, p, static_cast<int*>(nullptr)), "launch");
  };
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 101;
  check(cudaStreamCreate(&stream), "stream");
  constexpr int kBig = 200 * 1024;
  std::vector<std::pair<std::string, std::function<void()>>> variants;
  const auto add = [&](const char* name, std::function<void()> f) {
    variants.emplace_back(name, f);
  };
  add("no launch", [] {});
  add("1 CTA of 128", launcher<64>({.ctas = 1, .threads = 128}));
  add("132 CTAs of 128", launcher<64>({.threads = 128}));
  add("132 of 384", launcher<64>({}));
  add("  all registers", launcher<64, false, true>({}));
  add("  200 KiB", launcher<64>({.shared = kBig}));
  add("  200 KiB, registers: base", launcher<64, false, true>({.shared = kBig}));
  add("base, 512 B of parameters", launcher<512, false, true>({.shared = kBig}));
  add("base, 1 KiB", launcher<1024, false, true>({.shared = kBig}));
  add("base, 2 KiB", launcher<2048, false, true>({.shared = kBig}));
  add("base, 4 KiB", launcher<4000, false, true>({.shared = kBig}));
  add("base, waits", launcher<64, true, true>({.shared = kBig}));
  add("base, dependent", launcher<64, false, true>({.shared = kBig, .dependent = true}));
  add("base, dependent, waits", launcher<64, true, true>({.shared = kBig, .dependent = true}));
  add("base, cluster 1", launcher<64, false, true>({.shared = kBig, .cluster = 1}));
  add("base, cluster 2", launcher<64, false, true>({.shared = kBig, .cluster = 2}));
  add("base, cluster 4", launcher<64, false, true>({.shared = kBig, .cluster = 4}));
  add("all: 2 KiB, dependent, waits, cluster 2",
      launcher<2048, true, true>({.shared = kBig, .cluster = 2, .dependent = true}));

  int l2 = 0;
  check(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, 0), "L2");
  void* flush = nullptr;
  check(cudaMalloc(&flush, 2 * static_cast<std::size_t>(l2)), "flush");
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<std::vector<float>> times(variants.size());
  for (int round = -3; round < rounds; ++round) {
    for (std::size_t i = 0; i < variants.size(); ++i) {
      check(cudaMemsetAsync(flush, 0, 2 * static_cast<std::size_t>(l2), stream), "flush");
      check(cudaEventRecord(begin, stream), "record");
      variants[i].second();
      check(cudaEventRecord(end, stream), "record");
      check(cudaEventSynchronize(end), "run");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
      if (round >= 0) times[i].push_back(1e3f * ms);
    }
  }
  for (std::size_t i = 0; i < variants.size(); ++i) {
    std::sort(times[i].begin(), times[i].end());
    const std::size_t n = times[i].size();
    std::printf("%-42s %6.2f us (quartiles %.2f %.2f)\n", variants[i].first.c_str(),
                times[i][n / 2], times[i][n / 4], times[i][3 * n / 4]);
  }
  return 0;
}
