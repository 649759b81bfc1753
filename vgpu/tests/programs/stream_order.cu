// SPDX-License-Identifier: Apache-2.0
// Streams side by side: kernels that wait for a later write of the host or for another stream.
// `stream_order deadlock` launches one that waits for what is behind it.
#include <cuda_runtime.h>

#include <chrono>
#include <cstring>

#include "expect.cuh"

namespace {

__global__ void wait_for(volatile unsigned* flag, unsigned value) {
  while (*flag != value) {
  }
}
__global__ void wait_then_set(volatile unsigned* flag, unsigned value, unsigned* target,
                              unsigned written) {
  while (*flag != value) {
  }
  *reinterpret_cast<volatile unsigned*>(target) = written;
}
__global__ void set(unsigned* target, unsigned value) {
  *reinterpret_cast<volatile unsigned*>(target) = value;
}
__global__ void copy_word(unsigned* to, const unsigned* from) {
  *to = *from;
}

struct Fixture {
  cudaStream_t a, b, c;
  unsigned *flag, *data;  // pinned host memory; device memory
  Fixture() {
    for (cudaStream_t* stream : {&a, &b, &c}) {
      CHECK_OK(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
    }
    CHECK_OK(cudaMallocHost(&flag, 64));
    CHECK_OK(cudaMalloc(&data, 64));
    std::memset(flag, 0, 64);
    CHECK_OK(cudaMemset(data, 0, 64));
  }
};

void host_answers_later(Fixture& f) {
  wait_then_set<<<1, 1, 0, f.a>>>(f.flag, 1, f.flag + 1, 2);
  CHECK_OK(cudaGetLastError());
  CHECK_ERROR(cudaStreamQuery(f.a), cudaErrorNotReady);
  CHECK(f.flag[1] == 0);
  *static_cast<volatile unsigned*>(f.flag) = 1;
  CHECK_OK(cudaStreamSynchronize(f.a));
  CHECK(f.flag[1] == 2);
  CHECK_OK(cudaStreamQuery(f.a));
}

void host_polls(Fixture& f) {
  volatile unsigned* flag = f.flag;
  flag[0] = 0;
  flag[1] = 0;
  wait_then_set<<<1, 1, 0, f.a>>>(f.flag, 5, f.flag + 1, 6);
  flag[0] = 5;
  const auto start = std::chrono::steady_clock::now();
  while (flag[1] != 6) {  // no call that could run the kernel
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(60)) break;
  }
  CHECK(flag[1] == 6);
  CHECK_OK(cudaDeviceSynchronize());
}

void streams_answer_each_other(Fixture& f) {
  f.flag[0] = 0;
  wait_for<<<1, 32, 0, f.a>>>(f.data, 7);
  // Behind it: a copy, an event, and what waits for the event.
  CHECK_OK(cudaMemcpyAsync(f.flag + 2, f.data, 4, cudaMemcpyDeviceToHost, f.a));
  cudaEvent_t event, never;
  CHECK_OK(cudaEventCreate(&event));
  CHECK_OK(cudaEventCreate(&never));
  CHECK_OK(cudaEventRecord(event, f.a));
  CHECK_ERROR(cudaEventQuery(event), cudaErrorNotReady);
  CHECK_OK(cudaEventQuery(never));
  CHECK_OK(cudaStreamWaitEvent(f.c, event));
  copy_word<<<1, 1, 0, f.c>>>(f.data + 1, f.data);
  CHECK_ERROR(cudaStreamQuery(f.c), cudaErrorNotReady);
  CHECK(f.flag[2] == 0);
  set<<<1, 1, 0, f.b>>>(f.data, 7);
  CHECK_OK(cudaEventSynchronize(event));
  CHECK(f.flag[2] == 7);
  CHECK_OK(cudaStreamSynchronize(f.c));
  unsigned word = 0;
  CHECK_OK(cudaMemcpy(&word, f.data + 1, 4, cudaMemcpyDeviceToHost));
  CHECK(word == 7);
  CHECK_OK(cudaEventDestroy(event));
  CHECK_OK(cudaEventDestroy(never));
}

/// The default stream waits for blocking streams; their later work waits for it.
void default_stream_waits(Fixture& f) {
  cudaStream_t blocking;
  CHECK_OK(cudaStreamCreate(&blocking));
  f.flag[0] = f.flag[1] = f.flag[2] = 0;
  wait_then_set<<<1, 1, 0, blocking>>>(f.flag, 1, f.flag + 1, 1);
  wait_then_set<<<1, 1>>>(f.flag + 1, 1, f.flag + 2, 1);  // would be answered at once
  CHECK_ERROR(cudaStreamQuery(0), cudaErrorNotReady);
  set<<<1, 1, 0, blocking>>>(f.flag + 3, 1);
  CHECK_OK(cudaStreamDestroy(blocking));  // its work is done all the same
  CHECK(f.flag[2] == 0 && f.flag[3] == 0);
  *static_cast<volatile unsigned*>(f.flag) = 1;
  CHECK_OK(cudaDeviceSynchronize());
  CHECK(f.flag[2] == 1 && f.flag[3] == 1);
}

void host_function_in_order(Fixture& f) {
  f.flag[0] = f.flag[1] = 0;
  wait_for<<<1, 1, 0, f.a>>>(f.flag, 1);
  CHECK_OK(cudaLaunchHostFunc(
      f.a, [](void* word) { *static_cast<unsigned*>(word) = 1; }, f.flag + 1));
  CHECK(f.flag[1] == 0);
  *static_cast<volatile unsigned*>(f.flag) = 1;
  CHECK_OK(cudaStreamSynchronize(f.a));
  CHECK(f.flag[1] == 1);
}

}  // namespace

int main(int argc, char**) {
  Fixture f;
  if (argc > 1) {
    wait_for<<<1, 32, 0, f.a>>>(f.data, 1);
    set<<<1, 1, 0, f.a>>>(f.data, 1);
    CHECK_ERROR(cudaStreamSynchronize(f.a), cudaErrorLaunchTimeout);
    return failures;
  }
  host_answers_later(f);
  host_polls(f);
  streams_answer_each_other(f);
  default_stream_waits(f);
  host_function_in_order(f);
  if (failures == 0) std::puts("streams in order");
  return failures;
}
