// SPDX-License-Identifier: Apache-2.0
#include "dispatch/backends.hpp"

#ifdef CONVOY_WITH_CPU
#include "cpu/candidates.hpp"
#endif
#ifdef CONVOY_WITH_CUDA
#include "kernels/composed/candidates.hpp"
#include "kernels/small/candidates.hpp"
#endif
#ifdef CONVOY_WITH_SM90
#include "kernels/sm90/candidates.hpp"
#endif
#ifdef CONVOY_WITH_SM100
#include "kernels/sm100/candidates.hpp"
#endif

namespace convoy {

// To add a backend: declare `register_kernels` in its folder's candidates.hpp and call it here.
const CandidateList& registry() {
  static const CandidateList all = [] {
    CandidateList list;
#ifdef CONVOY_WITH_SM100
    sm100::register_kernels(list);
#endif
#ifdef CONVOY_WITH_SM90
    sm90::register_kernels(list);
#endif
#ifdef CONVOY_WITH_CUDA
    // Composed kernels choose among the implicit GEMMs, which are all that is listed so far.
    composed::register_kernels(list, composed::InnerKernels(list));
    small::register_kernels(list);
#endif
#ifdef CONVOY_WITH_CPU
    cpu::register_kernels(list);
#endif
    return list;
  }();
  return all;
}

}  // namespace convoy
