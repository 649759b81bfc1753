// SPDX-License-Identifier: Apache-2.0
#include "cudnn_convolution.hpp"

#include <cudnn.h>

#include <algorithm>
#include <array>
#include <set>

#include "convoy/error.hpp"
#include "text.hpp"

namespace convoy::bench {
namespace {

using cli::text;

[[noreturn]] void fail(cudnnStatus_t status, const char* what) {
  throw Error(Status::launch_failure, text(what, ": ", cudnnGetErrorString(status)));
}
void check(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS) fail(status, what);
}

cudnnHandle_t handle() {
  static const cudnnHandle_t instance = [] {
    cudnnHandle_t created = nullptr;
    check(cudnnCreate(&created), "cudnnCreate");
    return created;
  }();
  return instance;
}

// A backend descriptor, destroyed with the object.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    check(cudnnBackendCreateDescriptor(type, &descriptor_), "cudnnBackendCreateDescriptor");
  }
  ~Descriptor() {
    if (descriptor_ != nullptr) cudnnBackendDestroyDescriptor(descriptor_);
  }
  Descriptor(Descriptor&& other) noexcept : descriptor_(other.descriptor_) {
    other.descriptor_ = nullptr;
  }
  Descriptor& operator=(Descriptor&&) = delete;

  template <typename Value>
  cudnnStatus_t try_set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                        const Value* values, std::int64_t count) {
    return cudnnBackendSetAttribute(descriptor_, name, type, count, values);
  }
  template <typename Value>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const Value* values,
           std::int64_t count = 1) {
    check(try_set(name, type, values, count), "cudnnBackendSetAttribute");
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& other) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &other.descriptor_);
  }
  cudnnStatus_t try_finalize() { return cudnnBackendFinalize(descriptor_); }
  void finalize(const char* what) { check(try_finalize(), what); }
  cudnnBackendDescriptor_t get() const { return descriptor_; }

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

cudnnDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return CUDNN_DATA_BFLOAT16;
    case DType::fp16:
      return CUDNN_DATA_HALF;
    case DType::fp32:
      return CUDNN_DATA_FLOAT;
  }
  throw Error(Status::invalid_argument, "unknown element type");
}

constexpr std::int64_t kActivationId = 'x', kFilterId = 'w', kOutputId = 'y';

// A channels-last tensor; cuDNN wants its extents in the order N, C, (D,) H, W.
Descriptor tensor(std::int64_t id, DType dtype, std::vector<std::int64_t> extents) {
  const std::size_t rank = extents.size();
  std::vector<std::int64_t> strides(rank);
  strides[1] = 1;
  std::int64_t stride = extents[1];
  for (std::size_t i = rank - 1; i >= 2; --i) {
    strides[i] = stride;
    stride *= extents[i];
  }
  strides[0] = stride;
  const cudnnDataType_t type = data_type(dtype);
  const std::int64_t alignment = 16;
  Descriptor result(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  result.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &type);
  result.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, extents.data(),
             static_cast<std::int64_t>(rank));
  result.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, strides.data(),
             static_cast<std::int64_t>(rank));
  result.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &id);
  result.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, &alignment);
  result.finalize("cuDNN tensor");
  return result;
}

// The descriptors of one operation graph; plans keep it alive.
struct Graph {
  Graph(const ConvGeometry& g, DType dtype)
      : activation(tensor(kActivationId, dtype, extents(g, g.batch, g.in_channels, g.seen()))),
        filter(tensor(kFilterId, dtype, extents(g, g.out_channels, g.group_channels(), g.filter))),
        output(tensor(kOutputId, dtype, extents(g, g.batch, g.out_channels, g.out))) {
    const int first = g.rank == 2 ? 1 : 0;
    const std::int64_t axes = 3 - first;
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    convolution.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &compute);
    convolution.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, &mode);
    convolution.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, &axes);
    const auto set = [&](cudnnBackendAttributeName_t name,
                         const std::array<std::int64_t, 3>& values) {
      convolution.set(name, CUDNN_TYPE_INT64, values.data() + first, axes);
    };
    set(CUDNN_ATTR_CONVOLUTION_DILATIONS, g.dilation);
    set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, g.stride);
    set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, g.pad_begin);
    set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, g.pad_end);
    convolution.finalize("cuDNN convolution");

    const float alpha = 1.0f, beta = 0.0f;
    operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, activation);
    operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, filter);
    operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, output);
    operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, convolution);
    operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, &alpha);
    operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, &beta);
    operation.finalize("cuDNN forward convolution");

    const cudnnHandle_t cudnn = handle();
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &cudnn);
    graph.finalize("cuDNN operation graph");
  }

  static std::vector<std::int64_t> extents(const ConvGeometry& g, std::int64_t outer,
                                           std::int64_t channels,
                                           const std::array<std::int64_t, 3>& spatial) {
    std::vector<std::int64_t> result = {outer, channels};
    for (int axis = g.rank == 2 ? 1 : 0; axis < 3; ++axis) result.push_back(spatial[axis]);
    return result;
  }

  Descriptor activation, filter, output;
  Descriptor convolution{CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR};
  Descriptor operation{CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR};
  Descriptor graph{CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR};
};

}  // namespace

struct CudnnPlan::Impl {
  std::shared_ptr<Graph> graph;
  Descriptor config;
  Descriptor plan{CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR};
  std::size_t workspace_bytes = 0;
  std::string name;

  Impl(std::shared_ptr<Graph> graph, Descriptor config)
      : graph(std::move(graph)), config(std::move(config)) {}
};

namespace {

// Build the plan of an engine configuration; nothing if cuDNN declines.
std::shared_ptr<CudnnPlan::Impl> build(const std::shared_ptr<Graph>& graph, Descriptor config,
                                       std::size_t workspace_limit) {
  auto impl = std::make_shared<CudnnPlan::Impl>(graph, std::move(config));
  const cudnnHandle_t cudnn = handle();
  impl->plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, &cudnn);
  impl->plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, impl->config);
  if (impl->plan.try_finalize() != CUDNN_STATUS_SUCCESS) return nullptr;

  std::int64_t workspace = 0, count = 0;
  check(cudnnBackendGetAttribute(impl->plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                 CUDNN_TYPE_INT64, 1, &count, &workspace),
        "cuDNN workspace size");
  if (static_cast<std::size_t>(workspace) > workspace_limit) return nullptr;
  impl->workspace_bytes = static_cast<std::size_t>(workspace);

  // Engine number and knobs, to tell plans apart.
  std::array<char, 4096> json{};
  if (cudnnBackendGetAttribute(impl->plan.get(), CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                               CUDNN_TYPE_CHAR, static_cast<std::int64_t>(json.size()) - 1, &count,
                               json.data()) == CUDNN_STATUS_SUCCESS) {
    impl->name = json.data();
  }
  return impl;
}

std::vector<Descriptor> heuristic_configs(const Graph& graph, cudnnBackendHeurMode_t mode) {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode);
  if (heuristics.try_finalize() != CUDNN_STATUS_SUCCESS) return {};
  std::int64_t count = 0;
  if (cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                               CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count,
                               nullptr) != CUDNN_STATUS_SUCCESS) {
    return {};
  }
  std::vector<Descriptor> configs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < count; ++i) {
    configs.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    raw.push_back(configs.back().get());
  }
  std::int64_t got = 0;
  if (cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                               CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &got,
                               raw.data()) != CUDNN_STATUS_SUCCESS) {
    return {};
  }
  while (static_cast<std::int64_t>(configs.size()) > got) configs.pop_back();
  return configs;
}

// Every engine of the graph with its default knobs.
std::vector<Descriptor> default_configs(const Graph& graph, std::vector<Descriptor>& engines) {
  std::int64_t engine_count = 0, count = 0;
  if (cudnnBackendGetAttribute(graph.graph.get(), CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT,
                               CUDNN_TYPE_INT64, 1, &count,
                               &engine_count) != CUDNN_STATUS_SUCCESS) {
    return {};
  }
  std::vector<Descriptor> configs;
  for (std::int64_t index = 0; index < engine_count; ++index) {
    Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    engine.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph.graph);
    engine.set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, &index);
    if (engine.try_finalize() != CUDNN_STATUS_SUCCESS) continue;
    Descriptor config(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    config.set(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
    if (config.try_finalize() != CUDNN_STATUS_SUCCESS) continue;
    engines.push_back(std::move(engine));
    configs.push_back(std::move(config));
  }
  return configs;
}

/// Whether the engine of a configuration multiplies on tensor cores, by cuDNN's notes on it.
bool uses_tensor_cores(const Descriptor& config) {
  const Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.get();
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw),
        "cuDNN engine");
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  check(cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                 CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count,
                                 notes.data()),
        "cuDNN numerical notes");
  return std::find(notes.begin(), notes.begin() + count, CUDNN_NUMERICAL_NOTE_TENSOR_CORE) !=
         notes.begin() + count;
}

}  // namespace

std::string cudnn_version() {
  const std::size_t v = cudnnGetVersion();
  return text(v / 10000, ".", v / 100 % 100, ".", v % 100);
}

std::size_t CudnnPlan::workspace_bytes() const {
  return impl_->workspace_bytes;
}
const std::string& CudnnPlan::name() const {
  return impl_->name;
}

void CudnnPlan::run(const void* activation, const void* filter, void* output, void* workspace,
                    cudaStream_t stream) const {
  check(cudnnSetStream(handle(), stream), "cudnnSetStream");
  const void* pointers[] = {activation, filter, output};
  const std::int64_t ids[] = {kActivationId, kFilterId, kOutputId};
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pointers, 3);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids, 3);
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, &workspace);
  pack.finalize("cuDNN variant pack");
  check(cudnnBackendExecute(handle(), impl_->plan.get(), pack.get()), "cudnnBackendExecute");
}

std::vector<CudnnPlan> cudnn_plans(const ConvGeometry& geometry, DType dtype, bool allow_tf32,
                                   std::size_t workspace_limit, std::string* reason) {
  if (geometry.upsample != 1) throw Error(Status::unsupported, "cuDNN: no upsampling");
  for (int axis = 0; axis < 3; ++axis) {
    if (geometry.pad_mode[axis] != PadMode::zero &&
        (geometry.pad_begin[axis] != 0 || geometry.pad_end[axis] != 0)) {
      throw Error(Status::unsupported, "cuDNN: padding mode other than zero");
    }
  }
  const auto graph = std::make_shared<Graph>(geometry, dtype);
  std::vector<CudnnPlan> plans;
  std::set<std::string> known;
  int tried = 0;
  const auto add = [&](std::vector<Descriptor> configs) {
    for (Descriptor& config : configs) {
      ++tried;
      if (dtype == DType::fp32 && !allow_tf32 && uses_tensor_cores(config)) continue;
      auto impl = build(graph, std::move(config), workspace_limit);
      if (!impl || (!impl->name.empty() && !known.insert(impl->name).second)) continue;
      plans.emplace_back(std::move(impl));
    }
  };
  for (const cudnnBackendHeurMode_t mode :
       {CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    add(heuristic_configs(*graph, mode));
  }
  // Engines stay alive as long as the process: their configurations refer to them.
  static std::vector<Descriptor> engines;
  add(default_configs(*graph, engines));
  if (plans.empty() && reason != nullptr) {
    *reason = text("cuDNN ", cudnn_version(), " built none of ", tried, " engine configurations");
  }
  return plans;
}

}  // namespace convoy::bench
