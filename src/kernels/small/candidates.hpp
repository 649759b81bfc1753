// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "core/candidate.hpp"

namespace convoy {

/// "portable_general": any legal problem, bf16, fp16 and fp32.
std::unique_ptr<KernelCandidate> make_general_candidate();
/// "portable_depthwise": one channel a group.
std::unique_ptr<KernelCandidate> make_depthwise_candidate();
/// "portable_grouped": 2, 4, 8 or 16 channels and filters a group.
std::unique_ptr<KernelCandidate> make_grouped_candidate();
/// "portable_patch": few input channels (image stems, conv_in).
std::unique_ptr<KernelCandidate> make_patch_candidate();
/// "portable_pointwise": 1×1 between few channels.
std::unique_ptr<KernelCandidate> make_pointwise_candidate();
/// "portable_halo": few filters (conv_out).
std::unique_ptr<KernelCandidate> make_halo_candidate();

namespace small {

/// Append all of them.
void register_kernels(CandidateList& list);

}  // namespace small
}  // namespace convoy
