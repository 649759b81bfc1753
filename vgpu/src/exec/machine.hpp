// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "exec/launch.hpp"
#include "exec/observer.hpp"
#include "tensor/tmem.hpp"

/// The state of the machine while a grid runs: decoded code, warps, CTAs, clusters.
namespace vgpu::exec {

struct Warp;
struct Cta;
struct Cluster;
struct Worker;
struct Grid;
struct Instr;

constexpr uint32_t kLanes = 32;
constexpr uint32_t kAllLanes = 0xffffffffu;

// Windows of the generic address space that are not global memory; no host address lies there.
constexpr uint64_t kSharedWindow = 0x6000'0000'0000'0000;
constexpr uint64_t kLocalWindow = 0x6100'0000'0000'0000;
/// NOTE: The hardware keeps the first KiB of a CTA's shared memory (sm_90 and later), so the first
/// variable has window offset 1024.
constexpr uint32_t kSharedReserved = 1024;
/// Of that KiB, what is in use: what cooperative groups may count on from %reserved_smem_offset_1
/// on (cooperative_groups/details/memory.h). NOTE: PTX leaves place and size open; an H200 says
/// begin 0, end 288, cap 1024, and 0 for both regions.
constexpr uint32_t kSharedReservedInUse = 288;
/// shared::cluster addresses: CTA rank in bits 24 and up, window offset below.
constexpr uint32_t kSharedRankShift = 24;
constexpr uint32_t kSharedOffsetMask = 0xffffff;

/// What a handler tells the warp's loop.
enum class Step : uint8_t {
  next,   ///< go on
  jump,   ///< all its lanes go to Warp::jump_target
  split,  ///< its lanes go to different places: Warp::jump_targets
  block,  ///< nothing was done; try again after something happened in the cluster
  yield,  ///< done, but a poll of an mbarrier failed: let others run
  poll,   ///< done, and it may have been a poll of memory that other clusters write
  exit,   ///< its lanes are finished
};
using Handler = Step (*)(Warp&, const Instr&, uint32_t lanes);

/// A decoded operand, for handlers that take more than registers.
struct Ref {
  enum class Kind : uint8_t { none, reg, pred, sink, vector, address };
  Kind kind = Kind::none;
  uint8_t bytes = 0;         ///< of a register
  bool negated = false;      ///< of a predicate
  bool is_constant = false;  ///< an immediate or a launch constant, the same or computed per lane
  uint32_t at = 0;           ///< reg: offset in the register file; pred: predicate index
  int64_t offset = 0;        ///< address: displacement; constant: the immediate
  const Ref* children = nullptr;
  uint32_t count = 0;
  const Ref& operator[](size_t k) const { return children[k]; }
};

struct Instr {
  Handler handler = nullptr;
  uint32_t guard = 0;                   ///< predicate index (0: always true)
  uint32_t guard_flip = 0;              ///< all ones: @!p
  uint32_t d = 0, a = 0, b = 0, c = 0;  ///< register file offsets or predicate indices
  uint32_t x = 0, y = 0;                ///< meaning is the handler's
  int64_t imm = 0;
  const Ref* refs = nullptr;
  uint32_t ref_count = 0;
  uint32_t target = 0;
  const void* extra = nullptr;  ///< handler's own decoded data, owned by the kernel
  const Ref& operator[](size_t k) const { return refs[k]; }
};

/// Where a decoded instruction comes from.
struct Source {
  const ptx::Function* function = nullptr;
  const ptx::Instruction* instruction = nullptr;
};

/// Special registers that are constant for a warp.
enum class Special : uint8_t {
  tid_x,
  tid_y,
  tid_z,
  ntid_x,
  ntid_y,
  ntid_z,
  ctaid_x,
  ctaid_y,
  ctaid_z,
  nctaid_x,
  nctaid_y,
  nctaid_z,
  laneid,
  warpid,
  nwarpid,
  smid,
  nsmid,
  gridid,
  lanemask_eq,
  lanemask_le,
  lanemask_lt,
  lanemask_ge,
  lanemask_gt,
  cluster_ctarank,
  cluster_nctarank,
  cluster_ctaid_x,
  cluster_ctaid_y,
  cluster_ctaid_z,
  cluster_nctaid_x,
  cluster_nctaid_y,
  cluster_nctaid_z,
  clusterid_x,
  clusterid_y,
  clusterid_z,
  nclusterid_x,
  nclusterid_y,
  nclusterid_z,
  is_explicit_cluster,
  dynamic_smem_size,
  total_smem_size,
  aggr_smem_size,
  workspace_high,  ///< %envreg1: of the address of Grid::workspace
  workspace_low,   ///< %envreg2
  reserved_smem_begin,
  reserved_smem_end,
  reserved_smem_cap,
  reserved_smem_0,
  reserved_smem_1,
  zero,
};

/// A value that sits in the register file of every warp before it starts.
struct Constant {
  enum class Kind : uint8_t { literal, special, shared, dynamic_shared, param, symbol } kind;
  uint8_t bytes = 4;
  uint32_t at = 0;
  uint64_t value = 0;  ///< literal bits, Special, offset, or index of Program::symbols() …
  int64_t addend = 0;  ///< … plus this
};

/// A kernel with the device functions it calls, decoded: one instruction array.
struct Kernel {
  const Program* program = nullptr;
  const ptx::Function* function = nullptr;
  const KernelInfo* info = nullptr;
  std::vector<Instr> code;
  std::vector<Source> source;
  std::vector<Ref> refs;
  std::vector<Constant> constants;
  std::vector<std::shared_ptr<void>> extras;
  uint32_t register_bytes = 0;
  uint32_t predicates = 0;
  uint32_t static_shared = 0;
  uint32_t dynamic_align = 16;
  uint32_t local_bytes = 0;
  bool uses_reserved_shared = false;  ///< reads a %reserved_smem_offset
  /// Of each function's registers: file offset or predicate index.
  std::unordered_map<const ptx::Function*, std::vector<uint32_t>> places;
};

/// Lanes of a warp that are at the same instruction.
struct LaneGroup {
  uint32_t pc = 0;
  uint32_t mask = 0;
  uint32_t token = 0;  ///< nonzero: has arrived at the barrier it waits for
  bool blocked = false;
  uint64_t epoch = 0;  ///< Cluster::epoch when it blocked
  const char* why = nullptr;
  uint64_t detail = 0;     ///< what it waits for: barrier number, mbarrier address, …
  uint32_t detail2 = 0;    ///< … parity
  bool timed_out = false;  ///< a try_wait that has waited long enough: it returns false
  /// A try_wait of one mbarrier: the byte of it that holds the phase (null: `epoch` tells when to
  /// try again), and those bits when it blocked.
  const uint8_t* phase_byte = nullptr;
  uint8_t phase_bits = 0;
  /// The mbarrier (and parity << 32) that it has waited for in vain, and how many phases that one
  /// had completed when it began to.
  uint64_t polls = UINT64_MAX;
  uint64_t phases_before = 0;
};

/// Per-thread groups of asynchronous copies (cp.async, cp.async.bulk).
struct CopyGroups {
  struct Thread {
    uint64_t first = 0;               ///< number of the oldest group in `pending`
    std::deque<uint32_t> pending{0};  ///< incomplete operations of each group; the last is open
    void drop_complete() {
      while (pending.size() > 1 && pending.front() == 0) {
        pending.pop_front();
        ++first;
      }
    }
  };
  std::array<Thread, kLanes> threads;
};

/// Work that an asynchronous instruction left behind.
struct AsyncTask {
  AsyncOp op;
  std::function<void(const AsyncOp&)> run;     ///< moves the data
  std::function<void(const AsyncOp&)> signal;  ///< then: barriers and groups; may be empty
  std::function<bool()> ready;                 ///< may be empty: always
  bool last = true;                            ///< no later stage of the same operation follows
  uint64_t group = 0;                          ///< wgmma: the group it is in
  std::shared_ptr<const void> payload;         ///< wgmma: what it computes
};

struct Warp {
  Cta* cta = nullptr;
  Cluster* cluster = nullptr;
  const Kernel* kernel = nullptr;
  uint8_t* registers = nullptr;  ///< 32 lanes of each register next to each other
  uint32_t* predicates = nullptr;
  uint32_t id = 0;
  uint32_t live = 0;  ///< lanes that have not exited
  uint32_t jump_target = 0;
  uint32_t executing = 0;  ///< lanes of the running instruction
  std::array<uint32_t, kLanes> jump_targets{};
  LaneGroup* group = nullptr;  ///< the one that executes
  std::vector<LaneGroup> groups;
  std::unique_ptr<uint8_t[]> register_storage;
  std::vector<uint32_t> predicate_storage;
  std::vector<uint8_t> local;
  uint32_t nap = 0;  ///< random delivery: visits to skip
  // Cluster barrier: lanes that arrived, and the generation they wait for.
  uint32_t cluster_arrived = 0;
  uint64_t cluster_generation = UINT64_MAX;
  bool cluster_counted = false;  ///< in Cluster::barrier_arrived of that generation
  std::deque<AsyncTask> wgmmas;  ///< in order
  uint64_t wgmma_committed = 0;  ///< groups; the number of the open one
  uint64_t wgmma_issued = 0;     ///< instructions, to match those of a warpgroup's warps
  std::unique_ptr<CopyGroups> bulk_reads, bulk_writes, cp_async;
  bool launch_control_ended = false;  ///< has seen that a cancellation failed
  uint64_t clock = 0;

  template <typename T>
  T* lanes(uint32_t at) {
    return reinterpret_cast<T*>(registers + at);
  }
};

/// bar / barrier: one of the 16 of a CTA.
struct CtaBarrier {
  uint32_t arrived = 0;   ///< threads, a whole warp at a time
  uint32_t expected = 0;  ///< 0: every live thread of the CTA
  bool open = false;      ///< somebody has arrived
  uint32_t generation = 0;
  uint32_t popc = 0, lanes = 0;  ///< bar.red: predicates that are true, threads that voted
  uint32_t result_popc = 0, result_lanes = 0;
  std::vector<uint32_t> warp_lanes;  ///< lanes of each warp that have arrived (non-aligned)
};

struct Cta {
  Cluster* cluster = nullptr;
  uint32_t rank = 0;
  uint32_t index[3] = {0, 0, 0};
  uint32_t threads = 0;
  uint32_t live_warps = 0;
  std::vector<uint8_t> shared;              ///< window offset 0 is shared[0]
  uint32_t shared_begin = kSharedReserved;  ///< first window offset that the kernel may touch
  std::vector<std::unique_ptr<Warp>> warps;
  std::array<CtaBarrier, 16> barriers;
  tensor::Tmem tmem;
  std::deque<AsyncTask> tensor_queue;             ///< tcgen05.mma / cp / commit, in order
  std::unordered_map<uint32_t, uint64_t> phases;  ///< completed, of each mbarrier by its offset
};

struct Cluster {
  Grid* grid = nullptr;
  Worker* worker = nullptr;
  ClusterObserver* observer = nullptr;
  std::unique_ptr<ClusterObserver> observer_storage;
  uint64_t number = 0;
  uint32_t id[3] = {0, 0, 0};
  std::vector<std::unique_ptr<Cta>> ctas;
  uint32_t live_warps = 0;
  uint32_t barrier_arrived = 0;  ///< warps that have arrived at the cluster barrier
  uint64_t barrier_generation = 0;
  std::deque<AsyncTask> copies;  ///< TMA and the like: complete in any order
  uint64_t next_async_id = 1;
  /// Counts events that can end a wait (arrivals, deliveries, exits) / any side effect.
  uint64_t epoch = 1;
  uint64_t activity = 0;
  uint64_t activity_seen = 0;       ///< activity at the last progress check
  uint64_t quiet_instructions = 0;  ///< executed since then
  bool polling = false;             ///< has polled memory since its last side effect
  uint32_t idle_rounds = 0;
};

/// One host thread's share of a grid.
struct Worker {
  Grid* grid = nullptr;
  uint32_t index = 0;
  std::mt19937_64 random;
  std::vector<std::unique_ptr<Cluster>> resident;
  uint64_t share = 0;  ///< clusters that it may have resident; 0: not known yet
  bool idle = false;   ///< in Grid::idle_workers
  std::array<GlobalMemory::Range, 4> ranges{};  ///< recently used allocations
  uint32_t next_range = 0;
  uint64_t warp_instructions = 0, lane_instructions = 0;
  uint64_t async_operations = 0, mma_macs = 0, tma_bytes = 0;
};

struct Grid {
  const LaunchRequest* request = nullptr;
  const Kernel* kernel = nullptr;
  uint32_t clusters[3] = {1, 1, 1};
  uint32_t cluster_ctas = 1;
  uint32_t shared_bytes = 0;  ///< end of a CTA's shared window
  uint32_t dynamic_shared_offset = 0;
  const uint8_t* params = nullptr;
  uint32_t param_bytes = 0;
  uint64_t max_resident = 1;  ///< clusters that fit the device
  std::vector<uint8_t> register_template;
  /// Of a cooperative launch: its size in bytes, and the counter of cooperative groups' grid.sync()
  /// (cooperative_groups/details/driver_abi.h: %envreg1 and 2 hold its address).
  alignas(16) std::array<uint32_t, 4> workspace{16, 0, 0, 0};

  std::mutex mutex;  ///< guards what follows
  uint64_t next_cluster = 0, cluster_count = 1;
  uint64_t resident_count = 0;
  int error = 0;
  std::string report;
  std::atomic<bool> stop{false};
  std::atomic<bool> paused{false};        ///< all workers are idle
  std::atomic<uint32_t> idle_workers{0};  ///< whose clusters all poll in vain, or that have none
  uint32_t worker_count = 1;

  /// The number of the next cluster to start, or -1 when all have been started or cancelled.
  int64_t take_cluster();
  bool has_waiting_clusters();
};

// ---------------------------------------------------------------- small helpers of handlers

inline uint32_t first_lane(uint32_t lanes) {
  return static_cast<uint32_t>(std::countr_zero(lanes));
}

/// Calls f(lane) for each set bit, lowest first.
template <typename F>
inline void for_lanes(uint32_t lanes, F&& f) {
  for (; lanes; lanes &= lanes - 1) f(first_lane(lanes));
}

inline uint32_t predicate(const Warp& w, const Ref& ref) {
  uint32_t bits = w.predicates[ref.at];
  return ref.negated ? ~bits : bits;
}
inline void set_predicate(Warp& w, uint32_t index, uint32_t lanes, uint32_t bits) {
  w.predicates[index] = (w.predicates[index] & ~lanes) | (bits & lanes);
}

/// One lane of an operand, zero-extended (predicates: 0 or 1; 128-bit registers: the low half).
uint64_t read_lane(const Warp& w, const Ref& ref, uint32_t lane);
/// Writes the low bits of `value` to one lane of a register or predicate; a sink takes anything.
void write_lane(Warp& w, const Ref& ref, uint32_t lane, uint64_t value);
inline uint64_t read_address(const Warp& w, const Ref& ref, uint32_t lane) {
  return read_lane(w, ref[0], lane) + static_cast<uint64_t>(ref.offset);
}
/// Fills 32 addresses of an address operand.
void read_addresses(const Warp& w, const Ref& ref, uint64_t* out);

/// Blocks the running group for the reason given.
inline Step block(Warp& w, const char* why, uint64_t detail = 0, uint32_t detail2 = 0) {
  w.group->why = why;
  w.group->detail = detail;
  w.group->detail2 = detail2;
  w.group->phase_byte = nullptr;
  return Step::block;
}
/// Whether the live lanes of `wanted` are all in the running group.
inline bool converged(const Warp& w, uint32_t lanes, uint32_t wanted) {
  return ((wanted & w.live) & ~lanes) == 0;
}
inline Step wait_for_lanes(Warp& w) {
  return block(w, "waiting for the other lanes of its warp to arrive here");
}
/// Something happened that may end a wait. Arrivals and bytes that leave their phase incomplete
/// count as activity only.
inline void wake(Cluster& cluster) {
  ++cluster.epoch;
  ++cluster.activity;
}

Agent agent_of(const Warp& w, uint32_t lanes);

}  // namespace vgpu::exec
