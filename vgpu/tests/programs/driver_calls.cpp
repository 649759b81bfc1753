// SPDX-License-Identifier: Apache-2.0
// A program of the driver API alone: PTX text, no nvcc.
#include <cuda.h>

#include <cstdio>
#include <cstring>
#include <numeric>
#include <vector>

namespace {

int failures = 0;

void check(bool holds, const char* what, int line) {
  if (holds) return;
  ++failures;
  std::printf("line %d: %s does not hold\n", line, what);
}
#define CHECK(condition) check(condition, #condition, __LINE__)
#define CHECK_OK(call) CHECK((call) == CUDA_SUCCESS)

// out[i] = in[i] * factor + bias, bias a variable of the module.
constexpr const char* kPtx = R"(
.version 8.0
.target sm_80
.address_size 64
.visible .global .align 4 .u32 bias = 5;
.visible .entry scale(.param .u64 in, .param .u32 factor, .param .u64 out)
{
  .reg .b32 %r<4>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd0, [in];
  ld.param.u32 %r0, [factor];
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.u64 %rd0, %rd0, %rd2;
  add.u64 %rd1, %rd1, %rd2;
  ld.global.u32 %r2, [%rd0];
  ld.global.u32 %r3, [bias];
  mad.lo.u32 %r2, %r2, %r0, %r3;
  st.global.u32 [%rd1], %r2;
  ret;
}
)";

// Counts down and ends the loop at 0.
constexpr const char* kLoopPtx = R"(
.version 8.6
.target sm_80
.address_size 64
.extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);
.visible .entry count_down(.param .u64 handle, .param .u64 count)
{
  .reg .pred %p;
  .reg .b32 %r;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd0, [handle];
  ld.param.u64 %rd1, [count];
  ld.global.u32 %r, [%rd1];
  sub.u32 %r, %r, 1;
  st.global.u32 [%rd1], %r;
  setp.ne.u32 %p, %r, 0;
  @%p ret;
  {
    .param .b64 param0;
    .param .b32 param1;
    st.param.b64 [param0], %rd0;
    st.param.b32 [param1], 0;
    call.uni cudaGraphSetConditional, (param0, param1);
  }
  ret;
}
)";

// A while node around a kernel, by hand and by capture.
void loop_in_a_graph(CUstream stream) {
  CUmodule module = nullptr;
  CUfunction count_down = nullptr;
  CUdeviceptr count = 0;
  CHECK_OK(cuModuleLoadData(&module, kLoopPtx));
  CHECK_OK(cuModuleGetFunction(&count_down, module, "count_down"));
  CHECK_OK(cuMemAlloc(&count, 4));
  for (const bool capture : {false, true}) {
    CUgraph graph = nullptr;
    CUgraphConditionalHandle handle = 0;
    CHECK_OK(cuGraphCreate(&graph, 0));
    CHECK_OK(
        cuGraphConditionalHandleCreate(&handle, graph, nullptr, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
    CUgraphNode node = nullptr, copied = nullptr, inside = nullptr;
    unsigned left = 3;
    CUgraphNodeParams copy{};
    copy.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    copy.memcpy.copyParams.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.memcpy.copyParams.srcHost = &left;
    copy.memcpy.copyParams.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.memcpy.copyParams.dstDevice = count;
    copy.memcpy.copyParams.WidthInBytes = 4;
    copy.memcpy.copyParams.Height = copy.memcpy.copyParams.Depth = 1;
    CHECK_OK(cuGraphAddNode(&copied, graph, nullptr, nullptr, 0, &copy));
    CUgraphNodeParams loop{};
    loop.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    loop.conditional.handle = handle;
    loop.conditional.type = CU_GRAPH_COND_TYPE_WHILE;
    loop.conditional.size = 1;
    CHECK_OK(cuGraphAddNode(&node, graph, &copied, nullptr, 1, &loop));
    const CUgraph body = loop.conditional.phGraph_out[0];
    void* parameters[] = {&handle, &count};
    if (capture) {
      CUgraph same = nullptr;
      CHECK_OK(cuStreamBeginCaptureToGraph(stream, body, nullptr, nullptr, 0,
                                           CU_STREAM_CAPTURE_MODE_GLOBAL));
      CHECK_OK(cuLaunchKernel(count_down, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
      CHECK_OK(cuStreamEndCapture(stream, &same));
      CHECK(same == body);
    } else {
      CUDA_KERNEL_NODE_PARAMS kernel{};
      kernel.func = count_down;
      kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = 1;
      kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1;
      kernel.kernelParams = parameters;
      CHECK_OK(cuGraphAddKernelNode(&inside, body, nullptr, 0, &kernel));
    }
    CUgraphExec exec = nullptr;
    CHECK_OK(cuGraphInstantiate(&exec, graph, 0));
    CHECK_OK(cuGraphLaunch(exec, stream));
    CHECK_OK(cuStreamSynchronize(stream));
    CHECK_OK(cuMemcpyDtoH(&left, count, 4));
    CHECK(left == 0);
    CHECK_OK(cuGraphExecDestroy(exec));
    CHECK_OK(cuGraphDestroy(graph));
  }
  CHECK_OK(cuMemFree(count));
  CHECK_OK(cuModuleUnload(module));
}

bool is_scaled(CUdeviceptr out, unsigned factor, unsigned bias) {
  std::vector<unsigned> got(64);
  CHECK_OK(cuMemcpyDtoH(got.data(), out, 256));
  for (unsigned i = 0; i < 64; ++i) {
    if (got[i] != i * factor + bias) return false;
  }
  return true;
}

}  // namespace

int main() {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUdeviceptr in = 0, out = 0;
  CHECK_OK(cuInit(0));
  CHECK_OK(cuDeviceGet(&device, 0));
  CHECK(cuMemAlloc(&in, 256) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK_OK(cuCtxCreate(&context, nullptr, 0, device));
  int major = 0;
  CHECK_OK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
  CHECK(major == 9);

  CUmodule module = nullptr;
  CUfunction scale = nullptr;
  CHECK(cuModuleLoadData(&module, "no PTX") == CUDA_ERROR_INVALID_PTX);
  CHECK(cuModuleLoadData(&module, "\177ELF") == CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK_OK(cuModuleLoadData(&module, kPtx));
  CHECK(cuModuleGetFunction(&scale, module, "none") == CUDA_ERROR_NOT_FOUND);
  CHECK_OK(cuModuleGetFunction(&scale, module, "scale"));
  int threads = 0;
  CHECK_OK(cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, scale));
  CHECK(threads == 1024);

  std::vector<unsigned> numbers(64);
  std::iota(numbers.begin(), numbers.end(), 0u);
  CHECK_OK(cuMemAlloc(&in, 256));
  CHECK_OK(cuMemAlloc(&out, 256));
  CHECK_OK(cuMemcpyHtoD(in, numbers.data(), 256));
  unsigned factor = 3;
  void* parameters[] = {&in, &factor, &out};
  CHECK_OK(cuLaunchKernel(scale, 1, 1, 1, 64, 1, 1, 0, nullptr, parameters, nullptr));
  CHECK(is_scaled(out, 3, 5));

  // Parameters in one buffer, on a stream, with another bias.
  CUdeviceptr bias = 0;
  size_t bytes = 0;
  CHECK_OK(cuModuleGetGlobal(&bias, &bytes, module, "bias"));
  CHECK(bytes == 4);
  CHECK_OK(cuMemsetD32(bias, 7, 1));
  struct {
    CUdeviceptr in;
    unsigned factor;
    CUdeviceptr out;
  } packed{in, 4, out};
  size_t size = sizeof packed;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  CUstream stream = nullptr;
  CUevent done = nullptr;
  CHECK_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CHECK_OK(cuEventCreate(&done, CU_EVENT_DEFAULT));
  CHECK_OK(cuLaunchKernel(scale, 1, 1, 1, 64, 1, 1, 0, stream, nullptr, extra));
  CHECK_OK(cuEventRecord(done, stream));
  CHECK_OK(cuEventSynchronize(done));
  CHECK(is_scaled(out, 4, 7));
  size = 8;
  CHECK(cuLaunchKernel(scale, 1, 1, 1, 64, 1, 1, 0, stream, nullptr, extra) ==
        CUDA_ERROR_INVALID_VALUE);

  // Two columns of eight rows.
  std::vector<unsigned> columns(16);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = in;
  copy.srcPitch = 32;
  copy.srcXInBytes = 8;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = columns.data();
  copy.WidthInBytes = 8;
  copy.Height = 8;
  CHECK_OK(cuMemcpy2D(&copy));
  CHECK(columns[0] == 2 && columns[1] == 3 && columns[14] == 58);

  void* found = nullptr;
  CUdriverProcAddressQueryResult status;
  CHECK_OK(cuGetProcAddress("cuMemAlloc", &found, 13000, 0, &status));
  CHECK(found == reinterpret_cast<void*>(cuMemAlloc));
  CHECK(cuLinkDestroy(nullptr) == CUDA_ERROR_NOT_SUPPORTED);

  loop_in_a_graph(stream);
  CHECK_OK(cuEventDestroy(done));
  CHECK_OK(cuStreamDestroy(stream));
  CHECK_OK(cuMemFree(in));
  CHECK_OK(cuMemFree(out));
  CHECK_OK(cuModuleUnload(module));
  CHECK_OK(cuCtxDestroy(context));
  CHECK(cuMemAlloc(&in, 256) == CUDA_ERROR_INVALID_CONTEXT);
  if (failures == 0) std::printf("all holds\n");
  return failures != 0;
}
