// SPDX-License-Identifier: Apache-2.0
#include "ptx/module.hpp"

#include <array>

namespace vgpu::ptx {
namespace {

struct TypeName {
  std::string_view name;
  Type type;
  unsigned size;
};

constexpr std::array kTypes{
    TypeName{"none", Type::none, 0},     TypeName{"pred", Type::pred, 0},
    TypeName{"b8", Type::b8, 1},         TypeName{"b16", Type::b16, 2},
    TypeName{"b32", Type::b32, 4},       TypeName{"b64", Type::b64, 8},
    TypeName{"b128", Type::b128, 16},    TypeName{"u8", Type::u8, 1},
    TypeName{"u16", Type::u16, 2},       TypeName{"u32", Type::u32, 4},
    TypeName{"u64", Type::u64, 8},       TypeName{"s8", Type::s8, 1},
    TypeName{"s16", Type::s16, 2},       TypeName{"s32", Type::s32, 4},
    TypeName{"s64", Type::s64, 8},       TypeName{"f16", Type::f16, 2},
    TypeName{"bf16", Type::bf16, 2},     TypeName{"f32", Type::f32, 4},
    TypeName{"f64", Type::f64, 8},       TypeName{"f16x2", Type::f16x2, 4},
    TypeName{"bf16x2", Type::bf16x2, 4}, TypeName{"f32x2", Type::f32x2, 8},
};

}  // namespace

unsigned size_of(Type type) {
  return kTypes[static_cast<size_t>(type)].size;
}

const char* name_of(Type type) {
  return kTypes[static_cast<size_t>(type)].name.data();
}

Type type_from_suffix(std::string_view suffix) {
  if (suffix.size() < 2 || suffix == "none") return Type::none;
  if (std::string_view("pbusf").find(suffix[0]) == std::string_view::npos) return Type::none;
  for (auto& entry : kTypes) {
    // The second character tells most apart.
    if (entry.name[1] == suffix[1] && entry.name == suffix) return entry.type;
  }
  return Type::none;
}

std::string_view Module::line_text(uint32_t line) const {
  std::string_view rest = text;
  for (uint32_t k = 1; k < line; ++k) {
    size_t end = rest.find('\n');
    if (end == std::string_view::npos) return {};
    rest.remove_prefix(end + 1);
  }
  rest = rest.substr(0, rest.find('\n'));
  size_t begin = rest.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return rest.substr(begin, rest.find_last_not_of(" \t\r") - begin + 1);
}

std::string Module::source_of(const Instruction& instruction) const {
  std::string text;
  const auto add = [&](const char* between, uint32_t file, uint32_t line) {
    const auto found = files.find(file);
    if (line == 0 || found == files.end()) return;
    text +=
        between + found->second.substr(found->second.rfind('/') + 1) + ":" + std::to_string(line);
  };
  add("", instruction.loc_file, instruction.loc_line);
  if (!text.empty()) add(", inlined at ", instruction.inlined_file, instruction.inlined_line);
  return text;
}

}  // namespace vgpu::ptx
