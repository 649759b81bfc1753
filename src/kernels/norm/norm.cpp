// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm/norm.hpp"

#include "core/text.hpp"

namespace convoy::norm {
namespace {

class CudaNorms final : public NormBackend {
 public:
  Device device() const override { return Device::cuda; }
  std::string refusal(const NormRequest& request) const override {
    // NOTE: the kernels count channels in 32 bits, with room for what a slice has past the last
    // one.
    constexpr std::int64_t kMostChannels = std::int64_t{1} << 20;
    if (request.channels <= kMostChannels) return {};
    return text("channels = ", request.channels, "; legal: at most ", kMostChannels,
                " (the CUDA norms); nearest: ", kMostChannels);
  }
  std::unique_ptr<NormKernel> make(const NormRequest& request) const override {
    return request.rms ? make_rms_norm(request) : make_group_norm(request);
  }
};

}  // namespace

void register_norms(NormBackendList& list) {
  list.push_back(std::make_unique<CudaNorms>());
}

}  // namespace convoy::norm
