// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/candidate.hpp"

namespace convoy {

/// Every kernel that was built into this library: backends.cpp is the one list of backends.
const CandidateList& registry();

}  // namespace convoy
