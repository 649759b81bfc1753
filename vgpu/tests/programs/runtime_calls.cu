// SPDX-License-Identifier: Apache-2.0
// What programs ask of the CUDA runtime, checked from inside one: vector addition, copies, symbols,
// streams, events, graphs, libraries, error codes. Exit status 0 when everything holds.
//   runtime_calls            all but faults
//   runtime_calls fault      a kernel fault sticks to the context
#include <cuda.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "expect.cuh"

namespace {

__device__ int counter = 5;
__constant__ float scale = 2.0f;
__device__ int* counter_address = &counter;

__global__ void add(const float* a, const float* b, float* c, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) c[i] = a[i] + b[i];
}

__global__ void scale_by_constant(float* data, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] *= scale;
  if (i == 0) atomicAdd(counter_address, 10);
}

__global__ void increment(int* value, int by) {
  *value += by;
}
__global__ void store_through(int* pointer) {
  *pointer = 1;
}

// Each block of a cluster leaves its rank, and what its neighbour stored in shared memory.
__global__ void exchange_ranks(int* out) {
  __shared__ int cell;
  unsigned rank, size, remote;
  int theirs;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  cell = 100 + static_cast<int>(rank);
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(remote)
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(&cell))),
                 "r"((rank + 1) % size));
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(theirs) : "r"(remote) : "memory");
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  out[blockIdx.x] = static_cast<int>(rank) * 1000 + theirs;
}

__global__ void primary(int* value) {
  *value = 5;
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  *value = 6;
}
__global__ void dependent(int* value) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  *value *= 10;
}

__global__ void device_heap(int* sums) {
  int* mine = static_cast<int*>(malloc((threadIdx.x + 1) * sizeof(int)));
  for (unsigned i = 0; i <= threadIdx.x; ++i) mine[i] = static_cast<int>(i);
  int sum = 0;
  for (unsigned i = 0; i <= threadIdx.x; ++i) sum += mine[i];
  void* const empty = malloc(0);
  sums[threadIdx.x] = empty != nullptr && empty != mine ? sum : -1;
  free(empty);
  free(mine);
}

__device__ int* kept;
__global__ void keep_a_block() {
  kept = static_cast<int*>(malloc(3 * sizeof(int)));
  kept[0] = 7;
}
__global__ void use_the_block(int* value, char mistake) {
  if (mistake == 'p') kept[3] = 1;
  *value = kept[0];
  free(kept);
  if (mistake == 's') *value = kept[0];
  if (mistake == 't') free(kept);
}
__global__ void exhaust(int* blocks, unsigned long long* address) {
  void* last = nullptr;
  for (*blocks = 0; void* block = malloc(1 << 20); ++*blocks) last = block;
  *address = reinterpret_cast<unsigned long long>(last);
}

void allocations_of_device_code() {
  int *sums, host[64];
  CHECK_OK(cudaMalloc(&sums, sizeof host));
  device_heap<<<1, 64>>>(sums);
  CHECK_OK(cudaMemcpy(host, sums, sizeof host, cudaMemcpyDeviceToHost));
  for (int t = 0; t < 64; ++t) CHECK(host[t] == t * (t + 1) / 2);
  // The heap's size is fixed once it is used; blocks outlive kernels.
  CHECK_ERROR(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 1 << 24), cudaErrorInvalidValue);
  cudaGetLastError();
  keep_a_block<<<1, 1>>>();
  use_the_block<<<1, 1>>>(sums, ' ');
  CHECK_OK(cudaMemcpy(host, sums, sizeof(int), cudaMemcpyDeviceToHost));
  CHECK(host[0] == 7);
  // 8 MiB hold seven blocks of a MiB; the host cannot reach them.
  unsigned long long *address, inside;
  CHECK_OK(cudaMalloc(&address, sizeof *address));
  exhaust<<<1, 1>>>(sums, address);
  CHECK_OK(cudaMemcpy(host, sums, sizeof(int), cudaMemcpyDeviceToHost));
  CHECK_OK(cudaMemcpy(&inside, address, sizeof inside, cudaMemcpyDeviceToHost));
  CHECK(host[0] == 7);
  void* block = reinterpret_cast<void*>(inside);
  CHECK_ERROR(cudaMemcpy(host, block, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  CHECK_ERROR(cudaFree(block), cudaErrorInvalidValue);
  cudaGetLastError();
  CHECK_OK(cudaFree(address));
  CHECK_OK(cudaFree(sums));
}

void misused_heap(char mistake) {
  int* value;
  CHECK_OK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 1 << 16));
  size_t size = 0;
  CHECK_OK(cudaDeviceGetLimit(&size, cudaLimitMallocHeapSize));
  CHECK(size == 1 << 16);
  CHECK_OK(cudaMalloc(&value, sizeof *value));
  keep_a_block<<<1, 1>>>();
  CHECK_OK(cudaDeviceSynchronize());
  use_the_block<<<1, 1>>>(value, mistake);
  CHECK_ERROR(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
}

void vector_addition() {
  constexpr int kCount = 1000;
  std::vector<float> a(kCount), b(kCount), c(kCount);
  for (int i = 0; i < kCount; ++i) {
    a[i] = static_cast<float>(i);
    b[i] = 0.5f * static_cast<float>(i);
  }
  float *da, *db, *dc;
  CHECK_OK(cudaMalloc(&da, kCount * 4));
  CHECK_OK(cudaMalloc(&db, kCount * 4));
  CHECK_OK(cudaMalloc(&dc, kCount * 4));
  CHECK_OK(cudaMemcpy(da, a.data(), kCount * 4, cudaMemcpyHostToDevice));
  CHECK_OK(cudaMemcpy(db, b.data(), kCount * 4, cudaMemcpyHostToDevice));
  add<<<(kCount + 127) / 128, 128>>>(da, db, dc, kCount);
  CHECK_OK(cudaGetLastError());
  CHECK_OK(cudaMemcpy(c.data(), dc, kCount * 4, cudaMemcpyDefault));
  for (int i = 0; i < kCount; ++i) CHECK(c[i] == 1.5f * static_cast<float>(i));
  CHECK_OK(cudaFree(da));
  CHECK_OK(cudaFree(db));
  CHECK_OK(cudaFree(dc));
}

void symbols() {
  float data[4] = {1, 2, 3, 4}, *device;
  CHECK_OK(cudaMalloc(&device, sizeof data));
  CHECK_OK(cudaMemcpy(device, data, sizeof data, cudaMemcpyHostToDevice));
  const float three = 3;
  CHECK_OK(cudaMemcpyToSymbol(scale, &three, sizeof three));
  scale_by_constant<<<1, 32>>>(device, 4);
  CHECK_OK(cudaMemcpy(data, device, sizeof data, cudaMemcpyDeviceToHost));
  CHECK(data[0] == 3 && data[3] == 12);
  int value = 0;
  CHECK_OK(cudaMemcpyFromSymbol(&value, counter, sizeof value));
  CHECK(value == 15);  // initial 5, reached through the pointer's initial value
  size_t bytes = 0;
  CHECK_OK(cudaGetSymbolSize(&bytes, counter));
  CHECK(bytes == 4);
  CHECK_ERROR(cudaMemcpyToSymbol(scale, &three, 8), cudaErrorInvalidValue);
  CHECK_ERROR(cudaGetSymbolSize(&bytes, &value), cudaErrorInvalidSymbol);
  CHECK_OK(cudaFree(device));
}

void pitched_copies() {
  uint8_t host[6][10], back[6][10];
  for (int y = 0; y < 6; ++y) {
    for (int x = 0; x < 10; ++x) host[y][x] = static_cast<uint8_t>(y * 10 + x);
  }
  void* device;
  size_t pitch = 0;
  CHECK_OK(cudaMallocPitch(&device, &pitch, 10, 6));
  CHECK(pitch >= 10 && pitch % 256 == 0);
  CHECK_OK(cudaMemset2D(device, pitch, 0xee, pitch, 6));
  CHECK_OK(cudaMemcpy2D(device, pitch, host, 10, 10, 6, cudaMemcpyHostToDevice));
  CHECK_OK(cudaMemcpy2D(back, 10, device, pitch, 10, 6, cudaMemcpyDeviceToHost));
  CHECK(std::memcmp(host, back, sizeof host) == 0);
  uint8_t gap = 0;
  CHECK_OK(cudaMemcpy(&gap, static_cast<uint8_t*>(device) + 10, 1, cudaMemcpyDeviceToHost));
  CHECK(gap == 0xee);
  CHECK_ERROR(cudaMemcpy2D(device, 8, host, 10, 10, 6, cudaMemcpyHostToDevice),
              cudaErrorInvalidPitchValue);
  CHECK_ERROR(cudaMemcpy(device, host, 1 << 20, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  CHECK_OK(cudaFree(device));
}

void memory_pools() {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  cudaMemPool_t pool;
  CHECK_OK(cudaMemPoolCreate(&pool, &properties));
  int* value;
  CHECK_OK(cudaMallocFromPoolAsync(reinterpret_cast<void**>(&value), 4, pool, nullptr));
  CHECK_OK(cudaFreeAsync(value, nullptr));
  CHECK_OK(cudaMemPoolDestroy(pool));
  CHECK_ERROR(cudaMemPoolDestroy(pool), cudaErrorInvalidValue);
  properties.location.id = 1;
  CHECK_ERROR(cudaMemPoolCreate(&pool, &properties), cudaErrorInvalidValue);
  cudaGetLastError();
}

void streams_and_events() {
  cudaStream_t stream;
  cudaEvent_t start, end;
  int* value;
  CHECK_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK_OK(cudaEventCreate(&start));
  CHECK_OK(cudaEventCreate(&end));
  CHECK_OK(cudaMallocAsync(reinterpret_cast<void**>(&value), 4, stream));
  CHECK_OK(cudaMemsetAsync(value, 0, 4, stream));
  CHECK_OK(cudaEventRecord(start, stream));
  increment<<<1, 1, 0, stream>>>(value, 7);
  CHECK_OK(cudaEventRecord(end, stream));
  int result = 0;
  CHECK_OK(cudaMemcpyAsync(&result, value, 4, cudaMemcpyDeviceToHost, stream));
  int called = 0;
  CHECK_OK(cudaLaunchHostFunc(
      stream, [](void* data) { ++*static_cast<int*>(data); }, &called));
  CHECK_OK(cudaStreamSynchronize(stream));
  CHECK(result == 7 && called == 1);
  float milliseconds = -1;
  CHECK_OK(cudaEventElapsedTime(&milliseconds, start, end));
  CHECK(milliseconds >= 0);
  CHECK_OK(cudaFreeAsync(value, stream));
  CHECK_OK(cudaStreamDestroy(stream));
  CHECK_ERROR(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  CHECK_OK(cudaEventDestroy(start));
  CHECK_OK(cudaEventDestroy(end));
  cudaGetLastError();
}

void graphs() {
  int* values;
  CHECK_OK(cudaMalloc(&values, 8));
  CHECK_OK(cudaMemset(values, 0, 8));
  cudaStream_t origin, side;
  cudaEvent_t fork, join;
  CHECK_OK(cudaStreamCreateWithFlags(&origin, cudaStreamNonBlocking));
  CHECK_OK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  CHECK_OK(cudaEventCreate(&fork));
  CHECK_OK(cudaEventCreate(&join));
  // Captured work does not run.
  int host = -1;
  CHECK_OK(cudaStreamBeginCapture(origin, cudaStreamCaptureModeGlobal));
  increment<<<1, 1, 0, origin>>>(values, 1);
  CHECK_OK(cudaEventRecord(fork, origin));
  CHECK_OK(cudaStreamWaitEvent(side, fork, 0));
  increment<<<1, 1, 0, side>>>(values + 1, 100);
  CHECK_OK(cudaEventRecord(join, side));
  increment<<<1, 1, 0, origin>>>(values, 2);
  CHECK_OK(cudaStreamWaitEvent(origin, join, 0));
  CHECK_OK(cudaMemcpyAsync(&host, values, 4, cudaMemcpyDeviceToHost, origin));
  cudaGraph_t graph;
  CHECK_OK(cudaStreamEndCapture(origin, &graph));
  CHECK(host == -1);
  size_t nodes = 0, edges = 0;
  CHECK_OK(cudaGraphGetNodes(graph, nullptr, &nodes));
  CHECK_OK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  CHECK(nodes == 4);
  CHECK(edges == 4);
  cudaGraphExec_t exec;
  CHECK_OK(cudaGraphInstantiate(&exec, graph, 0));
  for (int replay = 1; replay <= 3; ++replay) {
    CHECK_OK(cudaGraphLaunch(exec, origin));
    CHECK_OK(cudaStreamSynchronize(origin));
    CHECK(host == 3 * replay);
  }
  int both[2];
  CHECK_OK(cudaMemcpy(both, values, 8, cudaMemcpyDeviceToHost));
  CHECK(both[0] == 9 && both[1] == 300);

  // A capture that is left unjoined is an error.
  CHECK_OK(cudaStreamBeginCapture(origin, cudaStreamCaptureModeGlobal));
  CHECK_OK(cudaEventRecord(fork, origin));
  CHECK_OK(cudaStreamWaitEvent(side, fork, 0));
  increment<<<1, 1, 0, side>>>(values, 1);
  CHECK_ERROR(cudaStreamEndCapture(origin, &graph), cudaErrorStreamCaptureUnjoined);

  // By hand, with a child graph, and changed after instantiation.
  cudaGraph_t outer, inner;
  cudaGraphNode_t fill, kernel, child;
  CHECK_OK(cudaGraphCreate(&outer, 0));
  CHECK_OK(cudaGraphCreate(&inner, 0));
  int by = 5;
  void* args[] = {&values, &by};
  cudaKernelNodeParams launch{};
  launch.func = reinterpret_cast<void*>(increment);
  launch.gridDim = launch.blockDim = dim3(1);
  launch.kernelParams = args;
  CHECK_OK(cudaGraphAddKernelNode(&kernel, inner, nullptr, 0, &launch));
  cudaMemsetParams clear{};
  clear.dst = values;
  clear.elementSize = 4;
  clear.width = 2;
  clear.height = 1;
  clear.value = 1000;
  CHECK_OK(cudaGraphAddMemsetNode(&fill, outer, nullptr, 0, &clear));
  CHECK_OK(cudaGraphAddChildGraphNode(&child, outer, &fill, 1, inner));
  cudaGraphExec_t outer_exec;
  CHECK_OK(cudaGraphInstantiate(&outer_exec, outer, 0));
  CHECK_OK(cudaGraphLaunch(outer_exec, nullptr));
  CHECK_OK(cudaMemcpy(both, values, 8, cudaMemcpyDeviceToHost));
  CHECK(both[0] == 1005 && both[1] == 1000);
  clear.value = 7;
  CHECK_OK(cudaGraphExecMemsetNodeSetParams(outer_exec, fill, &clear));
  CHECK_OK(cudaGraphLaunch(outer_exec, nullptr));
  CHECK_OK(cudaMemcpy(both, values, 8, cudaMemcpyDeviceToHost));
  CHECK(both[0] == 12 && both[1] == 7);
  CHECK_OK(cudaGraphExecDestroy(exec));
  CHECK_OK(cudaGraphExecDestroy(outer_exec));
  CHECK_OK(cudaGraphDestroy(outer));
  CHECK_ERROR(cudaGraphDestroy(outer), cudaErrorInvalidValue);
  CHECK_OK(cudaStreamDestroy(origin));
  CHECK_OK(cudaStreamDestroy(side));
  CHECK_OK(cudaFree(values));
  cudaGetLastError();
}

void clusters_and_dependent_launches() {
  int *out, host[8];
  CHECK_OK(cudaMalloc(&out, sizeof host));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {4, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(8);
  config.blockDim = dim3(1);
  config.attrs = &attribute;
  config.numAttrs = 1;
  CHECK_OK(cudaLaunchKernelEx(&config, exchange_ranks, out));
  CHECK_OK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 8; ++i) CHECK(host[i] == i % 4 * 1000 + 100 + (i + 1) % 4);
  // A dependent kernel sees all that the one before it wrote; also in a graph.
  cudaStream_t stream;
  CHECK_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.gridDim = dim3(1);
  config.stream = stream;
  const auto launch_both = [&] {
    primary<<<1, 1, 0, stream>>>(out);
    CHECK_OK(cudaLaunchKernelEx(&config, dependent, out));
  };
  launch_both();
  CHECK_OK(cudaStreamSynchronize(stream));
  CHECK_OK(cudaMemcpy(host, out, 4, cudaMemcpyDeviceToHost));
  CHECK(host[0] == 60);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  launch_both();
  CHECK_OK(cudaStreamEndCapture(stream, &graph));
  CHECK_OK(cudaGraphInstantiate(&executable, graph, 0));
  CHECK_OK(cudaMemset(out, 0, 4));
  CHECK_OK(cudaGraphLaunch(executable, stream));
  CHECK_OK(cudaStreamSynchronize(stream));
  CHECK_OK(cudaMemcpy(host, out, 4, cudaMemcpyDeviceToHost));
  CHECK(host[0] == 60);
  CHECK_OK(cudaFree(out));
}

void occupancy_and_attributes() {
  int blocks = 0, clusters = 0, size = 0;
  CHECK_OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 256, 0));
  CHECK(blocks == 8);  // 2048 threads an SM
  const auto* kernel = reinterpret_cast<const void*>(exchange_ranks);
  constexpr int kMost = 227 * 1024;
  cudaFuncAttributes attributes;
  CHECK_OK(cudaFuncGetAttributes(&attributes, kernel));
  CHECK(attributes.sharedSizeBytes == 4 && attributes.maxDynamicSharedSizeBytes == 48 * 1024 - 4);
  CHECK_ERROR(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMost),
              cudaErrorInvalidValue);
  CHECK_OK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMost - 4));
  CHECK_OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, exchange_ranks, 32, kMost - 4));
  CHECK(blocks == 1);
  CHECK_OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, exchange_ranks, 32, 100 * 1024));
  CHECK(blocks == 2);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {2, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(2);
  config.blockDim = dim3(32);
  config.dynamicSmemBytes = 100 * 1024;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cudaDeviceProp properties;
  CHECK_OK(cudaGetDeviceProperties(&properties, 0));
  CHECK_OK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
  CHECK(clusters == properties.multiProcessorCount);
  CHECK_OK(cudaOccupancyMaxPotentialClusterSize(&size, kernel, &config));
  CHECK(size == 8);
  CHECK_OK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  CHECK_OK(cudaOccupancyMaxPotentialClusterSize(&size, kernel, &config));
  CHECK(size == 16);
  size_t bytes = 0;
  CHECK_OK(cudaOccupancyAvailableDynamicSMemPerBlock(&bytes, kernel, 2, 32));
  CHECK(bytes == 113 * 1024 - 4);
  cudaGetLastError();
}

void boxes_of_bytes() {
  // A box of 2 x 3 x 2 bytes out of the middle of 4 x 5 x 3, by a call and by a node.
  uint8_t host[3][5][4], back[2][3][2] = {}, by_node[2][3][2] = {};
  for (int i = 0; i < 60; ++i) (&host[0][0][0])[i] = static_cast<uint8_t>(i);
  cudaPitchedPtr device;
  CHECK_OK(cudaMalloc3D(&device, make_cudaExtent(4, 5, 3)));
  cudaMemcpy3DParms up{}, down{};
  up.srcPtr = make_cudaPitchedPtr(host, 4, 4, 5);
  up.dstPtr = device;
  up.extent = make_cudaExtent(4, 5, 3);
  up.kind = cudaMemcpyHostToDevice;
  CHECK_OK(cudaMemcpy3D(&up));
  down.srcPtr = device;
  down.srcPos = make_cudaPos(1, 2, 1);
  down.dstPtr = make_cudaPitchedPtr(back, 2, 2, 3);
  down.extent = make_cudaExtent(2, 3, 2);
  down.kind = cudaMemcpyDeviceToHost;
  CHECK_OK(cudaMemcpy3D(&down));
  for (int z = 0; z < 2; ++z) {
    for (int y = 0; y < 3; ++y) {
      for (int x = 0; x < 2; ++x) CHECK(back[z][y][x] == host[z + 1][y + 2][x + 1]);
    }
  }
  down.dstPtr.ptr = by_node;
  cudaGraph_t graph;
  cudaGraphNode_t node;
  cudaGraphExec_t executable;
  CHECK_OK(cudaGraphCreate(&graph, 0));
  CHECK_OK(cudaGraphAddMemcpyNode(&node, graph, nullptr, 0, &down));
  CHECK_OK(cudaGraphInstantiate(&executable, graph, 0));
  CHECK_OK(cudaGraphLaunch(executable, nullptr));
  CHECK(std::memcmp(back, by_node, sizeof back) == 0);
  down.srcArray = reinterpret_cast<cudaArray_t>(host);
  CHECK_ERROR(cudaMemcpy3D(&down), cudaErrorNotSupported);
  CHECK_OK(cudaFree(device.ptr));
  cudaGetLastError();
}

void libraries() {
  const char* ptx =
      ".version 8.0\n.target sm_90\n.address_size 64\n"
      ".visible .entry answer(.param .u64 p) {\n"
      "  .reg .u64 %rd<2>;\n  .reg .u32 %r<2>;\n"
      "  ld.param.u64 %rd1, [p];\n  mov.u32 %r1, 42;\n"
      "  st.global.u32 [%rd1], %r1;\n  ret;\n}\n";
  cudaLibrary_t library;
  cudaKernel_t kernel;
  int *device, host = 0;
  CHECK_OK(cudaMalloc(&device, 4));
  CHECK_OK(cudaLibraryLoadData(&library, ptx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CHECK_OK(cudaLibraryGetKernel(&kernel, library, "answer"));
  CHECK_ERROR(cudaLibraryGetKernel(&kernel, library, "question"), cudaErrorSymbolNotFound);
  CHECK_OK(cudaLibraryGetKernel(&kernel, library, "answer"));
  void* args[] = {&device};
  CHECK_OK(cudaLaunchKernel(reinterpret_cast<void*>(kernel), dim3(1), dim3(1), args, 0, nullptr));
  CHECK_OK(cudaMemcpy(&host, device, 4, cudaMemcpyDeviceToHost));
  CHECK(host == 42);
  CHECK_OK(cudaLibraryUnload(library));
  CHECK_OK(cudaFree(device));
  cudaGetLastError();
}

void unsupported_calls_fail() {
  cudaArray_t array = nullptr;
  const cudaChannelFormatDesc format{32, 0, 0, 0, cudaChannelFormatKindFloat};
  CHECK_ERROR(cudaMallocArray(&array, &format, 16, 16), cudaErrorNotSupported);
  CHECK_ERROR(cudaGetLastError(), cudaErrorNotSupported);
  CHECK_ERROR(cudaGetLastError(), cudaSuccess);
  void* function = nullptr;
  cudaDriverEntryPointQueryResult status;
  CHECK_OK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                            cudaEnableDefault, &status));
  CHECK(function != nullptr && status == cudaDriverEntryPointSuccess);
  CHECK_OK(cudaGetDriverEntryPointByVersion("cuNoSuchThing", &function, 12000, cudaEnableDefault,
                                            &status));
  CHECK(function == nullptr && status == cudaDriverEntryPointSymbolNotFound);
  using LinkDestroy = CUresult (*)(CUlinkState);
  const auto destroy = reinterpret_cast<LinkDestroy>(dlsym(RTLD_DEFAULT, "cuLinkDestroy"));
  CHECK(destroy != nullptr && destroy(nullptr) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK_ERROR(cudaGetLastError(), cudaErrorNotSupported);
}

template <typename Function>
Function driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult status;
  CHECK_OK(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &status));
  CHECK(function != nullptr);
  return reinterpret_cast<Function>(function);
}

// A map encoded at one address and moved to another is the map encoded there.
void addresses_of_tensor_maps() {
  const auto encode = driver_function<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  const auto replace =
      driver_function<decltype(&cuTensorMapReplaceAddress)>("cuTensorMapReplaceAddress");
  const auto address = [](std::uintptr_t value) { return reinterpret_cast<void*>(value); };
  const auto map_at = [&](void* where) {
    const cuuint64_t sizes[2] = {64, 100}, strides[1] = {128};
    const cuuint32_t box[2] = {64, 8}, steps[2] = {1, 2};
    CUtensorMap map;
    CHECK(encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, where, sizes, strides, box, steps,
                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS);
    return map;
  };
  const CUtensorMap first = map_at(address(0x10000)), second = map_at(address(0x7f0000001230));
  struct {
    CUtensorMap map, next;
  } moved{first, first};
  CHECK(std::memcmp(&first, &second, sizeof first) != 0);
  CHECK(replace(&moved.map, address(0x7f0000001230)) == CUDA_SUCCESS);
  CHECK(std::memcmp(&moved.map, &second, sizeof second) == 0);
  // What is refused leaves the map as it was.
  CHECK(replace(&moved.map, address(0x10008)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(replace(&moved.map, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(std::memcmp(&moved.map, &second, sizeof second) == 0);
  CHECK(replace(nullptr, address(0x10000)) == CUDA_ERROR_INVALID_VALUE);
  auto* const misaligned =
      reinterpret_cast<CUtensorMap*>(reinterpret_cast<unsigned char*>(&moved.map) + 32);
  std::memmove(static_cast<void*>(misaligned), &second, sizeof second);
  CHECK(replace(misaligned, address(0x10000)) == CUDA_ERROR_INVALID_VALUE);
  std::memset(static_cast<void*>(&moved), 0, sizeof moved);
  CHECK(replace(&moved.map, address(0x10000)) == CUDA_ERROR_INVALID_VALUE);
  // A thread has the device's context only after a call that works on the device.
  moved.map = first;
  std::thread([&] {
    int value = 0;
    CHECK_OK(cudaGetDevice(&value));
    CHECK_OK(cudaDeviceGetAttribute(&value, cudaDevAttrL2CacheSize, 0));
    CHECK(replace(&moved.map, address(0x20000)) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(std::memcmp(&moved.map, &first, sizeof first) == 0);
    CHECK_OK(cudaSetDevice(0));
    CHECK(replace(&moved.map, address(0x20000)) == CUDA_SUCCESS);
  }).join();
}

void fault() {
  int* value;
  CHECK_OK(cudaMalloc(&value, 4));
  int* past_the_end = value + 1;
  store_through<<<1, 1>>>(past_the_end);
  CHECK_OK(cudaPeekAtLastError());  // the launch itself succeeded
  CHECK_ERROR(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  CHECK_ERROR(cudaMalloc(&value, 4), cudaErrorIllegalAddress);
  store_through<<<1, 1>>>(value);
  CHECK_ERROR(cudaGetLastError(), cudaErrorIllegalAddress);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "fault") {
    fault();
  } else if (argc > 2 && std::string(argv[1]) == "heap") {
    misused_heap(argv[2][0]);
  } else {
    allocations_of_device_code();
    vector_addition();
    symbols();
    pitched_copies();
    memory_pools();
    streams_and_events();
    graphs();
    clusters_and_dependent_launches();
    occupancy_and_attributes();
    boxes_of_bytes();
    libraries();
    unsupported_calls_fail();
    addresses_of_tensor_maps();
  }
  if (failures == 0) std::printf("all holds\n");
  return failures != 0;
}
