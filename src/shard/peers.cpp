// SPDX-License-Identifier: Apache-2.0
#include "shard/peers.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <mutex>
#include <random>

#include "core/text.hpp"
#include "dispatch/device.hpp"
#include "kernels/common/launch.hpp"

namespace convoy {
namespace {

/// What is in a handle.
struct Address {
  char host[64] = {};  ///< The kernel's boot identifier: the same in every container of a host.
  std::uint64_t process[2] = {};
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

/// NOTE: not by its number alone: processes of two containers may have the same.
void name_process(std::uint64_t (&process)[2]) {
  static const std::uint64_t drawn = [] {
    std::random_device source;
    return std::uint64_t{source()} << 32 | source();
  }();
  process[0] = drawn;
  process[1] = static_cast<std::uint64_t>(getpid());
}

/// Calls that a capture of this thread would not take go past it.
class BesideCapture {
 public:
  BesideCapture() {
    (void)call_runtime([&] { return cudaThreadExchangeStreamCaptureMode(&mode_); });
  }
  ~BesideCapture() {
    (void)call_runtime([&] { return cudaThreadExchangeStreamCaptureMode(&mode_); });
  }
  BesideCapture(const BesideCapture&) = delete;
  BesideCapture& operator=(const BesideCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

constexpr std::size_t kWord = 32;  ///< From one rank's word to the next one's.

}  // namespace

// ---- Memory -------------------------------------------------------------------------------------

/// The memory of one rank, and what it has opened of others. NOTE: the driver's behaviour is
/// undefined where memory is freed that another process has open.
struct PeerMemory::Estate {
  int device = 0;
  pid_t process = getpid();
  bool used = false;  ///< Others may have written here, and this rank there.
  bool left = false;  ///< This rank has told the others that it will not write any more.
  std::shared_ptr<void> memory;
  std::size_t gone = 0;       ///< Of the memory: a word of each rank, 1 when it has left.
  std::vector<char*> others;  ///< This rank's word there.
  std::vector<void*> opened;
  int rank = 0, count = 0;
  peer::Report* report = nullptr;  ///< In the host's memory.

  Estate() = default;
  Estate(const Estate&) = delete;
  Estate& operator=(const Estate&) = delete;
  ~Estate() {
    const DeviceScope scope(device, std::nothrow);
    close();
    if (report != nullptr) (void)call_runtime([&] { return cudaFreeHost(report); });
  }

  void close() {
    for (void* mapped : opened) {
      (void)call_runtime([&] { return cudaIpcCloseMemHandle(mapped); });
    }
    opened.clear();
  }

  /// Waits for this rank's exchanges and tells the others that it has left.
  bool leave() {
    if (process != getpid()) return false;  // NOTE: a child has no device of its parent's.
    if (left || !used) return true;
    const DeviceScope scope(device, std::nothrow);
    if (call_runtime(cudaDeviceSynchronize) != cudaSuccess) return false;
    const char gone_word = 1;
    for (char* word : others) {
      (void)call_runtime([&] { return cudaMemcpy(word, &gone_word, 1, cudaMemcpyHostToDevice); });
    }
    if (call_runtime(cudaDeviceSynchronize) != cudaSuccess) return false;
    close();
    return left = true;
  }

  bool all_left() const {
    cudaStream_t stream = nullptr;  // NOTE: one that waits for nothing else of the program.
    std::vector<char> words(unsigned_of(count) * kWord);
    const cudaError_t error = call_runtime([&] {
      const cudaError_t made = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
      if (made != cudaSuccess) return made;
      const cudaError_t copied =
          cudaMemcpyAsync(words.data(), static_cast<char*>(memory.get()) + gone, words.size(),
                          cudaMemcpyDeviceToHost, stream);
      return copied != cudaSuccess ? copied : cudaStreamSynchronize(stream);
    });
    if (stream != nullptr) (void)call_runtime([&] { return cudaStreamDestroy(stream); });
    if (error != cudaSuccess) return false;
    for (int other = 0; other < count; ++other) {
      if (other != rank && words[unsigned_of(other) * kWord] == 0) return false;
    }
    return true;
  }

  /// Whether nothing is under way here any more, by this rank nor another.
  bool is_over() {
    if (!leave()) return false;
    const DeviceScope scope(device, std::nothrow);
    return !used || all_left();
  }

  /// Those that are left. NOTE: what is there at the end of the process is the driver's.
  struct Kept {
    std::mutex mutex;
    std::vector<std::unique_ptr<Estate>> all;
  };
  static Kept& kept() {
    static Kept& one = *new Kept;
    return one;
  }

  /// Frees what is over, of this one (if any) and of those that were left before.
  static void settle(std::unique_ptr<Estate> estate) {
    const BesideCapture beside;
    std::vector<std::unique_ptr<Estate>> mine;
    {
      const std::lock_guard lock(kept().mutex);
      mine.swap(kept().all);
    }
    if (estate != nullptr) mine.push_back(std::move(estate));
    // NOTE: without the lock: a rank of another thread may be what is waited for.
    for (const auto& one : mine) one->leave();
    std::erase_if(mine, [](const auto& one) { return one->is_over(); });
    const std::lock_guard lock(kept().mutex);
    for (auto& one : mine) kept().all.push_back(std::move(one));
  }
};

/// Keeps the exchanges of several streams in the order of the calls, as a communicator with a
/// stream of its own does.
class PeerMemory::Order {
 public:
  Order() {
    for (Last& last : lasts_) {
      require_runtime("cudaEventCreate",
                      [&] { return cudaEventCreateWithFlags(&last.done, cudaEventDisableTiming); });
    }
  }
  ~Order() {
    for (const Last& last : lasts_) {
      (void)call_runtime([&] { return cudaEventDestroy(last.done); });
    }
  }
  Order(const Order&) = delete;
  Order& operator=(const Order&) = delete;

  /// Calls `launch`, which enqueues on `stream`.
  template <typename Launch>
  void run(cudaStream_t stream, Launch launch) {
    const unsigned long long capture = capture_of(stream);
    const unsigned long long id = capture != 0 ? handle_of(stream) : id_of(stream);
    // NOTE: what is captured runs later, and what runs now is not waited for in a graph.
    Last& last = lasts_[capture != 0 ? 1 : 0];
    if (last.recorded && last.stream != id && last.capture == capture) {
      require_runtime("cudaStreamWaitEvent",
                      [&] { return cudaStreamWaitEvent(stream, last.done, 0); });
    }
    launch();
    require_runtime("cudaEventRecord", [&] { return cudaEventRecord(last.done, stream); });
    last.stream = id;
    last.capture = capture;
    last.recorded = true;
  }

 private:
  /// The exchange before: of those that run, and of those of a capture.
  struct Last {
    cudaEvent_t done = nullptr;
    unsigned long long stream = 0, capture = 0;
    bool recorded = false;
  };

  /// NOTE: while a stream is captured CUDA does not tell its number (cudaStreamGetId fails); nor is
  /// it destroyed before the capture ends, so that its handle is its own.
  static unsigned long long handle_of(cudaStream_t stream) {
    return reinterpret_cast<std::uintptr_t>(stream);
  }
  /// NOTE: a new stream may have the handle of one that was destroyed.
  static unsigned long long id_of(cudaStream_t stream) {
    unsigned long long id = 0;
    require_runtime("cudaStreamGetId", [&] { return cudaStreamGetId(stream, &id); });
    return id;
  }
  /// The capture that a stream takes part in; 0 for none.
  static unsigned long long capture_of(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    require_runtime("cudaStreamGetCaptureInfo", [&] {
      return cudaStreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr, nullptr);
    });
    return status == cudaStreamCaptureStatusNone ? 0 : id;
  }

  Last lasts_[2];
};

struct PeerMemory::Trial {
  static constexpr std::size_t kWords = 256;
  std::chrono::milliseconds timeout;
  std::vector<std::uint32_t> words = std::vector<std::uint32_t>(kWords);
  std::shared_ptr<CUstream_st> stream;

  /// What a rank sends.
  static std::uint32_t word_of(int rank, std::size_t i) {
    return static_cast<std::uint32_t>(0x9e3779b9U * (i + 1) + 0x85ebca6bU * unsigned_of(rank));
  }
};

PeerMemory::PeerMemory(int rank, int count, std::size_t capacity, std::chrono::milliseconds timeout)
    : rank_(rank),
      count_(count),
      capacity_(rounded(capacity)),
      // NOTE: the kernel counts nanoseconds.
      timeout_(std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365))) {
  if (count < 1 || count > kMostRanks) {
    throw_invalid("count = ", count, " ranks cannot write each other's memory; legal: 1 to ",
                  kMostRanks, "; nearest: ", std::clamp(count, 1, kMostRanks));
  }
  if (rank < 0 || rank >= count) {
    throw_invalid("rank = ", rank, " is not legal; legal: 0 to ", count - 1,
                  "; nearest: ", std::clamp(rank, 0, count - 1));
  }
  constexpr std::size_t kMostCapacity = std::size_t{1} << 36;
  if (capacity > kMostCapacity) {
    throw_invalid("capacity = ", capacity, " bytes is not legal; legal: up to ", kMostCapacity,
                  "; nearest: ", kMostCapacity);
  }
  Estate::settle(nullptr);
  require_runtime("cudaGetDevice", [&] { return cudaGetDevice(&device_); });
  estate_ = std::make_unique<Estate>();
  estate_->device = device_;
  estate_->rank = rank;
  estate_->count = count;
  order_ = std::make_unique<Order>();
  const auto ranks = unsigned_of(count);
  std::size_t bytes = 0;
  const auto place = [&](std::size_t size) {
    const std::size_t at = bytes;
    bytes += rounded(size);
    return at;
  };
  constexpr std::size_t kCells = peer::kSmallBytes / 4 * peer::kCellBytes;
  estate_->gone = place(ranks * kWord);
  beside_.state = place(sizeof(peer::State));
  all_.state = place(sizeof(peer::State));
  beside_.flags = place(2 * peer::kBlocks * peer::kFlagPitch);
  beside_.cells = place(2 * 2 * kCells);
  all_.cells = place(2 * ranks * kCells);
  const std::size_t cleared = bytes;
  trial_ = place((ranks + 1) * Trial::kWords * sizeof(std::uint32_t));
  beside_.slot_bytes = capacity_;
  beside_.slots = place(2 * 2 * capacity_);
  estate_->memory = allocate_device_memory(bytes);
  void* const memory = estate_->memory.get();
  require_runtime("cudaMemset", [&] { return cudaMemset(memory, 0, cleared); });
  require_runtime("cudaStreamSynchronize", [&] { return cudaStreamSynchronize(nullptr); });
  void* report = nullptr;
  require_runtime("cudaHostAlloc", [&] {
    return cudaHostAlloc(&report, sizeof(peer::Report),
                         cudaHostAllocMapped | cudaHostAllocPortable);
  });
  estate_->report = new (report) peer::Report;

  Address mine;
  name_host(mine.host);
  name_process(mine.process);
  mine.memory = memory;
  mine.device = device_;
  mine.capacity = capacity_;
  // NOTE: memory that cannot be shared (a virtual GPU) may still be reached within the process.
  (void)call_runtime([&] { return cudaIpcGetMemHandle(&mine.shared, memory); });
  std::memcpy(handle_.data(), &mine, sizeof(mine));
}

PeerMemory::~PeerMemory() {
  Estate::settle(std::move(estate_));
}

std::size_t PeerMemory::kept() {
  const std::lock_guard lock(Estate::kept().mutex);
  return Estate::kept().all.size();
}

void PeerMemory::connect(const std::vector<Handle>& handles) {
  if (handles.size() != unsigned_of(count_)) {
    throw_invalid("handles has ", handles.size(), " entries; legal: one a rank, ", count_);
  }
  if (!memories_.empty()) throw_invalid("peers are connected already; legal: once");
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
      memory = estate_->memory.get();
    } else if (std::memcmp(address.process, mine.process, sizeof(mine.process)) != 0) {
      const cudaError_t error = call_runtime([&] {
        return cudaIpcOpenMemHandle(&memory, address.shared, cudaIpcMemLazyEnablePeerAccess);
      });
      if (error != cudaSuccess) refuse("cudaIpcOpenMemHandle: " + error_text(error));
      estate_->opened.push_back(memory);
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
    if (other != rank_) {
      estate_->others.push_back(static_cast<char*>(memory) + estate_->gone +
                                unsigned_of(rank_) * kWord);
    }
  }
  memories_ = std::move(found);
}

std::shared_ptr<PeerMemory::Trial> PeerMemory::begin_trial(std::chrono::milliseconds timeout) {
  const DeviceScope scope(device_);
  const auto trial = std::make_shared<Trial>();
  trial->timeout = timeout;
  for (std::size_t i = 0; i < Trial::kWords; ++i) trial->words[i] = Trial::word_of(rank_, i);
  const std::size_t bytes = Trial::kWords * sizeof(std::uint32_t);
  // NOTE: nothing is allocated here: that may wait for the kernel of a rank of the same process,
  // which waits for this one.
  char* const sent = static_cast<char*>(estate_->memory.get()) + trial_;
  cudaStream_t stream = nullptr;
  require_runtime("cudaStreamCreate",
                  [&] { return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); });
  trial->stream = std::shared_ptr<CUstream_st>(stream, [](cudaStream_t made) {
    (void)call_runtime([&] { return cudaStreamDestroy(made); });
  });
  require_runtime("cudaMemcpyAsync", [&] {
    return cudaMemcpyAsync(sent, trial->words.data(), bytes, cudaMemcpyHostToDevice, stream);
  });
  gather(sent, sent + bytes, bytes, stream, timeout, false);
  return trial;
}

void PeerMemory::end_trial(Trial& trial) const {
  const DeviceScope scope(device_);
  std::vector<std::uint32_t> came(Trial::kWords * unsigned_of(count_));
  require_runtime("cudaMemcpyAsync", [&] {
    const char* const received =
        static_cast<char*>(estate_->memory.get()) + trial_ + Trial::kWords * sizeof(std::uint32_t);
    return cudaMemcpyAsync(came.data(), received, came.size() * sizeof(came[0]),
                           cudaMemcpyDeviceToHost, trial.stream.get());
  });
  require_runtime("a first exchange", [&] { return cudaStreamSynchronize(trial.stream.get()); });
  if (const auto rank = late()) {
    throw Error(Status::unsupported, text("rank ", *rank, " wrote nothing into the memory of rank ",
                                          rank_, " within ", trial.timeout.count(), " ms"));
  }
  for (int other = 0; other < count_; ++other) {
    for (std::size_t i = 0; i < Trial::kWords; ++i) {
      if (came[unsigned_of(other) * Trial::kWords + i] == Trial::word_of(other, i)) continue;
      throw Error(Status::unsupported, text("what rank ", other, " wrote into the memory of rank ",
                                            rank_, " came there as something else"));
    }
  }
}

// ---- Exchanges ----------------------------------------------------------------------------------

peer::ExchangeParams PeerMemory::params_of(const Channel& channel) const {
  if (memories_.empty()) throw_invalid("peers are not connected; legal: connect() first");
  peer::ExchangeParams params;
  params.state = reinterpret_cast<peer::State*>(memories_[unsigned_of(rank_)] + channel.state);
  params.report = estate_->report;
  params.timeout_ns = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(timeout_).count());
  return params;
}

/// What this rank puts into the memory of another, or takes of its own that the other put there.
void PeerMemory::add_way(peer::ExchangeParams& params, const Channel& channel,
                         const std::vector<Move>& moves, int other, bool put) const {
  peer::PeerParams& peer = params.peer[params.peers];
  peer.rank = other;
  peer::WayParams& way = put ? peer.put : peer.take;
  way.first = params.moves;
  const auto add = [&](const Move& move) {
    if (params.moves == peer::kMoves) {
      throw_invalid("an exchange of more than ", peer::kMoves, " moves; legal: up to ",
                    peer::kMoves);
    }
    peer::MoveParams& to = params.move[params.moves++];
    to.tensor = move.data;
    to.begin = rounded(way.bytes);
    to.total = move.total();
    to.pitch = move.pitch;
    // The widest vector that begins, ends and repeats where the rows do.
    const std::size_t pitch = move.count > 1 ? move.pitch : 0;
    const std::size_t all = reinterpret_cast<std::size_t>(move.data) | pitch | move.bytes;
    to.vector_bytes = static_cast<int>(std::min<std::size_t>(all & (~all + 1), 16));
    if (to.total / unsigned_of(to.vector_bytes) >= std::size_t{1} << 31) {
      throw_invalid("a move of ", to.total, " bytes, ", to.vector_bytes,
                    " at a time; legal: less than 2^31 of them");
    }
    to.piece = FastDivide(static_cast<std::int64_t>(move.bytes) / to.vector_bytes);
    way.bytes = to.begin + to.total;
    ++way.moves;
  };
  for (const Move& move : moves) {
    if (move.peer == other && move.total() > 0) add(move);
  }
  peer::divide(way);
  const int owner = put ? other : rank_, source = put ? rank_ : other;
  char* const memory = memories_[unsigned_of(owner)];
  const std::size_t index =
      &channel == &all_ ? unsigned_of(source) : (source < owner ? std::size_t{0} : std::size_t{1});
  way.slot_bytes = way.cells ? peer::kSmallBytes / 4 * peer::kCellBytes : channel.slot_bytes;
  way.inbox = memory + (way.cells ? channel.cells : channel.slots) + index * 2 * way.slot_bytes;
  way.flags = memory + channel.flags + index * peer::kBlocks * peer::kFlagPitch;
}

void PeerMemory::run(peer::ExchangeParams& params, cudaStream_t stream) {
  const auto require_nobody_late = [&] {
    if (const auto rank = late()) {
      throw Error(Status::launch_failure,
                  text("rank ", rank_, " of ", count_, " waited ", timeout_.count(),
                       " ms for the rows of rank ", *rank, ": it is gone or makes other calls"));
    }
  };
  require_nobody_late();
  const DeviceScope scope(device_);
  estate_->used = true;
  try {
    order_->run(stream, [&] { peer::launch(params, stream); });
  } catch (const Error&) {  // The kernel has given up before the host was done with the call.
    require_nobody_late();
    throw;
  }
}

void PeerMemory::exchange(const std::vector<Move>& sends, const std::vector<Move>& receives,
                          Phase phase, cudaStream_t stream) {
  if (putting_ != (phase == Phase::take)) {
    throw_invalid(putting_ ? "what was put has not been taken; legal: a take (phase 1)"
                           : "nothing was put that could be taken; legal: a put first (phase 0)");
  }
  peer::ExchangeParams params = params_of(beside_);
  for (const auto* moves : {&sends, &receives}) {
    std::size_t bytes[2] = {};
    for (const Move& move : *moves) {
      if (move.peer < 0 || move.peer >= count_ ||
          (move.peer != rank_ - 1 && move.peer != rank_ + 1)) {
        throw_invalid("peer = ", move.peer, " of a move of rank ", rank_, " of ", count_,
                      " is not legal; legal: the ranks beside it");
      }
      std::size_t& sum = bytes[move.peer < rank_ ? 0 : 1];
      sum = rounded(sum) + move.total();
      if (sum > capacity_) {
        throw_invalid("an exchange of ", sum, " bytes with rank ", move.peer, "; legal: up to ",
                      capacity_, ", the capacity");
      }
    }
  }
  params.ends = phase != Phase::put;
  for (const int other : {rank_ - 1, rank_ + 1}) {
    if (other < 0 || other >= count_) continue;
    if (phase != Phase::take) add_way(params, beside_, sends, other, true);
    if (phase != Phase::put) add_way(params, beside_, receives, other, false);
    ++params.peers;
  }
  if (params.peers > 0) run(params, stream);
  putting_ = phase == Phase::put;
}

void PeerMemory::all_gather(const void* sent, void* received, std::size_t bytes,
                            cudaStream_t stream) {
  gather(sent, received, bytes, stream, timeout_, true);
}

void PeerMemory::gather(const void* sent, void* received, std::size_t bytes, cudaStream_t stream,
                        std::chrono::milliseconds timeout, bool traps) {
  if (bytes > kGatherBytes) {
    throw_invalid("bytes = ", bytes, " of a gather is not legal; legal: up to ", kGatherBytes,
                  "; nearest: ", kGatherBytes);
  }
  peer::ExchangeParams params = params_of(all_);
  if (bytes == 0) return;
  params.traps = traps;
  params.timeout_ns = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(timeout).count());
  // NOTE: to itself by its own inbox too: one rule for every rank.
  for (int other = 0; other < count_; ++other) {
    const auto move = [&](char* data) {
      return std::vector<Move>{
          {.peer = other, .data = data, .bytes = bytes, .count = 1, .pitch = bytes}};
    };
    add_way(params, all_, move(static_cast<char*>(const_cast<void*>(sent))), other, true);
    add_way(params, all_, move(static_cast<char*>(received) + unsigned_of(other) * bytes), other,
            false);
    ++params.peers;
  }
  run(params, stream);
}

std::optional<int> PeerMemory::late() const {
  const std::uint32_t rank = __atomic_load_n(&estate_->report->late, __ATOMIC_ACQUIRE);
  if (rank == 0) return std::nullopt;
  return static_cast<int>(rank) - 1;
}

void PeerMemory::give_up() {
  __atomic_store_n(&estate_->report->give_up, 1U, __ATOMIC_RELEASE);
}

}  // namespace convoy
