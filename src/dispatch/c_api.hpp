// SPDX-License-Identifier: Apache-2.0
//
// What the files of the C interface share: structs of a caller's size, exceptions as a status.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>

#include "convoy/convoy.h"
#include "convoy/convoy.hpp"
#include "core/text.hpp"

struct convoy_packed_filter_s {
  convoy::PackedFilter packed;
};

namespace convoy::c_api {

/// Leaves the text for convoy_last_error().
convoy_status_t fail(Status status, const char* message) noexcept;

Conv2dProblemShape problem_of(const convoy_conv2d_shape_t* given);
Conv3dProblemShape problem_of(const convoy_conv3d_shape_t* given);
PlanOptions options_of(const convoy_plan_options_t* given);
RunArguments arguments_of(const convoy_run_arguments_t* given);

inline cudaStream_t stream_of(void* stream) {
  return static_cast<cudaStream_t>(stream);
}

/// Run `body` and turn what it throws into a status and a text.
template <typename Body>
convoy_status_t guarded(Body&& body) noexcept {
  try {
    body();
    return CONVOY_OK;
  } catch (const Error& error) {
    return fail(error.status(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(Status::out_of_memory, "host memory could not be reserved");
  } catch (const std::exception& error) {
    return fail(Status::internal, error.what());
  } catch (...) {
    return fail(Status::internal, "an unknown exception");
  }
}

template <typename T>
T* require(T* pointer, const char* name) {
  if (pointer == nullptr) throw_invalid(name, " is null");
  return pointer;
}

constexpr size_t kLargestStruct = 4096;

/// A caller's struct in this library's size: fields that it does not know take their defaults,
/// fields that this library does not know must be zero.
template <typename Struct>
Struct adopt(const Struct* given, Struct defaults, const char* name) {
  require(given, name);
  const size_t size = given->struct_size;
  if (size < sizeof(size_t) || size > kLargestStruct) {
    throw_invalid(name, ".struct_size = ", size, " is not legal; legal: ", sizeof(size_t), " to ",
                  kLargestStruct, "; nearest: ", sizeof(Struct),
                  " (call the init function of the struct)");
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] == 0) continue;
    throw_invalid(name, ".struct_size = ", size, " has fields past the ", sizeof(Struct),
                  " bytes that this library (", version(), ") knows, and they are not zero");
  }
  std::memcpy(&defaults, given, std::min(size, sizeof(Struct)));
  return defaults;
}

/// Write as much of `value` as the caller's struct has room for.
template <typename Struct>
void hand_back(Struct* to, Struct value, const char* name) {
  require(to, name);
  const size_t size = to->struct_size;
  if (size < sizeof(size_t) || size > kLargestStruct) {
    throw_invalid(name, ".struct_size = ", size, " is not legal; legal: sizeof the struct, ",
                  sizeof(Struct));
  }
  value.struct_size = size;
  std::memcpy(to, &value, std::min(size, sizeof(Struct)));
}

/// Write defaults into a struct of the caller's size.
template <typename Struct>
void initialise(Struct* to, Struct defaults, size_t struct_size) {
  if (to == nullptr || struct_size < sizeof(size_t) || struct_size > kLargestStruct) return;
  std::memset(to, 0, struct_size);
  defaults.struct_size = struct_size;
  std::memcpy(to, &defaults, std::min(struct_size, sizeof(Struct)));
}

}  // namespace convoy::c_api
