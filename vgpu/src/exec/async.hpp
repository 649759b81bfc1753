// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exec/machine.hpp"

/// Asynchronous operations: they are queued at issue and happen when the delivery policy says.
namespace vgpu::exec {

/// A fault with the instruction it belongs to, when that is not the running one.
struct LocatedFault : Fault {
  LocatedFault(const Fault& fault, const Agent& agent) : Fault(fault), agent(agent) {}
  Agent agent;
};

/// Makes an operation issued by `lanes` of the running group.
AsyncOp make_async(Warp& w, uint32_t lanes, AsyncKind kind);
/// Queues a task; under Delivery::early it happens now.
void issue(Cluster& cluster, std::deque<AsyncTask>& queue, AsyncTask task);
/// Queues a further stage of an operation that has been issued.
void issue_stage(Cluster& cluster, std::deque<AsyncTask>& queue, AsyncTask task);
/// Runs a task to its end.
void perform(Cluster& cluster, AsyncTask& task);

/// Delivers operations of a cluster's queues. `limit`: at most one of each queue, or of one queue.
enum class DeliverHow : uint8_t { one_of_each, one };
bool deliver(Cluster& cluster, DeliverHow how);
bool has_pending(const Cluster& cluster);
/// Runs a warp's own queue (tcgen05.ld/st, wgmma) until `keep` tasks are left.
void drain(Cluster& cluster, std::deque<AsyncTask>& queue, size_t keep = 0);

// ---- per-thread groups of copies
CopyGroups& groups_of(std::unique_ptr<CopyGroups>& groups);
/// Adds an operation of one thread to its open group and gives that group's number.
uint64_t enter_group(std::unique_ptr<CopyGroups>& groups, uint32_t lane);
void leave_group(std::unique_ptr<CopyGroups>& groups, uint32_t lane, uint64_t group);
void commit_group(std::unique_ptr<CopyGroups>& groups, uint32_t lanes);
/// Whether at most `allowed` of the most recent committed groups of the lane are incomplete.
/// `with_open`: the uncommitted group counts too (wait_all).
bool groups_done(std::unique_ptr<CopyGroups>& groups, uint32_t lane, uint64_t allowed,
                 bool with_open = false);

}  // namespace vgpu::exec
