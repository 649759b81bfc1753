// SPDX-License-Identifier: Apache-2.0
//
// Compile-time configuration of the Blackwell convolution: tile shapes, cluster, pipeline depths.
// Plain host C++: the kernels and their host twin read it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "convoy/types.hpp"

namespace convoy::sm100 {

/// Extents of a tile in GEMM space: output pixels, filters, reduction.
struct GemmShape {
  int m = 1;
  int n = 1;
  int k = 1;
  friend constexpr bool operator==(const GemmShape&, const GemmShape&) = default;
};

/// Warps that normalise patches (Input::normalised), two warpgroups.
inline constexpr int kNormaliserWarps = 8;
/// Bytes of shared memory that one block may use on compute capability 9.0 and 10.0: 227 KiB (CUDA
/// C++ Programming Guide, technical specifications per compute capability).
inline constexpr int kSharedMemoryBudget = 227 * 1024;
/// Columns of tensor memory of an SM, 128 lanes of 32 bits each (PTX ISA, tensor memory).
inline constexpr int kTmemColumns = 512;
/// Shared memory set aside for each stage of the launch-control pipeline: the response and its
/// four barriers, padded.
inline constexpr int kClcStageBytes = 160;

/// What the input ring holds, and what lies beside it.
enum class Input : int {
  runs = 0,        ///< Activation rows and filter rows of the same atoms.
  halo = 1,        ///< Filter rows of a tap; patches with their border in a ring of their own.
  resident = 2,    ///< The 1×1 filters of all channels, which stay; activation rows likewise.
  normalised = 3,  ///< As halo; a prologue is applied to every patch where it lies.
};

/// The values of a configuration, whatever the element types: what the host twin works with.
/// Swizzles are in bytes: 64 or 128 of the inputs, 32, 64 or 128 of the output.
struct Config {
  DType act_dtype = DType::bf16;
  DType filter_dtype = DType::bf16;
  DType out_dtype = DType::bf16;
  /// Tile of one CTA. m: activation rows (pixels), n: filter rows, k: elements of the reduction in
  /// one pipeline stage, a whole number of swizzle spans.
  GemmShape block_tile_shape{128, 128, 128};
  /// Tile of one tcgen05.mma; with cta_group 2 it spans a pair of CTAs: m and n are twice the
  /// block's.
  GemmShape mma_shape{256, 256, 16};
  int cta_group = 2;  ///< CTAs that share an MMA: 1 or 2.
  /// CTAs along M and N; k CTAs (or pairs) split the reduction of a tile between them.
  GemmShape cluster_shape{2, 1, 1};
  /// Tile of one output store: m rows (64 where cta_group is 2 and mma_shape.m is 128; 128 / k
  /// where k CTAs split the reduction), n columns.
  GemmShape output_tile_shape{128, 32, 1};
  int c_swizzle = 64;  ///< Bytes of an output-tile row.
  int num_output_stages = 2;
  int num_accum_pipeline_stages = 2;
  int num_clc_pipeline_stages = 2;
  int k_group_size = 1;  ///< Stages that share one full / empty barrier pair.
  /// Neighbouring M tiles that are walked before N advances; 1: N fastest.
  int block_swizzle_size = 1;
  int a_swizzle = 128;
  int b_swizzle = 128;
  /// Stages of the input pipeline; 0: as many as fit in shared memory.
  int num_pipeline_stages = 0;
  /// With halo a stage holds the filter rows of a tap, and one load of 8 × 16 pixels with their
  /// border serves all taps of a span of channels. With resident the stages hold the filters of all
  /// channels until a tile needs others.
  Input input = Input::runs;
  int num_act_stages = 0;  ///< Of the activations' own ring (all but runs).
  int halo_pixels = 0;     ///< Pixels of a patch with its border, at most (halo, normalised).
  /// Buffers of the residual, one for each epilogue step in flight; 0: one for each step of a tile.
  int num_source_stages = 0;
  /// Compute and store hooks work on accumulator registers (fast); otherwise on the tile staged in
  /// shared memory, in 16-byte vectors along a row.
  bool register_based_epilogue = true;

  friend constexpr bool operator==(const Config&, const Config&) = default;

  // ---- What follows from the fields -----------------------------------------------------------

  /// CTAs of a cluster.
  constexpr int cluster_size() const { return cluster_shape.m * cluster_shape.n * cluster_shape.k; }
  constexpr bool splits_reduction() const { return cluster_shape.k > 1; }
  /// Elements of the reduction that one swizzle span holds: the unit of loading ("atom").
  constexpr int atom_k() const { return a_swizzle / 2; }
  constexpr int atoms_per_tile() const { return block_tile_shape.k / atom_k(); }
  constexpr int act_atom_bytes() const { return block_tile_shape.m * a_swizzle; }
  constexpr int filter_atom_bytes() const { return block_tile_shape.n * b_swizzle; }
  /// Bytes of a stage that holds activations: of the input ring, or of their own.
  constexpr int act_tile_bytes() const {
    if (has_halo()) return (halo_pixels * a_swizzle + 1023) / 1024 * 1024;
    return act_atom_bytes() * atoms_per_tile();
  }
  constexpr bool has_act_ring() const { return input != Input::runs; }
  constexpr bool has_halo() const { return input == Input::halo || input == Input::normalised; }
  constexpr bool normalises() const { return input == Input::normalised; }
  /// Threads of a CTA: the eight warps of kernel.cuh, and those that normalise.
  constexpr int threads() const { return 256 + (normalises() ? 32 * kNormaliserWarps : 0); }
  /// Floats of a patch's inverse RMS in rows of whole 16 bytes: of 10 × 18 pixels 16 × 18.
  constexpr int inverse_rms_floats() const { return normalises() ? halo_pixels * 8 / 5 : 0; }
  constexpr int filter_tile_bytes() const { return filter_atom_bytes() * atoms_per_tile(); }
  /// Rows of an activation (filter) tile that each CTA of a cluster fetches and multicasts.
  constexpr int act_slice_rows() const { return block_tile_shape.m / cluster_shape.n; }
  constexpr int filter_slice_rows() const {
    return block_tile_shape.n / (cluster_shape.m / cta_group);
  }
  constexpr int out_bytes() const { return out_dtype == DType::fp32 ? 4 : 2; }
  /// With cta_group 2 and mma_shape.m 128 a CTA holds 64 rows; tensor memory lanes 64-127 hold
  /// the right half of their columns (PTX ISA, tcgen05.mma data path layout B).
  constexpr bool split_rows() const { return cta_group == 2 && mma_shape.m == 128; }
  /// Output tiles that the 128 epilogue threads hold at once: two of 64 rows, or one of 128. With
  /// a split reduction a CTA finishes 128 / k rows of the tile, all columns in one step.
  constexpr int tiles_per_step() const {
    if (splits_reduction()) return mma_shape.n / output_tile_shape.n;
    return split_rows() ? 2 : 1;
  }
  /// Epilogue sub-stages of an accumulator tile.
  constexpr int epilogue_steps() const {
    return mma_shape.n / (output_tile_shape.n * tiles_per_step());
  }
  constexpr int output_tile_bytes() const {
    return output_tile_shape.m * output_tile_shape.n * out_bytes();
  }
  constexpr int output_stage_bytes() const { return output_tile_bytes() * tiles_per_step(); }
  constexpr int source_stages() const {
    return num_source_stages > 0 && num_source_stages < epilogue_steps() ? num_source_stages
                                                                         : epilogue_steps();
  }
  constexpr int source_bytes() const { return source_stages() * output_stage_bytes(); }
  constexpr int act_ring_bytes() const {
    return has_act_ring() ? num_act_stages * (act_tile_bytes() + 4 * inverse_rms_floats() + 24) : 0;
  }
  /// Shared memory that receives the fp32 parts of a CTA's rows from all k CTAs.
  constexpr int exchange_bytes() const {
    return splits_reduction() ? block_tile_shape.m * mma_shape.n * 4 : 0;
  }
  constexpr int accum_stage_columns() const { return kTmemColumns / num_accum_pipeline_stages; }

  /// Bytes of everything but the input pipeline: output tiles, source tiles, parts of a split
  /// reduction, launch control, barriers, tensor-memory address, and the slack that aligns the
  /// tiles to 1024 bytes.
  constexpr int fixed_shared_bytes(bool with_source) const {
    return num_output_stages * output_stage_bytes() + (with_source ? source_bytes() : 0) +
           exchange_bytes() + act_ring_bytes() + num_clc_pipeline_stages * kClcStageBytes +
           16 * num_accum_pipeline_stages + 16 * epilogue_steps() + 64 + 1024;
  }
  constexpr int stage_bytes() const {
    return (has_act_ring() ? 0 : act_tile_bytes()) + filter_tile_bytes();
  }
  /// As many input stages as fit, a whole number of k groups (each with two 8-byte barriers).
  constexpr int max_pipeline_stages(bool with_source) const {
    const int group_bytes = k_group_size * stage_bytes() + 16;
    return (kSharedMemoryBudget - fixed_shared_bytes(with_source)) / group_bytes * k_group_size;
  }
  /// Stages in force: the field, or the maximum where that is less or the field is 0.
  constexpr int pipeline_stages(bool with_source) const {
    const int most = max_pipeline_stages(with_source);
    return num_pipeline_stages > 0 && num_pipeline_stages < most ? num_pipeline_stages : most;
  }
};

}  // namespace convoy::sm100

namespace convoy {

/// Configuration for given element types: `Act` and `Filter` are the same of __nv_bfloat16 and
/// __half, `Out` is that type or float. Every field can be set; `validate_config` refuses illegal
/// combinations at compile time.
template <typename Act, typename Filter, typename Out>
struct Conv2dConfig : sm100::Config {
  using ActType = Act;
  using FilterType = Filter;
  using OutType = Out;

  static constexpr DType dtype_of_act() {
    return std::is_same_v<Act, __half> ? DType::fp16 : DType::bf16;
  }

  constexpr Conv2dConfig() {
    static_assert(std::is_same_v<Act, __nv_bfloat16> || std::is_same_v<Act, __half>,
                  "Conv2dConfig: the activation type is __nv_bfloat16 or __half");
    static_assert(std::is_same_v<Act, Filter>,
                  "Conv2dConfig: the filter type must be the activation type");
    static_assert(std::is_same_v<Out, Act> || std::is_same_v<Out, float>,
                  "Conv2dConfig: the output type is the activation type or float");
    act_dtype = filter_dtype = dtype_of_act();
    out_dtype = std::is_same_v<Out, float> ? DType::fp32 : dtype_of_act();
    c_swizzle = output_tile_shape.n * out_bytes();
  }

  /// Accumulation is fp32, always.
  static constexpr DType accum_type() { return DType::fp32; }

  /// Two SMs: 256 × 256 × 16 MMA over a pair of CTAs.
  static constexpr Conv2dConfig default_bf16() { return {}; }
  /// One SM: 128 × 128 × 16 MMA, no cluster.
  static constexpr Conv2dConfig default_bf16_1sm() {
    Conv2dConfig config;
    config.mma_shape = {128, 128, 16};
    config.cta_group = 1;
    config.cluster_shape = {1, 1, 1};
    return config;
  }
  /// The same tiles as default_bf16.
  static constexpr Conv2dConfig default_fp16() { return default_bf16(); }

  /// The variant for problems with fewer tiles than the device has SMs: `parts` CTAs (or pairs) of
  /// a cluster split the reduction of a tile; each sums and writes 128 / parts of its rows.
  constexpr Conv2dConfig with_split_reduction(int parts) const {
    Conv2dConfig config = *this;
    config.cluster_shape = {cta_group, 1, parts};
    config.output_tile_shape.m = 128 / parts;
    return config;
  }

  /// The variant for filters of more than one tap, stride 1: a patch of 8 × 16 pixels with its
  /// border (of a 3×3 filter) is loaded once for all taps. Clusters do not share tiles.
  constexpr Conv2dConfig with_halo() const {
    Conv2dConfig config = *this;
    config.input = sm100::Input::halo;
    config.block_tile_shape.k = config.a_swizzle / 2;
    config.num_act_stages = 2;
    config.halo_pixels = 10 * 18;
    return config;
  }

  /// The variant for 1×1 filters whose channels all fit in shared memory.
  constexpr Conv2dConfig with_resident_filters(int act_stages = 4) const {
    Conv2dConfig config = *this;
    config.input = sm100::Input::resident;
    config.block_tile_shape.k = config.a_swizzle / 2;
    config.num_act_stages = act_stages;
    return config;
  }

  /// The variant for channel counts whose bytes are a multiple of 64 but not of 128 (C = 32, 96,
  /// 160 ...): 64-byte swizzle, 32 elements of the reduction a stage.
  constexpr Conv2dConfig with_64_byte_swizzle() const {
    Conv2dConfig config = *this;
    config.a_swizzle = config.b_swizzle = 64;
    config.block_tile_shape.k = 32;
    return config;
  }
};

}  // namespace convoy

namespace convoy::sm100 {

/// The configuration as two integers. NOTE: nvcc 13.0 cannot pass a class-type template argument
/// to a __global__ template (its host stub names the class by its mangled name), so the kernels
/// take these and unpack them.
struct PackedConfig {
  std::uint64_t tiles = 0;
  std::uint64_t pipeline = 0;
};

namespace detail {

struct BitWriter {
  std::uint64_t bits = 0;
  int used = 0;
  constexpr void put(std::uint64_t value, int width) {
    bits |= value << used;
    used += width;
  }
};
struct BitReader {
  std::uint64_t bits = 0;
  constexpr int take(int width) {
    const int value = static_cast<int>(bits & ((std::uint64_t{1} << width) - 1));
    bits >>= width;
    return value;
  }
};

}  // namespace detail

constexpr PackedConfig pack(const Config& config) {
  detail::BitWriter tiles, pipeline;
  for (const GemmShape& shape : {config.block_tile_shape, config.mma_shape}) {
    tiles.put(static_cast<std::uint64_t>(shape.m / 8), 7);
    tiles.put(static_cast<std::uint64_t>(shape.n / 8), 7);
    tiles.put(static_cast<std::uint64_t>(shape.k / 8), 7);
  }
  tiles.put(static_cast<std::uint64_t>(config.input), 2);
  tiles.put(static_cast<std::uint64_t>(config.num_act_stages), 4);
  tiles.put(static_cast<std::uint64_t>(config.halo_pixels), 10);
  tiles.put(static_cast<std::uint64_t>(config.num_source_stages), 2);
  tiles.put(static_cast<std::uint64_t>(config.cta_group), 2);
  tiles.put(config.register_based_epilogue ? 1 : 0, 1);
  pipeline.put(static_cast<std::uint64_t>(config.cluster_shape.m), 4);
  pipeline.put(static_cast<std::uint64_t>(config.cluster_shape.n), 4);
  pipeline.put(static_cast<std::uint64_t>(config.cluster_shape.k), 4);
  pipeline.put(static_cast<std::uint64_t>(config.output_tile_shape.m / 16), 4);
  pipeline.put(static_cast<std::uint64_t>(config.output_tile_shape.n / 16), 3);
  pipeline.put(static_cast<std::uint64_t>(config.c_swizzle / 32), 3);
  pipeline.put(static_cast<std::uint64_t>(config.num_output_stages), 4);
  pipeline.put(static_cast<std::uint64_t>(config.num_accum_pipeline_stages), 4);
  pipeline.put(static_cast<std::uint64_t>(config.num_clc_pipeline_stages), 4);
  pipeline.put(static_cast<std::uint64_t>(config.k_group_size), 4);
  pipeline.put(static_cast<std::uint64_t>(config.block_swizzle_size), 5);
  pipeline.put(static_cast<std::uint64_t>(config.a_swizzle / 32), 3);
  pipeline.put(static_cast<std::uint64_t>(config.b_swizzle / 32), 3);
  pipeline.put(static_cast<std::uint64_t>(config.num_pipeline_stages), 6);
  pipeline.put(static_cast<std::uint64_t>(config.act_dtype), 2);
  pipeline.put(static_cast<std::uint64_t>(config.filter_dtype), 2);
  pipeline.put(static_cast<std::uint64_t>(config.out_dtype), 2);
  return {tiles.bits, pipeline.bits};
}

constexpr Config unpack(const PackedConfig& packed) {
  Config config;
  detail::BitReader tiles{packed.tiles}, pipeline{packed.pipeline};
  for (GemmShape* shape : {&config.block_tile_shape, &config.mma_shape}) {
    shape->m = tiles.take(7) * 8;
    shape->n = tiles.take(7) * 8;
    shape->k = tiles.take(7) * 8;
  }
  config.input = static_cast<Input>(tiles.take(2));
  config.num_act_stages = tiles.take(4);
  config.halo_pixels = tiles.take(10);
  config.num_source_stages = tiles.take(2);
  config.cta_group = tiles.take(2);
  config.register_based_epilogue = tiles.take(1) != 0;
  config.cluster_shape.m = pipeline.take(4);
  config.cluster_shape.n = pipeline.take(4);
  config.cluster_shape.k = pipeline.take(4);
  config.output_tile_shape.m = pipeline.take(4) * 16;
  config.output_tile_shape.n = pipeline.take(3) * 16;
  config.c_swizzle = pipeline.take(3) * 32;
  config.num_output_stages = pipeline.take(4);
  config.num_accum_pipeline_stages = pipeline.take(4);
  config.num_clc_pipeline_stages = pipeline.take(4);
  config.k_group_size = pipeline.take(4);
  config.block_swizzle_size = pipeline.take(5);
  config.a_swizzle = pipeline.take(3) * 32;
  config.b_swizzle = pipeline.take(3) * 32;
  config.num_pipeline_stages = pipeline.take(6);
  config.act_dtype = static_cast<DType>(pipeline.take(2));
  config.filter_dtype = static_cast<DType>(pipeline.take(2));
  config.out_dtype = static_cast<DType>(pipeline.take(2));
  return config;
}

/// Instantiate to have a configuration judged: each rule says what is legal.
template <std::uint64_t kTiles, std::uint64_t kPipeline>
struct ValidatedConfig {
  static constexpr Config kConfig = unpack({kTiles, kPipeline});
  static constexpr GemmShape kBlock = kConfig.block_tile_shape;
  static constexpr GemmShape kMma = kConfig.mma_shape;
  static constexpr GemmShape kCluster = kConfig.cluster_shape;

  static_assert(kConfig.cta_group == 1 || kConfig.cta_group == 2,
                "Conv2dConfig::cta_group is 1 or 2");
  static_assert(kMma.m == kConfig.cta_group * kBlock.m && kMma.n == kConfig.cta_group * kBlock.n,
                "Conv2dConfig: mma_shape.m and .n are cta_group times block_tile_shape.m and .n");
  static_assert(kConfig.cta_group == 2 ? (kMma.m == 128 || kMma.m == 256) : kMma.m == 128,
                "Conv2dConfig::mma_shape.m is 128 with cta_group 1, 128 or 256 with cta_group 2");
  static_assert(kMma.n >= 16 && kMma.n <= 256 && kMma.n % (kConfig.cta_group == 2 ? 32 : 16) == 0,
                "Conv2dConfig::mma_shape.n is 16..256 in steps of 16 with cta_group 1, 32..256 in "
                "steps of 32 with cta_group 2");
  static_assert(kMma.k == 16, "Conv2dConfig::mma_shape.k is 16 for 16-bit elements");
  static_assert(kCluster.k > 1 ||
                    ((kCluster.m == 1 && kCluster.n == 1) || (kCluster.m == 2 && kCluster.n == 1) ||
                     (kCluster.m == 1 && kCluster.n == 2) || (kCluster.m == 2 && kCluster.n == 2) ||
                     (kCluster.m == 4 && kCluster.n == 1) || (kCluster.m == 4 && kCluster.n == 2)),
                "Conv2dConfig::cluster_shape is (1,1), (2,1), (1,2), (2,2), (4,1) or (4,2) where k "
                "is 1");
  static_assert(kCluster.k == 1 || ((kCluster.k == 2 || kCluster.k == 4 || kCluster.k == 8) &&
                                    kCluster.m == kConfig.cta_group && kCluster.n == 1 &&
                                    kConfig.cluster_size() <= 8),
                "Conv2dConfig::cluster_shape with a split reduction is (cta_group, 1, k), k 2, 4 "
                "or 8, of at most 8 CTAs");
  static_assert(kCluster.k == 1 ||
                    (kBlock.m == 128 && (kMma.n / kCluster.k == 8 || kMma.n / kCluster.k == 16 ||
                                         kMma.n / kCluster.k == 32)),
                "Conv2dConfig: with a split reduction block_tile_shape.m is 128 and mma_shape.n / "
                "cluster_shape.k is 8, 16 or 32");
  static_assert(kCluster.k == 1 || kConfig.register_based_epilogue,
                "Conv2dConfig::register_based_epilogue is true with a split reduction");
  static_assert(kCluster.m % kConfig.cta_group == 0,
                "Conv2dConfig::cluster_shape.m is a multiple of cta_group");
  static_assert(kConfig.a_swizzle == 64 || kConfig.a_swizzle == 128,
                "Conv2dConfig::a_swizzle is 64 or 128 bytes");
  static_assert(
      kConfig.a_swizzle == kConfig.b_swizzle,
      "Conv2dConfig: a_swizzle and b_swizzle are equal, both 64 or both 128 (they cut the "
      "reduction alike)");
  static_assert(kBlock.k > 0 && kBlock.k % kConfig.atom_k() == 0,
                "Conv2dConfig::block_tile_shape.k is a multiple of the swizzle span: of 64 "
                "elements with 128-byte, of 32 with 64-byte swizzle");
  static_assert(!kConfig.has_act_ring() || (kConfig.a_swizzle == 128 && kBlock.k == 64 &&
                                            kConfig.k_group_size == 1 && kBlock.m == 128),
                "Conv2dConfig: Input::halo, normalised and resident take a_swizzle 128, "
                "block_tile_shape.k 64, block_tile_shape.m 128, k_group_size 1");
  static_assert(!kConfig.has_act_ring() ||
                    (kCluster.m == kConfig.cta_group && kCluster.n == 1 && kCluster.k == 1),
                "Conv2dConfig::cluster_shape is (cta_group, 1, 1) with Input::halo, normalised and "
                "resident");
  static_assert(kConfig.has_act_ring() ? kConfig.num_act_stages >= 1 : kConfig.num_act_stages == 0,
                "Conv2dConfig::num_act_stages is at least 1 with Input::halo, normalised and "
                "resident, else 0");
  static_assert(
      kConfig.has_halo() ? kConfig.halo_pixels >= 128 : kConfig.halo_pixels == 0,
      "Conv2dConfig::halo_pixels is at least the 128 of a patch with Input::halo and normalised, "
      "else 0");
  static_assert(kConfig.act_slice_rows() % 8 == 0 && kConfig.filter_slice_rows() % 8 == 0,
                "Conv2dConfig: multicast slices (block m / cluster n, block n / (cluster m / "
                "cta_group)) are multiples of 8 rows");
  static_assert(kConfig.output_tile_shape.m == (kConfig.split_rows() ? 64 : 128 / kCluster.k),
                "Conv2dConfig::output_tile_shape.m is 64 where cta_group is 2 and mma_shape.m 128, "
                "128 / k where k CTAs split the reduction, else 128");
  static_assert(kConfig.output_tile_shape.n == 16 || kConfig.output_tile_shape.n == 32 ||
                    kConfig.output_tile_shape.n == 64,
                "Conv2dConfig::output_tile_shape.n is 16, 32 or 64");
  static_assert(kConfig.c_swizzle == kConfig.output_tile_shape.n * kConfig.out_bytes() &&
                    (kConfig.c_swizzle == 32 || kConfig.c_swizzle == 64 ||
                     kConfig.c_swizzle == 128),
                "Conv2dConfig::c_swizzle is the bytes of an output-tile row, 32, 64 or 128");
  static_assert(kMma.n % (kConfig.output_tile_shape.n * kConfig.tiles_per_step()) == 0,
                "Conv2dConfig::mma_shape.n is a multiple of output_tile_shape.n (of twice that "
                "where a CTA holds 64 rows)");
  static_assert(kConfig.num_output_stages >= 2 && kConfig.num_output_stages <= 8,
                "Conv2dConfig::num_output_stages is 2..8");
  static_assert(kConfig.num_accum_pipeline_stages == 1 || kConfig.num_accum_pipeline_stages == 2 ||
                    kConfig.num_accum_pipeline_stages == 4,
                "Conv2dConfig::num_accum_pipeline_stages is 1, 2 or 4");
  static_assert(kMma.n <= kConfig.accum_stage_columns(),
                "Conv2dConfig: mma_shape.n columns do not fit an accumulator stage of 512 / "
                "num_accum_pipeline_stages columns");
  static_assert(kConfig.num_clc_pipeline_stages >= 1 && kConfig.num_clc_pipeline_stages <= 8,
                "Conv2dConfig::num_clc_pipeline_stages is 1..8");
  static_assert(kConfig.k_group_size >= 1 && kConfig.block_swizzle_size >= 1,
                "Conv2dConfig::k_group_size and block_swizzle_size are at least 1");
  static_assert(kConfig.num_pipeline_stages % kConfig.k_group_size == 0,
                "Conv2dConfig::num_pipeline_stages is a multiple of k_group_size");
  static_assert(kConfig.max_pipeline_stages(false) >= kConfig.k_group_size,
                "Conv2dConfig: not one input stage (k group) fits in 227 KiB of shared memory; "
                "take smaller tiles");
  static_assert(kConfig.num_pipeline_stages <= kConfig.max_pipeline_stages(false),
                "Conv2dConfig::num_pipeline_stages does not fit in 227 KiB of shared memory; 0 "
                "takes as many as fit");
};

/// The configuration whose kernels run it: those of bf16 take fp16 where a launch says so.
constexpr Config code_of(Config config) {
  for (DType* type : {&config.act_dtype, &config.filter_dtype, &config.out_dtype}) {
    if (*type == DType::fp16) *type = DType::bf16;
  }
  return config;
}

/// Judge a configuration given as a value.
template <auto kConfig>
constexpr PackedConfig validated_pack() {
  constexpr PackedConfig kPacked = pack(kConfig);
  static_assert(unpack(kPacked) == static_cast<const Config&>(kConfig),
                "Conv2dConfig: a field is out of range (tile extents multiples of 8 below 1024, "
                "halo_pixels below 1024, num_source_stages below 4, cluster extents "
                "below 16, output tile extents multiples of 16 up to 128 x 64, stages below 16, "
                "input stages below 64, block_swizzle_size below 32)");
  (void)ValidatedConfig<kPacked.tiles, kPacked.pipeline>::kConfig;
  return kPacked;
}

}  // namespace convoy::sm100
