// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"
#include "reference/reference.hpp"

#ifdef CONVOY_WITH_CPU
#include <cstring>

#include "core/padding.hpp"
#include "onednn/onednn.hpp"
#endif

namespace convoy::reference {

#ifdef CONVOY_WITH_CPU

namespace {

/// Cache, activation, upsampling and padding resolved into one dense fp32 input, pixel by pixel.
std::vector<float> padded_input(const ConvGeometry& g, const Operands& operands,
                                const std::array<std::int64_t, 3>& extent) {
  const auto seen = g.seen();
  const auto channels = static_cast<std::size_t>(g.in_channels);
  std::vector<float> out(static_cast<std::size_t>(g.batch * extent[0] * extent[1] * extent[2]) *
                         channels);
  float* to = out.data();
  for (std::int64_t n = 0; n < g.batch; ++n) {
    for (std::int64_t i = 0; i < extent[0] * extent[1] * extent[2]; ++i, to += channels) {
      const std::int64_t d =
          padded_source(i / (extent[1] * extent[2]) - g.pad_begin[0], seen[0], g.pad_mode[0]);
      const std::int64_t h =
          padded_source(i / extent[2] % extent[1] - g.pad_begin[1], seen[1], g.pad_mode[1]);
      const std::int64_t w = padded_source(i % extent[2] - g.pad_begin[2], seen[2], g.pad_mode[2]);
      if (d < 0 || h < 0 || w < 0) continue;
      const bool cached = d < g.cached_frames;
      const std::int64_t frame =
          cached ? n * g.cached_frames + d : n * g.in[0] + d - g.cached_frames;
      const std::int64_t pixel = (frame * g.in[1] + h / g.upsample) * g.in[2] + w / g.upsample;
      const float* from = (cached ? operands.cache : operands.activation) + pixel * g.in_channels;
      std::memcpy(to, from, channels * sizeof(float));
    }
  }
  return out;
}

}  // namespace

std::vector<float> convolve_onednn(const ConvGeometry& g, const Operands& operands) {
  std::vector<float> out(static_cast<std::size_t>(g.output_elements()));
  if (out.empty()) return out;
  onednn::ConvShape shape = {.rank = g.rank, .images = g.batch, .in = {}, .out = g.out};
  for (int axis = 0; axis < 3; ++axis) {
    shape.in[axis] = g.seen()[axis] + g.pad_begin[axis] + g.pad_end[axis];
  }
  const std::vector<float> input = padded_input(g, operands, shape.in);
  try {
    const auto description = onednn::describe(g, shape, {});
    std::vector<char> weights(description.weights_desc().get_size());
    std::vector<char> scratchpad(description.scratchpad_desc().get_size());
    onednn::reorder(weights.data(), description.weights_desc(), operands.filter,
                    onednn::plain_weights(g, g.rank == 2 ? FilterLayout::krsc : FilterLayout::ktrsc,
                                          dnnl::memory::data_type::f32));
    onednn::ConvExecution convolution(onednn::primitive_of(description), description);
    convolution.execute({.source = input.data(),
                         .weights = weights.data(),
                         .destination = out.data(),
                         .scratchpad = scratchpad.data()});
  } catch (const dnnl::error& error) {
    throw Error(Status::unsupported, text("oneDNN, reference convolution: ", error.message));
  }
  return out;
}

#else

std::vector<float> convolve_onednn(const ConvGeometry&, const Operands&) {
  throw Error(Status::unsupported, "this build has no oneDNN to compute the reference with");
}

#endif

}  // namespace convoy::reference
