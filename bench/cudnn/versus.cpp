// SPDX-License-Identifier: Apache-2.0
#include "versus.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <optional>

#include "ceilings.hpp"
#include "convoy/info.hpp"
#include "convoy/plan.hpp"
#include "convoy/tuning.hpp"
#include "cuda_check.hpp"
#include "cudnn_convolution.hpp"
#include "cutlass_convolution.hpp"
#include "device_fill.hpp"
#include "device_memory.hpp"
#include "graph_kernels.hpp"
#include "io/atomic_file.hpp"
#include "measure.hpp"
#include "text.hpp"

namespace convoy::bench {
namespace {

using cli::DeviceMemory;
using cli::text;

constexpr std::size_t kCudnnWorkspace = std::size_t{4} << 30;
/// Outputs of two correct kernels differ by a rounding of the 16-bit output here and there.
constexpr double kAgreement = 5e-3;

struct Row {
  std::string set, name, problem, kernel, peer_kernels;
  DType dtype = DType::bf16;
  std::int64_t count = 1;
  double convoy_us = 0, peer_us = 0, noise = 0, tflops = 0, pct_ceiling = 0, difference = 0;
  std::string tuning_key;
  int peer_plans = 0;
  double ratio() const { return peer_us / convoy_us; }
};

// The tensors of one problem on the device. Cached frames and new ones are one tensor, as cuDNN
// wants them; Convoy gets two pointers into it.
struct Tensors {
  Tensors(const ConvGeometry& g, DType dtype) {
    const std::int64_t front = g.pad_begin[0];
    frame_bytes = g.in[1] * g.in[2] * g.in_channels * std::int64_t(size_of(dtype));
    const std::int64_t frames = g.batch * (front + g.seen()[0]);
    activation = DeviceMemory(Device::cuda, std::size_t(frames * frame_bytes));
    filter = DeviceMemory(Device::cuda, std::size_t(g.filter_elements()) * size_of(dtype));
    convoy_output = DeviceMemory(Device::cuda, std::size_t(g.output_elements()) * size_of(dtype));
    peer_output = DeviceMemory(Device::cuda, std::size_t(g.output_elements()) * size_of(dtype));
    const std::int64_t elements = frames * frame_bytes / std::int64_t(size_of(dtype));
    fill_random(activation.data(), elements, dtype, 1, 1.0f, nullptr);
    const float scale = std::sqrt(3.0f / float(g.gemm_k()));
    fill_random(filter.data(), g.filter_elements(), dtype, 2, scale, nullptr);
    // Frames of padding in front, for the pre-padded form of the problem (one image).
    cli::check_cuda(cudaMemset(activation.data(), 0, std::size_t(front * frame_bytes)),
                    "cudaMemset");
    seen = static_cast<char*>(activation.data()) + front * frame_bytes;
    cli::check_cuda(cudaDeviceSynchronize(), "fill");
  }

  DeviceMemory activation, filter, convoy_output, peer_output;
  char* seen = nullptr;  // First cached frame, or first frame.
  std::int64_t frame_bytes = 0;
};

/// The GPU, taken from other processes that name the same file, while the object lives.
class Turn {
 public:
  explicit Turn(const std::string& path) {
    if (path.empty()) return;
    file_ = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
    if (file_ < 0 || flock(file_, LOCK_EX) != 0) {
      if (file_ >= 0) close(file_);
      throw Error(Status::io_error, text("--lock ", path, " cannot be locked"));
    }
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    if (file_ >= 0) close(file_);
  }

 private:
  int file_ = -1;
};

/// How many sets of tensors a chain needs so that each run finds its own out of the cache.
// NOTE: of twice L2's size a quarter was still there when its turn came again: L2 does not replace
// the oldest first.
int tensor_sets(const ConvGeometry& g, DType dtype, int chain) {
  int l2_bytes = 0;
  cli::check_cuda(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, 0),
                  "cudaDevAttrL2CacheSize");
  const double elements = double(g.activation_elements()) + double(g.cache_elements()) +
                          double(g.filter_elements()) + double(g.output_elements());
  const double sets = std::ceil(8.0 * l2_bytes / (elements * double(size_of(dtype))));
  return int(std::clamp(sets, 1.0, double(chain)));
}

/// `runs` calls of `enqueue(run, stream)`, as one CUDA graph.
class Chain {
 public:
  template <typename Enqueue>
  Chain(int runs, const Enqueue& enqueue) {
    cudaStream_t stream = nullptr;
    cli::check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    cli::check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    std::exception_ptr problem;
    try {
      for (int run = 0; run < runs; ++run) enqueue(run, stream);
    } catch (...) {
      problem = std::current_exception();
    }
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    cudaStreamDestroy(stream);
    if (problem) std::rethrow_exception(problem);
    cli::check_cuda(ended, "capture");
    const cudaError_t made = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    cli::check_cuda(made, "cudaGraphInstantiate");
  }
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;
  ~Chain() { cudaGraphExecDestroy(graph_); }
  void launch(cudaStream_t stream) const {
    cli::check_cuda(cudaGraphLaunch(graph_, stream), "cudaGraphLaunch");
  }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

// ---- Convoy ---------------------------------------------------------------------------------

PlanOptions plan_options(const VersusOptions& options, const std::string& kernel = {}) {
  return {.dtype = options.dtype,
          .device = Device::cuda,
          .packed_filter = true,
          .allow_tf32 = options.allow_tf32,
          .kernel = kernel};
}

struct ConvoyRun {
  Plan plan;
  DeviceMemory workspace;
  std::vector<RunArguments> arguments;  // of each set of tensors

  ConvoyRun(const ProblemShape& problem, const ConvGeometry& g, const PlanOptions& options,
            const std::vector<Tensors>& sets)
      : plan(convoy::plan(problem, options)), workspace(Device::cuda, plan.workspace_bytes()) {
    for (const Tensors& tensors : sets) {
      RunArguments run;
      run.output = tensors.convoy_output.data();
      run.filter = plan.pack_filter(tensors.filter.data(),
                                    g.rank == 2 ? FilterLayout::krsc : FilterLayout::ktrsc);
      run.activation = ConstTensorView(tensors.seen + g.cached_frames * tensors.frame_bytes);
      if (g.cached_frames > 0) run.cache = ConstTensorView(tensors.seen);
      run.workspace = plan.workspace_bytes() > 0 ? workspace.data() : nullptr;
      arguments.push_back(std::move(run));
    }
  }
  void run(int set, cudaStream_t stream) const { plan.run(arguments[std::size_t(set)], stream); }
};

std::vector<std::string> kernels_to_time(const ProblemShape& problem,
                                         const VersusOptions& options) {
  if (!options.all_kernels) return {options.kernel};
  std::vector<std::string> names;
  const std::vector<Candidate> list = candidates(problem, plan_options(options));
  // Candidates come best first by the model; far behind the first none has a chance.
  double first_us = 0;
  for (const Candidate& candidate : list) {
    if (!candidate.reason.empty()) break;
    const bool asked = std::ranges::any_of(options.families, [&](const std::string& family) {
      return candidate.kernel.starts_with(family);
    });
    if (!asked && !options.families.empty()) continue;
    if (names.empty()) first_us = candidate.estimated_us;
    if (candidate.estimated_us > 3 * first_us) break;
    names.push_back(candidate.kernel);
  }
  if (names.empty()) throw Error(Status::unsupported, "none of the kernels takes it");
  return names;
}

// ---- The peer ---------------------------------------------------------------------------------

// One of the peer's ways to run a layer, and which form of the input it reads.
struct PeerRun {
  std::function<void(const void* activation, const void* filter, void* output, void* workspace,
                     cudaStream_t stream)>
      plan;
  bool padded = false;
  std::string name = {};  // Empty: its kernels tell.

  void run(const Tensors& tensors, const DeviceMemory& workspace, cudaStream_t stream) const {
    plan(padded ? tensors.activation.data() : tensors.seen, tensors.filter.data(),
         tensors.peer_output.data(), workspace.data(), stream);
  }
};

// Every plan of the problem as it stands and, for asymmetric padding along depth, of the problem
// whose input was padded beforehand (that copy is not timed).
std::vector<PeerRun> all_cudnn_runs(const ConvGeometry& g, DType dtype, bool allow_tf32) {
  std::string reason;
  std::vector<PeerRun> runs;
  const auto add = [&](const ConvGeometry& form, bool padded) {
    for (CudnnPlan& plan : cudnn_plans(form, dtype, allow_tf32, kCudnnWorkspace, &reason)) {
      runs.push_back({[plan = std::move(plan)](const void* activation, const void* filter,
                                               void* output, void* workspace, cudaStream_t stream) {
                        plan.run(activation, filter, output, workspace, stream);
                      },
                      padded});
    }
  };
  add(g, false);
  if (g.pad_begin[0] != g.pad_end[0] && g.pad_end[0] == 0 && g.batch == 1) {
    ConvGeometry padded = g;
    padded.in[0] += padded.pad_begin[0];
    padded.pad_begin[0] = 0;
    add(padded, true);
  }
  if (runs.empty()) throw Error(Status::unsupported, reason);
  return runs;
}

std::vector<PeerRun> all_cutlass_runs(const ConvGeometry& g, DType dtype) {
  std::vector<PeerRun> runs;
  for (CutlassConvolution& kernel : cutlass_convolutions(g, dtype)) {
    runs.push_back({[run = std::move(kernel.run)](const void* activation, const void* filter,
                                                  void* output, void*, cudaStream_t stream) {
                      run(activation, filter, output, stream);
                    },
                    false, std::move(kernel.name)});
  }
  if (runs.empty()) throw Error(Status::unsupported, "none of CUTLASS's kernels takes it");
  return runs;
}

// Those of the runs whose kernels have `part` in their names, but for what cuDNN does before and
// after; a run that cannot be captured is not one of them.
std::vector<PeerRun> of_engines(std::vector<PeerRun> runs, const std::string& part,
                                const Tensors& tensors, const DeviceMemory& workspace) {
  if (part.empty()) return runs;
  const auto is_of = [&](const PeerRun& run) {
    try {
      bool found = false;
      for (const KernelLaunch& kernel :
           kernel_launches([&](cudaStream_t stream) { run.run(tensors, workspace, stream); })) {
        const std::string& name = kernel.name;
        found = found || name.find(part) != std::string::npos;
        // NOTE: an engine of another generation may call on a helper of an older one.
        for (const char* newer : {"sm90", "sm100", "sm120"}) {
          const bool asked = part.find(newer) != std::string::npos;
          if (!asked && name.find(newer) != std::string::npos) return false;
        }
      }
      return found;
    } catch (const Error&) {
      (void)cudaGetLastError();
      return false;
    }
  };
  std::erase_if(runs, [&](const PeerRun& run) { return !is_of(run); });
  if (runs.empty()) throw Error(Status::unsupported, text("cuDNN has no plan of ", part));
  return runs;
}

// The kernels of a run with their grids, "sm90_a(8x4x1) sm90_b(132x1x1)"; empty where it cannot be
// captured.
std::string describe(const PeerRun& run, const Tensors& tensors, const DeviceMemory& workspace) {
  if (!run.name.empty()) return run.name;
  std::string all;
  try {
    for (const KernelLaunch& kernel :
         kernel_launches([&](cudaStream_t stream) { run.run(tensors, workspace, stream); })) {
      all += text(all.empty() ? "" : " ", kernel.name, "(", kernel.grid.x, "x", kernel.grid.y, "x",
                  kernel.grid.z, ")");
    }
  } catch (const Error&) {
    (void)cudaGetLastError();
    return {};
  }
  return all;
}

// Loads the runs' kernels without running them: captures each. What cannot be captured is loaded
// by its first run.
void load_kernels(const std::vector<PeerRun>& runs, const Tensors& tensors,
                  const DeviceMemory& workspace) {
  for (const PeerRun& run : runs) {
    try {
      const Chain once(1, [&](int, cudaStream_t stream) { run.run(tensors, workspace, stream); });
    } catch (const Error&) {
      (void)cudaGetLastError();
    }
  }
}

double quick_time_us(const PeerRun& run, const Tensors& tensors, const DeviceMemory& workspace) {
  static const auto events = [] {
    std::pair<cudaEvent_t, cudaEvent_t> pair;
    cli::check_cuda(cudaEventCreate(&pair.first), "cudaEventCreate");
    cli::check_cuda(cudaEventCreate(&pair.second), "cudaEventCreate");
    return pair;
  }();
  double best = 1e30;
  for (int i = 0; i < 4; ++i) {
    cudaEventRecord(events.first);
    run.run(tensors, workspace, nullptr);
    cudaEventRecord(events.second);
    cli::check_cuda(cudaEventSynchronize(events.second), "the peer");
    float milliseconds = 0;
    cli::check_cuda(cudaEventElapsedTime(&milliseconds, events.first, events.second), "event");
    if (i > 0) best = std::min(best, 1e3 * double(milliseconds));
    if (i > 0 && best > 20e3) break;
  }
  return best;
}

// The two fastest plans of a quick look, to be timed with care.
std::vector<PeerRun> best_peer_runs(const std::vector<PeerRun>& runs, const Tensors& tensors,
                                    const DeviceMemory& workspace) {
  std::vector<std::pair<double, std::size_t>> order;
  std::string failure;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    double time = 1e30;
    try {
      time = quick_time_us(runs[i], tensors, workspace);
    } catch (const Error& error) {  // A plan that cuDNN built but cannot run.
      (void)cudaGetLastError();
      failure = error.what();
    }
    order.emplace_back(time, i);
  }
  std::sort(order.begin(), order.end());
  std::vector<PeerRun> best;
  for (std::size_t i = 0; i < std::min<std::size_t>(2, order.size()); ++i) {
    if (order[i].first < 1e30) best.push_back(runs[order[i].second]);
  }
  if (best.empty()) {
    throw Error(Status::launch_failure,
                text("none of the peer's ", runs.size(), " plans runs: ", failure));
  }
  return best;
}

// ---- One shape ------------------------------------------------------------------------------

Row compare(const std::string& set, const cli::ShapeCase& shape, VersusOptions options,
            const Ceilings& ceilings, const DeviceMemory& workspace) {
  options.dtype = shape.dtype.value_or(options.dtype);
  const ConvGeometry g = geometry_of(shape.problem);
  if (g.batch > 1 && g.cached_frames > 0) {
    throw Error(Status::unsupported, "the comparison takes cached frames of one image only");
  }
  std::vector<Tensors> sets;
  for (int i = tensor_sets(g, options.dtype, options.chain); i > 0; --i) {
    sets.emplace_back(g, options.dtype);
  }
  const Tensors& tensors = sets.front();

  std::vector<std::unique_ptr<ConvoyRun>> convoy_runs;
  for (const std::string& kernel : kernels_to_time(shape.problem, options)) {
    convoy_runs.push_back(
        std::make_unique<ConvoyRun>(shape.problem, g, plan_options(options, kernel), sets));
  }
  const std::vector<PeerRun> all =
      options.cutlass ? all_cutlass_runs(g, options.dtype)
                      : of_engines(all_cudnn_runs(g, options.dtype, options.allow_tf32),
                                   options.engines, tensors, workspace);
  if (!options.lock_path.empty()) load_kernels(all, tensors, workspace);
  const Turn turn(options.lock_path);
  const std::vector<PeerRun> best = best_peer_runs(all, tensors, workspace);

  std::vector<cli::Variant> variants;
  const auto add = [&](const std::string& name, auto run) {  // run(set, stream)
    if (options.chain == 1) {
      variants.push_back({name, [run](cudaStream_t stream) { run(0, stream); }});
      return;
    }
    const auto chain = std::make_shared<Chain>(
        options.chain, [&](int i, cudaStream_t stream) { run(i % int(sets.size()), stream); });
    variants.push_back({name, [chain](cudaStream_t stream) { chain->launch(stream); }});
  };
  for (const auto& run : convoy_runs) {
    add(run->plan.info().kernel, [&run](int set, cudaStream_t stream) { run->run(set, stream); });
  }
  for (const PeerRun& run : best) {
    add("peer",
        [&](int set, cudaStream_t stream) { run.run(sets[std::size_t(set)], workspace, stream); });
  }
  auto times = cli::measure(variants, {.device = Device::cuda,
                                       .seconds = options.seconds,
                                       .min_runs = options.min_runs,
                                       .max_runs = 500});
  for (cli::Measurement& time : times) time.median_us /= options.chain;

  Row row;
  row.set = set;
  row.name = shape.name;
  row.problem = to_string(shape.problem);
  row.dtype = options.dtype;
  row.count = shape.count;
  row.peer_plans = int(all.size());
  std::size_t fastest = 0;
  for (std::size_t i = 0; i < convoy_runs.size(); ++i) {
    if (times[i].median_us < times[fastest].median_us) fastest = i;
    if (options.all_kernels) {
      std::printf("    %-40s %9.1f us\n", variants[i].name.c_str(), times[i].median_us);
    }
  }
  row.kernel = variants[fastest].name;
  row.convoy_us = times[fastest].median_us;
  row.noise = times[fastest].noise;
  std::size_t fastest_peer = 0;
  for (std::size_t i = 0; i < best.size(); ++i) {
    const std::size_t first = convoy_runs.size();
    if (times[first + i].median_us < times[first + fastest_peer].median_us) fastest_peer = i;
  }
  row.peer_us = times[convoy_runs.size() + fastest_peer].median_us;
  row.peer_kernels = describe(best[fastest_peer], tensors, workspace);
  const PlanInfo& info = convoy_runs[fastest]->plan.info();
  row.tuning_key = tuning_key(shape.problem, plan_options(options), cuda_device(-1).value());
  row.tflops = info.flops / row.convoy_us * 1e-6;
  const double floor_us =
      std::max(info.flops / ceilings.gemm_tflops * 1e-6, info.min_bytes / ceilings.copy_gbs * 1e-3);
  row.pct_ceiling = 100.0 * floor_us / row.convoy_us;

  // Do both compute the same?
  convoy_runs[fastest]->run(0, nullptr);
  best.front().run(tensors, workspace, nullptr);
  row.difference = relative_difference(tensors.convoy_output.data(), tensors.peer_output.data(),
                                       g.output_elements(), options.dtype);
  return row;
}

// What the peer is called in a table and in a file's columns.
struct Peer {
  std::string name, column, version;
};

Peer peer_of(const VersusOptions& options) {
  if (options.cutlass) return {"CUTLASS", "cutlass", cutlass_version()};
  return {"cuDNN", "cudnn", cudnn_version()};
}

std::string to_csv(const std::vector<Row>& rows, const Peer& peer) {
  const std::string& column = peer.column;
  std::string csv =
      text("set,name,problem,count,convoy_us,", column,
           "_us,ratio,tflops,pct_ceiling,kernel,dtype,", column, ",", column, "_kernels\n");
  char line[512];
  for (const Row& row : rows) {
    std::snprintf(line, sizeof line, "%s,%s,%s,%lld,%.2f,%.2f,%.3f,%.1f,%.1f,%s,%s,%s,",
                  row.set.c_str(), row.name.c_str(), row.problem.c_str(),
                  static_cast<long long>(row.count), row.convoy_us, row.peer_us, row.ratio(),
                  row.tflops, row.pct_ceiling, row.kernel.c_str(), to_string(row.dtype),
                  peer.version.c_str());
    csv += line + row.peer_kernels + '\n';
  }
  return csv;
}

std::string to_tuning(const std::vector<Row>& rows) {
  TuningDatabase database;
  for (const Row& row : rows) database.set(row.tuning_key, {row.kernel, row.convoy_us});
  return database.to_text();
}

void print_summary(std::FILE* table, const std::string& set, const std::vector<Row>& rows,
                   const Peer& peer) {
  double logs = 0, convoy_total = 0, peer_total = 0, worst = 1e30;
  int count = 0;
  for (const Row& row : rows) {
    if (row.set != set) continue;
    ++count;
    logs += std::log(row.ratio());
    convoy_total += double(row.count) * row.convoy_us;
    peer_total += double(row.count) * row.peer_us;
    worst = std::min(worst, row.ratio());
  }
  if (count == 0) return;
  std::fprintf(
      table, "%s: %d shapes, geomean x%.3f, worst x%.3f; by count: %.2f ms, %s %.2f ms, x%.3f\n\n",
      set.c_str(), count, std::exp(logs / count), worst, convoy_total / 1e3, peer.name.c_str(),
      peer_total / 1e3, peer_total / convoy_total);
}

}  // namespace

int compare_with_cudnn(const std::vector<VersusSet>& sets, const VersusOptions& options) {
  const bool csv_to_stdout = options.csv_path == "-";
  std::FILE* const table = csv_to_stdout ? stderr : stdout;
  const Ceilings ceilings = [&] {
    const Turn turn(options.lock_path);
    return measure_ceilings();
  }();
  const Peer peer = peer_of(options);
  std::fprintf(table, "%s %s; ceilings: GEMM %.0f TFLOP/s, copy %.0f GB/s\n", peer.name.c_str(),
               peer.version.c_str(), ceilings.gemm_tflops, ceilings.copy_gbs);
  if (options.chain > 1) {
    std::fprintf(table, "times are a run's share of a CUDA graph of %d runs\n", options.chain);
  }
  const DeviceMemory workspace(Device::cuda, kCudnnWorkspace);
  std::vector<Row> rows;
  int different = 0;
  const auto begin = std::chrono::steady_clock::now();
  const auto is_over = [&] {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    return spent.count() > options.budget_s;
  };
  for (const VersusSet& set : sets) {
    std::fprintf(table, "%-48s %9s %6s %8s %6s %9s %7s %9s  %s\n", set.name.c_str(), "us", "noise",
                 "TFLOP/s", "% ceil", (peer.name + " us").c_str(), ("x " + peer.name).c_str(),
                 "diff", "kernel");
    for (std::size_t i = std::size_t(options.part); i < set.cases.size();
         i += std::size_t(options.parts)) {
      const cli::ShapeCase& shape = set.cases[i];
      if (is_over()) break;
      try {
        const Row row = compare(set.name, shape, options, ceilings, workspace);
        const bool agrees = row.difference <= kAgreement;
        std::fprintf(table,
                     "%-48s %9.1f %5.1f%% %8.1f %6.1f %9.1f %7.3f %9.1e%s %s (of %d plans)\n",
                     row.problem.c_str(), row.convoy_us, 100 * row.noise, row.tflops,
                     row.pct_ceiling, row.peer_us, row.ratio(), row.difference, agrees ? " " : "!",
                     row.kernel.c_str(), row.peer_plans);
        different += agrees ? 0 : 1;
        rows.push_back(row);
      } catch (const Error& error) {
        std::fprintf(table, "%-48s %s\n", to_string(shape.problem).c_str(), error.what());
      }
      // After each shape, so that an interrupted run keeps what it has.
      if (!csv_to_stdout && !options.csv_path.empty())
        io::write_file(options.csv_path, to_csv(rows, peer));
      if (!options.tuning_path.empty()) io::write_file(options.tuning_path, to_tuning(rows));
    }
    print_summary(table, set.name, rows, peer);
  }
  if (csv_to_stdout) std::fputs(to_csv(rows, peer).c_str(), stdout);
  return different;
}

}  // namespace convoy::bench
