// SPDX-License-Identifier: Apache-2.0
//
// The epilogue of swapped tiles, whose accumulators are turned round on their way to the output.
// Rows of the accumulators are filters, columns pixels: value 4j + 2h + e of a lane is filter
// lane / 4 + 8h of the warp's 16 and pixel 8j + 2·(lane % 4) + e. A warpgroup stores pieces of 32
// (or 16) pixels x its block's 64 filters, which its warps write together.
#pragma once

#include "kernels/sm90/epilogue.cuh"

namespace convoy::sm90 {

/// Piece q of a warpgroup: pieces_per_block() for each of its blocks of 64 filters, of which
/// `first_block` is the first.
template <Config kConfig>
__device__ __forceinline__ Piece swapped_piece(const Tile& tile, int first_block, int q) {
  const int block = first_block + q / kConfig.pieces_per_block();
  return {tile.filter + block * 64, tile.pixel + q % kConfig.pieces_per_block() * kConfig.piece_m(),
          0};
}

/// Bias of a lane's filters, two of each block, in bits.
template <Config kConfig>
__device__ __forceinline__ void load_swapped_bias(const Params& p, const Tile& tile,
                                                  int first_block, int warp_in_warpgroup,
                                                  std::uint32_t (&bits)[2 * kConfig.blocks()]) {
  const int first = tile.filter + first_block * 64 + warp_in_warpgroup * 16 +
                    static_cast<int>(ptx::lane_id()) / 4;
  load_bias_bits<kConfig>(p, tile, bits, [&](int i) { return first + i / 2 * 64 + i % 2 * 8; });
}

/// Values of a piece: the epilogue, then to the staging buffer, where the residual may lie.
template <Config kConfig, EpiloguePath kPath>
__device__ __forceinline__ void finish_swapped_piece(const Params& p, int warp_in_warpgroup,
                                                     float (&v)[kConfig.piece_m() / 2], float scale,
                                                     float bias_low, float bias_high,
                                                     std::uint8_t* buffer,
                                                     ptx::Barrier* source_full,
                                                     std::uint32_t parity, bool has_residual) {
  using Out = Element<kConfig.out>;
  constexpr int kValues = kConfig.piece_m() / 2;
  const int lane = static_cast<int>(ptx::lane_id());
  // Row lane % 8 of the matrices that lane gives addresses for: pixels; 8 filters are a unit.
  const int row = lane / 16 * 8 + lane % 8;
  const int unit = warp_in_warpgroup * 2 + lane / 8 % 2;
  const std::uint32_t address = ptx::shared_address(buffer);

  std::uint32_t words[kValues / 2] = {};
  if (!is_in_place<kPath> && has_residual) {
    ptx::barrier_wait(source_full, parity);
#pragma unroll
    for (int j = 0; j < kValues / 8; ++j) {
      ptx::load_matrix_x4_transposed(staged_address<kConfig>(address, row + 16 * j, unit),
                                     words[4 * j], words[4 * j + 1], words[4 * j + 2],
                                     words[4 * j + 3]);
    }
    __syncwarp();
  }
  const auto source = [&](int i) {
    const float2 pair = unpack2<Out>(words[i / 2]);
    return i % 2 == 0 ? pair.x : pair.y;
  };
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    v[i] = fmaf(v[i], scale, i / 2 % 2 == 0 ? bias_low : bias_high);
  }
  if constexpr (kPath == EpiloguePath::curved) {
    activate_curve(p.activation, [&](const auto& f) {
#pragma unroll
      for (float& x : v) x = f(x);
    });
  } else if constexpr (!is_in_place<kPath>) {
    apply_fused_epilogue<kPath>(p, has_residual, v, source);
  }
  const RoundedPairs<Out, kPath> pairs(p);
#pragma unroll
  for (int j = 0; j < kValues / 8; ++j) {
    ptx::store_matrix_x4_transposed(
        staged_address<kConfig>(address, row + 16 * j, unit), pairs(v[8 * j], v[8 * j + 1]),
        pairs(v[8 * j + 2], v[8 * j + 3]), pairs(v[8 * j + 4], v[8 * j + 5]),
        pairs(v[8 * j + 6], v[8 * j + 7]));
  }
}

/// A warpgroup's part of a swapped tile from accumulators to the output. What its buffers hold is
/// one batch; a tile of two batches stores the first before the second takes its place.
template <Config kConfig, EpiloguePath kPath>
__device__ __forceinline__ void store_swapped_tile(
    const Params& p, const Tile& tile, int warpgroup, int first_block, int warp_in_warpgroup,
    float (&accumulators)[kConfig.blocks()][kConfig.tile_columns() / 2],
    const float (&bias)[2 * kConfig.blocks()], Staging& staging) {
  constexpr int kPieces = kConfig.pieces();
  constexpr int kBatch = kConfig.staging_buffers();
  constexpr int kPerBlock = kConfig.pieces_per_block();
  constexpr int kValues = kConfig.piece_m() / 2;
  const bool has_residual = tile_has_residual<kPath>(p);
  const bool storing = warp_in_warpgroup == 0 && ptx::lane_id() == 0;
  const std::uint32_t pieces_barrier = kPiecesBarrier + warpgroup;
  const auto piece = [&](int q) { return swapped_piece<kConfig>(tile, first_block, q); };
  // What is left to do for a piece.
  float scale = p.epilogue.scale;
  float rest[2 * kConfig.blocks()];
#pragma unroll
  for (int i = 0; i < 2 * kConfig.blocks(); ++i) rest[i] = bias[i];
  // NOTE: the activation of all pieces at once, and then nothing: x + -0 is x. A branch a piece
  // costs layers without it 1 %.
  if (kPath == EpiloguePath::plain && p.epilogue.activation != Activation::none) {
    const float factor = in_place_factor<kPath>(p);
    scale *= factor;
#pragma unroll
    for (int b = 0; b < kConfig.blocks(); ++b) {
#pragma unroll
      for (int i = 0; i < kConfig.tile_columns() / 2; ++i) {
        accumulators[b][i] = fmaf(accumulators[b][i], scale, bias[2 * b + i / 2 % 2] * factor);
      }
    }
    activate_in_place<kPath>(p, [&](const auto& f) {
#pragma unroll
      for (auto& row : accumulators) {
#pragma unroll
        for (float& x : row) x = f(x);
      }
    });
    scale = 1.0f;
#pragma unroll
    for (float& x : rest) x = -0.0f;
  }
  // The last tile's stores must have been read; with a residual they were before it was fetched.
  if (storing) ptx::tma_store_wait_read<0>();
  ptx::named_barrier_sync(pieces_barrier, 128);
  const auto finish = [&](int q, float(&v)[kValues], float low, float high) {
    finish_swapped_piece<kConfig, kPath>(p, warp_in_warpgroup, v, scale, low, high,
                                         staging.buffers + q % kBatch * kConfig.piece_bytes(),
                                         &staging.source_full[q % kBatch],
                                         source_parity<kConfig>(staging, q), has_residual);
  };
  const auto store_batch = [&](int first) {
    ptx::fence_async_shared();
    ptx::named_barrier_sync(pieces_barrier, 128);
    if (!storing) return;
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (first + k < kPieces) store_staged<kConfig>(p, tile, staging, k, piece(first + k));
    }
    ptx::tma_store_commit();
  };
  // Its buffers take the next batch, from piece `next` on.
  const auto reuse_buffers = [&](int next) {
    if (storing) {
      ptx::tma_store_wait_read<0>();
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (has_residual && next + k < kPieces) {
          load_source<kConfig>(p, tile, staging, k, piece(next + k));
        }
      }
    }
    ptx::named_barrier_sync(pieces_barrier, 128);
  };
  // Each turn takes its pieces from the front: see store_turns().
  constexpr int kTurns = kPath == EpiloguePath::curved ? 2 : 1;
  constexpr int kOfTurn = (kPieces + kTurns - 1) / kTurns;
#pragma unroll 1
  for (int start = 0; start < kPieces; start += kOfTurn) {
#pragma unroll
    for (int k = 0; k < kOfTurn; ++k) {
      const int q = start + k;
      if (q >= kPieces) break;
      if (kBatch < kPieces && q == kBatch) {
        store_batch(0);
        reuse_buffers(q);
      }
      float v[kValues];
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        v[i] = accumulators[k / kPerBlock][k % kPerBlock * kValues + i];
      }
      float low = rest[0], high = rest[1];
#pragma unroll
      for (int b = 1; b < kConfig.blocks(); ++b) {
        if (q < b * kPerBlock) continue;
        low = rest[2 * b];
        high = rest[2 * b + 1];
      }
      finish(q, v, low, high);
    }
    if constexpr (kTurns > 1) move_up<kOfTurn * kValues>(accumulators);
  }
  store_batch(kBatch < kPieces ? kBatch : 0);
  if (has_residual) ++staging.tiles;
}

}  // namespace convoy::sm90
