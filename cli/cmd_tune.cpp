// SPDX-License-Identifier: Apache-2.0
// convoy tune: measure the kernels for given shapes, and remember the fastest.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "commands.hpp"
#include "convoy/info.hpp"
#include "convoy/tuning.hpp"
#include "io/atomic_file.hpp"
#include "io/byte_source.hpp"
#include "io/printable.hpp"
#include "layer.hpp"
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
  bool dense = false, tf32 = false;
  double seconds = 0.05;
  /// Kernels whose modelled time is beyond this multiple of the best one's are not timed.
  double reach = 4.0;
};

TuningDatabase read_database(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  io::FileSource source(path);
  std::string content(source.size(), '\0');
  source.read(0, content.data(), content.size());
  return TuningDatabase::parse(content, path);
}

/// `rows` gets what was measured and modelled of each kernel.
void tune_case(const TuneOptions& o, const ShapeCase& shape, const DeviceInfo& device,
               TuningDatabase& database, std::string& rows, const std::string& place) {
  const Progress progress(text("tuning ", to_string(shape.problem), place));
  RandomLayerOptions random;
  random.dtype = !o.dtype.empty() ? parse_dtype(o.dtype) : shape.dtype.value_or(DType::bf16);
  random.bias = o.epilogue.bias;
  random.residual = o.epilogue.residual;
  Layer layer = make_random_layer(shape.problem, random);
  parse_activation(o.epilogue.activation, layer.epilogue);

  layer.options = {.dtype = random.dtype,
                   .epilogue = o.epilogue.kind(),
                   .device = Device::cuda,
                   .packed_filter = !o.dense,
                   .allow_tf32 = o.tf32,
                   .upsample_folding = parse_upsample_folding(o.upsample_folding)};
  layer.dense_filter = o.dense;
  // By the model alone, whatever was measured before.
  const std::vector<Candidate> list = candidates(shape.problem, layer.options, TuningDatabase{});
  std::vector<std::unique_ptr<PreparedLayer>> prepared;
  std::vector<Variant> variants;
  for (const Candidate& candidate : list) {
    if (!candidate.reason.empty() || candidate.estimated_us > o.reach * list.front().estimated_us) {
      break;
    }
    layer.options.kernel = candidate.kernel;
    prepared.push_back(std::make_unique<PreparedLayer>(layer));
    variants.push_back({candidate.kernel, [run = prepared.back().get()](cudaStream_t stream) {
                          run->enqueue(stream);
                        }});
  }
  if (variants.empty()) {
    throw Error(Status::unsupported, text("no CUDA kernel runs ", to_string(shape.problem)));
  }
  const std::vector<Measurement> times =
      measure(variants, {.device = Device::cuda, .seconds = o.seconds});

  std::size_t best = 0;
  for (std::size_t i = 0; i < times.size(); ++i) {
    rows += text(to_string(shape.problem), ",", to_string(layer.options.epilogue), ",",
                 variants[i].name, ",", times[i].median_us, ",", list[i].estimated_us, "\n");
    if (times[i].median_us < times[best].median_us) best = i;
  }
  std::printf("%-48s %9.1f us  %s (the model's choice: %.1f us)\n",
              to_string(shape.problem).c_str(), times[best].median_us, variants[best].name.c_str(),
              times[0].median_us);
  layer.options.kernel.clear();
  database.set(tuning_key(shape.problem, layer.options, device),
               {variants[best].name, times[best].median_us});
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
  TuningDatabase database = read_database(path);

  std::string rows = "problem,epilogue,kernel,us,modelled_us\n";
  std::vector<ShapeCase> cases;
  for (const std::string& argument : o.shapes) {
    for (ShapeCase& shape : resolve_shapes(argument)) cases.push_back(std::move(shape));
  }
  const Countdown countdown(cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    tune_case(o, cases[i], *device, database, rows, countdown.place(i));
  }
  io::write_file(path, database.to_text());
  if (!o.csv.empty()) io::write_file(o.csv, rows);
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
  command->add_option("--time", o.seconds, "seconds of timed runs a kernel")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  command->add_option("--reach", o.reach, "leave out kernels modelled slower than this multiple")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  command->callback([options, &exit_code] { exit_code = run_tune(*options); });
}

}  // namespace convoy::cli
