// SPDX-License-Identifier: Apache-2.0
#include "exec/scheduler.hpp"

#include <algorithm>

#include "exec/async.hpp"
#include "exec/barrier_ops.hpp"
#include "exec/mbarrier.hpp"

namespace vgpu::exec {
namespace {

constexpr int kQuantum = 400;              // instructions of a warp before the next one's turn
constexpr uint32_t kIdleLimit = 64;        // rounds without any event: deadlock
constexpr uint64_t kCrowdLimit = 100'000;  // instructions without side effects: admit a cluster
constexpr uint8_t kUnwritten = 0xcd;       // fills memory that nobody has written

struct Visit {
  bool ran = false;        ///< executed at least one instruction
  bool exhausted = false;  ///< could have gone on
  bool polls = false;      ///< polls memory that other clusters may write
};

void on_warp_exit(Warp& w) {
  --w.cta->live_warps;
  --w.cluster->live_warps;
  leave_barriers(w);
  wake(*w.cluster);
}

/// Whether a blocked group would only block again.
bool still_waits(const LaneGroup& group, const Cluster& cluster) {
  if (group.timed_out) return false;
  return group.phase_byte ? (*group.phase_byte & kPhaseBits) == group.phase_bits
                          : group.epoch == cluster.epoch;
}

/// Whether some lanes of a warp need not wait.
bool can_go_on(const Warp& w) {
  return std::any_of(w.groups.begin(), w.groups.end(), [&](const LaneGroup& group) {
    return !group.blocked || !still_waits(group, *w.cluster);
  });
}

/// Groups at the same instruction become one again.
void merge_groups(Warp& w, size_t& best) {
  for (size_t k = 0; k < w.groups.size();) {
    auto &into = w.groups[best], &from = w.groups[k];
    if (k != best && from.pc == into.pc && !from.token && !into.token) {
      into.mask |= from.mask;
      into.blocked = false;
      into.timed_out = false;
      w.groups.erase(w.groups.begin() + static_cast<std::ptrdiff_t>(k));
      if (k < best) --best;
    } else {
      ++k;
    }
  }
}

void add_group(Warp& w, uint32_t pc, uint32_t mask) {
  LaneGroup group;
  group.pc = pc;
  group.mask = mask;
  w.groups.push_back(group);
}

/// What the observer hears of: nothing, events, every instruction too.
enum class Watch : uint8_t { none, some, every };

/// Runs the groups of a warp, lowest instruction first so that they meet again, until all are
/// blocked or have polled in vain, or the quantum is spent.
template <Watch kWatch>
Visit run_warp(Warp& w, int quantum) {
  constexpr bool kEvery = kWatch == Watch::every;
  Cluster& cluster = *w.cluster;
  // The observer has begun to want every instruction: the visit ends.
  const auto begins_to_want = [&] {
    if (kWatch != Watch::some || !cluster.observer->wants_instructions) return false;
    quantum = 0;
    return true;
  };
  Worker& worker = *cluster.worker;
  const Instr* code = w.kernel->code.data();
  Visit visit;
  uint32_t polled = 0;  // lanes whose group has yielded in this visit
  uint64_t executed = 0, lanes_executed = 0;

  while (quantum > 0 && !w.groups.empty()) {
    size_t best = SIZE_MAX;
    for (size_t k = 0; k < w.groups.size(); ++k) {
      auto& g = w.groups[k];
      if (g.mask & polled) continue;
      if (g.blocked && still_waits(g, cluster)) continue;
      if (best == SIZE_MAX || g.pc < w.groups[best].pc) best = k;
    }
    if (best == SIZE_MAX) break;
    if (w.groups.size() > 1) merge_groups(w, best);
    w.group = &w.groups[best];
    uint32_t stop = UINT32_MAX;
    for (auto& g : w.groups) {
      if (g.pc > w.group->pc) stop = std::min(stop, g.pc);
    }

    uint32_t pc = w.group->pc, mask = w.group->mask;
    bool regroup = false;
    while (!regroup) {
      const Instr& i = code[pc];
      uint32_t lanes = mask & (w.predicates[i.guard] ^ i.guard_flip);
      w.group->pc = pc;
      --quantum;
      Step step = Step::next;
      if (lanes) {
        if (kEvery && !w.group->blocked) cluster.observer->instruction(agent_of(w, lanes));
        w.executing = lanes;
        step = i.handler(w, i, lanes);
      }
      if (step == Step::block) {
        if (kEvery && !w.group->blocked) {
          cluster.observer->blocked(agent_of(w, lanes), w.group->why);
        }
        w.group->blocked = true;
        w.group->epoch = cluster.epoch;
        break;
      }
      if (w.group->blocked) {
        w.group->blocked = false;
        w.group->timed_out = false;
        if (step != Step::yield) w.group->why = nullptr;
        if (kEvery) cluster.observer->unblocked(agent_of(w, lanes));
      }
      ++executed;
      lanes_executed += static_cast<uint32_t>(std::popcount(lanes));
      switch (step) {
        case Step::next:
          ++pc;
          if (quantum > 0 && pc < stop && !begins_to_want()) continue;
          w.group->pc = pc;
          regroup = true;
          break;
        case Step::poll:
          visit.polls = true;
          [[fallthrough]];
        case Step::yield:
          w.group->pc = ++pc;
          polled |= mask;
          regroup = true;
          break;
        case Step::jump:
          if (lanes == mask) {
            pc = w.jump_target;
            w.group->pc = pc;
            regroup = w.groups.size() > 1;
          } else {
            w.group->mask &= ~lanes;
            w.group->pc = pc + 1;
            add_group(w, w.jump_target, lanes);
            regroup = true;
          }
          break;
        case Step::split: {
          w.group->mask &= ~lanes;
          w.group->pc = pc + 1;
          size_t here = static_cast<size_t>(w.group - w.groups.data());
          for (uint32_t rest = lanes; rest;) {
            uint32_t target = w.jump_targets[first_lane(rest)], same = 0;
            for_lanes(rest,
                      [&](uint32_t l) { same |= uint32_t{w.jump_targets[l] == target} << l; });
            add_group(w, target, same);
            rest &= ~same;
          }
          if (!w.groups[here].mask) {
            w.groups.erase(w.groups.begin() + static_cast<std::ptrdiff_t>(here));
          }
          regroup = true;
          break;
        }
        case Step::exit:
          w.live &= ~lanes;
          w.group->mask &= ~lanes;
          if (cluster.observer) cluster.observer->exited(agent_of(w, lanes));
          w.group->pc = pc + 1;
          if (!w.group->mask) w.groups.erase(w.groups.begin() + (w.group - w.groups.data()));
          // Lanes that waited for the ones that are gone can go on.
          for (auto& g : w.groups) g.blocked = false;
          if (!w.live) on_warp_exit(w);
          regroup = true;
          break;
        case Step::block:
          break;
      }
      if (quantum <= 0 || pc >= stop || begins_to_want()) regroup = true;
    }
  }
  w.group = nullptr;
  visit.ran = executed > 0;
  visit.exhausted = quantum <= 0 && !w.groups.empty();
  worker.warp_instructions += executed;
  worker.lane_instructions += lanes_executed;
  cluster.quiet_instructions += executed;
  return visit;
}

/// One turn for every warp of a cluster, then deliveries. False when the cluster is finished.
bool step_cluster(Cluster& cluster, std::atomic<uint64_t>& progress) {
  Worker& worker = *cluster.worker;
  auto& options = cluster.grid->request->options;
  bool random = options.delivery == Delivery::random;
  bool observe = cluster.observer && cluster.observer->wants_instructions;
  uint64_t epoch = cluster.epoch, activity = cluster.activity;
  bool exhausted = false, ran = false, polls = false;  // exhausted: some warp could go on
  for (auto& cta : cluster.ctas) {
    for (auto& warp : cta->warps) {
      if (warp->groups.empty()) continue;
      int quantum = kQuantum;
      if (random) {
        // Warps fall asleep and run for odd lengths of time.
        if (warp->nap) {
          --warp->nap;
          exhausted |= can_go_on(*warp);
          continue;
        }
        uint64_t draw = worker.random();
        if (draw % 32 == 0) warp->nap = static_cast<uint32_t>(draw >> 8) % 64;
        quantum = 1 + static_cast<int>((draw >> 32) % kQuantum);
      }
      Visit visit = observe            ? run_warp<Watch::every>(*warp, quantum)
                    : cluster.observer ? run_warp<Watch::some>(*warp, quantum)
                                       : run_warp<Watch::none>(*warp, quantum);
      exhausted |= visit.exhausted;
      polls |= visit.polls;
      ran |= visit.ran;
    }
  }
  if (cluster.live_warps == 0) {
    while (deliver(cluster, DeliverHow::one_of_each)) {
    }
    return false;
  }

  bool idle = !exhausted && epoch == cluster.epoch && activity == cluster.activity;
  bool delivered = false;
  const bool in_turns = options.delivery == Delivery::sweep || options.delivery == Delivery::early;
  if (in_turns) {
    delivered = deliver(cluster, DeliverHow::one_of_each);
  } else if (random && worker.random() % 4 == 0) {
    delivered = deliver(cluster, DeliverHow::one);
  }
  if (idle && !delivered) delivered = deliver(cluster, DeliverHow::one);
  // Where all warps wait, turns pass with nothing but deliveries until one ends a wait.
  // NOTE: not under random: warps may fall asleep in these turns.
  if (!ran && !random && delivered) {
    while (cluster.epoch == epoch &&
           deliver(cluster, in_turns ? DeliverHow::one_of_each : DeliverHow::one)) {
    }
  }

  if (cluster.activity != activity || delivered) {
    cluster.quiet_instructions = 0;
    cluster.idle_rounds = 0;
    cluster.polling = false;
    progress.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  cluster.polling |= polls;
  // What a cluster polls for may come from one that still works, on this thread or another.
  const uint64_t now = progress.load(std::memory_order_relaxed);
  if (cluster.quiet_instructions > options.spin_limit && polls && now != cluster.activity_seen) {
    cluster.activity_seen = now;
    cluster.quiet_instructions = 0;
  }
  if (cluster.quiet_instructions > options.spin_limit) {
    throw Fault(
        kLaunchTimeout,
        stuck_report(cluster, format("no side effect in %llu instructions: the cluster spins",
                                     static_cast<unsigned long long>(options.spin_limit))));
  }
  // A poll of memory may be answered by another cluster.
  if (!idle || polls) return true;
  // Nothing can happen by itself: blocked try_waits give up, as they may after a time.
  if (!ran) {
    for (auto& cta : cluster.ctas) {
      for (auto& warp : cta->warps) {
        for (auto& g : warp->groups) {
          if (g.blocked && g.why && std::string_view(g.why) == "mbarrier.try_wait") {
            g.timed_out = true;
          }
        }
      }
    }
  }
  if (++cluster.idle_rounds > kIdleLimit) {
    throw Fault(kLaunchTimeout,
                stuck_report(cluster, "deadlock: every warp waits and nothing is in flight"));
  }
  return true;
}

void check_tensor_memory(Cluster& cluster) {
  std::vector<uint32_t> leaked;
  for (auto& cta : cluster.ctas) leaked.push_back(cta->tmem.allocated_columns());
  if (cluster.observer) cluster.observer->end(leaked);
  for (auto& cta : cluster.ctas) {
    if (leaked[cta->rank]) {
      fault(kTensorMemoryLeak,
            "CTA (%u,%u,%u) exited with tensor memory still allocated: %s; call tcgen05.dealloc "
            "before the CTA ends",
            cta->index[0], cta->index[1], cta->index[2], cta->tmem.describe_allocations().c_str());
    }
  }
}

uint64_t share_of(const Worker& worker) {
  auto& request = *worker.grid->request;
  if (request.cooperative) return worker.grid->max_resident;
  if (request.options.resident_clusters) {
    return std::max<uint64_t>(
        1, request.options.resident_clusters / std::max(1u, request.options.threads));
  }
  return 2;
}

void stop(Grid& grid, int error, std::string report) {
  std::lock_guard lock(grid.mutex);
  if (!grid.stop.exchange(true)) {
    grid.error = error;
    grid.report = std::move(report);
  }
}

/// The agent of the warp that was running when a handler threw.
Agent running_agent(const Cluster& cluster) {
  for (auto& cta : cluster.ctas) {
    for (auto& warp : cta->warps) {
      if (warp->group) return agent_of(*warp, warp->executing);
    }
  }
  return {};
}

}  // namespace

namespace {

/// Whether the worker's clusters can only go on when polls are answered from outside the grid.
bool polls_in_vain(const Worker& worker) {
  const uint64_t limit = worker.grid->request->options.pause_after;
  return limit && !worker.resident.empty() &&
         std::all_of(worker.resident.begin(), worker.resident.end(), [&](auto& cluster) {
           return cluster->polling && cluster->quiet_instructions > limit;
         });
}

/// Counts the worker among the idle ones or not; when all are, the grid pauses.
void set_idle(Worker& worker, bool idle) {
  if (worker.idle == idle) return;
  worker.idle = idle;
  Grid& grid = *worker.grid;
  if (!idle) {
    grid.idle_workers.fetch_sub(1);
  } else if (grid.idle_workers.fetch_add(1) + 1 == grid.worker_count) {
    grid.paused = true;
  }
}

}  // namespace

void run_worker(Worker& worker, std::atomic<uint64_t>& progress) {
  Grid& grid = *worker.grid;
  if (worker.share == 0) worker.share = share_of(worker);
  uint64_t& share = worker.share;
  Cluster* current = nullptr;
  try {
    while (!grid.stop.load(std::memory_order_relaxed) && !grid.paused.load()) {
      while (worker.resident.size() < share) {
        int64_t number = grid.take_cluster();
        if (number < 0) break;
        worker.resident.push_back(make_cluster(worker, static_cast<uint64_t>(number)));
      }
      if (worker.resident.empty()) break;
      for (size_t k = 0; k < worker.resident.size();) {
        current = worker.resident[k].get();
        bool alive = step_cluster(*current, progress);
        // Clusters that wait for others through global memory need them resident.
        if (alive && current->quiet_instructions > kCrowdLimit && share < grid.max_resident &&
            worker.resident.size() >= share && grid.has_waiting_clusters()) {
          ++share;
          current->quiet_instructions = 0;
        }
        if (!alive) {
          check_tensor_memory(*current);
          current = nullptr;
          worker.resident.erase(worker.resident.begin() + static_cast<std::ptrdiff_t>(k));
        } else {
          ++k;
        }
      }
      set_idle(worker, polls_in_vain(worker));
    }
    if (worker.resident.empty()) set_idle(worker, true);
  } catch (const LocatedFault& fault) {
    stop(grid, fault.cuda_error,
         current ? fault_report(*current, fault.agent, fault.text) : fault.text);
  } catch (const Fault& fault) {
    bool stuck = fault.cuda_error == kLaunchTimeout;
    bool leak = fault.cuda_error == kTensorMemoryLeak;
    Agent agent = current ? running_agent(*current) : Agent{};
    stop(grid, fault.cuda_error,
         stuck || leak || !current ? fault.text : fault_report(*current, agent, fault.text));
  } catch (const std::exception& error) {
    stop(grid, kLaunchFailure, std::string("internal error: ") + error.what());
  }
  if (grid.stop) worker.resident.clear();
}

// ------------------------------------------------------------------ building clusters

namespace {

uint64_t special_value(Special which, const Cta& cta, const Worker& worker, uint32_t warp,
                       uint32_t lane) {
  const Grid& grid = *cta.cluster->grid;
  const LaunchRequest& r = *grid.request;
  const Cluster& cluster = *cta.cluster;
  uint32_t thread = warp * kLanes + lane;
  uint32_t ctas = grid.cluster_ctas;
  uint32_t threads = static_cast<uint32_t>(r.block.count());
  switch (which) {
    case Special::tid_x:
      return thread % r.block.x;
    case Special::tid_y:
      return thread / r.block.x % r.block.y;
    case Special::tid_z:
      return thread / r.block.x / r.block.y;
    case Special::ntid_x:
      return r.block.x;
    case Special::ntid_y:
      return r.block.y;
    case Special::ntid_z:
      return r.block.z;
    case Special::ctaid_x:
      return cta.index[0];
    case Special::ctaid_y:
      return cta.index[1];
    case Special::ctaid_z:
      return cta.index[2];
    case Special::nctaid_x:
      return r.grid.x;
    case Special::nctaid_y:
      return r.grid.y;
    case Special::nctaid_z:
      return r.grid.z;
    case Special::laneid:
      return lane;
    case Special::warpid:
      return warp;
    case Special::nwarpid:
      return (threads + kLanes - 1) / kLanes;
    case Special::smid:
      return (cluster.number * ctas + cta.rank) % std::max(1u, r.device->sm_count);
    case Special::nsmid:
      return r.device->sm_count;
    case Special::gridid:
      return 1;
    case Special::lanemask_eq:
      return 1u << lane;
    case Special::lanemask_le:
      return (uint64_t{2} << lane) - 1;
    case Special::lanemask_lt:
      return (1u << lane) - 1;
    case Special::lanemask_ge:
      return ~((1u << lane) - 1);
    case Special::lanemask_gt:
      return ~static_cast<uint32_t>((uint64_t{2} << lane) - 1);
    case Special::cluster_ctarank:
      return cta.rank;
    case Special::cluster_nctarank:
      return ctas;
    case Special::cluster_ctaid_x:
      return cta.index[0] % r.cluster.x;
    case Special::cluster_ctaid_y:
      return cta.index[1] % r.cluster.y;
    case Special::cluster_ctaid_z:
      return cta.index[2] % r.cluster.z;
    case Special::cluster_nctaid_x:
      return r.cluster.x;
    case Special::cluster_nctaid_y:
      return r.cluster.y;
    case Special::cluster_nctaid_z:
      return r.cluster.z;
    case Special::clusterid_x:
      return cluster.id[0];
    case Special::clusterid_y:
      return cluster.id[1];
    case Special::clusterid_z:
      return cluster.id[2];
    case Special::nclusterid_x:
      return grid.clusters[0];
    case Special::nclusterid_y:
      return grid.clusters[1];
    case Special::nclusterid_z:
      return grid.clusters[2];
    case Special::is_explicit_cluster:
      return ctas > 1 || r.explicit_cluster;
    case Special::dynamic_smem_size:
      return r.dynamic_shared;
    case Special::total_smem_size:
      return grid.shared_bytes - kSharedReserved;
    case Special::aggr_smem_size:
      return grid.shared_bytes;
    case Special::workspace_high:
      return r.cooperative ? reinterpret_cast<uint64_t>(grid.workspace.data()) >> 32 : 0;
    case Special::workspace_low:
      return r.cooperative ? reinterpret_cast<uint64_t>(grid.workspace.data()) & 0xffffffffu : 0;
    case Special::reserved_smem_begin:
    case Special::reserved_smem_0:
    case Special::reserved_smem_1:
      return uint64_t{cta.rank} << kSharedRankShift;
    case Special::reserved_smem_end:
      return (uint64_t{cta.rank} << kSharedRankShift) + kSharedReservedInUse;
    case Special::reserved_smem_cap:
      return (uint64_t{cta.rank} << kSharedRankShift) + kSharedReserved;
    case Special::zero:
      return 0;
  }
  (void)worker;
  return 0;
}

void fill(uint8_t* at, unsigned bytes, uint32_t lane, uint64_t value) {
  std::memcpy(at + lane * bytes, &value, std::min(bytes, 8u));
}

std::unique_ptr<Warp> make_warp(Worker& worker, Cta& cta, uint32_t id) {
  const Grid& grid = *worker.grid;
  const Kernel& kernel = *grid.kernel;
  auto warp = std::make_unique<Warp>();
  warp->cta = &cta;
  warp->cluster = cta.cluster;
  warp->kernel = &kernel;
  warp->id = id;
  size_t size = grid.register_template.size();
  warp->register_storage.reset(new uint8_t[size + 64]);
  auto base = reinterpret_cast<uintptr_t>(warp->register_storage.get());
  warp->registers = reinterpret_cast<uint8_t*>((base + 63) / 64 * 64);
  std::memcpy(warp->registers, grid.register_template.data(), size);
  for (auto& constant : kernel.constants) {
    uint8_t* at = warp->registers + constant.at;
    uint64_t rank = uint64_t{cta.rank} << kSharedRankShift;
    for (uint32_t l = 0; l < kLanes; ++l) {
      switch (constant.kind) {
        case Constant::Kind::special:
          fill(at, constant.bytes, l,
               special_value(static_cast<Special>(constant.value), cta, worker, id, l));
          break;
        case Constant::Kind::shared:
          fill(at, constant.bytes, l,
               rank + kSharedReserved + constant.value + static_cast<uint64_t>(constant.addend));
          break;
        case Constant::Kind::dynamic_shared:
          fill(at, constant.bytes, l,
               rank + grid.dynamic_shared_offset + static_cast<uint64_t>(constant.addend));
          break;
        default:
          break;  // in the template
      }
    }
  }
  warp->predicate_storage.assign(kernel.predicates, 0);
  warp->predicate_storage[0] = kAllLanes;
  warp->predicates = warp->predicate_storage.data();
  uint32_t lanes = std::min(kLanes, cta.threads - id * kLanes);
  warp->live = lanes == kLanes ? kAllLanes : (1u << lanes) - 1;
  warp->local.assign(size_t{kernel.local_bytes} * kLanes, kUnwritten);
  add_group(*warp, 0, warp->live);
  return warp;
}

}  // namespace

std::unique_ptr<Cluster> make_cluster(Worker& worker, uint64_t number) {
  Grid& grid = *worker.grid;
  const LaunchRequest& r = *grid.request;
  auto cluster = std::make_unique<Cluster>();
  cluster->grid = &grid;
  cluster->worker = &worker;
  cluster->number = number;
  cluster->id[0] = static_cast<uint32_t>(number % grid.clusters[0]);
  cluster->id[1] = static_cast<uint32_t>(number / grid.clusters[0] % grid.clusters[1]);
  cluster->id[2] = static_cast<uint32_t>(number / grid.clusters[0] / grid.clusters[1]);
  auto threads = static_cast<uint32_t>(r.block.count());
  uint32_t warps = (threads + kLanes - 1) / kLanes;
  for (uint32_t z = 0; z < r.cluster.z; ++z) {
    for (uint32_t y = 0; y < r.cluster.y; ++y) {
      for (uint32_t x = 0; x < r.cluster.x; ++x) {
        auto cta = std::make_unique<Cta>();
        cta->cluster = cluster.get();
        cta->rank = static_cast<uint32_t>(cluster->ctas.size());
        cta->index[0] = cluster->id[0] * r.cluster.x + x;
        cta->index[1] = cluster->id[1] * r.cluster.y + y;
        cta->index[2] = cluster->id[2] * r.cluster.z + z;
        cta->threads = threads;
        cta->shared.assign(grid.shared_bytes, kUnwritten);
        if (grid.kernel->uses_reserved_shared) {
          cta->shared_begin = 0;
          std::fill_n(cta->shared.begin(), kSharedReserved, uint8_t{0});
        }
        cluster->ctas.push_back(std::move(cta));
      }
    }
  }
  if (r.observer) {
    ClusterInfo info;
    info.request = &r;
    info.kernel = grid.kernel->info;
    info.index = number;
    info.id = {cluster->id[0], cluster->id[1], cluster->id[2]};
    info.ctas = grid.cluster_ctas;
    info.warps = warps;
    info.shared_bytes = grid.shared_bytes;
    info.worker = worker.index;
    cluster->observer_storage = r.observer->cluster_begin(info);
    cluster->observer = cluster->observer_storage.get();
  }
  for (auto& cta : cluster->ctas) {
    for (uint32_t k = 0; k < warps; ++k) {
      cta->warps.push_back(make_warp(worker, *cta, k));
      ++cta->live_warps;
      ++cluster->live_warps;
    }
  }
  return cluster;
}

}  // namespace vgpu::exec
