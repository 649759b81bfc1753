// SPDX-License-Identifier: Apache-2.0
// convoy demo: a picture through two real layers, checked, with pictures to look at.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "commands.hpp"
#include "io/atomic_file.hpp"
#include "io/printable.hpp"
#include "io/tensor_file.hpp"
#include "landscape.hpp"
#include "layer.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "text.hpp"
#include "verify.hpp"

namespace convoy::cli {
namespace {

constexpr std::int64_t kChannels = 32;

struct DemoOptions {
  std::string device = "auto", dtype = "bf16", folder = "demo-output", image;
  std::int64_t size = 1024;
};

float* floats(io::HostTensor& tensor) {
  return reinterpret_cast<float*>(tensor.bytes.data());
}

/// Stem, [32, 7, 7, 3]: Gabor filters in 8 directions, 2 wavelengths, on brightness and on colour,
/// as the first layer of a trained network looks.
io::HostTensor stem_filter() {
  constexpr std::int64_t kExtent = 7;
  io::HostTensor filter(DType::fp32, {kChannels, kExtent, kExtent, 3});
  constexpr float kBrightness[3] = {0.5f, 0.5f, 0.5f}, kColour[3] = {0.7f, -0.1f, -0.6f};
  float* out = floats(filter);
  for (std::int64_t k = 0; k < kChannels; ++k) {
    const double angle = M_PI * double(k % 8) / 8;
    const double wavelength = k / 8 % 2 == 0 ? 3.5 : 6.5;
    const float* const weights = k < 16 ? kBrightness : kColour;
    double squares = 0;
    for (std::int64_t r = 0; r < kExtent; ++r) {
      for (std::int64_t s = 0; s < kExtent; ++s) {
        const double y = double(r) - 3, x = double(s) - 3;
        const double along = x * std::cos(angle) + y * std::sin(angle);
        const double value =
            std::exp(-(x * x + y * y) / 9) * std::cos(2 * M_PI * along / wavelength);
        squares += value * value;
        for (int c = 0; c < 3; ++c) {
          out[((k * kExtent + r) * kExtent + s) * 3 + c] = float(value) * weights[c];
        }
      }
    }
    for (std::int64_t i = 0; i < kExtent * kExtent * 3; ++i) {
      out[k * kExtent * kExtent * 3 + i] /= float(std::sqrt(squares));
    }
  }
  return filter;
}

/// Layer, [32, 3, 3, 32]: each filter sharpens its own channel and is held down by its neighbours
/// in direction, which is how edges are told apart.
io::HostTensor layer_filter() {
  io::HostTensor filter(DType::fp32, {kChannels, 3, 3, kChannels});
  constexpr float kSharpen[9] = {-0.06f, -0.12f, -0.06f, -0.12f, 1.2f,
                                 -0.12f, -0.06f, -0.12f, -0.06f};
  constexpr float kBlur[9] = {0.0625f, 0.125f,  0.0625f, 0.125f, 0.25f,
                              0.125f,  0.0625f, 0.125f,  0.0625f};
  float* out = floats(filter);
  for (std::int64_t k = 0; k < kChannels; ++k) {
    for (std::int64_t tap = 0; tap < 9; ++tap) {
      for (std::int64_t c = 0; c < kChannels; ++c) {
        const std::int64_t distance = std::min((k - c + 8) % 8, (c - k + 8) % 8);
        const bool same_kind = k / 8 == c / 8;
        const float across = -0.25f * std::exp(-0.5f * float(distance));
        out[(k * 9 + tap) * kChannels + c] =
            k == c ? kSharpen[tap] : kBlur[tap] * (same_kind ? across : 0.3f * across);
      }
    }
  }
  return filter;
}

io::HostTensor layer_bias() {
  io::HostTensor bias(DType::fp32, {kChannels});
  for (std::int64_t k = 0; k < kChannels; ++k) floats(bias)[k] = 0.02f * float(k % 8) - 0.05f;
  return bias;
}

struct Row {
  std::string layer, epilogue;
  LayerResult result;
  Verification check;
};

Row run_row(const std::string& name, const Layer& layer) {
  Row row;
  row.layer = name;
  row.epilogue = to_string(epilogue_of(layer));
  {
    const Progress progress("convolving");
    row.result = run_layer(layer);
  }
  row.check = verify(layer, row.result.info, row.result.output, row.result.filter_format);
  return row;
}

void print_table(const std::vector<Row>& rows, Device asked) {
  std::printf("\nran on %s\n", backend_line(rows[0].result.info, asked).c_str());
  std::printf("%-6s %-40s %-28s %-22s %10s %9s  %s\n", "layer", "problem", "epilogue", "kernel",
              "ms", "GFLOP/s", "check");
  for (const Row& row : rows) {
    const PlanInfo& info = row.result.info;
    std::printf("%-6s %-40s %-28s %-22s %10.2f %9.1f  %s, %.3g of the bound\n", row.layer.c_str(),
                info.problem.c_str(), row.epilogue.c_str(), info.kernel.c_str(),
                row.result.time.median_us / 1e3, info.flops / (row.result.time.median_us * 1e3),
                row.check.passed ? "ok" : "FAILED", row.check.worst_of_bound);
  }
  for (const Row& row : rows) {
    std::printf("%s: all %lld outputs against %s; bound %s\n", row.layer.c_str(),
                static_cast<long long>(row.check.outputs), row.check.reference.c_str(),
                row.check.bound.c_str());
    if (!row.check.passed) std::printf("  worst at %s\n", row.check.worst.c_str());
  }
}

/// A file's name as a shell takes it, fit for a terminal.
std::string shell_word(const std::string& name) {
  std::string line = io::printable(name);
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!line.empty() && line.find_first_not_of(kPlain) == line.npos) return line;
  std::string out = "'";
  for (const char c : line) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

/// A user's picture as RGB: grey three times, alpha left out.
io::HostTensor read_picture(const std::string& path) {
  const io::HostTensor image = io::read_tensor(path);
  if (image.rank() != 3 || image.shape[2] < 1 || image.shape[2] > 4) {
    throw_invalid(path, ": shape ", io::shape_to_string(image.shape),
                  " is no picture; legal: [H, W, C], C from 1 to 4");
  }
  const io::HostTensor values = io::convert(image, DType::fp32);
  const std::int64_t channels = image.shape[2];
  io::HostTensor rgb(DType::fp32, {image.shape[0], image.shape[1], 3});
  const auto* from = reinterpret_cast<const float*>(values.bytes.data());
  for (std::int64_t i = 0; i < image.shape[0] * image.shape[1]; ++i) {
    for (std::int64_t c = 0; c < 3; ++c) {
      floats(rgb)[3 * i + c] = from[i * channels + (channels >= 3 ? c : 0)];
    }
  }
  return rgb;
}

int run_demo(const DemoOptions& o) {
  const DType dtype = parse_dtype(o.dtype);
  const Device device = parse_device(o.device);
  io::HostTensor landscape;
  if (!o.image.empty()) landscape = read_picture(o.image);
  std::error_code error;
  std::filesystem::create_directories(o.folder, error);
  if (error) {
    throw Error(Status::io_error, text("cannot make the folder ", o.folder, ": ", error.message(),
                                       "; --output names another"));
  }
  io::check_can_write(o.folder + "/stem.npy");
  const auto file = [&](const char* name) { return o.folder + "/" + name; };
  const std::string picture = file(o.image.empty() ? "landscape.png" : "picture.png");
  // The picture and the filters, as files: the commands below repeat the demo by hand.
  {
    const Progress progress("drawing");
    if (o.image.empty()) landscape = make_landscape(o.size, 20);
    io::write_tensor(picture, landscape);
  }
  io::write_tensor(file("stem.npy"), stem_filter());
  io::write_tensor(file("layer.npy"), layer_filter());
  io::write_tensor(file("bias.npy"), layer_bias());
  io::HostTensor input = io::read_tensor(picture);
  const std::int64_t height = input.shape[0], width = input.shape[1];
  std::printf("%s %s, %lld x %lld RGB\n", o.image.empty() ? "drew" : "copied",
              io::printable(picture).c_str(), static_cast<long long>(width),
              static_cast<long long>(height));

  // Stem: 7x7, 3 -> 32.
  Layer stem;
  stem.options.dtype = dtype;
  stem.options.device = device;
  stem.problem = Conv2dProblemShape{.in_height = height,
                                    .in_width = width,
                                    .in_channels = 3,
                                    .out_channels = kChannels,
                                    .filter_h = 7,
                                    .filter_w = 7,
                                    .pad_h = 3,
                                    .pad_w = 3};
  stem.activation = io::convert(input, dtype);
  stem.filter = io::convert(io::read_tensor(file("stem.npy")), dtype);
  std::vector<Row> rows;
  rows.push_back(run_row("stem", stem));

  // Residual layer: 3x3, 32 -> 32, bias, SiLU, + the stem's output.
  Layer layer;
  layer.options = stem.options;
  layer.problem = Conv2dProblemShape{.in_height = height,
                                     .in_width = width,
                                     .in_channels = kChannels,
                                     .out_channels = kChannels,
                                     .filter_h = 3,
                                     .filter_w = 3,
                                     .pad_h = 1,
                                     .pad_w = 1};
  layer.activation = io::convert(rows[0].result.output, dtype);
  layer.filter = io::convert(io::read_tensor(file("layer.npy")), dtype);
  layer.bias = io::read_tensor(file("bias.npy"));
  layer.residual = io::convert(rows[0].result.output, dtype);
  layer.epilogue.activation = Activation::silu;
  rows.push_back(run_row("layer", layer));

  {
    const Progress progress("writing");
    io::write_tensor(file("features.png"), rows[0].result.output);
    io::write_tensor(file("result.png"), rows[1].result.output);
  }
  print_table(rows, stem.options.device);
  std::printf("\nwrote %s (the stem's %lld channels) and %s (the layer's)\n",
              io::printable(file("features.png")).c_str(), static_cast<long long>(kChannels),
              io::printable(file("result.png")).c_str());
  std::printf(
      "again by hand:\n"
      "  convoy conv2d --input %s --filter %s --pad 3 --dtype %s --output features.npy\n"
      "  convoy conv2d --input features.npy --filter %s --bias %s --activation silu \\\n"
      "    --residual features.npy --pad 1 --dtype %s --verify --output result.png\n",
      shell_word(picture).c_str(), shell_word(file("stem.npy")).c_str(), o.dtype.c_str(),
      shell_word(file("layer.npy")).c_str(), shell_word(file("bias.npy")).c_str(), o.dtype.c_str());
  return rows[0].check.passed && rows[1].check.passed ? kSuccess : kVerificationFailed;
}

}  // namespace

void add_demo_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<DemoOptions>();
  CLI::App* command = app.add_subcommand(
      "demo", "draw a picture, convolve it through two layers, check the result");
  command->add_option("--device", options->device, "auto, cpu or cuda")->capture_default_str();
  command->add_option("--dtype", options->dtype, "bf16, fp16 or fp32")->capture_default_str();
  command->add_option("--size", options->size, "pixels a side")
      ->check(CLI::Range(16, 8192))
      ->capture_default_str();
  command
      ->add_option("--image", options->image,
                   "a picture of your own in the place of the drawn one: .jpg, .png, .npy, "
                   ".safetensors")
      ->excludes("--size");
  command->add_option("--output", options->folder, "folder of the files")->capture_default_str();
  command->callback([options, &exit_code] { exit_code = run_demo(*options); });
}

}  // namespace convoy::cli
