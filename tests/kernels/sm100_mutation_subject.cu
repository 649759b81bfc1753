// SPDX-License-Identifier: Apache-2.0
//
// One configuration that uses every barrier of the Blackwell kernel, small rings, several tiles a
// CTA, with and without residual: the subject of
//   vgpu mutate --gpu b200 --sms 8 -- convoy_sm100_mutation_subject
// which deletes each synchronising instruction in turn. Exit status 0: both results are exact.
// With CONVOY_SUBJECT_SPLIT the reduction is split between two pairs; with CONVOY_SUBJECT_HALO a
// pair loads patches with their border, of zeros and then of reflected pixels; with
// CONVOY_SUBJECT_NORMALISED it normalises those; with CONVOY_SUBJECT_1SM no CTA shares an MMA.
#include <cstdio>
#include <utility>
#include <vector>

#include "kernels/sm100/host.hpp"
#include "kernels/sm100/instance.cuh"
#include "support/integer_tensors.hpp"

namespace convoy::sm100 {
namespace {

// Pairs in a cluster of 8: both multicasts, two k groups of two stages, two launch-control stages.
constexpr auto kConfig = [] {
  Conv2dConfig<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16> config;
  config.block_tile_shape = {128, 32, 64};
#ifdef CONVOY_SUBJECT_1SM
  config.cta_group = 1;
  config.mma_shape = {128, 32, 16};
#else
  config.mma_shape = {256, 64, 16};
#endif
#ifdef CONVOY_SUBJECT_SPLIT
  config = config.with_split_reduction(2);
#elif defined(CONVOY_SUBJECT_HALO) || defined(CONVOY_SUBJECT_NORMALISED)
  config = config.with_halo();
#ifdef CONVOY_SUBJECT_NORMALISED
  config.input = Input::normalised;
#endif
  config.num_source_stages = 2;
  config.num_pipeline_stages = 4;
  return config;
#elif defined(CONVOY_SUBJECT_1SM)
  config.cluster_shape = {2, 2, 1};
#else
  config.cluster_shape = {4, 2, 1};
#endif
  config.k_group_size = 2;
  config.num_pipeline_stages = 4;
  return config;
}();

// Integers that a prologue reads; applies it to the problem's activation.
struct Factors {
  PrologueKind kind;
  test::GuardedBuffer scale, shift, inverse_rms;

  Factors(test::IntegerTensors& problem, const PrologueKind& prologue) : kind(prologue) {
    if (!kind.any()) return;
    const auto channels = static_cast<std::size_t>(problem.geometry.in_channels);
    const std::size_t pixels = problem.activation.size() / channels;
    const std::size_t of_image = pixels / static_cast<std::size_t>(problem.geometry.batch);
    const bool rms = kind.norm == PrologueNorm::rms;
    std::vector<float> scales, shifts, inverses;
    for (std::size_t i = 0; i < (rms ? 1 : pixels / of_image) * channels; ++i) {
      scales.push_back(static_cast<float>(i % 5) - 1.0f);
      shifts.push_back(static_cast<float>(i % 3));
    }
    for (std::size_t i = 0; i < pixels; ++i) inverses.push_back(i % 2 == 0 ? 1.0f : 2.0f);
    for (std::size_t i = 0; i < problem.activation.size(); ++i) {
      const std::size_t pixel = i / channels;
      const std::size_t factor = (rms ? 0 : pixel / of_image * channels) + i % channels;
      float& x = problem.activation[i];
      x = rms ? x * inverses[pixel] * scales[factor] : x * scales[factor] + shifts[factor];
      if (x < 0.0f) x = 0.0f;
    }
    for (auto [buffer, values] : {std::pair{&scale, &scales}, std::pair{&shift, &shifts},
                                  std::pair{&inverse_rms, &inverses}}) {
      *buffer = test::GuardedBuffer(values->size() * sizeof(float));
      buffer->upload(values->data());
    }
  }

  Prologue prologue() const {
    return {.norm = kind.norm,
            .activation = kind.activation,
            .scale = static_cast<const float*>(scale.data()),
            .shift = static_cast<const float*>(shift.data()),
            .inverse_rms = static_cast<const float*>(inverse_rms.data())};
  }
};

int run(bool with_residual, PadMode mode) {
  // NOTE: four tiles a cluster are enough for the split kernel, whose exchange is slow to
  // interpret.
  Conv2dProblemShape shape{.batch = kConfig.splits_reduction() ? 2 : 7,
                           .in_height = 23,
                           .in_width = 19,
                           .in_channels = 32,
                           .out_channels = 72,
                           .filter_h = 3,
                           .filter_w = 3,
                           .pad_h = 1,
                           .pad_w = 1,
                           .pad_mode = mode};
  if (mode != PadMode::zero) {
    // Of nine tiles one touches no border.
    shape.batch = 3;
    shape.in_height = 39;
  }
  // Rows of the inverse RMS are multiples of 16 bytes.
  if (kConfig.normalises()) shape.in_width = 20;
  test::IntegerTensors problem(geometry_of(shape));
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
  if (with_residual) pointers.epilogue.residual = source.data();
  // Zeros outside by image and channel, reflected pixels by their inverse RMS.
  PrologueKind prologue;
  if (kConfig.normalises()) {
    const bool rms = mode != PadMode::zero;
    prologue = {.norm = rms ? PrologueNorm::rms : PrologueNorm::scale_shift,
                .activation = Activation::relu};
  }
  Factors factors(problem, prologue);
  pointers.prologue = factors.prologue();
  const Instance kernel = make_instance<kConfig>();
  const NoComputeOp compute;
  const NoStoreOp store;
  prepare(kernel);
  // The second may start while the first runs.
  for (int k = 0; k < 2; ++k) {
    launch(plan_launch(kernel, problem.geometry, false, prologue), pointers, &compute, &store,
           nullptr);
  }
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) {
    std::printf("%s\n", cudaGetErrorString(error));
    return 1;
  }
  std::vector<double> expected = problem.convolution();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] += with_residual ? problem.source[i] : 0.0;
    expected[i] = round_to(DType::bf16, static_cast<float>(expected[i]));
  }
  const std::string wrong =
      test::difference(output.download(), expected, DType::bf16, problem.geometry.out_channels);
  if (!wrong.empty()) std::printf("%s\n", wrong.c_str());
  return wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace convoy::sm100

int main() {
  using convoy::PadMode;
  for (const PadMode mode : {PadMode::zero, PadMode::reflect}) {
#if !defined(CONVOY_SUBJECT_HALO) && !defined(CONVOY_SUBJECT_NORMALISED)
    if (mode != PadMode::zero) continue;
#endif
    for (const bool with_residual : {false, true}) {
      if (const int failed = convoy::sm100::run(with_residual, mode); failed != 0) return failed;
    }
  }
  return 0;
}
