// SPDX-License-Identifier: Apache-2.0
//
// y = max(conv(x, w), 0)², an epilogue that Convoy does not have, in the convolution's own kernel
// (Hopper). Checks its result and says so.
#include <cuda_runtime.h>

#include <convoy/device/sm90/conv_fprop.cuh>
#include <cstdint>
#include <cstdio>
#include <vector>

// What happens to the sums before they are stored: `values` are neighbouring filters n, n + 1, ...
// of output pixel m.
struct SquaredRelu {
  static constexpr bool kEnabled = true;
  static constexpr bool kOnRegisters = true;
  template <int kWidth>
  __device__ void operator()(std::int64_t, int, float (&values)[kWidth]) const {
    for (float& value : values) value = value > 0.0f ? value * value : 0.0f;
  }
};

template <typename T>
T* upload(const std::vector<T>& values) {
  T* memory = nullptr;
  cudaMalloc(&memory, values.size() * sizeof(T));
  cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
  return memory;
}

int main() {
  using Element = __nv_bfloat16;
  // 1x1, so that the check below is a line: 8x8 pixels, 64 channels, 32 filters.
  const convoy::Conv2dProblemShape problem{
      .in_height = 8, .in_width = 8, .in_channels = 64, .out_channels = 32};
  std::vector<Element> x(64 * 64), w(32 * 64), y(64 * 32);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = __float2bfloat16(float(int(i * 7 % 5) - 2));
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = __float2bfloat16(float(int(i * 11 % 3) - 1));
  Element* const d = upload(y);
  try {
    namespace sm90 = convoy::sm90;
    sm90::conv_fprop<sm90::Default<Element>>(d, upload(x), upload(w), problem, {}, SquaredRelu{});
  } catch (const convoy::Error& error) {
    std::printf("refused: %s\n", error.what());
    return 1;
  }
  if (cudaMemcpy(y.data(), d, y.size() * sizeof(Element), cudaMemcpyDeviceToHost) != cudaSuccess) {
    std::printf("no result: %s\n", cudaGetErrorString(cudaGetLastError()));
    return 1;
  }
  int wrong = 0;
  for (int m = 0; m < 64; ++m) {
    for (int n = 0; n < 32; ++n) {
      float sum = 0;
      for (int c = 0; c < 64; ++c)
        sum += __bfloat162float(x[m * 64 + c]) * __bfloat162float(w[n * 64 + c]);
      const Element wanted = __float2bfloat16(sum > 0 ? sum * sum : 0);
      wrong += __bfloat162float(y[m * 32 + n]) != __bfloat162float(wanted) ? 1 : 0;
    }
  }
  std::printf("%d of %zu outputs are wrong\n", wrong, y.size());
  return wrong == 0 ? 0 : 1;
}
