# SPDX-License-Identifier: Apache-2.0
"""FLUX.1-shaped VAE decoder, 1024x1024, bf16, random weights: PyTorch's ways and Convoy's.

    CONVOY_LIBRARY=build/default/libconvoy.so PYTHONPATH=python python3 bench/decode/flux.py
"""

import measure
import models
import torch


def main():
    options = measure.arguments(__doc__)
    torch.manual_seed(1)
    z = torch.randn(1, 16, 128, 128, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        made = measure.make_variants(models.FluxDecoder, z, options, torch.channels_last)
        measure.compare(made, options.rounds)
        if options.profile:
            measure.profile(made["convoy"])
            measure.attention(128 * 128, 512)


if __name__ == "__main__":
    main()
