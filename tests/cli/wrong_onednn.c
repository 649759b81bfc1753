/* SPDX-License-Identifier: Apache-2.0 */
/* LD_PRELOAD it: a oneDNN that writes the first fp32 output of each convolution wrong. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>

typedef dnnl_status_t (*execute_t)(const_dnnl_primitive_t, dnnl_stream_t, int,
                                   const dnnl_exec_arg_t*);

dnnl_status_t dnnl_primitive_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream,
                                     int count, const dnnl_exec_arg_t* arguments) {
  execute_t right;
  *(void**)&right = dlsym(RTLD_NEXT, "dnnl_primitive_execute");
  const dnnl_status_t status = right(primitive, stream, count, arguments);
  void* weights = 0;
  void* output = 0;
  for (int i = 0; i < count; ++i) {
    if (arguments[i].arg == DNNL_ARG_WEIGHTS) weights = arguments[i].memory;
    if (arguments[i].arg == DNNL_ARG_DST) dnnl_memory_get_data_handle(arguments[i].memory, &output);
  }
  if (weights && output) *(float*)output += 1; /* Not of a reorder: it has no weights. */
  return status;
}
