// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>

namespace convoy::cli {

/// On stdout. File names need not be UTF-8, which JSON is.
inline void print(const nlohmann::ordered_json& json) {
  using Json = nlohmann::ordered_json;
  std::printf("%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

}  // namespace convoy::cli
