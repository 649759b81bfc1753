# SPDX-License-Identifier: Apache-2.0
"""What the tests of accelerated models share. Importing it gives PyTorch two threads."""

import contextlib
import copy
import importlib.util
import os
import unittest
import unittest.mock

import convoy
import torch
import torch.nn.functional as F
from convoy import _measure, _trial

torch.set_num_threads(2)

# NOTE: only those that need diffusers import it, which takes five seconds.
os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
needs_diffusers = unittest.skipIf(importlib.util.find_spec("diffusers") is None, "no diffusers")


def use_test_device():
    """Tensors are made on CONVOY_TEST_DEVICE: cuda, where the library has no CPU backend."""
    if os.environ.get("CONVOY_TEST_DEVICE"):
        torch.set_default_device(os.environ["CONVOY_TEST_DEVICE"])
        torch.backends.cudnn.allow_tf32 = False


def error(got, expected):
    return ((got.double() - expected.double()).norm() / expected.double().norm()).item()


class Block(torch.nn.Module):
    """As older code writes it."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.GroupNorm(4, 16)
        self.conv1 = torch.nn.Conv2d(16, 16, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(16, 16, 3, padding=1, padding_mode="reflect")

    def forward(self, x):
        h = self.norm(x)
        h = h * torch.sigmoid(h)
        h = self.conv1(h)
        return x + self.conv2(F.relu(h))


class Then(torch.nn.Module):
    """A convolution, and behind it what a test wants."""

    def __init__(self, step, filters=16, size=1):
        super().__init__()
        self.conv = torch.nn.Conv2d(16, filters, size, padding=size // 2)
        self.step = step

    def forward(self, x):
        return self.step(self.conv(x))


class Accelerated(unittest.TestCase):
    """Models beside themselves, accelerated."""

    bound, probe = 1e-5, True

    def setUp(self):
        torch.manual_seed(0)
        self.x = torch.randn(2, 16, 8, 10)

    def same(self, model, *inputs, bound=None):
        """The report after two calls, each of which gave what the model gives without Convoy."""
        bound = bound or self.bound
        model.eval()
        with torch.no_grad():
            expected = model(*copy.deepcopy(inputs))
            convoy.accelerate(model, probe=self.probe)
            for _ in range(2):
                got = model(*inputs)
                torch.testing.assert_close(got, expected, rtol=bound, atol=bound)
        return convoy.report(model)


@contextlib.contextmanager
def measured(microseconds=lambda ways, device: dict.fromkeys(ways, 1.0), milliseconds=None):
    """Shapes and calls are measured here as on a GPU, by clocks that say this."""
    _measure.choices.clear()
    with (unittest.mock.patch.object(_measure, "DEVICES", {"cpu"}),
          unittest.mock.patch.object(_measure, "microseconds", microseconds),
          unittest.mock.patch.object(_trial, "_milliseconds",
                                     milliseconds or _trial._milliseconds)):
        try:
            yield
        finally:
            _measure.choices.clear()


def clock(plain, accelerated, host=1.0):
    """One by which calls take this many ms, and the host this share of them."""
    def timed(run, device):
        took = {"plain": plain, "accelerated": accelerated}[_trial.settled()]
        return run(), took * host, took

    return timed
