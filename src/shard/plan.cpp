// SPDX-License-Identifier: Apache-2.0
//
// One rank's part of a convolution. Where its outputs are one block of rows, it may run as three
// launches: the interior while the halos are on their way, then the borders above and below.
#include <algorithm>
#include <utility>

#include "convoy/geometry.hpp"
#include "convoy/shard.hpp"
#include "core/checked.hpp"
#include "core/text.hpp"
#include "shard/transport.hpp"

namespace convoy {
namespace {

std::size_t aligned(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

void* advanced(void* pointer, std::size_t bytes) {
  return pointer == nullptr ? nullptr : static_cast<char*>(pointer) + bytes;
}

const void* advanced(const void* pointer, std::size_t bytes) {
  return pointer == nullptr ? nullptr : static_cast<const char*>(pointer) + bytes;
}

}  // namespace

class ShardedPlan::Impl {
 public:
  /// A launch over some of the output rows, and where its tensors begin.
  struct Piece {
    Plan plan;
    std::size_t input_offset = 0;   ///< Bytes.
    std::size_t output_offset = 0;  ///< Bytes.
  };

  Impl(const ProblemShape& problem, const PlanOptions& options, Communicator with,
       const ShardSpec& given, ShardOverlap wanted);

  void run(const ShardedRunArguments& arguments, cudaStream_t stream) const;
  /// Makes room for the exchanges. Every rank calls it, once all have their plans.
  void reserve();
  /// The activation, or `frames` cached ones, as a tensor that is cut.
  ShardedTensor input_tensor(void* data, std::int64_t frames) const;
  const ShardLayout& mine() const { return layouts[unsigned_of(communicator.rank())]; }

  Communicator communicator;
  ShardSpec spec;
  ConvGeometry geometry;  ///< Of the whole problem.
  std::size_t element = 2;
  std::size_t output_element = 2;
  std::vector<ShardLayout> layouts;
  std::vector<std::int64_t> halo_begin, halo_end;
  std::optional<Plan> whole;  ///< Over all that the rank holds.
  ShardOverlap overlap = ShardOverlap::none;
  std::vector<Piece> pieces;  ///< With `interior`: the interior, then the borders.
  HaloMoves moves;            ///< Of a tensor at address 0.
  std::size_t staging = 0;
  std::size_t kernel_workspace = 0;

 private:
  Plan plan_part(const ProblemShape& part, const PlanOptions& options) const;
  bool split(const PlanOptions& options);
  Piece piece(const PlanOptions& options, std::int64_t begin, std::int64_t end) const;
  void check(const ShardedRunArguments& arguments) const;
  RunArguments arguments_of(const ShardedRunArguments& arguments) const;
  void launch(const ShardedRunArguments& arguments, cudaStream_t stream) const;
};

namespace {

std::string describe(const ProblemShape& problem, const PlanOptions& options,
                     const ShardSpec& spec) {
  std::string starts;
  for (const std::int64_t start : spec.starts) starts += text(" ", start);
  return text(to_string(problem), " ", to_string(options.dtype), " to ",
              to_string(options.output_dtype.value_or(options.dtype)), " ",
              (options.prologue.any() ? to_string(options.prologue) + " > " : ""),
              to_string(options.epilogue), ", cut along ", to_string(spec.axis), " for ",
              spec.count, " ranks", starts.empty() ? "" : " at", starts, ", margins ",
              spec.input_margin, " and ", spec.output_margin);
}

/// The kernel that one device would take for the whole problem; empty where none can.
std::string kernel_of_whole(const ProblemShape& problem, const PlanOptions& options) {
  if (!options.kernel.empty()) return options.kernel;
  const std::vector<Candidate> all =
      std::visit([&](const auto& shape) { return candidates(shape, options); }, problem);
  return !all.empty() && all.front().chosen ? all.front().kernel : "";
}

}  // namespace

ShardedPlan::Impl::Impl(const ProblemShape& problem, const PlanOptions& options, Communicator with,
                        const ShardSpec& given, ShardOverlap wanted)
    : communicator(std::move(with)),
      spec(given),
      geometry(geometry_of(problem)),
      element(size_of(options.dtype)),
      output_element(size_of(options.output_dtype.value_or(options.dtype))) {
  // NOTE: a value for each pixel would need its own halos.
  if (options.prologue.norm == PrologueNorm::rms) {
    throw Error(Status::unsupported,
                text("prologue = ", to_string(options.prologue),
                     "; legal in a shard: scale_shift; nearest: a norm of its own before it"));
  }
  if (options.shuffle.any()) {
    throw Error(Status::unsupported,
                text("shuffle = ", to_string(options.shuffle),
                     "; legal in a shard: none; nearest: a shuffle of its own behind it"));
  }
  if (options.statistics_groups > 0) {
    throw Error(Status::unsupported,
                text("statistics_groups = ", options.statistics_groups,
                     "; legal in a shard: 0; nearest: NormPlan::statistics of its rows, merged"));
  }
  layouts = shard_layouts(problem, spec);
  for (const ShardLayout& layout : layouts) {
    halo_begin.push_back(layout.halo_begin);
    halo_end.push_back(layout.halo_end);
  }
  PlanOptions pinned = options;
  pinned.kernel = kernel_of_whole(problem, options);
  if (options.kernel.empty() && !pinned.kernel.empty() &&
      !std::visit([&](const auto& shape) { return supports(shape, pinned); }, mine().local)) {
    pinned.kernel.clear();
  }
  whole = plan_part(mine().local, pinned);
  const bool on_device = communicator.impl().on_device();
  if (communicator.count() > 1 && on_device == whole->info().backend.starts_with("cpu")) {
    throw Error(Status::unsupported,
                text("transport ", communicator.transport(), " moves the memory of ",
                     on_device ? "CUDA devices" : "the host", ", but the plan runs on ",
                     whole->info().backend, "; legal: device = ", on_device ? "cuda" : "cpu"));
  }
  kernel_workspace = whole->workspace_bytes();
  if (spec.axis != ShardAxis::batch) {
    moves = halo_moves(input_tensor(nullptr, geometry.in[0]), communicator.rank(), halo_begin,
                       halo_end);
  }
  if (wanted != ShardOverlap::none && split(pinned)) overlap = ShardOverlap::interior;
  if (wanted == ShardOverlap::interior && overlap != ShardOverlap::interior &&
      communicator.count() > 1) {
    throw Error(Status::unsupported,
                "overlap = interior needs outputs of a rank that are one block of rows of 16-byte "
                "multiples, without upsampling, cache or reflected padding; legal here: none, "
                "automatic");
  }
}

Plan ShardedPlan::Impl::plan_part(const ProblemShape& part, const PlanOptions& options) const {
  return std::visit([&](const auto& shape) { return convoy::plan(shape, options); }, part);
}

ShardedTensor ShardedPlan::Impl::input_tensor(void* data, std::int64_t frames) const {
  ShardedTensor tensor{.data = data};
  for (const ShardLayout& layout : layouts) tensor.ranges.push_back(layout.input);
  const ConvGeometry& g = geometry;
  const std::int64_t pixel = g.in_channels * static_cast<std::int64_t>(element);
  switch (spec.axis) {
    case ShardAxis::height:
      tensor.outer = g.batch * frames;
      tensor.inner = unsigned_of(g.in[2] * pixel);
      break;
    case ShardAxis::width:
      tensor.outer = g.batch * frames * g.in[1];
      tensor.inner = unsigned_of(pixel);
      break;
    case ShardAxis::frames:
      tensor.outer = g.batch;
      tensor.inner = unsigned_of(g.in[1] * g.in[2] * pixel);
      break;
    case ShardAxis::batch:
      tensor.inner = unsigned_of(frames * g.in[1] * g.in[2] * pixel);
      break;
  }
  return tensor;
}

/// The launch over output rows [begin, end) of the whole problem, which the rank's tensors hold.
ShardedPlan::Impl::Piece ShardedPlan::Impl::piece(const PlanOptions& options, std::int64_t begin,
                                                  std::int64_t end) const {
  const ConvGeometry& g = geometry;
  const std::int64_t low = begin * g.stride[1] - g.pad_begin[1];
  const std::int64_t high =
      (end - 1) * g.stride[1] - g.pad_begin[1] + g.dilation[1] * (g.filter[1] - 1) + 1;
  const std::int64_t first = std::max<std::int64_t>(low, 0), past = std::min(high, g.in[1]);
  ProblemShape part = mine().local;
  if (auto* image = std::get_if<Conv2dProblemShape>(&part)) {
    image->in_height = past - first;
    image->pad_h = first - low;
    image->pad_h_end = high - past;
  } else {
    auto& volume = std::get<Conv3dProblemShape>(part);
    volume.in_height = past - first;
    volume.pad_begin[1] = first - low;
    volume.pad_end[1] = high - past;
  }
  const ShardRange &in = mine().input, &out = mine().output;
  return {plan_part(part, options),
          unsigned_of((first - in.begin + in.margin_begin) * g.in[2] * g.in_channels) * element,
          unsigned_of((begin - out.begin + out.margin_begin) * g.out[2] * g.out_channels) *
              output_element};
}

/// Makes the pieces; false where the problem has none.
bool ShardedPlan::Impl::split(const PlanOptions& options) {
  const ConvGeometry& g = geometry;
  const bool one_block = g.batch == 1 && g.in[0] == 1 && g.out[0] == 1 && g.filter[0] == 1;
  if (communicator.count() == 1 || spec.axis != ShardAxis::height || !one_block ||
      g.cached_frames > 0 || g.upsample != 1 || g.out_channels == 0 ||
      g.pad_mode[1] == PadMode::reflect ||
      unsigned_of(g.in[2] * g.in_channels) * element % 16 != 0 ||
      unsigned_of(g.out[2] * g.out_channels) * output_element % 16 != 0) {
    return false;
  }
  const ShardLayout& part = mine();
  if (part.halo_begin + part.halo_end == 0) return false;
  // Outputs that read own elements only.
  std::int64_t begin = part.output.begin, end = part.output.end;
  const std::int64_t reach = g.dilation[1] * (g.filter[1] - 1);
  if (part.halo_begin > 0) {
    begin = std::max(begin, ceil_div(part.input.begin + g.pad_begin[1], g.stride[1]));
  }
  if (part.halo_end > 0) {
    const std::int64_t last = part.input.end - 1 - reach + g.pad_begin[1];
    end = last < 0 ? 0 : std::min(end, last / g.stride[1] + 1);
  }
  if (begin >= end) return false;
  try {
    PlanOptions same = options;
    same.kernel = whole->info().kernel;
    pieces.push_back(piece(same, begin, end));
    if (begin > part.output.begin) pieces.push_back(piece(same, part.output.begin, begin));
    if (end < part.output.end) pieces.push_back(piece(same, end, part.output.end));
  } catch (const Error& error) {
    if (error.status() != Status::unsupported) throw;
    pieces.clear();  // The kernel of the whole cannot run the border.
    return false;
  }
  for (const Piece& p : pieces) {
    if (options.packed_filter && p.plan.filter_format() != whole->filter_format()) {
      pieces.clear();
      return false;
    }
  }
  for (const Piece& p : pieces) {
    kernel_workspace = std::max(kernel_workspace, p.plan.workspace_bytes());
  }
  return true;
}

void ShardedPlan::Impl::check(const ShardedRunArguments& arguments) const {
  if (arguments.activation == nullptr && !geometry.empty()) throw_invalid("activation is null");
  if (arguments.workspace == nullptr && staging > 0) {
    throw_invalid("workspace is null, but the plan needs ", aligned(kernel_workspace) + staging,
                  " bytes");
  }
  if (arguments.next_cache.data == nullptr || spec.axis != ShardAxis::frames) return;
  if (communicator.rank() + 1 != communicator.count()) {
    throw_invalid("next_cache is given on rank ", communicator.rank(),
                  "; legal where frames are cut: on the last rank, ", communicator.count() - 1);
  }
  const std::int64_t held = mine().input.stored();
  if (communicator.count() > 1 && held < geometry.next_cache_frames()) {
    throw_invalid("next_cache takes ", geometry.next_cache_frames(),
                  " frames, but the last rank holds ", held, "; legal: fewer ranks");
  }
}

RunArguments ShardedPlan::Impl::arguments_of(const ShardedRunArguments& arguments) const {
  return {.output = arguments.output,
          .activation = ConstTensorView(arguments.activation),
          .filter = arguments.filter,
          .epilogue = arguments.epilogue,
          .prologue = arguments.prologue,
          .cache = arguments.cache,
          .next_cache = arguments.next_cache,
          .workspace = kernel_workspace > 0 ? arguments.workspace : nullptr};
}

void ShardedPlan::Impl::launch(const ShardedRunArguments& arguments, cudaStream_t stream) const {
  const bool exchanging =
      communicator.count() > 1 && spec.axis != ShardAxis::batch && !arguments.halos_filled;
  Transport& transport = communicator.impl();
  HaloMoves here;
  if (exchanging) {
    here = halo_moves(input_tensor(arguments.activation, geometry.in[0]), communicator.rank(),
                      halo_begin, halo_end);
  }
  void* const memory = advanced(arguments.workspace, aligned(kernel_workspace));
  const RunArguments run = arguments_of(arguments);
  if (overlap == ShardOverlap::none || !exchanging) {
    if (exchanging) transport.exchange(here, memory, stream);
    whole->run(run, stream);
    return;
  }
  transport.start(here, memory, stream);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (i == 1) transport.finish(here, stream);
    RunArguments part = run;
    part.output = TensorView(advanced(run.output.data, pieces[i].output_offset));
    part.activation = ConstTensorView(advanced(run.activation.data, pieces[i].input_offset));
    part.epilogue.residual = advanced(run.epilogue.residual, pieces[i].output_offset);
    part.epilogue.residual_shape.reset();
    pieces[i].plan.run(part, stream);
  }
  if (pieces.size() == 1) transport.finish(here, stream);
}

void ShardedPlan::Impl::reserve() {
  if (communicator.count() == 1 || spec.axis == ShardAxis::batch) return;
  const HaloMoves cached = halo_moves(input_tensor(nullptr, geometry.cached_frames),
                                      communicator.rank(), halo_begin, halo_end);
  communicator.impl().reserve(std::max(moves.largest, cached.largest));
  staging = communicator.impl().staging_bytes(moves);
}

void ShardedPlan::Impl::run(const ShardedRunArguments& arguments, cudaStream_t stream) const {
  try {
    check(arguments);
    launch(arguments, stream);
  } catch (const std::exception& error) {
    // The others wait for this rank's elements.
    if (communicator.count() > 1) communicator.abort(error.what());
    throw;
  }
}

void ShardedPlan::run(const ShardedRunArguments& arguments, cudaStream_t stream) const {
  impl_->run(arguments, stream);
}

void ShardedPlan::exchange(void* activation, cudaStream_t stream) const {
  telling(impl_->communicator.impl(), [&] {
    exchange_halos(impl_->communicator, impl_->input_tensor(activation, impl_->geometry.in[0]),
                   impl_->halo_begin, impl_->halo_end, stream);
  });
}

void ShardedPlan::exchange_cache(void* cache, cudaStream_t stream) const {
  const std::int64_t frames = impl_->geometry.cached_frames;
  if (frames == 0) throw_invalid("the problem has no cache; legal: cached_frames > 0");
  if (impl_->spec.axis == ShardAxis::frames) {
    throw_invalid("the cache is rank 0's where frames are cut; legal: axis = height, width");
  }
  if (impl_->spec.axis == ShardAxis::batch) return;
  telling(impl_->communicator.impl(), [&] {
    exchange_halos(impl_->communicator, impl_->input_tensor(cache, frames), impl_->halo_begin,
                   impl_->halo_end, stream);
  });
}

PackedFilter ShardedPlan::pack_filter(const void* filter, FilterLayout layout,
                                      cudaStream_t stream) const {
  return impl_->whole->pack_filter(filter, layout, stream);
}

std::size_t ShardedPlan::workspace_bytes() const {
  return impl_->staging > 0 ? aligned(impl_->kernel_workspace) + impl_->staging
                            : impl_->kernel_workspace;
}
const ShardLayout& ShardedPlan::layout() const {
  return impl_->mine();
}
const std::vector<ShardLayout>& ShardedPlan::layouts() const {
  return impl_->layouts;
}
const Plan& ShardedPlan::plan() const {
  return *impl_->whole;
}
ShardOverlap ShardedPlan::overlap() const {
  return impl_->overlap;
}
std::size_t ShardedPlan::sent_bytes() const {
  std::size_t bytes = 0;
  for (const Move& send : impl_->moves.sends) bytes += send.total();
  return bytes;
}

const char* to_string(ShardOverlap overlap) noexcept {
  switch (overlap) {
    case ShardOverlap::automatic:
      return "automatic";
    case ShardOverlap::none:
      return "none";
    case ShardOverlap::interior:
      return "interior";
  }
  return "unknown overlap";
}

ShardedPlan plan_shard(const ProblemShape& problem, const PlanOptions& options,
                       const Communicator& communicator, const ShardSpec& spec,
                       ShardOverlap overlap) {
  std::shared_ptr<ShardedPlan::Impl> impl;
  std::string fault;
  Status status = Status::ok;
  try {
    if (spec.count != communicator.count()) {
      throw_invalid("count = ", spec.count, ", but the communicator has ", communicator.count(),
                    " ranks; legal: the same");
    }
    impl = std::make_shared<ShardedPlan::Impl>(problem, options, communicator, spec, overlap);
  } catch (const Error& error) {
    fault = error.what();
    status = error.status();
  } catch (const std::bad_alloc&) {
    fault = "out of memory";
    status = Status::out_of_memory;
  }
  // NOTE: a rank with a fault tells the others, which would wait for it.
  if (communicator.count() > 1) {
    Transport& transport = communicator.impl();
    try {
      telling(transport, [&] {
        transport.agree(describe(problem, options, spec), fault, status);
        impl->reserve();
      });
    } catch (const Error&) {
      if (fault.empty()) throw;
    }
  }
  if (!fault.empty()) throw Error(status, fault);
  return ShardedPlan(std::move(impl));
}

}  // namespace convoy
