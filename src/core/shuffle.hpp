// SPDX-License-Identifier: Apache-2.0
//
// Depth to space at the store: which element goes where.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "convoy/geometry.hpp"
#include "convoy/shuffle.hpp"
#include "convoy/types.hpp"

#ifdef __CUDACC__
#define CONVOY_HOST_DEVICE __host__ __device__
#else
#define CONVOY_HOST_DEVICE
#endif

namespace convoy {

/// Throws Error{invalid_argument} for a shuffle that the problem cannot have. `residual`: the
/// epilogue has one.
void check_shuffle(const ConvGeometry& geometry, const OutputShuffle& shuffle, bool residual);

/// Frames, rows and columns of the output, as the user has it.
std::array<std::int64_t, 3> shuffled_extents(const ConvGeometry& geometry,
                                             const OutputShuffle& shuffle);
/// Its channels.
std::int64_t shuffled_channels(const ConvGeometry& geometry, const OutputShuffle& shuffle);
/// All of its elements, and those of the residual.
std::int64_t shuffled_elements(const ConvGeometry& geometry, const OutputShuffle& shuffle);
std::int64_t residual_elements(const ConvGeometry& geometry, const OutputShuffle& shuffle);

/// What a pixel of `filters` filters, or of a residual of `sources` channels, is made of.
/// Phases are numbered (dt·fh + dh)·fw + dw.
template <typename Index>
struct ShuffledChannels {
  Index filters, phases, sources;
  Index channels;    ///< filters / phases
  bool inner;        ///< ShuffleOrder::channels_inner
  bool interleaved;  ///< Else tiled.

  ShuffledChannels(const ConvGeometry& geometry, const OutputShuffle& shuffle, bool of_residual)
      : filters(static_cast<Index>(geometry.out_channels)),
        phases(static_cast<Index>(shuffle.phases())),
        sources(of_residual && shuffle.residual != ShuffleResidual::output
                    ? static_cast<Index>(shuffle.residual_channels)
                    : filters),
        channels(filters / phases),
        inner(shuffle.order == ShuffleOrder::channels_inner),
        interleaved(shuffle.residual == ShuffleResidual::interleaved) {}

  /// The filter of channel c of a phase, and back.
  CONVOY_HOST_DEVICE Index filter(Index c, Index phase) const {
    return inner ? phase * channels + c : c * phases + phase;
  }
  CONVOY_HOST_DEVICE Index channel_of(Index filter) const {
    return inner ? filter % channels : filter / phases;
  }
  CONVOY_HOST_DEVICE Index phase_of(Index filter) const {
    return inner ? filter / channels : filter % phases;
  }
  /// The channel, of `sources`, that goes with a filter.
  CONVOY_HOST_DEVICE Index source(Index filter) const {
    if (sources == filters) return filter;
    return interleaved ? filter / (filters / sources) : filter % sources;
  }
};

/// The copies that a shuffled convolution may need, on one kind of device. Elements have
/// `element_bytes` bytes, 2 or 4. Tensors do not overlap.
class ShuffleCopies {
 public:
  virtual ~ShuffleCopies() = default;
  /// The output from [N, Z, P, Q, sources] before the shuffle: the results (sources = K), or the
  /// residual (`of_residual`, which is not of the output's shape).
  virtual void to_output(void* output, const void* from, const ConvGeometry& geometry,
                         const OutputShuffle& shuffle, bool of_residual, std::size_t element_bytes,
                         cudaStream_t stream) const = 0;
  /// The residual of each filter, [N, Z, P, Q, K]; zeros in dropped frames.
  virtual void residual_of_filters(void* to, const void* residual, const ConvGeometry& geometry,
                                   const OutputShuffle& shuffle, std::size_t element_bytes,
                                   cudaStream_t stream) const = 0;
};

/// Those of host memory.
const ShuffleCopies& host_shuffle_copies();

}  // namespace convoy
