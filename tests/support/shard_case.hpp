// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "convoy/shard.hpp"
#include "support/conv_case.hpp"

namespace convoy::test {

/// One convolution over several ranks, to be compared with the same on one.
struct ShardCase {
  ConvCase conv;  ///< Problem, options, which parts of the epilogue; its seed makes the tensors.
  ShardSpec spec;
  ShardOverlap overlap = ShardOverlap::automatic;
  bool exact = true;  ///< Small integers, whose sums have one value in any order; else reals.
  bool given_halos = false;  ///< The test exchanges the halos, and the run does not.
};

/// A case that may be cut; the same for the same seed, count and axis.
ShardCase random_shard_case(std::uint64_t seed, int count, ShardAxis axis,
                            const CaseLimits& limits);
/// One line that shows the case.
std::string describe(const ShardCase& c);

struct ShardResult {
  bool ran = false;       ///< Not so where shard_layouts refuses the cut.
  std::string refusal;    ///< Its words.
  std::string wrong;      ///< What is wrong; empty if nothing is.
  bool interior = false;  ///< Some rank ran its interior beside the exchange.
};

/// Runs it with the ranks as threads: on the CPU in this process, on CUDA one device a rank, by
/// NCCL. Own outputs, next caches and the gathered output must have the bits of one rank's.
ShardResult run_shard_case(const ShardCase& given);

/// Communicators for the ranks as threads, made by each.
class RankThreads {
 public:
  RankThreads(Device device, int count,
              std::chrono::milliseconds timeout = std::chrono::seconds(20));
  /// Runs `body(communicator)` on every rank and waits for all; what each threw, "" where nothing.
  template <typename Body>
  std::vector<std::string> run(Body body) {
    return run_each([&](const Communicator& communicator) { body(communicator); });
  }

 private:
  std::vector<std::string> run_each(const std::function<void(const Communicator&)>& body);
  Device device_;
  int count_;
  std::chrono::milliseconds timeout_;
};

}  // namespace convoy::test
