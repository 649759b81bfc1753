// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"
#include "shard/transport.hpp"

namespace convoy {
namespace {

[[noreturn]] void refuse() {
  throw Error(Status::unsupported,
              "NCCL is of no use to this libconvoy, which was built without CUDA; legal: "
              "Communicator::in_process, or a build with CONVOY_CUDA=ON");
}

}  // namespace

std::shared_ptr<Transport> wrap_nccl(void*, std::chrono::milliseconds) {
  refuse();
}
std::shared_ptr<Transport> make_nccl(const NcclId&, int, int, std::chrono::milliseconds) {
  refuse();
}
NcclId make_nccl_id() {
  refuse();
}

}  // namespace convoy
