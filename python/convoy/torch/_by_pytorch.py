# SPDX-License-Identifier: Apache-2.0
"""What the operators compute, by PyTorch's own: for gradients and for transforms of torch.func."""

import math

import torch
import torch.nn.functional as F

from .._nodes import ACTIVATIONS, shuffle

# What PyTorch computes, with the defaults of Convoy's parameters.
_PARAMETERS = {"leaky_relu": (0.01, 0.0), "clamp": (0.0, 6.0)}


def convolution(x, weight, bias, residual, cache, stride, padding, dilation, groups, activation,
                beta, upsample, mode):
    if cache is not None:
        x = torch.cat((cache, x), 2)
    if upsample > 1:
        x = F.interpolate(x, scale_factor=float(upsample), mode="nearest")
    sides = [side for axis in reversed(range(len(stride)))
             for side in padding[2 * axis : 2 * axis + 2]]
    x = F.pad(x, sides, "constant" if mode in ("zero", "zeros") else mode)
    function = F.conv2d if x.dim() == 4 else F.conv3d
    bias = None if bias is None else bias.to(x.dtype)
    y = function(x, weight, bias, stride, 0, dilation, groups)
    y = _activated(y, activation)
    return y if residual is None else y + beta * residual


def _activated(y, activation):
    if activation == "none":
        return y
    return ACTIVATIONS[activation](y, *_PARAMETERS.get(activation, (0.0, 0.0)))


def shuffled_convolution(x, weight, bias, residual, cache, stride, padding, dilation, groups,
                         activation, beta, mode, how, repeated):
    y = convolution(x, weight, bias, None, cache, stride, padding, dilation, groups, activation,
                    beta, 1, mode)
    y = shuffle(y, how)
    if residual is None:
        return y
    if repeated:
        residual = shuffle(residual.repeat_interleave(weight.shape[0] // residual.shape[1], 1), how)
    return y + beta * residual


def group_norm(x, weight, bias, groups, epsilon, activation):
    weight, bias = (None if t is None else t.to(x.dtype) for t in (weight, bias))
    return _activated(F.group_norm(x, groups, weight, bias, epsilon), activation)


def rms_norm(x, weight, bias, epsilon, rule, activation):
    wide = x.float()
    if rule == "added":
        y = wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + epsilon)
    else:
        y = F.normalize(wide, dim=1, eps=epsilon) * math.sqrt(x.shape[1])
    axes = (1, -1, *(1,) * (x.dim() - 2))
    y = y if weight is None else y * weight.reshape(axes)
    y = y if bias is None else y + bias.reshape(axes)
    return _activated(y, activation).to(x.dtype)
