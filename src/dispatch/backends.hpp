// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "convoy/info.hpp"
#include "core/candidate.hpp"
#include "core/elementwise.hpp"
#include "core/norm.hpp"

namespace convoy {

// backends.cpp is the one list of backends.

/// Every convolution kernel of this library, the CPU's last.
const CandidateList& registry();

/// The norms of each backend, the CPU's last.
const NormBackendList& norm_registry();

/// The chains of pointwise steps of CUDA devices; null where the library has none.
const ElementwiseBackend* elementwise_backend();

}  // namespace convoy
