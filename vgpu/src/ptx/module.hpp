// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

/// PTX text as data: what the parser makes of a module, before exec/ decodes it. Names follow the
/// PTX ISA 9.0 document (state spaces, types, directives). Nothing here knows what an opcode does.
namespace vgpu::ptx {

enum class Type : uint8_t {
  none,
  pred,
  b8,
  b16,
  b32,
  b64,
  b128,
  u8,
  u16,
  u32,
  u64,
  s8,
  s16,
  s32,
  s64,
  f16,
  bf16,
  f32,
  f64,
  f16x2,
  bf16x2,
  f32x2,
};

/// Bytes of one value (0 for none and pred).
unsigned size_of(Type type);
/// The type a suffix such as "u32" names; Type::none when it names none.
Type type_from_suffix(std::string_view suffix);
const char* name_of(Type type);

enum class Space : uint8_t { none, reg, global, constant, shared, local, param };

/// One distinct dotted opcode of the module ("ld.global.v4.u32"), shared by its instructions.
struct Form {
  std::string text;
  std::vector<std::string_view> parts;  ///< {"ld", "global", "v4", "u32"}; views into `text`
  uint32_t first_line = 0;              ///< PTX line of its first use, for load-time reports
  uint32_t uses = 0;

  const std::string_view& opcode() const { return parts[0]; }
  bool has(std::string_view modifier) const {
    for (auto& part : parts) {
      if (part == modifier) return true;
    }
    return false;
  }
};

struct Operand {
  enum class Kind : uint8_t {
    none,
    reg,       ///< index: Function::registers; negated: !p
    imm,       ///< value: the bits (integers sign-extended, 0f… 32 bits, 0d… 64 bits)
    special,   ///< index: Module::specials ("%tid.x")
    variable,  ///< index: Module::variables, its address plus `value`
    function,  ///< index: Module::functions
    external,  ///< index: Module::externals, a function the module calls but does not define
    address,   ///< [base + value]; first/count: base operand, then the coordinate vector if any
    vector,    ///< {a, b, …}; first/count
    pair,      ///< a|b (second destination); first/count = 2
    list,      ///< (a, b): call arguments; first/count
    label,     ///< index: instruction of the same function
    table,     ///< index: Function::branch_tables
    sink,      ///< _
  };
  enum class FloatImm : uint8_t { no, f32, f64 };

  Kind kind = Kind::none;
  bool negated = false;
  FloatImm float_imm = FloatImm::no;
  uint32_t index = 0;
  uint32_t first = 0;  ///< children: Function::operands[first .. first + count)
  uint32_t count = 0;
  int64_t value = 0;
};

struct Instruction {
  uint32_t form = 0;   ///< Module::forms
  int32_t guard = -1;  ///< predicate register, -1: none
  bool guard_negated = false;
  uint32_t first = 0;  ///< operands: Function::operands[first .. first + count)
  uint32_t count = 0;
  uint32_t line = 0;      ///< line of the PTX text, from 1
  uint32_t loc_file = 0;  ///< .loc in force (0: none); Module::files
  uint32_t loc_line = 0;
  uint32_t inlined_file = 0;  ///< where that was inlined, in another file if any (0: it was not)
  uint32_t inlined_line = 0;
};

struct Register {
  std::string_view name;
  Type type = Type::none;
};

/// A named object in memory: module variables, shared / local / param variables of functions, and
/// the formal parameters of functions and kernels.
struct Variable {
  std::string name;
  Space space = Space::none;
  Type type = Type::none;
  uint32_t align = 1;
  uint64_t size = 0;  ///< bytes; 0 with `is_extern`: dynamic shared memory
  bool is_extern = false;
  bool is_visible = false;
  uint64_t offset = 0;        ///< kernel parameters: offset in the parameter space
  std::vector<uint8_t> init;  ///< empty: zeros
  struct Relocation {
    uint64_t offset;     ///< in `init`
    std::string symbol;  ///< 8-byte address of this variable, plus addend
    int64_t addend;
  };
  std::vector<Relocation> relocations;
};

struct Function {
  std::string name;
  bool is_entry = false;
  std::vector<uint32_t> params;   ///< Module::variables, in order
  std::vector<uint32_t> returns;  ///< Module::variables (device functions)
  std::vector<uint32_t> locals;   ///< Module::variables declared in the body (shared, local, param)
  std::vector<Register> registers;
  std::vector<Instruction> code;
  std::vector<Operand> operands;
  std::vector<std::vector<uint32_t>> branch_tables;
  uint32_t param_bytes = 0;  ///< entries: size of the parameter space

  /// Performance-tuning and cluster directives; 0: not given.
  uint32_t maxntid[3] = {0, 0, 0}, reqntid[3] = {0, 0, 0}, reqnctapercluster[3] = {0, 0, 0};
  uint32_t minnctapersm = 0, maxnreg = 0, maxclusterrank = 0;
  bool explicit_cluster = false;
};

struct Module {
  std::string text;  ///< the PTX itself; register names are views into it
  uint32_t version_major = 0, version_minor = 0;
  std::string target;  ///< "sm_100a"
  std::deque<Form> forms;
  std::vector<Variable> variables;
  std::deque<Function> functions;
  std::vector<std::string> specials;   ///< special registers used
  std::vector<std::string> externals;  ///< called, declared, not defined (vprintf, __assertfail)
  std::unordered_map<uint32_t, std::string> files;
  std::unordered_map<std::string, uint32_t> function_by_name;
  std::vector<uint32_t> globals;  ///< variables at module scope in global and const space

  /// Text of a PTX line (from 1), trimmed; empty past the end.
  std::string_view line_text(uint32_t line) const;
  /// "file:line" of its .loc, then ", inlined at file:line" where it has one; empty without .loc.
  std::string source_of(const Instruction& instruction) const;
};

/// Parses a whole module. Throws Fault (kInvalidPtx) that names line and column on any text that is
/// not PTX; never reads outside `text`.
std::unique_ptr<Module> parse(std::string text);

}  // namespace vgpu::ptx
