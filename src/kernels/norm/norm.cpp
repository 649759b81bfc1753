// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm/norm.hpp"

#include "core/text.hpp"

namespace convoy {

std::unique_ptr<NormKernel> make_cuda_norm(const NormRequest& request) {
  constexpr std::int64_t kMostChannels = std::int64_t{1} << 20;
  if (request.channels > kMostChannels) {
    throw Error(Status::unsupported, text("channels = ", request.channels,
                                          "; the CUDA norms take at most ", kMostChannels));
  }
  return request.rms ? make_cuda_rms_norm(request) : make_cuda_group_norm(request);
}

}  // namespace convoy
