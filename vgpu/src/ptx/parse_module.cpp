// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cstdlib>
#include <cstring>

#include "ptx/parser.hpp"

namespace vgpu::ptx {
namespace {

constexpr uint64_t kMaxVariableBytes = uint64_t{1} << 32;
constexpr int64_t kMaxParameterBytes = 65536;

Space space_of_directive(std::string_view word) {
  if (word == ".global") return Space::global;
  if (word == ".const") return Space::constant;
  if (word == ".shared") return Space::shared;
  if (word == ".local") return Space::local;
  if (word == ".param") return Space::param;
  return Space::none;
}

uint64_t align_up(uint64_t value, uint64_t align) {
  return (value + align - 1) / align * align;
}

uint32_t checked_align(Cursor& in) {
  int64_t align = in.integer();
  if (align < 1 || align > (1 << 20) || (align & (align - 1))) {
    in.fail("alignment must be a power of two up to 2^20");
  }
  return static_cast<uint32_t>(align);
}

}  // namespace

void Parser::parse_module() {
  bool is_extern = false, is_visible = false;
  while (!in_.at_end()) {
    if (in_.accept(';')) continue;
    auto word = in_.directive();
    if (word == ".version") {
      module_.version_major = static_cast<uint32_t>(in_.integer());
      in_.expect('.');
      module_.version_minor = static_cast<uint32_t>(in_.integer());
    } else if (word == ".target") {
      module_.target = std::string(in_.name());
      in_.skip_line();
    } else if (word == ".address_size") {
      if (in_.integer() != 64) in_.fail("only 64-bit addresses are supported");
    } else if (word == ".file") {
      auto index = static_cast<uint32_t>(in_.integer());
      module_.files[index] = std::string(in_.string());
      in_.skip_line();
    } else if (word == ".section") {
      skip_section();
    } else if (word == ".extern") {
      is_extern = true;
      continue;
    } else if (word == ".visible" || word == ".weak" || word == ".common") {
      is_visible = true;
      continue;
    } else if (word == ".entry" || word == ".func") {
      parse_function(word == ".entry");
    } else if (word == ".pragma") {
      in_.skip_statement();
    } else if (word == ".alias") {
      auto alias = in_.name();
      in_.expect(',');
      auto found = module_.function_by_name.find(std::string(in_.name()));
      in_.expect(';');
      if (found == module_.function_by_name.end()) in_.fail(".alias of an unknown function");
      module_.function_by_name[std::string(alias)] = found->second;
    } else if (Space space = space_of_directive(word); space != Space::none) {
      parse_variables(space, is_extern, is_visible, nullptr);
    } else {
      in_.fail("unknown directive " + std::string(word));
    }
    is_extern = is_visible = false;
  }
}

/// Debug sections (-lineinfo): names and bytes that nothing here needs.
void Parser::skip_section() {
  in_.dotted_word();
  in_.skip_braces();
}

uint32_t Parser::parse_parameter(Space space, uint64_t& offset) {
  Variable variable;
  variable.space = space;
  auto word = in_.directive();
  if (word != ".param") in_.fail("only .param parameters are supported, not " + std::string(word));
  bool is_pointer = false;
  while (in_.peek() == '.') {
    word = in_.directive();
    if (word == ".ptr") {
      is_pointer = true;
    } else if (word == ".align") {
      // NOTE: after .ptr, the alignment is that of the data pointed to (PTX ISA, kernel
      // parameters).
      uint32_t align = checked_align(in_);
      if (!is_pointer) variable.align = align;
    } else if (Type type = type_from_suffix(word.substr(1)); type != Type::none) {
      variable.type = type;
    } else if (space_of_directive(word) == Space::none) {
      in_.fail("unknown parameter attribute " + std::string(word));
    }
  }
  variable.name = std::string(in_.name());
  uint64_t count = 1;
  while (in_.accept('[')) {
    const int64_t extent = in_.peek() == ']' ? 0 : in_.integer();
    if (extent < 0 || extent > kMaxParameterBytes) in_.fail("parameter too large");
    count *= static_cast<uint64_t>(extent);
    if (count > kMaxParameterBytes) in_.fail("parameter too large");
    in_.expect(']');
  }
  unsigned element = size_of(variable.type);
  if (!element) in_.fail("parameter without a type");
  variable.size = element * count;
  if (variable.align < element) variable.align = element;
  offset = align_up(offset, variable.align);
  variable.offset = offset;
  offset += variable.size;
  module_.variables.push_back(std::move(variable));
  return static_cast<uint32_t>(module_.variables.size() - 1);
}

void Parser::parse_performance_directives(Function& function) {
  auto triple = [&](uint32_t* out) {
    out[0] = static_cast<uint32_t>(in_.integer());
    out[1] = out[2] = 1;
    for (int k = 1; k < 3 && in_.accept(','); ++k) out[k] = static_cast<uint32_t>(in_.integer());
  };
  auto one = [&] { return static_cast<uint32_t>(in_.integer()); };
  while (in_.peek() == '.') {
    auto word = in_.directive();
    if (word == ".maxntid") {
      triple(function.maxntid);
    } else if (word == ".reqntid") {
      triple(function.reqntid);
    } else if (word == ".reqnctapercluster") {
      triple(function.reqnctapercluster);
    } else if (word == ".minnctapersm") {
      function.minnctapersm = one();
    } else if (word == ".maxnctapersm") {
      one();
    } else if (word == ".maxnreg") {
      function.maxnreg = one();
    } else if (word == ".maxclusterrank") {
      function.maxclusterrank = one();
    } else if (word == ".explicitcluster") {
      function.explicit_cluster = true;
    } else if (word == ".noreturn" || word == ".blocksareclusters") {
      // Nothing to record.
    } else if (word == ".pragma") {
      in_.skip_statement();
    } else {
      in_.fail("unknown function directive " + std::string(word));
    }
  }
}

void Parser::parse_function(bool is_entry) {
  Function function;
  function.is_entry = is_entry;
  std::vector<uint32_t> returns;
  uint64_t offset = 0;
  Space space = Space::param;
  if (!is_entry && in_.accept('(')) {
    if (in_.peek() != ')') {
      do {
        returns.push_back(parse_parameter(space, offset));
      } while (in_.accept(','));
    }
    in_.expect(')');
  }
  auto name = in_.name();
  function.name = std::string(name);
  function.returns = std::move(returns);
  offset = 0;
  if (in_.accept('(')) {
    if (in_.peek() != ')') {
      do {
        function.params.push_back(parse_parameter(space, offset));
      } while (in_.accept(','));
    }
    in_.expect(')');
  }
  function.param_bytes = static_cast<uint32_t>(offset);
  parse_performance_directives(function);

  // A declaration: remember nothing, its definition may follow; otherwise calls name it external.
  if (in_.accept(';')) return;
  if (module_.function_by_name.count(function.name)) in_.fail("function defined twice");
  module_.function_by_name[function.name] = static_cast<uint32_t>(module_.functions.size());
  module_.functions.push_back(std::move(function));
  parse_body(module_.functions.back());
}

void Parser::parse_variables(Space space, bool is_extern, bool is_visible, Function* function) {
  uint32_t align = 1;
  uint64_t lanes = 1;
  Type type = Type::none;
  while (in_.peek() == '.') {
    auto word = in_.directive();
    if (word == ".align") {
      align = checked_align(in_);
    } else if (word == ".attribute") {
      in_.expect('(');
      int depth = 1;
      while (depth > 0 && !in_.at_end()) {
        depth += in_.raw() == '(' ? 1 : in_.raw() == ')' ? -1 : 0;
        in_.advance();
      }
    } else if (word == ".v2" || word == ".v4") {
      lanes = word == ".v2" ? 2 : 4;
    } else if (Type named = type_from_suffix(word.substr(1)); named != Type::none) {
      type = named;
    } else {
      in_.fail("unknown variable attribute " + std::string(word));
    }
  }
  unsigned element = size_of(type);
  if (!element) in_.fail("variable without a type");
  do {
    Variable variable;
    variable.space = space;
    variable.type = type;
    variable.align = std::max<uint32_t>(align, static_cast<uint32_t>(element * lanes));
    variable.is_extern = is_extern;
    variable.is_visible = is_visible;
    auto name = in_.name();
    variable.name = std::string(name);
    uint64_t count = lanes;
    bool unsized = false;
    while (in_.accept('[')) {
      if (in_.peek() == ']') {
        unsized = true;
      } else {
        int64_t extent = in_.integer();
        if (extent < 0 || static_cast<uint64_t>(extent) > kMaxVariableBytes ||
            (extent > 0 && count > kMaxVariableBytes / static_cast<uint64_t>(extent))) {
          in_.fail("array too large");
        }
        count *= static_cast<uint64_t>(extent);
      }
      in_.expect(']');
    }
    variable.size = unsized ? 0 : count * element;
    if (in_.accept('=')) {
      parse_initializer(variable);
      if (unsized) variable.size = variable.init.size();
      if (variable.init.size() > variable.size) in_.fail("too many initial values");
    }
    auto index = static_cast<uint32_t>(module_.variables.size());
    if (function) {
      scopes_[static_cast<size_t>(scope_)].names[name] = {Name::Kind::variable, index};
      function->locals.push_back(index);
    } else {
      module_variables_[name] = index;
      if (space == Space::global || space == Space::constant) module_.globals.push_back(index);
    }
    module_.variables.push_back(std::move(variable));
  } while (in_.accept(','));
  in_.expect(';');
}

void Parser::parse_initializer(Variable& variable) {
  uint64_t offset = 0;
  if (in_.peek() != '{') {
    parse_initial_value(variable, offset);
    return;
  }
  int depth = 0;
  do {
    if (in_.accept('{')) {
      ++depth;
    } else if (in_.accept('}')) {
      --depth;
    } else if (!in_.accept(',')) {
      if (in_.at_end()) in_.fail("missing '}'");
      parse_initial_value(variable, offset);
    }
  } while (depth > 0);
}

void Parser::parse_initial_value(Variable& variable, uint64_t& offset) {
  unsigned element = size_of(variable.type);
  if (variable.size && offset + element > variable.size) in_.fail("too many initial values");
  variable.init.resize(offset + element);
  bool negative = in_.peek() == '-';
  if (negative) in_.advance();
  char first = in_.peek();
  uint64_t bits = 0;
  if (std::isdigit(static_cast<unsigned char>(first))) {
    Operand number = parse_number(negative);
    bits = static_cast<uint64_t>(number.value);
    // NOTE: 0d… in an f32 initializer is rounded to the variable's type.
    if (number.float_imm == Operand::FloatImm::f64 && variable.type == Type::f32) {
      bits = std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(bits)));
    }
  } else {
    // The address of another variable: name, generic(name), either with +offset.
    auto name = in_.name();
    bool generic = name == "generic" && in_.accept('(');
    if (generic) {
      name = in_.name();
      in_.expect(')');
    }
    int64_t addend = 0;
    if (in_.peek() == '+' || in_.peek() == '-') addend = in_.integer();
    if (element != 8) in_.fail("address in an initializer of less than 64 bits");
    variable.relocations.push_back({offset, std::string(name), addend});
  }
  std::memcpy(variable.init.data() + offset, &bits, element);
  offset += element;
}

std::unique_ptr<Module> parse(std::string text) {
  auto module = std::make_unique<Module>();
  // Fat binaries pad PTX with NULs.
  while (!text.empty() && text.back() == '\0') text.pop_back();
  module->text = std::move(text);
  Parser(*module).parse_module();
  return module;
}

}  // namespace vgpu::ptx
