// SPDX-License-Identifier: Apache-2.0
//
// What Plan::run costs the host beyond the launch itself.
//
//   convoy_run_cost [--capture] [--bursts 300] [--launches 50] [--only NAME]
//
// "run" is Plan::run. "bare" is cudaLaunchKernelExC of the same kernel with the same parameters,
// grid, shared memory and attributes, which are read back from a run that was captured into a
// graph. Both enqueue bursts that are shorter than the launch queue, in turns, each burst on an
// idle GPU; times are host microseconds a launch, medians over the bursts, and "more" is the median
// of run - bare of a turn.
// --capture: the bursts are captured and never run. So it is also measured where a launch is not
// asynchronous: the virtual GPU interprets the kernel at once.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "command_line.hpp"
#include "convoy/convoy.hpp"

namespace {

using namespace convoy;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s: %s\n", what, cudaGetErrorName(error), cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK(call) check(call, #call)

// ---- Layers -------------------------------------------------------------------------------------

struct Layer {
  const char* name;
  Conv3dProblemShape shape;
  EpilogueKind epilogue{};
  bool upsampled = false;  // In 2-D, by 2, with a packed filter.
};

Plan plan_of(const Layer& layer) {
  PlanOptions options{.epilogue = layer.epilogue, .device = Device::cuda};
  options.packed_filter = layer.upsampled;
  if (!layer.upsampled) return convoy::plan(layer.shape, options);
  return convoy::plan(Conv2dProblemShape{.in_height = layer.shape.in_height,
                                         .in_width = layer.shape.in_width,
                                         .in_channels = layer.shape.in_channels,
                                         .out_channels = layer.shape.out_channels,
                                         .filter_h = layer.shape.filter[1],
                                         .filter_w = layer.shape.filter[2],
                                         .pad_h = layer.shape.pad_begin[1],
                                         .pad_w = layer.shape.pad_begin[2],
                                         .upsample = 2},
                      options);
}

Conv3dProblemShape shape_of(std::array<std::int64_t, 3> in, std::int64_t channels,
                            std::int64_t filters, std::array<std::int64_t, 3> filter) {
  Conv3dProblemShape shape;
  shape.in_depth = in[0];
  shape.in_height = in[1];
  shape.in_width = in[2];
  shape.in_channels = channels;
  shape.out_channels = filters;
  shape.filter = filter;
  for (std::size_t axis = 1; axis < 3; ++axis) {
    shape.pad_begin[axis] = shape.pad_end[axis] = filter[axis] / 2;
  }
  return shape;
}

// Small, so that a burst is soon done; what the host does is the same for any size.
std::vector<Layer> layers() {
  const EpilogueKind fused{.bias = true, .activation = Activation::silu, .residual = true};
  Layer cached{"3x3x3 64->64, cache", shape_of({2, 16, 16}, 64, 64, {3, 3, 3})};
  cached.shape.cached_frames = 2;
  Layer strided{"3x3 64->64, stride 2", shape_of({1, 32, 32}, 64, 64, {1, 3, 3})};
  strided.shape.stride = {1, 2, 2};
  Layer folded{"3x3 64->64, upsample 2", shape_of({1, 16, 16}, 64, 64, {1, 3, 3})};
  folded.upsampled = true;
  Layer depthwise{"depthwise 3x3 64", shape_of({1, 16, 16}, 64, 64, {1, 3, 3})};
  depthwise.shape.groups = 64;
  return {{"3x3 64->64", shape_of({1, 16, 16}, 64, 64, {1, 3, 3})},
          {"3x3 64->64, bias, silu, residual", shape_of({1, 16, 16}, 64, 64, {1, 3, 3}), fused},
          {"1x1 128->128", shape_of({1, 16, 16}, 128, 128, {1, 1, 1})},
          {"1x1 4096->128 (few tiles, long K)", shape_of({1, 8, 8}, 4096, 128, {1, 1, 1})},
          strided,
          folded,
          {"3x3x3 64->64", shape_of({3, 16, 16}, 64, 64, {3, 3, 3})},
          cached,
          {"3x3 3->64", shape_of({1, 16, 16}, 3, 64, {1, 3, 3})},
          {"3x3 64->3", shape_of({1, 16, 16}, 64, 3, {1, 3, 3})},
          depthwise};
}

class Memory {
 public:
  explicit Memory(std::int64_t elements) {
    CHECK(cudaMalloc(&data_, static_cast<std::size_t>(elements) * 4 + 16));
    CHECK(cudaMemset(data_, 0, static_cast<std::size_t>(elements) * 4));
  }
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

// A plan with the memory of its run.
struct PlannedLayer {
  explicit PlannedLayer(const Layer& layer)
      : plan(plan_of(layer)),
        activation(elements(plan.activation_shape())),
        cache(elements(plan.cache_shape())),
        output(elements(plan.output_shape())),
        residual(elements(plan.output_shape())),
        filter(layer.shape.gemm_k() * layer.shape.out_channels),
        bias(layer.shape.out_channels),
        workspace(static_cast<std::int64_t>(plan.workspace_bytes())) {
    arguments.output = output.data();
    arguments.activation = activation.data();
    if (layer.shape.cached_frames > 0) arguments.cache = cache.data();
    arguments.filter = filter.data();
    if (layer.upsampled) {
      arguments.filter = plan.pack_filter(filter.data(), FilterLayout::krsc);
    }
    arguments.workspace = workspace.data();
    arguments.epilogue.activation = layer.epilogue.activation;
    if (layer.epilogue.bias) arguments.epilogue.bias = bias.data();
    if (layer.epilogue.residual) arguments.epilogue.residual = residual.data();
  }
  static std::int64_t elements(const TensorShape& shape) {
    std::int64_t product = 1;
    for (int i = 0; i < shape.rank(); ++i) product *= shape.extents[static_cast<std::size_t>(i)];
    return product;
  }

  Plan plan;
  Memory activation, cache, output, residual, filter, bias, workspace;
  RunArguments arguments;
};

// ---- The same launch without Convoy -------------------------------------------------------------

struct Capture {
  cudaGraph_t graph = nullptr;
  ~Capture() {
    if (graph != nullptr) cudaGraphDestroy(graph);
  }
};

// The kernel that a run launches, read back from two captured runs; nothing where a run is not one
// kernel, or where the runtime does not tell.
class BareLaunch {
 public:
  BareLaunch(const PlannedLayer& layer, cudaStream_t stream) : capture_(new Capture) {
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    layer.plan.run(layer.arguments, stream);
    layer.plan.run(layer.arguments, stream);
    CHECK(cudaStreamEndCapture(stream, &capture_->graph));
    std::size_t nodes = 2, edges = 1;
    cudaGraphNode_t node[2] = {}, from[1] = {}, to[1] = {};
    cudaGraphEdgeData edge[1] = {};
    std::size_t found = 0;
    CHECK(cudaGraphGetNodes(capture_->graph, nullptr, &found));
    if (found != 2) return;
    CHECK(cudaGraphGetNodes(capture_->graph, node, &nodes));
    if (cudaGraphKernelNodeGetParams(node[0], &params_) != cudaSuccess) return;
    if (cudaGraphGetEdges(capture_->graph, from, to, edge, &edges) != cudaSuccess) return;
    cudaLaunchAttributeValue cluster = {};
    if (cudaGraphKernelNodeGetAttribute(node[0], cudaLaunchAttributeClusterDimension, &cluster) !=
        cudaSuccess) {
      return;
    }
    if (edge[0].type == cudaGraphDependencyTypeProgrammatic) {
      attributes_[count_].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes_[count_++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster.clusterDim.x > 0) {
      attributes_[count_].id = cudaLaunchAttributeClusterDimension;
      attributes_[count_++].val = cluster;
    }
    known_ = true;
  }
  explicit operator bool() const { return known_; }

  void operator()(cudaStream_t stream) const {
    cudaLaunchConfig_t config = {};
    config.gridDim = params_.gridDim;
    config.blockDim = params_.blockDim;
    config.dynamicSmemBytes = params_.sharedMemBytes;
    config.stream = stream;
    config.attrs = const_cast<cudaLaunchAttribute*>(attributes_);
    config.numAttrs = count_;
    CHECK(cudaLaunchKernelExC(&config, params_.func, params_.kernelParams));
  }

 private:
  std::unique_ptr<Capture> capture_;  // Owns the parameters.
  cudaKernelNodeParams params_ = {};
  cudaLaunchAttribute attributes_[2] = {};
  unsigned count_ = 0;
  bool known_ = false;
};

// ---- Measuring ----------------------------------------------------------------------------------

struct Options {
  bool capture = false;
  int bursts = 300;
  int launches = 50;  // The launch queue takes 1024.
  std::string only;
};

// Host microseconds a launch of one burst.
double burst_us(const Options& options, cudaStream_t stream, const std::function<void()>& launch) {
  if (options.capture) {
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  } else {
    CHECK(cudaStreamSynchronize(stream));
  }
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < options.launches; ++i) launch();
  const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - begin;
  if (options.capture) {
    Capture capture;
    CHECK(cudaStreamEndCapture(stream, &capture.graph));
  }
  return spent.count() / options.launches;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size()) / 2,
                   values.end());
  return values[values.size() / 2];
}

void measure(const Layer& layer, const Options& options, cudaStream_t stream) {
  const PlannedLayer planned(layer);
  const BareLaunch bare(planned, stream);
  const auto run = [&] { planned.plan.run(planned.arguments, stream); };
  std::vector<double> run_us, bare_us, more_us;
  // The first bursts load code and fill caches.
  for (int burst = -5; burst < options.bursts; ++burst) {
    const double ours = burst_us(options, stream, run);
    const double theirs = bare ? burst_us(options, stream, [&] { bare(stream); }) : 0.0;
    if (burst < 0) continue;
    run_us.push_back(ours);
    bare_us.push_back(theirs);
    more_us.push_back(ours - theirs);
  }
  std::printf("%-34s %-40s %8.3f", layer.name, planned.plan.info().kernel.c_str(), median(run_us));
  if (bare) {
    std::printf(" %8.3f %8.3f\n", median(bare_us), median(more_us));
  } else {
    std::printf(" %8s %8s\n", "-", "-");
  }
  std::fflush(stdout);
}

int run(const Options& options) {
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::printf("%s, %s: host us a launch, medians of %d bursts of %d\n", properties.name,
              options.capture ? "captured" : "enqueued", options.bursts, options.launches);
  std::printf("%-34s %-40s %8s %8s %8s\n", "layer", "kernel", "run", "bare", "more");
  for (const Layer& layer : layers()) {
    if (std::string(layer.name).find(options.only) == std::string::npos) continue;
    measure(layer, options, stream);
  }
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaStreamDestroy(stream));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  bench::CommandLine line("convoy_run_cost", "What Plan::run costs the host beyond the launch.");
  line.flag("--capture", options.capture, "the bursts are captured and never run");
  line.whole("--bursts", options.bursts, 1, 1 << 20, "of each layer");
  line.whole("--launches", options.launches, 1, 500, "of a burst");
  line.word("--only", options.only, "layers alone whose name has this in it");
  return line.run(argc, argv, [&] { return run(options); });
}
