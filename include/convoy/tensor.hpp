// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "convoy/types.hpp"

namespace convoy {

/// Type, layout and extents of a dense channels-last tensor. NHWC uses 4 extents {N, H, W, C},
/// NDHWC 5 extents {N, D, H, W, C}.
struct TensorShape {
  DType dtype = DType::bf16;
  Layout layout = Layout::nhwc;
  std::array<std::int64_t, 5> extents = {0, 0, 0, 0, 0};

  int rank() const { return layout == Layout::nhwc ? 4 : 5; }
  friend bool operator==(const TensorShape&, const TensorShape&) = default;
};

/// A tensor that a run writes. Built from a bare pointer, it is taken to be as planned; built with
/// a shape, the shape is checked against the plan and a difference is an Error{invalid_argument}.
struct TensorView {
  TensorView() = default;
  TensorView(void* data) : data(data) {}  // NOLINT(google-explicit-constructor)
  TensorView(void* data, const TensorShape& shape) : data(data), shape(shape) {}

  void* data = nullptr;
  std::optional<TensorShape> shape{};
};

/// A tensor that a run reads.
struct ConstTensorView {
  ConstTensorView() = default;
  ConstTensorView(const void* data) : data(data) {}  // NOLINT(google-explicit-constructor)
  ConstTensorView(const void* data, const TensorShape& shape) : data(data), shape(shape) {}
  ConstTensorView(const TensorView& view)  // NOLINT(google-explicit-constructor)
      : data(view.data), shape(view.shape) {}

  const void* data = nullptr;
  std::optional<TensorShape> shape{};
};

}  // namespace convoy
