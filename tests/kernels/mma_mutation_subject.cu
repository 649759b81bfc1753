// SPDX-License-Identifier: Apache-2.0
//
// A persistent tile of the kernel by mma.sync, ragged, walked and listed, with and without a
// residual, on two multiprocessors: the subject of
//   vgpu mutate --gpu a100 --sms 2 -- convoy_mma_mutation_subject
// which deletes each synchronising instruction in turn. Exit status 0: the result is exact.
#include <cstdio>

#include "kernels/mma/host.hpp"
#include "kernels/mma/instance.cuh"
#include "support/integer_tensors.hpp"

namespace convoy::mma {
namespace {

constexpr Config kConfig{.block_m = 128, .block_n = 128, .warps_m = 2, .warps_n = 4, .stages = 3};
static_assert(kConfig.is_alone());

// Five tiles, three for one of the blocks; six steps of several taps each, the last one short and
// in the stage that the epilogue takes.
int run(bool residual, PadMode pad_mode) {
  const Conv2dProblemShape shape{.in_height = 23,
                                 .in_width = 25,
                                 .in_channels = 40,
                                 .out_channels = 72,
                                 .filter_h = 3,
                                 .filter_w = 3,
                                 .pad_h = 1,
                                 .pad_w = 1,
                                 .pad_mode = pad_mode};
  const test::IntegerTensors problem(geometry_of(shape));
  test::GuardedBuffer activation(problem.activation.size() * 2), filter(problem.filter.size() * 2);
  test::GuardedBuffer source(problem.source.size() * 2), output(problem.source.size() * 2);
  activation.upload(test::encode(problem.activation, DType::bf16).data());
  filter.upload(test::encode(problem.filter, DType::bf16).data());
  source.upload(test::encode(problem.source, DType::bf16).data());
  output.fill_with_nan();
  RunPointers pointers;
  pointers.output = output.data();
  pointers.activation = activation.data();
  pointers.filter = filter.data();
  if (residual) {
    pointers.epilogue.residual = source.data();
    pointers.epilogue.beta = 1.0f;
  }
  Tiling tiling = plan_tiling(make_instance<kConfig, true>(), problem.geometry, false, 1);
  prepare(tiling, 2);
  launch(tiling, pointers, DType::bf16, nullptr);
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) {
    std::printf("%s\n", cudaGetErrorString(error));
    return 1;
  }
  std::vector<double> expected = problem.convolution();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double sum = expected[i] + (residual ? problem.source[i] : 0.0);
    expected[i] = round_to(DType::bf16, static_cast<float>(sum));
  }
  const std::string wrong =
      test::difference(output.download(), expected, DType::bf16, problem.geometry.out_channels);
  if (!wrong.empty()) std::printf("%s\n", wrong.c_str());
  return wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace convoy::mma

int main() {
  using convoy::PadMode;  // Walked and listed.
  return convoy::mma::run(true, PadMode::zero) + convoy::mma::run(false, PadMode::zero) +
         convoy::mma::run(true, PadMode::reflect) + convoy::mma::run(false, PadMode::reflect);
}
