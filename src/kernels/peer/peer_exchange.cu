// SPDX-License-Identifier: Apache-2.0
//
// Exchanges alternate between two slots of an inbox. Slot reuse needs no answer: a rank puts
// exchange k after it took k - 1 of that peer, which the peer put after it took k - 2, out of the
// slot that k goes to.
#include "kernels/peer/peer_exchange.hpp"

#include <algorithm>
#include <cuda/atomic>

#include "kernels/common/launch.hpp"

namespace convoy::peer {
namespace {

constexpr int kThreads = 256;
// NOTE: blocks that wait hold their multiprocessor, and those of both ranks must all be able to
// begin; no device with NVLink has fewer.
constexpr int kMostBlocks = 64;
constexpr int kVectorsOfThread = 4;  ///< Loads of a thread that are under way at once.

template <typename Value>
using SystemAtomic = cuda::atomic_ref<Value, cuda::thread_scope_system>;
template <typename Value>
using DeviceAtomic = cuda::atomic_ref<Value, cuda::thread_scope_device>;

/// Copies this block's share of a move. Both sides are read and written through the L2 cache, where
/// other GPUs' writes arrive.
template <typename Vector, bool kToInbox>
__device__ void copy(const MoveParams& move, std::uint64_t slot) {
  char* const inbox = move.inbox + slot;
  const int stride = static_cast<int>(gridDim.x) * kThreads;
  const int vectors = static_cast<int>(move.vectors);
  const auto in_tensor = [&](int i) {
    const int piece = move.piece.divide(i);
    return reinterpret_cast<Vector*>(move.tensor + static_cast<std::uint64_t>(piece) * move.pitch +
                                     static_cast<std::uint64_t>(move.piece.remainder(i, piece)) *
                                         sizeof(Vector));
  };
  const auto in_inbox = [&](int i) {
    return reinterpret_cast<Vector*>(inbox + static_cast<std::uint64_t>(i) * sizeof(Vector));
  };
  // NOTE: unsigned, so that the last step past 2^31 does not overflow.
  for (unsigned first = blockIdx.x * kThreads + threadIdx.x; first < static_cast<unsigned>(vectors);
       first += static_cast<unsigned>(stride) * kVectorsOfThread) {
    Vector held[kVectorsOfThread];
#pragma unroll
    for (int u = 0; u < kVectorsOfThread; ++u) {
      const unsigned i = first + static_cast<unsigned>(u * stride);
      if (i < static_cast<unsigned>(vectors)) {
        held[u] = __ldcg(kToInbox ? in_tensor(static_cast<int>(i)) : in_inbox(static_cast<int>(i)));
      }
    }
#pragma unroll
    for (int u = 0; u < kVectorsOfThread; ++u) {
      const unsigned i = first + static_cast<unsigned>(u * stride);
      if (i < static_cast<unsigned>(vectors)) {
        __stcg(kToInbox ? in_inbox(static_cast<int>(i)) : in_tensor(static_cast<int>(i)), held[u]);
      }
    }
  }
}

template <bool kToInbox>
__device__ void copy_move(const MoveParams& move, std::uint64_t slot) {
  switch (move.vector_bytes) {
    case 16:
      return copy<uint4, kToInbox>(move, slot);
    case 8:
      return copy<uint2, kToInbox>(move, slot);
    case 4:
      return copy<unsigned, kToInbox>(move, slot);
    case 2:
      return copy<unsigned short, kToInbox>(move, slot);
    default:
      return copy<unsigned char, kToInbox>(move, slot);
  }
}

__device__ std::uint64_t now_ns() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

/// Waits until the flag has reached `sequence`; false where the host or another block gave up.
__device__ bool wait_for(const ExchangeParams& params, int peer, std::uint32_t sequence) {
  constexpr int kPollsBetweenLooks = 256;
  SystemAtomic<std::uint32_t> flag(*params.waited[peer]);
  DeviceAtomic<std::uint32_t> gave_up(params.state->gave_up);
  std::uint64_t begin = 0;
  for (int polls = 0;; ++polls) {
    // NOTE: as a difference: the counts wrap round.
    if (static_cast<std::int32_t>(flag.load(cuda::memory_order_acquire) - sequence) >= 0) {
      return true;
    }
    if (polls % kPollsBetweenLooks != 0) continue;
    if (gave_up.load(cuda::memory_order_relaxed) != 0) return false;
    if (SystemAtomic<std::uint32_t>(params.report->give_up).load(cuda::memory_order_relaxed) != 0) {
      gave_up.store(1, cuda::memory_order_relaxed);
      return false;
    }
    const std::uint64_t time = now_ns();
    if (begin == 0) begin = time;
    if (time - begin < params.timeout_ns) continue;
    // The first block that is late says so.
    if (gave_up.exchange(1, cuda::memory_order_relaxed) == 0) {
      SystemAtomic<std::uint32_t>(params.report->late)
          .store(static_cast<std::uint32_t>(params.rank_of[peer]) + 1, cuda::memory_order_release);
      __threadfence_system();
      // NOTE: what would follow reads rows that never came: no result is better than a wrong one.
      __trap();
    }
    return false;
  }
}

/// Counts this block in; true in all of its threads where it is the last one.
__device__ bool is_last(std::uint32_t& arrived) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    // NOTE: the fence makes the block's writes, ordered before it by the barrier, visible to other
    // GPUs before the flag that the last block raises.
    __threadfence_system();
    last = DeviceAtomic<std::uint32_t>(arrived).fetch_add(1, cuda::memory_order_acq_rel) ==
           gridDim.x - 1;
  }
  __syncthreads();
  return last;
}

__global__ void __launch_bounds__(kThreads)
    exchange_kernel(const __grid_constant__ ExchangeParams params) {
  State& state = *params.state;
  const std::uint32_t sequence =
      DeviceAtomic<std::uint32_t>(state.sequence).load(cuda::memory_order_relaxed);
  const std::uint64_t slot = sequence % 2 != 0 ? params.slot_bytes : 0;
  if (params.put) {
    for (int i = 0; i < params.puts; ++i) copy_move<true>(params.moves[i], slot);
    if (is_last(state.put_blocks)) {
      if (threadIdx.x == 0) state.put_blocks = 0;
      if (threadIdx.x < static_cast<unsigned>(params.peers)) {
        __threadfence_system();
        SystemAtomic<std::uint32_t>(*params.raised[threadIdx.x])
            .store(sequence + 1, cuda::memory_order_release);
      }
    }
  }
  if (params.take) {
    __shared__ bool come;
    if (threadIdx.x == 0) {
      come = true;
      for (int peer = 0; peer < params.peers; ++peer) {
        come = come && wait_for(params, peer, sequence + 1);
      }
    }
    __syncthreads();
    if (come) {
      for (int i = 0; i < params.takes; ++i) copy_move<false>(params.moves[params.puts + i], slot);
    }
    if (is_last(state.take_blocks) && threadIdx.x == 0) {
      state.take_blocks = 0;
      DeviceAtomic<std::uint32_t>(state.sequence).store(sequence + 1, cuda::memory_order_relaxed);
    }
  }
}

}  // namespace

void launch(const ExchangeParams& params, cudaStream_t stream) {
  std::int64_t most = 0;  // Vectors of the larger phase.
  std::int64_t phase = 0;
  for (int i = 0; i < params.puts + params.takes; ++i) {
    if (i == params.puts) phase = 0;
    phase += params.moves[i].vectors;
    most = std::max(most, phase);
  }
  const auto blocks = static_cast<unsigned>(
      std::clamp<std::int64_t>(most / (kThreads * kVectorsOfThread), 1, kMostBlocks));
  launch_kernel(
      exchange_kernel,
      {.name = "peer_exchange", .grid = dim3(blocks), .block = dim3(kThreads), .stream = stream},
      params);
}

}  // namespace convoy::peer
