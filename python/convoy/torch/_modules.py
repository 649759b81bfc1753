# SPDX-License-Identifier: Apache-2.0
"""The operators as modules, with the names that PyTorch gives its own."""

import torch

from ._convolutions import conv2d, conv3d, interleaved
from ._norms import group_norm, rms_norm


class Conv2d(torch.nn.Conv2d):
    """nn.Conv2d with a packed filter, a fused activation and residual, and folded upsampling.
    padding: as conv2d's."""

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1,
                 groups=1, bias=True, *, activation="none", upsample=1,
                 upsample_folding="exact", padding_mode="zeros", device=None, dtype=None):
        super().__init__(in_channels, out_channels, kernel_size, stride=stride, dilation=dilation,
                         groups=groups, bias=bias, device=device, dtype=dtype)
        self.padding, self.padding_mode, self.activation = padding, padding_mode, activation
        self.upsample, self.upsample_folding = upsample, upsample_folding

    def forward(self, x, residual=None):
        return conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation,
                      self.groups, activation=self.activation, residual=residual,
                      upsample=self.upsample, upsample_folding=self.upsample_folding,
                      packed=True, padding_mode=self.padding_mode)


class Conv3d(torch.nn.Conv3d):
    """nn.Conv3d with a packed filter, a fused activation and residual, and a causal cache.
    padding: one integer, (depth, height, width), or two for each axis; with causal=True that of the
    depth is (T - 1)·dilation frames in front, less those of the cache."""

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1,
                 groups=1, bias=True, *, causal=False, activation="none", padding_mode="zeros",
                 device=None, dtype=None):
        super().__init__(in_channels, out_channels, kernel_size, stride=stride, dilation=dilation,
                         groups=groups, bias=bias, device=device, dtype=dtype)
        self.padding, self.padding_mode = padding, padding_mode
        self.causal, self.activation = causal, activation

    def forward(self, x, residual=None, cache=None, next_cache=False):
        padding = interleaved(self.padding, 3, self.kernel_size, self.stride, self.dilation)
        if self.causal:
            frames = (self.kernel_size[0] - 1) * self.dilation[0]
            padding[:2] = max(frames - (0 if cache is None else cache.shape[2]), 0), 0
        return conv3d(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups,
                      activation=self.activation, residual=residual, cache=cache,
                      next_cache=next_cache, packed=True, padding_mode=self.padding_mode)


class GroupNorm(torch.nn.GroupNorm):
    """nn.GroupNorm with a fused activation."""

    def __init__(self, num_groups, num_channels, eps=1e-5, affine=True, *, activation="none",
                 device=None, dtype=None):
        super().__init__(num_groups, num_channels, eps, affine, device=device, dtype=dtype)
        self.activation = activation

    def forward(self, x):
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps,
                          activation=self.activation)


class RMSNorm(torch.nn.Module):
    """RMS norm over the channels (axis 1), with a fused activation."""

    def __init__(self, channels, eps=1e-6, *, rule="added", bias=False, activation="none",
                 device=None, dtype=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(channels, device=device, dtype=dtype))
        self.bias = None
        if bias:
            self.bias = torch.nn.Parameter(torch.zeros(channels, device=device, dtype=dtype))
        self.eps, self.rule, self.activation = eps, rule, activation

    def forward(self, x):
        return rms_norm(x, self.weight, self.bias, self.eps, rule=self.rule,
                        activation=self.activation)
