// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "core/candidate.hpp"
#include "core/norm.hpp"

namespace convoy::cpu {

/// Append the CPU's convolutions, as kKernelNames names them (onednn_conv.cpp).
void register_kernels(CandidateList& list);

/// GroupNorm and RMSNorm (norm.cpp).
std::unique_ptr<NormKernel> make_norm(const NormRequest& request);

}  // namespace convoy::cpu
