// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "runners.hpp"

namespace convoy_torch {

/// What an operator was called with, but for its tensors.
struct ConvOptions {
  std::vector<std::int64_t> stride, padding, dilation;  // padding: before and after each axis.
  std::int64_t groups = 1;
  const std::string& activation;
  std::int64_t upsample = 1;
  bool packed = false;
  const std::string& upsample_folding;
  const std::string& padding_mode;
  bool allow_tf32 = false;
};

/// A place in numbered_convs(), given back at the end.
class ConvNumber {
 public:
  explicit ConvNumber(std::shared_ptr<const ConvRunner> runner);
  ~ConvNumber();
  ConvNumber(const ConvNumber&) = delete;
  ConvNumber& operator=(const ConvNumber&) = delete;
  std::int64_t value() const { return value_; }

 private:
  std::int64_t value_;
};

/// A runner and, where its filter is packed, the number by which Python packs filters for it.
struct NumberedConv {
  std::shared_ptr<const ConvRunner> runner;
  std::shared_ptr<const ConvNumber> number;
};

/// The runner for tensors like these, made at the first call. Throws for what is not legal.
NumberedConv conv_runner(const ConvInputs& inputs, const ConvOptions& options);

/// groups: none for an RMSNorm of `rule`.
std::shared_ptr<const NormRunner> norm_runner(const Tensor& x, std::optional<std::int64_t> groups,
                                              const std::optional<Tensor>& weight,
                                              const std::optional<Tensor>& bias, double epsilon,
                                              const std::string& rule,
                                              const std::string& activation);

/// Every convolution that has a number: of conv_runner, and of those that Python made.
Registry<ConvRunner>& numbered_convs();
Registry<NormRunner>& numbered_norms();

/// Forget what conv_runner and norm_runner keep.
void forget_plans();

}  // namespace convoy_torch
