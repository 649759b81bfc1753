// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "convoy/convoy.hpp"
#include "core/candidate.hpp"
#include "core/geometry.hpp"

namespace convoy::test {

/// One convolution to run and check: everything but the tensors, which follow from the seed.
struct ConvCase {
  std::uint64_t seed = 1;
  ProblemShape problem;
  PlanOptions options;  ///< `device` and `kernel` say where; `epilogue` is taken from below.
  Epilogue epilogue;    ///< Values only; the pointers are those of the case's own tensors.
  bool bias = false;
  bool residual = false;
  bool residual_in_place = false;  ///< The residual is the output.
  FilterLayout filter_layout = FilterLayout::krsc;
  /// Small integers, which determine every bit of the output where the epilogue is exact on them;
  /// else reals.
  bool exact = false;
  float bias_offset = 0.0f;     ///< Added to every bias: outputs of a large mean.
  bool next_cache = false;      ///< 3-D: ask for the next causal cache.
  bool bring_workspace = true;  ///< Give the workspace, or leave it to the CPU backend.
  int runs = 2;                 ///< All must give the same bits.
  /// The bound has what UpsampleFolding says of filters with a folded upsampling.
  bool allow_folding = true;
  std::int64_t sample = 0;  ///< Elements of the output to compare, evenly spread; 0: all.

  /// Enqueues a kernel in the plan's place, where it is set; it reads the filter as it lies.
  std::function<void(const ConvGeometry&, const RunPointers&)> launch;
};

/// Of small integers on the CUDA device, once: what kernels with a device of their own are tested
/// with.
ConvCase image(const Conv2dProblemShape& shape);
ConvCase volume(const Conv3dProblemShape& shape);

/// The problem that has this geometry, as the public interface has it.
ProblemShape problem_of(const ConvGeometry& geometry);

struct CaseLimits {
  double flops = 2e7;  ///< Largest problem.
  /// Only what GPU kernels were made for: fewer odd channel counts.
  bool aligned_channels = false;
};

/// A legal case; the same for the same seed and limits.
ConvCase random_case(std::uint64_t seed, const CaseLimits& limits);

/// The case with other extents, filter size and channels: one that the same kernel may run with
/// another tile. Within the limits; the same for the same seed.
ConvCase random_sibling(const ConvCase& c, std::uint64_t seed, const CaseLimits& limits);

/// One line that shows the case.
std::string describe(const ConvCase& c);

/// What `plan` and `candidates` are asked for.
PlanOptions options_of(const ConvCase& c);
Plan plan_case(const ConvCase& c);
std::vector<Candidate> candidates_of(const ConvCase& c);

/// A case that is ready to run, any number of times: planned, filter packed, tensors on the device,
/// what it must give computed. Throws convoy::Error where the plan is refused, std::runtime_error
/// where the device fails.
class PreparedCase {
 public:
  explicit PreparedCase(const ConvCase& c);
  ~PreparedCase();
  PreparedCase(PreparedCase&&) noexcept;
  PreparedCase& operator=(PreparedCase&&) noexcept;

  /// The same plan, packed filter and expectation with tensors of its own.
  PreparedCase twin() const;

  const ConvCase& conv_case() const;
  const std::string& kernel() const;

  /// Fills what is written with NaN and enqueues the plan.
  void run(cudaStream_t stream = nullptr);

  /// Waits for the stream and says what is wrong with the last run; empty if nothing is. The output
  /// must be what the reference says and have the bits that the first run of this case had; the
  /// next cache and the statistics must be right; nothing may have changed around the buffers, nor
  /// in what is only read: activation, filter, packed filter, bias, cache, residual.
  std::string check(cudaStream_t stream = nullptr);

 private:
  struct Shared;
  struct Tensors;
  explicit PreparedCase(std::shared_ptr<Shared> shared);
  std::shared_ptr<Shared> shared_;
  std::unique_ptr<Tensors> tensors_;
};

struct CaseResult {
  bool pass = false;
  std::string kernel;
  std::string detail;  ///< What is wrong; empty where it passed.
};

/// Prepare the case, run it `runs` times and check each. Throws as PreparedCase does.
CaseResult run_case(const ConvCase& c);

/// What is wrong with the case, refusals and failures of the device included; empty if nothing is.
std::string wrong_with(const ConvCase& c);

}  // namespace convoy::test
