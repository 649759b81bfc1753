// SPDX-License-Identifier: Apache-2.0
//
// The Hopper kernels as dispatch sees them.
#include <cuda_runtime.h>

#include "convoy/error.hpp"
#include "core/candidate.hpp"
#include "core/checked.hpp"
#include "core/text.hpp"
#include "kernels/common/implicit_gemm_plan.hpp"
#include "kernels/common/requirements.hpp"
#include "kernels/sm90/candidates.hpp"
#include "kernels/sm90/host.hpp"
#include "kernels/sm90/loading.hpp"
#include "kernels/sm90/model.hpp"
#include "kernels/sm90/stem.hpp"

namespace convoy::sm90 {
namespace {

LaunchOptions options_of(const PlanRequest& request) {
  return {.packed_filter = request.packed_filter,
          .multiprocessors = request.device.multiprocessors,
          .prologue = request.prologue,
          .statistics_groups = request.statistics_groups};
}

Launch fastest_launch(const Instance& instance, const PlanRequest& request) {
  LaunchOptions options = options_of(request);
  options.splits = best_split(instance, request.geometry, options, request.epilogue,
                              constants_of(request.device))
                       .splits;
  return plan_launch(instance, request.geometry, options);
}

// Statistics in the epilogue, as measured on an H200: their merge, and each tile of a CTA.
// NOTE: though the other warpgroup multiplies meanwhile (docs/lab/2026-11-23-statistics-mma.md).
double statistics_us(const PlanRequest& request) {
  if (request.statistics_groups == 0) return 0.0;
  const ConvGeometry& g = request.geometry;
  const double tiles = double(ceil_div(g.gemm_m(), 128) * ceil_div(g.out_channels, 128));
  return 8.0 + 0.55 * tiles / request.device.multiprocessors;
}

class FpropPlan : public ImplicitGemmPlan {
 public:
  FpropPlan(const Instance& instance, const PlanRequest& request)
      : ImplicitGemmPlan(request), launch_(fastest_launch(instance, request)) {
    prepare(instance);
  }

  std::string filter_format() const override {
    if (!in_lines()) return ImplicitGemmPlan::filter_format();
    return text("ktrsc_blocks_", blocks().channels);
  }
  std::size_t packed_filter_bytes() const override {
    if (!in_lines()) return ImplicitGemmPlan::packed_filter_bytes();
    const ConvGeometry& g = request_.geometry;
    return static_cast<std::size_t>(g.filter_elements() / g.group_channels() * blocks().row()) *
           size_of(request_.dtype);
  }
  void pack_filter(void* packed, const void* filter, FilterLayout layout,
                   cudaStream_t stream) const override {
    if (!in_lines()) return ImplicitGemmPlan::pack_filter(packed, filter, layout, stream);
    pack_filter_in_blocks(packed, filter, layout, request_.geometry, blocks(), request_.dtype,
                          stream);
  }

  std::size_t workspace_bytes() const override {
    return launch_.statistics.groups > 0 ? launch_.statistics.workspace_bytes() : 0;
  }

  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const NoComputeOp compute;
    const NoStoreOp store;
    launch(launch_, pointers, &compute, &store, stream);
    store_next_cache(pointers, stream);
  }

 private:
  bool in_lines() const {
    return packs_in_lines(launch_.instance.config, request_.geometry, request_.packed_filter);
  }
  FilterBlocks blocks() const { return packed_blocks(launch_.instance.config, request_.geometry); }

  const Launch launch_;
};

class FpropCandidate : public KernelCandidate {
 public:
  explicit FpropCandidate(const Instance& instance) : instance_(instance) {}

  std::string name() const override { return name_of(instance_); }
  Device device() const override { return Device::cuda; }
  bool takes_prologues() const override { return instance_.config.normalises(); }
  bool takes_output_pitches() const override { return true; }
  bool takes_input_pitches() const override { return true; }
  bool packs_as_dense(const PlanRequest& request) const override {
    return request.geometry.upsample == 1 &&
           !packs_in_lines(instance_.config, request.geometry, true);
  }

  Judgement judge(const PlanRequest& request) const override {
    const DType in = instance_.config.in, out = instance_.config.out;
    if (auto refused = require_capability(request.device, 90, "wgmma")) return *refused;
    if (request.dtype != in || request.output_dtype != out) {
      return {RefusalScope::types,
              text("types = ", to_string(request.dtype), " -> ", to_string(request.output_dtype),
                   "; legal: ", to_string(in), " -> ", to_string(out))};
    }
    if (instance_.config.is_blockwise()) {
      if (!request.operand_parts) {
        return {RefusalScope::types,
                "whole operands; legal: parts, as split_copy_tf32x3 hands them to this kernel"};
      }
    } else {
      if (auto refused = require_whole_operands(request)) return *refused;
      if (auto refused = require_tf32(request)) return *refused;
    }
    const auto shared_bytes = static_cast<std::size_t>(instance_.shared_bytes);
    if (auto refused = require_shared_memory(request.device, shared_bytes)) return *refused;
    std::string reason = refusal(instance_, request.geometry, request.packed_filter);
    if (reason.empty()) {
      reason = prologue_refusal(instance_, request.geometry, request.prologue);
    }
    if (reason.empty()) {
      reason = epilogue_refusal(instance_, request.geometry, request.epilogue);
    }
    if (!reason.empty()) return reason;
    // What only shows once the tiling is known: limits of tensor maps.
    try {
      const double us = best_split(instance_, request.geometry, options_of(request),
                                   request.epilogue, constants_of(request.device))
                            .us;
      return us + statistics_us(request);
    } catch (const Error& error) {
      if (error.status() == Status::internal) throw;
      return error.what();
    }
  }

  std::string statistics_refusal(const PlanRequest& request) const override {
    return sm90::statistics_refusal(instance_, request.geometry, request.epilogue,
                                    request.statistics_groups);
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    return std::make_unique<FpropPlan>(instance_, request);
  }

 private:
  const Instance instance_;
};

}  // namespace

void register_kernels(CandidateList& list) {
  for (const Instance& instance : instances()) {
    list.push_back(std::make_unique<FpropCandidate>(instance));
  }
  list.push_back(make_stem_candidate());
}

}  // namespace convoy::sm90
