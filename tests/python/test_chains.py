# SPDX-License-Identifier: Apache-2.0
"""Chains of pointwise functions: what they are made of, and the kernel's steps done in Python."""

import ctypes
import operator
import typing
import unittest
from unittest import mock

import convoy
import torch
import torch.nn.functional as F
from convoy import _chains
from torch import nn

_STEPS = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul,
          "subtract_from": lambda v, x: x - v}


class Plan:
    """As convoy._plan.ElementwisePlan, of fp32 on the CPU, element by element."""

    made: typing.ClassVar[list] = []

    def __init__(self, extents, operands, steps, dtype, device_index):
        self.extents, self.operands, self.steps = extents, operands, steps
        Plan.made.append(self)

    def operand(self, address, strides, ratio, offset):
        at = torch.meshgrid(*(torch.arange(e) for e in self.extents), indexing="ij")
        at = [at[0], *((a + o) // r for a, r, o in zip(at[1:4], ratio, offset)), at[4]]
        index = sum(a * s for a, s in zip(at, strides))
        memory = (ctypes.c_float * (int(index.max()) + 1)).from_address(address)
        return torch.frombuffer(memory, dtype=torch.float32)[index]

    def run(self, output, addresses, coefficients=None, stream=None):
        x = [self.operand(a, *operand) for a, operand in zip(addresses, self.operands)]
        n, _, _, _, c = self.extents
        v, kept = x[0], None
        for op, operand, number, name, *_ in self.steps:
            value = number if operand == -1 else kept if operand == -2 else x[operand]
            if op == "load":
                kept, v = v, value
            elif op == "activation":
                v = {"silu": F.silu, "sigmoid": torch.sigmoid, "relu": F.relu}[name](v)
            elif op == "affine":
                memory = (ctypes.c_float * (2 * n * c)).from_address(coefficients)
                scale, shift = torch.frombuffer(memory, dtype=torch.float32).reshape(
                    2, n, 1, 1, 1, c)
                v = v * scale + shift
            else:
                v = _STEPS[op](v, value)
        memory = (ctypes.c_float * v.numel()).from_address(output)
        torch.frombuffer(memory, dtype=torch.float32).copy_(v.reshape(-1))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 3, padding=1)
        self.norm = nn.GroupNorm(4, 16)
        self.scale, self.shift = nn.Conv2d(4, 16, 1), nn.Conv2d(4, 16, 1)
        self.mix = nn.Parameter(torch.tensor([0.3]))
        self.step = None

    def modulated(self, h, z):
        z = F.interpolate(z, size=h.shape[-2:])
        return F.silu(self.norm(h) * self.scale(z) + self.shift(z))

    def blend(self, h, z):
        alpha = torch.sigmoid(self.mix)
        return alpha * h + (1.0 - alpha) * self.conv(h)

    def gate(self, h, z):
        a, b = h.chunk(2, 1)
        return a * torch.sigmoid(b)

    def rows(self, h, z):
        return torch.sigmoid(h[:, :, 1:4]) * h[:, :, 5:]

    def columns_of_planes(self, h, z):
        h = h.permute(0, 2, 3, 1)[:, :, 2:9]
        return torch.sigmoid(h) * h - 1.0

    def repeated(self, h, z):
        h = h[:, :1].expand(2, 16, 8, 12)
        return torch.sigmoid(h) * h

    def long(self, h, z):
        a, b = h - 1.0, 2.0 - h
        a, b = (a * 0.5 - b) * (h - b), F.relu(a + 0.25) - (b - h) * (a + b)
        return a - b

    def forward(self, x, z):
        return self.step(self.conv(x), z)


class Chains(unittest.TestCase):
    def check(self, name, plans):
        torch.manual_seed(0)
        model = Model().eval()
        model.step = getattr(model, name)
        x, z = torch.randn(2, 16, 8, 12), torch.randn(2, 4, 4, 3)
        with torch.no_grad():
            want = model(x, z)
            convoy.accelerate(model, probe=False)
            Plan.made.clear()
            got = model(x, z)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        self.assertEqual(len(Plan.made), plans)
        return Plan.made

    def setUp(self):
        for patch in (mock.patch.dict(_chains.LEAST_BYTES, cpu=0),
                      mock.patch.object(_chains, "DEVICES", {"cpu"}),
                      mock.patch.object(_chains, "cached_elementwise", Plan)):
            patch.start()
            self.addCleanup(patch.stop)

    def test_norm_modulated_by_fewer_pixels(self):
        plan, = self.check("modulated", 1)
        self.assertEqual([step[0] for step in plan.steps],
                         ["affine", "multiply", "add", "activation"])
        self.assertEqual([ratio for _, ratio, _ in plan.operands],
                         [(1, 1, 1), (1, 2, 4), (1, 2, 4)])

    def test_blend(self):
        plan, = self.check("blend", 1)
        self.assertEqual([step[0] for step in plan.steps], ["multiply", "load", "multiply", "add"])

    def test_some_channels_of_a_tensor(self):
        plan, = self.check("gate", 1)
        self.assertEqual(plan.extents, (2, 1, 8, 12, 8))
        self.assertEqual([strides for strides, _, _ in plan.operands],
                         [(8 * 12 * 16, 0, 12 * 16, 16, 1)] * 2)

    def test_rows_of_a_tensor_keep_their_order(self):
        plan, = self.check("rows", 1)
        self.assertEqual(plan.extents, (2, 1, 3, 12, 16))
        self.check("columns_of_planes", 1)

    def test_what_has_no_memory_of_its_own_is_left(self):
        self.check("repeated", 0)

    def test_long(self):
        for plan in self.check("long", 2):
            self.assertLessEqual(len(plan.steps), 12)


if __name__ == "__main__":
    unittest.main()
