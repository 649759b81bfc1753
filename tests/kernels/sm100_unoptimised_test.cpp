// SPDX-License-Identifier: Apache-2.0
//
// Tensor maps from host code that is compiled without optimisation, as in a debug build: the driver
// must get aligned memory wherever the compiler puts the returned map.
#include <alloca.h>
#include <gtest/gtest.h>

#include "kernels/common/tensor_map.hpp"
#include "support/integer_tensors.hpp"

namespace convoy {
namespace {

struct Maps {
  CUtensorMap first, second;
};

// The map encoded at its address, and encoded before the address is known.
[[gnu::noinline]] Maps both(const TiledTensorMap& map) {
  Maps maps{};
  maps.first = encode(map);
  const auto late = [](const TiledTensorMap& m) {
    return at_address(encode_template(m), m.name, m.address);
  };
  maps.second = late(map);
  return maps;
}

TEST(Sm100Unoptimised, MapsAreEncodedAtAnyDepthOfTheStack) {
  if (!test::on_blackwell()) GTEST_SKIP() << "encoding a tensor map needs a driver";
  test::GuardedBuffer tensor(16 * 128);
  TiledTensorMap map;
  map.rank = 2;
  map.address = tensor.data();
  map.extents = {64, 16, 0, 0, 0};
  map.strides_bytes = {0, 128, 0, 0, 0};
  map.box = {64, 16, 0, 0, 0};
  for (unsigned i = 0; i < 8; ++i) {
    // Frames start 16 bytes lower each time.
    void* const depth = alloca(16 * i + 1);
    asm volatile("" ::"r"(depth));
    Maps maps{};
    ASSERT_NO_THROW(maps = both(map)) << "depth " << i;
    EXPECT_EQ(std::memcmp(&maps.first, &maps.second, sizeof maps.first), 0);
  }
}

}  // namespace
}  // namespace convoy
