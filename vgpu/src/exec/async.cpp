// SPDX-License-Identifier: Apache-2.0
#include "exec/async.hpp"

namespace vgpu::exec {

AsyncOp make_async(Warp& w, uint32_t lanes, AsyncKind kind) {
  AsyncOp op;
  op.id = w.cluster->next_async_id++;
  op.kind = kind;
  op.issuer = agent_of(w, lanes);
  return op;
}

namespace {

/// Operations that nobody waits for but through an mbarrier, which wakes its waiters itself.
bool signals_mbarrier(AsyncKind kind) {
  switch (kind) {
    case AsyncKind::tma_load:
    case AsyncKind::bulk_load:
    case AsyncKind::bulk_shared:
    case AsyncKind::st_async:
    case AsyncKind::tcgen05_mma:
    case AsyncKind::tcgen05_cp:
    case AsyncKind::tcgen05_shift:
    case AsyncKind::tcgen05_commit:
    case AsyncKind::clc_try_cancel:
      return true;
    default:
      return false;
  }
}

}  // namespace

void perform(Cluster& cluster, AsyncTask& task) {
  try {
    if (cluster.observer) cluster.observer->async_begin(task.op);
    if (task.run) task.run(task.op);
    if (cluster.observer && task.last) cluster.observer->async_end(task.op);
    if (task.signal) task.signal(task.op);
    if (cluster.observer && task.last) cluster.observer->async_done(task.op);
  } catch (const LocatedFault&) {
    throw;
  } catch (const Fault& fault) {
    throw LocatedFault(fault, task.op.issuer);
  }
  ++cluster.activity;
  if (!signals_mbarrier(task.op.kind)) ++cluster.epoch;
}

void issue_stage(Cluster& cluster, std::deque<AsyncTask>& queue, AsyncTask task) {
  ++cluster.activity;
  bool early = cluster.grid->request->options.delivery == Delivery::early;
  if (early && queue.empty() && (!task.ready || task.ready())) {
    perform(cluster, task);
  } else {
    queue.push_back(std::move(task));
  }
}

void issue(Cluster& cluster, std::deque<AsyncTask>& queue, AsyncTask task) {
  ++cluster.worker->async_operations;
  if (cluster.observer) cluster.observer->async_issue(task.op);
  issue_stage(cluster, queue, std::move(task));
}

namespace {

/// Takes and runs a ready task: the first of an ordered queue, any of an unordered one.
bool deliver_from(Cluster& cluster, std::deque<AsyncTask>& queue, bool ordered) {
  if (queue.empty()) return false;
  auto& options = cluster.grid->request->options;
  size_t start = 0;
  // NOTE: Copies complete in any order. "late" takes the newest first: the order that differs most
  // from program order; "random" draws.
  if (!ordered) {
    if (options.delivery == Delivery::random) start = cluster.worker->random() % queue.size();
    if (options.delivery == Delivery::late) start = queue.size() - 1;
  }
  for (size_t k = 0; k < (ordered ? 1 : queue.size()); ++k) {
    size_t at = options.delivery == Delivery::late ? (start + queue.size() - k) % queue.size()
                                                   : (start + k) % queue.size();
    if (queue[at].ready && !queue[at].ready()) continue;
    AsyncTask task = std::move(queue[at]);
    // What is drawn at random may lie in any order.
    if (!ordered && options.delivery == Delivery::random && at + 1 < queue.size()) {
      queue[at] = std::move(queue.back());
      queue.pop_back();
    } else {
      queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(at));
    }
    perform(cluster, task);
    return true;
  }
  return false;
}

}  // namespace

bool deliver(Cluster& cluster, DeliverHow how) {
  bool any = false;
  // Which kind of queue goes first varies: the engines run side by side.
  bool tensor_first = cluster.worker->random() & 1;
  for (int pass = 0; pass < 2; ++pass) {
    if ((pass == 0) == tensor_first) {
      for (auto& cta : cluster.ctas) {
        any |= deliver_from(cluster, cta->tensor_queue, true);
        if (any && how == DeliverHow::one) return true;
      }
    } else {
      any |= deliver_from(cluster, cluster.copies, false);
      if (any && how == DeliverHow::one) return true;
    }
  }
  for (auto& cta : cluster.ctas) {
    for (auto& warp : cta->warps) {
      any |= deliver_from(cluster, warp->wgmmas, true);
      if (any && how == DeliverHow::one) return true;
    }
  }
  return any;
}

bool has_pending(const Cluster& cluster) {
  if (!cluster.copies.empty()) return true;
  for (auto& cta : cluster.ctas) {
    if (!cta->tensor_queue.empty()) return true;
    for (auto& warp : cta->warps) {
      if (!warp->wgmmas.empty()) return true;
    }
  }
  return false;
}

void drain(Cluster& cluster, std::deque<AsyncTask>& queue, size_t keep) {
  while (queue.size() > keep) {
    AsyncTask task = std::move(queue.front());
    queue.pop_front();
    perform(cluster, task);
  }
}

// ------------------------------------------------------------------ groups

CopyGroups& groups_of(std::unique_ptr<CopyGroups>& groups) {
  if (!groups) groups = std::make_unique<CopyGroups>();
  return *groups;
}

uint64_t enter_group(std::unique_ptr<CopyGroups>& groups, uint32_t lane) {
  auto& thread = groups_of(groups).threads[lane];
  ++thread.pending.back();
  return thread.first + thread.pending.size() - 1;
}

void leave_group(std::unique_ptr<CopyGroups>& groups, uint32_t lane, uint64_t group) {
  auto& thread = groups_of(groups).threads[lane];
  --thread.pending[group - thread.first];
  thread.drop_complete();
}

void commit_group(std::unique_ptr<CopyGroups>& groups, uint32_t lanes) {
  for_lanes(lanes, [&](uint32_t l) {
    auto& thread = groups_of(groups).threads[l];
    thread.pending.push_back(0);
    // Keep complete groups: wait_group counts the most recent ones.
  });
}

bool groups_done(std::unique_ptr<CopyGroups>& groups, uint32_t lane, uint64_t allowed,
                 bool with_open) {
  if (!groups) return true;
  auto& thread = groups->threads[lane];
  thread.drop_complete();
  // Committed groups: all but the last entry.
  size_t committed = thread.pending.size() - 1;
  if (with_open && thread.pending.back()) return false;
  for (size_t k = 0; k + allowed < committed; ++k) {
    if (thread.pending[k]) return false;
  }
  return true;
}

}  // namespace vgpu::exec
