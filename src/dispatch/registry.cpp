// SPDX-License-Identifier: Apache-2.0
#include "dispatch/registry.hpp"

namespace convoy {

// To add a backend: declare its function in core/candidate.hpp and call it here under the
// definition that its folder sets (see there).
const CandidateList& registry() {
  static const CandidateList all = [] {
    CandidateList list;
#ifdef CONVOY_REGISTER_SM100
    register_sm100_kernels(list);
#endif
#ifdef CONVOY_REGISTER_SM90
    register_sm90_kernels(list);
#endif
#ifdef CONVOY_REGISTER_COMPOSED
    register_composed_kernels(list);
#endif
#ifdef CONVOY_REGISTER_PORTABLE
    register_portable_kernels(list);
#endif
#ifdef CONVOY_REGISTER_CPU
    register_cpu_kernels(list);
#endif
    return list;
  }();
  return all;
}

}  // namespace convoy
