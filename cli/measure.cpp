// SPDX-License-Identifier: Apache-2.0
#include "measure.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <random>

#include "device_memory.hpp"

#ifdef CONVOY_WITH_CUDA
#include "cuda_check.hpp"
#endif

namespace convoy::cli {
namespace {

/// Times one run at a time, in microseconds.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  virtual double time_us(const Variant& variant) = 0;
};

class CpuStopwatch : public Stopwatch {
 public:
  double time_us(const Variant& variant) override {
    const auto begin = std::chrono::steady_clock::now();
    variant.enqueue(nullptr);
    const auto end = std::chrono::steady_clock::now();
    return std::chrono::duration<double, std::micro>(end - begin).count();
  }
};

#ifdef CONVOY_WITH_CUDA
class CudaStopwatch : public Stopwatch {
 public:
  explicit CudaStopwatch(bool flush_l2) {
    check_cuda(cudaStreamCreate(&stream_), "cudaStreamCreate");
    check_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
    check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
    if (flush_l2) {
      int device = 0, l2_bytes = 0;
      check_cuda(cudaGetDevice(&device), "cudaGetDevice");
      check_cuda(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device),
                 "cudaDeviceGetAttribute");
      flush_ = DeviceMemory(Device::cuda, 2 * std::size_t(std::max(l2_bytes, 1 << 20)));
    }
  }
  ~CudaStopwatch() override {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }
  CudaStopwatch(const CudaStopwatch&) = delete;
  CudaStopwatch& operator=(const CudaStopwatch&) = delete;

  double time_us(const Variant& variant) override {
    if (flush_.bytes() > 0) {
      check_cuda(cudaMemsetAsync(flush_.data(), 0, flush_.bytes(), stream_), "cudaMemsetAsync");
    }
    check_cuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    variant.enqueue(stream_);
    check_cuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(end_), variant.name.c_str());
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return 1000.0 * double(milliseconds);
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  DeviceMemory flush_;
};
#endif

std::unique_ptr<Stopwatch> make_stopwatch([[maybe_unused]] const MeasureOptions& options) {
#ifdef CONVOY_WITH_CUDA
  if (options.device == Device::cuda) return std::make_unique<CudaStopwatch>(options.flush_l2);
#endif
  return std::make_unique<CpuStopwatch>();
}

}  // namespace

Measurement summarise(std::vector<double> times_us) {
  if (times_us.empty()) return {};
  std::sort(times_us.begin(), times_us.end());
  // Linear interpolation between the two nearest ranks.
  const auto quantile = [&](double q) {
    const double rank = q * double(times_us.size() - 1);
    const auto below = std::size_t(rank);
    const std::size_t above = std::min(below + 1, times_us.size() - 1);
    return times_us[below] + (rank - double(below)) * (times_us[above] - times_us[below]);
  };
  const double median = quantile(0.5);
  return {.runs = int(times_us.size()),
          .median_us = median,
          .min_us = times_us.front(),
          .noise = median > 0 ? 0.5 * (quantile(0.75) - quantile(0.25)) / median : 0.0};
}

Measurement measure_once(const Variant& variant, Device device) {
  return summarise({make_stopwatch({.device = device, .flush_l2 = false})->time_us(variant)});
}

std::vector<Measurement> measure(std::span<const Variant> variants, const MeasureOptions& options) {
  const std::unique_ptr<Stopwatch> stopwatch = make_stopwatch(options);
  for (const Variant& variant : variants) stopwatch->time_us(variant);

  std::vector<std::vector<double>> times(variants.size());
  double longest_us = 0;  // Time spent on the slowest variant.
  std::vector<double> spent_us(variants.size(), 0.0);
  // NOTE: where a launch's parameters fall in the GPU's command stream moves its time by up to 0.9
  // us. In a fixed order one variant could meet the same place in every round.
  std::vector<std::size_t> order(variants.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::minstd_rand random;
  for (int run = 0; run < options.max_runs; ++run) {
    if (run >= options.min_runs && longest_us >= 1e6 * options.seconds) break;
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t i : order) {
      times[i].push_back(stopwatch->time_us(variants[i]));
      spent_us[i] += times[i].back();
      longest_us = std::max(longest_us, spent_us[i]);
    }
  }
  std::vector<Measurement> out;
  out.reserve(times.size());
  for (std::vector<double>& list : times) out.push_back(summarise(std::move(list)));
  return out;
}

}  // namespace convoy::cli
