# SPDX-License-Identifier: Apache-2.0
"""PyTorch tensors whose channels, axis 1, lie innermost in memory, whatever their rank."""

import functools
import math

import torch

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_WIDE = torch.complex128  # 16 bytes: what a copy of channels moves at a time.
_wide_devices = {"cuda"}


def is_inner(tensor):
    """Dense, and axis 1 is the innermost one."""
    memory_format = _FORMATS.get(tensor.dim())
    if memory_format is not None:
        return tensor.is_contiguous(memory_format=memory_format)
    return tensor.dim() > 1 and tensor.movedim(1, -1).is_contiguous()


@functools.lru_cache(4096)
def suggests_inner(shape, strides):
    """Whether PyTorch's functions take a tensor of four or five axes as one with channels
    innermost, and give such a one (c10, is_channels_last_strides_2d and _3d)."""
    least = 0
    if strides[1] == 0:
        return False
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[axis] == 0 or strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * max(shape[axis], 1)
    return True


def empty_inner(shape, like):
    """Of this shape, with channels innermost; type and device of `like`."""
    memory_format = _FORMATS.get(len(shape))
    if memory_format is not None:
        return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=memory_format)
    if len(shape) < 3:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    memory = (shape[0], *shape[2:], shape[1])
    return torch.empty(memory, dtype=like.dtype, device=like.device).movedim(-1, 1)


def _wide(tensor):
    """The same bytes in units of 16, channels at the end; None where they do not divide so."""
    tensor = tensor.movedim(1, -1)
    unit = max(16 // tensor.element_size(), 1)
    *strides, last = tensor.stride()
    if (last != 1 or tensor.shape[-1] % unit or tensor.storage_offset() % unit
            or any(stride % unit for stride in strides)):
        return None
    return tensor.view(_WIDE)


def copy(target, source):
    """Copy, 16 bytes at a time where axis 1 is innermost in both."""
    if target.device.type in _wide_devices and target.dtype == source.dtype:
        wide_target, wide_source = _wide(target), _wide(source)
        if wide_target is not None and wide_source is not None:
            wide_target.copy_(wide_source)
            return
    target.copy_(source)


def inner_copy(tensor):
    """A copy with channels innermost."""
    memory_format = _FORMATS.get(tensor.dim())
    if memory_format is not None and (tensor.stride(1) != 1
                                      or tensor.device.type not in _wide_devices):
        return tensor.clone(memory_format=memory_format)  # One call; never 16 bytes at a time.
    out = empty_inner(tensor.shape, tensor)
    copy(out, tensor)
    return out


def resolved(shape, sizes):
    """`sizes` without a -1; None where a tensor of this shape has no such sizes."""
    count = math.prod(shape)
    if -1 in sizes:
        known = -math.prod(sizes)
        if known <= 0 or count % known:
            return None
        sizes = tuple([count // known if size == -1 else size for size in sizes])
    return sizes if math.prod(sizes) == count and min(sizes, default=1) >= 0 else None


def is_view(shape, strides, sizes):
    """Whether memory of this shape and these strides can be seen in other sizes, of as many
    elements. NOTE: to try it costs an exception, ten times as much."""
    left = [size for size in sizes if size != 1]
    axes = [(n, s) for n, s in zip(shape, strides) if n != 1]
    if 0 in shape:
        return True
    while axes:  # The last axes that follow each other in memory, as one.
        count, first = axes.pop()
        while axes and axes[-1][1] == count * first:
            count *= axes.pop()[0]
        while count > 1:
            if not left or count % left[-1]:
                return False
            count //= left.pop()
    return True


def reshape(tensor, shape):
    """As Tensor.reshape; what must be copied gets its channels innermost."""
    sizes = resolved(tensor.shape, shape)
    if sizes is None:
        return tensor.reshape(shape)  # PyTorch says what is wrong.
    if is_view(tensor.shape, tensor.stride(), sizes):
        return tensor.view(sizes)
    if len(sizes) < 4:
        return tensor.reshape(sizes)
    out = empty_inner(sizes, tensor)
    if not is_view(sizes, out.stride(), tensor.shape):  # The target splits what lies apart.
        return tensor.reshape(sizes)
    copy(out.view(tensor.shape), tensor)
    return out


def cat(tensors, axis):
    """As torch.cat, channels innermost."""
    if len(tensors) == 1:
        return tensors[0]
    first = tensors[0]
    axis %= first.dim()
    if (first.dim() < 4 or axis == 1 or any(t.dtype != first.dtype for t in tensors)
            or (first.stride(1) != 1 and first.stride(-1) == 1 and first.shape[1] > 1)):
        return torch.cat(tensors, axis)  # Its axis 1 is no channels.
    writers = [lambda target, tensor=tensor: copy(target, tensor) for tensor in tensors]
    return join(first, first.shape, [t.shape[axis] for t in tensors], writers, axis)


def join(like, shape, extents, writers, axis):
    """A tensor of the type and device of `like` and of this shape but along `axis`, where
    writers[i](target) fills extents[i] of it."""
    shape = list(shape)
    shape[axis] = sum(extents)
    out = empty_inner(shape, like)
    begin = 0
    for extent, write in zip(extents, writers):
        write(out.narrow(axis, begin, extent))
        begin += extent
    return out


def stack(tensors, axis):
    """As torch.stack, channels innermost (axis 1 of the result)."""
    axis %= tensors[0].dim() + 1
    if axis < 2:
        return torch.stack(tensors, axis)
    return cat([tensor.unsqueeze(axis) for tensor in tensors], axis)


def upsample(tensor, factors, out=None):
    """Nearest neighbours, `factors` for each axis after the channels; one copy. out: where to, with
    axes that can be split."""
    if out is None:
        shape = [*tensor.shape[:2], *(n * f for n, f in zip(tensor.shape[2:], factors))]
        out = empty_inner(shape, tensor)
    split, source, repeats = list(tensor.shape[:2]), tensor, list(tensor.shape[:2])
    for i, factor in enumerate(factors):
        extent = tensor.shape[2 + i]
        if factor > 1:
            source = source.unsqueeze(len(split) + 1)
            split += [extent, factor]
            repeats += [extent, factor]
        else:
            split.append(extent)
            repeats.append(extent)
    copy(out.view(split), source.expand(repeats))
    return out


def pad(tensor, begin, end, modes):
    """Padding of the axes after the channels, each in its own mode: zero, replicate, reflect."""
    shape = [*tensor.shape[:2],
             *(b + n + e for b, n, e in zip(begin, tensor.shape[2:], end))]
    out = empty_inner(shape, tensor)
    if any(mode == "zero" and (b or e) for mode, b, e in zip(modes, begin, end)):
        out.zero_()
    inside = out
    for i, extent in enumerate(tensor.shape[2:]):
        inside = inside.narrow(2 + i, begin[i], extent)
    copy(inside, tensor)
    # Axis by axis: what an earlier axis has padded is repeated by the later ones.
    for i, mode in enumerate(modes):
        if mode == "zero":
            continue
        step = 1 if mode == "reflect" else 0
        axis, extent, rows = 2 + i, tensor.shape[2 + i], out
        for j in range(i + 1, len(modes)):
            rows = rows.narrow(2 + j, begin[j], tensor.shape[2 + j])
        for k in range(1, begin[i] + 1):
            copy(rows.narrow(axis, begin[i] - k, 1), rows.narrow(axis, begin[i] + k * step, 1))
        last = begin[i] + extent - 1
        for k in range(1, end[i] + 1):
            copy(rows.narrow(axis, last + k, 1), rows.narrow(axis, last - k * step, 1))
    return out
