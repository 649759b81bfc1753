// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "convoy/geometry.hpp"
#include "convoy/plan.hpp"
#include "device_memory.hpp"
#include "io/host_tensor.hpp"
#include "layer_norm.hpp"
#include "measure.hpp"
#include "shape_string.hpp"

namespace convoy::cli {

/// One convolution with its tensors in host memory.
struct Layer {
  ProblemShape problem;
  PlanOptions options;  ///< `epilogue` is filled in from below.
  Epilogue epilogue;    ///< Values only; the pointers are those of the tensors here.
  FilterLayout filter_layout = FilterLayout::krsc;
  io::HostTensor activation;               ///< Of options.dtype, as are filter, residual and cache.
  io::HostTensor filter;                   ///< In filter_layout.
  std::optional<io::HostTensor> bias;      ///< fp32, [K].
  std::optional<io::HostTensor> residual;  ///< Of the output's shape; see options.shuffle.
  std::optional<io::HostTensor> cache;     ///< 3-D: the cached frames.
  std::optional<LayerNorm> norm;           ///< In front; `options.prologue` is filled in from it.
  bool wants_next_cache = false;
  bool dense_filter = false;  ///< Runs read the filter as it is, KRSC / KTRSC, not packed.
};

struct LayerResult {
  PlanInfo info;
  std::string filter_format;  ///< Of the packed filter; empty where it was read as it is.
  io::HostTensor output;
  std::optional<io::HostTensor> next_cache;
  Measurement time;
};

/// What it runs on; where that is the CPU because there is no GPU, also that.
std::string backend_line(const PlanInfo& info, Device asked);

/// The layer's epilogue with the tensors that it has in host memory.
Epilogue epilogue_of(const Layer& layer);

/// The plan for a layer. Throws Error{unsupported} with every candidate's reason.
Plan plan_layer(const Layer& layer);

/// Tensors of a layer on the device, shared by the kernels that are prepared for it.
using UploadedTensors = std::map<const io::HostTensor*, DeviceMemory>;

/// A layer that is ready to run: planned, filter packed, tensors on the device. The layer must
/// outlive it.
class PreparedLayer {
 public:
  /// `uploaded`: takes the tensors that are there already, and keeps those that were not.
  explicit PreparedLayer(const Layer& layer, UploadedTensors* uploaded = nullptr);

  void enqueue(cudaStream_t stream) const {
    if (norm_) norm_->enqueue(stream);
    plan_.run(arguments_, stream);
  }
  Device device() const { return device_; }
  const PlanInfo& info() const { return plan_.info(); }
  /// Of the packed filter; empty where the filter is read as it is.
  const std::string& filter_format() const { return filter_.packed.format(); }
  io::HostTensor download_output() const;
  /// The next causal cache; the layer must have wanted it.
  io::HostTensor download_next_cache() const;

 private:
  const Layer& layer_;
  ConvGeometry geometry_;
  Plan plan_;
  Device device_;
  std::vector<DeviceMemory> memory_;
  FilterRef filter_;
  DeviceMemory output_, next_cache_, workspace_;
  RunArguments arguments_;
  std::optional<PreparedNorm> norm_;

  const void* on_device(const io::HostTensor& tensor, UploadedTensors* uploaded);
};

/// Prepares the layer, runs it and brings the result back. A run that takes under a tenth of a
/// second is repeated, so that the time does not hold the first call's start-up.
LayerResult run_layer(const Layer& layer);

}  // namespace convoy::cli
