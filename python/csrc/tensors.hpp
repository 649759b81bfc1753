// SPDX-License-Identifier: Apache-2.0
#pragma once

// PyTorch's tensors by its stable interface: one binary for PyTorch 2.10 and later.
#ifndef TORCH_TARGET_VERSION
#error "TORCH_TARGET_VERSION is set by CMakeLists.txt"
#endif

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <span>
#include <string>

#include "convoy/convoy.h"

namespace convoy_torch {

using torch::stable::Tensor;

/// Throws what a status of the library stands for, with a text that Python makes a typed error of.
[[noreturn]] void fail(convoy_status_t status, const std::string& text);
/// fail() with the library's own text, where `status` is none of success.
void check(convoy_status_t status);

/// What is known of a tensor, while it lives.
struct Facts {
  void* data = nullptr;
  std::span<const std::int64_t> sizes;
  std::span<const std::int64_t> strides;
  std::int32_t dtype = 0;  // PyTorch's number.
  std::int32_t device_type = 0, device_index = 0;

  explicit Facts(const Tensor& tensor);
  bool same_place(const Facts& other) const {
    return device_type == other.device_type && device_index == other.device_index;
  }
  bool on_gpu() const;
  /// Channels, axis 1, innermost, the last axis next; 16-byte aligned.
  bool channels_last() const;
  /// Rows, the last axis innermost; 16-byte aligned.
  bool contiguous() const;
  std::int64_t elements() const;
};

/// CONVOY_BF16, ...; fails for another type of `name`.
std::int32_t library_dtype(const Facts& tensor, const char* name);
/// "(2, 16, 8, 10)".
std::string described(const Facts& tensor);
/// "torch.float16 on cuda:0".
std::string type_and_place(const Facts& tensor);
/// Fails where `tensor` is not of x's type and device.
void check_like(const Facts& tensor, const char* name, const Facts& x);

/// Of these extents, channels (axis 1) innermost; type and device of `like`.
Tensor empty_channels_last(std::span<const std::int64_t> sizes, const Facts& like);
/// fp32, the last axis innermost; on the device of `like`.
Tensor empty_fp32(std::span<const std::int64_t> sizes, const Facts& like);
/// `tensor` where it lies so already, else a copy.
Tensor channels_last(const Tensor& tensor);
/// `tensor` with its elements one after another, aligned.
Tensor contiguous(const Tensor& tensor);
/// Bytes on the device of `like`.
Tensor bytes(std::int64_t count, const Facts& like);
/// The current CUDA stream of the tensor's device; null on the CPU.
void* stream_of(const Facts& tensor);

}  // namespace convoy_torch
