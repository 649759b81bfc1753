# SPDX-License-Identifier: Apache-2.0
# What the pages' examples on PyTorch's tensors take as given, on the CPU.
import convoy.torch
import torch

torch.manual_seed(1)
x, skip, weight, bias = (torch.randn(s) for s in ((1, 32, 6, 6), (1, 32, 6, 6), (32, 32, 3, 3), 32))
gamma, beta = torch.randn(32), torch.randn(32)
frames, last_frames = torch.randn(1, 32, 4, 6, 6), torch.randn(1, 32, 2, 6, 6)
weight_3d = torch.randn(32, 32, 3, 3, 3)
decoder = torch.nn.Sequential(torch.nn.Conv2d(32, 32, 3), torch.nn.GroupNorm(4, 32))
