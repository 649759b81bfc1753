// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <string>
#include <vector>

#include "convoy/plan.hpp"

namespace convoy::cli {

// Words of the command line. Each throws Error{invalid_argument} that lists what is legal.
DType parse_dtype(const std::string& word);
Device parse_device(const std::string& word);
FilterLayout parse_filter_layout(const std::string& word);
PadMode parse_pad_mode(const std::string& word);
UpsampleFolding parse_upsample_folding(const std::string& word);

/// Checks of an option's words before they are converted: whole numbers of 64 bits, finite numbers.
/// NOTE: CLI11 2.1 takes the nearest number that fits, in silence.
const CLI::Validator& whole_number();
const CLI::Validator& finite_number();

/// An option of one word, whole numbers with commas between them: "1", "1,2".
CLI::Option* add_whole_numbers(CLI::App& command, const std::string& name,
                               std::vector<std::int64_t>& values, const std::string& help);

/// "silu", "leaky_relu:0.1", "clamp:-1,1": sets activation and parameters. "clamp" alone is ReLU6.
void parse_activation(const std::string& word, Epilogue& epilogue);

/// The epilogue of a layer with random tensors.
struct EpilogueOptions {
  std::string activation = "none";
  bool bias = false, residual = false;

  void add_to(CLI::App& command);
  bool is_given() const { return bias || residual || activation != "none"; }
  /// Without pointers. Throws Error{invalid_argument} for an activation that there is not.
  EpilogueKind kind() const;
};

/// `--norm` and `--norm-activation`.
struct PrologueWords {
  std::string norm, activation = "none";

  /// `help`: of --norm, which is returned.
  CLI::Option* add_to(CLI::App& command, const std::string& help);
  /// As a plan takes them; nothing without `--norm`. Throws Error{invalid_argument}.
  PrologueKind kind() const;
};

/// One value for all axes or one for each: in the order frames, rows, columns, those that a problem
/// of `rank` axes has not are 1. Throws Error{invalid_argument}, which names `option`.
std::array<std::int64_t, 3> per_axis(const std::vector<std::int64_t>& values, int rank,
                                     const char* option);

/// `--shuffle` and what goes with it.
struct ShuffleWords {
  std::vector<std::int64_t> factors;
  std::string order = "outer";
  std::int64_t dropped_frames = 0;

  /// `axes`: "H,W". `frames`: --drop-frames as well.
  void add_to(CLI::App& command, const std::string& axes, bool frames);
  /// Of a problem of `rank` axes. Throws Error{invalid_argument}.
  OutputShuffle shuffle(int rank) const;
};

/// Options that every subcommand with a problem has.
struct CommonOptions {
  std::string dtype;  ///< Empty: the subcommand's default.
  std::string device = "auto";
  std::string kernel;
  std::string upsample_folding = "exact";
  bool tf32 = false;
  bool json = false;

  void add_to(CLI::App& command);
  Device device_choice() const { return parse_device(device); }
  /// What of these says how a plan is made; `dtype` is the subcommand's.
  void apply_to(PlanOptions& options) const;
};

}  // namespace convoy::cli
