// SPDX-License-Identifier: Apache-2.0
//
// Three ways to compute a 3-D convolution on the GPU: natively (one implicit GEMM), Q-sliced (T 2-D
// convolutions with an fp32 accumulator), as an explicit im2col matrix times the filter. Time,
// bytes and error of each, as rows of a Markdown table.
//
// convoy_compare_3d [--seconds S] SHAPES...
// SHAPES: 3-D shape strings without temporal padding and cached frames, for Q-slicing's gate. Exit
// code: 1 where a layer fails.
//
// Time: interleaved, L2 flushed before each run, random bf16 data, median. Error: ‖out − ref‖ /
// ‖ref‖ against the same convolution in fp32 (`general` on the widened values). Bytes: what
// the method must move at least, each tensor once a pass.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "command_line.hpp"
#include "convoy/dtype.hpp"
#include "convoy/plan.hpp"
#include "cuda_check.hpp"
#include "device_fill.hpp"
#include "device_memory.hpp"
#include "measure.hpp"
#include "text.hpp"

namespace convoy::bench {
namespace {

using cli::DeviceMemory;

std::vector<float> widened(const DeviceMemory& memory, std::int64_t elements) {
  std::vector<std::uint16_t> narrow(static_cast<std::size_t>(elements));
  cli::check_cuda(cudaMemcpy(narrow.data(), memory.data(), narrow.size() * 2, cudaMemcpyDefault),
                  "cudaMemcpy");
  std::vector<float> wide(narrow.size());
  for (std::size_t i = 0; i < narrow.size(); ++i) wide[i] = float_from_bf16(narrow[i]);
  return wide;
}

DeviceMemory uploaded(const std::vector<float>& values) {
  DeviceMemory memory(Device::cuda, values.size() * sizeof(float));
  cli::check_cuda(
      cudaMemcpy(memory.data(), values.data(), values.size() * sizeof(float), cudaMemcpyDefault),
      "cudaMemcpy");
  return memory;
}

// A way to compute the problem, with its own output.
struct Method {
  Plan plan;
  PackedFilter filter;
  DeviceMemory workspace, output;
  RunArguments arguments;
};

double relative_error(const std::vector<float>& out, const std::vector<float>& reference) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double d = double(out[i]) - double(reference[i]);
    difference += d * d;
    size += double(reference[i]) * double(reference[i]);
  }
  return std::sqrt(difference / size);
}

double bytes_of(const std::string& kernel, const ConvGeometry& g, double native) {
  const double out = double(g.output_elements()), columns = double(g.gemm_m() * g.gemm_k()) * 2;
  const double frames = double(g.filter[0]);
  if (kernel.starts_with("im2col")) return native + 2 * columns;
  if (!kernel.starts_with("qslice")) return native;
  // Each slice reads Z frames; the accumulator is written T times, read T − 1 times and once more
  // to be cast.
  const double input = double(g.batch * g.out[0] * g.in[1] * g.in[2] * g.in_channels) * 2;
  return frames * input + double(g.filter_elements()) * 2 + out * (4 * frames + 4 * frames + 2);
}

void compare(const Conv3dProblemShape& problem, const ConvGeometry& g, double seconds) {
  DeviceMemory activation(Device::cuda, std::size_t(g.activation_elements()) * 2);
  DeviceMemory filter(Device::cuda, std::size_t(g.filter_elements()) * 2);
  fill_random(activation.data(), g.activation_elements(), DType::bf16, 1, 1.0f, nullptr);
  fill_random(filter.data(), g.filter_elements(), DType::bf16, 2,
              std::sqrt(3.0f / float(g.gemm_k())), nullptr);

  // The reference.
  const DeviceMemory wide_activation = uploaded(widened(activation, g.activation_elements()));
  const DeviceMemory wide_filter = uploaded(widened(filter, g.filter_elements()));
  std::vector<float> reference(std::size_t(g.output_elements()));
  {
    const DeviceMemory output(Device::cuda, reference.size() * sizeof(float));
    const Plan plan =
        convoy::plan(problem, {.dtype = DType::fp32, .device = Device::cuda, .kernel = "general"});
    plan.run({.output = output.data(),
              .activation = ConstTensorView(wide_activation.data()),
              .filter = FilterRef(wide_filter.data())});
    cli::check_cuda(cudaMemcpy(reference.data(), output.data(), reference.size() * sizeof(float),
                               cudaMemcpyDefault),
                    "reference");
  }

  PlanOptions options{.dtype = DType::bf16, .device = Device::cuda, .packed_filter = true};
  std::vector<Method> methods;
  for (const std::string& name :
       {std::string(), std::string("qslice_conv3d"), std::string("im2col_matmul_conv3d")}) {
    options.kernel = name;
    const Plan plan = convoy::plan(problem, options);
    Method m{.plan = plan,
             .filter = plan.pack_filter(filter.data(), FilterLayout::ktrsc),
             .workspace = DeviceMemory(Device::cuda, plan.workspace_bytes()),
             .output = DeviceMemory(Device::cuda, reference.size() * 2),
             .arguments = {}};
    m.arguments.output = m.output.data();
    m.arguments.activation = ConstTensorView(activation.data());
    m.arguments.filter = m.filter;
    m.arguments.workspace = plan.workspace_bytes() > 0 ? m.workspace.data() : nullptr;
    methods.push_back(std::move(m));
  }
  std::vector<cli::Variant> variants;
  for (const Method& m : methods) {
    variants.push_back(
        {m.plan.info().kernel, [&m](cudaStream_t stream) { m.plan.run(m.arguments, stream); }});
  }
  const auto times = cli::measure(
      variants, {.device = Device::cuda, .seconds = seconds, .min_runs = 7, .max_runs = 300});
  for (std::size_t i = 0; i < methods.size(); ++i) {
    const PlanInfo& info = methods[i].plan.info();
    std::printf("| `%s` | %s | %.1f | %.0f | %.0f | %.2f | %.2e |\n", info.problem.c_str(),
                info.kernel.c_str(), info.flops * 1e-9,
                bytes_of(info.kernel, g, info.min_bytes) * 1e-6, times[i].median_us,
                times[i].median_us / times[0].median_us,
                relative_error(widened(methods[i].output, g.output_elements()), reference));
  }
}

}  // namespace
}  // namespace convoy::bench

int main(int argc, char** argv) {
  using namespace convoy;
  double seconds = 0.05;
  std::vector<std::string> shapes;
  bench::CommandLine line("convoy_compare_3d", "Three ways to compute a 3-D convolution.");
  line.number("--seconds", seconds, "of timed runs, each layer");
  line.rest("SHAPES", shapes, 1, bench::kShapesHelp);
  return line.run(argc, argv, [&] {
    std::printf("| shape | kernel | GFLOP | MB | µs | × native | error |\n");
    std::printf("|---|---|---|---|---|---|---|\n");
    const int failed = bench::for_each_layer(shapes, [&](const cli::ShapeCase& shape) {
      const auto* problem = std::get_if<Conv3dProblemShape>(&shape.problem);
      if (problem == nullptr) throw Error(Status::invalid_argument, "2-D; needs a 3-D layer");
      bench::compare(*problem, geometry_of(shape.problem), seconds);
    });
    return failed > 0 ? 1 : 0;
  });
}
