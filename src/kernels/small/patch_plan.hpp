// SPDX-License-Identifier: Apache-2.0
//
// The plan of kernels whose blocks walk over tiles, each with a set of the filters and the patch of
// its tile in shared memory: few_channels, narrow_input.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/common/cuda_plan.hpp"
#include "kernels/common/device_geometry.cuh"
#include "kernels/common/output.cuh"

namespace convoy::small {

/// `Arguments`: of the kernel. What derives from it sets `layout_` and calls `prepare`.
template <typename Arguments>
class PatchPlan : public CudaPlan {
 public:
  void run(const RunPointers& pointers, cudaStream_t stream) const override {
    const std::int64_t filters = request_.geometry.out_channels;
    const Arguments arguments{
        .activation = pointers.activation,
        .cache = pointers.cache,
        .filter = pointers.filter,
        .geometry = geometry_,
        .output = conv_output(pointers, request_.output_dtype, filters, filters),
        .layout = layout_};
    launch_kernel(kernel_,
                  {.name = name_,
                   .grid = blocks_,
                   .block = threads_,
                   .shared_bytes = static_cast<std::size_t>(layout_.shared_bytes()),
                   .stream = stream},
                  arguments);
    store_next_cache(pointers, stream);
  }

 protected:
  using Kernel = void(Arguments);

  PatchPlan(const PlanRequest& request, const char* name, unsigned threads)
      : CudaPlan(request),
        geometry_(trimmed_device_geometry(request.geometry)),
        name_(name),
        threads_(threads) {}

  /// `filter_sets`: blocks that have all filters between them.
  void prepare(Kernel* kernel, int filter_sets) {
    kernel_ = kernel;
    raise_shared_memory_limit(kernel_, layout_.shared_bytes(), name_);
    // All of them for a tile, and as many tiles as run at once.
    const std::int64_t resident =
        std::int64_t{request_.device.multiprocessors} *
        resident_blocks(kernel_, static_cast<int>(threads_), layout_.shared_bytes(), name_);
    const std::int64_t tiles = std::clamp<std::int64_t>(resident / filter_sets, 1, layout_.tiles);
    blocks_ = static_cast<unsigned>(tiles * filter_sets);
  }

  decltype(Arguments::layout) layout_;

 private:
  const DeviceGeometry geometry_;
  const char* const name_;
  const unsigned threads_;
  Kernel* kernel_ = nullptr;
  unsigned blocks_ = 0;
};

}  // namespace convoy::small
