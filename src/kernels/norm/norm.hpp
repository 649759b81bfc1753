// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "core/norm.hpp"

namespace convoy::norm {

/// Append both norms of CUDA devices.
void register_norms(NormBackendList& list);

/// group_norm.cu
std::unique_ptr<NormKernel> make_group_norm(const NormRequest& request);
/// rms_norm.cu
std::unique_ptr<NormKernel> make_rms_norm(const NormRequest& request);

}  // namespace convoy::norm
