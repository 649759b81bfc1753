# SPDX-License-Identifier: Apache-2.0
"""Tensors in the memory that plans take: channels innermost, 16-byte aligned."""

import torch


def format_of(axes):
    return torch.channels_last if axes == 4 else torch.channels_last_3d


def channels_last(tensor):
    """The tensor in channels-last memory, 16-byte aligned; itself where it is so already."""
    memory_format = format_of(tensor.dim())
    tensor = tensor.contiguous(memory_format=memory_format)
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone(memory_format=memory_format)


def address(tensor):
    return None if tensor is None else tensor.data_ptr()


def workspace_of(plan, x):
    if plan.workspace_bytes == 0 or x.device.type != "cuda":
        return None
    return torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=x.device)


def has_memory(x):
    return x.device.type in ("cpu", "cuda")


def empty(x, shape):
    """A channels-last tensor like x; `shape` is the memory's, channels at the end."""
    logical = (shape[0], shape[-1], *shape[1:-1])
    return torch.empty(
        logical, dtype=x.dtype, device=x.device, memory_format=format_of(len(shape))
    )
