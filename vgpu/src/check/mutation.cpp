// SPDX-License-Identifier: Apache-2.0
#include "check/mutation.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "fault.hpp"

namespace vgpu::check {
namespace {

constexpr std::array<std::string_view, 12> kPrefixes = {"bar.",
                                                        "barrier.",
                                                        "mbarrier.arrive",
                                                        "mbarrier.expect_tx",
                                                        "mbarrier.try_wait",
                                                        "mbarrier.test_wait",
                                                        "fence.",
                                                        "membar.",
                                                        "tcgen05.commit",
                                                        "tcgen05.wait::",
                                                        "tcgen05.fence::",
                                                        "griddepcontrol."};
constexpr std::array<std::string_view, 11> kOthers = {"mbarrier.init",
                                                      "mbarrier.complete_tx",
                                                      "cp.async.bulk.commit_group",
                                                      "cp.async.bulk.wait_group",
                                                      "cp.async.commit_group",
                                                      "cp.async.wait_group",
                                                      "cp.async.wait_all",
                                                      "cp.async.mbarrier.arrive",
                                                      "wgmma.fence",
                                                      "wgmma.commit_group",
                                                      "wgmma.wait_group"};

bool starts_with_any(std::string_view text, const auto& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return text.starts_with(prefix); });
}

bool is_name_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || std::strchr("_.$%:", c) != nullptr;
}

/// Offset of the n-th use of `opcode` as a whole word in [begin, end), or npos.
size_t find_word(const std::string& text, size_t begin, size_t end, std::string_view opcode,
                 uint32_t nth) {
  for (size_t at = begin; (at = text.find(opcode, at)) != std::string::npos && at < end; ++at) {
    bool starts = at == 0 || !is_name_char(text[at - 1]) || text[at - 1] == ':';
    size_t after = at + opcode.size();
    bool ends = after >= text.size() || !is_name_char(text[after]);
    if (starts && ends && nth-- == 0) return at;
  }
  return std::string::npos;
}

size_t line_offset(const std::string& text, uint32_t line) {
  size_t at = 0;
  for (uint32_t k = 1; k < line && at != std::string::npos; ++k) {
    at = text.find('\n', at);
    if (at != std::string::npos) ++at;
  }
  return at;
}

/// Where a statement that starts at `opcode` begins, with the guard "@%p1" or "@!%p1" before it.
size_t guard_offset(const std::string& text, size_t opcode) {
  size_t at = opcode;
  while (at > 0 && (text[at - 1] == ' ' || text[at - 1] == '\t')) --at;
  size_t word = at;
  while (word > 0 && (is_name_char(text[word - 1]) || text[word - 1] == '!')) --word;
  return word > 0 && text[word - 1] == '@' ? word - 1 : opcode;
}

}  // namespace

bool is_synchronising(std::string_view opcode) {
  return starts_with_any(opcode, kPrefixes) || starts_with_any(opcode, kOthers);
}

std::vector<SyncSite> find_sync_sites(const ptx::Module& module) {
  std::vector<SyncSite> sites;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> seen;  // (line, form): uses so far
  for (const ptx::Function& function : module.functions) {
    for (const ptx::Instruction& instruction : function.code) {
      const ptx::Form& form = module.forms[instruction.form];
      if (!is_synchronising(form.text)) continue;
      SyncSite site;
      site.line = instruction.line;
      site.nth = seen[{instruction.line, instruction.form}]++;
      site.opcode = form.text;
      site.function = function.name;
      site.source = module.source_of(instruction);
      sites.push_back(std::move(site));
    }
  }
  std::stable_sort(sites.begin(), sites.end(),
                   [](const SyncSite& a, const SyncSite& b) { return a.line < b.line; });
  return sites;
}

std::string delete_site(std::string ptx, const SyncSite& site) {
  size_t line = line_offset(ptx, site.line);
  size_t line_end = line == std::string::npos ? line : std::min(ptx.find('\n', line), ptx.size());
  size_t opcode =
      line == std::string::npos ? line : find_word(ptx, line, line_end, site.opcode, site.nth);
  size_t end = opcode == std::string::npos ? opcode : ptx.find(';', opcode);
  if (end == std::string::npos) {
    fault(kInvalidValue, "line %u of the PTX has no %s number %u to delete", site.line,
          site.opcode.c_str(), site.nth);
  }

  const bool is_wait =
      site.opcode.starts_with("mbarrier.try_wait") || site.opcode.starts_with("mbarrier.test_wait");
  std::string replacement;
  if (is_wait) {
    // The destination predicate, up to the comma or the second destination.
    size_t first = ptx.find_first_not_of(" \t\n", opcode + site.opcode.size());
    size_t last = ptx.find_first_of(", |\t\n", first);
    replacement = "setp.eq.u32 " + ptx.substr(first, last - first) + ", 0, 0;";
  }
  const size_t begin = is_wait ? opcode : guard_offset(ptx, opcode);
  for (size_t i = begin; i <= end; ++i) {
    if (ptx[i] != '\n') ptx[i] = ' ';
  }
  ptx.insert(begin, replacement);
  return ptx;
}

std::string mutate_from_environment(std::string ptx) {
  static uint32_t next_index = 0;
  const char* request = std::getenv("VGPU_MUTATE");
  if (!request || !*request) return ptx;
  const std::string_view order = request;
  const std::vector<SyncSite> sites = find_sync_sites(*ptx::parse(ptx));
  const uint32_t first = next_index;
  next_index += static_cast<uint32_t>(sites.size());
  if (order.starts_with("list:")) {
    std::FILE* file = std::fopen(request + 5, "a");
    if (!file) fault(kInvalidValue, "VGPU_MUTATE: cannot write %s", request + 5);
    for (size_t i = 0; i < sites.size(); ++i) {
      std::fprintf(file, "%zu\t%u\t%s\t%s\t%s\n", first + i, sites[i].line,
                   sites[i].function.c_str(), sites[i].source.c_str(), sites[i].opcode.c_str());
    }
    std::fclose(file);
    return ptx;
  }
  if (order.starts_with("delete:")) {
    uint32_t index = 0;
    auto [end, error] = std::from_chars(request + 7, request + order.size(), index);
    if (error != std::errc() || *end != '\0') {
      fault(kInvalidValue, "VGPU_MUTATE is '%s'; legal: list:<file>, delete:<index>", request);
    }
    if (index >= first && index < next_index) {
      return delete_site(std::move(ptx), sites[index - first]);
    }
    return ptx;
  }
  fault(kInvalidValue, "VGPU_MUTATE is '%s'; legal: list:<file>, delete:<index>", request);
}

}  // namespace vgpu::check
