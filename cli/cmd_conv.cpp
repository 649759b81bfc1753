// SPDX-License-Identifier: Apache-2.0
// convoy conv2d, convoy conv3d: files in, convolved files out.
#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "io/printable.hpp"
#include "io/tensor_file.hpp"
#include "json_output.hpp"
#include "layer.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "text.hpp"
#include "verify.hpp"

namespace convoy::cli {
namespace {

using io::HostTensor;

struct ConvOptions {
  int rank = 2;  ///< Spatial axes: 2 or 3.
  CommonOptions common;
  std::string input, filter, filter_layout, bias, residual, cache, output, next_cache, output_dtype;
  std::vector<std::int64_t> pad, stride, dilation;
  ShuffleWords shuffle;
  std::string shortcut;
  std::int64_t groups = 1, upsample = 1;
  std::string activation = "none", pad_mode = "zero";
  float scale = 1.0f, beta = 1.0f;
  NormWords norm;
  bool residual_before_activation = false, verify = false;
};

void add_options(CLI::App& command, ConvOptions& o) {
  const bool flat = o.rank == 2;
  const char* const files = ": .npy, .safetensors, .safetensors:TENSOR";
  command
      .add_option("--input", o.input,
                  std::string(flat ? "[N, H, W, C], [H, W, C] or [H, W]"
                                   : "[N, D, H, W, C], [D, H, W, C] or [D, H, W]") +
                      files + (flat ? ", .png, .jpg" : ""))
      ->required();
  command.add_option("--filter", o.filter, std::string("filter") + files)->required();
  o.filter_layout = flat ? "KRSC" : "KTRSC";
  command
      .add_option("--filter-layout", o.filter_layout,
                  flat ? "KRSC, KCRS or RSCF" : "KTRSC, KCTRS or TRSCF")
      ->capture_default_str();
  add_whole_numbers(
      command, "--pad", o.pad,
      flat ? "P | H,W | top,bottom,left,right" : "P | D,H,W | front,back,top,bottom,left,right");
  add_whole_numbers(command, "--stride", o.stride, flat ? "S | H,W" : "S | D,H,W");
  add_whole_numbers(command, "--dilation", o.dilation, flat ? "D | H,W" : "D | D,H,W");
  command.add_option("--groups", o.groups, "groups")->check(whole_number())->capture_default_str();
  command.add_option("--pad-mode", o.pad_mode, "zero, replicate or reflect")->capture_default_str();
  if (flat) {
    command.add_option("--upsample", o.upsample, "2: repeat rows and columns before the filter")
        ->check(whole_number());
  } else {
    command.add_option("--cache", o.cache, std::string("causal cache [N, D, H, W, C]") + files);
    command.add_option("--next-cache", o.next_cache, "write the cache of the next call here");
  }
  o.norm.add_to(command);
  command.add_option("--scale", o.scale, "factor on the convolution")
      ->check(finite_number())
      ->capture_default_str();
  command.add_option("--bias", o.bias, std::string("[K]") + files);
  command
      .add_option(
          "--activation", o.activation,
          "none, relu, leaky_relu[:SLOPE], gelu, gelu_tanh, silu, sigmoid, tanh, hardswish, "
          "clamp[:LO,HI]")
      ->capture_default_str();
  CLI::Option* const residual =
      command.add_option("--residual", o.residual, std::string("of the output's shape") + files);
  o.shuffle.add_to(command, flat ? "H,W" : "D,H,W", !flat);
  command
      .add_option("--shortcut", o.shortcut,
                  "interleaved or tiled: the residual has the output's extents before --shuffle, "
                  "and its channels repeat")
      ->needs(residual);
  command.add_option("--beta", o.beta, "factor on the residual")
      ->check(finite_number())
      ->needs(residual)
      ->capture_default_str();
  command
      .add_flag("--residual-before-activation", o.residual_before_activation,
                "activation(conv + bias + beta * residual)")
      ->needs(residual);
  o.common.add_to(command);
  command
      .add_option("--output", o.output,
                  "result: .npy, .safetensors, .safetensors:TENSOR, .png (contact sheet)")
      ->required();
  command.add_option("--output-dtype", o.output_dtype,
                     "type of the output file; the input's where not given");
  command.add_flag("--verify", o.verify, "compare with a reference; exit code 1 past the bound");
}

struct Padding {
  std::array<std::int64_t, 3> begin = {0, 0, 0}, end = {0, 0, 0};
};

/// One value for all sides, one for each axis, or one for each side.
Padding parse_padding(const std::vector<std::int64_t>& values, int rank) {
  const std::size_t axes = std::size_t(rank);
  if (values.size() > 1 && values.size() != axes && values.size() != 2 * axes) {
    throw_invalid("--pad has ", values.size(), " values; legal: 1, ", rank, " or ", 2 * rank);
  }
  Padding padding;
  for (std::size_t axis = 0; axis < axes && !values.empty(); ++axis) {
    const bool per_side = values.size() == 2 * axes;
    const std::size_t first = per_side ? 2 * axis : values.size() == 1 ? 0 : axis;
    padding.begin[3 - axes + axis] = values[first];
    padding.end[3 - axes + axis] = values[per_side ? first + 1 : first];
  }
  return padding;
}

/// Gives the input its batch (1) and channel (1) extents where they are left out.
std::vector<std::int64_t> full_shape(const ConvOptions& o, const HostTensor& input,
                                     const std::string& file) {
  std::vector<std::int64_t> shape = input.shape;
  const std::size_t full = std::size_t(o.rank) + 2;
  if (shape.size() < full - 2 || shape.size() > full) {
    throw_invalid(file, ": shape ", io::shape_to_string(shape), " has rank ", shape.size(),
                  "; legal: ", full, " [", o.rank == 2 ? "N, H, W, C" : "N, D, H, W, C", "], ",
                  full - 1, " (N = 1) or ", full - 2, " (N = C = 1)");
  }
  if (shape.size() == full - 2) shape.push_back(1);
  if (shape.size() == full - 1) shape.insert(shape.begin(), 1);
  return shape;
}

/// Extents K, T, R, S, C of a filter file.
std::array<std::int64_t, 5> filter_extents(const ConvOptions& o, FilterLayout layout,
                                           const HostTensor& filter) {
  const std::string axes = to_string(layout);  // E.g. "KRSC"; "TRSCF" calls the filters F.
  if ((axes.find_first_of("Tt") != axes.npos) != (o.rank == 3)) {
    throw_invalid("filter layout ", axes, " is of the other rank; legal: ",
                  o.rank == 2 ? "KRSC, KCRS, RSCF" : "KTRSC, KCTRS, TRSCF");
  }
  if (filter.shape.size() != axes.size()) {
    throw_invalid(o.filter, ": shape ", io::shape_to_string(filter.shape), " has rank ",
                  filter.shape.size(), "; legal: ", axes.size(), " [", axes, "]");
  }
  std::array<std::int64_t, 5> extents = {1, 1, 1, 1, 1};
  for (std::size_t i = 0; i < axes.size(); ++i) {
    switch (std::toupper(static_cast<unsigned char>(axes[i]))) {
      case 'T':
        extents[1] = filter.shape[i];
        break;
      case 'R':
        extents[2] = filter.shape[i];
        break;
      case 'S':
        extents[3] = filter.shape[i];
        break;
      case 'C':
        extents[4] = filter.shape[i];
        break;
      default:  // K, or F for filters.
        extents[0] = filter.shape[i];
    }
  }
  return extents;
}

/// The filter's channels are those of a group of the input; where not, whether they would be in
/// another layout.
void check_filter_channels(const ConvOptions& o, FilterLayout layout, const HostTensor& filter,
                           std::int64_t in_channels) {
  const auto fits = [&](FilterLayout as) {
    const auto extents = filter_extents(o, as, filter);
    if (o.groups < 1) return true;  // Judged with the problem.
    return in_channels % o.groups == 0 && extents[4] == in_channels / o.groups;
  };
  if (fits(layout)) return;
  std::string others;
  for (const FilterLayout other : {FilterLayout::krsc, FilterLayout::kcrs, FilterLayout::rscf,
                                   FilterLayout::ktrsc, FilterLayout::kctrs, FilterLayout::trscf}) {
    const bool deep = std::string(to_string(other)).find('T') != std::string::npos;
    if (deep != (o.rank == 3) || !fits(other)) continue;
    others += text(others.empty() ? "; --filter-layout " : " or ", to_string(other));
  }
  if (!others.empty()) others += " fits";
  const std::string legal = in_channels % o.groups == 0
                                ? text(in_channels / o.groups, " channels", others)
                                : text("--groups that divides ", in_channels);
  throw_invalid(o.filter, ": as ", to_string(layout), " the filter ",
                io::shape_to_string(filter.shape), " has ", filter_extents(o, layout, filter)[4],
                " channels in each of ", o.groups, " groups, the input has ", in_channels,
                "; legal: ", legal);
}

/// The problem that files and options describe. Nothing is judged that `validate` judges.
ProblemShape make_problem(const ConvOptions& o, const std::vector<std::int64_t>& in,
                          const std::array<std::int64_t, 5>& filter, std::int64_t cached_frames) {
  const Padding pad = parse_padding(o.pad, o.rank);
  const auto stride = per_axis(o.stride, o.rank, "--stride");
  const auto dilation = per_axis(o.dilation, o.rank, "--dilation");
  const PadMode mode = parse_pad_mode(o.pad_mode);
  if (o.rank == 3) {
    return Conv3dProblemShape{.batch = in[0],
                              .in_depth = in[1],
                              .in_height = in[2],
                              .in_width = in[3],
                              .in_channels = in[4],
                              .out_channels = filter[0],
                              .filter = {filter[1], filter[2], filter[3]},
                              .pad_begin = pad.begin,
                              .pad_end = pad.end,
                              .stride = stride,
                              .dilation = dilation,
                              .groups = o.groups,
                              .pad_mode = {mode, mode, mode},
                              .cached_frames = cached_frames};
  }
  Conv2dProblemShape flat{.batch = in[0],
                          .in_height = in[1],
                          .in_width = in[2],
                          .in_channels = in[3],
                          .out_channels = filter[0],
                          .filter_h = filter[2],
                          .filter_w = filter[3],
                          .pad_h = pad.begin[1],
                          .pad_w = pad.begin[2],
                          .stride_h = stride[1],
                          .stride_w = stride[2],
                          .dilation_h = dilation[1],
                          .dilation_w = dilation[2],
                          .groups = o.groups};
  if (pad.end[1] != pad.begin[1]) flat.pad_h_end = pad.end[1];
  if (pad.end[2] != pad.begin[2]) flat.pad_w_end = pad.end[2];
  flat.pad_mode = mode;
  flat.upsample = o.upsample;
  return flat;
}

/// Reads a tensor, checks its shape (one that leaves out N = 1 will do) and brings it to a type.
HostTensor read_shaped(const std::string& file, const std::vector<std::int64_t>& shape, DType dtype,
                       const std::string& what) {
  HostTensor tensor = io::read_tensor(file);
  std::vector<std::int64_t> got = tensor.shape;
  if (got.size() + 1 == shape.size() && shape[0] == 1) got.insert(got.begin(), 1);
  if (got != shape) {
    throw_invalid(file, ": the ", what, " has shape ", io::shape_to_string(tensor.shape),
                  "; legal: ", io::shape_to_string(shape));
  }
  tensor.shape = shape;
  return io::convert(tensor, dtype);
}

std::vector<std::int64_t> residual_shape(const ConvGeometry& g, const OutputShuffle& shuffle) {
  const auto& f = shuffle.factors;
  const bool repeats = shuffle.residual != ShuffleResidual::output;
  const std::int64_t phases = std::max<std::int64_t>(1, shuffle.phases());
  const std::int64_t frames = repeats ? g.out[0] : g.out[0] * f[0] - shuffle.dropped_frames;
  const std::int64_t rows = g.out[1] * (repeats ? 1 : f[1]);
  const std::int64_t columns = g.out[2] * (repeats ? 1 : f[2]);
  const std::int64_t channels = repeats ? shuffle.residual_channels : g.out_channels / phases;
  if (g.rank == 2) return {g.batch, rows, columns, channels};
  return {g.batch, frames, rows, columns, channels};
}

/// How the residual's channels repeat: as many as its file has.
void add_shortcut(const ConvOptions& o, OutputShuffle& shuffle) {
  if (o.shortcut.empty()) return;
  if (o.shortcut != "interleaved" && o.shortcut != "tiled") {
    throw_invalid("--shortcut = '", io::printable(o.shortcut), "'; legal: interleaved, tiled");
  }
  shuffle.residual = o.shortcut == "tiled" ? ShuffleResidual::tiled : ShuffleResidual::interleaved;
  const HostTensor residual = io::read_tensor(o.residual);
  shuffle.residual_channels = residual.shape.empty() ? 0 : residual.shape.back();
}

/// A layer from files, all checked.
struct LoadedLayer {
  Layer layer;
  DType file_dtype = DType::fp32;  ///< Type of the input file.
  bool has_batch = true;           ///< The input file has the extent N.
};

/// Options that would change nothing.
void check_effect(const ConvOptions& o, const PlanOptions& options) {
  if (options.allow_tf32 && options.dtype != DType::fp32) {
    throw_invalid("--tf32 with tensors of ", to_string(options.dtype),
                  "; legal: with fp32 (--dtype fp32)");
  }
  if (options.upsample_folding == UpsampleFolding::fast && o.upsample == 1) {
    throw_invalid("--upsample-folding fast without an upsampling; legal: ",
                  o.rank == 2 ? "with --upsample 2" : "exact");
  }
}

LoadedLayer load_layer(const ConvOptions& o) {
  LoadedLayer loaded;
  Layer& layer = loaded.layer;
  layer.filter_layout = parse_filter_layout(o.filter_layout);
  o.common.apply_to(layer.options);
  parse_activation(o.activation, layer.epilogue);
  layer.epilogue.scale = o.scale;
  layer.epilogue.beta = o.beta;
  layer.epilogue.order = o.residual_before_activation ? ResidualOrder::before_activation
                                                      : ResidualOrder::after_activation;

  HostTensor input = io::read_tensor(o.input);
  loaded.file_dtype = input.dtype;
  loaded.has_batch = input.rank() == o.rank + 2;
  layer.options.dtype = o.common.dtype.empty() ? input.dtype : parse_dtype(o.common.dtype);
  check_effect(o, layer.options);
  input.shape = full_shape(o, input, o.input);
  const HostTensor filter = io::read_tensor(o.filter);
  const auto extents = filter_extents(o, layer.filter_layout, filter);

  std::int64_t cached_frames = 0;
  HostTensor cache;
  if (!o.cache.empty()) {
    cache = io::read_tensor(o.cache);
    cache.shape = full_shape(o, cache, o.cache);
    cached_frames = cache.shape[1];
  }
  layer.problem = make_problem(o, input.shape, extents, cached_frames);
  check_filter_channels(o, layer.filter_layout, filter, input.shape.back());
  const ConvGeometry g = geometry_of(layer.problem);

  layer.options.shuffle = o.shuffle.shuffle(o.rank);
  add_shortcut(o, layer.options.shuffle);

  const DType dtype = layer.options.dtype;
  layer.activation = io::convert(input, dtype);
  layer.filter = io::convert(filter, dtype);
  if (!o.cache.empty()) {
    const std::vector<std::int64_t> shape = {g.batch, cached_frames, g.in[1], g.in[2],
                                             g.in_channels};
    if (cache.shape != shape) {
      throw_invalid(o.cache, ": the cache has shape ", io::shape_to_string(cache.shape),
                    "; legal: ", io::shape_to_string(shape));
    }
    layer.cache = io::convert(cache, dtype);
  }
  if (!o.bias.empty()) layer.bias = read_shaped(o.bias, {g.out_channels}, DType::fp32, "bias");
  if (!o.residual.empty()) {
    layer.residual =
        read_shaped(o.residual, residual_shape(g, layer.options.shuffle), dtype, "residual");
  }
  layer.norm = o.norm.read(g.in_channels);
  layer.wants_next_cache = !o.next_cache.empty();
  return loaded;
}

void print_text(const ConvOptions& o, const Layer& layer, const LayerResult& result,
                const HostTensor& output, const Verification* check) {
  const double gflops = result.info.flops / (result.time.median_us * 1e3);
  const std::string runs =
      result.time.runs == 1 ? "one run" : text("median of ", result.time.runs, " runs");
  std::printf("problem   %s\n", result.info.problem.c_str());
  if (layer.norm) std::printf("prologue  %s\n", to_string(layer.norm->kind()).c_str());
  std::printf("epilogue  %s\n", to_string(epilogue_of(layer)).c_str());
  if (layer.options.shuffle.any()) {
    std::printf("shuffle   %s\n", to_string(layer.options.shuffle).c_str());
  }
  std::printf("dtype     %s\n", to_string(layer.options.dtype));
  std::printf("backend   %s\n", backend_line(result.info, layer.options.device).c_str());
  std::printf("kernel    %s\n", result.info.kernel.c_str());
  std::printf("time      %.3f ms (%s)\n", result.time.median_us / 1e3, runs.c_str());
  std::printf("speed     %.1f GFLOP/s\n", result.info.flops > 0 ? gflops : 0.0);
  if (check != nullptr) {
    std::printf("verify    %s: largest error %.3g, rms %.3g; worst %.3g of the bound\n",
                check->passed ? "passed" : "FAILED", check->max_error, check->rms_error,
                check->worst_of_bound);
    std::printf("          all %lld outputs against %s; bound %s\n",
                static_cast<long long>(check->outputs), check->reference.c_str(),
                check->bound.c_str());
    if (!check->passed) {
      std::printf("          %lld past the bound; worst at %s\n",
                  static_cast<long long>(check->failures), check->worst.c_str());
    }
  }
  std::printf("output    %s %s %s\n", io::printable(o.output).c_str(),
              io::shape_to_string(output.shape).c_str(), to_string(output.dtype));
}

void print_json(const ConvOptions& o, const Layer& layer, const LayerResult& result,
                const HostTensor& output, const Verification* check) {
  nlohmann::ordered_json json = {
      {"problem", result.info.problem},
      {"epilogue", to_string(epilogue_of(layer))},
      {"dtype", to_string(layer.options.dtype)},
      {"backend", result.info.backend},
      {"kernel", result.info.kernel},
      {"runs", result.time.runs},
      {"time_us", result.time.median_us},
      {"gflops", result.info.flops > 0 ? result.info.flops / (result.time.median_us * 1e3) : 0.0},
      {"output", o.output},
      {"shape", output.shape},
      {"output_dtype", to_string(output.dtype)}};
  if (layer.norm) json["prologue"] = to_string(layer.norm->kind());
  if (layer.options.shuffle.any()) json["shuffle"] = to_string(layer.options.shuffle);
  if (check != nullptr) {
    json["verify"] = {{"passed", check->passed},       {"outputs", check->outputs},
                      {"failures", check->failures},   {"max_error", check->max_error},
                      {"rms_error", check->rms_error}, {"worst_of_bound", check->worst_of_bound},
                      {"worst", check->worst},         {"reference", check->reference},
                      {"bound", check->bound}};
  }
  print(json);
}

int run_conv(const ConvOptions& o) {
  io::check_can_write_tensor(o.output);
  if (!o.next_cache.empty()) {
    io::check_can_write_tensor(o.next_cache);
    if (io::is_same_file(o.output, o.next_cache)) {
      throw_invalid("--output and --next-cache are the same file, ", o.next_cache,
                    "; legal: two files");
    }
  }
  std::optional<DType> output_dtype;
  if (!o.output_dtype.empty()) output_dtype = parse_dtype(o.output_dtype);
  const LoadedLayer loaded = [&] {
    const Progress progress("reading");
    return load_layer(o);
  }();
  const Layer& layer = loaded.layer;
  const LayerResult result = [&] {
    const Progress progress("convolving");
    return run_layer(layer);
  }();

  std::optional<Verification> check;
  if (o.verify) check = verify(layer, result.info, result.output, result.filter_format);

  const Progress progress("writing");
  const DType file_dtype = output_dtype.value_or(loaded.file_dtype);
  HostTensor output = io::convert(result.output, file_dtype);
  if (!loaded.has_batch) output.shape.erase(output.shape.begin());
  io::write_tensor(o.output, output);
  if (result.next_cache) {
    io::write_tensor(o.next_cache, io::convert(*result.next_cache, loaded.file_dtype));
  }
  (o.common.json ? print_json : print_text)(o, layer, result, output, check ? &*check : nullptr);
  return !check || check->passed ? kSuccess : kVerificationFailed;
}

}  // namespace

void add_conv_commands(CLI::App& app, int& exit_code) {
  for (int rank : {2, 3}) {
    auto options = std::make_shared<ConvOptions>();
    options->rank = rank;
    CLI::App* command =
        app.add_subcommand(rank == 2 ? "conv2d" : "conv3d", text("convolve a file, ", rank, "-D"));
    add_options(*command, *options);
    command->callback([options, &exit_code] { exit_code = run_conv(*options); });
  }
}

}  // namespace convoy::cli
