// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convoy/export.h"
#include "convoy/info.hpp"
#include "convoy/plan.hpp"
#include "convoy/problem.hpp"

namespace convoy {

/// The kernel that was measured to be the fastest for a problem, and its time.
struct TunedKernel {
  std::string kernel;  ///< Its name.
  double us = 0;       ///< Median of its runs.
};

/// Measured choices, by device, types, epilogue and shape. Text, one choice a line:
///
///   convoy-tuning 2
///   # comment
///   85.6 few_filters | NVIDIA H200 | bf16>bf16 packed | plain | n1 d0+1 h1024 w1024 c128 k3 ...
///
/// The first line names the version of the format. Lines of version 1 have no epilogue, and are
/// read as "plain": so was measured then. Files of other versions are refused.
class CONVOY_API TuningDatabase {
 public:
  /// Bytes of a file; one that has more is refused.
  static constexpr std::int64_t kMostFileBytes = std::int64_t{64} << 20;

  /// Reads the text of a file; `origin` is for messages. Throws Error{io_error} naming the line.
  static TuningDatabase parse(std::string_view text, const std::string& origin);
  /// The text of a file with these choices.
  std::string to_text() const;

  /// The choice stored under a `tuning_key`.
  std::optional<TunedKernel> find(const std::string& key) const;
  /// Store a choice in place of what was there. Throws Error{invalid_argument} for what no
  /// line can hold: a key or a name that is empty or breaks the line, a name with a space, a time
  /// that is not finite and above 0.
  void set(const std::string& key, TunedKernel choice);
  /// Take over every choice of `other`, also where this one has another.
  void merge(const TuningDatabase& other);
  /// Number of choices.
  std::size_t size() const { return choices_.size(); }
  /// By key, in its order.
  const std::map<std::string, TunedKernel>& choices() const { return choices_; }

 private:
  std::map<std::string, TunedKernel> choices_;
};

/// What a choice is stored under: device name, types, whether the filter is packed, the class of
/// the epilogue ("plain": at most a scale and a bias; "relu", "activation"; each with "+residual",
/// "+each_step"), and the shape. Throws Error{invalid_argument} for an illegal shape.
CONVOY_API std::string tuning_key(const ProblemShape& problem, const PlanOptions& options,
                                  const DeviceInfo& device);

/// As `candidates` of plan.hpp, by these measurements in place of the library's: with none the
/// kernels' own models decide.
CONVOY_API std::vector<Candidate> candidates(const ProblemShape& problem,
                                             const PlanOptions& options,
                                             const TuningDatabase& tuning);

/// The file that `convoy tune` writes and plans read: $CONVOY_TUNING, else
/// $XDG_CACHE_HOME/convoy/tuning.txt, else ~/.cache/convoy/tuning.txt; empty where there is no
/// home.
CONVOY_API std::string user_tuning_path();

}  // namespace convoy
