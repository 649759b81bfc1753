// SPDX-License-Identifier: Apache-2.0
//
// Exchanges by peer memory: the ranks of one process on one GPU, real or virtual, each with a
// stream of its own. Every byte of what comes is compared, and every byte around it.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "convoy/convoy.h"
#include "kernels/peer/peer_exchange.hpp"
#include "shard/peers.hpp"
#include "support/guarded_buffer.hpp"
#include "unit/expect_error.hpp"

namespace convoy::test {
namespace {

using Phase = PeerMemory::Phase;
using Bytes = std::vector<unsigned char>;
constexpr std::chrono::milliseconds kLong = std::chrono::minutes(5);

// NOTE: ranks that wait for each other must not share a queue of the device.
[[maybe_unused]] const int kQueues = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);

#define REQUIRE_CUDA(call) ASSERT_EQ(call, cudaSuccess)

/// The ranks of one process, connected.
struct Ranks {
  std::vector<std::unique_ptr<PeerMemory>> all;
  std::vector<std::unique_ptr<Stream>> streams;

  Ranks(int count, std::size_t capacity) {
    std::vector<PeerMemory::Handle> handles;
    for (int rank = 0; rank < count; ++rank) {
      all.push_back(std::make_unique<PeerMemory>(rank, count, capacity, kLong));
      streams.push_back(std::make_unique<Stream>(Device::cuda));
      handles.push_back(all.back()->handle());
    }
    for (auto& one : all) one->connect(handles);
  }
  int count() const { return static_cast<int>(all.size()); }
  PeerMemory& of(int rank) { return *all[static_cast<std::size_t>(rank)]; }
  cudaStream_t stream(int rank) { return streams[static_cast<std::size_t>(rank)]->get(); }
};

/// `count` pieces of `bytes`, `pitch` apart, from `lead` bytes behind an aligned address.
struct Pieces {
  std::size_t bytes, count, pitch, lead;
};

/// Pieces in memory of their own, on a device.
class Rows {
 public:
  Rows(const Pieces& pieces, int peer, std::mt19937& random)
      : pieces_(pieces),
        peer_(peer),
        host_(pieces.lead + (pieces.count - 1) * pieces.pitch + pieces.bytes),
        device_(host_.size()) {
    refill(random, nullptr);
  }
  void refill(std::mt19937& random, cudaStream_t stream) {
    std::generate(host_.begin(), host_.end(), [&] { return static_cast<unsigned char>(random()); });
    device_.upload(host_.data(), stream);
  }
  Move move() const {
    return {.peer = peer_,
            .data = static_cast<char*>(device_.data()) + pieces_.lead,
            .bytes = pieces_.bytes,
            .count = pieces_.count,
            .pitch = pieces_.pitch};
  }
  /// Takes what `sent` holds, on the host.
  void expect(const Rows& sent) {
    for (std::size_t i = 0; i < pieces_.count * pieces_.bytes; ++i) {
      host_[place(i)] = sent.host_[sent.place(i)];
    }
  }
  /// Whether the device has what is expected, and nothing was written beside it.
  testing::AssertionResult holds(cudaStream_t stream) const {
    if (!device_.guards_intact(stream)) return testing::AssertionFailure() << "guards";
    const Bytes found = device_.download(stream);
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (found[i] == host_[i]) continue;
      return testing::AssertionFailure() << "byte " << i << " of " << found.size() << " is "
                                         << int{found[i]} << ", expected " << int{host_[i]};
    }
    return testing::AssertionSuccess();
  }

 private:
  std::size_t place(std::size_t i) const {
    return pieces_.lead + i / pieces_.bytes * pieces_.pitch + i % pieces_.bytes;
  }
  Pieces pieces_;
  int peer_;
  Bytes host_;
  GuardedBuffer device_;
};

/// What one rank sends to another in one exchange: several tensors, each the same bytes on both
/// sides, wherever they lie there.
struct Way {
  int from, to;
  std::vector<std::unique_ptr<Rows>> sent, received;

  Way(int source, int target, const std::vector<Pieces>& tensors, std::mt19937& random)
      : from(source), to(target) {
    for (const Pieces& pieces : tensors) {
      sent.push_back(std::make_unique<Rows>(pieces, target, random));
      // The receiver has them elsewhere: another pitch and another first byte.
      Pieces other = pieces;
      other.pitch = pieces.bytes + random() % 3 * 16;
      other.lead = random() % 2 * (random() % 17);
      received.push_back(std::make_unique<Rows>(other, source, random));
    }
  }
  void expect() {
    for (std::size_t i = 0; i < sent.size(); ++i) received[i]->expect(*sent[i]);
  }
};

struct Exchange {
  std::vector<Way> ways;

  std::vector<Move> moves(int rank, bool sends) const {
    std::vector<Move> result;
    for (const Way& way : ways) {
      if ((sends ? way.from : way.to) != rank) continue;
      for (const auto& rows : sends ? way.sent : way.received) result.push_back(rows->move());
    }
    return result;
  }
  void enqueue(Ranks& ranks, int rank, Phase phase) const {
    ranks.of(rank).exchange(moves(rank, true), moves(rank, false), phase, ranks.stream(rank));
  }
  void check(Ranks& ranks) {
    for (Way& way : ways) {
      way.expect();
      for (const auto& rows : way.received) EXPECT_TRUE(rows->holds(ranks.stream(way.to)));
    }
  }
};

/// The tensors of a way, by its number: from nothing to several steps of all blocks.
std::vector<Pieces> tensors_of(std::mt19937& random, int kind) {
  switch (kind) {
    case 0:
      return {};
    case 1:  // A few bytes, at any address.
      return {{1 + random() % 40, 1 + random() % 5, 64, random() % 16}};
    case 2:  // Two tensors as cells.
      return {{256, 3, 512, 0}, {6, 7, 10, 2}};
    case 3:  // The most that goes as cells, and the least that goes in steps.
      return {{peer::kSmallBytes, 1, peer::kSmallBytes, 0}};
    case 4:
      return {{peer::kSmallBytes + 16, 1, peer::kSmallBytes + 16, 0}};
    case 5:  // Odd pieces, more than one block.
      return {{10001, 9, 10007, 3}};
    case 6:  // Two tensors, the second of another width.
      return {{40000, 3, 40960, 0}, {50002, 2, 50004, 2}};
    default:  // More than one step of every block.
      return {{(std::size_t{16} << 10) * (peer::kBlocks + 3) + 48, 1, 0, 0}};
  }
}
constexpr int kKinds = 8;

class Peers : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
  }
  Exchange exchange_of(int count, const std::vector<int>& kinds) {
    Exchange made;
    std::size_t next = 0;
    for (int rank = 0; rank + 1 < count; ++rank) {
      for (const auto& [from, to] : {std::pair(rank, rank + 1), std::pair(rank + 1, rank)}) {
        made.ways.emplace_back(from, to, tensors_of(random_, kinds[next++ % kinds.size()]),
                               random_);
      }
    }
    REQUIRE_OK(cudaDeviceSynchronize());
    return made;
  }
  static void REQUIRE_OK(cudaError_t error) {
    if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
  }
  std::mt19937 random_{7};
};

constexpr std::size_t kCapacity = std::size_t{4} << 20;

// Every size next to every other one, both ways, in one launch or in two; the same inboxes are used
// for all of them, in both slots.
TEST_F(Peers, EverySizeBesideEveryOther) {
  Ranks ranks(2, kCapacity);
  int turn = 0;
  for (int up = 0; up < kKinds; ++up) {
    for (int down = 0; down < kKinds; ++down) {
      if (up + down > kKinds && up != kKinds - 2) continue;
      SCOPED_TRACE(testing::Message() << "kinds " << up << " and " << down);
      Exchange exchange = exchange_of(2, {up, down});
      const bool apart = ++turn % 2 == 0;
      for (int i = 0; i < 2; ++i) {
        const int rank = (i + turn / 2) % 2;
        exchange.enqueue(ranks, rank, apart ? Phase::put : Phase::both);
        if (apart) exchange.enqueue(ranks, rank, Phase::take);
      }
      exchange.check(ranks);
      if (HasFailure()) return;
    }
  }
}

TEST_F(Peers, RanksInTheMiddle) {
  for (const int count : {3, 5}) {
    Ranks ranks(count, kCapacity);
    for (const std::vector<int>& kinds :
         {std::vector<int>{1, 2, 0, 5, 4, 1}, {5, 1, 6, 0, 2}, {0, 0, 1}}) {
      Exchange exchange = exchange_of(count, kinds);
      for (int rank = count - 1; rank >= 0; --rank) exchange.enqueue(ranks, rank, Phase::both);
      exchange.check(ranks);
    }
  }
}

// A rank goes as far ahead as it can: its next put may not reach rows that the other has not taken.
TEST_F(Peers, OneRankFarAhead) {
  for (const int kind : {1, 5}) {
    Ranks ranks(2, kCapacity);
    std::vector<Exchange> exchanges;
    for (int i = 0; i < 4; ++i) exchanges.push_back(exchange_of(2, {kind}));
    for (const Exchange& exchange : exchanges) {
      exchange.enqueue(ranks, 0, Phase::put);
      exchange.enqueue(ranks, 0, Phase::take);
    }
    for (Exchange& exchange : exchanges) {
      exchange.enqueue(ranks, 1, Phase::put);
      // NOTE: time for rank 0, which has what it waits for, to put the next one, and no more.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      exchange.enqueue(ranks, 1, Phase::take);
      REQUIRE_CUDA(cudaStreamSynchronize(ranks.stream(1)));
    }
    for (Exchange& exchange : exchanges) exchange.check(ranks);
  }
}

TEST_F(Peers, Gather) {
  for (const int count : {1, 2, 3, 8}) {
    Ranks ranks(count, 256);
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{7}, std::size_t{256},
                                    std::size_t{2050}, std::size_t{10000}, peer::kSmallBytes}) {
      if (bytes * static_cast<std::size_t>(count) > peer::kSmallBytes) continue;
      if (count > 2 && bytes > (count > 3 ? 256 : 2050)) continue;
      std::vector<Bytes> sent;
      Bytes expected;
      std::vector<std::unique_ptr<GuardedBuffer>> from, to;
      for (int rank = 0; rank < count; ++rank) {
        Bytes mine(bytes);
        std::generate(mine.begin(), mine.end(),
                      [&] { return static_cast<unsigned char>(random_()); });
        expected.insert(expected.end(), mine.begin(), mine.end());
        from.push_back(std::make_unique<GuardedBuffer>(bytes));
        to.push_back(std::make_unique<GuardedBuffer>(bytes * static_cast<std::size_t>(count)));
        from.back()->upload(mine.data(), ranks.stream(rank));
      }
      for (int rank = 0; rank < count; ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        ranks.of(rank).all_gather(from[r]->data(), to[r]->data(), bytes, ranks.stream(rank));
      }
      for (int rank = 0; rank < count; ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        EXPECT_EQ(to[r]->download(ranks.stream(rank)), expected) << bytes << " bytes, " << count;
        EXPECT_TRUE(to[r]->guards_intact(ranks.stream(rank)));
      }
    }
  }
}

// Two graphs of each rank, replayed in turns and between other exchanges, with other rows.
TEST_F(Peers, Graphs) {
  constexpr int kCount = 3;
  Ranks ranks(kCount, kCapacity);
  std::vector<Exchange> captured;
  captured.push_back(exchange_of(kCount, {1, 2, 5, 0}));
  captured.push_back(exchange_of(kCount, {5, 1, 2}));
  std::vector<std::vector<cudaGraphExec_t>> graphs(captured.size());
  for (std::size_t g = 0; g < captured.size(); ++g) {
    for (int rank = 0; rank < kCount; ++rank) {
      cudaGraph_t graph = nullptr;
      REQUIRE_CUDA(cudaStreamBeginCapture(ranks.stream(rank), cudaStreamCaptureModeThreadLocal));
      captured[g].enqueue(ranks, rank, g == 0 ? Phase::both : Phase::put);
      if (g != 0) captured[g].enqueue(ranks, rank, Phase::take);
      REQUIRE_CUDA(cudaStreamEndCapture(ranks.stream(rank), &graph));
      graphs[g].push_back(nullptr);
      REQUIRE_CUDA(cudaGraphInstantiate(&graphs[g].back(), graph, 0));
      REQUIRE_CUDA(cudaGraphDestroy(graph));
    }
  }
  for (const std::size_t g : {0, 1, 1, 0, 0}) {
    for (Way& way : captured[g].ways) {
      for (const auto& rows : way.sent) rows->refill(random_, ranks.stream(way.from));
    }
    for (int rank = 0; rank < kCount; ++rank) {
      REQUIRE_CUDA(cudaGraphLaunch(graphs[g][static_cast<std::size_t>(rank)], ranks.stream(rank)));
    }
    captured[g].check(ranks);
    Exchange between = exchange_of(kCount, {2, 1});
    for (int rank = 0; rank < kCount; ++rank) between.enqueue(ranks, rank, Phase::both);
    between.check(ranks);
  }
  for (auto& of_graph : graphs) {
    for (cudaGraphExec_t graph : of_graph) REQUIRE_CUDA(cudaGraphExecDestroy(graph));
  }
}

// Smaller and larger inboxes, as plans of several sizes have them.
TEST_F(Peers, SeveralInboxesAlive) {
  Ranks small(2, 4096), large(2, kCapacity);
  for (const int which : {0, 1, 1, 0, 1, 0, 0}) {
    Ranks& ranks = which == 0 ? small : large;
    Exchange exchange = exchange_of(2, {which == 0 ? 1 : 5, 1});
    for (const int rank : {which, 1 - which}) exchange.enqueue(ranks, rank, Phase::both);
    exchange.check(ranks);
  }
}

// What a rank enqueues on several streams runs in the order of the calls.
TEST_F(Peers, SeveralStreamsOfARank) {
  Ranks ranks(2, kCapacity);
  Stream other(Device::cuda);
  std::vector<Exchange> exchanges;
  for (int i = 0; i < 8; ++i) exchanges.push_back(exchange_of(2, {i % 3 == 0 ? 5 : 1}));
  for (int i = 0; i < 8; ++i) {
    const Exchange& exchange = exchanges[static_cast<std::size_t>(i)];
    ranks.of(0).exchange(exchange.moves(0, true), exchange.moves(0, false), Phase::both,
                         i % 2 == 0 ? ranks.stream(0) : other.get());
  }
  for (const Exchange& exchange : exchanges) exchange.enqueue(ranks, 1, Phase::both);
  REQUIRE_CUDA(cudaStreamSynchronize(other.get()));
  for (Exchange& exchange : exchanges) exchange.check(ranks);
}

TEST_F(Peers, FirstExchange) {
  Ranks ranks(3, 256);
  std::vector<std::shared_ptr<PeerMemory::Trial>> trials;
  for (const auto& one : ranks.all) trials.push_back(one->begin_trial(kLong));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_NO_THROW(ranks.of(rank).end_trial(*trials[static_cast<std::size_t>(rank)]));
  }
  Exchange exchange = exchange_of(3, {1});
  for (int rank = 0; rank < 3; ++rank) exchange.enqueue(ranks, rank, Phase::both);
  exchange.check(ranks);
}

// A rank that does not come to the first exchange costs nothing but the peers.
TEST_F(Peers, FirstExchangeWithoutTheOther) {
  Ranks ranks(2, 256);
  expect_error(Status::unsupported, {"rank 1 wrote nothing", "rank 0", "30 ms"},
               [&] { ranks.of(0).try_out(std::chrono::milliseconds(30)); });
  EXPECT_EQ(ranks.of(0).late(), std::optional<int>(1));
  EXPECT_EQ(ranks.of(1).late(), std::nullopt);
  expect_error(Status::launch_failure, {"rank 0 of 2", "rank 1", "gone or makes other calls"},
               [&] { ranks.of(0).exchange({}, {}, Phase::both, ranks.stream(0)); });
  REQUIRE_CUDA(cudaDeviceSynchronize());
}

// The host ends kernels that wait, without the loss of the context.
TEST_F(Peers, GiveUp) {
  Ranks ranks(2, kCapacity);
  for (const int kind : {1, 5}) {
    Exchange exchange = exchange_of(2, {kind});
    exchange.enqueue(ranks, 0, Phase::both);
    ranks.of(0).give_up();
    REQUIRE_CUDA(cudaStreamSynchronize(ranks.stream(0)));
  }
  EXPECT_EQ(ranks.of(0).late(), std::nullopt);
}

// An inbox is freed when no rank writes there any more, in whatever order they go.
TEST_F(Peers, DestroyedInAnyOrder) {
  // Of tests in which only one rank exchanged.
  const std::size_t before = PeerMemory::kept();
  for (const bool exchanged : {true, false}) {
    Ranks ranks(3, kCapacity);
    Exchange exchange = exchange_of(3, {5, 1});
    if (exchanged) {
      for (int rank = 0; rank < 3; ++rank) exchange.enqueue(ranks, rank, Phase::both);
    }
    std::size_t destroyed = 0;
    for (const std::size_t rank : {1, 0, 2}) {
      ranks.all[rank].reset();
      EXPECT_EQ(PeerMemory::kept() - before, exchanged && ++destroyed < 3 ? destroyed : 0);
    }
    if (exchanged) exchange.check(ranks);
  }
}

TEST_F(Peers, Refusals) {
  const auto make = [](int rank, int count, std::size_t capacity) {
    return std::make_unique<PeerMemory>(rank, count, capacity, kLong);
  };
  expect_error(Status::invalid_argument, {"count = 9", "legal: 1 to 8", "nearest: 8"},
               [&] { make(0, 9, 1); });
  expect_error(Status::invalid_argument, {"count = 0", "nearest: 1"}, [&] { make(0, 0, 1); });
  expect_error(Status::invalid_argument, {"rank = 2", "legal: 0 to 1", "nearest: 1"},
               [&] { make(2, 2, 1); });
  expect_error(Status::invalid_argument, {"capacity = ", "legal: up to"},
               [&] { make(0, 2, ~std::size_t{0}); });

  const auto alone = make(0, 2, 256), larger = make(1, 2, 512);
  expect_error(Status::invalid_argument, {"not connected"},
               [&] { alone->exchange({}, {}, Phase::both, nullptr); });
  expect_error(Status::invalid_argument, {"not connected"},
               [&] { alone->all_gather(nullptr, nullptr, 0, nullptr); });
  expect_error(Status::invalid_argument, {"handles has 1 entries", "legal: one a rank, 2"},
               [&] { alone->connect({alone->handle()}); });
  expect_error(Status::unsupported, {"rank 0", "rank 1", "512 bytes", "256"}, [&] {
    alone->connect({alone->handle(), larger->handle()});
  });
  PeerMemory::Handle elsewhere = make(1, 2, 256)->handle();
  elsewhere[0] = static_cast<char>(elsewhere[0] + 1);
  expect_error(Status::unsupported, {"rank 1", "another host"}, [&] {
    alone->connect({alone->handle(), elsewhere});
  });

  Ranks ranks(3, 256);
  char* const data = static_cast<char*>(nullptr) + 256;
  const auto exchange = [&](const std::vector<Move>& sends, Phase phase) {
    ranks.of(0).exchange(sends, {}, phase, ranks.stream(0));
  };
  expect_error(Status::invalid_argument, {"connected already"}, [&] {
    ranks.of(0).connect({3, ranks.of(0).handle()});
  });
  for (const int peer : {-1, 0, 2}) {
    expect_error(Status::invalid_argument, {"peer = ", "of rank 0 of 3", "the ranks beside it"},
                 [&] { exchange({{.peer = peer, .data = data, .bytes = 4}}, Phase::both); });
  }
  expect_error(Status::invalid_argument, {"260 bytes with rank 1", "legal: up to 256"},
               [&] { exchange({{.peer = 1, .data = data, .bytes = 260}}, Phase::both); });
  expect_error(Status::invalid_argument, {"nothing was put", "put first"},
               [&] { exchange({}, Phase::take); });
  exchange({}, Phase::put);
  for (const Phase phase : {Phase::put, Phase::both}) {
    expect_error(Status::invalid_argument, {"has not been taken"}, [&] { exchange({}, phase); });
  }
  const std::vector<Move> many(17, {.peer = 1, .data = data, .bytes = 1});
  Ranks wide(2, 1 << 16);
  expect_error(Status::invalid_argument, {"more than 16 moves"},
               [&] { wide.of(0).exchange(many, {}, Phase::both, wide.stream(0)); });
  expect_error(Status::invalid_argument, {"bytes = 65537", "nearest: 65536"},
               [&] { wide.of(0).all_gather(data, data, 65537, wide.stream(0)); });
  ranks.of(0).give_up();
}

bool error_has(const std::string& part) {
  return std::string(convoy_last_error()).find(part) != std::string::npos;
}

TEST_F(Peers, InC) {
  convoy_peers_t peers[2] = {};
  char handles[2 * CONVOY_PEER_HANDLE_BYTES];
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(convoy_peers_create(rank, 2, 4096, 60'000, &peers[rank]), CONVOY_OK);
    ASSERT_EQ(convoy_peers_handle(peers[rank], handles + rank * CONVOY_PEER_HANDLE_BYTES),
              CONVOY_OK);
  }
  EXPECT_EQ(convoy_peers_exchange(peers[0], nullptr, 0, nullptr, 0, CONVOY_PEERS_BOTH, nullptr),
            CONVOY_INVALID_ARGUMENT);
  EXPECT_TRUE(error_has("not connected"));
  for (convoy_peers_t one : peers) ASSERT_EQ(convoy_peers_connect(one, handles), CONVOY_OK);

  const Bytes sent[2] = {Bytes(300, 3), Bytes(300, 5)};
  std::vector<std::unique_ptr<GuardedBuffer>> from, to, all;
  Stream streams[2] = {Stream(Device::cuda), Stream(Device::cuda)};
  for (int rank = 0; rank < 2; ++rank) {
    from.push_back(std::make_unique<GuardedBuffer>(300));
    to.push_back(std::make_unique<GuardedBuffer>(300));
    all.push_back(std::make_unique<GuardedBuffer>(600));
    from.back()->upload(sent[rank].data());
  }
  REQUIRE_CUDA(cudaDeviceSynchronize());
  for (const int32_t phase : {CONVOY_PEERS_PUT, CONVOY_PEERS_TAKE}) {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const auto other = static_cast<int32_t>(1 - rank);
      const convoy_peer_move_t send = {other, 0, from[rank]->data(), 100, 3, 100};
      const convoy_peer_move_t receive = {other, 0, to[rank]->data(), 150, 2, 150};
      ASSERT_EQ(
          convoy_peers_exchange(peers[rank], &send, 1, &receive, 1, phase, streams[rank].get()),
          CONVOY_OK);
    }
  }
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(convoy_peers_all_gather(peers[rank], from[rank]->data(), all[rank]->data(), 300,
                                      streams[rank].get()),
              CONVOY_OK);
  }
  Bytes both = sent[0];
  both.insert(both.end(), sent[1].begin(), sent[1].end());
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(to[rank]->download(streams[rank].get()), sent[1 - rank]);
    EXPECT_EQ(all[rank]->download(streams[rank].get()), both);
  }

  const auto refused = [&](convoy_status_t status, const char* part) {
    EXPECT_EQ(status, CONVOY_INVALID_ARGUMENT);
    EXPECT_TRUE(error_has(part)) << part << " is not in: " << convoy_last_error();
  };
  const convoy_peer_move_t nowhere = {1, 0, nullptr, 4, 1, 4};
  refused(convoy_peers_exchange(peers[0], nullptr, 0, nullptr, 0, 3, nullptr), "phase = 3");
  refused(convoy_peers_exchange(peers[0], nullptr, 1, nullptr, 0, 2, nullptr), "sends");
  refused(convoy_peers_exchange(peers[0], nullptr, 0, nullptr, 1, 2, nullptr), "receives");
  refused(convoy_peers_exchange(peers[0], &nowhere, 1, nullptr, 0, 2, nullptr), "data");
  refused(convoy_peers_all_gather(peers[0], nullptr, all[0]->data(), 4, nullptr), "sent");
  refused(convoy_peers_all_gather(peers[0], from[0]->data(), nullptr, 4, nullptr), "received");
  refused(convoy_peers_all_gather(peers[0], from[0]->data(), all[0]->data(), 65537, nullptr),
          "bytes = 65537");
  refused(convoy_peers_try_out(peers[0], -1), "timeout_ms = -1");
  refused(convoy_peers_handle(peers[0], nullptr), "handle");
  refused(convoy_peers_connect(peers[0], handles), "connected already");
  int32_t late = 5;
  EXPECT_EQ(convoy_peers_late(peers[0], &late), CONVOY_OK);
  EXPECT_EQ(late, -1);
  EXPECT_EQ(convoy_peers_try_out(peers[0], 20), CONVOY_UNSUPPORTED);
  EXPECT_EQ(convoy_peers_late(peers[0], &late), CONVOY_OK);
  EXPECT_EQ(late, 1);
  for (convoy_peers_t one : peers) convoy_peers_destroy(one);
}

// The counts of exchanges, long before and just before 4 bytes of them wrap.
TEST_F(Peers, CountsWrap) {
  struct Side {
    GuardedBuffer memory{1 << 20}, state{sizeof(peer::State)}, rows{8192};
    Stream stream{Device::cuda};
  };
  peer::Report* report = nullptr;
  REQUIRE_CUDA(
      cudaHostAlloc(reinterpret_cast<void**>(&report), sizeof(*report), cudaHostAllocMapped));
  *report = {};
  for (const bool cells : {true, false}) {
    for (const std::uint64_t begin :
         {(std::uint64_t{1} << 32) - 3, (std::uint64_t{1} << 31) - 2, std::uint64_t{1} << 40}) {
      Side sides[2];
      const Bytes zeros(1 << 20, 0);
      for (Side& side : sides) {
        side.memory.upload(zeros.data());
        const peer::State state{.arrived = begin * peer::kArrivals};
        side.state.upload(&state);
      }
      REQUIRE_CUDA(cudaDeviceSynchronize());
      for (int turn = 0; turn < 6; ++turn) {
        std::vector<Bytes> sent;
        for (int rank = 0; rank < 2; ++rank) {
          sent.emplace_back(4096);
          std::generate(sent.back().begin(), sent.back().end(),
                        [&] { return static_cast<unsigned char>(random_()); });
          Bytes both(8192, 0xee);
          std::copy(sent.back().begin(), sent.back().end(), both.begin());
          sides[rank].rows.upload(both.data(), sides[rank].stream.get());
        }
        for (int rank = 0; rank < 2; ++rank) {
          peer::ExchangeParams params;
          params.state = static_cast<peer::State*>(sides[rank].state.data());
          params.report = report;
          params.timeout_ns = 60'000'000'000;
          params.peers = 1;
          params.moves = 2;
          params.peer[0].rank = 1 - rank;
          for (const bool put : {true, false}) {
            peer::MoveParams& move = params.move[put ? 0 : 1];
            move.tensor = static_cast<char*>(sides[rank].rows.data()) + (put ? 0 : 4096);
            move.total = 4096;
            move.piece = FastDivide(4096 / 16);
            peer::WayParams& way = put ? params.peer[0].put : params.peer[0].take;
            way.first = put ? 0 : 1;
            way.moves = 1;
            way.bytes = 4096;
            peer::divide(way);
            ASSERT_TRUE(way.cells);
            if (!cells) {
              way.cells = false;
              way.blocks = 2;
              way.step_bytes = 1024;
              way.steps = 2;
            }
            auto* const memory = static_cast<char*>(sides[put ? 1 - rank : rank].memory.data());
            way.flags = memory;
            way.inbox = memory + 4096;
            way.slot_bytes = 8192;
          }
          peer::launch(params, sides[rank].stream.get());
        }
        for (int rank = 0; rank < 2; ++rank) {
          const Bytes found = sides[rank].rows.download(sides[rank].stream.get());
          ASSERT_EQ(Bytes(found.begin() + 4096, found.end()), sent[static_cast<size_t>(1 - rank)])
              << "exchange " << begin << " + " << turn;
        }
      }
    }
  }
  REQUIRE_CUDA(cudaFreeHost(report));
}

/// Ends with 0 where a rank that waits in vain loses its context, and says for whom it waited.
[[noreturn]] void wait_in_vain() {
  std::vector<std::unique_ptr<PeerMemory>> ranks;
  std::vector<PeerMemory::Handle> handles;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(std::make_unique<PeerMemory>(rank, 2, 256, std::chrono::milliseconds(50)));
    handles.push_back(ranks.back()->handle());
  }
  for (auto& one : ranks) one->connect(handles);
  const auto begin = std::chrono::steady_clock::now();
  try {
    ranks[0]->exchange({}, {}, Phase::both, nullptr);
  } catch (const Error& error) {  // A host that is held up for 50 ms learns of it in this call.
    EXPECT_NE(std::string(error.what()).find("rank 0 of 2 waited 50 ms"), std::string::npos)
        << error.what();
  }
  EXPECT_NE(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_EQ(ranks[0]->late(), std::optional<int>(1));
  expect_error(Status::launch_failure, {"rank 0 of 2 waited 50 ms", "rank 1", "gone"},
               [&] { ranks[0]->exchange({}, {}, Phase::both, nullptr); });
  ranks.clear();
  std::_Exit(testing::Test::HasFailure() ? 1 : 0);
}

// NOTE: in a process of its own.
using PeersDeathTest = Peers;
TEST_F(PeersDeathTest, ALateRankIsNamed) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(wait_in_vain(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace convoy::test
