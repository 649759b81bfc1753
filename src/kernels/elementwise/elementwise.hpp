// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "core/elementwise.hpp"

namespace convoy::elementwise {

/// The chains of CUDA devices.
std::unique_ptr<ElementwiseBackend> make_backend();

}  // namespace convoy::elementwise
