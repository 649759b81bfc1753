# SPDX-License-Identifier: Apache-2.0
"""One rank's own work, on one GPU: what a decode over N of them takes if exchanges took no time.

    python -m convoy.bench.shard_alone --counts 2,4,8 --csv alone.csv
    python -m convoy.bench.shard_alone --cases wan480 --small --device cpu      (counts alone)

A rank in the middle runs its rows with the margins that it would have, packed and copied as without
peer memory; its own rows stand in for those of others. one_ms, alone_ms: as CUDA graphs. work:
multiplications of the rank's convolutions times the ranks, of one GPU's: what margins cost.
predicted_ms: alone_ms, and for each exchange --exchange-us and its bytes at --gbps;
predicted_speed_up: one_ms over that.
"""

import contextlib
import copy
import gc
import math
import statistics
import time
import unittest.mock

import torch
import torch.distributed as dist

import convoy

from .._peers import Peers
from .._session import Session
from .._trial import MARK
from . import vae_models
from .rows import save
from .shards import (
    CASES,
    captured,
    parsed,
    parser_of,
    profile,
    silent_all_to_all,
    silent_gather,
)

FIELDS = ("case", "latent", "ranks", "rank", "one_ms", "alone_ms", "share", "work", "exchanges",
          "gathers", "sent_mb", "predicted_ms", "predicted_speed_up")


def arguments():
    parser = parser_of(__doc__)
    parser.add_argument("--counts", default="2,4,8")
    parser.add_argument("--exchange-us", type=float, default=20.0, help="of one, without its bytes")
    parser.add_argument("--gbps", type=float, default=200.0, help="of a link, each way")
    parser.add_argument("--profile", action="store_true", help="device time by kernel")
    parser.add_argument("--layers", action="store_true", help="rows of each convolution")
    return parsed(parser)


class _Group:
    group_name = "alone"


@contextlib.contextmanager
def as_rank(rank, count, seen):
    """torch.distributed of a rank whose neighbours send nothing. seen: counts of its calls."""
    def gather(parts, tensor, **_):
        seen["gathers"] += 1
        silent_gather(parts, tensor)

    made = {
        "is_initialized": lambda: True, "get_rank": lambda group=None: rank,
        "get_world_size": lambda group=None: count, "barrier": lambda group=None: None,
        "all_to_all_single": silent_all_to_all, "all_gather_into_tensor": gather,
    }
    with contextlib.ExitStack() as stack:
        for name, function in made.items():
            stack.enter_context(unittest.mock.patch.object(dist, name, function))
        stack.enter_context(unittest.mock.patch.object(
            dist.distributed_c10d, "_get_default_store", lambda: None))
        from .._shard import Shards

        stack.enter_context(unittest.mock.patch.object(Shards, "_agree", lambda *a: None))
        stack.enter_context(unittest.mock.patch.object(Peers, "ready", lambda *a: False))
        yield


@contextlib.contextmanager
def counted(work, rows=None):
    """Adds multiplications of convolutions to work[0]; rows: (shape, weight) of each."""
    run = Session.conv

    def conv(session, node, x, cache, residual):
        made = run(session, node, x, cache, residual)
        work[0] += made.numel() * math.prod(node.weight.shape[1:])
        if rows is not None:
            rows.append((tuple(made.shape), tuple(node.weight.shape)))
        return made

    with unittest.mock.patch.object(Session, "conv", conv):
        yield


class Timed:
    """A model's decode, and its time in turns with another's."""

    def __init__(self, run, cuda):
        self.cuda, self.times, self.replay = cuda, [], run
        if cuda:
            self.replay, self.kept = captured(run)
            self.replay()

    def once(self):
        if not self.cuda:
            return
        torch.cuda.synchronize()
        begin = time.perf_counter()
        self.replay()
        torch.cuda.synchronize()
        self.times.append((time.perf_counter() - begin) * 1e3)


def case_rows(name, options, begin):
    """The rows of one case, a count each. begin: when the program began."""
    started, longest = time.perf_counter(), 0.0
    kind, latent = CASES[name]
    vae, cuda = vae_models.BY_NAME[kind], options.device == "cuda"
    dtype = torch.bfloat16 if cuda else torch.float32
    plain = vae.make(options.small, dtype, options.device)
    if options.small:
        latent = vae.small_latent
        latent = (*latent[:-2], 4 * latent[-2], latent[-1])
    z = torch.randn(latent, generator=torch.Generator().manual_seed(2)).to(options.device, dtype)
    keywords = vae.small_keywords if options.small else vae.keywords
    one = convoy.accelerate(copy.deepcopy(plain), probe=False)

    def run_one():
        return vae_models.decoded(one, z, keywords)

    whole = [0]
    with counted(whole):
        run_one()
    of_one = Timed(run_one, cuda)
    if options.profile:
        print(f"{name} on one:")
        profile(of_one.replay)
    for count in (int(c) for c in options.counts.split(",")):
        if latent[-2] < count:
            continue
        now = time.perf_counter()
        longest, started = max(longest, now - started), now
        if now - begin + longest > options.budget:
            print(f"{name} on {count}: left out, no time", flush=True)
            continue
        rank, seen = count // 2, {"gathers": 0}
        rank = rank if rank + 1 < count else 0
        with as_rank(rank, count, seen):
            model = convoy.accelerate(copy.deepcopy(plain), probe=False, group=_Group())
            shards = model.__dict__[MARK][0].shards

            def run(model=model):
                return vae_models.decoded(model, z, keywords)

            part, layers = [0], list[tuple]()
            with counted(part, layers):
                run()
            row = dict(case=name, latent="x".join(map(str, latent)), ranks=count, rank=rank,
                       exchanges=shards.exchanges, sent_mb=shards.sent_bytes / 1e6,
                       gathers=seen["gathers"], work=part[0] * count / whole[0])
            alone = Timed(run, cuda)
        if options.layers:
            for shape, weight in dict.fromkeys(layers):
                print(f"  {layers.count((shape, weight)):5d} x {shape} by {weight}")
        for _ in range(options.rounds):
            of_one.once()
            alone.once()
        if cuda:
            row["one_ms"] = statistics.median(of_one.times)
            row["alone_ms"] = statistics.median(alone.times)
            row["share"] = row["alone_ms"] * count / row["one_ms"]
            row["predicted_ms"] = (
                row["alone_ms"] + (row["exchanges"] + row["gathers"]) * options.exchange_us / 1e3
                + row["sent_mb"] / options.gbps)
            row["predicted_speed_up"] = row["one_ms"] / row["predicted_ms"]
            if options.profile:
                print(f"{name}, rank {rank} of {count}:")
                profile(alone.replay)
        yield row
        del model, alone, shards
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()


def main():
    options, begin = arguments(), time.perf_counter()
    torch.set_grad_enabled(False)
    import diffusers

    diffusers.utils.logging.set_verbosity_error()
    rows = []
    for name in options.cases.split(","):
        if time.perf_counter() - begin > options.budget:
            print(f"{name}: left out, no time", flush=True)
            continue
        for row in case_rows(name, options, begin):
            print(", ".join(f"{key} {row[key]:.4g}" if isinstance(row[key], float)
                            else f"{key} {row[key]}" for key in FIELDS if key in row), flush=True)
            rows.append(row)
            if options.csv:
                save(options.csv, FIELDS, rows)


if __name__ == "__main__":
    main()
