# SPDX-License-Identifier: Apache-2.0
"""Who sees what is written to a stand-in: views of one memory, clones that share it until somebody
writes, and numbers that lie apart where the model's own tensors would share memory. How those lie.
"""

import functools
import threading
import weakref

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ._layout import is_inner, suggests_inner
from ._nodes import Cat, Frames, Lent, Pad, Value, settle, twin


def own(deferred):
    """Its tensor, to be written to: what waits or was taken from it before keeps the old values,
    but for views, which see the new ones as PyTorch's do."""
    _join_views(deferred)
    tensor = deferred._node.force()
    if deferred._session and deferred._session.shards:
        deferred._session.shards.written()
    if deferred._viewed:
        settle()
        tensor = deferred._node.force()
    if not deferred._viewed or deferred._node.shared:
        tensor = tensor.clone()
        deferred._node, deferred._viewed = Value(tensor), True
    return tensor


class _Link:
    """Numbers that lie apart where the model's own tensors would share memory: there `copy` is a
    view of `source`. Both may be gone while views of them, or what they are views of, are not."""

    def __init__(self, source, copy):
        tensor = source._node.tensor
        self._memory = tensor.untyped_storage().data_ptr()
        self._geometry = tensor.shape, tensor.stride(), tensor.storage_offset()
        self._sources, self._copy = [], weakref.ref(copy)
        while source is not None:
            self._sources.append(weakref.ref(source))
            source = source._base

    def ends(self):
        """(stand-in, its part that the other end has) of both ends, those that are there."""
        copy = self._copy()
        if copy is None or copy._node.tensor is None:
            return ()
        for i, ref in enumerate(self._sources):
            source = ref()
            tensor = None if source is None else source._node.tensor
            if tensor is not None and i == 0:
                return (source, _whole), (copy, _whole)
            if tensor is not None and tensor.untyped_storage().data_ptr() == self._memory:
                return (source, lambda t: t.as_strided(*self._geometry)), (copy, _whole)
        return ()


def _whole(tensor):
    return tensor


_links = threading.local()  # .all: those of this thread.


def link(source, copy):
    """What is written to one of them is seen in the other: `write_through`."""
    _links.all = [found for found in getattr(_links, "all", ()) if found.ends()]
    _links.all.append(_Link(source, copy))
    source._viewed = True  # No write may go by another node.


def write_through(written):
    """Let those have the new values whose tensors would share memory with this one's without us."""
    waiting, left = [written._node.tensor], list(getattr(_links, "all", ()))
    while waiting and left:
        tensor = waiting.pop()
        for found in left.copy():
            ends = found.ends()
            for (this, of_this), (other, of_other) in (ends, ends[::-1]) if ends else ():
                if torch._C._is_alias_of(this._node.tensor, tensor):
                    target = of_other(own(other))
                    target.copy_(of_this(this._node.tensor).reshape(target.shape))
                    waiting.append(target)
                    left.remove(found)
                    break


def view_if_written(source, copy, step):
    """`copy` has the numbers of step(source's tensor), which the model's own would look at. It does
    too from the first write to one of them on; until then the source need not be computed."""
    _views.all = [found for found in getattr(_views, "all", ())
                  if found[0]() is not None and found[1]() is not None]
    _views.all.append((weakref.ref(source), weakref.ref(copy), step))


_views = threading.local()  # .all: (source, copy, step) of this thread.


def follow(copy, made, step):
    """Of a view `made` of such a copy: it has the source's numbers too."""
    for of_source, of_copy, first in list(getattr(_views, "all", ())):
        if of_copy() is copy and of_source() is not None:
            view_if_written(of_source(), made, lambda t, first=first: step(first(t)))


def _join_views(written):
    known = [(source(), copy(), step) for source, copy, step in getattr(_views, "all", ())]
    sources = {id(source) for source, copy, _ in known if source is written or copy is written}
    if not sources:
        return
    _views.all = [found for found in _views.all if id(found[0]()) not in sources]
    for source, copy, step in known:
        if source is None or copy is None or id(source) not in sources:
            continue
        node = alone(source)
        seen = step(node.force())
        if torch._C._is_alias_of(seen, node.tensor):
            copy._node, copy._base = value_on(seen, given=is_given(node), base=node), source
            source._viewed = copy._viewed = True
        else:
            copy._node = Value(seen)
            link(source, copy)


def value_on(tensor, part=None, given=False, base=None):
    if type(base) is Lent and not base.owned and torch._C._is_alias_of(tensor, base.tensor):
        return Lent(tensor, base)
    return Value(tensor, part, given)


_IN_FRAMES = (Pad, Cat, Frames)  # What waits to be read frame by frame, and goes on waiting.


def alone(x, in_frames=False):
    """Its node, before others may look at the same memory: one that no other stand-in has, with
    memory that those who look can be told of. in_frames: what waits and can be read frame by frame
    goes on waiting."""
    node = x._node
    if node.shared and in_frames and node.tensor is None and type(node) in _IN_FRAMES:
        node = x._node = twin(node)
    elif node.shared:
        node = x._node = lent(node)
    return node


def lent(node):
    """Another node of the same numbers, in the same memory until somebody writes; but in its own
    where it may be the caller's, who writes unseen."""
    tensor = node.force()
    return Value(tensor.clone()) if is_given(node) else Lent(tensor)


def stepped(node, step):
    """step(its tensor), which may be a view: of a clone that shares memory still it must see what
    is written to that."""
    tensor = node.force()
    made = step(tensor)
    if (type(node) is Lent and not node.owned and node.origin is None and looks_at(made, tensor)
            and not (tensor.is_contiguous() or is_inner(tensor))):
        node.own()  # Now, since its copy has other strides.
        made = step(node.force())
    return made


class Apart:
    """How a tensor of the model's own would lie: step(one that lies as `parent` says), or in
    `strides` of its own memory. A parent of None is a contiguous tensor of this shape."""

    __slots__ = ("form", "is_whole", "parent", "shape", "step", "strides")

    def __init__(self, parent, shape, step, strides=None):
        self.parent, self.shape, self.step, self.strides = parent, shape, step, strides
        self.form = None  # What step() gave.
        # Dense memory of its own: what is made of it number by number lies alike.
        self.is_whole = strides is not None and is_dense(shape, strides)


def laid_out(apart):
    """A tensor without memory that lies so. NOTE: none who watches operators sees it made."""
    if torch._C._len_torch_dispatch_stack():
        with _disable_current_modes():
            return _laid_out(apart)
    return _laid_out(apart)


def _laid_out(apart):
    waiting = []
    while apart is not None and apart.form is None:
        waiting.append(apart)
        apart = apart.parent
    form = None if apart is None else apart.form
    for apart in reversed(waiting):
        if apart.step is None:
            form = torch.empty_strided(apart.shape, apart.strides, device="meta")
        else:
            form = apart.step(torch.empty(apart.shape, device="meta") if form is None else form)
        apart.form, apart.strides = form, form.stride()
        apart.parent = apart.step = None
    return form


@functools.lru_cache(4096)
def strides_like(shape, strides):
    """Of torch.empty_like() of a tensor that has these."""
    if is_dense(shape, strides):
        return strides  # NOTE: a single image's too, which tensors without memory get anew.
    return torch.empty_like(torch.empty_strided(shape, strides, device="meta")).stride()


def new_like(form):
    """A tensor without memory that lies as torch.empty_like() of this one."""
    return torch.empty_strided(form.shape, strides_like(form.shape, form.stride()), device="meta")


@functools.lru_cache(4096)
def lies(shape, strides):
    """A tensor of its own memory in these strides."""
    return Apart(None, shape, None, strides)


def strides_along(shape, axes):
    """Of dense memory, from the innermost axis to the outermost."""
    strides, step = [0] * len(shape), 1
    for axis in axes:
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


@functools.lru_cache(4096)
def lies_inner(shape):
    """A dense one with channels innermost."""
    return lies(shape, strides_along(shape, (1, *range(len(shape) - 1, 1, -1), 0)))


def lies_as(tensor):
    """As a tensor that is the model's own; None where it is contiguous."""
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return None
    return lies(tensor.shape, tensor.stride())


def is_dense(shape, strides):
    """Without gaps, in whatever order."""
    expected = 1
    for stride, extent in sorted((s, n) for s, n in zip(strides, shape) if n != 1):
        if stride != expected:
            return False
        expected *= extent
    return True


def lie_alike(shape, strides, others):
    """Along all axes but those of one."""
    return all(a == b for n, a, b in zip(shape, strides, others) if n != 1)


def has_inner(x):
    """Whether PyTorch takes the model's own tensor as one with channels innermost."""
    apart = x._apart
    if apart is None or len(x._node.shape) not in (4, 5):
        return False
    if apart.strides is None:
        laid_out(apart)
    return suggests_inner(x._node.shape, apart.strides)


def own_form(x):
    """A tensor without memory that lies as the model's own would without us."""
    return torch.empty(x.shape, device="meta") if x._apart is None else laid_out(x._apart)


def looks_at(result, tensor):
    if isinstance(result, (tuple, list)):
        return any(looks_at(part, tensor) for part in result)
    return isinstance(result, torch.Tensor) and torch._C._is_alias_of(result, tensor)


def is_given(node):
    """Whether its memory may be the caller's."""
    return type(node) is Value and node.given
