// SPDX-License-Identifier: Apache-2.0
//
// What a shuffled output costs: upsampling layers of decoders, each by the plan that dispatch
// chooses for the shuffle, interleaved with the same layer without it, and with that and the copy
// behind it (after a copy of the residual in front of it, where the layer has one).
//
//   convoy_compare_shuffle [--kernel NAME] [--seconds S] [--only TEXT] [--csv FILE]
//                          [--model GPU]
//
// --kernel: both plans are this kernel's. --only: layers whose name has TEXT in it. --model: by the
// kernels' models of this GPU, which need not be there; the kernel of the plain layer copies. L2 is
// flushed before each run. Exit code: 1 where a layer fails.
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "command_line.hpp"
#include "convoy/convoy.hpp"
#include "convoy/info.hpp"
#include "core/candidate.hpp"
#include "core/shuffle.hpp"
#include "device_memory.hpp"
#include "io/atomic_file.hpp"
#include "kernels/composed/shuffle.hpp"
#include "measure.hpp"
#include "random_memory.hpp"
#include "shape_file.hpp"

namespace convoy::bench {
namespace {

using cli::DeviceMemory;

constexpr auto kInner = ShuffleOrder::channels_inner;
constexpr auto kOuter = ShuffleOrder::channels_outer;

struct UpsamplingLayer {
  const char* name;
  const char* shape;
  OutputShuffle shuffle;
};

OutputShuffle with_shortcut(OutputShuffle shuffle, ShuffleResidual residual,
                            std::int64_t channels) {
  shuffle.residual = residual;
  shuffle.residual_channels = channels;
  return shuffle;
}

// As their decoders run them: DC-AE f32 1024x1024, HunyuanVideo 1.5 and LTX 512x768 in 17 to 33
// frames, Mochi 480x848, Wan 2.1 480x832.
std::vector<UpsamplingLayer> layers() {
  const OutputShuffle pixels{.factors = {1, 2, 2}, .order = kOuter};
  const OutputShuffle all{.factors = {2, 2, 2}, .order = kInner, .dropped_frames = 1};
  const OutputShuffle ltx{.factors = {2, 2, 2}, .order = kOuter, .dropped_frames = 1};
  const OutputShuffle frames{.factors = {2, 1, 1}, .order = kInner};
  const auto dc = [&](std::int64_t channels) {
    return with_shortcut(pixels, ShuffleResidual::interleaved, channels);
  };
  return {
      {"dc_ae.up.0", "n1h32w32c1024k4096r3s3ph1pw1", dc(1024)},
      {"dc_ae.up.1", "n1h64w64c1024k2048r3s3ph1pw1", dc(1024)},
      {"dc_ae.up.2", "n1h128w128c512k2048r3s3ph1pw1", dc(512)},
      {"dc_ae.up.3", "n1h256w256c512k1024r3s3ph1pw1", dc(512)},
      {"dc_ae.up.4", "n1h512w512c256k512r3s3ph1pw1", dc(256)},
      {"dc_ae.up.3.plain", "n1h256w256c512k1024r3s3ph1pw1", pixels},
      {"hunyuan_video_15.up.0", "n1d5h32w48c1024k8192t3r3s3pd2pde0md1ph1mh1pw1mw1",
       with_shortcut(all, ShuffleResidual::interleaved, 1024)},
      {"hunyuan_video_15.up.1", "n1d9h64w96c1024k4096t3r3s3pd2pde0md1ph1mh1pw1mw1",
       with_shortcut(all, ShuffleResidual::interleaved, 1024)},
      {"ltx.up.0", "n1d5h16w24c512k2048t3r3s3pd2pde0md1ph1pw1",
       with_shortcut(ltx, ShuffleResidual::tiled, 512)},
      {"ltx.up.2", "n1d17h64w96c256k1024t3r3s3pd2pde0md1ph1pw1", ltx},
      {"mochi.up.0",
       "n1d4h60w106c768k6144",
       {.factors = {3, 2, 2}, .order = kOuter, .dropped_frames = 2}},
      {"mochi.up.1", "n1d10h120w212c512k2048", ltx},
      {"mochi.up.2", "n1d19h240w424c256k512", pixels},
      {"wan21.time_conv.0", "n1d1h60w104c384k768t3cache2", frames},
      {"wan21.time_conv.1", "n1d2h120w208c384k768t3cache2", frames},
  };
}

struct Options {
  std::string kernel, only, csv_path, model;
  double seconds = 0.2;
};

struct Row {
  std::string kernels[2];       // for the shuffle, without it
  double us = 0, plain_us = 0;  // of those
  double copied_us = 0;         // without it, and the copies
};

Row compare(const UpsamplingLayer& layer, const Options& options) {
  const ProblemShape problem = cli::resolve_shapes(layer.shape).at(0).problem;
  const ConvGeometry g = geometry_of(problem);
  const bool repeats = layer.shuffle.residual != ShuffleResidual::output;
  const DType dtype = DType::bf16;
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<std::size_t>(elements) * size_of(dtype);
  };
  const DeviceMemory activation = random_memory(g.activation_elements(), dtype, 1, 1.0f);
  const DeviceMemory cache = random_memory(g.cache_elements(), dtype, 2, 1.0f);
  const DeviceMemory filter =
      random_memory(g.filter_elements(), dtype, 3, std::sqrt(3.0f / float(g.gemm_k())));
  const DeviceMemory bias = random_memory(g.out_channels, DType::fp32, 4, 1.0f);
  const DeviceMemory residual =
      random_memory(repeats ? residual_elements(g, layer.shuffle) : 0, dtype, 5, 1.0f);
  const DeviceMemory output(Device::cuda, bytes(shuffled_elements(g, layer.shuffle)));
  const DeviceMemory results(Device::cuda, bytes(g.output_elements()));

  PlanOptions plan_options{.dtype = dtype, .device = Device::cuda, .packed_filter = true};
  plan_options.epilogue = {.bias = true, .residual = repeats};
  plan_options.kernel = options.kernel;
  const Plan plain = plan(problem, plan_options);
  plan_options.shuffle = layer.shuffle;
  const Plan shuffled = plan(problem, plan_options);
  const FilterLayout layout = g.rank == 3 ? FilterLayout::ktrsc : FilterLayout::krsc;
  const PackedFilter plain_filter = plain.pack_filter(filter.data(), layout, nullptr);
  const PackedFilter shuffled_filter = shuffled.pack_filter(filter.data(), layout, nullptr);
  const DeviceMemory plain_workspace(Device::cuda, plain.workspace_bytes());
  const DeviceMemory shuffled_workspace(Device::cuda, shuffled.workspace_bytes());
  const auto run = [&](const Plan& of, const PackedFilter& packed, void* to, const void* source,
                       const DeviceMemory& workspace, cudaStream_t stream) {
    RunArguments arguments;
    arguments.output.data = to;
    arguments.activation.data = activation.data();
    arguments.cache.data = cache.bytes() > 0 ? cache.data() : nullptr;
    arguments.filter = packed;
    arguments.epilogue.bias = bias.data();
    arguments.epilogue.residual = source;
    arguments.workspace = workspace.bytes() > 0 ? workspace.data() : nullptr;
    of.run(arguments, stream);
  };
  const ShuffleCopies& copies = composed::cuda_shuffle_copies();
  const auto run_plain = [&](cudaStream_t stream) {
    run(plain, plain_filter, results.data(), repeats ? results.data() : nullptr, plain_workspace,
        stream);
  };
  const std::vector<cli::Variant> variants = {
      {"shuffled",
       [&](cudaStream_t stream) {
         run(shuffled, shuffled_filter, output.data(), repeats ? residual.data() : nullptr,
             shuffled_workspace, stream);
       }},
      {"plain", run_plain},
      {"copied", [&](cudaStream_t stream) {
         if (repeats) {
           copies.residual_of_filters(results.data(), residual.data(), g, layer.shuffle,
                                      size_of(dtype), stream);
         }
         run_plain(stream);
         copies.to_output(output.data(), results.data(), g, layer.shuffle, false, size_of(dtype),
                          stream);
       }}};
  const auto times =
      cli::measure(variants, {.device = Device::cuda, .seconds = options.seconds, .min_runs = 15});
  return {.kernels = {shuffled.info().kernel, plain.info().kernel},
          .us = times[0].median_us,
          .plain_us = times[1].median_us,
          .copied_us = times[2].median_us};
}

// The same by the models: the copies take as long as the kernel that has them says.
Row predict(const UpsamplingLayer& layer, const Options& options) {
  const ProblemShape problem = cli::resolve_shapes(layer.shape).at(0).problem;
  const DeviceInfo& gpu = known_gpu(options.model);
  const bool repeats = layer.shuffle.residual != ShuffleResidual::output;
  PlanOptions plan_options{.device = Device::cuda, .packed_filter = true};
  plan_options.epilogue = {.bias = true, .residual = repeats};
  const auto first = [&](bool shuffles) {
    plan_options.shuffle = shuffles ? layer.shuffle : OutputShuffle{};
    return candidates(problem, plan_options, gpu).front();
  };
  const Candidate shuffled = first(true), plain = first(false);
  const ConvGeometry g = geometry_of(problem);
  const double moved =
      double(g.output_elements() + shuffled_elements(g, layer.shuffle)) +
      (repeats ? double(g.output_elements() + residual_elements(g, layer.shuffle)) : 0.0);
  const double bytes_per_us = 3e6 * memory_share(gpu);  // As src/dispatch/shuffled.cpp has it.
  return {.kernels = {shuffled.kernel, plain.kernel},
          .us = shuffled.estimated_us,
          .plain_us = plain.estimated_us,
          .copied_us = plain.estimated_us + moved * 2 / bytes_per_us};
}

int run(const Options& options) {
  std::string csv = "layer,problem,shuffle,us,plain_us,copied_us,to_plain,to_copied,kernel,plain\n";
  int failed = 0, compared = 0;
  double log_plain = 0, log_copied = 0;
  for (const UpsamplingLayer& layer : layers()) {
    if (std::string(layer.name).find(options.only) == std::string::npos) continue;
    try {
      const Row row = options.model.empty() ? compare(layer, options) : predict(layer, options);
      const double to_plain = row.us / row.plain_us, to_copied = row.us / row.copied_us;
      std::printf("%-22s %8.1f us, plain %8.1f (x %.3f), with copies %8.1f (x %.3f)  %s | %s\n",
                  layer.name, row.us, row.plain_us, to_plain, row.copied_us, to_copied,
                  row.kernels[0].c_str(), row.kernels[1].c_str());
      char line[160];
      std::snprintf(line, sizeof line, ",%.2f,%.2f,%.2f,%.4f,%.4f,", row.us, row.plain_us,
                    row.copied_us, to_plain, to_copied);
      csv += std::string(layer.name) + "," + layer.shape + ",\"" + to_string(layer.shuffle) + "\"" +
             line + row.kernels[0] + "," + row.kernels[1] + "\n";
      log_plain += std::log(to_plain);
      log_copied += std::log(to_copied);
      ++compared;
    } catch (const Error& error) {
      ++failed;
      std::printf("%s: %s\n", layer.name, error.what());
    }
  }
  if (compared > 0) {
    std::printf(
        "%d layers: geomean x %.3f of the plain layer, x %.3f of it with copies; %d failed\n",
        compared, std::exp(log_plain / compared), std::exp(log_copied / compared), failed);
  }
  if (!options.csv_path.empty()) io::write_file(options.csv_path, csv);
  return failed > 0 ? 1 : 0;
}

}  // namespace
}  // namespace convoy::bench

int main(int argc, char** argv) {
  using namespace convoy::bench;
  Options options;
  CommandLine line("convoy_compare_shuffle", "What a shuffled output costs.");
  line.word("--kernel", options.kernel, "runs the layers; else dispatch chooses");
  line.number("--seconds", options.seconds, "of timed runs, each layer");
  line.word("--only", options.only, "layers alone whose name has this in it");
  line.word("--csv", options.csv_path, "the table as a file");
  line.word("--model", options.model, "by the kernels' models of this GPU, nothing is run");
  return line.run(argc, argv, [&] { return run(options); });
}
