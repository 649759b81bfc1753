// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>

#include "exec/decoder.hpp"
#include "exec/memory_access.hpp"

/// Modifiers that loads, stores and atomics share.
namespace vgpu::exec {

/// .global, .shared{::cta, ::cluster}, .local, .param{::entry, ::func}, .const; none: generic.
AddressSpace take_space(Decoder& d);
/// .weak, .relaxed, .acquire, .release, .acq_rel, .volatile and the scope.
void take_order(Decoder& d, Order& order, Scope& scope);
/// Held for atomic accesses of 128 bits, which the host's own atomics do not cover.
std::mutex& wide_access();
/// Cache operators, eviction priorities, prefetch sizes: no effect on results.
void take_cache_hints(Decoder& d);

/// st.async, st.bulk (copy_ops.cpp).
bool decode_async_store(Decoder& d);
/// red.async (copy_ops.cpp).
bool decode_async_red(Decoder& d);

}  // namespace vgpu::exec
