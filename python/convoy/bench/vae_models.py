# SPDX-License-Identifier: Apache-2.0
"""The autoencoders of diffusers that `convoy.bench vae` times and
tests/python/test_accelerate_autoencoders.py checks: their published configurations, and small ones
of the same kinds of layers. Random weights.
"""

import argparse
import dataclasses
from typing import Any

import torch


@dataclasses.dataclass(frozen=True)
class Vae:
    """One autoencoder. latent: of `full`'s decode; what it decodes to is in `size`. small,
    small_latent, small_sample: for tests. keywords: of decode(). channels_last: whether that is the
    memory format in which PyTorch was the quicker on an H200."""

    name: str
    class_name: str
    full: dict[str, Any]
    latent: tuple[int, ...]
    size: str
    small: dict[str, Any]
    small_latent: tuple[int, ...]
    small_sample: tuple[int, ...]
    keywords: dict[str, Any] = dataclasses.field(default_factory=dict)
    small_keywords: dict[str, Any] = dataclasses.field(default_factory=dict)
    channels_last: bool = False

    def make(self, small=False, dtype=torch.float32, device="cpu"):
        """The model with random weights, seeded, every norm's parameters among them."""
        import diffusers

        torch.manual_seed(0)
        with torch.device(device):
            model = getattr(diffusers, self.class_name)(**(self.small if small else self.full))
        model = model.to(device)  # torch.Tensor([...]) knows no default device.
        generator = torch.Generator(device).manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():  # Ones and zeros would hide a lost parameter.
                if (parameter == parameter.flatten()[0]).all():
                    noise = torch.randn(parameter.shape, generator=generator, device=device)
                    parameter.add_(0.1 * noise)
        return model.to(dtype).eval()


_FOUR = ("DownEncoderBlock2D",) * 4, ("UpDecoderBlock2D",) * 4
_SMALL_2D = dict(
    down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    block_out_channels=(16, 32), norm_num_groups=8, latent_channels=4, layers_per_block=1,
)
_SMALL_WAN = dict(base_dim=16, z_dim=4, dim_mult=[1, 2, 2], num_res_blocks=1,
                  temperal_downsample=[False, True])
_SMALL_STATISTICS = dict(latents_mean=[0.0] * 4, latents_std=[1.0] * 4)
# Wan 2.2 TI2V 5B: 48 channels, 16 times smaller, patches of 2.
_WAN22 = dict(base_dim=160, decoder_base_dim=256, z_dim=48, dim_mult=[1, 2, 4, 4],
              num_res_blocks=2, temperal_downsample=[False, True, True], is_residual=True,
              in_channels=12, out_channels=12, patch_size=2, scale_factor_spatial=16,
              latents_mean=[0.0] * 48, latents_std=[1.0] * 48)
# mit-han-lab/dc-ae-f32c32-sana-1.0
_DC = dict(
    latent_channels=32,
    encoder_block_types=("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
    decoder_block_types=("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
    encoder_block_out_channels=(128, 256, 512, 512, 1024, 1024),
    decoder_block_out_channels=(128, 256, 512, 512, 1024, 1024),
    encoder_layers_per_block=(2, 2, 2, 3, 3, 3), decoder_layers_per_block=(3, 3, 3, 3, 3, 3),
    upsample_block_type="interpolate", downsample_block_type="conv",
)

VAES = (
    Vae("flux", "AutoencoderKL",
        dict(down_block_types=_FOUR[0], up_block_types=_FOUR[1],
             block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=16,
             use_quant_conv=False, use_post_quant_conv=False),
        (1, 16, 128, 128), "1024x1024", _SMALL_2D, (2, 4, 6, 10), (2, 3, 12, 20)),
    Vae("flux2", "AutoencoderKLFlux2", {}, (1, 32, 128, 128), "1024x1024",
        _SMALL_2D, (1, 4, 6, 10), (1, 3, 12, 20)),
    Vae("wan21", "AutoencoderKLWan", {}, (1, 16, 21, 60, 104), "81x480x832",
        _SMALL_WAN | _SMALL_STATISTICS, (1, 4, 3, 4, 6), (1, 3, 5, 16, 24),
        channels_last=True),
    Vae("wan22", "AutoencoderKLWan", _WAN22, (1, 48, 5, 44, 80), "17x704x1280",
        _SMALL_WAN | _SMALL_STATISTICS | dict(is_residual=True, in_channels=12, out_channels=12,
                                              patch_size=2, decoder_base_dim=16,
                                              scale_factor_spatial=16),
        (1, 4, 3, 4, 6), (1, 3, 5, 16, 24), channels_last=True),
    Vae("qwen", "AutoencoderKLQwenImage", {}, (1, 16, 1, 128, 128), "1024x1024",
        _SMALL_WAN | _SMALL_STATISTICS, (1, 4, 1, 4, 6), (1, 3, 1, 16, 24)),
    Vae("hunyuan", "AutoencoderKLHunyuanVideo", {}, (1, 16, 5, 32, 32), "17x256x256",
        dict(down_block_types=("HunyuanVideoDownBlock3D",) * 4,
             up_block_types=("HunyuanVideoUpBlock3D",) * 4, block_out_channels=(16, 16, 16, 16),
             layers_per_block=1, norm_num_groups=4, latent_channels=4),
        (1, 4, 2, 2, 3), (1, 3, 5, 16, 24)),
    Vae("hunyuan15", "AutoencoderKLHunyuanVideo15", {}, (1, 32, 5, 30, 40), "17x480x640",
        dict(latent_channels=4, block_out_channels=(16, 32, 32), layers_per_block=1,
             spatial_compression_ratio=4, temporal_compression_ratio=4),
        (1, 4, 2, 4, 6), (1, 3, 5, 16, 24)),
    Vae("cogvideox", "AutoencoderKLCogVideoX", {}, (1, 16, 5, 60, 90), "17x480x720",
        dict(down_block_types=("CogVideoXDownBlock3D",) * 4,
             up_block_types=("CogVideoXUpBlock3D",) * 4, block_out_channels=(8, 8, 8, 16),
             layers_per_block=1, norm_num_groups=4, latent_channels=4),
        (1, 4, 3, 4, 6), (1, 3, 9, 16, 24)),
    Vae("ltx", "AutoencoderKLLTXVideo", {}, (1, 128, 13, 15, 22), "97x480x704",
        dict(latent_channels=8, block_out_channels=(8, 16, 16, 16),
             decoder_block_out_channels=(8, 16, 16, 16), layers_per_block=(1, 1, 1, 1, 1),
             decoder_layers_per_block=(1, 1, 1, 1, 1)),
        (1, 8, 2, 3, 4), (1, 3, 9, 32, 64)),
    Vae("ltx2", "AutoencoderKLLTX2Video", {}, (1, 128, 7, 16, 24), "49x512x768",
        dict(latent_channels=8, block_out_channels=(8, 16, 16, 16),
             decoder_block_out_channels=(8, 16, 32), layers_per_block=(1, 1, 1, 1, 1),
             decoder_layers_per_block=(1, 1, 1, 1)),
        (1, 8, 2, 3, 4), (1, 3, 9, 32, 64)),
    Vae("mochi", "AutoencoderKLMochi", {}, (1, 12, 4, 60, 106), "19x480x848",
        dict(encoder_block_out_channels=(32, 32, 32, 32),
             decoder_block_out_channels=(32, 32, 32, 32), layers_per_block=(1, 1, 1, 1, 1),
             latent_channels=4, latents_mean=(0.0,) * 4, latents_std=(1.0,) * 4),
        (1, 4, 2, 4, 4), (1, 3, 7, 16, 16)),
    Vae("dc", "AutoencoderDC", _DC, (1, 32, 32, 32), "1024x1024",
        dict(latent_channels=4, attention_head_dim=8,
             encoder_block_types=("ResBlock", "EfficientViTBlock"),
             decoder_block_types=("ResBlock", "EfficientViTBlock"),
             encoder_block_out_channels=(16, 32), decoder_block_out_channels=(16, 32),
             encoder_layers_per_block=(1, 1), decoder_layers_per_block=(1, 1),
             encoder_qkv_multiscales=((), (5,)), decoder_qkv_multiscales=((), (5,))),
        (1, 4, 6, 8), (1, 3, 12, 16), channels_last=True),
    Vae("tiny", "AutoencoderTiny", {}, (1, 4, 128, 128), "1024x1024",
        dict(encoder_block_out_channels=(16, 16), decoder_block_out_channels=(16, 16),
             num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1)),
        (2, 4, 6, 8), (2, 3, 12, 16), channels_last=True),
    Vae("temporal", "AutoencoderKLTemporalDecoder",
        dict(down_block_types=_FOUR[0], block_out_channels=(128, 256, 512, 512),
             layers_per_block=2),
        (4, 4, 72, 128), "4x576x1024",
        dict(down_block_types=("DownEncoderBlock2D",) * 2, block_out_channels=(32, 64),
             layers_per_block=1),
        (2, 4, 6, 8), (2, 3, 12, 16), dict(num_frames=4), dict(num_frames=2)),
)

BY_NAME = {vae.name: vae for vae in VAES}


def size(text):
    """(height, width, frames or None) of "480x832x81"."""
    try:
        numbers = [int(word) for word in text.split("x")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3) or min(numbers, default=0) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; legal: HEIGHTxWIDTH or HEIGHTxWIDTHxFRAMES, "
                                         "such as 480x832x81")
    return numbers[0], numbers[1], (numbers[2] if len(numbers) == 3 else None)


def resized(vae, wanted):
    """The same autoencoder for other pixels: down to the next latent that there is."""
    height, width, frames = wanted
    *own_frames, own_height, own_width = (int(word) for word in vae.size.split("x"))
    latent = list(vae.latent)
    latent[-2] = max(height * latent[-2] // own_height, 1)
    latent[-1] = max(width * latent[-1] // own_width, 1)
    sizes = [latent[-2] * own_height // vae.latent[-2], latent[-1] * own_width // vae.latent[-1]]
    keywords = dict(vae.keywords)
    if len(latent) == 5 and own_frames:
        step = (own_frames[0] - 1) // (vae.latent[2] - 1)
        latent[2] = ((frames or own_frames[0]) - 1) // step + 1
        sizes.insert(0, (latent[2] - 1) * step + 1)
    elif own_frames:  # Frames are the batch.
        latent[0] = frames or own_frames[0]
        sizes.insert(0, latent[0])
        keywords["num_frames"] = latent[0]
    return dataclasses.replace(vae, latent=tuple(latent), size="x".join(map(str, sizes)),
                               keywords=keywords)


def encoded(model, x):
    """What encode() finds, before anything is drawn."""
    out = model.encode(x)
    return out.latent_dist.mean if hasattr(out, "latent_dist") else out[0]


def decoded(model, z, keywords):
    return model.decode(z, return_dict=False, **keywords)[0]
