# SPDX-License-Identifier: Apache-2.0
"""Functions of models that have nothing to do with convolutions, and take longer than those: for
each one that gives the same in one step. They are known by name and parameters, not by class."""

import inspect

import torch


def causal_mask(n_frame, n_hw, dtype, device, batch_size=None):
    """0 where a pixel of one frame may look at another's, -inf where that frame is later, as
    HunyuanVideo 1.5 fills it row by row: thousands of launches."""
    frames = torch.arange(n_frame, device=device).repeat_interleave(n_hw)
    mask = torch.zeros((frames.numel(), frames.numel()), dtype=dtype, device=device)
    mask.masked_fill_(frames[None, :] > frames[:, None], float("-inf"))
    return mask if batch_size is None else mask.unsqueeze(0).expand(batch_size, -1, -1)


_KNOWN = {
    "prepare_causal_attention_mask": (
        causal_mask, ("n_frame", "n_hw", "dtype", "device", "batch_size")),
}


def replace(model):
    """Let the parts of `model` call these instead of their own."""
    for module in model.modules():
        for name, (function, parameters) in _KNOWN.items():
            own = inspect.getattr_static(type(module), name, None)
            if isinstance(own, staticmethod) and (
                    tuple(inspect.signature(own.__func__).parameters) == parameters):
                module.__dict__[name] = function


def put_back(model):
    for module in model.modules():
        for name, (function, _) in _KNOWN.items():
            if module.__dict__.get(name) is function:
                del module.__dict__[name]
