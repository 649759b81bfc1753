// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "convoy/tuning.hpp"
#include "core/candidate.hpp"

namespace convoy {

/// What of an epilogue decides which kernel is the fastest, since some hide it and others do not:
/// "plain" (at most a scale and a bias), "relu" or "activation" (any other), each with "+residual"
/// where one is added and "+each_step" where each step is rounded.
std::string epilogue_class(const EpilogueKind& epilogue);

std::string tuning_key(const PlanRequest& request);

/// The text of data/tuning, built into this library.
TuningDatabase shipped_tuning();

/// The choices shipped in this library (data/tuning), overridden by the user's file. Read once; a
/// user's file that is there or named by CONVOY_TUNING, and cannot be read, is reported in one line
/// on the standard error stream, whatever the log's level, and left out.
const TuningDatabase& tuning_database();

}  // namespace convoy
