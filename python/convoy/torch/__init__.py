# SPDX-License-Identifier: Apache-2.0
"""Convoy's convolutions and norms as PyTorch operators and modules::

    import convoy.torch
    y = convoy.torch.conv2d(x, weight, bias, padding=1, activation="silu", residual=skip)
    y = convoy.torch.group_norm(x, 32, weight, bias, activation="silu")
    decoder = convoy.torch.convert(decoder)      # every module it can take over

The operators take tensors as PyTorch's own do, logically [N, C, (D,) H, W], and work in
channels-last memory format: inputs in that format are used as they are, others are copied into it,
and the output is channels-last. They run on the current stream of the tensor's device and have fake
kernels for torch.compile. Gradients are PyTorch's, of the same computation done anew by its own
operators (not with next_cache). In a CUDA graph: run once before the capture, since plans are made
and filters packed at the first call.

Under autocast the convolutions take its type, as PyTorch's do. Transforms of torch.func and
forward-mode differentiation get the same computation by PyTorch's operators, and so do gradients of
gradients.
"""

from .. import _calls, _plan
from . import _conv_operators, _known
from ._convert import convert
from ._convolutions import Integers, conv2d, conv3d, supports
from ._modules import Conv2d, Conv3d, GroupNorm, RMSNorm
from ._norms import group_norm, rms_norm

__all__ = [
    "Conv2d",
    "Conv3d",
    "GroupNorm",
    "Integers",
    "RMSNorm",
    "clear_cache",
    "conv2d",
    "conv3d",
    "convert",
    "group_norm",
    "rms_norm",
    "supports",
]


def clear_cache() -> None:
    """Forget the plans and packed weights that the operators keep. On the GPU, what was enqueued
    before must be done."""
    _conv_operators.plans.clear()
    _known.convolutions.clear()
    _known.norms.clear()
    _calls.clear()
    _plan.clear_cache()
