// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/candidate.hpp"

namespace convoy {

/// What a plan promised, against which every run is checked before a kernel sees it.
class RunContract {
 public:
  RunContract() = default;
  /// `packed_format` is what a PackedFilter for this plan carries; `workspace_bytes` is the
  /// kernel's.
  RunContract(const PlanRequest& request, std::string filter_format, std::string packed_format,
              std::size_t workspace_bytes);

  bool empty() const { return geometry_.empty(); }
  const std::string& packed_format() const { return packed_format_; }
  TensorShape output() const { return output_; }
  TensorShape residual() const { return residual_; }
  TensorShape activation() const { return activation_; }
  TensorShape cache() const { return cache_; }
  TensorShape next_cache() const { return next_cache_; }

  /// The pointers of a run whose output is not empty. Throws Error{invalid_argument} as Plan::run
  /// says.
  RunPointers check(const RunArguments& arguments) const;

  /// Throws Error{invalid_argument} for a null or misaligned pointer or a layout of another rank.
  void check_filter_to_pack(const void* filter, FilterLayout layout) const;

 private:
  void check_epilogue(const Epilogue& epilogue) const;
  void check_prologue(const Prologue& prologue) const;
  const void* check_filter(const FilterRef& filter) const;
  void check_overlap(const RunPointers& pointers, std::size_t filter_bytes) const;

  ConvGeometry geometry_;
  Device device_ = Device::cpu;
  EpilogueKind kind_;
  PrologueKind prologue_;
  std::int64_t statistics_groups_ = 0;
  TensorShape output_;
  TensorShape residual_;
  TensorShape activation_;
  TensorShape cache_;
  TensorShape next_cache_;
  std::string filter_format_;
  std::string packed_format_;
  std::size_t filter_bytes_ = 0;
  std::size_t workspace_bytes_ = 0;
};

}  // namespace convoy
