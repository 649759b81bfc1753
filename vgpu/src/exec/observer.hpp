// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/launch.hpp"

/// What exec tells check/ and trace/ while a kernel runs. An Observer makes one ClusterObserver for
/// each cluster; all events of a cluster come from one thread, in the order in which they happen,
/// so a ClusterObserver needs no locks. Several clusters may run on several threads.
namespace vgpu::exec {

struct Warp;

/// Who executes: a group of lanes of one warp at one instruction.
struct Agent {
  uint32_t cta = 0;    ///< rank in the cluster
  uint32_t warp = 0;   ///< in the CTA
  uint32_t lanes = 0;  ///< mask
  const ptx::Function* function = nullptr;
  const ptx::Instruction* instruction = nullptr;
  const Warp* state = nullptr;  ///< during the event
};

/// What the operands of the running instruction hold.
class OperandValues {
 public:
  explicit OperandValues(const Agent& agent);
  /// One lane of a register or an immediate, zero-extended; nothing for other operands, and for
  /// registers of more than 64 bits.
  std::optional<uint64_t> at(const ptx::Operand& operand, uint32_t lane) const;

 private:
  const Warp* warp_;
  const ptx::Function* function_;
  const std::vector<uint32_t>* places_;  ///< of the function's registers
};

/// Memory spaces as check/ sees them.
/// - shared: addresses are offsets in the shared memory of CTA `cta` (first usable byte: 1024, as
///   on the hardware; the same offsets appear in descriptors and in mapa addresses' low 24 bits)
/// - tensor: TMEM address, lane << 16 | column, in the TMEM of CTA `cta`
/// - global: host addresses; local: offset in the thread's frame
enum class Memory : uint8_t { global, shared, local, tensor };
enum class Access : uint8_t { read, write, atomic };
/// generic: ld/st/atom and ldmatrix…; async: TMA and bulk copies, wgmma and tcgen05 operands in
/// shared memory; tensor accesses of TMEM also use async.
enum class Proxy : uint8_t { generic, async };
enum class Order : uint8_t { weak, relaxed, acquire, release, acq_rel };
enum class Scope : uint8_t { cta, cluster, gpu, sys };

/// One memory instruction of a warp: lane l of `agent.lanes` touches
/// [addresses[l], addresses[l] + bytes) of CTA `ctas[l]`.
struct WarpAccess {
  Memory memory = Memory::global;
  Access access = Access::read;
  Order order = Order::weak;
  Scope scope = Scope::cta;
  uint32_t bytes = 0;
  const uint64_t* addresses = nullptr;  ///< 32 entries
  const uint8_t* ctas = nullptr;        ///< 32 entries, CTA rank; null: the agent's own CTA
  uint32_t unchanged = 0;               ///< lanes that store what shared memory holds already
};

enum class AsyncKind : uint8_t {
  tma_load,
  tma_store,
  tma_reduce,
  tma_prefetch,
  bulk_load,
  bulk_store,
  bulk_reduce,
  bulk_shared,  ///< non-tensor; bulk_shared: shared to DSMEM
  cp_async,     ///< Ampere-style copies of a thread (generic proxy)
  st_async,     ///< st.async / red.async
  wgmma,
  tcgen05_mma,
  tcgen05_cp,
  tcgen05_shift,
  tcgen05_ld,
  tcgen05_st,
  tcgen05_commit,
  clc_try_cancel,
};

/// An asynchronous operation. `id` counts from 1 in each cluster.
struct AsyncOp {
  uint64_t id = 0;
  AsyncKind kind = AsyncKind::tma_load;
  Agent issuer;
  uint64_t macs = 0;        ///< matrix operations
  uint64_t bytes = 0;       ///< copies
  bool accumulates = true;  ///< wgmma: adds to what its accumulator holds
};

/// A range touched by an asynchronous operation, when it happens.
struct AsyncAccess {
  Memory memory = Memory::shared;
  Access access = Access::read;
  Proxy proxy = Proxy::async;
  uint32_t cta = 0;
  uint64_t address = 0;
  uint64_t bytes = 0;  ///< tensor: columns × lanes are given by `columns` and `lanes`
  uint32_t lanes = 0, columns = 0;
  /// The issuer's 16 rows of A of a wgmma, which go into its own accumulators only: how many of
  /// them a chunk of 16 bytes spans. 0: something else.
  uint8_t rows = 0;
  /// A copy that a lane makes for itself (cp.async): which. kAnyLane: something else.
  static constexpr uint8_t kAnyLane = 0xff;
  uint8_t lane = kAnyLane;
};

/// An mbarrier object: offset in the shared memory of a CTA.
struct BarrierRef {
  uint32_t cta = 0;
  uint32_t offset = 0;
};

/// State of an mbarrier after an operation.
struct BarrierState {
  uint32_t phase = 0;  ///< parity of the current, incomplete phase
  uint32_t pending = 0, expected = 0;
  int32_t tx = 0;
  bool completed = false;  ///< this operation completed a phase
};

enum class FenceKind : uint8_t {
  memory,       ///< fence.acq_rel/sc, membar: order and scope say which
  proxy_async,  ///< fence.proxy.async[.global|.shared::{cta,cluster}]
  proxy_tensormap,
  proxy_alias,
  mbarrier_init,  ///< fence.mbarrier_init.release.cluster
  tcgen05_before_thread_sync,
  tcgen05_after_thread_sync,
  wgmma,  ///< wgmma.fence
};

/// Groups that a thread commits and waits for.
enum class GroupKind : uint8_t { cp_async, bulk, bulk_read, wgmma, tcgen05_ld, tcgen05_st };

class ClusterObserver {
 public:
  virtual ~ClusterObserver() = default;

  /// Whether it wants instruction / blocked / unblocked events, which cost a call an
  /// instruction. May change between a warp's turns.
  bool wants_instructions = false;

  // ---- execution (only with wants_instructions)
  /// Before each instruction, after its guard: `agent.lanes` are the lanes that execute it.
  virtual void instruction(const Agent&) {}
  /// A group of lanes cannot go on (`why` in words) / goes on again.
  virtual void blocked(const Agent&, const char* /*why*/) {}
  virtual void unblocked(const Agent&) {}

  /// The lanes have exited. Always told.
  virtual void exited(const Agent&) {}

  // ---- memory
  virtual void access(const Agent&, const WarpAccess&) {}
  /// Shared-memory allocation of the CTAs has begun: everything is unwritten.
  virtual void tmem_alloc(const Agent&, uint32_t /*cta*/, uint32_t /*column*/,
                          uint32_t /*columns*/) {}
  virtual void tmem_dealloc(const Agent&, uint32_t /*cta*/, uint32_t /*column*/,
                            uint32_t /*columns*/) {}
  /// A tcgen05.ld or .st names lanes of another warp's quarter; it reaches the warp's own.
  virtual void tmem_other_lanes(const Agent&, uint32_t /*address*/) {}
  /// A swizzled TMA box lies at a shared-memory offset that is no multiple of the pattern's period.
  virtual void box_off_pattern(const Agent&, uint32_t /*offset*/, uint32_t /*period*/) {}

  /// griddepcontrol.wait
  virtual void launch_before_ended(const Agent&) {}
  /// griddepcontrol.launch_dependents
  virtual void launch_after_may_start(const Agent&) {}

  // ---- synchronisation between warps
  virtual void barrier_arrive(const Agent&, uint32_t /*barrier*/) {}
  /// The warp passes the barrier: all arrivals of this generation happened before.
  virtual void barrier_pass(const Agent&, uint32_t /*barrier*/) {}
  virtual void cluster_arrive(const Agent&, bool /*release*/) {}
  virtual void cluster_pass(const Agent&, bool /*acquire*/) {}
  virtual void warp_sync(const Agent&) {}
  virtual void fence(const Agent&, FenceKind, Order, Scope) {}

  // ---- mbarriers
  virtual void mbarrier_init(const Agent&, BarrierRef, uint32_t /*count*/) {}
  virtual void mbarrier_inval(const Agent&, BarrierRef) {}
  /// By a thread (op null) or by the completion of an asynchronous operation.
  virtual void mbarrier_arrive(const Agent&, const AsyncOp* /*op*/, BarrierRef, uint32_t /*count*/,
                               Order, Scope, const BarrierState&) {}
  virtual void mbarrier_expect_tx(const Agent&, BarrierRef, uint32_t /*bytes*/,
                                  const BarrierState&) {}
  virtual void mbarrier_complete_tx(const Agent&, const AsyncOp* /*op*/, BarrierRef,
                                    uint32_t /*bytes*/, const BarrierState&) {}
  /// A test_wait / try_wait on the phase of this parity returned true.
  virtual void mbarrier_wait(const Agent&, BarrierRef, uint32_t /*parity*/, Order, Scope) {}

  // ---- asynchronous operations
  virtual void async_issue(const AsyncOp&) {}
  virtual void async_begin(const AsyncOp&) {}
  virtual void async_access(const AsyncOp&, const AsyncAccess&) {}
  /// Several accesses of shared memory that differ in their addresses: `access.bytes` (16) at each.
  virtual void async_chunks(const AsyncOp& op, const AsyncAccess& access,
                            std::span<const uint32_t> addresses) {
    AsyncAccess each = access;
    for (uint32_t address : addresses) {
      each.address = address;
      async_access(op, each);
    }
  }
  /// All its accesses are done (before it signals its barrier or leaves its group).
  virtual void async_end(const AsyncOp&) {}
  /// It has signalled too: nothing more comes of it.
  virtual void async_done(const AsyncOp&) {}
  /// bulk stores: the source has been read (async_access of the reads came before).
  virtual void async_read_done(const AsyncOp&) {}
  virtual void group_commit(const Agent&, GroupKind) {}
  /// The lanes waited until at most `pending` groups of the kind are incomplete.
  virtual void group_wait(const Agent&, GroupKind, uint32_t /*pending*/) {}

  /// All warps have exited and all asynchronous operations are done. TMEM still allocated:
  /// `leaked_columns` by CTA rank.
  virtual void end(std::span<const uint32_t> /*leaked_columns*/) {}
};

struct ClusterInfo {
  const LaunchRequest* request = nullptr;
  const KernelInfo* kernel = nullptr;
  uint64_t index = 0;            ///< linear cluster number
  Dim3 id{0, 0, 0};              ///< %clusterid
  uint32_t ctas = 1, warps = 1;  ///< warps: a CTA
  uint32_t shared_bytes = 0;  ///< a CTA: first usable offset 1024, end at 1024 + static + dynamic
  uint32_t worker = 0;        ///< host thread
};

class Observer {
 public:
  virtual ~Observer() = default;
  virtual void launch_begin(const LaunchRequest&, const KernelInfo&) {}
  /// Called from worker threads, possibly at once.
  virtual std::unique_ptr<ClusterObserver> cluster_begin(const ClusterInfo&) = 0;
  virtual void launch_end(const LaunchRequest&, const LaunchResult&) {}
};

/// Thrown by a ClusterObserver's event to stop the kernel with a report: use vgpu::Fault.

/// "file.cu:12 (ptx line 345: ld.shared.u32 %r1, [%r2];)" for reports.
std::string describe_location(const ptx::Module& module, const ptx::Instruction& instruction);

}  // namespace vgpu::exec
