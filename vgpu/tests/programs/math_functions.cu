// SPDX-License-Identifier: Apache-2.0
// CUDA's mathematical functions against the host's, within the errors that the CUDA C++ Programming
// Guide states ("Mathematical Functions", maximum ULP error). They are compiled from the toolkit's
// device library, so that they try its instructions together: rcp, rsqrt, ex2, lg2, fma, the carry
// chains of the argument reduction.
#include <cmath>
#include <cstdio>
#include <vector>

#include "expect.cuh"

namespace {

// The function; the error in ulp for floats and doubles.
#define FOR_EACH_FUNCTION(F) \
  F(exp, 1, 1)               \
  F(exp2, 2, 1)              \
  F(expm1, 1, 1)             \
  F(log, 1, 1)               \
  F(log2, 1, 2)              \
  F(log10, 2, 1)             \
  F(log1p, 1, 1)             \
  F(sin, 2, 2)               \
  F(cos, 2, 2)               \
  F(tan, 4, 2)               \
  F(sinh, 3, 2)              \
  F(tanh, 2, 2)              \
  F(asinh, 3, 3)             \
  F(acosh, 4, 3)             \
  F(atan, 2, 2)              \
  F(cbrt, 1, 1)              \
  F(erf, 2, 2)               \
  F(erfc, 4, 5)              \
  F(tgamma, 5, 10)           \
  F(lgamma, 6, 4)            \
  F(j0, 9, 7)                \
  F(j1, 9, 7)                \
  F(y0, 9, 7)                \
  F(y1, 9, 7)

template <typename Number>
struct Function {
  const char* name;
  void (*kernel)(const Number*, Number*, int);
  long double (*reference)(long double);
  double ulp;
  bool is_bessel, is_lgamma;
};

#define KERNEL(name, float_ulp, double_ulp)                                 \
  template <typename Number>                                                \
  __global__ void device_##name(const Number* in, Number* out, int count) { \
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);  \
    if (i < count) out[i] = name(in[i]);                                    \
  }                                                                         \
  long double host_##name(long double x) {                                  \
    return name##l(x);                                                      \
  }
FOR_EACH_FUNCTION(KERNEL)

/// Whether the guide's ulp bound holds there: lgamma has larger errors around its roots, Bessel
/// functions an absolute bound from 8 on.
template <typename Number>
bool near_roots(const Function<Number>& f, Number x) {
  const bool is_float = sizeof(Number) == 4;
  if (f.is_lgamma) return x < (is_float ? -2.264 : -2.2637) && x > (is_float ? -10.001 : -23.0001);
  return f.is_bessel && std::fabs(x) >= 8;
}

template <typename Number>
void check(const Function<Number>& f, const std::vector<Number>& inputs) {
  const int count = static_cast<int>(inputs.size());
  Number *in, *out;
  CHECK_OK(cudaMallocManaged(&in, count * sizeof(Number)));
  CHECK_OK(cudaMallocManaged(&out, count * sizeof(Number)));
  std::copy(inputs.begin(), inputs.end(), in);
  f.kernel<<<(count + 127) / 128, 128>>>(in, out, count);
  CHECK_OK(cudaDeviceSynchronize());
  for (int i = 0; i < count; ++i) {
    const long double exact = f.reference(in[i]);
    const auto rounded = static_cast<Number>(exact);
    if (!std::isfinite(rounded)) {
      CHECK(std::isnan(rounded) ? std::isnan(out[i]) : out[i] == rounded);
      continue;
    }
    const long double error = std::fabs(static_cast<long double>(out[i]) - exact);
    const long double ulp =
        std::nextafter(std::fabs(rounded), static_cast<Number>(INFINITY)) - std::fabs(rounded);
    long double bound = (f.ulp + 0.5) * ulp;
    if (near_roots(f, in[i])) bound = f.is_bessel ? (sizeof(Number) == 4 ? 2.2e-6 : 5e-12) : 1e-5;
    if (!(error <= bound)) {
      std::printf("%s of %zu bytes at %.17g: %.17g, exact %.17Lg: %.1Lf ulp\n", f.name,
                  sizeof(Number), static_cast<double>(in[i]), static_cast<double>(out[i]), exact,
                  error / ulp);
      ++failures;
      break;
    }
  }
  CHECK_OK(cudaFree(in));
  CHECK_OK(cudaFree(out));
}

template <typename Number>
std::vector<Number> inputs(bool is_bessel) {
  std::vector<Number> values = {0, -Number{0}, static_cast<Number>(INFINITY),
                                static_cast<Number>(-INFINITY), static_cast<Number>(NAN)};
  for (int i = 0; i < 300; ++i) {
    // Bessel functions are bounded up to where their argument reduction is.
    const Number power = std::exp2(static_cast<Number>(-20 + (is_bessel ? 26 : 50) * i / 300.0));
    values.push_back(power);
    values.push_back(-power);
    values.push_back(static_cast<Number>(-40 + 80 * i / 300.0 + 1.23e-4));
  }
  return values;
}

}  // namespace

int main() {
#define RUN(name, float_ulp, double_ulp)                                                  \
  {                                                                                       \
    const bool bessel = #name[0] == 'j' || #name[0] == 'y',                               \
               gamma = #name[0] == 'l' && #name[1] == 'g';                                \
    check<float>({#name, device_##name<float>, host_##name, float_ulp, bessel, gamma},    \
                 inputs<float>(bessel));                                                  \
    check<double>({#name, device_##name<double>, host_##name, double_ulp, bessel, gamma}, \
                  inputs<double>(bessel));                                                \
  }
  FOR_EACH_FUNCTION(RUN)
  if (failures == 0) std::printf("all within their bounds\n");
  return failures != 0;
}
