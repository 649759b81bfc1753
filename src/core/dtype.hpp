// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "convoy/dtype.hpp"  // Its place. Sources that say "core/dtype.hpp" are to say that.
