// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "core/candidate.hpp"

namespace convoy::small {

/// "general": any legal problem, bf16, fp16 and fp32.
std::unique_ptr<KernelCandidate> make_general_candidate();
/// "depthwise": one channel a group.
std::unique_ptr<KernelCandidate> make_depthwise_candidate();
/// "grouped": 2, 4, 8 or 16 channels and filters a group.
std::unique_ptr<KernelCandidate> make_grouped_candidate();
/// "grouped_patch": a multiple of 8 channels and filters a group.
std::unique_ptr<KernelCandidate> make_grouped_patch_candidate();
/// "few_channels": few input channels (image stems, conv_in).
std::unique_ptr<KernelCandidate> make_few_channels_candidate();
/// "few_channels_fma": few input channels in fp32.
std::unique_ptr<KernelCandidate> make_few_channels_fma_candidate();
/// "narrow_input": 1 to 8 input channels (image stems, volumes, sound).
std::unique_ptr<KernelCandidate> make_narrow_input_candidate();
/// "pointwise": 1×1 between few channels.
std::unique_ptr<KernelCandidate> make_pointwise_candidate();
/// "pointwise_narrow": 1×1 to few filters over many pixels.
std::unique_ptr<KernelCandidate> make_pointwise_narrow_candidate();
/// "pointwise_stream": 1×1 of few channels and filters over many pixels.
std::unique_ptr<KernelCandidate> make_pointwise_stream_candidate();
/// "line_stream": filters of one row, of few channels and filters, over long lines (sound).
std::unique_ptr<KernelCandidate> make_line_stream_candidate();
/// "sliced_k_16x16", ...: few outputs (networks of batch 1).
void add_sliced_k_candidates(CandidateList& list);
/// "few_filters": few filters (conv_out).
std::unique_ptr<KernelCandidate> make_few_filters_candidate();
/// "few_filters_async": the same, loaded by cp.async.
std::unique_ptr<KernelCandidate> make_few_filters_async_candidate();

/// Append all of them.
void register_kernels(CandidateList& list);

}  // namespace convoy::small
