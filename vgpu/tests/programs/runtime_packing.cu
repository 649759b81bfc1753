// SPDX-License-Identifier: Apache-2.0
// A small program in every packing that the launcher must take or refuse: the way of its code into
// the fat binary differs, so what is looked up there is used: a kernel, a variable, a constant.
// What the runtime's calls do: runtime_calls.cu. Exit status 0 when everything holds.
#include "expect.cuh"

namespace {

__device__ int counter = 5;
__constant__ int step = 3;

__global__ void count(int* result) {
  *result = atomicAdd(&counter, step);
}

#ifdef UNKNOWN_FORMS
// Legal PTX that the virtual GPU does not know.
__global__ void video_instructions(unsigned* value) {
  asm volatile("vadd.u32.u32.u32.sat %0, %0, %0;" : "+r"(*value));
  asm volatile("vabsdiff4.u32.u32.u32.add %0, %0, %0, %0;" : "+r"(*value));
}
#endif

}  // namespace

int main() {
#ifdef UNKNOWN_FORMS
  video_instructions<<<1, 1>>>(nullptr);
  return cudaGetLastError() == cudaErrorNotSupported ? 42 : 1;
#endif
  const int new_step = 4;
  int *result, before = 0, after = 0;
  CHECK_OK(cudaMalloc(&result, sizeof *result));
  count<<<1, 1>>>(result);
  CHECK_OK(cudaMemcpyToSymbol(step, &new_step, sizeof new_step));
  count<<<1, 1>>>(result);
  CHECK_OK(cudaMemcpy(&before, result, sizeof before, cudaMemcpyDeviceToHost));
  CHECK_OK(cudaMemcpyFromSymbol(&after, counter, sizeof after));
  CHECK(before == 8);
  CHECK(after == 12);
  if (failures == 0) std::printf("all holds\n");
  return failures != 0;
}
