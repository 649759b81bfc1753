// SPDX-License-Identifier: Apache-2.0
#include "kernels/composed/joined_groups.hpp"

#include "core/text.hpp"
#include "kernels/common/launch.hpp"
#include "kernels/composed/filter_copy.hpp"
#include "kernels/composed/threads.hpp"

namespace convoy::composed {
namespace {

// Widths of groups, in channels.
constexpr std::int64_t kMostJoined = 32;  // That are joined at all.
constexpr std::int64_t kLeast = 32;       // Joined: narrower ones leave tiles empty,
constexpr std::int64_t kMost = 192;       // wider ones are zeros for the most part.
constexpr int kWidths = 3;                // The narrowest that are tried.

// A filter [K, taps, C / groups] as one of groups that are `joined` of those.
struct JoinedFilter {
  std::int64_t elements;       // Of the joined one.
  std::int64_t group_filters;  // K / groups, joined or not the same filters.
  int taps;
  int width, joined;  // C / groups as asked, groups in one.
};

// A thread writes one element, neighbouring threads neighbouring ones.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    join_filter_kernel(Word* to, const Word* from, const __grid_constant__ JoinedFilter p) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  const int joined_width = p.width * p.joined;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < p.elements;
       i += step) {
    const std::int64_t row = i / joined_width;  // A tap of a filter.
    const auto slot = static_cast<int>(row / p.taps / p.group_filters % p.joined);
    const int channel = static_cast<int>(i - row * joined_width) - slot * p.width;
    const bool is_own = channel >= 0 && channel < p.width;
    to[i] = is_own ? from[row * p.width + channel] : Word{0};
  }
}

PlanRequest joined_request(const PlanRequest& request, std::int64_t joined) {
  PlanRequest inner = request;
  inner.geometry.groups /= joined;
  return inner;
}

class JoinedGroupsPlan final : public FilterCopyPlan {
 public:
  JoinedGroupsPlan(const PlanRequest& request, std::int64_t joined, const KernelCandidate& inner)
      : FilterCopyPlan(request, text("joined_groups_", joined),
                       request.geometry.filter_elements() * joined,
                       inner.make(joined_request(request, joined))),
        joined_(joined) {}

 private:
  void make_filter(void* to, const void* dense, cudaStream_t stream) const override {
    const ConvGeometry& g = request_.geometry;
    const JoinedFilter p{.elements = g.filter_elements() * joined_,
                         .group_filters = g.group_filters(),
                         .taps = static_cast<int>(g.taps()),
                         .width = static_cast<int>(g.group_channels()),
                         .joined = static_cast<int>(joined_)};
    const auto launch = [&]<typename Word>(Word* words) {
      launch_kernel(join_filter_kernel<Word>,
                    {.name = "join_filter",
                     .grid = blocks_for(p.elements, kThreads),
                     .block = kThreads,
                     .stream = stream},
                    words, static_cast<const Word*>(dense), p);
    };
    if (size_of(request_.dtype) == 2) {
      launch(static_cast<std::uint16_t*>(to));
    } else {
      launch(static_cast<std::uint32_t*>(to));
    }
  }

  const std::int64_t joined_;
};

class JoinedGroupsCandidate final : public KernelCandidate {
 public:
  explicit JoinedGroupsCandidate(InnerKernels inner) : inner_(std::move(inner)) {}

  std::string name() const override { return "joined_groups"; }
  Device device() const override { return Device::cuda; }
  bool takes_input_pitches() const override { return true; }

  Judgement judge(const PlanRequest& request) const override {
    const ConvGeometry& g = request.geometry;
    if (g.groups == 1) return "groups = 1; legal: more";
    if (g.group_channels() == 1 && g.group_filters() == 1) {
      return "one channel a group; legal: more (depthwise kernels take those)";
    }
    if (g.group_channels() > kMostJoined) {
      return text("C / groups = ", g.group_channels(), "; legal: at most ", kMostJoined,
                  "; nearest: ", kMostJoined);
    }
    const Form form = choose(request);
    if (form.inner.kernel == nullptr) return form.inner.reason;
    return form.estimated_us;
  }

  std::unique_ptr<ExecutablePlan> make(const PlanRequest& request) const override {
    const Form form = choose(request);
    if (form.inner.kernel == nullptr) throw Error(Status::unsupported, form.inner.reason);
    return std::make_unique<JoinedGroupsPlan>(request, form.joined, *form.inner.kernel);
  }

 private:
  struct Form {
    std::int64_t joined = 0;
    InnerKernel inner;
    double estimated_us = 0.0;
  };

  // Of the narrowest groups that are wide enough, those that take the least time.
  Form choose(const PlanRequest& request) const {
    const ConvGeometry& g = request.geometry;
    Form best;
    best.inner.reason = text("groups = ", g.groups, " of ", g.group_channels(),
                             " channels; legal: some that join to ", kLeast, " to ", kMost);
    int tried = 0;
    for (std::int64_t joined = 2; joined <= g.groups && tried < kWidths; ++joined) {
      const std::int64_t width = joined * g.group_channels();
      if (width > kMost) break;
      if (width < kLeast || g.groups % joined != 0) continue;
      ++tried;
      const InnerKernel inner = inner_.choose(joined_request(request, joined));
      if (inner.kernel == nullptr) {
        if (best.inner.kernel == nullptr) best.inner.reason = inner.reason;
        continue;
      }
      const double us = estimate_us(request, joined, inner);
      if (best.inner.kernel == nullptr || us < best.estimated_us) best = {joined, inner, us};
    }
    return best;
  }

  static double estimate_us(const PlanRequest& request, std::int64_t joined,
                            const InnerKernel& inner) {
    // NOTE: of 559 layers on an H200 the median.
    constexpr double kDoubt = 1.02;
    return kDoubt * inner.estimated_us +
           filter_copy_us(request, request.geometry.filter_elements() * joined);
  }

  const InnerKernels inner_;
};

}  // namespace

std::unique_ptr<KernelCandidate> make_joined_groups_candidate(InnerKernels inner) {
  return std::make_unique<JoinedGroupsCandidate>(std::move(inner));
}

}  // namespace convoy::composed
