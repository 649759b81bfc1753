// SPDX-License-Identifier: Apache-2.0
//
// What ranks tell each other: halos, whole tensors, and whether they agree.
#include <algorithm>
#include <cstring>

#include "core/text.hpp"
#include "shard/transport.hpp"

namespace convoy {
namespace {

const ShardRange& range_of(const ShardedTensor& tensor, int rank) {
  return tensor.ranges[unsigned_of(rank)];
}

void check_tensor(const ShardedTensor& tensor, int count) {
  if (tensor.ranges.size() != unsigned_of(count)) {
    throw_invalid("ranges has ", tensor.ranges.size(), " entries; legal: one a rank, ", count);
  }
  if (tensor.outer < 0) throw_invalid("outer = ", tensor.outer, " is not legal; legal: at least 0");
}

/// `rows` elements of each block of the tensor, from `first` of what the rank stores.
Move rows_of(const ShardedTensor& tensor, const ShardRange& mine, int peer, std::int64_t first,
             std::int64_t rows) {
  auto* data = static_cast<char*>(tensor.data);  // None where the moves alone are asked for.
  if (data != nullptr) data += unsigned_of(first) * tensor.inner;
  return {.peer = peer,
          .data = data,
          .bytes = unsigned_of(rows) * tensor.inner,
          .count = unsigned_of(tensor.outer),
          .pitch = unsigned_of(mine.stored()) * tensor.inner};
}

struct Message {
  char subject[480] = {};
  char fault[480] = {};
  Status status = Status::ok;  ///< Of the fault.
  std::uint64_t hash = 0;      ///< Of the whole subject.
};

void put(char (&to)[480], const std::string& from) {
  std::memcpy(to, from.data(), std::min(from.size(), sizeof(to) - 1));
}

}  // namespace

HaloMoves halo_moves(const ShardedTensor& tensor, int rank,
                     const std::vector<std::int64_t>& halo_begin,
                     const std::vector<std::int64_t>& halo_end) {
  const int count = static_cast<int>(tensor.ranges.size());
  if (halo_begin.size() != tensor.ranges.size() || halo_end.size() != tensor.ranges.size()) {
    throw_invalid("halo_begin and halo_end have ", halo_begin.size(), " and ", halo_end.size(),
                  " entries; legal: one a rank, ", count);
  }
  for (int r = 0; r < count; ++r) {
    const std::int64_t before = r > 0 ? range_of(tensor, r - 1).own() : 0;
    const std::int64_t after = r + 1 < count ? range_of(tensor, r + 1).own() : 0;
    const std::int64_t most_begin = std::min(before, range_of(tensor, r).margin_begin);
    const std::int64_t most_end = std::min(after, range_of(tensor, r).margin_end);
    const std::int64_t begin = halo_begin[unsigned_of(r)], end = halo_end[unsigned_of(r)];
    if (begin < 0 || begin > most_begin) {
      throw_invalid("halo_begin of rank ", r, " = ", begin, " is not legal; legal: 0 to ",
                    most_begin, " (its margin, and what rank ", r - 1, " has)");
    }
    if (end < 0 || end > most_end) {
      throw_invalid("halo_end of rank ", r, " = ", end, " is not legal; legal: 0 to ", most_end,
                    " (its margin, and what rank ", r + 1, " has)");
    }
  }
  HaloMoves moves;
  for (std::size_t r = 0; r < tensor.ranges.size(); ++r) {
    const std::int64_t rows = std::max(halo_begin[r], halo_end[r]);
    moves.largest = std::max(moves.largest, unsigned_of(rows * tensor.outer) * tensor.inner);
  }
  const ShardRange& mine = range_of(tensor, rank);
  const std::int64_t first = mine.margin_begin, past = mine.margin_begin + mine.own();
  const auto add = [&](std::vector<Move>& to, int peer, std::int64_t begin, std::int64_t rows) {
    if (rows > 0 && tensor.outer > 0 && tensor.inner > 0) {
      to.push_back(rows_of(tensor, mine, peer, begin, rows));
    }
  };
  if (rank > 0) {
    add(moves.sends, rank - 1, first, halo_end[unsigned_of(rank - 1)]);
    const std::int64_t rows = halo_begin[unsigned_of(rank)];
    add(moves.receives, rank - 1, first - rows, rows);
  }
  if (rank + 1 < count) {
    const std::int64_t rows = halo_begin[unsigned_of(rank + 1)];
    add(moves.sends, rank + 1, past - rows, rows);
    add(moves.receives, rank + 1, past, halo_end[unsigned_of(rank)]);
  }
  return moves;
}

void exchange_halos(const Communicator& communicator, const ShardedTensor& tensor,
                    const std::vector<std::int64_t>& halo_begin,
                    const std::vector<std::int64_t>& halo_end, cudaStream_t stream) {
  Transport& transport = communicator.impl();
  check_tensor(tensor, transport.count());
  telling(transport, [&] {
    const HaloMoves moves = halo_moves(tensor, transport.rank(), halo_begin, halo_end);
    const std::size_t bytes = transport.staging_bytes(moves);
    const std::shared_ptr<void> staging = bytes > 0 ? transport.allocate(bytes) : nullptr;
    transport.exchange(moves, staging.get(), stream);
    if (staging != nullptr) transport.synchronize(stream);
  });
}

void gather_shards(const Communicator& communicator, const ShardedTensor& tensor, void* whole,
                   cudaStream_t stream) {
  Transport& transport = communicator.impl();
  check_tensor(tensor, transport.count());
  if (tensor.outer == 0 || tensor.inner == 0) return;
  // Each rank's own elements, packed into slots of the largest; then to where they belong.
  std::int64_t most = 0;
  for (const ShardRange& range : tensor.ranges) most = std::max(most, range.own());
  const std::size_t slot = unsigned_of(most * tensor.outer) * tensor.inner;
  const auto ranks = unsigned_of(transport.count());
  std::shared_ptr<void> memory;
  telling(transport, [&] { memory = transport.allocate(slot * (ranks + 1)); });
  auto* const packed = static_cast<char*>(memory.get());
  char* const received = packed + slot;
  const ShardRange& mine = range_of(tensor, transport.rank());
  const std::size_t own = unsigned_of(mine.own()) * tensor.inner;
  transport.copy(
      packed, own,
      static_cast<const char*>(tensor.data) + unsigned_of(mine.margin_begin) * tensor.inner,
      unsigned_of(mine.stored()) * tensor.inner, own, unsigned_of(tensor.outer), stream);
  telling(transport, [&] { transport.all_gather(packed, received, slot, stream); });
  const std::size_t pitch = unsigned_of(tensor.ranges.back().end) * tensor.inner;
  for (std::size_t r = 0; r < ranks; ++r) {
    const ShardRange& range = tensor.ranges[r];
    const std::size_t bytes = unsigned_of(range.own()) * tensor.inner;
    transport.copy(static_cast<char*>(whole) + unsigned_of(range.begin) * tensor.inner, pitch,
                   received + r * slot, bytes, bytes, unsigned_of(tensor.outer), stream);
  }
  transport.synchronize(stream);
}

void scatter_shard(const Communicator& communicator, const void* whole, const ShardedTensor& tensor,
                   cudaStream_t stream) {
  Transport& transport = communicator.impl();
  check_tensor(tensor, transport.count());
  const ShardRange& mine = range_of(tensor, transport.rank());
  const std::size_t bytes = unsigned_of(mine.stored()) * tensor.inner;
  transport.copy(
      tensor.data, bytes,
      static_cast<const char*>(whole) + unsigned_of(mine.begin - mine.margin_begin) * tensor.inner,
      unsigned_of(tensor.ranges.back().end) * tensor.inner, bytes, unsigned_of(tensor.outer),
      stream);
}

void Transport::agree(const std::string& subject, const std::string& fault, Status status) {
  Message mine;
  put(mine.subject, subject);
  put(mine.fault, fault);
  mine.status = status;
  mine.hash = std::hash<std::string>{}(subject);
  std::vector<Message> all(unsigned_of(count()));
  all_gather_host(&mine, all.data(), sizeof(Message));
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].fault[0] == '\0') continue;
    const bool ended = all[r].status == Status::out_of_memory;
    throw Error(ended ? Status::launch_failure : Status::unsupported,
                text("rank ", r, " cannot take part: ", all[r].fault));
  }
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r].hash == all[0].hash) continue;
    throw_invalid("the ranks differ: rank ", r, " plans ", all[r].subject, ", but rank 0 plans ",
                  all[0].subject, "; legal: the same on every rank");
  }
}

std::vector<Communicator> Communicator::in_process(int count, std::chrono::milliseconds timeout) {
  std::vector<Communicator> ranks;
  for (auto& transport : make_in_process(count, capped(timeout))) {
    ranks.emplace_back(std::move(transport));
  }
  return ranks;
}
Communicator Communicator::nccl(void* comm, std::chrono::milliseconds timeout) {
  return Communicator(wrap_nccl(comm, capped(timeout)));
}
Communicator Communicator::nccl(const NcclId& id, int rank, int count,
                                std::chrono::milliseconds timeout) {
  return Communicator(make_nccl(id, rank, count, capped(timeout)));
}
NcclId Communicator::nccl_id() {
  return make_nccl_id();
}

int Communicator::rank() const {
  return impl_->rank();
}
int Communicator::count() const {
  return impl_->count();
}
const std::string& Communicator::transport() const {
  return impl_->name();
}
void Communicator::synchronize(cudaStream_t stream) const {
  impl_->synchronize(stream);
}
void Communicator::all_gather(const void* sent, void* received, std::size_t bytes,
                              cudaStream_t stream) const {
  impl_->all_gather(sent, received, bytes, stream);
}
void Communicator::abort(const std::string& cause) const {
  impl_->abort(cause);
}

}  // namespace convoy
