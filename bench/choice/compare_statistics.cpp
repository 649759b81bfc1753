// SPDX-License-Identifier: Apache-2.0
//
// What the statistics of a convolution's output cost, and what a GroupNorm + SiLU behind it saves
// by them: each layer plain and with statistics, the norm by statistics of its own and by those
// given, and both together, interleaved.
//
//   convoy_compare_statistics [--groups G] [--kernel NAME] [--residual] [--seconds S] [--csv FILE]
//                             SHAPES...
//
// SHAPES: shape files or shape strings. --kernel: this one runs the layers, else dispatch chooses.
// L2 is flushed before each run. bf16. Exit code: 1 where a layer fails, or where the statistics
// are not those of a pass of their own.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "command_line.hpp"
#include "convoy/convoy.hpp"
#include "device_memory.hpp"
#include "io/atomic_file.hpp"
#include "measure.hpp"
#include "random_memory.hpp"

namespace convoy::bench {
namespace {

using cli::DeviceMemory;

constexpr DType kType = DType::bf16;

struct Options {
  std::vector<std::string> shapes;
  std::string kernel, csv_path;
  double seconds = 0.2;
  std::int64_t groups = 32;
  bool residual = false;
};

/// A plan of the layer with what it reads and writes, with and without statistics.
class Layer {
 public:
  Layer(const ProblemShape& problem, const Options& options, std::int64_t groups)
      : g_(geometry_of(problem)),
        plan_(make(problem, options, groups)),
        activation_(random_memory(g_.activation_elements(), kType, 1, 1.0f)),
        cache_(random_memory(g_.cache_elements(), kType, 2, 1.0f)),
        filter_(
            random_memory(g_.filter_elements(), kType, 3, std::sqrt(3.0f / float(g_.gemm_k())))),
        bias_(random_memory(g_.out_channels, kType, 4, 1.0f)),
        residual_(random_memory(options.residual ? g_.output_elements() : 0, kType, 5, 1.0f)),
        output_(Device::cuda, std::size_t(g_.output_elements()) * size_of(kType)),
        workspace_(Device::cuda, plan_.workspace_bytes()),
        statistics_(Device::cuda, std::size_t(g_.batch * groups) * 2 * sizeof(float)) {
    packed_ = plan_.pack_filter(filter_.data(),
                                g_.rank == 3 ? FilterLayout::ktrsc : FilterLayout::krsc, nullptr);
    arguments_.output.data = output_.data();
    arguments_.activation.data = activation_.data();
    arguments_.cache.data = cache_.bytes() > 0 ? cache_.data() : nullptr;
    arguments_.filter = packed_;
    arguments_.epilogue.bias = bias_.data();
    arguments_.epilogue.bias_dtype = kType;
    arguments_.epilogue.residual = options.residual ? residual_.data() : nullptr;
    arguments_.workspace = workspace_.bytes() > 0 ? workspace_.data() : nullptr;
    arguments_.statistics = groups > 0 ? static_cast<float*>(statistics_.data()) : nullptr;
  }
  void run(cudaStream_t stream) const { plan_.run(arguments_, stream); }
  const PlanInfo& info() const { return plan_.info(); }
  const ConvGeometry& geometry() const { return g_; }
  const DeviceMemory& output() const { return output_; }
  const DeviceMemory& bias() const { return bias_; }
  const DeviceMemory& statistics() const { return statistics_; }

 private:
  static Plan make(const ProblemShape& problem, const Options& options, std::int64_t groups) {
    PlanOptions made;
    made.dtype = kType;
    made.device = Device::cuda;
    made.packed_filter = true;
    made.epilogue = {.bias = true, .bias_dtype = kType, .residual = options.residual};
    made.kernel = options.kernel;
    made.statistics_groups = groups;
    return plan(problem, made);
  }

  ConvGeometry g_;
  Plan plan_;
  DeviceMemory activation_, cache_, filter_, bias_, residual_, output_, workspace_, statistics_;
  PackedFilter packed_;
  RunArguments arguments_;
};

/// GroupNorm + SiLU of a layer's output, by its own statistics or by the layer's.
class Norm {
 public:
  Norm(const Layer& layer, std::int64_t groups, bool given)
      : plan_(
            plan(GroupNormProblem{.batch = layer.geometry().batch,
                                  .pixels = layer.geometry().output_elements() /
                                            layer.geometry().batch / layer.geometry().out_channels,
                                  .channels = layer.geometry().out_channels,
                                  .groups = groups},
                 {.dtype = kType,
                  .parameter_dtype = kType,
                  .activation = Activation::silu,
                  .device = Device::cuda})),
        output_(Device::cuda, layer.output().bytes()),
        workspace_(Device::cuda, plan_.workspace_bytes()),
        own_(Device::cuda, layer.statistics().bytes()),
        input_(layer.output().data()) {
    arguments_.output = output_.data();
    arguments_.input = input_;
    arguments_.scale = arguments_.bias = layer.bias().data();
    arguments_.workspace = workspace_.data();
    if (given) arguments_.statistics = static_cast<const float*>(layer.statistics().data());
  }
  void run(cudaStream_t stream) const { plan_.run(arguments_, stream); }
  /// The furthest that given statistics are from the input's own, in deviations.
  double distance(const DeviceMemory& given) const {
    plan_.statistics({.output = static_cast<float*>(own_.data()),
                      .input = input_,
                      .workspace = workspace_.data()});
    std::vector<float> a(own_.bytes() / sizeof(float)), b(a.size());
    own_.download(a.data(), own_.bytes());
    given.download(b.data(), own_.bytes());
    double worst = 0;
    for (std::size_t i = 0; i < a.size(); i += 2) {
      worst = std::max(worst, double(std::fabs(a[i] - b[i]) / std::sqrt(a[i + 1])));
      worst = std::max(worst, double(std::fabs(a[i + 1] / b[i + 1] - 1.0f)));
    }
    return worst;
  }

 private:
  NormPlan plan_;
  DeviceMemory output_, workspace_, own_;
  const void* input_;
  NormArguments arguments_;
};

/// Prints a layer's line; the same for the CSV. Counts layers whose statistics are wrong.
std::string compare(const cli::ShapeCase& shape, const Options& options, int* wrong) {
  const Layer plain(shape.problem, options, 0), taking(shape.problem, options, options.groups);
  const Norm norm(plain, options.groups, false), given(taking, options.groups, true);
  const std::vector<cli::Variant> variants = {
      {"plain", [&](cudaStream_t stream) { plain.run(stream); }},
      {"statistics", [&](cudaStream_t stream) { taking.run(stream); }},
      {"norm", [&](cudaStream_t stream) { norm.run(stream); }},
      {"norm, given", [&](cudaStream_t stream) { given.run(stream); }},
      {"both",
       [&](cudaStream_t stream) {
         plain.run(stream);
         norm.run(stream);
       }},
      {"both, given",
       [&](cudaStream_t stream) {
         taking.run(stream);
         given.run(stream);
       }},
  };
  taking.run(nullptr);
  const double distance = given.distance(taking.statistics());
  if (!(distance < 1e-3)) ++*wrong;
  const auto times =
      cli::measure(variants, {.device = Device::cuda, .seconds = options.seconds, .min_runs = 15});
  const auto us = [&](std::size_t i) { return times[i].median_us; };
  const std::string name = to_string(shape.problem);
  std::printf(
      "%-52s plain %7.1f, with statistics %7.1f us x %.3f; norm %6.1f, given %6.1f us; both "
      "%7.1f, given %7.1f us x %.3f | %s | %s by %s | %.1e\n",
      name.c_str(), us(0), us(1), us(1) / us(0), us(2), us(3), us(4), us(5), us(5) / us(4),
      plain.info().kernel.c_str(), taking.info().kernel.c_str(), taking.info().statistics.c_str(),
      distance);
  char line[512];
  std::snprintf(line, sizeof line, "%s,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,%s,%s,%s,%.2e\n", name.c_str(),
                us(0), us(1), us(2), us(3), us(4), us(5), plain.info().kernel.c_str(),
                taking.info().kernel.c_str(), taking.info().statistics.c_str(), distance);
  return line;
}

int run(const Options& options) {
  std::string csv =
      "problem,plain_us,statistics_us,norm_us,norm_given_us,both_us,both_given_us,plain,statistics,"
      "source,distance\n";
  int wrong = 0;
  const int failed = for_each_layer(
      options.shapes, [&](const cli::ShapeCase& shape) { csv += compare(shape, options, &wrong); });
  if (!options.csv_path.empty()) io::write_file(options.csv_path, csv);
  return failed + wrong > 0 ? 1 : 0;
}

}  // namespace
}  // namespace convoy::bench

int main(int argc, char** argv) {
  using namespace convoy::bench;
  Options options;
  CommandLine line("convoy_compare_statistics", "What a layer's statistics of its output cost.");
  line.whole("--groups", options.groups, std::int64_t{1}, std::int64_t{1} << 20,
             "groups of the norm");
  line.word("--kernel", options.kernel, "runs the layers; else dispatch chooses");
  line.flag("--residual", options.residual, "layers with a residual");
  line.number("--seconds", options.seconds, "of timed runs, each layer");
  line.word("--csv", options.csv_path, "the table as a file");
  line.rest("SHAPES", options.shapes, 1, kShapesHelp);
  return line.run(argc, argv, [&] { return run(options); });
}
