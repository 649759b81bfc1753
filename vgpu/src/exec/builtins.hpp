// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "exec/decoder.hpp"

namespace vgpu::exec {

/// Handler of a call to a function of the device runtime (vprintf, __assertfail); null for others.
/// `arguments` are local-memory offsets of the call's parameters, `result` that of its result.
Handler builtin_handler(Decoder& d, const std::string& name, const std::vector<uint32_t>& arguments,
                        uint32_t result);

}  // namespace vgpu::exec
