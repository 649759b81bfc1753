// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "layers.hpp"

/// "flux" (diffusers' AutoencoderKL) or "wan" (AutoencoderKLWan 2.1, QwenImage), by the tensors
/// that a file has; throws for others.
std::string family_of(const SafeTensors& weights);

/// Frames of RGB, about -1 to 1, of latents as diffusers' decode() takes them: [1, C, H, W] or
/// [1, C, T, H, W]. groups: of a FLUX autoencoder's norms.
Tensor decode(Layers& layers, const Array& latents, std::int64_t groups);
