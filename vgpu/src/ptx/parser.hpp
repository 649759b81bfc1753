// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <map>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ptx/cursor.hpp"
#include "ptx/module.hpp"

namespace vgpu::ptx {

/// What a name stands for in a scope.
struct Name {
  enum class Kind : uint8_t { reg, variable, vector } kind;
  uint32_t index;      ///< vector: of its first register
  uint32_t count = 1;  ///< registers of a vector
};

/// `.reg .b32 %r<100>` declares %r0 … %r99; registers are made when first used.
struct RegisterRange {
  std::string_view prefix;
  uint64_t count;
  Type type;
};

struct Scope {
  int parent = -1;
  std::unordered_map<std::string_view, Name> names;
  std::unordered_map<std::string_view, uint32_t> labels;  ///< instruction index
  std::unordered_map<std::string_view, uint32_t> tables;  ///< Function::branch_tables
  std::vector<RegisterRange> ranges;
};

/// Recursive descent over a module. parse_module.cpp has what stands at module scope,
/// parse_function.cpp the bodies.
class Parser {
 public:
  explicit Parser(Module& module) : module_(module), in_(module.text) {}
  void parse_module();

 private:
  // Module scope.
  void parse_function(bool is_entry);
  uint32_t parse_parameter(Space space, uint64_t& offset);
  void parse_performance_directives(Function& function);
  void parse_variables(Space space, bool is_extern, bool is_visible, Function* function);
  void parse_initializer(Variable& variable);
  void parse_initial_value(Variable& variable, uint64_t& offset);
  void skip_section();

  // Function bodies.
  void parse_body(Function& function);
  void parse_statement();
  void parse_registers();
  void parse_location();
  void parse_branch_targets(std::string_view label);
  void parse_instruction();
  Operand parse_operand();
  Operand parse_operand_inside();
  Operand parse_number(bool negative);
  Operand parse_named(std::string_view name);
  Operand parse_vector(const Name& vector);
  Operand group(Operand::Kind kind, const std::vector<Operand>& children);
  const Name* find_name(std::string_view name);
  uint32_t intern_form(std::string_view text);
  uint32_t intern_special(std::string_view name);
  void resolve_labels();
  std::string_view text_of_name(const std::string& name) const;

  /// A use of a name that is not declared yet: a label, a function or a branch table.
  struct Unresolved {
    uint32_t operand;  ///< Function::operands
    std::string_view name;
    int scope;
    uint32_t line;
  };
  struct UnresolvedTarget {
    uint32_t table, entry;
    std::string_view name;
    int scope;
    uint32_t line;
  };

  Module& module_;
  Cursor in_;
  std::unordered_map<std::string_view, uint32_t> module_variables_;
  std::unordered_map<std::string_view, uint32_t> forms_;
  std::unordered_map<std::string_view, uint32_t> specials_;
  std::unordered_map<std::string_view, uint32_t> externals_;
  Function* function_ = nullptr;
  std::vector<Scope> scopes_;
  int scope_ = 0;
  std::vector<Unresolved> unresolved_;
  std::vector<std::pair<std::string_view, uint32_t>> pending_names_;  ///< in the open instruction
  std::vector<UnresolvedTarget> unresolved_targets_;
  uint32_t loc_file_ = 0, loc_line_ = 0, inlined_file_ = 0, inlined_line_ = 0;
  std::map<std::array<uint32_t, 3>, std::array<uint32_t, 3>> inlined_at_;  ///< call: its caller's
  static constexpr int kMaxDepth = 16;
  int depth_ = 0;  ///< of nested operands
};

}  // namespace vgpu::ptx
