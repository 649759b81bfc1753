# SPDX-License-Identifier: Apache-2.0
"""group_norm and rms_norm: the operators of norms as functions."""

import torch

from .. import _calls
from .._plan import integer
from . import _by_pytorch, _norm_operators
from ._known import NormNode, described, may_be_known, norms
from ._memory import channels_last, has_memory
from ._norm_operators import require_axes
from ._registration import is_transformed


def _normalise(x, weight, bias, epsilon, activation, rule, groups=None):
    """By a call that is known, else by the operator, whose checks it passes first."""
    key = None
    if may_be_known(x, weight, bias):
        key = (rule, groups, x.shape, x.dtype, x.device, described(weight), described(bias),
               epsilon, activation)
        call = norms.get(key)
        if call is not None:
            return call(x, weight, bias)
    if is_transformed():
        require_axes(x)
        if groups is not None:
            return _by_pytorch.group_norm(x, weight, bias, groups, epsilon, activation)
        return _by_pytorch.rms_norm(x, weight, bias, epsilon, rule, activation)
    if groups is not None:
        y = _norm_operators.group_norm(x, groups, weight, bias, epsilon, activation)
    else:
        y = _norm_operators.rms_norm(x, weight, bias, epsilon, rule, activation)
    if key is not None and x.numel() > 0 and has_memory(x):
        node = NormNode(rule, groups, epsilon, activation)
        norms[key] = _calls.NormCall(node, x, weight, bias, channels_last)
    return y


def group_norm(x: torch.Tensor, groups: int, weight: torch.Tensor | None = None,
               bias: torch.Tensor | None = None, eps: float = 1e-5, *,
               activation: str = "none") -> torch.Tensor:
    """activation(group_norm(x)) of x [N, C, (D,) H, W] in channels-last memory, in one pass for the
    statistics and one for the rest; fp32 statistics."""
    groups = integer(groups, "groups")
    return _normalise(x, weight, bias, float(eps), activation, "group", groups)


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None = None,
             bias: torch.Tensor | None = None, eps: float = 1e-6, *, rule: str = "added",
             activation: str = "none") -> torch.Tensor:
    """activation(x / rms(x)·weight + bias) over the channels of each pixel of x [N, C, (D,) H, W].
    rule: "added", rms = sqrt(mean(x²) + eps); "norm_floor", F.normalize(x, dim=1,
    eps=eps)·sqrt(C)."""
    return _normalise(x, weight, bias, float(eps), activation, rule)
