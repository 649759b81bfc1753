// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "convoy/types.hpp"
#include "shape_file.hpp"

namespace convoy::bench {

struct VersusOptions {
  DType dtype = DType::bf16;  ///< Of shapes that do not say theirs.
  bool allow_tf32 = false;    ///< fp32 by TF32 on both sides; else by neither.
  double seconds = 0.03;      ///< Of timed runs, each side of each shape.
  int min_runs = 15;
  /// Runs of a CUDA graph that is timed as a whole, each on tensors of its own as long as those
  /// that L2 holds are not over again: how layers follow each other in a network. 1: single runs.
  int chain = 1;
  std::string kernel;        ///< Convoy's kernel; empty: the one that dispatch chooses.
  bool all_kernels = false;  ///< Time every kernel that the model gives a chance; keep the best.
  /// With all_kernels: those alone whose names begin with one of these; none: all.
  std::vector<std::string> families;
  std::string engines;      ///< cuDNN's plans alone whose kernels have this in their names: "sm80".
  bool cutlass = false;     ///< CUTLASS's convolutions for 8.0 in place of cuDNN's plans.
  std::string tuning_path;  ///< With all_kernels: the best of each shape, as a tuning file.
  double budget_s = 1e9;    ///< No shape is begun after that many seconds.
  /// Shapes part, part + parts, part + 2 parts ... alone: several processes share a list.
  int part = 0, parts = 1;
  /// Held while the GPU is timed, so that such processes build plans at once and time in turn.
  std::string lock_path;
  std::string csv_path;  ///< Empty: none; "-": stdout, and the table on stderr.
};

struct VersusSet {
  std::string name;
  std::vector<cli::ShapeCase> cases;
};

/// Time every shape with Convoy and with its peer, the best plan of cuDNN or kernel of CUTLASS: one
/// process, runs interleaved, L2 flushed before each, random data. Prints a table with GEMM and
/// copy ceilings measured in this run, and per set the geometric mean and the count-weighted total.
/// CSV columns: set, name, problem, count, convoy_us, cudnn_us, ratio, tflops, pct_ceiling, kernel,
/// dtype, cudnn (its version), cudnn_kernels; "cutlass" for "cudnn" where that is the peer. Returns
/// the number of shapes whose outputs differ from the peer's.
int compare_with_cudnn(const std::vector<VersusSet>& sets, const VersusOptions& options);

}  // namespace convoy::bench
