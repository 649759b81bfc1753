// SPDX-License-Identifier: Apache-2.0
#include "cutlass_convolution.hpp"

#include "convoy/error.hpp"
#include "convoy/info.hpp"
#include "cutlass_tiles.hpp"  // Generated: kCutlassTiles, kCutlassVersion.

namespace convoy::bench {

std::string cutlass_version() {
  return kCutlassVersion;
}

std::vector<CutlassConvolution> cutlass_convolutions(const ConvGeometry& g, DType dtype) {
  const bool zero_padding =
      g.pad_mode == std::array<PadMode, 3>{PadMode::zero, PadMode::zero, PadMode::zero};
  if (dtype != DType::bf16 || g.groups != 1 || g.upsample != 1 || !zero_padding ||
      g.in_channels % 8 != 0 || g.out_channels % 8 != 0) {
    throw Error(Status::unsupported,
                "CUTLASS is compared on bf16 without groups, upsampling and padding modes, with "
                "channels and filters that are multiples of 8");
  }
  const int multiprocessors = cuda_device(-1).value().multiprocessors;
  std::vector<CutlassConvolution> list;
  for (const CutlassTileFunction add : kCutlassTiles) add(g, multiprocessors, list);
  return list;
}

}  // namespace convoy::bench
