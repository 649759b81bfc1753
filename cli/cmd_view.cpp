// SPDX-License-Identifier: Apache-2.0
// convoy view: a tensor as a picture.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "commands.hpp"
#include "io/png.hpp"
#include "io/printable.hpp"
#include "io/tensor_file.hpp"
#include "text.hpp"

namespace convoy::cli {
namespace {

struct ViewOptions {
  std::string input, output;
};

/// "features.npy" and "model.safetensors:x" are shown in "features.png" and "model.png", here.
std::string picture_name(const std::string& input) {
  const std::string file = input.substr(0, input.find(".safetensors:"));
  return std::filesystem::path(file).stem().string() + ".png";
}

int run_view(const ViewOptions& o) {
  const std::string output = o.output.empty() ? picture_name(o.input) : o.output;
  io::check_can_write_tensor(output);
  if (io::is_same_file(o.input, output)) {
    throw_invalid(o.input, ": the picture would replace it; --output names another file");
  }
  io::HostTensor tensor = io::read_tensor(o.input);
  const std::vector<std::int64_t> shape = tensor.shape;
  if (tensor.rank() == 2) tensor.shape.push_back(1);
  const io::HostTensor picture = io::picture_of(tensor);
  io::write_tensor(output, tensor);
  std::printf("%s %s %s as %s, %lld x %lld pixels\n", io::printable(o.input).c_str(),
              io::shape_to_string(shape).c_str(), to_string(tensor.dtype),
              io::printable(output).c_str(), static_cast<long long>(picture.shape[1]),
              static_cast<long long>(picture.shape[0]));
  return kSuccess;
}

}  // namespace

void add_view_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ViewOptions>();
  CLI::App* command = app.add_subcommand("view", "write a tensor as a picture, a tile a channel");
  command
      ->add_option("input", options->input,
                   "[..., H, W, C] or [H, W]: .npy, .safetensors, .safetensors:TENSOR, .png, .jpg")
      ->required();
  command->add_option("--output", options->output,
                      "the picture, .png; without it the file's name with .png, here");
  command->callback([options, &exit_code] { exit_code = run_view(*options); });
}

}  // namespace convoy::cli
