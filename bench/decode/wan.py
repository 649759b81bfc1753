# SPDX-License-Identifier: Apache-2.0
"""Wan-2.1-shaped VAE decoder, 480x832, 81 frames, latent frame by latent frame with causal caches,
bf16, random weights: PyTorch's ways and Convoy's.

    CONVOY_LIBRARY=build/default/libconvoy.so PYTHONPATH=python python3 bench/decode/wan.py
"""

import measure
import models
import torch


def main():
    options = measure.arguments(__doc__)
    torch.manual_seed(1)
    z = torch.randn(1, 16, 21, 60, 104, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        made = measure.make_variants(models.WanDecoder, z, options, torch.channels_last_3d)
        measure.compare(made, options.rounds)
        if options.profile:
            measure.profile(made["convoy"])
            measure.attention(60 * 104, 384)


if __name__ == "__main__":
    main()
