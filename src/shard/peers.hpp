// SPDX-License-Identifier: Apache-2.0
//
// Exchanges by GPUs that reach each other's memory: no library of collectives, one launch, on the
// stream of the work itself.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/peer/peer_exchange.hpp"
#include "shard/transport.hpp"

namespace convoy {

/// One rank's inboxes, and where those of the others are. Every rank makes one with the same
/// capacity, gives its handle to all, connects, and makes the same exchanges in the same order.
/// Halos go to the ranks beside it; small tensors to all.
class PeerMemory {
 public:
  static constexpr std::size_t kGatherBytes = 64 << 10;  ///< Most of an all_gather, a rank.
  /// What another rank needs to find this one's memory; plain bytes.
  using Handle = std::array<char, 256>;

  /// On the current device. capacity: bytes that an exchange may send one neighbour. Throws
  /// Error{invalid_argument} for more than kMostRanks ranks, Error{out_of_memory}.
  PeerMemory(int rank, int count, std::size_t capacity, std::chrono::milliseconds timeout);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  static constexpr int kMostRanks = peer::kPeers;

  int count() const { return count_; }
  const Handle& handle() const { return handle_; }
  /// Finds the others' memories; one entry a rank. Throws Error{unsupported} where one is on
  /// another host or cannot be reached: then no rank may exchange.
  void connect(const std::vector<Handle>& handles);

  std::size_t capacity() const { return capacity_; }
  /// Whether an exchange with neighbours fits: `largest` bytes to one of them, so many moves.
  bool fits(std::size_t largest, std::size_t moves) const {
    return largest <= capacity_ && moves <= peer::kMoves;
  }

  /// Puts `sends` into the neighbours' inboxes; then waits and takes `receives`. Where both are
  /// done at once: one launch.
  enum class Phase { put, take, both };
  void exchange(const std::vector<Move>& sends, const std::vector<Move>& receives, Phase phase,
                cudaStream_t stream);
  /// Every rank's `bytes`, at most kGatherBytes, one after another.
  void all_gather(const void* sent, void* received, std::size_t bytes, cudaStream_t stream);

  /// The rank that an exchange waited for in vain; the context of this rank is lost then.
  std::optional<int> late() const;
  /// Ends the kernels that wait.
  void give_up();

 private:
  /// One of the two kinds of exchange: flags and slots of its own.
  struct Channel {
    std::size_t flags = 0;  ///< Bytes from the start of a rank's memory, as are the others.
    std::size_t state = 0;
    std::size_t slots = 0;
    std::size_t slot_bytes = 0;
  };
  static constexpr std::size_t kFlagPitch = 128;  ///< A line of the cache for each.

  std::size_t inbox(const Channel& channel, int owner, int source) const;
  void add_move(peer::ExchangeParams& params, const Channel& channel, const Move& move,
                std::size_t offset, bool put) const;
  void add_peer(peer::ExchangeParams& params, const Channel& channel, int other) const;
  peer::ExchangeParams params_of(const Channel& channel) const;
  void run(const peer::ExchangeParams& params, cudaStream_t stream) const;
  bool is_beside(int other) const { return other == rank_ - 1 || other == rank_ + 1; }

  int rank_, count_, device_ = 0;
  std::size_t capacity_;
  std::chrono::milliseconds timeout_;
  Channel beside_, all_;
  Handle handle_{};
  std::shared_ptr<void> memory_;
  peer::Report* report_ = nullptr;  ///< In the host's memory.
  std::vector<char*> memories_;     ///< Of every rank, as this one sees them.
  std::vector<void*> opened_;       ///< Those that are to be closed.
};

}  // namespace convoy
