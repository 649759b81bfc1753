// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "convoy/geometry.hpp"

namespace convoy {

/// Names of the axes in messages; order depth, height, width, as everywhere.
inline constexpr const char* kAxisNames[3] = {"depth", "height", "width"};

}  // namespace convoy
