// SPDX-License-Identifier: Apache-2.0
//
// Zeros have signs: a sum of nothing but zeros is +0, times a negative scale -0, whichever kernel
// computes it and whether or not it adds a bias that is not there.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "convoy/plan.hpp"
#include "kernels/common/launch.hpp"

namespace convoy {
namespace {

std::string is_every_output(const Plan& plan, const Conv2dProblemShape& shape,
                            const Epilogue& epilogue, float scale, std::uint16_t expected) {
  const auto bytes = [](std::int64_t elements) { return static_cast<std::size_t>(2 * elements); };
  const std::size_t output_bytes = bytes(shape.gemm_m() * shape.out_channels);
  const std::size_t input_bytes =
      bytes(shape.batch * shape.in_height * shape.in_width * shape.in_channels);
  const std::size_t filter_bytes =
      bytes(shape.out_channels * shape.filter_h * shape.filter_w * shape.in_channels);
  const auto input = allocate_device_memory(input_bytes);
  const auto filter = allocate_device_memory(filter_bytes);
  const auto output = allocate_device_memory(output_bytes);
  const auto workspace = allocate_device_memory(plan.workspace_bytes());
  EXPECT_EQ(cudaMemset(input.get(), 0, input_bytes), cudaSuccess);
  EXPECT_EQ(cudaMemset(filter.get(), 0x3f, filter_bytes), cudaSuccess);  // bf16 0x3f3f: 0.746
  EXPECT_EQ(cudaMemset(output.get(), 0xff, output_bytes), cudaSuccess);
  const PackedFilter packed = plan.pack_filter(filter.get(), FilterLayout::krsc);
  RunArguments arguments;
  arguments.output = output.get();
  arguments.activation = ConstTensorView(input.get());
  arguments.filter = packed;
  arguments.epilogue = epilogue;
  arguments.epilogue.scale = scale;
  if (plan.workspace_bytes() > 0) arguments.workspace = workspace.get();
  plan.run(arguments, nullptr);
  std::vector<std::uint16_t> result(output_bytes / 2);
  EXPECT_EQ(cudaMemcpy(result.data(), output.get(), output_bytes, cudaMemcpyDeviceToHost),
            cudaSuccess);
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (result[i] != expected) {
      return "output " + std::to_string(i) + " has the bits " + std::to_string(result[i]);
    }
  }
  return "";
}

TEST(ZeroSign, IsThatOfTheScale) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    (void)cudaGetLastError();
    GTEST_SKIP() << "needs a CUDA device, real or virtual";
  }
  const Conv2dProblemShape shapes[] = {
      {.batch = 1,
       .in_height = 5,
       .in_width = 6,
       .in_channels = 64,
       .out_channels = 24,
       .filter_h = 3,
       .filter_w = 3,
       .pad_h = 1,
       .pad_w = 1},
      {.batch = 1, .in_height = 5, .in_width = 6, .in_channels = 64, .out_channels = 24},
      {.batch = 1,
       .in_height = 5,
       .in_width = 6,
       .in_channels = 64,
       .out_channels = 3,
       .filter_h = 3,
       .filter_w = 3},
  };
  int kernels = 0;
  for (const Conv2dProblemShape& shape : shapes) {
    for (const Activation activation : {Activation::none, Activation::clamp}) {
      Epilogue epilogue;
      epilogue.activation = activation;
      epilogue.parameter_a = -3.0f;
      epilogue.parameter_b = 1.5f;
      PlanOptions options{
          .epilogue = epilogue.kind(), .device = Device::cuda, .packed_filter = true};
      for (const Candidate& candidate : candidates(shape, options)) {
        if (!candidate.reason.empty()) continue;
        SCOPED_TRACE(candidate.kernel + ", " + to_string(activation));
        options.kernel = candidate.kernel;
        const Plan plan = convoy::plan(shape, options);
        EXPECT_EQ(is_every_output(plan, shape, epilogue, -2.0f, 0x8000), "");
        EXPECT_EQ(is_every_output(plan, shape, epilogue, 2.0f, 0x0000), "");
        ++kernels;
      }
    }
  }
  EXPECT_GE(kernels, 4);
}

}  // namespace
}  // namespace convoy
