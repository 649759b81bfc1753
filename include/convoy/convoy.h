/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Convoy's C interface: the same operations as convoy.hpp, without C++ types.
 *
 *   convoy_conv2d_shape_t shape;
 *   convoy_conv2d_shape_init(&shape, sizeof(shape));
 *   shape.in_height = 256; ...
 *   convoy_plan_options_t options;
 *   convoy_plan_options_init(&options, sizeof(options));
 *   convoy_plan_t plan;
 *   if (convoy_plan_conv2d(&shape, &options, &plan) != CONVOY_OK) puts(convoy_last_error());
 *   ...
 *   convoy_run(plan, &arguments, stream);
 *   convoy_plan_destroy(plan);
 *
 * Every struct that a caller fills starts with `struct_size`, which its init function sets together
 * with the defaults. Fields are only ever added at the end: a library that is newer than the caller
 * takes the defaults for those the caller does not know; a library that is older refuses a struct
 * whose unknown fields are not zero.
 *
 * Functions that return convoy_status_t leave a text that names the condition, the value got, what
 * is legal and the nearest supported choice in convoy_last_error(). Handles may be used from
 * several threads at once, and destroyed once.
 */
#ifndef CONVOY_CONVOY_H
#define CONVOY_CONVOY_H

#include <stddef.h>
#include <stdint.h>

#include "convoy/version.hpp" /* Macros only. */

#ifdef __cplusplus
extern "C" {
#endif

typedef enum convoy_status {
  CONVOY_OK = 0,
  CONVOY_INVALID_ARGUMENT = 1, /* The request makes no sense on any backend. */
  CONVOY_UNSUPPORTED = 2,      /* Well-formed, but no kernel here can run it. */
  CONVOY_OUT_OF_MEMORY = 3,
  CONVOY_LAUNCH_FAILURE = 4,
  CONVOY_IO_ERROR = 5,
  CONVOY_INTERNAL = 6
} convoy_status_t;

/* Values as in types.hpp and epilogue.hpp, which say what each means. The struct fields that hold
 * them are int32_t, whose size does not depend on the compiler. */
enum { CONVOY_BF16 = 0, CONVOY_FP16 = 1, CONVOY_FP32 = 2 };
enum { CONVOY_NHWC = 0, CONVOY_NDHWC = 1 };
enum {
  CONVOY_KRSC = 0,
  CONVOY_KCRS = 1,
  CONVOY_RSCF = 2,
  CONVOY_KTRSC = 3,
  CONVOY_KCTRS = 4,
  CONVOY_TRSCF = 5
};
enum { CONVOY_PAD_ZERO = 0, CONVOY_PAD_REPLICATE = 1, CONVOY_PAD_REFLECT = 2 };
enum { CONVOY_DEVICE_AUTO = 0, CONVOY_DEVICE_CPU = 1, CONVOY_DEVICE_CUDA = 2 };
enum {
  CONVOY_ACTIVATION_NONE = 0,
  CONVOY_ACTIVATION_RELU = 1,
  CONVOY_ACTIVATION_LEAKY_RELU = 2,
  CONVOY_ACTIVATION_GELU = 3,
  CONVOY_ACTIVATION_GELU_TANH = 4,
  CONVOY_ACTIVATION_SILU = 5,
  CONVOY_ACTIVATION_SIGMOID = 6,
  CONVOY_ACTIVATION_TANH = 7,
  CONVOY_ACTIVATION_HARDSWISH = 8,
  CONVOY_ACTIVATION_CLAMP = 9
};
enum { CONVOY_RESIDUAL_AFTER_ACTIVATION = 0, CONVOY_RESIDUAL_BEFORE_ACTIVATION = 1 };
enum { CONVOY_ROUND_ONCE = 0, CONVOY_ROUND_EACH_STEP = 1 };

/* A 2-D convolution: activation [N, H, W, C], filter [K, R, S, C / groups], output [N, P, Q, K].
 * Defaults: batch, filter, stride, dilation, groups and upsample 1, everything else 0. */
typedef struct convoy_conv2d_shape {
  size_t struct_size;
  int64_t batch, in_height, in_width, in_channels, out_channels;
  int64_t filter_h, filter_w;
  int64_t pad_top, pad_bottom, pad_left, pad_right;
  int64_t stride_h, stride_w;
  int64_t dilation_h, dilation_w;
  int64_t groups;
  int64_t upsample; /* 1, or 2: nearest-neighbour upsampling before the convolution. */
  int32_t pad_mode;
  int32_t reserved;
} convoy_conv2d_shape_t;

/* A 3-D convolution: activation [N, D, H, W, C], filter [K, T, R, S, C / groups], output
 * [N, Z, P, Q, K]. Arrays are in the order depth, height, width. Defaults as in 2-D. */
typedef struct convoy_conv3d_shape {
  size_t struct_size;
  int64_t batch, in_depth, in_height, in_width, in_channels, out_channels;
  int64_t filter[3];
  int64_t pad_begin[3], pad_end[3];
  int64_t stride[3], dilation[3];
  int64_t groups;
  int64_t cached_frames; /* Frames given as convoy_run_arguments.cache, in front of the new ones. */
  int32_t pad_mode[3];
  int32_t reserved;
} convoy_conv3d_shape_t;

/* What follows the convolution. The fields up to `rounding` choose the kernel and must be the same
 * in convoy_plan_options (where only bias and residual being null or not matters: use any non-null
 * address) and in convoy_run_arguments. Defaults: scale 1, beta 1, bias fp32, all else 0 or null.
 */
typedef struct convoy_epilogue {
  size_t struct_size;
  const void* bias;     /* [K] of bias_dtype, or null. */
  const void* residual; /* Shape and type of the output, or null; may be the output itself. */
  int32_t bias_dtype;
  int32_t activation;
  int32_t residual_order;
  int32_t rounding;
  float scale;
  float beta;
  float parameter_a; /* leaky_relu: slope; clamp: lower bound. */
  float parameter_b; /* clamp: upper bound. */
} convoy_epilogue_t;

/* Defaults: bf16, output of the same type, no epilogue, automatic device. */
typedef struct convoy_plan_options {
  size_t struct_size;
  int32_t dtype;
  int32_t output_dtype; /* -1: as dtype. */
  int32_t device;
  int32_t device_index;  /* -1: the current CUDA device. */
  int32_t packed_filter; /* Not 0: the filter will come packed. */
  int32_t reserved;
  const convoy_epilogue_t* epilogue; /* Null: none. */
  const char* kernel;                /* Null or "": dispatch chooses. */
} convoy_plan_options_t;

enum { CONVOY_RMS_EPSILON_ADDED = 0, CONVOY_RMS_EPSILON_NORM_FLOOR = 1 };

typedef struct convoy_plan_s* convoy_plan_t;
typedef struct convoy_norm_plan_s* convoy_norm_plan_t;
typedef struct convoy_packed_filter_s* convoy_packed_filter_t;
typedef struct convoy_candidates_s* convoy_candidates_t;

/* A tensor's type, layout (CONVOY_NHWC with 4 extents or CONVOY_NDHWC with 5) and extents. */
typedef struct convoy_tensor_shape {
  int32_t dtype;
  int32_t layout;
  int64_t extents[5];
} convoy_tensor_shape_t;

/* All memory is on the plan's device, 16-byte aligned. A shape pointer, where not null, is checked
 * against the plan. */
typedef struct convoy_run_arguments {
  size_t struct_size;
  void* output;
  const void* activation;
  const void* filter;                   /* Dense KRSC / KTRSC; or null and */
  convoy_packed_filter_t packed_filter; /* the filter packed by convoy_pack_filter. */
  const void* cache;                    /* With cached_frames > 0. */
  void* next_cache;                     /* Null where the next cache is not wanted. */
  void* workspace;                      /* convoy_plan_workspace_bytes() bytes. */
  const convoy_epilogue_t* epilogue;    /* Null: none. */
  const convoy_tensor_shape_t* output_shape;
  const convoy_tensor_shape_t* activation_shape;
  const convoy_tensor_shape_t* residual_shape;
  const convoy_tensor_shape_t* cache_shape;
  const convoy_tensor_shape_t* next_cache_shape;
} convoy_run_arguments_t;

/* Strings live as long as the plan. */
typedef struct convoy_plan_info {
  size_t struct_size;
  const char* kernel;
  const char* backend;
  const char* problem;
  double flops;
  double min_bytes;
} convoy_plan_info_t;

/* One kernel of the library and why it cannot run a problem ("": it can). Strings live as long as
 * the list. */
typedef struct convoy_candidate {
  size_t struct_size;
  const char* kernel;
  const char* backend;
  const char* reason;
  double estimated_us;
  int32_t chosen;
  int32_t reserved;
} convoy_candidate_t;

/* A norm of a dense channels-last tensor (norm.hpp says what each computes). GroupNorm: `pixels` of
 * one image, `groups`; RMSNorm: `pixels` of all images together, `batch` 1, `rms_epsilon`.
 * Defaults: batch 1, groups 1, epsilon 1e-5, everything else 0. */
typedef struct convoy_norm_shape {
  size_t struct_size;
  int64_t batch, pixels, channels, groups;
  float epsilon;
  int32_t rms_epsilon; /* CONVOY_RMS_EPSILON_... */
} convoy_norm_shape_t;

/* Defaults: bf16, scale and bias of fp32, no activation, automatic device. */
typedef struct convoy_norm_options {
  size_t struct_size;
  int32_t dtype;
  int32_t parameter_dtype;
  int32_t scale; /* Not 0: a run brings scale[C]. */
  int32_t bias;  /* Not 0: a run brings bias[C]. */
  int32_t activation;
  int32_t device;
  int32_t device_index; /* -1: the current CUDA device. */
  int32_t reserved;
} convoy_norm_options_t;

/* All memory is on the plan's device, 16-byte aligned. The output may be the input itself. */
typedef struct convoy_norm_arguments {
  size_t struct_size;
  void* output;
  const void* input;
  const void* scale;
  const void* bias;
  void* workspace;                /* convoy_norm_workspace_bytes() bytes. */
  float parameter_a, parameter_b; /* As in convoy_epilogue. */
} convoy_norm_arguments_t;

/* Set struct_size and the defaults. `struct_size` is the caller's sizeof. */
void convoy_conv2d_shape_init(convoy_conv2d_shape_t* shape, size_t struct_size);
void convoy_conv3d_shape_init(convoy_conv3d_shape_t* shape, size_t struct_size);
void convoy_epilogue_init(convoy_epilogue_t* epilogue, size_t struct_size);
void convoy_plan_options_init(convoy_plan_options_t* options, size_t struct_size);
void convoy_run_arguments_init(convoy_run_arguments_t* arguments, size_t struct_size);

/* Plan a convolution. `options` may be null. On failure `*plan` is null. */
convoy_status_t convoy_plan_conv2d(const convoy_conv2d_shape_t* shape,
                                   const convoy_plan_options_t* options, convoy_plan_t* plan);
convoy_status_t convoy_plan_conv3d(const convoy_conv3d_shape_t* shape,
                                   const convoy_plan_options_t* options, convoy_plan_t* plan);
void convoy_plan_destroy(convoy_plan_t plan); /* Null is ignored. */

/* Enqueue on `stream`, a cudaStream_t; the CPU backend ignores it and runs before returning. */
convoy_status_t convoy_run(convoy_plan_t plan, const convoy_run_arguments_t* arguments,
                           void* stream);

/* Shapes of the plan's tensors, and the bytes of its workspace. */
convoy_status_t convoy_plan_output_shape(convoy_plan_t plan, convoy_tensor_shape_t* shape);
convoy_status_t convoy_plan_activation_shape(convoy_plan_t plan, convoy_tensor_shape_t* shape);
convoy_status_t convoy_plan_cache_shape(convoy_plan_t plan, convoy_tensor_shape_t* shape);
convoy_status_t convoy_plan_next_cache_shape(convoy_plan_t plan, convoy_tensor_shape_t* shape);
convoy_status_t convoy_plan_workspace_bytes(convoy_plan_t plan, size_t* bytes);
/* Set info->struct_size first. */
convoy_status_t convoy_plan_info(convoy_plan_t plan, convoy_plan_info_t* info);

/* Repack a dense filter of any layout into the plan's format, in its device's memory. */
convoy_status_t convoy_pack_filter(convoy_plan_t plan, const void* filter, int32_t layout,
                                   void* stream, convoy_packed_filter_t* packed);
void convoy_packed_filter_destroy(convoy_packed_filter_t packed); /* Null is ignored. */

/* Norms: plan, enqueue on `stream` (a cudaStream_t), ask. `options` may be null. */
void convoy_norm_shape_init(convoy_norm_shape_t* shape, size_t struct_size);
void convoy_norm_options_init(convoy_norm_options_t* options, size_t struct_size);
void convoy_norm_arguments_init(convoy_norm_arguments_t* arguments, size_t struct_size);
convoy_status_t convoy_plan_group_norm(const convoy_norm_shape_t* shape,
                                       const convoy_norm_options_t* options,
                                       convoy_norm_plan_t* plan);
convoy_status_t convoy_plan_rms_norm(const convoy_norm_shape_t* shape,
                                     const convoy_norm_options_t* options,
                                     convoy_norm_plan_t* plan);
void convoy_norm_plan_destroy(convoy_norm_plan_t plan); /* Null is ignored. */
convoy_status_t convoy_norm_run(convoy_norm_plan_t plan, const convoy_norm_arguments_t* arguments,
                                void* stream);
convoy_status_t convoy_norm_workspace_bytes(convoy_norm_plan_t plan, size_t* bytes);
convoy_status_t convoy_norm_info(convoy_norm_plan_t plan, convoy_plan_info_t* info);

/* CONVOY_OK where planning would succeed, else CONVOY_INVALID_ARGUMENT or CONVOY_UNSUPPORTED with
 * the reason in convoy_last_error(). Runs nothing. */
convoy_status_t convoy_supports_conv2d(const convoy_conv2d_shape_t* shape,
                                       const convoy_plan_options_t* options);
convoy_status_t convoy_supports_conv3d(const convoy_conv3d_shape_t* shape,
                                       const convoy_plan_options_t* options);

/* Every kernel in the order of preference. */
convoy_status_t convoy_candidates_conv2d(const convoy_conv2d_shape_t* shape,
                                         const convoy_plan_options_t* options,
                                         convoy_candidates_t* list);
convoy_status_t convoy_candidates_conv3d(const convoy_conv3d_shape_t* shape,
                                         const convoy_plan_options_t* options,
                                         convoy_candidates_t* list);
size_t convoy_candidates_count(convoy_candidates_t list);
/* Set candidate->struct_size first. */
convoy_status_t convoy_candidates_get(convoy_candidates_t list, size_t index,
                                      convoy_candidate_t* candidate);
void convoy_candidates_destroy(convoy_candidates_t list); /* Null is ignored. */

/* What the last call of this thread that failed had to say; "" where none has. */
const char* convoy_last_error(void);
const char* convoy_status_string(convoy_status_t status);
/* "0.1.0 (git 1a2b3c4)" and CONVOY_VERSION of the linked library. */
const char* convoy_version(void);
int convoy_version_number(void);

#ifdef __cplusplus
}
#endif

#endif /* CONVOY_CONVOY_H */
