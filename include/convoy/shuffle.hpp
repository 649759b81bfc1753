// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "convoy/export.h"

namespace convoy {

/// Which filters make the channels of one output pixel, with factors (ft, fh, fw) and C' = K /
/// (ft·fh·fw) channels behind the shuffle.
enum class ShuffleOrder : int {
  /// Filter ((c·ft + dt)·fh + dh)·fw + dw: torch's pixel_shuffle, DC-AE, LTX, Mochi.
  channels_outer = 0,
  /// Filter ((dt·fh + dh)·fw + dw)·C' + c: HunyuanVideo 1.5; Wan's frames, whose factors are
  /// (2, 1, 1). Neighbouring channels are neighbouring filters: nothing is permuted.
  channels_inner = 1,
};
/// The enumerator's name, "channels_outer".
CONVOY_API const char* to_string(ShuffleOrder order) noexcept;

/// What Epilogue::residual is where the output is shuffled.
enum class ShuffleResidual : int {
  output = 0,       ///< A tensor of the output's shape.
  interleaved = 1,  ///< [N, Z, P, Q, R] before the shuffle: filter k adds channel k / (K / R).
  tiled = 2,        ///< [N, Z, P, Q, R] before the shuffle: filter k adds channel k mod R.
};
/// The enumerator's name, "interleaved".
CONVOY_API const char* to_string(ShuffleResidual residual) noexcept;

/// Depth to space at the store: filters become frames, rows and columns. Element (z, p, q) of
/// filter (c, dt, dh, dw) is channel c of output frame z·ft + dt − dropped_frames, row p·fh + dh,
/// column q·fw + dw. The output is [N, Z·ft − dropped_frames, P·fh, Q·fw, C'] (2-D: without
/// frames). The problem's own extents and the bias, [K], are those before the shuffle.
struct OutputShuffle {
  std::array<std::int64_t, 3> factors = {1, 1, 1};     ///< ft, fh, fw; their product divides K.
  ShuffleOrder order = ShuffleOrder::channels_outer;   ///< Which filters are which pixels.
  std::int64_t dropped_frames = 0;                     ///< First frames left out, less than ft.
  ShuffleResidual residual = ShuffleResidual::output;  ///< What the residual is, if there is one.
  std::int64_t residual_channels = 0;  ///< R of `interleaved` and `tiled`, which divides K; else 0.

  /// ft·fh·fw.
  std::int64_t phases() const { return factors[0] * factors[1] * factors[2]; }
  /// There is something to rearrange.
  bool any() const { return factors != std::array<std::int64_t, 3>{1, 1, 1}; }
  /// All fields are equal.
  friend bool operator==(const OutputShuffle&, const OutputShuffle&) = default;
};

/// "shuffle(1x2x2)", "shuffle(2x2x2,inner,drop1,interleaved512)"; "none" where nothing is done.
CONVOY_API std::string to_string(const OutputShuffle& shuffle);

}  // namespace convoy
