# SPDX-License-Identifier: Apache-2.0
"""Convoy: forward convolutions for NVIDIA's Hopper and Blackwell GPUs, and for the CPU.

    import convoy
    y = convoy.conv2d(x, filter, padding=1, bias=b, activation="silu")     # numpy, channels last

    import convoy.torch                                                     # PyTorch
    decoder = convoy.torch.convert(decoder)

`conv2d` and `conv3d` work on numpy arrays on the CPU. `convoy.torch` has the operators for PyTorch.
`Plan` is the interface on bare addresses, for any other framework.
"""

from ._arrays import conv2d, conv3d
from ._native import (
    ConvoyError,
    InvalidArgument,
    LaunchFailure,
    OutOfMemory,
    Unsupported,
    version,
)
from ._plan import Conv2d, Conv3d, Options, PackedFilter, Plan, candidates, supports

__all__ = [
    "Conv2d",
    "Conv3d",
    "ConvoyError",
    "InvalidArgument",
    "LaunchFailure",
    "Options",
    "OutOfMemory",
    "PackedFilter",
    "Plan",
    "Unsupported",
    "candidates",
    "conv2d",
    "conv3d",
    "supports",
    "version",
]
