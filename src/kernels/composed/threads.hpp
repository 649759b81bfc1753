// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace convoy::composed {

/// Threads of a block of each kernel that copies.
inline constexpr int kThreads = 256;

}  // namespace convoy::composed
