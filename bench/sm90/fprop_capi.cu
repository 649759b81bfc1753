// SPDX-License-Identifier: Apache-2.0
//
// A C door to the sm90 forward kernels, one instance at a time, for bench/sm90/fprop.py: runs any
// instance on any problem so that configurations can be compared with each other and with peers.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "convoy/error.hpp"
#include "kernels/sm90/host.hpp"
#include "kernels/sm90/model.hpp"

namespace {
using convoy::sm90::Instance;

// An instance bound to a problem, as the model sees it and as it is launched.
struct BenchPlan {
  convoy::sm90::Tiling tiling;
  convoy::sm90::Launch launch;
};

const Instance& instance_at(int index) {
  return convoy::sm90::instances()[static_cast<std::size_t>(index)];
}

convoy::ConvGeometry geometry_from(const std::int64_t* v) {
  convoy::ConvGeometry g;
  g.rank = 3;
  g.batch = v[0];
  g.cached_frames = v[1];
  g.in = {v[2], v[3], v[4]};
  g.in_channels = v[5];
  g.out_channels = v[6];
  for (int i = 0; i < 3; ++i) {
    g.filter[i] = v[7 + i];
    g.pad_begin[i] = v[10 + i];
    g.pad_end[i] = v[13 + i];
    g.stride[i] = v[16 + i];
    g.dilation[i] = v[19 + i];
  }
  g.upsample = v[22];
  g.upsample_folding = convoy::UpsampleFolding::fast;  // As fprop.py packs it.
  for (int i = 0; i < 3; ++i) {
    const std::int64_t reach = g.dilation[i] * (g.filter[i] - 1) + 1;
    g.out[i] = (g.seen()[i] + g.pad_begin[i] + g.pad_end[i] - reach) / g.stride[i] + 1;
  }
  return g;
}

int fail(char* error, const std::string& message) {
  std::snprintf(error, 512, "%s", message.c_str());
  return 1;
}
}  // namespace

extern "C" {

int convoy_sm90_count() {
  return static_cast<int>(convoy::sm90::instances().size());
}

/// "bf16>bf16 128x128_pingpong_halo_bf16"
void convoy_sm90_name(int instance, char* text) {
  const Instance& i = instance_at(instance);
  const std::string name = convoy::sm90::name_of(i).substr(std::strlen("sm90_fprop_"));
  std::snprintf(text, 128, "%s>%s %s", convoy::to_string(i.config.in),
                convoy::to_string(i.config.out), name.c_str());
}

/// 23 values: batch, cached frames, D, H, W, C, K, filter, pad_begin, pad_end, stride, dilation (3
/// each), upsample. Returns null and the reason in `error` (512 bytes) where refused.
void* convoy_sm90_plan(int instance, const std::int64_t* problem, int splits, int multiprocessors,
                       char* error) {
  try {
    const Instance& i = instance_at(instance);
    const convoy::ConvGeometry g = geometry_from(problem);
    convoy::sm90::LaunchOptions options{.packed_filter = g.upsample == 2,
                                        .multiprocessors = multiprocessors};
    options.splits = splits == 0 ? convoy::sm90::best_split(i, g, options).splits : splits;
    convoy::sm90::prepare(i);
    return new BenchPlan{convoy::sm90::plan_tiling(i, g, options),
                         convoy::sm90::plan_launch(i, g, options)};
  } catch (const std::exception& e) {
    fail(error, e.what());
    return nullptr;
  }
}

void convoy_sm90_plan_text(const void* plan, char* text) {
  const convoy::sm90::Tiling& tiling = static_cast<const BenchPlan*>(plan)->tiling;
  const convoy::sm90::Params& p = tiling.params;
  std::snprintf(text, 256, "loader %d tiles %d cluster %d band %d patch %d halo %dx%d smem %d",
                static_cast<int>(p.loader), tiling.num_tiles, tiling.cluster_size, p.band,
                p.patch_columns, p.halo_height, p.halo_width, tiling.config.shared_bytes());
}

/// Override the band, for experiments.
void convoy_sm90_set_band(void* plan, int band) {
  auto& p = *static_cast<BenchPlan*>(plan);
  convoy::sm90::set_band(p.tiling.params, band);
  convoy::sm90::set_band(p.launch.params, band);
}

#ifdef CONVOY_SM90_TRACE
/// Where the launches of a plan leave their stamps: kTraceSlots of 8 bytes a CTA.
void convoy_sm90_set_trace(void* plan, void* stamps) {
  static_cast<BenchPlan*>(plan)->launch.params.trace = static_cast<long long*>(stamps);
}
#endif

double convoy_sm90_estimate(const void* plan, const std::int64_t* problem, int multiprocessors) {
  return convoy::sm90::estimate_us(geometry_from(problem),
                                   static_cast<const BenchPlan*>(plan)->tiling, multiprocessors);
}

void convoy_sm90_destroy(void* plan) {
  delete static_cast<BenchPlan*>(plan);
}

/// epilogue: scale, beta, parameter_a, parameter_b; kinds: bias dtype, activation, order, rounding.
int convoy_sm90_run(const void* plan, void* output, const void* activation, const void* cache,
                    const void* filter, const void* bias, const void* residual, const float* values,
                    const int* kinds, void* stream, char* error) {
  try {
    convoy::RunPointers pointers;
    pointers.output = output;
    pointers.activation = activation;
    pointers.cache = cache;
    pointers.filter = filter;
    pointers.epilogue.bias = bias;
    pointers.epilogue.residual = residual;
    pointers.epilogue.scale = values[0];
    pointers.epilogue.beta = values[1];
    pointers.epilogue.parameter_a = values[2];
    pointers.epilogue.parameter_b = values[3];
    pointers.epilogue.bias_dtype = static_cast<convoy::DType>(kinds[0]);
    pointers.epilogue.activation = static_cast<convoy::Activation>(kinds[1]);
    pointers.epilogue.order = static_cast<convoy::ResidualOrder>(kinds[2]);
    pointers.epilogue.rounding = static_cast<convoy::EpilogueRounding>(kinds[3]);
    const convoy::NoComputeOp compute;
    const convoy::NoStoreOp store;
    convoy::sm90::launch(static_cast<const BenchPlan*>(plan)->launch, pointers, &compute, &store,
                         static_cast<cudaStream_t>(stream));
    return 0;
  } catch (const std::exception& e) {
    return fail(error, e.what());
  }
}
}
