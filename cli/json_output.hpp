// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>

namespace convoy::cli {

/// NOTE: a value begins as one of these, and never grows into one: where there is no memory for
/// that, the JSON library leaves a value behind that its destructor cannot end.
inline nlohmann::ordered_json empty_object() {
  return nlohmann::ordered_json::object();
}
inline nlohmann::ordered_json empty_array() {
  return nlohmann::ordered_json::array();
}

/// On stdout. File names need not be UTF-8, which JSON is.
inline void print(const nlohmann::ordered_json& json) {
  using Json = nlohmann::ordered_json;
  std::printf("%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

}  // namespace convoy::cli
