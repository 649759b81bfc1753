// SPDX-License-Identifier: Apache-2.0
// convoy bench: times of many problems.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench_report.hpp"
#include "bench_shards.hpp"
#include "commands.hpp"
#include "layer.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "random_layer.hpp"
#include "shape_file.hpp"
#include "text.hpp"
#include "verify.hpp"

namespace convoy::cli {
namespace {

struct BenchOptions {
  CommonOptions common;
  std::vector<std::string> shapes;
  EpilogueOptions epilogue;
  NormWords norm;
  std::string versus;
  bool csv = false, verify = false, list = false;
  double seconds = 0.5;
  int runs = 0, chain = 1;
  std::uint64_t seed = 1;
  int shards = 0;
  std::string axis = "height";
};

/// The command that times this one case again.
std::string repro_line(const BenchOptions& o, const ShapeCase& shape, DType dtype) {
  std::string line = text("convoy bench --dtype ", to_string(dtype));
  if (o.common.tf32) line += " --tf32";
  if (o.common.device != "auto") line += " --device " + o.common.device;
  if (!o.common.kernel.empty()) line += " --kernel " + o.common.kernel;
  if (o.common.upsample_folding != "exact") {
    line += " --upsample-folding " + o.common.upsample_folding;
  }
  const PrologueWords& norm = o.norm.prologue;
  if (!norm.norm.empty()) line += " --norm " + norm.norm;
  if (o.norm.groups) line += text(" --norm-groups ", *o.norm.groups);
  if (norm.activation != "none") line += " --norm-activation " + norm.activation;
  if (o.epilogue.bias) line += " --bias";
  if (o.epilogue.activation != "none") line += " --activation " + o.epilogue.activation;
  if (o.epilogue.residual) line += " --residual";
  if (o.seed != 1) line += text(" --seed ", o.seed);
  return line + " " + to_string(shape.problem);
}

Layer layer_of(const BenchOptions& o, const ShapeCase& shape) {
  RandomLayerOptions random;
  random.dtype =
      !o.common.dtype.empty() ? parse_dtype(o.common.dtype) : shape.dtype.value_or(DType::bf16);
  random.bias = o.epilogue.bias;
  random.residual = o.epilogue.residual;
  random.seed = o.seed;
  Layer layer = make_random_layer(shape.problem, random);
  o.common.apply_to(layer.options);
  parse_activation(o.epilogue.activation, layer.epilogue);
  layer.norm = o.norm.read(geometry_of(shape.problem).in_channels);
  return layer;
}

BenchRow run_case(const BenchOptions& o, const ShapeCase& shape, const std::string& place) {
  const Progress progress(text("timing ", to_string(shape.problem), place));
  const Layer layer = layer_of(o, shape);
  const PreparedLayer prepared(layer);
  std::vector<Variant> variants = {
      {prepared.info().kernel, [&](cudaStream_t stream) { prepared.enqueue(stream); }}};
  MeasureOptions options{.device = prepared.device(), .seconds = o.seconds};
  if (o.runs > 0) options.min_runs = options.max_runs = o.runs;
  const std::vector<Measurement> times = measure(variants, options);

  BenchRow row;
  row.name = shape.name;
  row.count = shape.count;
  row.info = prepared.info();
  row.backend_line = backend_line(row.info, layer.options.device);
  row.dtype = layer.options.dtype;
  row.epilogue = to_string(epilogue_of(layer));
  if (layer.norm) row.epilogue = to_string(layer.norm->kind()) + " > " + row.epilogue;
  row.time = times[0];
  row.repro = repro_line(o, shape, row.dtype);
  if (o.verify) {
    const Verification check =
        verify(layer, row.info, prepared.download_output(), prepared.filter_format());
    row.error_of_bound = check.worst_of_bound;
    row.verified = check.passed;
  }
  return row;
}

/// Hand over to the program that compares with cuDNN; it lies beside this one.
int run_versus_cudnn(const BenchOptions& o) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string program = (self.parent_path() / "convoy_vs_cudnn").string();
  if (!std::filesystem::exists(program, error)) {
    throw Error(Status::unsupported,
                text("--vs cudnn: ", program,
                     " was not built; it is where CMake finds a CUDA 13 "
                     "compiler, cuBLAS and cuDNN 9 (CUDNN_PATH names its folder)"));
  }
  if (!o.norm.prologue.norm.empty() || o.epilogue.bias || o.epilogue.residual || o.verify ||
      o.epilogue.activation != "none" || o.common.tf32 || o.common.json || o.runs > 0 ||
      o.seed != 1 || o.common.device_choice() == Device::cpu) {
    throw_invalid(
        "--vs cudnn compares bare convolutions on the GPU; legal beside it: --dtype, --kernel, "
        "--time, --chain, --csv");
  }
  std::vector<std::string> words = {program, "--seconds", text(o.seconds)};
  if (!o.common.dtype.empty()) words.insert(words.end(), {"--dtype", o.common.dtype});
  if (!o.common.kernel.empty()) words.insert(words.end(), {"--kernel", o.common.kernel});
  if (o.csv) words.insert(words.end(), {"--csv", "-"});
  if (o.chain > 1) words.insert(words.end(), {"--chain", text(o.chain)});
  words.insert(words.end(), o.shapes.begin(), o.shapes.end());
  std::vector<char*> arguments(words.size() + 1);  // Ends with a null pointer.
  std::transform(words.begin(), words.end(), arguments.begin(),
                 [](std::string& word) { return word.data(); });
  execv(program.c_str(), arguments.data());
  throw Error(Status::launch_failure, text("cannot run ", program, ": ", std::strerror(errno)));
}

/// Each case on one device and cut over several.
int run_shards(const BenchOptions& o, const std::vector<ShapeCase>& cases) {
  const ShardBenchOptions options{
      .ranks = o.shards, .axis = parse_shard_axis(o.axis), .seconds = o.seconds, .runs = o.runs};
  const Countdown countdown(cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    ShardBenchRow row;
    try {
      const Progress progress(text("timing ", to_string(cases[i].problem), countdown.place(i)));
      Layer layer = layer_of(o, cases[i]);
      row = bench_shards(layer, options);
    } catch (const Error& error) {
      throw Error(error.status(), to_string(cases[i].problem) + ": " + error.what());
    }
    if (i == 0) print_shard_header(o.csv);
    print_shard_row(row, options, o.csv);
  }
  return kSuccess;
}

int run_bench(const BenchOptions& o) {
  if (o.list) {
    if (!o.shapes.empty()) throw_invalid("--list takes no shape, got '", o.shapes.front(), "'");
    for (const std::string& name : list_shape_sets()) std::printf("%s\n", name.c_str());
    return kSuccess;
  }
  if (o.shapes.empty()) throw_invalid("no shape is given; `convoy bench --list` names the sets");
  if (!o.versus.empty()) return run_versus_cudnn(o);
  std::vector<ShapeCase> cases;
  for (const std::string& argument : o.shapes) {
    for (ShapeCase& shape : resolve_shapes(argument)) cases.push_back(std::move(shape));
  }
  if (o.shards > 0) return run_shards(o, cases);
  const BenchFormat format = o.csv           ? BenchFormat::csv
                             : o.common.json ? BenchFormat::json
                                             : BenchFormat::table;
  BenchReport report(format, o.verify);
  const Countdown countdown(cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const ShapeCase& shape = cases[i];
    try {
      report.add(run_case(o, shape, countdown.place(i)));
    } catch (const Error& error) {
      throw Error(error.status(), to_string(shape.problem) + ": " + error.what());
    }
  }
  report.finish();
  return report.all_verified() ? kSuccess : kVerificationFailed;
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command = app.add_subcommand("bench", "time shapes, shape files or named shape sets");
  BenchOptions& o = *options;
  command->add_option("shapes", o.shapes,
                      "shape strings (n1h256w256c512k512r3s3ph1pw1, benchdnn's or MIOpenDriver's), "
                      "shape files, or names of `--list`");
  o.common.add_to(*command);
  o.epilogue.add_to(*command);
  o.norm.add_kind_to(*command, "group or rms: with a norm in front, its statistics timed too");
  command->add_option("--time", o.seconds, "seconds of timed runs a shape")
      ->check(finite_number())
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  command->add_option("--runs", o.runs, "exactly this many timed runs")
      ->check(CLI::Range(1, 1000000));
  command->add_option("--seed", o.seed, "seed of the random tensors")
      ->check(whole_number())
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()))
      ->capture_default_str();
  command->add_flag("--verify", o.verify, "compare with a reference; exit code 1 past the bound");
  command->add_flag("--csv", o.csv, "print CSV on stdout")->excludes("--json");
  CLI::Option* const versus =
      command->add_option("--vs", o.versus, "compare with another library, in the same process")
          ->check(CLI::IsMember({"cudnn"}));
  command->add_option("--chain", o.chain, "time runs as shares of a CUDA graph of this many")
      ->check(CLI::Range(1, 1000))
      ->needs(versus);
  CLI::Option* const shards =
      command
          ->add_option("--shards", o.shards,
                       "cut each shape over this many GPUs (NCCL), or threads of the CPU, and "
                       "compare with one")
          ->check(whole_number())
          ->check(CLI::Range(1, 1024))
          ->excludes("--json")
          ->excludes("--verify")
          ->excludes("--norm")
          ->excludes(versus);
  command->add_option("--axis", o.axis, "what --shards cuts: height, width, frames, batch")
      ->needs(shards)
      ->capture_default_str();
  command->add_flag("--list", o.list, "names of the shape sets");
  command->callback([options, &exit_code] { exit_code = run_bench(*options); });
}

}  // namespace convoy::cli
