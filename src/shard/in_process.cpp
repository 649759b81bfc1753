// SPDX-License-Identifier: Apache-2.0
//
// Ranks as threads of one process. A rank posts what it sends; receivers copy it from where it lies
// and say so; the sender waits for that in `finish`.
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "core/text.hpp"
#include "shard/transport.hpp"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;

struct Posted {
  std::uint64_t turn = 0;  ///< Of the rank's exchanges, from 1.
  std::map<int, Move> sends;
  std::set<int> taken;  ///< Peers that have copied theirs.
};

/// What the ranks of a group share.
struct Group {
  Group(int ranks, std::chrono::milliseconds limit)
      : timeout(limit),
        posted(static_cast<std::size_t>(ranks)),
        left(static_cast<std::size_t>(ranks)) {}

  const std::chrono::milliseconds timeout;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Posted> posted;
  std::vector<bool> left;  ///< Ranks whose communicator is gone.
  std::string failure;     ///< Of any rank: the end of the group.

  Posted& of(int rank) { return posted[static_cast<std::size_t>(rank)]; }
};

class InProcess final : public Transport {
 public:
  InProcess(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}
  ~InProcess() override {
    const std::lock_guard lock(group_->mutex);
    group_->left[static_cast<std::size_t>(rank_)] = true;
    group_->of(rank_).sends.clear();
    group_->changed.notify_all();
  }

  int rank() const override { return rank_; }
  int count() const override { return static_cast<int>(group_->posted.size()); }
  const std::string& name() const override {
    static const std::string name = "in-process";
    return name;
  }
  bool on_device() const override { return false; }
  std::size_t staging_bytes(const HaloMoves&) const override { return 0; }

  void start(const HaloMoves& moves, void*, cudaStream_t) override {
    guarded([&] { post(moves.sends, moves.receives); });
  }
  void finish(const HaloMoves&, cudaStream_t) override {
    guarded([&] { take(); });
  }

  void all_gather(const void* sent, void* received, std::size_t bytes,
                  cudaStream_t stream) override {
    all_gather_host(sent, received, bytes);
    (void)stream;
  }

  void all_gather_host(const void* sent, void* received, std::size_t bytes) override {
    HaloMoves moves;
    auto* const to = static_cast<char*>(received);
    auto* const from = static_cast<char*>(const_cast<void*>(sent));
    for (int peer = 0; peer < count(); ++peer) {
      if (peer == rank_) continue;
      moves.sends.push_back({peer, from, bytes, 1, bytes});
      moves.receives.push_back(
          {peer, to + bytes * static_cast<std::size_t>(peer), bytes, 1, bytes});
    }
    if (bytes > 0) std::memcpy(to + bytes * static_cast<std::size_t>(rank_), sent, bytes);
    exchange(moves, nullptr, nullptr);
  }

  void copy(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
            std::size_t bytes, std::size_t count, cudaStream_t) override {
    for (std::size_t i = 0; i < count && bytes > 0; ++i) {
      std::memcpy(static_cast<char*>(to) + i * to_pitch,
                  static_cast<const char*>(from) + i * from_pitch, bytes);
    }
  }

  std::shared_ptr<void> allocate(std::size_t bytes) override {
    return {::operator new (bytes, std::align_val_t{64}),
            [](void* memory) { ::operator delete (memory, std::align_val_t{64}); }};
  }

  void synchronize(cudaStream_t) override {
    const std::lock_guard lock(group_->mutex);
    require_alive();
  }

  void abort(const std::string& cause) override { give_up(cause.c_str()); }

 private:
  void post(const std::vector<Move>& sends, const std::vector<Move>& receives) {
    const std::lock_guard lock(group_->mutex);
    require_alive();
    Posted& mine = group_->of(rank_);
    mine.sends.clear();
    for (const Move& send : sends) mine.sends[send.peer] = send;
    mine.taken.clear();
    ++mine.turn;
    receives_ = receives;
    group_->changed.notify_all();
  }

  void take() {
    std::unique_lock lock(group_->mutex);
    const std::uint64_t turn = group_->of(rank_).turn;
    const auto deadline = Clock::now() + group_->timeout;
    for (const Move& receive : receives_) {
      Posted& theirs = group_->of(receive.peer);
      wait(lock, deadline, receive.peer, turn, "to send to it",
           [&] { return theirs.turn >= turn; });
      const Move send = sent_to_me(theirs, receive, turn);
      // NOTE: under the lock, so that a rank that gives up meanwhile keeps its memory for so long.
      copy(receive.data, receive.pitch, send.data, send.pitch, send.bytes, send.count, nullptr);
      theirs.taken.insert(rank_);
      group_->changed.notify_all();
    }
    Posted& mine = group_->of(rank_);
    for (const auto& [peer, send] : mine.sends) {
      wait(lock, deadline, peer, turn, "to receive from it",
           [&, to = peer] { return mine.taken.contains(to); });
    }
    receives_.clear();
  }

  /// Whatever ends an exchange before its time ends the group: nobody may read what this rank has
  /// posted, whose memory goes with the exception, nor wait for it.
  template <typename Work>
  void guarded(Work work) {
    try {
      work();
    } catch (const std::exception& error) {
      give_up(error.what());
      throw;
    }
  }

  void give_up(const char* cause) {
    const std::lock_guard lock(group_->mutex);
    try {
      fail(text("rank ", rank_, " gave up: ", cause));
    } catch (const std::bad_alloc&) {
      if (group_->failure.empty()) group_->failure = "out of memory";  // NOTE: needs none itself.
      group_->changed.notify_all();
    }
  }

  /// The first failure is everybody's.
  void fail(const std::string& what) {
    if (group_->failure.empty()) group_->failure = what;
    group_->changed.notify_all();
  }
  void require_alive() const {
    if (!group_->failure.empty()) throw Error(Status::launch_failure, group_->failure);
  }

  template <typename Ready>
  void wait(std::unique_lock<std::mutex>& lock, Clock::time_point deadline, int peer,
            std::uint64_t turn, const char* what, Ready ready) {
    const auto over = [&] {
      return ready() || !group_->failure.empty() || group_->left[static_cast<std::size_t>(peer)];
    };
    const bool in_time = group_->changed.wait_until(lock, deadline, over);
    require_alive();
    if (ready()) return;
    if (in_time) {
      fail(text("rank ", peer, " is gone: its communicator was destroyed while rank ", rank_,
                " waited for it ", what, " (exchange ", turn, ")"));
    } else {
      fail(text("rank ", rank_, " waited ", group_->timeout.count(), " ms for rank ", peer, " ",
                what, " (exchange ", turn, "); rank ", peer, " is at its exchange ",
                group_->of(peer).turn));
    }
    require_alive();
  }

  Move sent_to_me(const Posted& theirs, const Move& receive, std::uint64_t turn) {
    const auto found = theirs.sends.find(rank_);
    if (group_->left[static_cast<std::size_t>(receive.peer)]) {
      fail(text("rank ", receive.peer, " is gone: its communicator was destroyed before rank ",
                rank_, " took what it sent (exchange ", turn, ")"));
    } else if (theirs.turn != turn || found == theirs.sends.end()) {
      fail(text("rank ", receive.peer, " sends nothing to rank ", rank_, " in exchange ", turn,
                ", which waits for ", receive.total(), " bytes"));
    } else if (found->second.bytes != receive.bytes || found->second.count != receive.count) {
      fail(text("rank ", receive.peer, " sends ", found->second.count, " x ", found->second.bytes,
                " bytes to rank ", rank_, ", which waits for ", receive.count, " x ", receive.bytes,
                " (exchange ", turn, "): their tensors differ"));
    }
    require_alive();
    return found->second;
  }

  std::shared_ptr<Group> group_;
  int rank_;
  std::vector<Move> receives_;
};

}  // namespace

std::vector<std::shared_ptr<Transport>> make_in_process(int count,
                                                        std::chrono::milliseconds timeout) {
  if (count < 1) throw_invalid("count = ", count, " is not legal; legal: at least 1; nearest: 1");
  const auto group = std::make_shared<Group>(count, timeout);
  std::vector<std::shared_ptr<Transport>> ranks;
  for (int rank = 0; rank < count; ++rank) {
    ranks.push_back(std::make_shared<InProcess>(group, rank));
  }
  return ranks;
}

}  // namespace convoy
