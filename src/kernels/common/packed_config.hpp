// SPDX-License-Identifier: Apache-2.0
//
// A kernel's compile-time configuration as a type that a __global__ template can take.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace convoy {

/// A configuration as words of its bytes.
/// NOTE: nvcc 13.0 cannot pass a class-type template argument to a __global__ template (its host
/// stub names the class by its mangled name), so kernels take this.
template <typename Config, std::uint64_t... kWords>
struct PackedConfig {
  static constexpr Config kConfig =
      std::bit_cast<Config>(std::array<std::uint64_t, sizeof...(kWords)>{kWords...});
};

namespace detail {

template <typename Config, Config kConfig, std::size_t... kIndex>
auto packed(std::index_sequence<kIndex...>) -> PackedConfig<
    Config, std::bit_cast<std::array<std::uint64_t, sizeof...(kIndex)>>(kConfig)[kIndex]...>;

}  // namespace detail

/// The PackedConfig of a configuration without gaps, whose size is a multiple of 8 bytes.
template <typename Config, Config kConfig>
requires std::has_unique_object_representations_v<Config>
using PackedConfigOf = decltype(detail::packed<Config, kConfig>(
    std::make_index_sequence<sizeof(Config) / sizeof(std::uint64_t)>{}));

}  // namespace convoy
