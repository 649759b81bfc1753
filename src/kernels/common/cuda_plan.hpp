// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "core/candidate.hpp"
#include "kernels/common/filter_packing.hpp"
#include "kernels/common/launch.hpp"
#include "kernels/common/next_cache.hpp"
#include "kernels/common/normalised_box.hpp"

namespace convoy {

/// What plans on a CUDA device share: the filter as dense KTRSC, device memory, the next cache. A
/// kernel adds `run`, which ends with `store_next_cache`.
class CudaPlan : public ExecutablePlan {
 public:
  explicit CudaPlan(const PlanRequest& request) : request_(request) {}

  std::size_t packed_filter_bytes() const override { return dense_filter_bytes(); }
  void pack_filter(void* packed, const void* filter, FilterLayout layout,
                   cudaStream_t stream) const override {
    repack_filter(packed, filter, layout, request_.geometry, request_.dtype, stream);
  }
  std::shared_ptr<void> allocate(std::size_t bytes) const override {
    return allocate_device_memory(bytes);
  }

 protected:
  /// Bytes of the filter as dense KTRSC.
  std::size_t dense_filter_bytes() const {
    return static_cast<std::size_t>(request_.geometry.filter_elements()) * size_of(request_.dtype);
  }

  /// Pack a filter whose own format is made from dense KTRSC: `pack(dense)` enqueues that.
  // NOTE: packing is not `run`: it may take memory and wait.
  template <typename Pack>
  void pack_from_dense(const void* filter, FilterLayout layout, cudaStream_t stream,
                       Pack&& pack) const {
    const auto dense = allocate_device_memory(dense_filter_bytes());
    repack_filter(dense.get(), filter, layout, request_.geometry, request_.dtype, stream);
    pack(dense.get());
    require_runtime("packing a filter", [&] { return cudaStreamSynchronize(stream); });
  }

  /// Where the run asks for it.
  void store_next_cache(const RunPointers& pointers, cudaStream_t stream) const {
    if (pointers.next_cache == nullptr) return;
    if (request_.prologue.any()) {
      return write_normalised_cache(pointers, request_.geometry, request_.dtype, stream);
    }
    write_next_cache(pointers.next_cache, pointers.cache, pointers.activation, request_.geometry,
                     request_.dtype, stream);
  }

  const PlanRequest request_;
};

}  // namespace convoy
