# SPDX-License-Identifier: Apache-2.0
"""Exchanges between ranks whose GPUs reach each other's memory: one launch on the stream of the
work, where torch.distributed has a copy, a launch of NCCL on a stream of its own, and a copy."""

import ctypes
import itertools
import os
import sys
import threading
import time
import weakref

import torch
import torch.distributed as dist

from . import _calls
from . import _native as native
from ._native import LaunchFailure, library

_LOOK_SECONDS = 0.5  # How often a rank looks whether it waits in vain.
_MOST_RANKS = 8
_MOST_TENSORS = 4  # Of an exchange: two moves each with two neighbours, of 16.
_LEAST_BYTES = 1 << 20
_TRIAL_MS = 10_000  # How long the first exchange may take.
SWITCH = "CONVOY_PEER_MEMORY"  # 0: not wanted.


def switched_off():
    """Why it is not used, else ""."""
    return f"{SWITCH} is 0" if os.environ.get(SWITCH) == "0" else ""


def _timeout_ms(group):
    """The process group's own, for a device that waits."""
    try:
        backend = (group or dist.group.WORLD)._get_backend(torch.device("cuda"))
        return max(int(backend.options._timeout.total_seconds() * 1e3), 1)
    except (AttributeError, RuntimeError):  # A back end without options.
        return int(dist.distributed_c10d.default_pg_timeout.total_seconds() * 1e3)


class _Inboxes:
    """The library's peers: this rank's memory, and where the others' is."""

    def __init__(self, rank, count, capacity, timeout_ms):
        self.capacity, self.captured = capacity, False
        handle = ctypes.c_void_p()
        native.check(library.convoy_peers_create(rank, count, capacity, timeout_ms,
                                                 ctypes.byref(handle)))
        self.peers = handle
        self._destroy = weakref.finalize(self, library.convoy_peers_destroy, handle)
        self._destroy.atexit = False  # NOTE: others may write there; the driver frees it.

    def handle(self):
        memory = ctypes.create_string_buffer(native.PEER_HANDLE_BYTES)
        native.check(library.convoy_peers_handle(self.peers, memory))
        return memory.raw

    def connect(self, handles):
        native.check(library.convoy_peers_connect(self.peers, b"".join(handles)))

    def try_out(self, timeout_ms):
        native.check(library.convoy_peers_try_out(self.peers, timeout_ms))

    def late(self):
        """The rank that this one waited for in vain, or None."""
        rank = ctypes.c_int32(-1)
        native.check(library.convoy_peers_late(self.peers, ctypes.byref(rank)))
        return None if rank.value < 0 else rank.value


class Peers:
    """The ranks of a process group as far as they reach each other's memory. All make the same
    calls in the same order."""

    def __init__(self, group, rank, count):
        self.group, self.rank, self.count = group, rank, count
        self.refusal = ""  # Why torch.distributed is used instead.
        self._inboxes: list[_Inboxes] = []  # The last one is the largest.
        self._watched = False
        if count > _MOST_RANKS:
            self.refusal = f"{count} ranks; legal: up to {_MOST_RANKS}"

    def how(self):
        """What carries the rows, and why not peer memory where it does not."""
        if self._inboxes and not self.refusal:
            return "peer memory"
        return "torch.distributed" + (f" ({self.refusal})" if self.refusal else "")

    def ready(self, device, nbytes=0, tensors=1):
        """Whether `nbytes` from one rank to the next, of so many tensors, can go this way; the same
        on every rank."""
        if self.refusal or device.type != "cuda" or tensors > _MOST_TENSORS:
            return False
        if not self._inboxes or self._inboxes[-1].capacity < nbytes:
            if torch.cuda.is_current_stream_capturing():
                return False  # NOTE: nothing is allocated or opened in a capture.
            self._grow(device, nbytes)
        if not self._inboxes:
            return False
        if torch.cuda.is_current_stream_capturing():
            self._inboxes[-1].captured = True
        return True

    def _grow(self, device, nbytes):
        """Larger inboxes, on every rank at once."""
        before = self._inboxes[-1].capacity if self._inboxes else 0
        capacity = max(nbytes, 2 * before, _LEAST_BYTES)
        made: list[_Inboxes] = []

        def make():
            # NOTE: asked here, since the ranks' environments may differ.
            if switched_off():
                raise native.Unsupported(switched_off())
            made.append(_Inboxes(self.rank, self.count, capacity, _timeout_ms(self.group)))
            return made[0].handle()

        with torch.cuda.device(device):
            handles, why = self._together(make)
            if not why:
                _, why = self._together(lambda: made[0].connect(handles))
            if not why:
                limit = min(_timeout_ms(self.group), _TRIAL_MS)
                _, why = self._together(lambda: made[0].try_out(limit))
        if why:
            self.refusal = why
            return
        # NOTE: a graph may hold the addresses of what it was captured with; nothing else does
        # once all that was enqueued is done, on every rank.
        torch.cuda.synchronize(device)
        dist.barrier(self.group)
        self._inboxes = [old for old in self._inboxes if old.captured] + made
        if not self._watched:
            self._watched = True
            threading.Thread(target=_watch, args=(weakref.ref(self),), daemon=True).start()

    def _together(self, attempt):
        """(what `attempt` gives on every rank, why it failed on the first one where it did)."""
        found, fault = None, ""
        try:
            found = attempt()
        except native.ConvoyError as error:
            fault = str(error)
        every: list = [None] * self.count
        dist.all_gather_object(every, (found, fault), group=self.group)
        why = next((f"rank {r}: {said}" for r, (_, said) in enumerate(every) if said), "")
        return [one for one, _ in every], why

    def why_late(self):
        """What is wrong where this rank waited in vain, else ""."""
        for inboxes in self._inboxes:
            rank = inboxes.late()
            if rank is not None:
                return (f"rank {self.rank} of {self.count} waited "
                        f"{_timeout_ms(self.group) / 1e3:.0f} s for the rows of rank {rank}: it is "
                        "gone or makes other calls")
        return ""

    def exchange(self, sends, receives, phase, device):
        """sends, receives: (rank, tensor) with channels at the end, pieces of whole rows."""
        moves = [_moves(all_moves) for all_moves in (sends, receives)]
        self._check(library.convoy_peers_exchange(
            self._inboxes[-1].peers, moves[0], len(sends), moves[1], len(receives), phase,
            _calls.stream_of(device)))

    def gathers(self, tensor):
        """Whether all_gather takes it."""
        return tensor.nbytes <= native.PEER_GATHER_BYTES and self.ready(tensor.device)

    def all_gather(self, tensor, out):
        self._check(library.convoy_peers_all_gather(
            self._inboxes[-1].peers, tensor.data_ptr(), out.data_ptr(), tensor.nbytes,
            _calls.stream_of(tensor.device)))

    def _check(self, status):
        if status != 0:
            late = self.why_late()
            if late:
                raise LaunchFailure(late)
            native.check(status)


def _moves(tensors):
    """Rows [..., rows, columns, C] of which all but the outermost extents lie together."""
    moves = (native.PeerMove * max(len(tensors), 1))()
    for move, (rank, tensor) in zip(moves, tensors):
        shape, strides = tensor.shape, tensor.stride()
        size, axis, piece = tensor.element_size(), tensor.dim(), 1
        while axis > 0 and (shape[axis - 1] == 1 or strides[axis - 1] == piece):
            axis -= 1
            piece *= shape[axis]
        count = tensor.numel() // piece
        outer = [(n, s) for n, s in zip(shape[:axis], strides[:axis]) if n > 1]
        pitch = outer[-1][1] if outer else piece
        for (_, far), (n, near) in itertools.pairwise(outer):
            if far != n * near:
                raise native.InvalidArgument(f"rows of strides {strides} and sizes {list(shape)} "
                                             "are not pieces of one pitch")
        move.peer, move.data = rank, tensor.data_ptr()
        move.bytes, move.count, move.pitch = piece * size, count, pitch * size
    return moves


def _watch(peers):
    """Says whom this rank waited for. NOTE: the CUDA context is lost then, and PyTorch's error
    names no rank; a thread, since the host may never come back to this package."""
    while True:
        time.sleep(_LOOK_SECONDS)
        known = peers()
        if known is None:
            return
        late = known.why_late()
        if late:
            print(f"convoy: {late}", file=sys.stderr, flush=True)
            return
        del known
