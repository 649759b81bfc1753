// SPDX-License-Identifier: Apache-2.0
// Every error code that the runtime gives, each by a call or a kernel that earns it. Exit status 0
// when all codes are as expected.
//   error_codes          all; each kernel fault in a process of its own, as it spoils the context
//   error_codes NAME     one kernel fault, here
#include <sys/wait.h>
#include <unistd.h>

#include <cassert>
#include <cstring>
#include <string>

#include "expect.cuh"
#include "ptx.cuh"

extern "C" cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*);

namespace {

__global__ void nothing() {}
__global__ void __cluster_dims__(2) pairs() {}

// ---- faults of kernels

enum Fault {
  kNullStore,
  kPastTheEnd,
  kMisaligned,
  kRankOutside,
  kTrap,
  kAssert,
  kTooManyArrivals,
  kNoBarrier,
  kDeadlock,
  kGlobalBarrier,
  kTmemLeak,
};

__global__ void faulty(Fault kind, uint32_t* data) {
  __shared__ uint64_t barrier;
  const uint32_t address = shared_address(&barrier);
  switch (kind) {
    case kNullStore:
      asm volatile("st.global.u32 [%0], 1;" ::"l"(0ull) : "memory");
      break;
    case kPastTheEnd:
      data[64] = 1;
      break;
    case kMisaligned:
      asm volatile("st.global.u32 [%0], 1;" ::"l"(reinterpret_cast<char*>(data) + 2) : "memory");
      break;
    case kRankOutside:
      asm volatile(
          "{\n.reg .u32 a;\nmapa.shared::cluster.u32 a, %0, 7;\n"
          "st.shared::cluster.u32 [a], 1;\n}" ::"r"(address)
          : "memory");
      break;
    case kTrap:
      asm volatile("trap;");
      break;
    case kAssert:
      assert(data[0] == 1);
      break;
    case kTooManyArrivals:
      mbarrier_init(&barrier, 1);
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 2;" ::"r"(address) : "memory");
      break;
    case kNoBarrier:
      barrier = 0;
      mbarrier_arrive(&barrier);
      break;
    case kDeadlock:
      mbarrier_init(&barrier, 1);
      mbarrier_wait(&barrier, 0);
      break;
    case kGlobalBarrier:
      asm volatile("mbarrier.arrive.b64 _, [%0];" ::"l"(data) : "memory");
      break;
    case kTmemLeak:
#ifdef __CUDA_ARCH_FEAT_SM100_ALL
      asm volatile(
          "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;" ::"r"(address)
          : "memory");
#endif
      break;
  }
}

struct FaultCase {
  const char* name;
  Fault fault;
  cudaError_t error;
  uint32_t threads;
};
const FaultCase kFaults[] = {
    {"null_store", kNullStore, cudaErrorIllegalAddress, 1},
    {"past_the_end", kPastTheEnd, cudaErrorIllegalAddress, 1},
    {"misaligned", kMisaligned, cudaErrorMisalignedAddress, 1},
    {"rank_outside", kRankOutside, cudaErrorIllegalInstruction, 1},
    {"trap", kTrap, cudaErrorLaunchFailure, 1},
    {"assert", kAssert, cudaErrorAssert, 1},
    {"too_many_arrivals", kTooManyArrivals, cudaErrorLaunchFailure, 1},
    {"no_barrier", kNoBarrier, cudaErrorLaunchFailure, 1},
    {"deadlock", kDeadlock, cudaErrorLaunchTimeout, 1},
    {"global_barrier", kGlobalBarrier, cudaErrorInvalidAddressSpace, 1},
    {"tmem_leak", kTmemLeak, cudaErrorTensorMemoryLeak, 32},
};

/// A faulted kernel's error comes from every call that follows, until the device is reset; after
/// that the device is gone.
void fault(const FaultCase& test) {
  uint32_t *data, *more;
  cudaStream_t stream;
  cudaEvent_t event;
  CHECK_OK(cudaMalloc(&data, 256));
  CHECK_OK(cudaMemset(data, 0, 256));
  CHECK_OK(cudaStreamCreate(&stream));
  CHECK_OK(cudaEventCreate(&event));
  faulty<<<1, test.threads>>>(test.fault, data);
  CHECK_OK(cudaPeekAtLastError());  // the launch itself has succeeded
  CHECK_ERROR(cudaDeviceSynchronize(), test.error);
  CHECK_ERROR(cudaGetLastError(), test.error);
  CHECK_ERROR(cudaMalloc(&more, 4), test.error);
  CHECK_ERROR(cudaMemset(data, 0, 256), test.error);
  CHECK_ERROR(cudaMemcpy(data, data, 4, cudaMemcpyDeviceToDevice), test.error);
  CHECK_ERROR(cudaFree(data), test.error);
  CHECK_ERROR(cudaStreamSynchronize(stream), test.error);
  CHECK_ERROR(cudaEventRecord(event, stream), test.error);
  cudaGetLastError();
  nothing<<<1, 1>>>();
  CHECK_ERROR(cudaGetLastError(), test.error);
  CHECK_OK(cudaDeviceReset());
  CHECK_ERROR(cudaMalloc(&more, 4), cudaErrorDevicesUnavailable);
}

void faults() {
  cudaDeviceProp properties;
  // NOTE: asked for in a child, so that this process has no context that its children would
  // inherit.
  const pid_t asker = fork();
  if (asker == 0) {
    cudaGetDeviceProperties(&properties, 0);
    _exit(properties.major);
  }
  int major = 0;
  waitpid(asker, &major, 0);
  for (const FaultCase& test : kFaults) {
    if (test.fault == kTmemLeak && WEXITSTATUS(major) < 10) continue;
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      fault(test);
      std::fflush(nullptr);
      _exit(failures != 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) {
      std::printf("fault %s: not as expected\n", test.name);
      ++failures;
    }
  }
}

// ---- refused calls

void memory_calls() {
  char host[64] = {};
  void *device, *far;
  CHECK_OK(cudaMalloc(&device, 256));
  CHECK_ERROR(cudaMalloc(nullptr, 16), cudaErrorInvalidValue);
  CHECK_ERROR(cudaMalloc(&far, size_t{1} << 60), cudaErrorMemoryAllocation);
  CHECK_ERROR(cudaFree(host), cudaErrorInvalidValue);
  CHECK_ERROR(cudaMemcpy(device, host, 64, static_cast<cudaMemcpyKind>(9)),
              cudaErrorInvalidMemcpyDirection);
  CHECK_ERROR(cudaMemcpy2D(device, 8, host, 16, 16, 2, cudaMemcpyHostToDevice),
              cudaErrorInvalidPitchValue);
  CHECK_ERROR(cudaMemset(host, 0, 64), cudaErrorInvalidValue);
  CHECK_ERROR(cudaGetSymbolAddress(&far, host), cudaErrorInvalidSymbol);
  CHECK_OK(cudaHostRegister(host, sizeof host, 0));
  CHECK_ERROR(cudaHostRegister(host, sizeof host, 0), cudaErrorHostMemoryAlreadyRegistered);
  CHECK_OK(cudaHostUnregister(host));
  CHECK_ERROR(cudaHostUnregister(host), cudaErrorHostMemoryNotRegistered);
  CHECK_OK(cudaFree(device));
  CHECK_ERROR(cudaFree(device), cudaErrorInvalidValue);
}

void device_calls() {
  CHECK_ERROR(cudaSetDevice(1), cudaErrorInvalidDevice);
  CHECK_ERROR(cudaDeviceEnablePeerAccess(1, 0), cudaErrorInvalidDevice);
  CHECK_ERROR(cudaDeviceDisablePeerAccess(0), cudaErrorPeerAccessNotEnabled);
  static char no_stream[64];
  CHECK_ERROR(cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(no_stream)),
              cudaErrorInvalidResourceHandle);
  dim3 shape;
  size_t bytes;
  cudaStream_t stream;
  CHECK_ERROR(__cudaPopCallConfiguration(&shape, &shape, &bytes, &stream),
              cudaErrorMissingConfiguration);
}

void library_calls() {
  cudaLibrary_t library;
  cudaKernel_t kernel;
  const auto load = [&](const char* ptx) {
    return cudaLibraryLoadData(&library, ptx, nullptr, nullptr, 0, nullptr, nullptr, 0);
  };
  const std::string head = ".version 9.0\n.target sm_90\n.address_size 64\n";
  CHECK_ERROR(load("no ptx at all"), cudaErrorInvalidPtx);
  CHECK_ERROR(load((head + ".visible .entry k() { ret }").c_str()), cudaErrorInvalidPtx);
  // A kernel with an unknown form is refused where it is launched; others of its module run.
  CHECK_OK(load((head + ".visible .entry k() { frobnicate.b32; ret; }"
                        ".visible .entry other() { ret; }")
                    .c_str()));
  CHECK_OK(cudaLibraryGetKernel(&kernel, library, "k"));
  CHECK_ERROR(cudaLaunchKernel(kernel, dim3(1), dim3(1), nullptr, 0, nullptr),
              cudaErrorNotSupported);
  CHECK_OK(cudaLibraryGetKernel(&kernel, library, "other"));
  CHECK_OK(cudaLaunchKernel(kernel, dim3(1), dim3(1), nullptr, 0, nullptr));
  CHECK_ERROR(load(".version 9.0\n.target sm_120a\n.address_size 64\n.visible .entry k() { ret; }"),
              cudaErrorNoKernelImageForDevice);
  CHECK_OK(load((head + ".visible .entry k() { ret; }").c_str()));
  CHECK_ERROR(cudaLibraryGetKernel(&kernel, library, "other"), cudaErrorSymbolNotFound);
  CHECK_OK(cudaLibraryUnload(library));
  CHECK_ERROR(cudaLibraryUnload(library), cudaErrorInvalidResourceHandle);
  CHECK_ERROR(cudaLibraryLoadFromFile(&library, "/does/not/exist", nullptr, nullptr, 0, nullptr,
                                      nullptr, 0),
              cudaErrorFileNotFound);
}

cudaError_t launch(const void* kernel, dim3 grid, dim3 block, dim3 cluster, size_t shared = 0) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {cluster.x, cluster.y, cluster.z};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelExC(&config, kernel, nullptr);
}

void launch_calls() {
  const auto* plain = reinterpret_cast<const void*>(nothing);
  CHECK_OK(launch(plain, 4, 32, 2));
  CHECK_ERROR(launch(plain, 0, 32, 1), cudaErrorInvalidValue);
  CHECK_ERROR(launch(plain, 1, 1025, 1), cudaErrorInvalidValue);
  CHECK_ERROR(launch(plain, 1, 32, 1, 1 << 20), cudaErrorInvalidValue);
  CHECK_ERROR(launch(plain, 9, 32, 2), cudaErrorInvalidClusterSize);
  CHECK_ERROR(launch(plain, 16, 32, 16), cudaErrorInvalidClusterSize);
  CHECK_ERROR(launch(reinterpret_cast<const void*>(pairs), 8, 32, 4), cudaErrorInvalidClusterSize);
  CHECK_OK(cudaFuncSetAttribute(plain, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  CHECK_OK(launch(plain, 16, 32, 16));
  CHECK_ERROR(launch(plain, 32, 32, 32), cudaErrorInvalidClusterSize);
  CHECK_ERROR(cudaLaunchKernelExC(nullptr, plain, nullptr), cudaErrorInvalidValue);
  static int variable;
  CHECK_ERROR(launch(&variable, 1, 32, 1), cudaErrorInvalidResourceHandle);
  CHECK_ERROR(cudaFuncSetAttribute(plain, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 20),
              cudaErrorInvalidValue);
  CHECK_ERROR(cudaLaunchCooperativeKernel(plain, dim3(1 << 20), dim3(1024), nullptr, 0, nullptr),
              cudaErrorCooperativeLaunchTooLarge);
  cudaLaunchAttribute unknown{};
  unknown.id = static_cast<cudaLaunchAttributeID>(200);
  cudaLaunchConfig_t config{};
  config.gridDim = config.blockDim = dim3(1);
  config.attrs = &unknown;
  config.numAttrs = 1;
  CHECK_ERROR(cudaLaunchKernelExC(&config, plain, nullptr), cudaErrorNotSupported);
}

void capture_calls() {
  cudaStream_t one, two;
  cudaEvent_t event;
  cudaGraph_t graph, other;
  int* data;
  CHECK_OK(cudaMalloc(&data, 4));
  CHECK_OK(cudaStreamCreate(&one));
  CHECK_OK(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
  CHECK_OK(cudaEventCreate(&event));
  const auto begin = [](cudaStream_t stream) {
    CHECK_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  };
  CHECK_ERROR(cudaStreamEndCapture(one, &graph), cudaErrorIllegalState);
  CHECK_ERROR(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal),
              cudaErrorStreamCaptureUnsupported);
  begin(one);
  CHECK_ERROR(cudaStreamSynchronize(one), cudaErrorStreamCaptureUnsupported);
  CHECK_ERROR(cudaMemsetAsync(data, 0, 4, one), cudaErrorStreamCaptureInvalidated);
  CHECK_ERROR(cudaStreamEndCapture(one, &graph), cudaErrorStreamCaptureInvalidated);
  unsigned long long id;
  CHECK_OK(cudaStreamGetId(one, &id));
  begin(one);
  CHECK_ERROR(cudaStreamGetId(one, &id), cudaErrorStreamCaptureUnsupported);
  CHECK_OK(cudaStreamGetId(two, &id));
  cudaStreamEndCapture(one, &graph);
  begin(one);
  CHECK_ERROR(cudaMemset(data, 0, 4), cudaErrorStreamCaptureImplicit);
  CHECK_ERROR(cudaStreamEndCapture(one, &graph), cudaErrorStreamCaptureInvalidated);
  // Two streams: a join in the wrong one, an event of the capture from outside, one from before.
  begin(two);
  CHECK_OK(cudaEventRecord(event, two));
  CHECK_OK(cudaStreamWaitEvent(one, event, 0));
  CHECK_ERROR(cudaStreamEndCapture(one, &graph), cudaErrorStreamCaptureUnmatched);
  cudaStreamEndCapture(two, &graph);
  begin(two);
  CHECK_OK(cudaEventRecord(event, two));
  CHECK_ERROR(cudaEventSynchronize(event), cudaErrorCapturedEvent);
  cudaStreamEndCapture(two, &graph);
  CHECK_OK(cudaEventRecord(event, nullptr));
  begin(two);
  CHECK_ERROR(cudaStreamWaitEvent(two, event, 0), cudaErrorStreamCaptureIsolation);
  cudaStreamEndCapture(two, &graph);
  begin(one);
  begin(two);
  CHECK_OK(cudaEventRecord(event, one));
  CHECK_ERROR(cudaStreamWaitEvent(two, event, 0), cudaErrorStreamCaptureMerge);
  cudaStreamEndCapture(one, &graph);
  cudaStreamEndCapture(two, &graph);
  begin(two);
  CHECK_OK(cudaEventRecord(event, two));
  CHECK_OK(cudaStreamWaitEvent(one, event, 0));
  CHECK_OK(cudaMemsetAsync(data, 0, 4, one));
  CHECK_ERROR(cudaStreamEndCapture(two, &graph), cudaErrorStreamCaptureUnjoined);
  // An executable graph takes only a graph of its shape.
  cudaGraphNode_t node;
  cudaGraphExec_t executable;
  cudaGraphExecUpdateResultInfo info;
  CHECK_OK(cudaGraphCreate(&graph, 0));
  CHECK_OK(cudaGraphCreate(&other, 0));
  CHECK_OK(cudaGraphAddEmptyNode(&node, other, nullptr, 0));
  CHECK_OK(cudaGraphInstantiate(&executable, graph, 0));
  CHECK_ERROR(cudaGraphExecUpdate(executable, other, &info), cudaErrorGraphExecUpdateFailure);
  CHECK_ERROR(cudaGraphLaunch(nullptr, one), cudaErrorInvalidValue);
  CHECK_OK(cudaFree(data));
}

/// What later calls do not depend on: an error of one call is no error of the next.
void errors_do_not_stay() {
  cudaGetLastError();
  CHECK_ERROR(cudaSetDevice(1), cudaErrorInvalidDevice);
  CHECK_ERROR(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  CHECK_OK(cudaDeviceSynchronize());
  CHECK_ERROR(cudaGetLastError(), cudaErrorInvalidDevice);
  CHECK_ERROR(cudaGetLastError(), cudaSuccess);
  CHECK(std::strcmp(cudaGetErrorName(cudaErrorInvalidDevice), "cudaErrorInvalidDevice") == 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    for (const FaultCase& test : kFaults) {
      if (std::strcmp(test.name, argv[1]) == 0) fault(test);
    }
  } else {
    faults();
    memory_calls();
    device_calls();
    library_calls();
    launch_calls();
    capture_calls();
    errors_do_not_stay();
  }
  if (failures == 0) std::printf("all codes as expected\n");
  return failures != 0;
}
