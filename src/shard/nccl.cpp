// SPDX-License-Identifier: Apache-2.0
//
// Ranks by NCCL, which is loaded when the first communicator is made. Where all ranks reach each
// other's memory, NCCL only introduces them, and exchanges are kernels on the caller's stream
// (peers.hpp). Else they run on a stream of the communicator's own; blocks of few rows are sent and
// received where they lie.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <thread>

#include "core/log.hpp"
#include "core/text.hpp"
#include "dispatch/device.hpp"
#include "shard/peers.hpp"
#include "shard/transport.hpp"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;

// Of nccl.h what is called here, in the form that every NCCL since 2.14 has.
using NcclComm = struct ncclComm*;
constexpr int kNcclSuccess = 0, kNcclInProgress = 7, kNcclInt8 = 0;
struct NcclConfig {  ///< Its first fields; `size` tells NCCL where it ends.
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

struct Nccl {
  std::string refusal;  ///< Why it is not there.
  std::string name;
  int (*get_version)(int*) = nullptr;
  int (*get_unique_id)(NcclId*) = nullptr;
  int (*comm_init)(NcclComm*, int, NcclId, int, NcclConfig*) = nullptr;
  int (*comm_abort)(NcclComm) = nullptr;
  int (*comm_async_error)(NcclComm, int*) = nullptr;
  int (*comm_count)(NcclComm, int*) = nullptr;
  int (*comm_rank)(NcclComm, int*) = nullptr;
  int (*comm_device)(NcclComm, int*) = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*send)(const void*, std::size_t, int, int, NcclComm, cudaStream_t) = nullptr;
  int (*receive)(void*, std::size_t, int, int, NcclComm, cudaStream_t) = nullptr;
  int (*all_gather)(const void*, void*, std::size_t, int, NcclComm, cudaStream_t) = nullptr;
};

Nccl load() {
  Nccl n;
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    n.refusal = text("NCCL cannot be loaded: ", dlerror(),
                     "; legal: libnccl.so.2 of 2.14 or later where the loader finds it");
    return n;
  }
  const auto find = [&](auto& function, const char* symbol) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
    if (function == nullptr && n.refusal.empty()) {
      n.refusal = text("libnccl.so.2 has no ", symbol, "; legal: NCCL 2.14 or later");
    }
  };
  find(n.get_version, "ncclGetVersion");
  find(n.get_unique_id, "ncclGetUniqueId");
  find(n.comm_init, "ncclCommInitRankConfig");
  find(n.comm_abort, "ncclCommAbort");
  find(n.comm_async_error, "ncclCommGetAsyncError");
  find(n.comm_count, "ncclCommCount");
  find(n.comm_rank, "ncclCommUserRank");
  find(n.comm_device, "ncclCommCuDevice");
  find(n.error_string, "ncclGetErrorString");
  find(n.group_start, "ncclGroupStart");
  find(n.group_end, "ncclGroupEnd");
  find(n.send, "ncclSend");
  find(n.receive, "ncclRecv");
  find(n.all_gather, "ncclAllGather");
  int version = 0;
  if (n.refusal.empty() && n.get_version(&version) == kNcclSuccess) {
    n.name = text("nccl ", version / 10000, ".", version / 100 % 100, ".", version % 100);
  }
  return n;
}

const Nccl& nccl() {
  static const Nccl loaded = load();
  if (!loaded.refusal.empty()) throw Error(Status::unsupported, loaded.refusal);
  return loaded;
}

void require_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw Error(Status::launch_failure, text(what, ": ", cudaGetErrorString(error)));
}

class NcclTransport final : public Transport {
 public:
  NcclTransport(NcclComm comm, bool owned, int device, int rank, int count,
                std::chrono::milliseconds timeout)
      : nccl_(nccl()),
        comm_(comm),
        owned_(owned),
        device_(device),
        rank_(rank),
        count_(count),
        timeout_(timeout) {
    const DeviceScope scope(device_);
    int least = 0, greatest = 0;
    require_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream priorities");
    require_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest),
                 "cudaStreamCreate");
    for (cudaEvent_t* event : {&begun_, &done_}) {
      require_cuda(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreate");
    }
    control_ = allocate((static_cast<std::size_t>(count) + 1) * kControl);
    peers_wanted_ = count <= PeerMemory::kMostRanks && count > 1;
  }
  ~NcclTransport() override {
    const DeviceScope scope(device_, std::nothrow);
    for (const auto& peers : peers_) peers->give_up();
    // NOTE: not ncclCommDestroy, which waits for a rank that died.
    if (comm_ != nullptr && owned_) nccl_.comm_abort(comm_);
    (void)cudaEventDestroy(begun_);
    (void)cudaEventDestroy(done_);
    (void)cudaStreamDestroy(stream_);
  }

  int rank() const override { return rank_; }
  int count() const override { return count_; }
  const std::string& name() const override { return name_; }
  bool on_device() const override { return true; }

  void reserve(std::size_t largest) override {
    if (!peers_wanted_ || largest <= capacity()) return;
    require_alive();
    const DeviceScope scope(device_);
    // NOTE: plans and graphs may hold the addresses of smaller ones, which stay.
    std::unique_ptr<PeerMemory> made;
    Introduction mine;
    const auto attempt = [&](const auto& body) {
      if (mine.refusal[0] != '\0') return;
      try {
        body();
      } catch (const std::exception& error) {
        mine.refuse(error.what());
      }
    };
    std::vector<Introduction> all(unsigned_of(count_));
    // NOTE: the first rank that refuses, or -1. Every rank asks, whatever it would refuse for.
    const auto tell = [&] {
      all_gather_host(&mine, all.data(), sizeof(mine));
      const auto found = std::find_if(
          all.begin(), all.end(), [](const Introduction& one) { return one.refusal[0] != '\0'; });
      return found == all.end() ? -1 : static_cast<int>(found - all.begin());
    };
    attempt([&] {
      const char* const wanted = std::getenv("CONVOY_PEER_MEMORY");
      if (wanted != nullptr && std::string_view(wanted) == "0") {
        throw Error(Status::unsupported, "CONVOY_PEER_MEMORY is 0");
      }
      // NOTE: the kernel's limit is the later one: it costs this rank its context.
      made = std::make_unique<PeerMemory>(rank_, count_, std::max(largest, 2 * capacity()),
                                          timeout_ + timeout_ / 4 + std::chrono::seconds(1));
      mine.handle = made->handle();
    });
    int refuser = tell();
    if (refuser < 0) {
      attempt([&] {
        std::vector<PeerMemory::Handle> handles;
        for (const Introduction& one : all) handles.push_back(one.handle);
        made->connect(handles);
      });
      refuser = tell();
    }
    if (refuser < 0) {
      attempt([&] {
        made->try_out(std::min<std::chrono::milliseconds>(timeout_, std::chrono::seconds(10)));
      });
      refuser = tell();
    }
    std::string how = "peer memory";
    if (refuser < 0) {
      peers_.push_back(std::move(made));
      name_ = nccl_.name + " with peer memory";
    } else {
      peers_wanted_ = false;
      how = text("no peer memory: rank ", refuser, ": ", all[unsigned_of(refuser)].refusal);
    }
    if (log_enabled(LogLevel::info)) {
      log_line(LogLevel::info, "exchange", {text("rank ", rank_, " of ", count_), name_, how});
    }
  }

  std::size_t staging_bytes(const HaloMoves& moves) const override {
    if (by_peers(moves)) return 0;
    std::size_t bytes = 0;
    for (const auto* some : {&moves.sends, &moves.receives}) {
      for (const Move& move : *some) bytes += is_staged(move) ? rounded(move.total()) : 0;
    }
    return bytes;
  }

  void exchange(const HaloMoves& moves, void* staging, cudaStream_t stream) override {
    if (!by_peers(moves)) return Transport::exchange(moves, staging, stream);
    require_alive();
    peers_.back()->exchange(moves.sends, moves.receives, PeerMemory::Phase::both, stream);
  }

  void start(const HaloMoves& moves, void* staging, cudaStream_t stream) override {
    require_alive();
    if (by_peers(moves)) {
      return peers_.back()->exchange(moves.sends, moves.receives, PeerMemory::Phase::put, stream);
    }
    const std::vector<Move>&sends = moves.sends, &receives = moves.receives;
    const DeviceScope scope(device_);
    require_cuda(cudaEventRecord(begun_, stream), "cudaEventRecord");
    require_cuda(cudaStreamWaitEvent(stream_, begun_, 0), "cudaStreamWaitEvent");
    auto* place = static_cast<char*>(staging);
    std::vector<std::pair<const Move*, char*>> packed, unpacked;
    for (const Move& send : sends) {
      char* const at = is_staged(send) ? place : nullptr;
      if (at != nullptr) {
        copy(at, send.bytes, send.data, send.pitch, send.bytes, send.count, stream_);
        place += rounded(send.total());
      }
      packed.emplace_back(&send, at);
    }
    for (const Move& receive : receives) {
      char* const at = is_staged(receive) ? place : nullptr;
      if (at != nullptr) place += rounded(receive.total());
      unpacked.emplace_back(&receive, at);
    }
    check(nccl_.group_start());
    for (const auto& [move, at] : packed) {
      each_piece(*move, at, [&](char* data, std::size_t bytes) {
        check(nccl_.send(data, bytes, kNcclInt8, move->peer, comm_, stream_));
      });
    }
    for (const auto& [move, at] : unpacked) {
      each_piece(*move, at, [&](char* data, std::size_t bytes) {
        check(nccl_.receive(data, bytes, kNcclInt8, move->peer, comm_, stream_));
      });
    }
    check(nccl_.group_end());
    for (const auto& [move, at] : unpacked) {
      if (at != nullptr) {
        copy(move->data, move->pitch, at, move->bytes, move->bytes, move->count, stream_);
      }
    }
    require_cuda(cudaEventRecord(done_, stream_), "cudaEventRecord");
  }

  void finish(const HaloMoves& moves, cudaStream_t stream) override {
    if (by_peers(moves)) {
      return peers_.back()->exchange(moves.sends, moves.receives, PeerMemory::Phase::take, stream);
    }
    const DeviceScope scope(device_);
    require_cuda(cudaStreamWaitEvent(stream, done_, 0), "cudaStreamWaitEvent");
  }

  void all_gather(const void* sent, void* received, std::size_t bytes,
                  cudaStream_t stream) override {
    require_alive();
    if (!peers_.empty() && bytes <= PeerMemory::kGatherBytes) {
      return peers_.back()->all_gather(sent, received, bytes, stream);
    }
    const DeviceScope scope(device_);
    check(nccl_.all_gather(sent, received, bytes, kNcclInt8, comm_, stream));
  }

  void all_gather_host(const void* sent, void* received, std::size_t bytes) override {
    require_alive();
    if (bytes > kControl) throw Error(Status::internal, "a control message is too long");
    const DeviceScope scope(device_);
    auto* const mine = static_cast<char*>(control_.get());
    char* const all = mine + kControl;
    require_cuda(cudaMemcpyAsync(mine, sent, bytes, cudaMemcpyHostToDevice, stream_),
                 "cudaMemcpyAsync");
    check(nccl_.all_gather(mine, all, bytes, kNcclInt8, comm_, stream_));
    synchronize(stream_);
    require_cuda(
        cudaMemcpy(received, all, bytes * static_cast<std::size_t>(count_), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  }

  void copy(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
            std::size_t bytes, std::size_t count, cudaStream_t stream) override {
    if (bytes == 0 || count == 0) return;
    const DeviceScope scope(device_);
    if (count == 1) to_pitch = from_pitch = bytes;
    require_cuda(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, bytes, count,
                                   cudaMemcpyDeviceToDevice, stream),
                 "cudaMemcpy2DAsync");
  }

  std::shared_ptr<void> allocate(std::size_t bytes) override {
    const DeviceScope scope(device_);
    void* memory = nullptr;
    if (cudaMalloc(&memory, bytes) != cudaSuccess) {
      throw Error(Status::out_of_memory, text(bytes, " bytes of device memory"));
    }
    return {memory, [device = device_](void* pointer) {
              const DeviceScope inner(device, std::nothrow);
              (void)cudaFree(pointer);
            }};
  }

  void synchronize(cudaStream_t stream) override {
    require_alive();
    const DeviceScope scope(device_);
    const auto deadline = Clock::now() + timeout_;
    while (true) {
      const cudaError_t state = cudaStreamQuery(stream);
      if (state == cudaSuccess) return;
      if (state != cudaErrorNotReady) {
        const auto late = late_peer();
        give_up(late ? text("rank ", rank_, " of ", count_, " waited for the rows of rank ", *late,
                            ": it is gone or makes other calls")
                     : text("rank ", rank_, ": its stream failed: ", cudaGetErrorString(state)));
      }
      require_no_async_error();
      if (Clock::now() > deadline) {
        give_up(text("rank ", rank_, " of ", count_, " waited ", timeout_.count(),
                     " ms for the ranks that it exchanges with (", neighbours(),
                     "): one of them is gone or makes other calls"));
      }
      std::this_thread::yield();
    }
  }

  void abort(const std::string& cause) override {
    if (comm_ == nullptr) return;
    failure_ = text("rank ", rank_, " gave up: ", cause);
    for (const auto& peers : peers_) peers->give_up();
    nccl_.comm_abort(comm_);
    comm_ = nullptr;
  }

 private:
  static constexpr std::size_t kControl = 1024;  ///< Bytes of a control message.
  // NOTE: pieces of one send go through NCCL one by one; past so many one packing copy is cheaper.
  static constexpr std::size_t kDirectPieces = 8;

  /// What ranks tell each other of their inboxes.
  struct Introduction {
    PeerMemory::Handle handle{};
    char refusal[512] = {};

    void refuse(const std::string& why) {
      why.copy(refusal, sizeof(refusal) - 1);
      if (why.empty()) refusal[0] = '?';
    }
  };
  static_assert(sizeof(Introduction) <= kControl);

  std::size_t capacity() const { return peers_.empty() ? 0 : peers_.back()->capacity(); }
  bool by_peers(const HaloMoves& moves) const {
    return !peers_.empty() && moves.largest <= capacity();
  }
  std::optional<int> late_peer() const {
    for (const auto& peers : peers_) {
      if (const auto late = peers->late()) return late;
    }
    return std::nullopt;
  }

  static bool is_staged(const Move& move) { return move.count > kDirectPieces; }
  static std::size_t rounded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

  template <typename Body>
  static void each_piece(const Move& move, char* staged, Body body) {
    if (staged != nullptr) return body(staged, move.total());
    for (std::size_t i = 0; i < move.count; ++i) body(move.data + i * move.pitch, move.bytes);
  }

  std::string neighbours() const {
    if (count_ == 1) return "none";
    if (rank_ == 0) return "first of all rank 1";
    if (rank_ + 1 == count_) return text("first of all rank ", rank_ - 1);
    return text("first of all ranks ", rank_ - 1, " and ", rank_ + 1);
  }

  void require_alive() const {
    if (comm_ == nullptr) throw Error(Status::launch_failure, failure_);
  }
  [[noreturn]] void give_up(const std::string& what) {
    failure_ = what;
    for (const auto& peers : peers_) peers->give_up();
    if (comm_ != nullptr) nccl_.comm_abort(comm_);
    comm_ = nullptr;
    throw Error(Status::launch_failure, failure_);
  }
  void require_no_async_error() {
    int error = kNcclSuccess;
    if (nccl_.comm_async_error(comm_, &error) == kNcclSuccess &&
        (error == kNcclSuccess || error == kNcclInProgress)) {
      return;
    }
    give_up(
        text("rank ", rank_, " of ", count_, ": ", nccl_.name, ": ", nccl_.error_string(error)));
  }
  /// A call's result; waits where the communicator does not block.
  void check(int result) {
    const auto deadline = Clock::now() + timeout_;
    while (result == kNcclInProgress) {
      if (nccl_.comm_async_error(comm_, &result) != kNcclSuccess) break;
      if (result == kNcclInProgress && Clock::now() > deadline) {
        give_up(text("rank ", rank_, " of ", count_, " waited ", timeout_.count(),
                     " ms for NCCL to take a call (", neighbours(), ")"));
      }
    }
    if (result != kNcclSuccess) {
      give_up(
          text("rank ", rank_, " of ", count_, ": ", nccl_.name, ": ", nccl_.error_string(result)));
    }
  }

  const Nccl& nccl_;
  NcclComm comm_;
  bool owned_;
  int device_, rank_, count_;
  std::chrono::milliseconds timeout_;
  std::string failure_;
  std::string name_ = nccl_.name;
  bool peers_wanted_ = false;
  std::vector<std::unique_ptr<PeerMemory>> peers_;  ///< The last one is the largest.
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begun_ = nullptr, done_ = nullptr;
  std::shared_ptr<void> control_;
};

}  // namespace

std::shared_ptr<Transport> wrap_nccl(void* comm, std::chrono::milliseconds timeout) {
  if (comm == nullptr) throw_invalid("comm is null; legal: an ncclComm_t");
  const Nccl& n = nccl();
  auto* const given = static_cast<NcclComm>(comm);
  int rank = 0, count = 0, device = 0;
  if (n.comm_rank(given, &rank) != kNcclSuccess || n.comm_count(given, &count) != kNcclSuccess ||
      n.comm_device(given, &device) != kNcclSuccess) {
    throw_invalid("comm = ", comm, " is no ncclComm_t that is ready");
  }
  return std::make_shared<NcclTransport>(given, false, device, rank, count, timeout);
}

std::shared_ptr<Transport> make_nccl(const NcclId& id, int rank, int count,
                                     std::chrono::milliseconds timeout) {
  if (count < 1) throw_invalid("count = ", count, " is not legal; legal: at least 1; nearest: 1");
  if (rank < 0 || rank >= count) {
    throw_invalid("rank = ", rank, " is not legal; legal: 0 to ", count - 1);
  }
  const Nccl& n = nccl();
  int device = 0;
  require_cuda(cudaGetDevice(&device), "cudaGetDevice");
  NcclConfig config;
  NcclComm comm = nullptr;
  int state = n.comm_init(&comm, count, id, rank, &config);
  const auto deadline = Clock::now() + timeout;
  while (state == kNcclInProgress && comm != nullptr && Clock::now() < deadline) {
    if (n.comm_async_error(comm, &state) != kNcclSuccess) break;
    if (state == kNcclInProgress) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (state != kNcclSuccess) {
    if (comm != nullptr) n.comm_abort(comm);
    throw Error(
        Status::launch_failure,
        text("rank ", rank, " of ", count, " found no communicator within ", timeout.count(),
             " ms: ", state == kNcclInProgress ? "not all ranks came" : n.error_string(state)));
  }
  return std::make_shared<NcclTransport>(comm, true, device, rank, count, timeout);
}

NcclId make_nccl_id() {
  NcclId id{};
  const Nccl& n = nccl();
  const int result = n.get_unique_id(&id);
  if (result != kNcclSuccess) {
    throw Error(Status::launch_failure, text(n.name, ": ", n.error_string(result)));
  }
  return id;
}

}  // namespace convoy
