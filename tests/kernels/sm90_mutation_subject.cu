// SPDX-License-Identifier: Apache-2.0
//
// A halo tile of the Hopper kernel whose patches are completed at the border, and then normalised
// as well; small rings, two multiprocessors: the subject of
//   vgpu mutate --gpu h200 -- convoy_sm90_mutation_subject
// which deletes each synchronising instruction in turn. Exit status 0: the result is exact.
// With CONVOY_SUBJECT_SPLIT three CTAs share the K loop of a tile (--sms 6).
#include <cstdio>

#include "kernels/sm90/host.hpp"
#include "kernels/sm90/instance.cuh"
#include "support/integer_tensors.hpp"

namespace convoy::sm90 {
namespace {

#ifdef CONVOY_SUBJECT_SPLIT
constexpr Config kConfig{.block_m = 64,
                         .block_n = 64,
                         .consumers = 1,
                         .filter_stages = 3,
                         .staging_pieces = 2,
                         .schedule = Schedule::split_k};
constexpr int kSplits = 3, kMultiprocessors = 6;
#else
constexpr Config kConfig{.block_m = 128,
                         .block_n = 32,
                         .consumers = 2,
                         .filter_stages = 3,
                         .act_stages = 2,
                         .halo_pixels = 180,
                         .staging_pieces = 4,
                         .input = Input::halo,
                         .schedule = Schedule::pingpong};
constexpr Config kNormalising = [] {
  Config config = kConfig;
  config.input = Input::normalised;
  return config;
}();
constexpr int kSplits = 1, kMultiprocessors = 2;
#endif

/// The path that the problem takes, alone. NOTE: split tiles have no linear one.
template <Config kOf>
Instance instance_of_one_path() {
  constexpr auto kPath = kOf.splits_k() ? EpiloguePath::fused : EpiloguePath::plain;
  Instance instance{.config = kOf, .shared_bytes = kOf.shared_bytes()};
  instance.kernels[static_cast<int>(kPath)] =
      reinterpret_cast<const void*>(&conv_fprop_kernel<Packed<kOf>, kPath, NoComputeOp, NoStoreOp>);
  return instance;
}

Instance instance_for([[maybe_unused]] PrologueNorm norm) {
#ifndef CONVOY_SUBJECT_SPLIT
  if (norm != PrologueNorm::none) return instance_of_one_path<kNormalising>();
#endif
  return instance_of_one_path<kConfig>();
}

/// With a prologue by `norm`, or without one.
int run(PrologueNorm norm) {
  // Halo: twelve tiles, of which two touch no border; two blocks of channels. Split: 21 tiles, each
  // CTA with more blocks of K than stages.
  const Conv2dProblemShape shape{.in_height = 23,
                                 .in_width = 56,
                                 .in_channels = 72,
                                 .out_channels = 24,
                                 .filter_h = 3,
                                 .filter_w = 3,
                                 .pad_h = 1,
                                 .pad_w = 1,
                                 .pad_mode = kSplits > 1 ? PadMode::zero : PadMode::reflect};
  test::IntegerTensors problem(geometry_of(shape));
  test::GuardedBuffer activation(problem.activation.size() * 2), filter(problem.filter.size() * 2);
  test::GuardedBuffer output(problem.source.size() * 2);
  activation.upload(test::encode(problem.activation, DType::bf16).data());
  std::vector<float> scale, shift, inverse_rms;
  for (int c = 0; c < 72; ++c) scale.push_back(c % 3 == 0 ? -1.0f : 2.0f);
  for (int c = 0; c < 72; ++c) shift.push_back(static_cast<float>(c % 4 - 1));
  for (int p = 0; p < 23 * 56; ++p) inverse_rms.push_back(p % 5 == 0 ? 2.0f : 1.0f);
  test::GuardedBuffer d_scale(scale.size() * 4), d_shift(shift.size() * 4);
  test::GuardedBuffer d_inverse_rms(inverse_rms.size() * 4);
  d_scale.upload(scale.data());
  d_shift.upload(shift.data());
  d_inverse_rms.upload(inverse_rms.data());
  filter.upload(test::encode(problem.filter, DType::bf16).data());
  output.fill_with_nan();
  RunPointers pointers;
  pointers.output = output.data();
  pointers.activation = activation.data();
  pointers.filter = filter.data();
  pointers.prologue = {.norm = norm,
                       .scale = static_cast<const float*>(d_scale.data()),
                       .shift = static_cast<const float*>(d_shift.data()),
                       .inverse_rms = static_cast<const float*>(d_inverse_rms.data())};
  const Instance kernel = instance_for(norm);
  const NoComputeOp compute;
  const NoStoreOp store;
  prepare(kernel);
  const Launch plan = plan_launch(kernel, problem.geometry,
                                  {.packed_filter = false,
                                   .multiprocessors = kMultiprocessors,
                                   .splits = kSplits,
                                   .prologue = pointers.prologue.kind()});
  // Twice in a row, so that one may start while the other runs.
  for (int i = 0; i < 2; ++i) launch(plan, pointers, &compute, &store, nullptr);
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) {
    std::printf("%s\n", cudaGetErrorString(error));
    return 1;
  }
  problem.activation = reference::apply_prologue(problem.geometry, problem.activation.data(),
                                                 {.norm = norm,
                                                  .scale = scale.data(),
                                                  .shift = shift.data(),
                                                  .inverse_rms = inverse_rms.data()},
                                                 DType::bf16);
  std::vector<double> expected = problem.convolution();
  for (double& value : expected) value = round_to(DType::bf16, static_cast<float>(value));
  const std::string wrong =
      test::difference(output.download(), expected, DType::bf16, problem.geometry.out_channels);
  if (!wrong.empty()) std::printf("%s\n", wrong.c_str());
  return wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace convoy::sm90

int main() {
  using convoy::PrologueNorm;
  int failed = convoy::sm90::run(PrologueNorm::none);
#ifndef CONVOY_SUBJECT_SPLIT
  for (const PrologueNorm norm : {PrologueNorm::scale_shift, PrologueNorm::rms}) {
    failed += convoy::sm90::run(norm);
  }
#endif
  return failed;
}
