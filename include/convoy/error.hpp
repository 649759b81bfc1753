// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

#include "convoy/export.h"

namespace convoy {

/// What kind of failure an Error reports. The values are those of `convoy_status` in convoy.h.
enum class Status : int {
  ok = 0,  ///< No failure; never thrown.
  /// The request makes no sense on any backend (negative extent, shape mismatch, ...).
  invalid_argument = 1,
  unsupported = 2,     ///< The request is well-formed, but no kernel here can run it.
  out_of_memory = 3,   ///< Host or device memory could not be reserved.
  launch_failure = 4,  ///< The CUDA runtime or oneDNN refused or failed a launch.
  io_error = 5,        ///< A file could not be read or written (tools only).
  internal = 6,        ///< A broken invariant of the library: please report it.
};

/// "invalid argument", "unsupported", ...
CONVOY_API const char* to_string(Status status) noexcept;

/// Every failure of the library is thrown as an Error. `what()` names the condition, the value
/// got, what is legal and, where there is one, the nearest supported choice.
class CONVOY_API Error : public std::runtime_error {
 public:
  /// A failure with its text.
  Error(Status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  /// What kind of failure it is.
  Status status() const noexcept { return status_; }

 private:
  Status status_;
};

}  // namespace convoy
