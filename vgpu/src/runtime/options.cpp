// SPDX-License-Identifier: Apache-2.0
#include "runtime/options.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "runtime/device_model.hpp"

namespace vgpu::runtime {
namespace {

const char* const kDeliveryNames[] = {"late", "early", "sweep", "random"};

template <typename T>
void read_number(const char* name, T low, T high, T& value) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return;
  const std::string_view view = text;
  T parsed{};
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), parsed);
  if (error != std::errc() || end != view.data() + view.size() || parsed < low || parsed > high) {
    throw Fault(kInvalidValue, std::string(name) + " is '" + text + "': it must be a number from " +
                                   std::to_string(low) + " to " + std::to_string(high));
  }
  value = parsed;
}

}  // namespace

bool parse_delivery(const std::string& text, exec::Delivery& delivery) {
  for (int i = 0; i < 4; ++i) {
    if (text == kDeliveryNames[i]) {
      delivery = static_cast<exec::Delivery>(i);
      return true;
    }
  }
  return false;
}

const char* to_string(exec::Delivery delivery) {
  return kDeliveryNames[static_cast<unsigned>(delivery)];
}

Options read_options() {
  Options options;
  if (const char* gpu = std::getenv("VGPU_GPU"); gpu && *gpu) options.gpu = gpu;
  if (!is_known_gpu(options.gpu)) {
    fault(kInvalidValue, "VGPU_GPU is '%s': it must be one of %s", options.gpu.c_str(),
          known_gpus().c_str());
  }
  options.exec.pause_after = 400'000;
  read_number<uint64_t>("VGPU_SEED", 0, ~0ull, options.exec.seed);
  read_number<uint64_t>("VGPU_SPIN", 1000, ~0ull, options.exec.spin_limit);
  options.exec.pause_after = std::min<uint64_t>(options.exec.pause_after, options.exec.spin_limit);
  read_number<uint32_t>("VGPU_THREADS", 1, 1024, options.exec.threads);
  read_number<uint32_t>("VGPU_SMS", 1, 4096, options.sm_count);
  read_number<int>("VGPU_LOG", 0, 3, options.log_level);
  int stats = 0;
  read_number<int>("VGPU_STATS", 0, 1, stats);
  options.stats = stats != 0;
  if (const char* delivery = std::getenv("VGPU_DELIVERY"); delivery && *delivery) {
    if (!parse_delivery(delivery, options.exec.delivery)) {
      fault(kInvalidValue, "VGPU_DELIVERY is '%s': it must be late, early, sweep or random",
            delivery);
    }
  }
  if (const char* sums = std::getenv("VGPU_SUMS"); sums && *sums) {
    options.cut_sums = std::string(sums) == "cut";
    if (!options.cut_sums && std::string(sums) != "fused") {
      fault(kInvalidValue, "VGPU_SUMS is '%s': it must be fused or cut", sums);
    }
  }
  if (const char* checks = std::getenv("VGPU_CHECK"); checks && *checks) options.checks = checks;
  if (const char* path = std::getenv("VGPU_TRACE")) options.trace_path = path;
  return options;
}

}  // namespace vgpu::runtime
