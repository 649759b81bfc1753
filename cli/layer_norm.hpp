// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "convoy/geometry.hpp"
#include "convoy/norm.hpp"
#include "convoy/prologue.hpp"
#include "device_memory.hpp"
#include "io/host_tensor.hpp"
#include "options.hpp"

namespace convoy::cli {

/// A norm and an activation in front of a layer's convolution.
struct LayerNorm {
  bool rms = false;          ///< RMSNorm; else GroupNorm.
  std::int64_t groups = 32;  ///< GroupNorm's.
  float epsilon = 0;
  RmsEpsilon rule = RmsEpsilon::added;  ///< RMSNorm's.
  Activation activation = Activation::none;
  io::HostTensor scale;  ///< fp32, [C].
  io::HostTensor bias;   ///< fp32, [C]; GroupNorm's.

  PrologueKind kind() const {
    return {.norm = rms ? PrologueNorm::rms : PrologueNorm::scale_shift, .activation = activation};
  }
};

/// `--norm` and what goes with it.
struct NormWords {
  PrologueWords prologue;
  std::string rule, scale, bias;       ///< Empty: not given.
  std::optional<std::int64_t> groups;  ///< 32 where not given.
  std::optional<float> epsilon;

  /// --norm, --norm-activation and --norm-groups. `help`: of --norm, which is returned.
  CLI::Option* add_kind_to(CLI::App& command, const std::string& help);
  /// Those, and what else says how it is computed.
  void add_to(CLI::App& command);
  /// None where there is no `--norm`. Reads the files. Throws Error{invalid_argument}, {io_error}.
  std::optional<LayerNorm> read(std::int64_t channels) const;
};

/// The pass over a layer's activation that a prologue needs, ready to run on its plan's device.
class PreparedNorm {
 public:
  /// `activation` is on the device, of `dtype`; `scale` and `bias` too, fp32.
  PreparedNorm(const LayerNorm& norm, const ConvGeometry& geometry, DType dtype, Device device,
               const void* activation, const void* scale, const void* bias);

  void enqueue(cudaStream_t stream) const { plan_.run(arguments_, stream); }
  /// What the convolution reads; written by each run.
  const Prologue& prologue() const { return prologue_; }

 private:
  NormPlan plan_;
  DeviceMemory coefficients_, workspace_;
  NormArguments arguments_;
  Prologue prologue_;
};

/// The activation as it is convolved, by statistics in fp64: fp32 values rounded to `dtype`.
/// `error` as of reference::apply_prologue.
std::vector<float> normalised(const LayerNorm& norm, const ConvGeometry& geometry,
                              const float* activation, DType dtype, double& error);

}  // namespace convoy::cli
