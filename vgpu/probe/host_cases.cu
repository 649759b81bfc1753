// SPDX-License-Identifier: Apache-2.0
// What the runtime API answers: limits, occupancy, error codes of bad launches and bad arguments.
#include <cstdio>
#include <cstring>

#include "device.cuh"
#include "probe.hpp"

namespace probe {
namespace {

// One kernel for each case that changes its attributes.
template <int CASE>
__global__ void plain_kernel(uint32_t* out) {
  if (out) out[threadIdx.x] = threadIdx.x;
}
__global__ void __launch_bounds__(128) bounded_kernel(uint32_t* out) {
  if (out) out[threadIdx.x] = threadIdx.x;
}
__global__ void static_kernel(uint32_t* out) {
  __shared__ uint32_t cells[4096];
  cells[threadIdx.x] = threadIdx.x;
  __syncthreads();
  if (out) out[threadIdx.x] = cells[threadIdx.x ^ 1];
}
__global__ void __cluster_dims__(2, 1, 1) paired_kernel(uint32_t* out) {
  if (out) out[threadIdx.x] = threadIdx.x;
}

// A case whose answer is a list of numbers in words.
void answers(const std::string& name, std::function<std::vector<int>()> ask) {
  add("host " + name, [ask](Result& result) {
    result.note = "answers";
    for (int value : ask()) result.note += " " + std::to_string(value);
  });
}

int launch(const void* kernel, dim3 grid, dim3 block, size_t shared, dim3 cluster = {0, 0, 0}) {
  uint32_t* null = nullptr;
  void* args[] = {&null};
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster.x;
  attribute.val.clusterDim.y = cluster.y;
  attribute.val.clusterDim.z = cluster.z;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.attrs = &attribute;
  config.numAttrs = cluster.x ? 1 : 0;
  const int code = cudaLaunchKernelExC(&config, kernel, args);
  cudaGetLastError();
  return code;
}

void add_limits() {
  answers("properties", [] {
    cudaDeviceProp p;
    cudaGetDeviceProperties(&p, 0);
    return std::vector<int>{p.major,
                            p.minor,
                            p.multiProcessorCount,
                            int(p.sharedMemPerBlock),
                            int(p.sharedMemPerBlockOptin),
                            int(p.sharedMemPerMultiprocessor),
                            int(p.reservedSharedMemPerBlock),
                            p.regsPerBlock,
                            p.regsPerMultiprocessor,
                            p.warpSize,
                            p.maxThreadsPerBlock,
                            p.maxThreadsPerMultiProcessor,
                            p.maxBlocksPerMultiProcessor,
                            p.maxThreadsDim[0],
                            p.maxThreadsDim[1],
                            p.maxThreadsDim[2],
                            p.maxGridSize[0],
                            p.maxGridSize[1],
                            p.maxGridSize[2],
                            int(p.totalConstMem),
                            p.l2CacheSize,
                            p.persistingL2CacheMaxSize,
                            p.memoryBusWidth,
                            p.asyncEngineCount,
                            p.clusterLaunch,
                            p.cooperativeLaunch,
                            p.concurrentKernels,
                            p.unifiedAddressing,
                            p.managedMemory,
                            p.canMapHostMemory,
                            p.ECCEnabled,
                            int(p.memPitch),
                            int(p.textureAlignment),
                            int(p.surfaceAlignment),
                            p.accessPolicyMaxWindowSize,
                            p.memoryPoolsSupported,
                            p.streamPrioritiesSupported,
                            p.hostRegisterSupported,
                            p.globalL1CacheSupported,
                            p.computePreemptionSupported};
  });
  for (int first = 1; first <= 141; first += 20) {
    answers("attributes from " + std::to_string(first), [first] {
      std::vector<int> values;
      for (int i = first; i < first + 20; ++i) {
        // The PCI address, ids and the switch between GPUs (132) are those of one machine.
        if (i == 132 || i == cudaDevAttrPciBusId || i == cudaDevAttrPciDeviceId ||
            i == cudaDevAttrPciDomainId || i == cudaDevAttrGpuPciDeviceId ||
            i == cudaDevAttrGpuPciSubsystemId) {
          values.push_back(0);
          continue;
        }
        int value = -12345;
        if (cudaDeviceGetAttribute(&value, static_cast<cudaDeviceAttr>(i), 0)) value = -99999;
        cudaGetLastError();
        values.push_back(value);
      }
      return values;
    });
  }
  answers("stream priorities", [] {
    int least = 1, greatest = 1;
    cudaDeviceGetStreamPriorityRange(&least, &greatest);
    return std::vector<int>{least, greatest};
  });
  answers("occupancy plain", [] {
    std::vector<int> values;
    for (int threads : {32, 64, 128, 256, 512, 1024}) {
      for (int shared : {0, 1024, 20000, 48 * 1024}) {
        int blocks = -1;
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, plain_kernel<0>, threads, shared);
        values.push_back(blocks);
      }
    }
    return values;
  });
  answers("occupancy with large shared memory", [] {
    std::vector<int> values;
    cudaFuncSetAttribute(plain_kernel<1>, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024);
    for (int shared : {56 * 1024 - 1, 57 * 1024, 75 * 1024, 100 * 1024, 113 * 1024, 113 * 1024 + 1,
                       114 * 1024, 227 * 1024, 227 * 1024 + 1}) {
      int blocks = -1;
      const int code =
          cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, plain_kernel<1>, 128, shared);
      values.push_back(code ? -code : blocks);
      cudaGetLastError();
    }
    return values;
  });
  // NOTE: larger clusters depend on which SMs of the one GPU are disabled.
  answers("active clusters", [] {
    std::vector<int> values;
    cudaFuncSetAttribute(plain_kernel<2>, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024);
    cudaFuncSetAttribute(plain_kernel<2>, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    for (unsigned size : {1u, 2u}) {
      for (int shared : {100 * 1024, 227 * 1024}) {
        cudaLaunchAttribute attribute{};
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = size;
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
        cudaLaunchConfig_t config{};
        config.gridDim = 16;
        config.blockDim = 128;
        config.dynamicSmemBytes = shared;
        config.attrs = &attribute;
        config.numAttrs = 1;
        int clusters = -1;
        const int code =
            cudaOccupancyMaxActiveClusters(&clusters, (const void*)plain_kernel<2>, &config);
        values.push_back(code ? -code : clusters);
        cudaGetLastError();
      }
    }
    return values;
  });
  answers("potential cluster size", [] {
    cudaLaunchConfig_t config{};
    config.gridDim = 16;
    config.blockDim = 128;
    int portable = -1, large = -1;
    cudaOccupancyMaxPotentialClusterSize(&portable, (const void*)bounded_kernel, &config);
    cudaFuncSetAttribute(bounded_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    cudaOccupancyMaxPotentialClusterSize(&large, (const void*)bounded_kernel, &config);
    return std::vector<int>{portable, large};
  });
  answers("function attributes", [] {
    std::vector<int> values;
    for (const void* kernel : {(const void*)plain_kernel<3>, (const void*)bounded_kernel,
                               (const void*)static_kernel, (const void*)paired_kernel}) {
      cudaFuncAttributes a;
      cudaFuncGetAttributes(&a, kernel);
      values.insert(values.end(),
                    {int(a.sharedSizeBytes), int(a.constSizeBytes), int(a.localSizeBytes),
                     a.maxThreadsPerBlock, a.ptxVersion, a.binaryVersion,
                     a.maxDynamicSharedSizeBytes, a.preferredShmemCarveout, a.clusterDimMustBeSet,
                     a.requiredClusterWidth, a.requiredClusterHeight, a.requiredClusterDepth,
                     a.clusterSchedulingPolicyPreference, a.nonPortableClusterSizeAllowed});
    }
    return values;
  });
}

void add_errors() {
  const void* plain = reinterpret_cast<const void*>(plain_kernel<4>);
  const void* shared = reinterpret_cast<const void*>(plain_kernel<5>);
  const void* clustered = reinterpret_cast<const void*>(plain_kernel<6>);
  const void* bounded = reinterpret_cast<const void*>(bounded_kernel);
  const void* large = reinterpret_cast<const void*>(static_kernel);
  const void* paired = reinterpret_cast<const void*>(paired_kernel);
  answers("launch shapes", [=] {
    return std::vector<int>{
        launch(plain, {1, 1, 1}, {32, 1, 1}, 0),     launch(plain, {0, 1, 1}, {32, 1, 1}, 0),
        launch(plain, {1, 1, 1}, {0, 1, 1}, 0),      launch(plain, {1, 1, 1}, {1025, 1, 1}, 0),
        launch(plain, {1, 1, 1}, {1, 1, 65}, 0),     launch(plain, {1, 1, 1}, {64, 32, 1}, 0),
        launch(plain, {1, 65536, 1}, {32, 1, 1}, 0), launch(plain, {1, 1, 65536}, {32, 1, 1}, 0),
        launch(bounded, {1, 1, 1}, {128, 1, 1}, 0),  launch(bounded, {1, 1, 1}, {129, 1, 1}, 0)};
  });
  answers("launch shapes without a configuration", [=] {
    std::vector<int> values;
    const auto launch_plain = [&](const void* kernel, dim3 grid, dim3 block, size_t bytes) {
      uint32_t* null = nullptr;
      void* args[] = {&null};
      values.push_back(cudaLaunchKernel(kernel, grid, block, args, bytes, nullptr));
      cudaGetLastError();
    };
    static int variable;
    launch_plain(plain, {1, 1, 1}, {32, 1, 1}, 0);
    launch_plain(plain, {0, 1, 1}, {32, 1, 1}, 0);
    launch_plain(plain, {1, 1, 1}, {0, 1, 1}, 0);
    launch_plain(plain, {1, 1, 1}, {1025, 1, 1}, 0);
    launch_plain(plain, {1, 1, 1}, {1, 1, 65}, 0);
    launch_plain(plain, {1, 65536, 1}, {32, 1, 1}, 0);
    launch_plain(bounded, {1, 1, 1}, {129, 1, 1}, 0);
    launch_plain(plain, {1, 1, 1}, {32, 1, 1}, 48 * 1024 + 1);
    launch_plain(plain, {1, 1, 1}, {32, 1, 1}, 1 << 20);
    launch_plain(paired, {7, 1, 1}, {32, 1, 1}, 0);
    launch_plain(&variable, {1, 1, 1}, {32, 1, 1}, 0);
    return values;
  });
  answers("launch cluster sizes", [] {
    std::vector<int> values;
    const void* kernel = reinterpret_cast<const void*>(plain_kernel<8>);
    for (unsigned size = 1; size <= 17; ++size) {
      values.push_back(launch(kernel, {size * 2, 1, 1}, {32, 1, 1}, 0, {size, 1, 1}));
    }
    cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    for (unsigned size = 1; size <= 17; ++size) {
      values.push_back(launch(kernel, {size * 2, 1, 1}, {32, 1, 1}, 0, {size, 1, 1}));
    }
    return values;
  });
  answers("launch shared memory", [=] {
    std::vector<int> values{launch(shared, {1, 1, 1}, {32, 1, 1}, 48 * 1024),
                            launch(shared, {1, 1, 1}, {32, 1, 1}, 48 * 1024 + 1),
                            launch(large, {1, 1, 1}, {32, 1, 1}, 32 * 1024),
                            launch(large, {1, 1, 1}, {32, 1, 1}, 32 * 1024 + 1)};
    for (int bytes : {227 * 1024, 227 * 1024 + 1, -1, 1000}) {
      values.push_back(
          cudaFuncSetAttribute(shared, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    }
    values.push_back(launch(shared, {1, 1, 1}, {32, 1, 1}, 1001));
    values.push_back(launch(shared, {1, 1, 1}, {32, 1, 1}, 40000));
    values.push_back(launch(shared, {1, 1, 1}, {32, 1, 1}, 48 * 1024 + 1));
    for (int bytes : {211 * 1024, 211 * 1024 + 1, 212 * 1024}) {
      values.push_back(
          cudaFuncSetAttribute(large, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    }
    values.push_back(launch(large, {1, 1, 1}, {32, 1, 1}, 211 * 1024));
    cudaGetLastError();
    return values;
  });
  answers("launch clusters", [=] {
    std::vector<int> values{launch(clustered, {8, 1, 1}, {32, 1, 1}, 0, {8, 1, 1}),
                            launch(clustered, {16, 1, 1}, {32, 1, 1}, 0, {16, 1, 1}),
                            launch(clustered, {9, 1, 1}, {32, 1, 1}, 0, {3, 1, 1}),
                            launch(clustered, {9, 1, 1}, {32, 1, 1}, 0, {2, 1, 1}),
                            launch(clustered, {8, 1, 1}, {32, 1, 1}, 0, {1, 0, 1}),
                            launch(paired, {8, 1, 1}, {32, 1, 1}, 0),
                            launch(paired, {8, 1, 1}, {32, 1, 1}, 0, {2, 1, 1}),
                            launch(paired, {8, 1, 1}, {32, 1, 1}, 0, {4, 1, 1}),
                            launch(paired, {7, 1, 1}, {32, 1, 1}, 0)};
    values.push_back(
        cudaFuncSetAttribute(clustered, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    values.push_back(launch(clustered, {16, 1, 1}, {32, 1, 1}, 0, {16, 1, 1}));
    values.push_back(launch(clustered, {32, 1, 1}, {32, 1, 1}, 0, {32, 1, 1}));
    values.push_back(cudaDeviceSynchronize());
    return values;
  });
  answers("not a kernel", [] {
    static int variable;
    std::vector<int> values{launch(&variable, {1, 1, 1}, {32, 1, 1}, 0)};
    values.push_back(
        cudaFuncSetAttribute(&variable, cudaFuncAttributeMaxDynamicSharedMemorySize, 1));
    cudaFuncAttributes a;
    values.push_back(cudaFuncGetAttributes(&a, &variable));
    values.push_back(cudaGetSymbolAddress(reinterpret_cast<void**>(&a), &variable));
    cudaGetLastError();
    return values;
  });
  answers("memory arguments", [] {
    std::vector<int> values;
    void *p = nullptr, *q = reinterpret_cast<void*>(1);
    char host[64] = {};
    values.push_back(cudaMalloc(nullptr, 16));
    values.push_back(cudaMalloc(&q, 0));
    values.push_back(q == nullptr);
    values.push_back(cudaMalloc(&q, size_t{1} << 60));
    values.push_back(cudaMalloc(&p, 1000));
    values.push_back(reinterpret_cast<uint64_t>(p) % 256 == 0);
    values.push_back(cudaFree(nullptr));
    values.push_back(cudaFree(static_cast<char*>(p) + 16));
    values.push_back(cudaFree(host));
    values.push_back(cudaMemcpy(p, host, 64, cudaMemcpyHostToDevice));
    values.push_back(cudaMemcpy(p, host, 64, static_cast<cudaMemcpyKind>(7)));
    values.push_back(cudaMemcpy(p, nullptr, 64, cudaMemcpyHostToDevice));
    values.push_back(cudaMemcpy(nullptr, host, 64, cudaMemcpyHostToDevice));
    values.push_back(cudaMemcpy(host, p, 0, cudaMemcpyDeviceToHost));
    values.push_back(cudaMemcpy2D(p, 16, host, 8, 12, 2, cudaMemcpyHostToDevice));
    values.push_back(cudaMemcpy2D(p, 16, host, 32, 12, 2, cudaMemcpyHostToDevice));
    values.push_back(cudaMemset(p, 1, 64));
    values.push_back(cudaMemset(nullptr, 1, 64));
    values.push_back(cudaFree(p));
    values.push_back(cudaFree(p));
    values.push_back(cudaGetLastError());
    values.push_back(cudaGetLastError());
    return values;
  });
  answers("device and stream arguments", [] {
    std::vector<int> values;
    int v = 0;
    cudaDeviceProp prop;
    cudaStream_t stream;
    values.push_back(cudaSetDevice(1000));
    values.push_back(cudaGetDeviceProperties(&prop, -1));
    values.push_back(cudaDeviceGetAttribute(&v, static_cast<cudaDeviceAttr>(9999), 0));
    values.push_back(cudaStreamCreateWithFlags(&stream, 77));
    values.push_back(cudaStreamCreate(&stream));
    cudaEvent_t a, b;
    float ms;
    values.push_back(cudaEventCreate(&a));
    values.push_back(cudaEventCreateWithFlags(&b, cudaEventDisableTiming));
    values.push_back(cudaEventElapsedTime(&ms, a, a));
    cudaEventRecord(a, stream);
    cudaEventRecord(b, stream);
    cudaStreamSynchronize(stream);
    values.push_back(cudaEventElapsedTime(&ms, a, a));
    values.push_back(cudaEventElapsedTime(&ms, a, b));
    values.push_back(cudaEventQuery(a));
    values.push_back(cudaStreamQuery(stream));
    cudaGetLastError();
    return values;
  });
  answers("capture errors", [=] {
    std::vector<int> values;
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    cudaGraph_t graph = nullptr;
    void* p;
    cudaMalloc(&p, 256);
    values.push_back(cudaStreamEndCapture(stream, &graph));
    values.push_back(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal));
    values.push_back(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    values.push_back(cudaMemsetAsync(p, 0, 256, stream));
    values.push_back(cudaStreamSynchronize(stream));
    values.push_back(cudaMemsetAsync(p, 0, 256, stream));
    values.push_back(cudaStreamEndCapture(stream, &graph));
    values.push_back(graph == nullptr);
    values.push_back(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    values.push_back(cudaMemset(p, 0, 256));
    values.push_back(cudaStreamEndCapture(stream, &graph));
    values.push_back(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    values.push_back(cudaDeviceSynchronize());
    values.push_back(cudaStreamEndCapture(stream, &graph));
    values.push_back(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    values.push_back(cudaMemsetAsync(p, 0, 256, stream));
    values.push_back(cudaStreamEndCapture(stream, &graph));
    size_t nodes = 0;
    values.push_back(cudaGraphGetNodes(graph, nullptr, &nodes));
    values.push_back(static_cast<int>(nodes));
    cudaGetLastError();
    return values;
  });
  answers("a fault sticks", [] {
    std::vector<int> values;
    uint32_t* p = nullptr;
    cudaMalloc(&p, 256);
    plain_kernel<7><<<1, 32>>>(reinterpret_cast<uint32_t*>(0x10));
    values.push_back(cudaDeviceSynchronize());
    values.push_back(cudaGetLastError());
    values.push_back(cudaPeekAtLastError());
    values.push_back(cudaMalloc(&p, 256));
    plain_kernel<7><<<1, 32>>>(nullptr);
    values.push_back(cudaGetLastError());
    values.push_back(cudaMemset(p, 0, 16));
    values.push_back(cudaFree(p));
    values.push_back(cudaDeviceReset());
    values.push_back(cudaMalloc(&p, 256));
    plain_kernel<7><<<1, 32>>>(p);
    values.push_back(cudaDeviceSynchronize());
    return values;
  });
}

}  // namespace

void add_host_cases() {
  add_limits();
  add_errors();
}

}  // namespace probe
