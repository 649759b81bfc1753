// SPDX-License-Identifier: Apache-2.0
#include "landscape.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <system_error>
#include <thread>
#include <vector>

namespace convoy::cli {
namespace {

struct Color {
  double r, g, b;
};
Color operator+(Color a, Color b) {
  return {a.r + b.r, a.g + b.g, a.b + b.b};
}
Color operator*(double s, Color a) {
  return {s * a.r, s * a.g, s * a.b};
}
Color mix(Color a, Color b, double t) {
  return (1 - t) * a + t * b;
}

double smooth(double lo, double hi, double x) {
  const double t = std::clamp((x - lo) / (hi - lo), 0.0, 1.0);
  return t * t * (3 - 2 * t);
}

/// A number in [-1, 1] for a lattice point.
double lattice(std::int32_t x, std::int32_t y, std::uint32_t seed) {
  std::uint32_t h = std::uint32_t(x) * 0x8da6b343u ^ std::uint32_t(y) * 0xd8163841u ^ seed;
  h = (h ^ (h >> 15)) * 0x2c1b3c6du;
  h = (h ^ (h >> 12)) * 0x297a2d39u;
  return double(h ^ (h >> 15)) * 0x1p-31 - 1.0;
}

/// Value noise: lattice values joined by fifth-order curves.
double noise(double x, double y, std::uint32_t seed) {
  const double fx = std::floor(x), fy = std::floor(y);
  const auto ix = std::int32_t(fx), iy = std::int32_t(fy);
  const auto ease = [](double t) { return t * t * t * (t * (6 * t - 15) + 10); };
  const double u = ease(x - fx), v = ease(y - fy);
  const double top = std::lerp(lattice(ix, iy, seed), lattice(ix + 1, iy, seed), u);
  const double bottom = std::lerp(lattice(ix, iy + 1, seed), lattice(ix + 1, iy + 1, seed), u);
  return std::lerp(top, bottom, v);
}

/// Octaves of noise, each of twice the frequency and half the height.
double fractal(double x, double y, int octaves, std::uint32_t seed) {
  double sum = 0, height = 0.5;
  for (int octave = 0; octave < octaves; ++octave) {
    sum += height * noise(x, y, seed + std::uint32_t(octave) * 7919u);
    // Turn each octave, so that the lattice does not show.
    const double turned = 1.6 * x - 1.2 * y;
    y = 1.2 * x + 1.6 * y;
    x = turned;
    height *= 0.5;
  }
  return sum;
}

/// One range of mountains: its crest over x, and how it is coloured.
struct Range {
  double base, height, frequency;
  Color rock, forest;
  double haze;
};

class Scene {
 public:
  explicit Scene(std::uint32_t seed) : seed_(seed) {}

  /// Colour at x in [0, 1] from the left and y in [0, 1] from the top.
  Color at(double x, double y) const {
    if (y < kShore) return above(x, y);
    // The lake mirrors what is above its shore, broken by waves that lengthen towards the viewer.
    const double near = (y - kShore) / (1 - kShore);
    const double wave = noise(x * 18 / (0.15 + near), 60 * std::log(0.04 + near), seed_ + 11);
    const double ripple = noise(x * 70, 240 * std::log(0.04 + near), seed_ + 13);
    const double mirrored = kShore - (y - kShore) * 0.9 - 0.012 * wave * near - 0.003 * ripple;
    const Color seen = above(x + 0.006 * wave, std::max(0.0, mirrored));
    const Color water = mix(seen, {0.05, 0.16, 0.22}, 0.25 + 0.35 * near);
    const double glint = smooth(0.55, 0.95, ripple + 0.5 * wave) * 0.25 * (1 - near);
    return water + glint * Color{1.0, 0.93, 0.8};
  }

 private:
  static constexpr double kShore = 0.70;
  static constexpr double kSunX = 0.68, kSunY = 0.22;

  Color sky(double x, double y) const {
    const Color zenith{0.16, 0.36, 0.68}, horizon{0.86, 0.76, 0.66};
    Color color = mix(zenith, horizon, smooth(0.0, 0.55, y));
    const double distance = std::hypot(x - kSunX, y - kSunY);
    color = color + 0.55 * std::exp(-14 * distance) * Color{1.0, 0.8, 0.5};
    if (distance < 0.028) color = {1.0, 0.97, 0.88};
    // Clouds lie flatter towards the horizon.
    const double depth = 1 / (0.15 + y);
    const double cloud = fractal(x * 3 * depth * 0.4, depth * 4, 6, seed_ + 101);
    const Color lit = mix({0.98, 0.95, 0.92}, {0.62, 0.62, 0.70}, smooth(0.1, 0.5, cloud));
    return mix(color, lit, 0.85 * smooth(-0.02, 0.35, cloud) * smooth(0.5, 0.25, y));
  }

  double crest(const Range& range, double x, std::uint32_t seed) const {
    const double ridge = 1 - std::abs(fractal(x * range.frequency, 3.7, 8, seed)) * 2.2;
    const double swell = fractal(x * range.frequency * 0.5, 9.1, 3, seed + 5);
    return range.base - range.height * (0.55 * ridge + 0.6 * swell);
  }

  Color above(double x, double y) const {
    static constexpr Range kRanges[] = {
        {0.62, 0.22, 2.1, {0.52, 0.56, 0.66}, {0.46, 0.52, 0.62}, 0.55},
        {0.66, 0.20, 2.9, {0.40, 0.40, 0.42}, {0.28, 0.36, 0.34}, 0.25},
        {0.705, 0.10, 4.3, {0.34, 0.31, 0.26}, {0.11, 0.22, 0.12}, 0.05},
    };
    Color color = sky(x, y);
    std::uint32_t seed = seed_ + 1000;
    for (const Range& range : kRanges) {
      seed += 500;
      const double top = crest(range, x, seed);
      if (y < top) continue;
      const double below = (y - top) / range.height;
      // Light from the slope of a rough surface that hangs from the crest.
      const double scale = 14 * range.frequency, step = 0.0015;
      const auto surface = [&](double u, double v) {
        return fractal(u * scale, (v - 0.6 * crest(range, u, seed)) * scale * 1.6, 6, seed + 77);
      };
      const double here = surface(x, y);
      const double slope =
          (surface(x + step, y) - here) * 6 + (top - crest(range, x + 4 * step, seed)) * 18;
      const double light = std::clamp(0.55 + slope, 0.15, 1.25);
      const double snow = smooth(0.42, 0.12, below + 0.35 * here) * (range.haze > 0.1 ? 1.0 : 0.0);
      Color ground = mix(range.rock, range.forest, smooth(0.25, 0.75, below + 0.5 * here));
      ground = mix(ground, {0.93, 0.95, 1.0}, snow);
      color = mix(light * ground, {0.80, 0.78, 0.78}, range.haze * (0.7 + 0.3 * below));
    }
    return color;
  }

  std::uint32_t seed_;
};

}  // namespace

io::HostTensor make_landscape(std::int64_t size, std::uint32_t seed) {
  io::HostTensor image(DType::fp32, {size, size, 3});
  auto* pixels = reinterpret_cast<float*>(image.bytes.data());
  const Scene scene(seed);
  const auto draw_rows = [&](std::int64_t first, std::int64_t step) {
    for (std::int64_t y = first; y < size; y += step) {
      for (std::int64_t x = 0; x < size; ++x) {
        const Color color =
            scene.at((double(x) + 0.5) / double(size), (double(y) + 0.5) / double(size));
        float* out = pixels + (y * size + x) * 3;
        out[0] = float(std::clamp(color.r, 0.0, 1.0));
        out[1] = float(std::clamp(color.g, 0.0, 1.0));
        out[2] = float(std::clamp(color.b, 0.0, 1.0));
      }
    }
  };
  const std::int64_t count = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  threads.reserve(std::size_t(count));
  std::int64_t shares = 1;
  for (bool more = true; more && shares < count;) {
    try {
      threads.emplace_back(draw_rows, shares, count);
      ++shares;
    } catch (const std::system_error&) {
      more = false;  // The rest is drawn here.
    }
  }
  draw_rows(0, count);
  for (; shares < count; ++shares) draw_rows(shares, count);
  for (std::thread& thread : threads) thread.join();
  return image;
}

}  // namespace convoy::cli
