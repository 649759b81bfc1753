// SPDX-License-Identifier: Apache-2.0
#include "core/shuffle.hpp"

#include <algorithm>
#include <cstring>

#include "core/checked.hpp"
#include "core/divisors.hpp"

namespace convoy {
namespace {

constexpr const char* kFactorNames[3] = {"shuffle.factors[0] (frames)", "shuffle.factors[1] (rows)",
                                         "shuffle.factors[2] (columns)"};

template <typename Element>
class HostCopies {
 public:
  HostCopies(const ConvGeometry& geometry, const OutputShuffle& shuffle)
      : g_(geometry), shuffle_(shuffle), extents_(shuffled_extents(geometry, shuffle)) {}

  void to_output(void* output, const void* from, bool of_residual) const {
    const ShuffledChannels<std::int64_t> at(g_, shuffle_, of_residual);
    const std::int64_t channels = at.channels;
    for_each_pixel([&](std::int64_t pixel, std::int64_t phase, std::int64_t to) {
      const Element* const source = static_cast<const Element*>(from) + pixel * at.sources;
      Element* const out = static_cast<Element*>(output) + to * channels;
      for (std::int64_t c = 0; c < channels; ++c) out[c] = source[at.source(at.filter(c, phase))];
    });
  }

  void residual_of_filters(void* to, const void* residual) const {
    const ShuffledChannels<std::int64_t> at(g_, shuffle_, true);
    auto* const filters = static_cast<Element*>(to);
    const auto* const source = static_cast<const Element*>(residual);
    if (shuffle_.residual != ShuffleResidual::output) {
      for (std::int64_t pixel = 0; pixel < g_.gemm_m(); ++pixel) {
        for (std::int64_t k = 0; k < at.filters; ++k) {
          filters[pixel * at.filters + k] = source[pixel * at.sources + at.source(k)];
        }
      }
      return;
    }
    std::memset(to, 0, static_cast<std::size_t>(g_.output_elements()) * sizeof(Element));
    const std::int64_t channels = at.channels;
    for_each_pixel([&](std::int64_t pixel, std::int64_t phase, std::int64_t from) {
      for (std::int64_t c = 0; c < channels; ++c) {
        filters[pixel * at.filters + at.filter(c, phase)] = source[from * channels + c];
      }
    });
  }

 private:
  // body(pixel before the shuffle, phase, pixel of the output), in the order of the output.
  template <typename Body>
  void for_each_pixel(const Body& body) const {
    const auto& f = shuffle_.factors;
    std::int64_t to = 0;
    for (std::int64_t n = 0; n < g_.batch; ++n) {
      for (std::int64_t frame = 0; frame < extents_[0]; ++frame) {
        const std::int64_t z = (frame + shuffle_.dropped_frames) / f[0];
        const std::int64_t dt = (frame + shuffle_.dropped_frames) % f[0];
        for (std::int64_t y = 0; y < extents_[1]; ++y) {
          const std::int64_t row = ((n * g_.out[0] + z) * g_.out[1] + y / f[1]) * g_.out[2];
          for (std::int64_t x = 0; x < extents_[2]; ++x, ++to) {
            body(row + x / f[2], (dt * f[1] + y % f[1]) * f[2] + x % f[2], to);
          }
        }
      }
    }
  }

  const ConvGeometry& g_;
  const OutputShuffle& shuffle_;
  const std::array<std::int64_t, 3> extents_;
};

class HostShuffleCopies final : public ShuffleCopies {
 public:
  void to_output(void* output, const void* from, const ConvGeometry& g,
                 const OutputShuffle& shuffle, bool of_residual, std::size_t element_bytes,
                 cudaStream_t) const override {
    if (element_bytes == 2) {
      HostCopies<std::uint16_t>(g, shuffle).to_output(output, from, of_residual);
    } else {
      HostCopies<std::uint32_t>(g, shuffle).to_output(output, from, of_residual);
    }
  }
  void residual_of_filters(void* to, const void* residual, const ConvGeometry& g,
                           const OutputShuffle& shuffle, std::size_t element_bytes,
                           cudaStream_t) const override {
    if (element_bytes == 2) {
      HostCopies<std::uint16_t>(g, shuffle).residual_of_filters(to, residual);
    } else {
      HostCopies<std::uint32_t>(g, shuffle).residual_of_filters(to, residual);
    }
  }
};

}  // namespace

void check_shuffle(const ConvGeometry& g, const OutputShuffle& shuffle, bool residual) {
  for (int axis = 0; axis < 3; ++axis) {
    const std::int64_t factor = shuffle.factors[axis];
    const std::int64_t most = axis == 0 && g.rank == 2 ? 1 : 64;
    if (factor >= 1 && factor <= most) continue;
    const std::int64_t nearest = factor < 1 ? 1 : most;
    throw_invalid(kFactorNames[axis], " = ", factor, most == 1 ? " of a 2-D problem" : "",
                  " is not legal; legal: ", most == 1 ? "1" : "1 to 64", "; nearest: ", nearest);
  }
  const std::int64_t phases = shuffle.phases();
  if (g.out_channels % phases != 0) {
    throw_invalid("out_channels = ", g.out_channels, " does not divide into ", shuffle.factors[0],
                  "*", shuffle.factors[1], "*", shuffle.factors[2], " = ", phases,
                  " pixels; legal: a multiple of ", phases,
                  "; nearest: ", ceil_div(g.out_channels, phases) * phases);
  }
  if (shuffle.dropped_frames < 0 || shuffle.dropped_frames >= shuffle.factors[0]) {
    throw_invalid("shuffle.dropped_frames = ", shuffle.dropped_frames,
                  " is not legal; legal: 0 to ", shuffle.factors[0] - 1,
                  " (less than shuffle.factors[0]); nearest: ",
                  shuffle.dropped_frames < 0 ? 0 : shuffle.factors[0] - 1);
  }
  const std::int64_t channels = shuffle.residual_channels;
  if (shuffle.residual == ShuffleResidual::output) {
    if (channels == 0) return;
    throw_invalid("shuffle.residual_channels = ", channels,
                  " with a residual of the output's shape is not legal; legal: 0");
  }
  if (!shuffle.any() || !residual) {
    throw_invalid("shuffle.residual = ", to_string(shuffle.residual), " without ",
                  residual ? "a shuffle" : "a residual in the epilogue",
                  " is not legal; legal: output");
  }
  if (channels < 1 || g.out_channels % channels != 0) {
    throw_invalid("shuffle.residual_channels = ", channels,
                  " does not divide out_channels = ", g.out_channels,
                  "; legal: a divisor of it; nearest: ", largest_divisor(g.out_channels, channels));
  }
}

std::array<std::int64_t, 3> shuffled_extents(const ConvGeometry& g, const OutputShuffle& shuffle) {
  return {g.out[0] * shuffle.factors[0] - shuffle.dropped_frames, g.out[1] * shuffle.factors[1],
          g.out[2] * shuffle.factors[2]};
}

std::int64_t shuffled_channels(const ConvGeometry& g, const OutputShuffle& shuffle) {
  return g.out_channels / shuffle.phases();
}

std::int64_t shuffled_elements(const ConvGeometry& g, const OutputShuffle& shuffle) {
  const std::array<std::int64_t, 3> extents = shuffled_extents(g, shuffle);
  return g.batch * extents[0] * extents[1] * extents[2] * shuffled_channels(g, shuffle);
}

std::int64_t residual_elements(const ConvGeometry& g, const OutputShuffle& shuffle) {
  return shuffle.residual == ShuffleResidual::output ? shuffled_elements(g, shuffle)
                                                     : g.gemm_m() * shuffle.residual_channels;
}

const ShuffleCopies& host_shuffle_copies() {
  static const HostShuffleCopies copies;
  return copies;
}

}  // namespace convoy
