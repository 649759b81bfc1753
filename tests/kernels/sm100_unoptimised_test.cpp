// SPDX-License-Identifier: Apache-2.0
//
// Tensor maps from host code that is compiled without optimisation, as in a debug build: the driver
// must get aligned memory wherever the compiler puts the returned map.
#include <alloca.h>
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/common/tensor_map.hpp"
#include "support/integer_tensors.hpp"

namespace convoy {
namespace {

struct Maps {
  CUtensorMap first, second;
};

// The map at its address, at once and by way of another.
[[gnu::noinline]] Maps both(const TiledTensorMap& map, const char* address) {
  Maps maps{};
  const auto at = [&](const CUtensorMap& from, std::size_t offset) {
    return at_address(from, map.name, address + offset);
  };
  maps.first = at(encode_template(map), 0);
  maps.second = at(at(encode_template(map), 1024), 0);
  return maps;
}

TEST(Sm100Unoptimised, MapsAreEncodedAtAnyDepthOfTheStack) {
  if (!test::on_blackwell()) GTEST_SKIP() << "encoding a tensor map needs a driver";
  test::GuardedBuffer tensor(16 * 128);
  TiledTensorMap map;
  map.rank = 2;
  map.extents = {64, 16, 0, 0, 0};
  map.strides_bytes = {0, 128, 0, 0, 0};
  map.box = {64, 16, 0, 0, 0};
  for (unsigned i = 0; i < 8; ++i) {
    // Frames start 16 bytes lower each time.
    void* const depth = alloca(16 * i + 1);
    asm volatile("" ::"r"(depth));
    Maps maps{};
    ASSERT_NO_THROW(maps = both(map, static_cast<const char*>(tensor.data()))) << "depth " << i;
    EXPECT_EQ(std::memcmp(&maps.first, &maps.second, sizeof maps.first), 0);
    const CUtensorMap nowhere = encode_template(map);
    EXPECT_NE(std::memcmp(&maps.first, &nowhere, sizeof maps.first), 0);
  }
}

}  // namespace
}  // namespace convoy
