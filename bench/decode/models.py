# SPDX-License-Identifier: Apache-2.0
"""A decoder shaped like FLUX.1's VAE and one shaped like Wan 2.1's, of given layers. Random
weights: what is measured is time. Their convolutions are those of bench/shapes
(tests/python/test_decode.py)."""

import torch
from layers import frames_as_images, images_as_frames


class FluxResnet(torch.nn.Module):
    def __init__(self, layers, c, k):
        super().__init__()
        self.norm1, self.conv1 = layers.GroupNorm(c), layers.Conv2d(c, k, 3)
        self.norm2, self.conv2 = layers.GroupNorm(k), layers.Conv2d(k, k, 3)
        self.shortcut = layers.Conv2d(c, k, 1) if c != k else None

    def forward(self, x):
        skip = x if self.shortcut is None else self.shortcut(x)
        return self.conv2(self.norm2(self.conv1(self.norm1(x))), skip)


class FluxAttention(torch.nn.Module):
    def __init__(self, layers, c):
        super().__init__()
        self.norm = layers.GroupNorm(c, silu=False)
        self.qkv, self.out = torch.nn.Linear(c, 3 * c), torch.nn.Linear(c, c)
        self.attend = layers.attend

    def forward(self, x):
        n, c, h, w = x.shape
        tokens = self.norm(x).permute(0, 2, 3, 1).reshape(n, h * w, c)
        tokens = self.out(self.attend(*self.qkv(tokens).chunk(3, -1)))
        return x + tokens.reshape(n, h, w, c).permute(0, 3, 1, 2)


class FluxDecoder(torch.nn.Module):
    """[N, 16, H, W] to [N, 3, 8·H, 8·W]."""

    def __init__(self, layers, widths=(512, 512, 256, 128)):
        super().__init__()
        c = widths[0]
        self.conv_in = layers.Conv2d(16, c, 3)
        self.mid = torch.nn.Sequential(
            FluxResnet(layers, c, c), FluxAttention(layers, c), FluxResnet(layers, c, c)
        )
        self.up = torch.nn.Sequential()
        for i, k in enumerate(widths):
            for j in range(3):
                self.up.append(FluxResnet(layers, c if j == 0 else k, k))
            if i + 1 < len(widths):
                self.up.append(layers.Conv2d(k, k, 3, upsample=2))
            c = k
        self.norm_out, self.conv_out = layers.GroupNorm(c), layers.Conv2d(c, 3, 3)

    def forward(self, z):
        return self.conv_out(self.norm_out(self.up(self.mid(self.conv_in(z)))))


class Caches:
    """The causal caches of one video, in the order in which the layers run."""

    def __init__(self):
        self.kept, self.at = [], 0

    def begin_chunk(self):
        self.at = 0

    def run(self, conv, x, residual=None):
        if self.at == len(self.kept):
            self.kept.append(None)
        y, self.kept[self.at] = conv.with_next_cache(x, residual, self.kept[self.at])
        self.at += 1
        return y


class WanResnet(torch.nn.Module):
    def __init__(self, layers, c, k):
        super().__init__()
        self.norm1, self.conv1 = layers.RMSNorm(c), layers.CausalConv3d(c, k, (3, 3, 3))
        self.norm2, self.conv2 = layers.RMSNorm(k), layers.CausalConv3d(k, k, (3, 3, 3))
        self.shortcut = layers.CausalConv3d(c, k, (1, 1, 1)) if c != k else None

    def forward(self, x, caches):
        skip = x if self.shortcut is None else self.shortcut(x)
        h = caches.run(self.conv1, self.norm1(x))
        return caches.run(self.conv2, self.norm2(h), skip)


class WanAttention(torch.nn.Module):
    """Over the pixels of each frame; chunks have one."""

    def __init__(self, layers, c):
        super().__init__()
        self.norm = layers.RMSNorm(c, silu=False)
        self.qkv, self.proj = layers.Conv2d(c, 3 * c, 1), layers.Conv2d(c, c, 1)
        self.attend = layers.attend

    def forward(self, x, caches):
        images = frames_as_images(x)
        t, c, h, w = images.shape
        qkv = self.qkv(frames_as_images(self.norm(x)))
        tokens = qkv.permute(0, 2, 3, 1).reshape(t, h * w, 3 * c)
        tokens = self.attend(*tokens.chunk(3, -1))
        return images_as_frames(self.proj(tokens.reshape(t, h, w, c).permute(0, 3, 1, 2), images))


class WanUpsample(torch.nn.Module):
    """Twice the frames (but not of the first chunk), then twice the height and width."""

    def __init__(self, layers, c, time):
        super().__init__()
        self.time_conv = layers.CausalConv3d(c, 2 * c, (3, 1, 1)) if time else None
        self.conv = layers.Conv2d(c, c // 2, 3, upsample=2)
        self.cache = None

    def begin_video(self):
        self.cache, self.first = None, True

    def forward(self, x, caches):
        if self.time_conv is not None and not self.first:
            y, following = self.time_conv.with_next_cache(x, None, self.cache)
            if following.shape[2] < 2:  # The frame before was a zero one: it was not convolved.
                following = torch.cat([torch.zeros_like(following), following], 2)
            self.cache = following
            n, c, t, h, w = y.shape
            y = y.view(n, 2, c // 2, t, h, w).permute(0, 3, 1, 4, 5, 2)
            x = y.reshape(n, 2 * t, h, w, c // 2).permute(0, 4, 1, 2, 3)
        self.first = False
        return images_as_frames(self.conv(frames_as_images(x)))


class WanDecoder(torch.nn.Module):
    """[1, 16, T, H, W] to [1, 3, 4·T − 3, 8·H, 8·W], latent frame by latent frame."""

    def __init__(self, layers, base=96):
        super().__init__()
        top = 4 * base
        self.post_quant = layers.CausalConv3d(16, 16, (1, 1, 1))
        self.conv_in = layers.CausalConv3d(16, top, (3, 3, 3))
        self.blocks = torch.nn.ModuleList(
            [WanResnet(layers, top, top), WanAttention(layers, top), WanResnet(layers, top, top)]
        )
        c = top
        for k, time in ((top, True), (top, True), (2 * base, False), (base, None)):
            for j in range(3):
                self.blocks.append(WanResnet(layers, c if j == 0 else k, k))
            c = k
            if time is not None:
                self.blocks.append(WanUpsample(layers, k, time))
                c = k // 2
        self.norm_out = layers.RMSNorm(c)
        self.conv_out = layers.CausalConv3d(c, 3, (3, 3, 3))

    def forward(self, z):
        caches, frames = Caches(), []
        for block in self.blocks:
            if isinstance(block, WanUpsample):
                block.begin_video()
        z = self.post_quant(z)
        for i in range(z.shape[2]):
            caches.begin_chunk()
            x = caches.run(self.conv_in, z[:, :, i : i + 1])
            for block in self.blocks:
                x = block(x, caches)
            frames.append(caches.run(self.conv_out, self.norm_out(x)))
        return torch.cat(frames, 2)
