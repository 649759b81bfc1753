// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>

#include "memory.hpp"

namespace vgpu {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(GlobalMemory, HandsOutZeroedAlignedRanges) {
  GlobalMemory memory(64 * kMiB);
  Allocation* a = memory.allocate(1000, MemoryKind::device, "test");
  Allocation* b = memory.allocate(1, MemoryKind::device, "test");
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->base() % GlobalMemory::kAlignment, 0u);
  EXPECT_EQ(b->base() % GlobalMemory::kAlignment, 0u);
  EXPECT_GE(b->base(), a->end());
  const auto* bytes = reinterpret_cast<const uint8_t*>(a->base());
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(bytes[i], 0);
  EXPECT_EQ(memory.live_bytes(), 1001u);
}

TEST(GlobalMemory, RefusesWhatDoesNotFit) {
  GlobalMemory memory(kMiB);
  EXPECT_EQ(memory.allocate(kMiB + 1, MemoryKind::device, "test"), nullptr);
  EXPECT_EQ(memory.allocate(0, MemoryKind::device, "test"), nullptr);
  Allocation* a = memory.allocate(kMiB, MemoryKind::device, "test");
  ASSERT_TRUE(a);
  EXPECT_EQ(memory.allocate(1, MemoryKind::device, "test"), nullptr);
  EXPECT_TRUE(memory.allocate(1, MemoryKind::host, "test"));  // not the device's
  EXPECT_TRUE(memory.free(a->base()));
  EXPECT_TRUE(memory.allocate(kMiB, MemoryKind::device, "test"));
}

TEST(GlobalMemory, NamesOverrunsAndUseAfterFree) {
  GlobalMemory memory(64 * kMiB);
  Allocation* a = memory.allocate(1000, MemoryKind::device, "cudaMalloc");
  const uint64_t base = a->base();
  EXPECT_EQ(memory.check(base, 1000), "");
  EXPECT_EQ(memory.check(base + 999, 1), "");
  EXPECT_NE(memory.check(base + 996, 8).find("4 bytes past the end"), std::string::npos);
  EXPECT_NE(memory.check(base + 1010, 4).find("10 bytes past the end"), std::string::npos);
  EXPECT_NE(memory.check(0x10, 4).find("null pointer plus 16"), std::string::npos);
  EXPECT_TRUE(memory.free(base));
  EXPECT_FALSE(memory.free(base));
  EXPECT_NE(memory.check(base + 8, 4).find("byte 8 of freed allocation #1 (cudaMalloc)"),
            std::string::npos)
      << memory.check(base + 8, 4);
  // A freed address is not handed out again at once.
  EXPECT_NE(memory.allocate(1000, MemoryKind::device, "test")->base(), base);
}

TEST(GlobalMemory, KnowsWhichBytesWereWritten) {
  GlobalMemory memory(64 * kMiB);
  Allocation* a = memory.allocate(300, MemoryKind::device, "test");
  const uint64_t base = a->base();
  EXPECT_EQ(a->first_unwritten(base, 300), base);
  a->mark_written(base + 60, 140);  // crosses words of the bitmap
  EXPECT_TRUE(a->is_written(base + 60, 140));
  EXPECT_FALSE(a->is_written(base + 59, 2));
  EXPECT_EQ(a->first_unwritten(base + 100, 200), base + 200);
  memory.mark_written(base, 300);
  EXPECT_TRUE(a->is_written(base, 300));
  Allocation* managed = memory.allocate(16, MemoryKind::managed, "test");
  EXPECT_TRUE(managed->is_written(managed->base(), 16));  // the host writes it unseen
}

TEST(GlobalMemory, AdoptsHostMemory) {
  GlobalMemory memory(64 * kMiB);
  std::vector<char> host(4096);
  EXPECT_TRUE(memory.adopt(host.data(), host.size(), "cudaHostRegister"));
  EXPECT_EQ(memory.adopt(host.data() + 100, 10, "cudaHostRegister"), nullptr);
  EXPECT_EQ(memory.check(reinterpret_cast<uint64_t>(host.data()) + 10, 100), "");
  EXPECT_TRUE(memory.free(reinterpret_cast<uint64_t>(host.data())));
  host[0] = 1;  // still the program's
  EXPECT_TRUE(memory.adopt(host.data(), host.size(), "cudaHostRegister"));
}

TEST(GlobalMemory, ReachesTheEndOfItsQuarantine) {
  GlobalMemory memory(kMiB);
  // Far more than the arena holds: freed ranges must come back.
  const uint64_t rounds = GlobalMemory::kArenaBytes / (256 * kMiB) + 100;
  GlobalMemory large(512 * kMiB);
  for (uint64_t i = 0; i < rounds; ++i) {
    Allocation* a = large.allocate(256 * kMiB, MemoryKind::host, "test");
    ASSERT_TRUE(a) << "round " << i;
    ASSERT_TRUE(large.free(a->base()));
  }
}

}  // namespace
}  // namespace vgpu
