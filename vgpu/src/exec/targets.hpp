// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "ptx/module.hpp"

namespace vgpu::exec {

/// Empty, or what a form of a module with this .target lacks: "needs .target sm_90 or later".
/// ptxas would refuse it; text that is embedded as PTX alone has not met ptxas.
std::string newer_than_target(const ptx::Form& form, const std::string& target);

}  // namespace vgpu::exec
