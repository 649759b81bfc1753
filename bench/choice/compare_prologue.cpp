// SPDX-License-Identifier: Apache-2.0
//
// What a norm and an activation in front of a convolution cost as its prologue: each layer plain,
// fused (the kernel that dispatch chooses with a prologue), and as a norm of its own with the plain
// layer behind it, interleaved. 2-D layers have a GroupNorm, 3-D ones an RMSNorm.
//
//   convoy_compare_prologue [--kernel NAME]... [--activation none|relu|silu] [--seconds S]
//                           [--check ELEMENTS] [--csv FILE] SHAPES...
//
// SHAPES: shape files or shape strings. --kernel: this kernel too, fused where it takes prologues
// ("normalised_copy"), and plain. --check: that many outputs of fused and unfused against fp64 that
// rounds nothing on the way. L2 is flushed before each run. bf16. Exit code: 1 where a layer fails.
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "command_line.hpp"
#include "convoy/convoy.hpp"
#include "convoy/dtype.hpp"
#include "device_memory.hpp"
#include "io/atomic_file.hpp"
#include "measure.hpp"
#include "random_memory.hpp"
#include "reference/reference.hpp"

namespace convoy::bench {
namespace {

using cli::DeviceMemory;

constexpr DType kType = DType::bf16;

struct Options {
  std::vector<std::string> kernels, shapes;
  std::string csv_path;
  double seconds = 0.2;
  std::int64_t check = 0;
  Activation activation = Activation::silu;
};

template <typename T>
std::vector<T> host_copy(const DeviceMemory& memory) {
  std::vector<T> values(memory.bytes() / sizeof(T));
  memory.download(values.data(), memory.bytes());
  return values;
}

/// A layer's tensors and norms.
struct Tensors {
  ConvGeometry g;
  bool rms;
  DeviceMemory activation, normalised, cache, filter, gamma, beta, coefficients;

  Tensors(const ConvGeometry& geometry)
      : g(geometry),
        rms(g.rank == 3),
        activation(random_memory(g.activation_elements(), kType, 1, 1.0f)),
        normalised(Device::cuda, activation.bytes()),
        cache(random_memory(g.cache_elements(), kType, 2, 1.0f)),
        filter(random_memory(g.filter_elements(), kType, 3, std::sqrt(3.0f / float(g.gemm_k())))),
        gamma(random_memory(g.in_channels, DType::fp32, 4, 1.0f)),
        beta(random_memory(g.in_channels, DType::fp32, 5, 0.5f)),
        coefficients(Device::cuda, std::size_t(rms ? pixels() : 2 * g.batch * g.in_channels) * 4) {}

  std::int64_t pixels() const { return g.activation_elements() / g.in_channels; }
  Prologue prologue(Activation activation_behind) const {
    auto* const floats = static_cast<const float*>(coefficients.data());
    Prologue made{.activation = activation_behind};
    if (rms) {
      made.norm = PrologueNorm::rms;
      made.inverse_rms = floats;
      made.scale = static_cast<const float*>(gamma.data());
    } else {
      made.norm = PrologueNorm::scale_shift;
      made.scale = floats;
      made.shift = floats + g.batch * g.in_channels;
    }
    return made;
  }
};

/// A norm over the layer's activation: the tensor, or the coefficients.
class Norm {
 public:
  Norm(const Tensors& t, Activation activation, NormResult result)
      : plan_(make(t, activation, result)), workspace_(Device::cuda, plan_.workspace_bytes()) {
    const bool tensor = result == NormResult::tensor;
    arguments_.output = (tensor ? t.normalised : t.coefficients).data();
    arguments_.input = t.activation.data();
    if (tensor || !t.rms) arguments_.scale = t.gamma.data();
    if (!t.rms) arguments_.bias = t.beta.data();
    arguments_.workspace = workspace_.bytes() > 0 ? workspace_.data() : nullptr;
  }
  void run(cudaStream_t stream) const { plan_.run(arguments_, stream); }

 private:
  static NormPlan make(const Tensors& t, Activation activation, NormResult result) {
    const bool tensor = result == NormResult::tensor;
    const NormOptions options{.dtype = kType,
                              .scale = tensor || !t.rms,
                              .bias = !t.rms,
                              .activation = tensor ? activation : Activation::none,
                              .device = Device::cuda,
                              .result = result};
    if (t.rms) {
      return plan(RmsNormProblem{.pixels = t.pixels(),
                                 .channels = t.g.in_channels,
                                 .epsilon = 1e-12f,
                                 .rule = RmsEpsilon::norm_floor},
                  options);
    }
    return plan(GroupNormProblem{.batch = t.g.batch,
                                 .pixels = t.pixels() / t.g.batch,
                                 .channels = t.g.in_channels,
                                 .groups = std::gcd(t.g.in_channels, std::int64_t{32})},
                options);
  }

  NormPlan plan_;
  DeviceMemory workspace_;
  NormArguments arguments_;
};

/// A plan of the layer, ready to run: plain on `input`, or with the prologue.
class Layer {
 public:
  Layer(const ProblemShape& problem, const Tensors& t, const DeviceMemory& input,
        const Prologue& prologue, const std::string& kernel)
      : plan_(plan(problem, options(prologue, kernel))),
        workspace_(Device::cuda, plan_.workspace_bytes()),
        output_(Device::cuda, std::size_t(t.g.output_elements()) * size_of(kType)) {
    packed_ = plan_.pack_filter(t.filter.data(),
                                t.g.rank == 3 ? FilterLayout::ktrsc : FilterLayout::krsc, nullptr);
    arguments_.output.data = output_.data();
    arguments_.activation.data = input.data();
    arguments_.cache.data = t.cache.bytes() > 0 ? t.cache.data() : nullptr;
    arguments_.filter = packed_;
    arguments_.prologue = prologue;
    arguments_.workspace = workspace_.bytes() > 0 ? workspace_.data() : nullptr;
  }
  void run(cudaStream_t stream) const { plan_.run(arguments_, stream); }
  std::string kernel() const { return plan_.info().kernel; }
  const DeviceMemory& output() const { return output_; }

 private:
  static PlanOptions options(const Prologue& prologue, const std::string& kernel) {
    PlanOptions made;
    made.dtype = kType;
    made.device = Device::cuda;
    made.packed_filter = true;
    made.prologue = prologue.kind();
    made.kernel = kernel;
    return made;
  }

  Plan plan_;
  DeviceMemory workspace_, output_;
  PackedFilter packed_;
  RunArguments arguments_;
};

struct Accuracy {
  std::size_t different = 0, checked = 0;  ///< Outputs whose bits differ; of those checked.
  double fused = 0, unfused = 0;           ///< Euclidean error over the Euclidean norm.
};

Accuracy accuracy(const Tensors& t, const Options& options, const Layer& fused,
                  const Layer& unfused) {
  const auto a = host_copy<std::uint16_t>(fused.output());
  const auto b = host_copy<std::uint16_t>(unfused.output());
  Accuracy result;
  for (std::size_t i = 0; i < a.size(); ++i) result.different += a[i] != b[i] ? 1 : 0;
  if (options.check == 0) return result;
  const auto widened = [](const DeviceMemory& memory) {
    std::vector<float> values;
    for (const std::uint16_t bits : host_copy<std::uint16_t>(memory)) {
      values.push_back(float_from_bf16(bits));
    }
    return values;
  };
  const std::vector<float> x = widened(t.activation), cache = widened(t.cache);
  const std::vector<float> filter = widened(t.filter);
  const auto coefficients = host_copy<float>(t.coefficients);
  const auto gamma = host_copy<float>(t.gamma);
  Prologue prologue = t.prologue(options.activation);
  prologue.inverse_rms = t.rms ? coefficients.data() : nullptr;
  prologue.scale = t.rms ? gamma.data() : coefficients.data();
  prologue.shift = t.rms ? nullptr : coefficients.data() + t.g.batch * t.g.in_channels;
  const std::vector<float> exact = reference::apply_prologue(t.g, x.data(), prologue, DType::fp32);
  const std::int64_t step = std::max<std::int64_t>(1, t.g.output_elements() / options.check) | 1;
  const std::vector<double> truth =
      reference::convolve_fp64(t.g, {exact.data(), cache.data(), filter.data()}, step);
  double squares = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const std::size_t at = i * std::size_t(step);
    const double of_a = float_from_bf16(a[at]) - truth[i], of_b = float_from_bf16(b[at]) - truth[i];
    result.fused += of_a * of_a;
    result.unfused += of_b * of_b;
    squares += truth[i] * truth[i];
  }
  result.checked = truth.size();
  result.fused = std::sqrt(result.fused / squares);
  result.unfused = std::sqrt(result.unfused / squares);
  return result;
}

/// Prints a layer's line; the same for the CSV.
std::string compare(const cli::ShapeCase& shape, const Options& options) {
  const Tensors t(geometry_of(shape.problem));
  const Prologue prologue = t.prologue(options.activation);
  const Norm norm(t, options.activation, NormResult::tensor);
  const Norm statistics(t, options.activation, NormResult::coefficients);
  statistics.run(nullptr);
  norm.run(nullptr);
  const Layer plain(shape.problem, t, t.normalised, {}, "");
  const Layer fused(shape.problem, t, t.activation, prologue, "");
  std::vector<std::unique_ptr<Layer>> others;
  std::vector<std::string> names;
  for (const std::string& kernel : options.kernels) {
    for (const bool with_prologue : {false, true}) {
      try {
        others.push_back(std::make_unique<Layer>(shape.problem, t,
                                                 with_prologue ? t.activation : t.normalised,
                                                 with_prologue ? prologue : Prologue{}, kernel));
        names.push_back((with_prologue ? "fused " : "plain ") + kernel);
      } catch (const Error& error) {
        if (error.status() != Status::unsupported) throw;
      }
    }
  }
  std::vector<cli::Variant> variants = {
      {"plain", [&](cudaStream_t stream) { plain.run(stream); }},
      {"fused", [&](cudaStream_t stream) { fused.run(stream); }},
      {"unfused",
       [&](cudaStream_t stream) {
         norm.run(stream);
         plain.run(stream);
       }},
      {"statistics", [&](cudaStream_t stream) { statistics.run(stream); }},
  };
  for (std::size_t i = 0; i < others.size(); ++i) {
    variants.push_back({names[i], [&, i](cudaStream_t stream) { others[i]->run(stream); }});
  }
  const auto times =
      cli::measure(variants, {.device = Device::cuda, .seconds = options.seconds, .min_runs = 15});
  const auto us = [&](std::size_t i) { return times[i].median_us; };
  const Accuracy found = accuracy(t, options, fused, plain);

  const std::string name = to_string(shape.problem);
  std::printf(
      "%-52s plain %7.1f, fused %7.1f us x %.3f; norm + plain %7.1f x %.3f; statistics %6.1f",
      name.c_str(), us(0), us(1), us(1) / us(0), us(2), us(2) / us(0), us(3));
  std::printf(" | %s | %s", plain.kernel().c_str(), fused.kernel().c_str());
  std::printf(" | %zu of %lld outputs differ", found.different,
              static_cast<long long>(t.g.output_elements()));
  if (found.checked > 0) std::printf(", error %.3e, unfused %.3e", found.fused, found.unfused);
  for (std::size_t i = 4; i < variants.size(); ++i) {
    std::printf(" | %s %.1f", variants[i].name.c_str(), us(i));
  }
  std::printf("\n");
  char line[512];
  std::snprintf(line, sizeof line, "%s,%.2f,%.2f,%.2f,%.2f,%s,%s,%zu,%.4e,%.4e\n", name.c_str(),
                us(0), us(1), us(2), us(3), plain.kernel().c_str(), fused.kernel().c_str(),
                found.different, found.fused, found.unfused);
  return line;
}

int run(const Options& options) {
  std::string csv =
      "problem,plain_us,fused_us,unfused_us,statistics_us,plain,fused,different,error,"
      "unfused_error\n";
  const int failed = for_each_layer(
      options.shapes, [&](const cli::ShapeCase& shape) { csv += compare(shape, options); });
  if (!options.csv_path.empty()) io::write_file(options.csv_path, csv);
  return failed > 0 ? 1 : 0;
}

}  // namespace
}  // namespace convoy::bench

int main(int argc, char** argv) {
  using namespace convoy::bench;
  using convoy::Activation;
  Options options;
  std::string activation = "silu";
  CommandLine line("convoy_compare_prologue", "What a norm in front of a convolution costs.");
  line.words("--kernel", options.kernels, "this kernel too, where it can run the layer");
  line.choice("--activation", activation, {"none", "relu", "silu"}, "behind the norm");
  line.number("--seconds", options.seconds, "of timed runs, each layer");
  line.whole("--check", options.check, std::int64_t{0}, std::int64_t{1} << 30,
             "outputs to compute in fp64");
  line.word("--csv", options.csv_path, "the table as a file");
  line.rest("SHAPES", options.shapes, 1, kShapesHelp);
  return line.run(argc, argv, [&] {
    options.activation = activation == "none"   ? Activation::none
                         : activation == "relu" ? Activation::relu
                                                : Activation::silu;
    return run(options);
  });
}
