// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Version of the headers. `CONVOY_VERSION` is one comparable number: 10000·major + 100·minor +
/// patch. `convoy::version()` (plan.hpp) gives the version of the library that is linked.
#define CONVOY_VERSION_MAJOR 0
#define CONVOY_VERSION_MINOR 1
#define CONVOY_VERSION_PATCH 0
#define CONVOY_VERSION \
  (CONVOY_VERSION_MAJOR * 10000 + CONVOY_VERSION_MINOR * 100 + CONVOY_VERSION_PATCH)
