// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <memory>

#include "exec/observer.hpp"

namespace vgpu::trace {

/// Counts what kernels do. For each kernel name, over all its launches:
/// - instructions by kind for each warp role (warps of a CTA whose code is alike);
/// - TMA and bulk copies: operations and bytes; MMA: operations, multiply-accumulates, FLOP;
/// - barrier waits: how often a warp had to wait, and the waits that did not;
/// - shared-memory bank conflicts for each access, worst first.
/// NOTE: counts, not times: the virtual GPU is no performance model.
class Statistics : public exec::Observer {
 public:
  /// The text of everything counted so far.
  virtual std::string report() const = 0;
};

std::unique_ptr<Statistics> make_statistics();

/// Passes over the 32 banks that one warp access of shared memory takes (1: no conflict). Lanes are
/// served together when they touch the same 4-byte word or different banks; accesses of 8 and 16
/// bytes a lane go in 2 and 4 groups of lanes, as the hardware does.
struct BankPasses {
  uint32_t passes = 0;   ///< what the access takes
  uint32_t minimum = 0;  ///< what as many bytes take without conflicts
};
BankPasses bank_passes(const uint64_t* addresses, uint32_t lanes, uint32_t bytes);

}  // namespace vgpu::trace
