# SPDX-License-Identifier: Apache-2.0
"""Calls whose checks the operator has done once, by all that they depend on: much cheaper to ask
than to go through the operator again."""

import torch
from torch.utils._device import DeviceContext

from .. import _calls
from .._bounded import Bounded
from ._conv_operators import PADDING_MODES

convolutions: dict[tuple, _calls.ConvCall] = Bounded(4096)
norms: dict[tuple, _calls.NormCall] = Bounded(4096)


class ConvNode:
    """What ConvCall asks of a node. Where the call is known, weight and bias are enough."""

    __slots__ = ("activation", "begin", "bias", "dilation", "end", "groups", "modes", "repeats",
                 "residual_first", "shuffle", "stride", "upsample", "weight")

    def __init__(self, weight, bias):
        self.weight, self.bias = weight, bias

    def describe(self, stride, padding, dilation, groups, activation, mode, upsample=1,
                 shuffle=None, repeats=False):
        """padding: before and after each axis in turn. shuffle, repeats: as _conv_node.Conv."""
        self.begin, self.end = tuple(padding[0::2]), tuple(padding[1::2])
        self.stride, self.dilation, self.groups = tuple(stride), tuple(dilation), groups
        self.modes, self.upsample = (PADDING_MODES[mode],) * len(stride), upsample
        self.residual_first = False
        self.activation = _without_parameters(activation)
        self.shuffle, self.repeats = shuffle, repeats


class NormNode:
    """What NormCall asks of a node."""

    def __init__(self, rule, groups, epsilon, activation):
        self.rule, self.groups, self.epsilon = rule, groups, epsilon
        self.activation = _without_parameters(activation)


def _without_parameters(activation):
    return None if activation == "none" else (activation, None, None)


def may_be_known(*tensors):
    """Plain tensors, with nobody between who records, traces or differentiates."""
    if torch.compiler.is_compiling():  # First: the compiler knows no more than this.
        return False
    if torch._C._len_torch_dispatch_stack() or _calls.is_transformed():
        return False
    modes = torch._C._len_torch_function_stack()
    if modes and any(type(torch._C._get_function_stack_at(i)) is not DeviceContext
                     for i in range(modes)):  # A default device says only where tensors are made.
        return False
    grad = torch.is_grad_enabled()
    return all(tensor is None or (type(tensor) in (torch.Tensor, torch.nn.Parameter)
                                  and not (grad and tensor.requires_grad)) for tensor in tensors)


def described(tensor):
    """What a call depends on of a tensor that it may lack."""
    return None if tensor is None else (tensor.shape, tensor.dtype, tensor.device)
