// SPDX-License-Identifier: Apache-2.0
//
// An exchange between GPUs that can write each other's memory (NVLink, PCIe): each rank puts its
// rows into an inbox of its peer, and takes what the peer put into its own. One launch, or two with
// other work between them.
//
// Few bytes go as cells of 8 bytes, 4 of them the number of the exchange: who waits for them reads
// cells until all are of this exchange, and there is no fence and no flag. More bytes go in steps;
// behind each step the block raises a flag, and takes the step before while the next one travels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/common/fast_divide.hpp"

namespace convoy::peer {

constexpr int kPeers = 8;                      ///< Ranks that one exchange reaches at most.
constexpr int kMoves = 16;                     ///< Of one launch: puts and takes together.
constexpr int kBlocks = 128;                   ///< For one way between two ranks, at most.
constexpr std::size_t kCellBytes = 8;          ///< For 4 bytes.
constexpr std::size_t kSmallBytes = 64 << 10;  ///< So many of one way go as cells.
constexpr std::size_t kFlagPitch = 32;         ///< A sector each.
constexpr std::uint64_t kStepsOfExchange = 1 << 16;

/// A rank's count of exchanges, in its own memory.
struct State {
  /// kArrivals for each exchange that is over: its blocks add 1 each, and the first one the rest.
  std::uint64_t arrived = 0;
  std::uint32_t gave_up = 0;  ///< Nothing is waited for any more.
};
constexpr std::uint64_t kArrivals = 1 << 10;
static_assert(kPeers * kBlocks <= kArrivals);

/// What a kernel tells the host, in the host's memory, and the host a kernel.
struct Report {
  std::uint32_t late = 0;     ///< 1 + the first rank that did not come within the time-out.
  std::uint32_t give_up = 0;  ///< The host asks kernels to end.
};

/// `total` bytes as pieces of `bytes`, `pitch` apart in a tensor and dense in an inbox.
struct MoveParams {
  char* tensor = nullptr;
  std::uint64_t begin = 0;  ///< In the inbox; a multiple of 256.
  std::uint64_t total = 0;
  std::uint64_t pitch = 0;
  FastDivide piece;       ///< By the vectors of a piece. NOTE: there are less than 2^31 in all.
  int vector_bytes = 16;  ///< 16, 8, 4, 2 or 1: what begins and ends where the pieces do.
};

/// One way between two ranks: what one of them puts. Both know its bytes, and hence the rest.
struct WayParams {
  char* inbox = nullptr;  ///< Of an even exchange; an odd one's lies slot_bytes behind it.
  std::uint64_t slot_bytes = 0;
  char* flags = nullptr;     ///< One for each block, kFlagPitch apart.
  std::uint64_t bytes = 0;   ///< In the inbox.
  int first = 0, moves = 0;  ///< move[first .. first + moves)
  int blocks = 0;            ///< 0: nothing to do in this launch. 1 at least where there is.
  int steps = 0;             ///< Of each block.
  int step_bytes = 0;
  bool cells = false;
};

/// Sets blocks, steps and what goes with them, by `bytes`. NOTE: a way of no bytes raises a flag
/// too: what a rank took is how the others know that a slot is free.
void divide(WayParams& way);

struct PeerParams {
  WayParams put, take;
  int rank = 0;    ///< For the report.
  int blocks = 0;  ///< The more of the two.
};

struct ExchangeParams {
  State* state = nullptr;
  Report* report = nullptr;
  std::uint64_t timeout_ns = 0;
  bool traps = true;  ///< Where a rank is late.
  bool ends = true;   ///< The exchange is over with this launch.
  int peers = 0, moves = 0;
  PeerParams peer[kPeers];
  MoveParams move[kMoves];
};

/// Enqueues an exchange. All ranks make the same exchanges in the same order, each on streams that
/// keep that order. A kernel that waits for longer than the time-out writes the report and traps.
void launch(ExchangeParams& params, cudaStream_t stream);

}  // namespace convoy::peer
