# SPDX-License-Identifier: Apache-2.0
"""Types, axes and slices of stand-ins."""

import functools
import math
import operator

import torch

from . import _layout
from ._conv_node import Conv
from ._deferred import HALVES, Deferred, another, is_tensor, plain, value_of, view, waiting_norm
from ._memory import (
    Apart,
    alone,
    follow,
    has_inner,
    is_given,
    laid_out,
    lies_inner,
    link,
    own_form,
    stepped,
    view_if_written,
)
from ._nodes import (
    Cast,
    Cat,
    Digits,
    Frames,
    Lent,
    Pad,
    Repeat,
    Select,
    ShuffledRepeat,
    Viewed,
    frames_of,
)

# NOTE: chunks of Wan 2.1's last level at 480x832 have 307 MB. Copies of their last frames are some
# 2 % of a decode's bytes; without them its peak of memory was above PyTorch's (4.90 GB, 4.24).
_LARGE = 64 << 20


def _cast(x, dtype):
    node, session = x._node, x._session
    if node.dtype == dtype:
        return x
    if type(node) is Cast:
        if node.source.dtype == dtype:
            return another(Deferred(node.source, session))
        return value_of(node.source.force().to(dtype), session)
    norm, rewrap = waiting_norm(node)
    if norm is not None and norm.wide and norm.source.dtype == dtype:
        made = norm.having(wide=False)
        return Deferred(rewrap(made), session)
    if node.dtype in HALVES and dtype is torch.float32:
        return Deferred(Cast(node, dtype), session)
    return value_of(node.force().to(dtype), session)


def _to(input, *args, **kwargs):
    if type(input) is not Deferred or (
            set(kwargs) - {"device", "dtype", "non_blocking", "memory_format"}):
        return NotImplemented
    dtype, device = kwargs.get("dtype"), kwargs.get("device")
    for value in args:
        if isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, (str, torch.device, int)) and not isinstance(value, bool):
            device = value
        elif is_tensor(value):
            dtype, device = value.dtype, value.device
        elif isinstance(value, bool) or value is None:
            continue
        else:
            return NotImplemented
    if len(args) > 3 or any(v is True for v in args[2:]):
        return NotImplemented
    if device is not None:
        device, here = torch.device(device), input._node.device
        if device.type != here.type or (device.index is not None and device.index != here.index):
            return NotImplemented
    made, order = input if dtype is None else _cast(input, dtype), kwargs.get("memory_format")
    if made is input and order not in (None, torch.preserve_format):
        # NOTE: a single image that is_contiguous() in this order may still be copied, and a tensor
        # that is not may be left.
        is_inner = order is not torch.contiguous_format
        if is_inner is not has_inner(input):
            made = another(input)
            made._apart = lies_inner(input.shape) if is_inner else None
    return made


def _frame_slice(node, index):
    """(first, count) where `index` takes frames of a node of 5 axes that follow each other, and is
    nothing else; (0, 0) for others."""
    whole = slice(None)
    if (len(node.shape) == 5 and isinstance(index, tuple) and 3 <= len(index) <= 5
            and isinstance(index[2], slice) and index[2].step in (None, 1)
            and all(i == 2 or (isinstance(v, slice) and v == whole)
                    for i, v in enumerate(index))):
        begin, end, _ = index[2].indices(node.shape[2])
        return begin, max(end - begin, 0)
    return 0, 0


def _waiting_frames(x, first, count):
    """Frames of what waits to be read in place, as it goes on waiting; None of anything else."""
    node = x._node
    if node.tensor is not None:
        return None
    if type(node) is Pad:
        made = Deferred(Frames(node, first, count), x._session)
    elif type(node) is Frames:
        made = Deferred(Frames(node.base, node.first + first, count), x._session)
    else:
        return None
    made._viewed = x._viewed = True
    return made


def _frames_of_parts(x, first, count):
    """Frames of a Cat that waits, without the others."""
    parts = x._node.frames(first, first + count)
    node = parts[0]
    if len(parts) > 1 or node.tensor is None or is_given(node):
        node = Cat(parts)
    else:
        node = Lent(node.tensor)  # The part is another tensor's, which may be written to.
    made = Deferred(node, x._session)
    step = lambda t: t[:, :, first:first + count]
    view_if_written(x, made, step)
    follow(x, made, step)
    return made


def _getitem(x, index):
    node, session = alone(x, in_frames=True), x._session
    first, count = _frame_slice(node, index)
    if count:
        of_parts = type(node) is Cat and node.tensor is None
        made = (_frames_of_parts if of_parts else _waiting_frames)(x, first, count)
        if made is not None:
            made._apart = Apart(x._apart, node.shape, lambda t: t[:, :, first:first + count])
            return made
        if (type(node) is Conv and node.shuffle is not None and node.may_fuse()
                and node.residual is None and node.shuffle[2] == 0
                and 0 < first < node.shuffle[0][0] and first + count == node.shape[2]):
            return Deferred(node.without_frames(first), session)
    entry = _selected(node, index)
    if entry is not None:
        made = Deferred(Select(node, *entry), session)
        made._viewed = x._viewed = True
        return made
    if index is Ellipsis:
        return x
    index = plain(index)
    items = index if isinstance(index, tuple) else (index,)
    node = alone(x)
    tensor = node.force()
    made = stepped(node, lambda t: t[index])
    if session.shards and session.shards.active:
        session.shards.follow_index(made, tensor, items)
    part = None
    if count:
        base, offset = frames_of(node)
        part = (node, 2, first) if base is None else (base, 2, offset + first)
    result = value_of(made, session, part, is_given(node), node)
    if all(v is None or v is Ellipsis or isinstance(v, (int, slice)) for v in items):
        result._base, result._viewed = x, True
        x._viewed = True
        result._apart = Apart(x._apart, node.shape, lambda t: t[index])
        follow(x, result, lambda t: t[index])
    return result


def _shape_of(sizes):
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        (sizes,) = sizes
    return tuple(map(operator.index, sizes))


# ---- Depth to space ------------------------------------------------------------------------------


def _regrouped(axes, sizes):
    """The digits of `axes` in axes of these sizes; None where one would be cut."""
    left = [digit for digits in axes for digit in digits if digit[2] != 1]
    made = []
    for size in sizes:
        taken = []
        while size > 1:
            if not left:
                return None
            axis, stride, count = left.pop(0)
            if size % count == 0:
                taken.append((axis, stride, count))
                size //= count
            elif count % size == 0:
                taken.append((axis, stride * (count // size), size))
                left.insert(0, (axis, stride, count // size))
                size = 1
            else:
                return None
        made.append(tuple(taken))
    return None if left else made


def _is_digit(digits, axis, extent):
    return digits == (() if extent == 1 else ((axis, 1, extent),))


def _shuffle_of(node):
    """(factors, order) where the axes are those of a depth to space; None of others."""
    base, axes = node.base, node.axes
    if len(axes) != len(base.shape) or not _is_digit(axes[0], 0, base.shape[0]):
        return None
    if len(axes[1]) > 1 or any(digit[0] != 1 for digit in axes[1]):
        return None
    factors, strides = [], []
    for axis in range(2, len(axes)):
        digits = axes[axis]
        own = () if base.shape[axis] == 1 else ((axis, 1, base.shape[axis]),)
        rest = digits[len(own):]
        if digits[:len(own)] != own or len(rest) > 1 or any(digit[0] != 1 for digit in rest):
            return None
        factors.append(rest[0][2] if rest else 1)
        strides.append(rest[0][1] if rest else None)
    channels = node.shape[1]
    for order, step in (("channels_outer", 1), ("channels_inner", channels)):
        at = step
        fits = True
        for factor, stride in zip(reversed(factors), reversed(strides)):
            fits = fits and stride in (None, at)
            at *= factor
        of_channels = math.prod(factors) if order == "channels_outer" else 1
        if fits and all(digit[1] == of_channels for digit in axes[1]):
            return tuple(factors), order
    return None


def _with_axes(input, node, axes, step):
    session = input._session
    digits = Digits(node.base, axes, (*node.steps, step))
    found = _shuffle_of(digits)
    if found is None or max(found[0]) == 1 or not digits.base.may_shuffle():
        made = Deferred(digits, session)
        made._viewed = input._viewed = True
        return made
    session.fused["depth to space"] += 1
    return Deferred(digits.base.shuffled(*found), session)


def _waiting_digits(node):
    return node if type(node) is Digits and node.tensor is None else None


def _split_filters(input, sizes):
    """Filters of a convolution that waits as axes of their own, which go on waiting; None of
    anything else."""
    node = alone(input)
    digits = _waiting_digits(node)
    if digits is None:
        if (type(node) is not Conv or not node.may_shuffle() or len(sizes) <= len(node.shape)
                or tuple(sizes[:1]) != tuple(node.shape[:1])):
            return None
        digits = Digits(node, [((i, 1, n),) if n > 1 else () for i, n in enumerate(node.shape)], ())
    axes = _regrouped(digits.axes, sizes)
    if axes is None:
        return None
    return _with_axes(input, digits, axes, lambda t: _layout.reshape(t, sizes))


def ordered(input, order):
    """The axes in another order."""
    digits = _waiting_digits(alone(input))
    if digits is None:
        made = view(input, lambda t: t.permute(order), order)
        made._apart = Apart(input._apart, input.shape, lambda t: t.permute(order))
        return made
    axes = [digits.axes[i] for i in order]
    return _with_axes(input, digits, axes, lambda t: t.permute(order))


def _selected(node, index):
    """(axis, entry) where `index` takes one entry of one axis of Digits, and is nothing else."""
    if _waiting_digits(node) is None or not isinstance(index, tuple):
        return None
    whole = slice(None)
    found = [i for i, v in enumerate(index) if not (isinstance(v, slice) and v == whole)]
    if len(found) != 1 or type(index[found[0]]) is not int:
        return None
    axis, entry = found[0], index[found[0]]
    return (axis, entry) if 0 <= entry < node.shape[axis] else None


def _reshape(input, *sizes, shape=None, size=None, dtype=None, strict=False):
    if dtype is not None or (sizes and isinstance(sizes[0], torch.dtype)):
        return NotImplemented
    sizes = _shape_of(shape or size or sizes)
    node = input._node
    if tuple(node.shape) == sizes:
        return input
    if type(node) is Repeat and node.tensor is None:
        made = value_of(_split_up(node, sizes), input._session)
        view_if_written(input, made, lambda t: _layout.reshape(t, sizes))
        return made
    if type(node) in (Conv, Digits):
        split = sizes
        if -1 in split:
            known = -math.prod(split)
            split = tuple(math.prod(node.shape) // known if s == -1 else s for s in split)
        made = _split_filters(input, split) if min(split, default=0) > 0 else None
        if made is not None:
            if input._apart is not None and not _would_copy(input, sizes):
                made._apart = Apart(input._apart, input.shape, lambda t: t.view(sizes))
            return made
    _find_before_copy(node, sizes)
    made = view(input, lambda t: _layout.reshape(t, sizes))
    # NOTE: in the model's own order of memory a copy: `h = x.permute(...).reshape(...); h += y`.
    if not strict and _would_copy(input, sizes):
        return another(made)
    source = input._node.tensor
    if source is not None and not torch._C._is_alias_of(made._force(), source):
        made._base, made._viewed = None, False
        link(input, made)
    return made


def _find_before_copy(node, sizes):
    """Compute a norm that waits, where these sizes of it are to be a copy: it must be there for
    what is written to one of them to be seen in the other."""
    norm, _ = waiting_norm(node)
    if norm is None:
        return
    form = _layout.empty_inner(norm.shape, torch.empty(0, device="meta"))
    for step in node.steps if type(node) is Viewed else ():
        form = step(form)
    sizes = _layout.resolved(form.shape, sizes)
    if sizes is not None and not _layout.is_view(form.shape, form.stride(), sizes):
        node.force()


def _would_copy(x, sizes):
    """Whether the model's own tensor would be copied to have these sizes."""
    if x._apart is None:
        return False
    lies = laid_out(x._apart)
    sizes = _layout.resolved(lies.shape, sizes)
    return sizes is None or not _layout.is_view(lies.shape, lies.stride(), sizes)


def _view(input, *sizes, **other):
    return _reshape(input, *sizes, strict=True, **other)


def _split_up(node, sizes):
    """The tensor of a node with its axes split; of a Repeat without writing it, where the split
    ends where the repetitions do."""
    if type(node) is Repeat and node.tensor is None:
        try:
            return node.expanded().view(sizes)
        except RuntimeError:  # Not a view: written after all.
            pass
    return _layout.reshape(node.force(), sizes)


def _flatten(input, start_dim=0, end_dim=-1):
    rank = len(input._node.shape)
    if rank == 0:
        return NotImplemented
    start, end = start_dim % rank, end_dim % rank
    if start == end:
        return input
    shape = input._node.shape
    return _reshape(input, *shape[:start], math.prod(shape[start:end + 1]), *shape[end + 1:])


def _unflatten(input, dim, sizes):
    shape = input._node.shape
    dim %= len(shape)
    sizes = tuple(sizes)
    if -1 in sizes:
        rest = -math.prod(sizes)
        if rest <= 0 or shape[dim] % rest:
            return NotImplemented
        sizes = tuple(shape[dim] // rest if s == -1 else s for s in sizes)
    return _reshape(input, *shape[:dim], *sizes, *shape[dim + 1:])


def _permute(input, *dims, **other):
    dims, rank = _shape_of(other.get("dims") or dims), len(input._node.shape)
    if not all(-rank <= d < rank for d in dims):
        return NotImplemented  # PyTorch says what is wrong.
    return ordered(input, tuple(d % rank for d in dims))


def _transpose(input, dim0, dim1):
    order = list(range(len(input._node.shape)))
    if not order:
        return NotImplemented
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return ordered(input, tuple(order))


def _movedim(input, source, destination):
    rank = len(input._node.shape)
    if not all(isinstance(d, int) and -rank <= d < rank for d in (source, destination)):
        return NotImplemented
    order = [i for i in range(rank) if i != source % rank]
    order.insert(destination % rank, source % rank)
    return ordered(input, tuple(order))


def _squeezing(name):
    def handler(input, *dim, **other):
        function = getattr(torch.Tensor, name)
        return view(input, lambda t: function(t, *dim, **other))

    return handler


def _contiguous(input, memory_format=torch.contiguous_format):
    # The order in memory is ours to choose.
    if _is_contiguous(input, memory_format):
        return input
    made = another(input)
    if memory_format is not torch.contiguous_format:
        made._apart = lies_inner(input.shape)
    return made


def _is_contiguous(input, memory_format=torch.contiguous_format):
    if input._apart is None and memory_format is torch.contiguous_format:
        return True
    return own_form(input).is_contiguous(memory_format=memory_format)


def _stride(input, dim=None):
    strides = own_form(input).stride()
    return strides if dim is None else strides[dim]


def _as_strided(input, size, stride, storage_offset=None):
    """Of numbers that lie as the model's own; those that lie outside of what `input` is a view of
    are NaN."""
    form, whole = own_form(input), input
    while whole._base is not None:
        whole = whole._base
    lies = own_form(whole)
    if lies.untyped_storage().nbytes() != form.untyped_storage().nbytes():
        whole, lies = input, form
    tensor = alone(whole).force()
    memory = tensor.new_full((lies.untyped_storage().nbytes() // lies.element_size(),), math.nan)
    laid = value_of(memory.as_strided(lies.shape, lies.stride(), lies.storage_offset()),
                    input._session)
    laid._node.tensor.copy_(tensor)
    laid._viewed = True
    link(whole, laid)
    first = form.storage_offset() if storage_offset is None else storage_offset
    made = value_of(memory.as_strided(size, stride, first), input._session)
    made._base, made._viewed = laid, True
    return made


def _clone(input, *, memory_format=None):
    node, session = input._node, input._session
    if node.tensor is None:
        return another(input)
    if is_given(node) or _keeps_much(node.tensor):
        made = node.tensor.clone()
        if session.shards:
            session.shards.follow(made, node.tensor)
        return value_of(made, session)
    return Deferred(Lent(node.tensor), session)


def _keeps_much(tensor):
    """Whether it is half or less of a large piece of memory, which it would keep alive: the frames
    that a causal cache keeps of a chunk."""
    held = tensor.untyped_storage().nbytes()
    return held >= _LARGE and 2 * tensor.nbytes <= held


def _split(tensor, split_size_or_sections=None, dim=0, *, split_size=None):
    if split_size_or_sections is None:  # The method's own name of it.
        split_size_or_sections = split_size
    node, session = alone(tensor, in_frames=True), tensor._session
    axis = dim % len(node.shape)
    result, at = [], 0
    if (axis == 2 and type(node) in (Pad, Cat) and node.tensor is None and len(node.shape) == 5
            and isinstance(split_size_or_sections, int) and split_size_or_sections > 0):
        step, frames = split_size_or_sections, node.shape[2]
        tensor._viewed = True
        for at in range(0, frames, step):
            made = Deferred(Frames(node, at, min(step, frames - at)), session)
            made._viewed = True
            made._apart = Apart(tensor._apart, node.shape, functools.partial(
                torch.narrow, dim=2, start=at, length=made._node.shape[2]))
            result.append(made)
        return tuple(result)
    node = alone(tensor)
    for part in stepped(node, lambda t: t.split(split_size_or_sections, axis)):
        made = value_of(part, session, (node, axis, at), is_given(node), node)
        made._base, made._viewed = tensor, True
        made._apart = Apart(tensor._apart, node.shape, functools.partial(
            torch.narrow, dim=axis, start=at, length=part.shape[axis]))
        result.append(made)
        at += part.shape[axis]
    tensor._viewed = True
    return tuple(result)


def _chunk(input, chunks, dim=0):
    extent = input._node.shape[dim]
    if not isinstance(chunks, int) or chunks < 1 or extent == 0:
        return NotImplemented
    return _split(input, -(-extent // chunks), dim)


def _repeat(input, *repeats, **other):
    repeats = other.get("repeats") or _shape_of(repeats)
    node = input._node
    if len(repeats) != len(node.shape):
        return NotImplemented
    if (len(repeats) == 5 and node.shape[2] == 1 and repeats[2] > 0
            and all(r == 1 for i, r in enumerate(repeats) if i != 2)
            and frames_of(node)[0] is not None):
        return Deferred(Repeat(node, repeats[2], 2), input._session)  # It may become a padding.
    if all(r == 1 for r in repeats):
        return _clone(input)
    tensor, split, shape = node.force(), [], []
    for axis, (count, extent) in enumerate(zip(repeats, node.shape)):
        tensor = tensor.unsqueeze(2 * axis)
        split += [count, extent]
        shape.append(count * extent)
    made = _layout.reshape(tensor.expand(split), tuple(shape))
    if 0 in made.stride():  # Still a view of the entries that are repeated.
        made = _layout.inner_copy(made)
    return value_of(made, input._session)


def _repeat_interleave(input, repeats, dim=None, *, output_size=None):
    if not isinstance(repeats, int) or dim is None:
        return NotImplemented
    return Deferred(Repeat(input._node, repeats, dim % len(input._node.shape)), input._session)


def _pixel_shuffle(input, upscale_factor):
    node, r, shape = input._node, upscale_factor, input._node.shape
    if len(shape) != 4 or shape[1] % (r * r):
        return NotImplemented
    if r > 1 and type(node) is Conv and node.may_shuffle():
        input._session.fused["depth to space"] += 1
        return Deferred(node.shuffled((r, r), "channels_outer"), input._session)
    if r > 1 and type(node) is Repeat and node.tensor is None and node.axis == 1:
        how = (1, r, r), "channels_outer", 0
        return Deferred(ShuffledRepeat(node.source, node.count, how), input._session)
    n, c, h, w = shape
    tensor = _split_up(node, (n, c // (r * r), r, r, h, w)).permute(0, 1, 4, 2, 5, 3)
    return value_of(_layout.reshape(tensor, (n, c // (r * r), h * r, w * r)), input._session)


def _pixel_unshuffle(input, downscale_factor):
    r, shape = downscale_factor, input._node.shape
    if len(shape) != 4 or shape[2] % r or shape[3] % r:
        return NotImplemented
    n, c, h, w = shape
    tensor = input._node.force().reshape(n, c, h // r, r, w // r, r).permute(0, 1, 3, 5, 2, 4)
    return value_of(_layout.reshape(tensor, (n, c * r * r, h // r, w // r)), input._session)


FUNCTIONS = {
    "to": _to, "type_as": lambda input, other: _cast(input, other.dtype),
    "type": lambda input, dtype=None, **other: _cast(input, dtype) if isinstance(
        dtype, torch.dtype) else NotImplemented,
    "float": lambda input, **other: _cast(input, torch.float32),
    "bfloat16": lambda input, **other: _cast(input, torch.bfloat16),
    "half": lambda input, **other: _cast(input, torch.float16),
    "reshape": _reshape, "view": _view, "flatten": _flatten, "unflatten": _unflatten,
    "permute": _permute, "transpose": _transpose, "swapaxes": _transpose, "movedim": _movedim,
    "moveaxis": _movedim, "squeeze": _squeezing("squeeze"), "unsqueeze": _squeezing("unsqueeze"),
    "is_contiguous": _is_contiguous, "stride": _stride, "as_strided": _as_strided,
    "storage_offset": lambda input: own_form(input).storage_offset(),
    "ravel": lambda input: _reshape(input, -1),
    "reshape_as": lambda input, other: _reshape(input, *other.shape),
    "view_as": lambda input, other: _view(input, *other.shape),
    "contiguous": _contiguous, "clone": _clone, "split": _split, "chunk": _chunk,
    "detach": lambda input: input,
    "repeat": _repeat, "repeat_interleave": _repeat_interleave,
    "pixel_shuffle": _pixel_shuffle, "pixel_unshuffle": _pixel_unshuffle,
    "__getitem__": _getitem,
}
