// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "convoy/geometry.hpp"  // Its place. Sources that say "core/geometry.hpp" are to say that.
