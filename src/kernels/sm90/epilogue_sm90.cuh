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

/// How much of the run-time epilogue a launch needs. Shorter code for the usual cases: what is not
/// executed still costs instruction fetches (measured: the general code takes twice the time).
enum class EpiloguePath {
  plain,    ///< scale·conv + bias
  fused,    ///< plus ReLU or SiLU, plus a residual
  general,  ///< everything: all activations, rounding after each step, stores without TMA, ops
};

template <typename ComputeOp, typename StoreOp>
__device__ __forceinline__ EpiloguePath choose_path(const FpropParams& p) {
  const Activation activation = p.epilogue.activation;
  const bool usual = activation == Activation::none || activation == Activation::relu ||
                     activation == Activation::silu;
  if (ComputeOp::kEnabled || StoreOp::kEnabled || p.direct_store || p.epilogue.round_each_step ||
      !usual) {
    return EpiloguePath::general;
  }
  return activation == Activation::none && !p.epilogue.has_residual ? EpiloguePath::plain
                                                                    : EpiloguePath::fused;
}

/// x / (1 + exp(-x)), by the special-function unit: relative error some 1e-6.
__device__ __forceinline__ float fast_silu(float x) {
  float e, r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.44269504f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
  return x * r;
}

/// EpiloguePath::fused, bias already added.
template <typename Source>
__device__ __forceinline__ void apply_fused_epilogue(const EpilogueParams& params, float (&v)[16],
                                                     const Source& source) {
  const bool first = params.residual_first;
  if (params.has_residual && first) {
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = fmaf(params.beta, source(i), v[i]);
  }
  if (params.activation == Activation::silu) {
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = fast_silu(v[i]);
  } else if (params.activation == Activation::relu) {
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = v[i] <= 0.0f ? 0.0f : v[i];
  }
  if (params.has_residual && !first) {
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = fmaf(params.beta, source(i), v[i]);
  }
}

/// Where a lane finds its values in a staged piece.
template <typename Config>
struct PieceLane {
  int lane, row, matrix_row, matrix_unit;
  __device__ PieceLane()
      : lane(static_cast<int>(ptx::lane_id())),
        row(lane / 4),
        matrix_row((lane / 8 % 2) * 8 + lane % 8),  // of stmatrix / ldmatrix
        matrix_unit(lane / 16) {}
  /// Byte offset of the fp32 pair v[2i], v[2i + 1].
  __device__ std::uint32_t pair_offset(int i) const {
    return staged_address<Config>(0, row + 8 * (i % 2), i / 2 * 2 + lane % 4 / 2) + lane % 2 * 8;
  }
};

/// Fill a staging buffer with a piece of the residual by ordinary loads, where TMA cannot.
template <typename Config>
__device__ __forceinline__ void fill_source(const FpropParams& p, const Tile& tile,
                                            const Piece& piece, std::uint8_t* buffer, int lane) {
  using Out = typename Config::Out;
  constexpr int kUnits = Config::kChunkRowBytes / 16;
  constexpr int kWidth = 16 / static_cast<int>(sizeof(Out));
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
}

/// Ops on a staged piece and stores that TMA cannot do: 16-byte vectors of a row, lane by lane.
template <typename Config, typename ComputeOp, typename StoreOp>
__device__ __forceinline__ void finish_staged(const FpropParams& p, const Tile& tile,
                                              const Piece& piece, std::uint8_t* buffer, int lane,
                                              const ComputeOp& compute_op,
                                              const StoreOp& store_op) {
  using Out = typename Config::Out;
  constexpr int kUnits = Config::kChunkRowBytes / 16;
  constexpr int kWidth = 16 / static_cast<int>(sizeof(Out));
#pragma unroll 1
  for (int i = lane; i < 16 * kUnits; i += 32) {
    const int n = piece.filter + i % kUnits * kWidth;
    const std::int64_t m = output_pixel(p, tile, piece, i / kUnits);
    if (m < 0 || n >= p.filters) continue;
    uint4* const unit =
        reinterpret_cast<uint4*>(buffer + staged_address<Config>(0, i / kUnits, i % kUnits));
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
    if (p.direct_store && !StoreOp::kReplacesStore) {
      Out* const output = static_cast<Out*>(p.output_pointer) + m * p.filters + n;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        if (n + e < p.filters) output[e] = values[e];
      }
    }
  }
}

/// `kCount` pieces from fp32 values to the output, together so that their latencies overlap. Thread
/// t of the warp holds, in v[.][4j + 2h + e], row t / 4 + 8h and filter 8j + 2·(t % 4) + e. The
/// whole warp calls. `lane_bias`: of filter t of the piece.
template <typename Config, EpiloguePath kPath, int kCount, typename ComputeOp, typename StoreOp>
__device__ __forceinline__ void store_pieces(const FpropParams& p, const Tile& tile,
                                             const Piece (&pieces)[kCount], float (&v)[kCount][16],
                                             const float (&lane_bias)[kCount], WarpStaging& staging,
                                             const ComputeOp& compute_op, const StoreOp& store_op) {
  using Out = typename Config::Out;
  constexpr int kBuffers = Config::kStagingBuffers;
  constexpr bool kPacked = sizeof(Out) == 2;
  constexpr bool kGeneral = kPath == EpiloguePath::general;
  const PieceLane<Config> at;
  const bool direct = kGeneral && p.direct_store;
  const bool has_residual = kPath != EpiloguePath::plain && p.epilogue.has_residual;

  std::uint8_t* buffers[kCount];
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    buffers[u] = staging.buffers + (staging.sequence + u) % kBuffers * Config::kChunkBytes;
  }

  // Bias of filters 8j + e of this thread.
  float bias[kCount][8];
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      bias[u][i] = __shfl_sync(0xffffffffu, lane_bias[u], i / 2 * 8 + 2 * (at.lane % 4) + i % 2);
    }
  }

  // Read the residual, or wait until the buffers' previous stores have left them. Pairs of 16-bit
  // values stay packed until they are used.
  std::uint32_t source[kCount][kPacked ? 8 : 16] = {};
  if (has_residual) {
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      if (direct) {
        fill_source<Config>(p, tile, pieces[u], buffers[u], at.lane);
        __syncwarp();
      } else {
        const std::uint32_t sequence = staging.sequence + u;
        ptx::barrier_wait(&staging.source_full[sequence % kBuffers], sequence / kBuffers % 2);
      }
      if constexpr (kPacked) {
        const std::uint32_t address = ptx::shared_address(buffers[u]);
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
          ptx::load_matrix_x4(staged_address<Config>(address, at.matrix_row, at.matrix_unit + j),
                              source[u][2 * j], source[u][2 * j + 1], source[u][2 * j + 2],
                              source[u][2 * j + 3]);
        }
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const uint2 pair = *reinterpret_cast<const uint2*>(buffers[u] + at.pair_offset(i));
          source[u][2 * i] = pair.x;
          source[u][2 * i + 1] = pair.y;
        }
      }
    }
  } else if (at.lane == 0) {
    ptx::tma_store_wait_read<kBuffers - kCount>();
  }
  __syncwarp();

#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    const auto source_at = [&](int i) {
      if constexpr (kPacked) {
        const float2 pair = unpack2<Out>(source[u][i / 2]);
        return i % 2 == 0 ? pair.x : pair.y;
      } else {
        return __uint_as_float(source[u][i]);
      }
    };
    const auto bias_at = [&](int i) { return bias[u][i / 4 * 2 + i % 2]; };
    if constexpr (kGeneral) {
      apply_epilogue<Out>(p.epilogue, v[u], bias_at, source_at);
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i) v[u][i] = fmaf(v[u][i], p.epilogue.scale, bias_at(i));
      if constexpr (kPath == EpiloguePath::fused) {
        apply_fused_epilogue(p.epilogue, v[u], source_at);
      }
    }
    if constexpr (ComputeOp::kEnabled && ComputeOp::kOnRegisters) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const std::int64_t m = output_pixel(p, tile, pieces[u], at.row + 8 * (i % 2));
        const int n = pieces[u].filter + 2 * (at.lane % 4) + i / 2 * 8;
        float pair[2] = {v[u][2 * i], v[u][2 * i + 1]};
        if (m >= 0 && n < p.filters) compute_op(m, n, pair);
        v[u][2 * i] = pair[0];
        v[u][2 * i + 1] = pair[1];
      }
    }
    if constexpr (kPacked) {
      const std::uint32_t address = ptx::shared_address(buffers[u]);
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        ptx::store_matrix_x4(staged_address<Config>(address, at.matrix_row, at.matrix_unit + j),
                             pack2<Out>(v[u][4 * j], v[u][4 * j + 1]),
                             pack2<Out>(v[u][4 * j + 2], v[u][4 * j + 3]),
                             pack2<Out>(v[u][4 * j + 4], v[u][4 * j + 5]),
                             pack2<Out>(v[u][4 * j + 6], v[u][4 * j + 7]));
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        *reinterpret_cast<float2*>(buffers[u] + at.pair_offset(i)) =
            make_float2(v[u][2 * i], v[u][2 * i + 1]);
      }
    }
  }

  if ((ComputeOp::kEnabled && !ComputeOp::kOnRegisters) || StoreOp::kEnabled || direct) {
    __syncwarp();
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      finish_staged<Config>(p, tile, pieces[u], buffers[u], at.lane, compute_op, store_op);
    }
  }

  ptx::fence_async_shared();
  __syncwarp();
  if (!direct && !StoreOp::kReplacesStore && at.lane == 0) {
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      ptx::tma_store_4d(&p.output_map[tile.phase], buffers[u], pieces[u].filter, pieces[u].pixel,
                        pieces[u].row, tile.frame);
      ptx::tma_store_commit();
    }
  }
  staging.sequence += kCount;
}

}  // namespace convoy::sm90
