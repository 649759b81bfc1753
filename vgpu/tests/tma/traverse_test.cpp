// SPDX-License-Identifier: Apache-2.0
// TMA against the definition of each mode, element by element; what the hardware does beyond the
// definition is in probe/.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "tma/traverse.hpp"

namespace vgpu::tma {
namespace {

TensorMap random_tiled(std::mt19937& random, const std::vector<uint8_t>& memory) {
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  TensorMap map;
  map.type = below(2) ? DataType::uint16 : DataType::uint8;
  const uint32_t size = element_bytes(map.type);
  map.rank = 1 + below(5);
  map.swizzle = static_cast<Swizzle>(below(4));
  map.address = reinterpret_cast<uint64_t>(memory.data());
  map.strides[0] = size;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < map.rank; ++i) {
    map.dims[i] = i == 0 ? 1 + below(100) : 1 + below(6);
    map.element_strides[i] = i == 0 ? 1 : 1 + below(3);
    map.box[i] = i == 0 ? 16 / size * (1 + below(4)) : 1 + below(4);
    if (i > 0) map.strides[i] = i == 1 ? (map.dims[0] * size + 15) / 16 * 16 : bytes;
    bytes = (i == 0 ? (map.dims[0] * size + 15) / 16 * 16 : map.strides[i] * map.dims[i]);
  }
  if (swizzle_span(map.swizzle) && map.box[0] * size > swizzle_span(map.swizzle)) {
    map.swizzle = Swizzle::none;
  }
  return map;
}

// Byte `b` of row `row` of the box as the definition of tiled mode gives it; -1 outside.
int tiled_byte(const TensorMap& map, const Coordinates& at, uint32_t row, uint32_t b) {
  const uint32_t size = element_bytes(map.type);
  int64_t position[5] = {at.start[0] + static_cast<int64_t>(b / size)};
  for (uint32_t i = 1; i < map.rank; ++i) {
    const uint32_t count = (map.box[i] + map.element_strides[i] - 1) / map.element_strides[i];
    position[i] = at.start[i] + int64_t{row % count} * map.element_strides[i];
    row /= count;
  }
  uint64_t address = map.address + b % size;
  for (uint32_t i = 0; i < map.rank; ++i) {
    if (position[i] < 0 || position[i] >= static_cast<int64_t>(map.dims[i])) return -1;
    address += static_cast<uint64_t>(position[i]) * map.strides[i];
  }
  return *reinterpret_cast<const uint8_t*>(address);
}

TEST(Traverse, TiledLoadsMatchTheDefinition) {
  std::mt19937 random(1);
  std::vector<uint8_t> memory(1 << 20);
  for (auto& byte : memory) byte = static_cast<uint8_t>(random() | 1);
  int in_bounds = 0;
  for (int round = 0; round < 400; ++round) {
    const TensorMap map = random_tiled(random, memory);
    ASSERT_EQ(validate(map, 90), "") << describe(map);
    const uint32_t size = element_bytes(map.type);
    Coordinates at;
    for (uint32_t i = 0; i < map.rank; ++i) {
      at.start[i] = static_cast<int32_t>(random() % (map.dims[i] + 6)) - 3;
    }
    at.start[0] = at.start[0] / static_cast<int>(16 / size) * static_cast<int>(16 / size);
    ASSERT_EQ(check_coordinates(map, at, false), "");
    std::vector<tma::Run> runs;
    traverse(map, at, runs);

    constexpr uint32_t kBase = 2048;
    std::vector<uint8_t> shared(kBase + box_footprint(map) + 1024, 0xee);
    load_box(map, runs, shared.data(), kBase);
    const uint32_t inner = map.box[0] * size;
    const uint32_t pitch = std::max(inner, swizzle_span(map.swizzle));
    const uint32_t rows = box_bytes(map) / inner;
    for (uint32_t row = 0; row < rows; ++row) {
      for (uint32_t b = 0; b < inner; ++b) {
        const int expected = std::max(0, tiled_byte(map, at, row, b));
        const uint32_t where = swizzle_address(map.swizzle, kBase + row * pitch + b);
        ASSERT_EQ(shared[where], expected) << describe(map) << " row " << row << " byte " << b;
        in_bounds += expected != 0;
      }
    }
  }
  EXPECT_GT(in_bounds, 5000);
}

TEST(Traverse, Im2colLoadsMatchTheDefinition) {
  std::mt19937 random(2);
  std::vector<uint8_t> memory(1 << 20);
  for (auto& byte : memory) byte = static_cast<uint8_t>(random() | 1);
  int in_bounds = 0;
  for (int round = 0; round < 300; ++round) {
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    TensorMap map;
    map.im2col = true;
    map.type = DataType::uint8;
    map.rank = 3 + below(3);
    const uint32_t spatial = map.rank - 2;
    map.address = reinterpret_cast<uint64_t>(memory.data());
    map.dims[0] = 32;
    map.strides[0] = 1;
    map.strides[1] = 32;
    map.channels_per_pixel = 16 * (1 + below(2));
    map.pixels_per_column = 1 + below(60);
    Coordinates at;
    for (uint32_t i = 0; i < spatial; ++i) {
      map.dims[1 + i] = 4 + below(5);
      map.strides[2 + i] = map.strides[1 + i] * map.dims[1 + i];
      map.lower_corner[i] = static_cast<int>(below(3)) - 2;
      map.upper_corner[i] = static_cast<int>(below(3)) - 2;
      const int extent =
          static_cast<int>(map.dims[1 + i]) + map.upper_corner[i] - map.lower_corner[i];
      at.start[1 + i] = map.lower_corner[i] + static_cast<int>(below(extent));
      at.im2col_offset[i] = static_cast<uint16_t>(below(4));
    }
    map.dims[map.rank - 1] = 1 + below(3);
    for (auto& stride : map.element_strides) stride = 1;
    for (uint32_t i = 0; i < spatial; ++i) map.element_strides[1 + i] = 1 + below(2);
    at.start[map.rank - 1] = static_cast<int32_t>(below(4)) - 1;
    ASSERT_EQ(validate(map, 90), "") << describe(map);
    ASSERT_EQ(check_coordinates(map, at, false), "");
    std::vector<tma::Run> runs;
    traverse(map, at, runs);
    std::vector<uint8_t> shared(box_footprint(map));
    load_box(map, runs, shared.data(), 0);

    // Walk the bounding box pixel by pixel: W fastest, then H, D, N.
    int64_t pixel[3] = {at.start[1], at.start[2], at.start[3]};
    int64_t image = at.start[map.rank - 1];
    for (uint32_t row = 0; row < map.pixels_per_column; ++row) {
      bool inside = image >= 0 && image < static_cast<int64_t>(map.dims[map.rank - 1]);
      uint64_t address = map.address + static_cast<uint64_t>(image) * map.strides[map.rank - 1];
      for (uint32_t i = 0; i < spatial; ++i) {
        const int64_t p = pixel[i] + at.im2col_offset[i];
        inside &= p >= 0 && p < static_cast<int64_t>(map.dims[1 + i]);
        address += static_cast<uint64_t>(p) * map.strides[1 + i];
      }
      for (uint32_t c = 0; c < map.channels_per_pixel; ++c) {
        const int expected = inside ? reinterpret_cast<const uint8_t*>(address)[c] : 0;
        ASSERT_EQ(shared[row * map.channels_per_pixel + c], expected)
            << describe(map) << " pixel " << row;
        in_bounds += expected != 0;
      }
      uint32_t i = 0;
      for (; i < spatial; ++i) {
        pixel[i] += map.element_strides[1 + i];
        if (pixel[i] <= static_cast<int64_t>(map.dims[1 + i]) - 1 + map.upper_corner[i]) break;
        pixel[i] = map.lower_corner[i];
      }
      if (i == spatial) ++image;
    }
  }
  EXPECT_GT(in_bounds, 10000);
}

TEST(Traverse, StoresComeBackAsLoaded) {
  std::mt19937 random(3);
  std::vector<uint8_t> memory(1 << 20), other(1 << 20, 0x77);
  for (auto& byte : memory) byte = static_cast<uint8_t>(random());
  for (int round = 0; round < 100; ++round) {
    TensorMap map = random_tiled(random, memory);
    Coordinates at;  // from the first element: stores may only pass the end
    std::vector<tma::Run> runs;
    traverse(map, at, runs);
    std::vector<uint8_t> shared(box_footprint(map) + 1024);
    load_box(map, runs, shared.data(), 0);
    map.address = reinterpret_cast<uint64_t>(other.data());
    traverse(map, at, runs);
    std::fill(other.begin(), other.end(), uint8_t{0x77});
    store_box(map, runs, shared.data(), 0);
    uint64_t covered = 0;
    for (const tma::Run& run : runs) {
      if (!run.in_bounds) continue;
      const uint64_t offset = run.global - map.address;
      ASSERT_EQ(std::memcmp(&other[offset], &memory[offset], run.bytes), 0) << describe(map);
      covered += run.bytes;
    }
    const uint64_t changed = static_cast<uint64_t>(
        std::count_if(other.begin(), other.end(), [](uint8_t byte) { return byte != 0x77; }));
    EXPECT_LE(changed, covered);
    EXPECT_GT(covered, 0u);
  }
}

TEST(Traverse, NanFillAndTf32RoundingAreTheHardwares) {
  const uint32_t source[4] = {0x3f801000, 0x3f803000, 0x7f800001, 0x7f7fffff};
  TensorMap map;
  map.type = DataType::tfloat32;
  map.rank = 1;
  map.address = reinterpret_cast<uint64_t>(source);
  map.dims[0] = 4;
  map.strides[0] = 4;
  map.box[0] = 8;
  map.element_strides[0] = 1;
  map.fill = OobFill::nan_request_zero_fma;
  std::vector<tma::Run> runs;
  traverse(map, {}, runs);
  uint32_t shared[8];
  load_box(map, runs, reinterpret_cast<uint8_t*>(shared), 0);
  const uint32_t expected[8] = {0x3f800000, 0x3f804000, 0x7fffe000, 0x7f800000,
                                0x7ff77ff7, 0x7ff77ff7, 0x7ff77ff7, 0x7ff77ff7};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(shared[i], expected[i]) << i;
}

TEST(CheckCoordinates, FaultsWhereTheHardwareDoes) {
  TensorMap map;
  map.type = DataType::float16;
  map.rank = 2;
  map.dims[0] = 200;
  map.dims[1] = 100;
  map.box[0] = 16;
  map.box[1] = 20;
  Coordinates at;
  at.start[0] = 192;
  at.start[1] = -3;
  EXPECT_EQ(check_coordinates(map, at, false), "");
  EXPECT_NE(check_coordinates(map, at, true).find("stores may pass"), std::string::npos);
  at.start[0] = 196;
  EXPECT_NE(check_coordinates(map, at, false).find("multiple of 16 bytes"), std::string::npos);

  map.im2col = true;
  map.rank = 4;
  map.dims[1] = 9;
  map.dims[2] = 8;
  map.dims[3] = 3;
  map.lower_corner[0] = map.lower_corner[1] = -1;
  map.upper_corner[0] = map.upper_corner[1] = -1;
  at = {};
  at.start[1] = 7;
  EXPECT_EQ(check_coordinates(map, at, false), "");
  at.start[1] = 8;  // the bounding box ends at 7
  EXPECT_NE(check_coordinates(map, at, false).find("outside the im2col bounding box of -1 to 7"),
            std::string::npos);
}

TEST(TensorMapEncoding, KeepsEveryField) {
  std::mt19937 random(4);
  std::vector<uint8_t> memory(1 << 20);
  for (int round = 0; round < 50; ++round) {
    const TensorMap map = random_tiled(random, memory);
    alignas(64) uint8_t opaque[128];
    encode(map, opaque);
    TensorMap back;
    ASSERT_TRUE(decode(opaque, back));
    EXPECT_EQ(describe(back), describe(map));
    EXPECT_EQ(back.address, map.address);
    opaque[0] ^= 1;
    EXPECT_FALSE(decode(opaque, back));
  }
}

// As NVIDIA's release notes have it: of tensors that are not dense, whatever their size.
TEST(TensorMapEncoding, Bit85IsThatOfTheDriver) {
  TensorMap map;
  map.type = DataType::uint16;
  map.rank = 2;
  map.dims[0] = 64;
  map.dims[1] = 1023;
  map.strides[0] = 2;
  map.strides[1] = 128;
  map.box[0] = map.box[1] = 8;
  EXPECT_FALSE(driver_probes_128k(map));
  map.dims[1] = 1024;  // 128 KiB
  EXPECT_TRUE(driver_probes_128k(map));
  map.dims[1] = 2;
  map.strides[1] = 256;  // gaps
  EXPECT_TRUE(driver_probes_128k(map));
  map.element_strides[0] = map.element_strides[1] = 1;
  alignas(64) uint64_t opaque[16];
  for (const bool probes : {false, true}) {
    map.probes_128k = probes;
    encode(map, opaque);
    EXPECT_EQ(opaque[1] >> 21 & 1, probes);
    opaque[1] &= ~(uint64_t{1} << 21);
    TensorMap back;
    ASSERT_TRUE(decode(opaque, back));
    EXPECT_FALSE(back.probes_128k);
    EXPECT_EQ(describe(back), describe(map));
  }
}

TEST(Validate, NamesTheFieldAndTheNearestLegalValue) {
  TensorMap map;
  map.type = DataType::bfloat16;
  map.rank = 2;
  map.address = 0x1000;
  map.dims[0] = map.dims[1] = 100;
  map.strides[0] = 2;
  map.strides[1] = 200;
  map.box[0] = 64;
  map.box[1] = 8;
  map.element_strides[0] = map.element_strides[1] = 1;
  const auto problem = [&](auto&& change, int capability = 90) {
    TensorMap changed = map;
    change(changed);
    return validate(changed, capability);
  };
  EXPECT_NE(problem([](TensorMap&) {}).find("globalStrides[0] is 200"), std::string::npos);
  EXPECT_NE(problem([](TensorMap&) {}).find("208"), std::string::npos);
  map.strides[1] = 208;
  EXPECT_EQ(problem([](TensorMap&) {}), "");
  EXPECT_NE(problem([](TensorMap& m) { m.address = 0x1008; }).find("globalAddress"),
            std::string::npos);
  EXPECT_NE(problem([](TensorMap& m) { m.swizzle = Swizzle::b64; }).find("at most 32 elements"),
            std::string::npos);
  EXPECT_NE(problem([](TensorMap& m) { m.swizzle = Swizzle::b128_atom32; }).find("10.0"),
            std::string::npos);
  EXPECT_EQ(problem([](TensorMap& m) { m.swizzle = Swizzle::b128_atom32; }, 100), "");
  EXPECT_NE(problem([](TensorMap& m) { m.interleave = Interleave::b16; }).find("interleave"),
            std::string::npos);
  EXPECT_NE(problem([](TensorMap& m) { m.element_strides[1] = 9; }).find("1 to 8"),
            std::string::npos);
}

TEST(Swizzle, IsAPermutationThatKeepsPiecesWhole) {
  for (int mode = 1; mode <= 6; ++mode) {
    const auto swizzle = static_cast<Swizzle>(mode);
    std::vector<bool> hit(1024);
    for (uint32_t address = 0; address < 1024; ++address) {
      const uint32_t to = swizzle_address(swizzle, address);
      EXPECT_EQ(to % 16, address % 16);
      EXPECT_EQ(to / 128, address / 128);
      EXPECT_FALSE(hit[to]);
      hit[to] = true;
    }
  }
}

TEST(Reduce, FollowsPtx) {
  uint32_t u[3] = {5, 0, 0xffffffff};
  const uint32_t v[3] = {7, 3, 1};
  reduce(ReduceOp::inc, ReduceType::u32, reinterpret_cast<uint8_t*>(u),
         reinterpret_cast<const uint8_t*>(v), 12);
  EXPECT_EQ(u[0], 6u);
  EXPECT_EQ(u[1], 1u);
  EXPECT_EQ(u[2], 0u);
  int32_t s[2] = {-5, 5};
  const int32_t t[2] = {3, -3};
  reduce(ReduceOp::min, ReduceType::s32, reinterpret_cast<uint8_t*>(s),
         reinterpret_cast<const uint8_t*>(t), 8);
  EXPECT_EQ(s[0], -5);
  EXPECT_EQ(s[1], -3);
  uint16_t h[3] = {0x3c00, 0x7e00, 0x8000};  // 1, NaN, -0
  const uint16_t g[3] = {0x3c01, 0x3c00, 0x0000};
  reduce(ReduceOp::max, ReduceType::f16, reinterpret_cast<uint8_t*>(h),
         reinterpret_cast<const uint8_t*>(g), 6);
  EXPECT_EQ(h[0], 0x3c01);
  EXPECT_EQ(h[1], 0x3c00);
  EXPECT_EQ(h[2], 0x0000);
  EXPECT_NE(check_reduction(ReduceOp::min, ReduceType::f32), "");
  EXPECT_EQ(check_reduction(ReduceOp::add, ReduceType::f32), "");
}

}  // namespace
}  // namespace vgpu::tma
