// SPDX-License-Identifier: Apache-2.0
//
// The epilogue of conv_fprop_sm90: each consumer warp turns pieces of 16 pixels x 32 filters from
// accumulators into the output, through staging buffers of its own, without any block barrier.
#pragma once

#include "kernels/common/epilogue.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/sm90/tile_sm90.cuh"

namespace convoy::sm90 {

/// Staging buffers of a consumer warp: a ring of 16 x 32 pieces that are (with a residual) filled
/// by TMA, overwritten in place by the result, and stored by TMA.
struct WarpStaging {
  std::uint8_t* buffers;
  ptx::Barrier* source_full;
  std::uint32_t sequence = 0;  // pieces used so far
};

/// Coordinates of a piece: 16 pixels (a run of a linear tile, or 2 rows of 8 of a patched one).
struct Piece {
  int filter;  // first filter
  int pixel;   // linear: first pixel in the frame; patched: column
  int row;     // patched: row; linear: 0
};

/// Output pixel (n·Z·P·Q order) of row `i` of a piece, or -1 outside the output.
__device__ __forceinline__ std::int64_t output_pixel(const FpropParams& p, const Tile& tile,
                                                     const Piece& piece, int i) {
  if (!is_patched(p.loader)) {
    const std::int64_t pixel = static_cast<std::int64_t>(piece.pixel) + i;
    return pixel < p.frame_pixels ? tile.frame * p.frame_pixels + pixel : -1;
  }
  const int row = piece.row + i / 8;
  const int column = piece.pixel + i % 8;
  if (row >= p.out[1] || column >= p.out[2]) return -1;
  const int scale = p.phases == 4 ? 2 : 1;
  const std::int64_t rows = static_cast<std::int64_t>(p.out[1]) * scale;
  return (tile.frame * rows + row * scale + tile.phase_row) * (p.out[2] * scale) + column * scale +
         tile.phase_column;
}

/// Shared-memory address of 16-byte unit `unit` of row `row` of a piece: the 64- or 128-byte
/// swizzle of the output map.
template <typename Config>
__device__ __forceinline__ std::uint32_t staged_address(std::uint32_t buffer, int row, int unit) {
  const int swizzled = Config::kChunkRowBytes == 64 ? unit ^ ((row >> 1) & 3) : unit ^ (row & 7);
  return buffer + row * Config::kChunkRowBytes + swizzled * 16;
}

/// Start the TMA load of a piece of the residual into staging buffer `sequence`.
template <typename Config>
__device__ __forceinline__ void load_source(const FpropParams& p, const Tile& tile,
                                            const WarpStaging& staging, std::uint32_t sequence,
                                            const Piece& piece) {
  const std::uint32_t buffer = sequence % Config::kStagingBuffers;
  ptx::barrier_arrive_expect(&staging.source_full[buffer], Config::kChunkBytes);
  ptx::tma_load_4d(staging.buffers + buffer * Config::kChunkBytes, &p.source_map[tile.phase],
                   &staging.source_full[buffer], ptx::kL2EvictFirst, piece.filter, piece.pixel,
                   piece.row, tile.frame);
}

/// Bias of a tile as a warp keeps it: lane i holds filters 32·chunk + i; zero beyond K and where
/// there is no bias.
template <typename Config>
__device__ __forceinline__ void load_tile_bias(const FpropParams& p, const Tile& tile,
                                               float (&bias)[Config::kChunksPerBlock]) {
#pragma unroll
  for (int chunk = 0; chunk < Config::kChunksPerBlock; ++chunk) {
    const int n = tile.filter + chunk * Config::kChunkN + static_cast<int>(ptx::lane_id());
    bias[chunk] = 0.0f;
    if (p.epilogue.bias != nullptr && n < p.filters) bias[chunk] = load_bias(p.epilogue, n);
  }
}

/// Whether the result is just scale·conv + bias, rounded once and stored by TMA.
__device__ __forceinline__ bool is_plain_epilogue(const FpropParams& p) {
  return !p.direct_store && !p.epilogue.round_each_step && !p.epilogue.has_residual &&
         p.epilogue.activation == Activation::none;
}

/// One piece from fp32 values to the output. Thread t of the warp holds, in v[4j + 2h + e], row
/// t / 4 + 8h and filter 8j + 2·(t % 4) + e. The whole warp calls. `lane_bias`: of filter t of the
/// piece. `kPlain`: see is_plain_epilogue; that code is short enough to be unrolled.
template <typename Config, bool kPlain, typename ComputeOp, typename StoreOp>
__device__ __forceinline__ void store_piece(const FpropParams& p, const Tile& tile,
                                            const Piece& piece, float (&v)[16], float lane_bias,
                                            WarpStaging& staging, const ComputeOp& compute_op,
                                            const StoreOp& store_op) {
  using Out = typename Config::Out;
  constexpr int kUnits = Config::kChunkRowBytes / 16;
  constexpr int kWidth = 16 / static_cast<int>(sizeof(Out));
  constexpr bool kPacked = sizeof(Out) == 2;
  const int lane = static_cast<int>(ptx::lane_id());
  const int row0 = lane / 4;
  const int first_filter = piece.filter + 2 * (lane % 4);
  const std::uint32_t buffer_index = staging.sequence % Config::kStagingBuffers;
  std::uint8_t* const buffer = staging.buffers + buffer_index * Config::kChunkBytes;
  const std::uint32_t address = ptx::shared_address(buffer);
  // Row and first unit of the 8x8 matrix this lane addresses in stmatrix / ldmatrix.
  const int matrix_row = (lane / 8 % 2) * 8 + lane % 8;
  const int matrix_unit = lane / 16;
  const bool direct = !kPlain && p.direct_store;

  // Bias of filters 8j + e of this thread.
  float bias[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    bias[i] = __shfl_sync(0xffffffffu, lane_bias, i / 2 * 8 + 2 * (lane % 4) + i % 2);
  }

  // Read the residual, or wait until the buffer's previous store has left it. Pairs of 16-bit
  // values stay packed until they are used.
  std::uint32_t source[kPacked ? 8 : 16] = {};
  if (!kPlain && p.epilogue.has_residual) {
    if (direct) {
      // No TMA: fill the buffer by hand.
#pragma unroll 1
      for (int i = lane; i < 16 * kUnits; i += 32) {
        const std::int64_t m = output_pixel(p, tile, piece, i / kUnits);
        const int n = piece.filter + i % kUnits * kWidth;
        alignas(16) Out values[kWidth] = {};
#pragma unroll
        for (int e = 0; e < kWidth; ++e) {
          if (m >= 0 && n + e < p.filters) {
            values[e] = static_cast<const Out*>(p.source_pointer)[m * p.filters + n + e];
          }
        }
        *reinterpret_cast<uint4*>(buffer + staged_address<Config>(0, i / kUnits, i % kUnits)) =
            *reinterpret_cast<const uint4*>(values);
      }
      __syncwarp();
    } else {
      ptx::barrier_wait(&staging.source_full[buffer_index],
                        staging.sequence / Config::kStagingBuffers % 2);
    }
    if constexpr (kPacked) {
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        ptx::load_matrix_x4(staged_address<Config>(address, matrix_row, matrix_unit + j),
                            source[2 * j], source[2 * j + 1], source[2 * j + 2], source[2 * j + 3]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint2 pair = *reinterpret_cast<const uint2*>(
            buffer + staged_address<Config>(0, row0 + 8 * (i % 2), i / 2 * 2 + lane % 4 / 2) +
            lane % 2 * 8);
        source[2 * i] = pair.x;
        source[2 * i + 1] = pair.y;
      }
    }
    __syncwarp();
  } else {
    if (lane == 0) ptx::tma_store_wait_read<Config::kStagingBuffers - 1>();
    __syncwarp();
  }

  const auto source_at = [&](int i) {
    if constexpr (kPacked) {
      const float2 pair = unpack2<Out>(source[i / 2]);
      return i % 2 == 0 ? pair.x : pair.y;
    } else {
      return __uint_as_float(source[i]);
    }
  };
  if constexpr (kPlain) {
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = fmaf(v[i], p.epilogue.scale, bias[i / 4 * 2 + i % 2]);
  } else {
    apply_epilogue<Out>(
        p.epilogue, v, [&](int i) { return bias[i / 4 * 2 + i % 2]; }, source_at);
  }
  if constexpr (ComputeOp::kEnabled && ComputeOp::kOnRegisters) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::int64_t m = output_pixel(p, tile, piece, row0 + 8 * (i % 2));
      const int n = first_filter + i / 2 * 8;
      float pair[2] = {v[2 * i], v[2 * i + 1]};
      if (m >= 0 && n < p.filters) compute_op(m, n, pair);
      v[2 * i] = pair[0];
      v[2 * i + 1] = pair[1];
    }
  }

  if constexpr (kPacked) {
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      ptx::store_matrix_x4(
          staged_address<Config>(address, matrix_row, matrix_unit + j),
          pack2<Out>(v[4 * j], v[4 * j + 1]), pack2<Out>(v[4 * j + 2], v[4 * j + 3]),
          pack2<Out>(v[4 * j + 4], v[4 * j + 5]), pack2<Out>(v[4 * j + 6], v[4 * j + 7]));
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      *reinterpret_cast<float2*>(
          buffer + staged_address<Config>(0, row0 + 8 * (i % 2), i / 2 * 2 + lane % 4 / 2) +
          lane % 2 * 8) = make_float2(v[2 * i], v[2 * i + 1]);
    }
  }

  // Ops on staged values and stores that TMA cannot do: 16-byte vectors of one row, lane by lane.
  constexpr bool kStagedOp = ComputeOp::kEnabled && !ComputeOp::kOnRegisters;
  if (kStagedOp || StoreOp::kEnabled || direct) {
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < 16 * kUnits; i += 32) {
      const int row = i / kUnits;
      const int n = piece.filter + i % kUnits * kWidth;
      const std::int64_t m = output_pixel(p, tile, piece, row);
      if (m < 0 || n >= p.filters) continue;
      uint4* const unit =
          reinterpret_cast<uint4*>(buffer + staged_address<Config>(0, row, i % kUnits));
      alignas(16) Out values[kWidth];
      *reinterpret_cast<uint4*>(values) = *unit;
      if constexpr (kStagedOp) {
        float x[kWidth];
#pragma unroll
        for (int e = 0; e < kWidth; ++e) x[e] = to_float(values[e]);
        compute_op(m, n, x);
#pragma unroll
        for (int e = 0; e < kWidth; ++e) values[e] = from_float<Out>(x[e]);
        *unit = *reinterpret_cast<const uint4*>(values);
      }
      if constexpr (StoreOp::kEnabled) store_op(m, n, values);
      if (direct && !StoreOp::kReplacesStore) {
        Out* const output = static_cast<Out*>(p.output_pointer) + m * p.filters + n;
#pragma unroll
        for (int e = 0; e < kWidth; ++e) {
          if (n + e < p.filters) output[e] = values[e];
        }
      }
    }
  }

  ptx::fence_async_shared();
  __syncwarp();
  if (!direct && !StoreOp::kReplacesStore && lane == 0) {
    ptx::tma_store_4d(&p.output_map[tile.phase], buffer, piece.filter, piece.pixel, piece.row,
                      tile.frame);
    ptx::tma_store_commit();
  }
  ++staging.sequence;
}

}  // namespace convoy::sm90
