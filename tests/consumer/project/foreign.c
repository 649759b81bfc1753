/* SPDX-License-Identifier: Apache-2.0 */
/* In place of libconvoy_cpu.so: one of an older version, or (NO_ENTRY) something else. */
#ifdef NO_ENTRY
int convoy_is_not_this;
#else
static const char* const kBackend[] = {"convoy 0.0.9, interface 0"};
const void* convoy_cpu_backend(void);
const void* convoy_cpu_backend(void) {
  return kBackend;
}
#endif
