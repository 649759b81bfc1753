// SPDX-License-Identifier: Apache-2.0
//
// An exchange between GPUs that can write each other's memory (NVLink, PCIe): each rank puts its
// rows into an inbox of its peer and raises a flag there, waits for its own flags, and takes what
// came. One launch, or two with other work between them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/common/fast_divide.hpp"

namespace convoy::peer {

constexpr int kPeers = 8;   ///< Ranks that one exchange reaches at most.
constexpr int kMoves = 16;  ///< Of one launch: puts and takes together.

/// A rank's count of exchanges, in its own memory. An exchange raises it when it has taken all.
struct State {
  std::uint32_t sequence = 0;
  std::uint32_t put_blocks = 0;   ///< Blocks of this exchange that have put their part.
  std::uint32_t take_blocks = 0;  ///< Blocks that have taken theirs.
  std::uint32_t gave_up = 0;      ///< Nothing is waited for any more.
};

/// What a kernel tells the host, in the host's memory, and the host a kernel.
struct Report {
  std::uint32_t late = 0;     ///< 1 + the first rank that did not come within the time-out.
  std::uint32_t give_up = 0;  ///< The host asks kernels to end.
};

/// `count` pieces of `bytes`, `pitch` apart in a tensor and dense in an inbox.
struct MoveParams {
  char* tensor = nullptr;
  char* inbox = nullptr;  ///< Of an even exchange; an odd one's lies `slot_bytes` behind it.
  std::uint64_t pitch = 0;
  std::uint64_t bytes = 0;
  std::int64_t vectors = 0;  ///< In all pieces; below 2^31.
  FastDivide piece;          ///< By the vectors of a piece.
  int vector_bytes = 16;     ///< 16, 8, 4, 2 or 1.
};

struct ExchangeParams {
  State* state = nullptr;
  Report* report = nullptr;
  std::uint64_t slot_bytes = 0;
  std::uint64_t timeout_ns = 0;
  int puts = 0;   ///< moves[0 .. puts)
  int takes = 0;  ///< moves[puts .. puts + takes)
  int peers = 0;
  bool put = true;                     ///< This launch puts.
  bool take = true;                    ///< This launch waits and takes.
  std::uint32_t* raised[kPeers] = {};  ///< Flags in the peers' memories.
  std::uint32_t* waited[kPeers] = {};  ///< This rank's, which they raise.
  int rank_of[kPeers] = {};            ///< The peers, for the report.
  MoveParams moves[kMoves];
};

/// Enqueues an exchange. All ranks make the same exchanges in the same order, each on streams that
/// keep that order. A kernel that waits for longer than the time-out writes the report and traps.
void launch(const ExchangeParams& params, cudaStream_t stream);

}  // namespace convoy::peer
