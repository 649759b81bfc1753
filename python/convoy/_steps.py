# SPDX-License-Identifier: Apache-2.0
"""Native code that is run on the memory of tensors past PyTorch's dispatcher, for who notes what a
call does (_tape.py)."""

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
