// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm/norm.hpp"

#include "core/text.hpp"

namespace convoy::norm {

std::unique_ptr<NormKernel> make_norm_kernel(const NormRequest& request) {
  // NOTE: the kernels count channels in 32 bits, with room for what a slice has past the last one.
  constexpr std::int64_t kMostChannels = std::int64_t{1} << 20;
  if (request.channels > kMostChannels) {
    throw Error(Status::unsupported,
                text("channels = ", request.channels, "; legal: at most ", kMostChannels,
                     " (the CUDA norms); nearest: ", kMostChannels));
  }
  return request.rms ? make_rms_norm(request) : make_group_norm(request);
}

}  // namespace convoy::norm
