// SPDX-License-Identifier: Apache-2.0
#include "shard/peers.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "core/text.hpp"
#include "dispatch/device.hpp"
#include "kernels/common/launch.hpp"

namespace convoy {
namespace {

/// What is in a handle.
struct Address {
  char host[64] = {};  ///< The kernel's boot identifier: the same in every container of a host.
  std::int64_t process = 0;
  void* memory = nullptr;  ///< As its process sees it.
  int device = 0;          ///< As its process counts.
  std::uint64_t capacity = 0;
  cudaIpcMemHandle_t shared{};
};
static_assert(sizeof(Address) <= sizeof(PeerMemory::Handle));

Address address_of(const PeerMemory::Handle& handle) {
  Address address;
  std::memcpy(&address, handle.data(), sizeof(address));
  return address;
}

std::size_t rounded(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

void name_host(char (&host)[64]) {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  boot.copy(host, sizeof(host) - 1);
}

}  // namespace

PeerMemory::PeerMemory(int rank, int count, std::size_t capacity, std::chrono::milliseconds timeout)
    : rank_(rank), count_(count), capacity_(rounded(capacity)), timeout_(timeout) {
  if (count < 1 || count > kMostRanks) {
    throw_invalid("count = ", count, " ranks cannot write each other's memory; legal: 1 to ",
                  kMostRanks);
  }
  if (rank < 0 || rank >= count) {
    throw_invalid("rank = ", rank, " is not legal; legal: 0 to ", count - 1);
  }
  require_runtime("cudaGetDevice", [&] { return cudaGetDevice(&device_); });
  const auto ranks = unsigned_of(count);
  std::size_t bytes = 0;
  const auto place = [&](std::size_t size) {
    const std::size_t at = bytes;
    bytes += rounded(size);
    return at;
  };
  for (Channel* channel : {&beside_, &all_}) {
    channel->flags = place(ranks * kFlagPitch);
    channel->state = place(sizeof(peer::State));
  }
  const std::size_t cleared = bytes;
  beside_.slot_bytes = capacity_;
  all_.slot_bytes = kGatherBytes;
  beside_.slots = place(2 * 2 * capacity_);
  all_.slots = place(2 * ranks * kGatherBytes);
  memory_ = allocate_device_memory(bytes);
  require_runtime("cudaMemset", [&] { return cudaMemset(memory_.get(), 0, cleared); });
  require_runtime("cudaStreamSynchronize", [&] { return cudaStreamSynchronize(nullptr); });
  void* report = nullptr;
  require_runtime("cudaHostAlloc", [&] {
    return cudaHostAlloc(&report, sizeof(peer::Report),
                         cudaHostAllocMapped | cudaHostAllocPortable);
  });
  report_ = new (report) peer::Report;

  Address mine;
  name_host(mine.host);
  mine.process = getpid();
  mine.memory = memory_.get();
  mine.device = device_;
  mine.capacity = capacity_;
  // NOTE: memory that cannot be shared (a virtual GPU) may still be reached within the process.
  (void)call_runtime([&] { return cudaIpcGetMemHandle(&mine.shared, memory_.get()); });
  std::memcpy(handle_.data(), &mine, sizeof(mine));
}

PeerMemory::~PeerMemory() {
  const DeviceScope scope(device_);
  for (void* memory : opened_) (void)call_runtime([&] { return cudaIpcCloseMemHandle(memory); });
  if (report_ != nullptr) (void)call_runtime([&] { return cudaFreeHost(report_); });
}

void PeerMemory::connect(const std::vector<Handle>& handles) {
  if (handles.size() != unsigned_of(count_)) {
    throw_invalid("handles has ", handles.size(), " entries; legal: one a rank, ", count_);
  }
  const DeviceScope scope(device_);
  const Address mine = address_of(handle_);
  std::vector<char*> found(handles.size());
  for (int other = 0; other < count_; ++other) {
    const Address address = address_of(handles[unsigned_of(other)]);
    void* memory = address.memory;
    const auto refuse = [&](const std::string& why) {
      throw Error(Status::unsupported,
                  text("rank ", rank_, " cannot write the memory of rank ", other, ": ", why));
    };
    if (address.capacity != capacity_) {
      refuse(text("its inbox has ", address.capacity, " bytes, this one's ", capacity_));
    }
    if (std::memcmp(address.host, mine.host, sizeof(mine.host)) != 0) refuse("another host");
    if (other == rank_) {
      memory = memory_.get();
    } else if (address.process != mine.process) {
      const cudaError_t error = call_runtime([&] {
        return cudaIpcOpenMemHandle(&memory, address.shared, cudaIpcMemLazyEnablePeerAccess);
      });
      if (error != cudaSuccess) refuse("cudaIpcOpenMemHandle: " + error_text(error));
      opened_.push_back(memory);
    } else if (address.device != device_) {
      int can = 0;
      require_runtime("cudaDeviceCanAccessPeer",
                      [&] { return cudaDeviceCanAccessPeer(&can, device_, address.device); });
      if (can == 0) refuse(text("device ", device_, " does not reach device ", address.device));
      const cudaError_t error =
          call_runtime([&] { return cudaDeviceEnablePeerAccess(address.device, 0); });
      if (error != cudaSuccess && error != cudaErrorPeerAccessAlreadyEnabled) {
        refuse("cudaDeviceEnablePeerAccess: " + error_text(error));
      }
    }
    found[unsigned_of(other)] = static_cast<char*>(memory);
  }
  memories_ = std::move(found);
}

/// Where `owner` has the even slot of what `source` puts: the odd one lies behind it.
std::size_t PeerMemory::inbox(const Channel& channel, int owner, int source) const {
  const std::size_t index =
      &channel == &all_ ? unsigned_of(source) : (source < owner ? std::size_t{0} : std::size_t{1});
  return channel.slots + index * 2 * channel.slot_bytes;
}

peer::ExchangeParams PeerMemory::params_of(const Channel& channel) const {
  if (memories_.empty()) throw Error(Status::internal, "peers are not connected");
  peer::ExchangeParams params;
  params.state = reinterpret_cast<peer::State*>(memories_[unsigned_of(rank_)] + channel.state);
  params.report = report_;
  params.slot_bytes = channel.slot_bytes;
  params.timeout_ns = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(timeout_).count());
  return params;
}

void PeerMemory::add_peer(peer::ExchangeParams& params, const Channel& channel, int other) const {
  const auto flag = [&](int owner, int source) {
    return reinterpret_cast<std::uint32_t*>(memories_[unsigned_of(owner)] + channel.flags +
                                            unsigned_of(source) * kFlagPitch);
  };
  params.raised[params.peers] = flag(other, rank_);
  params.waited[params.peers] = flag(rank_, other);
  params.rank_of[params.peers] = other;
  ++params.peers;
}

void PeerMemory::add_move(peer::ExchangeParams& params, const Channel& channel, const Move& move,
                          std::size_t offset, bool put) const {
  peer::MoveParams& to = params.moves[params.puts + params.takes];
  const int owner = put ? move.peer : rank_, source = put ? rank_ : move.peer;
  to.tensor = move.data;
  to.inbox = memories_[unsigned_of(owner)] + inbox(channel, owner, source) + offset;
  to.pitch = move.pitch;
  to.bytes = move.bytes;
  // The widest vector that begins, ends and repeats where the rows do.
  const std::size_t pitch = move.count > 1 ? move.pitch : 0;
  const std::size_t all = reinterpret_cast<std::size_t>(move.data) | pitch | move.bytes | offset;
  to.vector_bytes = static_cast<int>(std::min<std::size_t>(all & (~all + 1), 16));
  const std::size_t vectors = move.total() / unsigned_of(to.vector_bytes);
  if (vectors >= std::size_t{1} << 31) {
    throw_invalid("an exchange of ", move.total(), " bytes with one rank is too long");
  }
  to.vectors = static_cast<std::int64_t>(vectors);
  to.piece = FastDivide(static_cast<std::int64_t>(move.bytes) / to.vector_bytes);
  ++(put ? params.puts : params.takes);
}

void PeerMemory::run(const peer::ExchangeParams& params, cudaStream_t stream) const {
  if (const auto rank = late()) {
    throw Error(Status::launch_failure,
                text("rank ", rank_, " of ", count_, " waited ", timeout_.count(),
                     " ms for the rows of rank ", *rank, ": it is gone or makes other calls"));
  }
  const DeviceScope scope(device_);
  peer::launch(params, stream);
}

void PeerMemory::exchange(const std::vector<Move>& sends, const std::vector<Move>& receives,
                          Phase phase, cudaStream_t stream) {
  peer::ExchangeParams params = params_of(beside_);
  params.put = phase != Phase::take;
  params.take = phase != Phase::put;
  // Both sides lay the pieces of a pair of ranks one after another, in the same order.
  const auto add = [&](const std::vector<Move>& moves, bool put) {
    std::size_t offsets[2] = {};
    for (const Move& move : moves) {
      if (!is_beside(move.peer) || move.peer < 0 || move.peer >= count_) {
        throw_invalid("a move to rank ", move.peer, " from rank ", rank_,
                      "; legal: the ranks beside it");
      }
      std::size_t& offset = offsets[move.peer < rank_ ? 0 : 1];
      if (offset + move.total() > capacity_) {
        throw_invalid("an exchange of more than ", capacity_, " bytes with rank ", move.peer);
      }
      if (params.puts + params.takes == peer::kMoves) {
        throw_invalid("an exchange of more than ", peer::kMoves, " moves");
      }
      add_move(params, beside_, move, offset, put);
      offset += rounded(move.total());
    }
  };
  if (params.put) add(sends, true);
  if (params.take) add(receives, false);
  for (const int other : {rank_ - 1, rank_ + 1}) {
    if (other >= 0 && other < count_) add_peer(params, beside_, other);
  }
  run(params, stream);
}

void PeerMemory::all_gather(const void* sent, void* received, std::size_t bytes,
                            cudaStream_t stream) {
  if (bytes > kGatherBytes) {
    throw_invalid("all_gather of ", bytes, " bytes; legal: at most ", kGatherBytes);
  }
  peer::ExchangeParams params = params_of(all_);
  auto* const data = static_cast<char*>(const_cast<void*>(sent));
  // NOTE: to itself by its own inbox too: one rule for every rank.
  for (int other = 0; other < count_; ++other) {
    add_move(params, all_, {.peer = other, .data = data, .bytes = bytes}, 0, true);
  }
  for (int other = 0; other < count_; ++other) {
    char* const place = static_cast<char*>(received) + unsigned_of(other) * bytes;
    add_move(params, all_, {.peer = other, .data = place, .bytes = bytes}, 0, false);
    add_peer(params, all_, other);
  }
  run(params, stream);
}

std::optional<int> PeerMemory::late() const {
  const std::uint32_t rank = __atomic_load_n(&report_->late, __ATOMIC_ACQUIRE);
  if (rank == 0) return std::nullopt;
  return static_cast<int>(rank) - 1;
}

void PeerMemory::give_up() {
  __atomic_store_n(&report_->give_up, 1U, __ATOMIC_RELEASE);
}

}  // namespace convoy
