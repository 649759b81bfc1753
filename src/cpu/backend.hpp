// SPDX-License-Identifier: Apache-2.0
//
// The one name that libconvoy_cpu.so exports, and what dispatch gets by it. Plain headers: dispatch
// includes this in builds that know nothing of oneDNN.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "convoy/export.h"
#include "convoy/version.hpp"
#include "core/candidate.hpp"
#include "core/norm.hpp"
#include "core/text.hpp"

namespace convoy::cpu {

/// Raise it where a class that crosses between the libraries changes (core/candidate.hpp,
/// core/norm.hpp, Backend).
inline constexpr int kInterface = 3;

/// Names of the convolution kernels, known before the backend is loaded.
inline constexpr std::array kKernelNames = {"onednn"};

struct Backend {
  /// What the library was built as: `interface_text()` there. Stays the first field; nothing else
  /// is read where it differs.
  const char* interface = nullptr;
  const char* onednn = nullptr;  ///< "oneDNN 2.6.3"
  void (*register_kernels)(CandidateList& list) = nullptr;
  std::unique_ptr<NormKernel> (*make_norm)(const NormRequest& request) = nullptr;
};

/// C++ objects cross between the libraries, so that both must be of one version, compiled alike.
inline std::string interface_text() {
  return text("convoy ", CONVOY_VERSION_MAJOR, ".", CONVOY_VERSION_MINOR, ".", CONVOY_VERSION_PATCH,
              ", interface ", kInterface, ", C++ ABI ", __GXX_ABI_VERSION,
#ifdef _GLIBCXX_USE_CXX11_ABI
              "-", _GLIBCXX_USE_CXX11_ABI,
#endif
              ", sizes ", sizeof(PlanRequest), "-", sizeof(RunPointers), "-", sizeof(Judgement),
              "-", sizeof(NormRequest), "-", sizeof(NormArguments));
}

}  // namespace convoy::cpu

extern "C" CONVOY_API const convoy::cpu::Backend* convoy_cpu_backend();
