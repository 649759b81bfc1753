// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace convoy::cli {

/// A kernel's time on a layer: a line of a CSV file of convoy_measure_kernels or of
/// `convoy tune --csv`.
struct MeasuredTime {
  std::string problem;  ///< "n1h56w56c64k64r3s3ph1pw1"
  std::string dtype = "bf16";
  std::string epilogue = "none";  ///< As parse_epilogue() takes it.
  std::string kernel;
  int splits = 0;  ///< Of the reduction; 0 where the kernel has none, or the file does not say.
  double us = 0;
  double modelled_us = 0;  ///< 0 where the file does not say.

  /// The layer, for those that look for the fastest kernel of one.
  std::string layer() const { return problem + ' ' + dtype + ' ' + epilogue; }
};

/// Columns are found by their names: problem, kernel and us must be there; others of the above may
/// be missing. Lines that begin with '#', and empty ones, are passed over. Throws Error{io_error}
/// that names file and line.
std::vector<MeasuredTime> read_measured_times(const std::string& path);

}  // namespace convoy::cli
