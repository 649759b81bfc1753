// SPDX-License-Identifier: Apache-2.0
#include "runtime/observers.hpp"

namespace vgpu::runtime {

Observers::Observers(const Options&, GlobalMemory&) {}
Observers::~Observers() = default;

}  // namespace vgpu::runtime
