# SPDX-License-Identifier: Apache-2.0
"""Autoencoders of diffusers decoded by one GPU and by several, cut along the height
(convoy.accelerate(vae, group=...)), in turns; random weights, bf16.

    torchrun --nproc-per-node 2 -m convoy.bench.shards --csv shards.csv
    ... -m convoy.bench.shards --cases flux1024,wan480 --counts 2 --rounds 5
    ... -m convoy.bench.shards --small --device cpu        (gloo, to try this)

one_ms: one GPU's time in the same round; exposed_ms: what the same run takes less when nothing is
exchanged: this rank's own rows stand in for those that would come, a gather repeats this rank's
tensor, and packing is left in; peak_gb and one_peak_gb: of one call, per rank and on one GPU;
error: against one GPU's output; ``..._graph_ms``, ``graph_...``: as CUDA graphs. Each timed run
comes behind one of the same that is not timed: a card's clock depends on what it did before.
"""

import argparse
import collections
import contextlib
import copy
import datetime
import gc
import os
import statistics
import time
import unittest.mock

import torch
import torch.distributed as dist

import convoy

from .._native import PEERS_PUT
from .._peers import Peers
from .._trial import MARK
from . import vae_models
from .rows import csv_file, save, seconds

CASES = {  # name: (class, latent)
    "flux1024": ("flux", (1, 16, 128, 128)),
    "flux2048": ("flux", (1, 16, 256, 256)),
    "wan480": ("wan21", (1, 16, 21, 60, 104)),
    "wan720": ("wan21", (1, 16, 21, 90, 160)),
    "hunyuan720": ("hunyuan", (1, 16, 3, 90, 160)),
    # NOTE: 17 frames: its attention's mask has 72,000 x 72,000 numbers; at 81 it would take 183 GB.
    "hunyuan720x17": ("hunyuan", (1, 16, 5, 90, 160)),
}
FIELDS = ("case", "latent", "ranks", "ms", "one_ms", "speed_up", "efficiency", "exposed_ms",
          "exposed_share", "graph_ms", "one_graph_ms", "graph_speed_up", "graph_exposed_ms",
          "graph_exposed_share", "sent_mb", "exchanges",
          "peak_gb", "one_peak_gb", "peak_share", "error", "error_at_cuts", "same_bits_twice",
          "rounds", "note")


def parser_of(description):
    """The options of every measurement of CASES."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="of " + ", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=seconds, default=300.0,
                        help="seconds; what does not fit is left out")
    parser.add_argument("--csv", type=csv_file)
    parser.add_argument("--small", action="store_true", help="the small models of the tests")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    return parser


def parsed(parser):
    options = parser.parse_args()
    for name in options.cases.split(","):
        if name not in CASES:
            parser.error(f"--cases: no {name!r}; legal: {', '.join(CASES)}")
    return options


def arguments():
    parser = parser_of(__doc__)
    parser.add_argument("--counts", help="ranks, e.g. 2,4; by default every one, the most first")
    parser.add_argument("--no-graphs", action="store_true")
    parser.add_argument("--profile", action="store_true", help="rank 0's device time by kernel")
    return parsed(parser)


class Machine:
    """This rank, its device and its clock."""

    def __init__(self, device):
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self.cuda = device == "cuda"
        self.device = torch.device("cuda", torch.cuda.current_device()) if self.cuda else (
            torch.device("cpu"))

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()

    def milliseconds(self, run):
        self.wait()
        begin = time.perf_counter()
        run()
        self.wait()
        return (time.perf_counter() - begin) * 1e3

    def peak_gb(self, run):
        if not self.cuda:
            return 0.0
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        self.wait()
        return (torch.cuda.max_memory_allocated() - before) / 1e9

    def largest(self, value, group):
        found = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
        return found.item()


def stand_in(came, own):
    """Fills rows that would come. NOTE: like the real ones, since the clock depends on the numbers:
    a card runs faster on zeros, and on NaN, which may lie in new memory and spreads."""
    if came.shape == own.shape:
        came.copy_(own)
    else:
        came.copy_(own.flatten()[:1].view([1] * came.dim()).expand(came.shape))


def silent_all_to_all(received, sent, *_, **__):
    """In place of dist.all_to_all_single."""
    if received.numel():
        stand_in(received, sent)


def silent_exchange(peers, sends, receives, phase, device):
    """In place of Peers.exchange."""
    if phase == PEERS_PUT:
        peers.put = sends
        return
    sent = sends or getattr(peers, "put", sends)
    for index, (_, rows) in enumerate(receives):
        if sent:
            stand_in(rows, sent[index % len(sent)][1])
        else:
            rows.zero_()


def silent_gather(parts, tensor, **_):
    """In place of dist.all_gather_into_tensor."""
    parts.unflatten(0, (-1, tensor.shape[0])).copy_(tensor)


@contextlib.contextmanager
def silence():
    """Nothing is exchanged: what is left is each rank's own work, on numbers."""
    with unittest.mock.patch.object(dist, "all_to_all_single", silent_all_to_all), \
            unittest.mock.patch.object(Peers, "exchange", silent_exchange), \
            unittest.mock.patch.object(
                Peers, "all_gather", lambda peers, tensor, out: silent_gather(out, tensor)), \
            unittest.mock.patch.object(dist, "all_gather_into_tensor", silent_gather):
        yield


def captured(run):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # NOTE: NCCL's watchdog asks for its events meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        kept = run()
    return graph.replay, kept


def together(machine, group, run):
    """The time of the slowest rank, of the second of two runs."""
    for _ in range(2):
        dist.barrier(group)
        taken = machine.milliseconds(run)
    return machine.largest(taken, group)


def profile(run, top=25):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as result:
        run()
        torch.cuda.synchronize()
    spent: collections.Counter[str] = collections.Counter()
    counts: collections.Counter[str] = collections.Counter()
    for event in result.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            spent[event.name] += event.time_range.elapsed_us()
            counts[event.name] += 1
    for name, us in spent.most_common(top):
        print(f"    {us / 1e3:9.3f} ms {counts[name]:6d} x  {name[:110]}", flush=True)


class Case:
    """A model on one GPU, and the same over the first ranks."""

    def __init__(self, name, machine, options):
        kind, latent = CASES[name]
        self.vae, self.machine, self.options = vae_models.BY_NAME[kind], machine, options
        dtype = torch.bfloat16 if machine.cuda else torch.float32
        self.plain = self.vae.make(options.small, dtype, machine.device)
        latent = self.vae.small_latent if options.small else latent
        if options.small:
            latent = (*latent[:-2], 4 * latent[-2], latent[-1])
        z = torch.randn(latent, generator=torch.Generator().manual_seed(2))
        self.given = z.to(machine.device, dtype)
        self.name, self.latent = name, latent
        self.keywords = self.vae.small_keywords if options.small else self.vae.keywords
        self.one = convoy.accelerate(copy.deepcopy(self.plain), probe=False)
        # NOTE: every rank runs it once, so that all have loaded the kernels.
        self.expected = self.run(self.one).float()
        self.one_peak = machine.peak_gb(lambda: self.run(self.one))
        self.one_replay = None
        if machine.cuda and not options.no_graphs:
            self.one_replay, self.kept = captured(lambda: self.run(self.one))

    def run(self, model):
        return vae_models.decoded(model, self.given, self.keywords)

    def error_at_cuts(self, got, count):
        """The error of the 16 rows on both sides of each cut."""
        rows, latent = got.shape[-2], self.given.shape[-2]
        wrong = size = 0.0
        for rank in range(1, count):
            cut = (latent // count * rank + min(latent % count, rank)) * (rows // latent)
            part = slice(max(cut - 16, 0), cut + 16)
            wrong += (got[..., part, :] - self.expected[..., part, :]).square().sum().item()
            size += self.expected[..., part, :].square().sum().item()
        return (wrong / size) ** 0.5

    def over(self, count, group):
        """The row of this many ranks; None on the others."""
        machine = self.machine
        if machine.rank >= count:
            return None
        model = convoy.accelerate(copy.deepcopy(self.plain), probe=False, group=group)
        shards = model.__dict__[MARK][0].shards
        row = dict(case=self.name, latent="x".join(map(str, self.latent)), ranks=count)
        run = lambda: self.run(model)
        got = run().float()
        row["note"] = shards.peers.how()
        row["error"] = ((got - self.expected).norm() / self.expected.norm()).item()
        row["error_at_cuts"] = self.error_at_cuts(got, count)
        del got
        shards.exchanges = shards.sent_bytes = 0
        first = run()
        row["exchanges"] = shards.exchanges
        row["sent_mb"] = machine.largest(shards.sent_bytes / 1e6, group)
        row["same_bits_twice"] = int(torch.equal(first, run()))
        del first
        row["peak_gb"] = machine.largest(machine.peak_gb(run), group)
        row["one_peak_gb"] = machine.largest(self.one_peak, group)
        replay = silent_replay = None
        if machine.cuda and not self.options.no_graphs:
            try:
                replay, _kept = captured(run)
                with silence():
                    silent_replay, _silent_kept = captured(run)
            except Exception as fault:  # A row that says so.
                row["note"] += f"; no graph: {type(fault).__name__}: {str(fault)[:200]}"
        with silence():
            run()
        times, ones, silent, graphs, one_graphs = [], [], [], [], []
        silent_graphs = []
        for _ in range(self.options.rounds):
            ones.append(together(machine, group, lambda: self.run(self.one))
                        if machine.rank == 0 else together(machine, group, lambda: None))
            times.append(together(machine, group, run))
            with silence():
                silent.append(together(machine, group, run))
            if silent_replay is not None:
                silent_graphs.append(together(machine, group, silent_replay))
            if replay is not None:
                one_graphs.append(together(
                    machine, group, self.one_replay if machine.rank == 0 else lambda: None))
                graphs.append(together(machine, group, replay))
        median = statistics.median
        row.update(ms=median(times), one_ms=median(ones), rounds=len(times))
        row["exposed_ms"] = max(row["ms"] - median(silent), 0.0)
        row["exposed_share"] = row["exposed_ms"] / row["ms"]
        if graphs:
            row["graph_ms"], row["one_graph_ms"] = median(graphs), median(one_graphs)
            row["graph_speed_up"] = row["one_graph_ms"] / row["graph_ms"]
        if graphs and silent_graphs:
            row["graph_exposed_ms"] = max(row["graph_ms"] - median(silent_graphs), 0.0)
            row["graph_exposed_share"] = row["graph_exposed_ms"] / row["graph_ms"]
        row["speed_up"] = row["one_ms"] / row["ms"]
        row["efficiency"] = row["speed_up"] / count
        row["peak_share"] = row["peak_gb"] / row["one_peak_gb"] if row["one_peak_gb"] else 0.0
        if self.options.profile:
            if machine.rank == 0:
                print(f"  {self.name} on {count}:", flush=True)
            with contextlib.redirect_stdout(None) if machine.rank else contextlib.nullcontext():
                profile(run if replay is None else replay)
        return row


def show(row):
    print(", ".join(f"{key} {row[key]:.4g}" if isinstance(row.get(key), float)
                    else f"{key} {row[key]}" for key in FIELDS if key in row), flush=True)


def main():
    options = arguments()
    begin = time.perf_counter()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if options.device == "cuda":
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo",
                            timeout=datetime.timedelta(seconds=120))
    machine = Machine(options.device)
    torch.set_grad_enabled(False)
    import diffusers

    diffusers.utils.logging.set_verbosity_error()
    counts: list[int] = [int(n) for n in options.counts.split(",")] if options.counts else (
        list(range(machine.count, 1, -1)))
    groups = {count: dist.new_group(list(range(count))) for count in counts}
    if machine.rank == 0:
        what = torch.cuda.get_device_name() if machine.cuda else "cpu"
        print(f"{what} x {machine.count}, PyTorch {torch.__version__}, convoy {convoy.version()}")
    rows = []
    for name in options.cases.split(","):
        late = machine.largest(time.perf_counter() - begin, None) > options.budget
        if late:
            if machine.rank == 0:
                print(f"{name}: left out, no time", flush=True)
            continue
        case, longest = Case(name, machine, options), 0.0
        for count in counts:
            started = time.perf_counter()
            # NOTE: the same answer on every rank, or some would wait for the others.
            if machine.largest(started - begin + longest, None) > options.budget:
                if machine.rank == 0:
                    print(f"{name} on {count}: left out, no time", flush=True)
                continue
            row = case.over(count, groups[count])
            dist.barrier()
            longest = max(longest, time.perf_counter() - started)
            if row is not None and machine.rank == 0:
                show(row)
                rows.append(row)
                if options.csv:
                    save(options.csv, FIELDS, rows)
        del case
        gc.collect()
        if machine.cuda:
            torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
