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
/// capacity, gives its handle to all, connects, and makes the same exchanges in the same order, by
/// one thread at a time. Halos go to the ranks beside it; small tensors to all.
///
/// Exchanges of several streams run in the order of the calls. What is captured into a graph runs
/// where the graph is launched: all ranks launch it at the same place of their order.
class PeerMemory {
 public:
  static constexpr std::size_t kGatherBytes = peer::kSmallBytes;  ///< Most of a gather, a rank.
  static constexpr int kMostRanks = peer::kPeers;
  /// What another rank needs to find this one's memory; plain bytes.
  using Handle = std::array<char, 256>;

  /// On the current device. capacity: bytes that an exchange may send one neighbour. Throws
  /// Error{invalid_argument} for more than kMostRanks ranks, Error{out_of_memory}.
  PeerMemory(int rank, int count, std::size_t capacity, std::chrono::milliseconds timeout);
  /// Waits for what this rank has enqueued. The memory is freed once all ranks that it exchanged
  /// with have destroyed theirs: now, or when the next one is made or destroyed.
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  int count() const { return count_; }
  const Handle& handle() const { return handle_; }
  /// Finds the others' memories; one entry a rank. Throws Error{unsupported} where one is on
  /// another host or cannot be reached: then no rank may exchange.
  void connect(const std::vector<Handle>& handles);
  /// A first all_gather that all ranks take part in, with a time-out of its own that costs nothing
  /// but these peers. Throws Error{unsupported} where other bytes came, or none: there are machines
  /// that say that their GPUs reach each other, and lose what they write.
  void try_out(std::chrono::milliseconds timeout) { end_trial(*begin_trial(timeout)); }
  /// The same in two steps: what is under way, and the wait for it.
  struct Trial;
  std::shared_ptr<Trial> begin_trial(std::chrono::milliseconds timeout);
  void end_trial(Trial& trial) const;

  std::size_t capacity() const { return capacity_; }

  /// Puts `sends` into the neighbours' inboxes; then waits and takes `receives`. Where both are
  /// done at once: one launch. A put is followed by its take.
  enum class Phase { put, take, both };
  void exchange(const std::vector<Move>& sends, const std::vector<Move>& receives, Phase phase,
                cudaStream_t stream);
  /// Every rank's `bytes`, at most kGatherBytes, one after another.
  void all_gather(const void* sent, void* received, std::size_t bytes, cudaStream_t stream);

  /// Memories of this process that are destroyed, and not freed yet.
  static std::size_t kept();

  /// The rank that an exchange waited for in vain; the context of this rank is lost then.
  std::optional<int> late() const;
  /// Ends the kernels that wait; nothing is exchanged any more.
  void give_up();

 private:
  /// One of the two kinds of exchange: counts, flags and slots of its own. Bytes from the start of
  /// a rank's memory.
  struct Channel {
    std::size_t state = 0;
    std::size_t flags = 0;  ///< Of each rank that puts here, one a block.
    std::size_t cells = 0;  ///< Two slots of each, one after another.
    std::size_t slots = 0;  ///< The same.
    std::size_t slot_bytes = 0;
  };
  struct Estate;
  class Order;

  void add_way(peer::ExchangeParams& params, const Channel& channel, const std::vector<Move>& moves,
               int other, bool put) const;
  peer::ExchangeParams params_of(const Channel& channel) const;
  void gather(const void* sent, void* received, std::size_t bytes, cudaStream_t stream,
              std::chrono::milliseconds timeout, bool traps);
  void run(peer::ExchangeParams& params, cudaStream_t stream);

  int rank_, count_, device_ = 0;
  std::size_t capacity_;
  std::chrono::milliseconds timeout_;
  Channel beside_, all_;
  std::size_t trial_ = 0;  ///< Where the first exchange sends from, and what comes.
  Handle handle_{};
  bool putting_ = false;         ///< A put has not been taken yet.
  std::vector<char*> memories_;  ///< Of every rank, as this one sees them.
  std::unique_ptr<Estate> estate_;
  std::unique_ptr<Order> order_;
};

}  // namespace convoy
