// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "convoy/error.hpp"
#include "convoy/shard.hpp"

namespace convoy {

/// Of what is known not to be negative.
inline std::size_t unsigned_of(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

/// Memory that goes to or comes from another rank: `count` pieces of `bytes`, `pitch` bytes apart.
struct Move {
  int peer = 0;
  char* data = nullptr;
  std::size_t bytes = 0;
  std::size_t count = 1;
  std::size_t pitch = 0;

  std::size_t total() const { return bytes * count; }
};

/// The moves that fill a rank's halos.
struct HaloMoves {
  std::vector<Move> sends, receives;
  std::size_t largest = 0;  ///< Bytes from one rank to another, the most of any; known to all.
};
/// Throws as exchange_halos does.
HaloMoves halo_moves(const ShardedTensor& tensor, int rank,
                     const std::vector<std::int64_t>& halo_begin,
                     const std::vector<std::int64_t>& halo_end);

/// What carries bytes between ranks. Every rank makes the same calls in the same order.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int count() const = 0;
  virtual const std::string& name() const = 0;
  /// Whether it moves the memory of CUDA devices; else the host's.
  virtual bool on_device() const = 0;

  /// Makes room for exchanges of so many bytes (HaloMoves::largest), where the transport has use
  /// for it. Every rank calls it.
  virtual void reserve(std::size_t largest) { (void)largest; }
  /// Begins to move the sends to their peers and the receives from theirs, in the order of
  /// `stream`; `finish`, with the same moves, waits for them, on the stream where it has one. One
  /// exchange is under way at a time. `staging`: staging_bytes() of device memory; null where that
  /// is 0.
  virtual void start(const HaloMoves& moves, void* staging, cudaStream_t stream) = 0;
  virtual void finish(const HaloMoves& moves, cudaStream_t stream) = 0;
  /// Both at once.
  virtual void exchange(const HaloMoves& moves, void* staging, cudaStream_t stream) {
    start(moves, staging, stream);
    finish(moves, stream);
  }
  /// Bytes that an exchange of these needs beside the tensors.
  virtual std::size_t staging_bytes(const HaloMoves& moves) const = 0;
  /// Every rank's `bytes`, one after another.
  virtual void all_gather(const void* sent, void* received, std::size_t bytes,
                          cudaStream_t stream) = 0;
  /// The same of host memory, waiting for it.
  virtual void all_gather_host(const void* sent, void* received, std::size_t bytes) = 0;
  /// `count` pieces of `bytes` from one pitch to another, where the transport's memory is.
  virtual void copy(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                    std::size_t bytes, std::size_t count, cudaStream_t stream) = 0;
  /// Memory for as long as the pointer lives.
  virtual std::shared_ptr<void> allocate(std::size_t bytes) = 0;
  virtual void synchronize(cudaStream_t stream) = 0;
  virtual void abort(const std::string& cause) = 0;

  /// Throws where a rank has something to say (its `fault` is not empty), or another `subject` than
  /// rank 0: the same text on every rank.
  void agree(const std::string& subject, const std::string& fault, Status status);
};

/// A rank without memory for its part tells the others, which would wait for it.
template <typename Work>
void telling(Transport& transport, Work work) {
  try {
    work();
  } catch (const std::bad_alloc&) {
    if (transport.count() > 1) transport.abort("out of memory");
    throw;
  } catch (const Error& error) {
    const bool alone = transport.count() == 1;
    if (!alone && error.status() == Status::out_of_memory) transport.abort(error.what());
    throw;
  }
}

/// NOTE: a time so far from now still fits the clock, whose nanoseconds have 64 bits.
constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(365 * 24);
inline std::chrono::milliseconds capped(std::chrono::milliseconds timeout) {
  return std::clamp(timeout, std::chrono::milliseconds(0), kLongestTimeout);
}

/// Those that take a time-out take one of at most kLongestTimeout.
std::vector<std::shared_ptr<Transport>> make_in_process(int count,
                                                        std::chrono::milliseconds timeout);
/// nccl.cpp, or nccl_none.cpp in a build without CUDA.
std::shared_ptr<Transport> wrap_nccl(void* comm, std::chrono::milliseconds timeout);
std::shared_ptr<Transport> make_nccl(const NcclId& id, int rank, int count,
                                     std::chrono::milliseconds timeout);
NcclId make_nccl_id();

}  // namespace convoy
