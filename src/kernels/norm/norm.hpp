// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "core/norm.hpp"

namespace convoy {

/// norm_group.cu
std::unique_ptr<NormKernel> make_cuda_group_norm(const NormRequest& request);
/// norm_rms.cu
std::unique_ptr<NormKernel> make_cuda_rms_norm(const NormRequest& request);

}  // namespace convoy
