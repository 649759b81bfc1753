// SPDX-License-Identifier: Apache-2.0
// convoy bench --shards: a layer on one device and cut over several.
#include "bench_shards.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "convoy/info.hpp"
#include "text.hpp"

#ifdef CONVOY_WITH_CUDA
#include "cuda_check.hpp"
#endif

namespace convoy::cli {
namespace {

constexpr std::array kAxes = {ShardAxis::height, ShardAxis::width, ShardAxis::frames,
                              ShardAxis::batch};

void use_device([[maybe_unused]] Device device, [[maybe_unused]] int index) {
#ifdef CONVOY_WITH_CUDA
  if (device == Device::cuda) check_cuda(cudaSetDevice(index), "cudaSetDevice");
#endif
}

/// Where all ranks wait for each other; nobody does once one has failed.
class Gate {
 public:
  explicit Gate(int ranks) : ranks_(ranks) {}
  void arrive() {
    std::unique_lock lock(mutex_);
    const long turn = turn_;
    if (++arrived_ == ranks_) {
      arrived_ = 0;
      ++turn_;
      all_here_.notify_all();
    }
    all_here_.wait(lock, [&] { return turn_ != turn || failure_; });
    if (failure_) throw Error(Status::launch_failure, "another rank gave up");
  }
  /// Of the rank that failed first.
  void fail(std::exception_ptr cause) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(cause);
    all_here_.notify_all();
  }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  const int ranks_;
  int arrived_ = 0;
  long turn_ = 0;
  std::exception_ptr failure_;
  std::mutex mutex_;
  std::condition_variable all_here_;
};

/// A dense tensor [N, D, H, W, C] as blocks along the axis that is cut.
struct Blocks {
  std::size_t outer = 1, extent = 1, inner = 1;  ///< `inner` in bytes.

  Blocks(const std::array<std::int64_t, 5>& extents, ShardAxis axis, DType dtype) {
    const std::size_t at = axis == ShardAxis::batch    ? 0
                           : axis == ShardAxis::frames ? 1
                           : axis == ShardAxis::height ? 2
                                                       : 3;
    extent = std::size_t(extents[at]);
    inner = size_of(dtype);
    for (std::size_t i = 0; i < extents.size(); ++i) {
      if (i < at) outer *= std::size_t(extents[i]);
      if (i > at) inner *= std::size_t(extents[i]);
    }
  }
  std::size_t bytes(const ShardRange& range) const {
    return outer * std::size_t(range.stored()) * inner;
  }
};

/// What one rank holds of a whole tensor; margins are zero.
io::AlignedBytes part_of(const io::AlignedBytes& whole, const Blocks& b, const ShardRange& range) {
  io::AlignedBytes part(b.bytes(range));
  if (part.size() > 0) std::memset(part.data(), 0, part.size());
  const std::size_t own = std::size_t(range.own()) * b.inner;
  const std::size_t stored = std::size_t(range.stored()) * b.inner;
  for (std::size_t i = 0; i < b.outer && own > 0; ++i) {
    std::memcpy(part.data() + i * stored + std::size_t(range.margin_begin) * b.inner,
                whole.data() + i * b.extent * b.inner + std::size_t(range.begin) * b.inner, own);
  }
  return part;
}

/// What the ranks share.
struct Bench {
  Bench(const Layer& given, const ShardBenchOptions& wanted, Device where)
      : layer(given),
        options(wanted),
        device(where),
        gate(wanted.ranks),
        spent(std::size_t(wanted.ranks)) {}

  const Layer& layer;
  const ShardBenchOptions& options;
  const Device device;
  Gate gate;
  std::vector<double> spent;  ///< Microseconds of each rank's last run.
  int repeats = 1;            ///< Runs of one sample.
  bool more = true;
  std::vector<std::size_t> rank_bytes, sent_bytes;
  std::vector<char> has_interior;
  ShardBenchRow row;
};

/// One rank's part: plans, memory, runs.
class Rank {
 public:
  Rank(Bench& bench, const Communicator& communicator)
      : bench_(bench), communicator_(communicator), plan_(make_plan(ShardOverlap::none)) {
    const Layer& layer = bench.layer;
    const ShardAxis axis = bench.options.axis;
    const ShardedPlan automatic = make_plan(ShardOverlap::automatic);
    if (automatic.overlap() == ShardOverlap::interior) interior_ = automatic;
    const ConvGeometry g = geometry_of(layer.problem);
    const DType dtype = layer.options.dtype, out_dtype = layer.options.output_dtype.value_or(dtype);
    const ShardLayout& mine = plan_.layout();
    const Blocks in({g.batch, g.in[0], g.in[1], g.in[2], g.in_channels}, axis, dtype);
    const Blocks out({g.batch, g.out[0], g.out[1], g.out[2], g.out_channels}, axis, out_dtype);
    activation_ = uploaded(part_of(layer.activation.bytes, in, mine.input));
    DeviceMemory filter(bench.device, layer.filter.bytes.size());
    filter.upload(layer.filter.bytes.data(), layer.filter.bytes.size());
    packed_ = plan_.pack_filter(filter.data(), layer.filter_layout);
    held_ += packed_.bytes();
    output_ = allocated(out.bytes(mine.output));
    const std::size_t workspace = std::max(
        plan_.workspace_bytes(), interior_ ? interior_->workspace_bytes() : std::size_t{0});
    workspace_ = allocated(workspace);
    arguments_ = {.output = TensorView(output_.data()),
                  .activation = activation_.data(),
                  .filter = FilterRef(packed_),
                  .epilogue = layer.epilogue};
    arguments_.epilogue.bias_dtype = DType::fp32;
    if (layer.bias) {
      bias_ = uploaded(layer.bias->bytes);
      arguments_.epilogue.bias = bias_.data();
    }
    if (layer.residual) {
      residual_ = uploaded(part_of(layer.residual->bytes, out, mine.output));
      arguments_.epilogue.residual = residual_.data();
    }
    const bool frames = axis == ShardAxis::frames;
    if (layer.cache && (!frames || communicator.rank() == 0)) {
      const Blocks cached({g.batch, g.cached_frames, g.in[1], g.in[2], g.in_channels}, axis, dtype);
      cache_ = frames ? uploaded(layer.cache->bytes)
                      : uploaded(part_of(layer.cache->bytes, cached, mine.input));
      arguments_.cache = ConstTensorView(cache_.data());
    }
    if (workspace > 0) arguments_.workspace = workspace_.data();
    if (layer.cache && !frames) plan_.exchange_cache(cache_.data());
    gathered_ = {.data = output_.data(), .outer = std::int64_t(out.outer), .inner = out.inner};
    for (const ShardLayout& layout : plan_.layouts()) gathered_.ranges.push_back(layout.output);
    const auto at = std::size_t(communicator.rank());
    bench.rank_bytes[at] = held_;
    bench.sent_bytes[at] = plan_.sent_bytes();
    bench.has_interior[at] = interior_ ? 1 : 0;
  }

  void run_plain() const { plan_.run(arguments_); }
  void run_interior() const { (interior_ ? *interior_ : plan_).run(arguments_); }
  void run_silent() const {
    ShardedRunArguments there = arguments_;
    there.halos_filled = true;
    plan_.run(there);
  }
  /// The whole output, on every rank.
  std::vector<char> whole(std::size_t bytes) const {
    const DeviceMemory memory(bench_.device, bytes);
    gather_shards(communicator_, gathered_, memory.data());
    communicator_.synchronize();
    std::vector<char> found(bytes);
    memory.download(found.data(), bytes);
    return found;
  }
  const ShardedPlan& plan() const { return plan_; }
  std::size_t filter_bytes() const { return packed_.bytes(); }

 private:
  Bench& bench_;
  const Communicator& communicator_;
  std::size_t held_ = 0;
  ShardedPlan plan_;
  std::optional<ShardedPlan> interior_;
  DeviceMemory activation_, output_, bias_, residual_, cache_, workspace_;
  PackedFilter packed_;
  ShardedRunArguments arguments_;
  ShardedTensor gathered_;

  ShardedPlan make_plan(ShardOverlap overlap) const {
    PlanOptions options = bench_.layer.options;
    options.packed_filter = true;
    options.epilogue = epilogue_of(bench_.layer).kind();
    return plan_shard(bench_.layer.problem, options, communicator_,
                      {.count = bench_.options.ranks, .axis = bench_.options.axis}, overlap);
  }
  DeviceMemory allocated(std::size_t bytes) {
    held_ += bytes;
    return {bench_.device, bytes};
  }
  DeviceMemory uploaded(const io::AlignedBytes& bytes) {
    DeviceMemory memory(bench_.device, bytes.size());
    memory.upload(bytes.data(), bytes.size());
    held_ += bytes.size();
    return memory;
  }
};

/// The slowest rank's time of `run`; on every rank.
double together(Bench& bench, const Communicator& communicator, const std::function<void()>& run) {
  bench.gate.arrive();
  const auto begin = std::chrono::steady_clock::now();
  if (run) {
    for (int i = 0; i < bench.repeats; ++i) run();
    communicator.synchronize();
  }
  const auto end = std::chrono::steady_clock::now();
  bench.spent[std::size_t(communicator.rank())] =
      std::chrono::duration<double, std::micro>(end - begin).count() / bench.repeats;
  bench.gate.arrive();
  return *std::max_element(bench.spent.begin(), bench.spent.end());
}

void run_rank(Bench& bench, const Communicator& communicator) {
  const bool first = communicator.rank() == 0;
  const Layer& alone = bench.layer;
  std::optional<PreparedLayer> one;
  if (first) one.emplace(alone);
  const Rank rank(bench, communicator);
  std::function<void()> run_one;
  if (first) run_one = [&] { one->enqueue(nullptr); };
  bench.gate.arrive();
  const bool interior = std::any_of(bench.has_interior.begin(), bench.has_interior.end(),
                                    [](char has) { return has != 0; });

  // Once to warm up; on a GPU a sample is of some milliseconds, that launches cost nothing.
  together(bench, communicator, run_one);
  const double once = together(bench, communicator, run_one);
  if (first && bench.device == Device::cuda) {
    bench.repeats = int(std::clamp(4000.0 / std::max(once, 1.0), 1.0, 100.0));
  }
  const std::array<std::function<void()>, 4> ways = {
      run_one, [&] { rank.run_plain(); },
      interior ? std::function<void()>([&] { rank.run_interior(); }) : nullptr,
      [&] { rank.run_silent(); }};
  std::array<std::vector<double>, 4> times;
  for (std::size_t i = 1; i < ways.size(); ++i) together(bench, communicator, ways[i]);
  double total = 0;
  while (bench.more) {
    for (std::size_t i = 0; i < ways.size(); ++i) {
      if (i == 2 && !interior) continue;
      times[i].push_back(together(bench, communicator, ways[i]));
    }
    total += times[1].back() * bench.repeats;
    bench.gate.arrive();
    if (first) {
      const int runs = int(times[1].size());
      bench.more = bench.options.runs > 0
                       ? runs < bench.options.runs
                       : runs < 5 || (total < 1e6 * bench.options.seconds && runs < 10000);
    }
    bench.gate.arrive();
  }
  rank.run_plain();
  communicator.synchronize();
  std::vector<char> expected;
  if (first) {
    one->enqueue(nullptr);
    synchronize(bench.device);
    const io::HostTensor output = one->download_output();
    expected.assign(reinterpret_cast<const char*>(output.bytes.data()),
                    reinterpret_cast<const char*>(output.bytes.data()) + output.bytes.size());
  }
  const ConvGeometry g = geometry_of(bench.layer.problem);
  const std::vector<char> found =
      rank.whole(std::size_t(g.output_elements()) *
                 size_of(bench.layer.options.output_dtype.value_or(bench.layer.options.dtype)));
  if (!first) return;
  ShardBenchRow& row = bench.row;
  row.same_bits = found == expected;
  row.problem = one->info().problem;
  row.kernel = rank.plan().plan().info().kernel;
  row.backend = one->info().backend;
  row.transport = communicator.transport();
  row.runs = int(times[1].size()) * bench.repeats;
  row.one_us = summarise(times[0]).median_us;
  row.us = summarise(times[1]).median_us;
  row.interior_us = summarise(times[2]).median_us;
  row.silent_us = summarise(times[3]).median_us;
  row.sent_bytes = *std::max_element(bench.sent_bytes.begin(), bench.sent_bytes.end());
  row.rank_bytes = *std::max_element(bench.rank_bytes.begin(), bench.rank_bytes.end());
  row.one_bytes = expected.size() + rank.filter_bytes() + plan_layer(alone).workspace_bytes();
  row.one_bytes += alone.activation.bytes.size();
  for (const auto* tensor : {&alone.bias, &alone.residual, &alone.cache}) {
    if (*tensor) row.one_bytes += (*tensor)->bytes.size();
  }
}

}  // namespace

ShardAxis parse_shard_axis(const std::string& word) {
  for (const ShardAxis axis : kAxes) {
    if (word == to_string(axis)) return axis;
  }
  throw_invalid("--axis = ", word, " is not legal; legal: height, width, frames, batch");
}

ShardBenchRow bench_shards(Layer& layer, const ShardBenchOptions& options) {
  const int devices = cuda_device_count();
  const bool on_cpu = layer.options.device == Device::cpu ||
                      (layer.options.device == Device::automatic && devices == 0);
  if (!on_cpu && options.ranks > devices) {
    throw_invalid("--shards = ", options.ranks, " is more than the ", devices,
                  " CUDA devices here; legal: ", devices > 0 ? text("1 to ", devices, ", or ") : "",
                  "--device cpu");
  }
  // A cut that is not legal is refused before there are ranks.
  shard_layouts(layer.problem, {.count = options.ranks, .axis = options.axis});
  layer.options.device = on_cpu ? Device::cpu : Device::cuda;
  Bench bench(layer, options, on_cpu ? Device::cpu : Device::cuda);
  const auto ranks = std::size_t(options.ranks);
  bench.rank_bytes.resize(ranks);
  bench.sent_bytes.resize(ranks);
  bench.has_interior.resize(ranks);
  std::vector<Communicator> made;
  NcclId id{};
  if (on_cpu) {
    // NOTE: a rank that fails says so; one that takes long is no failure.
    made = Communicator::in_process(options.ranks, std::chrono::hours(24));
  } else {
    id = Communicator::nccl_id();
  }
  const auto work = [&](int rank) {
    std::optional<Communicator> mine;
    try {
      bench.gate.arrive();  // Until there is a thread for each of them.
      use_device(bench.device, rank);
      mine = on_cpu ? made[std::size_t(rank)] : Communicator::nccl(id, rank, options.ranks);
      run_rank(bench, *mine);
    } catch (const std::exception& error) {
      bench.gate.fail(std::current_exception());
      if (mine) mine->abort(error.what());
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(ranks);
  try {
    for (int rank = 0; rank < options.ranks; ++rank) threads.emplace_back(work, rank);
  } catch (const std::exception& error) {  // Those that are there wait at the gate.
    bench.gate.fail(std::make_exception_ptr(
        Error(Status::out_of_memory,
              text("--shards = ", options.ranks, ": no thread for rank ", threads.size(), " (",
                   error.what(), "); nearest: ", std::max<std::size_t>(threads.size(), 1)))));
  }
  for (std::thread& thread : threads) thread.join();
  bench.gate.rethrow();
  return bench.row;
}

void print_shard_header(bool csv) {
  if (csv) {
    std::printf(
        "problem,backend,transport,kernel,ranks,axis,runs,one_us,us,interior_us,silent_us,"
        "exposed_us,speed_up,efficiency,sent_bytes,rank_bytes,one_bytes,same_bits\n");
    return;
  }
  std::printf("%-44s %-24s %10s %10s %10s %9s %8s %6s %10s %7s  %s\n", "problem", "kernel",
              "one us", "cut us", "interior", "exposed", "speed-up", "eff.", "sent kB", "memory",
              "bits");
}

void print_shard_row(const ShardBenchRow& row, const ShardBenchOptions& options, bool csv) {
  const double exposed = std::max(row.best_us() - row.silent_us, 0.0);
  const double efficiency = row.speed_up() / options.ranks;
  if (csv) {
    std::printf("%s,\"%s\",%s,%s,%d,%s,%d,%.3f,%.3f,%.3f,%.3f,%.3f,%.4f,%.4f,%zu,%zu,%zu,%s\n",
                row.problem.c_str(), row.backend.c_str(), row.transport.c_str(), row.kernel.c_str(),
                options.ranks, to_string(options.axis), row.runs, row.one_us, row.us,
                row.interior_us, row.silent_us, exposed, row.speed_up(), efficiency, row.sent_bytes,
                row.rank_bytes, row.one_bytes, row.same_bits ? "yes" : "no");
  } else {
    char interior[24] = "-";
    if (row.interior_us > 0) std::snprintf(interior, sizeof(interior), "%.1f", row.interior_us);
    std::printf("%-44s %-24s %10.1f %10.1f %10s %9.1f %8.2f %5.0f%% %10.1f %6.0f%%  %s\n",
                row.problem.c_str(), row.kernel.c_str(), row.one_us, row.us, interior, exposed,
                row.speed_up(), 100 * efficiency, double(row.sent_bytes) / 1e3,
                100.0 * double(row.rank_bytes) / double(row.one_bytes),
                row.same_bits ? "same" : "differ");
  }
  std::fflush(stdout);
}

}  // namespace convoy::cli
