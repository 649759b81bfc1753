// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "convoy/geometry.hpp"
#include "convoy/info.hpp"
#include "convoy/plan.hpp"
#include "core/shuffle.hpp"

namespace convoy {

/// A problem with everything decided that does not depend on the kernel. Its output is not empty.
struct PlanRequest {
  ConvGeometry geometry;
  DType dtype = DType::bf16;
  DType output_dtype = DType::bf16;
  EpilogueKind epilogue;
  PrologueKind prologue;
  OutputShuffle shuffle{};  ///< `with_shuffle` (dispatch) takes it away from kernels.
  /// Groups of filters whose mean and variance in every image a run writes too; 0: none.
  std::int64_t statistics_groups = 0;
  bool packed_filter = false;
  bool allow_tf32 = false;  ///< fp32 tensors may be multiplied as TF32.
  /// The elements are parts of operands, and TF32 already (split_copy_tf32x3): sums of their
  /// products must not be left to tensor cores, which cut off.
  bool operand_parts = false;
  DeviceInfo device;  ///< Asked once, when the plan is made.
};

/// The same without the statistics of its output.
inline PlanRequest without_statistics(PlanRequest request) {
  request.statistics_groups = 0;
  return request;
}

/// Bytes of the tensors of a prologue.
inline double prologue_bytes(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  const std::int64_t channels = g.in_channels;
  std::int64_t elements = 0;
  switch (request.prologue.norm) {
    case PrologueNorm::none:
      break;
    case PrologueNorm::scale_shift:
      elements = 2 * g.batch * channels;
      break;
    case PrologueNorm::rms:
      elements = g.activation_elements() / channels + channels;
      break;
  }
  return static_cast<double>(elements) * static_cast<double>(sizeof(float));
}

/// Bytes that any kernel moves: each input read once, the output written once.
inline double min_bytes(const PlanRequest& request) {
  const ConvGeometry& g = request.geometry;
  const auto bytes = [](std::int64_t elements, DType dtype) {
    return static_cast<double>(elements) * static_cast<double>(size_of(dtype));
  };
  const EpilogueKind& epilogue = request.epilogue;
  return bytes(g.activation_elements() + g.cache_elements() + g.filter_elements(), request.dtype) +
         bytes(shuffled_elements(g, request.shuffle) +
                   (epilogue.residual ? residual_elements(g, request.shuffle) : 0),
               request.output_dtype) +
         (epilogue.bias ? bytes(g.out_channels, epilogue.bias_dtype) : 0.0) +
         prologue_bytes(request);
}

/// Rate of the device's memory over that of an H200, whose times the models are fitted to; 1 where
/// it is not known.
inline double memory_share(const DeviceInfo& device) {
  constexpr double kH200Gbs = 4814.0;
  return device.memory_gbs > 0 ? device.memory_gbs / kH200Gbs : 1.0;
}

/// Pointers of one run, checked: types, shapes, alignment and epilogue kind are as planned, and the
/// output is not empty.
struct RunPointers {
  void* output = nullptr;
  const void* activation = nullptr;
  const void* filter = nullptr;
  const void* cache = nullptr;
  void* next_cache = nullptr;
  void* workspace = nullptr;
  Epilogue epilogue;
  Prologue prologue;
  float* statistics = nullptr;  ///< [N, groups, 2]: means and (biased) variances of the output.
};

/// A kernel bound to a problem. Immutable once made; `run` is called from several threads at once.
class ExecutablePlan {
 public:
  virtual ~ExecutablePlan() = default;
  /// Pure enqueue: see Plan::run.
  virtual void run(const RunPointers& pointers, cudaStream_t stream) const = 0;
  virtual std::size_t workspace_bytes() const { return 0; }
  /// Whether fp32 tensors are multiplied as TF32.
  virtual bool multiplies_tf32() const { return false; }

  /// The filter format this kernel reads. "ktrsc" is the dense layout of the public interface;
  /// anything else is the kernel's own, and `pack_filter` makes it.
  virtual std::string filter_format() const { return "ktrsc"; }
  virtual std::size_t packed_filter_bytes() const = 0;
  /// Write the packed filter (device memory on CUDA, host memory on the CPU).
  virtual void pack_filter(void* packed, const void* filter, FilterLayout layout,
                           cudaStream_t stream) const = 0;
  /// Memory for a packed filter on this kernel's device.
  virtual std::shared_ptr<void> allocate(std::size_t bytes) const = 0;
};

/// What a refusal is about. Where several kernels refuse, the one that got furthest says the most.
enum class RefusalScope { device, types, problem };

/// What a kernel says of a request: why it cannot run it, or how long that would take. Returned as
/// either: `return text("groups = ", groups, "; legal: 1");`, `return 12.5;`.
struct Judgement {
  std::string refusal;  ///< Condition, value, what is legal; empty if the kernel can run it.
  RefusalScope scope = RefusalScope::problem;
  double estimated_us = 0;  ///< Model time, to rank the kernels that can; lower is better.

  Judgement(std::string why) : refusal(std::move(why)) {}
  Judgement(const char* why) : refusal(why) {}
  Judgement(RefusalScope scope, std::string why) : refusal(std::move(why)), scope(scope) {}
  Judgement(double us) : estimated_us(us) {}
};

/// One kernel family with one configuration, as dispatch sees it. A backend registers as many as it
/// has (src/dispatch/backends.cpp lists the backends); callers never change when one is added.
class KernelCandidate {
 public:
  virtual ~KernelCandidate() = default;
  virtual std::string name() const = 0;  ///< "onednn", "sm90_fprop_128x128_pingpong_halo_bf16", ...
  virtual Device device() const = 0;
  virtual Judgement judge(const PlanRequest& request) const = 0;
  /// Whether requests with a prologue are put to it at all: the others are refused before.
  virtual bool takes_prologues() const { return false; }
  /// Whether it judges and runs geometries whose output has pitches (`output_row_pitch`).
  virtual bool takes_output_pitches() const { return false; }
  /// The same of the input (`input_pixel_pitch`).
  virtual bool takes_input_pitches() const { return false; }
  virtual std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const = 0;
  /// Why its epilogue takes no statistics in a request that it can run without; empty where it
  /// does. A pass of their own takes them then (`apply_statistics` in dispatch).
  virtual std::string statistics_refusal(const PlanRequest&) const {
    return "statistics; legal: none (this kernel's epilogue)";
  }
  /// Whether a packed filter is the dense one ("ktrsc"): the same code then reads the same bytes
  /// either way, and a time measured with one holds with the other. Asked of problems that the
  /// kernel can run.
  virtual bool packs_as_dense(const PlanRequest&) const { return false; }
};

using CandidateList = std::vector<std::unique_ptr<KernelCandidate>>;

}  // namespace convoy
