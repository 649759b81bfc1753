# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch, torch.ops.convoy: what each is made of, and how it is called."""

import torch
from torch.autograd import forward_ad

from .. import _calls, _operators


def _no_gradients(ctx, *gradients):
    raise NotImplementedError(
        "convoy.torch.conv3d has no gradients with next_cache=True; legal: without it, or "
        "torch.no_grad()")


def _refuse_tangents(name, arguments):
    """NOTE: PyTorch's custom operators would leave the tangents out without a word."""
    for tensor in arguments:
        if isinstance(tensor, torch.Tensor) and forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(
                f"torch.ops.convoy.{name} has no forward-mode derivatives; legal: backward(), or "
                "convoy.torch.conv2d, conv3d (without next_cache), group_norm and rms_norm")


def is_transformed():
    """Whether it is to be PyTorch's operators that run."""
    return not torch.compiler.is_compiling() and _calls.is_transformed()


def register(name, in_python, fake, backward=_no_gradients, keep=None, always_python=False):
    """torch.ops.convoy.<name>: in C++ where that was built, else (or `always_python`)
    `in_python`."""
    if _operators.library is None or always_python:
        torch.library.custom_op(f"convoy::{name}", in_python, mutates_args=())
    torch.library.register_fake(f"convoy::{name}", fake)
    torch.library.register_autograd(f"convoy::{name}", backward, setup_context=keep)
    operator = getattr(torch.ops.convoy, name).default

    def call(*arguments):
        if torch.compiler.is_compiling():
            return operator(*arguments)
        if forward_ad._current_level >= 0:
            _refuse_tangents(name, arguments)
        try:
            return operator(*arguments)
        except RuntimeError as error:
            raise _operators.typed(error) from None

    return call
