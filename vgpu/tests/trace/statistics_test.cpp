// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "trace/statistics.hpp"

namespace vgpu::trace {
namespace {

BankPasses passes(uint32_t bytes, uint32_t lanes, uint64_t (*address)(uint64_t)) {
  uint64_t addresses[32];
  for (uint64_t lane = 0; lane < 32; ++lane) addresses[lane] = address(lane);
  return bank_passes(addresses, lanes, bytes);
}

TEST(BankPasses, OneForDistinctBanksAndForBroadcasts) {
  EXPECT_EQ(passes(4, ~0u, [](uint64_t l) { return l * 4; }).passes, 1u);
  EXPECT_EQ(passes(4, ~0u, [](uint64_t) -> uint64_t { return 64; }).passes, 1u);
  EXPECT_EQ(passes(2, ~0u, [](uint64_t l) { return l * 2; }).passes, 1u);
}

TEST(BankPasses, CountDistinctWordsOfABank) {
  EXPECT_EQ(passes(4, ~0u, [](uint64_t l) { return l * 8; }).passes, 2u);
  EXPECT_EQ(passes(4, ~0u, [](uint64_t l) { return l * 128; }).passes, 32u);
  EXPECT_EQ(passes(4, 0xffu, [](uint64_t l) { return l * 128; }).passes, 8u);
  EXPECT_EQ(passes(4, ~0u, [](uint64_t l) { return l * 132; }).passes, 1u);
}

TEST(BankPasses, WideAccessesGoInGroups) {
  const BankPasses dense = passes(16, ~0u, [](uint64_t l) { return l * 16; });
  EXPECT_EQ(dense.passes, 4u);
  EXPECT_EQ(dense.minimum, 4u);
  const BankPasses rows = passes(16, ~0u, [](uint64_t l) { return l * 128; });
  EXPECT_EQ(rows.passes, 32u);
  EXPECT_EQ(rows.minimum, 4u);
}

}  // namespace
}  // namespace vgpu::trace
