# SPDX-License-Identifier: Apache-2.0
"""convoy.accelerate: frames in front of a 3-D convolution, from caches, pieces and copies."""

import itertools
import unittest

import torch
import torch.nn.functional as F
from support import Accelerated


class Frames(Accelerated):
    def test_caches_of_any_length(self):
        class Causal(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = torch.nn.Conv3d(16, 16, 3, padding=(0, 1, 1))

            def forward(self, x, cache, frames):
                parts = torch.cat([cache, x], 2)
                y = self.conv(F.pad(parts, (0, 0, 0, 0, frames, 0)))
                return y, parts[:, :, -2:], parts[:, :, 1:3].sum()

        x, cache = torch.randn(2, 1, 16, 5, 6, 7)
        for frames, cached in ((0, 2), (1, 1), (0, 3), (2, 4)):
            with self.subTest(frames=frames, cached=cached):
                self.same(Causal(), x[None, 0], cache[None, 0, :, :cached], frames)

    def test_pieces_of_frames_are_one(self):
        class Pieces(torch.nn.Module):
            """A convolution in pieces that overlap, as CogVideoX and Mochi stay below a limit."""

            def __init__(self, front, stride=1, overlap=2, spoil=lambda y: y):
                super().__init__()
                self.conv = torch.nn.Conv3d(16, 16, 3, stride=(stride, 1, 1), padding=(0, 1, 1))
                self.front, self.overlap, self.spoil = front, overlap, spoil

            def forward(self, x):
                y = self.front(x)
                parts = torch.chunk(y, 3, dim=2)
                parts = [parts[0], *(torch.cat([a[:, :, -self.overlap:], b], 2)
                                     for a, b in itertools.pairwise(parts))]
                outputs = [self.conv(part) for part in parts]
                return torch.cat([self.spoil(y) for y in outputs], 2) + x

        x = torch.randn(1, 16, 9, 5, 6)
        replicated = lambda x: F.pad(x, (0, 0, 0, 0, 2, 0), mode="replicate")
        cached = lambda x: torch.cat([x[:, :, :1], x[:, :, :1], x], 2)
        shifted = lambda x: torch.cat([x[:, :, :2], x], 2) * 1
        for front in (replicated, cached, shifted):
            report = self.same(Pieces(front), x)
            self.assertEqual((len(report.taken), report.fused), (1, {
                "pieces of frames": 2, "residual": 2}))
        # What is no whole: pieces that do not overlap as they must, or are not alike.
        report = self.same(Pieces(lambda x: F.pad(x, (0, 0, 0, 0, 4, 0), mode="replicate"),
                                  overlap=1), x)
        self.assertNotIn("pieces of frames", report.fused)
        report = self.same(Pieces(replicated, spoil=lambda y: y * 2), x)
        self.assertNotIn("pieces of frames", report.fused)

    def test_frames_repeated_at_both_ends_are_a_padding(self):
        class Ends(torch.nn.Module):
            def __init__(self, join):
                super().__init__()
                self.conv, self.join = torch.nn.Conv3d(16, 16, 3, padding=(0, 1, 1)), join

            def forward(self, x):
                y = F.silu(x)
                return self.conv(torch.cat(self.join(y), 2)), y * 2

        x = torch.randn(2, 16, 4, 5, 6)
        once, more = (1, 1, 1, 1, 1), (1, 1, 2, 1, 1)
        for join, found in (
            (lambda y: [y[:, :, :1].repeat(once), y, y[:, :, -1:].repeat(once)], 1),
            (lambda y: [y[:, :, :1].repeat(more), y, y[:, :, -1:].repeat(once)], 1),
            (lambda y: [y[:, :, 1:2].repeat(once), y, y[:, :, -1:].repeat(once)], 0),
            (lambda y: [y[:, :, :1].repeat(once), y + 1, y[:, :, -1:].repeat(once)], 0),
        ):
            (part,) = self.same(Ends(join), x).taken
            self.assertEqual(part.shape[2], 4 if found else 6, part.operation)

    def test_repeated_frames_keep_their_values(self):
        class Writes(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = torch.nn.Conv3d(16, 16, 1)

            def forward(self, x):
                y = self.conv(x)
                kept = y[:, :, :1].repeat(1, 1, 1, 1, 1)
                chunks = F.pad(y, (0, 0, 0, 0, 1, 0), mode="replicate").chunk(2, 2)
                y.mul_(2)
                chunks[0][:, :, :1] += 1
                return torch.cat([kept, y, kept], 2), chunks[0], torch.cat(chunks, 2)

        self.same(Writes(), torch.randn(1, 16, 5, 4, 6))


if __name__ == "__main__":
    unittest.main()
