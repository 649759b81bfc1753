// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "convoy/types.hpp"

namespace convoy::test {

/// Memory on a device between two guard zones. It starts as all ones, which is NaN in every type,
/// so that an element nobody wrote shows.
class GuardedBuffer {
 public:
  GuardedBuffer() = default;
  /// `bytes` on the CPU or the current CUDA device.
  GuardedBuffer(Device device, std::size_t bytes);

  void* data() const;
  std::size_t bytes() const { return bytes_; }
  void upload(const void* from);
  void fill_with_nan();
  std::vector<unsigned char> download() const;
  /// Whether nothing was written around it.
  bool guards_intact() const;

 private:
  Device device_ = Device::cpu;
  std::size_t bytes_ = 0;
  std::shared_ptr<unsigned char> memory_;
};

/// Wait for the device. Throws where something failed on it.
void synchronize(Device device);

}  // namespace convoy::test
