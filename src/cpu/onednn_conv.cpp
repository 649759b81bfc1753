// SPDX-License-Identifier: Apache-2.0
// The CPU backend: oneDNN computes the convolution with fp32 accumulation, this file feeds it.
//
// The output is cut into blocks. For each block,
//   1. where oneDNN cannot read the activation as it lies (replicate or reflect padding, cached
//      frames, upsampling, a prologue, a type it has no kernels for), the part that the block
//      reads is gathered, normalised;
//   2. oneDNN convolves into the output itself, or, where an epilogue follows, into an fp32 block;
//   3. the epilogue finishes the block while it is in cache, and rounds once.
#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/candidate.hpp"
#include "core/filter_layout.hpp"
#include "core/text.hpp"
#include "cpu/backend.hpp"
#include "cpu/conv_blocks.hpp"
#include "cpu/convert.hpp"
#include "cpu/epilogue.hpp"
#include "cpu/gather.hpp"
#include "cpu/kernels.hpp"
#include "cpu/scratch.hpp"
#include "onednn/onednn.hpp"

namespace convoy {
namespace {

using cpu::ConvBlock;
using dnnl::memory;

/// Bytes of staged fp32 output and gathered input in a block: about what the cores' second-level
/// caches hold, and enough work for all of them.
std::int64_t block_bytes(const DeviceInfo& device) {
  return (std::int64_t{1} << 20) * std::max(4, device.multiprocessors);
}

/// Where nothing is staged blocks only keep oneDNN's 32-bit offsets in range.
constexpr std::int64_t kUnstagedBlockBytes = std::int64_t{1} << 30;

/// Blocks of a plan, which keeps 200 bytes of each, twice. NOTE: blocks are as large as caches: so
/// many of them write and read a terabyte at least.
constexpr std::int64_t kMostBlocks = std::int64_t{1} << 20;

/// The most blocks that a plan may cut the output into: those with a gathered input.
std::int64_t most_blocks(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  const std::int64_t row_bytes = (g.out[2] * g.out_channels + cpu::input_elements_per_row(g)) * 4;
  return cpu::count_blocks(g, row_bytes, block_bytes(request.device));
}

memory::data_type onednn_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return memory::data_type::bf16;
    case DType::fp16:
      return memory::data_type::f16;
    case DType::fp32:
      break;
  }
  return memory::data_type::f32;
}

[[noreturn]] void throw_onednn(const dnnl::error& error, const char* doing) {
  const Status status = error.status == dnnl_out_of_memory   ? Status::out_of_memory
                        : error.status == dnnl_unimplemented ? Status::unsupported
                                                             : Status::launch_failure;
  throw Error(status, text("oneDNN, ", doing, ": ", error.message));
}

/// One way of computing the whole output: its blocks, and the primitive of each.
struct Route {
  struct Kernel {
    onednn::ConvShape shape;
    dnnl::convolution_forward::primitive_desc description;
    dnnl::convolution_forward primitive;
    std::size_t weights = 0;  ///< Index of its format in WeightFormats.
  };
  struct Step {
    ConvBlock block;
    std::size_t kernel = 0;
  };
  std::vector<Kernel> kernels;
  std::vector<Step> steps;
};

/// The weight formats that a plan's primitives read, one after the other in the packed filter.
/// There is one, unless oneDNN likes another for the last, smaller block.
struct WeightFormats {
  std::vector<memory::desc> formats;
  std::vector<std::size_t> offsets;
  std::size_t bytes = 0;

  std::size_t index_of(const memory::desc& wanted) {
    for (std::size_t i = 0; i < formats.size(); ++i) {
      if (formats[i] == wanted) return i;
    }
    formats.push_back(wanted);
    offsets.push_back(bytes);
    bytes += (wanted.get_size() + cpu::kCacheLine - 1) / cpu::kCacheLine * cpu::kCacheLine;
    return formats.size() - 1;
  }
};

/// What a run holds for itself alone.
struct RunState {
  std::vector<onednn::ConvExecution> direct;  ///< By kernel of the route.
  std::vector<onednn::ConvExecution> staged;
};

class OnednnPlan final : public ExecutablePlan {
 public:
  explicit OnednnPlan(const PlanRequest& request);

  void run(const RunPointers& pointers, cudaStream_t stream) const override;
  std::size_t workspace_bytes() const override { return workspace_bytes_; }
  std::string filter_format() const override {
    return request_.packed_filter ? packed_format_ : "ktrsc";
  }
  std::size_t packed_filter_bytes() const override {
    return request_.packed_filter ? weights_.bytes : filter_bytes();
  }
  void pack_filter(void* packed, const void* filter, FilterLayout layout,
                   cudaStream_t stream) const override;
  std::shared_ptr<void> allocate(std::size_t bytes) const override {
    return cpu::allocate_aligned(bytes);
  }

 private:
  std::size_t filter_bytes() const {
    return static_cast<std::size_t>(request_.geometry.filter_elements()) * size_of(request_.dtype);
  }
  void choose_types();
  struct BlockBudget {
    std::int64_t row_bytes = 0;
    std::int64_t limit = 0;
  };
  BlockBudget block_budget(bool staged) const;
  Route make_route(bool staged);
  void reserve(std::size_t& offset, std::size_t bytes);
  RunState make_run_state() const;
  void run_route(const Route& route, std::vector<onednn::ConvExecution>& executions, bool staged,
                 const RunPointers& pointers, char* scratch, const char* weights,
                 const float* bias) const;
  void pack_weights(char* packed, const void* filter, const memory::desc& layout,
                    float* widened) const;

  PlanRequest request_;
  memory::data_type compute_type_ = memory::data_type::f32;
  bool widens_ = false;   ///< 16-bit input is converted to fp32 on the way in.
  bool gathers_ = false;  ///< Input blocks are copied before oneDNN reads them.
  bool has_direct_ = false;
  Route direct_;  ///< Into the output: scale 1, no activation, no residual.
  Route staged_;  ///< Into fp32 blocks, with our epilogue.
  WeightFormats weights_;
  std::string packed_format_;

  // The workspace: bytes from its (aligned) start.
  std::size_t input_offset_ = 0;
  std::size_t stage_offset_ = 0;
  std::size_t scratchpad_offset_ = 0;
  std::size_t bias_offset_ = 0;
  std::size_t weights_offset_ = 0;
  std::size_t widened_offset_ = 0;
  std::size_t workspace_bytes_ = 0;
  mutable cpu::Pool<RunState> pool_;
  const std::shared_ptr<cpu::SharedScratch> scratch_ = cpu::SharedScratch::get();
};

void OnednnPlan::reserve(std::size_t& offset, std::size_t bytes) {
  offset = workspace_bytes_;
  workspace_bytes_ += (bytes + cpu::kCacheLine - 1) / cpu::kCacheLine * cpu::kCacheLine;
}

/// Compute in the input's own type where oneDNN has real kernels for it, else in fp32.
void OnednnPlan::choose_types() {
  if (request_.dtype == DType::fp32) return;
  widens_ = true;
  const ConvGeometry& g = request_.geometry;
  // NOTE: oneDNN's bf16 kernels multiply channels in pairs. Where the last has no partner they read
  // the next pixel's first channel and multiply it by zero, which an infinity or a NaN survives.
  if (request_.dtype == DType::bf16 && g.group_channels() % 2 != 0) return;
  const std::vector<ConvBlock> whole =
      cpu::cut_into_blocks(g, 1, std::numeric_limits<std::int64_t>::max(), true);
  try {
    const onednn::ConvTypes types = {.input = onednn_type(request_.dtype)};
    const auto description = onednn::describe(g, whole.front().shape, types);
    // NOTE: oneDNN's reference kernels take any type, one multiplication at a time.
    if (std::string(description.impl_info_str()).find("ref") != std::string::npos) return;
  } catch (const dnnl::error&) {
    return;
  }
  compute_type_ = onednn_type(request_.dtype);
  widens_ = false;
}

/// What one output row costs in a block, and what a block may cost.
OnednnPlan::BlockBudget OnednnPlan::block_budget(bool staged) const {
  const ConvGeometry& g = request_.geometry;
  const std::int64_t output_bytes = g.out[2] * g.out_channels * 4;
  const std::int64_t input_bytes = cpu::input_elements_per_row(g) * 4;
  if (!staged && !gathers_) {
    return {.row_bytes = std::max(output_bytes, input_bytes), .limit = kUnstagedBlockBytes};
  }
  BlockBudget budget = {.row_bytes = output_bytes, .limit = block_bytes(request_.device)};
  if (gathers_) {
    budget.row_bytes += input_bytes;
  } else {
    // The input is read in place, but its offsets must stay in range too.
    const double least = static_cast<double>(input_bytes) * static_cast<double>(budget.limit) /
                         static_cast<double>(kUnstagedBlockBytes);
    budget.row_bytes = std::max(budget.row_bytes, static_cast<std::int64_t>(least));
  }
  return budget;
}

Route OnednnPlan::make_route(bool staged) {
  const ConvGeometry& g = request_.geometry;
  onednn::ConvTypes types = {.input = compute_type_};
  if (!staged) {
    types.output = onednn_type(request_.output_dtype);
    types.bias = request_.epilogue.bias;
  }

  const auto [row_bytes, limit] = block_budget(staged);
  Route route;
  for (const ConvBlock& block : cpu::cut_into_blocks(g, row_bytes, limit, gathers_)) {
    std::size_t kernel = 0;
    while (kernel < route.kernels.size() && !(route.kernels[kernel].shape == block.shape)) ++kernel;
    if (kernel == route.kernels.size()) {
      auto description = onednn::describe(g, block.shape, types);
      const std::size_t weights = weights_.index_of(description.weights_desc());
      route.kernels.push_back(
          {block.shape, description, onednn::primitive_of(description), weights});
    }
    route.steps.push_back({block, kernel});
  }
  return route;
}

OnednnPlan::OnednnPlan(const PlanRequest& request) : request_(request) {
  const ConvGeometry& g = request_.geometry;
  choose_types();
  gathers_ = widens_ || request.prologue.any() || !cpu::reads_in_place(g);
  // oneDNN may write the output itself where nothing follows the sum.
  const EpilogueKind& kind = request_.epilogue;
  const bool plain = kind.activation == Activation::none && !kind.residual &&
                     (kind.rounding == EpilogueRounding::once || !kind.bias);
  has_direct_ = plain && (request_.output_dtype == DType::fp32 ||
                          onednn_type(request_.output_dtype) == compute_type_);
  // Rows of several frames are not one dense box: such blocks are gathered.
  for (bool staged : {false, true}) {
    const auto [row_bytes, limit] = block_budget(staged);
    if (g.filter[0] > 1 && limit / row_bytes < g.out[1] && (staged || has_direct_)) {
      gathers_ = true;
    }
  }
  if (has_direct_) direct_ = make_route(false);
  staged_ = make_route(true);
  for (std::size_t i = 0; i < weights_.formats.size(); ++i) {
    packed_format_ += (i == 0 ? "onednn:" : "+") + onednn::format_text(weights_.formats[i]);
  }

  // Lay out the workspace: the largest that any block needs.
  std::size_t input = 0;
  std::size_t stage = 0;
  std::size_t scratchpad = 0;
  for (const Route* route : {&direct_, &staged_}) {
    for (const Route::Kernel& kernel : route->kernels) {
      scratchpad = std::max(scratchpad, kernel.description.scratchpad_desc().get_size());
      if (gathers_) input = std::max(input, kernel.description.src_desc().get_size());
      if (route == &staged_) stage = std::max(stage, kernel.description.dst_desc().get_size());
    }
  }
  reserve(input_offset_, input);
  reserve(stage_offset_, stage);
  reserve(scratchpad_offset_, scratchpad);
  if (kind.bias) {
    reserve(bias_offset_,
            static_cast<std::size_t>(cpu::bias_table_floats(g.out_channels)) * sizeof(float));
  }
  if (!request_.packed_filter) {
    reserve(weights_offset_, weights_.bytes);
    if (widens_) {
      reserve(widened_offset_, static_cast<std::size_t>(g.filter_elements()) * sizeof(float));
    }
  }
  workspace_bytes_ += cpu::kCacheLine;  // The caller's memory may start anywhere in a line.
}

/// `widened` holds the filter in fp32 where the types differ.
void OnednnPlan::pack_weights(char* packed, const void* filter, const memory::desc& layout,
                              float* widened) const {
  if (widens_) {
    cpu::widen(widened, filter, request_.dtype, request_.geometry.filter_elements());
    filter = widened;
  }
  for (std::size_t i = 0; i < weights_.formats.size(); ++i) {
    onednn::reorder(packed + weights_.offsets[i], weights_.formats[i], filter, layout);
  }
}

void OnednnPlan::pack_filter(void* packed, const void* filter, FilterLayout layout,
                             cudaStream_t) const {
  const ConvGeometry& g = request_.geometry;
  try {
    if (!request_.packed_filter) {
      repack_filter(packed, filter, request_.dtype, layout, g);
      return;
    }
    std::vector<float> widened(widens_ ? static_cast<std::size_t>(g.filter_elements()) : 0);
    pack_weights(static_cast<char*>(packed), filter,
                 onednn::plain_weights(g, layout, compute_type_), widened.data());
  } catch (const dnnl::error& error) {
    throw_onednn(error, "packing the filter");
  }
}

RunState OnednnPlan::make_run_state() const {
  RunState state;
  for (const Route::Kernel& kernel : direct_.kernels) {
    state.direct.emplace_back(kernel.primitive, kernel.description);
  }
  for (const Route::Kernel& kernel : staged_.kernels) {
    state.staged.emplace_back(kernel.primitive, kernel.description);
  }
  return state;
}

void OnednnPlan::run_route(const Route& route, std::vector<onednn::ConvExecution>& executions,
                           bool staged, const RunPointers& pointers, char* scratch,
                           const char* weights, const float* bias) const {
  const ConvGeometry& g = request_.geometry;
  const auto in_element = static_cast<std::int64_t>(size_of(request_.dtype));
  const auto out_element = static_cast<std::int64_t>(size_of(request_.output_dtype));
  const auto* activation = static_cast<const char*>(pointers.activation);
  auto* output = static_cast<char*>(pointers.output);
  auto* stage = reinterpret_cast<float*>(scratch + stage_offset_);

  for (const Route::Step& step : route.steps) {
    const Route::Kernel& kernel = route.kernels[step.kernel];
    const ConvBlock& block = step.block;
    onednn::ConvBuffers buffers;
    if (gathers_) {
      cpu::gather_input(scratch + input_offset_, block.input, g, request_.dtype, widens_, pointers);
      buffers.source = scratch + input_offset_;
    } else {
      const cpu::InputBox& box = block.input;
      const std::int64_t row = (box.image * g.in[0] + box.begin[0]) * g.in[1] + box.begin[1];
      buffers.source = activation + row * g.in[2] * g.in_channels * in_element;
    }
    buffers.weights = weights + weights_.offsets[kernel.weights];
    buffers.bias = staged ? nullptr : bias;
    buffers.destination =
        staged ? static_cast<void*>(stage) : output + block.first_output * out_element;
    buffers.scratchpad = scratch + scratchpad_offset_;
    executions[step.kernel].execute(buffers);
    if (staged) {
      cpu::apply_epilogue(stage, pointers.output, request_.output_dtype, block.first_output,
                          block.output_elements, g.out_channels, pointers.epilogue, bias);
    }
  }
}

void OnednnPlan::run(const RunPointers& pointers, cudaStream_t) const {
  const ConvGeometry& g = request_.geometry;
  try {
    const auto state = pool_.take([this] { return make_run_state(); });
    std::optional<cpu::SharedScratch::Lease> shared;
    if (pointers.workspace == nullptr) shared.emplace(scratch_->take(workspace_bytes_));
    char* scratch = static_cast<char*>(shared ? (*shared)->memory.get() : pointers.workspace);
    const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(scratch) % cpu::kCacheLine;
    if (misaligned != 0) scratch += cpu::kCacheLine - misaligned;

    const char* weights = static_cast<const char*>(pointers.filter);
    if (!request_.packed_filter) {
      const FilterLayout layout = g.rank == 2 ? FilterLayout::krsc : FilterLayout::ktrsc;
      pack_weights(scratch + weights_offset_, pointers.filter,
                   onednn::plain_weights(g, layout, compute_type_),
                   reinterpret_cast<float*>(scratch + widened_offset_));
      weights = scratch + weights_offset_;
    }
    const Epilogue& epilogue = pointers.epilogue;
    const float* bias = nullptr;
    if (epilogue.bias != nullptr) {
      auto* table = reinterpret_cast<float*>(scratch + bias_offset_);
      cpu::tile_bias(table, epilogue.bias, epilogue.bias_dtype, g.out_channels);
      bias = table;
    }
    const bool direct = has_direct_ && epilogue.scale == 1.0f;
    run_route(direct ? direct_ : staged_, direct ? state->direct : state->staged, !direct, pointers,
              scratch, weights, bias);
  } catch (const dnnl::error& error) {
    throw_onednn(error, "running the convolution");
  }
  if (pointers.next_cache != nullptr) {
    cpu::write_next_cache(g, request_.dtype, pointers);
  }
}

class OnednnCandidate final : public KernelCandidate {
 public:
  std::string name() const override { return cpu::kKernelNames[0]; }
  Device device() const override { return Device::cpu; }
  bool takes_prologues() const override { return true; }

  Judgement judge(const PlanRequest& request) const override {
    const ConvGeometry& g = request.geometry;
    // oneDNN's kernels keep extents in 32 bits; blocks keep the products of the larger axes small.
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    const struct {
      const char* name;
      std::int64_t value;
    } limits[] = {{"filter elements", g.filter_elements()},
                  {"elements of an output row", g.out[2] * g.out_channels},
                  {"dilation", std::max({g.dilation[0], g.dilation[1], g.dilation[2]})},
                  {"stride", std::max({g.stride[0], g.stride[1], g.stride[2]})},
                  {"input elements under an output row", cpu::input_elements_per_row(g)}};
    for (const auto& limit : limits) {
      if (limit.value <= kMost) continue;
      return text(limit.name, " = ", limit.value, "; legal: at most ", kMost);
    }
    if (const std::int64_t blocks = most_blocks(request); blocks > kMostBlocks) {
      return text("blocks of the output, as large as caches, = ", blocks, "; legal: at most ",
                  kMostBlocks, " (less padding, or fewer rows)");
    }

    // A core of today: 32 fp32 lanes, two operations each, at 2 GHz; half of it in practice.
    const double flops_per_us = 64e3 * std::max(1, request.device.multiprocessors);
    return 5.0 + g.flops() / flops_per_us;
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    try {
      return std::make_unique<OnednnPlan>(request);
    } catch (const dnnl::error& error) {
      throw_onednn(error, "planning the convolution");
    }
  }
};

}  // namespace

void cpu::register_kernels(CandidateList& list) {
  list.push_back(std::make_unique<OnednnCandidate>());
}

}  // namespace convoy
