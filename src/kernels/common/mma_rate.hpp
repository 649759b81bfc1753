// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "convoy/info.hpp"

namespace convoy {

/// What mma.sync does on a GPU, of 16-bit types with fp32 sums.
struct MmaRate {
  double macs_per_cycle;  ///< Products a cycle, of a multiprocessor.
  double cycles_per_us;   ///< The clock.
  /// Products a cycle of a block whose MMAs leave nothing else to wait for. NOTE: 518 TFLOP/s on
  /// an H200, measured without copies (docs/lab/2026-11-22-mma.md); the fit counts more, and gives
  /// part of that time to the copies.
  double bare_macs_per_cycle = macs_per_cycle;
  double per_us() const { return macs_per_cycle * cycles_per_us; }
};

/// As measured on an H200, by whose times the models are fitted; for others from NVIDIA's white
/// papers of the A100, GA102, Ada and RTX Blackwell (boost clocks), where GeForce cards have half
/// the rate.
inline MmaRate mma_rate(const DeviceInfo& device) {
  const double half = device.name.find("GeForce") != std::string::npos ? 256 : 512;
  switch (device.compute_capability) {
    case 80:
      return {1024, 1410};
    case 86:
    case 87:
      return {half, 1695};
    case 89:
      return {half, 2520};
    case 120:
    case 121:
      return {half, 2407};
    default:
      return {1900, 1700, 1154};
  }
}

/// The rate of a multiprocessor over that of an H200's.
inline double mma_share(const DeviceInfo& device) {
  return mma_rate(device).per_us() / mma_rate({}).per_us();
}

}  // namespace convoy
