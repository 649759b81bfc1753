/* SPDX-License-Identifier: Apache-2.0 */
/* What the pages' C examples take as given. */
#include <convoy/convoy.h>
#include <stdio.h>

extern void *a, *w, *d, *bias, *stream;
extern convoy_conv2d_shape_t shape;
extern convoy_plan_options_t options;
