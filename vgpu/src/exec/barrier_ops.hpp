// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exec/machine.hpp"

namespace vgpu::exec {

/// Threads a barrier waits for: its count, or all that have not exited.
uint32_t barrier_expectation(const Cta& cta, const CtaBarrier& barrier);
/// A warp has exited (live counts are updated): barriers that waited for it may complete.
void leave_barriers(Warp& w);

}  // namespace vgpu::exec
