// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "exec/observer.hpp"

namespace vgpu {
class GlobalMemory;
}

/// The checks that watch a kernel run: an exec::Observer that keeps a happens-before order over
/// shared memory and TMEM and stops the kernel at the first access that breaks a rule.
namespace vgpu::check {

struct CheckOptions {
  bool race = false;     ///< conflicting accesses of shared memory or TMEM that nothing orders
  bool proxy = false;    ///< generic writes that an async-proxy access needs, without a proxy fence
  bool tcgen05 = false;  ///< tcgen05.fence::before/after_thread_sync around thread synchronisation
  bool init = false;     ///< reads of unwritten shared memory, TMEM and global memory
  bool mbarrier = false;  ///< use before initialisation is ordered, objects overwritten in use
  bool leak = false;      ///< TMEM still allocated at exit
  /// Generic reads that an async-proxy write follows, without a proxy fence.
  bool reads = false;
  /// Registers of wgmma and tcgen05.ld used while the operation is in flight, or without a
  /// wgmma.fence.
  bool registers = false;
  /// What kernels in the field do and get away with stops the kernel too: missing tcgen05 fences,
  /// mbarriers published by relaxed arrivals, stores not awaited at the end, lanes that exchange
  /// data without a __syncwarp(). Otherwise the first of
  /// each kind in a module is told through `note`.
  bool strict = false;

  bool any() const {
    return race || proxy || tcgen05 || init || mbarrier || leak || reads || registers;
  }

  /// "all" (but reads and strict), "none" or a comma-separated list of race, proxy, tcgen05, init,
  /// mbarrier, leak, registers, reads, strict; oob is accepted too (bounds are always checked).
  /// Throws Fault (kInvalidValue) that names the unknown word.
  static CheckOptions parse(std::string_view list);
};

/// `memory` serves the initcheck of global memory; null leaves that part out. `note` gets remarks
/// that do not stop the kernel, from any thread, one at a time.
std::unique_ptr<exec::Observer> make_checker(const CheckOptions& options, GlobalMemory* memory,
                                             std::function<void(std::string_view)> note);

}  // namespace vgpu::check
