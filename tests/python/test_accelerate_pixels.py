# SPDX-License-Identifier: Apache-2.0
"""convoy.accelerate: filters that become pixels (depth to space), and channels in other orders."""

import unittest

import torch
import torch.nn.functional as F
from support import Accelerated, Then


class Pixels(Accelerated):
    def test_filters_that_become_pixels(self):
        class Up(torch.nn.Module):
            def __init__(self, axes, filters, step):
                super().__init__()
                kind = torch.nn.Conv2d if axes == 2 else torch.nn.Conv3d
                self.conv, self.step = kind(16, filters, 3, padding=1), step

            def forward(self, x):
                return self.step(self.conv(x), x)

        def dc_ae(y, x):
            return F.pixel_shuffle(y, 2) + F.pixel_shuffle(x.repeat_interleave(2, dim=1), 2)

        def ltx(y, x):
            n, _, d, h, w = y.shape
            y = y.reshape(n, -1, 2, 2, 2, d, h, w).permute(0, 1, 5, 2, 6, 3, 7, 4)
            return y.flatten(6, 7).flatten(4, 5).flatten(2, 3)[:, :, 1:]

        def inner(y, x):
            n, k, d, h, w = y.shape
            y = y.view(n, 1, 2, 2, k // 4, d, h, w).permute(0, 4, 5, 1, 6, 2, 7, 3)
            return y.reshape(n, k // 4, d, 2 * h, 2 * w) * 2

        def wan(y, x):
            n, k, d, h, w = y.shape
            y = y.reshape(n, 2, k // 2, d, h, w)
            return torch.stack((y[:, 0], y[:, 1, :, :, :, :]), 3).reshape(n, k // 2, 2 * d, h, w)

        volume = torch.randn(2, 16, 3, 4, 5)
        for axes, filters, step, fused in (
            (2, 32, dc_ae, {"depth to space": 2, "residual": 2}),
            (2, 32, lambda y, x: F.silu(F.pixel_shuffle(y, 2)),
             {"depth to space": 2, "convolution and activation": 2}),
            (3, 64, ltx, {"depth to space": 2}), (3, 32, inner, {"depth to space": 2}),
            (3, 32, wan, {"depth to space": 2}),
        ):
            report = self.same(Up(axes, filters, step), self.x if axes == 2 else volume)
            self.assertEqual(report.fused, fused)
            self.assertTrue(all("depth to space" in part.operation for part in report.taken))

    def test_filters_in_other_orders_stay_filters(self):
        def both(y):
            return F.pixel_shuffle(y, 2), y

        def written(y):
            view = y.view(y.shape[0], 2, 16, *y.shape[2:])
            view.mul_(2)
            return view.permute(0, 2, 1, 3, 4), y

        for step in (
            lambda y: y.reshape(y.shape[0], 4, 8, -1).transpose(1, 2),
            lambda y: y.view(2, 8, 2, 2, 8, 10).permute(0, 1, 4, 3, 5, 2).reshape(2, 8, 16, 20),
            lambda y: y.view(2, 2, 16, 8, 10)[:, 1] + 1, both, written,
            lambda y: torch.stack((y.view(2, 2, 16, 8, 10)[:, 1], y.view(2, 2, 16, 8, 10)[:, 0])),
            lambda y: y.view(2, 4, 8, 80).softmax(-1),
        ):
            self.same(Then(step, filters=32, size=3), self.x)

    def test_repeated_channels(self):
        def up(x):  # Two channels for each of the result's, and one of them repeated.
            n, _, h, w = x.shape
            x = x.repeat_interleave(2, dim=1).view(n, 8, 2, 2, h, w)
            return x.permute(0, 1, 4, 2, 5, 3).contiguous().view(n, 8, 2 * h, 2 * w)

        for step in (
            up, lambda x: F.pixel_shuffle(x.repeat_interleave(4, dim=1), 2),
            lambda x: F.pixel_shuffle(x.repeat_interleave(2, 1, output_size=32), 2),
            lambda x: x.repeat_interleave(3, dim=1).view(x.shape[0], 2, 24, *x.shape[2:]) + 1,
            lambda x: x.repeat_interleave(3, dim=-1), lambda x: x.repeat(1, 2, 1, 3),
            lambda x: x.repeat_interleave(torch.arange(16), dim=1),
            lambda x: F.pixel_unshuffle(x, 2),
        ):
            self.same(Then(step), self.x)

    def test_pictures_of_videos(self):
        """Axes in front of the batch's own, which the model's input has."""
        class Videos(Then):
            def forward(self, x):
                return self.conv(self.step(x).flatten(0, 1))

        self.same(Videos(lambda x: F.pixel_unshuffle(x, 2)), torch.randn(1, 3, 4, 8, 6))
        self.same(Videos(lambda x: F.pixel_shuffle(x, 2)), torch.randn(1, 3, 64, 4, 3))


if __name__ == "__main__":
    unittest.main()
