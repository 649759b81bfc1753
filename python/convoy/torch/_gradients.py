# SPDX-License-Identifier: Apache-2.0
"""Gradients of the operators: PyTorch's, of the same computation done anew by its own operators.
For each operator what it keeps of a call, and what it makes of that."""

import torch

from . import _by_pytorch


def _gradients(function, tensors, wanted, gradient):
    """Of function(*tensors), computed anew, where `wanted`; None for the others. They have
    gradients themselves where those are recorded (create_graph=True)."""
    recorded = torch.is_grad_enabled()
    with torch.enable_grad(), torch.autocast(gradient.device.type, enabled=False):
        inputs = [t if t is None else t.view_as(t) if recorded else t.detach().requires_grad_(want)
                  for t, want in zip(tensors, wanted)]
        sought = [t for t, want in zip(inputs, wanted) if t is not None and want]
        found = torch.autograd.grad(function(*inputs), sought, gradient, create_graph=recorded)
    remaining = iter(found)
    return [next(remaining) if want else None for want in wanted]


def keep_conv(ctx, inputs, output):
    x, weight, bias, residual, *rest = inputs
    if x.dim() == 4:
        stride, padding, dilation, groups, activation, beta, upsample, _, _, mode = rest
        cache = None
    else:
        stride, padding, dilation, groups, activation, beta, cache, _, mode = rest
        upsample = 1
    ctx.save_for_backward(x, weight, bias, residual, cache)
    ctx.options = stride, padding, dilation, groups, activation, beta, upsample, mode
    ctx.axes = x.dim() - 2


def conv(ctx, gradient):
    tensors = ctx.saved_tensors
    needs = list(ctx.needs_input_grad[:4])
    needs.append(ctx.axes == 3 and tensors[4] is not None and ctx.needs_input_grad[10])
    wanted = [need and t is not None for need, t in zip(needs, tensors)]
    *found, cache = _gradients(lambda *inputs: _by_pytorch.convolution(*inputs, *ctx.options),
                               tensors, wanted, gradient)
    # In the order of the operator's arguments.
    if ctx.axes == 2:
        return (*found, *(None,) * 10)
    return (*found, *(None,) * 6, cache, None, None)


def keep_shuffled(ctx, inputs, output):
    (x, weight, bias, residual, stride, padding, dilation, groups, activation, beta, cache, _, mode,
     factors, order, dropped, repeated) = inputs
    ctx.save_for_backward(x, weight, bias, residual, cache)
    how = (1,) * (3 - len(factors)) + tuple(factors), order, dropped
    ctx.options = stride, padding, dilation, groups, activation, beta, mode, how, repeated


def shuffled(ctx, gradient):
    tensors = ctx.saved_tensors
    needs = [*ctx.needs_input_grad[:4], ctx.needs_input_grad[10]]
    wanted = [need and t is not None for need, t in zip(needs, tensors)]
    *found, cache = _gradients(
        lambda *inputs: _by_pytorch.shuffled_convolution(*inputs, *ctx.options), tensors, wanted,
        gradient)
    return (*found, *(None,) * 6, cache, *(None,) * 6)


def keep_group_norm(ctx, inputs, output):
    x, ctx.groups, weight, bias, ctx.epsilon, ctx.activation = inputs
    ctx.save_for_backward(x, weight, bias)


def group_norm(ctx, gradient):
    def norm(x, weight, bias):
        return _by_pytorch.group_norm(x, weight, bias, ctx.groups, ctx.epsilon, ctx.activation)

    tensors = ctx.saved_tensors  # NOTE: once: torch.utils.checkpoint lets nobody ask again.
    needs = (ctx.needs_input_grad[i] and t is not None for i, t in zip((0, 2, 3), tensors))
    x, weight, bias = _gradients(norm, tensors, list(needs), gradient)
    return x, None, weight, bias, None, None


def keep_rms_norm(ctx, inputs, output):
    x, weight, bias, ctx.epsilon, ctx.rule, ctx.activation = inputs
    ctx.save_for_backward(x, weight, bias)


def rms_norm(ctx, gradient):
    def norm(x, weight, bias):
        return _by_pytorch.rms_norm(x, weight, bias, ctx.epsilon, ctx.rule, ctx.activation)

    tensors = ctx.saved_tensors
    needs = (ctx.needs_input_grad[i] and t is not None for i, t in enumerate(tensors))
    x, weight, bias = _gradients(norm, tensors, list(needs), gradient)
    return x, weight, bias, None, None, None
