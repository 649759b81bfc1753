// SPDX-License-Identifier: Apache-2.0
//
// Times every kernel on every layer of shape files, for the fit of the models (fit_model.cpp):
//
//   convoy_measure_kernels --csv FILE [--seconds S] [--reach R] [--sample P] [--runs N] [--seed N]
//                          [--kernels PREFIX] [--dense] [--twice] [--uncorrected]
//                          SHAPES...
//
// A kernel that the model puts beyond `reach` times the best one measured so far is left out, but
// for a random part of them, which the fit needs: without it the model would never hear where it is
// wrong about what is slow. Kernels that split the reduction are timed with each split.
// --kernels: those alone whose names begin so; may be given again. --dense: filters are not packed
// beforehand. --twice: each run comes right behind one of the same kernel that is not timed, so its
// code is in the caches; otherwise it comes cold, as where kernels take turns
// (convoy_compare_builds). time_correction is trained on the means of both.
// --uncorrected: modelled times are those of the models alone (train_correction.py).
// The filter is packed in each kernel's own format, as random numbers: times do not depend on which
// they are. Runs of a round are enqueued one behind the other, L2 flushed before each, in an order
// that is drawn anew.
//
// Ends after S seconds; rows of a layer are written when it is done. CSV columns: problem, dtype,
// epilogue, kernel, splits (0 where the kernel has none), us (median), modelled_us, runs.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "command_line.hpp"
#include "core/text.hpp"
#include "cuda_check.hpp"
#include "device_fill.hpp"
#include "device_memory.hpp"
#include "dispatch/backends.hpp"
#include "kernels/common/epilogue_params.hpp"
#include "kernels/common/filter_packing.hpp"
#include "kernels/common/implicit_gemm.hpp"
#include "kernels/common/time_correction.hpp"
#include "kernels/mma/model.hpp"
#ifdef CONVOY_WITH_SM90
#include "kernels/sm90/model.hpp"
#endif

namespace {

using namespace convoy;
using cli::check_cuda;
using cli::DeviceMemory;
using cli::ShapeCase;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string csv;
  double seconds = 150, reach = 8, sample = 0.15;
  int runs = 9;
  std::int64_t seed = 1;
  bool packed = true, twice = false;
  DType dtype = DType::bf16;         // Of shapes that do not say theirs.
  std::vector<std::string> kernels;  // Prefixes of names; empty: all.
  std::vector<std::string> shapes;
};

// Memory that grows and is used again.
class Buffer {
 public:
  /// What was there before stays valid until `settle`.
  void* at_least(std::size_t bytes) {
    if (bytes > memory_.bytes()) {
      before_.push_back(memory_);
      memory_ = DeviceMemory(Device::cuda, bytes);
    }
    return memory_.data();
  }
  void settle() { before_.clear(); }
  void* random(std::int64_t elements, DType dtype, float scale) {
    if (elements == 0) return nullptr;
    void* const data = at_least(static_cast<std::size_t>(elements) * size_of(dtype));
    bench::fill_random(data, elements, dtype, 1, scale, nullptr);
    return data;
  }

 private:
  DeviceMemory memory_;
  std::vector<DeviceMemory> before_;
};

// Times of several runs, enqueued together.
class Timer {
 public:
  Timer() {
    check_cuda(cudaStreamCreate(&stream_), "cudaStreamCreate");
    int l2_bytes = 0;
    check_cuda(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, 0), "L2 size");
    flush_ = DeviceMemory(Device::cuda, 2 * static_cast<std::size_t>(l2_bytes));
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() {
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
    cudaStreamDestroy(stream_);
  }

  std::vector<double> times_us(const std::vector<const std::function<void(cudaStream_t)>*>& runs) {
    while (events_.size() < 2 * runs.size()) {
      check_cuda(cudaEventCreate(&events_.emplace_back()), "cudaEventCreate");
    }
    for (std::size_t i = 0; i < runs.size(); ++i) {
      check_cuda(cudaMemsetAsync(flush_.data(), 0, flush_.bytes(), stream_), "cudaMemsetAsync");
      check_cuda(cudaEventRecord(events_[2 * i], stream_), "cudaEventRecord");
      (*runs[i])(stream_);
      check_cuda(cudaEventRecord(events_[2 * i + 1], stream_), "cudaEventRecord");
    }
    check_cuda(cudaStreamSynchronize(stream_), "runs");
    std::vector<double> times;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      float milliseconds = 0;
      check_cuda(cudaEventElapsedTime(&milliseconds, events_[2 * i], events_[2 * i + 1]), "event");
      times.push_back(1e3 * static_cast<double>(milliseconds));
    }
    return times;
  }

 private:
  cudaStream_t stream_ = nullptr;
  std::vector<cudaEvent_t> events_;
  DeviceMemory flush_;
};

// A kernel that may be timed: `bind` makes it ready, which costs.
struct Entry {
  std::string kernel;
  int splits = 0;
  double modelled_us = 0;
  std::function<std::function<void(cudaStream_t)>(RunPointers)> bind;
  std::function<void(cudaStream_t)> run;
  std::vector<double> times;
};

class Measurer {
 public:
  explicit Measurer(const Options& options)
      : options_(options),
        device_(cuda_device(-1).value()),
        random_(static_cast<std::uint32_t>(options.seed)) {
#ifdef CONVOY_WITH_SM90
    for (const sm90::Instance& instance : sm90::instances()) {
      if (!instance.config.splits_k()) continue;
      splitting_[sm90::name_of(instance)] = [this, &instance](const PlanRequest& request,
                                                              std::vector<Entry>& entries) {
        // NOTE: of other forms of the problem (core/rewriting.hpp) dispatch chooses the split.
        if (!sm90::refusal(instance, request.geometry, request.packed_filter).empty()) return;
        for (int n = 1; n <= sm90::kMostSplits; ++n) {
          entries.push_back(split_entry(request, instance, n));
        }
      };
    }
#endif
    for (const mma::Instance& instance : mma::instances()) {
      splitting_[mma::name_of(instance)] = [this, &instance](const PlanRequest& request,
                                                             std::vector<Entry>& entries) {
        for (const int n : mma::kSplits) {
          const mma::Tiling tiling =
              mma::plan_tiling(instance, request.geometry, request.packed_filter, n);
          if (tiling.splits == n) entries.push_back(mma_entry(request, tiling));
        }
      };
    }
  }

  std::string measure(const ShapeCase& shape) {
    PlanRequest request;
    request.geometry = geometry_of(shape.problem);
    request.dtype = request.output_dtype = shape.dtype.value_or(options_.dtype);
    request.epilogue = shape.epilogue.value_or(EpilogueKind{});
    request.packed_filter = options_.packed;
    request.allow_tf32 = true;
    request.device = device_;
    const RunPointers pointers = fill(request);

    std::vector<Entry> entries = able_kernels(request);
    std::stable_sort(entries.begin(), entries.end(),
                     [](const Entry& a, const Entry& b) { return a.modelled_us < b.modelled_us; });
    // A quick look at each, which leaves most of them out.
    double best_us = INFINITY;
    std::vector<Entry*> timed, near;
    for (Entry& entry : entries) {
      const bool far = entry.modelled_us > options_.reach * best_us;
      if (far && !(random_() < options_.sample * 4294967296.0 && entry.modelled_us < 2e4)) continue;
      try {
        entry.run = entry.bind(pointers);
        timer_.times_us({&entry.run});
        entry.times = timer_.times_us({&entry.run});
      } catch (const Error& error) {
        std::fprintf(stderr, "%s: %s\n", entry.kernel.c_str(), error.what());
        continue;
      }
      best_us = std::min(best_us, entry.times[0]);
      timed.push_back(&entry);
    }
    for (int run = 0; run < options_.runs; ++run) {
      std::vector<Entry*> round;
      for (Entry* entry : timed) {
        if (run < 2 || entry->times[0] < 2.5 * best_us) round.push_back(entry);
      }
      std::shuffle(round.begin(), round.end(), random_);
      std::vector<const std::function<void(cudaStream_t)>*> runs;
      const std::size_t each = options_.twice ? 2 : 1;
      for (const Entry* entry : round) runs.insert(runs.end(), each, &entry->run);
      const std::vector<double> times = timer_.times_us(runs);
      for (std::size_t i = 0; i < round.size(); ++i) {
        round[i]->times.push_back(times[i * each + each - 1]);
      }
    }

    std::string rows;
    const Entry* best = nullptr;
    for (Entry* entry : timed) {
      std::sort(entry->times.begin(), entry->times.end());
      const double us = median(*entry);
      if (best == nullptr || us < median(*best)) best = entry;
      rows += text(to_string(shape.problem), ",", to_string(request.dtype), ",",
                   to_string(request.epilogue), ",", entry->kernel, ",", entry->splits, ",", us,
                   ",", entry->modelled_us, ",", entry->times.size(), "\n");
    }
    if (best != nullptr) {
      std::printf("%-56s %9.1f us  %-44s x%.2f\n", to_string(shape.problem).c_str(), median(*best),
                  best->kernel.c_str(), median(*timed.front()) / median(*best));
    }
    return rows;
  }

 private:
  static double median(const Entry& entry) {
    const std::vector<double>& t = entry.times;
    return (t[(t.size() - 1) / 2] + t[t.size() / 2]) / 2;
  }

  RunPointers fill(const PlanRequest& request) {
    const ConvGeometry& g = request.geometry;
    for (Buffer* buffer :
         {&activation_, &cache_, &filter_, &output_, &residual_, &bias_, &workspace_}) {
      buffer->settle();
    }
    RunPointers p;
    p.activation = activation_.random(g.activation_elements(), request.dtype, 1.0f);
    p.cache = cache_.random(g.cache_elements(), request.dtype, 1.0f);
    p.output = output_.at_least(static_cast<std::size_t>(g.output_elements()) *
                                size_of(request.output_dtype));
    p.epilogue.activation = request.epilogue.activation;
    if (request.epilogue.activation == Activation::clamp) p.epilogue.parameter_a = 0.0f;
    p.epilogue.order = request.epilogue.order;
    p.epilogue.rounding = request.epilogue.rounding;
    p.epilogue.bias_dtype = request.epilogue.bias_dtype;
    if (request.epilogue.bias) {
      p.epilogue.bias = bias_.random(g.out_channels, request.epilogue.bias_dtype, 1.0f);
    }
    if (request.epilogue.residual) {
      p.epilogue.residual = residual_.random(g.output_elements(), request.output_dtype, 1.0f);
    }
    return p;
  }

  // Filter and workspace of a plan.
  void take_memory(const PlanRequest& request, std::size_t filter_bytes,
                   std::size_t workspace_bytes, RunPointers& p) {
    const auto scale = static_cast<float>(std::sqrt(3.0 / double(request.geometry.gemm_k())));
    p.filter =
        filter_.random(static_cast<std::int64_t>((filter_bytes + size_of(request.dtype) - 1) /
                                                 size_of(request.dtype)),
                       request.dtype, scale);
    p.workspace = workspace_bytes > 0 ? workspace_.at_least(workspace_bytes) : nullptr;
  }

  std::vector<Entry> able_kernels(const PlanRequest& request) {
    std::vector<Entry> entries;
    for (const auto& candidate : registry()) {
      const KernelCandidate* const kernel = candidate.get();
      if (kernel->device() != Device::cuda || !is_wanted(kernel->name())) continue;
      const Judgement judgement = kernel->judge(request);
      if (!judgement.refusal.empty()) continue;
      if (const auto splits = splitting_.find(kernel->name()); splits != splitting_.end()) {
        splits->second(request, entries);
        continue;
      }
      Entry& entry = entries.emplace_back();
      entry.kernel = kernel->name();
      entry.modelled_us = judgement.estimated_us;
      entry.bind = [this, kernel, &request](RunPointers p) {
        const std::shared_ptr<const ExecutablePlan> plan = kernel->make(request);
        take_memory(request, plan->packed_filter_bytes(), plan->workspace_bytes(), p);
        return [plan, p](cudaStream_t stream) { plan->run(p, stream); };
      };
    }
    return entries;
  }

  bool is_wanted(const std::string& name) const {
    return options_.kernels.empty() ||
           std::any_of(options_.kernels.begin(), options_.kernels.end(),
                       [&](const std::string& prefix) { return name.starts_with(prefix); });
  }

  Entry mma_entry(const PlanRequest& request, const mma::Tiling& tiling) {
    Entry entry;
    entry.kernel = mma::name_of(tiling.instance);
    entry.splits = tiling.splits;
    entry.modelled_us = mma::estimate_us(tiling, request);
    entry.bind = [this, &request, planned = tiling](RunPointers p) {
      mma::Tiling tiling = planned;
      mma::prepare(tiling, request.device.multiprocessors);
      const ConvGeometry& g = request.geometry;
      const bool folds = implicit_gemm::folds_upsampling(g, request.packed_filter);
      take_memory(request,
                  folds ? upsampled_filter_bytes(g, request.dtype)
                        : static_cast<std::size_t>(g.filter_elements()) * size_of(request.dtype),
                  tiling.workspace_bytes(), p);
      return [tiling, p, out = request.output_dtype](cudaStream_t stream) {
        mma::launch(tiling, p, out, stream);
      };
    };
    return entry;
  }

#ifdef CONVOY_WITH_SM90
  Entry split_entry(const PlanRequest& request, const sm90::Instance& instance, int splits) {
    sm90::LaunchOptions options;
    options.packed_filter = request.packed_filter;
    options.multiprocessors = request.device.multiprocessors;
    options.splits = splits;
    Entry entry;
    entry.kernel = sm90::name_of(instance);
    entry.splits = splits;
    entry.modelled_us = sm90::estimate_us(
        request.geometry, plan_tiling(instance, request.geometry, options), options.multiprocessors,
        request.epilogue, sm90::constants_of(request.device));
    entry.bind = [this, &request, &instance, options](RunPointers p) {
      sm90::prepare(instance);
      const auto launch = std::make_shared<const sm90::Launch>(
          sm90::plan_launch(instance, request.geometry, options));
      const auto extents = sm90::plan_tiling(instance, request.geometry, options).filter.extents;
      take_memory(
          request,
          static_cast<std::size_t>(extents[0] * extents[1] * extents[2]) * size_of(request.dtype),
          0, p);
      return [launch, p](cudaStream_t stream) {
        const NoComputeOp compute;
        const NoStoreOp store;
        sm90::launch(*launch, p, &compute, &store, stream);
      };
    };
    return entry;
  }
#endif

  const Options options_;
  const DeviceInfo device_;
  std::mt19937 random_;
  // Kernels that split the reduction: what adds an entry for each split.
  std::map<std::string, std::function<void(const PlanRequest&, std::vector<Entry>&)>> splitting_;
  Buffer activation_, cache_, filter_, output_, residual_, bias_, workspace_;
  Timer timer_;
};

int run(const Options& options) {
  std::vector<ShapeCase> cases;
  for (const std::string& word : options.shapes) {
    for (ShapeCase& shape : cli::resolve_shapes(word)) cases.push_back(std::move(shape));
  }
  std::FILE* const csv = std::fopen(options.csv.c_str(), "w");
  if (csv == nullptr) throw Error(Status::io_error, options.csv + " cannot be written");
  std::fputs("problem,dtype,epilogue,kernel,splits,us,modelled_us,runs\n", csv);

  Measurer measurer(options);
  const auto begin = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  std::size_t done = 0;
  for (; done < cases.size() && elapsed() < options.seconds; ++done) {
    try {
      std::fputs(measurer.measure(cases[done]).c_str(), csv);
      std::fflush(csv);
    } catch (const Error& error) {
      std::printf("%-56s %s\n", to_string(cases[done].problem).c_str(), error.what());
    }
  }
  std::fclose(csv);
  std::printf("%zu of %zu layers in %.1f s\n", done, cases.size(), elapsed());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  bool dense = false, uncorrected = false;
  bench::CommandLine line("convoy_measure_kernels", "Times every kernel on every layer.");
  line.word("--csv", options.csv, "where the times go; needed");
  line.dtype(options.dtype);
  line.number("--seconds", options.seconds, "no layer is begun after that");
  line.number("--reach", options.reach,
              "kernels modelled beyond so many times the best are left out");
  line.number("--sample", options.sample, "but for this part of them");
  line.whole("--runs", options.runs, 1, 1000, "of each kernel");
  line.words("--kernels", options.kernels, "those alone whose names begin so");
  line.flag("--dense", dense, "filters are not packed beforehand");
  line.flag("--twice", options.twice, "time each run right after another of the same kernel");
  line.flag("--uncorrected", uncorrected, "model times as the models alone make them");
  line.whole("--seed", options.seed, std::int64_t{0}, (std::int64_t{1} << 32) - 1, "of the sample");
  line.rest("SHAPES", options.shapes, 1, bench::kShapesHelp);
  return line.run(argc, argv, [&] {
    if (options.csv.empty()) throw Error(Status::invalid_argument, "--csv FILE is needed");
    options.packed = !dense;
    correct_times(!uncorrected);
    return run(options);
  });
}
