// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exec/machine.hpp"

/// Lane loops of register-to-register instructions. A full warp computes 32 lanes in a loop that
/// the compiler vectorises; one lane alone computes just that; anything between computes all and
/// keeps the active ones, so the functions given must be safe on any input.
namespace vgpu::exec {

/// d[l] = f(l) for each lane of `lanes`.
template <typename D, typename F>
inline __attribute__((always_inline)) void write_lanes(Warp& w, uint32_t at, uint32_t lanes,
                                                       F&& f) {
  D* d = w.lanes<D>(at);
  if ((lanes & (lanes - 1)) == 0) {
    uint32_t l = first_lane(lanes);
    d[l] = f(l);
    return;
  }
  D result[kLanes];
  for (uint32_t l = 0; l < kLanes; ++l) result[l] = f(l);
  if (lanes == kAllLanes) {
    std::memcpy(d, result, sizeof result);
  } else {
    for (uint32_t l = 0; l < kLanes; ++l) d[l] = lanes >> l & 1 ? result[l] : d[l];
  }
}

/// As write_lanes, for functions that are slow or not safe on inactive lanes.
template <typename D, typename F>
inline void write_each_lane(Warp& w, uint32_t at, uint32_t lanes, F&& f) {
  D* d = w.lanes<D>(at);
  for_lanes(lanes, [&](uint32_t l) { d[l] = f(l); });
}

template <typename D, typename A, auto F>
Step unary(Warp& w, const Instr& i, uint32_t lanes) {
  const A* a = w.lanes<A>(i.a);
  write_lanes<D>(w, i.d, lanes, [=](uint32_t l) { return static_cast<D>(F(a[l])); });
  return Step::next;
}

template <typename D, typename A, typename B, auto F>
Step binary(Warp& w, const Instr& i, uint32_t lanes) {
  const A* a = w.lanes<A>(i.a);
  const B* b = w.lanes<B>(i.b);
  write_lanes<D>(w, i.d, lanes, [=](uint32_t l) { return static_cast<D>(F(a[l], b[l])); });
  return Step::next;
}

template <typename D, typename A, typename B, typename C, auto F>
Step ternary(Warp& w, const Instr& i, uint32_t lanes) {
  const A* a = w.lanes<A>(i.a);
  const B* b = w.lanes<B>(i.b);
  const C* c = w.lanes<C>(i.c);
  write_lanes<D>(w, i.d, lanes, [=](uint32_t l) { return static_cast<D>(F(a[l], b[l], c[l])); });
  return Step::next;
}

}  // namespace vgpu::exec
