// SPDX-License-Identifier: Apache-2.0
// The C interface of several GPUs: translates structs and exceptions, and decides nothing.
#include <memory>

#include "dispatch/c_api.hpp"

struct convoy_communicator_s {
  convoy::Communicator communicator;
};
struct convoy_shard_plan_s {
  convoy::ShardedPlan plan;
};

namespace convoy::c_api {
namespace {

convoy_shard_options_t default_shard_options() {
  convoy_shard_options_t o{};
  o.struct_size = sizeof(o);
  return o;
}

std::chrono::milliseconds timeout_of(int64_t milliseconds) {
  if (milliseconds < 1) {
    throw_invalid("timeout_ms = ", milliseconds, " is not legal; legal: at least 1; nearest: 1");
  }
  return std::chrono::milliseconds(milliseconds);
}

template <typename Shape>
convoy_status_t make_shard_plan(const Shape* shape, const convoy_plan_options_t* options,
                                const convoy_shard_options_t* given,
                                convoy_communicator_t communicator, convoy_shard_plan_t* result) {
  return guarded([&] {
    *require(result, "plan") = nullptr;
    const Communicator& ranks = require(communicator, "communicator")->communicator;
    convoy_shard_options_t cut = default_shard_options();
    if (given != nullptr) cut = adopt(given, cut, "cut");
    ShardSpec spec{.count = ranks.count(),
                   .axis = static_cast<ShardAxis>(cut.axis),
                   .input_margin = cut.input_margin,
                   .output_margin = cut.output_margin};
    if (cut.starts != nullptr) spec.starts.assign(cut.starts, cut.starts + ranks.count());
    if (cut.overlap < CONVOY_OVERLAP_AUTO || cut.overlap > CONVOY_OVERLAP_INTERIOR) {
      throw_invalid("overlap = ", cut.overlap,
                    " is not legal; legal: automatic (0), none (1), interior (2)");
    }
    *result = new convoy_shard_plan_s{plan_shard(problem_of(shape), options_of(options), ranks,
                                                 spec, static_cast<ShardOverlap>(cut.overlap))};
  });
}

}  // namespace
}  // namespace convoy::c_api

using namespace convoy;
using namespace convoy::c_api;

extern "C" {

convoy_status_t convoy_communicators_in_process(int32_t count, int64_t timeout_ms,
                                                convoy_communicator_t* ranks) {
  return guarded([&] {
    require(ranks, "ranks");
    for (int32_t i = 0; i < count; ++i) ranks[i] = nullptr;
    std::vector<std::unique_ptr<convoy_communicator_s>> made;
    for (Communicator& rank : Communicator::in_process(count, timeout_of(timeout_ms))) {
      // NOTE: braces: clang before 16 makes no aggregate in parentheses, as make_unique does.
      made.push_back(
          std::unique_ptr<convoy_communicator_s>(new convoy_communicator_s{std::move(rank)}));
    }
    for (size_t i = 0; i < made.size(); ++i) ranks[i] = made[i].release();
  });
}
convoy_status_t convoy_nccl_id(char* id) {
  return guarded([&] {
    const NcclId made = Communicator::nccl_id();
    std::copy(made.begin(), made.end(), require(id, "id"));
  });
}
convoy_status_t convoy_communicator_nccl(const char* id, int32_t rank, int32_t count,
                                         int64_t timeout_ms, convoy_communicator_t* communicator) {
  return guarded([&] {
    *require(communicator, "communicator") = nullptr;
    NcclId given{};
    std::copy_n(require(id, "id"), given.size(), given.begin());
    *communicator =
        new convoy_communicator_s{Communicator::nccl(given, rank, count, timeout_of(timeout_ms))};
  });
}
convoy_status_t convoy_communicator_wrap_nccl(void* comm, int64_t timeout_ms,
                                              convoy_communicator_t* communicator) {
  return guarded([&] {
    *require(communicator, "communicator") = nullptr;
    *communicator = new convoy_communicator_s{Communicator::nccl(comm, timeout_of(timeout_ms))};
  });
}
void convoy_communicator_destroy(convoy_communicator_t communicator) {
  delete communicator;
}
convoy_status_t convoy_communicator_rank(convoy_communicator_t communicator, int32_t* rank,
                                         int32_t* count) {
  return guarded([&] {
    const Communicator& c = require(communicator, "communicator")->communicator;
    if (rank != nullptr) *rank = c.rank();
    if (count != nullptr) *count = c.count();
  });
}
convoy_status_t convoy_communicator_synchronize(convoy_communicator_t communicator, void* stream) {
  return guarded(
      [&] { require(communicator, "communicator")->communicator.synchronize(stream_of(stream)); });
}

void convoy_shard_options_init(convoy_shard_options_t* options, size_t struct_size) {
  initialise(options, default_shard_options(), struct_size);
}
convoy_status_t convoy_plan_shard_conv2d(const convoy_conv2d_shape_t* shape,
                                         const convoy_plan_options_t* options,
                                         const convoy_shard_options_t* cut,
                                         convoy_communicator_t communicator,
                                         convoy_shard_plan_t* plan) {
  return make_shard_plan(shape, options, cut, communicator, plan);
}
convoy_status_t convoy_plan_shard_conv3d(const convoy_conv3d_shape_t* shape,
                                         const convoy_plan_options_t* options,
                                         const convoy_shard_options_t* cut,
                                         convoy_communicator_t communicator,
                                         convoy_shard_plan_t* plan) {
  return make_shard_plan(shape, options, cut, communicator, plan);
}
void convoy_shard_plan_destroy(convoy_shard_plan_t plan) {
  delete plan;
}
convoy_status_t convoy_shard_layout(convoy_shard_plan_t plan, int32_t rank,
                                    convoy_shard_layout_t* layout) {
  return guarded([&] {
    const auto& all = require(plan, "plan")->plan.layouts();
    if (rank < 0 || static_cast<size_t>(rank) >= all.size()) {
      throw_invalid("rank = ", rank, " is not legal; legal: 0 to ", all.size() - 1);
    }
    const ShardRange &in = all[static_cast<size_t>(rank)].input,
                     &out = all[static_cast<size_t>(rank)].output;
    hand_back(layout,
              convoy_shard_layout_t{0, in.begin, in.end, in.margin_begin, in.margin_end, out.begin,
                                    out.end, out.margin_begin, out.margin_end},
              "layout");
  });
}
convoy_status_t convoy_shard_workspace_bytes(convoy_shard_plan_t plan, size_t* bytes) {
  return guarded([&] { *require(bytes, "bytes") = require(plan, "plan")->plan.workspace_bytes(); });
}
convoy_status_t convoy_shard_pack_filter(convoy_shard_plan_t plan, const void* filter,
                                         int32_t layout, void* stream,
                                         convoy_packed_filter_t* packed) {
  return guarded([&] {
    *require(packed, "packed") = nullptr;
    *packed = new convoy_packed_filter_s{
        require(plan, "plan")
            ->plan.pack_filter(filter, static_cast<FilterLayout>(layout), stream_of(stream))};
  });
}
convoy_status_t convoy_shard_run(convoy_shard_plan_t plan, const convoy_run_arguments_t* arguments,
                                 int32_t halos_filled, void* stream) {
  return guarded([&] {
    const RunArguments given = arguments_of(arguments);
    require(plan, "plan")
        ->plan.run({.output = TensorView(given.output.data),
                    .activation = const_cast<void*>(given.activation.data),
                    .halos_filled = halos_filled != 0,
                    .filter = given.filter,
                    .epilogue = given.epilogue,
                    .prologue = given.prologue,
                    .cache = ConstTensorView(given.cache.data),
                    .next_cache = TensorView(given.next_cache.data),
                    .workspace = given.workspace},
                   stream_of(stream));
  });
}
convoy_status_t convoy_shard_exchange(convoy_shard_plan_t plan, void* activation, void* stream) {
  return guarded([&] {
    require(plan, "plan")->plan.exchange(require(activation, "activation"), stream_of(stream));
  });
}
convoy_status_t convoy_shard_exchange_cache(convoy_shard_plan_t plan, void* cache, void* stream) {
  return guarded([&] {
    require(plan, "plan")->plan.exchange_cache(require(cache, "cache"), stream_of(stream));
  });
}

}  // extern "C"
