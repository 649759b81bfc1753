# SPDX-License-Identifier: Apache-2.0
"""The PyTorch operators against PyTorch's own convolutions, on the CPU and on a GPU if there is one."""

import unittest

import torch
import torch.nn.functional as F

import convoy
import convoy.torch

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def integers(*shape, dtype=torch.float32, device="cpu", seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).to(device=device, dtype=dtype)


class Operators(unittest.TestCase):
    def test_conv2d_is_pytorchs(self):
        for device in DEVICES:
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                x = integers(2, 16, 9, 8, dtype=dtype, device=device)
                w = integers(8, 8, 3, 3, dtype=dtype, device=device, seed=1)
                b = integers(8, dtype=dtype, device=device, seed=2)
                y = convoy.torch.conv2d(x, w, b, stride=(2, 1), padding=1, dilation=1, groups=2)
                expected = F.conv2d(
                    x.double().cpu(), w.double().cpu(), b.double().cpu(), (2, 1), 1, 1, 2
                )
                self.assertEqual(y.device.type, device)
                self.assertTrue(y.is_contiguous(memory_format=torch.channels_last))
                torch.testing.assert_close(y.cpu(), expected.to(dtype), rtol=0, atol=0)

    def test_conv3d_with_epilogue(self):
        for device in DEVICES:
            x = integers(1, 8, 4, 6, 7, device=device)
            w = integers(16, 8, 3, 3, 3, device=device, seed=1)
            b = integers(16, device=device, seed=2)
            residual = integers(1, 16, 4, 6, 7, device=device, seed=3)
            y = convoy.torch.conv3d(
                x, w, b, padding=(2, 0, 1, 1, 1, 1), activation="relu", residual=residual, beta=0.5
            )
            expected = F.relu(F.conv3d(F.pad(x, (1, 1, 1, 1, 2, 0)), w, b)) + 0.5 * residual
            torch.testing.assert_close(y, expected, rtol=0, atol=0)

    def test_passes_opcheck(self):
        x, w, b = integers(1, 8, 6, 6), integers(8, 8, 3, 3, seed=1), integers(8, seed=2)
        arguments = (x, w, b, None, [1, 1], [1, 1, 1, 1], [1, 1], 1, "silu", 1.0)
        torch.library.opcheck(
            torch.ops.convoy.conv2d.default, arguments,
            test_utils=("test_schema", "test_faketensor"),
        )

    def test_errors(self):
        x, w = integers(1, 8, 4, 4), integers(8, 8, 3, 3)
        with self.assertRaisesRegex(convoy.InvalidArgument, "weight has 8 channels for 2 groups"):
            convoy.torch.conv2d(x, w, groups=2)
        with self.assertRaisesRegex(convoy.InvalidArgument, "filter_h = 3"):
            convoy.torch.conv2d(x[:, :, :1], w)
        with self.assertRaisesRegex(convoy.InvalidArgument, "weight is torch.float16"):
            convoy.torch.conv2d(x, w.half())
        with self.assertRaisesRegex(convoy.InvalidArgument, "torch.float64"):
            convoy.torch.conv2d(x.double(), w.double())
        self.assertEqual(convoy.torch.supports(x, w, padding=1), (True, ""))


class Convert(unittest.TestCase):
    def test_a_module_gives_the_same(self):
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1),
            torch.nn.SiLU(),
            torch.nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=2, bias=False),
            torch.nn.Conv2d(8, 4, 3, padding=1, padding_mode="reflect"),
        ).eval()
        x = torch.randn(2, 3, 16, 16)
        with torch.no_grad():
            expected = model(x)
            self.assertIs(convoy.torch.convert(model), model)
            torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    unittest.main()
