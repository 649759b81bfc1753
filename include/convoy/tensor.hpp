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
  DType dtype = DType::bf16;     ///< Type of an element.
  Layout layout = Layout::nhwc;  ///< How many extents count, and their order.
  /// Elements along each axis, channels last; the fifth is 0 for NHWC.
  std::array<std::int64_t, 5> extents = {0, 0, 0, 0, 0};

  /// Axes: 4 for NHWC, 5 for NDHWC.
  int rank() const { return layout == Layout::nhwc ? 4 : 5; }
  /// Type, layout and all five extents are equal.
  friend bool operator==(const TensorShape&, const TensorShape&) = default;
};

/// A tensor that a run writes. Built from a bare pointer, it is taken to be as planned; built with
/// a shape, the shape is checked against the plan and a difference is an Error{invalid_argument}.
struct TensorView {
  TensorView() = default;
  /// Memory of the planned shape.
  TensorView(void* data) : data(data) {}  // NOLINT(google-explicit-constructor)
  /// Memory with a shape that is checked.
  TensorView(void* data, const TensorShape& shape) : data(data), shape(shape) {}

  void* data = nullptr;                ///< First element, on the plan's device, 16-byte aligned.
  std::optional<TensorShape> shape{};  ///< Checked where given.
};

/// A tensor that a run reads; otherwise as TensorView.
struct ConstTensorView {
  ConstTensorView() = default;
  /// Memory of the planned shape.
  ConstTensorView(const void* data) : data(data) {}  // NOLINT(google-explicit-constructor)
  /// Memory with a shape that is checked.
  ConstTensorView(const void* data, const TensorShape& shape) : data(data), shape(shape) {}
  /// What another run wrote.
  ConstTensorView(const TensorView& view)  // NOLINT(google-explicit-constructor)
      : data(view.data), shape(view.shape) {}

  const void* data = nullptr;          ///< First element, on the plan's device, 16-byte aligned.
  std::optional<TensorShape> shape{};  ///< Checked where given.
};

}  // namespace convoy
