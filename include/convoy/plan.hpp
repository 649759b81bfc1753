// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "convoy/epilogue.hpp"
#include "convoy/error.hpp"
#include "convoy/export.h"
#include "convoy/info.hpp"
#include "convoy/problem.hpp"
#include "convoy/prologue.hpp"
#include "convoy/shuffle.hpp"
#include "convoy/tensor.hpp"
#include "convoy/types.hpp"

namespace convoy {

/// How a problem is to be run.
struct PlanOptions {
  DType dtype = DType::bf16;            ///< Type of activation and filter.
  std::optional<DType> output_dtype{};  ///< Type of output and residual; `dtype` where not given.
  EpilogueKind epilogue{};              ///< What follows the convolution (`Epilogue::kind`).
  PrologueKind prologue{};              ///< What precedes it (`Prologue::kind`).
  Device device = Device::automatic;    ///< Where it is to run.
  int device_index = -1;                ///< CUDA device; -1: the current one.
  /// The filter will come as a PackedFilter. Opens the kernels that need their own filter format;
  /// without it the filter is read as it is, dense KRSC / KTRSC.
  bool packed_filter = false;
  /// With dtype fp32: the elements of activation and filter may be rounded to TF32 (10 bits of
  /// mantissa, to nearest, ties to even) before they are multiplied, which opens the tensor cores.
  /// Sums stay fp32; without it so do products. As torch.backends.cudnn.allow_tf32 of PyTorch.
  bool allow_tf32 = false;
  /// With upsample = 2: how near a folded filter must be to the taps that it sums.
  UpsampleFolding upsample_folding = UpsampleFolding::exact;
  /// How the output is rearranged as it is stored.
  OutputShuffle shuffle{};
  /// Above 0, a divisor of the output's channels: a run also writes RunArguments::statistics, what
  /// a GroupNorm of as many groups needs to know of the output.
  std::int64_t statistics_groups = 0;
  std::string kernel{};  ///< Run this candidate (a name of `candidates()`) or throw.
};

/// A filter in the format that one plan's kernel reads, in that plan's memory (host or device).
/// Cheap to copy: copies share the memory, which is freed with the last one.
class CONVOY_API PackedFilter {
 public:
  PackedFilter() = default;
  /// The packed elements; null where empty.
  const void* data() const noexcept;
  /// Their size; 0 where empty.
  std::size_t bytes() const noexcept;
  /// Name of the kernel and format it was packed for; a plan with another format refuses it.
  const std::string& format() const noexcept;
  /// False for one that `Plan::pack_filter` did not make.
  explicit operator bool() const noexcept { return impl_ != nullptr; }

  struct Impl;
  /// For the library; `Plan::pack_filter` makes them.
  explicit PackedFilter(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<const Impl> impl_;
};

/// The filter of a run: a bare pointer to dense KRSC / KTRSC, or a PackedFilter.
struct FilterRef {
  FilterRef() = default;
  /// Dense KRSC / KTRSC of the plan's type.
  FilterRef(const void* data) : data(data) {}  // NOLINT(google-explicit-constructor)
  /// A filter packed for the plan's format.
  FilterRef(const PackedFilter& packed)  // NOLINT(google-explicit-constructor)
      : data(packed.data()), packed(packed) {}

  const void* data = nullptr;  ///< First element, on the plan's device, 16-byte aligned.
  PackedFilter packed{};       ///< Empty where the filter is dense.
};

/// Pointers and values of one run. All memory is on the plan's device, 16-byte aligned.
struct RunArguments {
  TensorView output{};           ///< [N, P, Q, K] or [N, Z, P, Q, K]; shuffled where planned.
  ConstTensorView activation{};  ///< [N, H, W, C] or [N, D, H, W, C].
  FilterRef filter{};            ///< Dense, or packed where the plan's options say so.
  Epilogue epilogue{};           ///< Its `kind()` must be the planned one.
  Prologue prologue{};           ///< Its `kind()` must be the planned one.
  /// 3-D with cached_frames > 0: the cached frames, [N, cached_frames, H, W, C]. With a prologue
  /// they are normalised already.
  ConstTensorView cache{};
  /// Optional, 3-D: receives the last (T − 1)·dilation[0] frames of cache + activation,
  /// [N, (T − 1)·dilation[0], H, W, C], for the next call, normalised by the prologue. Where both
  /// together have fewer frames, the first of `next_cache` are zero, what a causal convolution
  /// meets before the first frame (another pad_mode[0] is refused then). Must not overlap `cache`.
  TensorView next_cache{};
  /// Plan::workspace_bytes() bytes; may be null where that is 0. Runs that may overlap, on other
  /// streams or threads, have one each. The CPU backend, where no CUDA graph forbids it, also takes
  /// null and then uses memory that all its plans share.
  void* workspace = nullptr;
  /// With PlanOptions::statistics_groups: receives [N, groups, 2], mean and (biased) variance of
  /// each group of channels of every image of the output, as it is stored: rounded, behind residual
  /// and activation. NormArguments::statistics takes them. Means and squared deviations are merged
  /// in a fixed order: a large mean costs no precision, and the same inputs give the same bits on
  /// the same device.
  float* statistics = nullptr;
};

/// What `Plan::info` and `explain` tell of a kernel.
struct PlanInfo {
  std::string kernel;   ///< "onednn", "sm90_fprop_128x128_pingpong_halo_bf16", ...
  std::string backend;  ///< "cpu", "cuda:0 (NVIDIA H200)".
  std::string problem;  ///< The shape string.
  /// 2·N·K·Z·P·Q·(C / groups)·T·R·S: of the operation, whatever the kernel does.
  double flops = 0;
  double min_bytes = 0;  ///< Each input read once, the output written once.
  bool tf32 = false;     ///< fp32 tensors are multiplied as TF32 (PlanOptions::allow_tf32).
  /// What takes the statistics: "epilogue", of the kernel, or "pass", which reads the output once
  /// more; empty without.
  std::string statistics{};
  std::string filter_format{};  ///< As Plan::filter_format.
};

/// One line of the dispatch: a kernel, and why it cannot run the problem (empty: it can).
struct Candidate {
  std::string kernel;       ///< Its name, as PlanOptions::kernel takes it.
  std::string backend;      ///< As PlanInfo's.
  std::string reason;       ///< Condition, value, what is legal, the nearest choice; empty: it can.
  bool chosen = false;      ///< The one that `plan` takes.
  double estimated_us = 0;  ///< The model's or the tuning database's time; 0 where refused.
  /// As PlanInfo's, with the reason behind "pass: "; empty without statistics and where refused.
  std::string statistics{};
};

/// An answer with its reason.
struct Support {
  bool supported = false;  ///< `plan` would succeed.
  std::string reason;      ///< Why not; empty where supported.
  /// `supported`.
  explicit operator bool() const noexcept { return supported; }
};

/// A convolution that is ready to run: kernel chosen, descriptors encoded, workspace known.
/// Cheap to copy; `run` may be called from several threads at once, with a workspace each.
class CONVOY_API Plan {
 public:
  /// Enqueues the convolution on `stream` (the CPU backend runs it before returning). No
  /// allocation, synchronisation, file access or compilation; safe under CUDA-graph capture.
  /// A problem with an empty output (M or K = 0) returns at once and writes nothing.
  /// Throws Error{invalid_argument} for null or misaligned pointers, an output that overlaps an
  /// input (the residual may be the output itself), shapes that differ from the plan, an epilogue
  /// of another kind, a filter packed for another format; Error{launch_failure} where the launch
  /// fails.
  void run(const RunArguments& arguments, cudaStream_t stream = nullptr) const;

  /// Repacks a filter given in any layout into this plan's format, in its device's memory.
  /// `filter` is dense, of the plan's dtype, in the plan's device memory (host for the CPU
  /// backend). Allocates, and may wait for `stream`: not under CUDA-graph capture. The work is
  /// enqueued on `stream`: runs on other streams must wait for it, and `filter` stays until then.
  /// Throws Error{invalid_argument} for a null or misaligned pointer and for a layout of the other
  /// rank, Error{out_of_memory}, Error{launch_failure}.
  PackedFilter pack_filter(const void* filter, FilterLayout layout,
                           cudaStream_t stream = nullptr) const;

  /// What `pack_filter` makes: plans that say the same share a packed filter.
  const std::string& filter_format() const;

  /// Bytes that RunArguments::workspace must have; 0 for most kernels.
  std::size_t workspace_bytes() const;
  /// Of the output, shuffled where the plan is; and of the residual, but where
  /// OutputShuffle::residual says otherwise.
  TensorShape output_shape() const;
  /// Of the residual.
  TensorShape residual_shape() const;
  /// Of the activation.
  TensorShape activation_shape() const;
  TensorShape cache_shape() const;       ///< 3-D; no frames where the problem has no cache.
  TensorShape next_cache_shape() const;  ///< 3-D; no frames where T = 1.
  /// Kernel, backend, problem, and what the operation costs.
  const PlanInfo& info() const;

  class Impl;
  /// For the library; `plan` makes them.
  explicit Plan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<const Impl> impl_;
};

/// Plans a convolution. Throws Error{invalid_argument} for an illegal shape, Error{unsupported}
/// with every candidate's reason where none can run it.
CONVOY_API Plan plan(const Conv2dProblemShape& problem, const PlanOptions& options = {});
/// The same in 3-D.
CONVOY_API Plan plan(const Conv3dProblemShape& problem, const PlanOptions& options = {});
/// The same for a problem of either rank.
CONVOY_API Plan plan(const ProblemShape& problem, const PlanOptions& options = {});

/// Whether `plan` would succeed, and why not; never throws for a problem it cannot run.
CONVOY_API Support supports(const Conv2dProblemShape& problem, const PlanOptions& options = {});
/// The same in 3-D.
CONVOY_API Support supports(const Conv3dProblemShape& problem, const PlanOptions& options = {});
/// The same for a problem of either rank.
CONVOY_API Support supports(const ProblemShape& problem, const PlanOptions& options = {});

/// Every kernel of the library in the order of preference for this problem, with the reason of each
/// that cannot run it. Throws Error{invalid_argument} for an illegal shape.
CONVOY_API std::vector<Candidate> candidates(const Conv2dProblemShape& problem,
                                             const PlanOptions& options = {});
/// The same in 3-D.
CONVOY_API std::vector<Candidate> candidates(const Conv3dProblemShape& problem,
                                             const PlanOptions& options = {});
/// The same for a problem of either rank.
CONVOY_API std::vector<Candidate> candidates(const ProblemShape& problem,
                                             const PlanOptions& options = {});

/// As `candidates`, by the models and the measurements of a GPU that need not be there ("who would
/// run it on an H100?"). Nothing is launched; no CUDA device is asked.
CONVOY_API std::vector<Candidate> candidates(const ProblemShape& problem,
                                             const PlanOptions& options, const DeviceInfo& gpu);

/// "0.1.0 (git 1a2b3c4)" of the linked library.
CONVOY_API const char* version() noexcept;

}  // namespace convoy
