// SPDX-License-Identifier: Apache-2.0
#include "shape_file.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>
#include <sstream>

#include "io/byte_source.hpp"
#include "nearest.hpp"
#include "text.hpp"

namespace convoy::cli {
namespace {

constexpr std::uint64_t kLargestFile = 16 << 20;

std::string shapes_folder() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return (program.parent_path().parent_path() / "share" / "convoy" / "shapes").string();
}

DType parse_type(std::string_view word, const char* what) {
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    if (word == to_string(dtype)) return dtype;
  }
  throw_invalid(what, " = '", word.substr(0, 40), "'; legal: bf16, fp16, fp32");
}

Activation parse_activation_name(std::string_view word) {
  std::string legal = "none, bias, residual, residual_before_activation, each_step";
  for (int i = static_cast<int>(Activation::none) + 1; i <= static_cast<int>(Activation::clamp);
       ++i) {
    const auto activation = static_cast<Activation>(i);
    if (word == to_string(activation)) return activation;
    legal += text(", ", to_string(activation));
  }
  throw_invalid("epilogue: step '", word.substr(0, 40), "' is not known; legal: ", legal);
}

ShapeCase parse_line(const std::string& line) {
  std::istringstream words(line);
  std::string word, shape, name;
  std::int64_t count = 1;
  std::optional<DType> dtype;
  std::optional<EpilogueKind> epilogue;
  std::set<std::string> keys;
  while (words >> word) {
    const std::size_t equals = word.find('=');
    if (equals != word.npos && word[0] != '-') {
      const std::string key = word.substr(0, equals);
      static const std::vector<std::string> kKeys = {"count", "name", "dtype", "epilogue"};
      if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) {
        throw_invalid("'", word.substr(0, 40), "': key '", key.substr(0, 40),
                      "' is not known; legal: count, name, dtype, epilogue",
                      nearest_hint(key, kKeys));
      }
      if (!keys.insert(key).second) {
        throw_invalid("'", word.substr(0, 40), "': ", key, " is given twice; legal: once");
      }
    }
    if (word.starts_with("count=")) {
      const char* begin = word.data() + 6;
      const char* end = word.data() + word.size();
      const auto [rest, error] = std::from_chars(begin, end, count);
      if (error != std::errc{} || rest != end || count < 1) {
        throw_invalid("'", word, "' is not legal; legal: count=1 or more");
      }
    } else if (word.starts_with("name=")) {
      name = word.substr(5);
    } else if (word.starts_with("dtype=")) {
      dtype = parse_type(word.substr(6), "dtype");
    } else if (word.starts_with("epilogue=")) {
      epilogue = parse_epilogue(std::string_view(word).substr(9));
    } else {
      shape += (shape.empty() ? "" : " ") + word;
    }
  }
  ParsedShape parsed = parse_shape(shape);
  return {parsed.problem, dtype ? dtype : parsed.dtype, name.empty() ? parsed.name : name, count,
          epilogue};
}

}  // namespace

EpilogueKind parse_epilogue(std::string_view words) {
  EpilogueKind kind;
  if (words == "none") return kind;
  bool each_step = false;
  const auto once = [](bool& given, const char* what) {
    if (given) throw_invalid("epilogue: ", what, " is given twice; legal: once");
    given = true;
  };
  for (bool more = true; more;) {
    const std::size_t end = std::min(words.find('+'), words.size());
    const std::string_view word = words.substr(0, end);
    more = end < words.size();
    words.remove_prefix(std::min(end + 1, words.size()));
    if (word == "none") {
      throw_invalid("epilogue: step 'none' among others; legal: none alone, or the others alone");
    }
    if (word == "bias" || word.starts_with("bias_")) {
      once(kind.bias, "a bias");
      kind.bias_dtype = word == "bias" ? DType::fp32 : parse_type(word.substr(5), "bias type");
    } else if (word == "residual" || word == "residual_before_activation") {
      once(kind.residual, "a residual");
      if (word != "residual") kind.order = ResidualOrder::before_activation;
      if (word != "residual" && kind.activation != Activation::none) {
        throw_invalid("epilogue: '", word, "' behind '", to_string(kind.activation),
                      "'; legal: in front of it, or residual behind it");
      }
    } else if (word == "each_step") {
      once(each_step, "each_step");
      kind.rounding = EpilogueRounding::each_step;
    } else {
      const Activation activation = parse_activation_name(word);
      if (kind.activation != Activation::none) {
        throw_invalid("epilogue: '", word, "' behind '", to_string(kind.activation),
                      "'; legal: one activation");
      }
      if (kind.residual && kind.order == ResidualOrder::after_activation) {
        throw_invalid("epilogue: '", word, "' behind 'residual'; legal: ", word,
                      "+residual, or residual_before_activation+", word);
      }
      kind.activation = activation;
    }
  }
  return kind;
}

std::vector<ShapeCase> read_shape_file(const std::string& path) {
  std::istringstream lines(io::read_all(path, kLargestFile));
  std::vector<ShapeCase> cases;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    if (line.back() == '\r') line.pop_back();
    try {
      cases.push_back(parse_line(line));
    } catch (const Error& error) {
      throw_invalid(path, ":", number, ": ", error.what());
    }
  }
  if (cases.empty()) throw_invalid(path, ": holds no shape");
  return cases;
}

std::string find_shape_set(const std::string& name) {
  if (name.empty() || name.find('/') != name.npos) return "";
  const std::string path = shapes_folder() + "/" + name + ".txt";
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) ? path : "";
}

std::vector<std::string> list_shape_sets() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(shapes_folder(), error)) {
    if (entry.path().extension() == ".txt") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<ShapeCase> resolve_shapes(const std::string& argument) {
  const std::string set = find_shape_set(argument);
  if (!set.empty()) return read_shape_file(set);
  std::error_code error;
  if (argument.find('/') != argument.npos || std::filesystem::exists(argument, error)) {
    return read_shape_file(argument);
  }
  try {
    const ParsedShape parsed = parse_shape(argument);
    return {{parsed.problem, parsed.dtype, parsed.name, 1, {}}};
  } catch (const Error& problem) {
    std::string sets;
    const std::vector<std::string> names = list_shape_sets();
    for (const std::string& name : names) sets += (sets.empty() ? "" : ", ") + name;
    throw_invalid("'", argument.substr(0, 80), "' is neither a shape file, nor a named set (", sets,
                  nearest_hint(argument, names), "), nor a shape: ", problem.what());
  }
}

}  // namespace convoy::cli
