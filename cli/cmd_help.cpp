// SPDX-License-Identifier: Apache-2.0
// convoy man, convoy completion: the manual page and the completions of shells, made from the same
// texts as --help.
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "commands.hpp"
#include "convoy/convoy.hpp"
#include "text.hpp"

namespace convoy::cli {
namespace {

std::vector<const CLI::App*> subcommands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

/// Names of an option with dashes, "--pad"; of a positional its own name.
std::vector<std::string> words(const CLI::Option& option) {
  std::vector<std::string> out;
  for (const std::string& name : option.get_snames()) out.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) out.push_back("--" + name);
  return out;
}

/// Text between the requests of roff.
std::string roff(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\') {
      out += "\\e";
    } else if (text[i] == '-') {
      out += "\\-";
    } else if ((text[i] == '.' || text[i] == '\'') && (i == 0 || text[i - 1] == '\n')) {
      out += std::string("\\&") + text[i];
    } else {
      out += text[i];
    }
  }
  return out;
}

void print_options(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    std::string names;
    for (const std::string& word : words(*option)) names += (names.empty() ? "" : ", ") + word;
    if (names.empty()) names = option->get_name();
    std::printf(".TP\n\\fB%s\\fR", roff(names).c_str());
    if (!option->get_default_str().empty()) {
      std::printf(" (%s)", roff(option->get_default_str()).c_str());
    }
    std::printf("\n%s\n", roff(option->get_description()).c_str());
  }
}

int print_man(const CLI::App& app) {
  std::printf(".TH CONVOY 1 \"\" \"convoy %s\"\n", version());
  std::printf(".SH NAME\nconvoy \\- %s\n", roff(app.get_description()).c_str());
  std::printf(".SH SYNOPSIS\n.B convoy\n\\fISUBCOMMAND\\fR [\\fIOPTIONS\\fR]\n");
  std::printf(".SH OPTIONS\n");
  print_options(app);
  for (const CLI::App* command : subcommands(app)) {
    std::printf(".SH CONVOY %s\n%s\n", roff(command->get_name()).c_str(),
                roff(command->get_description()).c_str());
    print_options(*command);
  }
  std::printf(".SH NOTES\n%s\n", roff(app.get_footer()).c_str());
  return kSuccess;
}

std::string joined(const CLI::App& app) {
  std::string out;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& word : words(*option)) out += (out.empty() ? "" : " ") + word;
  }
  return out;
}

int print_bash(const CLI::App& app) {
  std::string names;
  for (const CLI::App* command : subcommands(app)) names += command->get_name() + " ";
  std::printf("_convoy() {\n  local word=\"${COMP_WORDS[COMP_CWORD]}\" words\n");
  std::printf("  case \"${COMP_CWORD}:${COMP_WORDS[1]}\" in\n");
  std::printf("    1:*) words=\"%s%s\" ;;\n", names.c_str(), joined(app).c_str());
  for (const CLI::App* command : subcommands(app)) {
    std::printf("    *:%s) words=\"%s\" ;;\n", command->get_name().c_str(),
                joined(*command).c_str());
  }
  std::printf("  esac\n  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n}\n");
  std::printf("complete -o default -F _convoy convoy\n");
  return kSuccess;
}

int print_fish(const CLI::App& app) {
  const auto quoted = [](const std::string& text) {
    std::string out = "'";
    for (char c : text) out += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
    return out + "'";
  };
  for (const CLI::App* command : subcommands(app)) {
    std::printf("complete -c convoy -n __fish_use_subcommand -a %s -d %s\n",
                command->get_name().c_str(), quoted(command->get_description()).c_str());
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        std::printf("complete -c convoy -n '__fish_seen_subcommand_from %s' -l %s -d %s\n",
                    command->get_name().c_str(), name.c_str(),
                    quoted(option->get_description()).c_str());
      }
    }
  }
  return kSuccess;
}

}  // namespace

void add_help_commands(CLI::App& app, int& exit_code) {
  app.add_subcommand("man", "print the manual page: convoy man | man -l -")
      ->callback([&app, &exit_code] { exit_code = print_man(app); });
  CLI::App* completion = app.add_subcommand(
      "completion", "print a shell's completions: source <(convoy completion bash)");
  auto shell = std::make_shared<std::string>();
  completion->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->callback([&app, &exit_code, shell] {
    if (*shell == "fish") {
      exit_code = print_fish(app);
      return;
    }
    if (*shell == "zsh") std::printf("autoload -U bashcompinit && bashcompinit\n");
    exit_code = print_bash(app);
  });
}

}  // namespace convoy::cli
