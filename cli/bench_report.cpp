// SPDX-License-Identifier: Apache-2.0
#include "bench_report.hpp"

#include <cmath>
#include <cstdio>

#include "json_output.hpp"

namespace convoy::cli {
namespace {

/// A CSV field: quoted where it must be.
std::string csv(const std::string& field) {
  if (field.find_first_of(",\"\n") == field.npos) return field;
  std::string out = "\"";
  for (char c : field) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + '"';
}

nlohmann::ordered_json to_json(const BenchRow& row) {
  nlohmann::ordered_json json = {{"problem", row.info.problem},
                                 {"name", row.name},
                                 {"count", row.count},
                                 {"dtype", to_string(row.dtype)},
                                 {"epilogue", row.epilogue},
                                 {"backend", row.info.backend},
                                 {"kernel", row.info.kernel},
                                 {"runs", row.time.runs},
                                 {"median_us", row.time.median_us},
                                 {"min_us", row.time.min_us},
                                 {"noise", row.time.noise},
                                 {"gflops", row.gflops()},
                                 {"gbytes_per_s", row.gbytes()},
                                 {"repro", row.repro}};
  if (row.error_of_bound) {
    json["verified"] = row.verified;
    json["error_of_bound"] = *row.error_of_bound;
  }
  return json;
}

void print_csv_row(const BenchRow& row, bool verify) {
  std::printf("%s,%s,%lld,%s,%s,%s,%s,%d,%.3f,%.3f,%.4f,%.1f,%.1f", csv(row.info.problem).c_str(),
              csv(row.name).c_str(), static_cast<long long>(row.count), to_string(row.dtype),
              csv(row.epilogue).c_str(), csv(row.info.backend).c_str(),
              csv(row.info.kernel).c_str(), row.time.runs, row.time.median_us, row.time.min_us,
              row.time.noise, row.gflops(), row.gbytes());
  if (verify) std::printf(",%s,%.4f", row.verified ? "yes" : "NO", *row.error_of_bound);
  std::printf(",%s\n", csv(row.repro).c_str());
}

void print_table_row(const BenchRow& row, bool first) {
  if (first) {
    std::printf("# %s, %s, epilogue: %s\n", row.backend_line.c_str(), to_string(row.dtype),
                row.epilogue.c_str());
    std::printf("%-44s %5s  %-24s %12s %7s %10s %8s  %s\n", "problem", "count", "kernel",
                "median us", "noise", "GFLOP/s", "GB/s", "check");
  }
  std::string check;
  if (row.error_of_bound) {
    char text[48];
    std::snprintf(text, sizeof(text), "%s %.3f of bound", row.verified ? "ok" : "FAILED",
                  *row.error_of_bound);
    check = text;
  }
  std::printf("%-44s %5lld  %-24s %12.1f %6.1f%% %10.1f %8.1f  %s\n", row.info.problem.c_str(),
              static_cast<long long>(row.count), row.info.kernel.c_str(), row.time.median_us,
              100 * row.time.noise, row.gflops(), row.gbytes(), check.c_str());
  std::printf("    %s%s%s\n", row.repro.c_str(), row.name.empty() ? "" : "   # ", row.name.c_str());
}

}  // namespace

BenchReport::BenchReport(BenchFormat format, bool verify) : format_(format), verify_(verify) {
  if (format_ == BenchFormat::csv) {
    std::printf(
        "problem,name,count,dtype,epilogue,backend,kernel,runs,median_us,min_us,noise,gflops,"
        "gbytes_per_s%s,repro\n",
        verify_ ? ",verified,error_of_bound" : "");
  }
}

void BenchReport::add(const BenchRow& row) {
  all_verified_ = all_verified_ && row.verified;
  if (format_ == BenchFormat::csv) print_csv_row(row, verify_);
  if (format_ == BenchFormat::table) print_table_row(row, rows_.empty());
  std::fflush(stdout);
  rows_.push_back(row);
}

void BenchReport::finish() {
  double total_us = 0, total_flops = 0, log_sum = 0;
  int timed = 0;
  for (const BenchRow& row : rows_) {
    total_us += double(row.count) * row.time.median_us;
    total_flops += double(row.count) * row.info.flops;
    if (row.info.flops <= 0) continue;
    log_sum += std::log(row.gflops());
    ++timed;
  }
  const double geomean = timed > 0 ? std::exp(log_sum / timed) : 0;
  if (format_ == BenchFormat::json) {
    nlohmann::ordered_json json = empty_object(), cases = empty_array();
    for (const BenchRow& row : rows_) cases.push_back(to_json(row));
    json["cases"] = std::move(cases);
    json["total_us"] = total_us;
    json["total_gflop"] = total_flops / 1e9;
    json["geomean_gflops"] = geomean;
    print(json);
  }
  if (format_ == BenchFormat::table && rows_.size() > 1) {
    std::printf(
        "total, weighted by count: %.3f ms, %.1f GFLOP, %.1f GFLOP/s; geomean %.1f GFLOP/s\n",
        total_us / 1e3, total_flops / 1e9, total_flops / (total_us * 1e3), geomean);
  }
}

}  // namespace convoy::cli
