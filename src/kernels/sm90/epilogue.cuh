// SPDX-License-Identifier: Apache-2.0
//
// The epilogue of the Hopper convolution: each consumer warp turns pieces of 16 pixels x 32 or 64
// filters from accumulators into the output, through staging buffers of its own, without any block
// barrier.
#pragma once

#include "kernels/common/epilogue.cuh"
#include "kernels/common/for_each_number.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/sm90/activation.cuh"
#include "kernels/sm90/config.hpp"
#include "kernels/sm90/piece.cuh"
#include "kernels/sm90/statistics.cuh"
#include "kernels/sm90/tile.cuh"

namespace convoy::sm90 {

/// Bias elements from their bits. NOTE: the loads of a tile go out together before the main loop,
/// and nothing looks at what they bring until after it: a conversion beside each load would wait
/// for memory once a load.
template <int kCount>
__device__ __forceinline__ void bias_values(const EpilogueParams& params,
                                            const std::uint32_t (&bits)[kCount],
                                            float (&bias)[kCount]) {
  const auto each = [&](const auto& value) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) bias[i] = value(bits[i]);
  };
  if (params.bias_dtype == DType::bf16) {
    each([](std::uint32_t x) { return __uint_as_float(x << 16); });
  } else if (params.bias_dtype == DType::fp16) {
    each([](std::uint32_t x) {
      return __half2float(__ushort_as_half(static_cast<unsigned short>(x)));
    });
  } else {
    each([](std::uint32_t x) { return __uint_as_float(x); });
  }
}

/// Bits of the bias of a group's filters filter(0) ...; -0 in fp32 where there is none, which
/// leaves every sum as it is, zeros of either sign too.
template <Config kConfig, int kCount, typename Filter>
__device__ __forceinline__ void load_bias_bits(const Params& p, const Tile& tile,
                                               std::uint32_t (&bits)[kCount],
                                               const Filter& filter) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) bits[i] = 0x80000000u;
  if (p.epilogue.bias == nullptr) return;
  const int group = first_filter_of_group<kConfig>(p, tile);
  const auto load = [&](const auto* bias) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (filter(i) < p.filters) bits[i] = __ldg(bias + group + filter(i));
    }
  };
  if (p.epilogue.bias_dtype == DType::fp32) {
    load(static_cast<const std::uint32_t*>(p.epilogue.bias));
  } else {
    load(static_cast<const std::uint16_t*>(p.epilogue.bias));
  }
}

/// Bias of a tile as a warp keeps it: lane i holds filters 32·j + i.
template <Config kConfig>
inline constexpr int kBiasWords = (kConfig.block_n + 31) / 32;
template <Config kConfig>
__device__ __forceinline__ void load_tile_bias(const Params& p, const Tile& tile,
                                               std::uint32_t (&bits)[kBiasWords<kConfig>]) {
  const int first = tile.filter + static_cast<int>(ptx::lane_id());
  load_bias_bits<kConfig>(p, tile, bits, [&](int j) { return first + 32 * j; });
}

/// Of the bias that lane i holds for filter i of 32, the element that goes with value i of
/// this lane: value 4j + 2h + e is row lane / 4 + 8h and filter 8j + 2·(lane % 4) + e.
__device__ __forceinline__ float piece_bias(float lane_bias, int i) {
  return __shfl_sync(0xffffffffu, lane_bias,
                     i / 4 * 8 + 2 * (static_cast<int>(ptx::lane_id()) % 4) + i % 2);
}

/// Ops on a staged piece: 16-byte vectors of a row, lane by lane.
template <Config kConfig, typename ComputeOp, typename StoreOp>
__device__ __forceinline__ void finish_staged(const Params& p, const Tile& tile, const Piece& piece,
                                              std::uint8_t* buffer, int lane,
                                              const ComputeOp& compute_op,
                                              const StoreOp& store_op) {
  using Out = Element<kConfig.out>;
  constexpr int kUnits = kConfig.piece_row_bytes() / 16;
  constexpr int kWidth = 16 / static_cast<int>(sizeof(Out));
#pragma unroll 1
  for (int i = lane; i < 16 * kUnits; i += 32) {
    const int of_group = piece.filter + i % kUnits * kWidth;
    const std::int64_t m = output_pixel<kConfig>(p, tile, piece, i / kUnits);
    if (m < 0 || of_group >= p.filters) continue;
    const int n = first_filter_of_group<kConfig>(p, tile) + of_group;
    uint4* const unit =
        reinterpret_cast<uint4*>(buffer + staged_address<kConfig>(0, i / kUnits, i % kUnits));
    alignas(16) Out values[kWidth];
    *reinterpret_cast<uint4*>(values) = *unit;
    if constexpr (ComputeOp::kEnabled && !ComputeOp::kOnRegisters) {
      float x[kWidth];
#pragma unroll
      for (int e = 0; e < kWidth; ++e) x[e] = to_float(values[e]);
      compute_op(m, n, x);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) values[e] = from_float<Out>(x[e]);
      *unit = *reinterpret_cast<const uint4*>(values);
    }
    if constexpr (StoreOp::kEnabled) store_op(m, n, values);
  }
}

/// Drop the first kCount of a lane's values: the next come to the front.
template <int kCount, int kRows, int kColumns>
__device__ __forceinline__ void move_up(float (&values)[kRows][kColumns]) {
#pragma unroll
  for (int i = kCount; i < kRows * kColumns; ++i) {
    values[(i - kCount) / kColumns][(i - kCount) % kColumns] = values[i / kColumns][i % kColumns];
  }
}

// ---- One piece ------------------------------------------------------------------------------

/// A piece in groups of 16 filters: what a lane holds of one, and one stmatrix stores.
inline constexpr int kGroupValues = 8;
template <Config kConfig>
inline constexpr int kPieceGroups = 2 * kConfig.piece_halves();

/// Values of the residual as a lane holds them; pairs of 16-bit values stay packed until used.
template <Config kConfig, int kValues>
struct SourceValues {
  using Out = Element<kConfig.out>;
  static constexpr bool kPacked = sizeof(Out) == 2;
  static constexpr int kGroups = kValues / kGroupValues;
  // NOTE: without a value where a residual may be there or not, ptxas spills 1,200 bytes.
  std::uint32_t words[kValues / (kPacked ? 2 : 1)] = {};

  __device__ __forceinline__ void read(const std::uint8_t* buffer, const PieceLane<kConfig>& at,
                                       int first_group) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int group = first_group + g;
      if constexpr (kPacked) {
        ptx::load_matrix_x4(staged_address<kConfig>(ptx::shared_address(buffer), at.matrix_row,
                                                    at.matrix_unit + 2 * group),
                            words[4 * g], words[4 * g + 1], words[4 * g + 2], words[4 * g + 3]);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint2 pair =
              *reinterpret_cast<const uint2*>(buffer + at.pair_offset(4 * group + i));
          words[8 * g + 2 * i] = pair.x;
          words[8 * g + 2 * i + 1] = pair.y;
        }
      }
    }
    // Of an odd tile's piece the last 8 filters.
    if constexpr (kValues % kGroupValues != 0) {
      ptx::load_matrix_x2(staged_address<kConfig>(ptx::shared_address(buffer), at.matrix_row,
                                                  2 * (first_group + kGroups)),
                          words[4 * kGroups], words[4 * kGroups + 1]);
    }
  }
  __device__ __forceinline__ float operator()(int i) const {
    if constexpr (kPacked) {
      const float2 pair = unpack2<Out>(words[i / 2]);
      return i % 2 == 0 ? pair.x : pair.y;
    } else {
      return __uint_as_float(words[i]);
    }
  }
};

/// Write groups to a piece's staging buffer, rounded to the output type; 16-bit ones by `pairs`.
template <Config kConfig, int kValues, typename Pairs>
__device__ __forceinline__ void stage_values(const float (&v)[kValues], std::uint8_t* buffer,
                                             const PieceLane<kConfig>& at, int first_group,
                                             const Pairs& pairs) {
  using Out = Element<kConfig.out>;
#pragma unroll
  for (int g = 0; g < kValues / kGroupValues; ++g) {
    const int group = first_group + g, i = g * kGroupValues;
    if constexpr (sizeof(Out) == 2) {
      ptx::store_matrix_x4(staged_address<kConfig>(ptx::shared_address(buffer), at.matrix_row,
                                                   at.matrix_unit + 2 * group),
                           pairs(v[i], v[i + 1]), pairs(v[i + 2], v[i + 3]),
                           pairs(v[i + 4], v[i + 5]), pairs(v[i + 6], v[i + 7]));
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        *reinterpret_cast<float2*>(buffer + at.pair_offset(4 * group + j)) =
            make_float2(v[i + 2 * j], v[i + 2 * j + 1]);
      }
    }
  }
  if constexpr (kValues % kGroupValues != 0) {
    constexpr int i = kValues / kGroupValues * kGroupValues;
    ptx::store_matrix_x2(staged_address<kConfig>(ptx::shared_address(buffer), at.matrix_row,
                                                 2 * (first_group + kValues / kGroupValues)),
                         pairs(v[i], v[i + 1]), pairs(v[i + 2], v[i + 3]));
  }
}

/// Groups of a piece that finish_piece takes at a time, in a loop.
// NOTE: EpiloguePath::general has every activation. A small tile is most often a CTA's only one,
// whose code comes cold: a group at a time is up to a tenth of the layer. Large tiles, which store
// beside others' multiplications, lose up to 6 % by two (docs/lab/2026-11-29-turns.md).
template <Config kConfig, EpiloguePath kPath>
constexpr int groups_at_once() {
  if (kPath != EpiloguePath::general) return kPieceGroups<kConfig>;
  if (kConfig.splits_k() || kConfig.accumulators() <= 32) return 1;
  return kConfig.accumulators() <= 64 ? 2 : kPieceGroups<kConfig>;
}

/// One piece to the output: of EpiloguePath::general, or of a split tile. The whole warp calls.
/// `values(g, v)` gives a lane's of groups_at_once() groups from group g on. `lane_bias`: of filter
/// 32·h + t of the piece in lane t. The residual, where TMA brings it, arrives on the buffer's
/// source barrier with `parity`; without one the buffer must be free.
template <Config kConfig, EpiloguePath kPath, typename Values, typename ComputeOp, typename StoreOp>
__device__ __forceinline__ void finish_piece(const Params& p, const Tile& tile, const Piece& piece,
                                             const Values& values,
                                             const float (&lane_bias)[kConfig.piece_halves()],
                                             const Staging& staging, int slot, std::uint32_t parity,
                                             const ComputeOp& compute_op, const StoreOp& store_op) {
  using Out = Element<kConfig.out>;
  constexpr bool kGeneral = kPath == EpiloguePath::general;
  static_assert(kPath != EpiloguePath::plain, "split tiles have no plain path (make_instance)");
  constexpr int kAtOnce = groups_at_once<kConfig, kPath>();
  constexpr int kValues = kAtOnce * kGroupValues;
  const PieceLane<kConfig> at;
  const bool direct = kGeneral && p.direct_store;
  const RoundedPairs<Out, kPath> pairs(p);
  const bool has_residual = p.epilogue.has_residual;
  std::uint8_t* const buffer = staging.buffers + slot * kConfig.piece_bytes();
  if (has_residual) {
    if (direct) {
      fill_source<kConfig>(p, tile, piece, buffer, at.lane);
      __syncwarp();
    } else {
      ptx::barrier_wait(&staging.source_full[slot], parity);
    }
  }
#pragma unroll 1
  for (int g = 0; g < kPieceGroups<kConfig>; g += kAtOnce) {
    float v[kValues];
    values(g, v);
    SourceValues<kConfig, kValues> source;
    if (has_residual) {
      source.read(buffer, at, g);
      __syncwarp();
    }
    float bias[kValues / 2];
#pragma unroll
    for (int i = 0; i < kValues / 2; ++i) {
      const int group = g + i / 4;
      const float of_half = group < 2 ? lane_bias[0] : lane_bias[kConfig.piece_halves() - 1];
      bias[i] = piece_bias(of_half, group % 2 * 8 + i % 4 / 2 * 4 + i % 2);
    }
    const auto bias_at = [&](int i) { return bias[i / 4 * 2 + i % 2]; };
    if constexpr (kGeneral) {
      apply_epilogue(RoundTo<Out>{}, p.epilogue, v, bias_at, source);
    } else {
#pragma unroll
      for (int i = 0; i < kValues; ++i) v[i] = fmaf(v[i], p.epilogue.scale, bias_at(i));
      apply_fused_epilogue<kPath>(p, has_residual, v, source);
    }
    if constexpr (ComputeOp::kEnabled && ComputeOp::kOnRegisters) {
#pragma unroll
      for (int i = 0; i < kValues / 2; ++i) {
        const std::int64_t m = output_pixel<kConfig>(p, tile, piece, at.row + 8 * (i % 2));
        const int n = piece.filter + 16 * g + 2 * (at.lane % 4) + i / 2 * 8;
        float pair[2] = {v[2 * i], v[2 * i + 1]};
        if (m >= 0 && n < p.filters) {
          compute_op(m, first_filter_of_group<kConfig>(p, tile) + n, pair);
        }
        v[2 * i] = pair[0];
        v[2 * i + 1] = pair[1];
      }
    }
    stage_values<kConfig>(v, buffer, at, g, pairs);
  }
  if constexpr ((ComputeOp::kEnabled && !ComputeOp::kOnRegisters) || StoreOp::kEnabled) {
    __syncwarp();
    finish_staged<kConfig>(p, tile, piece, buffer, at.lane, compute_op, store_op);
  }
  if (direct && !StoreOp::kReplacesStore) {
    __syncwarp();
    store_words<kConfig>(p, tile, piece, buffer, at.lane);
  }
  ptx::fence_async_shared();
  __syncwarp();
  if (!direct && !StoreOp::kReplacesStore && at.lane == 0) {
    store_staged<kConfig>(p, tile, staging, slot, piece);
    ptx::tma_store_commit();
  }
}

// ---- One tile -------------------------------------------------------------------------------

/// Turns of the loop in which a path's code is there once: each takes its share of a lane's values
/// from the front, and the others move up (registers have no run-time index).
// NOTE: a GELU is a dozen instructions a value: half of that code for half a move a value. The
// short paths, which hot layers take, have one turn.
template <Config kConfig, EpiloguePath kPath>
constexpr int store_turns() {
  if (kPath != EpiloguePath::curved) return 1;
  return kConfig.pieces() % 2 == 0 ? 2 : kConfig.pieces() % 3 == 0 ? 3 : 1;
}

/// All paths but EpiloguePath::general: a consumer warp's part of a tile from accumulators to the
/// output. Pieces are written in batches, one fence and one group of stores each, so that their
/// latencies overlap; while one batch is stored the next is written to the other half of the
/// buffers.
template <Config kConfig, EpiloguePath kPath>
__device__ __forceinline__ void store_tile(
    const Params& p, const Tile& tile, int first_block, int warp_in_warpgroup,
    float (&accumulators)[kConfig.blocks()][kConfig.block_n / 2],
    const float (&lane_bias)[kBiasWords<kConfig>], Staging& staging,
    WarpStatistics<kConfig, kPath>& statistics) {
  constexpr int kBuffers = kConfig.staging_buffers();
  constexpr int kPieces = kConfig.pieces();
  constexpr int kPerBlock = kConfig.pieces_per_block();
  constexpr int kColumns = kConfig.block_n / 2;
  constexpr int kTurns = store_turns<kConfig, kPath>();
  constexpr int kOfTurn = kPieces / kTurns;       // pieces
  constexpr int kValues = kConfig.piece_n() / 2;  // of a piece, in a lane
  // A residual wants its buffers back early, to be fetched ahead.
  constexpr int kBatch = !is_in_place<kPath>   ? (kBuffers >= 6 ? 2 : 1)
                         : kBuffers >= kPieces ? kOfTurn
                                               : (kBuffers + 1) / 2;
  const PieceLane<kConfig> at;
  const RoundedPairs<Element<kConfig.out>, kPath> pairs(p);
  const bool has_residual = tile_has_residual<kPath>(p);
  Piece blocks[kConfig.blocks()];
#pragma unroll
  for (int b = 0; b < kConfig.blocks(); ++b) {
    blocks[b] = piece_at<kConfig>(p, tile, first_block + b, warp_in_warpgroup, 0);
  }
  const auto piece = [&](int q) {
    if constexpr (kTurns > 1) {
      return piece_at<kConfig>(p, tile, first_block + q / kPerBlock, warp_in_warpgroup,
                               q % kPerBlock);
    } else {
      Piece result = blocks[q / kPerBlock];
      result.filter += q % kPerBlock * kConfig.piece_n();
      return result;
    }
  };

  if (p.steps_in_place) {
    const float factor = in_place_factor<kPath>(p);
    const float scale = p.epilogue.scale * factor;
#pragma unroll
    for (int j = 0; j < kBiasWords<kConfig>; ++j) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (32 * j + i / 2 * 8 >= kConfig.block_n) break;
        const int first = i / 2 * 4 + i % 2;  // and the same filter 8 rows below
        const float bias = piece_bias(lane_bias[j] * factor, first);
#pragma unroll
        for (int b = 0; b < kConfig.blocks(); ++b) {
          float* const v = &accumulators[b][16 * j];
          v[first] = fmaf(v[first], scale, bias);
          v[first + 2] = fmaf(v[first + 2], scale, bias);
        }
      }
    }
  }

#pragma unroll 1
  for (int turn = 0; turn < kTurns; ++turn) {
    const int start = turn * kOfTurn;
    for_each_number<(kOfTurn + kBatch - 1) / kBatch>([&](auto batch) {
      constexpr int of_turn = batch * kBatch;
      constexpr int count = of_turn + kBatch < kOfTurn ? kBatch : kOfTurn - of_turn;
      const int first = start + of_turn, end = first + count;
      // The buffers' last stores must have been read: all of the last tile's (long ago), later
      // those of the batch that used this batch's buffers.
      if (!has_residual && (first == 0 || end > kBuffers)) {
        if (at.lane == 0) {
          if (first == 0) {
            ptx::tma_store_wait_read<0>();
          } else {
            ptx::tma_store_wait_read<kBuffers / kBatch - 1>();
          }
        }
        __syncwarp();
      }
      // NOTE: the activation of a batch together. Of the tile together it is as fast where the
      // buffers hold one; where they do not, stores wait for each other. A branch a piece costs
      // layers without an activation 1 %.
      const auto value = [&](int i) -> float& {
        return accumulators[(of_turn * kValues + i) / kColumns][(of_turn * kValues + i) % kColumns];
      };
      if constexpr (is_in_place<kPath>) {
        activate_in_place<kPath>(p, [&](const auto& f) {
#pragma unroll
          for (int i = 0; i < count * kValues; ++i) value(i) = f(value(i));
        });
      }
#pragma unroll
      for (int k = 0; k < count; ++k) {
        const int q = first + k;
        std::uint8_t* const buffer = staging.buffers + q % kBuffers * kConfig.piece_bytes();
        float v[kValues];
#pragma unroll
        for (int i = 0; i < kValues; ++i) v[i] = value(k * kValues + i);
        if constexpr (!is_in_place<kPath>) {
          SourceValues<kConfig, kValues> source;
          if (has_residual) {
            ptx::barrier_wait(&staging.source_full[q % kBuffers],
                              source_parity<kConfig>(staging, q));
            source.read(buffer, at, 0);
            __syncwarp();
          }
          apply_fused_epilogue<kPath>(p, has_residual, v, source);
        }
        stage_values<kConfig>(v, buffer, at, 0, pairs);
        if constexpr (kPath == EpiloguePath::statistics) {
          const Piece& block = blocks[q / kPerBlock];
          statistics.take(p, block.row, block.pixel, q % kPerBlock, v, buffer, staging.shifts);
        }
      }
      ptx::fence_async_shared();
      __syncwarp();
      if (at.lane == 0) {
#pragma unroll
        for (int k = 0; k < count; ++k) {
          store_staged<kConfig>(p, tile, staging, (first + k) % kBuffers, piece(first + k));
        }
        ptx::tma_store_commit();
        // Refill the buffers of the batch before this one.
        const int before = first - kBatch;  // Paths with a residual have one turn.
        if (has_residual && before >= 0 && before + kBuffers < kPieces) {
          ptx::tma_store_wait_read<1>();
#pragma unroll
          for (int q = before; q < first; ++q) {
            if (q + kBuffers < kPieces) {
              load_source<kConfig>(p, tile, staging, q % kBuffers, piece(q + kBuffers));
            }
          }
        }
      }
    });
    if constexpr (kTurns > 1) move_up<kOfTurn * kValues>(accumulators);
  }
  statistics.end_tile();
  if (has_residual) ++staging.tiles;
}

}  // namespace convoy::sm90
