# SPDX-License-Identifier: Apache-2.0
"""convoy.accelerate: norms written out, batch norms in the weights before them, instance norms."""

import copy
import itertools
import unittest

import convoy
import numpy
import torch
import torch.nn.functional as F
from support import Accelerated, Then


class Norms(Accelerated):
    def test_norms_written_out(self):
        class Norms(Then):
            def __init__(self, step):
                super().__init__(step)
                self.weight = torch.nn.Parameter(torch.randn(16))

            def forward(self, x):
                return self.step(self.conv(x), self.weight)

        def last_axis(y, w):
            y = y.movedim(1, -1)
            y = y * torch.rsqrt(y.float().pow(2).mean(-1, keepdim=True) + 1e-6)
            return F.silu((y * w).movedim(-1, 1))

        def root(y, w):
            return y / torch.sqrt(torch.mean(y**2, dim=1, keepdim=True) + 1e-8)

        def normalised(y, w):
            return F.normalize(y, dim=1) * 3 * w[:, None, None] + 0.0

        def functional(y, w):
            return F.rms_norm(y.permute(0, 2, 3, 1), (16,), w, 1e-6).permute(0, 3, 1, 2)

        for step in (last_axis, root, normalised, functional):
            with self.subTest(step.__name__):
                report = self.same(Norms(step), self.x)
                self.assertEqual([p.operation[:8] for p in report.taken], ["conv2d", "rms_norm"])
        # What only looks like one is left as it is.
        report = self.same(Norms(lambda y, w: y / torch.sqrt(
            torch.mean(y**2, dim=2, keepdim=True) + 1e-8)), self.x)
        self.assertEqual([p.operation for p in report.taken], ["conv2d"])

    def test_rms_norm_of_16_bits_without_epsilon(self):
        def step(y):
            return F.rms_norm(y.movedim(1, -1) * 1e-3, (16,))

        for dtype in (torch.bfloat16, torch.float16):
            self.same(Then(step).to(dtype), self.x.to(dtype), bound=2e-2)

    def test_instance_norms(self):
        class Instance(torch.nn.Module):
            def __init__(self, affine=True, tracks=False):
                super().__init__()
                self.conv = torch.nn.Conv2d(16, 16, 1)
                self.norm = torch.nn.InstanceNorm2d(16, affine=affine, track_running_stats=tracks)

            def forward(self, x):
                return F.leaky_relu(self.norm(self.conv(x)), 0.1)

        for affine in (False, True):
            report = self.same(Instance(affine), self.x)
            self.assertEqual([p.operation for p in report.taken],
                             ["conv2d", "group_norm + leaky_relu"])
        model = Instance(tracks=True)
        torch.nn.init.normal_(model.norm.running_mean)
        report = self.same(model, self.x)
        self.assertEqual([p.operation for p in report.taken], ["conv2d + leaky_relu"])
        # Statistics that are kept change in training mode.
        model.norm.train()
        before = model.norm.running_mean.clone()
        with torch.no_grad():
            model(self.x)
        self.assertFalse(torch.equal(model.norm.running_mean, before))

    def test_norms_by_their_operators(self):
        mean, variance = torch.randn(16), torch.rand(16) + 0.5
        for step, fused in (
            (lambda y: torch.batch_norm(y, mean, variance, mean, variance, False, 0.1, 1e-5, True),
             {"convolution and batch norm": 2}),
            (lambda y: torch.instance_norm(
                y, mean, variance, None, None, True, 0.1, 1e-5, True), {}),
        ):
            self.assertEqual(self.same(Then(step), self.x).fused, fused)

    def test_a_norm_of_slices_is_one(self):
        class Slices(torch.nn.Module):
            def __init__(self, order):
                super().__init__()
                self.conv, self.norm = torch.nn.Conv2d(16, 16, 1), torch.nn.GroupNorm(4, 16)
                self.order = order

            def forward(self, x):
                parts = self.conv(x).split(2)
                return F.silu(torch.cat([self.norm(parts[i]) for i in self.order]))

        x = torch.randn(5, 16, 6, 5)
        for order, norms in (((0, 1, 2), 1), ((1, 0, 2), 2), ((0, 1), 1), ((0, 0, 1, 2), 2)):
            report = self.same(Slices(order), x)
            found = [p for p in report.taken if p.operation.startswith("group_norm")]
            self.assertEqual(len(found), norms, order)
            whole = any(p.shape[0] == 5 and p.operation.endswith("silu") for p in found)
            self.assertEqual(whole, order == (0, 1, 2))

    def test_a_sum_of_a_convolution_and_its_norm_in_other_axes(self):
        norm = torch.nn.GroupNorm(4, 16)
        for step in (lambda y: y.transpose(-1, -2), lambda y: y.flatten(2).unflatten(2, (8, 8))):
            class Net(torch.nn.Module):
                def __init__(self, step=step):
                    super().__init__()
                    self.conv, self.norm, self.step = torch.nn.Conv2d(16, 16, 1), norm, step

                def forward(self, x):
                    y = self.conv(x)
                    return y + self.step(self.norm(y))

            self.same(Net(), self.x[..., :8])

    def test_batch_norms_are_folded(self):
        class Residual(torch.nn.Module):
            """As classifiers write it."""

            def __init__(self, axes=2, bias=False, affine=True, groups=1):
                super().__init__()
                conv = (torch.nn.Conv2d, torch.nn.Conv3d)[axes - 2]
                norm = (torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)[axes - 2]
                self.conv1 = conv(16, 32, 3, padding=1, bias=bias, groups=groups)
                self.norm1, self.relu = norm(32, affine=affine), torch.nn.ReLU6(inplace=True)
                self.conv2, self.norm2 = conv(32, 16, 1, bias=bias), norm(16, affine=affine)

            def forward(self, x):
                y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
                y += x
                return F.relu(y, inplace=True)

        def vary(model):
            for norm in (m for m in model.modules() if hasattr(m, "running_mean")):
                norm.running_mean.normal_()
                norm.running_var.uniform_(0.2, 3)
                if norm.affine:
                    torch.nn.init.normal_(norm.weight)
                    torch.nn.init.normal_(norm.bias)
            return model

        for axes, bias, affine, groups in itertools.product((2, 3), (False, True), (False, True),
                                                            (1, 16)):
            with self.subTest(axes=axes, bias=bias, affine=affine, groups=groups):
                x = self.x if axes == 2 else self.x.unsqueeze(2).repeat(1, 1, 3, 1, 1)
                report = self.same(vary(Residual(axes, bias, affine, groups)), x)
                self.assertEqual(sorted(p.operation.split(" + ", 1)[1] for p in report.taken),
                                 ["padding + clamp", "residual + relu"])
                self.assertEqual({p.name for p in report.taken}, {"conv1", "conv2"})
                self.assertEqual(report.fused["convolution and batch norm"], 4)
        # Each of the six sources is followed.
        model = vary(Residual(bias=True)).eval()
        plain = copy.deepcopy(model)
        convoy.accelerate(model)
        with torch.no_grad():
            for name in ("conv1.weight", "conv1.bias", "norm1.weight", "norm1.bias",
                         "norm1.running_mean", "norm1.running_var"):
                model(self.x)
                for one in (model, plain):
                    one.state_dict()[name].mul_(1.5).add_(0.1)
                torch.testing.assert_close(model(self.x), plain(self.x), rtol=1e-5, atol=1e-5)
            other = vary(Residual(bias=True)).state_dict()
            for one in (model, plain):
                one.load_state_dict(other)
            torch.testing.assert_close(model(self.x), plain(self.x), rtol=1e-5, atol=1e-5)
            # Other memory of the same version, and other tensors over the same memory.
            numbers = numpy.ones(32, numpy.float32)
            for i in range(1, 4):
                for name in ("weight", "bias", "running_mean", "running_var"):
                    values = torch.rand(32) + i
                    for one in (model, plain):
                        getattr(one.norm1, name).data = values.clone()
                    torch.testing.assert_close(model(self.x), plain(self.x), rtol=1e-5, atol=1e-5)
                numbers[:] = i * 2
                for one in (model, plain):
                    one.norm1.running_var = torch.from_numpy(numbers)
                torch.testing.assert_close(model(self.x), plain(self.x), rtol=1e-5, atol=1e-5)
            numbers = numbers.copy()
            for i in range(1, 4):
                numbers[:] = i * 2
                for one in (model, plain):
                    one.norm1.bias = torch.nn.Parameter(torch.from_numpy(numbers), False)
                torch.testing.assert_close(model(self.x), plain(self.x), rtol=1e-5, atol=1e-5)
            # Another norm after the same convolution is another weight.
            model.norm1, plain.norm1 = [copy.deepcopy(vary(m)) for m in (plain.norm1,) * 2]
            model.norm1.load_state_dict(plain.norm1.state_dict())
            torch.testing.assert_close(model(self.x), plain(self.x), rtol=1e-5, atol=1e-5)
        self.assertEqual(list(model.state_dict()), list(plain.state_dict()))
        # Rounded where the model rounds, where that is asked for.
        convoy.accelerate(model, quality="exact")
        with torch.no_grad():
            model(self.x)
        self.assertNotIn("convolution and batch norm", convoy.report(model).fused)

    def test_batch_norms_that_cannot_be_folded(self):
        class Both(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.norm = torch.nn.Conv2d(16, 16, 1), torch.nn.BatchNorm2d(16)

            def forward(self, x):
                y = self.conv(x)
                return self.norm(y), self.norm(self.norm(x)), y

        report = self.same(Both(), self.x)  # The first call finds out.
        self.assertEqual(report.fused, {"convolution and batch norm": 1})
        self.assertEqual(sorted(p.calls for p in report.taken), [1, 2])
        # Pixels in place of filters have other channels than the weight.
        report = self.same(torch.nn.Sequential(
            torch.nn.Conv2d(16, 16, 1), torch.nn.PixelShuffle(2), torch.nn.BatchNorm2d(4)), self.x)
        self.assertEqual(report.fused, {"depth to space": 2})
        # In fp16 the folded weight would be infinite; the norm's output is not.
        model = torch.nn.Sequential(torch.nn.Conv2d(16, 16, 1, bias=False),
                                    torch.nn.BatchNorm2d(16, eps=1e-8)).half().eval()
        with torch.no_grad():
            model[0].weight.fill_(1e-3)
            model[1].running_var.zero_()
            model[1].weight.fill_(6e4)
            x = torch.full((1, 16, 2, 2), 1e-3, dtype=torch.float16)
            expected = model(x)
            convoy.accelerate(model)
            for _ in range(2):  # The second finds what the first has folded.
                torch.testing.assert_close(model(x), expected, rtol=1e-2, atol=0)
        self.assertTrue(expected.isfinite().all())
        self.assertEqual(convoy.report(model).fused, {})


if __name__ == "__main__":
    unittest.main()
