# SPDX-License-Identifier: Apache-2.0
"""Whether a weight's numbers may have changed since something was made of them: PyTorch's count of
writes, and each look at `weight.data`, whose writes PyTorch does not count."""

import torch

_own = torch.nn.Parameter.data  # PyTorch's own attribute.
# How often .data of each parameter was asked for or set, by the parameter's id. NOTE: that another
# one may get the id of one that is gone does no harm: what is kept holds a reference beside it.
looks: dict[int, int] = {}


def _get(parameter):
    looks[id(parameter)] = looks.get(id(parameter), 0) + 1
    return _own.__get__(parameter)


def _set(parameter, value):
    # NOTE: the memory may be where that of a value before it was.
    looks[id(parameter)] = looks.get(id(parameter), 0) + 1
    _own.__set__(parameter, value)


def watch():
    """From now on looks at `.data` of parameters are counted: most are made to write there. What is
    kept of a look and written to after a call is not seen."""
    if "data" not in vars(torch.nn.Parameter):
        torch.nn.Parameter.data = property(_get, _set, None, _own.__doc__)


def version_of(tensor):
    """Changes with each write that is seen; see `state` for who writes elsewhere."""
    return None if tensor.is_inference() else tensor._version, looks.get(id(tensor))


def state(tensor):
    """Changes with the tensor's numbers, as far as they are seen."""
    return tensor.data_ptr(), *version_of(tensor)
