// SPDX-License-Identifier: Apache-2.0
// The C interface of exchanges by peer memory: translates, and decides nothing.
#include <algorithm>
#include <vector>

#include "dispatch/c_api.hpp"
#include "shard/peers.hpp"

struct convoy_peers_s {
  convoy::PeerMemory memory;
};

namespace convoy::c_api {
namespace {

static_assert(sizeof(PeerMemory::Handle) == CONVOY_PEER_HANDLE_BYTES);
static_assert(PeerMemory::kGatherBytes == CONVOY_PEER_GATHER_BYTES);

std::chrono::milliseconds limit_of(int64_t timeout_ms) {
  if (timeout_ms < 1) {
    throw_invalid("timeout_ms = ", timeout_ms, " is not legal; legal: at least 1; nearest: 1");
  }
  return capped(std::chrono::milliseconds(timeout_ms));
}

std::vector<Move> moves_of(const convoy_peer_move_t* given, size_t count, const char* name) {
  std::vector<Move> moves;
  if (count > 0) require(given, name);
  for (size_t i = 0; i < count; ++i) {
    moves.push_back({.peer = given[i].peer,
                     .data = static_cast<char*>(require(given[i].data, "data")),
                     .bytes = given[i].bytes,
                     .count = given[i].count,
                     .pitch = given[i].pitch});
  }
  return moves;
}

}  // namespace
}  // namespace convoy::c_api

using namespace convoy;
using namespace convoy::c_api;

extern "C" {

convoy_status_t convoy_peers_create(int32_t rank, int32_t count, size_t capacity,
                                    int64_t timeout_ms, convoy_peers_t* peers) {
  return guarded([&] {
    *require(peers, "peers") = nullptr;
    const std::chrono::milliseconds timeout = limit_of(timeout_ms);
    *peers = new convoy_peers_s{PeerMemory(rank, count, capacity, timeout)};
  });
}
convoy_status_t convoy_peers_handle(convoy_peers_t peers, char* handle) {
  return guarded([&] {
    const PeerMemory::Handle& mine = require(peers, "peers")->memory.handle();
    std::copy(mine.begin(), mine.end(), require(handle, "handle"));
  });
}
convoy_status_t convoy_peers_connect(convoy_peers_t peers, const char* handles) {
  return guarded([&] {
    PeerMemory& memory = require(peers, "peers")->memory;
    std::vector<PeerMemory::Handle> all(unsigned_of(memory.count()));
    const char* from = require(handles, "handles");
    for (PeerMemory::Handle& handle : all) {
      std::copy_n(from, handle.size(), handle.begin());
      from += handle.size();
    }
    memory.connect(all);
  });
}
convoy_status_t convoy_peers_try_out(convoy_peers_t peers, int64_t timeout_ms) {
  return guarded([&] {
    PeerMemory& memory = require(peers, "peers")->memory;
    memory.try_out(limit_of(timeout_ms));
  });
}
convoy_status_t convoy_peers_exchange(convoy_peers_t peers, const convoy_peer_move_t* sends,
                                      size_t send_count, const convoy_peer_move_t* receives,
                                      size_t receive_count, int32_t phase, void* stream) {
  return guarded([&] {
    PeerMemory& memory = require(peers, "peers")->memory;
    if (phase < CONVOY_PEERS_PUT || phase > CONVOY_PEERS_BOTH) {
      throw_invalid("phase = ", phase, " is not legal; legal: put (0), take (1), both (2)");
    }
    memory.exchange(moves_of(sends, send_count, "sends"),
                    moves_of(receives, receive_count, "receives"),
                    static_cast<PeerMemory::Phase>(phase), stream_of(stream));
  });
}
convoy_status_t convoy_peers_all_gather(convoy_peers_t peers, const void* sent, void* received,
                                        size_t bytes, void* stream) {
  return guarded([&] {
    PeerMemory& memory = require(peers, "peers")->memory;
    if (bytes == 0) return;
    memory.all_gather(require(sent, "sent"), require(received, "received"), bytes,
                      stream_of(stream));
  });
}
convoy_status_t convoy_peers_late(convoy_peers_t peers, int32_t* rank) {
  return guarded(
      [&] { *require(rank, "rank") = require(peers, "peers")->memory.late().value_or(-1); });
}
void convoy_peers_destroy(convoy_peers_t peers) {
  delete peers;
}

}  // extern "C"
