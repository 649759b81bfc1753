// SPDX-License-Identifier: Apache-2.0
//
// From accumulators to the output: what the epilogue warps do with one tile, with and without a
// residual, with compute and store ops on registers or on the staged tile.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/common/epilogue.cuh"
#include "kernels/sm100/config.hpp"
#include "kernels/sm100/params.hpp"
#include "kernels/sm100/smem.cuh"
#include "kernels/sm100/tcgen05.cuh"

namespace convoy::sm100 {

template <std::uint64_t kTiles, std::uint64_t kPipeline, typename ComputeOp, typename StoreOp,
          bool kWithResidual>
struct TileEpilogue {
  using Smem = Conv2dSmem<kTiles, kPipeline, kWithResidual>;
  static constexpr Config kConfig = Smem::kConfig;
  // Of ops; without any, bf16 may be fp16 (with_output_type).
  using Out = std::conditional_t<
      kConfig.out_dtype == DType::fp32, float,
      std::conditional_t<kConfig.out_dtype == DType::fp16, __half, __nv_bfloat16>>;
  static constexpr bool kEither = kConfig.out_dtype == DType::bf16;

  static constexpr int kOutputN = kConfig.output_tile_shape.n;
  static constexpr int kSteps = kConfig.epilogue_steps();
  static constexpr bool kSplitRows = kConfig.split_rows();
  static constexpr bool kOnRegisters = kConfig.register_based_epilogue && ComputeOp::kOnRegisters;
  // Elements of a 16-byte vector, vectors of an output-tile row.
  static constexpr int kVector = 16 / static_cast<int>(sizeof(Out));
  static constexpr int kRowVectors = kConfig.c_swizzle / 16;
  static constexpr int kEpilogueThreads = 128;
  static constexpr int kEpilogueBarrier = 2;

  /// Rings of output and source tiles.
  struct State {
    std::uint32_t out_stage = 0;
    std::uint32_t exchange_phase = 0;
    PipelineState<Smem::kSourceTiles> source;
  };

  // ---- Coordinates ----------------------------------------------------------------------------

  // First filter of output tile `half` of those stored in `step` (split rows: 0, 1; split
  // reduction: all of them).
  static __device__ __forceinline__ int tile_filter(int first, int step, int half) {
    if constexpr (kConfig.splits_reduction()) return first + half * kOutputN;
    return first + half * (kConfig.mma_shape.n / 2) + step * kOutputN;
  }

  // Row of the M x K output matrix that a row of a group is; -1 where it lies outside.
  static __device__ __forceinline__ std::int64_t output_pixel(const Params& params,
                                                              const auto& tile, int row) {
    row += tile.row;
    if (params.row_groups == RowGroups::phases || params.row_groups == RowGroups::patches) {
      const RowPixel at = pixel_of_row<kConfig.block_tile_shape.m>(params, row);
      if (!at.inside) return -1;
      const std::int64_t frame = params.row_groups == RowGroups::patches ? tile.group : at.n;
      const std::int64_t line = frame * params.out_extent[1] + at.p;
      if (params.phases == 1) return line * params.out_extent[2] + at.q;
      // Every second pixel of every second row.
      return ((line * 2 + (tile.phase >> 1)) * params.out_extent[2] + at.q) * 2 + (tile.phase & 1);
    }
    return row < params.rows ? static_cast<std::int64_t>(tile.group) * params.rows + row : -1;
  }

  // Byte of 16-byte vector `vector` of row `row` in a swizzled tile: vectors of a row are permuted
  // by the address bits 7.. that TMA uses.
  static __device__ __forceinline__ int vector_offset(int row, int vector) {
    const int key = kConfig.c_swizzle == 128  ? row & 7
                    : kConfig.c_swizzle == 64 ? row >> 1 & 3
                                              : row >> 2 & 1;
    return row * kConfig.c_swizzle + ((vector ^ key) << 4);
  }

  // ---- Tiles by TMA ---------------------------------------------------------------------------

  /// Coordinates of a tile's first row in the maps of output and source: {K, x, y, n}. Found once
  /// a tile: to find them takes two divisions.
  struct TileStart {
    int x, y, n;
  };
  static __device__ __forceinline__ TileStart tile_start(const Params& params, const auto& tile) {
    if (params.row_groups == RowGroups::phases || params.row_groups == RowGroups::patches) {
      const RowPixel at = pixel_of_row<kConfig.block_tile_shape.m>(params, tile.row);
      if (params.row_groups == RowGroups::patches) return {at.q, at.p, tile.group};
      // Beyond the last row: image -1, zeros.
      return {at.q, at.p, at.inside ? at.n : -1};
    }
    return {tile.row, 0, tile.group};
  }

  /// Load the source tiles of one step; their bytes are counted on `full`.
  static __device__ __forceinline__ void load_source_tiles(const Params& params, const auto& tile,
                                                           const TileStart& at, int step,
                                                           std::uint8_t* shared,
                                                           ptx::Barrier* full) {
#pragma unroll
    for (int half = 0; half < kConfig.tiles_per_step(); ++half) {
      const int filter = tile_filter(tile.filter, step, half);
      std::uint8_t* destination = shared + half * kConfig.output_tile_bytes();
      if (params.row_groups == RowGroups::phases) {
        ptx::tma_load_im2col_4d(destination, &params.source_map[tile.phase], full,
                                ptx::kL2EvictFirst, filter, at.x, at.y, at.n, 0, 0);
      } else {
        ptx::tma_load_4d(destination, &params.source_map[tile.phase], full, ptx::kL2EvictFirst,
                         filter, at.x, at.y, at.n);
      }
    }
  }

  static __device__ __forceinline__ void store_output_tiles(const Params& params, const auto& tile,
                                                            const TileStart& at, int step,
                                                            const std::uint8_t* shared) {
#pragma unroll
    for (int half = 0; half < kConfig.tiles_per_step(); ++half) {
      const int filter = tile_filter(tile.filter, step, half);
      const std::uint8_t* from = shared + half * kConfig.output_tile_bytes();
      if (tile.row >= params.rows || filter >= params.filters) continue;
      if (params.row_groups == RowGroups::phases) {
        ptx::tma_store_im2col_nhwc(&params.output_map[tile.phase], from, filter, at.x, at.y, at.n);
      } else {
        ptx::tma_store_4d(&params.output_map[tile.phase], from, filter, at.x, at.y, at.n);
      }
    }
    ptx::tma_store_commit();
  }

  // ---- Values ---------------------------------------------------------------------------------

  // Call `body`, a template on the element type of the output.
  template <typename Body>
  static __device__ __forceinline__ void with_output_type(const Params& params, const Body& body) {
    with_either_half<Out, kEither>(params.is_fp16, body);
  }

  // 16 bytes of a tile as fp32 values, and back.
  template <typename T>
  static __device__ __forceinline__ void unpack(const uint4& raw, float* v) {
    if constexpr (std::is_same_v<T, float>) {
      v[0] = __uint_as_float(raw.x);
      v[1] = __uint_as_float(raw.y);
      v[2] = __uint_as_float(raw.z);
      v[3] = __uint_as_float(raw.w);
    } else {
      const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack2<T>(words[i]);
        v[2 * i] = pair.x;
        v[2 * i + 1] = pair.y;
      }
    }
  }
  template <typename T>
  static __device__ __forceinline__ uint4 pack(const float* v) {
    if constexpr (std::is_same_v<T, float>) {
      return {__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
              __float_as_uint(v[3])};
    } else {
      return {pack2<T>(v[0], v[1]), pack2<T>(v[2], v[3]), pack2<T>(v[4], v[5]),
              pack2<T>(v[6], v[7])};
    }
  }

  // Bias of `kCount` filters from `filter` on; beyond the last it repeats the last, unused.
  template <int kCount>
  static __device__ __forceinline__ void load_bias_values(const Params& params, int filter,
                                                          float (&bias)[kCount]) {
    const auto load = [&]<typename T>(const T* from) {
      constexpr int kWidth = 16 / static_cast<int>(sizeof(T));
      if constexpr (kCount % kWidth == 0) {
        const T* const first = from + filter;
        if (filter + kCount <= params.filters &&
            reinterpret_cast<std::uintptr_t>(first) % 16 == 0) {
#pragma unroll
          for (int i = 0; i < kCount; i += kWidth) {
            const uint4 raw = __ldg(reinterpret_cast<const uint4*>(first + i));
            const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              if constexpr (sizeof(T) == 4) {
                bias[i + j] = __uint_as_float(words[j]);
              } else {
                const float2 pair = unpack2<T>(words[j]);
                bias[i + 2 * j] = pair.x;
                bias[i + 2 * j + 1] = pair.y;
              }
            }
          }
          return;
        }
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        bias[i] = to_float(__ldg(from + min(filter + i, params.filters - 1)));
      }
    };
    switch (params.epilogue.bias_dtype) {
      case DType::bf16:
        return load(static_cast<const __nv_bfloat16*>(params.epilogue.bias));
      case DType::fp16:
        return load(static_cast<const __half*>(params.epilogue.bias));
      case DType::fp32:
        return load(static_cast<const float*>(params.epilogue.bias));
    }
  }

  // The compute op, then beta·C: D = compute(v) + beta·source. Without a compute op, the run-time
  // epilogue. `filter` + kCount may pass the last filter only by values that are not stored.
  template <int kCount>
  static __device__ __forceinline__ void compute_values(const Params& params,
                                                        const ComputeOp& compute,
                                                        std::int64_t pixel, bool row_is_inside,
                                                        int filter, float (&v)[kCount],
                                                        const float (&source)[kCount]) {
    if constexpr (std::is_same_v<ComputeOp, NoComputeOp>) {
      float bias[kCount];  // Read where there is one.
      if (params.epilogue.bias != nullptr) load_bias_values(params, filter, bias);
      apply_epilogue(
          round_to_either_half<Out, kEither>(params.is_fp16), params.epilogue, v,
          [&](int i) { return bias[i]; }, [&](int i) { return source[i]; });
    } else {
      constexpr int kWidth = kCount < 8 ? kCount : 8;
#pragma unroll
      for (int i = 0; i < kCount; i += kWidth) {
        if (row_is_inside && filter + i < params.filters) {
          float piece[kWidth];
#pragma unroll
          for (int j = 0; j < kWidth; ++j) piece[j] = v[i + j];
          compute(pixel, filter + i, piece);
#pragma unroll
          for (int j = 0; j < kWidth; ++j) v[i + j] = piece[j];
        }
      }
      __syncwarp();  // An op may part the lanes, and the next tcgen05.ld is .aligned.
      if constexpr (kWithResidual) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) v[i] = fmaf(params.epilogue.beta, source[i], v[i]);
      }
    }
  }

  // Rows are whole 16-byte vectors where there are ops, and pieces are vectors of a row.
  static constexpr int kPieceAlignment = 16;

  template <int kWidth>
  static __device__ __forceinline__ void call_store_op_on_piece(const StoreOp& store,
                                                                std::int64_t pixel, int filter,
                                                                const Out (&piece)[kWidth]) {
    if constexpr (requires { store.template operator()<kPieceAlignment>(pixel, filter, piece); }) {
      store.template operator()<kPieceAlignment>(pixel, filter, piece);
    } else {
      store(pixel, filter, piece);
    }
  }

  // After the write of these values was issued, or in its place.
  template <int kCount>
  static __device__ __forceinline__ void call_store_op(const Params& params, const StoreOp& store,
                                                       std::int64_t pixel, bool row_is_inside,
                                                       int filter, const float (&v)[kCount]) {
    if constexpr (!std::is_same_v<StoreOp, NoStoreOp>) {
      constexpr int kWidth = kCount < 8 ? kCount : 8;
#pragma unroll
      for (int i = 0; i < kCount; i += kWidth) {
        if (row_is_inside && filter + i < params.filters) {
          Out piece[kWidth];
#pragma unroll
          for (int j = 0; j < kWidth; ++j) piece[j] = from_float<Out>(v[i + j]);
          call_store_op_on_piece(store, pixel, filter + i, piece);
        }
      }
      __syncwarp();  // As behind a compute op.
    }
  }

  // ---- One tile -------------------------------------------------------------------------------

  /// Write the tile whose accumulator is at tensor-memory address `accumulator`; call `release`
  /// once all of it is in registers.
  template <typename Release>
  static __device__ __forceinline__ void write_tile(const Params& params, Smem& smem,
                                                    const auto& tile, std::uint32_t accumulator,
                                                    State& state, const ComputeOp& compute,
                                                    const StoreOp& store, const Release& release) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    // Row of the output tile that this thread holds: its tensor-memory lane.
    const int half = kSplitRows ? warp / 2 : 0;
    const int tile_row = static_cast<int>(threadIdx.x) - 64 * half;
    const std::int64_t pixel = output_pixel(params, tile, tile_row);
    const bool inside = pixel >= 0;
    const std::uint32_t lanes = accumulator + (static_cast<std::uint32_t>(warp) << 21);
    const TileStart start = tile_start(params, tile);

    // The loads of a step are issued before the one before is staged and stored.
    std::uint32_t raw[kOutputN];
    __syncwarp();  // It is .aligned, and rows outside the output part the lanes.
    issue_accumulator_load(lanes, raw);
    const auto load_next = [&](int step) {
      if (step == kSteps - 1) return;
      issue_accumulator_load(lanes + static_cast<std::uint32_t>((step + 1) * kOutputN), raw);
    };
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      ptx::tmem_wait_load(raw);
      if (step == kSteps - 1) release();
      float v[kOutputN];
#pragma unroll
      for (int i = 0; i < kOutputN; ++i) v[i] = __uint_as_float(raw[i]);
      const int filter = tile_filter(tile.filter, step, half);

      std::uint8_t* out =
          smem.out_tiles(static_cast<int>(state.out_stage)) + half * kConfig.output_tile_bytes();
      if constexpr (kOnRegisters) {
        float source[kOutputN] = {};
        if constexpr (kWithResidual) {
          if (params.tma_store) {
            read_source_tile(params, smem, state, half, tile_row, source);
          } else if (inside) {
            read_source_row(params, pixel, filter, source);
          }
        }
        compute_values(params, compute, pixel, inside, filter, v, source);
        // NOTE: values are packed before the next ones are asked for: both then share registers.
        if (!params.tma_store) {
          if (inside) write_row(params, pixel, filter, v);
          __syncwarp();  // The load is .aligned.
          load_next(step);
        } else if constexpr (StoreOp::kReplacesStore) {
          load_next(step);
        } else {
          uint4 row[kRowVectors];
          pack_row(params, v, row);
          load_next(step);
          stage_row(out, tile_row, row);
          store_step(params, smem, tile, start, step, state);
        }
        call_store_op(params, store, pixel, inside, filter, v);
      } else {
        uint4 row[kRowVectors];
        pack_row(params, v, row);
        load_next(step);
        stage_row(out, tile_row, row);
        ptx::named_barrier_sync(kEpilogueBarrier, kEpilogueThreads);
        finish_staged(params, smem, tile, step, state, compute);
        const std::uint32_t stage = state.out_stage;
        if constexpr (!StoreOp::kReplacesStore) {
          store_step(params, smem, tile, start, step, state);
        }
        call_store_op_on_staged(params, smem, tile, step, stage, store);
        if constexpr (StoreOp::kReplacesStore) {
          ptx::named_barrier_sync(kEpilogueBarrier, kEpilogueThreads);
          if (++state.out_stage == kConfig.num_output_stages) state.out_stage = 0;
        }
      }
    }
  }

  // ---- One tile of a split reduction ----------------------------------------------------------

  /// Where this CTA stands among those that share a tile: part `part`; part i is the CTA of rank
  /// first_rank + i · rank_step.
  struct Part {
    int part, first_rank, rank_step;
  };

  static constexpr int kParts = kConfig.cluster_shape.k;
  static constexpr int kPartRows = kConfig.output_tile_shape.m;
  static constexpr int kPartWidth =
      kConfig.mma_shape.n / kParts;  // of a row, that a thread finishes
  static constexpr int kPartVectors = kConfig.mma_shape.n / 4 * kPartRows;

  // Send this thread's lane of the accumulator to the row's owner, once all parts of the last tile
  // have been read by their owners.
  template <typename Release>
  static __device__ __forceinline__ void send_part(Smem& smem, const Part& at,
                                                   std::uint32_t accumulator, const State& state,
                                                   const Release& release) {
    constexpr int kColumns = kConfig.mma_shape.n;
    const int thread = static_cast<int>(threadIdx.x);
    ptx::barrier_wait_cluster(&smem.exchange_empty, state.exchange_phase ^ 1u);
    if (thread == 0) ptx::barrier_arrive_expect(&smem.exchange_full, kConfig.exchange_bytes());
    // The loads are .aligned; rows outside the output have parted the lanes of the tile before.
    __syncwarp();
    const auto owner =
        static_cast<std::uint32_t>(at.first_rank + thread / kPartRows * at.rank_step);
    const std::uint32_t full =
        ptx::map_shared_rank(ptx::shared_address(&smem.exchange_full), owner);
    const std::uint32_t slot = ptx::map_shared_rank(
        ptx::shared_address(&smem.exchange.values[at.part * kPartVectors + thread % kPartRows]),
        owner);
    const std::uint32_t lanes = accumulator + (static_cast<std::uint32_t>(thread / 32) << 21);
#pragma unroll 1
    for (int column = 0; column < kColumns; column += kOutputN) {
      std::uint32_t raw[kOutputN];
      issue_accumulator_load(lanes + static_cast<std::uint32_t>(column), raw);
      ptx::tmem_wait_load(raw);
      if (column + kOutputN == kColumns) release();
#pragma unroll
      for (int i = 0; i < kOutputN; i += 4) {
        const int vector = (column + i) / 4 * kPartRows;
        ptx::store_async_v4(slot + static_cast<std::uint32_t>(vector) * 16, raw + i, full);
      }
    }
  }

  // Add the parts of this thread's piece of the rows that this CTA owns: columns `first` on of
  // `row`.
  static __device__ __forceinline__ void add_parts(Smem& smem, const Part& at, State& state,
                                                   int row, int first, float (&v)[kPartWidth]) {
    ptx::barrier_wait_cluster(&smem.exchange_full, state.exchange_phase);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kPartWidth; i += 4) {
        const float4 add =
            smem.exchange.values[part * kPartVectors + (first + i) / 4 * kPartRows + row];
        v[i] += add.x;
        v[i + 1] += add.y;
        v[i + 2] += add.z;
        v[i + 3] += add.w;
      }
    }
    __syncwarp();
    if (ptx::lane_id() < kParts) {
      const auto peer = static_cast<std::uint32_t>(at.first_rank) +
                        ptx::lane_id() * static_cast<std::uint32_t>(at.rank_step);
      ptx::barrier_arrive_remote_release(&smem.exchange_empty, peer);
    }
    state.exchange_phase ^= 1u;
  }

  /// Each of the k CTAs has the whole tile, summed over its part of the reduction, and owns
  /// 128 / k of the rows. It sends every row to its owner; the owner adds the parts in their order,
  /// so that the result does not depend on who comes first, and writes its rows (`tile`).
  template <typename Release>
  static __device__ __forceinline__ void write_split_tile(
      const Params& params, Smem& smem, const auto& tile, const Part& at, std::uint32_t accumulator,
      State& state, const ComputeOp& compute, const StoreOp& store, const Release& release) {
    static_assert(kOnRegisters, "with a split reduction ops run on registers");
    send_part(smem, at, accumulator, state, release);
    const int row = static_cast<int>(threadIdx.x) % kPartRows;
    const int first = static_cast<int>(threadIdx.x) / kPartRows * kPartWidth;
    float v[kPartWidth] = {};
    add_parts(smem, at, state, row, first, v);

    // The rows' epilogue; all columns are one step.
    const int filter = tile.filter + first;
    const std::int64_t pixel = output_pixel(params, tile, row);
    const bool inside = pixel >= 0;
    const auto offset = [&](int i) {
      const int column = first + i;
      return column / kOutputN * kConfig.output_tile_bytes() +
             vector_offset(row, column % kOutputN / kVector);
    };
    float source[kPartWidth] = {};
    if constexpr (kWithResidual) {
      if (params.tma_store) {
        ptx::barrier_wait(&smem.source_full()[0], state.source.parity());
        with_output_type(params, [&]<typename T>() {
#pragma unroll
          for (int i = 0; i < kPartWidth; i += kVector) {
            unpack<T>(*reinterpret_cast<const uint4*>(smem.src_tiles(0) + offset(i)), source + i);
          }
        });
        ptx::fence_async_shared();
        ptx::barrier_arrive(&smem.source_empty()[0]);
        state.source.advance();
      } else if (inside) {
        read_source_row(params, pixel, filter, source);
      }
    }
    compute_values(params, compute, pixel, inside, filter, v, source);
    if (!params.tma_store) {
      if (inside) write_row(params, pixel, filter, v);
    } else if constexpr (!StoreOp::kReplacesStore) {
      std::uint8_t* out = smem.out_tiles(static_cast<int>(state.out_stage));
      with_output_type(params, [&]<typename T>() {
#pragma unroll
        for (int i = 0; i < kPartWidth; i += kVector) {
          *reinterpret_cast<uint4*>(out + offset(i)) = pack<T>(v + i);
        }
      });
      store_step(params, smem, tile, tile_start(params, tile), 0, state);
    }
    call_store_op(params, store, pixel, inside, filter, v);
  }

  // ---- Parts of both --------------------------------------------------------------------------

  // Store the output tiles that all threads have staged.
  static __device__ __forceinline__ void store_step(const Params& params, Smem& smem,
                                                    const auto& tile, const TileStart& start,
                                                    int step, State& state) {
    ptx::fence_async_shared();
    // NOTE: waiting before the barrier for the reads of all but the last num_output_stages - 2
    // stores lets every thread write the next stage right after it.
    if (threadIdx.x == 0) ptx::tma_store_wait_read<kConfig.num_output_stages - 2>();
    __syncwarp();  // The barrier is .aligned, and so is the next tcgen05.ld.
    ptx::named_barrier_sync(kEpilogueBarrier, kEpilogueThreads);
    if (threadIdx.x == 0) {
      store_output_tiles(params, tile, start, step,
                         smem.out_tiles(static_cast<int>(state.out_stage)));
    }
    __syncwarp();
    if (++state.out_stage == kConfig.num_output_stages) state.out_stage = 0;
  }

  // Columns of this thread's lane; there after ptx::tmem_wait_load.
  static __device__ __forceinline__ void issue_accumulator_load(std::uint32_t address,
                                                                std::uint32_t (&raw)[kOutputN]) {
    if constexpr (kOutputN == 16) {
      ptx::tmem_load_x16(address, raw);
    } else {
#pragma unroll
      for (int i = 0; i < kOutputN; i += 32) {
        ptx::tmem_load_x32(address + static_cast<std::uint32_t>(i), raw + i);
      }
    }
  }

  // This thread's row of the source tile of the current step.
  static __device__ __forceinline__ void read_source_tile(const Params& params, Smem& smem,
                                                          State& state, int half, int row,
                                                          float (&source)[kOutputN]) {
    ptx::barrier_wait(&smem.source_full()[state.source.index], state.source.parity());
    const std::uint8_t* from =
        smem.src_tiles(static_cast<int>(state.source.index)) + half * kConfig.output_tile_bytes();
    with_output_type(params, [&]<typename T>() {
#pragma unroll
      for (int i = 0; i < kRowVectors; ++i) {
        unpack<T>(*reinterpret_cast<const uint4*>(from + vector_offset(row, i)),
                  source + i * kVector);
      }
    });
    // NOTE: the tile is next written by the async proxy.
    ptx::fence_async_shared();
    ptx::barrier_arrive(&smem.source_empty()[state.source.index]);
    state.source.advance();
  }

  static __device__ __forceinline__ void pack_row(const Params& params, const float (&v)[kOutputN],
                                                  uint4 (&vectors)[kRowVectors]) {
    with_output_type(params, [&]<typename T>() {
#pragma unroll
      for (int i = 0; i < kRowVectors; ++i) vectors[i] = pack<T>(v + i * kVector);
    });
  }

  static __device__ __forceinline__ void stage_row(std::uint8_t* out, int row,
                                                   const uint4 (&vectors)[kRowVectors]) {
#pragma unroll
    for (int i = 0; i < kRowVectors; ++i) {
      *reinterpret_cast<uint4*>(out + vector_offset(row, i)) = vectors[i];
    }
  }

  // A 16-byte vector of the staged tiles of a step, the same thread's in every pass over them:
  // neighbouring threads take neighbouring vectors of a row.
  static constexpr int kTileVectors = kConfig.output_tile_shape.m * kRowVectors;
  static constexpr int kVectorsPerThread =
      kTileVectors * kConfig.tiles_per_step() / kEpilogueThreads;
  struct StagedVector {
    int offset, filter;
    std::int64_t pixel;  // -1: outside
  };
  static __device__ __forceinline__ StagedVector staged_vector(const Params& params,
                                                               const auto& tile, int step, int i) {
    const int index = static_cast<int>(threadIdx.x) + i * kEpilogueThreads;
    const int half = index / kTileVectors;
    const int row = index % kTileVectors / kRowVectors;
    const int vector = index % kRowVectors;
    return {half * kConfig.output_tile_bytes() + vector_offset(row, vector),
            tile_filter(tile.filter, step, half) + vector * kVector,
            output_pixel(params, tile, row)};
  }

  // The compute op on the staged tile.
  static __device__ __forceinline__ void finish_staged(const Params& params, Smem& smem,
                                                       const auto& tile, int step, State& state,
                                                       const ComputeOp& compute) {
    std::uint8_t* out = smem.out_tiles(static_cast<int>(state.out_stage));
    if constexpr (kWithResidual) {
      ptx::barrier_wait(&smem.source_full()[state.source.index], state.source.parity());
    }
#pragma unroll 1
    for (int i = 0; i < kVectorsPerThread; ++i) {
      const StagedVector at = staged_vector(params, tile, step, i);
      float v[kVector], source[kVector] = {};
      unpack<Out>(*reinterpret_cast<const uint4*>(out + at.offset), v);
      if constexpr (kWithResidual) {
        unpack<Out>(*reinterpret_cast<const uint4*>(
                        smem.src_tiles(static_cast<int>(state.source.index)) + at.offset),
                    source);
      }
      compute_values(params, compute, at.pixel, at.pixel >= 0, at.filter, v, source);
      *reinterpret_cast<uint4*>(out + at.offset) = pack<Out>(v);
    }
    if constexpr (kWithResidual) {
      ptx::fence_async_shared();
      ptx::barrier_arrive(&smem.source_empty()[state.source.index]);
      state.source.advance();
    }
  }

  // The store op on a tile in output stage `stage`. NOTE: nobody writes the stage before all
  // threads have come to the barrier of the next step.
  static __device__ __forceinline__ void call_store_op_on_staged(const Params& params, Smem& smem,
                                                                 const auto& tile, int step,
                                                                 std::uint32_t stage,
                                                                 const StoreOp& store) {
    if constexpr (!std::is_same_v<StoreOp, NoStoreOp>) {
      const std::uint8_t* const out = smem.out_tiles(static_cast<int>(stage));
#pragma unroll 1
      for (int i = 0; i < kVectorsPerThread; ++i) {
        const StagedVector at = staged_vector(params, tile, step, i);
        float v[kVector];
        unpack<Out>(*reinterpret_cast<const uint4*>(out + at.offset), v);
        call_store_op(params, store, at.pixel, at.pixel >= 0, at.filter, v);
      }
    }
  }

  // Without TMA: this thread reads its row of the residual, and writes its row of the output.
  template <int kCount>
  static __device__ __forceinline__ void read_source_row(const Params& params, std::int64_t pixel,
                                                         int filter, float (&source)[kCount]) {
    with_output_type(params, [&]<typename T>() {
      const T* from = static_cast<const T*>(params.source_pointer) + pixel * params.filters;
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        source[i] = to_float(from[min(filter + i, params.filters - 1)]);
    });
  }

  template <int kCount>
  static __device__ __forceinline__ void write_row(const Params& params, std::int64_t pixel,
                                                   int filter, const float (&v)[kCount]) {
    if constexpr (!StoreOp::kReplacesStore) {
      with_output_type(params, [&]<typename T>() {
        T* to = static_cast<T*>(params.output_pointer) + pixel * params.filters + filter;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          if (filter + i < params.filters) to[i] = from_float<T>(v[i]);
        }
      });
    }
  }
};

}  // namespace convoy::sm100
