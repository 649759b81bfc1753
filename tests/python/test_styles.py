# SPDX-License-Identifier: Apache-2.0
"""convoy.accelerate on models written as other code bases write them, none of diffusers' classes
among them; and why a report says that something was left to PyTorch."""

import copy
import unittest

import convoy
import torch
import torch.nn.functional as F
from support import Accelerated, use_test_device
from torch import nn

use_test_device()


def taken(report):
    return sorted(part.operation for part in report.taken)


class CausalConv(nn.Conv3d):
    """Pads in its own forward, and keeps the last frames of a chunk for the next."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.sides = (self.padding[2],) * 2 + (self.padding[1],) * 2
        self.front, self.padding = 2 * self.padding[0], (0, 0, 0)

    def forward(self, x, kept=None):
        front = self.front
        if kept is not None and front > 0:
            x = torch.cat([kept.to(x.device), x], dim=2)
            front -= kept.shape[2]
        return super().forward(F.pad(x, (*self.sides, front, 0)))


class ChannelNorm(nn.Module):
    """RMS over the channels, by F.normalize."""

    def __init__(self, channels):
        super().__init__()
        self.scale, self.gamma = channels**0.5, nn.Parameter(torch.randn(channels, 1, 1, 1))

    def forward(self, x):
        return F.normalize(x, dim=1) * self.scale * self.gamma


class Chunked(nn.Module):
    """A causal decoder that takes its frames one by one, its caches in a list."""

    def __init__(self, c=16):
        super().__init__()
        self.conv1, self.norm = CausalConv(c, c, 3, padding=1), ChannelNorm(c)
        self.conv2 = CausalConv(c, c, 3, padding=1)

    def block(self, x, caches):
        for i, layer in enumerate((self.conv1, self.conv2)):
            h = F.silu(self.norm(x))
            last = h[:, :, -2:].clone()
            if last.shape[2] < 2 and caches[i] is not None:
                last = torch.cat([caches[i][:, :, -1:], last], dim=2)
            x, caches[i] = x + layer(h, caches[i]), last
        return x

    def forward(self, x):
        caches = [None, None]
        return torch.cat([self.block(x[:, :, i:i + 1], caches) for i in range(x.shape[2])], 2)


class DepthToSpace(nn.Module):
    """Channels to pixels and frames, by view and permute; the first frame is dropped."""

    def __init__(self, c=8):
        super().__init__()
        self.conv = CausalConv(c, c * 8, 3, padding=1)

    def forward(self, x):
        y = self.conv(x)
        n, c, d, h, w = y.shape
        y = y.view(n, c // 8, 2, 2, 2, d, h, w).permute(0, 1, 5, 2, 6, 3, 7, 4)
        y = y.reshape(n, c // 8, 2 * d, 2 * h, 2 * w)
        skip = x.repeat_interleave(2, 2).repeat_interleave(2, 3).repeat_interleave(2, 4)
        return (y + skip)[:, :, 1:]


class ShuffledBlocks(nn.Module):
    """Residual blocks around a pixel shuffle; an averaged shortcut down, a repeated one up."""

    def __init__(self, c=16):
        super().__init__()
        self.down, self.up = nn.Conv2d(c, c // 2, 3, padding=1), nn.Conv2d(c * 2, c * 4, 3, 1, 1)

    def forward(self, x):
        low = F.pixel_unshuffle(self.down(x), 2)
        low = low + F.pixel_unshuffle(x, 2).unflatten(1, (low.shape[1], -1)).mean(2)
        high = F.pixel_shuffle(self.up(low), 2)
        return high + F.pixel_shuffle(low.repeat_interleave(2, dim=1), 2)


class Weighted(nn.Module):
    """Weight norm, a replicated border and a leaky ReLU."""

    def __init__(self, old):
        super().__init__()
        norm = nn.utils.weight_norm if old else nn.utils.parametrizations.weight_norm
        self.conv = norm(nn.Conv2d(16, 16, 3, padding=1, padding_mode="replicate"))

    def forward(self, x):
        return F.leaky_relu(self.conv(x), 0.2) + x


class LowRank(nn.Module):
    """A convolution with a correction of low rank beside it."""

    def __init__(self):
        super().__init__()
        self.base = nn.Conv2d(16, 16, 3, padding=1)
        self.a, self.b = nn.Conv2d(16, 4, 3, padding=1, bias=False), nn.Conv2d(4, 16, 1, bias=False)

    def forward(self, x):
        return F.silu(self.base(x) + self.b(self.a(x)) * 0.5)


class Mixed(nn.Module):
    """Chunks along the channels, einsum, a gate, statistics in double precision."""

    def __init__(self):
        super().__init__()
        self.conv, self.mix = nn.Conv2d(16, 32, 3, padding=1), nn.Parameter(torch.randn(16, 16))
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        a, b = self.conv(x).chunk(2, dim=1)
        y = torch.einsum("nchw,cd->ndhw", a * b.sigmoid(), self.mix)
        y = self.norm(y.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        mean = y.double().mean((2, 3), keepdim=True).to(y.dtype)
        return torch.where(y > mean, y, 0.1 * y) - mean


class Styles(Accelerated):
    bound, probe = 2e-5, False

    def setUp(self):
        torch.manual_seed(0)

    def test_frames_by_frames(self):
        for x in (torch.randn(1, 16, 4, 5, 6), torch.randn(2, 16, 1, 7, 3)):
            operations = taken(self.same(Chunked(), x))
            self.assertIn("rms_norm + silu", operations)
            self.assertTrue(any("residual" in o for o in operations), operations)
            cached = any("cache" in o for o in operations)
            self.assertEqual(cached, x.shape[2] > 1, operations)

    def test_depth_to_space(self):
        self.same(DepthToSpace(), torch.randn(2, 8, 3, 4, 5))

    def test_shuffled_blocks(self):
        self.same(ShuffledBlocks(), torch.randn(3, 16, 6, 10))

    def test_parametrized_weights(self):
        for old in (False, True):
            report = self.same(Weighted(old), torch.randn(2, 16, 7, 9))
            self.assertEqual(len(report.taken), 1, old)

    def test_low_rank(self):
        self.assertEqual(len(self.same(LowRank(), torch.randn(1, 16, 5, 9)).taken), 3)

    def test_what_is_not_fused_is_right(self):
        self.same(Mixed(), torch.randn(2, 16, 6, 5))

    def test_odd_channels_and_sizes(self):
        model = nn.Sequential(nn.Conv2d(3, 7, 5, 2, 2), nn.GroupNorm(7, 7), nn.SiLU(),
                              nn.Conv2d(7, 5, 1), nn.ConvTranspose2d(5, 3, 4, 2, 1))
        for shape in ((1, 3, 9, 13), (5, 3, 1, 1), (2, 3, 33, 2)):
            self.same(copy.deepcopy(model), torch.randn(shape))

    def test_one_dimension_and_transposed(self):
        report = self.same(nn.Sequential(nn.Conv1d(4, 8, 5, padding=2), nn.GELU(),
                                         nn.Conv1d(8, 4, 3)), torch.randn(2, 4, 20))
        self.assertEqual(taken(report), ["conv1d", "conv1d + padding + gelu"])


class Reasons(unittest.TestCase):
    def test_the_report_says_why(self):
        class Dynamic(nn.Module):
            """Weights made of what it was given are taken over too."""

            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(8, 8, 3, padding=1)

            def forward(self, x):
                y = self.conv(x)
                weight = y.mean((0, 2, 3)).view(8, 1, 1, 1) * self.conv.weight
                return F.conv2d(y, weight, weight[:, 0, 0, 0])

        x = torch.randn(2, 8, 7, 9)
        unfolded = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.BatchNorm2d(8)).eval()
        for model, given, taken_over, reasons in (
                (Dynamic(), x, 2, []),
                (unfolded, x, 1, ["no convolution right in front of it whose output is its alone"]),
                (nn.Sequential(nn.Conv2d(8, 8, 3)), x[0], 0,
                 ["it has 3 axes; legal: 4, with a batch"]),
                (nn.Sequential(nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8)).double(), x.double(), 0,
                 ["type torch.float64; legal: torch.bfloat16, torch.float16, torch.float32"] * 2)):
            with torch.no_grad():
                expected = model(given)
                convoy.accelerate(model, probe=False)
                for _ in range(2):
                    torch.testing.assert_close(model(given), expected, rtol=1e-4, atol=1e-4)
            report = convoy.report(model)
            self.assertEqual(len(report.taken), taken_over)
            self.assertEqual([part.reason for part in report.left], reasons)
        convoy.accelerate(unfolded)(x)
        report = str(convoy.report(unfolded))
        self.assertIn("gradients are wanted", report)
        self.assertNotIn("nothing has run yet", report)

    def test_a_scripted_model_is_refused(self):
        with self.assertRaisesRegex(convoy.InvalidArgument, "TorchScript"):
            convoy.accelerate(torch.jit.script(nn.Conv2d(3, 3, 3)))


if __name__ == "__main__":
    unittest.main()
