# SPDX-License-Identifier: Apache-2.0
"""What lies between the convolutions of an accelerated model: copies, sizes, attention."""

import itertools
import unittest
import unittest.mock

import torch
import torch.nn.functional as F
from convoy import _attention, _layout


class Layouts(unittest.TestCase):
    """Copies with channels innermost, in units of 16 bytes too, as on a GPU."""

    def both(self, check):
        for devices in ({"cuda"}, {"cuda", "cpu"}):
            for channels in (8, 16, 5, 12):
                for dtype in (torch.bfloat16, torch.float32):
                    with (self.subTest(devices=devices, channels=channels, dtype=dtype),
                          unittest.mock.patch.object(_layout, "_wide_devices", devices)):
                        x = torch.randn(2, channels, 3, 5, 6).to(dtype)
                        check(x.contiguous(memory_format=torch.channels_last_3d))
                        check(x)
                        check(x.contiguous(memory_format=torch.channels_last_3d)[:, :, 1:, :, 2:])

    def same(self, got, expected):
        self.assertTrue(_layout.is_inner(got))
        torch.testing.assert_close(got, expected, rtol=0, atol=0)

    def test_pad(self):
        def check(x):
            for modes in (("zero",) * 3, ("replicate",) * 3, ("replicate", "zero", "zero"),
                          ("zero", "reflect", "reflect")):
                begin, end = (1, 2, 0), (0, 1, 3)
                expected = x.float()
                for axis, mode in enumerate(modes):
                    sides = [0] * 6
                    sides[4 - 2 * axis], sides[5 - 2 * axis] = begin[axis], end[axis]
                    expected = F.pad(expected, sides, mode="constant" if mode == "zero" else mode)
                self.same(_layout.pad(x, begin, end, modes), expected.to(x.dtype))

        self.both(check)

    def test_upsample_cat_stack_and_reshape(self):
        def check(x):
            self.same(_layout.upsample(x, (1, 2, 3)), F.interpolate(
                x.float(), scale_factor=(1, 2, 3)).to(x.dtype))
            got = _layout.cat([x[:, :, :1], x, x], 2)
            torch.testing.assert_close(got, torch.cat([x[:, :, :1], x, x], 2), rtol=0, atol=0)
            self.assertEqual(_layout.is_inner(got), x.stride(1) == 1)
            if x.stride(1) == 1:
                self.same(_layout.cat([x, x], 0), torch.cat([x, x], 0))
            got = _layout.stack([x, x + 1], 3)
            torch.testing.assert_close(got, torch.stack([x, x + 1], 3), rtol=0, atol=0)
            self.assertEqual(_layout.is_inner(got), x.stride(1) == 1)
            y = x.permute(0, 2, 1, 3, 4)
            self.same(_layout.reshape(y, (-1, *y.shape[2:])), y.reshape(-1, *y.shape[2:]))
            n, c, d, h, w = x.shape
            z = x[..., :w // 2 * 2].reshape(n, c, d, h, -1, 2).permute(0, 1, 5, 2, 3, 4)
            self.same(_layout.reshape(z, (n, 2 * c, d, h, -1)), z.reshape(n, 2 * c, d, h, -1))

        self.both(check)

    def test_sizes_that_memory_can_be_seen_in(self):
        """As PyTorch answers, of memory in any order, with gaps and repetitions."""
        shapes = ((2, 3, 4), (4, 1, 6), (1, 1), (24,), (), (3, 0, 2), (2, 2, 3, 2))
        sizes = ((24,), (6, 4), (2, 12), (-1,), (-1, 6), (4, -1, 2), (2, 3, 4), (1, 2, 3, 1, 4),
                 (3, 8), (5, -1), (-1, -1), (0, -1), (-2, -12), (1,), (), (0, 5), (12, 2, 1))
        views = 0
        for shape, order in ((s, o) for s in shapes for o in itertools.permutations(range(len(s)))):
            whole = torch.empty(shape).permute(order)
            gaps = torch.empty([2 * n for n in shape])[(slice(None, None, 2),) * len(shape)]
            wider = torch.empty([n + 1 for n in shape])[tuple(slice(n) for n in shape)]
            repeated = torch.empty([1 if i == 0 else n for i, n in enumerate(shape)]).expand(shape)
            for tensor, wanted in itertools.product((whole, gaps, wider, repeated), sizes):
                with self.subTest(shape=tensor.shape, strides=tensor.stride(), sizes=wanted):
                    try:
                        legal = tuple(torch.empty(tensor.shape).reshape(wanted).shape)
                    except RuntimeError:
                        legal = None
                    self.assertEqual(_layout.resolved(tensor.shape, wanted), legal)
                    if legal is None:
                        with self.assertRaises(RuntimeError):
                            _layout.reshape(tensor, wanted)
                        continue
                    try:
                        expected = tensor.view(wanted) is not None
                    except RuntimeError:
                        expected = False
                    got = _layout.is_view(tensor.shape, tensor.stride(), legal)
                    self.assertEqual(got, expected)
                    views += got
        self.assertGreater(views, 100)

    def test_attention_by_rows(self):
        q, k, v = torch.randn(3, 2, 3, 70, 20)
        expected = F.scaled_dot_product_attention(q, k, v)
        got = _attention.attend_by_rows(q, k, v, rows=32)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    unittest.main()
