# SPDX-License-Identifier: Apache-2.0
"""What is one step of a call for who notes what it does (_tape.py): native code that is run on the
memory of tensors past PyTorch's dispatcher, and PyTorch's own functions."""

import functools
import threading

thread = threading.local()  # .recorder: of the call that goes on.


def step(function):
    """A function that runs native code on the memory of tensors, which PyTorch does not see: it is
    noted whole. It takes tensors, lists of them, and what is the same in each call of the same
    shapes; it gives a new tensor."""

    @functools.wraps(function)
    def call(*args):
        recorder = getattr(thread, "recorder", None)
        return function(*args) if recorder is None else recorder.noted(function, args)

    return call


def run(function, args, kwargs):
    """function(*args, **kwargs), one of PyTorch's, on tensors. NOTE: noted whole, not by the
    operators that it is made of: to ask for one costs the host as much as for the other."""
    recorder = getattr(thread, "recorder", None)
    return function(*args, **kwargs) if recorder is None else recorder.run(function, args, kwargs)
