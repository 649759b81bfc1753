// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "check/checker.hpp"
#include "check/lane_writes.hpp"
#include "check/sync_objects.hpp"
#include "check/value_flow.hpp"
#include "exec/operation_names.hpp"
#include "memory.hpp"

namespace vgpu::check {

/// What a run of a synchronising instruction was good for.
struct SyncEffect {
  uint64_t executed = 0;
  uint64_t useful = 0;  ///< times it ordered something that was not ordered already
};
using SyncEffects = std::unordered_map<const ptx::Instruction*, SyncEffect>;

/// What kernels in the field do and get away with: told once for each module and kind, or reported
/// as an error with CheckOptions::strict.
enum class Remark : uint8_t {
  tcgen05_before,
  tcgen05_after,
  relaxed_init,
  relaxed_data,
  same_value,
  unwaited_store,
  ordered_copy,
  ordered_products,
  overwritten_load,
  unfenced_init,
  unfenced_copy,
  store_at_exit,
  lanes,
  load_at_dealloc,
  early_load,
  unused_rows,
  other_lanes,
  undefined_copy,
  answer_reread,
  arrival_at_exit,
  early_access,
  late_alloc,
  others_commit,
  box_off_pattern,
  second_inval
};

/// Lanes of a register whose value comes from memory that nobody has written.
struct UndefinedLanes {
  uint32_t lanes = 0;
  uint32_t computed = 0;  ///< of those, the ones that are more than copies
  uint64_t bits = ~0ull;  ///< of the register, that are undefined in any of the lanes
  // Where it was read, for the report.
  exec::Memory memory = exec::Memory::shared;
  uint32_t cta = 0;
  uint64_t address = 0;
  const ptx::Instruction* read_at = nullptr;
  std::shared_ptr<const Operation> overtaken;  ///< under way at the read: may have been to write it
  std::shared_ptr<const BrokenRule> broken;    ///< else: the rule that the value depends on
};

/// Shared by the clusters of a launch.
struct CheckContext {
  static constexpr uint8_t kRead = 1, kWritten = 2;

  CheckOptions options;
  GlobalMemory* memory = nullptr;
  std::function<void(const ptx::Module&, Remark, const std::string&)> note;
  std::function<void(const ptx::Module&, const SyncEffects&)> effects;  ///< may be empty
  /// What a cluster did with an allocation; what the launch before did with each, by address.
  std::function<void(uint64_t allocation, uint8_t how)> touched;
  std::unordered_map<uint64_t, uint8_t> before;
};

/// Keeps the happens-before order of one cluster.
///
/// The model, after the PTX memory consistency model (causality order, proxies) and the ordering
/// rules of wgmma and tcgen05:
/// - a warp is one agent: its lanes are ordered as its instructions are. A lane, or a copy that it
///   issues, that reads what another lane stored since the lanes last met (__syncwarp(), a barrier,
///   a wait) is told apart from that, as a remark;
/// - an asynchronous operation starts after what its issuer knew, and is done for those who know
///   one of its release points: the mbarrier phase it completes, or the group it was committed in;
/// - tcgen05.mma and .cp of one warp run in order;
/// - a generic-proxy write of shared memory must pass a fence.proxy.async before an async-proxy
///   access; completion of an operation makes its own writes visible to generic reads;
/// - what a load finds in memory that nobody has written is followed through registers and memory
///   until it decides something: an address, a branch, an atomic, a computed result in global
///   memory;
/// - between threads, tcgen05 operations need fence::before_thread_sync (after tcgen05.wait) and
///   fence::after_thread_sync; a commit implies the former.
class ClusterChecker final : public exec::ClusterObserver {
 public:
  ClusterChecker(const CheckContext& context, const exec::ClusterInfo& info);
  ~ClusterChecker() override;

  void instruction(const exec::Agent&) override;
  void exited(const exec::Agent&) override;
  void access(const exec::Agent&, const exec::WarpAccess&) override;
  void tmem_alloc(const exec::Agent&, uint32_t cta, uint32_t column, uint32_t columns) override;
  void tmem_dealloc(const exec::Agent&, uint32_t cta, uint32_t column, uint32_t columns) override;

  void tmem_other_lanes(const exec::Agent&, uint32_t address) override;
  void box_off_pattern(const exec::Agent&, uint32_t offset, uint32_t period) override;
  void launch_before_ended(const exec::Agent&) override;
  void launch_after_may_start(const exec::Agent&) override;

  void barrier_arrive(const exec::Agent&, uint32_t barrier) override;
  void barrier_pass(const exec::Agent&, uint32_t barrier) override;
  void cluster_arrive(const exec::Agent&, bool release) override;
  void cluster_pass(const exec::Agent&, bool acquire) override;
  void warp_sync(const exec::Agent&) override;
  void fence(const exec::Agent&, exec::FenceKind, exec::Order, exec::Scope) override;

  void mbarrier_init(const exec::Agent&, exec::BarrierRef, uint32_t count) override;
  void mbarrier_inval(const exec::Agent&, exec::BarrierRef) override;
  void mbarrier_arrive(const exec::Agent&, const exec::AsyncOp*, exec::BarrierRef, uint32_t count,
                       exec::Order, exec::Scope, const exec::BarrierState&) override;
  void mbarrier_expect_tx(const exec::Agent&, exec::BarrierRef, uint32_t bytes,
                          const exec::BarrierState&) override;
  void mbarrier_complete_tx(const exec::Agent&, const exec::AsyncOp*, exec::BarrierRef,
                            uint32_t bytes, const exec::BarrierState&) override;
  void mbarrier_wait(const exec::Agent&, exec::BarrierRef, uint32_t parity, exec::Order,
                     exec::Scope) override;

  void async_issue(const exec::AsyncOp&) override;
  void async_begin(const exec::AsyncOp& op) override { in_flight_.erase(op.id); }
  void async_access(const exec::AsyncOp&, const exec::AsyncAccess&) override;
  void async_chunks(const exec::AsyncOp&, const exec::AsyncAccess&,
                    std::span<const uint32_t> addresses) override;
  void async_done(const exec::AsyncOp&) override;
  void group_commit(const exec::Agent&, exec::GroupKind) override;
  void group_wait(const exec::Agent&, exec::GroupKind, uint32_t pending) override;
  void end(std::span<const uint32_t> leaked_columns) override;

 private:
  /// Who touches memory now, and what that agent knows.
  struct Actor {
    Who who;
    Component warp = 0;  ///< itself, or the issuer
    Epoch epoch = 0;     ///< of the warp
    const View* view = nullptr;
    const Operation* operation = nullptr;
    const ptx::Instruction* instruction = nullptr;
    exec::Access access = exec::Access::read;
    exec::Proxy proxy = exec::Proxy::generic;
    uint32_t lanes = 0;
    bool unchanged = false;  ///< stores what is there
    bool rows = false;       ///< reads rows of A of a wgmma
  };
  /// What a change of a cell's state depends on, besides that state.
  struct Accessor {
    Who who;
    Epoch epoch = 0;
    exec::Access access = exec::Access::read;
    exec::Proxy proxy = exec::Proxy::generic;
    uint64_t last_issued = 0;
    const ptx::Instruction* instruction = nullptr;
    bool unchanged = false;
    bool rows = false;

    bool operator==(const Accessor&) const = default;
  };
  /// Where, for reports.
  struct Place {
    exec::Memory memory;
    uint32_t cta = 0;
    uint32_t address = 0;  ///< shared: offset; tensor: lane << 16 | column
  };

  /// Reads whose values are followed.
  enum class LoadKind : uint8_t { none, plain, matrix };
  LoadKind load_kind(const exec::Agent& agent);

  WarpState& warp_of(const exec::Agent& agent) {
    return warps_[agent.cta * info_.warps + agent.warp];
  }
  Operation& operation_of(uint64_t id);
  GroupStream& group_of(exec::GroupKind kind, Component warp, uint32_t lane);
  Component wgmma_component(Component warp);
  MbarrierState& mbarrier_of(exec::BarrierRef ref);
  Component new_component() { return next_component_++; }

  const FunctionRegisters& registers_of(const ptx::Function& function);
  void begin_sum(const exec::AsyncOp& op);

  void release_into(Message& message, const WarpState& warp) const;
  void relaxed_into(Message& message, const WarpState& warp) const;
  bool acquire(WarpState& warp, const Message& message);
  void release_done(WarpState& warp) { warp.next_epoch(); }
  void note_effect(const exec::Agent& agent, bool useful);
  bool knows_more_tcgen05(const VectorClock& more, const VectorClock& less) const;

  // ---- accesses
  Actor actor_of(const exec::Agent& agent, exec::Access access);
  Actor actor_of(uint64_t id, const Operation& operation) const;
  void next_accessor(const Actor& actor);
  void touch_shared(const Actor& actor, uint32_t cta, uint64_t address, uint64_t bytes);
  void touch_tmem(const Actor& actor, const exec::AsyncAccess& access);
  Cell touch(Cell cell, const Actor& actor, uint32_t units, const Place& place);
  void guard(exec::BarrierRef ref);
  Allocation* allocation_at(uint64_t address, uint8_t how);
  void check_early(const Actor& actor, const Allocation& allocation, uint8_t how);
  static uint8_t how_of(const Actor& actor);
  void touch_global(const Actor& actor, uint64_t address, uint64_t bytes);
  void touch_global_lanes(const Actor& actor, const exec::WarpAccess& access);
  void follow_lanes(const exec::Agent& agent, const exec::WarpAccess& access);
  bool watches_lanes(const Operation& operation, const exec::AsyncAccess& access) const;
  void follow_lanes(const Operation& operation, const exec::AsyncAccess& access, uint64_t address,
                    uint64_t bytes);
  void end_lane_copies(WarpState& warp, Epoch group);
  bool knows(const Actor& actor, const PastAccess& past) const;
  bool released(const Operation& operation, const VectorClock& clock) const;
  bool pipelined(const Operation& earlier, const PastAccess& past, const Actor& later) const;
  bool alike(const ptx::Instruction& one, const ptx::Instruction& other) const;
  bool watches_reads(const Actor& actor) const;
  void check_proxy(const Actor& actor, const PastAccess& past, const Place& place);
  void check_tcgen05(const Actor& actor, const PastAccess& past, const Place& place);
  void check_written(const CellState& cell, const Actor& actor, uint32_t units, const Place& place);
  /// A read that found nothing written: the check that reports it and what it says.
  std::pair<const char*, std::string> unwritten_text(const Actor& actor, const Place& first);
  void check_order(const CellState& cell, const Actor& actor, uint32_t units, const Place& place);
  void check_overwrite(const Actor& actor, uint32_t units, const Place& place);
  bool stands_for(const Actor& actor, uint32_t units, const PastAccess& past) const;
  void remember(const CellState& cell, const Actor& actor, uint32_t units);
  void synchronise_through(const exec::Agent& agent, const exec::WarpAccess& access);
  void check_mbarrier_use(const exec::BarrierRef& ref, const MbarrierState& barrier,
                          const Actor& actor, const char* what);
  void check_finished(const Operation& operation);
  void check_arrivals_seen(uint64_t key, const MbarrierState& barrier);
  void come_from_elsewhere(MbarrierState& barrier, Component issuer,
                           const ptx::Instruction* instruction) const;
  void complete_phase(MbarrierState& barrier, const exec::BarrierState& state);

  // ---- undefined values (undefined_values.cpp)
  uint64_t undefined_key(const exec::Agent& agent, uint32_t reg) {
    const Component warp = agent.cta * info_.warps + agent.warp;
    const auto function = function_numbers_.try_emplace(agent.function, function_numbers_.size());
    return uint64_t{warp} << 48 | uint64_t{function.first->second} << 32 | reg;
  }
  UndefinedLanes* undefined_of(const exec::Agent& agent, uint32_t reg);
  void set_undefined(const exec::Agent& agent, uint32_t reg, uint32_t lanes,
                     const UndefinedLanes& value);
  void follow_undefined(const exec::Agent& agent);
  Source source_in(const exec::Agent& agent, const exec::OperandValues& values,
                   const ptx::Operand& operand, uint32_t lane);
  void follow_values(const exec::Agent& agent, Flow flow, const UndefinedLanes& sources);
  void exchange_undefined(const exec::Agent& agent, Flow flow);
  void spread_undefined(const exec::Agent& agent, UndefinedLanes value);
  void mark_undefined(const exec::Agent& agent, const exec::WarpAccess& access);
  void mark_undefined(const exec::Agent& agent, const exec::AsyncAccess& access);
  void mark_undefined_matrix(const exec::Agent& agent, const exec::WarpAccess& access);
  void multiply_undefined(const exec::Agent& agent);
  void store_undefined(const exec::Agent& agent, const exec::WarpAccess& access);
  bool spoil_global(const exec::Agent& agent, const exec::WarpAccess& access);
  bool is_unwritten(exec::Memory memory, uint32_t cta, uint64_t address, uint64_t bytes);
  void follow_local(const exec::Agent& agent, const exec::WarpAccess& access);
  void forget_written(uint32_t cta, uint64_t address, uint64_t bytes,
                      const std::shared_ptr<const BrokenRule>& broken);
  void forget_copied(const exec::AsyncAccess& access);
  void forget_units(Cell& cell, uint32_t units);
  void found_at(UndefinedLanes& value);
  std::shared_ptr<const BrokenRule> broken_at(exec::Memory memory, uint32_t cta,
                                              uint64_t address) const;
  std::shared_ptr<const Operation> overtaken_at(const UndefinedLanes& value) const;
  std::string undefined_text(const exec::Agent& agent, const UndefinedLanes& value,
                             const char* how) const;
  bool follow_unwritten(const exec::AsyncOp& op, uint32_t rows, const char* check,
                        const std::string& text);
  bool follow_rows(const Operation& wgmma, uint64_t first, uint64_t last, const char* check,
                   const std::string& text);
  bool follow_rows(const Actor& actor, const char* check, const std::string& text);
  [[noreturn]] void report_undefined(const exec::Agent& agent, const UndefinedLanes& value,
                                     const char* how);

  // ---- reports (cluster_report.cpp)
  std::string location(const ptx::Instruction* instruction) const;
  std::string warp_name(Component warp) const;
  std::string place_name(const Place& place) const;
  std::string describe(const Actor& actor) const;
  std::string describe(const PastAccess& past) const;
  std::string missing_wait(const Operation& operation, Component waiter) const;
  std::string missing_order(const Actor& actor, const PastAccess& past) const;
  std::string release_name(const Operation& operation) const;
  void report_registers(const exec::Agent& agent, const RegisterHazard& hazard);
  bool freed_after_load(const Actor& actor, const PastAccess& past, const Place& place);
  bool works_in_the_field(const Actor& actor, const PastAccess& past, const Place& place);
  const Operation* pending_writer(const Place& place) const;
  std::string race_text(const Actor& actor, const PastAccess& past, const Place& place) const;
  void report_race(const Actor& actor, const PastAccess& past, const Place& place);
  void remark_lanes(const LaneWrites::Store& store, uint32_t lane, const std::string& second,
                    const Place& place);
  void remark(Remark kind, const char* check, const std::string& text);
  [[noreturn]] void report(const char* check, const std::string& text) const;

  const CheckContext& context_;
  const exec::ClusterInfo info_;
  const ptx::Module& module_;
  std::vector<WarpState> warps_;
  std::vector<std::vector<Cell>> shared_;          // by CTA
  std::vector<LaneWrites> lane_writes_;            // by CTA
  bool lanes_told_ = false;                        // the remark on them
  bool early_load_told_ = false;                   // likewise
  std::shared_ptr<const BrokenRule> unused_rows_;  // the first rule that rows of A broke
  uint64_t let_dependents_ = 0;  ///< CTAs, a bit each, behind griddepcontrol.launch_dependents
  std::vector<std::vector<Cell>> tmem_;  // by CTA, made on the first allocation
  OperationTable operations_;
  std::vector<std::array<GenerationBarrier, 16>> barriers_;  // by CTA
  GenerationBarrier cluster_barrier_;
  std::vector<VectorClock> exited_;  // by CTA: what the warps that have exited did
  std::unordered_map<uint64_t, MbarrierState> mbarriers_;  // key: cta << 32 | offset
  std::array<std::pair<uint64_t, MbarrierState*>, 32> recent_mbarriers_{};  // by offset
  std::unordered_map<uint64_t, GroupStream> groups_;
  std::unordered_map<uint64_t, Component> wgmma_components_;  // key: cta << 32 | warpgroup
  std::unordered_map<uint64_t, Message> flags_;               // memory words used to synchronise
  VectorClock last_generic_write_;                            // of shared memory, by warp
  VectorClock last_generic_read_;                             // with CheckOptions::reads
  std::vector<Component> tcgen05_components_;  // whose epochs tell of tcgen05 operations
  uint64_t last_issued_ = 0;                   // id of the last operation
  std::set<uint64_t> in_flight_;               // operations that have not happened yet
  Component next_component_ = 0;
  std::unordered_map<const ptx::Function*, FunctionRegisters> registers_;
  const ptx::Function* function_ = nullptr;  // of the last instruction
  const FunctionRegisters* function_registers_ = nullptr;
  StateTable states_;  // that the cells are in
  Accessor accessor_;  // whose changes `states_` knows
  CellState scratch_;
  Component launch_before_ = 0;  // epoch 1: it has ended
  /// An allocation that global accesses hit of late.
  struct Recent {
    Allocation* allocation = nullptr;
    uint8_t how = 0;
  };
  std::array<Recent, 4> allocations_{};
  uint32_t next_allocation_ = 0;
  SyncEffects effects_;
  std::vector<LoadKind> load_kinds_;                        // by form, once asked for
  std::unordered_map<uint64_t, UndefinedLanes> undefined_;  // by warp, function and register
  std::unordered_map<const ptx::Function*, uint64_t> function_numbers_;
  std::vector<Flow> flows_;  // by form
  /// What stores to global memory put there that they should not have, by store and read.
  std::map<std::pair<const ptx::Instruction*, const ptx::Instruction*>,
           std::shared_ptr<const BrokenRule>>
      stored_rules_;
  /// Words of local memory that hold undefined values: by warp and offset in a thread's frame.
  std::unordered_map<uint64_t, UndefinedLanes> undefined_local_;
  /// Cells of shared memory (cta << 32 | number) that values were stored to which a broken rule
  /// spoils: as unwritten as those that nobody stored to.
  std::unordered_map<uint64_t, std::shared_ptr<const BrokenRule>> broken_cells_;
  UndefinedLanes undefined_stored_;  // by the running instruction
  bool follows_reads_ = false;       // the running access may find undefined values
  bool found_unwritten_ = false;     // and has
  bool found_spoiled_ = false;       // an atomic has, where a broken rule spoils global memory
  uint32_t copied_unwritten_ = 0;    // words of the rows that a tcgen05.cp read last
};

/// Operations that run in order when one warp issues them (PTX ISA "Pipelined tcgen05
/// instructions").
bool in_tensor_pipeline(exec::AsyncKind kind);
/// The kind of group an operation joins when it is issued, if any.
std::optional<exec::GroupKind> group_kind_of(exec::AsyncKind kind);

}  // namespace vgpu::check
