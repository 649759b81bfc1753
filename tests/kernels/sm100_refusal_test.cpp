// SPDX-License-Identifier: Apache-2.0
//
// What the Blackwell kernel refuses and how it says so, its configurations and its time model on
// the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include "convoy/error.hpp"
#include "core/text.hpp"
#include "kernels/common/tensor_map.hpp"
#include "kernels/sm100/candidates.hpp"
#include "kernels/sm100/host.hpp"
#include "kernels/sm100/model.hpp"
#include "sm100_configs.hpp"
#include "support/integer_tensors.hpp"

namespace convoy::sm100 {
namespace {

using test::conv2d;
using test::conv3d;
using test::on_blackwell;

// ---- Refusals -----------------------------------------------------------------------------------

TEST(Sm100Refusal, NamesConditionValueAndWhatIsLegal) {
  const Instance instance = test_kernels()[0].make();
  const auto expect = [&](const ConvGeometry& g, const char* part) {
    const std::string reason = refusal(instance, g, false);
    EXPECT_NE(reason.find(part), std::string::npos) << "reason: '" << reason << "'";
  };
  expect(conv2d(1, 8, 8, 12, 32, 3, 3), "in_channels = 12; legal: a multiple of 8");
  expect(conv2d(1, 8, 8, 32, 32, 3, 3, 0, 0, [](auto& p) { p.groups = 2; }), "groups = 2");
  expect(conv2d(1, 40, 40, 32, 32, 3, 3, 0, 0, [](auto& p) { p.stride_h = 9; }),
         "stride of height = 9; legal: 1 to 8 (tensor map element strides); nearest: 8");
  expect(conv2d(1, 8, 8, 32, 32, 3, 3, 1, 1, [](auto& p) { p.pad_mode = PadMode::reflect; }),
         "padding mode of height = reflect; legal: zero");
  expect(conv2d(1, 8, 8, 32, 32, 1, 3, 0, 1, [](auto& p) { p.dilation_h = std::int64_t{1} << 31; }),
         "input + padding + filter * dilation of height = 2147483656; legal: at most 2147479551");
  const ConvGeometry doubled = conv2d(1, 8, 8, 32, 4, 3, 3, 1, 1, [](auto& p) { p.upsample = 2; });
  expect(doubled, "a dense filter with upsample = 2; legal: a packed filter");
  EXPECT_EQ(refusal(instance, doubled, true),
            "out_channels = 4 with upsampling; legal: a multiple of 8 (16-byte vectors); "
            "nearest: 8");
  const Instance split = test_kernels()[8].make();
  EXPECT_EQ(refusal(split, conv2d(1, 8, 8, 128, 32, 1, 1), false),
            "a reduction of 2 spans of 64 channels split 8 ways; legal: at most 2");
  EXPECT_EQ(refusal(split, conv2d(1, 8, 8, 512, 32, 1, 1), false), "");
}

// Of a patch with its border what lies outside is copied from inside, where something of it is.
TEST(Sm100Refusal, PaddingModesOfPatches) {
  const Instance halo = test_kernels()[13].make();
  ASSERT_EQ(halo.config.input, Input::halo);
  const auto reason = [&](std::int64_t height, std::int64_t pad, PadMode mode) {
    return refusal(halo,
                   conv2d(1, height, 40, 32, 32, 3, 1, pad, 0, [&](auto& p) { p.pad_mode = mode; }),
                   false);
  };
  EXPECT_EQ(reason(40, 1, PadMode::reflect), "");
  // The first patch has 18 rows: its first one reads the one 2 * pad behind it.
  EXPECT_EQ(reason(34, 8, PadMode::reflect), "");
  EXPECT_EQ(reason(40, 9, PadMode::reflect),
            "padding of height = 9, 9 by mode reflect under a filter of 3; legal: what copies "
            "pixels of the same patch of 18, as padding does that keeps the extent");
  EXPECT_EQ(reason(40, 17, PadMode::zero), "");
  // The last patch begins behind the last row: it has none to replicate.
  EXPECT_EQ(reason(32, 9, PadMode::replicate), "");
  EXPECT_NE(reason(18, 17, PadMode::replicate).find("by mode replicate under a filter of 3"),
            std::string::npos);
}

TEST(Sm100Refusal, LimitsOfIm2colAreReportedAndPatchesTakeOver) {
  const Instance instance = test_kernels()[0].make();
  const Config& config = instance.config;
  const auto expect = [&](const ConvGeometry& g, const char* part) {
    const std::string reason = im2col_refusal(config, g);
    EXPECT_NE(reason.find(part), std::string::npos) << "reason: '" << reason << "'";
    EXPECT_EQ(refusal(instance, g, false), "");
    EXPECT_EQ(row_layout(config, g).row_groups, RowGroups::patches);
  };
  expect(conv2d(1, 600, 8, 32, 32, 3, 1, 0, 0, [](auto& p) { p.dilation_h = 200; }),
         "(filter - 1) * dilation of height = 400; legal: at most 255");
  expect(conv2d(1, 8, 8, 32, 32, 3, 3, 129, 1),
         "lower corner[1] = -129; legal: -128 to 127; nearest: -128");
  const ConvGeometry last = conv2d(1, 8, 8, 32, 32, 3, 3, 128, 1);
  EXPECT_EQ(im2col_refusal(config, last), "");
  EXPECT_EQ(row_layout(config, last).row_groups, RowGroups::images);
  // 5-D descriptors reach less far: the same problem is then laid out by frames, not refused.
  const ConvGeometry wide =
      conv3d(1, {4, 40, 40}, 32, 32, {3, 3, 3}, {1, 17, 17}, {1, 17, 17}, 0, [](auto& p) {
        p.dilation = {1, 17, 17};
      });
  EXPECT_EQ(refusal(instance, wide, false), "");
  EXPECT_EQ(row_layout(config, wide).row_groups, RowGroups::frames);
}

TEST(Sm100Refusal, PlansThrowUnsupportedAndLaunchesInvalidArgument) {
  const Instance instance = test_kernels()[0].make();
  try {
    plan_launch(instance, conv2d(1, 8, 8, 12, 32, 3, 3), false);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::unsupported);
    EXPECT_NE(std::string(error.what()).find("sm100_fprop_"), std::string::npos);
  }
  if (!on_blackwell()) GTEST_SKIP() << "encoding a tensor map needs a driver";
  try {
    RunPointers pointers;
    pointers.activation = reinterpret_cast<const void*>(std::uintptr_t{0x1008});
    launch(plan_launch(instance, conv2d(1, 8, 8, 16, 32, 3, 3), false), pointers, nullptr, nullptr,
           nullptr);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("activation pointer = 0x1008; legal:"),
              std::string::npos);
  }
}

TEST(Sm100Refusal, OtherComputeCapabilitiesByTheirNumber) {
  CandidateList list;
  register_kernels(list);
  PlanRequest request;
  request.geometry = conv2d(1, 8, 8, 16, 32, 3, 3);
  request.device.multiprocessors = 148;
  const auto judge = [&](int capability) {
    request.device.compute_capability = capability;
    return list.front()->judge(request);
  };
  EXPECT_EQ(judge(100).refusal, "");
  EXPECT_EQ(judge(103).refusal, "");
  for (const int capability : {90, 101, 110, 120}) {
    const Judgement judgement = judge(capability);
    EXPECT_EQ(judgement.scope, RefusalScope::device);
    EXPECT_EQ(judgement.refusal,
              text("compute capability = ", capability / 10, ".", capability % 10,
                   "; legal: 10.0, 10.3 (tcgen05; built for the family "
                   "sm_100f)"));
  }
}

// Drivers set bit 85 of maps that are not dense: the phases of an upsampled output are not. Those
// that span less than 128 KiB lose it, and keep it off where an address is filled in.
TEST(Sm100TensorMap, SmallMapsDoNotProbe128KiB) {
  if (!on_blackwell()) GTEST_SKIP() << "encoding a tensor map needs a driver";
  const auto map_of = [](std::int64_t rows) {
    TiledTensorMap map;
    map.rank = 3;
    map.extents = {32, 16, rows, 0, 0};
    map.strides_bytes = {0, 128, 4096, 0, 0};  // every second pixel of every second row
    map.box = {32, 8, 8, 0, 0};
    map.swizzle = Swizzle::b64;
    return map;
  };
  EXPECT_EQ(span_bytes(map_of(1)), 15 * 128 + 64);
  EXPECT_EQ(span_bytes(map_of(32)), 31 * 4096 + 15 * 128 + 64);
  EXPECT_GE(span_bytes(map_of(33)), 128 << 10);
  void* const address = reinterpret_cast<void*>(std::uintptr_t{1} << 20);
  EXPECT_FALSE(probes_128k(encode_template(map_of(32))));
  EXPECT_FALSE(probes_128k(at_address(encode_template(map_of(32)), "output", address)));
  // What the driver says of large ones stays: here, that they may be probed.
  EXPECT_TRUE(probes_128k(encode_template(map_of(33))));
  Im2colTensorMap image;
  image.extents = {64, 8, 8, 14, 0};
  image.strides_bytes = {0, 128, 1024 + 128, 8 * (1024 + 128), 0};  // rows apart
  image.channels = 64;
  image.pixels = 64;
  ASSERT_LT(span_bytes(image), 128 << 10);
  EXPECT_FALSE(probes_128k(encode_template(image)));
}

// ---- Configurations on the host -----------------------------------------------------------------

TEST(Sm100Config, DefaultsAreThoseOfTheSpecification) {
  using Bf16 = Conv2dConfig<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16>;
  constexpr Bf16 two_sm = Bf16::default_bf16();
  EXPECT_EQ(two_sm.block_tile_shape, (GemmShape{128, 128, 128}));
  EXPECT_EQ(two_sm.mma_shape, (GemmShape{256, 256, 16}));
  EXPECT_EQ(two_sm.cta_group, 2);
  EXPECT_EQ(two_sm.cluster_shape, (GemmShape{2, 1, 1}));
  EXPECT_EQ(two_sm.output_tile_shape, (GemmShape{128, 32, 1}));
  EXPECT_EQ(two_sm.c_swizzle, 64);
  EXPECT_EQ(Bf16::accum_type(), DType::fp32);
  // 232448 bytes, less two 8 KiB output tiles and barriers, hold three stages of 64 KiB; eight
  // source tiles of 8 KiB leave room for two.
  EXPECT_EQ(two_sm.pipeline_stages(false), 3);
  EXPECT_EQ(two_sm.pipeline_stages(true), 2);
  constexpr Bf16 one_sm = Bf16::default_bf16_1sm();
  EXPECT_EQ(one_sm.mma_shape, (GemmShape{128, 128, 16}));
  EXPECT_EQ(one_sm.cluster_shape, (GemmShape{1, 1, 1}));
  constexpr Bf16 narrow = one_sm.with_64_byte_swizzle();
  EXPECT_EQ(narrow.block_tile_shape.k, 32);
  EXPECT_EQ(narrow.a_swizzle, 64);
}

TEST(Sm100Config, PackingKeepsEveryField) {
  for (const TestKernel& test : test_kernels()) {
    const Config config = test.make().config;
    EXPECT_EQ(unpack(pack(config)), config) << test.why;
  }
}

TEST(Sm100Config, SharedMemoryHoldsOneMoreStageNowhere) {
  for (const TestKernel& test : test_kernels()) {
    const Instance kernel = test.make();
    const Config& config = kernel.config;
    SCOPED_TRACE(test.why);
    EXPECT_LE(kernel.shared_bytes, std::size_t{kSharedMemoryBudget});
    EXPECT_LE(kernel.shared_bytes_with_residual, std::size_t{kSharedMemoryBudget});
    if (config.num_pipeline_stages != 0) continue;
    EXPECT_GT(kernel.shared_bytes +
                  static_cast<std::size_t>(config.k_group_size) *
                      static_cast<std::size_t>(config.stage_bytes()) +
                  1024,
              std::size_t{kSharedMemoryBudget});
  }
}

// ---- Model

TEST(Sm100Model, ActivationsAndRowsCost) {
  TileLoop loop;
  loop.atoms = 1;
  loop.buffered_atoms = 100;
  loop.epilogue_steps = 8;
  loop.waves = 100;
  const ModelConstants k;
  const double plain = loop_us(loop);
  // Bound by its epilogue: that of each tile, and the last one's.
  const auto cycles_more = [&](const TileLoop& other) {
    return (loop_us(other) - plain) * k.cycles_per_us / (8.0 * 101.0);
  };
  TileLoop other = loop;
  other.work = step_work(Activation::clamp);
  EXPECT_NEAR(cycles_more(other), k.simple_activation_cycles, 1e-6);
  other.work = step_work(Activation::silu);
  EXPECT_NEAR(cycles_more(other), k.exponential_activation_cycles, 1e-6);
  other = loop;
  other.odd_output_rows = true;
  EXPECT_NEAR(cycles_more(other), k.odd_store_cycles, 1e-6);
  other.odd_output_rows = false;
  other.element_stores = true;
  EXPECT_NEAR(cycles_more(other), k.element_store_cycles, 1e-6);
  EXPECT_EQ(step_work(Activation::none), StepWork::plain);
}

TEST(Sm100Model, PowerBindsFullChips) {
  TileLoop loop;
  loop.atoms = 1000;
  loop.buffered_atoms = 100;
  loop.mma_macs = 128.0 * 256 * 64;
  loop.waves = 10;
  ModelConstants k;
  k.power_macs_per_us = 0;
  const double unbound = loop_us(loop, k);
  // All SMs at their highest clock take more than 1,000 W; a tenth of them does not.
  loop.chip_macs = 148 * loop.waves * loop.atoms * loop.mma_macs;
  k = ModelConstants{};
  EXPECT_DOUBLE_EQ(loop_us(loop, k), loop.chip_macs / k.power_macs_per_us);
  EXPECT_GT(loop_us(loop, k), unbound);
  loop.chip_macs /= 10;
  EXPECT_DOUBLE_EQ(loop_us(loop, k), unbound);
}

TEST(Sm100Model, IntakeHasAClockOfItsOwn) {
  TileLoop loop;
  loop.atoms = 1000;
  loop.buffered_atoms = 1e6;
  loop.taken_in_bytes = 1e6;
  ModelConstants k, slow;
  slow.cycles_per_us = k.cycles_per_us / 2;
  k.tile_cycles = k.ends_cycles = slow.tile_cycles = slow.ends_cycles = 0;
  EXPECT_NEAR(loop_us(loop, k), loop_us(loop, slow), 1e-6 * loop_us(loop, k));
  EXPECT_NEAR(loop_us(loop, k) - k.launch_us, 1e9 / k.other_bytes_per_us, 1.0);
}

// What an SM takes in: rows that begin anywhere, rows behind the last filter, few SMs at work.
TEST(Sm100Model, RowsTakeLonger) {
  TileLoop loop;
  loop.atoms = 1000;
  loop.buffered_atoms = 1e6;
  loop.taken_in_rows = 256;
  loop.taken_in_bytes = 256 * 128;
  const ModelConstants k;
  const auto us = [&](const auto& change) {
    TileLoop other = loop;
    change(other);
    return loop_us(other, k) - (k.launch_us + (k.ends_cycles + k.tile_cycles) / k.cycles_per_us);
  };
  const double plain = us([](TileLoop&) {});
  EXPECT_NEAR(plain, 1000 * 256 * 128 / k.other_bytes_per_us, 1e-6);
  EXPECT_NEAR(us([](auto& of) { of.input_alignment = 64; }), 256e3 / k.aligned_64_rows_per_us,
              1e-6);
  EXPECT_NEAR(us([](auto& of) { of.input_alignment = 32; }), 256e3 / k.aligned_32_rows_per_us,
              1e-6);
  EXPECT_NEAR(us([](auto& of) { of.input_alignment = 16; }), 256e3 / k.aligned_16_rows_per_us,
              1e-6);
  EXPECT_NEAR(us([](auto& of) { of.outside_rows = 64; }),
              plain * (1 + (k.outside_row_share - 1) / 4), 1e-6);
  EXPECT_NEAR(us([](auto& of) { of.busy_share = 0; }), plain * (1 - k.alone_intake), 1e-6);
  // Beside MMAs that take as long.
  EXPECT_NEAR(
      us([&](auto& of) { of.mma_macs = plain / 1000 * k.cycles_per_us * k.macs_per_cycle; }),
      plain * std::pow(2.0, 1 / k.atom_power), 1e-6);
}

TEST(Sm100Model, SplitsClustersAndCrowdsCost) {
  TileLoop loop;
  loop.atoms = 100;
  loop.mma_macs = 1e6;
  loop.waves = 10;
  ModelConstants k;
  k.split_tile_cycles = 500;
  k.cluster_tile_cycles = 300;
  k.crowd_us = 1;
  const double plain = loop_us(loop, k);
  TileLoop other = loop;
  other.in_step = true;
  EXPECT_NEAR(loop_us(other, k) - plain, 10 * 300 / k.cycles_per_us, 1e-6);
  other = loop;
  other.splits = true;  // Of the last tile alone: MMAs hide the others.
  EXPECT_NEAR(loop_us(other, k) - plain, 500 / k.cycles_per_us, 1e-6);
  other = loop;
  other.busy_share = 0.25;
  EXPECT_NEAR(plain - loop_us(other, k), 0.75, 1e-6);
}

// A hundred refillings of a patch, each beside nine MMAs of 256 cycles: what a change of the loop
// adds to its time, in cycles.
template <typename Change>
double cycles_added(const ModelConstants& k, const Change& change) {
  TileLoop loop;
  loop.atoms = 900;
  loop.patch_atoms = 9;
  loop.buffered_atoms = 1e6;
  loop.mma_macs = 256 * k.macs_per_cycle;
  TileLoop other = loop;
  change(other);
  return (loop_us(other, k) - loop_us(loop, k)) * k.cycles_per_us;
}

// What filling a border adds to the refilling of a patch, as far as the ring's others do not hide
// it.
TEST(Sm100Model, BordersCost) {
  const ModelConstants k;
  const auto cycles = [&](double share, double stages) {
    return cycles_added(k, [&](TileLoop& loop) {
      loop.border_share = share;
      loop.patch_stages = stages;
    });
  };
  EXPECT_EQ(cycles(0, 2), 0);
  EXPECT_NEAR(cycles(1, 1), 100 * k.border_cycles, 1e-3);
  EXPECT_NEAR(cycles(0.5, 2), 50 * (k.refill_cycles + k.border_cycles - 9 * 256), 1e-3);
  EXPECT_EQ(cycles(1, 3), 0);
  // Pairs of tiles: two of four rows of them, two of eight columns, either CTA's.
  const auto share = [](const TestKernel& kernel, std::int64_t h, std::int64_t w) {
    return tile_loop(
               kernel.make(),
               conv2d(1, h, w, 64, 64, 3, 3, 1, 1, [](auto& p) { p.pad_mode = PadMode::reflect; }),
               148, {})
        .border_share;
  };
  EXPECT_DOUBLE_EQ(share(test_kernels()[12], 64, 64), 1 - 0.5 * 0.75);
  EXPECT_DOUBLE_EQ(share(test_kernels()[13], 64, 64), 1.0);
  EXPECT_DOUBLE_EQ(share(test_kernels()[13], 640, 640), 2 * (1 - 0.95 * 0.975));
}

// Patches are normalised one after the other, each between its refilling and its MMAs.
TEST(Sm100Model, NormalisingCosts) {
  const ModelConstants k;
  const auto cycles = [&](double normalise, double stages) {
    return cycles_added(k, [&](TileLoop& loop) {
      loop.normalise_cycles = normalise;
      loop.patch_stages = stages;
    });
  };
  EXPECT_EQ(cycles(0, 3), 0);
  EXPECT_EQ(cycles(2000, 3), 0);
  EXPECT_NEAR(cycles(9 * 256 + 50, 4), 100 * 50, 1e-3);
  EXPECT_NEAR(cycles(2000, 2), 50 * (k.refill_cycles + 2000 - 9 * 256), 1e-3);

  const auto is_tile = [](Input input) {
    return [input](const Instance& instance) {
      return instance.config.input == input && instance.config.mma_shape.n == 128 &&
             instance.config.cta_group == 2;
    };
  };
  const auto loop_of = [&](Input input, const PrologueKind& prologue) {
    const auto found = std::find_if(instances().begin(), instances().end(), is_tile(input));
    EXPECT_NE(found, instances().end());
    return tile_loop(*found, conv2d(1, 64, 64, 128, 128, 3, 3, 1, 1), 148, {}, prologue);
  };
  const TileLoop plain = loop_of(Input::halo, {});
  EXPECT_EQ(plain.normalise_cycles, 0);
  const auto normalised = [&](Activation activation) {
    return loop_of(Input::normalised, {.norm = PrologueNorm::rms, .activation = activation});
  };
  EXPECT_EQ(normalised(Activation::relu).normalise_cycles, k.plain_normalise_cycles);
  EXPECT_EQ(normalised(Activation::silu).normalise_cycles, k.normalise_cycles);
  EXPECT_EQ(normalised(Activation::gelu).normalise_cycles, k.gelu_normalise_cycles);
  // A patch of 180 pixels is read and written once more, for nine taps.
  EXPECT_DOUBLE_EQ(normalised(Activation::silu).operand_bytes,
                   plain.operand_bytes + 2 * 180 * 128 / 9.0);
}

TEST(Sm100Model, KnowsHowRowsLie) {
  const auto rows = [](std::int64_t channels, std::int64_t filters) {
    TileLoop loop;
    note_rows(geometry_of(Conv2dProblemShape{
                  .in_height = 8, .in_width = 8, .in_channels = channels, .out_channels = filters}),
              2, 2, loop);
    return std::tuple{loop.input_alignment, loop.odd_output_rows, loop.element_stores};
  };
  EXPECT_EQ(rows(64, 32), (std::tuple{128, false, false}));
  EXPECT_EQ(rows(32, 32), (std::tuple{64, false, false}));
  EXPECT_EQ(rows(24, 72), (std::tuple{16, true, false}));
  EXPECT_EQ(rows(16, 3), (std::tuple{32, false, true}));
  // What lies behind the last filter, of a tile as wide: the mean over its tiles.
  const auto outside = [](std::int64_t filters) {
    const auto is_tile = [](const Instance& instance) {
      return instance.config.input == Input::halo && instance.config.mma_shape.n == 128 &&
             instance.config.cta_group == 2;
    };
    const auto found = std::find_if(instances().begin(), instances().end(), is_tile);
    const TileLoop loop = tile_loop(*found, conv2d(1, 64, 64, 128, filters, 3, 3, 1, 1), 148, {});
    return loop.outside_rows / 64;
  };
  EXPECT_DOUBLE_EQ(outside(128), 0.0);
  EXPECT_DOUBLE_EQ(outside(96), 0.25);
  EXPECT_DOUBLE_EQ(outside(160), 0.375);
}

}  // namespace
}  // namespace convoy::sm100
