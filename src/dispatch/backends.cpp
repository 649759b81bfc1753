// SPDX-License-Identifier: Apache-2.0
#include "dispatch/backends.hpp"

#include "dispatch/shuffled.hpp"
#include "dispatch/statistics.hpp"

#ifdef CONVOY_WITH_CPU
#include "dispatch/cpu_library.hpp"
#endif
#ifdef CONVOY_WITH_CUDA
#include "kernels/composed/candidates.hpp"
#include "kernels/composed/rewriting.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/mma/candidates.hpp"
#include "kernels/norm/norm.hpp"
#include "kernels/small/candidates.hpp"
#endif
#ifdef CONVOY_WITH_SM90
#include "kernels/sm90/candidates.hpp"
#endif
#ifdef CONVOY_WITH_SM100
#include "kernels/sm100/candidates.hpp"
#endif

namespace convoy {

// To add a backend: declare `register_kernels` in its folder's candidates.hpp, call it here, and
// name it in `backends`.
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
    mma::register_kernels(list);
    composed::apply_rewritings(list);
    // Composed kernels choose among the implicit GEMMs, which are all that is listed so far.
    std::size_t first = list.size();
    composed::register_kernels(list, composed::InnerKernels(list));
    small::register_kernels(list);
    composed::apply_rewritings(list, first);
    first = list.size();
    composed::register_copies(list, composed::InnerKernels(list));
    composed::apply_rewritings(list, first);
#endif
#ifdef CONVOY_WITH_CPU
    register_cpu_kernels(list);
#endif
    apply_shuffle(list);
    apply_statistics(list);
    return list;
  }();
  return all;
}

const NormBackendList& norm_registry() {
  static const NormBackendList all = [] {
    NormBackendList list;
#ifdef CONVOY_WITH_CUDA
    norm::register_norms(list);
#endif
#ifdef CONVOY_WITH_CPU
    register_cpu_norms(list);
#endif
    return list;
  }();
  return all;
}

const ElementwiseBackend* elementwise_backend() {
#ifdef CONVOY_WITH_CUDA
  static const auto backend = elementwise::make_backend();
  return backend.get();
#else
  return nullptr;
#endif
}

std::vector<BackendInfo> backends() {
  std::vector<BackendInfo> list;
#ifdef CONVOY_WITH_CPU
  BackendInfo cpu;
  const std::string version = cpu_library_version(&cpu.absent);
  cpu.name = version.empty() ? "cpu" : "cpu (" + version + ")";
  list.push_back(cpu);
#endif
#ifdef CONVOY_WITH_SM90
  list.push_back({"cuda sm_90a (Hopper)", ""});
#endif
#ifdef CONVOY_WITH_SM100
  list.push_back({"cuda sm_100f (Blackwell)", ""});
#endif
#ifdef CONVOY_WITH_CUDA
  list.push_back({"cuda sm_80 and later", ""});
#endif
  return list;
}

std::vector<KernelInfo> kernels() {
  std::vector<KernelInfo> list;
  for (const auto& kernel : registry()) list.push_back({kernel->name(), kernel->device()});
  return list;
}

}  // namespace convoy
