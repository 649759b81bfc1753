# SPDX-License-Identifier: Apache-2.0
"""convert(model): its convolutions and GroupNorms by the operators, module by module."""

import functools

import torch
import torch.nn.functional as F

from .._calls import NAMES
from ._conv_operators import PADDING_MODES
from ._convolutions import conv2d, conv3d
from ._memory import has_memory
from ._modules import GroupNorm
from ._norms import group_norm


# Whether Convoy has what a call of a converted module needs. After `.double()`, on other devices,
# or for pictures without a batch it is PyTorch's own.
def _takes(module, x):
    return (x.dtype in NAMES and has_memory(x)
            and (module.weight is None or module.weight.dtype in NAMES))


def _takes_norm(module, x):
    return x.dim() in (4, 5) and _takes(module, x)


def _forward(module, x):
    if x.dim() != module.weight.dim() or not _takes(module, x):
        return type(module).forward(module, x)
    function = conv2d if module.weight.dim() == 4 else conv3d
    return function(
        x, module.weight, module.bias, module.stride, module.padding, module.dilation,
        module.groups, packed=True, padding_mode=module.padding_mode,
    )


def _forward_norm(module, x):
    if not _takes_norm(module, x):
        return type(module).forward(module, x)
    return group_norm(x, module.num_groups, module.weight, module.bias, module.eps)


class _FusedNorm(GroupNorm):
    """A GroupNorm of a converted model, with the SiLU behind it."""

    def forward(self, x):
        # NOTE: torch.fx comes here with what is no tensor.
        if isinstance(x, torch.Tensor) and not _takes_norm(self, x):
            return F.silu(torch.nn.GroupNorm.forward(self, x))
        return super().forward(x)


def _fused_norm(norm):
    """A GroupNorm with SiLU on the parameters of `norm`."""
    fused = _FusedNorm(norm.num_groups, norm.num_channels, norm.eps, False, activation="silu")
    fused.affine, fused.weight, fused.bias = norm.affine, norm.weight, norm.bias
    return fused.train(norm.training)


def _has_hooks(module):
    return any(value for name, value in vars(module).items() if name.endswith("_hooks"))


def convert(module: torch.nn.Module) -> torch.nn.Module:
    """Let Convoy run what it can inside `module` (itself included): every nn.Conv2d and nn.Conv3d
    with a type it knows (and no circular padding), and every nn.GroupNorm. In an nn.Sequential a
    GroupNorm and the SiLU right behind it become one, where neither has hooks: the norm's output
    is that of both then. Outputs are channels-last, so that `y.view(n, -1)` must be `y.reshape`.
    Returns the module, whose parameters keep their names. `convoy.accelerate` does more, keeps the
    modules as they are, and can be undone."""
    for part in list(module.modules()):
        if isinstance(part, torch.nn.Sequential) and (
                type(part).forward is torch.nn.Sequential.forward):
            for i in range(len(part) - 1):
                if (type(part[i]) is torch.nn.GroupNorm and type(part[i + 1]) is torch.nn.SiLU
                        and not _has_hooks(part[i]) and not _has_hooks(part[i + 1])):
                    part[i] = _fused_norm(part[i])
                    part[i + 1] = torch.nn.Identity()
    # NOTE: partial, since a bound method that its class does not have cannot be unpickled.
    for part in module.modules():
        if type(part) is torch.nn.GroupNorm:
            part.forward = functools.partial(_forward_norm, part)
        if type(part) not in (torch.nn.Conv2d, torch.nn.Conv3d):
            continue
        if part.padding_mode not in PADDING_MODES:  # circular
            continue
        if part.weight.dtype not in NAMES:
            continue
        part.forward = functools.partial(_forward, part)
    return module
