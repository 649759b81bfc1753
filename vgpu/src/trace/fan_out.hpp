// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "exec/observer.hpp"

namespace vgpu::trace {

/// An observer that passes every event on to several, in order. The parts must outlive it.
std::unique_ptr<exec::Observer> make_fan_out(std::vector<exec::Observer*> parts);

}  // namespace vgpu::trace
