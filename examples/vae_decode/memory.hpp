// SPDX-License-Identifier: Apache-2.0
//
// Memory of the CPU or of a GPU.
#pragma once

#include <cstddef>
#include <memory>

/// `bytes`, aligned to 64, on the GPU where `cuda`.
std::shared_ptr<void> allocate(std::size_t bytes, bool cuda);

/// Between places; waits for the GPU.
void copy_in(void* to, const void* host, std::size_t bytes, bool cuda);
void copy_out(void* host, const void* from, std::size_t bytes, bool cuda);
/// Within one place.
void copy_within(void* to, const void* from, std::size_t bytes, bool cuda);

/// Throws where this build or this machine has no GPU.
void require_cuda();
