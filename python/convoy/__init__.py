# SPDX-License-Identifier: Apache-2.0
"""Convoy: forward convolutions for NVIDIA's Hopper and Blackwell GPUs, and for the CPU::

    import convoy
    y = convoy.conv2d(x, filter, padding=1, bias=b, activation="silu")     # numpy, channels last

    import convoy.torch                                                     # PyTorch
    decoder = convoy.torch.convert(decoder)

`conv2d`, `conv3d`, `group_norm` and `rms_norm` work on numpy arrays on the CPU. `convoy.torch` has
the operators for PyTorch. `Plan` is the interface on bare addresses, for any other framework.
"""

import importlib
from typing import TYPE_CHECKING

from ._arrays import conv2d, conv3d, group_norm, rms_norm
from ._config import show_config
from ._native import (
    ConvoyError,
    InvalidArgument,
    LaunchFailure,
    OutOfMemory,
    Unsupported,
    version,
)
from ._plan import (
    Conv2d,
    Conv3d,
    GroupNorm,
    NormOptions,
    NormPlan,
    Options,
    PackedFilter,
    Plan,
    RmsNorm,
    candidates,
    clear_cache,
    supports,
)

if TYPE_CHECKING:
    from ._accelerate import accelerate, refresh, report, restore
    from ._compiled import dynamo_backend
    from ._graphs import graphed


# What needs PyTorch, and where it is.
_WITH_PYTORCH = {
    "accelerate": "_accelerate", "refresh": "_accelerate", "report": "_accelerate",
    "restore": "_accelerate", "dynamo_backend": "_compiled", "graphed": "_graphs",
}


def __getattr__(name):
    """What needs PyTorch, when it is first asked for."""
    if name in _WITH_PYTORCH:
        return getattr(importlib.import_module(f".{_WITH_PYTORCH[name]}", __name__), name)
    raise AttributeError(f"module 'convoy' has no attribute '{name}'")


__version__ = version().split()[0]

__all__ = [
    "Conv2d",
    "Conv3d",
    "ConvoyError",
    "GroupNorm",
    "InvalidArgument",
    "LaunchFailure",
    "NormOptions",
    "NormPlan",
    "Options",
    "OutOfMemory",
    "PackedFilter",
    "Plan",
    "RmsNorm",
    "Unsupported",
    "__version__",
    "accelerate",
    "candidates",
    "clear_cache",
    "conv2d",
    "conv3d",
    "dynamo_backend",
    "graphed",
    "group_norm",
    "refresh",
    "report",
    "restore",
    "rms_norm",
    "show_config",
    "supports",
    "version",
]
