// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "convoy/plan.hpp"
#include "measure.hpp"

namespace convoy::cli {

/// One timed case.
struct BenchRow {
  std::string name;
  std::int64_t count = 1;
  PlanInfo info;
  std::string backend_line;  ///< For people: the backend, and why it is not a GPU.
  DType dtype = DType::bf16;
  std::string epilogue;
  Measurement time;
  std::string repro;
  bool verified = true;
  std::optional<double> error_of_bound;  ///< With --verify: largest error / bound.

  double gflops() const { return info.flops / (time.median_us * 1e3); }
  double gbytes() const { return info.min_bytes / (time.median_us * 1e3); }
};

enum class BenchFormat { table, csv, json };

/// Prints rows as they come, and at the end the sum over all layers (weighted by count) and the
/// geometric mean of the speeds.
class BenchReport {
 public:
  BenchReport(BenchFormat format, bool verify);
  void add(const BenchRow& row);
  void finish();
  bool all_verified() const { return all_verified_; }

 private:
  BenchFormat format_;
  bool verify_;
  bool all_verified_ = true;
  std::vector<BenchRow> rows_;
};

}  // namespace convoy::cli
