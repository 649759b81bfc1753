# SPDX-License-Identifier: Apache-2.0
"""An accelerated model over several ranks of torch.distributed: the height is cut.

Inside the model every tensor holds this rank's rows and some of its neighbours' beside them, the
margins, so that the model's own forward() runs as on a smaller picture. What a margin holds is of
no matter until a convolution reads it: then the neighbours' rows are fetched into it, in place.
GroupNorm merges the statistics of all ranks, attention sees the keys and values of all, and what
comes out is whole again. A function that is not known to treat rows one by one is refused.
"""

import collections
import dataclasses
import itertools
import math
import operator

import torch
import torch.distributed as dist

from . import _layout
from ._native import PEERS_BOTH, PEERS_PUT, PEERS_TAKE, InvalidArgument, LaunchFailure, Unsupported
from ._peers import Peers
from ._shard_norm import group_norm

_made: collections.Counter[str] = collections.Counter()  # Shards of each group.
_MOST_OF_TWO = 16 << 20  # Bytes that two ranks' attention sends without NCCL.
_ROWS = -2  # The axis of the rows in [N, C, H, W] and [N, C, D, H, W].

# Functions that compute each row of a picture from that row alone, or only look at shapes; in any
# axes that a model brings the rows to.
_POINTWISE = frozenset((
    "abs", "absolute", "add", "add_", "addcmul", "alias", "and", "bfloat16", "bitwise_and",
    "bitwise_not", "cat", "ceil", "chunk", "clamp", "clamp_", "clamp_max", "clamp_min", "clip",
    "clone", "concat", "concatenate", "conj", "contiguous", "conv1d", "conv2d", "conv3d",
    "copy_", "cos", "data_ptr", "detach", "dim", "div", "div_", "divide", "double", "dropout",
    "element_size", "elu", "empty_like", "eq", "exp", "expand", "expand_as", "fill_", "flatten",
    "float", "floor", "floordiv", "full_like", "ge", "gelu", "get_device", "group_norm", "gt",
    "half", "hardsigmoid", "hardswish", "hardtanh", "iadd", "imul", "interpolate", "is_complex",
    "is_contiguous", "is_floating_point", "isfinite", "isinf", "isnan", "isub", "itruediv",
    "layer_norm", "le", "leaky_relu", "lerp", "linear", "log", "log1p", "logical_and",
    "logical_not", "logical_or", "lt", "masked_fill", "maximum", "minimum", "mish", "moveaxis",
    "movedim", "mul", "mul_", "multiply", "nan_to_num", "nan_to_num_", "ne", "neg", "negative",
    "normalize", "numel", "ones_like", "or", "pad", "permute", "pixel_shuffle",
    "pixel_unshuffle", "pow", "prelu", "reciprocal", "relu", "relu6", "relu_", "repeat",
    "repeat_interleave", "reshape", "reshape_as", "rms_norm", "round", "rsqrt", "rsub",
    "scaled_dot_product_attention", "sigmoid", "sign", "silu", "sin", "size", "softplus",
    "split", "sqrt", "square", "squeeze", "stack", "storage_offset", "stride", "sub", "sub_",
    "subtract", "swapaxes", "tanh", "tensor_split", "to", "transpose", "true_divide", "truediv",
    "trunc", "type", "type_as", "unbind", "unflatten", "unsafe_chunk", "unsafe_split",
    "unsqueeze", "untyped_storage", "view", "view_as", "where", "xor", "zero_", "zeros_like",
))


@dataclasses.dataclass(frozen=True)
class Level:
    """The rows of every rank at one resolution. starts: first own row of each rank, and the
    extent; before, behind: this rank's margins."""

    starts: tuple[int, ...]
    before: int
    behind: int

    def own(self, rank):
        return self.starts[rank + 1] - self.starts[rank]

    @property
    def margin(self):
        """Rows of a margin where a rank has one; the same on every rank."""
        return max(self.before, self.behind)

    def times(self, numerator, denominator=1):
        """The same rows at another resolution; None where they do not divide."""
        values = (*self.starts, self.before, self.behind)
        if any(v * numerator % denominator for v in values):
            return None
        *starts, before, behind = (v * numerator // denominator for v in values)
        return Level(tuple(starts), before, behind)


def _strided(module):
    """The product of the strides along the height of all of its convolutions, at most 64."""
    product = 1
    for part in module.modules():
        if isinstance(part, (torch.nn.Conv2d, torch.nn.Conv3d)):
            product *= part.stride[_ROWS]
    return min(product, 64)


def _cuttable(module):
    """Whether it has a convolution that reads other rows. NOTE: one of single pixels between two
    parts of a model (a quantisation) costs less than to put its output together."""
    return any(isinstance(part, (torch.nn.Conv2d, torch.nn.Conv3d))
               and (part.kernel_size[_ROWS] > 1 or part.stride[_ROWS] > 1)
               for part in module.modules())


def _reach(model):
    """Rows beside its own that a row of output may need, by the model's convolutions; at least
    1."""
    reach = 1
    for part in model.modules():
        if isinstance(part, (torch.nn.Conv2d, torch.nn.Conv3d)) and part.stride[_ROWS] == 1:
            reach = max(reach, part.dilation[_ROWS] * (part.kernel_size[_ROWS] - 1) // 2)
    return reach


class Shards:
    """This rank among the others."""

    def __init__(self, model, group, gather=True):
        """group: a process group of torch.distributed, whose ranks all make the same calls."""
        if not dist.is_available() or not dist.is_initialized():
            raise InvalidArgument(
                "group is given, but torch.distributed is not initialised; legal: "
                "torch.distributed.init_process_group() first")
        self.group, self.gather = group, gather
        self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise InvalidArgument("this process is no rank of group; legal: one of its ranks")
        self.margin = _reach(model)
        self.active = False  # Whether the call that runs is cut.
        self.exchanges = self.sent_bytes = 0
        self.shares: dict[tuple, torch.Tensor] = {}  # Of each rank's pixels, on the device.
        self._align = {id(module): _strided(module) for module in model.modules()}
        self._whole = {id(module) for module in model.modules() if not _cuttable(module)}
        self._levels: dict[int, Level] = {}  # By the rows that this rank's tensors have.
        self._current: tuple[int, int] | None = None  # Rows and columns of the last picture.
        self._store = dist.distributed_c10d._get_default_store()
        self._calls = 0
        name = "world" if group is None else group.group_name
        self._place = f"{name}/{_made[name]}"  # Ranks make theirs in the same order.
        _made[name] += 1
        self._epoch = 0
        self.peers = Peers(group, self.rank, self.count)
        # NOTE: NCCL wants its first call from all ranks.
        dist.barrier(group)

    # ---- Rows ----

    def _split(self, rows, align):
        """Starts of each rank and the extent; as even as it goes in units of `align` rows."""
        units, rest = divmod(rows, align)
        if rest or units < self.count:
            return None
        starts = [align * (units // self.count * r + min(units % self.count, r))
                  for r in range(self.count)]
        return (*starts, rows)

    def _level(self, rows):
        """The level of a tensor with so many rows; None where there is none."""
        found = self._levels.get(rows)
        if found is None:  # Rows that were split or joined by a change of axes.
            for known, level in list(self._levels.items()):
                factor = math.gcd(rows, known)
                made = level.times(rows // factor, known // factor)
                if made is not None and rows % known == 0:
                    found = self._levels[rows] = made
                    break
        return found

    def require_level(self, rows, what):
        level = self._level(rows)
        if level is None:
            raise Unsupported(
                f"{what} of {rows} rows cannot be cut by height over {self.count} ranks: no "
                "picture of the call has so many; legal: convoy.accelerate without group")
        return level

    def note(self, shape):
        """The model has a picture of this shape now."""
        if self.active and len(shape) in (4, 5):
            self._current = shape[_ROWS], shape[-1]

    # ---- In and out ----

    def begin(self, module, tensors):
        """Whether a call of `module` with these is cut; the reason why not, else "". All ranks
        must come with the same shapes."""
        self.active = False
        if id(module) in self._whole:
            return ""
        pictures = [t for t in tensors if t.dtype.is_floating_point and t.dim() in (4, 5)]
        if not pictures:
            return "no input has rows"
        shapes = ", ".join(f"{list(t.shape)} {t.dtype}" for t in pictures)
        late = self.peers.why_late()
        if late:
            raise LaunchFailure(late)
        self._agree(f"{type(module).__name__} with {shapes}")
        rows = {t.shape[_ROWS] for t in pictures}
        if len(rows) > 1:
            return f"inputs of {sorted(rows)} rows"
        (rows,) = rows
        align = self._align.get(id(module), 1)
        starts = self._split(rows, align)
        # NOTE: half of the rows may be left after each stride; a rank must keep what its
        # neighbour's taps reach.
        least = self.margin * align
        if starts is None or min(b - a for a, b in itertools.pairwise(starts)) < least:
            return (f"{rows} rows are too few for {self.count} ranks; legal: at least "
                    f"{self.count * max(align * self.margin, 1)}")
        before = self.margin if self.rank > 0 else 0
        behind = self.margin if self.rank + 1 < self.count else 0
        level = Level(starts, before, behind)
        self._levels = {level.before + level.own(self.rank) + level.behind: level}
        self.active = True
        self._current = None
        return ""

    def _agree(self, call):
        """Throws where another rank makes another call, or none within the store's time-out.
        NOTE: by the hosts alone, so that no GPU waits, and in a graph's capture too."""
        self._calls += 1
        place = f"convoy/{self._place}/{self._calls}/"
        keys = [f"{place}{rank}" for rank in range(self.count)]
        self._store.set(keys[self.rank], call)
        try:
            calls = [text.decode() for text in self._store.multi_get(keys)]
        except dist.DistError:
            late = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
            raise LaunchFailure(
                f"rank {self.rank} waited {self._store.timeout.total_seconds():.0f} s for ranks "
                f"{late} to call {call}") from None
        if self._calls > 2:  # All have read what was before the last.
            self._store.delete_key(f"convoy/{self._place}/{self._calls - 2}/{self.rank}")
        for rank, other in enumerate(calls):
            if other != calls[0]:
                raise InvalidArgument(f"the ranks differ: rank {rank} calls {other}, but rank 0 "
                                      f"calls {calls[0]}; legal: the same")

    def enter(self, tensor):
        """This rank's rows of a whole tensor."""
        (level,) = self._levels.values()
        first = level.starts[self.rank] - level.before
        part = _layout.inner_copy(tensor.narrow(
            _ROWS, first, level.before + level.own(self.rank) + level.behind))
        self._mark(part, self.margin, self.margin)
        self.note(part.shape)
        return part

    def leave(self, tensor):
        """The whole tensor of this rank's rows, or its own rows where nothing is gathered."""
        if not self.active or tensor.dim() not in (4, 5):
            return tensor
        level = self.require_level(tensor.shape[_ROWS], "an output")
        own = tensor.narrow(_ROWS, level.before, level.own(self.rank))
        if not self.gather:
            return own
        most = max(level.own(rank) for rank in range(self.count))
        shape = list(own.shape)
        shape[_ROWS] = most
        packed = own.new_empty(shape)
        packed.narrow(_ROWS, 0, own.shape[_ROWS]).copy_(own)
        parts = self.all_gather(packed)
        shape[_ROWS] = level.starts[-1]
        whole = own.new_empty(shape)
        for rank in range(self.count):
            whole.narrow(_ROWS, level.starts[rank], level.own(rank)).copy_(
                parts[rank].narrow(_ROWS, 0, level.own(rank)))
        return whole

    def all_gather(self, tensor):
        """[ranks, ...]: every rank's."""
        parts = tensor.new_empty((self.count * tensor.shape[0], *tensor.shape[1:]))
        if tensor.is_contiguous() and self.peers.gathers(tensor):
            self.peers.all_gather(tensor, parts)
        else:
            dist.all_gather_into_tensor(parts, tensor, group=self.group)
        return parts.unflatten(0, (self.count, tensor.shape[0]))

    # ---- Halos ----

    def _mark(self, tensor, before, behind):
        """Remember that so many rows of its margins, where it has them, are the neighbours'.
        NOTE: the same on every rank, the first and last too: all exchange, or none does."""
        if before > 0 or behind > 0:
            tensor._convoy_halo = self._epoch, max(before, 0), max(behind, 0)

    def _held(self, tensor):
        """(rows in front, rows behind) that are the neighbours'."""
        epoch, before, behind = getattr(tensor, "_convoy_halo", (-1, 0, 0))
        return (before, behind) if epoch == self._epoch else (0, 0)

    def _holds(self, tensor, before, behind):
        has_before, has_behind = self._held(tensor)
        return has_before >= before and has_behind >= behind

    def _mark_made(self, made, read, begin, end, factor, residual):
        """`made` is a convolution of `read` with paddings `begin` and `end`: of the neighbours'
        rows it has those whose taps were there."""
        before = min(self._held(tensor)[0] for tensor in read) * factor - begin
        behind = min(self._held(tensor)[1] for tensor in read) * factor - end
        if residual is not None:
            before = min(before, self._held(residual)[0])
            behind = min(behind, self._held(residual)[1])
        self._mark(made, before, behind)
        return made

    def follow(self, made, source):
        """`made` has frames or channels of `source` with all of its rows: and so its halos."""
        mark = getattr(source, "_convoy_halo", None)
        if (made is not source and mark is not None and made.dim() in (4, 5)
                and made.shape[_ROWS:] == source.shape[_ROWS:]):
            made._convoy_halo = mark
        return made

    def follow_index(self, made, tensor, items):
        """`made` is tensor[items]. Throws where that takes rows apart."""
        rank = tensor.dim()
        if rank not in (4, 5) or self._level(tensor.shape[_ROWS]) is None:
            return
        given = sum(item is not None and item is not Ellipsis for item in items)
        axis = 0
        for item in items:
            if item is Ellipsis:
                axis += rank - given
            elif item is not None:
                if axis == rank + _ROWS and item != slice(None) and made.shape[_ROWS:-1] != (
                        tensor.shape[_ROWS:-1]):
                    self.require_whole_rows(tensor.shape, axis, "an index")
                axis += 1
        self.follow(made, tensor)

    def written(self):
        """Somebody wrote into a tensor: margins that were good may not be any more."""
        self._epoch += 1

    def _halos(self, tensors, before, behind):
        """(sends, receives), each (rank, rows of a tensor) by rank: `before` rows in front of each
        rank's own, and `behind` rows after them."""
        sends, receives = [], []
        for tensor in tensors:
            level = self.require_level(tensor.shape[_ROWS], "a tensor")
            own, first = level.own(self.rank), level.before
            past = first + own
            for peer, send_at, send, at, get in (
                    (self.rank - 1, first, behind, first - before, before),
                    (self.rank + 1, past - before, before, past, behind)):
                if not 0 <= peer < self.count:
                    continue
                room = first if peer < self.rank else level.behind
                if get > room or max(send, get) > min(own, level.own(peer)):
                    raise Unsupported(
                        f"a convolution reads {get} rows of rank {peer}, which has "
                        f"{level.own(peer)}, into a margin of {room}; legal: fewer ranks, or "
                        "convoy.accelerate without group")
                if send:
                    sends.append((peer, tensor.narrow(_ROWS, send_at, send)))
                if get:
                    receives.append((peer, tensor.narrow(_ROWS, at, get)))
        by_rank = operator.itemgetter(0)
        return sorted(sends, key=by_rank), sorted(receives, key=by_rank)

    def start(self, tensors, before, behind, phase=PEERS_PUT):
        """Begin to fetch `before` rows in front of each rank's own and `behind` rows after them,
        for tensors of one type that may have different levels. Returns what `finish` takes."""
        sends, receives = self._halos(tensors, before, behind)
        sent_bytes = sum(rows.nbytes for _, rows in sends)
        self.sent_bytes += sent_bytes
        self.exchanges += 1
        # NOTE: the same on every rank, those at the ends too.
        largest = sum(-(-t[:, :, ..., :1, :].nbytes * max(before, behind) // 256) * 256
                      for t in tensors)
        device = tensors[0].device
        if self.peers.ready(device, largest, len(tensors)):
            self.peers.exchange([(rank, _memory(rows)) for rank, rows in sends],
                                [(rank, _memory(rows)) for rank, rows in receives], phase, device)
            return _ByPeers(receives, device, phase)
        # One buffer each way, cut by peer: one call for all neighbours and tensors.
        sent, outgoing = _buffer(sends, tensors[0])
        received, parts = _buffer(receives, tensors[0])
        for (_, rows), part in zip(sends, outgoing):
            _layout.copy(part.movedim(-1, 1), rows)
        counts = [[sum(rows.numel() for rank, rows in moves if rank == peer)
                   for peer in range(self.count)] for moves in (receives, sends)]
        work = dist.all_to_all_single(received, sent, *counts, group=self.group, async_op=True)
        return work, sent, [(rows, part) for (_, rows), part in zip(receives, parts)]

    def finish(self, started):
        """Wait for the rows, and put them where they belong."""
        if isinstance(started, _ByPeers):
            if started.phase == PEERS_PUT:
                self.peers.exchange([], [(rank, _memory(rows)) for rank, rows in started.receives],
                                    PEERS_TAKE, started.device)
            return
        work, _, received = started
        if work is not None:
            work.wait()
        for target, packed in received:
            _layout.copy(target, packed.movedim(-1, 1))

    def fill(self, tensors, before, behind):
        """Let the margins of tensors hold so many of the neighbours' rows; where they do not,
        all rows that there is room for: what the next layers need as well."""
        tensors = [t for t in tensors if not self._holds(t, before, behind)]
        if not tensors or not (before or behind):
            return
        room = min(self.require_level(t.shape[_ROWS], "a tensor").margin for t in tensors)
        before, behind = max(before, room), max(behind, room)
        self.finish(self.start(tensors, before, behind, PEERS_BOTH))
        for tensor in tensors:
            self._mark(tensor, before, behind)

    def _converted(self, session, tensor):
        return self.follow(session.convert(tensor), tensor)

    # ---- What a model does ----

    def convolution(self, node, x, cache, residual):
        """A convolution of this rank's rows."""
        session = node.session
        axis = len(node.begin) + _ROWS
        taps, stride = node.weight.shape[_ROWS], node.stride[axis]
        begin, end = node.begin[axis], node.end[axis]
        reach = node.dilation[axis] * (taps - 1)
        if taps == 1 and stride == 1 and begin == end == 0:
            made = session.conv(node, x, cache, residual)
            read = [x] if cache is None else [x, cache]
            return self._mark_made(made, read, 0, 0, 1, residual)
        x = self._converted(session, x)
        level = self.require_level(x.shape[_ROWS], "a convolution")
        if stride > 1:
            return self._strided_convolution(node, x, cache, residual, level)
        if begin + end != reach:
            raise Unsupported(
                f"a convolution whose output has {begin + end - reach:+d} rows cannot be cut by "
                "height; legal: padding that keeps the rows, or convoy.accelerate without group")
        before, behind = (-(-rows // node.upsample) for rows in (begin, end))
        wanted = [x]
        if cache is not None:
            cache = self._converted(session, cache)
            wanted.append(cache)
        self.fill(wanted, before, behind)
        if node.upsample > 1:
            self._levels[x.shape[_ROWS] * node.upsample] = level.times(node.upsample)
        made = session.conv(node, x, cache, residual)
        return self._mark_made(made, wanted, begin, end, node.upsample, residual)

    def _strided_convolution(self, node, x, cache, residual, level):
        """Of the rows that own outputs read, and no others; then with margins again."""
        session, axis = node.session, len(node.begin) + _ROWS
        stride, begin, end = node.stride[axis], node.begin[axis], node.end[axis]
        reach = node.dilation[axis] * (node.weight.shape[_ROWS] - 1)
        rows = level.starts[-1]
        kept = (rows + begin + end - reach - 1) // stride + 1 == rows // stride
        if any(s % stride for s in level.starts) or not kept or not (
                residual is None and cache is None):
            raise Unsupported(
                f"a convolution of stride {stride} over {rows} rows, cut at {list(level.starts)}, "
                "cannot be cut by height; legal: rows of each rank that the stride divides, or "
                "convoy.accelerate without group")
        before, behind = begin, max(reach - begin - stride + 1, 0)
        self.fill([x], before, behind)
        first, last = self.rank == 0, self.rank + 1 == self.count
        top, bottom = (0 if first else before), (0 if last else behind)
        inside = x.narrow(_ROWS, level.before - top, top + level.own(self.rank) + bottom)
        part = node.with_geometry(node.how.having(
            tuple(b if i != axis or first else 0 for i, b in enumerate(node.begin)),
            tuple(e if i != axis or last else 0 for i, e in enumerate(node.end)), node.modes))
        own = session.conv(part, session.convert(inside), None, None)
        made = Level(tuple(s // stride for s in level.starts), level.before, level.behind)
        shape = list(own.shape)
        shape[_ROWS] = made.before + made.own(self.rank) + made.behind
        out = _layout.empty_inner(torch.Size(shape), own)
        _layout.copy(out.narrow(_ROWS, made.before, made.own(self.rank)),
                     own.narrow(_ROWS, 0, made.own(self.rank)))
        for at, count in ((0, made.before), (made.before + made.own(self.rank), made.behind)):
            if count:
                out.narrow(_ROWS, at, count).zero_()
        return out

    def rows_after(self, shape, node):
        """The shape of a convolution's output here, where it differs from the plain one."""
        axis = len(node.begin) + _ROWS
        stride = node.stride[axis]
        if not self.active or stride == 1:
            return shape
        level = self._level(node.source.shape[_ROWS])
        if level is None:
            return shape
        made = Level(tuple(s // stride for s in level.starts), level.before, level.behind)
        shape = list(shape)
        shape[_ROWS] = made.before + made.own(self.rank) + made.behind
        self._levels[shape[_ROWS]] = made
        return torch.Size(shape)

    def norm(self, node, x):
        """A norm of this rank's rows, its halos fetched meanwhile."""
        session = node.session
        run = group_norm if node.rule == "group" else _of_pixels
        if node.wide or x.dim() not in (4, 5):
            return run(self, node, x)
        x = self._converted(session, x)
        level = self.require_level(x.shape[_ROWS], "a norm")
        # NOTE: where there is room for four layers' rows, they are fetched for two at least: the
        # norm's input is the residual of two layers as well.
        ahead = level.margin >= 4 * self.margin
        need = 2 * self.margin if ahead else self.margin
        most = level.margin
        if self._holds(x, need, need):
            return self.follow(run(self, node, x), x)
        if min(level.own(rank) for rank in range(self.count)) < most:
            return run(self, node, x)
        if not ahead or node.rule == "group":
            self.fill([x], need, need)
            return self.follow(run(self, node, x), x)
        # Large pictures: the rows come while the norm runs; then they are normalised as well.
        started = self.start([x], most, most)
        try:
            own = session.convert(run(self, node, x))
        finally:
            self.finish(started)  # NOTE: what was put is taken, or the next exchange takes it.
        first, past = level.before, level.before + level.own(self.rank)
        ends = [own.narrow(_ROWS, first - most, most)] if level.before else []
        ends += [own.narrow(_ROWS, past, most)] if level.behind else []
        came = [x.narrow(_ROWS, first - most, most)] if level.before else []
        came += [x.narrow(_ROWS, past, most)] if level.behind else []
        for end, rows in zip(ends, came):
            _layout.copy(end, run(self, node, _layout.inner_copy(rows)))
        self._mark(x, most, most)
        self._mark(own, most, most)
        return own

    def tokens(self, count, what):
        """(frames, rows, columns, level) of `count` tokens that are pixels of the last picture."""
        rows, columns = self._current or (0, 0)
        level = self._level(rows) if rows else None
        if level is None or count % (rows * columns):
            raise Unsupported(
                f"{what} over {count} tokens cannot be cut by height: the last picture has "
                f"{rows} x {columns} pixels here; legal: convoy.accelerate without group")
        return count // (rows * columns), rows, columns, level

    def whole_tokens(self, tensor, axis):
        """A tensor of this rank's tokens with those of all ranks, without margins."""
        frames, rows, columns, level = self.tokens(tensor.shape[axis], "attention")
        axis %= tensor.dim()
        most = max(level.own(rank) for rank in range(self.count))
        moved = tensor.movedim(axis, 0).unflatten(0, (frames, rows, columns))
        own = moved.narrow(1, level.before, level.own(self.rank))
        nbytes = frames * most * own[0, 0].nbytes
        if self.count == 2 and nbytes <= _MOST_OF_TWO and self.peers.ready(tensor.device, nbytes):
            whole = own.new_empty((frames, level.starts[-1], *own.shape[2:]))
            mine, theirs = (whole.narrow(1, level.starts[rank], level.own(rank))
                            for rank in (self.rank, 1 - self.rank))
            mine.copy_(own)
            self.peers.exchange([(1 - self.rank, mine)], [(1 - self.rank, theirs)], PEERS_BOTH,
                                tensor.device)
            return whole.flatten(0, 2).movedim(0, axis)
        packed = own.new_empty((frames, most, *own.shape[2:]))
        packed[:, :own.shape[1]].copy_(own)
        parts = self.all_gather(packed)
        whole = torch.cat([parts[rank][:, :level.own(rank)] for rank in range(self.count)], 1)
        return whole.flatten(0, 2).movedim(0, axis)

    def whole_mask(self, mask, count):
        """A mask over this rank's tokens for the keys of all: one that depends on frames alone."""
        _, rows, columns, level = self.tokens(count, "attention")
        inside = rows * columns
        if mask.shape[-1] != count:
            raise Unsupported("a mask that is spread over the keys cannot be cut by height; legal: "
                              "one that has them all, or convoy.accelerate without group")
        by_frame = mask[..., ::inside]
        capturing = mask.is_cuda and torch.cuda.is_current_stream_capturing()
        if not capturing and not torch.equal(by_frame, mask[..., inside - 1::inside]):
            raise Unsupported("a mask within frames cannot be cut by height; legal: one that "
                              "depends on frames alone, or convoy.accelerate without group")
        return by_frame.repeat_interleave(level.starts[-1] * columns, -1)

    def require_local(self, name, args):
        """Throws for a function that may mix rows."""
        plain = name.strip("_")
        plain = plain[1:] if plain[:1] in "ri" and plain[1:] in _POINTWISE else plain
        if name not in _POINTWISE and plain not in _POINTWISE:
            raise Unsupported(
                f"{name} may mix the rows of a picture, and cannot be cut by height over "
                f"{self.count} ranks; legal: convoy.accelerate without group")

    def require_whole_rows(self, shape, axis, what):
        """Throws where `what` along `axis` takes rows apart or puts them together."""
        if len(shape) in (4, 5) and axis % len(shape) == len(shape) + _ROWS and (
                self._level(shape[_ROWS]) is not None):
            raise Unsupported(f"{what} along the height cannot be cut by height over {self.count} "
                              "ranks; legal: convoy.accelerate without group")


def _memory(tensor):
    """With channels at the end, as they lie."""
    return tensor.movedim(1, -1)


@dataclasses.dataclass(frozen=True)
class _ByPeers:
    """An exchange under way, by peer memory."""

    receives: list
    device: torch.device
    phase: int


def _buffer(moves, like):
    """(memory for all of these rows, its parts with channels at the end)."""
    total = sum(rows.numel() for _, rows in moves)
    memory = torch.empty(total, dtype=like.dtype, device=like.device)
    parts, at = [], 0
    for _, rows in moves:
        parts.append(memory[at:at + rows.numel()].view(_memory(rows).shape))
        at += rows.numel()
    return memory, parts


def _of_pixels(shards, node, x):
    return node.eager(x.float()) if node.wide else node.session.norm(node, x)
