# SPDX-License-Identifier: Apache-2.0
"""Whether a weight's numbers may have changed since something was made of them: PyTorch's count of
writes, and each look at `weight.data`, whose writes PyTorch does not count. And that what waits in
an accelerated call reads a weight before it is written to."""

import functools

import torch

from ._nodes import settle_readers

_own = torch.nn.Parameter.data  # PyTorch's own attribute.
# How often .data of each parameter was asked for or set, by the parameter's id. NOTE: that another
# one may get the id of one that is gone does no harm: what is kept holds a reference beside it.
looks: dict[int, int] = {}


def _get(parameter):
    settle_readers(parameter)
    looks[id(parameter)] = looks.get(id(parameter), 0) + 1
    return _own.__get__(parameter)


def _set(parameter, value):
    settle_readers(parameter)
    # NOTE: the memory may be where that of a value before it was.
    looks[id(parameter)] = looks.get(id(parameter), 0) + 1
    _own.__set__(parameter, value)


def _writing(name):
    """A method of parameters that writes to them."""
    own_method = getattr(torch.Tensor, name)

    @functools.wraps(own_method)
    def method(parameter, *args, **kwargs):
        settle_readers(parameter)
        return own_method(parameter, *args, **kwargs)

    return method


_IN_PLACE = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_WRITING = ["__setitem__", *(f"__i{name}__" for name in _IN_PLACE),
            *(name for name in dir(torch.Tensor)
              if name[-1:] == "_" and name[:1] != "_" and name != "requires_grad_")]


def watch():
    """From now on looks at `.data` of parameters are counted: most are made to write there. What is
    kept of a look and written to after a call is not seen. And their methods that write to them
    let what waits for them be computed first."""
    if "data" not in vars(torch.nn.Parameter):
        for name in _WRITING:
            setattr(torch.nn.Parameter, name, _writing(name))
        torch.nn.Parameter.data = property(_get, _set, None, _own.__doc__)


def version_of(tensor):
    """Changes with each write that is seen; see `state` for who writes elsewhere."""
    return None if tensor.is_inference() else tensor._version, looks.get(id(tensor))


def state(tensor):
    """Changes with the tensor's numbers, as far as they are seen."""
    return tensor.data_ptr(), *version_of(tensor)
