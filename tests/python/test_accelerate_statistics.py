# SPDX-License-Identifier: Apache-2.0
"""convoy.accelerate: statistics of a GroupNorm by the convolution in front of it."""

import copy
import unittest
from unittest import mock

import convoy
import torch
import torch.nn.functional as F
from convoy import _layout, _measure, _operators, _prologues, _statistics, _trial
from support import error

KIND = "convolution and statistics"


class Block(torch.nn.Module):
    """step(self, x): what the model computes."""

    def __init__(self, step, axes=2, channels=16, **conv):
        super().__init__()
        kind = torch.nn.Conv2d if axes == 2 else torch.nn.Conv3d
        self.first = kind(channels, channels, 3, **{"padding": 1, **conv})
        self.second = kind(channels, channels, 3, padding=1)
        self.norm, self.other = (torch.nn.GroupNorm(4, channels) for _ in range(2))
        for part in (self.norm, self.other):
            torch.nn.init.normal_(part.weight, 1.0, 0.5)
            torch.nn.init.normal_(part.bias)
        # Means far from zero, so that wrong statistics show.
        torch.nn.init.normal_(self.first.bias, 2.0)
        self.step = step

    def forward(self, x):
        return self.step(self, x)


def plain(m, x):
    return m.second(F.silu(m.norm(m.first(x))))


def behind_a_residual(m, x):
    h = x + m.second(m.first(x))
    return h + m.second(F.silu(m.norm(h)))


def written_before(m, x):
    y = m.first(x)
    y.mul_(3.0)
    y.add_(x)
    return m.second(m.norm(y))


def written_between(m, x):
    y = m.first(x)
    h = m.norm(y)
    y.add_(1)
    return m.second(h) + y


def with_other_groups(m, x):
    y = m.first(x)
    return m.second(m.norm(y)) + F.group_norm(y, 2)


class Statistics(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        unmeasured = mock.patch.object(_statistics, "UNMEASURED", {"cpu"})
        unmeasured.start()
        self.addCleanup(unmeasured.stop)
        _measure.choices.clear()
        self.addCleanup(_measure.choices.clear)

    def run_of(self, model, x, calls=2, dtype=torch.bfloat16, **options):
        """The report of a model, no farther from fp32 than PyTorch's own."""
        exact = copy.deepcopy(model).eval()
        model, x = model.eval().to(dtype), x.to(dtype)
        exact.load_state_dict({k: v.float() for k, v in model.state_dict().items()})
        with torch.no_grad():
            expected = exact(x.float())
            eager = error(model(x.clone()), expected)
            convoy.accelerate(model, **options)
            for _ in range(calls):
                self.assertLess(error(model(x.clone()), expected), 1.2 * eager)
        return convoy.report(model)

    def test_what_brings_them(self):
        x, frames = torch.randn(2, 16, 9, 10), torch.randn(1, 16, 3, 8, 6)
        for name, model, given, count in (
            ("plain", Block(plain), x, 1),
            ("stride", Block(plain, stride=2), x, 1),
            ("fp16", Block(plain), x, 1),
            ("exact", Block(plain), x, 1),
            ("activation in front", Block(lambda m, y: m.norm(F.relu(m.first(y)))), x, 1),
            ("residual", Block(behind_a_residual), x, 1),
            ("frames", Block(plain, axes=3), frames, 1),
            ("replicate", Block(plain, padding_mode="replicate"), x, 1),
            ("pixels of filters", Block(lambda m, y: F.group_norm(
                F.pixel_shuffle(m.first(y), 2), 2)), x, 1),
            ("two", Block(lambda m, y: m.other(m.second(m.norm(m.first(y))))), x, 2),
            ("other groups too", Block(with_other_groups), x, 1),
            ("without parameters", Block(lambda m, y: F.group_norm(m.first(y), 4)), x, 1),
        ):
            with self.subTest(name):
                options = {"quality": "exact"} if name == "exact" else {}
                dtype = torch.float16 if name == "fp16" else torch.bfloat16
                report = self.run_of(model, given, dtype=dtype, **options)
                self.assertEqual(report.fused.get(KIND), 2 * count)

    def test_behind_and_in_front_of_prologues(self):
        """norm, convolution, norm, convolution, each norm the prologue of what follows."""
        model = Block(lambda m, y: m.second(F.silu(m.other(m.first(F.silu(m.norm(m.second(y))))))))
        with mock.patch.object(_prologues, "UNMEASURED", {"cpu"}):
            report = self.run_of(model, torch.randn(2, 16, 9, 10), calls=3)
        self.assertEqual(report.fused.get(KIND), 6)
        self.assertEqual(report.fused.get("norm and convolution"), 6)

    def test_writes(self):
        for step in (written_before, written_between):
            with self.subTest(step.__name__):
                self.run_of(Block(step), torch.randn(2, 16, 9, 10))

    def test_what_does_not(self):
        x, line = torch.randn(2, 16, 9, 10), torch.randn(2, 16, 12)
        conv = torch.nn.Conv1d(16, 16, 3, padding=1)
        for name, step, given in (
            ("a pooling", lambda m, y: m.norm(F.max_pool2d(m.first(y), 2)), x),
            ("one row", lambda m, y: F.group_norm(F.conv1d(
                y, conv.weight.to(y.dtype), conv.bias.to(y.dtype), padding=1), 4), line),
            ("an input", lambda m, y: m.first(m.norm(y)), x),
        ):
            with self.subTest(name):
                self.assertEqual(self.run_of(Block(step), given).fused.get(KIND, 0), 0)

    def test_fp32_does_not(self):
        model, x = Block(plain).eval(), torch.randn(2, 16, 9, 10)
        with torch.no_grad():
            expected = model(x)
            torch.testing.assert_close(convoy.accelerate(model)(x), expected, rtol=1e-4, atol=1e-4)
        self.assertNotIn(KIND, convoy.report(model).fused)

    def test_weights_that_change(self):
        model = Block(plain).eval().bfloat16()
        x = torch.randn(2, 16, 8, 10).bfloat16()
        with torch.no_grad():
            convoy.accelerate(model)(x)
            for parameter in model.parameters():
                parameter.mul_(-0.5)
                got = model(x)
                self.assertLess(error(got, convoy.restore(copy.deepcopy(model))(x)), 1e-2)

    @unittest.skipIf(_operators.library is None, _operators.why_not)
    def test_they_are_checked(self):
        model, x = Block(plain).eval().bfloat16(), torch.randn(2, 16, 8, 10).bfloat16()
        with torch.no_grad():
            convoy.accelerate(model)(x)
            session = getattr(model, _trial.MARK)[0]
            (conv,) = (call for call in session._with_statistics.values() if call is not None)
            (norm,) = (call for call, _ in session._norms.values())
            number, packed = conv.number_and_filter(model.first.weight)
            x = _layout.inner_copy(x)
            y, right = torch.ops.convoy._run_conv_statistics(
                number, packed, x, None, model.first.bias, None, None)
            parts = y.float().unflatten(1, (4, -1)).flatten(2)
            expected = torch.stack((parts.mean(2), parts.var(2, correction=0)), -1)
            torch.testing.assert_close(right, expected, rtol=1e-5, atol=1e-5)

            def call(statistics):
                return torch.ops.convoy._run_norm(norm.number.value, y, model.norm.weight,
                                                  model.norm.bias, statistics)

            torch.testing.assert_close(call(right), call(None), rtol=1e-2, atol=1e-2)
            self.assertFalse(torch.equal(call(right + 1), call(None)))
            for wrong in (right[:1], right.double(), right.bfloat16(), right.transpose(0, 1)):
                with self.assertRaisesRegex(RuntimeError, "statistics (are|is) .*; legal: "):
                    call(wrong)
            with self.assertRaisesRegex(RuntimeError, "statistics is null"):
                torch.ops.convoy._run_conv(number, packed, x, None, model.first.bias, None, None)

    def test_the_quicker_way_is_taken(self):
        for spent, taken in ((90.0, True), (99.0, False), (120.0, False)):
            _measure.choices.clear()
            with self.subTest(spent), mock.patch.object(_measure, "DEVICES", {"cpu"}), \
                    mock.patch.object(_measure, "microseconds", lambda ways, device: {
                        name: {"with": spent, "pytorch": 200.0}.get(name, 100.0)
                        for name in ways}):
                report = self.run_of(Block(plain), torch.randn(2, 16, 8, 10))
                self.assertEqual(KIND in report.fused, taken)
                # What was only measured is not reported.
                self.assertEqual(len(report.taken) + len(report.left), 3)

    def test_a_kernel_without_them_is_not_measured(self):
        """On a CPU they are a pass of their own, which gains nothing."""
        measured = []

        def microseconds(ways, device):
            measured.extend(ways)
            return dict.fromkeys(ways, 100.0)

        with mock.patch.object(_statistics, "UNMEASURED", set()), \
                mock.patch.object(_measure, "DEVICES", {"cpu"}), \
                mock.patch.object(_measure, "microseconds", microseconds):
            report = self.run_of(Block(plain), torch.randn(2, 16, 8, 10))
        self.assertNotIn(KIND, report.fused)
        self.assertNotIn("with", measured)


if __name__ == "__main__":
    unittest.main()
