// SPDX-License-Identifier: Apache-2.0
#include "tensors.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

namespace convoy_torch {
namespace {

constexpr std::uintptr_t alignment = 16;
constexpr std::size_t max_rank = 8;

bool aligned(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % alignment == 0;
}

void torch_check(AOTITorchError error, const char* what) {
  if (error != 0) fail(CONVOY_LAUNCH_FAILURE, std::string("PyTorch failed to ") + what);
}

Tensor empty(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides,
             std::int32_t dtype, const Facts& like) {
  AtenTensorHandle made = nullptr;
  torch_check(
      aoti_torch_empty_strided(static_cast<std::int64_t>(sizes.size()), sizes.data(),
                               strides.data(), dtype, like.device_type, like.device_index, &made),
      "allocate a tensor");
  return Tensor(made);
}

Tensor copy_of(const Tensor& source, const Tensor& target) {
  torch_check(aoti_torch_copy_(target.get(), source.get(), 0), "copy a tensor");
  return target;
}

std::string type_name(std::int32_t dtype) {
  const std::pair<std::int32_t, const char*> names[] = {
      {aoti_torch_dtype_bfloat16(), "bfloat16"}, {aoti_torch_dtype_float16(), "float16"},
      {aoti_torch_dtype_float32(), "float32"},   {aoti_torch_dtype_float64(), "float64"},
      {aoti_torch_dtype_int8(), "int8"},         {aoti_torch_dtype_uint8(), "uint8"},
      {aoti_torch_dtype_int32(), "int32"},       {aoti_torch_dtype_int64(), "int64"},
      {aoti_torch_dtype_bool(), "bool"}};
  for (const auto& [number, name] : names) {
    if (number == dtype) return std::string("torch.") + name;
  }
  return "of PyTorch's type " + std::to_string(dtype);
}

// NOTE: not linked: a PyTorch for the CPU alone does not have it.
using CurrentStream = AOTITorchError (*)(std::int32_t, void**);
CurrentStream current_stream() {
  static const auto found = [] {
    void* library = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    return library == nullptr ? nullptr
                              : reinterpret_cast<CurrentStream>(
                                    dlsym(library, "aoti_torch_get_current_cuda_stream"));
  }();
  return found;
}

}  // namespace

void fail(convoy_status_t status, const std::string& text) {
  throw std::runtime_error("convoy(" + std::to_string(static_cast<int>(status)) + "): " + text);
}

void check(convoy_status_t status) {
  if (status != CONVOY_OK) fail(status, convoy_last_error());
}

Facts::Facts(const Tensor& tensor) {
  std::int64_t rank = 0;
  std::int64_t *sizes_at = nullptr, *strides_at = nullptr;
  AtenTensorHandle handle = tensor.get();
  if (aoti_torch_get_data_ptr(handle, &data) != 0 || aoti_torch_get_dim(handle, &rank) != 0 ||
      aoti_torch_get_sizes(handle, &sizes_at) != 0 ||
      aoti_torch_get_strides(handle, &strides_at) != 0 ||
      aoti_torch_get_dtype(handle, &dtype) != 0 ||
      aoti_torch_get_device_type(handle, &device_type) != 0 ||
      aoti_torch_get_device_index(handle, &device_index) != 0) {
    fail(CONVOY_INVALID_ARGUMENT, "a tensor without dense memory; legal: strided tensors");
  }
  sizes = {sizes_at, static_cast<std::size_t>(rank)};
  strides = {strides_at, static_cast<std::size_t>(rank)};
  if (sizes.size() > max_rank) {
    fail(CONVOY_INVALID_ARGUMENT,
         "a tensor of " + std::to_string(rank) + " axes; legal: up to " + std::to_string(max_rank));
  }
}

bool Facts::on_gpu() const {
  static const std::int32_t cuda = aoti_torch_device_type_cuda();
  return device_type == cuda;
}

bool Facts::channels_last() const {
  if (sizes.size() < 2 || !aligned(data)) return false;
  std::int64_t expected = 1;
  // Channels, then the axes behind them from the last, then the batch.
  const auto fits = [&](std::size_t axis) {
    const bool right = sizes[axis] == 1 || strides[axis] == expected;
    expected *= sizes[axis];
    return right;
  };
  if (!fits(1)) return false;
  for (std::size_t axis = sizes.size() - 1; axis > 1; --axis) {
    if (!fits(axis)) return false;
  }
  return fits(0);
}

bool Facts::contiguous() const {
  std::int64_t expected = 1;
  for (std::size_t axis = sizes.size(); axis-- > 0;) {
    if (sizes[axis] != 1 && strides[axis] != expected) return false;
    expected *= sizes[axis];
  }
  return aligned(data);
}

std::int64_t Facts::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return count;
}

std::int32_t library_dtype(const Facts& tensor, const char* name) {
  static const std::int32_t bf16 = aoti_torch_dtype_bfloat16(), fp16 = aoti_torch_dtype_float16(),
                            fp32 = aoti_torch_dtype_float32();
  if (tensor.dtype == bf16) return CONVOY_BF16;
  if (tensor.dtype == fp16) return CONVOY_FP16;
  if (tensor.dtype == fp32) return CONVOY_FP32;
  fail(CONVOY_INVALID_ARGUMENT, std::string(name) + " is " + type_name(tensor.dtype) +
                                    "; legal: torch.bfloat16, torch.float16, torch.float32");
}

std::string described(const Facts& tensor) {
  std::string text = "(";
  for (const std::int64_t size : tensor.sizes) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  }
  return text + (tensor.sizes.size() == 1 ? ",)" : ")");
}

std::string type_and_place(const Facts& tensor) {
  const std::string place = tensor.on_gpu() ? "cuda:" + std::to_string(tensor.device_index) : "cpu";
  return type_name(tensor.dtype) + " on " + place;
}

void check_like(const Facts& tensor, const char* name, const Facts& x) {
  if (tensor.dtype == x.dtype && tensor.same_place(x)) return;
  fail(CONVOY_INVALID_ARGUMENT,
       std::string(name) + " is " + type_and_place(tensor) + ", but x is " + type_and_place(x));
}

Tensor empty_channels_last(std::span<const std::int64_t> sizes, const Facts& like) {
  std::array<std::int64_t, max_rank> strides{};
  std::int64_t next = 1;
  const auto place = [&](std::size_t axis) {
    strides[axis] = next;
    next *= std::max<std::int64_t>(sizes[axis], 1);
  };
  place(1);
  for (std::size_t axis = sizes.size() - 1; axis > 1; --axis) place(axis);
  place(0);
  return empty(sizes, std::span(strides).first(sizes.size()), like.dtype, like);
}

Tensor empty_fp32(std::span<const std::int64_t> sizes, const Facts& like) {
  static const std::int32_t fp32 = aoti_torch_dtype_float32();
  std::array<std::int64_t, max_rank> strides{};
  std::int64_t next = 1;
  for (std::size_t axis = sizes.size(); axis-- > 0; next *= sizes[axis]) strides[axis] = next;
  return empty(sizes, std::span(strides).first(sizes.size()), fp32, like);
}

Tensor channels_last(const Tensor& tensor) {
  const Facts facts(tensor);
  if (facts.channels_last()) return tensor;
  return copy_of(tensor, empty_channels_last(facts.sizes, facts));
}

Tensor contiguous(const Tensor& tensor) {
  const Facts facts(tensor);
  if (facts.contiguous()) return tensor;
  std::array<std::int64_t, max_rank> strides{};
  std::int64_t next = 1;
  for (std::size_t axis = facts.sizes.size(); axis-- > 0;) {
    strides[axis] = next;
    next *= std::max<std::int64_t>(facts.sizes[axis], 1);
  }
  const std::span<const std::int64_t> chosen = std::span(strides).first(facts.sizes.size());
  return copy_of(tensor, empty(facts.sizes, chosen, facts.dtype, facts));
}

Tensor bytes(std::int64_t count, const Facts& like) {
  static const std::int32_t uint8 = aoti_torch_dtype_uint8();
  const std::int64_t one = 1;
  return empty({&count, 1}, {&one, 1}, uint8, like);
}

void* stream_of(const Facts& tensor) {
  if (!tensor.on_gpu()) return nullptr;
  void* stream = nullptr;
  if (current_stream() == nullptr || current_stream()(tensor.device_index, &stream) != 0) {
    fail(CONVOY_LAUNCH_FAILURE, "PyTorch does not say its current CUDA stream");
  }
  return stream;
}

}  // namespace convoy_torch
