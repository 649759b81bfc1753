// SPDX-License-Identifier: Apache-2.0
//
// Two builds of the library, before and after a change, in one process on one GPU: each layer's
// time with both, interleaved, and whether every bit of the outputs is the same.
//
//   convoy_compare_builds BEFORE.so AFTER.so [--seconds S] [--dtype TYPE] [--epilogue STEPS]
//                         [--tf32] [--kernel NAME] [--csv FILE] SHAPES...
//
// SHAPES: shape files or shape strings; types and epilogues that a file gives its layers count more
// than the options. Exit code: 0, or 1 where bits differ or a layer fails.
// Both are reached through the C interface only, so any two versions with the same major version
// can be compared.
#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "command_line.hpp"
#include "convoy/convoy.h"
#include "convoy/error.hpp"
#include "convoy/geometry.hpp"
#include "convoy/problem.hpp"
#include "cuda_check.hpp"
#include "device_memory.hpp"
#include "io/atomic_file.hpp"
#include "measure.hpp"
#include "random_memory.hpp"

namespace convoy::bench {
namespace {

using cli::DeviceMemory;

/// The functions of one build.
class Build {
 public:
  explicit Build(const std::string& path) : path_(path) {
    // NOTE: its own symbols first: the other build, and the one that this program links, have the
    // same names.
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (handle_ == nullptr) throw Error(Status::io_error, dlerror());
  }
  template <typename Function>
  Function* get(Function*, const char* name) const {
    void* const symbol = dlsym(handle_, name);
    if (symbol == nullptr) throw Error(Status::io_error, path_ + " has no " + name);
    return reinterpret_cast<Function*>(symbol);
  }

 private:
  std::string path_;
  void* handle_ = nullptr;
};
#define CONVOY_OF(build, name) (build).get(&::name, #name)

struct Options {
  std::string paths[2];
  std::string csv_path;
  double seconds = 0.3;
  DType dtype = DType::bf16;
  bool allow_tf32 = false;
  std::string kernel;  ///< Empty: each build chooses.
  EpilogueKind epilogue;
  std::vector<std::string> shapes;
};

/// A layer's tensors, which both builds read.
struct Tensors {
  DeviceMemory activation, cache, filter, bias, residual;
};

/// One layer as one build runs it.
class Layer {
 public:
  Layer(const Build& build, const Options& options, const ProblemShape& problem, DType dtype,
        const EpilogueKind& kind, const Tensors& tensors, std::size_t output_bytes)
      : build_(build), output_(Device::cuda, output_bytes) {
    CONVOY_OF(build, convoy_epilogue_init)(&epilogue_, sizeof epilogue_);
    if (kind.bias) epilogue_.bias = tensors.bias.data();
    epilogue_.bias_dtype = static_cast<int>(kind.bias_dtype);
    epilogue_.activation = static_cast<int>(kind.activation);
    if (kind.residual) epilogue_.residual = tensors.residual.data();
    epilogue_.residual_order = static_cast<int>(kind.order);
    epilogue_.rounding = static_cast<int>(kind.rounding);
    convoy_plan_options_t plan_options;
    CONVOY_OF(build, convoy_plan_options_init)(&plan_options, sizeof plan_options);
    plan_options.dtype = static_cast<int>(dtype);
    plan_options.allow_tf32 = options.allow_tf32 ? 1 : 0;
    plan_options.kernel = options.kernel.c_str();
    plan_options.device = CONVOY_DEVICE_CUDA;
    plan_options.packed_filter = 1;
    plan_options.epilogue = &epilogue_;
    std::visit([&](const auto& shape) { plan(shape, plan_options); }, problem);
    const bool deep = std::holds_alternative<Conv3dProblemShape>(problem);
    check(CONVOY_OF(build, convoy_pack_filter)(
        plan_, tensors.filter.data(), deep ? CONVOY_KTRSC : CONVOY_KRSC, nullptr, &packed_));
    std::size_t workspace_bytes = 0;
    check(CONVOY_OF(build, convoy_plan_workspace_bytes)(plan_, &workspace_bytes));
    workspace_ = DeviceMemory(Device::cuda, workspace_bytes);
    run_ = CONVOY_OF(build, convoy_run);
    CONVOY_OF(build, convoy_run_arguments_init)(&arguments_, sizeof arguments_);
    arguments_.output = output_.data();
    arguments_.activation = tensors.activation.data();
    arguments_.cache = tensors.cache.bytes() > 0 ? tensors.cache.data() : nullptr;
    arguments_.packed_filter = packed_;
    arguments_.workspace = workspace_bytes > 0 ? workspace_.data() : nullptr;
    arguments_.epilogue = &epilogue_;
    convoy_plan_info_t info;
    info.struct_size = sizeof info;
    check(CONVOY_OF(build, convoy_plan_info)(plan_, &info));
    kernel_ = info.kernel;
  }
  ~Layer() {
    CONVOY_OF(build_, convoy_packed_filter_destroy)(packed_);
    CONVOY_OF(build_, convoy_plan_destroy)(plan_);
  }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  void run(cudaStream_t stream) const { check(run_(plan_, &arguments_, stream)); }
  const std::string& kernel() const { return kernel_; }

  /// The output of one run over memory that held NaNs.
  std::vector<unsigned char> output() const {
    cli::check_cuda(cudaMemset(output_.data(), 0xff, output_.bytes()), "cudaMemset");
    run(nullptr);
    cli::synchronize(Device::cuda);
    std::vector<unsigned char> bytes(output_.bytes());
    output_.download(bytes.data(), bytes.size());
    return bytes;
  }

 private:
  void check(convoy_status_t status) const {
    if (status == CONVOY_OK) return;
    throw Error(static_cast<Status>(status), CONVOY_OF(build_, convoy_last_error)());
  }
  void plan(const Conv2dProblemShape& p, const convoy_plan_options_t& options) {
    convoy_conv2d_shape_t s;
    CONVOY_OF(build_, convoy_conv2d_shape_init)(&s, sizeof s);
    s.batch = p.batch;
    s.in_height = p.in_height;
    s.in_width = p.in_width;
    s.in_channels = p.in_channels;
    s.out_channels = p.out_channels;
    s.filter_h = p.filter_h;
    s.filter_w = p.filter_w;
    s.pad_top = p.pad_h;
    s.pad_left = p.pad_w;
    s.pad_bottom = p.pad_h_end.value_or(p.pad_h);
    s.pad_right = p.pad_w_end.value_or(p.pad_w);
    s.stride_h = p.stride_h;
    s.stride_w = p.stride_w;
    s.dilation_h = p.dilation_h;
    s.dilation_w = p.dilation_w;
    s.groups = p.groups;
    s.upsample = p.upsample;
    s.pad_mode = static_cast<int>(p.pad_mode);
    check(CONVOY_OF(build_, convoy_plan_conv2d)(&s, &options, &plan_));
  }
  void plan(const Conv3dProblemShape& p, const convoy_plan_options_t& options) {
    convoy_conv3d_shape_t s;
    CONVOY_OF(build_, convoy_conv3d_shape_init)(&s, sizeof s);
    s.batch = p.batch;
    s.in_depth = p.in_depth;
    s.in_height = p.in_height;
    s.in_width = p.in_width;
    s.in_channels = p.in_channels;
    s.out_channels = p.out_channels;
    s.groups = p.groups;
    s.cached_frames = p.cached_frames;
    for (int axis = 0; axis < 3; ++axis) {
      s.filter[axis] = p.filter[axis];
      s.pad_begin[axis] = p.pad_begin[axis];
      s.pad_end[axis] = p.pad_end[axis];
      s.stride[axis] = p.stride[axis];
      s.dilation[axis] = p.dilation[axis];
      s.pad_mode[axis] = static_cast<int>(p.pad_mode[axis]);
    }
    check(CONVOY_OF(build_, convoy_plan_conv3d)(&s, &options, &plan_));
  }

  const Build& build_;
  DeviceMemory output_, workspace_;
  convoy_epilogue_t epilogue_;
  convoy_run_arguments_t arguments_;
  convoy_plan_t plan_ = nullptr;
  convoy_packed_filter_t packed_ = nullptr;
  decltype(&::convoy_run) run_ = nullptr;
  std::string kernel_;
};

struct Row {
  std::string set, problem, dtype, epilogue, kernels[2];
  std::int64_t count = 1;
  double us[2] = {};
  bool same_bits = false;
};

Row compare(const Build (&builds)[2], const std::string& set, const cli::ShapeCase& shape,
            const Options& options) {
  const ConvGeometry g = geometry_of(shape.problem);
  const DType dtype = shape.dtype.value_or(options.dtype);
  const EpilogueKind kind = shape.epilogue.value_or(options.epilogue);
  Tensors tensors;
  tensors.activation = random_memory(g.activation_elements(), dtype, 1, 1.0f);
  tensors.cache = random_memory(g.cache_elements(), dtype, 2, 1.0f);
  tensors.filter =
      random_memory(g.filter_elements(), dtype, 3, std::sqrt(3.0f / float(g.gemm_k())));
  tensors.bias = random_memory(g.out_channels, kind.bias_dtype, 4, 1.0f);
  tensors.residual = random_memory(g.output_elements(), dtype, 5, 1.0f);
  cli::synchronize(Device::cuda);
  const std::size_t bytes = std::size_t(g.output_elements()) * size_of(dtype);
  const Layer before(builds[0], options, shape.problem, dtype, kind, tensors, bytes);
  const Layer after(builds[1], options, shape.problem, dtype, kind, tensors, bytes);

  Row row;
  row.set = set;
  row.problem = to_string(shape.problem);
  row.dtype = to_string(dtype);
  row.epilogue = to_string(kind);
  row.count = shape.count;
  row.kernels[0] = before.kernel();
  row.kernels[1] = after.kernel();
  row.same_bits = before.output() == after.output();
  const cli::Variant variants[2] = {{"before", [&](cudaStream_t s) { before.run(s); }},
                                    {"after", [&](cudaStream_t s) { after.run(s); }}};
  const auto times =
      cli::measure(variants, {.device = Device::cuda, .seconds = options.seconds, .min_runs = 31});
  for (int i = 0; i < 2; ++i) row.us[i] = times[std::size_t(i)].median_us;
  return row;
}

int run(const Options& options) {
  const Build builds[2] = {Build(options.paths[0]), Build(options.paths[1])};
  for (int i = 0; i < 2; ++i) {
    std::printf("%s: %s, %s\n", i == 0 ? "before" : "after", options.paths[i].c_str(),
                CONVOY_OF(builds[i], convoy_version)());
  }
  std::string csv =
      "set,problem,dtype,epilogue,count,before_us,after_us,ratio,same_bits,before,after\n";
  int different = 0, failed = 0, slower = 0;
  double log_sum = 0, worst = 1e9;
  std::vector<Row> rows;
  for (const std::string& word : options.shapes) {
    const std::string set = std::filesystem::path(word).stem().string();
    double total[2] = {};
    failed += for_each_layer({word}, [&](const cli::ShapeCase& shape) {
      const Row row = compare(builds, set, shape, options);
      const double ratio = row.us[0] / row.us[1];
      std::printf("%-60s %-20s %9.2f %9.2f us  x %.3f  %s  %s\n", row.problem.c_str(),
                  row.epilogue.c_str(), row.us[0], row.us[1], ratio,
                  row.same_bits ? "same bits" : "BITS DIFFER", row.kernels[1].c_str());
      char line[512];
      std::snprintf(line, sizeof line, "%s,%s,%s,%s,%lld,%.3f,%.3f,%.4f,%d,%s,%s\n",
                    row.set.c_str(), row.problem.c_str(), row.dtype.c_str(), row.epilogue.c_str(),
                    static_cast<long long>(row.count), row.us[0], row.us[1], ratio, row.same_bits,
                    row.kernels[0].c_str(), row.kernels[1].c_str());
      csv += line;
      different += !row.same_bits;
      slower += ratio < 0.99;
      log_sum += std::log(ratio);
      worst = std::min(worst, ratio);
      for (int i = 0; i < 2; ++i) total[i] += double(row.count) * row.us[i];
      rows.push_back(row);
    });
    if (total[1] > 0) {
      std::printf("-- %s by count: %.3f -> %.3f ms, x %.4f\n", set.c_str(), total[0] / 1e3,
                  total[1] / 1e3, total[0] / total[1]);
    }
  }
  if (!rows.empty()) {
    std::printf(
        "%zu layers: geomean x %.4f, worst x %.3f, %d more than 1 %% slower, %d differ, "
        "%d failed\n",
        rows.size(), std::exp(log_sum / double(rows.size())), worst, slower, different, failed);
  }
  if (!options.csv_path.empty()) io::write_file(options.csv_path, csv);
  return different + failed > 0 ? 1 : 0;
}

}  // namespace
}  // namespace convoy::bench

int main(int argc, char** argv) {
  using namespace convoy::bench;
  Options options;
  std::vector<std::string> words;
  CommandLine line("convoy_compare_builds", "Two builds of the library: times and bits.");
  line.number("--seconds", options.seconds, "of timed runs, each layer");
  line.dtype(options.dtype);
  line.flag("--tf32", options.allow_tf32, "with fp32: products of TF32 will do");
  line.word("--kernel", options.kernel,
            "this one in both builds; a build chooses where there is none");
  std::string epilogue = "none";
  line.word("--epilogue", epilogue, "of layers that do not say theirs: bias+silu+residual");
  line.word("--csv", options.csv_path, "the table as a file");
  line.rest("BEFORE.so AFTER.so SHAPES", words, 3, kShapesHelp);
  return line.run(argc, argv, [&] {
    options.paths[0] = words[0];
    options.paths[1] = words[1];
    options.epilogue = convoy::cli::parse_epilogue(epilogue);
    options.shapes.assign(words.begin() + 2, words.end());
    return run(options);
  });
}
