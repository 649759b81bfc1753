/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Convoy's C interface: the same operations as convoy.hpp, without C++ types.
 *
 *     convoy_conv2d_shape_t shape;
 *     convoy_conv2d_shape_init(&shape, sizeof(shape));
 *     shape.in_height = 256; ...
 *     convoy_plan_options_t options;
 *     convoy_plan_options_init(&options, sizeof(options));
 *     convoy_plan_t plan;
 *     if (convoy_plan_conv2d(&shape, &options, &plan) != CONVOY_OK) puts(convoy_last_error());
 *     ...
 *     convoy_run(plan, &arguments, stream);
 *     convoy_plan_destroy(plan);
 *
 * Every struct that a caller fills starts with `struct_size`, which its init function sets together
 * with the defaults. Fields are only ever added at the end: a library that is newer than the caller
 * takes the defaults for those the caller does not know; a library that is older refuses a struct
 * whose unknown fields are not zero. The few structs without it are parts of others, and frozen.
 *
 * Functions that return convoy_status_t leave a text that names the condition, the value got, what
 * is legal and the nearest supported choice in convoy_last_error(). Handles may be used from
 * several threads at once, and destroyed once.
 */
#ifndef CONVOY_CONVOY_H
#define CONVOY_CONVOY_H

#include <stddef.h>
#include <stdint.h>

#include "convoy/export.h"
#include "convoy/version.hpp" /* Macros only. */

#ifdef __cplusplus
extern "C" {
#endif

/* NOTE: of a fixed type in C++ as well, so that a value that is not of the list is one. */
#ifdef __cplusplus
#define CONVOY_INT32 : int32_t
#else
#define CONVOY_INT32
#endif

/** What a call returns. Each failure leaves its text in convoy_last_error(). */
typedef enum convoy_status CONVOY_INT32 {
  CONVOY_OK = 0,               /**< Success. */
  CONVOY_INVALID_ARGUMENT = 1, /**< The request makes no sense on any backend. */
  CONVOY_UNSUPPORTED = 2,      /**< Well-formed, but no kernel here can run it. */
  CONVOY_OUT_OF_MEMORY = 3,    /**< Host or device memory could not be reserved. */
  CONVOY_LAUNCH_FAILURE = 4,   /**< The CUDA runtime or oneDNN refused or failed a launch. */
  CONVOY_IO_ERROR = 5,         /**< A file could not be read or written; no function here. */
  CONVOY_INTERNAL = 6          /**< A broken invariant of the library: please report it. */
} convoy_status_t;
#undef CONVOY_INT32

/* Values as in types.hpp and epilogue.hpp. The struct fields that hold them are int32_t, whose size
 * does not depend on the compiler. */

/** Element types: 2, 2 and 4 bytes. */
enum { CONVOY_BF16 = 0, CONVOY_FP16 = 1, CONVOY_FP32 = 2 };
/** Activation layouts: [N, H, W, C] and [N, D, H, W, C]. */
enum { CONVOY_NHWC = 0, CONVOY_NDHWC = 1 };
/** Filter layouts, slowest axis first; F is K where it comes last. */
enum {
  CONVOY_KRSC = 0,
  CONVOY_KCRS = 1,
  CONVOY_RSCF = 2,
  CONVOY_KTRSC = 3,
  CONVOY_KCTRS = 4,
  CONVOY_TRSCF = 5
};
/** What a tap reads outside the input. */
enum { CONVOY_PAD_ZERO = 0, CONVOY_PAD_REPLICATE = 1, CONVOY_PAD_REFLECT = 2 };
/** How a nearest-2x upsampling may be folded into its filter; convoy::UpsampleFolding has the bounds.
 */
enum { CONVOY_UPSAMPLE_FOLDING_EXACT = 0, CONVOY_UPSAMPLE_FOLDING_FAST = 1 };
/** Where a plan runs; automatic: the current CUDA device if it can run the problem, else the CPU.
 */
enum { CONVOY_DEVICE_AUTO = 0, CONVOY_DEVICE_CPU = 1, CONVOY_DEVICE_CUDA = 2 };
/** Pointwise functions of the epilogue, on fp32; convoy::Activation has the formulas. */
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
/** Where the residual joins. */
enum { CONVOY_RESIDUAL_AFTER_ACTIVATION = 0, CONVOY_RESIDUAL_BEFORE_ACTIVATION = 1 };
/** Where values are rounded to the output type. */
enum { CONVOY_ROUND_ONCE = 0, CONVOY_ROUND_EACH_STEP = 1 };

/** A 2-D convolution: activation [N, H, W, C], filter [K, R, S, C / groups], output [N, P, Q, K].
 * Defaults: batch, filter, stride, dilation, groups and upsample 1, everything else 0. */
typedef struct convoy_conv2d_shape {
  size_t struct_size;   /**< Set by convoy_conv2d_shape_init. */
  int64_t batch;        /**< N, images. */
  int64_t in_height;    /**< H, rows. */
  int64_t in_width;     /**< W, columns. */
  int64_t in_channels;  /**< C, of all groups. */
  int64_t out_channels; /**< K, filters. */
  int64_t filter_h;     /**< R, rows of taps. */
  int64_t filter_w;     /**< S, columns of taps. */
  int64_t pad_top;      /**< Rows of padding above. */
  int64_t pad_bottom;   /**< Rows of padding below. */
  int64_t pad_left;     /**< Columns of padding left. */
  int64_t pad_right;    /**< Columns of padding right. */
  int64_t stride_h;     /**< Input rows from one output row to the next. */
  int64_t stride_w;     /**< Input columns from one output column to the next. */
  int64_t dilation_h;   /**< Input rows from one tap to the next. */
  int64_t dilation_w;   /**< Input columns from one tap to the next. */
  int64_t groups;       /**< Must divide C and K. */
  int64_t upsample;     /**< 1, or 2: nearest-neighbour upsampling before the convolution. */
  int32_t pad_mode;     /**< CONVOY_PAD_..., on both axes. */
  int32_t reserved;     /**< 0. */
} convoy_conv2d_shape_t;

/** A 3-D convolution: activation [N, D, H, W, C], filter [K, T, R, S, C / groups], output
 * [N, Z, P, Q, K]. Arrays are in the order depth, height, width. Defaults as in 2-D. */
typedef struct convoy_conv3d_shape {
  size_t struct_size;    /**< Set by convoy_conv3d_shape_init. */
  int64_t batch;         /**< N. */
  int64_t in_depth;      /**< D, new frames. */
  int64_t in_height;     /**< H, rows. */
  int64_t in_width;      /**< W, columns. */
  int64_t in_channels;   /**< C, of all groups. */
  int64_t out_channels;  /**< K, filters. */
  int64_t filter[3];     /**< T, R, S. */
  int64_t pad_begin[3];  /**< Front, top, left. */
  int64_t pad_end[3];    /**< Back, bottom, right. */
  int64_t stride[3];     /**< Input elements from one output to the next. */
  int64_t dilation[3];   /**< Input elements from one tap to the next. */
  int64_t groups;        /**< Must divide C and K. */
  int64_t cached_frames; /**< Frames of convoy_run_arguments.cache, in front of the new ones. */
  int32_t pad_mode[3];   /**< CONVOY_PAD_... of each axis. */
  int32_t reserved;      /**< 0. */
} convoy_conv3d_shape_t;

/** What follows the convolution: activation(scale·conv + bias) + beta·residual, or the sum inside.
 * The fields up to `rounding` choose the kernel and must be the same in convoy_plan_options (where
 * only bias and residual being null or not matters: use any non-null address) and in
 * convoy_run_arguments. Defaults: scale 1, beta 1, bias fp32, parameters NaN, all else 0
 * or null. */
typedef struct convoy_epilogue {
  size_t struct_size;     /**< Set by convoy_epilogue_init. */
  const void* bias;       /**< [K] of bias_dtype, or null. */
  const void* residual;   /**< Shape and type of the output, or null; may be the output itself. */
  int32_t bias_dtype;     /**< CONVOY_BF16, ... */
  int32_t activation;     /**< CONVOY_ACTIVATION_... */
  int32_t residual_order; /**< CONVOY_RESIDUAL_... */
  int32_t rounding;       /**< CONVOY_ROUND_... */
  float scale;            /**< Multiplies the convolution's sum. */
  float beta;             /**< Multiplies the residual, which 0 leaves unread. */
  float parameter_a;      /**< leaky_relu: slope; clamp: lower bound. NaN: 0.01 and 0. */
  float parameter_b;      /**< clamp: upper bound. NaN: 6. */
} convoy_epilogue_t;

/** What a prologue multiplies the activation by; convoy::PrologueNorm has the formulas. */
enum { CONVOY_PROLOGUE_NONE = 0, CONVOY_PROLOGUE_SCALE_SHIFT = 1, CONVOY_PROLOGUE_RMS = 2 };

/** What precedes the convolution: a norm whose statistics are known (a norm plan with
 * CONVOY_NORM_COEFFICIENTS makes them), then an activation. `norm` and `activation` choose the
 * kernel and must be the same in convoy_plan_options, which reads no pointer, and in
 * convoy_run_arguments. The cache holds frames that are normalised already. Defaults: 0, null. */
typedef struct convoy_prologue {
  size_t struct_size;       /**< Set by convoy_prologue_init. */
  int32_t norm;             /**< CONVOY_PROLOGUE_... */
  int32_t activation;       /**< None, relu, gelu, gelu_tanh or silu. */
  const float* scale;       /**< SCALE_SHIFT: [N, C]; RMS: [C]. */
  const float* shift;       /**< SCALE_SHIFT: [N, C]; else null. C no multiple of 4: at any fp32. */
  const float* inverse_rms; /**< RMS: [N, H, W] or [N, D, H, W]; else null. */
} convoy_prologue_t;

/** Which filters make a pixel's channels; convoy::ShuffleOrder has the formulas. */
enum { CONVOY_SHUFFLE_CHANNELS_OUTER = 0, CONVOY_SHUFFLE_CHANNELS_INNER = 1 };
/** What the residual of a shuffled output is; convoy::ShuffleResidual has the formulas. */
enum {
  CONVOY_SHUFFLE_RESIDUAL_OUTPUT = 0,
  CONVOY_SHUFFLE_RESIDUAL_INTERLEAVED = 1,
  CONVOY_SHUFFLE_RESIDUAL_TILED = 2
};

/** Depth to space at the store: filters become frames, rows and columns (convoy::OutputShuffle).
 * Defaults: factors 1, everything else 0. */
typedef struct convoy_shuffle {
  size_t struct_size;        /**< Set by convoy_shuffle_init. */
  int64_t factors[3];        /**< Of frames, rows, columns; their product divides K. */
  int64_t dropped_frames;    /**< First frames left out, less than factors[0]. */
  int64_t residual_channels; /**< Of an interleaved or tiled residual; else 0. */
  int32_t order;             /**< CONVOY_SHUFFLE_CHANNELS_... */
  int32_t residual;          /**< CONVOY_SHUFFLE_RESIDUAL_... */
} convoy_shuffle_t;

/** How a problem is to be run. Defaults: bf16, output of the same type, no epilogue, no prologue,
 * no shuffle, automatic device. */
typedef struct convoy_plan_options {
  size_t struct_size;                /**< Set by convoy_plan_options_init. */
  int32_t dtype;                     /**< Type of activation and filter. */
  int32_t output_dtype;              /**< Type of output and residual; -1: as dtype. */
  int32_t device;                    /**< CONVOY_DEVICE_... */
  int32_t device_index;              /**< -1: the current CUDA device. */
  int32_t packed_filter;             /**< Not 0: the filter will come packed. */
  int32_t upsample_folding;          /**< CONVOY_UPSAMPLE_FOLDING_... */
  const convoy_epilogue_t* epilogue; /**< Null: none. */
  const char* kernel;                /**< Null or "": dispatch chooses. */
  int32_t allow_tf32;                /**< Not 0: fp32 tensors may be multiplied as TF32. */
  int32_t reserved;                  /**< 0. */
  const convoy_prologue_t* prologue; /**< Null: none. */
  const convoy_shuffle_t* shuffle;   /**< Null: none. */
  /** Above 0, a divisor of the output's channels: a run also writes `statistics`. */
  int64_t statistics_groups;
} convoy_plan_options_t;

/** How an RMSNorm's epsilon keeps its divisor from zero; convoy::RmsEpsilon has the formulas. */
enum { CONVOY_RMS_EPSILON_ADDED = 0, CONVOY_RMS_EPSILON_NORM_FLOOR = 1 };

/** A convolution that is ready to run. */
typedef struct convoy_plan_s* convoy_plan_t;
/** A norm that is ready to run. */
typedef struct convoy_norm_plan_s* convoy_norm_plan_t;
/** A chain of pointwise steps that is ready to run. */
typedef struct convoy_elementwise_plan_s* convoy_elementwise_plan_t;
/** A filter in the format that one plan's kernel reads. */
typedef struct convoy_packed_filter_s* convoy_packed_filter_t;
/** The kernels of the library, and what each says of a problem. */
typedef struct convoy_candidates_s* convoy_candidates_t;

/** Type, layout and extents of a dense channels-last tensor. */
typedef struct convoy_tensor_shape {
  int32_t dtype;      /**< CONVOY_BF16, ... */
  int32_t layout;     /**< CONVOY_NHWC: 4 extents; CONVOY_NDHWC: 5. */
  int64_t extents[5]; /**< Elements along each axis, channels last. */
} convoy_tensor_shape_t;

/** Pointers of one run. All memory is on the plan's device, 16-byte aligned. A shape pointer, where
 * not null, is checked against the plan. */
typedef struct convoy_run_arguments {
  size_t struct_size;                   /**< Set by convoy_run_arguments_init. */
  void* output;                         /**< [N, P, Q, K] or [N, Z, P, Q, K]. */
  const void* activation;               /**< [N, H, W, C] or [N, D, H, W, C]. */
  const void* filter;                   /**< Dense KRSC / KTRSC; or null and packed_filter. */
  convoy_packed_filter_t packed_filter; /**< The filter packed by convoy_pack_filter. */
  const void* cache;                    /**< With cached_frames > 0. */
  void* next_cache;                     /**< Null where the next cache is not wanted. */
  void* workspace; /**< convoy_plan_workspace_bytes() bytes; one for each run under way. */
  const convoy_epilogue_t* epilogue;             /**< Null: none. */
  const convoy_tensor_shape_t* output_shape;     /**< Checked where not null. */
  const convoy_tensor_shape_t* activation_shape; /**< Checked where not null. */
  const convoy_tensor_shape_t* residual_shape;   /**< Checked where not null. */
  const convoy_tensor_shape_t* cache_shape;      /**< Checked where not null. */
  const convoy_tensor_shape_t* next_cache_shape; /**< Checked where not null. */
  const convoy_prologue_t* prologue;             /**< Null: none. */
  /** With statistics_groups: receives [N, groups, 2], mean and (biased) variance of each group of
   * channels of every image of the output as it is stored. convoy_norm_arguments takes them. */
  float* statistics;
} convoy_run_arguments_t;

/** What a plan runs. Strings live as long as the plan. */
typedef struct convoy_plan_info {
  size_t struct_size;     /**< Set by the caller. */
  const char* kernel;     /**< Name of the kernel. */
  const char* backend;    /**< "cpu", "cuda:0 (NVIDIA H200)". */
  const char* problem;    /**< The shape string. */
  double flops;           /**< Of the operation, whatever the kernel does. */
  double min_bytes;       /**< Each input read once, the output written once. */
  const char* statistics; /**< "epilogue" or "pass": what takes them; "" without. */
  int32_t tf32;           /**< Not 0: fp32 tensors are multiplied as TF32. */
  int32_t reserved;       /**< 0. */
  /** What convoy_pack_filter makes; plans of one device that say the same share a packed filter. */
  const char* filter_format;
} convoy_plan_info_t;

/** One kernel of the library and why it cannot run a problem. Strings live as long as the list. */
typedef struct convoy_candidate {
  size_t struct_size;     /**< Set by the caller. */
  const char* kernel;     /**< Name of the kernel. */
  const char* backend;    /**< As convoy_plan_info's. */
  const char* reason;     /**< Condition, value, what is legal, the nearest choice; "": it can. */
  double estimated_us;    /**< The model's or the tuning database's time; 0 where refused. */
  int32_t chosen;         /**< Not 0: the one that planning takes. */
  int32_t reserved;       /**< 0. */
  const char* statistics; /**< "epilogue", or "pass: WHY"; "" without and where refused. */
} convoy_candidate_t;

/** What a norm writes; convoy::NormResult says how coefficients lie. */
enum { CONVOY_NORM_TENSOR = 0, CONVOY_NORM_COEFFICIENTS = 1 };

/** A norm of a dense channels-last tensor (norm.hpp says what each computes). GroupNorm: `pixels`
 * of one image, `groups`; RMSNorm: `pixels` of all images together, `batch` 1, `rms_epsilon`.
 * Defaults: batch 1, groups 1, epsilon 1e-5, everything else 0. */
typedef struct convoy_norm_shape {
  size_t struct_size;  /**< Set by convoy_norm_shape_init. */
  int64_t batch;       /**< N, images; RMSNorm: 1. */
  int64_t pixels;      /**< GroupNorm: of one image; RMSNorm: of all. */
  int64_t channels;    /**< C. */
  int64_t groups;      /**< GroupNorm: must divide C. */
  float epsilon;       /**< >= 0, finite. */
  int32_t rms_epsilon; /**< RMSNorm: CONVOY_RMS_EPSILON_... */
} convoy_norm_shape_t;

/** How a norm is to be run. Defaults: bf16, scale and bias of fp32, no activation, automatic
 * device. */
typedef struct convoy_norm_options {
  size_t struct_size;      /**< Set by convoy_norm_options_init. */
  int32_t dtype;           /**< Type of input and output. */
  int32_t parameter_dtype; /**< Type of scale and bias. */
  int32_t scale;           /**< Not 0: a run brings scale[C]. */
  int32_t bias;            /**< Not 0: a run brings bias[C]. */
  int32_t activation;      /**< CONVOY_ACTIVATION_... */
  int32_t device;          /**< CONVOY_DEVICE_... */
  int32_t device_index;    /**< -1: the current CUDA device. */
  int32_t result;          /**< CONVOY_NORM_... */
} convoy_norm_options_t;

/** Pointers of one run. All memory is on the plan's device, 16-byte aligned. The output may be the
 * input itself. */
typedef struct convoy_norm_arguments {
  size_t struct_size; /**< Set by convoy_norm_arguments_init. */
  void* output;       /**< As large as the input; or the coefficients, fp32. */
  const void* input;  /**< [batch, pixels, C], dense. */
  const void* scale;  /**< [C] of parameter_dtype, null where the plan has none. */
  const void* bias;   /**< [C] of parameter_dtype, null where the plan has none. */
  void* workspace;    /**< convoy_norm_workspace_bytes() bytes. */
  float parameter_a;  /**< As in convoy_epilogue. */
  float parameter_b;  /**< As in convoy_epilogue. */
  /** GroupNorm: [batch, groups, 2] means and variances to normalise by; null: the input's own. */
  const float* statistics;
} convoy_norm_arguments_t;

/** Steps of a chain; convoy::ElementwiseOp says what each does. */
enum {
  CONVOY_ELEMENTWISE_LOAD = 0,
  CONVOY_ELEMENTWISE_ADD = 1,
  CONVOY_ELEMENTWISE_SUBTRACT = 2,
  CONVOY_ELEMENTWISE_SUBTRACT_FROM = 3,
  CONVOY_ELEMENTWISE_MULTIPLY = 4,
  CONVOY_ELEMENTWISE_ACTIVATION = 5,
  CONVOY_ELEMENTWISE_AFFINE = 6
};
/** A step's operand where it is none of the tensors; the most tensors and steps of a chain. */
enum { CONVOY_ELEMENTWISE_NUMBER = -1, CONVOY_ELEMENTWISE_KEPT = -2 };
enum { CONVOY_ELEMENTWISE_OPERANDS = 4, CONVOY_ELEMENTWISE_STEPS = 12 };

/** One step: as convoy::ElementwiseStep. */
typedef struct convoy_elementwise_step {
  int32_t op;         /**< CONVOY_ELEMENTWISE_LOAD, ... */
  int32_t operand;    /**< 0, 1, ..., CONVOY_ELEMENTWISE_NUMBER or _KEPT. */
  float number;       /**< With CONVOY_ELEMENTWISE_NUMBER. */
  int32_t activation; /**< CONVOY_ACTIVATION_..., with CONVOY_ELEMENTWISE_ACTIVATION. */
  float parameter_a;  /**< As in convoy_epilogue. */
  float parameter_b;  /**< As in convoy_epilogue. */
} convoy_elementwise_step_t;

/** Where an operand's elements are: as convoy::ElementwiseOperand. */
typedef struct convoy_elementwise_operand {
  int64_t strides[5]; /**< Of n, d, h, w, c, in elements. */
  int64_t ratio[3];   /**< Of d, h, w; at least 1. */
  int64_t offset[3];  /**< Of d, h, w; 0 to ratio - 1. */
} convoy_elementwise_operand_t;

/** A chain of pointwise steps: as convoy::ElementwiseProblem and ElementwiseOptions. Defaults:
 * extents 1, channels, operands and steps 0, bf16, automatic device. */
typedef struct convoy_elementwise {
  size_t struct_size;    /**< Set by convoy_elementwise_init. */
  int64_t extents[5];    /**< N, D, H, W, C. */
  int32_t operand_count; /**< 1 to CONVOY_ELEMENTWISE_OPERANDS. */
  int32_t step_count;    /**< 0 to CONVOY_ELEMENTWISE_STEPS. */
  convoy_elementwise_operand_t operands[CONVOY_ELEMENTWISE_OPERANDS]; /**< The tensors. */
  convoy_elementwise_step_t steps[CONVOY_ELEMENTWISE_STEPS];          /**< In their order. */
  int32_t dtype;                                                      /**< Of every tensor. */
  int32_t device;                                                     /**< CONVOY_DEVICE_... */
  int32_t device_index; /**< -1: the current CUDA device. */
  int32_t reserved;     /**< 0. */
} convoy_elementwise_t;

/** Sets struct_size and the defaults. `struct_size` is the caller's sizeof; so in all of these. */
CONVOY_API void convoy_conv2d_shape_init(convoy_conv2d_shape_t* shape, size_t struct_size);
/** Sets struct_size and the defaults. */
CONVOY_API void convoy_conv3d_shape_init(convoy_conv3d_shape_t* shape, size_t struct_size);
/** Sets struct_size and the defaults. */
CONVOY_API void convoy_epilogue_init(convoy_epilogue_t* epilogue, size_t struct_size);
/** Sets struct_size and the defaults. */
CONVOY_API void convoy_prologue_init(convoy_prologue_t* prologue, size_t struct_size);
/** Sets struct_size and the defaults. */
CONVOY_API void convoy_shuffle_init(convoy_shuffle_t* shuffle, size_t struct_size);
/** Sets struct_size and the defaults. */
CONVOY_API void convoy_plan_options_init(convoy_plan_options_t* options, size_t struct_size);
/** Sets struct_size and the defaults. */
CONVOY_API void convoy_run_arguments_init(convoy_run_arguments_t* arguments, size_t struct_size);

/** Plans a convolution. `options` may be null. On failure `*plan` is null.
 * CONVOY_INVALID_ARGUMENT for an illegal shape, CONVOY_UNSUPPORTED with every candidate's reason
 * where none can run it. */
CONVOY_API convoy_status_t convoy_plan_conv2d(const convoy_conv2d_shape_t* shape,
                                              const convoy_plan_options_t* options,
                                              convoy_plan_t* plan);
/** The same in 3-D. */
CONVOY_API convoy_status_t convoy_plan_conv3d(const convoy_conv3d_shape_t* shape,
                                              const convoy_plan_options_t* options,
                                              convoy_plan_t* plan);
/** Frees a plan. Null is ignored. */
CONVOY_API void convoy_plan_destroy(convoy_plan_t plan);

/** Enqueues on `stream`, a cudaStream_t; the CPU backend ignores it and runs before returning. No
 * allocation and no synchronisation on a GPU; safe under CUDA-graph capture. */
CONVOY_API convoy_status_t convoy_run(convoy_plan_t plan, const convoy_run_arguments_t* arguments,
                                      void* stream);

/** Shape of the output, shuffled where the plan is. */
CONVOY_API convoy_status_t convoy_plan_output_shape(convoy_plan_t plan,
                                                    convoy_tensor_shape_t* shape);
/** Shape of the residual: the output's, but where convoy_shuffle says otherwise. */
CONVOY_API convoy_status_t convoy_plan_residual_shape(convoy_plan_t plan,
                                                      convoy_tensor_shape_t* shape);
/** Shape of the activation. */
CONVOY_API convoy_status_t convoy_plan_activation_shape(convoy_plan_t plan,
                                                        convoy_tensor_shape_t* shape);
/** Shape of the causal cache; no frames where the problem has none. */
CONVOY_API convoy_status_t convoy_plan_cache_shape(convoy_plan_t plan,
                                                   convoy_tensor_shape_t* shape);
/** Shape of the next cache; no frames where T = 1. */
CONVOY_API convoy_status_t convoy_plan_next_cache_shape(convoy_plan_t plan,
                                                        convoy_tensor_shape_t* shape);
/** Bytes of the workspace that a run needs. */
CONVOY_API convoy_status_t convoy_plan_workspace_bytes(convoy_plan_t plan, size_t* bytes);
/** What the plan runs. Set info->struct_size first. */
CONVOY_API convoy_status_t convoy_plan_info(convoy_plan_t plan, convoy_plan_info_t* info);

/** Repacks a dense filter of any layout into the plan's format, in its device's memory. `layout`:
 * CONVOY_KRSC, ... Allocates, and may wait for the stream: not under CUDA-graph capture. Let
 * runs on other streams wait for it. On failure `*packed` is null. */
CONVOY_API convoy_status_t convoy_pack_filter(convoy_plan_t plan, const void* filter,
                                              int32_t layout, void* stream,
                                              convoy_packed_filter_t* packed);
/** Frees a packed filter. Null is ignored. */
CONVOY_API void convoy_packed_filter_destroy(convoy_packed_filter_t packed);

/** Sets struct_size and the defaults. */
CONVOY_API void convoy_norm_shape_init(convoy_norm_shape_t* shape, size_t struct_size);
/** Sets struct_size and the defaults. */
CONVOY_API void convoy_norm_options_init(convoy_norm_options_t* options, size_t struct_size);
/** Sets struct_size and the defaults. */
CONVOY_API void convoy_norm_arguments_init(convoy_norm_arguments_t* arguments, size_t struct_size);
/** Plans a GroupNorm. `options` may be null. On failure `*plan` is null. */
CONVOY_API convoy_status_t convoy_plan_group_norm(const convoy_norm_shape_t* shape,
                                                  const convoy_norm_options_t* options,
                                                  convoy_norm_plan_t* plan);
/** Plans an RMSNorm. `options` may be null. On failure `*plan` is null. */
CONVOY_API convoy_status_t convoy_plan_rms_norm(const convoy_norm_shape_t* shape,
                                                const convoy_norm_options_t* options,
                                                convoy_norm_plan_t* plan);
/** Frees a norm's plan. Null is ignored. */
CONVOY_API void convoy_norm_plan_destroy(convoy_norm_plan_t plan);
/** Enqueues on `stream`, as convoy_run does. */
CONVOY_API convoy_status_t convoy_norm_run(convoy_norm_plan_t plan,
                                           const convoy_norm_arguments_t* arguments, void* stream);
/** GroupNorm: enqueues the means and variances of an input alone, [batch, groups, 2] into `output`,
 * as NormPlan::statistics. `image_pitch`: elements from one image to the next, or 0: dense. */
CONVOY_API convoy_status_t convoy_norm_statistics(convoy_norm_plan_t plan, const void* input,
                                                  int64_t image_pitch, float* output,
                                                  void* workspace, void* stream);
/** Bytes of the workspace that a run needs. */
CONVOY_API convoy_status_t convoy_norm_workspace_bytes(convoy_norm_plan_t plan, size_t* bytes);
/** What the plan runs. Set info->struct_size first. */
CONVOY_API convoy_status_t convoy_norm_info(convoy_norm_plan_t plan, convoy_plan_info_t* info);

/** Sets struct_size and the defaults. */
CONVOY_API void convoy_elementwise_init(convoy_elementwise_t* problem, size_t struct_size);
/** Plans a chain of pointwise steps. On failure `*plan` is null. */
CONVOY_API convoy_status_t convoy_plan_elementwise(const convoy_elementwise_t* problem,
                                                   convoy_elementwise_plan_t* plan);
/** Frees a chain's plan. Null is ignored. */
CONVOY_API void convoy_elementwise_plan_destroy(convoy_elementwise_plan_t plan);
/** Enqueues on `stream`, as convoy_run does. `operands`: as many addresses as the chain has;
 * `coefficients`: fp32, of a CONVOY_ELEMENTWISE_AFFINE step, else null. */
CONVOY_API convoy_status_t convoy_elementwise_run(convoy_elementwise_plan_t plan, void* output,
                                                  const void* const* operands,
                                                  const float* coefficients, void* stream);
/** What the plan runs. Set info->struct_size first. */
CONVOY_API convoy_status_t convoy_elementwise_info(convoy_elementwise_plan_t plan,
                                                   convoy_plan_info_t* info);

/** CONVOY_OK where planning would succeed, else CONVOY_INVALID_ARGUMENT or CONVOY_UNSUPPORTED with
 * the reason in convoy_last_error(). Runs nothing. */
CONVOY_API convoy_status_t convoy_supports_conv2d(const convoy_conv2d_shape_t* shape,
                                                  const convoy_plan_options_t* options);
/** The same in 3-D. */
CONVOY_API convoy_status_t convoy_supports_conv3d(const convoy_conv3d_shape_t* shape,
                                                  const convoy_plan_options_t* options);

/** Every kernel in the order of preference. On failure `*list` is null. */
CONVOY_API convoy_status_t convoy_candidates_conv2d(const convoy_conv2d_shape_t* shape,
                                                    const convoy_plan_options_t* options,
                                                    convoy_candidates_t* list);
/** The same in 3-D. */
CONVOY_API convoy_status_t convoy_candidates_conv3d(const convoy_conv3d_shape_t* shape,
                                                    const convoy_plan_options_t* options,
                                                    convoy_candidates_t* list);
/** How many kernels the list has. */
CONVOY_API size_t convoy_candidates_count(convoy_candidates_t list);
/** One line of the list, `index` from 0. Set candidate->struct_size first. */
CONVOY_API convoy_status_t convoy_candidates_get(convoy_candidates_t list, size_t index,
                                                 convoy_candidate_t* candidate);
/** Frees a list. Null is ignored. */
CONVOY_API void convoy_candidates_destroy(convoy_candidates_t list);

/* Several GPUs: docs/sharding.md, convoy/shard.hpp. */

/** The axis along which tensors are cut. */
enum {
  CONVOY_SHARD_HEIGHT = 0,
  CONVOY_SHARD_WIDTH = 1,
  CONVOY_SHARD_FRAMES = 2,
  CONVOY_SHARD_BATCH = 3
};
/** When a sharded run waits for its neighbours. */
enum { CONVOY_OVERLAP_AUTO = 0, CONVOY_OVERLAP_NONE = 1, CONVOY_OVERLAP_INTERIOR = 2 };

/** A rank among others. */
typedef struct convoy_communicator_s* convoy_communicator_t;
/** One rank's part of a convolution, ready to run. */
typedef struct convoy_shard_plan_s* convoy_shard_plan_t;

/** How a problem is cut, for the communicator's ranks. Defaults: height, automatic overlap, no
 * margins, as even as it goes. */
typedef struct convoy_shard_options {
  size_t struct_size;    /**< Set by convoy_shard_options_init. */
  int32_t axis;          /**< CONVOY_SHARD_... */
  int32_t overlap;       /**< CONVOY_OVERLAP_... */
  int64_t input_margin;  /**< Elements beside a rank's own that its input holds at least. */
  int64_t output_margin; /**< The same of the output. */
  const int64_t* starts; /**< First input element of each rank, or null. */
} convoy_shard_options_t;

/** What one rank holds of the axis, of the input and the output: own elements [begin, end), and
 * margins beside them. */
typedef struct convoy_shard_layout {
  size_t struct_size;          /**< Set by the caller. */
  int64_t input_begin;         /**< First own element of the input. */
  int64_t input_end;           /**< Past the last. */
  int64_t input_margin_begin;  /**< Elements held in front of them. */
  int64_t input_margin_end;    /**< Elements held behind them. */
  int64_t output_begin;        /**< First own element of the output. */
  int64_t output_end;          /**< Past the last. */
  int64_t output_margin_begin; /**< Elements held in front of them. */
  int64_t output_margin_end;   /**< Elements held behind them. */
} convoy_shard_layout_t;

/** Ranks as threads of this process, over host memory: fills ranks[count]. A call waits for the
 * others for `timeout_ms`, at most 365 days. On failure all are null. */
CONVOY_API convoy_status_t convoy_communicators_in_process(int32_t count, int64_t timeout_ms,
                                                           convoy_communicator_t* ranks);
/** A new id, 128 bytes, for one rank to make and hand to the others. Loads libnccl.so.2. */
CONVOY_API convoy_status_t convoy_nccl_id(char* id);
/** A communicator of the current device, by NCCL; every rank calls it with the same id. */
CONVOY_API convoy_status_t convoy_communicator_nccl(const char* id, int32_t rank, int32_t count,
                                                    int64_t timeout_ms,
                                                    convoy_communicator_t* communicator);
/** Wraps an ncclComm_t, which stays the caller's. */
CONVOY_API convoy_status_t convoy_communicator_wrap_nccl(void* comm, int64_t timeout_ms,
                                                         convoy_communicator_t* communicator);
/** Frees a communicator; the others see that this rank is gone once its plans are freed too. */
CONVOY_API void convoy_communicator_destroy(convoy_communicator_t communicator);
/** This rank, and how many there are. */
CONVOY_API convoy_status_t convoy_communicator_rank(convoy_communicator_t communicator,
                                                    int32_t* rank, int32_t* count);
/** Waits for `stream`, for as long as the time-out: use it where you would use
 * cudaStreamSynchronize. */
CONVOY_API convoy_status_t convoy_communicator_synchronize(convoy_communicator_t communicator,
                                                           void* stream);

/** Sets struct_size and the defaults. */
CONVOY_API void convoy_shard_options_init(convoy_shard_options_t* options, size_t struct_size);
/** Plans this rank's part; every rank calls it. `options` and `cut` may be null. */
CONVOY_API convoy_status_t convoy_plan_shard_conv2d(const convoy_conv2d_shape_t* shape,
                                                    const convoy_plan_options_t* options,
                                                    const convoy_shard_options_t* cut,
                                                    convoy_communicator_t communicator,
                                                    convoy_shard_plan_t* plan);
/** The same in 3-D. */
CONVOY_API convoy_status_t convoy_plan_shard_conv3d(const convoy_conv3d_shape_t* shape,
                                                    const convoy_plan_options_t* options,
                                                    const convoy_shard_options_t* cut,
                                                    convoy_communicator_t communicator,
                                                    convoy_shard_plan_t* plan);
/** Frees a plan. Null is ignored. */
CONVOY_API void convoy_shard_plan_destroy(convoy_shard_plan_t plan);
/** What `rank` holds. Set layout->struct_size first. */
CONVOY_API convoy_status_t convoy_shard_layout(convoy_shard_plan_t plan, int32_t rank,
                                               convoy_shard_layout_t* layout);
/** Bytes of the workspace that a run needs. */
CONVOY_API convoy_status_t convoy_shard_workspace_bytes(convoy_shard_plan_t plan, size_t* bytes);
/** As convoy_pack_filter. */
CONVOY_API convoy_status_t convoy_shard_pack_filter(convoy_shard_plan_t plan, const void* filter,
                                                    int32_t layout, void* stream,
                                                    convoy_packed_filter_t* packed);
/** Exchanges the halos of the activation, which is written there, and enqueues the convolution;
 * every rank calls it. Tensors have the extents of convoy_shard_layout; shapes in `arguments` are
 * not checked. `halos_filled`: not 0 where nothing is to be exchanged. */
CONVOY_API convoy_status_t convoy_shard_run(convoy_shard_plan_t plan,
                                            const convoy_run_arguments_t* arguments,
                                            int32_t halos_filled, void* stream);
/** Fills the halos of an activation, or of a causal cache, in place. */
CONVOY_API convoy_status_t convoy_shard_exchange(convoy_shard_plan_t plan, void* activation,
                                                 void* stream);
/** The same of a causal cache. */
CONVOY_API convoy_status_t convoy_shard_exchange_cache(convoy_shard_plan_t plan, void* cache,
                                                       void* stream);

/* Exchanges between GPUs that reach each other's memory, for programs that bring ranks together
 * themselves (the Python package, by torch.distributed). Communicators use the same inside. */

/** One rank's inboxes for what others put there, on a device of its own. */
typedef struct convoy_peers_s* convoy_peers_t;
/** Bytes of a handle. */
enum { CONVOY_PEER_HANDLE_BYTES = 256, CONVOY_PEER_GATHER_BYTES = 65536 };
/** Which half of an exchange a call enqueues. */
enum { CONVOY_PEERS_PUT = 0, CONVOY_PEERS_TAKE = 1, CONVOY_PEERS_BOTH = 2 };
/** `count` pieces of `bytes`, `pitch` bytes apart, for or from the rank `peer`. */
typedef struct convoy_peer_move {
  int32_t peer;     /**< The rank before or behind this one. */
  int32_t reserved; /**< 0. */
  void* data;       /**< Device memory. */
  size_t bytes;     /**< Of a piece. */
  size_t count;     /**< Pieces. */
  size_t pitch;     /**< From one piece to the next. */
} convoy_peer_move_t;
/** This rank of at most 8, on the current device. Exchanges send one neighbour at most `capacity`
 * bytes, the same on every rank. A rank that waits for longer than `timeout_ms` loses its CUDA
 * context: convoy_peers_late says whom it waited for. */
CONVOY_API convoy_status_t convoy_peers_create(int32_t rank, int32_t count, size_t capacity,
                                               int64_t timeout_ms, convoy_peers_t* peers);
/** What the others need to find these inboxes: CONVOY_PEER_HANDLE_BYTES bytes. */
CONVOY_API convoy_status_t convoy_peers_handle(convoy_peers_t peers, char* handle);
/** Finds the others, by every rank's handle, one after another. CONVOY_UNSUPPORTED where one
 * cannot be reached: then no rank may exchange. */
CONVOY_API convoy_status_t convoy_peers_connect(convoy_peers_t peers, const char* handles);
/** A first exchange that all ranks take part in. CONVOY_UNSUPPORTED where within `timeout_ms`
 * other bytes came than were sent, or none: then no rank may exchange. Waits for the device. */
CONVOY_API convoy_status_t convoy_peers_try_out(convoy_peers_t peers, int64_t timeout_ms);
/** Enqueues an exchange with the ranks before and behind, at most 16 moves. Every rank makes the
 * same calls in the same order; those of several streams run in the order of the calls. Safe under
 * CUDA-graph capture: then all ranks launch the graph at the same place of their order. A put is
 * followed by its take. */
CONVOY_API convoy_status_t convoy_peers_exchange(convoy_peers_t peers,
                                                 const convoy_peer_move_t* sends, size_t send_count,
                                                 const convoy_peer_move_t* receives,
                                                 size_t receive_count, int32_t phase, void* stream);
/** Every rank's `bytes`, at most CONVOY_PEER_GATHER_BYTES, one after another into `received`. */
CONVOY_API convoy_status_t convoy_peers_all_gather(convoy_peers_t peers, const void* sent,
                                                   void* received, size_t bytes, void* stream);
/** The rank that an exchange waited for in vain; -1 where none did. */
CONVOY_API convoy_status_t convoy_peers_late(convoy_peers_t peers, int32_t* rank);
/** Waits for what this rank has enqueued. The inboxes are freed once all ranks that exchanged have
 * destroyed theirs: now, or when this process next makes or destroys peers. Null is ignored. */
CONVOY_API void convoy_peers_destroy(convoy_peers_t peers);

/** What the last call of this thread that failed had to say; "" where none has. */
CONVOY_API const char* convoy_last_error(void);
/** "invalid argument", "unsupported", ... */
CONVOY_API const char* convoy_status_string(convoy_status_t status);
/** "0.1.0 (git 1a2b3c4)" of the linked library. */
CONVOY_API const char* convoy_version(void);
/** CONVOY_VERSION of the linked library. */
CONVOY_API int convoy_version_number(void);

#ifdef __cplusplus
}
#endif

#endif /* CONVOY_CONVOY_H */
