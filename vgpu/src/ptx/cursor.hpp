// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cctype>
#include <cstdint>
#include <string>
#include <string_view>

#include "fault.hpp"

namespace vgpu::ptx {

/// Reads PTX text from left to right: white space, comments, words, numbers. Knows the current line
/// for error messages; peek() past the end gives '\0'.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  bool at_end() {
    skip_blank();
    return position_ >= text_.size();
  }
  uint32_t line() const { return line_; }
  size_t position() const { return position_; }

  /// The next character that is neither blank nor comment.
  char peek() {
    skip_blank();
    return raw();
  }
  char raw(size_t ahead = 0) const {
    return position_ + ahead < text_.size() ? text_[position_ + ahead] : '\0';
  }
  void advance() {
    if (position_ >= text_.size()) return;
    if (text_[position_] == '\n') ++line_;
    ++position_;
  }
  bool accept(char c) {
    if (peek() != c) return false;
    advance();
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(std::string("expected '") + c + "'");
  }
  bool accept_word(std::string_view word) {
    skip_blank();
    if (text_.substr(position_, word.size()) != word || is_word(raw(word.size()))) return false;
    position_ += word.size();
    return true;
  }

  /// [A-Za-z0-9_$%]+, empty when none.
  std::string_view word() {
    skip_blank();
    size_t begin = position_;
    while (is_word(raw())) ++position_;
    return text_.substr(begin, position_ - begin);
  }
  /// A directive, a type or a modifier: ".word" (with "::" and inner dots when `dotted`).
  std::string_view dotted_word() {
    skip_blank();
    size_t begin = position_;
    while (is_word(raw()) || raw() == '.' || (raw() == ':' && raw(1) == ':')) {
      position_ += raw() == ':' ? 2 : 1;
    }
    return text_.substr(begin, position_ - begin);
  }
  /// ".name" without inner dots.
  std::string_view directive() {
    skip_blank();
    size_t begin = position_;
    if (raw() != '.') fail("expected a directive");
    ++position_;
    while (is_word(raw()) || (raw() == ':' && raw(1) == ':')) position_ += raw() == ':' ? 2 : 1;
    return text_.substr(begin, position_ - begin);
  }
  std::string_view name() {
    auto w = word();
    if (w.empty()) fail("expected a name");
    return w;
  }
  std::string_view string() {
    expect('"');
    size_t begin = position_;
    while (position_ < text_.size() && raw() != '"') advance();
    auto s = text_.substr(begin, position_ - begin);
    expect('"');
    return s;
  }
  int64_t integer() {
    accept('+');  // "+-128" is a displacement too
    bool negative = accept('-');
    uint64_t value = 0;
    if (!parse_integer(word(), value)) fail("expected a whole number");
    return static_cast<int64_t>(negative ? 0 - value : value);
  }
  void skip_line() {
    while (position_ < text_.size() && raw() != '\n') ++position_;
  }
  /// What is left of the line.
  std::string_view take_line() {
    const size_t begin = position_;
    skip_line();
    return text_.substr(begin, position_ - begin);
  }
  /// Skips a balanced { … }.
  void skip_braces() {
    expect('{');
    int depth = 1;
    while (depth > 0) {
      if (at_end()) fail("missing '}'");
      char c = raw();
      if (c == '"') {
        string();
        continue;
      }
      if (c == '{') ++depth;
      if (c == '}') --depth;
      advance();
    }
  }
  /// Skips to the ';' that ends the statement.
  void skip_statement() {
    while (!at_end() && raw() != ';') advance();
    expect(';');
  }

  [[noreturn]] void fail(const std::string& what) {
    skip_blank();
    auto rest = text_.substr(position_ < text_.size() ? position_ : text_.size());
    rest = rest.substr(0, rest.find('\n')).substr(0, 40);
    fault(kInvalidPtx, "PTX line %u: %s before \"%.*s\"", line_, what.c_str(),
          static_cast<int>(rest.size()), rest.data());
  }

  /// Decimal, 0x, 0b and octal integers, with an optional U. False when `word` is something else.
  static bool parse_integer(std::string_view word, uint64_t& value) {
    unsigned base = 10;
    if (word.size() > 1 && word.back() == 'U') word.remove_suffix(1);
    if (word.size() > 2 && word[0] == '0' && (word[1] | 32) == 'x') base = 16;
    if (word.size() > 2 && word[0] == '0' && (word[1] | 32) == 'b') base = 2;
    if (base != 10) word.remove_prefix(2);
    if (base == 10 && word.size() > 1 && word[0] == '0') base = 8;
    if (word.empty()) return false;
    value = 0;
    for (char c : word) {
      unsigned digit = c >= '0' && c <= '9'   ? static_cast<unsigned>(c - '0')
                       : c >= 'a' && c <= 'f' ? static_cast<unsigned>(c - 'a' + 10)
                       : c >= 'A' && c <= 'F' ? static_cast<unsigned>(c - 'A' + 10)
                                              : 99u;
      if (digit >= base) return false;
      value = value * base + digit;
    }
    return true;
  }

  static bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%';
  }

 private:
  void skip_blank() {
    for (;;) {
      char c = raw();
      if (c == '\n') {
        ++line_;
        ++position_;
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
        ++position_;
      } else if (c == '/' && raw(1) == '/') {
        skip_line();
      } else if (c == '/' && raw(1) == '*') {
        position_ += 2;
        while (position_ < text_.size() && !(raw() == '*' && raw(1) == '/')) advance();
        position_ = position_ + 2 < text_.size() ? position_ + 2 : text_.size();
      } else {
        return;
      }
    }
  }

  std::string_view text_;
  size_t position_ = 0;
  uint32_t line_ = 1;
};

}  // namespace vgpu::ptx
