// SPDX-License-Identifier: Apache-2.0
#include "dispatch/c_api.hpp"

namespace {

convoy_status_t refuse_peers() {
  return convoy::c_api::fail(convoy::Status::unsupported,
                             "peers need CUDA devices, and this libconvoy was built without CUDA; "
                             "legal: a build with CONVOY_CUDA=ON");
}

}  // namespace

extern "C" {

convoy_status_t convoy_peers_create(int32_t, int32_t, size_t, int64_t, convoy_peers_t* peers) {
  if (peers != nullptr) *peers = nullptr;
  return refuse_peers();
}
convoy_status_t convoy_peers_handle(convoy_peers_t, char*) {
  return refuse_peers();
}
convoy_status_t convoy_peers_connect(convoy_peers_t, const char*) {
  return refuse_peers();
}
convoy_status_t convoy_peers_try_out(convoy_peers_t, int64_t) {
  return refuse_peers();
}
convoy_status_t convoy_peers_exchange(convoy_peers_t, const convoy_peer_move_t*, size_t,
                                      const convoy_peer_move_t*, size_t, int32_t, void*) {
  return refuse_peers();
}
convoy_status_t convoy_peers_all_gather(convoy_peers_t, const void*, void*, size_t, void*) {
  return refuse_peers();
}
convoy_status_t convoy_peers_late(convoy_peers_t, int32_t* rank) {
  if (rank != nullptr) *rank = -1;
  return refuse_peers();
}
void convoy_peers_destroy(convoy_peers_t) {}

}  // extern "C"
