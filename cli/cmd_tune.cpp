// SPDX-License-Identifier: Apache-2.0
// convoy tune: measure the kernels for given shapes, and remember the fastest.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>

#include "commands.hpp"
#include "convoy/info.hpp"
#include "convoy/tuning.hpp"
#include "io/atomic_file.hpp"
#include "io/byte_source.hpp"
#include "io/printable.hpp"
#include "layer.hpp"
#include "measure.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "random_layer.hpp"
#include "shape_file.hpp"
#include "text.hpp"

namespace convoy::cli {
namespace {

struct TuneOptions {
  std::vector<std::string> shapes;
  std::string dtype, output, csv;
  std::string upsample_folding = "exact";
  EpilogueOptions epilogue;
  bool dense = false, tf32 = false, resume = false;
  double seconds = 0.02;
  /// Kernels whose modelled time is beyond this multiple of the best one's are not timed.
  double reach = 2.0;
};

TuningDatabase read_database(const std::string& path) {
  const std::optional<std::string> content =
      io::read_if_there(path, TuningDatabase::kMostFileBytes);
  return content ? TuningDatabase::parse(*content, path) : TuningDatabase();
}

/// A look at a kernel: those that then are further behind than this are not timed with care.
constexpr double kBehind = 1.15;
constexpr int kLookRuns = 3;

/// What is to be measured: the layer with random tensors, and what it is stored under.
struct Case {
  Case(const TuneOptions& o, const ShapeCase& shape, const DeviceInfo& device)
      : problem(shape.problem) {
    options.dtype = !o.dtype.empty() ? parse_dtype(o.dtype) : shape.dtype.value_or(DType::bf16);
    options.epilogue =
        o.epilogue.is_given() ? o.epilogue.kind() : shape.epilogue.value_or(EpilogueKind{});
    options.epilogue.bias_dtype = DType::fp32;
    options.device = Device::cuda;
    options.packed_filter = !o.dense;
    options.allow_tf32 = o.tf32;
    options.upsample_folding = parse_upsample_folding(o.upsample_folding);
    key = tuning_key(problem, options, device);
  }

  Layer random_layer(const TuneOptions& o) const {
    RandomLayerOptions random;
    random.dtype = options.dtype;
    random.bias = options.epilogue.bias;
    random.residual = options.epilogue.residual;
    Layer layer = make_random_layer(problem, random);
    if (o.epilogue.is_given()) {
      parse_activation(o.epilogue.activation, layer.epilogue);
    } else {
      parse_activation(to_string(options.epilogue.activation), layer.epilogue);
    }
    layer.epilogue.order = options.epilogue.order;
    layer.epilogue.rounding = options.epilogue.rounding;
    layer.options = options;
    layer.dense_filter = o.dense;
    return layer;
  }

  ProblemShape problem;
  PlanOptions options;
  std::string key;
};

/// `rows` gets what was measured and modelled of each kernel. Returns the line to print.
std::string tune_case(const TuneOptions& o, const Case& it, TuningDatabase& database,
                      std::string& rows, const std::string& place) {
  const Progress progress(text("tuning ", to_string(it.problem), place));
  Layer layer = it.random_layer(o);
  UploadedTensors uploaded;
  // By the model alone, whatever was measured before.
  const std::vector<Candidate> list = candidates(it.problem, it.options, TuningDatabase{});
  std::vector<std::unique_ptr<PreparedLayer>> prepared;
  std::vector<Variant> variants;
  for (const Candidate& candidate : list) {
    if (!candidate.reason.empty() || candidate.estimated_us > o.reach * list.front().estimated_us) {
      break;
    }
    layer.options.kernel = candidate.kernel;
    prepared.push_back(std::make_unique<PreparedLayer>(layer, &uploaded));
    variants.push_back({candidate.kernel, [run = prepared.back().get()](cudaStream_t stream) {
                          run->enqueue(stream);
                        }});
  }
  if (variants.empty()) {
    throw Error(Status::unsupported, text("no CUDA kernel runs ", to_string(it.problem)));
  }
  std::vector<Measurement> times =
      measure(variants,
              {.device = Device::cuda, .seconds = 0, .min_runs = kLookRuns, .max_runs = kLookRuns});
  double best_us = times[0].median_us;
  for (const Measurement& time : times) best_us = std::min(best_us, time.median_us);
  std::vector<Variant> close;
  std::vector<std::size_t> number;
  for (std::size_t i = 0; i < variants.size(); ++i) {
    if (times[i].median_us > kBehind * best_us) continue;
    close.push_back(variants[i]);
    number.push_back(i);
  }
  const std::vector<Measurement> careful =
      measure(close, {.device = Device::cuda, .seconds = o.seconds});
  std::size_t best = number[0];
  for (std::size_t i = 0; i < close.size(); ++i) {
    times[number[i]] = careful[i];
    if (careful[i].median_us < times[best].median_us) best = number[i];
  }

  for (std::size_t i = 0; i < times.size(); ++i) {
    rows += text(to_string(it.problem), ",", to_string(it.options.epilogue), ",", variants[i].name,
                 ",", times[i].median_us, ",", list[i].estimated_us, "\n");
  }
  database.set(it.key, {variants[best].name, times[best].median_us});
  char line[256];
  std::snprintf(line, sizeof line, "%-48s %9.1f us  %s (the model's choice: %.1f us)",
                to_string(it.problem).c_str(), times[best].median_us, variants[best].name.c_str(),
                times[0].median_us);
  return line;
}

/// What an interrupted run left of a CSV file; its header where there is none.
std::string csv_so_far(const TuneOptions& o) {
  if (o.resume && !o.csv.empty()) {
    const std::optional<std::string> rows = io::read_if_there(o.csv);
    if (rows && !rows->empty()) return *rows;
  }
  return "problem,epilogue,kernel,us,modelled_us\n";
}

int run_tune(const TuneOptions& o) {
  if (o.shapes.empty()) throw_invalid("no shape is given; `convoy bench --list` names the sets");
  const std::string path = o.output.empty() ? user_tuning_path() : o.output;
  if (path.empty()) {
    throw_invalid(
        "there is no place for the tuning file: neither HOME nor XDG_CACHE_HOME nor "
        "CONVOY_TUNING is set; --output names one");
  }
  std::string no_device;
  const std::optional<DeviceInfo> device = cuda_device(-1, &no_device);
  if (!device) throw Error(Status::unsupported, "convoy tune needs a CUDA device: " + no_device);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) {
    std::error_code error;  // Reported by the check that follows.
    std::filesystem::create_directories(folder, error);
  }
  io::check_can_write(path);
  if (!o.csv.empty()) {
    io::check_can_write(o.csv);
    if (io::is_same_path(path, o.csv)) {
      throw_invalid("--output and --csv are the same file, ", path, "; legal: two files");
    }
  }
  TuningDatabase database = read_database(path), measured;
  std::string rows = csv_so_far(o);

  // What there is to do. Layers that differ by no more than a bias are one.
  std::vector<Case> cases;
  std::set<std::string> keys;
  std::size_t known = 0;
  for (const std::string& argument : o.shapes) {
    for (const ShapeCase& shape : resolve_shapes(argument)) {
      Case it(o, shape, *device);
      if (!keys.insert(it.key).second) continue;
      if (o.resume && database.find(it.key)) {
        ++known;
      } else {
        cases.push_back(std::move(it));
      }
    }
  }
  if (known > 0) std::printf("%zu shapes are in %s already\n", known, io::printable(path).c_str());

  // After each shape the files are written, so that an interrupted run keeps what it has. Others
  // may have written meanwhile.
  const auto save = [&] {
    const io::FolderLock lock(path);
    database = read_database(path);
    database.merge(measured);
    io::write_file(path, database.to_text());
    if (!o.csv.empty()) io::write_file(o.csv, rows);
  };
  const Countdown countdown(cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::string line = tune_case(o, cases[i], measured, rows, countdown.place(i));
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
    save();
  }
  save();
  std::printf("%zu choices in %s\n", database.size(), io::printable(path).c_str());
  return kSuccess;
}

}  // namespace

void add_tune_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<TuneOptions>();
  CLI::App* command =
      app.add_subcommand("tune", "measure the kernels for shapes and remember the fastest");
  TuneOptions& o = *options;
  command->add_option("shapes", o.shapes, "shape strings, shape files, or names of bench --list");
  command->add_option("--dtype", o.dtype, "bf16, fp16 or fp32");
  command->add_flag("--tf32", o.tf32, "with fp32: products of TF32 will do");
  o.epilogue.add_to(*command);
  command->add_flag(
      "--dense", o.dense,
      "filters as they are, not packed; without it packed ones, whose times also hold "
      "for dense ones where the kernel reads both alike");
  command->add_option("--upsample-folding", o.upsample_folding, "exact or fast")
      ->capture_default_str();
  command->add_option("--output", o.output,
                      "tuning file; default: $CONVOY_TUNING, else convoy/tuning.txt of the cache");
  command->add_option("--csv", o.csv, "write the time of every kernel, measured and modelled");
  command
      ->add_option("--time", o.seconds, "seconds of timed runs a kernel that is close to the best")
      ->check(finite_number())
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  command->add_option("--reach", o.reach, "leave out kernels modelled slower than this multiple")
      ->check(finite_number())
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  command->add_flag("--resume", o.resume,
                    "leave shapes alone that the tuning file already has for this device, type and "
                    "epilogue: goes on where an interrupted run ended");
  command->callback([options, &exit_code] { exit_code = run_tune(*options); });
}

}  // namespace convoy::cli
