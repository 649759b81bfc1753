// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "core/candidate.hpp"

namespace convoy {

/// The kernel that was measured to be the fastest for a problem, and its time.
struct TunedKernel {
  std::string kernel;
  double us = 0;
};

/// Measured choices, by device, types, epilogue and shape. Text, one choice a line:
///
///   convoy-tuning 2
///   # comment
///   85.6 few_filters | NVIDIA H200 | bf16>bf16 packed | plain | n1 d0+1 h1024 w1024 c128 k3 ...
///
/// The first line names the version of the format. Lines of version 1 have no epilogue, and are
/// read as "plain": so was measured then. Files of other versions are refused.
class TuningDatabase {
 public:
  /// Reads the text of a file; `origin` is for messages. Throws Error{io_error} naming the line.
  static TuningDatabase parse(std::string_view text, const std::string& origin);
  std::string to_text() const;

  std::optional<TunedKernel> find(const std::string& key) const;
  void set(const std::string& key, TunedKernel choice);
  /// Take over every choice of `other`, also where this one has another.
  void merge(const TuningDatabase& other);
  std::size_t size() const { return choices_.size(); }

 private:
  std::map<std::string, TunedKernel> choices_;
};

/// What of an epilogue decides which kernel is the fastest, since some hide it and others do not:
/// "plain" (at most a scale and a bias), "relu" or "activation" (any other), each with "+residual"
/// where one is added and "+each_step" where each step is rounded.
std::string epilogue_class(const EpilogueKind& epilogue);

/// What a choice is stored under: device name, types, whether the filter is packed, the class of
/// the epilogue, and the shape.
std::string tuning_key(const PlanRequest& request);

/// The file that `convoy tune` writes and plans read: $CONVOY_TUNING, else
/// $XDG_CACHE_HOME/convoy/tuning.txt, else ~/.cache/convoy/tuning.txt; empty where there is no
/// home.
std::string user_tuning_path();

/// The choices shipped in this library (data/tuning), overridden by the user's file. Read once; a
/// user's file that cannot be read is reported in the log and left out.
const TuningDatabase& tuning_database();

}  // namespace convoy
