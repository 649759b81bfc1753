// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "core/candidate.hpp"

namespace convoy::sm90 {

/// "sm90_stem": few input channels (conv_in of decoders and U-Nets) on Hopper.
std::unique_ptr<KernelCandidate> make_stem_candidate();

}  // namespace convoy::sm90
