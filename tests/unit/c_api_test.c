/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface from a C11 program: one convolution checked by hand, every error path, growth of
 * the structs. Prints what failed; exit code 0 where nothing did. */
#include <convoy/convoy.h>
#include <stdalign.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;

#define CHECK(condition)                                                                   \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      printf("line %d: %s (last error: %s)\n", __LINE__, #condition, convoy_last_error()); \
      ++failures;                                                                          \
    }                                                                                      \
  } while (0)

static int error_has(const char* part) {
  return strstr(convoy_last_error(), part) != NULL;
}

static convoy_conv2d_shape_t small_shape(void) {
  convoy_conv2d_shape_t shape;
  convoy_conv2d_shape_init(&shape, sizeof(shape));
  shape.in_height = 3;
  shape.in_width = 3;
  shape.in_channels = 1;
  shape.out_channels = 1;
  shape.filter_h = 3;
  shape.filter_w = 3;
  shape.pad_top = shape.pad_bottom = shape.pad_left = shape.pad_right = 1;
  return shape;
}

static convoy_plan_options_t cpu_options(void) {
  convoy_plan_options_t options;
  convoy_plan_options_init(&options, sizeof(options));
  options.dtype = CONVOY_FP32;
  options.device = CONVOY_DEVICE_CPU;
  return options;
}

static void test_run(void) {
  alignas(16) float in[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  alignas(16) float filter[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
  alignas(16) float bias[4] = {-20};
  alignas(16) float out[12];
  const float expected[9] = {0, 1, 0, 7, 25, 13, 4, 19, 8};
  const convoy_conv2d_shape_t shape = small_shape();
  convoy_plan_options_t options = cpu_options();
  convoy_epilogue_t epilogue;
  convoy_epilogue_init(&epilogue, sizeof(epilogue));
  epilogue.bias = bias;
  epilogue.activation = CONVOY_ACTIVATION_RELU;
  options.epilogue = &epilogue;

  for (int packed = 0; packed < 2; ++packed) {
    convoy_plan_t plan = NULL;
    options.packed_filter = packed;
    CHECK(convoy_plan_conv2d(&shape, &options, &plan) == CONVOY_OK);
    if (plan == NULL) return;

    convoy_plan_info_t info = {sizeof(info), NULL, NULL, NULL, 0, 0, NULL, -1, -1, NULL};
    CHECK(convoy_plan_info(plan, &info) == CONVOY_OK);
    CHECK(info.kernel != NULL && strcmp(info.kernel, "onednn") == 0);
    CHECK(info.flops == 2.0 * 9 * 9);
    CHECK(info.tf32 == 0 && info.reserved == 0);
    CHECK(info.filter_format != NULL && strstr(info.filter_format, "k1t1r3s3c1g1") != NULL);
    convoy_tensor_shape_t output_shape;
    CHECK(convoy_plan_output_shape(plan, &output_shape) == CONVOY_OK);
    CHECK(output_shape.dtype == CONVOY_FP32 && output_shape.layout == CONVOY_NHWC);
    CHECK(output_shape.extents[1] == 3 && output_shape.extents[3] == 1);
    size_t workspace = 0;
    CHECK(convoy_plan_workspace_bytes(plan, &workspace) == CONVOY_OK);

    convoy_run_arguments_t arguments;
    convoy_run_arguments_init(&arguments, sizeof(arguments));
    arguments.output = out;
    arguments.output_shape = &output_shape;
    arguments.activation = in;
    arguments.epilogue = &epilogue;
    convoy_packed_filter_t packed_filter = NULL;
    if (packed) {
      CHECK(convoy_pack_filter(plan, filter, CONVOY_RSCF, NULL, &packed_filter) == CONVOY_OK);
      arguments.packed_filter = packed_filter;
    } else {
      arguments.filter = filter;
    }
    memset(out, 0xff, sizeof(out));
    CHECK(convoy_run(plan, &arguments, NULL) == CONVOY_OK);
    CHECK(memcmp(out, expected, sizeof(expected)) == 0);

    arguments.activation = NULL;
    CHECK(convoy_run(plan, &arguments, NULL) == CONVOY_INVALID_ARGUMENT);
    CHECK(error_has("activation is null"));
    arguments.activation = in;
    output_shape.extents[3] = 2;
    CHECK(convoy_run(plan, &arguments, NULL) == CONVOY_INVALID_ARGUMENT);
    CHECK(error_has("[1, 3, 3, 2]"));
    if (packed) {
      arguments.filter = filter;
      CHECK(convoy_run(plan, &arguments, NULL) == CONVOY_INVALID_ARGUMENT);
      CHECK(error_has("both given"));
    }
    convoy_packed_filter_destroy(packed_filter);
    convoy_plan_destroy(plan);
  }
}

static void test_three_dimensions(void) {
  alignas(16) float cache[4] = {1, 2}, in[4] = {3, 4}, filter[4] = {100, 10, 1}, out[4], next[4];
  convoy_conv3d_shape_t shape;
  convoy_conv3d_shape_init(&shape, sizeof(shape));
  shape.in_depth = 2;
  shape.in_height = shape.in_width = shape.in_channels = shape.out_channels = 1;
  shape.filter[0] = 3;
  shape.cached_frames = 2;
  const convoy_plan_options_t options = cpu_options();
  convoy_plan_t plan = NULL;
  CHECK(convoy_plan_conv3d(&shape, &options, &plan) == CONVOY_OK);
  if (plan == NULL) return;
  convoy_tensor_shape_t cache_shape, next_shape;
  CHECK(convoy_plan_cache_shape(plan, &cache_shape) == CONVOY_OK);
  CHECK(convoy_plan_next_cache_shape(plan, &next_shape) == CONVOY_OK);
  convoy_run_arguments_t arguments;
  convoy_run_arguments_init(&arguments, sizeof(arguments));
  arguments.output = out;
  arguments.activation = in;
  arguments.filter = filter;
  arguments.cache = cache;
  arguments.cache_shape = &cache_shape;
  arguments.next_cache = next;
  arguments.next_cache_shape = &next_shape;
  CHECK(convoy_run(plan, &arguments, NULL) == CONVOY_OK);
  CHECK(out[0] == 123 && out[1] == 234);
  CHECK(next[0] == 3 && next[1] == 4);
  convoy_plan_destroy(plan);
}

static void test_fields_that_must_be_zero(void) {
  convoy_conv2d_shape_t shape = small_shape();
  convoy_plan_options_t options = cpu_options();
  convoy_plan_t plan = NULL;
  shape.reserved = 7;
  CHECK(convoy_plan_conv2d(&shape, &options, &plan) == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("shape.reserved = 7") && error_has("legal: 0"));
  shape.reserved = 0;
  options.reserved = -1;
  CHECK(convoy_plan_conv2d(&shape, &options, &plan) == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("options.reserved = -1"));
  options.reserved = 0;
  options.statistics_groups = -1;
  CHECK(convoy_plan_conv2d(&shape, &options, &plan) == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("nearest: 0"));
  options.statistics_groups = 0;
  CHECK(convoy_plan_conv2d(&shape, &options, &plan) == CONVOY_OK);
  alignas(16) float filter[12] = {0};
  convoy_packed_filter_t packed = NULL;
  CHECK(convoy_pack_filter(plan, filter, 99, NULL, &packed) == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("layout = 99") && error_has("(KRSC)"));
  convoy_plan_destroy(plan);

  convoy_elementwise_t problem;
  convoy_elementwise_init(&problem, sizeof(problem));
  convoy_elementwise_plan_t steps = NULL;
  problem.operand_count = -1;
  CHECK(convoy_plan_elementwise(&problem, &steps) == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("operand_count = -1") && error_has("nearest: 1"));
  problem.reserved = 3;
  CHECK(convoy_plan_elementwise(&problem, &steps) == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("problem.reserved = 3"));
}

static void test_errors(void) {
  convoy_conv2d_shape_t shape = small_shape();
  convoy_plan_options_t options = cpu_options();
  convoy_plan_t plan = (convoy_plan_t)&shape;
  CHECK(convoy_plan_conv2d(NULL, &options, &plan) == CONVOY_INVALID_ARGUMENT);
  CHECK(plan == NULL);
  CHECK(error_has("shape is null"));
  CHECK(convoy_plan_conv2d(&shape, &options, NULL) == CONVOY_INVALID_ARGUMENT);
  CHECK(convoy_run(NULL, NULL, NULL) == CONVOY_INVALID_ARGUMENT);

  shape.filter_h = 9;
  CHECK(convoy_plan_conv2d(&shape, &options, &plan) == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("filter_h = 9"));
  CHECK(convoy_supports_conv2d(&shape, &options) == CONVOY_INVALID_ARGUMENT);
  shape.filter_h = 3;
  CHECK(convoy_supports_conv2d(&shape, &options) == CONVOY_OK);
  options.kernel = "oneddn";
  CHECK(convoy_plan_conv2d(&shape, &options, &plan) == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("nearest: onednn"));
  options.kernel = NULL;

  /* Well-formed, but past what oneDNN's kernels index. */
  convoy_conv2d_shape_t wide = small_shape();
  wide.filter_h = wide.filter_w = 1;
  wide.in_width = wide.out_channels = 65536;
  CHECK(convoy_supports_conv2d(&wide, &options) == CONVOY_UNSUPPORTED);
  CHECK(convoy_plan_conv2d(&wide, &options, &plan) == CONVOY_UNSUPPORTED);
  CHECK(error_has("onednn: elements of an output row"));

  convoy_plan_destroy(NULL);
  convoy_packed_filter_destroy(NULL);
  convoy_candidates_destroy(NULL);
  CHECK(strcmp(convoy_status_string(CONVOY_UNSUPPORTED), "unsupported") == 0);
}

static void test_struct_growth(void) {
  const convoy_plan_options_t options = cpu_options();
  convoy_plan_t plan = NULL;

  /* A caller that forgot the init function. */
  convoy_conv2d_shape_t zero;
  memset(&zero, 0, sizeof(zero));
  CHECK(convoy_plan_conv2d(&zero, &options, &plan) == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("shape.struct_size = 0"));

  /* An older caller, whose struct ends before `groups`: the rest takes its defaults. */
  convoy_conv2d_shape_t old = small_shape();
  old.struct_size = offsetof(convoy_conv2d_shape_t, groups);
  old.groups = old.upsample = -5;
  CHECK(convoy_plan_conv2d(&old, &options, &plan) == CONVOY_OK);
  convoy_plan_destroy(plan);

  /* A newer caller: unknown fields must be zero. */
  struct {
    convoy_conv2d_shape_t shape;
    int64_t future;
  } newer;
  newer.shape = small_shape();
  newer.shape.struct_size = sizeof(newer);
  newer.future = 0;
  CHECK(convoy_plan_conv2d(&newer.shape, &options, &plan) == CONVOY_OK);
  convoy_plan_destroy(plan);
  newer.future = 1;
  CHECK(convoy_plan_conv2d(&newer.shape, &options, &plan) == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("they are not zero"));
}

static void test_norms(void) {
  /* Two pixels of two channels: (1, 7) and (3, 7) in two groups. */
  alignas(16) float x[4] = {1, 7, 3, 7}, y[4], scale[4] = {2, 1}, bias[4] = {0, 5};
  convoy_norm_shape_t shape;
  convoy_norm_shape_init(&shape, sizeof(shape));
  shape.pixels = 2;
  shape.channels = 2;
  shape.groups = 2;
  shape.epsilon = 0.5f;
  convoy_norm_options_t options;
  convoy_norm_options_init(&options, sizeof(options));
  options.dtype = CONVOY_FP32;
  options.device = CONVOY_DEVICE_CPU;
  convoy_norm_plan_t plan = NULL;
  CHECK(convoy_plan_group_norm(&shape, &options, &plan) == CONVOY_OK);
  convoy_plan_info_t info = {sizeof(info), NULL, NULL, NULL, 0, 0, NULL, -1, -1, NULL};
  CHECK(convoy_norm_info(plan, &info) == CONVOY_OK);
  CHECK(info.kernel != NULL && strcmp(info.kernel, "cpu_group_norm") == 0);
  size_t workspace = 0;
  CHECK(convoy_norm_workspace_bytes(plan, &workspace) == CONVOY_OK && workspace > 0);
  convoy_norm_arguments_t arguments;
  convoy_norm_arguments_init(&arguments, sizeof(arguments));
  arguments.output = y;
  arguments.input = x;
  arguments.scale = scale;
  CHECK(convoy_norm_run(plan, &arguments, NULL) == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("bias is null"));
  arguments.bias = bias;
  CHECK(convoy_norm_run(plan, &arguments, NULL) == CONVOY_OK);
  /* 2 · 1 / sqrt(1 + 0.5) */
  CHECK(y[0] < -1.632992f && y[0] > -1.632994f && y[2] == -y[0] && y[1] == 5 && y[3] == 5);
  convoy_norm_plan_destroy(plan);

  shape.groups = 3;
  CHECK(convoy_plan_group_norm(&shape, &options, &plan) == CONVOY_INVALID_ARGUMENT);
  CHECK(plan == NULL && error_has("groups = 3 does not divide channels = 2"));
  CHECK(convoy_plan_rms_norm(&shape, &options, &plan) == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("1 and 1"));

  shape.groups = 1;
  shape.epsilon = 0;
  shape.rms_epsilon = CONVOY_RMS_EPSILON_NORM_FLOOR;
  options.scale = options.bias = 0;
  CHECK(convoy_plan_rms_norm(&shape, &options, &plan) == CONVOY_OK);
  arguments.scale = arguments.bias = NULL;
  CHECK(convoy_norm_run(plan, &arguments, NULL) == CONVOY_OK);
  CHECK(y[0] > 0.199f && y[0] < 0.201f && y[1] > 1.399f && y[1] < 1.401f);
  convoy_norm_plan_destroy(plan);
  convoy_norm_plan_destroy(NULL);
}

/* A group norm's coefficients in a convolution that sums two channels. */
static void test_prologue(void) {
  alignas(16) float x[4] = {1, 7, 3, 7}, scale[4] = {2, 1}, bias[4] = {0, 5}, coefficients[4];
  alignas(16) float filter[4] = {1, 1}, y[4], shift[4];
  convoy_norm_shape_t norm_shape;
  convoy_norm_shape_init(&norm_shape, sizeof(norm_shape));
  norm_shape.pixels = norm_shape.channels = norm_shape.groups = 2;
  norm_shape.epsilon = 0.5f;
  convoy_norm_options_t norm_options;
  convoy_norm_options_init(&norm_options, sizeof(norm_options));
  norm_options.dtype = CONVOY_FP32;
  norm_options.device = CONVOY_DEVICE_CPU;
  norm_options.result = CONVOY_NORM_COEFFICIENTS;
  convoy_norm_plan_t norm = NULL;
  CHECK(convoy_plan_group_norm(&norm_shape, &norm_options, &norm) == CONVOY_OK);
  convoy_norm_arguments_t norm_arguments;
  convoy_norm_arguments_init(&norm_arguments, sizeof(norm_arguments));
  norm_arguments.output = coefficients;
  norm_arguments.input = x;
  norm_arguments.scale = scale;
  norm_arguments.bias = bias;
  CHECK(convoy_norm_run(norm, &norm_arguments, NULL) == CONVOY_OK);
  convoy_norm_plan_destroy(norm);
  memcpy(shift, coefficients + 2, 2 * sizeof(float));

  convoy_conv2d_shape_t shape;
  convoy_conv2d_shape_init(&shape, sizeof(shape));
  shape.in_height = shape.out_channels = 1;
  shape.in_width = shape.in_channels = 2;
  convoy_prologue_t prologue;
  convoy_prologue_init(&prologue, sizeof(prologue));
  prologue.norm = CONVOY_PROLOGUE_SCALE_SHIFT;
  prologue.activation = CONVOY_ACTIVATION_RELU;
  convoy_plan_options_t options = cpu_options();
  options.prologue = &prologue;
  convoy_plan_t plan = NULL;
  CHECK(convoy_plan_conv2d(&shape, &options, &plan) == CONVOY_OK);
  convoy_run_arguments_t arguments;
  convoy_run_arguments_init(&arguments, sizeof(arguments));
  arguments.output = y;
  arguments.activation = x;
  arguments.filter = filter;
  CHECK(convoy_run(plan, &arguments, NULL) == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("prologue is none, but the plan is for scale_shift+relu"));
  arguments.prologue = &prologue;
  prologue.scale = coefficients;
  CHECK(convoy_run(plan, &arguments, NULL) == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("prologue.shift is null"));
  prologue.shift = shift;
  CHECK(convoy_run(plan, &arguments, NULL) == CONVOY_OK);
  /* relu(-1.633) + 5 and 1.633 + 5 */
  CHECK(y[0] > 4.99999f && y[0] < 5.00001f && y[1] > 6.63298f && y[1] < 6.63300f);
  convoy_plan_destroy(plan);
}

static void test_shuffle(void) {
  alignas(16) const float x[4] = {1, 2, 3, 4};
  alignas(16) const float filter[4] = {1, 10, 100, 1000};
  alignas(16) float y[16];
  convoy_conv2d_shape_t shape;
  convoy_conv2d_shape_init(&shape, sizeof(shape));
  shape.in_height = shape.in_width = 2;
  shape.in_channels = 1;
  shape.out_channels = 4;
  convoy_shuffle_t shuffle;
  convoy_shuffle_init(&shuffle, sizeof(shuffle));
  shuffle.factors[1] = shuffle.factors[2] = 2;
  convoy_plan_options_t options = cpu_options();
  options.shuffle = &shuffle;
  convoy_plan_t plan = NULL;
  shuffle.dropped_frames = 1;
  CHECK(convoy_plan_conv2d(&shape, &options, &plan) == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("shuffle.dropped_frames = 1"));
  shuffle.dropped_frames = 0;
  CHECK(convoy_plan_conv2d(&shape, &options, &plan) == CONVOY_OK);
  convoy_tensor_shape_t planned;
  CHECK(convoy_plan_output_shape(plan, &planned) == CONVOY_OK);
  CHECK(planned.extents[1] == 4 && planned.extents[2] == 4 && planned.extents[3] == 1);
  CHECK(convoy_plan_residual_shape(plan, &planned) == CONVOY_OK);
  CHECK(planned.extents[1] == 4 && planned.extents[3] == 1);
  convoy_run_arguments_t arguments;
  convoy_run_arguments_init(&arguments, sizeof(arguments));
  arguments.output = y;
  arguments.activation = x;
  arguments.filter = filter;
  CHECK(convoy_run(plan, &arguments, NULL) == CONVOY_OK);
  CHECK(y[0] == 1 && y[1] == 10 && y[2] == 2 && y[4] == 100 && y[5] == 1000 && y[15] == 4000);
  convoy_plan_destroy(plan);
}

static void test_candidates(void) {
  const convoy_conv2d_shape_t shape = small_shape();
  const convoy_plan_options_t options = cpu_options();
  convoy_candidates_t list = NULL;
  CHECK(convoy_candidates_conv2d(&shape, &options, &list) == CONVOY_OK);
  if (list == NULL) return;
  const size_t count = convoy_candidates_count(list);
  CHECK(count >= 1);
  convoy_candidate_t candidate = {sizeof(candidate), NULL, NULL, NULL, 0, 0, 0, NULL};
  CHECK(convoy_candidates_get(list, 0, &candidate) == CONVOY_OK);
  CHECK(strcmp(candidate.kernel, "onednn") == 0 && candidate.chosen == 1);
  CHECK(candidate.reason[0] == '\0' && candidate.estimated_us > 0);
  CHECK(convoy_candidates_get(list, count, &candidate) == CONVOY_INVALID_ARGUMENT);
  convoy_candidates_destroy(list);
  CHECK(convoy_candidates_count(NULL) == 0);
}

/* Structs that nobody filled: whatever bytes they hold, an error and no crash. */
static void test_garbage(void) {
  static const unsigned char bytes[] = {0x00, 0x01, 0x7f, 0x80, 0xaa, 0xff};
  const convoy_conv2d_shape_t good_shape = small_shape();
  const convoy_plan_options_t good_options = cpu_options();
  for (size_t i = 0; i < sizeof(bytes); ++i) {
    convoy_plan_t plan = NULL;
    convoy_conv2d_shape_t shape;
    memset(&shape, bytes[i], sizeof(shape));
    CHECK(convoy_plan_conv2d(&shape, &good_options, &plan) == CONVOY_INVALID_ARGUMENT);
    shape.struct_size = sizeof(shape);
    CHECK(convoy_plan_conv2d(&shape, &good_options, &plan) == CONVOY_INVALID_ARGUMENT);
    CHECK(convoy_supports_conv2d(&shape, &good_options) == CONVOY_INVALID_ARGUMENT);
    convoy_conv3d_shape_t volume;
    memset(&volume, bytes[i], sizeof(volume));
    volume.struct_size = sizeof(volume);
    CHECK(convoy_plan_conv3d(&volume, &good_options, &plan) == CONVOY_INVALID_ARGUMENT);
    convoy_norm_shape_t norm;
    memset(&norm, bytes[i], sizeof(norm));
    norm.struct_size = sizeof(norm);
    convoy_norm_plan_t norm_plan = NULL;
    CHECK(convoy_plan_group_norm(&norm, NULL, &norm_plan) != CONVOY_OK);
    if (bytes[i] < 2) continue; /* The rest may be legal. */
    convoy_plan_options_t options;
    memset(&options, bytes[i], sizeof(options));
    options.struct_size = sizeof(options);
    options.epilogue = NULL;
    options.prologue = NULL;
    options.shuffle = NULL;
    options.kernel = NULL;
    CHECK(convoy_plan_conv2d(&good_shape, &options, &plan) == CONVOY_INVALID_ARGUMENT);
    CHECK(plan == NULL);
    convoy_epilogue_t epilogue;
    memset(&epilogue, bytes[i], sizeof(epilogue));
    epilogue.struct_size = sizeof(epilogue);
    options = good_options;
    options.epilogue = &epilogue;
    CHECK(convoy_plan_conv2d(&good_shape, &options, &plan) == CONVOY_INVALID_ARGUMENT);
  }
  static const size_t sizes[] = {1, 7, 4097, (size_t)1 << 40, (size_t)-1};
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) {
    convoy_plan_t plan = NULL;
    convoy_conv2d_shape_t shape = good_shape;
    shape.struct_size = sizes[i];
    CHECK(convoy_plan_conv2d(&shape, &good_options, &plan) == CONVOY_INVALID_ARGUMENT);
    CHECK(error_has("struct_size"));
    convoy_plan_options_t options = good_options;
    options.struct_size = sizes[i];
    CHECK(convoy_plan_conv2d(&good_shape, &options, &plan) == CONVOY_INVALID_ARGUMENT);
    CHECK(convoy_plan_conv2d(&good_shape, &good_options, &plan) == CONVOY_OK);
    convoy_plan_info_t info = {sizes[i], NULL, NULL, NULL, 0, 0, NULL, -1, -1, NULL};
    CHECK(convoy_plan_info(plan, &info) == CONVOY_INVALID_ARGUMENT);
    CHECK(info.kernel == NULL);
    convoy_run_arguments_t arguments;
    convoy_run_arguments_init(&arguments, sizeof(arguments));
    arguments.struct_size = sizes[i];
    CHECK(convoy_run(plan, &arguments, NULL) == CONVOY_INVALID_ARGUMENT);
    convoy_plan_destroy(plan);
    memset(&shape, 0x55, sizeof(shape));
    convoy_conv2d_shape_init(&shape, sizes[i]);
    CHECK(shape.batch == 0x5555555555555555);
  }
}

/* Null for every argument in turn. */
static void test_null(void) {
  convoy_tensor_shape_t shape;
  size_t bytes = 7;
  convoy_plan_info_t info = {sizeof(info), NULL, NULL, NULL, 0, 0, NULL, -1, -1, NULL};
  convoy_packed_filter_t packed = NULL;
  convoy_candidates_t list = NULL;
  convoy_candidate_t candidate = {sizeof(candidate), NULL, NULL, NULL, 0, 0, 0, NULL};
  const convoy_conv2d_shape_t problem = small_shape();
  const convoy_plan_options_t options = cpu_options();
  convoy_plan_t plan = NULL;
  CHECK(convoy_plan_conv2d(&problem, &options, &plan) == CONVOY_OK);
  if (plan == NULL) return;
  for (int with_plan = 0; with_plan < 2; ++with_plan) {
    convoy_plan_t some = with_plan ? plan : NULL;
    CHECK(convoy_plan_output_shape(some, with_plan ? NULL : &shape) == CONVOY_INVALID_ARGUMENT);
    CHECK(convoy_plan_activation_shape(some, with_plan ? NULL : &shape) == CONVOY_INVALID_ARGUMENT);
    CHECK(convoy_plan_cache_shape(some, with_plan ? NULL : &shape) == CONVOY_INVALID_ARGUMENT);
    CHECK(convoy_plan_next_cache_shape(some, with_plan ? NULL : &shape) == CONVOY_INVALID_ARGUMENT);
    CHECK(convoy_plan_workspace_bytes(some, with_plan ? NULL : &bytes) == CONVOY_INVALID_ARGUMENT);
    CHECK(convoy_plan_info(some, with_plan ? NULL : &info) == CONVOY_INVALID_ARGUMENT);
    CHECK(convoy_run(some, NULL, NULL) == CONVOY_INVALID_ARGUMENT);
    CHECK(convoy_pack_filter(some, NULL, CONVOY_KRSC, NULL, with_plan ? NULL : &packed) ==
          CONVOY_INVALID_ARGUMENT);
  }
  CHECK(convoy_pack_filter(plan, NULL, CONVOY_KRSC, NULL, &packed) == CONVOY_INVALID_ARGUMENT);
  CHECK(convoy_pack_filter(plan, &shape, 77, NULL, &packed) == CONVOY_INVALID_ARGUMENT);
  CHECK(packed == NULL);
  CHECK(convoy_candidates_conv2d(NULL, &options, &list) == CONVOY_INVALID_ARGUMENT);
  CHECK(convoy_candidates_conv2d(&problem, &options, NULL) == CONVOY_INVALID_ARGUMENT);
  CHECK(convoy_candidates_conv3d(NULL, NULL, &list) == CONVOY_INVALID_ARGUMENT);
  CHECK(convoy_candidates_get(NULL, 0, &candidate) == CONVOY_INVALID_ARGUMENT);
  CHECK(convoy_supports_conv3d(NULL, NULL) == CONVOY_INVALID_ARGUMENT);
  CHECK(convoy_plan_group_norm(NULL, NULL, NULL) == CONVOY_INVALID_ARGUMENT);
  CHECK(convoy_plan_rms_norm(NULL, NULL, NULL) == CONVOY_INVALID_ARGUMENT);
  CHECK(convoy_norm_run(NULL, NULL, NULL) == CONVOY_INVALID_ARGUMENT);
  CHECK(convoy_norm_info(NULL, &info) == CONVOY_INVALID_ARGUMENT);
  CHECK(convoy_norm_workspace_bytes(NULL, &bytes) == CONVOY_INVALID_ARGUMENT);
  CHECK(bytes == 7);
  convoy_conv2d_shape_init(NULL, 8);
  convoy_epilogue_init(NULL, 0);
  convoy_prologue_init(NULL, 0);
  convoy_shuffle_init(NULL, 0);
  CHECK(convoy_plan_residual_shape(NULL, NULL) == CONVOY_INVALID_ARGUMENT);
  CHECK(convoy_status_string((convoy_status_t)99) != NULL);
  CHECK(convoy_status_string((convoy_status_t)-1) != NULL);
  convoy_plan_destroy(plan);
}

static void test_one_rank(void) {
  convoy_communicator_t rank = NULL;
  CHECK(convoy_communicators_in_process(0, 1000, &rank) == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("count = 0"));
  CHECK(convoy_communicators_in_process(1, 0, &rank) == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("timeout_ms = 0"));
  CHECK(convoy_communicators_in_process(1, 1000, &rank) == CONVOY_OK);
  int32_t index = -1, count = -1;
  CHECK(convoy_communicator_rank(rank, &index, &count) == CONVOY_OK && index == 0 && count == 1);

  convoy_conv2d_shape_t shape;
  convoy_conv2d_shape_init(&shape, sizeof(shape));
  shape.in_height = shape.in_width = 3;
  shape.in_channels = shape.out_channels = 1;
  shape.filter_h = shape.filter_w = 3;
  shape.pad_top = shape.pad_bottom = shape.pad_left = shape.pad_right = 1;
  convoy_plan_options_t options;
  convoy_plan_options_init(&options, sizeof(options));
  options.dtype = CONVOY_FP32;
  options.device = CONVOY_DEVICE_CPU;
  convoy_shard_options_t cut;
  convoy_shard_options_init(&cut, sizeof(cut));
  convoy_shard_plan_t plan = NULL;
  cut.axis = CONVOY_SHARD_FRAMES;
  CHECK(convoy_plan_shard_conv2d(&shape, &options, &cut, rank, &plan) == CONVOY_INVALID_ARGUMENT);
  CHECK(plan == NULL && error_has("axis = frames"));
  cut.axis = CONVOY_SHARD_HEIGHT;
  cut.overlap = 7;
  CHECK(convoy_plan_shard_conv2d(&shape, &options, &cut, rank, &plan) == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("overlap = 7"));
  cut.overlap = CONVOY_OVERLAP_AUTO;
  CHECK(convoy_plan_shard_conv2d(&shape, &options, &cut, rank, &plan) == CONVOY_OK);
  convoy_shard_layout_t layout;
  layout.struct_size = sizeof(layout);
  CHECK(convoy_shard_layout(plan, 1, &layout) == CONVOY_INVALID_ARGUMENT);
  CHECK(convoy_shard_layout(plan, 0, &layout) == CONVOY_OK);
  CHECK(layout.input_begin == 0 && layout.input_end == 3 && layout.output_margin_end == 0);

  _Alignas(16) float in[9], filter[9] = {0}, out[9];
  for (int i = 0; i < 9; ++i) in[i] = (float)i;
  filter[4] = 2.0f;
  convoy_run_arguments_t arguments;
  convoy_run_arguments_init(&arguments, sizeof(arguments));
  arguments.output = out;
  arguments.activation = in;
  arguments.filter = filter;
  CHECK(convoy_shard_run(plan, &arguments, 0, NULL) == CONVOY_OK);
  CHECK(out[0] == 0.0f && out[8] == 16.0f);
  CHECK(convoy_communicator_synchronize(rank, NULL) == CONVOY_OK);
  convoy_shard_plan_destroy(plan);
  convoy_communicator_destroy(rank);
}

/* What is refused before any device is asked; tests/kernels/peer_test.cpp exchanges. */
static void test_peers(void) {
  convoy_peers_t peers = (convoy_peers_t)&failures;
  const convoy_status_t status = convoy_peers_create(0, 9, 256, 1000, &peers);
  CHECK(peers == NULL);
  convoy_peers_destroy(NULL);
  if (status == CONVOY_UNSUPPORTED) { /* No CUDA in this library. */
    int32_t rank = 7;
    CHECK(error_has("built without CUDA") && error_has("CONVOY_CUDA=ON"));
    CHECK(convoy_peers_late(NULL, &rank) == CONVOY_UNSUPPORTED && rank == -1);
    CHECK(convoy_peers_handle(NULL, NULL) == CONVOY_UNSUPPORTED);
    CHECK(convoy_peers_connect(NULL, NULL) == CONVOY_UNSUPPORTED);
    CHECK(convoy_peers_try_out(NULL, 1) == CONVOY_UNSUPPORTED);
    CHECK(convoy_peers_exchange(NULL, NULL, 0, NULL, 0, 0, NULL) == CONVOY_UNSUPPORTED);
    CHECK(convoy_peers_all_gather(NULL, NULL, NULL, 1, NULL) == CONVOY_UNSUPPORTED);
    return;
  }
  CHECK(status == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("count = 9") && error_has("legal: 1 to 8") && error_has("nearest: 8"));
  CHECK(convoy_peers_create(2, 2, 256, 1000, &peers) == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("rank = 2") && error_has("legal: 0 to 1") && error_has("nearest: 1"));
  CHECK(convoy_peers_create(0, 2, (size_t)-1, 1000, &peers) == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("capacity = ") && error_has("legal: up to "));
  CHECK(convoy_peers_create(0, 2, 256, 0, &peers) == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("timeout_ms = 0") && error_has("at least 1"));
  CHECK(convoy_peers_create(0, 2, 256, 1000, NULL) == CONVOY_INVALID_ARGUMENT);
  CHECK(error_has("peers"));
  int32_t rank = 0;
  CHECK(convoy_peers_late(NULL, &rank) == CONVOY_INVALID_ARGUMENT && error_has("peers"));
  CHECK(convoy_peers_handle(NULL, NULL) == CONVOY_INVALID_ARGUMENT);
  CHECK(convoy_peers_connect(NULL, NULL) == CONVOY_INVALID_ARGUMENT);
  CHECK(convoy_peers_try_out(NULL, 1) == CONVOY_INVALID_ARGUMENT);
  CHECK(convoy_peers_exchange(NULL, NULL, 0, NULL, 0, 0, NULL) == CONVOY_INVALID_ARGUMENT);
  CHECK(convoy_peers_all_gather(NULL, NULL, NULL, 1, NULL) == CONVOY_INVALID_ARGUMENT);
}

int main(void) {
  test_one_rank();
  test_peers();
  CHECK(convoy_version_number() == CONVOY_VERSION);
  CHECK(strstr(convoy_version(), "git") != NULL);
  test_run();
  test_three_dimensions();
  test_fields_that_must_be_zero();
  test_errors();
  test_struct_growth();
  test_shuffle();
  test_candidates();
  test_norms();
  test_prologue();
  test_garbage();
  test_null();
  if (failures == 0) printf("C interface: all checks passed\n");
  return failures == 0 ? 0 : 1;
}
