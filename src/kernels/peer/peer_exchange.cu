// SPDX-License-Identifier: Apache-2.0
//
// Exchanges alternate between two slots of an inbox. Slot reuse needs no answer: a rank puts
// exchange k after all of its k - 1, in which it took something of that peer, which the peer put
// after all of its k - 2: after it had taken what was in the slot that k goes to.
//
// Blocks of a rank do not wait for each other: each has the same part of a way as the peer's block
// of the same number, and puts a step before it waits for one. Ranks take their peers in the order
// of the ranks, so that of all pairs under way the first one can go on, however few blocks a GPU
// has room for.
#include "kernels/peer/peer_exchange.hpp"

#include <algorithm>
#include <cuda/atomic>

#include "kernels/common/launch.hpp"
#include "kernels/common/ptx.cuh"

namespace convoy::peer {
namespace {

constexpr int kThreads = 512;
constexpr int kVectorsOfThread = 4;  ///< Loads of a thread that are under way at once.
constexpr std::size_t kWordBytes = 4;
constexpr int kLeastStep = 16 << 10, kMostStep = 64 << 10;
constexpr std::uint64_t kStepsWanted = 8;  ///< Of a block, so that a step waits for little.

template <typename Value>
using SystemAtomic = cuda::atomic_ref<Value, cuda::thread_scope_system>;
template <typename Value>
using DeviceAtomic = cuda::atomic_ref<Value, cuda::thread_scope_device>;

// ---- Waiting ------------------------------------------------------------------------------------

__device__ std::uint64_t now_ns() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

/// How long one thread waits for one rank.
class Patience {
 public:
  __device__ Patience(const ExchangeParams& params, int rank) : params_(params), rank_(rank) {}

  /// Called each time that nothing had come; false where nothing is waited for any more.
  __device__ bool lasts() {
    // NOTE: the report is behind PCIe: a look takes as long as an exchange.
    constexpr int kPollsBetweenLooks = 1024;
    if (++polls_ % kPollsBetweenLooks != 0) return true;
    DeviceAtomic<std::uint32_t> gave_up(params_.state->gave_up);
    if (gave_up.load(cuda::memory_order_relaxed) != 0) return false;
    SystemAtomic<std::uint32_t> asked(params_.report->give_up);
    if (asked.load(cuda::memory_order_relaxed) != 0) {
      gave_up.store(1, cuda::memory_order_relaxed);
      return false;
    }
    const std::uint64_t time = now_ns();
    if (begin_ == 0) begin_ = time;
    if (time - begin_ < params_.timeout_ns) return true;
    // The first thread that waited for too long says so.
    if (gave_up.exchange(1, cuda::memory_order_relaxed) == 0) {
      SystemAtomic<std::uint32_t>(params_.report->late)
          .store(static_cast<std::uint32_t>(rank_) + 1, cuda::memory_order_release);
      __threadfence_system();
      // NOTE: what would follow reads rows that never came: no result is better than a wrong one.
      if (params_.traps) __trap();
    }
    return false;
  }

 private:
  const ExchangeParams& params_;
  int rank_;
  unsigned polls_ = 0;
  std::uint64_t begin_ = 0;
};

// ---- Steps --------------------------------------------------------------------------------------

__device__ char* place_of(const MoveParams& move, int vector) {
  const int piece = move.piece.divide(vector);
  return move.tensor + static_cast<std::uint64_t>(piece) * move.pitch +
         static_cast<std::uint64_t>(move.piece.remainder(vector, piece)) *
             static_cast<std::uint64_t>(move.vector_bytes);
}

/// Copies bytes [begin, end) of a move, whose inbox is given. Both sides are read and written
/// through the L2 cache, where other GPUs' writes arrive.
template <typename Vector, bool kToInbox>
__device__ void copy(const MoveParams& move, char* inbox, std::uint64_t begin, std::uint64_t end) {
  const auto in_inbox = [&](unsigned i) {
    return reinterpret_cast<Vector*>(inbox + static_cast<std::uint64_t>(i) * sizeof(Vector));
  };
  const auto in_tensor = [&](unsigned i) {
    return reinterpret_cast<Vector*>(place_of(move, static_cast<int>(i)));
  };
  const auto past = static_cast<unsigned>(end / sizeof(Vector));
  for (unsigned first = static_cast<unsigned>(begin / sizeof(Vector)) + threadIdx.x; first < past;
       first += kThreads * kVectorsOfThread) {
    Vector held[kVectorsOfThread];
#pragma unroll
    for (int u = 0; u < kVectorsOfThread; ++u) {
      const unsigned i = first + static_cast<unsigned>(u) * kThreads;
      if (i < past) held[u] = __ldcg(kToInbox ? in_tensor(i) : in_inbox(i));
    }
#pragma unroll
    for (int u = 0; u < kVectorsOfThread; ++u) {
      const unsigned i = first + static_cast<unsigned>(u) * kThreads;
      if (i < past) __stcg(kToInbox ? in_inbox(i) : in_tensor(i), held[u]);
    }
  }
}

/// Calls body(move, inbox of the move, begin, end) for what bytes [begin, end) of a way hold.
template <typename Body>
__device__ void each_move(const ExchangeParams& params, const WayParams& way, char* inbox,
                          std::uint64_t begin, std::uint64_t end, Body body) {
  for (int i = way.first; i < way.first + way.moves; ++i) {
    const MoveParams& move = params.move[i];
    const std::uint64_t from = max(begin, move.begin), to = min(end, move.begin + move.total);
    if (from < to) body(move, inbox, from - move.begin, to - move.begin);
  }
}

template <bool kToInbox>
__device__ void copy_step(const ExchangeParams& params, const WayParams& way, std::uint64_t slot,
                          int block, int step) {
  const std::uint64_t begin =
      (static_cast<std::uint64_t>(step) * static_cast<std::uint64_t>(way.blocks) +
       static_cast<std::uint64_t>(block)) *
      static_cast<std::uint64_t>(way.step_bytes);
  each_move(params, way, way.inbox + slot * way.slot_bytes, begin,
            begin + static_cast<std::uint64_t>(way.step_bytes),
            [](const MoveParams& move, char* inbox, std::uint64_t from, std::uint64_t to) {
              char* const at = inbox + move.begin;
              switch (move.vector_bytes) {
                case 16:
                  return copy<uint4, kToInbox>(move, at, from, to);
                case 8:
                  return copy<uint2, kToInbox>(move, at, from, to);
                case 4:
                  return copy<unsigned, kToInbox>(move, at, from, to);
                case 2:
                  return copy<unsigned short, kToInbox>(move, at, from, to);
                default:
                  return copy<unsigned char, kToInbox>(move, at, from, to);
              }
            });
}

__device__ SystemAtomic<std::uint64_t> flag_of(const WayParams& way, int block) {
  return SystemAtomic<std::uint64_t>(
      *reinterpret_cast<std::uint64_t*>(way.flags + static_cast<std::size_t>(block) * kFlagPitch));
}

__device__ void put_step(const ExchangeParams& params, const WayParams& way, std::uint64_t sequence,
                         int block, int step) {
  copy_step<true>(params, way, sequence % 2, block, step);
  // NOTE: the barrier orders the block's writes before the release, which orders them before the
  // flag for every other GPU: a release is cumulative (PTX ISA, memory consistency model).
  __syncthreads();
  if (threadIdx.x == 0) {
    flag_of(way, block)
        .store(sequence * kStepsOfExchange + static_cast<std::uint64_t>(step) + 1,
               cuda::memory_order_release);
  }
}

/// False where the peer did not come.
__device__ bool take_step(const ExchangeParams& params, const WayParams& way, int rank,
                          std::uint64_t sequence, int block, int step) {
  bool gave_up = false;
  if (threadIdx.x == 0) {
    const std::uint64_t wanted = sequence * kStepsOfExchange + static_cast<std::uint64_t>(step) + 1;
    const auto flag = flag_of(way, block);
    Patience patience(params, rank);
    while (!gave_up && flag.load(cuda::memory_order_acquire) < wanted) gave_up = !patience.lasts();
  }
  if (__syncthreads_or(gave_up ? 1 : 0) != 0) return false;
  copy_step<false>(params, way, sequence % 2, block, step);
  return true;
}

// ---- Cells --------------------------------------------------------------------------------------

/// Calls body(cell, move, first byte) for each 4 bytes of this block.
template <typename Body>
__device__ void each_cell(const ExchangeParams& params, const WayParams& way, std::uint64_t slot,
                          int block, Body body) {
  const std::uint64_t begin =
      static_cast<std::uint64_t>(block) * static_cast<std::uint64_t>(way.step_bytes);
  each_move(params, way, way.inbox + slot * way.slot_bytes, begin,
            begin + static_cast<std::uint64_t>(way.step_bytes),
            [&](const MoveParams& move, char* inbox, std::uint64_t from, std::uint64_t to) {
              auto* const cells = reinterpret_cast<std::uint64_t*>(inbox);
              for (std::uint64_t byte = from + threadIdx.x * kWordBytes; byte < to;
                   byte += kThreads * kWordBytes) {
                body(cells[(move.begin + byte) / kWordBytes], move, static_cast<unsigned>(byte));
              }
            });
}

/// Where a byte of a move is; with those behind it up to the end of the vector.
__device__ char* place_of_byte(const MoveParams& move, unsigned byte) {
  const auto vector = static_cast<unsigned>(move.vector_bytes);
  return place_of(move, static_cast<int>(byte / vector)) + byte % vector;
}

__device__ std::uint32_t number_of(std::uint64_t sequence) {
  return static_cast<std::uint32_t>(sequence) + 1;
}

__device__ void put_cells(const ExchangeParams& params, const WayParams& way,
                          std::uint64_t sequence, int block) {
  each_cell(params, way, sequence % 2, block,
            [&](std::uint64_t& cell, const MoveParams& move, unsigned byte) {
              std::uint32_t word = 0;
              if (move.vector_bytes >= static_cast<int>(kWordBytes)) {
                word = __ldcg(reinterpret_cast<const unsigned*>(place_of_byte(move, byte)));
              } else {
                for (unsigned i = 0; i < kWordBytes && byte + i < move.total; ++i) {
                  const auto* const at =
                      reinterpret_cast<const unsigned char*>(place_of_byte(move, byte + i));
                  word |= static_cast<std::uint32_t>(__ldcg(at)) << (8 * i);
                }
              }
              // NOTE: 8 bytes arrive as one, wherever they come from.
              SystemAtomic<std::uint64_t>(cell).store(
                  static_cast<std::uint64_t>(number_of(sequence)) << 32 | word,
                  cuda::memory_order_relaxed);
            });
}

__device__ void take_cells(const ExchangeParams& params, const WayParams& way, int rank,
                           std::uint64_t sequence, int block) {
  Patience patience(params, rank);
  bool gave_up = false;
  each_cell(params, way, sequence % 2, block,
            [&](std::uint64_t& cell, const MoveParams& move, unsigned byte) {
              std::uint64_t found = 0;
              while (!gave_up) {
                found = SystemAtomic<std::uint64_t>(cell).load(cuda::memory_order_relaxed);
                if (static_cast<std::uint32_t>(found >> 32) == number_of(sequence)) break;
                gave_up = !patience.lasts();
              }
              if (gave_up) return;
              const auto word = static_cast<std::uint32_t>(found);
              if (move.vector_bytes >= static_cast<int>(kWordBytes)) {
                __stcg(reinterpret_cast<unsigned*>(place_of_byte(move, byte)), word);
                return;
              }
              for (unsigned i = 0; i < kWordBytes && byte + i < move.total; ++i) {
                __stcg(reinterpret_cast<unsigned char*>(place_of_byte(move, byte + i)),
                       static_cast<unsigned char>(word >> (8 * i)));
              }
            });
}

// ---- The kernel ---------------------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads, 1)
    exchange_kernel(const __grid_constant__ ExchangeParams params) {
  ptx::dependent_launch_wait();
  ptx::dependent_launch_trigger();
  // NOTE: read before any thread of this block counts it in: the quotient is the same in all.
  __shared__ std::uint64_t shared_sequence;
  DeviceAtomic<std::uint64_t> arrived(params.state->arrived);
  if (threadIdx.x == 0) shared_sequence = arrived.load(cuda::memory_order_relaxed) / kArrivals;
  __syncthreads();
  const std::uint64_t sequence = shared_sequence;

  int index = 0, block = static_cast<int>(blockIdx.x);
  while (block >= params.peer[index].blocks) block -= params.peer[index++].blocks;
  const PeerParams& peer = params.peer[index];
  const WayParams &put = peer.put, &take = peer.take;
  const bool puts = block < put.blocks, takes = block < take.blocks;
  if (puts && put.cells) put_cells(params, put, sequence, block);
  const int put_steps = puts && !put.cells ? put.steps : 0;
  const int take_steps = takes && !take.cells ? take.steps : 0;
  for (int step = 0; step < put_steps || step <= take_steps; ++step) {
    if (step < put_steps) put_step(params, put, sequence, block, step);
    if (step > 0 && step <= take_steps &&
        !take_step(params, take, peer.rank, sequence, block, step - 1)) {
      return;
    }
  }
  if (takes && take.cells) take_cells(params, take, peer.rank, sequence, block);
  if (params.ends && threadIdx.x == 0) {
    arrived.fetch_add(blockIdx.x == 0 ? kArrivals - (gridDim.x - 1) : 1,
                      cuda::memory_order_relaxed);
  }
}

std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

void divide(WayParams& way) {
  way.cells = way.bytes > 0 && way.bytes <= kSmallBytes;
  if (way.cells) {
    way.step_bytes = kThreads * static_cast<int>(kWordBytes);
    way.steps = 1;
    way.blocks = static_cast<int>(ceil_div(way.bytes, kThreads * kWordBytes));
    return;
  }
  way.step_bytes = kLeastStep;
  while (way.step_bytes < kMostStep &&
         static_cast<std::uint64_t>(way.step_bytes) * kBlocks * kStepsWanted < way.bytes) {
    way.step_bytes *= 2;
  }
  const auto step = static_cast<std::uint64_t>(way.step_bytes);
  way.blocks = static_cast<int>(std::clamp<std::uint64_t>(ceil_div(way.bytes, step), 1, kBlocks));
  way.steps = std::max(
      static_cast<int>(ceil_div(way.bytes, step * static_cast<std::uint64_t>(way.blocks))), 1);
}

void launch(ExchangeParams& params, cudaStream_t stream) {
  int blocks = 0;
  for (int i = 0; i < params.peers; ++i) {
    PeerParams& peer = params.peer[i];
    peer.blocks = std::max(peer.put.blocks, peer.take.blocks);
    blocks += peer.blocks;
  }
  launch_kernel(exchange_kernel,
                {.name = "peer_exchange",
                 .grid = dim3(static_cast<unsigned>(blocks)),
                 .block = dim3(kThreads),
                 .stream = stream,
                 .overlapped = true},
                params);
}

}  // namespace convoy::peer
