# SPDX-License-Identifier: Apache-2.0
"""The layers that both decoders are made of, once as a plain PyTorch program has them and once as
Convoy runs them. Parameters have the same names in both."""

import math

import torch
import torch.nn.functional as F

# Shape strings of the convolutions that run, as bench/shapes has them; None: not wanted.
calls = None


def _record(x, conv, upsample=1, front=0, cached=0):
    if calls is None:
        return
    k, c, *taps = conv.weight.shape
    text = f"n{x.shape[0]}"
    if x.dim() == 5:
        text += f"d{x.shape[2]}"
    text += f"h{x.shape[-2] * upsample}w{x.shape[-1] * upsample}c{c}k{k}"
    text += "".join(f"{name}{tap}" for name, tap in zip("trs" if x.dim() == 5 else "rs", taps))
    if front:
        text += f"pd{front}pde0"
    if taps[-1] > 1:
        text += f"ph{taps[-2] // 2}pw{taps[-1] // 2}"
    calls.append(text + (f"cache{cached}" if cached else ""))


def frames_as_images(x):
    """[1, C, T, H, W] as [T, C, H, W], and back; views of channels-last memory."""
    return x[0].transpose(0, 1)


def images_as_frames(x):
    return x.transpose(0, 1).unsqueeze(0)


class TorchLayers:
    """What a decoder calls, in PyTorch's own operators."""

    class Conv2d(torch.nn.Conv2d):
        def __init__(self, c, k, taps, upsample=1):
            super().__init__(c, k, taps, padding=taps // 2)
            self.upsample = upsample

        def forward(self, x, residual=None):
            _record(x, self, self.upsample)
            if self.upsample > 1:
                x = F.interpolate(x, scale_factor=float(self.upsample), mode="nearest-exact")
            y = super().forward(x)
            return y if residual is None else y + residual

    class CausalConv3d(torch.nn.Conv3d):
        """Zero padding in space; in time it sees the cached frames, or zeros, before its input."""

        def __init__(self, c, k, taps):
            super().__init__(c, k, taps)

        def forward(self, x, residual=None, cache=None):
            frames, pad = self.kernel_size[0] - 1, self.kernel_size[-1] // 2
            cached = 0 if cache is None else cache.shape[2]
            _record(x, self, front=frames - cached, cached=cached)
            if cached:
                x = torch.cat([cache, x], 2)
            y = super().forward(F.pad(x, (pad, pad, pad, pad, frames - cached, 0)))
            return y if residual is None else y + residual

        def with_next_cache(self, x, residual=None, cache=None):
            """The output, and the last frames of cache and input for the next call."""
            frames = self.kernel_size[0] - 1
            following = x[:, :, -frames:].clone()
            if following.shape[2] < frames and cache is not None:
                following = torch.cat([cache[:, :, -1:], following], 2)
            return self(x, residual, cache), following

    class GroupNorm(torch.nn.GroupNorm):
        def __init__(self, c, silu=True):
            super().__init__(32, c, 1e-6)
            self.silu = silu

        def forward(self, x):
            y = super().forward(x)
            return F.silu(y) if self.silu else y

    class RMSNorm(torch.nn.Module):
        def __init__(self, c, silu=True):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(c))
            self.silu = silu

        def forward(self, x):
            weight = self.weight.view(-1, *[1] * (x.dim() - 2))
            y = F.normalize(x, dim=1) * math.sqrt(x.shape[1]) * weight
            return F.silu(y) if self.silu else y

    @staticmethod
    def attend(q, k, v):
        """One head over [N, tokens, C]."""
        return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]


def convoy_layers(attention_rows=1024, upsample_folding="exact"):
    """The same on Convoy; imported here, so that counting needs no library."""
    import convoy.torch as ct

    class Layers:
        class Conv2d(ct.Conv2d):
            def __init__(self, c, k, taps, upsample=1):
                super().__init__(c, k, taps, padding=taps // 2, upsample=upsample,
                                 upsample_folding=upsample_folding)

            def forward(self, x, residual=None):
                _record(x, self, self.upsample)
                return super().forward(x, residual)

        class CausalConv3d(ct.Conv3d):
            def __init__(self, c, k, taps):
                super().__init__(c, k, taps, padding=(0, taps[1] // 2, taps[2] // 2), causal=True)

            def forward(self, x, residual=None, cache=None, next_cache=False):
                cached = 0 if cache is None else cache.shape[2]
                _record(x, self, front=self.kernel_size[0] - 1 - cached, cached=cached)
                return super().forward(x, residual, cache, next_cache)

            def with_next_cache(self, x, residual=None, cache=None):
                # Frames that the input has are read where they are the next time.
                frames = self.kernel_size[0] - 1
                if x.shape[2] >= frames or cache is None:
                    return self(x, residual, cache), x[:, :, -frames:]
                return self(x, residual, cache, next_cache=True)

        class GroupNorm(ct.GroupNorm):
            def __init__(self, c, silu=True):
                super().__init__(32, c, 1e-6, activation="silu" if silu else "none")

        class RMSNorm(ct.RMSNorm):
            def __init__(self, c, silu=True):
                super().__init__(c, 1e-12, rule="norm_floor",
                                 activation="silu" if silu else "none")

        @staticmethod
        def attend(q, k, v):
            # PyTorch's fused kernels end at 256 channels a head. Some rows of the scores at a time
            # stay in the L2 cache.
            tokens, width = q.shape[1], q.shape[2]
            out = torch.empty_like(q)
            keys = k[0].t()
            scaled = q[0] * (1 / math.sqrt(width))
            for begin in range(0, tokens, attention_rows):
                rows = slice(begin, begin + attention_rows)
                torch.mm(torch.softmax(torch.mm(scaled[rows], keys), -1), v[0], out=out[0, rows])
            return out

    return Layers
