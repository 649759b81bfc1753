// SPDX-License-Identifier: Apache-2.0
#pragma once

// CONVOY_VECTOR_CLONES before a function compiles it for several instruction sets; the best one
// that the processor has is bound when the library is loaded.
// NOTE: sanitizers instrument the resolver that picks a clone, which runs before they are set up.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__clang__)
#define CONVOY_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CONVOY_VECTOR_CLONES
#endif
