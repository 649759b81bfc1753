// SPDX-License-Identifier: Apache-2.0
#pragma once

/// First part of the headers' version. `CONVOY_VERSION` is one comparable number;
/// `convoy::version()` (plan.hpp) gives the version of the library that is linked.
#define CONVOY_VERSION_MAJOR 0
/// Second part of the version.
#define CONVOY_VERSION_MINOR 1
/// Third part of the version.
#define CONVOY_VERSION_PATCH 0
/// 10000·major + 100·minor + patch.
#define CONVOY_VERSION \
  (CONVOY_VERSION_MAJOR * 10000 + CONVOY_VERSION_MINOR * 100 + CONVOY_VERSION_PATCH)
