// SPDX-License-Identifier: Apache-2.0
//
// GroupNorm and RMSNorm on the CPU. An image is cut into pieces of pixels; the cut does not depend
// on the number of threads, so that results do not either.
#include "core/norm.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "core/checked.hpp"
#include "cpu/convert.hpp"
#include "cpu/epilogue.hpp"
#include "cpu/kernels.hpp"
#include "cpu/scratch.hpp"
#include "cpu/simd.hpp"

namespace convoy::cpu {
namespace {

/// Sums of a channel's deviations from its first value in the image: they stay small where the
/// values have a large offset.
CONVOY_VECTOR_CLONES
void accumulate(double* sum, double* squares, const float* row, const double* shift,
                std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const double deviation = static_cast<double>(row[i]) - shift[i];
    sum[i] += deviation;
    squares[i] += deviation * deviation;
  }
}

CONVOY_VECTOR_CLONES
void scale_and_shift(float* row, const float* mean, const float* scale, const float* bias,
                     std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) row[i] = (row[i] - mean[i]) * scale[i] + bias[i];
}

CONVOY_VECTOR_CLONES
void scale_and_bias(float* row, float factor, const float* scale, const float* bias,
                    std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) row[i] = row[i] * factor * scale[i] + bias[i];
}

CONVOY_VECTOR_CLONES
double sum_of_squares(const float* row, std::int64_t count) {
  // Eight sums side by side: a vector's worth, and the same order on every processor.
  double sums[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int j = 0; j < 8; ++j) {
      sums[j] += static_cast<double>(row[i + j]) * static_cast<double>(row[i + j]);
    }
  }
  for (; i < count; ++i) sums[0] += static_cast<double>(row[i]) * static_cast<double>(row[i]);
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

/// What both norms share: buffers for each piece of pixels, scale and bias in fp32.
class CpuNorm : public NormKernel {
 public:
  explicit CpuNorm(const NormRequest& request) : r_(request) {
    // About 64 KiB of fp32 a piece, so that it stays in cache; at most 256 pieces an image.
    piece_ = std::clamp<std::int64_t>(16384 / r_.channels, 1, r_.pixels);
    piece_ = std::max(piece_, ceil_div(r_.pixels, 256));
    pieces_ = ceil_div(r_.pixels, piece_);
  }
  std::size_t workspace_bytes() const override { return bytes_; }

 protected:
  /// Rows that a thread converts at a time.
  std::int64_t rows() const { return std::clamp<std::int64_t>(2048 / r_.channels, 1, piece_); }

  void widen_parameter(float* to, const void* from, float otherwise) const {
    if (from == nullptr) {
      std::fill_n(to, r_.channels, otherwise);
    } else {
      widen(to, from, r_.options.parameter_dtype, r_.channels);
    }
  }
  const char* at(const void* tensor, std::int64_t pixel) const {
    return static_cast<const char*>(tensor) +
           pixel * r_.channels * static_cast<std::int64_t>(size_of(r_.options.dtype));
  }
  void finish(const NormArguments& arguments, float* values, std::int64_t pixel,
              std::int64_t count) const {
    activate(values, count * r_.channels, r_.options.activation, arguments.parameter_a,
             arguments.parameter_b);
    narrow(const_cast<char*>(at(arguments.output, pixel)), values, r_.options.dtype,
           count * r_.channels);
  }
  /// The caller's workspace, or shared scratch until `holder` ends.
  void* workspace(void* given, std::optional<SharedScratch::Lease>& holder) const {
    if (given != nullptr) return given;
    holder.emplace(scratch_->take(bytes_));
    return (*holder)->memory.get();
  }
  void set_workspace(std::size_t bytes) { bytes_ = bytes; }

  NormRequest r_;
  std::int64_t piece_ = 1;   ///< Pixels.
  std::int64_t pieces_ = 1;  ///< Of one image.

 private:
  std::size_t bytes_ = 0;
  const std::shared_ptr<SharedScratch> scratch_ = SharedScratch::get();
};

class CpuGroupNorm final : public CpuNorm {
 public:
  explicit CpuGroupNorm(const NormRequest& request) : CpuNorm(request) {
    // Doubles: shift, and sum and squares of every piece. Floats: scale and bias of the caller,
    // mean, factor of the image; the rows in hand of every piece.
    const std::int64_t c = r_.channels;
    doubles_ = c + 2 * c * pieces_;
    const std::int64_t floats = 4 * c + pieces_ * rows() * c;
    set_workspace(static_cast<std::size_t>(doubles_ * 8 + floats * 4));
  }
  std::string name() const override { return "cpu_group_norm"; }

  void run(const NormArguments& arguments, cudaStream_t) const override {
    std::optional<SharedScratch::Lease> holder;
    const Buffers b = buffers(workspace(arguments.workspace, holder));
    widen_parameter(b.scale, arguments.scale, 1.0f);
    widen_parameter(b.bias, arguments.bias, 0.0f);
    for (std::int64_t n = 0; n < r_.batch; ++n) {
      if (arguments.statistics != nullptr) {
        take(b, arguments.statistics + 2 * n * r_.groups);
      } else {
        accumulate_image(at(arguments.input, n * r_.pixels), b);
        merge(b, nullptr);
      }
      if (r_.options.result == NormResult::coefficients) {
        write_coefficients(arguments, n, b);
      } else {
        apply(arguments, n, b);
      }
    }
  }

  void statistics(const NormStatisticsArguments& arguments, cudaStream_t) const override {
    std::optional<SharedScratch::Lease> holder;
    const Buffers b = buffers(workspace(arguments.workspace, holder));
    widen_parameter(b.scale, nullptr, 1.0f);
    const auto pitch = arguments.image_pitch * static_cast<std::int64_t>(size_of(r_.options.dtype));
    for (std::int64_t n = 0; n < r_.batch; ++n) {
      accumulate_image(static_cast<const char*>(arguments.input) + n * pitch, b);
      merge(b, arguments.output + 2 * n * r_.groups);
    }
  }

 private:
  struct Buffers {
    double *shift, *sums;
    float *scale, *bias, *mean, *factor, *rows;
  };

  Buffers buffers(void* memory) const {
    auto* shift = static_cast<double*>(memory);
    const std::int64_t c = r_.channels;
    return {.shift = shift,
            .sums = shift + c,
            .scale = reinterpret_cast<float*>(shift + doubles_),
            .bias = reinterpret_cast<float*>(shift + doubles_) + c,
            .mean = reinterpret_cast<float*>(shift + doubles_) + 2 * c,
            .factor = reinterpret_cast<float*>(shift + doubles_) + 3 * c,
            .rows = reinterpret_cast<float*>(shift + doubles_) + 4 * c};
  }

  void accumulate_image(const void* image, const Buffers& b) const {
    const std::int64_t c = r_.channels, step = rows();
    widen(b.rows, image, r_.options.dtype, c);
    std::copy_n(b.rows, c, b.shift);
#pragma omp parallel for schedule(static) if (pieces_ > 1)
    for (std::int64_t piece = 0; piece < pieces_; ++piece) {
      double* sum = b.sums + 2 * c * piece;
      std::fill_n(sum, 2 * c, 0.0);
      float* values = b.rows + piece * step * c;
      const std::int64_t end = std::min(r_.pixels, (piece + 1) * piece_);
      for (std::int64_t p = piece * piece_; p < end; p += step) {
        const std::int64_t count = std::min(step, end - p);
        widen(values, at(image, p), r_.options.dtype, count * c);
        for (std::int64_t i = 0; i < count; ++i) {
          accumulate(sum, sum + c, values + i * c, b.shift, c);
        }
      }
    }
  }

  /// Mean and factor of every channel, from given statistics.
  void take(const Buffers& b, const float* given) const {
    const std::int64_t width = r_.channels / r_.groups;
    for (std::int64_t i = 0; i < r_.channels; ++i) {
      const float* const group = given + 2 * (i / width);
      b.mean[i] = group[0];
      b.factor[i] = static_cast<float>(
          static_cast<double>(b.scale[i]) /
          std::sqrt(static_cast<double>(group[1]) + static_cast<double>(r_.epsilon)));
    }
  }

  /// Mean and factor of every channel, from all pieces in order; the statistics too, where wanted.
  void merge(const Buffers& b, float* found) const {
    const std::int64_t c = r_.channels, width = c / r_.groups;
    const auto pixels = static_cast<double>(r_.pixels);
    for (std::int64_t group = 0; group < r_.groups; ++group) {
      double count = 0, mean = 0, squares = 0;
      for (std::int64_t i = group * width; i < (group + 1) * width; ++i) {
        double sum = 0, square = 0;
        for (std::int64_t piece = 0; piece < pieces_; ++piece) {
          sum += b.sums[2 * c * piece + i];
          square += b.sums[2 * c * piece + c + i];
        }
        const double channel_mean = b.shift[i] + sum / pixels;
        const double delta = channel_mean - mean, total = count + pixels;
        squares += std::max(0.0, square - sum * (sum / pixels));
        squares += delta * delta * count * (pixels / total);
        // NOTE: std::max drops a NaN that is its second argument; the mean has it as well.
        mean += delta * (pixels / total);
        count = total;
      }
      if (found != nullptr) {
        found[2 * group] = static_cast<float>(mean);
        found[2 * group + 1] = static_cast<float>(squares / count);
      }
      const double factor = 1.0 / std::sqrt(squares / count + static_cast<double>(r_.epsilon));
      for (std::int64_t i = group * width; i < (group + 1) * width; ++i) {
        b.mean[i] = static_cast<float>(mean);
        b.factor[i] = static_cast<float>(factor * static_cast<double>(b.scale[i]));
      }
    }
  }

  /// Scale and shift of every channel.
  void write_coefficients(const NormArguments& arguments, std::int64_t n, const Buffers& b) const {
    const std::int64_t c = r_.channels;
    float* const scale = static_cast<float*>(arguments.output) + n * c;
    float* const shift = scale + r_.batch * c;
    for (std::int64_t i = 0; i < c; ++i) {
      scale[i] = b.factor[i];
      shift[i] = std::fma(-b.mean[i], b.factor[i], b.bias[i]);
    }
  }

  void apply(const NormArguments& arguments, std::int64_t n, const Buffers& b) const {
    const std::int64_t c = r_.channels, step = rows();
#pragma omp parallel for schedule(static) if (pieces_ > 1)
    for (std::int64_t piece = 0; piece < pieces_; ++piece) {
      float* values = b.rows + piece * step * c;
      const std::int64_t end = std::min(r_.pixels, (piece + 1) * piece_);
      for (std::int64_t p = piece * piece_; p < end; p += step) {
        const std::int64_t count = std::min(step, end - p), pixel = n * r_.pixels + p;
        widen(values, at(arguments.input, pixel), r_.options.dtype, count * c);
        for (std::int64_t i = 0; i < count; ++i) {
          scale_and_shift(values + i * c, b.mean, b.factor, b.bias, c);
        }
        finish(arguments, values, pixel, count);
      }
    }
  }

  std::int64_t doubles_ = 0;
};

class CpuRmsNorm final : public CpuNorm {
 public:
  explicit CpuRmsNorm(const NormRequest& request) : CpuNorm(request) {
    set_workspace(static_cast<std::size_t>((2 + pieces_ * rows()) * r_.channels * 4));
  }
  std::string name() const override { return "cpu_rms_norm"; }

  void run(const NormArguments& arguments, cudaStream_t) const override {
    std::optional<SharedScratch::Lease> holder;
    const std::int64_t c = r_.channels, step = rows();
    auto* scale = static_cast<float*>(workspace(arguments.workspace, holder));
    float* bias = scale + c;
    float* all_rows = bias + c;
    widen_parameter(scale, arguments.scale, 1.0f);
    widen_parameter(bias, arguments.bias, 0.0f);
#pragma omp parallel for schedule(static) if (pieces_ > 1)
    for (std::int64_t piece = 0; piece < pieces_; ++piece) {
      float* values = all_rows + piece * step * c;
      const std::int64_t end = std::min(r_.pixels, (piece + 1) * piece_);
      for (std::int64_t p = piece * piece_; p < end; p += step) {
        const std::int64_t count = std::min(step, end - p);
        widen(values, at(arguments.input, p), r_.options.dtype, count * c);
        for (std::int64_t i = 0; i < count; ++i) {
          float* row = values + i * c;
          const float inverse = factor(sum_of_squares(row, c));
          if (r_.options.result == NormResult::coefficients) {
            static_cast<float*>(arguments.output)[p + i] = inverse;
          } else {
            scale_and_bias(row, inverse, scale, bias, c);
          }
        }
        if (r_.options.result == NormResult::coefficients) continue;
        finish(arguments, values, p, count);
      }
    }
  }

 private:
  float factor(double squares) const {
    const auto c = static_cast<double>(r_.channels);
    const auto epsilon = static_cast<double>(r_.epsilon);
    if (r_.rule == RmsEpsilon::added) {
      return static_cast<float>(1.0 / std::sqrt(squares / c + epsilon));
    }
    const double norm = std::sqrt(squares);
    // NOTE: !(norm < epsilon), so that a NaN stays.
    return static_cast<float>(std::sqrt(c) / (norm < epsilon ? epsilon : norm));
  }
};

}  // namespace

std::unique_ptr<NormKernel> make_norm(const NormRequest& request) {
  if (request.rms) return std::make_unique<CpuRmsNorm>(request);
  return std::make_unique<CpuGroupNorm>(request);
}

}  // namespace convoy::cpu
