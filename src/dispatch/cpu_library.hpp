// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/candidate.hpp"
#include "core/norm.hpp"

namespace convoy {

/// Append the CPU's kernels. What they need is loaded at the first call of `judge`, `refusal` or
/// `make`; where it is missing those say so.
void register_cpu_kernels(CandidateList& list);
void register_cpu_norms(NormBackendList& list);

/// "oneDNN 2.6.3"; empty with the reason where the CPU backend cannot be used. Loads it.
std::string cpu_library_version(std::string* reason);

}  // namespace convoy
