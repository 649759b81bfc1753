// SPDX-License-Identifier: Apache-2.0
//
// What padding by replication and reflection costs: each layer as it is, interleaved with the same
// layer with zero padding, and with that on an input which has its frames of padding already; each
// by the kernel that dispatch chooses. Zero padding in front of a causal layer leaves out the taps
// that meet it; with the frames there is as much to multiply as in the layer itself.
//
//   convoy_compare_padding [--kernel NAME]... [--seconds S] [--dtype TYPE] [--csv FILE] SHAPES...
//
// SHAPES: shape files or shape strings. --kernel: this kernel too, where it can run the layer as it
// is ("padded_copy", "im2col_matmul_conv3d"). Beside them the whole padded copy of the input, and a
// cudaMemcpy that moves as many bytes. L2 is flushed before each run. Exit code: 1 where a layer
// fails.
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "command_line.hpp"
#include "convoy/convoy.hpp"
#include "cuda_check.hpp"
#include "device_memory.hpp"
#include "io/atomic_file.hpp"
#include "kernels/composed/padded_copy.hpp"
#include "measure.hpp"
#include "random_memory.hpp"

namespace convoy::bench {
namespace {

using cli::DeviceMemory;

struct Options {
  std::vector<std::string> kernels, shapes;
  std::string csv_path;
  double seconds = 0.2;
  DType dtype = DType::bf16;
};

/// `frames`: those of the padding along depth are of the input.
ProblemShape with_zeros(ProblemShape problem, bool frames) {
  if (auto* const image = std::get_if<Conv2dProblemShape>(&problem)) {
    image->pad_mode = PadMode::zero;
    return problem;
  }
  auto& volume = std::get<Conv3dProblemShape>(problem);
  if (frames && volume.pad_mode[0] != PadMode::zero) {
    volume.in_depth += volume.pad_begin[0] + volume.pad_end[0];
    volume.pad_begin[0] = volume.pad_end[0] = 0;
  }
  volume.pad_mode = {PadMode::zero, PadMode::zero, PadMode::zero};
  return problem;
}

/// A layer's tensors, which all of its plans read.
struct Tensors {
  DeviceMemory activation, cache, filter, output;
};

/// One plan of a layer, ready to run.
class Layer {
 public:
  Layer(const ProblemShape& problem, PlanOptions options, const Tensors& tensors)
      : plan_(std::visit([&](const auto& shape) { return plan(shape, options); }, problem)),
        workspace_(Device::cuda, plan_.workspace_bytes()) {
    const bool deep = std::holds_alternative<Conv3dProblemShape>(problem);
    packed_ = plan_.pack_filter(tensors.filter.data(),
                                deep ? FilterLayout::ktrsc : FilterLayout::krsc, nullptr);
    arguments_.output.data = tensors.output.data();
    arguments_.activation.data = tensors.activation.data();
    arguments_.cache.data = tensors.cache.bytes() > 0 ? tensors.cache.data() : nullptr;
    arguments_.filter = packed_;
    arguments_.workspace = workspace_.bytes() > 0 ? workspace_.data() : nullptr;
  }
  void run(cudaStream_t stream) const { plan_.run(arguments_, stream); }
  std::string kernel() const { return plan_.info().kernel; }

 private:
  Plan plan_;
  DeviceMemory workspace_;
  PackedFilter packed_;
  RunArguments arguments_;
};

/// Times of one layer. The first is with zeros, the second with frames of padding, the third as
/// asked; the last two are the copy and the cudaMemcpy.
struct Row {
  std::string problem;
  std::vector<std::string> kernels;
  std::vector<double> us;
  double to_zeros() const { return us[2] / us[0]; }
  double to_frames() const { return us[2] / us[1]; }
};

Row compare(const cli::ShapeCase& shape, const Options& options) {
  const ConvGeometry g = geometry_of(shape.problem);
  const DType dtype = shape.dtype.value_or(options.dtype);
  Tensors tensors;
  const ProblemShape frames = with_zeros(shape.problem, true);
  tensors.activation = random_memory(
      std::max(g.activation_elements(), geometry_of(frames).activation_elements()), dtype, 1, 1.0f);
  tensors.cache = random_memory(g.cache_elements(), dtype, 2, 1.0f);
  tensors.filter =
      random_memory(g.filter_elements(), dtype, 3, std::sqrt(3.0f / float(g.gemm_k())));
  tensors.output = DeviceMemory(Device::cuda, std::size_t(g.output_elements()) * size_of(dtype));

  PlanOptions plan_options;
  plan_options.dtype = dtype;
  plan_options.device = Device::cuda;
  plan_options.packed_filter = true;
  std::vector<std::unique_ptr<Layer>> layers;
  layers.push_back(
      std::make_unique<Layer>(with_zeros(shape.problem, false), plan_options, tensors));
  layers.push_back(std::make_unique<Layer>(frames, plan_options, tensors));
  layers.push_back(std::make_unique<Layer>(shape.problem, plan_options, tensors));
  for (const std::string& kernel : options.kernels) {
    plan_options.kernel = kernel;
    try {
      layers.push_back(std::make_unique<Layer>(shape.problem, plan_options, tensors));
    } catch (const Error& error) {
      if (error.status() != Status::unsupported) throw;
    }
  }
  Row row{.problem = to_string(shape.problem), .kernels = {}, .us = {}};
  std::vector<cli::Variant> variants;
  for (const auto& layer : layers) {
    variants.push_back({layer->kernel(), [&](cudaStream_t stream) { layer->run(stream); }});
  }

  const composed::PaddedCopyForm form =
      composed::padded_copy_form(g, dtype, {.depth = true}, std::size_t{1} << 40);
  const auto bytes_of = [&](std::int64_t elements) {
    return static_cast<std::size_t>(elements) * size_of(dtype);
  };
  const std::size_t written = bytes_of(form.part.activation_elements());
  const std::size_t moved = written + bytes_of(g.activation_elements() + g.cache_elements());
  const DeviceMemory copy(Device::cuda, written), from(Device::cuda, moved / 2);
  variants.push_back({"copy", [&](cudaStream_t stream) {
                        composed::write_padded_copy(copy.data(), tensors.activation.data(),
                                                    tensors.cache.data(), g, dtype, form, form.part,
                                                    0, 0, stream);
                      }});
  variants.push_back({"memcpy", [&](cudaStream_t stream) {
                        cli::check_cuda(
                            cudaMemcpyAsync(copy.data(), from.data(), std::min(moved / 2, written),
                                            cudaMemcpyDeviceToDevice, stream),
                            "cudaMemcpyAsync");
                      }});
  const auto times =
      cli::measure(variants, {.device = Device::cuda, .seconds = options.seconds, .min_runs = 15});
  for (std::size_t i = 0; i < variants.size(); ++i) {
    row.kernels.push_back(variants[i].name);
    row.us.push_back(times[i].median_us);
  }
  return row;
}

int run(const Options& options) {
  std::string csv =
      "problem,zeros_us,frames_us,us,to_zeros,to_frames,zeros,frames,kernel,others,copy_us,"
      "memcpy_us\n";
  std::size_t compared = 0;
  double log_zeros = 0, log_frames = 0, worst_zeros = 0, worst_frames = 0;
  const int failed = for_each_layer(options.shapes, [&](const cli::ShapeCase& shape) {
    const Row row = compare(shape, options);
    const std::size_t count = row.us.size();
    std::string others;
    for (std::size_t i = 3; i + 2 < count; ++i) {
      others += (others.empty() ? "" : ";") + row.kernels[i] + "=" + std::to_string(row.us[i]);
    }
    const double copy_us = row.us[count - 2], memcpy_us = row.us[count - 1];
    std::printf(
        "%-58s zeros %8.1f, frames %8.1f, padded %8.1f us, x %.3f, %.3f  copy %6.1f of %6.1f  "
        "%s | %s %s\n",
        row.problem.c_str(), row.us[0], row.us[1], row.us[2], row.to_zeros(), row.to_frames(),
        copy_us, memcpy_us, row.kernels[0].c_str(), row.kernels[2].c_str(), others.c_str());
    char line[256];
    std::snprintf(line, sizeof line, ",%.2f,%.2f,%.2f,%.4f,%.4f,", row.us[0], row.us[1], row.us[2],
                  row.to_zeros(), row.to_frames());
    csv += row.problem + line;
    for (std::size_t i = 0; i < 3; ++i) csv += row.kernels[i] + ",";
    csv += others;
    std::snprintf(line, sizeof line, ",%.2f,%.2f\n", copy_us, memcpy_us);
    csv += line;
    log_zeros += std::log(row.to_zeros());
    log_frames += std::log(row.to_frames());
    worst_zeros = std::max(worst_zeros, row.to_zeros());
    worst_frames = std::max(worst_frames, row.to_frames());
    ++compared;
  });
  if (compared > 0) {
    const auto mean = [&](double log_sum) { return std::exp(log_sum / double(compared)); };
    std::printf(
        "%zu layers: geomean x %.3f of zero padding, worst x %.3f; x %.3f of zero padding with the "
        "frames, worst x %.3f; %d failed\n",
        compared, mean(log_zeros), worst_zeros, mean(log_frames), worst_frames, failed);
  }
  if (!options.csv_path.empty()) io::write_file(options.csv_path, csv);
  return failed > 0 ? 1 : 0;
}

}  // namespace
}  // namespace convoy::bench

int main(int argc, char** argv) {
  using namespace convoy::bench;
  Options options;
  CommandLine line("convoy_compare_padding", "What padding by replication and reflection costs.");
  line.words("--kernel", options.kernels, "this kernel too, where it can run the layer");
  line.number("--seconds", options.seconds, "of timed runs, each layer");
  line.dtype(options.dtype);
  line.word("--csv", options.csv_path, "the table as a file");
  line.rest("SHAPES", options.shapes, 1, kShapesHelp);
  return line.run(argc, argv, [&] { return run(options); });
}
