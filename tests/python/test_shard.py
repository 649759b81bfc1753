# SPDX-License-Identifier: Apache-2.0
"""convoy.accelerate(model, group=...): autoencoders of diffusers, small and on the CPU, over ranks
that are processes joined by gloo, against the same model on one rank."""

import datetime
import os
import pathlib
import sys
import tempfile
import traceback
import unittest

import convoy
import torch
import torch.distributed as dist
import torch.multiprocessing

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench"))
import vae_models

try:
    import diffusers

    diffusers.utils.logging.set_verbosity_error()
except ImportError:
    diffusers = None


def error(got, expected):
    return ((got.double() - expected.double()).norm() / expected.double().norm()).item()


def _rank(rank, count, folder, body, arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank,
                            world_size=count, timeout=datetime.timedelta(seconds=20))
    try:
        found = body(rank, *arguments)
    except Exception as fault:
        found = f"{type(fault).__name__}: {fault}\n{traceback.format_exc()}"
    with open(os.path.join(folder, f"rank{rank}"), "w") as file:
        file.write(found or "")
    dist.barrier()
    dist.destroy_process_group()


def over(count, body, *arguments):
    """What body(rank, *arguments) says on each of `count` ranks; "" where nothing is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (count, folder, body, arguments), nprocs=count)
        return [pathlib.Path(folder, f"rank{rank}").read_text() for rank in range(count)]


def _autoencoder(rank, name, part, height, gather=True):
    """What is wrong with one model's output over all ranks."""
    vae = vae_models.BY_NAME[name]
    model = vae.make(small=True)
    torch.manual_seed(3)
    given = torch.randn(vae.small_latent) if part == "decode" else (
        torch.rand(vae.small_sample) * 2 - 1)
    given = given.repeat(*(1,) * (given.dim() - 2), height, 1)
    given = given + 0.1 * torch.randn(given.shape)

    def run():
        if part == "decode":
            return vae_models.decoded(model, given, vae.small_keywords)
        return vae_models.encoded(model, given)

    with torch.no_grad():
        expected = run()
        convoy.accelerate(model, group=dist.group.WORLD, gather=gather)
        got = run()
        again = run()
    report = convoy.report(model)
    if report.left_calls:
        return f"{name}: not cut: {report.left_calls}"
    if not torch.equal(got, again):
        return f"{name}: another result at the second call"
    if not gather:
        count = dist.get_world_size()
        rows = expected.shape[-2] // count
        expected = expected.narrow(-2, rank * rows, rows)
    if got.shape != expected.shape or error(got, expected) > 2e-5:
        return f"{name}: {tuple(got.shape)} against {tuple(expected.shape)}, error " + (
            f"{error(got, expected):.2e}" if got.shape == expected.shape else "-")
    return ""


def _many(rank, names, parts, height):
    for name in names:
        for part in parts:
            try:
                found = _autoencoder(rank, name, part, height)
            except Exception as fault:
                found = f"{type(fault).__name__}: {fault}\n{traceback.format_exc()[-900:]}"
            print(rank, name, part, found or "ok", flush=True)
            if found:
                return


if __name__ == "__main__" and len(sys.argv) > 1 and sys.argv[1] == "try":
    over(int(sys.argv[2]), _many, sys.argv[3].split(","), sys.argv[4].split(","),
         int(sys.argv[5]))
