// SPDX-License-Identifier: Apache-2.0
// convoy explain: which kernels could run a problem, and why the others not.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "convoy/convoy.hpp"
#include "json_output.hpp"
#include "options.hpp"
#include "shape_file.hpp"
#include "text.hpp"

namespace convoy::cli {
namespace {

struct ExplainOptions {
  CommonOptions common;
  std::string shape, output_dtype, gpu;
  PrologueWords prologue;
  ShuffleWords shuffle;
  EpilogueOptions epilogue;
  bool dense_filter = false;
  std::int64_t statistics = 0;
};

/// Kernels that can run the problem, a line each; then the refused ones, by reason.
void print_list(const std::vector<Candidate>& list) {
  std::size_t name_width = 0, backend_width = 0;
  for (const Candidate& c : list) {
    if (!c.reason.empty()) continue;
    name_width = std::max(name_width, c.kernel.size());
    backend_width = std::max(backend_width, c.backend.size());
  }
  std::vector<std::string> reasons;  // In the order of their first kernels.
  for (const Candidate& c : list) {
    if (c.reason.empty()) {
      std::printf("  %s %-*s  %-*s  about %9.1f us%s%s\n", c.chosen ? "*" : "+",
                  static_cast<int>(name_width), c.kernel.c_str(), static_cast<int>(backend_width),
                  c.backend.c_str(), c.estimated_us, c.statistics.empty() ? "" : "  statistics by ",
                  c.statistics.c_str());
    } else if (std::find(reasons.begin(), reasons.end(), c.reason) == reasons.end()) {
      reasons.push_back(c.reason);
    }
  }
  for (const std::string& reason : reasons) {
    std::printf("  - %s\n", reason.c_str());
    constexpr std::size_t kWidth = 100;
    std::string line = "     ";
    for (const Candidate& c : list) {
      if (c.reason != reason) continue;
      if (line.size() + c.kernel.size() + 1 > kWidth && line.size() > 5) {
        std::printf("%s\n", line.c_str());
        line = "     ";
      }
      line += " " + c.kernel;
    }
    std::printf("%s\n", line.c_str());
  }
}

void print_case(const ExplainOptions& o, const ShapeCase& shape, nlohmann::ordered_json& json) {
  PlanOptions options;
  options.dtype =
      !o.common.dtype.empty() ? parse_dtype(o.common.dtype) : shape.dtype.value_or(DType::bf16);
  if (!o.output_dtype.empty()) options.output_dtype = parse_dtype(o.output_dtype);
  o.common.apply_to(options);
  options.packed_filter = !o.dense_filter;
  options.statistics_groups = o.statistics;
  options.prologue = o.prologue.kind();
  options.shuffle = o.shuffle.shuffle(geometry_of(shape.problem).rank);
  options.epilogue =
      o.epilogue.is_given() ? o.epilogue.kind() : shape.epilogue.value_or(EpilogueKind{});
  if (!o.gpu.empty()) options.device = Device::cuda;
  const std::vector<Candidate> list = o.gpu.empty()
                                          ? candidates(shape.problem, options)
                                          : candidates(shape.problem, options, known_gpu(o.gpu));

  if (o.common.json) {
    nlohmann::ordered_json entry = {{"problem", to_string(shape.problem)}};
    nlohmann::ordered_json lines = empty_array();
    for (const Candidate& c : list) {
      lines.push_back({{"kernel", c.kernel},
                       {"backend", c.backend},
                       {"chosen", c.chosen},
                       {"reason", c.reason},
                       {"estimated_us", c.estimated_us}});
      if (!c.statistics.empty()) lines.back()["statistics"] = c.statistics;
    }
    entry["candidates"] = std::move(lines);
    json.push_back(entry);
    return;
  }
  const ConvGeometry g = geometry_of(shape.problem);
  std::printf("%s  %s  GEMM %lld x %lld x %lld, %.3f GFLOP\n", to_string(shape.problem).c_str(),
              to_string(options.dtype), static_cast<long long>(g.gemm_m()),
              static_cast<long long>(g.gemm_n()), static_cast<long long>(g.gemm_k()),
              g.flops() / 1e9);
  print_list(list);
}

int run_explain(const ExplainOptions& o) {
  if (!o.gpu.empty()) {
    if (o.common.device_choice() == Device::cpu) {
      throw_invalid("--gpu ", o.gpu, " with --device cpu; legal: --device auto or cuda");
    }
    (void)known_gpu(o.gpu);  // Before the shapes are read.
  }
  nlohmann::ordered_json json = empty_array();
  for (const ShapeCase& shape : resolve_shapes(o.shape)) print_case(o, shape, json);
  if (o.common.json) print(json);
  return kSuccess;
}

}  // namespace

void add_explain_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ExplainOptions>();
  ExplainOptions& o = *options;
  CLI::App* command = app.add_subcommand(
      "explain", "kernels for a problem: * chosen, + possible, - refused with the reason");
  command->add_option("shape", o.shape, "a shape string, a shape file or a named set")->required();
  o.common.add_to(*command);
  command->add_option("--output-dtype", o.output_dtype, "type of output and residual");
  o.epilogue.add_to(*command);
  o.prologue.add_to(*command, "group or rms: with a norm in front, its statistics known");
  o.shuffle.add_to(*command, "H,W | D,H,W", true);
  command->add_option(
      "--gpu", o.gpu,
      "answer for this GPU, which need not be here: a100, rtx3090, l40s, rtx4090, h100, h200, b200 "
      "or rtx5090");
  command
      ->add_option("--statistics", o.statistics,
                   "groups of output channels whose statistics are wanted too")
      ->check(whole_number());
  command->add_flag("--dense-filter", o.dense_filter, "the filter is not packed beforehand");
  command->callback([options, &exit_code] { exit_code = run_explain(*options); });
}

}  // namespace convoy::cli
