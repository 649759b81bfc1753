# SPDX-License-Identifier: Apache-2.0
"""Models beyond those of `python -m convoy.bench vae`, at published configurations with random
weights, for `python -m convoy.bench models bench/models/others.py:NAME` (`:all` for every one).

Each function gives (model, example inputs), both in fp32 on the CPU.
"""

import itertools

import torch
from torch import nn


class Decoder(nn.Module):
    """decode() of an autoencoder of diffusers, as a module."""

    def __init__(self, vae):
        super().__init__()
        self.vae = vae

    def forward(self, z):
        out = self.vae.decode(z)
        return out if isinstance(out, torch.Tensor) else out[0]


class Encoder(nn.Module):
    """encode(), up to the distribution's mean or what stands for it."""

    def __init__(self, vae):
        super().__init__()
        self.vae = vae

    def forward(self, x):
        out = self.vae.encode(x)
        return out.latent_dist.mode() if hasattr(out, "latent_dist") else out[0]


def _autoencoder(name, **configuration):
    import diffusers

    diffusers.utils.logging.set_verbosity_error()
    return getattr(diffusers, name)(**configuration)


def _decoder(latent, name, **configuration):
    return Decoder(_autoencoder(name, **configuration)), (torch.randn(latent),)


def _encoder(sample, name, **configuration):
    return Encoder(_autoencoder(name, **configuration)), (torch.randn(sample),)


# ---- Autoencoders of images and films ----

_HUNYUAN_IMAGE = dict(in_channels=3, out_channels=3, latent_channels=64,
                      block_out_channels=(128, 256, 512, 512, 1024, 1024), layers_per_block=2,
                      spatial_compression_ratio=32, sample_size=384, scaling_factor=0.75289)


def qwen_image_21():
    return _decoder((1, 64, 1, 64, 64), "AutoencoderKLQwenImage21")


def hunyuan_image():
    return _decoder((1, 64, 32, 32), "AutoencoderKLHunyuanImage", **_HUNYUAN_IMAGE)


def hunyuan_image_encoder():
    return _encoder((1, 3, 1024, 1024), "AutoencoderKLHunyuanImage", **_HUNYUAN_IMAGE)


def hunyuan_image_refiner():
    return _decoder((1, 32, 1, 64, 64), "AutoencoderKLHunyuanImageRefiner")


def kvae():
    return _decoder((1, 16, 64, 64), "AutoencoderKLKVAE")


def kvae_video():
    return _decoder((1, 16, 5, 32, 32), "AutoencoderKLKVAEVideo")


def kvae_video_encoder():
    return _encoder((1, 3, 17, 256, 256), "AutoencoderKLKVAEVideo")


def kandinsky_6():
    return _decoder((1, 64, 3, 16, 16), "Kandinsky6SRVAE")


def cosmos():
    return _decoder((1, 16, 3, 32, 32), "AutoencoderKLCosmos")


def cosmos_encoder():
    return _encoder((1, 3, 17, 256, 256), "AutoencoderKLCosmos")


def magvit():
    return _decoder((1, 16, 4, 32, 32), "AutoencoderKLMagvit")


def allegro():
    model, inputs = _decoder((1, 4, 6, 40, 40), "AutoencoderKLAllegro")
    model.vae.enable_tiling()
    return model, inputs


def vidtok():
    return _decoder((1, 4, 5, 32, 32), "AutoencoderVidTok")


def minimax_encoder():
    return _encoder((1, 3, 9, 256, 256), "AutoencoderKLMiniMaxH3", decoder_num_layers=1)


def asymmetric():
    return _decoder(
        (1, 4, 64, 64), "AsymmetricAutoencoderKL", down_block_types=("DownEncoderBlock2D",) * 4,
        down_block_out_channels=(128, 256, 512, 512), layers_per_down_block=2,
        up_block_types=("UpDecoderBlock2D",) * 4, up_block_out_channels=(192, 384, 768, 768),
        layers_per_up_block=3)


def movq():
    return _decoder(
        (1, 4, 96, 96), "VQModel",
        down_block_types=("DownEncoderBlock2D",) * 3 + ("AttnDownEncoderBlock2D",),
        up_block_types=("AttnUpDecoderBlock2D",) + ("UpDecoderBlock2D",) * 3,
        block_out_channels=(128, 256, 256, 512), layers_per_block=2, latent_channels=4,
        num_vq_embeddings=16384, vq_embed_dim=4, norm_type="spatial")


# ---- Autoencoders of sound, and vocoders: one dimension ----

def oobleck():
    return _decoder((1, 64, 256), "AutoencoderOobleck")


def oobleck_encoder():
    return _encoder((1, 2, 2**19), "AutoencoderOobleck")


def kvae_audio():
    return _decoder((1, 64, 250), "AutoencoderKLKVAEAudio")


def ltx_2_audio():
    return _decoder((1, 8, 126, 16), "AutoencoderKLLTX2Audio")


class Vocoder(nn.Module):
    """HiFi-GAN V1 (Kong 2020): four transposed convolutions, each with three dilated blocks."""

    def __init__(self, channels=512, rates=(8, 8, 2, 2)):
        super().__init__()
        self.first = nn.Conv1d(80, channels, 7, padding=3)
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for rate in rates:
            self.ups.append(nn.ConvTranspose1d(channels, channels // 2, 2 * rate, rate, rate // 2))
            channels //= 2
            self.blocks.append(nn.ModuleList(
                nn.ModuleList(nn.ModuleList((
                    nn.Conv1d(channels, channels, size, padding=size // 2 * step, dilation=step),
                    nn.Conv1d(channels, channels, size, padding=size // 2))) for step in (1, 3, 5))
                for size in (3, 7, 11)))
        self.last = nn.Conv1d(channels, 1, 7, padding=3)

    def forward(self, x):
        leaky = nn.functional.leaky_relu
        x = self.first(x)
        for up, block in zip(self.ups, self.blocks):
            x = up(leaky(x, 0.1))
            total = 0
            for branch in block:
                y = x
                for one, two in branch:
                    y = y + two(leaky(one(leaky(y, 0.1)), 0.1))
                total = total + y
            x = total / len(block)
        return torch.tanh(self.last(leaky(x)))


def hifi_gan():
    return Vocoder(), (torch.randn(1, 80, 800),)


# ---- Denoisers ----

class Denoiser(nn.Module):
    """A U-Net of diffusers at one step."""

    def __init__(self, unet, **keywords):
        super().__init__()
        self.unet, self.keywords = unet, keywords

    def forward(self, x, context):
        keywords = {name: value.to(x) for name, value in self.keywords.items()}
        return self.unet(x, 500, context, return_dict=False, **keywords)[0]


def unet_sd15():
    unet = _autoencoder("UNet2DConditionModel", cross_attention_dim=768)
    return Denoiser(unet), (torch.randn(2, 4, 64, 64), torch.randn(2, 77, 768))


def unet_sdxl():
    unet = _autoencoder(
        "UNet2DConditionModel", block_out_channels=(320, 640, 1280),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2, 10), attention_head_dim=(5, 10, 20),
        cross_attention_dim=2048, use_linear_projection=True, addition_embed_type="text_time",
        addition_time_embed_dim=256, projection_class_embeddings_input_dim=2816)
    conditions = dict(text_embeds=torch.randn(2, 1280), time_ids=torch.ones(2, 6))

    class Sdxl(Denoiser):
        def forward(self, x, context):
            added = {name: value.to(x) for name, value in conditions.items()}
            return self.unet(x, 500, context, added_cond_kwargs=added, return_dict=False)[0]

    return Sdxl(unet), (torch.randn(2, 4, 128, 128), torch.randn(2, 77, 2048))


def unet_ddpm():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.unet = _autoencoder("UNet2DModel", sample_size=256)

        def forward(self, x):
            return self.unet(x, 500, return_dict=False)[0]

    return Plain(), (torch.randn(4, 3, 256, 256),)


# ---- Restoration and segmentation ----

class Dense(nn.Module):
    def __init__(self, width=64, growth=32):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv2d(width + i * growth, growth if i < 4 else width, 3, padding=1)
            for i in range(5))

    def forward(self, x):
        seen = x
        for layer in self.layers[:-1]:
            seen = torch.cat([seen, nn.functional.leaky_relu(layer(seen), 0.2)], 1)
        return x + 0.2 * self.layers[-1](seen)


class Enlarger(nn.Module):
    """RRDBNet of ESRGAN (Wang 2018), x4."""

    def __init__(self, blocks=23):
        super().__init__()
        self.first = nn.Conv2d(3, 64, 3, padding=1)
        self.body = nn.ModuleList(nn.Sequential(*(Dense() for _ in range(3)))
                                  for _ in range(blocks))
        self.trunk = nn.Conv2d(64, 64, 3, padding=1)
        self.ups = nn.ModuleList(nn.Conv2d(64, 64, 3, padding=1) for _ in range(2))
        self.high, self.last = nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 3, 3, padding=1)

    def forward(self, x):
        leaky = nn.functional.leaky_relu
        first = self.first(x)
        y = first
        for block in self.body:
            y = y + 0.2 * block(y)
        y = first + self.trunk(y)
        for up in self.ups:
            y = leaky(up(nn.functional.interpolate(y, scale_factor=2)), 0.2)
        return self.last(leaky(self.high(y), 0.2))


def esrgan():
    return Enlarger(), (torch.randn(1, 3, 256, 256),)


class Shuffler(nn.Module):
    """EDSR (Lim 2017), x4."""

    def __init__(self, width=256, blocks=32):
        super().__init__()
        conv = lambda a, b: nn.Conv2d(a, b, 3, padding=1)
        self.first, self.last = conv(3, width), conv(width, 3)
        self.body = nn.ModuleList(nn.Sequential(conv(width, width), nn.ReLU(), conv(width, width))
                                  for _ in range(blocks))
        self.trunk = conv(width, width)
        self.up = nn.Sequential(conv(width, 4 * width), nn.PixelShuffle(2),
                                conv(width, 4 * width), nn.PixelShuffle(2))

    def forward(self, x):
        first = self.first(x)
        y = first
        for block in self.body:
            y = y + 0.1 * block(y)
        return self.last(self.up(first + self.trunk(y)))


def edsr():
    return Shuffler(), (torch.randn(1, 3, 256, 256),)


def _stage(dim, c, k, stride=1):
    conv = (nn.Conv2d, nn.Conv3d)[dim - 2]
    norm = (nn.InstanceNorm2d, nn.InstanceNorm3d)[dim - 2]
    layers: list[nn.Module] = []
    for i in range(2):
        layers += [conv(c if i == 0 else k, k, 3, stride if i == 0 else 1, 1),
                   norm(k, affine=True), nn.LeakyReLU(0.01)]
    return nn.Sequential(*layers)


class Segmenter(nn.Module):
    """nnU-Net's plain U-Net (Isensee 2021): strided convolutions down, transposed ones up."""

    def __init__(self, dim, widths, inputs=1, classes=4):
        super().__init__()
        transposed = (nn.ConvTranspose2d, nn.ConvTranspose3d)[dim - 2]
        self.down = nn.ModuleList(
            _stage(dim, inputs if i == 0 else widths[i - 1], width, 1 if i == 0 else 2)
            for i, width in enumerate(widths))
        backwards = list(reversed(widths))
        self.up = nn.ModuleList(transposed(a, b, 2, 2) for a, b in itertools.pairwise(backwards))
        self.join = nn.ModuleList(_stage(dim, 2 * b, b) for b in backwards[1:])
        self.last = (nn.Conv2d, nn.Conv3d)[dim - 2](widths[0], classes, 1)

    def forward(self, x):
        skips = []
        for stage in self.down:
            x = stage(x)
            skips.append(x)
        for up, join, skip in zip(self.up, self.join, reversed(skips[:-1])):
            x = join(torch.cat([up(x), skip], 1))
        return self.last(x)


def nnunet_2d():
    return Segmenter(2, (32, 64, 128, 256, 512, 512, 512)), (torch.randn(12, 1, 512, 512),)


def nnunet_3d():
    return Segmenter(3, (32, 64, 128, 256, 320)), (torch.randn(2, 1, 96, 96, 96),)


class Classic(nn.Module):
    """U-Net (Ronneberger 2015) with batch norm and padding, as most repositories have it."""

    def __init__(self, widths=(64, 128, 256, 512, 1024)):
        super().__init__()

        def twice(a, b):
            return nn.Sequential(*(
                layer for c in (a, b) for layer in (nn.Conv2d(c, b, 3, padding=1, bias=False),
                                                    nn.BatchNorm2d(b), nn.ReLU(True))))

        self.down = nn.ModuleList(twice(a, b) for a, b in zip((3, *widths), widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, a // 2, 2, 2) for a in widths[:0:-1])
        self.join = nn.ModuleList(twice(a, a // 2) for a in widths[:0:-1])
        self.last = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x):
        skips = []
        for i, stage in enumerate(self.down):
            x = stage(x if i == 0 else nn.functional.max_pool2d(x, 2))
            skips.append(x)
        for up, join, skip in zip(self.up, self.join, skips[-2::-1]):
            x = join(torch.cat([skip, up(x)], 1))
        return self.last(x)


def unet_classic():
    return Classic(), (torch.randn(4, 3, 512, 512),)


class Generator(nn.Module):
    """CycleGAN's generator (Zhu 2017): reflected borders, instance norms, transposed filters."""

    def __init__(self, width=64, blocks=9):
        super().__init__()
        norm = nn.InstanceNorm2d
        layers = [nn.ReflectionPad2d(3), nn.Conv2d(3, width, 7), norm(width), nn.ReLU(True)]
        for i in (1, 2):
            layers += [nn.Conv2d(width * i, width * 2 * i, 3, 2, 1), norm(width * 2 * i),
                       nn.ReLU(True)]
        self.down = nn.Sequential(*layers)
        wide = 4 * width
        self.body = nn.ModuleList(nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(wide, wide, 3), norm(wide), nn.ReLU(True),
            nn.ReflectionPad2d(1), nn.Conv2d(wide, wide, 3), norm(wide)) for _ in range(blocks))
        layers = []
        for c in (wide, wide // 2):
            layers += [nn.ConvTranspose2d(c, c // 2, 3, 2, 1, 1), norm(c // 2), nn.ReLU(True)]
        self.up = nn.Sequential(*layers, nn.ReflectionPad2d(3), nn.Conv2d(width, 3, 7), nn.Tanh())

    def forward(self, x):
        x = self.down(x)
        for block in self.body:
            x = x + block(x)
        return self.up(x)


def cyclegan():
    return Generator(), (torch.randn(1, 3, 512, 512),)


ALL = [name for name, made in list(globals().items())
       if callable(made) and name[0] != "_" and name.islower() and name not in ("nn", "torch")]
