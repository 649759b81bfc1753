// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <bit>
#include <charconv>
#include <cstdlib>

#include "ptx/parser.hpp"

namespace vgpu::ptx {

/// The last occurrence of a declared name in the text: a view that outlives module_.variables.
std::string_view Parser::text_of_name(const std::string& name) const {
  size_t at = module_.text.rfind(name, in_.position());
  return std::string_view(module_.text).substr(at, name.size());
}

void Parser::parse_body(Function& function) {
  function_ = &function;
  scopes_.assign(1, Scope{});
  scope_ = 0;
  unresolved_.clear();
  unresolved_targets_.clear();
  loc_file_ = loc_line_ = inlined_file_ = inlined_line_ = 0;
  inlined_at_.clear();
  for (auto* list : {&function.params, &function.returns}) {
    for (uint32_t index : *list) {
      scopes_[0].names[text_of_name(module_.variables[index].name)] = {Name::Kind::variable, index};
    }
  }

  in_.expect('{');
  int depth = 1;
  while (depth > 0) {
    if (in_.at_end()) in_.fail("function body without its '}'");
    if (in_.accept('{')) {
      ++depth;
      scopes_.push_back(Scope{});
      scopes_.back().parent = scope_;
      scope_ = static_cast<int>(scopes_.size()) - 1;
    } else if (in_.accept('}')) {
      --depth;
      scope_ = scopes_[static_cast<size_t>(scope_)].parent;
    } else if (!in_.accept(';')) {
      parse_statement();
    }
  }
  resolve_labels();
  function_ = nullptr;
}

void Parser::parse_statement() {
  char first = in_.peek();
  if (first == '.') {
    auto word = in_.directive();
    if (word == ".reg") {
      parse_registers();
    } else if (word == ".loc") {
      parse_location();
    } else if (word == ".local") {
      parse_variables(Space::local, false, false, function_);
    } else if (word == ".shared") {
      parse_variables(Space::shared, false, false, function_);
    } else if (word == ".param") {
      parse_variables(Space::param, false, false, function_);
    } else if (word == ".pragma") {
      in_.skip_statement();
    } else {
      in_.fail("unknown directive " + std::string(word) + " in a function");
    }
    return;
  }
  if (first != '@') {
    // A label: name ':'. Look ahead without losing the position.
    Cursor saved = in_;
    auto name = in_.word();
    if (!name.empty() && in_.peek() == ':' && in_.raw(1) != ':') {
      in_.advance();
      if (in_.peek() == '.') {
        Cursor before = in_;
        auto word = in_.directive();
        if (word == ".branchtargets") return parse_branch_targets(name);
        if (word == ".callprototype" || word == ".calltargets") return in_.skip_statement();
        in_ = before;
      }
      scopes_[static_cast<size_t>(scope_)].labels[name] =
          static_cast<uint32_t>(function_->code.size());
      return;
    }
    in_ = saved;
  }
  parse_instruction();
}

void Parser::parse_registers() {
  auto word = in_.directive();
  // A vector is so many registers in a row (PTX ISA, "Vectors").
  const uint32_t count = word == ".v2" ? 2 : word == ".v4" ? 4 : 1;
  if (count > 1) word = in_.directive();
  Type type = type_from_suffix(word.substr(1));
  if (type == Type::none) in_.fail("unknown register type " + std::string(word));
  auto& scope = scopes_[static_cast<size_t>(scope_)];
  do {
    auto name = in_.name();
    if (count > 1) {
      scope.names[name] = {Name::Kind::vector, static_cast<uint32_t>(function_->registers.size()),
                           count};
      for (uint32_t k = 0; k < count; ++k) function_->registers.push_back({name, type});
    } else if (in_.accept('<')) {
      scope.ranges.push_back({name, static_cast<uint64_t>(in_.integer()), type});
      in_.expect('>');
    } else {
      scope.names[name] = {Name::Kind::reg, static_cast<uint32_t>(function_->registers.size())};
      function_->registers.push_back({name, type});
    }
  } while (in_.accept(','));
  in_.expect(';');
}

namespace {

/// Whole numbers at the front of a text, with blanks between; 0 for what is missing.
std::array<uint32_t, 3> three_numbers(std::string_view text) {
  std::array<uint32_t, 3> numbers{};
  const char *at = text.data(), *end = at + text.size();
  for (uint32_t& number : numbers) {
    while (at < end && (*at == ' ' || *at == '\t')) ++at;
    at = std::from_chars(at, end, number).ptr;
  }
  return numbers;
}

}  // namespace

/// .loc file line column [, function_name label, inlined_at file line column]
/// NOTE: compilers give the call's own .loc, with where its function was inlined, before the
/// callee's. Followed as far as it stays in the callee's file, so that wrappers name who uses them.
void Parser::parse_location() {
  loc_file_ = static_cast<uint32_t>(in_.integer());
  loc_line_ = static_cast<uint32_t>(in_.integer());
  inlined_file_ = inlined_line_ = 0;
  const std::string_view rest = in_.take_line();
  const std::array<uint32_t, 3> here = {loc_file_, loc_line_, three_numbers(rest)[0]};
  constexpr std::string_view kInlined = "inlined_at ";
  const size_t at = rest.find(kInlined);
  if (at == std::string_view::npos) {
    inlined_at_.erase(here);
    return;
  }
  std::array<uint32_t, 3> caller = three_numbers(rest.substr(at + kInlined.size()));
  inlined_at_[here] = caller;
  inlined_file_ = caller[0];
  inlined_line_ = caller[1];
  for (int depth = 0; caller[0] == loc_file_ && depth < kMaxDepth; ++depth) {
    const auto outer = inlined_at_.find(caller);
    if (outer == inlined_at_.end()) return;
    caller = outer->second;
  }
  if (caller[0] == loc_file_) return;
  inlined_file_ = caller[0];
  inlined_line_ = caller[1];
}

void Parser::parse_branch_targets(std::string_view label) {
  auto table = static_cast<uint32_t>(function_->branch_tables.size());
  scopes_[static_cast<size_t>(scope_)].tables[label] = table;
  function_->branch_tables.emplace_back();
  do {
    auto entry = static_cast<uint32_t>(function_->branch_tables[table].size());
    function_->branch_tables[table].push_back(0);
    unresolved_targets_.push_back({table, entry, in_.name(), scope_, in_.line()});
  } while (in_.accept(','));
  in_.expect(';');
}

uint32_t Parser::intern_form(std::string_view text) {
  auto found = forms_.find(text);
  if (found == forms_.end()) {
    module_.forms.emplace_back();
    Form& form = module_.forms.back();
    form.text = std::string(text);
    form.first_line = in_.line();
    std::string_view rest = form.text;
    for (;;) {
      size_t dot = rest.find('.');
      form.parts.push_back(rest.substr(0, dot));
      if (dot == std::string_view::npos) break;
      rest.remove_prefix(dot + 1);
    }
    found = forms_.emplace(text, static_cast<uint32_t>(module_.forms.size() - 1)).first;
  }
  ++module_.forms[found->second].uses;
  return found->second;
}

uint32_t Parser::intern_special(std::string_view name) {
  auto found = specials_.find(name);
  if (found == specials_.end()) {
    module_.specials.emplace_back(name);
    found = specials_.emplace(name, static_cast<uint32_t>(module_.specials.size() - 1)).first;
  }
  return found->second;
}

void Parser::parse_instruction() {
  Instruction instruction;
  instruction.loc_file = loc_file_;
  instruction.loc_line = loc_line_;
  instruction.inlined_file = inlined_file_;
  instruction.inlined_line = inlined_line_;
  if (in_.accept('@')) {
    instruction.guard_negated = in_.accept('!');
    auto name = in_.name();
    const Name* found = find_name(name);
    if (!found || found->kind != Name::Kind::reg ||
        function_->registers[found->index].type != Type::pred) {
      in_.fail("guard " + std::string(name) + " is not a predicate register");
    }
    instruction.guard = static_cast<int32_t>(found->index);
  }
  in_.peek();
  instruction.line = in_.line();
  auto text = in_.dotted_word();
  if (text.empty() || !std::isalpha(static_cast<unsigned char>(text[0]))) {
    in_.fail("expected an instruction");
  }
  instruction.form = intern_form(text);
  depth_ = 0;

  std::vector<Operand> operands;
  pending_names_.clear();
  while (in_.peek() != ';') {
    operands.push_back(parse_operand());
    if (!in_.accept(',')) break;
  }
  in_.expect(';');
  instruction.first = static_cast<uint32_t>(function_->operands.size());
  instruction.count = static_cast<uint32_t>(operands.size());
  for (auto& operand : operands) {
    // Names that are not variables or registers: labels and functions, resolved at the end.
    if (operand.kind == Operand::Kind::label) {
      unresolved_.push_back({static_cast<uint32_t>(function_->operands.size()),
                             pending_names_[operand.index].first, scope_, instruction.line});
    }
    function_->operands.push_back(operand);
  }
  function_->code.push_back(instruction);
}

Operand Parser::group(Operand::Kind kind, const std::vector<Operand>& children) {
  Operand operand;
  operand.kind = kind;
  operand.first = static_cast<uint32_t>(function_->operands.size());
  operand.count = static_cast<uint32_t>(children.size());
  for (auto& child : children) {
    if (child.kind == Operand::Kind::label) {
      in_.fail("unknown name " + std::string(pending_names_[child.index].first));
    }
    function_->operands.push_back(child);
  }
  return operand;
}

Operand Parser::parse_operand() {
  if (++depth_ > kMaxDepth) in_.fail("operands nested too deeply");
  Operand operand = parse_operand_inside();
  --depth_;
  return operand;
}

Operand Parser::parse_operand_inside() {
  char first = in_.peek();
  if (first == '{' || first == '(') {
    char close = first == '{' ? '}' : ')';
    in_.advance();
    std::vector<Operand> children;
    while (in_.peek() != close) {
      children.push_back(parse_operand());
      if (!in_.accept(',')) break;
    }
    in_.expect(close);
    return group(first == '{' ? Operand::Kind::vector : Operand::Kind::list, children);
  }
  if (first == '[') {
    in_.advance();
    std::vector<Operand> children{parse_operand()};
    if (children[0].kind == Operand::Kind::address || children[0].kind == Operand::Kind::vector) {
      in_.fail("bad address");
    }
    uint64_t offset = 0;  // wraps around, as addresses do
    while (in_.peek() == '+' || in_.peek() == '-') offset += static_cast<uint64_t>(in_.integer());
    while (in_.accept(',')) children.push_back(parse_operand());
    in_.expect(']');
    Operand operand = group(Operand::Kind::address, children);
    operand.value = static_cast<int64_t>(offset);
    return operand;
  }
  bool negated = in_.accept('!');
  bool negative = !negated && in_.accept('-');
  if (!negated && !negative) in_.accept('+');
  char c = in_.peek();
  Operand operand;
  if (std::isdigit(static_cast<unsigned char>(c))) {
    operand = parse_number(negative);
  } else {
    if (negative) in_.fail("'-' before a name");
    auto name = in_.name();
    if (name == "_") {
      operand.kind = Operand::Kind::sink;
    } else {
      operand = parse_named(name);
    }
  }
  operand.negated = negated;
  if (in_.peek() == '|') {
    in_.advance();
    Operand second = parse_operand();
    return group(Operand::Kind::pair, {operand, second});
  }
  return operand;
}

namespace {

/// "1e5", "1E-5" up to its sign.
bool is_decimal_float(std::string_view word) {
  const size_t e = word.find_first_of("eE");
  return e != std::string_view::npos && e > 0 && word.find_first_not_of("0123456789") == e &&
         word.find_first_not_of("0123456789", e + 1) == std::string_view::npos;
}

}  // namespace

Operand Parser::parse_number(bool negative) {
  Operand operand;
  operand.kind = Operand::Kind::imm;
  auto word = in_.word();
  uint64_t bits = 0;
  auto hex = [&](std::string_view digits) {
    std::string text = "0x" + std::string(digits);
    if (!Cursor::parse_integer(text, bits)) in_.fail("bad hexadecimal floating-point constant");
  };
  if (word.size() == 10 && word[0] == '0' && (word[1] | 32) == 'f') {
    hex(word.substr(2));
    if (negative) bits ^= 0x80000000u;
    operand.float_imm = Operand::FloatImm::f32;
  } else if (word.size() == 18 && word[0] == '0' && (word[1] | 32) == 'd') {
    hex(word.substr(2));
    if (negative) bits ^= uint64_t{1} << 63;
    operand.float_imm = Operand::FloatImm::f64;
  } else if (in_.raw() == '.' || is_decimal_float(word)) {
    // "Floating-Point Constants": digits behind the point and the exponent may be missing.
    std::string text(word);
    if (in_.raw() == '.') {
      in_.advance();
      text += '.';
      if (Cursor::is_word(in_.raw())) text += in_.word();
    }
    if ((text.back() | 32) == 'e' && (in_.raw() == '-' || in_.raw() == '+')) {
      text += in_.raw();
      in_.advance();
      text += in_.word();
    }
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (*end != '\0') in_.fail("bad floating-point constant " + text);
    bits = std::bit_cast<uint64_t>(negative ? -value : value);
    operand.float_imm = Operand::FloatImm::f64;
  } else {
    if (!Cursor::parse_integer(word, bits)) in_.fail("bad number " + std::string(word));
    if (negative) bits = 0 - bits;
  }
  operand.value = static_cast<int64_t>(bits);
  return operand;
}

const Name* Parser::find_name(std::string_view name) {
  for (int s = scope_; s >= 0; s = scopes_[static_cast<size_t>(s)].parent) {
    Scope& scope = scopes_[static_cast<size_t>(s)];
    auto found = scope.names.find(name);
    if (found != scope.names.end()) return &found->second;
    size_t digits = name.size();
    while (digits > 0 && std::isdigit(static_cast<unsigned char>(name[digits - 1]))) --digits;
    if (digits == name.size() || name.size() - digits > 9) continue;
    // A prefix may itself end in digits: try every split.
    for (auto& range : scope.ranges) {
      if (range.prefix.size() < digits || range.prefix.size() >= name.size()) continue;
      if (name.substr(0, range.prefix.size()) != range.prefix) continue;
      uint64_t number = 0;
      for (char c : name.substr(range.prefix.size())) {
        number = number * 10 + static_cast<uint64_t>(c - '0');
      }
      if (number >= range.count) continue;
      Name entry{Name::Kind::reg, static_cast<uint32_t>(function_->registers.size())};
      function_->registers.push_back({name, range.type});
      return &(scope.names[name] = entry);
    }
  }
  return nullptr;
}

/// What follows the name of a vector: one of its registers (.x or .r and so on), or all of them.
Operand Parser::parse_vector(const Name& vector) {
  std::vector<Operand> members(vector.count);
  for (uint32_t k = 0; k < vector.count; ++k) {
    members[k].kind = Operand::Kind::reg;
    members[k].index = vector.index + k;
  }
  if (in_.raw() != '.') return group(Operand::Kind::vector, members);
  in_.advance();
  const std::string_view member = in_.word();
  const size_t at = member.size() == 1 ? std::string_view("xyzwrgba").find(member) % 4 : 4;
  if (at >= vector.count || std::string_view("xyzwrgba").find(member) == std::string_view::npos) {
    in_.fail(
        format("a vector of %u registers has no .%s", vector.count, std::string(member).c_str()));
  }
  return members[at];
}

Operand Parser::parse_named(std::string_view name) {
  Operand operand;
  if (const Name* found = find_name(name)) {
    if (found->kind == Name::Kind::vector) return parse_vector(*found);
    operand.kind = found->kind == Name::Kind::reg ? Operand::Kind::reg : Operand::Kind::variable;
    operand.index = found->index;
    return operand;
  }
  if (auto found = module_variables_.find(name); found != module_variables_.end()) {
    operand.kind = Operand::Kind::variable;
    operand.index = found->second;
    return operand;
  }
  if (name[0] == '%') {
    // %tid.x and the like: the component belongs to the name.
    size_t length = name.size();
    if (in_.raw() == '.' && Cursor::is_word(in_.raw(1))) {
      in_.advance();
      length += 1 + in_.word().size();
    }
    size_t begin = static_cast<size_t>(name.data() - module_.text.data());
    operand.kind = Operand::Kind::special;
    operand.index = intern_special(std::string_view(module_.text).substr(begin, length));
    return operand;
  }
  if (name == "WARP_SZ") {
    operand.kind = Operand::Kind::imm;
    operand.value = 32;
    return operand;
  }
  operand.kind = Operand::Kind::label;
  operand.index = static_cast<uint32_t>(pending_names_.size());
  pending_names_.push_back({name, in_.line()});
  return operand;
}

void Parser::resolve_labels() {
  auto find_label = [&](std::string_view name, int scope, uint32_t& index) {
    for (int s = scope; s >= 0; s = scopes_[static_cast<size_t>(s)].parent) {
      auto& labels = scopes_[static_cast<size_t>(s)].labels;
      if (auto found = labels.find(name); found != labels.end()) {
        index = found->second;
        return true;
      }
    }
    return false;
  };
  for (auto& use : unresolved_) {
    Operand& operand = function_->operands[use.operand];
    if (find_label(use.name, use.scope, operand.index)) continue;
    bool is_table = false;
    for (int s = use.scope; s >= 0 && !is_table; s = scopes_[static_cast<size_t>(s)].parent) {
      auto& tables = scopes_[static_cast<size_t>(s)].tables;
      if (auto found = tables.find(use.name); found != tables.end()) {
        operand.kind = Operand::Kind::table;
        operand.index = found->second;
        is_table = true;
      }
    }
    if (is_table) continue;
    // Not in this function: a function, defined here, later or elsewhere.
    auto found = externals_.find(use.name);
    if (found == externals_.end()) {
      module_.externals.emplace_back(use.name);
      found =
          externals_.emplace(use.name, static_cast<uint32_t>(module_.externals.size() - 1)).first;
    }
    operand.kind = Operand::Kind::external;
    operand.index = found->second;
  }
  for (auto& use : unresolved_targets_) {
    uint32_t index = 0;
    if (!find_label(use.name, use.scope, index)) {
      fault(kInvalidPtx, "PTX line %u: unknown label %.*s", use.line,
            static_cast<int>(use.name.size()), use.name.data());
    }
    function_->branch_tables[use.table][use.entry] = index;
  }
}

}  // namespace vgpu::ptx
