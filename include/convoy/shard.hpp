// SPDX-License-Identifier: Apache-2.0
/// One problem over several GPUs: each rank, a process or a thread with a device of its own, holds
/// a range of one axis of every tensor. docs/sharding.md tells how the parts fit together.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "convoy/export.h"
#include "convoy/plan.hpp"
#include "convoy/problem.hpp"
#include "convoy/types.hpp"

namespace convoy {

/// The axis along which tensors are cut. Ranges of `batch` need nothing of each other.
enum class ShardAxis : int {
  height = 0,  ///< H and P.
  width = 1,   ///< W and Q.
  frames = 2,  ///< D and Z, 3-D; the causal cache is rank 0's.
  batch = 3,   ///< N.
};
/// The enumerator's name, "height".
CONVOY_API const char* to_string(ShardAxis axis) noexcept;

/// How a problem is cut.
struct ShardSpec {
  int count = 1;                       ///< Ranks.
  ShardAxis axis = ShardAxis::height;  ///< The axis that is cut.
  /// First input element of each rank, ascending from 0, with one entry a rank; empty: as even as
  /// it goes, longer ranges first. A layer that reads another's output takes `output_starts` of it.
  std::vector<std::int64_t> starts{};
  /// Elements beside a rank's own that its input holds at least, where the tensor goes on: room for
  /// the neighbours'. The plan takes more where its taps reach further.
  std::int64_t input_margin = 0;
  /// The same of the output: room that the next layer asks for. Its contents are of no matter.
  std::int64_t output_margin = 0;
};

/// What one rank holds of an axis: its own elements [begin, end) of the whole tensor, and beside
/// them room for `margin_begin` before and `margin_end` after.
struct ShardRange {
  std::int64_t begin = 0;         ///< First own element.
  std::int64_t end = 0;           ///< Past the last own element.
  std::int64_t margin_begin = 0;  ///< Elements in front of the own ones, the neighbour's.
  std::int64_t margin_end = 0;    ///< Elements behind them.

  /// Own elements.
  std::int64_t own() const { return end - begin; }
  /// Extent of the rank's tensor along the axis: margins and own elements.
  std::int64_t stored() const { return margin_begin + own() + margin_end; }
  /// All four fields are equal.
  friend bool operator==(const ShardRange&, const ShardRange&) = default;
};

/// One rank's part of a problem: an ordinary convolution over what it holds.
struct ShardLayout {
  ShardRange input;   ///< Of the activation, and of the cache unless the frames are cut.
  ShardRange output;  ///< Of the output, and of the residual.
  /// Neighbours' elements that own outputs read, in front of the own and behind them: what an
  /// exchange brings. At most the margins.
  std::int64_t halo_begin = 0;
  std::int64_t halo_end = 0;  ///< Behind the own elements.
  ProblemShape local{};       ///< The problem over `stored()` elements.
};

/// The parts of all ranks. The same on every rank, without communication. Throws
/// Error{invalid_argument} for an illegal problem, more ranks than elements or outputs, starts that
/// do not ascend, and taps or margins that reach past a neighbour; with the largest legal count.
CONVOY_API std::vector<ShardLayout> shard_layouts(const ProblemShape& problem,
                                                  const ShardSpec& spec);
/// First own output element of each rank: the `starts` of the layer that reads it.
CONVOY_API std::vector<std::int64_t> output_starts(const std::vector<ShardLayout>& layouts);

/// What NCCL needs to bring ranks together: made by one, given to all.
using NcclId = std::array<char, 128>;

class Transport;

/// A rank among others. Cheap to copy. All ranks make the same calls in the same order, each from
/// one thread at a time. Whatever goes wrong (a rank that is gone, other sizes than the
/// neighbour's, no answer within the time-out) is an Error on every rank that takes part, which
/// names the rank and the cause; the communicator is of no use after it.
class CONVOY_API Communicator {
 public:
  /// How long a call waits for the other ranks. Time-outs of more than 365 days are 365 days.
  static constexpr std::chrono::milliseconds kTimeout{30'000};

  /// Ranks as threads of this process, over host memory: for the CPU backend and for tests. Throws
  /// Error{invalid_argument} for count < 1.
  static std::vector<Communicator> in_process(int count,
                                              std::chrono::milliseconds timeout = kTimeout);
  /// Wraps an ncclComm_t of the caller's, who keeps it alive and destroys it, on its device; after
  /// an error it is aborted, and not to be destroyed. Loads libnccl.so.2. Throws
  /// Error{unsupported} where that is not there.
  static Communicator nccl(void* comm, std::chrono::milliseconds timeout = kTimeout);
  /// Makes a communicator of the current device; every rank calls this with the same id. Throws
  /// Error{launch_failure} where the others do not come within the time-out. With the last copy
  /// goes what is under way: `synchronize` first.
  static Communicator nccl(const NcclId& id, int rank, int count,
                           std::chrono::milliseconds timeout = kTimeout);
  /// A new id, for one rank to make and hand to the others.
  static NcclId nccl_id();

  int rank() const;                      ///< From 0.
  int count() const;                     ///< Ranks.
  const std::string& transport() const;  ///< "in-process", "nccl 2.28.3".

  /// Waits for what was enqueued on `stream`, for as long as the time-out: instead of
  /// cudaStreamSynchronize, which waits for a rank that died for ever. Throws
  /// Error{launch_failure}.
  void synchronize(cudaStream_t stream = nullptr) const;
  /// Every rank's `bytes`, in the order of the ranks, into `received` (count · bytes), on `stream`.
  /// `sent` may not lie in it.
  void all_gather(const void* sent, void* received, std::size_t bytes,
                  cudaStream_t stream = nullptr) const;
  /// Gives up: the other ranks' calls fail with this cause, named as this rank's.
  void abort(const std::string& cause) const;

  /// For the library.
  explicit Communicator(std::shared_ptr<Transport> transport) : impl_(std::move(transport)) {}
  /// For the library.
  Transport& impl() const { return *impl_; }

 private:
  std::shared_ptr<Transport> impl_;
};

/// A dense tensor cut along one axis, as `outer` blocks of `stored()` elements of `inner` bytes.
struct ShardedTensor {
  void* data = nullptr;              ///< Of this rank, margins included.
  std::int64_t outer = 1;            ///< Product of the extents in front of the axis.
  std::size_t inner = 0;             ///< Bytes of one element of the axis: the extents behind it.
  std::vector<ShardRange> ranges{};  ///< Of every rank.
};

/// Fills `halo_begin` elements in front of each rank's own and `halo_end` behind from its
/// neighbours, in place. Both are one entry a rank. Throws Error{invalid_argument} where they are
/// wider than a margin or a neighbour.
CONVOY_API void exchange_halos(const Communicator& communicator, const ShardedTensor& tensor,
                               const std::vector<std::int64_t>& halo_begin,
                               const std::vector<std::int64_t>& halo_end,
                               cudaStream_t stream = nullptr);
/// The whole tensor on every rank, from each one's own elements: for attention, and for whoever
/// shows the picture. `whole` is dense, without margins, in the same kind of memory.
CONVOY_API void gather_shards(const Communicator& communicator, const ShardedTensor& tensor,
                              void* whole, cudaStream_t stream = nullptr);
/// This rank's elements of a whole tensor, margins too. No communication.
CONVOY_API void scatter_shard(const Communicator& communicator, const void* whole,
                              const ShardedTensor& tensor, cudaStream_t stream = nullptr);

/// When a sharded run waits for its neighbours.
enum class ShardOverlap : int {
  automatic = 0,  ///< `interior` where the output of a rank is one block of rows, else `none`.
  none = 1,       ///< The exchange, then all of the convolution.
  interior = 2,   ///< The exchange beside what needs no neighbour, then the border.
};
/// The enumerator's name, "automatic".
CONVOY_API const char* to_string(ShardOverlap overlap) noexcept;

/// Pointers and values of one run of a rank. All memory is the rank's own, 16-byte aligned.
struct ShardedRunArguments {
  /// [..., layout().output.stored(), ...]; the margins are written too, with values of no matter.
  TensorView output{};
  /// [..., layout().input.stored(), ...]; the run fills its halos unless they are there already.
  void* activation = nullptr;
  bool halos_filled = false;  ///< The halos hold the neighbours' elements: nothing is exchanged.
  FilterRef filter{};         ///< As RunArguments'.
  Epilogue epilogue{};        ///< As RunArguments'; the residual lies like the output.
  /// As RunArguments', scale_shift alone: the statistics of all ranks. Where the batch is cut, of
  /// this rank's images. Halos are exchanged as they are, before it; a cache holds what follows it.
  Prologue prologue{};
  /// 3-D with cached_frames > 0: with margins like the activation's, halos filled, which they are
  /// in the `next_cache` of a run. Where frames are cut: rank 0's alone.
  ConstTensorView cache{};
  TensorView next_cache{};    ///< As RunArguments'; where frames are cut, the last rank's alone.
  void* workspace = nullptr;  ///< ShardedPlan::workspace_bytes() bytes; null where that is 0.
};

/// One rank's part of a convolution, ready to run.
class CONVOY_API ShardedPlan {
 public:
  /// Exchanges the halos and enqueues the convolution. Every rank calls it. On a GPU it only
  /// enqueues and is safe under CUDA-graph capture. Throws as Plan::run and as Communicator do.
  void run(const ShardedRunArguments& arguments, cudaStream_t stream = nullptr) const;
  /// Fills the halos of the activation, or of a causal cache.
  void exchange(void* activation, cudaStream_t stream = nullptr) const;
  void exchange_cache(void* cache, cudaStream_t stream = nullptr) const;  ///< [N, cached, ...].
  /// As Plan::pack_filter.
  PackedFilter pack_filter(const void* filter, FilterLayout layout,
                           cudaStream_t stream = nullptr) const;
  std::size_t workspace_bytes() const;              ///< Bytes of ShardedRunArguments::workspace.
  const ShardLayout& layout() const;                ///< This rank's.
  const std::vector<ShardLayout>& layouts() const;  ///< Every rank's.
  const Plan& plan() const;                         ///< The convolution over what the rank holds.
  ShardOverlap overlap() const;                     ///< `none` or `interior`.
  std::size_t sent_bytes() const;                   ///< By this rank in one exchange.

  class Impl;
  /// For the library; `plan_shard` makes them.
  explicit ShardedPlan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<const Impl> impl_;
};

/// Plans this rank's part. Every rank calls it with the same problem, options and spec; `count` of
/// the spec is the communicator's. The kernel is the one of the whole problem where it can run the
/// part, so that outputs have the same bits. Throws Error{invalid_argument} as shard_layouts does
/// and where the ranks' problems differ; Error{unsupported} where a rank cannot run its part, and
/// for a prologue of rms.
CONVOY_API ShardedPlan plan_shard(const ProblemShape& problem, const PlanOptions& options,
                                  const Communicator& communicator, const ShardSpec& spec,
                                  ShardOverlap overlap = ShardOverlap::automatic);

}  // namespace convoy
