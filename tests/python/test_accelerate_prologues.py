# SPDX-License-Identifier: Apache-2.0
"""convoy.accelerate: a GroupNorm, its activation and the convolution behind it as one call."""

import copy
import unittest
from unittest import mock

import convoy
import torch
import torch.nn.functional as F
from convoy import _layout, _measure, _operators, _prologues, _trial
from support import error

FUSED = "group_norm + conv"


class Normalised(torch.nn.Module):
    """step(norm, conv, x): what the model computes."""

    def __init__(self, step, axes=2, activation=F.silu, **conv):
        super().__init__()
        self.norm = torch.nn.GroupNorm(4, 16)
        kind = torch.nn.Conv2d if axes == 2 else torch.nn.Conv3d
        self.conv = kind(16, 16, 3, **{"padding": 1, **conv})
        torch.nn.init.normal_(self.norm.weight)
        torch.nn.init.normal_(self.norm.bias)
        self.activation, self.step = activation, step

    def forward(self, x):
        return self.step(lambda y: self.activation(self.norm(y)), self.conv, x)


def plain(norm, conv, x):
    return conv(norm(x))


class Prologues(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        unmeasured = mock.patch.object(_prologues, "UNMEASURED", {"cpu"})
        unmeasured.start()
        self.addCleanup(unmeasured.stop)
        _measure.choices.clear()
        self.addCleanup(_measure.choices.clear)

    def run_of(self, model, *inputs, calls=2, **options):
        """(report, its last output) of a model in bf16, no farther from fp32 than PyTorch's own."""
        exact = copy.deepcopy(model).eval()
        model = model.eval().bfloat16()
        exact.load_state_dict({k: v.float() for k, v in model.state_dict().items()})
        inputs = [x.bfloat16() for x in inputs]
        with torch.no_grad():
            expected = exact(*(x.float().clone() for x in inputs))
            eager = error(model(*(x.clone() for x in inputs)), expected)
            convoy.accelerate(model, **options)
            for _ in range(calls):
                got = model(*(x.clone() for x in inputs))
                self.assertLess(error(got, expected), 1.2 * eager)
        return convoy.report(model), got

    def operations(self, report):
        return [part.operation for part in report.taken]

    def test_what_is_one_call(self):
        x, frames = torch.randn(2, 16, 9, 10), torch.randn(1, 16, 3, 8, 6)
        for name, model, given in (
            ("plain", Normalised(plain), x),
            ("no activation", Normalised(plain, activation=lambda y: y), x),
            ("gelu", Normalised(plain, activation=F.gelu), x),
            ("stride", Normalised(plain, stride=2), x),
            ("replicate", Normalised(plain, padding_mode="replicate"), x),
            ("reflect", Normalised(plain, padding_mode="reflect"), x),
            ("frames", Normalised(plain, axes=3), frames),
            ("repeated frames", Normalised(lambda n, c, y: F.conv3d(
                F.pad(n(y), (1, 1, 1, 1, 2, 0), "replicate"), c.weight, c.bias), axes=3), frames),
            ("residual", Normalised(lambda n, c, y: y + c(n(y))), x),
            ("activation behind it", Normalised(lambda n, c, y: F.relu(c(n(y)))), x),
            ("no bias", Normalised(plain, bias=False), x),
            ("not channels-last", Normalised(plain), x.transpose(2, 3)),
        ):
            with self.subTest(name):
                report, _ = self.run_of(model, given)
                self.assertEqual([o[:len(FUSED)] for o in self.operations(report)], [FUSED])
                self.assertEqual(report.fused["norm and convolution"], 2)
                self.assertEqual(report.taken[0].calls, 2)

    def test_what_is_not(self):
        x = torch.randn(2, 16, 8, 10)
        for name, model, options in (
            ("exact", Normalised(plain), {"quality": "exact"}),
            ("tanh", Normalised(plain, activation=torch.tanh), {}),
            ("another rule", Normalised(lambda n, c, y: c(F.instance_norm(y))), {}),
            ("upsampling", Normalised(lambda n, c, y: c(F.interpolate(
                n(y), scale_factor=2.0, mode="nearest"))), {}),
        ):
            with self.subTest(name):
                report, _ = self.run_of(model, x, **options)
                self.assertNotIn("norm and convolution", report.fused)

    def test_fp32_is_not(self):
        model, x = Normalised(plain).eval(), torch.randn(2, 16, 8, 10)
        with torch.no_grad():
            expected = model(x)
            torch.testing.assert_close(convoy.accelerate(model)(x), expected, rtol=1e-5, atol=1e-5)
        self.assertNotIn("norm and convolution", convoy.report(model).fused)

    def test_a_norm_that_others_read(self):
        def twice(norm, conv, y):
            h = norm(y)
            return conv(h) + conv(h)

        def itself(norm, conv, y):
            h = norm(y)
            return conv(h) + h

        for step in (twice, itself):
            with self.subTest(step.__name__):
                report, _ = self.run_of(Normalised(step), torch.randn(2, 16, 8, 10), calls=4)
                # The first call finds out.
                self.assertLessEqual(report.fused.get("norm and convolution", 0), 1)

    def test_writes_to_what_is_normalised(self):
        def step(norm, conv, y):
            h = norm(y)
            y.add_(1)
            return conv(h) + y

        self.run_of(Normalised(step), torch.randn(2, 16, 8, 10))

    def test_weights_that_change(self):
        model = Normalised(plain).eval().bfloat16()
        x = torch.randn(2, 16, 8, 10).bfloat16()
        with torch.no_grad():
            convoy.accelerate(model)(x)
            for parameter in model.parameters():
                parameter.mul_(-0.5)
                got = model(x)
                other = convoy.restore(copy.deepcopy(model))
                self.assertLess(error(got, other(x)), 1e-2)

    @unittest.skipIf(_operators.library is None, _operators.why_not)
    def test_coefficients_are_checked(self):
        model, x = Normalised(plain).eval().bfloat16(), torch.randn(2, 16, 8, 10).bfloat16()
        with torch.no_grad():
            expected = convoy.accelerate(model)(x)
            ((pair, _),) = getattr(model, _trial.MARK)[0]._pairs.values()
            number, packed = pair._conv.number_and_filter(model.conv.weight)
            right = pair._norm(_layout.inner_copy(x), model.norm.weight, model.norm.bias)
            self.assertEqual(right.shape, (2, 2, 16))

            def call(coefficients):
                return torch.ops.convoy._run_conv(number, packed, x, None, model.conv.bias, None,
                                                  None, coefficients)

            torch.testing.assert_close(call(right), expected, rtol=0, atol=0)
            for wrong, text in (
                (right[:, :, 1:].contiguous(), r"coefficients are \(2, 2, 15\)"),
                (right.double(), "coefficients"), (right.bfloat16(), "legal: dense"),
                (right.transpose(1, 2), "legal: dense"), (None, "prologue"),
            ):
                with self.subTest(text), self.assertRaisesRegex(RuntimeError, text):
                    call(wrong)

    def test_the_quicker_way_is_taken(self):
        x = torch.randn(2, 16, 8, 10)
        for one, fused in ((90.0, True), (99.0, False), (120.0, False)):
            _measure.choices.clear()
            with self.subTest(one), mock.patch.object(_measure, "DEVICES", {"cpu"}), \
                    mock.patch.object(_measure, "microseconds", lambda ways, device: {
                        name: one if name == "one" else 100.0 for name in ways}):
                report, _ = self.run_of(Normalised(plain), x)
                self.assertEqual("norm and convolution" in report.fused, fused)
                # What was only measured is not reported.
                self.assertEqual(len(report.taken) + len(report.left), 1 if fused else 2)


if __name__ == "__main__":
    unittest.main()
