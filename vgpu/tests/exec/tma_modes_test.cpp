// SPDX-License-Identifier: Apache-2.0
// TMA modes of sm_100a: gather4, scatter4 and sub-byte types. The definition of each mode is
// computed element by element here.
#include <numeric>

#include "check/checker.hpp"
#include "exec/harness.hpp"
#include "tma/tensor_map.hpp"
#include "tma/traverse.hpp"

namespace vgpu::test {
namespace {

using exec::Delivery;
using tma::DataType;
using tma::Swizzle;
using tma::TensorMap;

TensorMap map_2d(DataType type, uint64_t address, uint64_t width, uint64_t height, uint64_t pitch,
                 uint32_t box_width, uint32_t box_height, Swizzle swizzle = Swizzle::none) {
  TensorMap map;
  map.type = type;
  map.rank = 2;
  map.address = address;
  map.dims[0] = width;
  map.dims[1] = height;
  map.strides[0] = tma::element_bytes(type);
  map.strides[1] = pitch;
  map.element_strides[0] = map.element_strides[1] = 1;
  map.box[0] = box_width;
  map.box[1] = box_height;
  map.swizzle = swizzle;
  return map;
}

/// One thread executes `copy` (with %map, %tile and %bar) between shared memory and the tensor;
/// then 512 words of shared memory, which begin as 0xcccccccc, go to `out`.
exec::LaunchResult run(const TensorMap& map, const std::string& copy, Buffers& buffers,
                       uint64_t out, Delivery delivery) {
  const std::string text = kernel_text(".param .align 64 .b8 tensor[128], .param .u64 out", R"(
  .reg .pred %p;
  .reg .b32 %tile, %bar, %i, %at, %v, %thr;
  .reg .b64 %map, %out, %o;
  .shared .align 1024 .b8 cells[2048];
  .shared .align 8 .b64 barrier;
  ld.param.u64 %out, [out];
  mov.b64 %map, tensor;
  cvta.param.u64 %map, %map;
  mov.u32 %tile, cells;
  mov.u32 %bar, barrier;
  mov.u32 %i, 0;
FILL:
  add.u32 %at, %tile, %i;
  st.shared.u32 [%at], 0xcccccccc;
  add.u32 %i, %i, 4;
  setp.lt.u32 %p, %i, 2048;
  @%p bra FILL;
  mbarrier.init.shared::cta.b64 [%bar], 1;
  fence.proxy.async.shared::cta;
)" + copy + R"(
  mov.u32 %i, 0;
DUMP:
  add.u32 %at, %tile, %i;
  ld.shared.u32 %v, [%at];
  cvt.u64.u32 %o, %i;
  add.u64 %o, %out, %o;
  st.global.u32 [%o], %v;
  add.u32 %i, %i, 4;
  setp.lt.u32 %p, %i, 2048;
  @%p bra DUMP;
  ret;)");
  Params params;
  params.bytes.resize(128);
  tma::encode(map, params.bytes.data());
  params << out;
  Launch launch;
  launch.block.x = 1;
  launch.options.delivery = delivery;
  return run_module(text, params, buffers, launch);
}

std::string load(const std::string& mode, const std::string& coordinates, uint32_t bytes) {
  return "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], " + std::to_string(bytes) +
         ";\ncp.async.bulk.tensor.2d.shared::cluster.global" + mode +
         ".mbarrier::complete_tx::bytes [%tile], [%map, {" + coordinates +
         "}], [%bar];\nWAIT: mbarrier.try_wait.parity.shared::cta.b64 %p, [%bar], 0;\n"
         "@!%p bra WAIT;\n";
}

/// Stores a box of 32 x 4 words to a tensor of 24 x 3; `columns` of three rows are written before.
exec::LaunchResult store_edge(uint32_t columns, Delivery delivery) {
  const std::string text = kernel_text(".param .align 64 .b8 tensor[128]", R"(
  .reg .pred %p, %q;
  .reg .b32 %tile, %at, %thr;
  .reg .b64 %map;
  .shared .align 1024 .b8 cells[512];
  mov.b64 %map, tensor;
  cvta.param.u64 %map, %map;
  mov.u32 %thr, %tid.x;
  mov.u32 %tile, cells;
  mad.lo.u32 %at, %thr, 4, %tile;
  setp.lt.u32 %p, %thr, )" + std::to_string(columns) +
                                                                               R"(;
  @%p st.shared.u32 [%at], %thr;
  @%p st.shared.u32 [%at+128], %thr;
  @%p st.shared.u32 [%at+256], %thr;
  fence.proxy.async.shared::cta;
  bar.warp.sync -1;
  setp.ne.u32 %q, %thr, 0;
  @%q bra DONE;
  cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%map, {0, 0}], [%tile];
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
DONE:
  ret;)");
  const auto checker = check::make_checker(check::CheckOptions::parse("all,strict"), nullptr,
                                           [](std::string_view) {});
  Buffers buffers;
  const uint64_t out = buffers.add(3 * 128);
  Params params;
  params.bytes.resize(128);
  tma::encode(map_2d(DataType::uint32, out, 24, 3, 128, 32, 4), params.bytes.data());
  Launch launch;
  launch.block.x = 32;
  launch.options.delivery = delivery;
  launch.observer = checker.get();
  return run_module(text, params, buffers, launch);
}

const Delivery kPolicies[] = {Delivery::late, Delivery::early, Delivery::sweep, Delivery::random};

// What a store does not write, since it lies outside the tensor, need not be there.
TEST(TmaModes, AStoreReadsWhatLiesInTheTensor) {
  for (auto delivery : kPolicies) {
    const auto edge = store_edge(24, delivery);
    EXPECT_EQ(edge.cuda_error, 0) << edge.report;
    const auto missing = store_edge(23, delivery);
    EXPECT_NE(missing.report.find("init check"), std::string::npos) << missing.report;
  }
}

TEST(TmaModes, Gather4) {
  constexpr uint32_t kWidth = 96, kHeight = 20;  // 16-bit elements
  std::vector<uint16_t> source(kWidth * kHeight);
  std::iota(source.begin(), source.end(), uint16_t{1});
  // Column 72 on: the last 8 of 32 elements are outside; so are rows -1 and 20.
  const int rows[4] = {7, -1, 20, 2};
  for (Swizzle swizzle : {Swizzle::none, Swizzle::b64, Swizzle::b128}) {
    for (auto delivery : kPolicies) {
      Buffers buffers;
      const uint64_t in = buffers.add(source), out = buffers.add(2048);
      const TensorMap map =
          map_2d(DataType::uint16, in, kWidth, kHeight, kWidth * 2, 32, 1, swizzle);
      ASSERT_EQ(tma::validate(map, 100), "");
      auto result =
          run(map, load(".tile::gather4", "72, 7, -1, 20, 2", 4 * 64), buffers, out, delivery);
      ASSERT_EQ(result.cuda_error, 0) << result.report;
      auto got = buffers.read<uint16_t>(out, 1024);
      const uint32_t pitch = swizzle == Swizzle::b128 ? 128 : 64;
      for (uint32_t row = 0; row < 4; ++row) {
        for (uint32_t x = 0; x < 32; ++x) {
          const bool inside = rows[row] >= 0 && rows[row] < 20 && 72 + x < kWidth;
          const uint16_t expected =
              inside ? static_cast<uint16_t>(rows[row] * kWidth + 72 + x + 1) : 0;
          const uint32_t at = tma::swizzle_address(swizzle, row * pitch + 2 * x);
          ASSERT_EQ(got[at / 2], expected) << "row " << row << " column " << x;
        }
      }
      EXPECT_EQ(got[4 * pitch / 2], 0xcccc);
    }
  }
}

// Bit 85 of a map: copies may probe 128 KiB from the tensor's address on.
TEST(TmaModes, MapsThatProbe128KiBNeedThatMuchMemory) {
  for (const bool probes : {false, true}) {
    for (const uint64_t bytes : {(128ull << 10) - 512, 128ull << 10}) {
      Buffers buffers;
      const uint64_t in = buffers.add(bytes), out = buffers.add(2048);
      TensorMap map = map_2d(DataType::uint16, in, 32, 16, 128, 32, 4);
      map.probes_128k = probes;
      const auto result = run(map, load("", "0, 0", 4 * 64), buffers, out, Delivery::late);
      const bool fails = probes && bytes < 128 << 10;
      EXPECT_EQ(result.cuda_error, fails ? kIllegalAddress : 0) << result.report;
      EXPECT_EQ(result.report.find("bit 85 set") != std::string::npos, fails) << result.report;
    }
  }
}

TEST(TmaModes, Scatter4) {
  constexpr uint32_t kWidth = 32, kHeight = 10;
  for (auto delivery : kPolicies) {
    Buffers buffers;
    const uint64_t target = buffers.add(kWidth * kHeight * 4), out = buffers.add(2048);
    const TensorMap map =
        map_2d(DataType::uint32, target, kWidth, kHeight, kWidth * 4, 8, 1, Swizzle::none);
    auto result = run(map, R"(
  mov.u32 %i, 0;
NUMBER:
  add.u32 %at, %tile, %i;
  st.shared.u32 [%at], %i;
  add.u32 %i, %i, 4;
  setp.lt.u32 %p, %i, 128;
  @%p bra NUMBER;
  fence.proxy.async.shared::cta;
  cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%map, {12, 9, 0, 11, 4}], [%tile];
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
)",
                      buffers, out, delivery);
    ASSERT_EQ(result.cuda_error, 0) << result.report;
    auto got = buffers.read<uint32_t>(target, kWidth * kHeight);
    const uint32_t rows[4] = {9, 0, 11, 4};  // row 11 does not exist
    std::vector<uint32_t> expected(kWidth * kHeight);
    for (uint32_t row = 0; row < 4; ++row) {
      for (uint32_t x = 0; x < 8; ++x) {
        if (rows[row] < kHeight) expected[rows[row] * kWidth + 12 + x] = row * 32 + x * 4;
      }
    }
    EXPECT_EQ(got, expected);
  }
}

TEST(TmaModes, FourRowsNeedTheirKindOfMap) {
  Buffers buffers;
  const uint64_t in = buffers.add(4096), out = buffers.add(2048);
  TensorMap map = map_2d(DataType::uint16, in, 32, 20, 64, 32, 4);
  auto result =
      run(map, load(".tile::gather4", "0, 1, 2, 3, 4", 256), buffers, out, Delivery::late);
  EXPECT_EQ(result.cuda_error, kIllegalInstruction);
  EXPECT_NE(result.report.find("boxDim[1] = 1"), std::string::npos) << result.report;
  map.box[1] = 1;
  result = run(map, load(".tile::gather4", "4, 1, 2, 3, 4", 256), buffers, out, Delivery::late);
  EXPECT_NE(result.report.find("multiple of 16 bytes"), std::string::npos) << result.report;
}

TEST(TmaModes, PrefetchesMoveNothingAndCheckTheirBox) {
  Buffers buffers;
  const uint64_t in = buffers.add(std::vector<uint16_t>(32 * 20, 7)), out = buffers.add(2048);
  const TensorMap tiled = map_2d(DataType::uint16, in, 32, 20, 64, 32, 4);
  TensorMap rows = tiled;
  rows.box[1] = 1;
  TensorMap image = tiled;  // channels, width, images
  image.rank = 3;
  image.im2col = true;
  image.dims[1] = 5, image.dims[2] = 4;
  image.strides[2] = 5 * 64;
  image.element_strides[2] = 1;
  image.channels_per_pixel = 32, image.pixels_per_column = 4;
  ASSERT_EQ(tma::validate(image, 100), "");
  auto prefetch = [&](const TensorMap& map, const char* operation) {
    return run(map, std::string("cp.async.bulk.prefetch.tensor.") + operation, buffers, out,
               Delivery::late);
  };
  for (auto& [map, operation] : {std::pair{&tiled, "2d.L2.global.tile [%map, {0, 18}];"},
                                 {&rows, "2d.L2.global.tile::gather4 [%map, {8, 7, -1, 20, 2}];"},
                                 {&image, "3d.L2.global.im2col [%map, {0, 2, 1}], {0};"}}) {
    auto result = prefetch(*map, operation);
    EXPECT_EQ(result.cuda_error, 0) << operation << result.report;
    EXPECT_EQ(result.tma_bytes, 0u);
    EXPECT_EQ(buffers.read<uint32_t>(out, 512), std::vector<uint32_t>(512, 0xcccccccc));
  }
  for (auto& [map, operation] : {std::pair{&tiled, "2d.L2.global.tile [%map, {4, 0}];"},
                                 {&rows, "2d.L2.global.tile::gather4 [%map, {4, 0, 0, 0, 0}];"},
                                 {&image, "3d.L2.global.im2col [%map, {0, 5, 1}], {0};"}}) {
    EXPECT_EQ(prefetch(*map, operation).cuda_error, kIllegalInstruction) << operation;
  }
}

// A map of another tensor, changed on the device: in place in shared memory by one lane, then
// copied to global memory by the warp (grouped GEMMs).
TEST(TmaModes, TensorMapsMadeOnTheDevice) {
  std::vector<uint32_t> source(64 * 8);
  std::iota(source.begin(), source.end(), 1u);
  auto launch = [&](const std::string& change, Delivery delivery, Buffers& buffers, uint64_t out) {
    const uint64_t in = buffers.add(source), elsewhere = buffers.add(4096);
    const uint64_t global = buffers.add(128);
    const TensorMap map = map_2d(DataType::uint32, elsewhere, 16, 8, 64, 16, 8);
    const std::string text = kernel_text(
        ".param .align 64 .b8 tensor[128], .param .u64 in, .param .u64 made, .param .u64 out", R"(
  .reg .pred %p, %first;
  .reg .b32 %tile, %bar, %copy, %at, %v, %thr;
  .reg .b64 %map, %in, %made, %out, %o;
  .shared .align 1024 .b8 cells[512];
  .shared .align 128 .b8 place[128];
  .shared .align 8 .b64 barrier;
  ld.param.u64 %in, [in];
  ld.param.u64 %made, [made];
  ld.param.u64 %out, [out];
  mov.u32 %thr, %tid.x;
  setp.eq.u32 %first, %thr, 0;
  mov.b64 %map, tensor;
  cvta.param.u64 %map, %map;
  mov.u32 %tile, cells;
  mov.u32 %bar, barrier;
  mov.u32 %copy, place;
  mul.wide.u32 %o, %thr, 4;
  add.u64 %map, %map, %o;
  ld.u32 %v, [%map];
  mad.lo.u32 %at, %thr, 4, %copy;
  st.shared.u32 [%at], %v;
  bar.warp.sync -1;
  @!%first bra CHANGED;
)" + change + R"(
  mbarrier.init.shared::cta.b64 [%bar], 1;
  fence.proxy.async.shared::cta;
CHANGED:
  bar.warp.sync -1;
  tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%made], [%copy], 128;
  bar.warp.sync -1;
  fence.proxy.tensormap::generic.acquire.gpu [%made], 128;
  @!%first bra WAIT;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 512;
  cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%tile], [%made, {4, 2}], [%bar];
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p, [%bar], 0;
  @!%p bra WAIT;
  mad.lo.u32 %at, %thr, 16, %tile;
  mul.wide.u32 %o, %thr, 16;
  add.u64 %out, %out, %o;
  .reg .v4 .b32 %four;
  ld.shared.v4.u32 %four, [%at];
  st.global.v4.u32 [%out], %four;
  ret;)");
    Params params;
    params.bytes.resize(128);
    tma::encode(map, params.bytes.data());
    params << in << global << out;
    Launch how;
    how.options.delivery = delivery;
    return run_module(text, params, buffers, how);
  };
  // 64 x 8 words in place of 16 x 8: the box begins at row 2, column 4; rows 8 and 9 are outside.
  const std::string change = R"(
  tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%copy], %in;
  tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%copy], 0, 64;
  tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%copy], 0, 256;)";
  for (auto delivery : kPolicies) {
    Buffers buffers;
    const uint64_t out = buffers.add(512);
    auto result = launch(change, delivery, buffers, out);
    ASSERT_EQ(result.cuda_error, 0) << result.report;
    auto words = buffers.read<uint32_t>(out, 128);
    for (uint32_t y = 0; y < 8; ++y) {
      for (uint32_t x = 0; x < 16; ++x) {
        EXPECT_EQ(words[y * 16 + x], y < 6 ? (y + 2) * 64 + 4 + x + 1 : 0) << y << " " << x;
      }
    }
  }
  for (const auto& [bad, why] :
       {std::pair{"tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%copy], 0, 300;",
                  "box_dim is 300"},
        std::pair{"tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%copy], 4, 256;",
                  "the ordinal is 4"},
        std::pair{"tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%copy], 0, 40;",
                  "globalStrides[0] is 40"},
        std::pair{"tensormap.replace.tile.rank.shared::cta.b1024.b32 [%copy], 2;",
                  "elementStrides[2] is 0"}}) {
    Buffers buffers;
    auto result = launch(change + bad, Delivery::late, buffers, buffers.add(512));
    EXPECT_EQ(result.cuda_error, kIllegalInstruction) << result.report;
    EXPECT_NE(result.report.find(why), std::string::npos) << result.report;
  }
}

// The table of tensormap.replace orders types and swizzles otherwise than the driver does.
TEST(TmaModes, ReplacedFieldsHaveTheirCodes) {
  TensorMap map = map_2d(DataType::uint32, 0x1000, 16, 8, 64, 16, 8), now;
  uint8_t bytes[128];
  tma::encode(map, bytes);
  EXPECT_FALSE(tma::was_replaced(bytes));
  using tma::Field;
  for (const auto& [code, type] :
       {std::pair{7u, DataType::float32}, std::pair{8u, DataType::float32_ftz},
        std::pair{9u, DataType::float64}, std::pair{10u, DataType::bfloat16}}) {
    EXPECT_EQ(tma::replace(bytes, Field::elemtype, 0, code), "");
    ASSERT_TRUE(tma::decode(bytes, now));
    EXPECT_EQ(now.type, type);
  }
  EXPECT_TRUE(tma::was_replaced(bytes));
  EXPECT_NE(tma::replace(bytes, Field::swizzle_atomicity, 0, 1), "");
  EXPECT_EQ(tma::replace(bytes, Field::swizzle_mode, 0, 3), "");
  EXPECT_EQ(tma::replace(bytes, Field::swizzle_atomicity, 0, 1), "");
  ASSERT_TRUE(tma::decode(bytes, now));
  EXPECT_EQ(now.swizzle, Swizzle::b128_atom32);
  EXPECT_EQ(tma::replace(bytes, Field::rank, 0, 2), "");
  EXPECT_EQ(tma::replace(bytes, Field::global_dim, 2, 9), "");
  ASSERT_TRUE(tma::decode(bytes, now));
  EXPECT_EQ(now.rank, 3u);
  EXPECT_EQ(now.dims[2], 9u);
}

// Triton's kernels make their maps of zeros, field by field.
TEST(TmaModes, MapsOfZeros) {
  using tma::Field;
  uint8_t bytes[128] = {}, junk[128] = {1};
  const std::tuple<Field, uint32_t, uint64_t> fields[] = {{Field::global_address, 0, 0x1000},
                                                          {Field::rank, 0, 1},
                                                          {Field::box_dim, 0, 16},
                                                          {Field::box_dim, 1, 8},
                                                          {Field::global_dim, 0, 64},
                                                          {Field::global_dim, 1, 9},
                                                          {Field::global_stride, 0, 256},
                                                          {Field::elemtype, 0, 2},
                                                          {Field::swizzle_mode, 0, 2}};
  for (const auto& [field, ordinal, value] : fields) {
    EXPECT_EQ(tma::replace(bytes, field, ordinal, value), "");
    EXPECT_NE(tma::replace(junk, field, ordinal, value), "");
  }
  TensorMap made;
  ASSERT_TRUE(tma::decode(bytes, made));
  EXPECT_EQ(tma::validate(made, 90), "");
  EXPECT_EQ(tma::describe(made), tma::describe([] {
              TensorMap map = map_2d(DataType::uint32, 0x1000, 64, 9, 256, 16, 8);
              map.swizzle = Swizzle::b64;
              return map;
            }()));
}

TEST(TmaModes, UnsupportedModesAreListed) {
  const char* forms[] = {
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col::w.mbarrier::complete_tx::bytes "
      "[%tile], [%map, {%i, %i, %i, %i}], [%bar], {%h, %h};",
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col::w::128.mbarrier::complete_tx::bytes "
      "[%tile], [%map, {%i, %i, %i, %i}], [%bar], {%h, %h};",
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile::scatter4.bulk_group "
      "[%map, {%i, %i, %i, %i, %i}], [%tile];",
      "cvt.rs.bf16x2.f32 %i, %f, %f, %v;", "cvt.rs.satfinite.e4m3x4.f32 %i, {%f, %f, %f, %f}, %v;"};
  std::string body =
      ".reg .b16 %h;\n.reg .b32 %tile, %bar, %i, %v;\n.reg .f32 %f;\n.reg .b64 %map;\n";
  for (const char* form : forms) body += std::string(form) + "\n";
  const std::string refusal = exec::Program::load(kernel_text("", body))->refusals();
  for (const char* form : forms) {
    const std::string opcode = std::string(form).substr(0, std::string(form).find(' '));
    EXPECT_NE(refusal.find(opcode), std::string::npos) << opcode << "\n" << refusal;
  }
}

/// Bits [first, first + count) of packed memory.
uint32_t bits_at(const std::vector<uint8_t>& memory, uint32_t first, uint32_t count) {
  uint32_t value = 0;
  for (uint32_t i = 0; i < count; ++i) {
    value |= (memory[(first + i) / 8] >> (first + i) % 8 & 1u) << i;
  }
  return value;
}

TEST(TmaModes, SubByteTypes) {
  struct Type {
    DataType type;
    uint32_t bits, group_bytes;  ///< sixteen elements in shared memory
  };
  for (Type t : {Type{DataType::u4x16_align8, 4, 8}, Type{DataType::u4x16_align16, 4, 16},
                 Type{DataType::u6x16_align16, 6, 16}}) {
    for (Swizzle swizzle : {Swizzle::none, Swizzle::b128}) {
      for (auto delivery : kPolicies) {
        constexpr uint32_t kWidth = 384, kHeight = 6, kBox = 128, kRows = 3;
        const uint32_t pitch = (kWidth * t.bits / 8 + 31) / 32 * 32;
        std::vector<uint8_t> source(pitch * kHeight);
        for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i * 37 + 11);
        Buffers buffers;
        const uint64_t in = buffers.add(source), out = buffers.add(2048);
        const TensorMap map = map_2d(t.type, in, kWidth, kHeight, pitch, kBox, kRows, swizzle);
        ASSERT_EQ(tma::validate(map, 100), "");
        // Rows 5, 6, 7: the last two are outside. Gaps do not count.
        auto result =
            run(map, load("", "256, 5", kRows * kBox * t.bits / 8), buffers, out, delivery);
        ASSERT_EQ(result.cuda_error, 0) << result.report;
        auto got = buffers.read<uint8_t>(out, 2048);
        const uint32_t row_bytes =
            std::max(kBox / 16 * t.group_bytes, swizzle == Swizzle::b128 ? 128u : 0u);
        for (uint32_t row = 0; row < kRows; ++row) {
          for (uint32_t x = 0; x < kBox; ++x) {
            const uint32_t expected =
                row == 0 ? bits_at(source, 5 * pitch * 8 + (256 + x) * t.bits, t.bits) : 0;
            const uint32_t first = x % 16 * t.bits;  // bit in the group
            uint32_t value = 0;
            for (uint32_t i = 0; i < t.bits; ++i) {
              const uint32_t byte = row * row_bytes + x / 16 * t.group_bytes + (first + i) / 8;
              value |= (got[tma::swizzle_address(swizzle, byte)] >> (first + i) % 8 & 1u) << i;
            }
            ASSERT_EQ(value, expected) << to_string(t.type) << " row " << row << " element " << x;
          }
        }
        // The gap behind the first sixteen is left alone.
        if (t.group_bytes == 16) {
          EXPECT_EQ(got[tma::swizzle_address(swizzle, 15)], 0xcc) << to_string(t.type);
        }
      }
    }
  }
}

TEST(TmaModes, SubByteTypesHaveTheirRules) {
  alignas(256) static uint8_t memory[4096];
  const auto in = reinterpret_cast<uint64_t>(memory);
  auto why = [](const TensorMap& map) { return tma::validate(map, 100); };
  auto has = [](const std::string& text, const char* what) {
    return text.find(what) != std::string::npos;
  };
  const TensorMap good = map_2d(DataType::u4x16_align16, in, 256, 4, 128, 128, 2, Swizzle::b128);
  EXPECT_EQ(why(good), "");
  EXPECT_TRUE(has(tma::validate(good, 90), "needs compute capability 10.0"));
  TensorMap map = good;
  map.address += 16;
  EXPECT_TRUE(has(why(map), "modulo 32"));
  map = good;
  map.dims[0] = 192;
  EXPECT_TRUE(has(why(map), "multiple of 128"));
  map = good;
  map.strides[1] = 144;
  EXPECT_TRUE(has(why(map), "multiple of 32"));
  map = good;
  map.box[0] = 64;
  EXPECT_TRUE(has(why(map), "must be 128"));
  map = good;
  map.swizzle = Swizzle::b64;
  EXPECT_FALSE(why(map).empty());
  map.swizzle = Swizzle::b128_atom64;
  EXPECT_TRUE(has(why(map), "does not exist"));
  map = good;
  map.fill = tma::OobFill::nan_request_zero_fma;
  EXPECT_FALSE(why(map).empty());
  const TensorMap packed = map_2d(DataType::u4x16_align8, in, 250, 4, 128, 32, 2);
  EXPECT_EQ(why(packed), "");
  map = packed;
  map.dims[0] = 251;
  EXPECT_TRUE(has(why(map), "multiple of 2"));
  map = packed;
  map.box[0] = 16;  // 8 bytes
  EXPECT_TRUE(has(why(map), "multiple of 16"));
  tma::Coordinates at;
  at.start[0] = 16;  // 8 bytes into the row
  EXPECT_FALSE(tma::check_coordinates(packed, at, false).empty());
  at.start[0] = 128;
  EXPECT_EQ(tma::check_coordinates(good, at, false), "");
  EXPECT_FALSE(tma::check_coordinates(good, at, true).empty());
}

}  // namespace
}  // namespace vgpu::test
