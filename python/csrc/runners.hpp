// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <unordered_map>

#include "tensors.hpp"

namespace convoy_torch {

struct PlanDestroyer {
  void operator()(convoy_plan_t plan) const { convoy_plan_destroy(plan); }
  void operator()(convoy_norm_plan_t plan) const { convoy_norm_plan_destroy(plan); }
};
using OwnedPlan = std::unique_ptr<convoy_plan_s, PlanDestroyer>;
using OwnedNormPlan = std::unique_ptr<convoy_norm_plan_s, PlanDestroyer>;

/// A tensor's shape as PyTorch says it, channels at axis 1.
struct Extents {
  std::array<std::int64_t, 5> values{};
  std::size_t rank = 0;

  Extents() = default;
  explicit Extents(const convoy_tensor_shape_t& shape);
  std::span<const std::int64_t> span() const { return {values.data(), rank}; }
};

/// What one convolution reads. packed: the library's packed filter, or null and `weight`.
struct ConvInputs {
  const Tensor& x;
  const std::optional<Tensor>& weight;
  convoy_packed_filter_t packed = nullptr;
  const std::optional<Tensor>& bias;
  const std::optional<Tensor>& residual;
  const std::optional<Tensor>& cache;
  /// What a prologue multiplies by and adds, fp32 [2, N, C]; null without one.
  const Tensor* coefficients = nullptr;
};

/// A plan with everything settled that depends on shapes alone. Threads may share it.
class ConvRunner {
 public:
  /// `epilogue`, `prologue` (may be null): of every run, but for their pointers. The plan lives as
  /// long as this.
  ConvRunner(convoy_plan_t plan, const convoy_epilogue_t& epilogue,
             const convoy_prologue_t* prologue, std::int64_t filter_elements);
  ConvRunner(OwnedPlan plan, const convoy_epilogue_t& epilogue, std::int64_t filter_elements);

  convoy_plan_t plan() const { return plan_; }
  /// beta: not a number for the epilogue's own. following: receives the next cache.
  Tensor run(const ConvInputs& inputs, float beta, Tensor* following = nullptr) const;

 private:
  OwnedPlan owned_;
  convoy_plan_t plan_;
  convoy_epilogue_t epilogue_;
  std::optional<convoy_prologue_t> prologue_;
  convoy_run_arguments_t arguments_;
  std::int32_t dtype_ = 0;
  std::int64_t filter_elements_;
  Extents output_, activation_, cache_, next_cache_;
  std::int64_t workspace_ = 0;
};

/// What a norm's plan was made for.
struct NormTensors {
  std::int64_t elements, channels;
  std::int32_t dtype, parameter_dtype;
  /// Of a GroupNorm whose coefficients are its result; else 0.
  std::int64_t images = 0;
};

class NormRunner {
 public:
  /// As ConvRunner's.
  NormRunner(convoy_norm_plan_t plan, const convoy_norm_arguments_t& arguments,
             const NormTensors& tensors);
  NormRunner(OwnedNormPlan plan, const convoy_norm_arguments_t& arguments,
             const NormTensors& tensors);

  /// Like x; with NormTensors::images fp32 [2, N, C], what x is multiplied by and what is added.
  Tensor run(const Tensor& x, const std::optional<Tensor>& weight,
             const std::optional<Tensor>& bias) const;

 private:
  OwnedNormPlan owned_;
  convoy_norm_plan_t plan_;
  convoy_norm_arguments_t arguments_;
  NormTensors tensors_;
  std::int64_t workspace_ = 0;
};

/// Things by a number that is never given twice.
template <class Value>
class Registry {
 public:
  std::int64_t add(std::shared_ptr<const Value> value) {
    const std::unique_lock lock(mutex_);
    values_.emplace(++last_, std::move(value));
    return last_;
  }
  void remove(std::int64_t number) {
    const std::unique_lock lock(mutex_);
    values_.erase(number);
  }
  /// Null for a number that is not there.
  std::shared_ptr<const Value> find(std::int64_t number) const {
    const std::shared_lock lock(mutex_);
    const auto found = values_.find(number);
    return found == values_.end() ? nullptr : found->second;
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<std::int64_t, std::shared_ptr<const Value>> values_;
  std::int64_t last_ = 0;
};

}  // namespace convoy_torch
