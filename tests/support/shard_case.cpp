// SPDX-License-Identifier: Apache-2.0
#include "support/shard_case.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "convoy/dtype.hpp"
#include "core/geometry.hpp"
#include "core/text.hpp"
#include "support/elements.hpp"
#include "support/guarded_buffer.hpp"
#ifdef CONVOY_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace convoy::test {
namespace {

using Bytes = std::vector<unsigned char>;

std::size_t size_at(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

void use_device(Device device, int index) {
#ifdef CONVOY_WITH_CUDA
  if (device == Device::cuda && cudaSetDevice(index) != cudaSuccess) {
    throw std::runtime_error(text("cudaSetDevice(", index, ") failed"));
  }
#endif
  (void)device;
  (void)index;
}

/// The tensors of a case on the host.
struct Tensors {
  ConvGeometry g;
  DType out_dtype;
  Bytes activation, cache, filter, bias, residual;
  Bytes scale, shift;  ///< Of the prologue, [N, C].

  explicit Tensors(const ShardCase& c)
      : g(geometry_of(c.conv.problem)),
        out_dtype(c.conv.options.output_dtype.value_or(c.conv.options.dtype)) {
    std::mt19937_64 random(c.conv.seed);
    const auto values = [&](std::int64_t count, int largest, DType dtype) {
      std::vector<float> all(size_at(count));
      for (float& value : all) {
        const auto draw = static_cast<int>(random() >> 33);
        if (c.exact) {
          value =
              (draw & 1) != 0 ? static_cast<float>((draw >> 1) % (2 * largest + 1) - largest) : 0;
        } else {
          value = static_cast<float>(draw % 20001 - 10000) * 1e-4f;
        }
      }
      return encode(all, dtype);
    };
    activation = values(g.activation_elements(), 2, c.conv.options.dtype);
    cache = values(g.cache_elements(), 2, c.conv.options.dtype);
    filter = values(g.filter_elements(), 1, c.conv.options.dtype);
    bias = values(g.out_channels, 3, c.conv.epilogue.bias_dtype);
    residual = values(g.output_elements(), 4, out_dtype);
    const bool normed = c.conv.options.prologue.any();
    scale = values(normed ? g.batch * g.in_channels : 0, 2, DType::fp32);
    shift = values(normed ? g.batch * g.in_channels : 0, 2, DType::fp32);
  }
};

/// A whole tensor of the case as blocks along the cut axis.
struct Blocks {
  std::size_t outer, extent, inner;
};

Blocks blocks_of(const std::array<std::int64_t, 5>& extents, ShardAxis axis, DType dtype) {
  const std::size_t at = axis == ShardAxis::batch    ? 0
                         : axis == ShardAxis::frames ? 1
                         : axis == ShardAxis::height ? 2
                                                     : 3;
  Blocks b{1, size_at(extents[at]), size_of(dtype)};
  for (std::size_t i = 0; i < 5; ++i) {
    if (i < at) b.outer *= size_at(extents[i]);
    if (i > at) b.inner *= size_at(extents[i]);
  }
  return b;
}

/// `range` of a whole tensor, its margins all ones: NaN in every type.
Bytes cut(const Bytes& whole, const Blocks& b, const ShardRange& range) {
  Bytes part(b.outer * size_at(range.stored()) * b.inner, 0xff);
  const std::size_t bytes = size_at(range.own()) * b.inner;
  for (std::size_t i = 0; i < b.outer && bytes > 0; ++i) {
    std::memcpy(part.data() + (i * size_at(range.stored()) + size_at(range.margin_begin)) * b.inner,
                whole.data() + (i * b.extent + size_at(range.begin)) * b.inner, bytes);
  }
  return part;
}

/// What differs between a rank's own elements and the whole's: in any bit, or by more than
/// `tolerance` times the largest.
std::string own_difference(const Bytes& part, const Bytes& whole, const Blocks& b,
                           const ShardRange& range, const char* name, DType dtype,
                           float tolerance = 0) {
  const std::size_t bytes = size_at(range.own()) * b.inner;
  std::vector<float> expected;
  float bound = 0;
  if (tolerance > 0) {
    expected = decode(whole, dtype);
    for (const float value : expected) bound = std::max(bound, std::abs(value) * tolerance);
  }
  for (std::size_t i = 0; i < b.outer && bytes > 0; ++i) {
    const std::size_t from = (i * size_at(range.stored()) + size_at(range.margin_begin)) * b.inner;
    const std::size_t to = (i * b.extent + size_at(range.begin)) * b.inner;
    if (std::memcmp(part.data() + from, whole.data() + to, bytes) == 0) continue;
    const std::vector<float> got = decode(
        Bytes(part.begin() + std::ptrdiff_t(from), part.begin() + std::ptrdiff_t(from + bytes)),
        dtype);
    for (std::size_t at = 0; at < bytes; at += size_of(dtype)) {
      if (std::memcmp(part.data() + from + at, whole.data() + to + at, size_of(dtype)) == 0)
        continue;
      const float has = got[at / size_of(dtype)];
      if (tolerance > 0 && std::abs(has - expected[(to + at) / size_of(dtype)]) <= bound) {
        continue;
      }
      return text(name, ": block ", i, ", element ", size_at(range.begin) + at / b.inner,
                  " of the axis differs from one rank's: ", has);
    }
  }
  return {};
}

/// A few roundings; of products, where the tensor cores may round fp32 operands to TF32.
float few_roundings(const ShardCase& test, DType out_dtype) {
  const bool exact = test.exact || !test.conv.options.allow_tf32;
  const float of_output = out_dtype == DType::bf16   ? 0x1p-6f
                          : out_dtype == DType::fp16 ? 0x1p-9f
                                                     : 0x1p-18f;
  return exact ? of_output : std::max(of_output, 0x1p-9f);
}

/// By how much outputs of `kernel` and of one rank's `whole` may differ: 0 is not in a bit.
/// NOTE: a kernel made of several chooses the one inside by the shape, and kernels have formulas of
/// their own for an activation: equal sums then differ in the last bits behind it.
float tolerance_of(const ShardCase& test, DType out_dtype, const std::string& kernel,
                   const std::string& whole) {
  // Where a tile is not split the kernel finishes it, else the one that sums does.
  bool may_differ =
      kernel != whole || kernel.find("splitk") != std::string::npos || kernel.starts_with("mma_");
  for (const char* const composed :
       {"normalised_copy", "padded_copy", "padded_channels", "folded_width", "joined_groups",
        "folded_stride", "im2col_matmul", "qslice", "split_copy"}) {
    may_differ |= kernel.starts_with(composed);
  }
  return may_differ ? few_roundings(test, out_dtype) : 0;
}

struct Whole {
  Bytes output, next_cache;
  std::string kernel;
};

Epilogue epilogue_of(const ShardCase& c, const void* bias, const void* residual) {
  Epilogue e = c.conv.epilogue;
  e.bias = c.conv.bias ? bias : nullptr;
  e.residual = c.conv.residual ? residual : nullptr;
  return e;
}

Prologue prologue_of(const ShardCase& c, const void* scale, const void* shift) {
  if (!c.conv.options.prologue.any()) return {};
  return {.norm = c.conv.options.prologue.norm,
          .activation = c.conv.options.prologue.activation,
          .scale = static_cast<const float*>(scale),
          .shift = static_cast<const float*>(shift)};
}

GuardedBuffer uploaded(Device device, const Bytes& bytes) {
  GuardedBuffer buffer(device, bytes.size());
  if (!bytes.empty()) buffer.upload(bytes.data());
  return buffer;
}

Whole run_whole(const ShardCase& c, const Tensors& t, Device device) {
  const PlanOptions options = options_of(c.conv);
  const Plan plan =
      std::visit([&](const auto& p) { return convoy::plan(p, options); }, c.conv.problem);
  GuardedBuffer activation = uploaded(device, t.activation), cache = uploaded(device, t.cache);
  GuardedBuffer filter = uploaded(device, t.filter), bias = uploaded(device, t.bias);
  GuardedBuffer residual = uploaded(device, t.residual);
  GuardedBuffer scale = uploaded(device, t.scale), shift = uploaded(device, t.shift);
  GuardedBuffer output(device, size_at(t.g.output_elements()) * size_of(t.out_dtype));
  GuardedBuffer next(device, size_at(t.g.batch * t.g.next_cache_frames() * t.g.in[1] * t.g.in[2] *
                                     t.g.in_channels) *
                                 size_of(c.conv.options.dtype));
  GuardedBuffer workspace(device, plan.workspace_bytes());
  RunArguments run{.output = TensorView(output.data()),
                   .activation = ConstTensorView(activation.data()),
                   .filter = FilterRef(filter.data()),
                   .epilogue = epilogue_of(c, bias.data(), residual.data()),
                   .prologue = prologue_of(c, scale.data(), shift.data())};
  if (t.g.cached_frames > 0) run.cache = ConstTensorView(cache.data());
  if (c.conv.next_cache) run.next_cache = TensorView(next.data());
  if (plan.workspace_bytes() > 0) run.workspace = workspace.data();
  PackedFilter packed;
  if (options.packed_filter) {
    packed =
        plan.pack_filter(filter.data(), t.g.rank == 2 ? FilterLayout::krsc : FilterLayout::ktrsc);
    run.filter = FilterRef(packed);
  }
  plan.run(run);
  synchronize(device);
  return {output.download(), c.conv.next_cache ? next.download() : Bytes(), plan.info().kernel};
}

/// Sums of small integers have the same bits in any order: so the prologue keeps them integers.
void make_exact(ConvCase& c, Device device) {
  PrologueKind& prologue = c.options.prologue;
  if (prologue.activation != Activation::none) prologue.activation = Activation::relu;
  // NOTE: on the CPU a value's place in a vector or behind the last one decides how it is computed.
  if (device != Device::cpu) return;
  Epilogue& e = c.epilogue;
  const bool kept = e.activation == Activation::relu || e.activation == Activation::clamp;
  e.activation = kept ? e.activation : Activation::none;
  e.scale = e.scale == 1.0f ? 1.0f : 0.5f;
  e.beta = e.beta == 0.0f || e.beta == 1.0f ? e.beta : -0.5f;
}

/// One rank's run; what is wrong with it.
std::string run_rank(const ShardCase& c, const Tensors& t, const Whole& whole, Device device,
                     const Communicator& communicator, bool& interior) {
  const ConvGeometry& g = t.g;
  const DType dtype = c.conv.options.dtype;
  const PlanOptions options = options_of(c.conv);
  const ShardedPlan plan = plan_shard(c.conv.problem, options, communicator, c.spec, c.overlap);
  const ShardLayout& mine = plan.layout();
  interior = plan.overlap() == ShardOverlap::interior;
  const bool frames = c.spec.axis == ShardAxis::frames;
  const Blocks in =
      blocks_of({g.batch, g.in[0], g.in[1], g.in[2], g.in_channels}, c.spec.axis, dtype);
  const Blocks out =
      blocks_of({g.batch, g.out[0], g.out[1], g.out[2], g.out_channels}, c.spec.axis, t.out_dtype);
  const Blocks cached =
      blocks_of({g.batch, g.cached_frames, g.in[1], g.in[2], g.in_channels}, c.spec.axis, dtype);
  const Blocks after = blocks_of({g.batch, g.next_cache_frames(), g.in[1], g.in[2], g.in_channels},
                                 c.spec.axis, dtype);

  GuardedBuffer activation = uploaded(device, cut(t.activation, in, mine.input));
  GuardedBuffer filter = uploaded(device, t.filter), bias = uploaded(device, t.bias);
  GuardedBuffer residual = uploaded(device, cut(t.residual, out, mine.output));
  // Where the batch is cut, of this rank's images.
  const Blocks images{1, size_at(g.batch), size_at(g.in_channels) * sizeof(float)};
  const bool batch = c.spec.axis == ShardAxis::batch && c.conv.options.prologue.any();
  GuardedBuffer scale = uploaded(device, batch ? cut(t.scale, images, mine.input) : t.scale);
  GuardedBuffer shift = uploaded(device, batch ? cut(t.shift, images, mine.input) : t.shift);
  GuardedBuffer output(device, out.outer * size_at(mine.output.stored()) * out.inner);
  const bool has_cache = g.cached_frames > 0 && (!frames || communicator.rank() == 0);
  GuardedBuffer cache = uploaded(device, frames      ? t.cache
                                         : has_cache ? cut(t.cache, cached, mine.input)
                                                     : Bytes());
  const bool wants_next =
      c.conv.next_cache && (!frames || communicator.rank() + 1 == communicator.count());
  GuardedBuffer next(device, frames ? whole.next_cache.size()
                                    : after.outer * size_at(mine.input.stored()) * after.inner);
  GuardedBuffer workspace(device, plan.workspace_bytes());

  ShardedRunArguments run{.output = TensorView(output.data()),
                          .activation = activation.data(),
                          .filter = FilterRef(filter.data()),
                          .epilogue = epilogue_of(c, bias.data(), residual.data()),
                          .prologue = prologue_of(c, scale.data(), shift.data())};
  if (has_cache) run.cache = ConstTensorView(cache.data());
  if (wants_next) run.next_cache = TensorView(next.data());
  if (plan.workspace_bytes() > 0) run.workspace = workspace.data();
  PackedFilter packed;
  if (options.packed_filter) {
    packed =
        plan.pack_filter(filter.data(), g.rank == 2 ? FilterLayout::krsc : FilterLayout::ktrsc);
    run.filter = FilterRef(packed);
  }
  if (g.cached_frames > 0 && !frames) plan.exchange_cache(cache.data());
  if (c.given_halos) {
    plan.exchange(activation.data());
    run.halos_filled = true;
  }
  for (int i = 0; i < 2; ++i) {  // The second time the halos are there, and are filled again.
    plan.run(run);
    communicator.synchronize();
    const std::string& kernel = plan.plan().info().kernel;
    std::string wrong =
        own_difference(output.download(), whole.output, out, mine.output, "output", t.out_dtype,
                       tolerance_of(c, t.out_dtype, kernel, whole.kernel));
    if (wrong.empty() && wants_next) {
      const ShardRange all{0, static_cast<std::int64_t>(after.extent), 0, 0};
      wrong = own_difference(next.download(), whole.next_cache, after, frames ? all : mine.input,
                             "next cache", dtype);
    }
    if (!wrong.empty()) {
      return text(wrong, "; by ", kernel, ", one rank's by ", whole.kernel);
    }
  }
  for (const auto* buffer : {&activation, &residual, &output, &cache, &next, &workspace}) {
    if (!buffer->guards_intact()) return "memory beside a buffer was written";
  }
  // Every rank puts the whole together.
  ShardedTensor tensor{
      .data = output.data(), .outer = static_cast<std::int64_t>(out.outer), .inner = out.inner};
  for (const ShardLayout& layout : plan.layouts()) tensor.ranges.push_back(layout.output);
  GuardedBuffer gathered(device, whole.output.size());
  gather_shards(communicator, tensor, gathered.data());
  // NOTE: a part of another rank may be of a kernel of its own.
  const ShardRange everything{0, static_cast<std::int64_t>(out.extent), 0, 0};
  std::string wrong = own_difference(gathered.download(), whole.output, out, everything,
                                     "gathered output", t.out_dtype, few_roundings(c, t.out_dtype));
  if (wrong.empty()) {
    wrong = own_difference(output.download(), gathered.download(), out, mine.output,
                           "own output beside the gathered one", t.out_dtype);
  }
  if (!wrong.empty()) return wrong;
  if (!gathered.guards_intact()) return "memory beside the gathered output was written";
  GuardedBuffer part(device, output.bytes());
  tensor.data = part.data();
  scatter_shard(communicator, gathered.data(), tensor);
  synchronize(device);
  return own_difference(part.download(), gathered.download(), out, mine.output, "scattered output",
                        t.out_dtype);
}

}  // namespace

ShardCase random_shard_case(std::uint64_t seed, int count, ShardAxis axis,
                            const CaseLimits& limits) {
  ShardCase c;
  c.conv = random_case(seed, limits);
  PrologueKind& prologue = c.conv.options.prologue;
  if (prologue.norm == PrologueNorm::rms) prologue = {};  // Shards take none,
  c.conv.options.shuffle = {};                            // nor any of these.
  c.conv.options.statistics_groups = 0;
  std::mt19937_64 random(seed * 77 + static_cast<std::uint64_t>(count) * 7 +
                         static_cast<std::uint64_t>(axis));
  c.spec.count = count;
  c.spec.axis = axis;
  c.exact = true;
  // Longer than the tests of one device take it, so that more counts have something to cut.
  std::visit(
      [&](auto& p) {
        p.batch = axis == ShardAxis::batch ? std::max<std::int64_t>(p.batch, count) : p.batch;
        if (axis == ShardAxis::height) p.in_height += 2 * count;
        if (axis == ShardAxis::height && random() % 2 == 0) {  // Rows of 16 bytes' multiples.
          p.batch = 1;
          p.in_width = (p.in_width + 7) / 8 * 8;
        }
        if (axis == ShardAxis::width) p.in_width += 2 * count;
        if constexpr (requires { p.in_depth; }) {
          if (axis == ShardAxis::frames) p.in_depth += 2 * count;
        }
      },
      c.conv.problem);
  const ConvGeometry g = geometry_of(c.conv.problem);
  const std::int64_t extent = axis == ShardAxis::batch    ? g.batch
                              : axis == ShardAxis::frames ? g.in[0]
                              : axis == ShardAxis::height ? g.in[1]
                                                          : g.in[2];
  if (random() % 2 == 0 && extent >= count) {  // Uneven.
    std::vector<std::int64_t> all;
    for (std::int64_t i = 1; i < extent; ++i) all.push_back(i);
    std::shuffle(all.begin(), all.end(), random);
    c.spec.starts.assign(all.begin(), all.begin() + (count - 1));
    c.spec.starts.push_back(0);
    std::sort(c.spec.starts.begin(), c.spec.starts.end());
  }
  if (random() % 3 == 0) c.spec.input_margin = static_cast<std::int64_t>(random() % 3);
  if (random() % 3 == 0) c.spec.output_margin = static_cast<std::int64_t>(random() % 3);
  c.overlap = random() % 3 == 0 ? ShardOverlap::none : ShardOverlap::automatic;
  c.given_halos = random() % 5 == 0;
  const bool frames_too_few = g.seen()[0] < g.next_cache_frames() && g.pad_mode[0] != PadMode::zero;
  c.conv.next_cache = g.rank == 3 && g.next_cache_frames() > 0 && !frames_too_few &&
                      axis != ShardAxis::frames && random() % 2 == 0;
  return c;
}

std::string describe(const ShardCase& c) {
  std::string starts;
  for (const std::int64_t start : c.spec.starts)
    starts += text(starts.empty() ? " at " : ",", start);
  return text(describe(c.conv), " | ", to_string(c.spec.axis), " x ", c.spec.count, starts,
              " margins ", c.spec.input_margin, " ", c.spec.output_margin, " overlap ",
              to_string(c.overlap), c.given_halos ? " given halos" : "");
}

ShardResult run_shard_case(const ShardCase& given) {
  ShardCase c = given;
  ShardResult result;
  const Device device = c.conv.options.device == Device::cuda ? Device::cuda : Device::cpu;
  if (c.exact) make_exact(c.conv, device);
  try {
    shard_layouts(c.conv.problem, c.spec);
  } catch (const Error& error) {
    result.refusal = error.what();
    return result;
  }
  use_device(device, 0);
  const Tensors tensors(c);
  const Whole whole = run_whole(c, tensors, device);
  result.ran = true;
  std::mutex mutex;
  RankThreads threads(device, c.spec.count);
  const std::vector<std::string> thrown = threads.run([&](const Communicator& communicator) {
    bool interior = false;
    const std::string wrong = run_rank(c, tensors, whole, device, communicator, interior);
    const std::lock_guard lock(mutex);
    result.interior = result.interior || interior;
    if (!wrong.empty() && result.wrong.empty()) {
      result.wrong = text("rank ", communicator.rank(), ": ", wrong);
    }
  });
  for (std::size_t r = 0; r < thrown.size(); ++r) {
    if (!thrown[r].empty() && result.wrong.empty())
      result.wrong = text("rank ", r, ": ", thrown[r]);
  }
  return result;
}

namespace {

/// NCCL takes a second to bring ranks together: those of a run that went well serve the next.
std::map<int, std::vector<Communicator>>& kept() {
  static std::map<int, std::vector<Communicator>> communicators;
  return communicators;
}

}  // namespace

RankThreads::RankThreads(Device device, int count, std::chrono::milliseconds timeout)
    : device_(device), count_(count), timeout_(timeout) {}

std::vector<std::string> RankThreads::run_each(
    const std::function<void(const Communicator&)>& body) {
  std::vector<std::string> thrown(size_at(count_));
  std::vector<Communicator> ranks;
  NcclId id{};
  if (device_ == Device::cpu) {
    ranks = Communicator::in_process(count_, timeout_);
  } else if (const auto found = kept().find(count_); found != kept().end()) {
    ranks = std::move(found->second);
    kept().erase(found);
  } else {
    id = Communicator::nccl_id();
  }
  std::vector<std::optional<Communicator>> after(size_at(count_));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count_; ++rank) {
    const auto r = size_at(rank);
    // NOTE: the thread's own copy alone, so that a rank that ends is gone for the others.
    std::optional<Communicator> given;
    if (!ranks.empty()) given = std::move(ranks[r]);
    threads.emplace_back([&, rank, r, mine = std::move(given)]() mutable {
      try {
        use_device(device_, rank);
        if (!mine) mine = Communicator::nccl(id, rank, count_, timeout_);
        body(*mine);
        if (device_ == Device::cuda) after[r] = std::move(mine);
      } catch (const std::exception& error) {
        thrown[r] = error.what();
      }
      mine.reset();
    });
  }
  ranks.clear();
  for (std::thread& thread : threads) thread.join();
  if (std::all_of(after.begin(), after.end(), [](const auto& c) { return c.has_value(); })) {
    for (auto& communicator : after) kept()[count_].push_back(std::move(*communicator));
  }
  return thrown;
}

}  // namespace convoy::test
