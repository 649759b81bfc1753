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
using convoy::sm90::FpropPlan;

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
  return static_cast<int>(convoy::sm90::fprop_instances().size());
}

void convoy_sm90_name(int instance, char* text) {
  const auto& i = convoy::sm90::fprop_instances()[static_cast<std::size_t>(instance)];
  static const char* const kTypes[] = {"bf16", "fp16", "fp32"};
  std::snprintf(text, 128, "%s>%s %s", kTypes[static_cast<int>(i.in)],
                kTypes[static_cast<int>(i.out)], i.name().c_str());
}

/// 23 values: batch, cached frames, D, H, W, C, K, filter, pad_begin, pad_end, stride, dilation (3
/// each), upsample. Returns null and the reason in `error` (512 bytes) where refused.
void* convoy_sm90_plan(int instance, const std::int64_t* problem, int splits, int multiprocessors,
                       char* error) {
  try {
    const auto& i = convoy::sm90::fprop_instances()[static_cast<std::size_t>(instance)];
    const convoy::ConvGeometry g = geometry_from(problem);
    const bool packed = g.upsample == 2;
    convoy::sm90::prepare_fprop(i);
    return new FpropPlan(splits == 0
                             ? convoy::sm90::best_plan(g, i, packed, multiprocessors).plan
                             : convoy::sm90::plan_fprop(g, i, packed, multiprocessors, splits));
  } catch (const std::exception& e) {
    fail(error, e.what());
    return nullptr;
  }
}

void convoy_sm90_plan_text(const void* plan, char* text) {
  const auto& p = *static_cast<const FpropPlan*>(plan);
  std::snprintf(text, 256, "loader %d tiles %d cluster %d band %d patch %d halo %dx%d smem %d",
                static_cast<int>(p.params.loader), p.num_tiles, p.cluster_size, p.params.band,
                p.params.patch_columns, p.params.halo_height, p.params.halo_width,
                p.instance.shared_bytes);
}

/// Override the band, for experiments.
void convoy_sm90_set_band(void* plan, int band) {
  convoy::sm90::set_band(static_cast<FpropPlan*>(plan)->params, band);
}

#ifdef CONVOY_SM90_TRACE
/// Where the launches of a plan leave their stamps: kTraceSlots of 8 bytes a CTA.
void convoy_sm90_set_trace(void* plan, void* stamps) {
  static_cast<FpropPlan*>(plan)->params.trace = static_cast<long long*>(stamps);
}
#endif

double convoy_sm90_estimate(const void* plan, const std::int64_t* problem, int multiprocessors) {
  return convoy::sm90::estimate_us(geometry_from(problem), *static_cast<const FpropPlan*>(plan),
                                   multiprocessors);
}

void convoy_sm90_destroy(void* plan) {
  delete static_cast<FpropPlan*>(plan);
}

/// epilogue: scale, beta, parameter_a, parameter_b; kinds: bias dtype, activation, order, rounding.
int convoy_sm90_run(const void* plan, void* output, const void* activation, const void* cache,
                    const void* filter, const void* bias, const void* residual, const float* values,
                    const int* kinds, int multiprocessors, void* stream, char* error) {
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
    convoy::sm90::launch_fprop(*static_cast<const FpropPlan*>(plan), pointers, multiprocessors,
                               static_cast<cudaStream_t>(stream));
    return 0;
  } catch (const std::exception& e) {
    return fail(error, e.what());
  }
}
}
