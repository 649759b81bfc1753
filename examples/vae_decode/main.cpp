// SPDX-License-Identifier: Apache-2.0
//
// vae_decode --model FILE --latents FILE --output PREFIX [--device cpu|cuda] [--dtype bf16|fp32]
//            [--groups N]
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>

#include "autoencoders.hpp"
#include "memory.hpp"
#include "png.hpp"

namespace {

constexpr const char* kUsage =
    "vae_decode --model VAE.safetensors --latents LATENTS.safetensors --output PREFIX\n"
    "           [--device cpu|cuda] [--dtype bf16|fp32] [--groups 32]\n"
    "Decodes what diffusers' decode() takes to PREFIX_0000.png and so on.\n";

std::map<std::string, std::string> options_of(int count, char** words) {
  std::map<std::string, std::string> options{{"--device", "cpu"}, {"--dtype", "bf16"},
                                             {"--groups", "32"},  {"--model", ""},
                                             {"--latents", ""},   {"--output", ""}};
  for (int i = 1; i < count; i += 2) {
    const auto found = options.find(words[i]);
    if (found == options.end())
      throw std::invalid_argument(std::string(words[i]) + " is no option");
    if (i + 1 == count) throw std::invalid_argument(found->first + " needs a value");
    found->second = words[i + 1];
  }
  for (const char* name : {"--model", "--latents", "--output"}) {
    if (options[name].empty()) throw std::invalid_argument(std::string(name) + " is missing");
  }
  const auto one_of = [&](const char* name, const char* a, const char* b) {
    if (options[name] != a && options[name] != b) {
      throw std::invalid_argument(std::string(name) + " = " + options[name] + "; legal: " + a +
                                  ", " + b);
    }
  };
  one_of("--device", "cpu", "cuda");
  one_of("--dtype", "bf16", "fp32");
  return options;
}

std::int64_t number(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) {
    throw std::invalid_argument("--groups = " + text + "; legal: 1 or more");
  }
  return value;
}

void decode_files(std::map<std::string, std::string>& options) {
  const bool cuda = options["--device"] == "cuda";
  if (cuda) require_cuda();
  const SafeTensors weights(options["--model"]), file(options["--latents"]);
  const auto keys = file.keys();
  if (keys.size() != 1 && !file.has("latents")) {
    throw std::runtime_error(options["--latents"] + " has " + std::to_string(keys.size()) +
                             " tensors; legal: one, or one of them named latents");
  }
  const Array latents = file.read(file.has("latents") ? "latents" : keys[0]);

  // What matters: layers on a device in a type; a decoder of them; frames.
  const auto dtype = options["--dtype"] == "fp32" ? convoy::DType::fp32 : convoy::DType::bf16;
  Layers layers(weights, cuda, dtype);
  const auto begin = std::chrono::steady_clock::now();
  const Tensor frames = decode(layers, latents, number(options["--groups"]));
  const std::vector<float> pixels = layers.download(frames);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;

  if (frames.channels != 3) {
    throw std::runtime_error("the model has " + std::to_string(frames.channels) +
                             " channels of output; legal: 3");
  }
  const std::size_t frame = pixels.size() / static_cast<std::size_t>(frames.frames);
  std::vector<std::uint8_t> rgb(frame);
  for (std::int64_t f = 0; f < frames.frames; ++f) {
    const float* from = pixels.data() + static_cast<std::size_t>(f) * frame;
    std::transform(from, from + frame, rgb.begin(), [](float x) {
      return static_cast<std::uint8_t>(std::lround(std::clamp((x + 1) * 127.5f, 0.0f, 255.0f)));
    });
    char number[24];
    std::snprintf(number, sizeof number, "_%04lld.png", static_cast<long long>(f));
    write_png(options["--output"] + number, rgb, static_cast<std::uint32_t>(frames.width),
              static_cast<std::uint32_t>(frames.height));
  }
  std::printf("%s: %lld frames of %lld x %lld in %.3f s, plans and weights included\n",
              family_of(weights).c_str(), static_cast<long long>(frames.frames),
              static_cast<long long>(frames.height), static_cast<long long>(frames.width),
              spent.count());
}

}  // namespace

int main(int count, char** words) {
  if (count == 2 && (std::strcmp(words[1], "--help") == 0 || std::strcmp(words[1], "-h") == 0)) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  try {
    auto options = options_of(count, words);
    decode_files(options);
    return 0;
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "vae_decode: %s\n%s", error.what(), kUsage);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "vae_decode: %s\n", error.what());
    return 1;
  }
}
