# SPDX-License-Identifier: Apache-2.0
"""What folding the upsampling into the filter costs a decoder in PSNR, in PyTorch alone: the folded
filters are made as Convoy's are, and run as four 2×2 convolutions. Needs neither Convoy nor a GPU.

    python3 bench/decode/folding.py                              # FLUX.1-shaped, random weights
    python3 bench/decode/folding.py --model wan                  # Wan-2.1-shaped, random weights
    python3 bench/decode/folding.py --model diffusers            # diffusers' own, as FLUX.1 has it,
                                                                 # random weights
    python3 bench/decode/folding.py --decay 1                    # weights with the spectrum of
                                                                 # trained ones, a smooth latent
    python3 bench/decode/folding.py --vae FOLDER [--latent z.pt] # a diffusers AutoencoderKL
    python3 bench/decode/folding.py --vae FOLDER --device cuda --size 128

Every module rounds its output to --dtype, as a network in that type does. The reference is the same
decoder in fp32 with the weights as rounded to --dtype, so that only the computation differs. PSNR
is against the span of the reference's values."""

import argparse
import math

import layers
import models
import torch
import torch.nn.functional as F

# Taps of a 3-wide filter that fall on tap u of phase a.
_TAPS = {0: ((0,), (1, 2)), 1: ((0, 1), (2,))}


def folded_upsampling(x, weight, bias, dtype, terms):
    """Nearest-2× and a 3×3 convolution of padding 1, folded into filters of `terms` terms."""
    n, _, h, w = x.shape
    y = x.new_empty(n, weight.shape[0], 2 * h, 2 * w)
    for a in (0, 1):
        for b in (0, 1):
            phase = torch.stack([
                torch.stack([weight[:, :, r][:, :, :, s].sum((2, 3)) for s in _TAPS[b]], -1)
                for r in _TAPS[a]
            ], -2)
            kept = torch.zeros_like(phase)
            for _ in range(terms):
                kept += (phase - kept).to(dtype).to(phase.dtype)
            padded = F.pad(x, (1 - b, b, 1 - a, a))
            y[:, :, a::2, b::2] = F.conv2d(padded, kept, bias)
    return y


def fold(model, dtype, terms):
    """Lets every upsampling of the model (bench/decode's or diffusers') run folded."""
    found = 0
    for module in model.modules():
        found += getattr(module, "upsample", 1) == 2 or type(module).__name__ == "Upsample2D"
        if getattr(module, "upsample", 1) == 2:

            def run(x, residual=None, conv=module):
                return folded_upsampling(x, conv.weight, conv.bias, dtype, terms)

            module.forward = run
        elif type(module).__name__ == "Upsample2D":

            def run(x, output_size=None, conv=module.conv):
                return folded_upsampling(x, conv.weight, conv.bias, dtype, terms)

            module.forward = run
    if found == 0:
        raise SystemExit("the model has no upsampling that folds")
    return model


def round_outputs(model, dtype):
    """Every leaf's output, and that of every folded upsampling, rounded to dtype; kept in fp32."""
    def rounded(_module, _inputs, out):
        return out.to(dtype).to(out.dtype) if torch.is_tensor(out) else out

    for module in model.modules():
        if not list(module.children()) or type(module).__name__ == "Upsample2D":
            module.register_forward_hook(rounded)


def as_if_trained(weight, decay):
    """The weight of a convolution with singular values that fall as i^-decay, and neighbouring taps
    that resemble each other; the norm stays."""
    if weight.dim() < 4:
        return weight
    shaped = weight
    for axis in range(2, weight.dim()):
        if weight.shape[axis] == 3:
            near = torch.tensor([[2.0, 1, 0], [1, 2, 1], [0, 1, 2]]) / 4
            shaped = torch.tensordot(shaped, near, ([axis], [1])).movedim(-1, axis)
    u, values, v = torch.linalg.svd(shaped.flatten(1), full_matrices=False)
    values = torch.arange(1, len(values) + 1, dtype=values.dtype) ** -decay
    shaped = (u * values @ v).reshape(weight.shape)
    return shaped * (weight.norm() / shaped.norm())


def smooth(z):
    """A random latent whose amplitudes fall with the frequency, as a picture's do."""
    waves = torch.fft.rfftn(z, dim=(-2, -1))
    rows, columns = torch.fft.fftfreq(z.shape[-2]), torch.fft.rfftfreq(z.shape[-1])
    frequency = (rows[:, None] ** 2 + columns ** 2).sqrt().clamp(min=1 / z.shape[-1])
    z = torch.fft.irfftn(waves / frequency, s=z.shape[-2:], dim=(-2, -1))
    return z / z.std()


def make(options):
    """The decoder, and the shape of its latent."""
    picture = (options.size, options.size)
    if options.vae or options.model == "diffusers":
        from diffusers import AutoencoderKL

        if options.vae:
            vae = AutoencoderKL.from_pretrained(options.vae, torch_dtype=torch.float32)
        else:  # black-forest-labs/FLUX.1-dev, vae/config.json, at its own width.
            vae = AutoencoderKL(
                down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=(
                    "UpDecoderBlock2D",) * 4, latent_channels=16, layers_per_block=2,
                block_out_channels=tuple(options.width * k for k in (1, 2, 4, 4)),
                use_quant_conv=False, use_post_quant_conv=False)
        return torch.nn.Sequential(vae.post_quant_conv or torch.nn.Identity(), vae.decoder), (
            vae.config.latent_channels, *picture)
    if options.model == "wan":
        return models.WanDecoder(layers.TorchLayers, options.width), (16, options.frames, *picture)
    widths = tuple(options.width * k for k in (4, 4, 2, 1))
    return models.FluxDecoder(layers.TorchLayers, widths), (16, *picture)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="flux", choices=("flux", "wan", "diffusers"))
    parser.add_argument("--vae", help="folder of a diffusers AutoencoderKL")
    parser.add_argument("--latent", help="a saved tensor [N, C, H, W]; without it random values")
    parser.add_argument("--size", type=int, default=16, help="rows and columns of a random latent")
    parser.add_argument("--frames", type=int, default=2, help="latent frames of wan")
    parser.add_argument("--width", type=int, default=32,
                        help="channels of the last level without --vae; FLUX.1 has 128, Wan 96")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--decay", type=float,
                        help="random weights get singular values i^-DECAY and smooth taps, the "
                        "random latent falling amplitudes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    print(f"{'seed':>4s} {'unfolded':>10s} {'exact':>10s} {'fast':>10s}   PSNR in dB, computed in "
          f"{options.dtype}")
    for seed in range(options.seeds):
        torch.manual_seed(seed)
        made, shape = make(options)
        state = made.state_dict()
        if options.decay is not None:
            state = {k: as_if_trained(v, options.decay) for k, v in state.items()}
        state = {k: v.to(dtype).float() for k, v in state.items()}
        torch.manual_seed(seed)
        z = torch.randn(1, *shape)
        if options.decay is not None:
            z = smooth(z)
        if options.latent:
            z = torch.load(options.latent, map_location="cpu")
        z = z.to(dtype).float().to(options.device)

        def decode(terms, rounds, state=state, z=z):
            model, _ = make(options)
            model.load_state_dict(state)
            model = model.eval().to(options.device)
            if terms:
                fold(model, dtype, terms)
            if rounds:
                round_outputs(model, dtype)
            with torch.no_grad():
                return model(z).cpu()

        reference = decode(0, False)
        span = (reference.max() - reference.min()).item()
        psnr = []
        for terms in (0, 2, 1):
            error = (decode(terms, True) - reference).square().mean().sqrt().item()
            psnr.append(20 * math.log10(span / error))
        print(f"{seed:4d} " + " ".join(f"{value:10.2f}" for value in psnr), flush=True)


if __name__ == "__main__":
    main()
