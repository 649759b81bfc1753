// SPDX-License-Identifier: Apache-2.0
#include "exec/launch.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "exec/scheduler.hpp"

namespace vgpu::exec {
namespace {

/// Refuses a configuration as the runtime would; fills the grid's geometry.
void configure(Grid& grid, LaunchRequest& r) {
  auto& info = *grid.kernel->info;
  auto& device = *r.device;
  if (!r.grid.count() || !r.block.count() || !r.cluster.count()) {
    fault(kInvalidConfiguration, "grid, block and cluster dimensions must be at least 1");
  }
  if (info.required_cluster.x) {
    bool given = r.cluster.count() > 1;
    auto& need = info.required_cluster;
    if (given && (r.cluster.x != need.x || r.cluster.y != need.y || r.cluster.z != need.z)) {
      fault(kInvalidConfiguration,
            "kernel %s is compiled for clusters of %ux%ux%u, the launch asks for %ux%ux%u",
            info.name.c_str(), need.x, need.y, need.z, r.cluster.x, r.cluster.y, r.cluster.z);
    }
    r.cluster = need;
  }
  uint64_t threads = r.block.count();
  if (threads > device.max_threads_per_block || threads > info.max_threads) {
    fault(threads > device.max_threads_per_block ? kInvalidConfiguration : kLaunchOutOfResources,
          "block of %llu threads: kernel %s allows at most %u",
          static_cast<unsigned long long>(threads), info.name.c_str(),
          std::min(device.max_threads_per_block, info.max_threads));
  }
  if (info.required_block.x &&
      (r.block.x != info.required_block.x || r.block.y != info.required_block.y ||
       r.block.z != info.required_block.z)) {
    fault(kInvalidConfiguration, "kernel %s needs blocks of %ux%ux%u threads", info.name.c_str(),
          info.required_block.x, info.required_block.y, info.required_block.z);
  }
  if (r.grid.x % r.cluster.x || r.grid.y % r.cluster.y || r.grid.z % r.cluster.z) {
    fault(kInvalidConfiguration, "grid %ux%ux%u is not a multiple of the cluster %ux%ux%u",
          r.grid.x, r.grid.y, r.grid.z, r.cluster.x, r.cluster.y, r.cluster.z);
  }
  if (r.cluster.count() > device.max_cluster_size) {
    fault(kInvalidClusterSize, "cluster of %llu CTAs: at most %u",
          static_cast<unsigned long long>(r.cluster.count()), device.max_cluster_size);
  }
  uint64_t shared = uint64_t{info.static_shared} + r.dynamic_shared;
  if (shared > device.max_shared_per_block) {
    fault(kInvalidValue, "%llu bytes of shared memory (%u static, %u dynamic): at most %u",
          static_cast<unsigned long long>(shared), info.static_shared, r.dynamic_shared,
          device.max_shared_per_block);
  }
  if (r.params.size() < info.param_bytes) {
    fault(kInvalidValue, "%zu bytes of parameters, kernel %s has %u", r.params.size(),
          info.name.c_str(), info.param_bytes);
  }
  grid.clusters[0] = r.grid.x / r.cluster.x;
  grid.clusters[1] = r.grid.y / r.cluster.y;
  grid.clusters[2] = r.grid.z / r.cluster.z;
  grid.cluster_ctas = static_cast<uint32_t>(r.cluster.count());
  grid.cluster_count = r.grid.count() / r.cluster.count();
  uint32_t align = grid.kernel->dynamic_align;
  grid.dynamic_shared_offset = kSharedReserved + (info.static_shared + align - 1) / align * align;
  grid.shared_bytes =
      std::max(kSharedReserved + info.static_shared, grid.dynamic_shared_offset + r.dynamic_shared);
  uint64_t ctas_per_sm =
      std::min<uint64_t>({32, 2048 / ((threads + kLanes - 1) / kLanes * kLanes),
                          (uint64_t{device.max_shared_per_block} + kSharedReserved) /
                              std::max(1u, grid.shared_bytes)});
  grid.max_resident = std::max<uint64_t>(
      1, std::max<uint64_t>(1, ctas_per_sm) * device.sm_count / grid.cluster_ctas);
}

/// The register file as every warp of the grid starts with it: junk, and the constants that do not
/// depend on the warp.
void fill_template(Grid& grid) {
  auto& kernel = *grid.kernel;
  auto& r = *grid.request;
  // NOTE: no number in fp16, bf16 or fp32: a sum that nobody began shows.
  constexpr uint16_t kJunk = 0x7fa5;
  grid.register_template.resize((kernel.register_bytes + 64 + 1) / 2 * 2);
  for (size_t at = 0; at < grid.register_template.size(); at += sizeof kJunk) {
    std::memcpy(&grid.register_template[at], &kJunk, sizeof kJunk);
  }
  for (auto& constant : kernel.constants) {
    uint64_t value = 0;
    switch (constant.kind) {
      case Constant::Kind::literal:
        value = constant.value;
        break;
      case Constant::Kind::param:
        value = reinterpret_cast<uint64_t>(grid.params) + constant.value;
        break;
      case Constant::Kind::symbol:
        if (constant.value >= r.symbol_addresses.size()) {
          fault(kInvalidValue, "module variable %s has no storage",
                r.program->symbols()[constant.value].name.c_str());
        }
        value = r.symbol_addresses[constant.value];
        break;
      default:
        continue;
    }
    value += static_cast<uint64_t>(constant.addend);
    uint8_t* at = grid.register_template.data() + constant.at;
    for (uint32_t l = 0; l < kLanes; ++l) {
      if (constant.bytes == 16) std::memset(at + l * 16, 0, 16);
      std::memcpy(at + l * constant.bytes, &value, std::min<unsigned>(constant.bytes, 8));
    }
  }
}

}  // namespace

struct Launch::State {
  LaunchRequest request;
  LaunchResult result;
  std::vector<uint8_t> parameters;
  std::vector<std::unique_ptr<Worker>> workers;
  Grid grid;
  std::atomic<uint64_t> progress{0};
  bool progressed = false, ended = false;

  void prepare();
  bool run();
  void end();
};

void Launch::State::prepare() {
  static const DeviceSpec default_device;
  if (!request.device) request.device = &default_device;
  if (!request.program) fault(kInvalidValue, "no program");
  grid.kernel = request.program->kernel(request.kernel);
  if (!grid.kernel) {
    fault(kInvalidDeviceFunction, "the program has no kernel %s", request.kernel.c_str());
  }
  if (const std::string& refusal = grid.kernel->info->refusal; !refusal.empty()) {
    throw Fault(kNotSupported, refusal);
  }
  configure(grid, request);
  grid.request = &request;
  // Tensor maps among the parameters need 64-byte alignment; 256 keeps every .align.
  parameters.resize(request.params.size() + 512);
  auto base = (reinterpret_cast<uintptr_t>(parameters.data()) + 255) / 256 * 256;
  std::copy(request.params.begin(), request.params.end(), reinterpret_cast<uint8_t*>(base));
  grid.params = reinterpret_cast<const uint8_t*>(base);
  grid.param_bytes = static_cast<uint32_t>(request.params.size());
  fill_template(grid);
  if (request.observer) request.observer->launch_begin(request, *grid.kernel->info);

  const uint64_t count =
      std::clamp<uint64_t>(request.options.threads, 1, std::max<uint64_t>(1, grid.cluster_count));
  grid.worker_count = static_cast<uint32_t>(count);
  for (uint64_t k = 0; k < count; ++k) {
    workers.push_back(std::make_unique<Worker>());
    workers.back()->grid = &grid;
    workers.back()->index = static_cast<uint32_t>(k);
    workers.back()->random.seed(request.options.seed * 0x9e3779b97f4a7c15u + k);
  }
}

bool Launch::State::run() {
  const uint64_t before = progress.load();
  grid.paused = false;
  grid.idle_workers = 0;
  for (auto& worker : workers) {
    worker->idle = false;
    worker->ranges = {};  // allocations may have come and gone
    for (auto& cluster : worker->resident) cluster->quiet_instructions = 0;
  }
  std::vector<std::thread> threads;
  for (size_t k = 1; k < workers.size(); ++k) {
    threads.emplace_back([&, k] { run_worker(*workers[k], progress); });
  }
  run_worker(*workers[0], progress);
  for (auto& thread : threads) thread.join();
  progressed = progress.load() != before;
  const bool left = std::any_of(workers.begin(), workers.end(),
                                [](const auto& worker) { return !worker->resident.empty(); });
  return grid.stop || !(left || grid.has_waiting_clusters());
}

void Launch::State::end() {
  ended = true;
  if (result.cuda_error == 0) {
    result.cuda_error = grid.error;
    result.report = grid.report;
  }
  for (auto& worker : workers) {
    worker->resident.clear();
    result.warp_instructions += worker->warp_instructions;
    result.lane_instructions += worker->lane_instructions;
    result.async_operations += worker->async_operations;
    result.mma_macs += worker->mma_macs;
    result.tma_bytes += worker->tma_bytes;
  }
  if (request.observer && grid.request) request.observer->launch_end(request, result);
}

Launch::Launch(const LaunchRequest& request) : state_(std::make_unique<State>()) {
  state_->request = request;
}

Launch::~Launch() = default;

bool Launch::run() {
  State& state = *state_;
  if (state.ended) return true;
  const auto start = std::chrono::steady_clock::now();
  bool ended = true;
  try {
    if (!state.grid.request) state.prepare();
    ended = state.run();
  } catch (const Fault& fault) {
    state.result.cuda_error = fault.cuda_error;
    state.result.report = fault.text;
  } catch (const std::exception& error) {
    state.result.cuda_error = kLaunchFailure;
    state.result.report = std::string("internal error: ") + error.what();
  }
  state.result.seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (ended) state.end();
  return ended;
}

bool Launch::progressed() const {
  return state_->progressed;
}

uint64_t Launch::instructions() const {
  uint64_t sum = 0;
  for (auto& worker : state_->workers) sum += worker->warp_instructions;
  return sum;
}

void Launch::give_up(const std::string& headline) {
  State& state = *state_;
  if (state.ended) return;
  state.result.cuda_error = kLaunchTimeout;
  state.result.report = headline;
  for (auto& worker : state.workers) {
    if (worker->resident.empty()) continue;
    state.result.report = stuck_report(*worker->resident.front(), headline);
    break;
  }
  state.end();
}

const LaunchResult& Launch::result() const {
  return state_->result;
}

LaunchResult launch(const LaunchRequest& request) {
  LaunchRequest to_the_end = request;
  to_the_end.options.pause_after = 0;
  Launch launch(to_the_end);
  launch.run();
  return launch.result();
}

}  // namespace vgpu::exec
